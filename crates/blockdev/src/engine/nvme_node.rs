//! The NVMe namespace behind a block device: its generic character device, which takes commands, and its limits.

use super::nvme_command::{Command, Identify, NamespaceFacts, has_volatile_cache};
use super::nvme_ioctl::{self, Failed};
use super::probe::Probed;
use crate::own::{Claimed, device_numbers};
use crate::{Error, Result};
use rustix::fs::{Advice, FileType, Mode, OFlags};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Unit of memory in a device's scatter list, in bytes.
const PAGE: u64 = 4096;

/// Unit of `start` in sysfs in bytes, regardless of the logical block size.
const SECTOR: u64 = 512;

/// The open nodes of a namespace.
#[derive(Debug)]
pub(super) struct Node {
    /// The block device: holds the lock and exclusive claim. No data goes through it.
    claimed: OwnedFd,
    /// The character device, which takes the commands.
    generic: OwnedFd,
}

impl Node {
    pub(super) fn generic(&self) -> BorrowedFd<'_> {
        self.generic.as_fd()
    }

    /// The descriptor that holds lock and claim.
    pub(super) fn claim(&self) -> BorrowedFd<'_> {
        self.claimed.as_fd()
    }

    /// Writes back and drops the page cache of the block device, because commands bypass it.
    fn forget_pages(claimed: &OwnedFd) -> rustix::io::Result<()> {
        rustix::fs::fdatasync(claimed)?;
        rustix::fs::fadvise(claimed, 0, None, Advice::DontNeed)
    }
}

impl Drop for Node {
    /// The next reader of the block device must not find stale pages. The claim excluded other writers: without dirty
    /// pages this sends only a flush.
    fn drop(&mut self) {
        let _ = Self::forget_pages(&self.claimed);
    }
}

/// Facts of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeFacts {
    pub(super) namespace: u32,
    /// First byte of the partition that was opened; 0 for a whole namespace.
    pub(super) start: u64,
    /// Most bytes of a read or write command.
    pub(super) transfer_max: u64,
    /// Most bytes of a range to deallocate.
    pub(super) discard_max: u64,
    pub(super) volatile_cache: bool,
    /// The driver has queues for polled completions.
    pub(super) polls: bool,
}

/// Refuses paths that cannot be an NVMe block device before opening them.
pub(super) fn check_path(path: &Path) -> Result<()> {
    let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let why = match kind {
        Ok(FileType::CharacterDevice) => {
            "is a character device: `nvme:` needs the block device (such as /dev/nvme0n1), which can be claimed"
        }
        Ok(FileType::RegularFile) => "is an image file, not an NVMe device: remove `nvme:`",
        _ => return Ok(()),
    };
    Err(unsupported(path, why))
}

/// Finds the character device of a claimed block device, and identifies the device.
pub(super) fn open(claimed: Claimed, path: &Path, write: bool, probed: &Probed) -> Result<(Node, NodeFacts)> {
    let place = Place::of(path, &claimed)?;
    let (generic, namespace) = place.open_generic(path, write, claimed.file.as_fd())?;
    let mut data = [0; 4096];
    let facts = ask(generic.as_fd(), path, namespace, Identify::Namespace, &mut data)
        .map(|()| NamespaceFacts::decode(&data))?;
    check_format(path, facts, probed, &place)?;
    ask(generic.as_fd(), path, namespace, Identify::Controller, &mut data)?;
    Node::forget_pages(&claimed.file).map_err(failed(path, "write out its page cache"))?;
    let facts = NodeFacts {
        namespace,
        start: place.start,
        transfer_max: transfer_max(&place.disk, u64::from(probed.geometry.logical_block)),
        discard_max: number(&place.disk.join("queue/discard_max_hw_bytes")).unwrap_or(0),
        volatile_cache: has_volatile_cache(&data) || probed.capabilities.volatile_cache,
        polls: number(&place.disk.join("queue/io_poll")) == Some(1),
    };
    Ok((Node { claimed: claimed.file, generic }, facts))
}

/// The disk's place in sysfs.
#[derive(Debug)]
struct Place {
    /// Its directory.
    disk: PathBuf,
    /// Name of its character device.
    generic: String,
    /// First byte of the partition.
    start: u64,
}

impl Place {
    fn of(path: &Path, claimed: &Claimed) -> Result<Self> {
        let own = PathBuf::from(format!("/sys/dev/block/{}", device_numbers(claimed.stat.st_rdev)));
        let own = fs::canonicalize(&own).map_err(|error| Error::Open {
            path: own.display().to_string(),
            action: "look it up",
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })?;
        let (disk, start) = match number(&own.join("start")) {
            Some(start) if own.join("partition").exists() => {
                (own.parent().map_or_else(|| own.clone(), Path::to_owned), start * SECTOR)
            }
            _ => (own, 0),
        };
        let generic = generic_name(&disk).map_err(|why| unsupported(path, &why))?;
        Ok(Place { disk, generic, start })
    }

