//! `dax:`: a mapped file or persistent-memory block device; transfers are copies by the calling thread.
//!
//! On fsdax the mapping uses `MAP_SYNC` and every write leaves the processor's caches before it returns, so that a
//! flush has nothing left to do ([`DaxKind::MapSync`]). Elsewhere the mapping is the page cache and `msync` makes it
//! durable ([`DaxKind::Msync`]); `describe()` says which.
//!
//! Only the guarded routines of `dax_copy` touch the mapping: a missing page (file truncated, bad memory) gives `EIO`
//! instead of killing the process.

use super::allocated::fully_allocated;
use super::dax_copy::{Copier, Fault, durable_copies_work, install_guard};
use super::instant::{Instant, InstantQueue};
use super::syncs::Syncs;
use crate::{
    Capabilities, DaxKind, Description, Device, Driving, Error, Geometry, Op, Process, Queue, QueueOptions,
    Request, Result, Sharing, WriteDurability,
};
use rustix::fs::{FileType, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

/// Positions and lengths are multiples of this.
const LOGICAL_BLOCK: u32 = 512;
// Every durable copy is a whole number of cache lines.
const _: () = assert!((LOGICAL_BLOCK as usize).is_multiple_of(super::dax_copy::LINE));

/// A mapped device. See the module documentation.
#[derive(Debug)]
pub struct DaxDevice {
    map: Arc<Mapping>,
    locator: String,
    sharing: Sharing,
    notes: Vec<String>,
}

/// The mapping itself, shared by the device and its queues.
#[derive(Debug)]
struct Mapping {
    process: Process,
    base: NonNull<u8>,
    /// Bytes mapped: the usable size.
    size: u64,
    kind: DaxKind,
    write: bool,
    copier: Copier,
    /// Flushes and durable writes.
    syncs: Syncs,
    /// Holds the ownership lock, and shows whether the file shrank.
    file: File,
    is_file: bool,
}

// SAFETY: the mapping belongs to this value until it is dropped, and its bytes are accessed only by the
// assembly routines of `Copier`, for which racing accesses are defined; no reference into it ever exists.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl DaxDevice {
    /// Maps `file`, which the caller has opened (for writing if `write`) and locked; the lock lives as long as the
    /// device and its queues. A tail of less than 512 bytes is not usable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an empty file, for anything but a file or block device, and for writing to a file
    /// with holes; [`Error::Open`] if the system refuses.
    pub fn new(file: File, locator: String, write: bool, sharing: Sharing) -> Result<Self> {
        install_guard()?;
        let failed =
            |action, errno: Errno| Error::Open { path: locator.clone(), action, errno: errno.raw_os_error() };
        let stat = fstat(&file).map_err(|errno| failed("stat", errno))?;
        let is_file = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => true,
            FileType::BlockDevice => false,
            _ => {
                return Err(Error::Unsupported(format!(
                    "{locator}: neither a regular file nor a block device"
                )));
            }
        };
        let size = seek(&file, SeekFrom::End(0)).map_err(|errno| failed("find its size", errno))?
            & !u64::from(LOGICAL_BLOCK - 1);
        if size == 0 {
            return Err(Error::Unsupported(format!("{locator}: too small to be mapped")));
        }
        let mut notes = Vec::new();
        if is_file && write {
            require_room(&file, size, &locator)?;
            notes.extend(keep_from_shrinking(&file));
        }
        let (base, kind) = map(&file, size, write).map_err(|errno| failed("map", errno))?;
        if kind == DaxKind::Msync {
            notes.push("no MAP_SYNC: msync makes writes durable".into());
        }
        let process = Process::current()?;
        let map = Arc::new(Mapping {
            process,
            base,
            size,
            kind,
            write,
            copier: Copier::get(),
            syncs: Syncs::default(),
            file,
            is_file,
        });
        // The file could have shrunk between the size check and the mapping.
        map.check_size().map_err(|errno| failed("keep its size", Errno::from_raw_os_error(errno)))?;
        Ok(DaxDevice { map, locator, sharing, notes })
    }

    /// Checks a synchronous transfer.
    #[inline]
    fn check(&self, pos: u64, length: usize) -> Result<()> {
        self.map.process.check()?;
        self.geometry().check(pos, length as u64)
    }
}

fn require_room(file: &File, size: u64, locator: &str) -> Result<()> {
    match fully_allocated(file, size) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Unsupported(format!(
            "{locator}: dax cannot write to a file with holes or shared blocks; allocate it first (fallocate)"
        ))),
        Err(error) => Err(Error::Open {
            path: locator.into(),
            action: "find its holes",
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }),
    }
}

/// Seals the file where possible (memfd). Otherwise only the image lock keeps others from truncating it, which is
/// noted.
fn keep_from_shrinking(file: &File) -> Option<String> {
    if fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        || fcntl_add_seals(file, SealFlags::SHRINK).is_ok()
    {
        return None;
    }
    Some("only the image lock keeps the file from shrinking; a truncated part fails with EIO".into())
}

