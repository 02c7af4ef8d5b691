//! Files: open, read, write, sync, size and blocks.

use crate::border::{bytes, bytes_mut, path, put};
use crate::call::{Fault, Result, call, call_int};
use crate::handle::{Kind, Table};
use crate::volume::{VOLUMES, switches_of, uext4_volume};
use std::ffi::{c_char, c_void};
use uext4::{Fallocate, File, OpenOptions, Priority, PriorityClass, ReadFlags, WriteFlags};

/// An open file.
pub struct uext4_file(());

pub(crate) static FILES: Table<File> = Table::new(Kind::File);

/// The file is read.
pub const UEXT4_READ: u32 = 1;
/// The file is written.
pub const UEXT4_WRITE: u32 = 2;
/// The file is written at its end only, by `uext4_append`.
pub const UEXT4_APPEND: u32 = 4;
/// The file is made if it is not there.
pub const UEXT4_CREATE: u32 = 8;
/// The file is made, and must not be there.
pub const UEXT4_CREATE_NEW: u32 = 16;
/// The file is emptied.
pub const UEXT4_TRUNCATE: u32 = 32;

/// Limits of quota hold for making the file and for what is written, as for a user other than root: `-EDQUOT`.
pub const UEXT4_LIMITED: u32 = 64;
/// Requests of any bytes (`uext4_pread_any`, `uext4_pwrite_any`, `uext4_append`) go to the device at once, without
/// pages in memory.
pub const UEXT4_DIRECT: u32 = 128;

const FILE_FLAGS: u32 = (UEXT4_DIRECT << 1) - 1;

/// I/O priority, in the flags of `uext4_file_open` and `uext4_queue_open`: before all others. Needs `CAP_SYS_NICE`. A
/// class is combined with its level, 0 (first) to 7 (last), shifted by `UEXT4_PRIO_SHIFT`. Without a class a file's
/// requests have the priority of their queue or of the calling thread.
pub const UEXT4_PRIO_REALTIME: u32 = 0x0800_0000;
/// I/O priority: the class of threads that ask for none.
pub const UEXT4_PRIO_BEST_EFFORT: u32 = 0x1000_0000;
/// I/O priority: when nobody else has anything to do.
pub const UEXT4_PRIO_IDLE: u32 = 0x1800_0000;
/// Where the level of an I/O priority begins.
pub const UEXT4_PRIO_SHIFT: u32 = 24;
/// Class and level.
pub(crate) const PRIO_FLAGS: u32 = UEXT4_PRIO_IDLE | 7 << UEXT4_PRIO_SHIFT;

/// The I/O priority in flags.
pub(crate) fn priority(flags: u32) -> Result<Priority> {
    let class = match flags & UEXT4_PRIO_IDLE {
        UEXT4_PRIO_REALTIME => PriorityClass::RealTime,
        UEXT4_PRIO_BEST_EFFORT => PriorityClass::BestEffort,
        UEXT4_PRIO_IDLE => PriorityClass::Idle,
        _ if flags & PRIO_FLAGS == 0 => return Ok(Priority::OF_THREAD),
        _ => return Err(Fault::invalid("a level of I/O priority without a class")),
    };
    let level = (flags & PRIO_FLAGS) >> UEXT4_PRIO_SHIFT & 7;
    Priority::new(class, level as u8).ok_or_else(|| Fault::invalid("no such I/O priority"))
}

/// Of a write: as `O_DSYNC`, durable when it returns or completes.
pub const UEXT4_DSYNC: u32 = 1;
/// Of a write: as `O_SYNC`.
pub const UEXT4_SYNC: u32 = 2;
/// Of a read or write: fails with `EAGAIN` rather than waits for others, for room, for metadata that is not in memory,
/// or until the device can take a request of up to 128 KiB.
pub const UEXT4_NOWAIT: u32 = 4;
/// Of a write: never torn. After a crash all of its bytes are old or all are new, on any device. The length is a power
/// of two from the file system's block size to `UEXT4_ATOMIC_MAX`, and the position a multiple of it: otherwise
/// `-EINVAL`. `-EOPNOTSUPP` for a volume without a journal or with clusters, and for a file without extents.
pub const UEXT4_ATOMIC: u32 = 8;
/// Most bytes of an atomic write.
pub const UEXT4_ATOMIC_MAX: u32 = 65536;

/// `uext4_fallocate`: holes get blocks that read as zeros; the file grows to the end of the range.
pub const UEXT4_FALLOC_ALLOCATE: u32 = 0;
/// The same, but the size stays.
pub const UEXT4_FALLOC_KEEP_SIZE: u32 = 1;
/// The range reads as zeros, its whole blocks are freed, the size stays.
pub const UEXT4_FALLOC_PUNCH: u32 = 2;
/// The range reads as zeros and has blocks; the file grows to its end.
pub const UEXT4_FALLOC_ZERO: u32 = 3;
/// The same, but the size stays.
pub const UEXT4_FALLOC_ZERO_KEEP_SIZE: u32 = 4;
/// The range is taken out.
pub const UEXT4_FALLOC_COLLAPSE: u32 = 5;
/// A hole is put in.
pub const UEXT4_FALLOC_INSERT: u32 = 6;

