//! Sparse memory for devices in memory: one mapping, zero pages allocated on demand.

use super::dax_copy::Copier;
use crate::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;

/// Granularity at which memory is allocated and freed. With larger base pages a discard only frees less.
const PAGE: u64 = 4096;

/// A zero-filled range of memory that takes memory only where it was written.
///
/// Any number of threads may copy in and out at once without locks; overlapping copies mix, as on a device.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<u8>,
    size: u64,
    copier: Copier,
}

// SAFETY: the mapping belongs to this value until it is dropped, and its bytes are accessed only by the
// assembly routines of `Copier`, for which racing accesses are defined; no reference into it ever exists.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `size` bytes without reserving memory for them.
    pub(crate) fn new(size: u64) -> Result<Self> {
        let failed = |errno| Error::Open { path: format!("{size} bytes of memory"), action: "map", errno };
        let length = usize::try_from(size).map_err(|_| failed(libc::ENOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address the kernel chooses touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }
        .map_err(|errno| failed(errno.raw_os_error()))?;
        // With huge pages each scattered 4 KiB of metadata would take 2 MiB, and a sparse terabyte would not
        // fit.
        // SAFETY: exactly the mapping made above; the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(base, length, Advice::LinuxNoHugepage) };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| failed(libc::ENOMEM))?;
        Ok(Pages { base, size, copier: Copier::get() })
    }

    /// The address of `pos`, after a check that `length` bytes follow.
    #[inline]
    fn at(&self, pos: u64, length: usize) -> std::result::Result<*mut u8, i32> {
        if length as u64 > self.size || pos > self.size - length as u64 {
            return Err(libc::EINVAL);
        }
        // SAFETY: `pos + length <= size`, which is the length of the mapping.
        Ok(unsafe { self.base.as_ptr().add(pos as usize) })
    }

    /// Copies `length` bytes from `pos` to `to`. `EINVAL` outside the range.
    ///
    /// # Safety
    /// `to` must be valid for writes of `length` bytes that nobody else accesses.
    #[inline]
    pub(crate) unsafe fn read(&self, pos: u64, to: *mut u8, length: usize) -> std::result::Result<(), i32> {
        let from = self.at(pos, length)?;
        // SAFETY: `at` checked the source; the destination is the caller's, hence not this private mapping.
        unsafe { self.copier.copy(to, from, length) }.map_err(|_| libc::EFAULT)
    }

    /// Copies `length` bytes from `from` to `pos`. `EINVAL` outside the range.
    ///
    /// # Safety
    /// `from` must be valid for reads of `length` bytes that nobody writes meanwhile.
    #[inline]
    pub(crate) unsafe fn write(
        &self,
        pos: u64,
        from: *const u8,
        length: usize,
    ) -> std::result::Result<(), i32> {
        let to = self.at(pos, length)?;
        // SAFETY: `at` checked the destination; the source is the caller's, hence not this private mapping.
        unsafe { self.copier.copy(to, from, length) }.map_err(|_| libc::EFAULT)
    }

    /// Gives back the whole pages of a range; they read as zero. `EINVAL` outside the range.
    pub(crate) fn discard(&self, pos: u64, length: u64) -> std::result::Result<(), i32> {
        if length > self.size || pos > self.size - length {
            return Err(libc::EINVAL);
        }
        let (start, end) = (pos.next_multiple_of(PAGE), (pos + length) & !(PAGE - 1));
        if start >= end {
            return Ok(());
        }
        // SAFETY: `start..end` lies inside the mapping. Its pages read as zero from now on; nobody holds a
        // reference.
        unsafe {
            let address = self.base.as_ptr().add(start as usize);
            rustix::mm::madvise(address.cast(), (end - start) as usize, Advice::LinuxDontNeed)
        }
        .map_err(|errno| errno.raw_os_error())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping and holds the last pointer to it. Failure would only leak.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_at_the_edges() {
        let pages = Pages::new(8192).unwrap();
        let mut byte = [0u8; 1];
        let mut read = |pos| {
            // SAFETY: the buffer has one byte.
            unsafe { pages.read(pos, byte.as_mut_ptr(), 1) }
        };
        assert_eq!(read(8191), Ok(()));
        assert_eq!(read(8192), Err(libc::EINVAL));
        assert_eq!(read(u64::MAX), Err(libc::EINVAL));
        assert_eq!(pages.discard(1, u64::MAX), Err(libc::EINVAL));
        assert_eq!(pages.discard(8192, 0), Ok(()));
    }

    #[test]
    fn a_sparse_terabyte_can_be_had_and_discard_zeroes_whole_pages_only() {
        let pages = Pages::new(1 << 40).unwrap();
        let (full, mut back) = (vec![0xAA; 12288], vec![0; 12288]);
        let pos = (1 << 39) + 4096;
        // SAFETY: both vectors have 12288 bytes.
        unsafe { pages.write(pos, full.as_ptr(), 12288) }.unwrap();
        pages.discard(pos + 512, 8192).unwrap();
        // SAFETY: as above.
        unsafe { pages.read(pos, back.as_mut_ptr(), 12288) }.unwrap();
        assert!(back[..4096].iter().all(|&byte| byte == 0xAA));
        assert!(back[4096..8192].iter().all(|&byte| byte == 0));
        assert!(back[8192..].iter().all(|&byte| byte == 0xAA));
    }
}
