//! What a file or block device can do: geometry and capabilities, queried from the kernel at opening.

use super::budget::Tags;
use crate::own::{Claimed, device_numbers};
use crate::scratch::Scratch;
use crate::{Capabilities, Driving, Error, Geometry, Result, sys};
use rustix::fs::{AtFlags, SeekFrom, StatxFlags};
use std::fs;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Smallest logical block of any device here, bytes.
const SECTOR: u32 = 512;

/// Logical block and memory alignment in bytes where the kernel reports neither and a 512-byte trial fails.
const CAUTIOUS: u32 = 4096;

/// Largest memory alignment derived from the logical block, in bytes: a page, to which every pool buffer is aligned.
const PAGE: u32 = 4096;

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Reads that test whether a device completes requests in the call.
const TRIALS: u64 = 8;

/// Most stacked devices searched for the one with tags.
const STACKED_MAX: usize = 8;

/// The answers.
#[derive(Debug, Clone)]
pub(super) struct Probed {
    pub(super) geometry: Geometry,
    /// As the hardware reports them; the engine clears those that it cannot use.
    pub(super) capabilities: Capabilities,
    /// A FUA write to this block device is a write and a flush of its whole cache: it has no FUA, so the block layer
    /// emulates it (`block/blk-flush.c`). Only for disks with request queues and no device below: a device mapped onto
    /// several disks passes the write on to one of them only.
    pub(super) fua_flushes: bool,
    pub(super) driving: Driving,
    /// Device number and tags of the disk that does the work.
    pub(super) tags: Option<(String, Tags)>,
    /// For [`crate::Description::notes`].
    pub(super) notes: Vec<String>,
}

/// Queries everything about an opened device.
pub(super) fn probe(claimed: &Claimed, path: &Path, write: bool) -> Result<Probed> {
    let mut probed =
        if claimed.is_block() { probe_block(claimed, path)? } else { probe_file(claimed, path)? };
    probed.capabilities.read_only = !write;
    probed.capabilities.nowait = has_nowait(claimed.file.as_fd(), probed.geometry.logical_block);
    if probed.capabilities.nowait {
        probed.driving = Driving::Ring;
        return Ok(probed);
    }
    if claimed.is_block() && completes_in_call(claimed.file.as_fd(), probed.geometry) {
        probed.driving = Driving::Inline;
    }
    probed.notes.push(match probed.driving {
        Driving::Inline => {
            "no NOWAIT, and requests complete in the call: queued ones run when submitted".into()
        }
        _ => "no NOWAIT: io_uring hands every request to a worker thread".into(),
    });
    Ok(probed)
}

/// Whether a synchronous write to a block device goes through a kernel worker thread: it is put on a plug list first
/// (`block/fops.c`), and a disk with request queues gets it when the plug is flushed. Measured in instructions of the
/// whole system, 4 KiB: 16 500 on 6.1 (a ring of one entry: 7 900), 8 400 on 6.12 (a ring: 8 500).
pub(super) fn plugs_writes() -> bool {
    kernel_is_before((6, 12))
}

/// Whether the running kernel is known to be older than this release.
pub(super) fn kernel_is_before(wanted: (u32, u32)) -> bool {
    let system = rustix::system::uname();
    release(&system.release().to_string_lossy()).is_some_and(|release| release < wanted)
}

/// Major and minor number of a kernel's release, such as `6.1.0-50-amd64`.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|other: char| !other.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn failed(path: &Path, action: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Open { path: path.display().to_string(), action, errno: errno.raw_os_error() }
}

fn probe_block(claimed: &Claimed, path: &Path) -> Result<Probed> {
    let mut notes = Vec::new();
    let size = rustix::fs::seek(&claimed.file, SeekFrom::End(0)).map_err(failed(path, "read its size"))?;
    let sectors = rustix::fs::ioctl_blksszget(&claimed.file).map_err(failed(path, "read its sector size"))?;
    let logical_block = checked_block(path, sectors)?;
    let queue = QueueAttributes::of(claimed.stat.st_rdev);
    let memory_align = match queue.number("dma_alignment") {
        // Never less than a logical block (a page at most). zram reports 511 but transfers whole pages: a read into
        // memory that begins inside a page overwrites the bytes before and after it (seen on 6.18).
        Some(mask) if mask < u64::from(u32::MAX) && (mask + 1).is_power_of_two() => {
            logical_block.min(PAGE).max(mask as u32 + 1)
        }
        _ => {
            notes.push("sysfs reports no DMA alignment: memory is aligned to the logical block".into());
            logical_block
        }
    };
    let volatile_cache = match queue.text("write_cache").as_deref() {
        Some("write through") => false,
        Some("write back") => true,
        _ => {
            notes.push("sysfs reports no write cache: a volatile one is assumed".into());
            true
        }
    };
    let capabilities = Capabilities {
        volatile_cache,
        fua: queue.number("fua") == Some(1),
        nowait: false,
        discard: queue.number("discard_max_bytes").is_some_and(|bytes| bytes > 0),
        read_only: false,
        dax: None,
    };
    let geometry =
        Geometry { size: whole_blocks(size, logical_block, &mut notes), logical_block, memory_align };
    let tags = disk_tags(claimed.stat.st_rdev);
    let fua_flushes = queue.number("fua") == Some(0) && volatile_cache && queue.is_of_a_disk();
    Ok(Probed { geometry, capabilities, fua_flushes, driving: Driving::Workers, tags, notes })
}

