/*
 * libuext4: ext4 volumes in user space.
 *
 * Rules of all calls
 *
 * - Results. A call returns 0 or a count, or the negative errno of its failure. uext4_last_error() has the
 *   reason as a line of text, for the thread that made the call.
 * - Units. Positions, lengths and sizes are bytes, unless a field says otherwise.
 * - Handles. A handle is no address. NULL is -EINVAL; one that was closed, or is of another kind, is -EBADF. A
 *   queue takes files of its own volume only (-EINVAL). Every handle is closed once, by the call of its kind.
 * - Pointers. NULL where memory is needed is -EFAULT. Other pointers are believed: strings end with a zero, and
 *   memory has the length that is said. Nothing that is passed is kept after the call, but for the memory of
 *   queued requests, which is the library's from uext4_queue_submit() until uext4_queue_reap() gives the
 *   completion.
 * - Threads. Volumes, files and replacements may be used by any number of threads at once. A queue or a directory
 *   is for one thread at a time; a queue answers others with -EBUSY.
 * - Durability. A write is durable after uext4_fdatasync() or uext4_fsync() of its file, or when it returns if
 *   it has UEXT4_DSYNC or UEXT4_SYNC. A change of sizes or blocks is durable after the next uext4_fsync() of the
 *   file, a name that was made or taken away after uext4_sync(), and everything with uext4_close().
 * - Fork. A child process can use no handle that it inherits: calls fail, and closing has no effect on the
 *   parent.
 * - Versions. Functions are never changed, only added. uext4_options grows at its end.
 */

#ifndef UEXT4_H
#define UEXT4_H

/* Made by cbindgen from crates/capi. Do not edit. */

#include <stddef.h>
#include <stdint.h>

// Nanoseconds of a time for `uext4_utimens`: the current time, as `UTIME_NOW`.
#define UEXT4_TIME_NOW 1073741823

// Nanoseconds of a time for `uext4_utimens`: the time stays, as `UTIME_OMIT`.
#define UEXT4_TIME_OMIT 1073741822

// `uext4_access`: execute a file, or look up names in a directory.
#define UEXT4_ACCESS_EXECUTE 1

// `uext4_access`: write a file, or change names in a directory.
#define UEXT4_ACCESS_WRITE 2

// `uext4_access`: read a file, or list a directory.
#define UEXT4_ACCESS_READ 4

// `uext4_setxattr`: the attribute must not exist (`XATTR_CREATE`).
#define UEXT4_XATTR_CREATE 1

// `uext4_setxattr`: the attribute must exist (`XATTR_REPLACE`).
#define UEXT4_XATTR_REPLACE 2

// The file is read.
#define UEXT4_READ 1

// The file is written.
#define UEXT4_WRITE 2

// The file is written at its end only, by `uext4_append`.
#define UEXT4_APPEND 4

// The file is made if it is not there.
#define UEXT4_CREATE 8

// The file is made, and must not be there.
#define UEXT4_CREATE_NEW 16

// The file is emptied.
#define UEXT4_TRUNCATE 32

// Limits of quota hold for making the file and for what is written, as for a user other than root: `-EDQUOT`.
#define UEXT4_LIMITED 64

// Requests of any bytes (`uext4_pread_any`, `uext4_pwrite_any`, `uext4_append`) go to the device at once, without
// pages in memory.
#define UEXT4_DIRECT 128

// I/O priority, in the flags of `uext4_file_open` and `uext4_queue_open`: before all others. Needs `CAP_SYS_NICE`. A
// class is combined with its level, 0 (first) to 7 (last), shifted by `UEXT4_PRIO_SHIFT`. Without a class a file's
// requests have the priority of their queue or of the calling thread.
#define UEXT4_PRIO_REALTIME 134217728

// I/O priority: the class of threads that ask for none.
#define UEXT4_PRIO_BEST_EFFORT 268435456

// I/O priority: when nobody else has anything to do.
#define UEXT4_PRIO_IDLE 402653184

// Where the level of an I/O priority begins.
#define UEXT4_PRIO_SHIFT 24

// Of a write: as `O_DSYNC`, durable when it returns or completes.
#define UEXT4_DSYNC 1

// Of a write: as `O_SYNC`.
#define UEXT4_SYNC 2

// Of a read or write: fails with `EAGAIN` rather than waits for others, for room, for metadata that is not in memory,
// or until the device can take a request of up to 128 KiB.
#define UEXT4_NOWAIT 4

