//! Whether every byte of a file has blocks allocated, which a writable mapping needs: a store into a hole that cannot
//! be filled raises SIGBUS instead of returning an error.

use rustix::fs::{SeekFrom, fstatfs, seek};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;
/// `FS_IOC_FIEMAP` of linux/fs.h: `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660Bu32 as libc::Ioctl;
/// `FIEMAP_FLAG_SYNC` of linux/fiemap.h: write out delayed allocations first.
const FLAG_SYNC: u32 = 1;
/// `FIEMAP_EXTENT_LAST`.
const EXTENT_LAST: u32 = 0x1;
/// `FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_SHARED`: no blocks of its own to write to.
const EXTENT_NO_ROOM: u32 = 0x2 | 0x4 | 0x2000;
/// Extents per request.
const BATCH: usize = 128;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` of linux/fiemap.h with its extents.
#[repr(C)]
struct Query {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; BATCH],
}

/// Whether each of the first `size` bytes of the regular file is allocated, including unwritten preallocation.
pub(crate) fn fully_allocated(file: &File, size: u64) -> std::io::Result<bool> {
    match extents_cover(file, size) {
        Ok(answer) => return Ok(answer),
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL)) => {}
        Err(error) => return Err(error),
    }
    // tmpfs has no extents and reports preallocated pages as holes until they are written, but counts them. Pages
    // preallocated past the end could hide a hole from the count; filling it may then fail, with EIO from a guarded
    // copy.
    if fstatfs(file)?.f_type as u64 == TMPFS {
        return Ok(file.metadata()?.blocks() * 512 >= size);
    }
    Ok(seek(file, SeekFrom::Hole(0))? >= size)
}

fn extents_cover(file: &File, size: u64) -> std::io::Result<bool> {
    let mut covered = 0;
    while covered < size {
        let mut query = Query {
            start: covered,
            length: size - covered,
            flags: FLAG_SYNC,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [Extent::default(); BATCH],
        };
        // SAFETY: the request writes at most `count` extents after the header, which is what `Query` has room for.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut query) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let extents = &query.extents[..(query.mapped as usize).min(BATCH)];
        let before = covered;
        for extent in extents {
            if extent.logical > covered || extent.flags & EXTENT_NO_ROOM != 0 {
                return Ok(false);
            }
            covered = covered.max(extent.logical.saturating_add(extent.length));
        }
        let last = extents.last().is_none_or(|extent| extent.flags & EXTENT_LAST != 0);
        if covered == before || (last && covered < size) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::unix::fs::FileExt;

    fn check_in(directory: &str) {
        let file = tempfile::tempfile_in(directory).unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(!fully_allocated(&file, 1 << 20).unwrap(), "{directory}: sparse");
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[1; 4096], (1 << 20) - 4096).unwrap();
        assert!(!fully_allocated(&file, 1 << 20).unwrap(), "{directory}: hole in the middle");
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert!(fully_allocated(&file, 1 << 20).unwrap(), "{directory}: preallocated");
    }

    #[test]
    fn holes_are_found_and_preallocation_counts() {
        check_in("/dev/shm");
        check_in(std::env::temp_dir().to_str().unwrap());
    }
}
