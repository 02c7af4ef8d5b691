//! Ownership: finds other users of a device or image before reading a single byte of it.
//!
//! | | writer | reader |
//! |---|---|---|
//! | block device | `O_EXCL`, kept, and a write lock | read lock; an `O_EXCL` trial finds no claim |
//! | image file | write lock; no loop device on it | read lock; no writable loop device on it |
//!
//! A reader with `force` opens even if one of these fails, and reports [`Sharing::Forced`].
//!
//! Locks are open-file-description locks on the whole file (a reader's leave out the bytes by which QEMU and its
//! tools say what they do with an image, so that both may read; see `sys.rs`), taken on the descriptor that does the
//! I/O: they live as long as the device or any of its queues, and closing another descriptor of the same file cannot
//! drop them. On a block device only the lock keeps a later writer away from our own readers, because a reader keeps
//! no exclusive claim (two readers may share).

use crate::sys::{self, LockKind};
use crate::{Error, Result, Sharing};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often to retry while the owner cannot be named. Two kinds of owner go away soon: the exclusive trial of another
/// reader, and a killed process, whose io_uring the kernel tears down some milliseconds later.
const TRIALS: u32 = 10;

/// Pause between two trials.
const TRIAL_PAUSE: Duration = Duration::from_millis(20);

/// What to open and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    /// Path of the image or device node.
    pub(crate) path: &'a Path,
    /// Open for writing.
    pub(crate) write: bool,
    /// Read even if the device is in use. Ignored for a writer.
    pub(crate) force: bool,
    /// Open with `O_DIRECT`.
    pub(crate) direct: bool,
}

/// What was opened.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// The descriptor that holds lock and exclusive claim.
    pub(crate) file: OwnedFd,
    /// Its `fstat`.
    pub(crate) stat: Stat,
    /// Who else may use it.
    pub(crate) sharing: Sharing,
}

impl Claimed {
    /// Whether it is a block device (otherwise it is a regular file).
    pub(crate) fn is_block(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::BlockDevice
    }
}

/// Why a claim failed.
enum Refused {
    /// In use; `None` if the user is unknown.
    InUse(Option<String>),
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Failed(error)
    }
}

/// Opens a path and claims it.
///
/// # Errors
/// [`Error::InUse`], naming the user if known, [`Error::Unsupported`] for anything that is neither a regular file nor a
/// block device or whose file system refuses `O_DIRECT`, [`Error::Open`].
pub(crate) fn claim(claim: Claim<'_>) -> Result<Claimed> {
    let mut trial = 0;
    loop {
        trial += 1;
        match claim_once(claim) {
            Ok(claimed) => return Ok(claimed),
            Err(Refused::Failed(error)) => return Err(error),
            Err(Refused::InUse(None)) if trial < TRIALS => std::thread::sleep(TRIAL_PAUSE),
            Err(Refused::InUse(user)) => {
                return Err(Error::InUse(user.unwrap_or_else(|| "another process".into())));
            }
        }
    }
}

fn claim_once(claim: Claim<'_>) -> std::result::Result<Claimed, Refused> {
    let failed = |action| move |errno: Errno| open_error(claim.path, action, errno);
    // Checked before opening, because opening a FIFO or a terminal has side effects, and again through the descriptor.
    let kind = kind_of(&rustix::fs::stat(claim.path).map_err(failed("stat"))?)?;
    let exclusive = if kind == FileType::BlockDevice && claim.write { OFlags::EXCL } else { OFlags::empty() };
    let file = match open(claim, exclusive) {
        Err(Errno::BUSY) => return Err(Refused::InUse(block_user(claim.path))),
        Err(Errno::INVAL) if claim.direct => return Err(no_direct_io(claim).into()),
        other => other.map_err(failed("open"))?,
    };
    let stat = rustix::fs::fstat(&file).map_err(failed("stat"))?;
    if kind_of(&stat)? != kind {
        let user = "another process, which replaced it while it was being opened";
        return Err(Refused::InUse(Some(user.into())));
    }
    if claim.write && kind == FileType::BlockDevice && is_write_protected(stat.st_rdev) {
        // The kernel opens it anyway and fails the writes.
        return Err(failed("open for writing")(Errno::ROFS).into());
    }
    let sharing = match lock(claim, &file, &stat, kind) {
        Ok(()) if claim.write => Sharing::Exclusive,
        Ok(()) => Sharing::SharedRead,
        Err(Refused::InUse(_)) if claim.force && !claim.write => Sharing::Forced,
        Err(refused) => return Err(refused),
    };
    Ok(Claimed { file, stat, sharing })
}

