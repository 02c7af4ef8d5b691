//! Names: attributes of files, directories, extended attributes, unlinking.

use crate::border::{bytes_mut, path, put, text};
use crate::call::{Fault, Result, call, call_int};
use crate::file::{FILES, uext4_file};
use crate::handle::{Kind, Table};
use crate::volume::{VOLUMES, uext4_volume};
use parking_lot::Mutex;
use std::ffi::{c_char, c_void};
use uext4::{DirCookie, FileKind, Metadata, ReadDir, Timestamp, XattrNames};

/// A directory being read.
pub struct uext4_dir(());

static DIRS: Table<Mutex<ReadDir>> = Table::new(Kind::Dir);

/// A time: seconds since 1970 and nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_time {
    /// Seconds since 1970-01-01, until 2446.
    pub seconds: i64,
    /// Nanoseconds, below 10⁹.
    pub nanoseconds: u32,
    /// Not used, 0.
    pub reserved: u32,
}

/// Attributes of a file, as `statx` has them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_stat {
    /// Inode number.
    pub ino: u32,
    /// Type and permissions, as `st_mode` (`S_IFREG | 0644`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Bytes of a block of the volume.
    pub block_size: u32,
    /// Bytes of the file.
    pub size: u64,
    /// Space that it takes, in units of 512 bytes.
    pub blocks: u64,
    /// Major number of a device node.
    pub rdev_major: u32,
    /// Minor number of a device node.
    pub rdev_minor: u32,
    /// Flags of the inode (`FS_…_FL`).
    pub flags: u32,
    /// Project, 0 if none.
    pub project: u32,
    /// Last access.
    pub accessed: uext4_time,
    /// Last change of the contents.
    pub modified: uext4_time,
    /// Last change of the attributes.
    pub changed: uext4_time,
    /// Creation; all zeros if it is not recorded.
    pub created: uext4_time,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_dirent {
    /// Inode number.
    pub ino: u32,
    /// Type, as the type bits of `st_mode`; 0 where the directory does not say.
    pub kind: u32,
    /// The name, which ends with a zero.
    pub name: [c_char; 256],
}

fn type_bits(kind: FileKind) -> u32 {
    u32::from(kind.mode_bits())
}

fn time(time: Timestamp) -> uext4_time {
    uext4_time { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}

fn stat(found: &Metadata) -> uext4_stat {
    uext4_stat {
        ino: found.ino.get(),
        mode: type_bits(found.kind) | found.mode,
        uid: found.uid,
        gid: found.gid,
        links: found.links,
        block_size: found.block_size,
        size: found.size,
        blocks: found.blocks,
        rdev_major: found.rdev.0,
        rdev_minor: found.rdev.1,
        flags: found.flags.bits(),
        project: found.project,
        accessed: time(found.accessed),
        modified: time(found.modified),
        changed: time(found.changed),
        created: time(found.created.unwrap_or_default()),
    }
}

/// Attributes of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fstat(file: *mut uext4_file, facts: *mut uext4_stat) -> i32 {
    call_int(|| {
        let found = FILES.get(file)?.metadata();
        // SAFETY: the caller promises a place for it.
        unsafe { put(facts, stat(&found)) }?;
        Ok(0)
    })
}

/// Attributes of what a path names; with `follow` 0 those of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_stat(
    volume: *mut uext4_volume,
    name: *const c_char,
    follow: i32,
    facts: *mut uext4_stat,
) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        let found = if follow != 0 { volume.metadata(name) } else { volume.symlink_metadata(name) };
        let found = found.map_err(|error| Fault::from(error).about(name.display()))?;
        // SAFETY: the caller promises a place for it.
        unsafe { put(facts, stat(&found)) }?;
        Ok(0)
    })
}

/// Takes the name of a regular file away. The file goes with its last name and its last handle. Durable after
/// `uext4_sync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_unlink(volume: *mut uext4_volume, name: *const c_char) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        volume.remove_file(name).map_err(|error| Fault::from(error).about(name.display()))?;
        Ok(0)
    })
}

/// What a symbolic link holds. Returns its length; what does not fit into `size` bytes is cut off. No zero is put
/// behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_readlink(
    volume: *mut uext4_volume,
    name: *const c_char,
    data: *mut c_char,
    size: usize,
) -> i64 {
    call(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        let link = volume.read_link(name).map_err(|error| Fault::from(error).about(name.display()))?;
        // SAFETY: the caller promises `size` bytes that are his alone.
        fill(&link, unsafe { bytes_mut(data.cast(), size) }?)
    })
}