// Of a write: never torn. After a crash all of its bytes are old or all are new, on any device. The length is a power
// of two from the file system's block size to `UEXT4_ATOMIC_MAX`, and the position a multiple of it: otherwise
// `-EINVAL`. `-EOPNOTSUPP` for a volume without a journal or with clusters, and for a file without extents.
#define UEXT4_ATOMIC 8

// Most bytes of an atomic write.
#define UEXT4_ATOMIC_MAX 65536

// `uext4_fallocate`: holes get blocks that read as zeros; the file grows to the end of the range.
#define UEXT4_FALLOC_ALLOCATE 0

// The same, but the size stays.
#define UEXT4_FALLOC_KEEP_SIZE 1

// The range reads as zeros, its whole blocks are freed, the size stays.
#define UEXT4_FALLOC_PUNCH 2

// The range reads as zeros and has blocks; the file grows to its end.
#define UEXT4_FALLOC_ZERO 3

// The same, but the size stays.
#define UEXT4_FALLOC_ZERO_KEEP_SIZE 4

// The range is taken out.
#define UEXT4_FALLOC_COLLAPSE 5

// A hole is put in.
#define UEXT4_FALLOC_INSERT 6

// Only the thread that makes the queue drives it, and it must keep calling (`DEFER_TASKRUN`). Makes completions
// cheaper.
#define UEXT4_QUEUE_OWNER_DRIVEN 1

// Completions are polled for (`IOPOLL`); an error on a device that cannot. Implies `UEXT4_QUEUE_OWNER_DRIVEN`.
#define UEXT4_QUEUE_POLLED 2

// Memory of `uext4_queue_alloc` is registered with the kernel; an error where it cannot be.
#define UEXT4_QUEUE_REGISTERED 4

// Reads. `flags`: `UEXT4_NOWAIT`.
#define UEXT4_OP_READ 0

// Writes. `flags`: `UEXT4_DSYNC`, `UEXT4_SYNC`, `UEXT4_NOWAIT`, `UEXT4_ATOMIC`.
#define UEXT4_OP_WRITE 1

// As `fdatasync`, for what completed before.
#define UEXT4_OP_FDATASYNC 2

// As `fsync`, for what completed before.
#define UEXT4_OP_FSYNC 3

// Frees blocks (`UEXT4_FALLOC_PUNCH`).
#define UEXT4_OP_DISCARD 4

// Changes blocks: `flags` is one of `UEXT4_FALLOC_…`.
#define UEXT4_OP_FALLOCATE 5

// Quota of users.
#define UEXT4_QUOTA_USER 0

// Quota of groups.
#define UEXT4_QUOTA_GROUP 1

// Quota of projects.
#define UEXT4_QUOTA_PROJECT 2

// `uext4_rename_with`: an existing new name is `-EEXIST` (`RENAME_NOREPLACE`).
#define UEXT4_RENAME_NOREPLACE 1

// `uext4_rename_with`: both names exist, and what they lead to changes places (`RENAME_EXCHANGE`).
#define UEXT4_RENAME_EXCHANGE 2

// `uext4_rename_with`: a whiteout stays under the old name (`RENAME_WHITEOUT`).
#define UEXT4_RENAME_WHITEOUT 4

// The volume may be changed. Without it nothing is ever written to the device.
#define UEXT4_OPEN_WRITE 1

// Opens for reading although somebody else uses the device. What is read may change meanwhile.
#define UEXT4_OPEN_FORCE 2

// A thread of the library commits what is old and writes old times. Otherwise call `uext4_tick`.
#define UEXT4_OPEN_BACKGROUND 4

// Data of files may have the blocks that the volume sets aside for root.
#define UEXT4_OPEN_RESERVED 8

// The device is told of blocks that are freed.
#define UEXT4_OPEN_DISCARD 16

// Writes leave set-user-id and set-group-id alone.
#define UEXT4_OPEN_KEEP_SET_ID 32

// Reads set the time of the last access where the file changed since, or after a day.
#define UEXT4_OPEN_RELATIME 64

// Every read sets the time of the last access.
#define UEXT4_OPEN_STRICT_ATIME 128

// A directory being read.
struct uext4_dir;

// An open file.
struct uext4_file;

// A queue of I/O. One thread at a time uses it: another gets `-EBUSY`.
struct uext4_queue;

// A new file without a name that will take the name of another.
struct uext4_replacement;

// An open volume.
struct uext4_volume;