pub(crate) fn read_flags(flags: u32) -> Result<ReadFlags> {
    match flags {
        0 => Ok(ReadFlags::empty()),
        UEXT4_NOWAIT => Ok(ReadFlags::NOWAIT),
        _ => Err(Fault::invalid(format!("flags of a read: {flags:#x}"))),
    }
}

pub(crate) fn write_flags(flags: u32) -> Result<WriteFlags> {
    let known = [
        (UEXT4_DSYNC, WriteFlags::DSYNC),
        (UEXT4_SYNC, WriteFlags::SYNC),
        (UEXT4_NOWAIT, WriteFlags::NOWAIT),
        (UEXT4_ATOMIC, WriteFlags::ATOMIC),
    ];
    if flags & !known.iter().fold(0, |all, (flag, _)| all | flag) != 0 {
        return Err(Fault::invalid(format!("flags of a write: {flags:#x}")));
    }
    Ok(known.iter().filter(|(flag, _)| flags & flag != 0).map(|&(_, flag)| flag).collect())
}

pub(crate) fn fallocate_mode(mode: u32) -> Result<Fallocate> {
    Ok(match mode {
        UEXT4_FALLOC_ALLOCATE => Fallocate::Allocate,
        UEXT4_FALLOC_KEEP_SIZE => Fallocate::KeepSize,
        UEXT4_FALLOC_PUNCH => Fallocate::Punch,
        UEXT4_FALLOC_ZERO => Fallocate::Zero,
        UEXT4_FALLOC_ZERO_KEEP_SIZE => Fallocate::ZeroKeepSize,
        UEXT4_FALLOC_COLLAPSE => Fallocate::Collapse,
        UEXT4_FALLOC_INSERT => Fallocate::Insert,
        _ => return Err(Fault::invalid(format!("mode {mode} of fallocate"))),
    })
}

/// Opens a regular file of the volume. `flags` are `UEXT4_READ`, … and an I/O priority; `mode` are the permissions of a
/// file that is made.
/// `switches` sets optimisations of this file (NULL: as the volume).
///
/// Every open has a handle of its own. A file that is unlinked stays usable until its last handle is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_open(
    volume: *mut uext4_volume,
    name: *const c_char,
    flags: u32,
    mode: u32,
    switches: *const c_char,
    file: *mut *mut uext4_file,
) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        let unknown = flags & !(FILE_FLAGS | PRIO_FLAGS);
        if unknown != 0 {
            return Err(Fault::invalid(format!("unknown flags {unknown:#x}")));
        }
        let has = |flag| flags & flag != 0;
        let mut options = OpenOptions::new()
            .read(has(UEXT4_READ))
            .write(has(UEXT4_WRITE))
            .append(has(UEXT4_APPEND))
            .create(has(UEXT4_CREATE))
            .truncate(has(UEXT4_TRUNCATE))
            .limited(has(UEXT4_LIMITED))
            .direct(has(UEXT4_DIRECT))
            .mode(mode)
            .priority(priority(flags)?);
        if has(UEXT4_CREATE_NEW) {
            options = options.create_new(true);
        }
        // SAFETY: the caller promises a string, or NULL.
        if let Some(switches) = unsafe { switches_of(switches) }? {
            options = options.switches(switches);
        }
        // SAFETY: the caller promises a place for a handle.
        unsafe { put(file, std::ptr::null_mut()) }?;
        let opened =
            volume.open_file(name, options).map_err(|error| Fault::from(error).about(name.display()))?;
        let handle = FILES.insert(opened)?;
        // SAFETY: as above.
        unsafe { put(file, handle) }?;
        Ok(0)
    })
}

/// Ends the handle. Calls that use it in other threads, and queues that the file is attached to, go on; the file is
/// closed with the last of them. Says nothing about durability: sync first.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_file_close(file: *mut uext4_file) -> i32 {
    call_int(|| {
        FILES.remove(file)?;
        Ok(0)
    })
}

/// Reads directly: `pos`, `length` and `data` must obey `uext4_geometry`. Returns the bytes read, fewer at the end of
/// the file, 0 behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_pread(
    file: *mut uext4_file,
    data: *mut c_void,
    length: usize,
    pos: u64,
    flags: u32,
) -> i64 {
    call(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises `length` bytes that are his alone.
        let data = unsafe { bytes_mut(data.cast(), length) }?;
        Ok(file.read_at_with(data, pos, read_flags(flags)?)? as i64)
    })
}

/// Writes directly: `pos`, `length` and `data` must obey `uext4_geometry`. Returns `length`, or a failure of the whole
/// write. `flags`: `UEXT4_DSYNC`, `UEXT4_SYNC`, `UEXT4_NOWAIT`, `UEXT4_ATOMIC`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_pwrite(
    file: *mut uext4_file,
    data: *const c_void,
    length: usize,
    pos: u64,
    flags: u32,
) -> i64 {
    call(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises `length` bytes that nobody changes.
        let data = unsafe { bytes(data.cast(), length) }?;
        Ok(file.write_at_with(data, pos, write_flags(flags)?)? as i64)
    })
}