fn open(claim: Claim<'_>, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut flags = OFlags::CLOEXEC | extra;
    flags |= if claim.write { OFlags::RDWR } else { OFlags::RDONLY };
    if claim.direct {
        flags |= OFlags::DIRECT;
    }
    rustix::io::retry_on_intr(|| rustix::fs::open(claim.path, flags, Mode::empty()))
}

fn open_error(path: &Path, action: &'static str, errno: Errno) -> Error {
    Error::Open { path: path.display().to_string(), action, errno: errno.raw_os_error() }
}

fn kind_of(stat: &Stat) -> Result<FileType> {
    match FileType::from_raw_mode(stat.st_mode) {
        kind @ (FileType::RegularFile | FileType::BlockDevice) => Ok(kind),
        other => {
            let what = match other {
                FileType::Directory => "a directory",
                FileType::CharacterDevice => "a character device",
                _ => "a special file",
            };
            Err(Error::Unsupported(format!("{what} is neither an image file nor a block device")))
        }
    }
}

/// `open` failed with EINVAL. If O_DIRECT is the cause, say so: there is no silent fallback to buffered I/O.
fn no_direct_io(claim: Claim<'_>) -> Error {
    match open(Claim { direct: false, ..claim }, OFlags::empty()) {
        Ok(_) => Error::Unsupported(format!(
            "{}: its file system refuses direct I/O (O_DIRECT); move the image or use a loop device",
            claim.path.display()
        )),
        Err(errno) => open_error(claim.path, "open", errno),
    }
}

fn lock(claim: Claim<'_>, file: &OwnedFd, stat: &Stat, kind: FileType) -> std::result::Result<(), Refused> {
    let lock_kind = if claim.write { LockKind::Write } else { LockKind::Read };
    let io_error = |error: std::io::Error| Error::Open {
        path: claim.path.display().to_string(),
        action: "lock",
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    };
    if !sys::try_lock(file.as_fd(), lock_kind).map_err(io_error)? {
        let holder = sys::lock_holder(file.as_fd(), lock_kind);
        let named = holder.map(|pid| format!("process {pid} (file lock)"));
        let qemu = || sys::is_qemus(file.as_fd(), lock_kind).then(|| "QEMU or one of its tools".to_owned());
        return Err(Refused::InUse(named.or_else(qemu)));
    }
    match kind {
        FileType::BlockDevice if claim.write => Ok(()),
        FileType::BlockDevice => exclusive_trial(claim),
        _ => match loop_user(stat, claim.write) {
            Some(user) => Err(Refused::InUse(Some(user))),
            None => Ok(()),
        },
    }
}

/// Opens the device exclusively for a moment. Fails while a mount, swap, RAID member or exclusive opener
/// claims it.
fn exclusive_trial(claim: Claim<'_>) -> std::result::Result<(), Refused> {
    match open(Claim { direct: false, ..claim }, OFlags::EXCL) {
        Ok(_) => Ok(()),
        Err(Errno::BUSY) => Err(Refused::InUse(block_user(claim.path))),
        Err(errno) => Err(open_error(claim.path, "open exclusively", errno).into()),
    }
}

/// Major and minor number as sysfs and mountinfo print them.
pub(crate) fn device_numbers(rdev: u64) -> String {
    format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev))
}

fn is_write_protected(rdev: u64) -> bool {
    let attribute = format!("/sys/dev/block/{}/ro", device_numbers(rdev));
    fs::read_to_string(attribute).is_ok_and(|text| text.trim() == "1")
}

/// Who claims a block device, if it is a mount, a holder (RAID, device-mapper) or swap.
fn block_user(path: &Path) -> Option<String> {
    let rdev = rustix::fs::stat(path).ok()?.st_rdev;
    let related = related_devices(rdev);
    mount_user(&related).or_else(|| holder_user(rdev)).or_else(|| swap_user(&related))
}