// A time: seconds since 1970 and nanoseconds.
struct uext4_time {
  // Seconds since 1970-01-01, until 2446.
  int64_t seconds;
  // Nanoseconds, below 10⁹.
  uint32_t nanoseconds;
  // Not used, 0.
  uint32_t reserved;
};

// A user who asks, or makes something.
struct uext4_caller {
  // User.
  uint32_t uid;
  // Group.
  uint32_t gid;
  // Supplementary groups; NULL if there are none.
  const uint32_t *groups;
  // How many.
  size_t group_count;
};

// Attributes of a file, as `statx` has them.
struct uext4_stat {
  // Inode number.
  uint32_t ino;
  // Type and permissions, as `st_mode` (`S_IFREG | 0644`).
  uint32_t mode;
  // Owner.
  uint32_t uid;
  // Group.
  uint32_t gid;
  // Hard links.
  uint32_t links;
  // Bytes of a block of the volume.
  uint32_t block_size;
  // Bytes of the file.
  uint64_t size;
  // Space that it takes, in units of 512 bytes.
  uint64_t blocks;
  // Major number of a device node.
  uint32_t rdev_major;
  // Minor number of a device node.
  uint32_t rdev_minor;
  // Flags of the inode (`FS_…_FL`).
  uint32_t flags;
  // Project, 0 if none.
  uint32_t project;
  // Last access.
  struct uext4_time accessed;
  // Last change of the contents.
  struct uext4_time modified;
  // Last change of the attributes.
  struct uext4_time changed;
  // Creation; all zeros if it is not recorded.
  struct uext4_time created;
};

// An entry of a directory.
struct uext4_dirent {
  // Inode number.
  uint32_t ino;
  // Type, as the type bits of `st_mode`; 0 where the directory does not say.
  uint32_t kind;
  // The name, which ends with a zero.
  char name[256];
};

// A request.
struct uext4_request {
  // Comes back with the completion.
  uint64_t tag;
  // Byte of the file.
  uint64_t pos;
  // Bytes, below 4 GiB for reads and writes.
  uint64_t length;
  // Memory of a read or write: the library's from submission until the completion is reaped.
  void *data;
  // What `uext4_queue_attach` returned.
  uint32_t file;
  // `UEXT4_OP_…`.
  uint16_t op;
  // Flags of the operation.
  uint16_t flags;
};

// A finished request.
struct uext4_completion {
  // Of the request.
  uint64_t tag;
  // Bytes transferred, or the negative errno of its failure.
  int64_t result;
};

// What a user, group or project uses and may use. Space is in bytes; a limit of 0 is none; times are in seconds since
// 1970, and 0 if the soft limit is not exceeded.
struct uext4_quota {
  // Number of the user, group or project.
  uint32_t id;
  // Not used, 0.
  uint32_t reserved;
  // Space in use.
  uint64_t space;
  // Space that may be used for the time of grace only. Limits are kept in KiB, rounded up.
  uint64_t space_soft;
  // Most space.
  uint64_t space_hard;
  // When the soft limit of space becomes a hard one.
  uint64_t space_until;
  // Inodes in use.
  uint64_t inodes;
  // Inodes that may be used for the time of grace only.
  uint64_t inodes_soft;
  // Most inodes.
  uint64_t inodes_hard;
  // When the soft limit of inodes becomes a hard one.
  uint64_t inodes_until;
};

// How a volume is opened. Zeros mean the defaults.
struct uext4_options {
  // `sizeof(struct uext4_options)`: programs that know fewer fields go on.
  size_t size;
  // `UEXT4_OPEN_…`.
  uint32_t flags;
  // Milliseconds after which a transaction is committed that nobody asked for; 0: 5 seconds.
  uint32_t commit_interval_ms;
  // Bytes of metadata blocks kept in memory; 0: 64 MiB.
  uint64_t metadata_budget;
  // Bytes of the map of one file kept in memory; 0: 64 MiB.
  uint64_t map_budget;
  // Bytes of unused inodes kept in memory; 0: 8 MiB.
  uint64_t inode_budget;
  // Which optimisations are off, such as `"simple-read=off"`; NULL: none.
  const char *switches;
  // Bytes of names kept in memory after they were looked up, absent ones too; 0: 8 MiB, `UINT64_MAX`: none.
  uint64_t name_budget;
  // The device that holds the journal, as text in the device grammar, of a volume that has it outside; NULL: none.
  // It is opened with the volume, for the same, and closed with it.
  const char *journal;
  // Bytes of files kept in memory for requests of any bytes; 0: 64 MiB, `UINT64_MAX`: none, so that every request
  // goes to the device at once.
  uint64_t page_budget;
};