fn probe_file(claimed: &Claimed, path: &Path) -> Result<Probed> {
    let mut notes = Vec::new();
    let system = rustix::fs::fstatfs(&claimed.file).map_err(failed(path, "query its file system"))?;
    let on_tmpfs = u64::try_from(system.f_type).is_ok_and(|magic| magic == TMPFS_MAGIC);
    let (logical_block, memory_align) = match told_alignment(claimed, path)? {
        Some((offset, memory)) => (checked_block(path, offset.max(SECTOR))?, memory),
        None if on_tmpfs => {
            notes.push("tmpfs: direct I/O is a copy to or from memory, any alignment is accepted".into());
            (SECTOR, 1)
        }
        None => assume_alignment(claimed.file.as_fd(), &mut notes),
    };
    let size = u64::try_from(claimed.stat.st_size).unwrap_or(0);
    let capabilities = Capabilities {
        // The medium below a file is unknown: only memory is known to have no volatile cache.
        volatile_cache: !on_tmpfs,
        fua: true,
        nowait: false,
        discard: true,
        read_only: false,
        dax: None,
    };
    let geometry =
        Geometry { size: whole_blocks(size, logical_block, &mut notes), logical_block, memory_align };
    // On other file systems a read of a hole may complete at once, but nothing else does.
    let driving = if on_tmpfs { Driving::Inline } else { Driving::Workers };
    Ok(Probed { geometry, capabilities, fua_flushes: false, driving, tags: None, notes })
}

/// `stx_dio_offset_align` and `stx_dio_mem_align` (statx(2), Linux 6.1), where the file system fills them in.
fn told_alignment(claimed: &Claimed, path: &Path) -> Result<Option<(u32, u32)>> {
    let wanted = StatxFlags::DIOALIGN;
    let told =
        rustix::fs::statx(&claimed.file, "", AtFlags::EMPTY_PATH, wanted).map_err(failed(path, "statx"))?;
    if told.stx_mask & wanted.bits() == 0 {
        return Ok(None);
    }
    if told.stx_dio_offset_align == 0 {
        let path = path.display();
        return Err(Error::Unsupported(format!(
            "{path}: direct I/O is not possible on this file (according to statx)"
        )));
    }
    Ok(Some((told.stx_dio_offset_align, told.stx_dio_mem_align.max(1).next_power_of_two())))
}

/// If the file system reports nothing, try one 512-byte read at byte 512: EINVAL means that it needs a larger
/// alignment.
fn assume_alignment(file: BorrowedFd<'_>, notes: &mut Vec<String>) -> (u32, u32) {
    let mut scratch = Scratch::new(2 * SECTOR as usize);
    let half = &mut scratch[SECTOR as usize..];
    let refused = sys::read(file, half, u64::from(SECTOR), 0)
        .is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
    let assumed = if refused { CAUTIOUS } else { SECTOR };
    notes.push(format!("the file system reports no direct I/O alignment: {assumed} bytes are assumed"));
    (assumed, assumed)
}

fn checked_block(path: &Path, bytes: u32) -> Result<u32> {
    if bytes >= SECTOR && bytes.is_power_of_two() && bytes <= 1 << 20 {
        return Ok(bytes);
    }
    Err(Error::Unsupported(format!("{}: logical block size {bytes}", path.display())))
}

fn whole_blocks(size: u64, logical_block: u32, notes: &mut Vec<String>) -> u64 {
    let rest = size % u64::from(logical_block);
    if rest != 0 {
        notes.push(format!("the last {rest} bytes are not a whole logical block and are not used"));
    }
    size - rest
}