    fn open_generic(&self, path: &Path, write: bool, block: BorrowedFd<'_>) -> Result<(OwnedFd, u32)> {
        let node = Path::new("/dev").join(&self.generic);
        let numbers = fs::read_to_string(self.disk.join("device").join(&self.generic).join("dev")).map_err(
            |error| {
                unsupported(
                    path,
                    &format!("has no character device {}: {}", self.generic, crate::describe(&error)),
                )
            },
        )?;
        let mode = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let generic =
            rustix::fs::open(&node, mode | OFlags::CLOEXEC, Mode::empty()).map_err(failed(&node, "open"))?;
        let stat = rustix::fs::fstat(&generic).map_err(failed(&node, "stat"))?;
        let same = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && device_numbers(stat.st_rdev) == numbers.trim();
        let id = |node| nvme_ioctl::namespace_id(node).ok();
        match (id(block), id(generic.as_fd())) {
            (Some(namespace), Some(other)) if same && namespace == other => Ok((generic, namespace)),
            _ => {
                let why = format!("and {} are not the same namespace", node.display());
                Err(unsupported(path, &why))
            }
        }
    }
}

/// `ng0n1` for `…/nvme0/nvme0n1`. The error says what the disk is instead.
fn generic_name(disk: &Path) -> std::result::Result<String, String> {
    let name = disk.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(numbers) =
        name.strip_prefix("nvme").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    else {
        return Err(format!("is not an NVMe device but `{name}`: remove `nvme:`"));
    };
    if disk.components().any(|part| part.as_os_str() == "nvme-subsystem") {
        return Err("has several paths (NVMe multipath), which commands would bypass: remove `nvme:`".into());
    }
    Ok(format!("ng{numbers}"))
}

fn check_format(path: &Path, facts: NamespaceFacts, probed: &Probed, place: &Place) -> Result<()> {
    if facts.metadata != 0 || facts.protected {
        return Err(unsupported(
            path,
            "keeps metadata or protection information with its blocks: remove `nvme:`",
        ));
    }
    let shift = probed.geometry.logical_block.trailing_zeros();
    if u32::from(facts.block_shift) != shift {
        let why = format!("has blocks of 2^{} bytes, but the kernel reports 2^{shift}", facts.block_shift);
        return Err(unsupported(path, &why));
    }
    let zoned = fs::read_to_string(place.disk.join("queue/zoned")).is_ok_and(|text| text.trim() != "none");
    if zoned {
        return Err(unsupported(path, "is zoned"));
    }
    let end = place.start.checked_add(probed.geometry.size);
    if end.is_none_or(|end| end >> shift > facts.blocks) {
        return Err(unsupported(path, "is larger according to the kernel than according to the device"));
    }
    Ok(())
}

fn ask(
    generic: BorrowedFd<'_>,
    path: &Path,
    namespace: u32,
    what: Identify,
    out: &mut [u8; 4096],
) -> Result<()> {
    let asked = nvme_ioctl::identify(generic, out, |address| Command::identify(namespace, what, address));
    asked.map_err(|why| match why {
        Failed::Status(status) => {
            unsupported(path, &format!("does not identify itself: NVMe status {:#x}", status.0))
        }
        Failed::System(error) => Error::Open {
            path: path.display().to_string(),
            action: "identify the NVMe device",
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        },
    })
}

/// Most bytes of one command: limited by the device, and by the driver's number of memory segments. Each page may be a
/// segment, and memory that begins inside a page has one more.
fn transfer_max(disk: &Path, block: u64) -> u64 {
    let bytes = number(&disk.join("queue/max_hw_sectors_kb")).map_or(PAGE, |kilobytes| kilobytes << 10);
    let pieces = number(&disk.join("queue/max_segments")).unwrap_or(2);
    let most = bytes.min(pieces.saturating_sub(1).max(1) * PAGE).min(super::nvme_command::BLOCKS_MAX * block);
    (most & !(PAGE.max(block) - 1)).max(block)
}

fn number(attribute: &Path) -> Option<u64> {
    fs::read_to_string(attribute).ok()?.trim().parse().ok()
}

fn unsupported(path: &Path, what: &str) -> Error {
    Error::Unsupported(format!("{} {what}", path.display()))
}

fn failed(path: &Path, action: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Open { path: path.display().to_string(), action, errno: errno.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_character_device_is_named_like_the_disk() {
        let name = |text: &str| generic_name(Path::new(text));
        assert_eq!(name("/sys/devices/pci0000:00/0000:00:03.0/nvme/nvme0/nvme0n1").unwrap(), "ng0n1");
        assert_eq!(name("/sys/devices/x/nvme/nvme12/nvme12n3").unwrap(), "ng12n3");
        let head = name("/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1").unwrap_err();
        assert!(head.contains("multipath"), "{head}");
        for other in
            ["/sys/devices/virtual/block/loop0", "/sys/devices/x/sda", "/sys/devices/virtual/block/nvmet"]
        {
            let error = name(other).unwrap_err();
            assert!(error.contains("not an NVMe device"), "{error}");
        }
    }

    #[test]
    fn a_command_carries_what_driver_and_device_take() {
        let directory = tempfile::tempdir().unwrap();
        let queue = directory.path().join("queue");
        fs::create_dir(&queue).unwrap();
        let most = |kilobytes: u64, segments: u64, block| {
            fs::write(queue.join("max_hw_sectors_kb"), format!("{kilobytes}\n")).unwrap();
            fs::write(queue.join("max_segments"), format!("{segments}\n")).unwrap();
            transfer_max(directory.path(), block)
        };
        assert_eq!(most(512, 127, 512), 126 * 4096);
        assert_eq!(most(128, 127, 4096), 128 << 10);
        assert_eq!(most(1 << 20, 65535, 512), 32 << 20);
        assert_eq!(most(6, 127, 512), 4096);
        assert_eq!(most(2, 127, 512), 512);
        assert_eq!(most(512, 1, 4096), 4096);
        assert_eq!(transfer_max(Path::new("/nowhere"), 512), 4096);
    }
}
