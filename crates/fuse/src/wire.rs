//! The FUSE protocol as bytes: structures, operations and flags of Linux's `fuse.h` (7.31 to 7.45), in the byte order
//! of the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose structures these are.
pub(crate) const MINOR: u32 = 41;
/// The oldest minor version that is served (Linux 5.4): with `max_pages` and 64-byte replies to INIT.
pub(crate) const MINOR_LEAST: u32 = 31;
/// Node id of the root directory.
pub(crate) const ROOT: u64 = 1;
/// Longest name of a directory entry, in bytes. The kernel passes longer ones.
pub(crate) const NAME_MAX: usize = 255;

/// Operations.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// The name of a kind of requests.
pub(crate) fn kind_name(opcode: u32) -> &'static str {
    match opcode {
        op::LOOKUP => "LOOKUP",
        op::FORGET => "FORGET",
        op::GETATTR => "GETATTR",
        op::SETATTR => "SETATTR",
        op::READLINK => "READLINK",
        op::SYMLINK => "SYMLINK",
        op::MKNOD => "MKNOD",
        op::MKDIR => "MKDIR",
        op::UNLINK => "UNLINK",
        op::RMDIR => "RMDIR",
        op::RENAME => "RENAME",
        op::LINK => "LINK",
        op::OPEN => "OPEN",
        op::READ => "READ",
        op::WRITE => "WRITE",
        op::STATFS => "STATFS",
        op::RELEASE => "RELEASE",
        op::FSYNC => "FSYNC",
        op::SETXATTR => "SETXATTR",
        op::GETXATTR => "GETXATTR",
        op::LISTXATTR => "LISTXATTR",
        op::REMOVEXATTR => "REMOVEXATTR",
        op::OPENDIR => "OPENDIR",
        op::READDIR => "READDIR",
        op::RELEASEDIR => "RELEASEDIR",
        op::FSYNCDIR => "FSYNCDIR",
        op::CREATE => "CREATE",
        op::IOCTL => "IOCTL",
        op::BATCH_FORGET => "BATCH_FORGET",
        op::FALLOCATE => "FALLOCATE",
        op::READDIRPLUS => "READDIRPLUS",
        op::RENAME2 => "RENAME2",
        op::LSEEK => "LSEEK",
        op::COPY_FILE_RANGE => "COPY_FILE_RANGE",
        op::SYNCFS => "SYNCFS",
        op::TMPFILE => "TMPFILE",
        op::STATX => "STATX",
        _ => "other",
    }
}

/// What INIT negotiates.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Which attributes SETATTR sets.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of an open file, for the kernel.
pub(crate) const FOPEN_DIRECT_IO: u32 = 1;
/// The kernel keeps what it has cached of the file.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// Direct writes that do not extend the file may run at the same time.
pub(crate) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// Flag of OPEN: strip set-id bits, since the file is truncated.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1;
/// Flag of WRITE: of the kernel's cache, through some open file.
pub(crate) const WRITE_CACHE: u32 = 1;
/// Flag of WRITE: strip set-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of SETXATTR: strip set-group-id.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Flag of FSYNC: data only.
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
/// Type of the extension of a request that lists groups.
pub(crate) const EXT_GROUPS: u32 = 32;
/// Notification: forget what is cached of an inode.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: send what is cached of an inode, as a NOTIFY_REPLY.
pub(crate) const NOTIFY_RETRIEVE: i32 = 5;

/// Declares structures that are read from requests.
macro_rules! taken {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(dead_code, reason = "fields that are not needed have their place all the same")]
        pub(crate) struct $name { $(pub(crate) $field: $kind),+ }
    )+};
}

/// Declares structures that are written to replies.
macro_rules! given {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $kind),+ }
    )+};
}

taken! {
    /// Begins each request. `extensions`: length of what follows the arguments, in units of 8 bytes.
    InHeader {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, extensions: u16, padding: u16,
    }
    /// The part that every kernel sends.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// Follows if the flags have INIT_EXT.
    InitMore { flags: u32 }
    ForgetIn { lookups: u64 }
    ForgetOne { node: u64, lookups: u64 }
    BatchForgetIn { count: u32, dummy: u32 }
    GetattrIn { flags: u32, dummy: u32, fh: u64 }
    StatxIn { flags: u32, reserved: u32, fh: u64, sx_flags: u32, mask: u32 }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atime_nsec: u32, mtime_nsec: u32, ctime_nsec: u32, mode: u32, unused: u32, uid: u32, gid: u32, unused2: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { new_directory: u64 }
    Rename2In { new_directory: u64, flags: u32, padding: u32 }
    LinkIn { node: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    FsyncIn { fh: u64, flags: u32, padding: u32 }
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn { size: u32, padding: u32 }
    InterruptIn { unique: u64 }
    IoctlIn { fh: u64, flags: u32, command: u32, arg: u64, in_size: u32, out_size: u32 }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    CopyFileRangeIn { fh_in: u64, off_in: u64, node_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    /// Before a request that comes through a ring, and before its reply (`struct fuse_uring_req_header`).
    RingHead {
        header: [u8; 128], operation: [u8; 128], flags: u64, commit: u64, payload: u32, padding: u32, reserved: u64,
    }
    /// Begins an extension of a request.
    ExtensionHeader { size: u32, kind: u32 }
}

given! {
    OutHeader { len: u32, error: i32, unique: u64 }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_nsec: u32, mtime_nsec: u32,
        ctime_nsec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    StatxTime { seconds: i64, nanoseconds: u32, reserved: i32 }
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime,
        mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    OpenOut { fh: u64, open_flags: u32, padding: u32 }
    WriteOut { size: u32, padding: u32 }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    GetxattrOut { size: u32, padding: u32 }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    LseekOut { offset: u64 }
    Dirent { ino: u64, offset: u64, name_len: u32, kind: u32 }
    RetrieveOut { unique: u64, node: u64, offset: u64, size: u32, padding: u32 }
    InvalInodeOut { node: u64, offset: i64, length: i64 }
}

/// Bytes of the header and arguments of a WRITE, before its data.
pub(crate) const BEFORE_DATA: usize = size_of::<InHeader>() + size_of::<WriteIn>();

const _: () = {
    assert!(size_of::<InHeader>() == 40 && size_of::<WriteIn>() == 40);
    assert!(size_of::<InitOut>() == 64 && size_of::<SetattrIn>() == 88);
    assert!(size_of::<EntryOut>() == 128 && size_of::<AttrOut>() == 104 && size_of::<StatfsOut>() == 80);
    assert!(size_of::<RingHead>() == 288);
    assert!(size_of::<Statx>() == 256 && size_of::<StatxOut>() == 288);
};