/// Whether the file accepts `RWF_NOWAIT`: where submission may block, the kernel refuses the flag with EOPNOTSUPP
/// before it checks anything else.
fn has_nowait(file: BorrowedFd<'_>, logical_block: u32) -> bool {
    let mut scratch = Scratch::new(logical_block as usize);
    match sys::read(file, &mut scratch, 0, libc::RWF_NOWAIT) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() != Some(libc::EOPNOTSUPP),
    }
}

/// Lengths in bytes of the writes that a loss of power never tears, as the kernel tells them since 6.11: for devices
/// from their queue limits, for files from their file system. 0 to 0: none.
pub(super) fn atomic_writes(file: BorrowedFd<'_>) -> RangeInclusive<u64> {
    let asked = StatxFlags::from_bits_retain(libc::STATX_WRITE_ATOMIC);
    match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, asked) {
        Ok(told) if told.stx_mask & libc::STATX_WRITE_ATOMIC != 0 && told.stx_atomic_write_unit_max > 0 => {
            u64::from(told.stx_atomic_write_unit_min)..=u64::from(told.stx_atomic_write_unit_max)
        }
        _ => 0..=0,
    }
}

/// Whether a device without NOWAIT does its work in the call (zram), so that a thread never sleeps for it. For one that
/// hands requests on (dm-crypt) a thread sleeps, and workers can wait for several requests at once.
fn completes_in_call(file: BorrowedFd<'_>, geometry: Geometry) -> bool {
    let mut scratch = Scratch::new(geometry.logical_block as usize);
    let block = u64::from(geometry.logical_block);
    let mut slept = 0;
    for trial in 0..TRIALS {
        let pos = geometry.size / block * trial / TRIALS * block;
        let before = sys::voluntary_switches().ok();
        if !sys::read(file, &mut scratch, pos, 0).is_ok_and(|count| count > 0) {
            return false;
        }
        slept += u64::from(before.is_none() || sys::voluntary_switches().ok() != before);
    }
    // Another thread may hold a lock of the driver for a moment.
    slept <= TRIALS / 4
}

/// The tags of a block device, and the number of the disk that has them: a partition uses its disk's, a mapped device
/// those of the only device below it. `None` for drivers without tags, and where several disks share the work.
fn disk_tags(rdev: u64) -> Option<(String, Tags)> {
    let mut device = PathBuf::from(format!("/sys/dev/block/{}", device_numbers(rdev)));
    for _ in 0..STACKED_MAX {
        if !device.join("queue").is_dir() {
            device = fs::canonicalize(device).ok()?.parent()?.to_owned();
        }
        if let Ok(queues) = fs::read_dir(device.join("mq")) {
            let number = fs::read_to_string(device.join("dev")).ok()?.trim().to_owned();
            let each = fs::read_to_string(device.join("queue/nr_requests")).ok()?.trim().parse().ok()?;
            let queues = u32::try_from(queues.flatten().count()).ok()?;
            return (each > 0 && queues > 0).then_some((number, Tags { each, queues }));
        }
        let mut below = fs::read_dir(device.join("slaves")).ok()?.flatten();
        let only = below.next()?;
        if below.next().is_some() {
            return None;
        }
        device = fs::canonicalize(only.path()).ok()?;
    }
    None
}

/// The `queue` directory of a block device in sysfs. A partition has none and uses its disk's.
struct QueueAttributes {
    directory: PathBuf,
}

impl QueueAttributes {
    fn of(rdev: u64) -> Self {
        let device = PathBuf::from(format!("/sys/dev/block/{}", device_numbers(rdev)));
        let own = device.join("queue");
        // The kernel resolves `..` after the symbolic link, so it is the disk's directory.
        QueueAttributes { directory: if own.is_dir() { own } else { device.join("../queue") } }
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.directory.join(name)).ok()?.trim().to_string())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Whether requests are queued here rather than passed to a device below.
    fn is_of_a_disk(&self) -> bool {
        let below = fs::read_dir(self.directory.join("../slaves"));
        self.directory.join("../mq").is_dir() && below.is_ok_and(|mut below| below.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(release("6.1.0-50-amd64"), Some((6, 1)));
        assert_eq!(release("6.12.73+deb13-amd64"), Some((6, 12)));
        assert_eq!(release("7.0-rc1"), Some((7, 0)));
        assert_eq!(release("6"), None);
        assert_eq!(release("linux"), None);
        assert!(release("6.9.1") < release("6.12.0"));
    }
}
