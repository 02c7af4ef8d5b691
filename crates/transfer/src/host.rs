//! Creates a tree on the host from untrusted names.
//!
//! Every call takes a directory descriptor and one name that was checked to be plain; no call follows a symbolic
//! link. Whatever a volume contains, nothing outside the destination is reached.

use crate::devices::Devices;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File as HostFile;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Directories kept open; their ancestors are reopened through `..`.
const OPEN_MAX: usize = 64;

/// Temporary names tried for a replacement.
const SPARES: u32 = 100;

/// How existing directories are opened.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Device and inode number.
pub type Identity = (u64, u64);

/// Type and identity of a file on the host.
pub fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// A directory on the path to the current one.
struct Open {
    fd: Option<OwnedFd>,
    identity: Identity,
    made: bool,
}

/// A directory whose contents are complete.
pub struct Filled {
    /// Its descriptor, to set its attributes last.
    pub fd: OwnedFd,
    /// Whether this copy created it.
    pub made: bool,
}

/// The directories from the destination down to the one being filled.
pub struct Host {
    /// The directory that contains the copy's first name, or the destination itself.
    base: OwnedFd,
    /// Files that are neither written to nor unlinked.
    never: Arc<Devices>,
    open: Vec<Open>,
    /// Entries of `open` before this one have no descriptor.
    closed: usize,
}

/// Refuses a name that is not plain.
fn plain(name: &[u8]) -> Result<&OsStr, Errno> {
    let bad = name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0);
    if bad { Err(Errno::INVAL) } else { Ok(OsStr::from_bytes(name)) }
}