// Space and inodes of a volume. Blocks are blocks of the volume.
struct uext4_statfs {
  // Bytes of a block.
  uint32_t block_size;
  // Not used, 0.
  uint32_t reserved;
  // Blocks that data can have.
  uint64_t blocks;
  // Free blocks.
  uint64_t free;
  // Free blocks that data of files can have.
  uint64_t available;
  // Inodes.
  uint64_t inodes;
  // Free inodes.
  uint64_t free_inodes;
};

// What direct I/O of a volume must obey, and what its device can do.
struct uext4_geometry {
  // Positions and lengths of direct I/O are multiples of this many bytes.
  uint32_t logical_block;
  // Addresses of direct I/O are multiples of this many bytes.
  uint32_t memory_align;
  // Bytes of a block of the volume.
  uint32_t block_size;
  // 1 if a write can be made durable by itself (FUA).
  uint8_t fua;
  // 1 if the device has a volatile cache, so that durability takes a flush or FUA.
  uint8_t volatile_cache;
  // 1 if the volume may be changed.
  uint8_t writable;
  // Not used, 0.
  uint8_t reserved;
};

// A counter of a volume.
struct uext4_counter {
  // Its name. Lives as long as the library.
  const char *name;
  // Since the volume was opened.
  uint64_t value;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Sets the permissions of a file (`07777`). A symbolic link has none (`-EOPNOTSUPP` with `follow` 0). Durable after
// `uext4_fsync` of the file, or `uext4_sync`; so are all changes of attributes.
int32_t uext4_chmod(struct uext4_volume *volume,
                    const char *name,
                    uint32_t mode,
                    int32_t follow);

// Sets owner and group of a file; `UINT32_MAX` leaves one as it is. Strips set-user-id, set-group-id and capabilities.
int32_t uext4_chown(struct uext4_volume *volume,
                    const char *name,
                    uint32_t uid,
                    uint32_t gid,
                    int32_t follow);

// Sets the times of the last access (`times[0]`) and of the last change of the contents (`times[1]`), both to now if
// `times` is NULL. `nanoseconds` may be `UEXT4_TIME_NOW` or `UEXT4_TIME_OMIT`.
int32_t uext4_utimens(struct uext4_volume *volume,
                      const char *name,
                      const struct uext4_time *times,
                      int32_t follow);

// Sets the flags of a file (`FS_…_FL`, `chattr`): take those of `uext4_stat` and change some. Differences in flags
// that users cannot set are ignored.
int32_t uext4_set_flags(struct uext4_volume *volume,
                        const char *name,
                        uint32_t flags,
                        int32_t follow);

// Sets the project of a file, on volumes that have projects.
int32_t uext4_set_project(struct uext4_volume *volume,
                          const char *name,
                          uint32_t project,
                          int32_t follow);

// Whether a user may do something with a file, by its permissions and access control list, or as root: 0, or
// `-EACCES`. `access` holds `UEXT4_ACCESS_…`; 0 asks whether the file exists. Directories on the way to the file are
// not checked. No other call checks rights.
int32_t uext4_access(struct uext4_volume *volume,
                     const char *name,
                     const struct uext4_caller *caller,
                     uint32_t access,
                     int32_t follow);

// Sets an extended attribute, as `setxattr`; `flags` are 0 or one of `UEXT4_XATTR_…`. Access control lists are the
// attributes `system.posix_acl_access` and `system.posix_acl_default`.
int32_t uext4_setxattr(struct uext4_volume *volume,
                       const char *name,
                       const char *attribute,
                       const void *value,
                       size_t size,
                       uint32_t flags,
                       int32_t follow);

// Removes an extended attribute, as `removexattr`.
int32_t uext4_removexattr(struct uext4_volume *volume,
                          const char *name,
                          const char *attribute,
                          int32_t follow);

// What the last failed call of this thread says of its failure: a line of text, empty if none failed. It stays valid
// until the next call of this thread that fails.
const char *uext4_last_error(void);

// The block of the volume that the last failure of this thread is about; `UINT64_MAX` if it is about none.
uint64_t uext4_last_error_block(void);

// The inode that the last failure of this thread is about; 0 if it is about none.
uint32_t uext4_last_error_inode(void);

// Opens a regular file of the volume. `flags` are `UEXT4_READ`, … and an I/O priority; `mode` are the permissions of a
// file that is made.
// `switches` sets optimisations of this file (NULL: as the volume).
//
// Every open has a handle of its own. A file that is unlinked stays usable until its last handle is closed.
int32_t uext4_file_open(struct uext4_volume *volume,
                        const char *name,
                        uint32_t flags,
                        uint32_t mode,
                        const char *switches,
                        struct uext4_file **file);

// Ends the handle. Calls that use it in other threads, and queues that the file is attached to, go on; the file is
// closed with the last of them. Says nothing about durability: sync first.
int32_t uext4_file_close(struct uext4_file *file);

// Reads directly: `pos`, `length` and `data` must obey `uext4_geometry`. Returns the bytes read, fewer at the end of
// the file, 0 behind it.
int64_t uext4_pread(struct uext4_file *file,
                    void *data,
                    size_t length,
                    uint64_t pos,
                    uint32_t flags);

// Writes directly: `pos`, `length` and `data` must obey `uext4_geometry`. Returns `length`, or a failure of the whole
// write. `flags`: `UEXT4_DSYNC`, `UEXT4_SYNC`, `UEXT4_NOWAIT`, `UEXT4_ATOMIC`.
int64_t uext4_pwrite(struct uext4_file *file,
                     const void *data,
                     size_t length,
                     uint64_t pos,
                     uint32_t flags);

// Reads any bytes into any memory, over pages in memory unless the file was opened with `UEXT4_DIRECT`.
int64_t uext4_pread_any(struct uext4_file *file,
                        void *data,
                        size_t length,
                        uint64_t pos);

// Writes any bytes from any memory: into pages in memory, which a sync or the last close writes to the device. With
// flags, or if the file was opened with `UEXT4_DIRECT`, it goes to the device at once, alone in the file. If pages
// cannot be written later, the next sync of every open file of the inode fails.
int64_t uext4_pwrite_any(struct uext4_file *file,
                         const void *data,
                         size_t length,
                         uint64_t pos,
                         uint32_t flags);

// Writes any bytes at the end of a file that was opened with `UEXT4_APPEND`. Returns where they begin. Appends
// through one handle come one behind the other, each as a whole.
int64_t uext4_append(struct uext4_file *file,
                     const void *data,
                     size_t length,
                     uint32_t flags);

// As `fdatasync`: completed writes of the file, and what is needed to read them back, survive a crash.
int32_t uext4_fdatasync(struct uext4_file *file);

// As `fsync`.
int32_t uext4_fsync(struct uext4_file *file);

// `fsync` of `count` files of one volume, with one commit and one flush.
int32_t uext4_fsync_files(struct uext4_file *const *files, size_t count);

// As `ftruncate`. Durable after the next sync.
int32_t uext4_ftruncate(struct uext4_file *file, uint64_t size);

// As `fallocate`; `mode` is one of `UEXT4_FALLOC_…`. Durable after the next sync.
int32_t uext4_fallocate(struct uext4_file *file, uint32_t mode, uint64_t pos, uint64_t length);

// Makes every later write to the first `size` bytes a pure overwrite: blocks in as few runs as there is room for,
// zeroed and written. The file grows to `size` if it is shorter. Durable after the next sync.
int32_t uext4_prepare(struct uext4_file *file,
                      uint64_t size);

// Bytes of the file.
int64_t uext4_file_size(struct uext4_file *file);

// The first byte from `pos` on that is written; `-ENXIO` if none is.
int64_t uext4_seek_data(struct uext4_file *file, uint64_t pos);

// The first byte from `pos` on that is not written, the end of the file at the latest; `-ENXIO` if `pos` is not inside
// the file.
int64_t uext4_seek_hole(struct uext4_file *file,
                        uint64_t pos);

// The value of an extended attribute of an open file, as `fgetxattr`; sizes as of `uext4_getxattr`.
int64_t uext4_fgetxattr(struct uext4_file *file, const char *attribute, void *value, size_t size);

// Names of extended attributes of an open file, as `flistxattr`: as of `uext4_listxattr`.
int64_t uext4_flistxattr(struct uext4_file *file, char *list, size_t size);

// Sets an extended attribute of an open file, as `fsetxattr`; `flags` as of `uext4_setxattr`. It may be open for
// reading only.
int32_t uext4_fsetxattr(struct uext4_file *file,
                        const char *attribute,
                        const void *value,
                        size_t size,
                        uint32_t flags);

// Removes an extended attribute of an open file, as `fremovexattr`.
int32_t uext4_fremovexattr(struct uext4_file *file, const char *attribute);

// Attributes of an open file.
int32_t uext4_fstat(struct uext4_file *file, struct uext4_stat *facts);

// Attributes of what a path names; with `follow` 0 those of a symbolic link itself.
int32_t uext4_stat(struct uext4_volume *volume,
                   const char *name,
                   int32_t follow,
                   struct uext4_stat *facts);

// Takes the name of a regular file away. The file goes with its last name and its last handle. Durable after
// `uext4_sync`.
int32_t uext4_unlink(struct uext4_volume *volume,
                     const char *name);

// What a symbolic link holds. Returns its length; what does not fit into `size` bytes is cut off. No zero is put
// behind it.
int64_t uext4_readlink(struct uext4_volume *volume,
                       const char *name,
                       char *data,
                       size_t size);

// The value of an extended attribute (`user.comment`). Returns its length. With `size` 0 that is all; a value that is
// longer than `size` is `-ERANGE`.
int64_t uext4_getxattr(struct uext4_volume *volume,
                       const char *name,
                       const char *attribute,
                       int32_t follow,
                       void *value,
                       size_t size);

// Names of extended attributes, each with a zero behind it. Returns their length in all; sizes as of `uext4_getxattr`.
int64_t uext4_listxattr(struct uext4_volume *volume,
                        const char *name,
                        int32_t follow,
                        char *list,
                        size_t size);

// Opens a directory for listing. Close it with `uext4_closedir`.
int32_t uext4_opendir(struct uext4_volume *volume, const char *name, struct uext4_dir **dir);

// The next entry, `.` and `..` among them. Returns 1, or 0 at the end. A name that is there all the time comes once,
// whatever names are added and removed meanwhile.
int32_t uext4_readdir(struct uext4_dir *dir,
                      struct uext4_dirent *entry);

// Where the directory goes on: a number for `uext4_seekdir`. It stays valid as long as the directory is there, for
// other handles too, and after names were added and removed.
int64_t uext4_telldir(struct uext4_dir *dir);

// Goes on elsewhere: at a place that `uext4_telldir` gave, or at the beginning, which is 0.
int32_t uext4_seekdir(struct uext4_dir *dir, int64_t place);

// Ends the handle.
int32_t uext4_closedir(struct uext4_dir *dir);

// A queue for up to `depth` requests (1 to 32768). `bytes` of memory are reserved for `uext4_queue_alloc`, and
// registered with the kernel if it takes them; 0: 4 KiB for each request. `flags`: `UEXT4_QUEUE_…` and an I/O
// priority.
int32_t uext4_queue_open(struct uext4_volume *volume,
                         uint32_t depth,
                         size_t bytes,
                         uint32_t flags,
                         struct uext4_queue **queue);

// Ends the handle. Waits for what is in flight; completions that were not reaped are lost, the requests are not.
// Memory of `uext4_queue_alloc` goes with it.
int32_t uext4_queue_close(struct uext4_queue *queue);

// Attaches a file. Returns the number that requests name it by.
int32_t uext4_queue_attach(struct uext4_queue *queue, struct uext4_file *file);

// Detaches a file. Its requests in flight go on.
int32_t uext4_queue_detach(struct uext4_queue *queue, uint32_t file);

// `length` bytes of memory for requests of this queue, aligned to 4096, at most 1 GiB; NULL on failure. The kernel
// registers it if it can; with `UEXT4_QUEUE_REGISTERED` it does, or this fails. Contents are unspecified.
void *uext4_queue_alloc(struct uext4_queue *queue,
                        size_t length);

// Gives memory of `uext4_queue_alloc` back. No request may use it any more.
int32_t uext4_queue_free(struct uext4_queue *queue, void *data);

// Queues `count` requests and sends them. Returns how many were taken: all, or those before the first that was
// refused. If that is the first one, its negative errno: `-EAGAIN` for a full queue (reap, then go on).
//
// A request that was taken completes once, whatever becomes of it.
int32_t uext4_queue_submit(struct uext4_queue *queue,
                           const struct uext4_request *requests,
                           uint32_t count);

// Gives up to `most` completions. Waits until there are `least` (or all that are in flight), `timeout_ms` at the most
// (negative: as long as it takes). Returns how many it gave.
//
// The errors of requests are in their completions; this call fails only if the queue itself does.
int32_t uext4_queue_reap(struct uext4_queue *queue,
                         struct uext4_completion *completions,
                         uint32_t least,
                         uint32_t most,
                         int32_t timeout_ms);

// Requests that were taken and whose completions were not given yet.
int32_t uext4_queue_pending(struct uext4_queue *queue);

// A descriptor that becomes readable when there may be something to reap; `-EOPNOTSUPP` on devices that have none. It
// belongs to the queue. Poll it, do not read it; reap once after submitting, before you sleep.
int32_t uext4_queue_eventfd(struct uext4_queue *queue);

// What number `id` uses and may use. `-EOPNOTSUPP`: the volume does not keep this quota.
int32_t uext4_quota_get(struct uext4_volume *volume,
                        uint32_t kind,
                        uint32_t id,
                        struct uext4_quota *quota);

// The first number from `id` on that ever had anything, as `Q_GETNEXTQUOTA`. `-ENOENT`: there is none.
int32_t uext4_quota_next(struct uext4_volume *volume,
                         uint32_t kind,
                         uint32_t id,
                         struct uext4_quota *quota);

// Sets the four limits of number `id` to those of `limits`; its other fields are not looked at. Limits hold for files
// opened with `UEXT4_LIMITED`, and for callers other than root. Durable after `uext4_sync`.
int32_t uext4_quota_set(struct uext4_volume *volume,
                        uint32_t kind,
                        uint32_t id,
                        const struct uext4_quota *limits);

// Sets for how many seconds soft limits of space and of inodes may be exceeded.
int32_t uext4_quota_set_grace(struct uext4_volume *volume,
                              uint32_t kind,
                              uint32_t space,
                              uint32_t inodes);

// Begins to replace the regular file at `name`, or to create it if there is none: makes an empty file without a name.
// Symbolic links are followed. Get it with `uext4_replacement_file`, write the new content, then call
// `uext4_replacement_finish` (or `uext4_replacement_abandon`): until then the name leads to the old file, and both
// take space.
//
// The new file takes owner, group, permissions, access control lists and other extended attributes from the old one,
// but no set-user-id, set-group-id or capabilities. If there is no old file, its permissions are `mode`. The new file
// has one name: other hard links still lead to the old file.
// `switches` sets optimisations of the new file (NULL: as the volume).
//
// After a crash before `uext4_replacement_finish` the name leads to the old file; the next open for writing frees the
// new one.
int32_t uext4_replace(struct uext4_volume *volume,
                      const char *name,
                      uint32_t mode,
                      const char *switches,
                      struct uext4_replacement **replacement);

// A handle of the new file, open for reading and writing: for direct calls, any bytes, queues. It is a handle of its
// own, which outlives the replacement: close it with `uext4_file_close`.
int32_t uext4_replacement_file(struct uext4_replacement *replacement,
                               struct uext4_file **file);

// Moves the name to the new file, in one step, and ends the handle of the replacement. Whatever file has the name by
// then loses it, and goes with its last name and its last handle.
//
// Writes that returned or completed before this call need no sync of their own: after any crash the name leads to the
// old file, whole, or to the new one with all of them. Which of the two is certain after the next `uext4_fsync` of
// the new file, `uext4_sync` or `uext4_close`: then it is the new one. On a volume without a journal a crash before
// that leaves the names to e2fsck.
//
// After a failure the handle is ended too. The name still leads to the old file then, and the new one goes with its
// last handle; only if the old file could not be freed does the name lead to the new one, of which `uext4_fstat` then
// reports one link.
int32_t uext4_replacement_finish(struct uext4_replacement *replacement);

// Gives the replacement up, and ends its handle. The name still leads to the old file; the new one goes with its last
// handle.
int32_t uext4_replacement_abandon(struct uext4_replacement *replacement);

// Makes a directory, as `mkdir`. Of `mode` the permissions and the sticky bit count. It belongs to `caller`, or to
// root if that is NULL; there is no umask. What it inherits from its directory, it inherits as in Linux. Each call
// that makes, renames or removes a name is one transaction, and durable after `uext4_sync`.
int32_t uext4_mkdir(struct uext4_volume *volume,
                    const char *name,
                    uint32_t mode,
                    const struct uext4_caller *caller);

// The same, with all directories on the way that are missing. It is no error if the directory exists.
int32_t uext4_mkdir_all(struct uext4_volume *volume,
                        const char *name,
                        uint32_t mode,
                        const struct uext4_caller *caller);

// Makes a pipe, a socket, a device or an empty file, as `mknod`. `mode` has the type (`S_IFIFO`, `S_IFSOCK`,
// `S_IFCHR`, `S_IFBLK`, `S_IFREG` or 0) and the permissions; `major` and `minor` are those of a device.
int32_t uext4_mknod(struct uext4_volume *volume,
                    const char *name,
                    uint32_t mode,
                    uint32_t major,
                    uint32_t minor,
                    const struct uext4_caller *caller);

// Makes a symbolic link `name` that holds `target`, as `symlink`: 1 to 4095 bytes, less than a block.
int32_t uext4_symlink(struct uext4_volume *volume,
                      const char *target,
                      const char *name,
                      const struct uext4_caller *caller);

// Gives a file another name, as `link`. A symbolic link is not followed.
int32_t uext4_link(struct uext4_volume *volume, const char *original, const char *name);

// Renames, as `rename`: what has the new name is replaced; a directory replaces only an empty one.
int32_t uext4_rename(struct uext4_volume *volume, const char *from, const char *to);

// Renames, as `renameat2` with flags: `UEXT4_RENAME_…`.
int32_t uext4_rename_with(struct uext4_volume *volume,
                          const char *from,
                          const char *to,
                          uint32_t flags);

// Removes an empty directory, as `rmdir`.
int32_t uext4_rmdir(struct uext4_volume *volume, const char *name);

// Removes a directory with everything in it; it is no transaction as a whole.
int32_t uext4_remove_all(struct uext4_volume *volume, const char *name);

// Opens a new regular file without a name, as `open` with `O_TMPFILE`: it inherits what a file in `directory` does.
// `flags` are `UEXT4_READ` and `UEXT4_WRITE`. `uext4_link_file` gives it a name; without one it goes with its last
// handle.
int32_t uext4_tmpfile(struct uext4_volume *volume,
                      const char *directory,
                      uint32_t flags,
                      uint32_t mode,
                      const struct uext4_caller *caller,
                      struct uext4_file **file);

// Gives an open file a name: its first, if it is from `uext4_tmpfile`, or another one. As `linkat` with
// `AT_EMPTY_PATH`.
int32_t uext4_link_file(struct uext4_file *file,
                        const char *name);

// The version of the library, such as `"0.1.0"`.
const char *uext4_version(void);

// Opens the volume on `device`, which is text in the device grammar (`disk.img`, `/dev/nvme0n1p3`,
// `dax:/mnt/image?offset=1M`). Recovery happens here, if it is open for writing; otherwise in memory.
//
// `options` may be NULL: for reading, with the defaults.
int32_t uext4_open(const char *device,
                   const struct uext4_options *options,
                   struct uext4_volume **volume);

// Ends the handle. Makes all changes durable and brings them home, so that the next open needs no recovery. Files and
// queues that are still open stay usable.
//
// A failure says that the volume was aborted: what was acknowledged as durable is in its log, and the next open
// recovers it. The handle is closed in any case.
int32_t uext4_close(struct uext4_volume *volume);

// Commits transactions that are old, and writes times that are. Call it about once a second, or open with
// `UEXT4_OPEN_BACKGROUND`.
int32_t uext4_tick(struct uext4_volume *volume);

// Makes all durable that was done before the call: names, sizes, attributes, and data whose writes have completed, of
// every file. As `syncfs`. It is the call that makes a `uext4_unlink` durable.
int32_t uext4_sync(struct uext4_volume *volume);

// How full the volume is.
int32_t uext4_statfs(struct uext4_volume *volume, struct uext4_statfs *facts);

// What direct I/O must obey.
int32_t uext4_geometry(struct uext4_volume *volume, struct uext4_geometry *facts);

// Tells the device which blocks of the `length` bytes from `pos` on are free, in runs of `minimum` bytes at least.
// Returns how many bytes that were.
int64_t uext4_trim(struct uext4_volume *volume,
                   uint64_t pos,
                   uint64_t length,
                   uint64_t minimum);

// Counters of routes and of the journal, `most` at the most. Returns how many there are. Queued requests are counted
// when a call to their queue finds them complete.
//
// `fast_commits`, `fast_commit_blocks`: of a volume with the feature `fast_commit`. `full_commits_…`: its syncs that
// committed in full, since the area was full, a change has no records, no record describes the file, or the log was
// not in use yet.
int64_t uext4_stats(struct uext4_volume *volume,
                    struct uext4_counter *counters,
                    size_t most);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UEXT4_H */
