/* Every call of libuext4, from C: what it does, and what it says of a wrong use. Arguments: an image with a volume;
 * or an image with a volume that keeps quota of users, and a word. */
#define _GNU_SOURCE
#include "uext4.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #what, uext4_last_error());            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define IS(what, wanted)                                                                                               \
    do {                                                                                                               \
        long long found_ = (long long)(what), wanted_ = (long long)(wanted);                                           \
        if (found_ != wanted_) {                                                                                       \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (last error: %s)\n", __FILE__, __LINE__, #what, found_,       \
                    wanted_, uext4_last_error());                                                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct uext4_volume *volume;

#include "parts.h"

static void volumes(const char *image)
{
    struct uext4_volume *other = (struct uext4_volume *)&volume;
    struct uext4_options options = {.size = sizeof options, .flags = UEXT4_OPEN_WRITE};
    struct uext4_geometry geometry;
    struct uext4_statfs space;
    struct uext4_counter counters[256];

    IS(uext4_open(NULL, NULL, &other), -EFAULT);
    IS(uext4_open(image, NULL, NULL), -EFAULT);
    IS(uext4_open("/nowhere/at/all", NULL, &other), -ENOENT);
    CHECK(other == NULL && strstr(uext4_last_error(), "/nowhere/at/all"));
    IS(uext4_open("bad:?nothing=1", NULL, &other), -EINVAL);
    IS(uext4_open("mem:", NULL, &other), -EINVAL);
    options.switches = "no-such-switch=off";
    IS(uext4_open(image, &options, &other), -EINVAL);
    options.switches = "simple-read=off";
    options.flags = 1u << 31;
    IS(uext4_open(image, &options, &other), -EINVAL);
    options.flags = UEXT4_OPEN_WRITE;
    options.size = sizeof options + 8;
    IS(uext4_open(image, &options, &other), -EINVAL);
    options.size = offsetof(struct uext4_options, metadata_budget);
    IS(uext4_open(image, &options, &volume), 0);
    IS(uext4_open(image, &options, &other), -EBUSY);
    CHECK(uext4_last_error()[0] && uext4_last_error_inode() == 0 && uext4_last_error_block() == UINT64_MAX);

    IS(uext4_geometry(volume, &geometry), 0);
    CHECK(geometry.logical_block >= 512 && geometry.block_size == 4096 && geometry.writable == 1);
    IS(uext4_geometry(volume, NULL), -EFAULT);
    IS(uext4_statfs(volume, &space), 0);
    CHECK(space.block_size == 4096 && space.free > 0 && space.free <= space.blocks && space.free_inodes > 0);
    long count = uext4_stats(volume, counters, 256);
    CHECK(count > 10 && count < 256);
    CHECK(strlen(counters[0].name) > 0);
    IS(uext4_stats(volume, NULL, 0), count);
    IS(uext4_tick(volume), 0);
    IS(uext4_sync(volume), 0);
    CHECK(uext4_trim(volume, 0, UINT64_MAX, 4096) > 0);
    CHECK(strlen(uext4_version()) >= 5);
}

static void wrong_handles(void)
{
    struct uext4_file *file;
    struct uext4_queue *queue;
    struct uext4_dir *dir;
    struct uext4_replacement *replacement;
    struct uext4_stat facts;
    struct uext4_dirent entry;
    struct uext4_completion done;
    char byte = 0;

    IS(uext4_close(NULL), -EINVAL);
    IS(uext4_tick((struct uext4_volume *)&byte), -EBADF);
    IS(uext4_sync(NULL), -EINVAL);
    IS(uext4_sync((struct uext4_volume *)&byte), -EBADF);
    IS(uext4_file_open(NULL, "/x", UEXT4_READ, 0, NULL, &file), -EINVAL);
    IS(uext4_file_open(volume, "/handles", UEXT4_READ | UEXT4_WRITE | UEXT4_CREATE, 0600, NULL, &file), 0);
    IS(uext4_queue_open(volume, 4, 0, 0, &queue), 0);
    IS(uext4_opendir(volume, "/", &dir), 0);
    IS(uext4_replace(NULL, "/handles", 0600, NULL, &replacement), -EINVAL);
    IS(uext4_replace(volume, "/handles", 0600, NULL, &replacement), 0);
    /* One kind for another. */
    IS(uext4_replacement_finish((struct uext4_replacement *)file), -EBADF);
    IS(uext4_replacement_abandon((struct uext4_replacement *)dir), -EBADF);
    IS(uext4_replacement_file((struct uext4_replacement *)volume, &file), -EBADF);
    IS(uext4_file_close((struct uext4_file *)replacement), -EBADF);
    IS(uext4_replacement_finish(NULL), -EINVAL);
    IS(uext4_pread((struct uext4_file *)volume, &byte, 1, 0, 0), -EBADF);
    IS(uext4_queue_pending((struct uext4_queue *)file), -EBADF);
    IS(uext4_close((struct uext4_volume *)queue), -EBADF);
    IS(uext4_readdir((struct uext4_dir *)file, &entry), -EBADF);
    IS(uext4_queue_attach(queue, (struct uext4_file *)dir), -EBADF);
    IS(uext4_queue_attach(queue, NULL), -EINVAL);
    /* Closed ones. */
    IS(uext4_file_close(file), 0);
    IS(uext4_file_close(file), -EBADF);
    IS(uext4_pread(file, &byte, 1, 0, 0), -EBADF);
    IS(uext4_pwrite(file, &byte, 1, 0, 0), -EBADF);
    IS(uext4_pread_any(file, &byte, 1, 0), -EBADF);
    IS(uext4_pwrite_any(file, &byte, 1, 0, 0), -EBADF);
    IS(uext4_append(file, &byte, 1, 0), -EBADF);
    IS(uext4_fsync(file), -EBADF);
    IS(uext4_fdatasync(file), -EBADF);
    IS(uext4_fsync_files(&file, 1), -EBADF);
    IS(uext4_ftruncate(file, 0), -EBADF);
    IS(uext4_fallocate(file, 0, 0, 1), -EBADF);
    IS(uext4_prepare(file, 1), -EBADF);
    IS(uext4_file_size(file), -EBADF);
    IS(uext4_seek_data(file, 0), -EBADF);
    IS(uext4_seek_hole(file, 0), -EBADF);
    IS(uext4_fstat(file, &facts), -EBADF);
    IS(uext4_queue_attach(queue, file), -EBADF);
    IS(uext4_queue_close(queue), 0);
    IS(uext4_queue_close(queue), -EBADF);
    IS(uext4_queue_submit(queue, NULL, 0), -EBADF);
    IS(uext4_queue_reap(queue, &done, 0, 1, 0), -EBADF);
    IS(uext4_queue_detach(queue, 0), -EBADF);
    IS(uext4_queue_eventfd(queue), -EBADF);
    IS(uext4_queue_free(queue, &byte), -EBADF);
    CHECK(uext4_queue_alloc(queue, 4096) == NULL);
    IS(uext4_closedir(dir), 0);
    IS(uext4_closedir(dir), -EBADF);
    IS(uext4_readdir(dir, &entry), -EBADF);
    IS(uext4_replacement_abandon(replacement), 0);
    IS(uext4_replacement_abandon(replacement), -EBADF);
    IS(uext4_replacement_finish(replacement), -EBADF);
    IS(uext4_replacement_file(replacement, &file), -EBADF);
    IS(uext4_unlink(volume, "/handles"), 0);
}

static void files(void)
{
    struct uext4_file *file, *tail;
    struct uext4_stat facts;
    char *block = aligned_alloc(4096, 8192), bytes[16] = {0};
    CHECK(block);

    IS(uext4_file_open(volume, "/file", UEXT4_READ, 0, NULL, &file), -ENOENT);
    CHECK(file == NULL);
    IS(uext4_file_open(volume, "/file", 0, 0, NULL, &file), -EINVAL);
    IS(uext4_file_open(volume, "/file", 1u << 20, 0, NULL, &file), -EINVAL);
    uint32_t flags = UEXT4_READ | UEXT4_WRITE;
    IS(uext4_file_open(volume, "/file", flags | UEXT4_CREATE_NEW, 0640, "simple-read=on", &file), 0);
    IS(uext4_file_open(volume, "/file", flags | UEXT4_CREATE_NEW, 0640, NULL, &tail), -EEXIST);
    memset(block, 'a', 8192);
    IS(uext4_pwrite(file, block, 8192, 0, UEXT4_DSYNC), 8192);
    atomic_writes(file, block);
    IS(uext4_pwrite(file, block, 100, 0, 0), -EINVAL);
    IS(uext4_pwrite(file, block, 4096, 0, 64), -EINVAL);
    IS(uext4_pwrite(file, NULL, 4096, 0, 0), -EFAULT);
    IS(uext4_pwrite(file, block, SIZE_MAX, 0, 0), -EINVAL);
    IS(uext4_pwrite(file, NULL, 0, 0, 0), 0);
    IS(uext4_pread(file, NULL, 4096, 0, 0), -EFAULT);
    IS(uext4_pwrite_any(file, "hello", 5, 4094, UEXT4_SYNC), 5);
    IS(uext4_pread_any(file, bytes, 7, 4093), 7);
    CHECK(memcmp(bytes, "ahelloa", 7) == 0);
    memset(block, 0, 8192);
    IS(uext4_pread(file, block, 8192, 4096, 0), 4096);
    CHECK(memcmp(block, "lloa", 4) == 0);
    IS(uext4_pread(file, block, 4096, 1 << 20, 0), 0);
    IS(uext4_file_open(volume, "/file", UEXT4_APPEND, 0, NULL, &tail), 0);
    IS(uext4_append(file, "end", 3, 0), -EPERM);
    buffered(file, tail);
    IS(uext4_fdatasync(file), 0);
    struct uext4_file *both[2] = {file, tail};
    IS(uext4_fsync_files(both, 2), 0);
    IS(uext4_fsync_files(NULL, 1), -EINVAL);
    IS(uext4_fsync_files(NULL, 0), 0);

    IS(uext4_fallocate(file, UEXT4_FALLOC_PUNCH, 0, 4096), 0);
    IS(uext4_fallocate(file, 99, 0, 4096), -EINVAL);
    IS(uext4_fallocate(file, UEXT4_FALLOC_COLLAPSE, 1, 4096), -EINVAL);
    IS(uext4_seek_data(file, 0), 4096);
    IS(uext4_seek_hole(file, 4096), 8195);
    IS(uext4_seek_data(file, 9000), -ENXIO);
    IS(uext4_prepare(file, 16384), 0);
    IS(uext4_ftruncate(file, 12288), 0);
    IS(uext4_fsync(file), 0);
    IS(uext4_fstat(file, &facts), 0);
    CHECK(facts.size == 12288 && facts.mode == (S_IFREG | 0640) && facts.links == 1 && facts.blocks == 24);
    CHECK(facts.modified.seconds > 1700000000 && facts.created.seconds > 1700000000);
    IS(uext4_fstat(file, NULL), -EFAULT);
    IS(uext4_file_close(tail), 0);
    IS(uext4_file_close(file), 0);
    free(block);
}

static void names(void)
{
    struct uext4_dir *dir;
    struct uext4_dirent entry;
    struct uext4_stat facts;
    char value[64] = {0};
    int found = 0, next;
    int64_t place;

    IS(uext4_stat(volume, "/file", 1, &facts), 0);
    CHECK(facts.size == 12288);
    IS(uext4_stat(volume, "/nobody", 1, &facts), -ENOENT);
    CHECK(strstr(uext4_last_error(), "/nobody"));
    IS(uext4_stat(volume, "/link", 0, &facts), 0);
    CHECK(S_ISLNK(facts.mode));
    IS(uext4_readlink(volume, "/link", value, sizeof value), 6);
    CHECK(strcmp(value, "target") == 0);
    IS(uext4_readlink(volume, "/link", value, 2), 6);
    IS(uext4_readlink(volume, "/file", value, 2), -EINVAL);
    IS(uext4_getxattr(volume, "/file", "user.none", 1, value, sizeof value), -ENODATA);
    IS(uext4_listxattr(volume, "/file", 1, value, sizeof value), 0);
    IS(uext4_opendir(volume, "/file", &dir), -ENOTDIR);
    CHECK(dir == NULL);
    IS(uext4_opendir(volume, "/", &dir), 0);
    while ((next = uext4_readdir(dir, &entry)) == 1)
        found += strcmp(entry.name, "file") == 0 && entry.kind == S_IFREG;
    IS(next, 0);
    IS(found, 1);
    IS(uext4_seekdir(dir, 0), 0);
    IS(uext4_telldir(dir), 0);
    IS(uext4_readdir(dir, &entry), 1);
    CHECK(strcmp(entry.name, ".") == 0);
    IS(uext4_readdir(dir, &entry), 1);
    place = uext4_telldir(dir);
    IS(uext4_readdir(dir, &entry), 1);
    snprintf(value, sizeof value, "%.60s", entry.name);
    IS(uext4_seekdir(dir, place), 0);
    IS(uext4_readdir(dir, &entry), 1);
    CHECK(strncmp(entry.name, value, 60) == 0);
    IS(uext4_seekdir(dir, -1), -EINVAL);
    IS(uext4_closedir(dir), 0);
    IS(uext4_telldir(dir), -EBADF);
    IS(uext4_seekdir(dir, 0), -EBADF);
    IS(uext4_unlink(volume, "/file"), 0);
    IS(uext4_unlink(volume, "/file"), -ENOENT);
    IS(uext4_unlink(volume, "/"), -EISDIR);
}

static void attributes(void)
{
    struct uext4_file *file;
    struct uext4_stat facts;
    struct uext4_time times[2] = {{.seconds = 1000, .nanoseconds = 7}, {.nanoseconds = UEXT4_TIME_OMIT}};
    uint32_t groups[2] = {5, 6}, flags;
    struct uext4_caller owner = {.uid = 3, .gid = 9}, other = {.uid = 4, .gid = 9}, root = {0};
    struct uext4_caller member = {.uid = 4, .gid = 9, .groups = groups, .group_count = 2};
    struct uext4_caller wrong = {.group_count = 1};

    IS(uext4_file_open(volume, "/attributes", UEXT4_WRITE | UEXT4_CREATE, 0600, NULL, &file), 0);
    IS(uext4_chmod(volume, "/attributes", 06755, 1), 0);
    IS(uext4_chmod(volume, "/attributes", 0100644, 1), -EINVAL);
    IS(uext4_chmod(volume, "/link", 0600, 0), -EOPNOTSUPP);
    IS(uext4_chmod(volume, "/none", 0600, 1), -ENOENT);
    IS(uext4_chmod(volume, NULL, 0600, 1), -EFAULT);
    IS(uext4_chmod(NULL, "/attributes", 0600, 1), -EINVAL);
    IS(uext4_chown(volume, "/attributes", 3, 5, 1), 0);
    IS(uext4_chown(volume, "/attributes", UINT32_MAX, 6, 1), 0);
    IS(uext4_utimens(volume, "/attributes", times, 1), 0);
    IS(uext4_fstat(file, &facts), 0);
    CHECK((facts.mode & 07777) == 0755 && facts.uid == 3 && facts.gid == 6);
    CHECK(facts.accessed.seconds == 1000 && facts.accessed.nanoseconds == 7 && facts.modified.seconds > 1000);
    times[0].nanoseconds = 1000000000;
    IS(uext4_utimens(volume, "/attributes", times, 1), -EINVAL);
    IS(uext4_utimens(volume, "/attributes", NULL, 1), 0);
    IS(uext4_fstat(file, &facts), 0);
    CHECK(facts.accessed.seconds > 1000);

    IS(uext4_chmod(volume, "/attributes", 0640, 1), 0);
    IS(uext4_access(volume, "/attributes", &owner, UEXT4_ACCESS_READ | UEXT4_ACCESS_WRITE, 1), 0);
    IS(uext4_access(volume, "/attributes", &other, UEXT4_ACCESS_READ, 1), -EACCES);
    IS(uext4_access(volume, "/attributes", &member, UEXT4_ACCESS_READ, 1), 0);
    IS(uext4_access(volume, "/attributes", &member, UEXT4_ACCESS_WRITE, 1), -EACCES);
    IS(uext4_access(volume, "/attributes", &root, UEXT4_ACCESS_EXECUTE, 1), -EACCES);
    IS(uext4_access(volume, "/attributes", &other, 0, 1), 0);
    IS(uext4_access(volume, "/attributes", &wrong, 0, 1), -EFAULT);
    IS(uext4_access(volume, "/attributes", NULL, 0, 1), -EFAULT);
    IS(uext4_access(volume, "/attributes", &other, 8, 1), -EINVAL);
    IS(uext4_fstat(file, &facts), 0);
    flags = facts.flags;
    IS(uext4_set_flags(volume, "/attributes", flags | 0x10 /* FS_IMMUTABLE_FL */, 1), 0);
    IS(uext4_pwrite_any(file, "no", 2, 0, 0), -EPERM);
    IS(uext4_unlink(volume, "/attributes"), -EPERM);
    IS(uext4_set_flags(volume, "/attributes", flags | 0x4000 /* FS_JOURNAL_DATA_FL */, 1), 0);
    IS(uext4_pwrite_any(file, "log", 3, 0, 0), 3);
    IS(uext4_set_flags(volume, "/attributes", flags, 1), 0);
    IS(uext4_set_project(volume, "/attributes", 0, 1), 0);
    IS(uext4_set_project(volume, "/attributes", UINT32_MAX, 1), -EINVAL);
    IS(uext4_file_close(file), 0);
    IS(uext4_unlink(volume, "/attributes"), 0);
}

/* Whether the file at this name is SIZE bytes, all FILL. */
static int is_kind(const char *name, uint32_t mode, uint32_t uid)
{
    struct uext4_stat found;

    IS(uext4_stat(volume, name, 0, &found), 0);
    return found.mode == mode && found.uid == uid;
}

static void tree(void)
{
    struct uext4_caller user = {.uid = 7, .gid = 8};
    struct uext4_stat one, other;
    struct uext4_file *file = NULL;
    char held[16];

    IS(uext4_mkdir(volume, "/t", 0755, NULL), 0);
    IS(uext4_mkdir(volume, "/t", 0755, NULL), -EEXIST);
    IS(uext4_mkdir(volume, "/t/none/x", 0755, NULL), -ENOENT);
    IS(uext4_mkdir(volume, "/t/x", 0100755, NULL), -EINVAL);
    IS(uext4_mkdir(volume, NULL, 0755, NULL), -EFAULT);
    IS(uext4_mkdir(NULL, "/t/x", 0755, NULL), -EINVAL);
    IS(uext4_mkdir_all(volume, "/t/a/b/c", 0750, &user), 0);
    IS(uext4_mkdir_all(volume, "/t/a/b", 0750, &user), 0);
    IS(is_kind("/t/a/b/c", S_IFDIR | 0750, 7), 1);

    IS(uext4_mknod(volume, "/t/pipe", S_IFIFO | 0640, 0, 0, &user), 0);
    IS(uext4_mknod(volume, "/t/device", S_IFCHR | 0600, 5, 70000, NULL), 0);
    IS(uext4_mknod(volume, "/t/file", 0600, 0, 0, NULL), 0);
    IS(uext4_mknod(volume, "/t/dir", S_IFDIR | 0600, 0, 0, NULL), -EPERM);
    IS(uext4_mknod(volume, "/t/odd", 0170000 | 0600, 0, 0, NULL), -EINVAL);
    IS(uext4_mknod(volume, "/t/odd", S_IFBLK | 0600, 4096, 0, NULL), -EINVAL);
    IS(is_kind("/t/pipe", S_IFIFO | 0640, 7), 1);
    IS(uext4_stat(volume, "/t/device", 0, &one), 0);
    IS(one.mode == (S_IFCHR | 0600) && one.rdev_major == 5 && one.rdev_minor == 70000, 1);

    IS(uext4_symlink(volume, "file", "/t/link", &user), 0);
    IS(uext4_symlink(volume, "", "/t/empty", &user), -ENOENT);
    IS(uext4_readlink(volume, "/t/link", held, sizeof held), 4);
    IS(memcmp(held, "file", 4), 0);
    IS(uext4_link(volume, "/t/file", "/t/again"), 0);
    IS(uext4_link(volume, "/t/file", "/t/again"), -EEXIST);
    IS(uext4_link(volume, "/t/a", "/t/dir"), -EPERM);
    IS(uext4_stat(volume, "/t/again", 0, &one), 0);
    IS(one.links, 2);

    IS(uext4_rename(volume, "/t/again", "/t/a/b/moved"), 0);
    IS(uext4_rename(volume, "/t/again", "/t/a/b/moved"), -ENOENT);
    IS(uext4_rename(volume, "/t/a", "/t/a/b/c/inside"), -EINVAL);
    IS(uext4_rename(volume, "/t/file", "/t/a"), -EISDIR);
    IS(uext4_rename_with(volume, "/t/pipe", "/t/device", UEXT4_RENAME_NOREPLACE), -EEXIST);
    IS(uext4_rename_with(volume, "/t/pipe", "/t/device", UEXT4_RENAME_EXCHANGE), 0);
    IS(is_kind("/t/device", S_IFIFO | 0640, 7), 1);
    IS(uext4_rename_with(volume, "/t/pipe", "/t/left", UEXT4_RENAME_WHITEOUT), 0);
    IS(is_kind("/t/pipe", S_IFCHR, 0), 1);
    IS(uext4_rename_with(volume, "/t/left", "/t/x", 8), -EINVAL);

    IS(uext4_tmpfile(volume, "/t", UEXT4_READ, 0600, NULL, &file), -EINVAL);
    IS(uext4_tmpfile(volume, "/t/file", UEXT4_WRITE, 0600, NULL, &file), -ENOTDIR);
    IS(uext4_tmpfile(volume, "/t", UEXT4_READ | UEXT4_WRITE, 0640, &user, &file), 0);
    IS(uext4_pwrite_any(file, "hello", 5, 0, 0), 5);
    IS(uext4_link_file(file, "/t/file"), -EEXIST);
    IS(uext4_link_file(file, "/t/named"), 0);
    IS(uext4_link_file(file, "/t/a/named too"), 0);
    IS(uext4_file_close(file), 0);
    IS(is_kind("/t/named", S_IFREG | 0640, 7), 1);
    IS(uext4_stat(volume, "/t/named", 0, &one), 0);
    IS(uext4_stat(volume, "/t/a/named too", 0, &other), 0);
    IS(one.ino == other.ino && one.links == 2 && one.size == 5, 1);

    IS(uext4_setxattr(volume, "/t/named", "user.note", "kept", 4, UEXT4_XATTR_REPLACE, 1), -ENODATA);
    IS(uext4_setxattr(volume, "/t/named", "user.note", "kept", 4, 0, 1), 0);
    IS(uext4_setxattr(volume, "/t/named", "user.note", "x", 1, UEXT4_XATTR_CREATE, 1), -EEXIST);
    IS(uext4_setxattr(volume, "/t/link", "user.note", "x", 1, 0, 0), -EPERM);
    IS(uext4_setxattr(volume, "/t/named", "other.note", "x", 1, 0, 1), -EOPNOTSUPP);
    IS(uext4_setxattr(volume, "/t/named", "user.note", "x", 1, 4, 1), -EINVAL);
    IS(uext4_setxattr(volume, "/t/named", "user.note", NULL, 1, 0, 1), -EFAULT);
    IS(uext4_getxattr(volume, "/t/named", "user.note", 1, held, sizeof held), 4);
    IS(uext4_removexattr(volume, "/t/named", "user.note", 1), 0);
    IS(uext4_removexattr(volume, "/t/named", "user.note", 1), -ENODATA);

    open_attributes();

    IS(uext4_rmdir(volume, "/t/a"), -ENOTEMPTY);
    IS(uext4_rmdir(volume, "/t/file"), -ENOTDIR);
    IS(uext4_rmdir(volume, "/t/a/b/c"), 0);
    IS(uext4_unlink(volume, "/t/a"), -EISDIR);
    IS(uext4_remove_all(volume, "/t"), 0);
    IS(uext4_remove_all(volume, "/t"), -ENOENT);
}

static int is_whole(const char *name, char fill, int64_t size)
{
    struct uext4_file *file;
    char *bytes = malloc(size + 1);
    CHECK(bytes);
    IS(uext4_file_open(volume, name, UEXT4_READ, 0, NULL, &file), 0);
    int whole = uext4_file_size(file) == size && uext4_pread_any(file, bytes, size + 1, 0) == size;
    for (int64_t at = 0; whole && at < size; at++)
        whole = bytes[at] == fill;
    IS(uext4_file_close(file), 0);
    free(bytes);
    return whole;
}

/* The new file of a replacement, filled with SIZE bytes. */
static struct uext4_file *filled(struct uext4_replacement *replacement, char fill, int64_t size)
{
    struct uext4_file *file;
    char *bytes = malloc(size);
    CHECK(bytes);
    memset(bytes, fill, size);
    IS(uext4_replacement_file(replacement, &file), 0);
    IS(uext4_pwrite_any(file, bytes, size, 0, 0), size);
    free(bytes);
    return file;
}

static void replacements(void)
{
    struct uext4_replacement *replacement;
    struct uext4_file *file, *old, *other;
    struct uext4_stat facts;
    struct uext4_statfs before, after;

    IS(uext4_replace(volume, NULL, 0600, NULL, &replacement), -EFAULT);
    IS(uext4_replace(volume, "/replaced", 0600, NULL, NULL), -EFAULT);
    IS(uext4_replace(volume, "/replaced", 0600, "no-such-switch=off", &replacement), -EINVAL);
    IS(uext4_replace(volume, "/", 0600, NULL, &replacement), -EISDIR);
    CHECK(replacement == NULL);
    IS(uext4_replace(volume, "/nowhere/x", 0600, NULL, &replacement), -ENOENT);
    CHECK(strstr(uext4_last_error(), "/nowhere/x"));
    IS(uext4_stat(volume, "/replaced", 1, &facts), -ENOENT);

    /* A missing name is created. */
    IS(uext4_replace(volume, "/replaced", 0640, "simple-read=on", &replacement), 0);
    IS(uext4_replacement_file(replacement, NULL), -EFAULT);
    file = filled(replacement, 'o', 30001);
    IS(uext4_stat(volume, "/replaced", 1, &facts), -ENOENT);
    IS(uext4_replacement_finish(replacement), 0);
    IS(uext4_replacement_finish(replacement), -EBADF);
    IS(uext4_fstat(file, &facts), 0);
    CHECK(facts.mode == (S_IFREG | 0640) && facts.links == 1 && facts.size == 30001);
    CHECK(is_whole("/replaced", 'o', 30001));
    IS(uext4_fsync(file), 0);

    /* Abandoned: the old file stays, and the new one goes with its last handle. */
    IS(uext4_sync(volume), 0);
    IS(uext4_statfs(volume, &before), 0);
    IS(uext4_replace(volume, "/replaced", 0600, NULL, &replacement), 0);
    other = filled(replacement, 'a', 500000);
    IS(uext4_replacement_abandon(replacement), 0);
    IS(uext4_fstat(other, &facts), 0);
    CHECK(facts.links == 0 && facts.size == 500000);
    IS(uext4_statfs(volume, &after), 0);
    CHECK(after.free_inodes + 1 == before.free_inodes && after.free < before.free);
    IS(uext4_file_close(other), 0);
    IS(uext4_sync(volume), 0);
    IS(uext4_statfs(volume, &after), 0);
    IS(after.free_inodes, before.free_inodes);
    IS(after.free, before.free);
    CHECK(is_whole("/replaced", 'o', 30001));

    /* Finished: the old file lives as long as it is open, and the new one has its owner and permissions. */
    old = file;
    IS(uext4_replace(volume, "/replaced", 0600, NULL, &replacement), 0);
    file = filled(replacement, 'n', 70007);
    CHECK(is_whole("/replaced", 'o', 30001));
    IS(uext4_replacement_finish(replacement), 0);
    CHECK(is_whole("/replaced", 'n', 70007));
    IS(uext4_fstat(old, &facts), 0);
    CHECK(facts.links == 0 && facts.size == 30001);
    IS(uext4_fstat(file, &facts), 0);
    CHECK(facts.links == 1 && facts.mode == (S_IFREG | 0640));
    IS(uext4_fsync(file), 0);
    IS(uext4_file_close(old), 0);
    IS(uext4_file_close(file), 0);
    IS(uext4_sync(volume), 0);
    IS(uext4_statfs(volume, &after), 0);
    IS(after.free_inodes, before.free_inodes);

    /* Whatever has the name by then is replaced. */
    IS(uext4_replace(volume, "/taken", 0600, NULL, &replacement), 0);
    IS(uext4_file_open(volume, "/taken", UEXT4_WRITE | UEXT4_CREATE_NEW, 0600, NULL, &file), 0);
    IS(uext4_file_close(file), 0);
    file = filled(replacement, 't', 10);
    IS(uext4_replacement_finish(replacement), 0);
    CHECK(is_whole("/taken", 't', 10));
    IS(uext4_file_close(file), 0);
    IS(uext4_unlink(volume, "/taken"), 0);
}

static int reaped(struct uext4_queue *queue, struct uext4_completion *done, int count)
{
    int given = 0, now;
    while (given < count && (now = uext4_queue_reap(queue, done + given, 1, count - given, 10000)) > 0)
        given += now;
    return given;
}

/* Another thread is refused while one waits in the queue. */
static void *waits(void *queue)
{
    struct uext4_completion done;
    uext4_queue_reap(queue, &done, 1, 1, 3000);
    return NULL;
}

static void queues(void)
{
    struct uext4_queue *queue;
    struct uext4_file *file;
    struct uext4_request request[9] = {0};
    struct uext4_completion done[9];

    IS(uext4_queue_open(volume, 0, 0, 0, &queue), -EINVAL);
    IS(uext4_queue_open(volume, 4, 0, 1u << 9, &queue), -EINVAL);
    IS(uext4_queue_open(volume, 8, 1 << 20, UEXT4_QUEUE_REGISTERED, &queue), 0);
    IS(uext4_file_open(volume, "/queued", UEXT4_READ | UEXT4_WRITE | UEXT4_CREATE, 0600, NULL, &file), 0);
    IS(uext4_prepare(file, 1 << 20), 0);
    int slot = uext4_queue_attach(queue, file);
    IS(slot, 0);
    char *own = uext4_queue_alloc(queue, 64 << 10), *foreign = aligned_alloc(4096, 64 << 10);
    CHECK(own && foreign && ((uintptr_t)own & 4095) == 0);

    for (int i = 0; i < 8; i++) {
        char *data = (i & 1 ? own : foreign) + i * 4096;
        memset(data, 'A' + i, 4096);
        request[i] = (struct uext4_request){.tag = i, .pos = i * 8192, .length = 4096, .data = data};
        request[i].op = UEXT4_OP_WRITE;
    }
    request[3].flags = UEXT4_DSYNC;
    request[8] = request[0];
    IS(uext4_queue_submit(queue, request, 9), 8);
    IS(uext4_queue_submit(queue, request, 1), -EAGAIN);
    IS(uext4_queue_pending(queue), 8);
    /* Some at a time. */
    IS(uext4_queue_reap(queue, done, 3, 2, -1), -EINVAL);
    IS(uext4_queue_reap(queue, done, 2, 2, -1), 2);
    IS(reaped(queue, done + 2, 6), 6);
    uint64_t seen = 0;
    for (int i = 0; i < 8; i++) {
        IS(done[i].result, 4096);
        seen |= 1u << done[i].tag;
    }
    IS(seen, 255);
    IS(uext4_queue_reap(queue, done, 0, 9, 0), 0);
    IS(uext4_queue_reap(queue, done, 1, 9, 20), 0);

    memset(own, 0, 64 << 10);
    memset(foreign, 0, 64 << 10);
    for (int i = 0; i < 8; i++) {
        request[i].op = UEXT4_OP_READ;
        request[i].flags = 0;
    }
    IS(uext4_queue_submit(queue, request, 8), 8);
    IS(reaped(queue, done, 8), 8);
    for (int i = 0; i < 8; i++) {
        char *data = request[i].data;
        CHECK(data[0] == 'A' + i && data[4095] == 'A' + i);
    }

    /* Others, and wrong ones. */
    request[0] = (struct uext4_request){.tag = 100, .op = UEXT4_OP_FSYNC};
    request[1] = (struct uext4_request){.tag = 101, .op = UEXT4_OP_DISCARD, .pos = 0, .length = 4096};
    request[2] = (struct uext4_request){.tag = 102, .op = UEXT4_OP_FALLOCATE, .pos = 1 << 20, .length = 4096};
    request[3] = (struct uext4_request){.tag = 103, .op = UEXT4_OP_FALLOCATE, .length = 1};
    request[3].flags = UEXT4_FALLOC_COLLAPSE;
    request[4] = (struct uext4_request){.tag = 104, .op = UEXT4_OP_FDATASYNC};
    IS(uext4_queue_submit(queue, request, 5), 5);
    IS(reaped(queue, done, 5), 5);
    for (int i = 0; i < 5; i++)
        IS(done[i].result, done[i].tag == 103 ? -EINVAL : 0);
    IS(uext4_file_size(file), (1 << 20) + 4096);
    IS(uext4_seek_data(file, 0), 4096);
    request[0] = (struct uext4_request){.op = 77};
    IS(uext4_queue_submit(queue, request, 1), -EINVAL);
    request[0] = (struct uext4_request){.op = UEXT4_OP_READ, .file = 5};
    IS(uext4_queue_submit(queue, request, 1), -EBADF);
    request[0] = (struct uext4_request){.op = UEXT4_OP_READ, .length = 4096};
    IS(uext4_queue_submit(queue, request, 1), -EFAULT);
    request[0] = (struct uext4_request){.op = UEXT4_OP_READ, .length = 100, .data = own};
    IS(uext4_queue_submit(queue, request, 1), -EINVAL);
    struct uext4_geometry geometry;
    IS(uext4_geometry(volume, &geometry), 0);
    if (geometry.memory_align > 1) {
        request[0] = (struct uext4_request){.op = UEXT4_OP_READ, .length = 4096, .data = own + 1};
        IS(uext4_queue_submit(queue, request, 1), -EINVAL);
    }
    request[0] = (struct uext4_request){.op = UEXT4_OP_FSYNC, .flags = 1};
    IS(uext4_queue_submit(queue, request, 1), -EINVAL);
    IS(uext4_queue_submit(queue, NULL, 1), -EFAULT);

    int event = uext4_queue_eventfd(queue);
    if (event >= 0) {
        struct pollfd polled = {.fd = event, .events = POLLIN};
        request[0] = (struct uext4_request){.tag = 7, .op = UEXT4_OP_READ, .length = 4096, .pos = 8192, .data = own};
        IS(uext4_queue_submit(queue, request, 1), 1);
        if (uext4_queue_reap(queue, done, 0, 1, 0) == 0) {
            IS(poll(&polled, 1, 10000), 1);
            IS(reaped(queue, done, 1), 1);
        }
        IS(done[0].tag, 7);
    } else {
        IS(event, -EOPNOTSUPP);
    }

    IS(uext4_queue_free(queue, foreign), -EINVAL);
    IS(uext4_queue_free(queue, own), 0);
    IS(uext4_queue_detach(queue, slot), 0);
    IS(uext4_queue_detach(queue, slot), -EBADF);
    IS(uext4_queue_close(queue), 0);
    IS(uext4_file_close(file), 0);
    free(foreign);
}

/* A second thread that uses a queue is told so, or finds it idle: it never waits, and nothing breaks. */
static void threads(void)
{
    struct uext4_queue *queue;
    pthread_t thread;
    IS(uext4_queue_open(volume, 2, 0, 0, &queue), 0);
    CHECK(pthread_create(&thread, NULL, waits, queue) == 0);
    for (int i = 0; i < 1000; i++) {
        int pending = uext4_queue_pending(queue);
        CHECK(pending == 0 || pending == -EBUSY);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    IS(uext4_queue_close(queue), 0);
}

/* A child has no part in what its parent opened. */
static void children(void)
{
    struct uext4_file *file;
    struct uext4_replacement *replacement;
    int status;
    IS(uext4_replace(volume, "/replaced", 0600, NULL, &replacement), 0);
    IS(uext4_file_close(filled(replacement, 'f', 5000)), 0);
    IS(uext4_file_open(volume, "/shared", UEXT4_READ | UEXT4_WRITE | UEXT4_CREATE, 0600, NULL, &file), 0);
    IS(uext4_pwrite_any(file, "parent", 6, 0, 0), 6);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        int refused = uext4_pread_any(file, &byte, 1, 0) < 0 && uext4_fsync(file) < 0 && uext4_tick(volume) < 0 &&
                      uext4_sync(volume) < 0 && uext4_ftruncate(file, 0) < 0 && uext4_close(volume) < 0;
        struct uext4_replacement *begun;
        refused = refused && uext4_replace(volume, "/replaced", 0600, NULL, &begun) < 0 &&
                  uext4_replacement_finish(replacement) < 0;
        _exit(refused ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    IS(uext4_file_size(file), 6);
    IS(uext4_fsync(file), 0);
    IS(uext4_file_close(file), 0);
    CHECK(is_whole("/replaced", 'n', 70007));
    IS(uext4_replacement_finish(replacement), 0);
    CHECK(is_whole("/replaced", 'f', 5000));
}

int main(int count, char **arguments)
{
    if (count == 3) {
        CHECK(quotas(arguments[1]) == 0);
        puts("ok");
        return 0;
    }
    CHECK(count == 2);
    volumes(arguments[1]);
    wrong_handles();
    files();
    attributes();
    tree();
    names();
    replacements();
    queues();
    threads();
    children();
    struct uext4_file *file;
    struct uext4_replacement *replacement;
    char bytes[6];
    IS(uext4_file_open(volume, "/shared", UEXT4_READ, 0, NULL, &file), 0);
    IS(uext4_replace(volume, "/replaced", 0600, NULL, &replacement), 0);
    IS(uext4_close(volume), 0);
    IS(uext4_close(volume), -EBADF);
    /* Open files outlive the handle of their volume. */
    IS(uext4_pread_any(file, bytes, 6, 0), 6);
    CHECK(memcmp(bytes, "parent", 6) == 0);
    IS(uext4_replacement_abandon(replacement), 0);
    IS(uext4_file_close(file), 0);
    puts("ok");
    return 0;
}