impl Host {
    /// Fills the directory at `base`, a path given by the user: links in it are followed. The files in `never` are left
    /// alone (`EBUSY`).
    pub fn new(base: &Path, never: Arc<Devices>) -> Result<Host, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = rustix::fs::open(base, flags, Mode::empty())?;
        Ok(Host { base, never, open: Vec::new(), closed: 0 })
    }

    /// Whether this copy created the innermost directory.
    pub fn made_here(&self) -> bool {
        self.open.last().is_some_and(|open| open.made)
    }

    /// The innermost directory.
    pub fn here(&self) -> BorrowedFd<'_> {
        match self.open.last().and_then(|open| open.fd.as_ref()) {
            Some(fd) => fd.as_fd(),
            None => self.base.as_fd(),
        }
    }

    /// Whether the parent directory was lost: nothing more can be created.
    pub fn is_lost(&self) -> bool {
        self.open.last().is_some_and(|open| open.fd.is_none())
    }

    /// Enters the base itself, which exists.
    pub fn enter_base(&mut self) -> Result<(), Errno> {
        let fd =
            self.base.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        self.push(fd, false)
    }

    /// Creates a directory, or takes an existing one, and enters it.
    pub fn enter(&mut self, name: &[u8], mode: u32) -> Result<(), Errno> {
        let name = plain(name)?;
        // The copy needs the owner's rights; leaving the directory restores them.
        let mode = Mode::from_raw_mode(mode & 0o1777 | 0o700);
        let made = match rustix::fs::mkdirat(self.here(), name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error),
        };
        let fd = rustix::fs::openat(self.here(), name, DIRECTORY, Mode::empty())?;
        self.push(fd, made)
    }

    fn push(&mut self, fd: OwnedFd, made: bool) -> Result<(), Errno> {
        let identity = identity(&rustix::fs::fstat(&fd)?);
        self.open.push(Open { fd: Some(fd), identity, made });
        if self.open.len() - self.closed > OPEN_MAX {
            self.open[self.closed].fd = None;
            self.closed += 1;
        }
        Ok(())
    }

    /// Returns to the parent directory; gives the directory left, and whether that succeeded. The parent is opened
    /// through that directory, so keep its owner's rights until then.
    pub fn leave(&mut self) -> (Option<Filled>, Result<(), Errno>) {
        let Some(Open { fd: Some(fd), made, .. }) = self.open.pop() else { return (None, Ok(())) };
        let back = self.back(fd.as_fd());
        (Some(Filled { fd, made }), back)
    }

    /// Opens the innermost directory again if it was closed.
    fn back(&mut self, left: BorrowedFd<'_>) -> Result<(), Errno> {
        let last = self.open.len().wrapping_sub(1);
        let Some(around) = self.open.last_mut().filter(|around| around.fd.is_none()) else { return Ok(()) };
        let fd = rustix::fs::openat(left, "..", DIRECTORY, Mode::empty())?;
        if identity(&rustix::fs::fstat(&fd)?) != around.identity {
            // The directory being filled was moved.
            return Err(Errno::STALE);
        }
        around.fd = Some(fd);
        self.closed = last;
        Ok(())
    }

    /// A file to write from its start, and whether it existed; an existing one must be a regular file, and still has
    /// its contents. If it has other hard links, this name is unlinked, as in cp(1), and a new file created: the
    /// contents stay under the other names, and neither files elsewhere nor files just copied change.
    pub fn file(&self, name: &[u8], mode: u32) -> Result<(HostFile, bool), Errno> {
        let name = plain(name)?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o200);
        let create = || rustix::fs::openat(self.here(), name, flags | OFlags::CREATE | OFlags::EXCL, mode);
        match create() {
            Ok(fd) => return Ok((fd.into(), false)),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let stat = rustix::fs::statat(self.here(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if regular && stat.st_nlink > 1 && !self.never.contain(identity(&stat)) {
            self.remove(name.as_bytes())?;
            return Ok((create()?.into(), false));
        }
        // Opening a pipe must not wait for its reader.
        let fd = rustix::fs::openat(self.here(), name, flags | OFlags::NONBLOCK, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::EXIST);
        }
        if self.never.contain(identity(&stat)) {
            return Err(Errno::BUSY);
        }
        Ok((fd.into(), true))
    }

    /// Same, but a file that cannot be opened for writing is removed and recreated. Directories, and files that must
    /// never be written to, stay.
    pub fn file_by_force(&self, name: &[u8], mode: u32) -> Result<(HostFile, bool), Errno> {
        self.file(name, mode).or_else(|error| {
            let is_never = self.identity_of(name).is_ok_and(|there| self.never.contain(there));
            if is_never || self.remove(name).is_err() {
                return Err(error);
            }
            self.file(name, mode)
        })
    }

    /// Unlinks a name, unless it is a directory.
    pub fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::unlinkat(self.here(), plain(name)?, AtFlags::empty())
    }

    /// Creates something under a name. An existing file of that name is replaced atomically once the new one exists; a
    /// directory is not.
    pub fn replace(
        &self,
        name: &[u8],
        make: impl Fn(BorrowedFd<'_>, &OsStr) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let plain = plain(name)?;
        match make(self.here(), plain) {
            Err(Errno::EXIST) => {}
            made => return made,
        }
        if self.identity_of(name).is_ok_and(|there| self.never.contain(there)) {
            return Err(Errno::BUSY);
        }
        for number in 0..SPARES {
            let spare = format!(".uext4-cp-{}-{number}", std::process::id());
            match make(self.here(), OsStr::new(&spare)) {
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let renamed = rustix::fs::renameat(self.here(), &spare, self.here(), plain);
                    if renamed.is_err() {
                        // Report the first error.
                        let _already_failing = self.remove(spare.as_bytes());
                    }
                    return renamed;
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Creates a hard link here to a file of this copy. `path`: its path from the base; no component of it may be a
    /// symbolic link.
    pub fn link(&self, path: &[u8], made: Identity, name: &[u8]) -> Result<(), Errno> {
        let (parent, old) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b"."[..], path),
        };
        let old = plain(old)?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let parent = OsStr::from_bytes(parent);
        // A directory that may be searched but not read suffices.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = rustix::fs::openat2(&self.base, parent, flags, Mode::empty(), resolve)?;
        let stat = rustix::fs::statat(&parent, old, AtFlags::SYMLINK_NOFOLLOW)?;
        if identity(&stat) != made {
            return Err(Errno::STALE);
        }
        if self.identity_of(name) == Ok(made) {
            return Ok(());
        }
        self.replace(name, |here, name| rustix::fs::linkat(&parent, old, here, name, AtFlags::empty()))
    }

    /// Holds what was just created under a name here, without opening it. `device`: its number, if it is a device node.
    pub fn hold(&self, name: &[u8], made: FileType, device: Option<u64>) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::openat(self.here(), plain(name)?, flags, Mode::empty())?;
        let is = rustix::fs::fstat(&held)?;
        if may_be_made(&is, made, device) { Ok(held) } else { Err(Errno::STALE) }
    }

    /// Type and identity of a name here.
    pub fn identity_of(&self, name: &[u8]) -> Result<Identity, Errno> {
        Ok(identity(&rustix::fs::statat(self.here(), plain(name)?, AtFlags::SYMLINK_NOFOLLOW)?))
    }
}

