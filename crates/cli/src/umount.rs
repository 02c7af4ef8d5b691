//! `uext4 umount`.

use crate::args::Globals;
use crate::error::CliError;
use crate::text;
use clap::{Args, ValueHint};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uext4_fuse::{MountEntry, NotClean, Server};

/// `uext4 umount`.
#[derive(Args)]
#[command(after_long_help = "\
Exit status 0 says that the volume is clean and that nobody uses the device. umount(8) and fusermount3 return before
that: the server still writes home then. A mount that is in use is refused, unless --lazy is given. What a killed
server has left is taken away, with exit status 1: the next use of the volume recovers it.")]
pub struct UmountArgs {
    /// The mount point.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Take it away from new users now, and wait until the last one has gone.
    #[arg(short, long)]
    pub lazy: bool,
    /// Wait for at most this long. It is unmounted all the same, and the exit status is 1.
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
}

/// Runs it.
pub fn run(args: &UmountArgs, _globals: &Globals) -> Result<(), CliError> {
    let directory = args.directory.as_path();
    let mount = served(directory)?;
    let ending = Server::of(&mount).and_then(|server| server.map(Server::end).transpose());
    let ending = ending.map_err(|error| CliError::host(directory.as_os_str(), "ask the server", &error))?;
    uext4_fuse::unmount(&mount.point, args.lazy)
        .map_err(|error| CliError::host(directory.as_os_str(), "unmount", &error))?;
    let ended = match ending {
        Some(ending) => ending.wait(args.timeout.map(Duration::from_secs)),
        None => Err(NotClean::Killed),
    };
    ended.map_err(|error| {
        let errno = if matches!(error, NotClean::Late(_)) { libc::ETIMEDOUT } else { libc::EIO };
        CliError::failed(directory.as_os_str(), format!("unmounted, but {error}"), errno)
    })
}

/// The FUSE mount on a directory.
///
/// # Errors
/// There is none.
pub fn served(directory: &Path) -> Result<MountEntry, CliError> {
    let failed = |error: io::Error| CliError::host(directory.as_os_str(), "find the mount", &error);
    match MountEntry::at(directory) {
        Ok(mount) if mount.kind.starts_with("fuse.") => Ok(mount),
        Ok(mount) => {
            let kind = text::visible(mount.kind.as_bytes());
            let message = format!("a mount of type {kind}, not of uext4");
            Err(CliError::failed(directory.as_os_str(), message, libc::EINVAL))
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(CliError::failed(directory.as_os_str(), "not a mount point", libc::EINVAL))
        }
        Err(error) => Err(failed(error)),
    }
}