/// The device itself, its partitions, and the disk it is a partition of: a claim on any of them conflicts.
fn related_devices(rdev: u64) -> Vec<String> {
    let own = device_numbers(rdev);
    let directory = PathBuf::from(format!("/sys/dev/block/{own}"));
    let mut related = vec![own];
    let children = fs::read_dir(&directory).into_iter().flatten().flatten();
    let partitions = children.map(|entry| entry.path()).filter(|path| path.join("partition").exists());
    let parent = directory.join("partition").exists().then(|| directory.join(".."));
    for path in partitions.chain(parent) {
        if let Ok(text) = fs::read_to_string(path.join("dev")) {
            related.push(text.trim().to_string());
        }
    }
    related
}

fn mount_user(related: &[String]) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| mount_of(line, related)).map(|at| format!("a mount at {at}"))
}

/// The mount point of a mountinfo line (proc(5): ID parent major:minor root mount-point …) if it belongs to one of
/// these devices.
fn mount_of(line: &str, related: &[String]) -> Option<String> {
    let mut fields = line.split(' ').skip(2);
    let numbers = fields.next()?;
    let point = fields.nth(1)?;
    related.iter().any(|device| device == numbers).then(|| unescape_octal(point))
}

/// mountinfo writes space, tab, newline and backslash as `\ooo`.
fn unescape_octal(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_string(), |text, (code, plain)| text.replace(code, plain))
}

fn holder_user(rdev: u64) -> Option<String> {
    let holders = format!("/sys/dev/block/{}/holders", device_numbers(rdev));
    let entry = fs::read_dir(holders).ok()?.flatten().next()?;
    Some(format!("device {}", entry.file_name().to_string_lossy()))
}

fn swap_user(related: &[String]) -> Option<String> {
    let table = fs::read_to_string("/proc/swaps").ok()?;
    table.lines().skip(1).find_map(|line| {
        let path = line.split_whitespace().next()?;
        let numbers = device_numbers(rustix::fs::stat(path).ok()?.st_rdev);
        related.contains(&numbers).then(|| format!("swap on {path}"))
    })
}

/// The loop device backed by this image, if it conflicts: any for a writer, a writable one for a reader.
fn loop_user(stat: &Stat, write: bool) -> Option<String> {
    let entries = fs::read_dir("/sys/block").ok()?;
    entries.flatten().find_map(|entry| {
        let directory = entry.path();
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let backing = fs::read_to_string(directory.join("loop/backing_file")).ok()?;
        let read_only = fs::read_to_string(directory.join("ro")).is_ok_and(|text| text.trim() == "1");
        if read_only && !write {
            return None;
        }
        let file = loop_identity(&name).or_else(|| path_identity(backing.trim_end_matches('\n')));
        (file == Some((stat.st_dev, stat.st_ino))).then(|| format!("loop device /dev/{name}"))
    })
}

/// The backing file according to the loop driver. Needs permission to open the node.
fn loop_identity(name: &str) -> Option<(u64, u64)> {
    let node = fs::File::open(Path::new("/dev").join(name)).ok()?;
    sys::loop_backing(node.as_fd()).ok()
}

/// The file at the path in sysfs. Only a fallback, because the file may have been renamed since.
fn path_identity(path: &str) -> Option<(u64, u64)> {
    rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_matched_by_device_number() {
        let line = "36 35 98:0 / /mnt/two\\040words rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let found = mount_of(line, &["7:0".into(), "98:0".into()]);
        assert_eq!(found.as_deref(), Some("/mnt/two words"));
        assert_eq!(mount_of(line, &["98:1".into(), "8:0".into()]), None);
        assert_eq!(mount_of("", &["98:0".into()]), None);
        assert_eq!(mount_of("1 2 98:0", &["98:0".into()]), None);
    }

    #[test]
    fn special_files_are_refused_before_they_are_opened() {
        for path in ["/", "/dev/null"] {
            let result = claim(Claim { path: Path::new(path), write: false, force: true, direct: true });
            assert!(matches!(result, Err(Error::Unsupported(_))), "{path}: {result:?}");
        }
    }

    #[test]
    fn a_fifo_does_not_block_the_opener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let result = claim(Claim { path: &path, write: false, force: false, direct: true });
        assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}");
    }

    #[test]
    fn a_missing_file_says_so() {
        let result = claim(Claim { path: Path::new("/nowhere/x"), write: true, force: false, direct: true });
        assert_eq!(result.unwrap_err().errno(), libc::ENOENT);
    }
}