/// Reads any bytes into any memory, over pages in memory unless the file was opened with `UEXT4_DIRECT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_pread_any(
    file: *mut uext4_file,
    data: *mut c_void,
    length: usize,
    pos: u64,
) -> i64 {
    call(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises `length` bytes that are his alone.
        let data = unsafe { bytes_mut(data.cast(), length) }?;
        Ok(file.read_any_at(data, pos)? as i64)
    })
}

/// Writes any bytes from any memory: into pages in memory, which a sync or the last close writes to the device. With
/// flags, or if the file was opened with `UEXT4_DIRECT`, it goes to the device at once, alone in the file. If pages
/// cannot be written later, the next sync of every open file of the inode fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_pwrite_any(
    file: *mut uext4_file,
    data: *const c_void,
    length: usize,
    pos: u64,
    flags: u32,
) -> i64 {
    call(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises `length` bytes that nobody changes.
        let data = unsafe { bytes(data.cast(), length) }?;
        Ok(file.write_any_at(data, pos, write_flags(flags)?)? as i64)
    })
}

/// Writes any bytes at the end of a file that was opened with `UEXT4_APPEND`. Returns where they begin. Appends
/// through one handle come one behind the other, each as a whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_append(
    file: *mut uext4_file,
    data: *const c_void,
    length: usize,
    flags: u32,
) -> i64 {
    call(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises `length` bytes that nobody changes.
        let data = unsafe { bytes(data.cast(), length) }?;
        Ok(file.append(data, write_flags(flags)?)? as i64)
    })
}

/// As `fdatasync`: completed writes of the file, and what is needed to read them back, survive a crash.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_fdatasync(file: *mut uext4_file) -> i32 {
    call_int(|| {
        FILES.get(file)?.sync_data()?;
        Ok(0)
    })
}

/// As `fsync`.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_fsync(file: *mut uext4_file) -> i32 {
    call_int(|| {
        FILES.get(file)?.sync_all()?;
        Ok(0)
    })
}

/// `fsync` of `count` files of one volume, with one commit and one flush.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fsync_files(files: *const *mut uext4_file, count: usize) -> i32 {
    call_int(|| {
        let bytes_of_all = count.checked_mul(size_of::<*mut uext4_file>());
        if files.is_null() && count > 0 || bytes_of_all.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Fault::invalid("a list of files that is none"));
        }
        let handles = match count {
            0 => &[][..],
            // SAFETY: not NULL, and the caller promises `count` handles there.
            _ => unsafe { std::slice::from_raw_parts(files, count) },
        };
        let files = handles.iter().map(|&file| FILES.get(file)).collect::<Result<Vec<_>>>()?;
        let files: Vec<&File> = files.iter().map(|file| &**file).collect();
        if let Some(first) = files.first() {
            first.volume().sync_files(&files)?;
        }
        Ok(0)
    })
}

/// As `ftruncate`. Durable after the next sync.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_ftruncate(file: *mut uext4_file, size: u64) -> i32 {
    call_int(|| {
        FILES.get(file)?.set_len(size)?;
        Ok(0)
    })
}

/// As `fallocate`; `mode` is one of `UEXT4_FALLOC_…`. Durable after the next sync.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_fallocate(file: *mut uext4_file, mode: u32, pos: u64, length: u64) -> i32 {
    call_int(|| {
        FILES.get(file)?.fallocate(fallocate_mode(mode)?, pos, length)?;
        Ok(0)
    })
}

/// Makes every later write to the first `size` bytes a pure overwrite: blocks in as few runs as there is room for,
/// zeroed and written. The file grows to `size` if it is shorter. Durable after the next sync.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_prepare(file: *mut uext4_file, size: u64) -> i32 {
    call_int(|| {
        FILES.get(file)?.prepare(size)?;
        Ok(0)
    })
}

/// Bytes of the file.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_file_size(file: *mut uext4_file) -> i64 {
    call(|| Ok(FILES.get(file)?.size() as i64))
}

/// The first byte from `pos` on that is written; `-ENXIO` if none is.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_seek_data(file: *mut uext4_file, pos: u64) -> i64 {
    call(|| found(FILES.get(file)?.seek_data(pos)?))
}

/// The first byte from `pos` on that is not written, the end of the file at the latest; `-ENXIO` if `pos` is not inside
/// the file.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_seek_hole(file: *mut uext4_file, pos: u64) -> i64 {
    call(|| found(FILES.get(file)?.seek_hole(pos)?))
}

fn found(pos: Option<u64>) -> Result<i64> {
    pos.map(|pos| pos as i64).ok_or_else(|| Fault::new(libc::ENXIO, "nothing of the kind from there on"))
}
