//! Mounting and unmounting: by the system call as root, by `fusermount3` as an ordinary user.

use crate::dev::Device;
use crate::ring::Rings;
use crate::transport::DATA_MAX;
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that mounts for ordinary users.
const HELPER: &str = "fusermount3";

/// How far the kernel reads ahead, in KiB: two requests of the largest size.
const READ_AHEAD_KB: &str = "2048";

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("{0}")]
    Directory(io::Error),
    /// There is no FUSE, or no right to it.
    #[error("/dev/fuse: {0}")]
    Device(io::Error),
    /// The kernel refused.
    #[error("the kernel refused the mount: {0}")]
    Refused(io::Error),
    /// `fusermount3` cannot be run, or gave nothing.
    #[error("fusermount3 (Debian: package fuse3): {0}")]
    Helper(io::Error),
    /// `fusermount3` refused; its reason.
    #[error("{0}")]
    HelperRefused(String),
}

impl MountError {
    /// The error number.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            MountError::Directory(error)
            | MountError::Device(error)
            | MountError::Refused(error)
            | MountError::Helper(error) => error.raw_os_error().unwrap_or(libc::EIO),
            MountError::HelperRefused(_) => libc::EPERM,
        }
    }
}

/// How a volume is mounted. Permissions are always checked by the kernel.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// What `/proc/mounts` shows as the device.
    pub source: String,
    /// The type in `/proc/mounts` is `fuse.` with this.
    pub subtype: String,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Set-user-id, set-group-id and file capabilities take effect.
    pub suid: bool,
    /// Device nodes can be opened.
    pub dev: bool,
    /// Programs can be executed.
    pub exec: bool,
}

impl MountOptions {
    /// As FUSE file systems are mounted by default: for this user only, without effect of set-id bits and device nodes.
    #[must_use]
    pub fn new(source: impl Into<String>) -> MountOptions {
        MountOptions {
            source: source.into(),
            subtype: "uext4".into(),
            allow_other: false,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
        }
    }

    fn flags(&self) -> MountFlags {
        let switches = [
            (self.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (!self.exec, MountFlags::NOEXEC),
        ];
        switches.into_iter().filter(|(on, _)| *on).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
    }

    /// The options that `fusermount3` takes.
    fn words(&self) -> String {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
        let mut words = vec![
            format!("fsname={}", escaped(&self.source)),
            format!("subtype={}", escaped(&self.subtype)),
            format!("max_read={DATA_MAX}"),
            "default_permissions".into(),
            if self.read_only { "ro" } else { "rw" }.into(),
            if self.suid { "suid" } else { "nosuid" }.into(),
            if self.dev { "dev" } else { "nodev" }.into(),
            if self.exec { "exec" } else { "noexec" }.into(),
        ];
        if self.allow_other {
            words.push("allow_other".into());
        }
        words.join(",")
    }
}

/// A mount whose requests nobody serves yet. Dropping it ends the mount's use, but leaves it in the mount table.
pub struct Connection {
    pub(crate) device: Device,
    /// Nothing if nobody has asked for them.
    pub(crate) rings: Option<io::Result<Rings>>,
}

impl Connection {
    fn new(descriptor: OwnedFd) -> Connection {
        Connection { device: Device::new(descriptor), rings: None }
    }
}

/// Mounts on a directory. The mount hangs until [`Session::start`](crate::Session::start) serves it.
///
/// # Errors
/// [`MountError`].
pub fn mount(directory: &Path, options: &MountOptions) -> Result<Connection, MountError> {
    if !std::fs::metadata(directory).map_err(MountError::Directory)?.is_dir() {
        return Err(MountError::Directory(Errno::NOTDIR.into()));
    }
    match rustix::process::geteuid().is_root() {
        true => mount_as_root(directory, options),
        false => mount_by_helper(directory, options),
    }
}

fn mount_as_root(directory: &Path, options: &MountOptions) -> Result<Connection, MountError> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let device = device.map_err(|error| MountError::Device(error.into()))?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let other = if options.allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},max_read={DATA_MAX},default_permissions{other}",
        device.as_raw_fd()
    );
    let refused = |error: io::Error| MountError::Refused(error);
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let kind = format!("fuse.{}", options.subtype);
    let mounted = rustix::mount::mount(&*options.source, directory, &*kind, options.flags(), Some(&*data));
    mounted.map_err(|error| refused(error.into()))?;
    read_ahead(directory);
    Ok(Connection::new(device))
}

/// Has the kernel read ahead further than its default of 128 KiB, which costs a request each. Only root may; the mount
/// works without.
fn read_ahead(directory: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The latest mount there is the last line. A name with a space is written otherwise: the default stays.
    let ours = table.lines().rev().map(|line| line.split(' '));
    let devices = ours.filter_map(|mut words| {
        let device = words.nth(2)?;
        (words.nth(1)? == directory.to_str()?).then_some(device)
    });
    for device in devices.take(1) {
        let _default = std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READ_AHEAD_KB);
    }
}

fn mount_by_helper(directory: &Path, options: &MountOptions) -> Result<Connection, MountError> {
    let helper = |error: io::Error| MountError::Helper(error);
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.map_err(|error| helper(error.into()))?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| helper(error.into()))?;
    let mut child = Command::new(HELPER)
        .arg("-o")
        .arg(options.words())
        .arg("--")
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(helper)?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).map_err(helper)?;
    }
    let ended = child.wait().map_err(helper)?;
    match received {
        Ok(Some(descriptor)) if ended.success() => {
            rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC).map_err(|error| helper(error.into()))?;
            Ok(Connection::new(descriptor))
        }
        Err(error) => Err(helper(error)),
        _ if said.trim().is_empty() => Err(helper(io::Error::other(format!("it ended with {ended}")))),
        _ => Err(MountError::HelperRefused(said.trim().to_owned())),
    }
}

/// Receives the one descriptor that the helper sends; `None` if it sends none.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    loop {
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut found = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            found = descriptors.into_iter().next().or(found);
        }
    }
    Ok(found)
}

/// Unmounts a directory. With `lazy`, at once for new users, while those who use it keep it.
///
/// # Errors
/// `EBUSY` if somebody uses it, `EINVAL` if it is no mount; of `fusermount3`, its words.
pub fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return Ok(rustix::mount::unmount(directory, flags)?);
    }
    let mut helper = Command::new(HELPER);
    helper.arg("-u");
    if lazy {
        helper.arg("-z");
    }
    let ended = helper.arg("--").arg(directory).stdin(Stdio::null()).output()?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&ended.stderr).trim().to_owned())),
    }
}