fn map(file: &File, size: u64, write: bool) -> rustix::io::Result<(NonNull<u8>, DaxKind)> {
    let length = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
    let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let attempt = |flags| {
        // SAFETY: a new mapping at an address the kernel chooses touches no existing memory.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, flags, file, 0) }?;
        NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)
    };
    if durable_copies_work()
        && let Ok(base) = attempt(MapFlags::SHARED_VALIDATE | MapFlags::SYNC)
    {
        return Ok((base, DaxKind::MapSync));
    }
    Ok((attempt(MapFlags::SHARED)?, DaxKind::Msync))
}

impl Mapping {
    /// The address of `pos`. Callers have checked the range; it is checked again because the safety of every copy
    /// depends on it.
    #[inline]
    fn at(&self, pos: u64, length: usize) -> std::result::Result<*mut u8, i32> {
        if length as u64 > self.size || pos > self.size - length as u64 {
            return Err(libc::EINVAL);
        }
        // SAFETY: `pos + length <= size`, the length of the mapping.
        Ok(unsafe { self.base.as_ptr().add(pos as usize) })
    }

    /// Copies out.
    ///
    /// # Safety
    /// `to` must be valid for writes of `length` bytes that nobody else accesses.
    #[inline]
    unsafe fn read(&self, pos: u64, to: *mut u8, length: usize) -> std::result::Result<(), i32> {
        let from = self.at(pos, length)?;
        // SAFETY: `at` checked the source; the guard is installed for pages that are gone.
        unsafe { self.copier.copy(to, from, length) }.map_err(|Fault| libc::EIO)
    }

    /// Copies in, durably if `fua`. With `MAP_SYNC` every write is durable when it returns: a fence at flush
    /// time could not reach the caches of the processor that wrote.
    ///
    /// # Safety
    /// `from` must be valid for reads of `length` bytes that nobody writes meanwhile.
    #[inline]
    unsafe fn write(
        &self,
        pos: u64,
        from: *const u8,
        length: usize,
        fua: bool,
    ) -> std::result::Result<(), i32> {
        let to = self.at(pos, length)?;
        if !self.write {
            return Err(libc::EROFS);
        }
        let copied = match self.kind {
            DaxKind::MapSync => {
                // SAFETY: `at` checked the destination, and callers checked that it is a whole number of 512-byte
                // blocks; the guard is installed for pages that are gone.
                unsafe { self.copier.copy_durable(to, from, length) }
            }
            DaxKind::Msync => {
                // SAFETY: as above.
                unsafe { self.copier.copy(to, from, length) }
            }
        };
        copied.map_err(|Fault| libc::EIO)?;
        if fua && self.kind == DaxKind::Msync { self.sync(pos, length as u64) } else { Ok(()) }
    }

    /// Writes the pages of a range back and waits until the data and the metadata needed to find it are on the medium.
    /// After a failure every later call fails: the kernel reports a lost write only once.
    fn sync(&self, pos: u64, length: u64) -> std::result::Result<(), i32> {
        let page = rustix::param::page_size() as u64;
        let start = pos & !(page - 1);
        let bytes = (pos + length - start) as usize;
        self.syncs.run(|| {
            // SAFETY: the range lies inside the mapping, rounded down to a page, which the mapping starts with.
            let outcome = unsafe {
                rustix::mm::msync(self.base.as_ptr().add(start as usize).cast(), bytes, MsyncFlags::SYNC)
            };
            outcome.map_err(|errno| errno.raw_os_error())
        })?;
        self.check_size()
    }

    fn flush(&self) -> std::result::Result<(), i32> {
        match self.kind {
            DaxKind::MapSync => self.check_size(),
            DaxKind::Msync if !self.write => Ok(()),
            // Only dirty pages are written, so syncing the whole range costs no more than its dirty part.
            DaxKind::Msync => self.sync(0, self.size),
        }
    }

    /// If the file was truncated within a page, a write beyond its end into that page raises no fault and is lost. So
    /// the size is checked before claiming durability.
    fn check_size(&self) -> std::result::Result<(), i32> {
        if !self.is_file {
            return Ok(());
        }
        match fstat(&self.file) {
            Ok(stat) if stat.st_size as u64 >= self.size => Ok(()),
            Ok(_) => Err(libc::EIO),
            Err(errno) => Err(errno.raw_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping and holds the last pointer to it. Failure would only leak.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size as usize) };
    }
}