/// Copies as much as fits. Returns the whole length.
fn fill(from: &[u8], to: &mut [u8]) -> Result<i64> {
    let length = from.len().min(to.len());
    to[..length].copy_from_slice(&from[..length]);
    Ok(from.len() as i64)
}

/// The value of an extended attribute (`user.comment`). Returns its length. With `size` 0 that is all; a value that is
/// longer than `size` is `-ERANGE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_getxattr(
    volume: *mut uext4_volume,
    name: *const c_char,
    attribute: *const c_char,
    follow: i32,
    value: *mut c_void,
    size: usize,
) -> i64 {
    call(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises strings.
        let (name, attribute) = unsafe { (path(name)?, text(attribute)?) };
        let found = volume
            .xattr(name, attribute.to_bytes(), follow != 0)
            .map_err(|error| Fault::from(error).about(name.display()))?;
        // SAFETY: the caller promises `size` bytes that are his alone.
        whole(&found, unsafe { bytes_mut(value.cast(), size) }?)
    })
}

/// Names of extended attributes, each with a zero behind it. Returns their length in all; sizes as of `uext4_getxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_listxattr(
    volume: *mut uext4_volume,
    name: *const c_char,
    follow: i32,
    list: *mut c_char,
    size: usize,
) -> i64 {
    call(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        let about = |error: uext4::Error| Fault::from(error).about(name.display());
        let names = volume.list_xattrs(name, follow != 0).and_then(joined).map_err(about)?;
        // SAFETY: the caller promises `size` bytes that are his alone.
        whole(&names, unsafe { bytes_mut(list.cast(), size) }?)
    })
}

/// Names of attributes, each with a zero behind it.
pub(crate) fn joined(names: XattrNames) -> uext4::Result<Vec<u8>> {
    let mut all = Vec::new();
    for name in names {
        all.extend_from_slice(name?.as_bytes());
        all.push(0);
    }
    Ok(all)
}

/// Copies all, or nothing if that does not fit. Returns the length.
pub(crate) fn whole(from: &[u8], to: &mut [u8]) -> Result<i64> {
    if to.is_empty() {
        return Ok(from.len() as i64);
    }
    if from.len() > to.len() {
        return Err(Fault::new(libc::ERANGE, format!("{} bytes do not fit into {}", from.len(), to.len())));
    }
    fill(from, to)
}

/// Opens a directory for listing. Close it with `uext4_closedir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_opendir(
    volume: *mut uext4_volume,
    name: *const c_char,
    dir: *mut *mut uext4_dir,
) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        // SAFETY: the caller promises a place for a handle.
        unsafe { put(dir, std::ptr::null_mut()) }?;
        let opened = volume.read_dir(name).map_err(|error| Fault::from(error).about(name.display()))?;
        let handle = DIRS.insert(Mutex::new(opened))?;
        // SAFETY: as above.
        unsafe { put(dir, handle) }?;
        Ok(0)
    })
}

/// The next entry, `.` and `..` among them. Returns 1, or 0 at the end. A name that is there all the time comes once,
/// whatever names are added and removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_readdir(dir: *mut uext4_dir, entry: *mut uext4_dirent) -> i32 {
    call_int(|| {
        let dir = DIRS.get(dir)?;
        let Some(next) = dir.lock().next() else { return Ok(0) };
        let next = next?;
        let mut name = [0 as c_char; 256];
        for (to, &from) in name[..255].iter_mut().zip(&next.name) {
            *to = from as c_char;
        }
        let found = uext4_dirent { ino: next.ino.get(), kind: next.kind.map_or(0, type_bits), name };
        // SAFETY: the caller promises a place for it.
        unsafe { put(entry, found) }?;
        Ok(1)
    })
}

/// Where the directory goes on: a number for `uext4_seekdir`. It stays valid as long as the directory is there, for
/// other handles too, and after names were added and removed.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_telldir(dir: *mut uext4_dir) -> i64 {
    call(|| Ok(DIRS.get(dir)?.lock().cookie().raw().cast_signed()))
}

/// Goes on elsewhere: at a place that `uext4_telldir` gave, or at the beginning, which is 0.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_seekdir(dir: *mut uext4_dir, place: i64) -> i32 {
    call_int(|| {
        let place = DirCookie::from_raw(place.cast_unsigned())?;
        DIRS.get(dir)?.lock().seek(place);
        Ok(0)
    })
}

/// Ends the handle.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_closedir(dir: *mut uext4_dir) -> i32 {
    call_int(|| {
        DIRS.remove(dir)?;
        Ok(0)
    })
}