/// Whether it may be the file just created. Another process may have put another file under its name, which must not
/// get our attributes: the file created has the requested type and one link. (The owner proves nothing: a network file
/// system may assign another owner, and some do not count links.)
fn may_be_made(is: &Stat, made: FileType, device: Option<u64>) -> bool {
    FileType::from_raw_mode(is.st_mode) == made
        && is.st_nlink <= 1
        && device.is_none_or(|device| device == is.st_rdev)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4::DeviceSpec;

    #[test]
    fn only_plain_names() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = Host::new(dir.path(), Arc::default()).unwrap();
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b", b"../x"] {
            assert_eq!(host.enter(name, 0o755).unwrap_err(), Errno::INVAL);
            assert_eq!(host.file(name, 0o644).unwrap_err(), Errno::INVAL);
            assert_eq!(host.remove(name).unwrap_err(), Errno::INVAL);
            assert_eq!(host.hold(name, FileType::Directory, None).unwrap_err(), Errno::INVAL);
            assert_eq!(host.replace(name, |_, _| Ok(())).unwrap_err(), Errno::INVAL);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_are_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("victim"), "mine").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("dir")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("victim"), dir.path().join("file")).unwrap();
        let mut host = Host::new(dir.path(), Arc::default()).unwrap();
        assert_eq!(host.enter(b"dir", 0o755).unwrap_err(), Errno::NOTDIR);
        assert_eq!(host.file(b"file", 0o644).unwrap_err(), Errno::LOOP);
        let victim = identity(&rustix::fs::stat(outside.path().join("victim")).unwrap());
        assert_eq!(host.link(b"dir/victim", victim, b"x").unwrap_err(), Errno::NOTDIR);
        assert_eq!(host.link(b"../victim", victim, b"x").unwrap_err(), Errno::XDEV);
        assert_eq!(host.hold(b"file", FileType::Fifo, None).unwrap_err(), Errno::STALE);
        assert!(host.hold(b"file", FileType::Symlink, None).is_ok());
        assert_eq!(std::fs::read(outside.path().join("victim")).unwrap(), b"mine");
    }

    #[test]
    fn what_cannot_be_made_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "mine").unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        let host = Host::new(dir.path(), Arc::default()).unwrap();
        // As the kernel does: a name that exists is told first.
        let refused = |here: BorrowedFd<'_>, name: &OsStr| {
            let there = rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            Err(if there { Errno::EXIST } else { Errno::PERM })
        };
        assert_eq!(host.replace(b"file", refused).unwrap_err(), Errno::PERM);
        let link = |here: BorrowedFd<'_>, name: &OsStr| rustix::fs::symlinkat("elsewhere", here, name);
        assert_eq!(host.replace(b"dir", link).unwrap_err(), Errno::ISDIR);
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"mine");
        let made = host.identity_of(b"file").unwrap();
        for _again in [1, 2] {
            host.link(b"file", made, b"second").unwrap();
        }
        host.replace(b"second", link).unwrap();
        assert_eq!(std::fs::read_link(dir.path().join("second")).unwrap(), Path::new("elsewhere"));
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn only_what_was_made_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path(), Arc::default()).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(host.here(), "pipe", FileType::Fifo, mode, 0).unwrap();
        assert!(host.hold(b"pipe", FileType::Fifo, None).is_ok());
        // On some hosts what is made belongs to somebody else, or has no name that is counted.
        let mut is = rustix::fs::fstat(host.hold(b"pipe", FileType::Fifo, None).unwrap()).unwrap();
        for (links, ours) in [(0, true), (1, true), (2, false)] {
            (is.st_nlink, is.st_uid) = (links, 12345);
            assert_eq!(may_be_made(&is, FileType::Fifo, None), ours, "{links}");
        }
        // Another file may be given our name as another name of it.
        rustix::fs::linkat(host.here(), "pipe", host.here(), "other", AtFlags::empty()).unwrap();
        assert_eq!(host.hold(b"pipe", FileType::Fifo, None).unwrap_err(), Errno::STALE);
        if rustix::process::geteuid().is_root() {
            host.remove(b"other").unwrap();
            std::os::unix::fs::chown(dir.path().join("pipe"), Some(12345), None).unwrap();
            assert!(host.hold(b"pipe", FileType::Fifo, None).is_ok());
            let (null, zero) = (rustix::fs::makedev(1, 3), rustix::fs::makedev(1, 5));
            rustix::fs::mknodat(host.here(), "null", FileType::CharacterDevice, mode, null).unwrap();
            assert!(host.hold(b"null", FileType::CharacterDevice, Some(null)).is_ok());
            let other = host.hold(b"null", FileType::CharacterDevice, Some(zero));
            assert_eq!(other.unwrap_err(), Errno::STALE);
        }
    }

    #[test]
    fn far_down_and_back_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = Host::new(dir.path(), Arc::default()).unwrap();
        let depth = OPEN_MAX * 5 / 2;
        for _ in 0..depth {
            host.enter(b"d", 0o755).unwrap();
            assert!(host.open.last().unwrap().made);
        }
        assert_eq!(host.open.iter().filter(|open| open.fd.is_some()).count(), OPEN_MAX);
        for level in (0..depth).rev() {
            drop(host.file(b"up", 0o644).unwrap());
            let (left, back) = host.leave();
            assert!(back.is_ok() && left.unwrap().made);
            assert_eq!(host.open.len(), level);
        }
        host.enter(b"e", 0o755).unwrap();
        let deepest: std::path::PathBuf = std::iter::repeat_n("d", depth).collect();
        assert!(dir.path().join(deepest).join("up").exists() && dir.path().join("e").exists());
    }

    #[test]
    fn a_file_that_exists_must_be_a_file_and_not_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path(), Arc::default()).unwrap();
        drop(host.file(b"image", 0o600).unwrap());
        assert!(host.file(b"image", 0o600).unwrap().1);
        let image = host.identity_of(b"image").unwrap();
        let devices = Devices::of(&[DeviceSpec::file(dir.path().join("image"))]);
        assert!(devices.contain(image));
        let host = Host::new(dir.path(), Arc::new(devices)).unwrap();
        let link = |here: BorrowedFd<'_>, name: &OsStr| rustix::fs::symlinkat("elsewhere", here, name);
        for names in [1, 2] {
            assert_eq!(host.file(b"image", 0o600).unwrap_err(), Errno::BUSY);
            assert_eq!(host.replace(b"image", link).unwrap_err(), Errno::BUSY);
            assert_eq!(host.identity_of(b"image").unwrap(), image);
            std::fs::hard_link(dir.path().join("image"), dir.path().join(format!("again{names}"))).unwrap();
        }
        rustix::fs::mknodat(host.here(), "pipe", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(host.file(b"pipe", 0o600).is_err());
    }
}