impl Device for DaxDevice {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.map.size, logical_block: LOGICAL_BLOCK, memory_align: 1 }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: true,
            fua: true,
            nowait: true,
            discard: false,
            read_only: !self.map.write,
            dax: Some(self.map.kind),
        }
    }

    fn describe(&self) -> Description {
        Description {
            engine: "dax",
            locator: self.locator.clone(),
            layers: Vec::new(),
            sharing: self.sharing,
            driving: Driving::Engine,
            tags: None,
            notes: self.notes.clone(),
        }
    }

    #[inline]
    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.check(pos, buf.len())?;
        // SAFETY: `buf` is exclusively ours and has this length.
        unsafe { self.map.read(pos, buf.as_mut_ptr(), buf.len()) }
            .map_err(|errno| failed(Op::Read, pos, buf.len(), errno))
    }

    #[inline]
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.check(pos, buf.len())?;
        if !self.map.write {
            return Err(Error::ReadOnly);
        }
        // SAFETY: a shared slice is readable for its length and not written meanwhile.
        unsafe { self.map.write(pos, buf.as_ptr(), buf.len(), durability == WriteDurability::Fua) }
            .map_err(|errno| failed(Op::Write, pos, buf.len(), errno))
    }

    /// With `MAP_SYNC` all completed writes are durable already; otherwise `msync` of the dirty pages.
    fn flush(&self) -> Result<()> {
        self.map.process.check()?;
        self.map.flush().map_err(|errno| failed(Op::Flush, 0, 0, errno))
    }

    /// `fdatasync` first: neither `msync` of this mapping nor uncached copies cover what others wrote to the file.
    fn settle(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.map.file)
            .map_err(|errno| failed(Op::Flush, 0, 0, errno.raw_os_error()))?;
        self.flush()
    }

    /// Not supported: a hole would have to be filled again by a store that cannot report failure.
    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.map.process.check()?;
        self.geometry().check(pos, length)?;
        Err(Error::Unsupported("discard on a mapped device".into()))
    }

    /// A queue whose `push` executes the requests.
    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.map.process.check()?;
        let copies = Copies { map: Arc::clone(&self.map), geometry: self.geometry() };
        Ok(Queue::Other(Box::new(InstantQueue::new("dax", copies, options)?)))
    }
}

#[cold]
fn failed(op: Op, pos: u64, length: usize, errno: i32) -> Error {
    Error::Io { op: op.name(), pos, length: length as u64, errno }
}

/// The requests of a [`DaxDevice`]'s queue.
#[derive(Debug)]
struct Copies {
    map: Arc<Mapping>,
    geometry: Geometry,
}

impl Instant for Copies {
    fn check_process(&self) -> Result<()> {
        self.map.process.check()
    }

    #[inline]
    unsafe fn run(&self, request: &Request) -> i32 {
        let (pos, length) = (request.pos, request.length as usize);
        if request.op == Op::Flush {
            return self.map.flush().map_or_else(|errno| -errno, |()| 0);
        }
        if self.geometry.check(pos, length as u64).is_err() || i32::try_from(length).is_err() {
            return -libc::EINVAL;
        }
        let address = request.memory.address.as_ptr();
        let outcome = match request.op {
            // SAFETY: the caller promises `length` writable bytes that nobody else touches.
            Op::Read => unsafe { self.map.read(pos, address, length) },
            // SAFETY: the caller promises `length` readable bytes that nobody changes.
            Op::Write => unsafe { self.map.write(pos, address, length, request.fua) },
            Op::Discard | Op::Flush => Err(libc::EOPNOTSUPP),
        };
        outcome.map_or_else(|errno| -errno, |()| length as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our machines have no persistent memory, so the `MAP_SYNC` path runs on a plain mapping of tmpfs here: same
    /// copies, same guard, only the durability of the medium is missing.
    #[test]
    fn the_map_sync_route_copies_and_is_guarded() {
        let size = 64 << 10;
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(size).unwrap();
        install_guard().unwrap();
        let (base, _) = map(&file, size, true).unwrap();
        let (kind, copier) = (DaxKind::MapSync, Copier::get());
        let process = Process::current().unwrap();
        let map = Mapping {
            process,
            base,
            size,
            kind,
            write: true,
            copier,
            syncs: Syncs::default(),
            file: file.try_clone().unwrap(),
            is_file: true,
        };
        let data: Vec<u8> = (0..4096).map(|i| (i / 5) as u8).collect();
        let mut back = vec![0; 4096];
        for fua in [false, true] {
            // SAFETY: both vectors have 4096 bytes.
            unsafe {
                map.write(512, data.as_ptr(), 4096, fua).unwrap();
                map.read(512, back.as_mut_ptr(), 4096).unwrap();
            }
            assert_eq!(data, back);
            back.fill(0);
        }
        map.flush().unwrap();
        file.set_len(0).unwrap();
        // SAFETY: as above.
        let (write, read) =
            unsafe { (map.write(4096, data.as_ptr(), 4096, true), map.read(4096, back.as_mut_ptr(), 4096)) };
        assert_eq!((write, read, map.flush()), (Err(libc::EIO), Err(libc::EIO), Err(libc::EIO)));
        // SAFETY: as above; the range is refused before the memory is touched.
        assert_eq!(unsafe { map.read(size, back.as_mut_ptr(), 512) }, Err(libc::EINVAL));
    }
}
