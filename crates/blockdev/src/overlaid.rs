//! Overlay files on the host: made beside a base, opened over it (`?overlay=FILE`).

use crate::engine::{FileDevice, FileEngine};
use crate::layer::{BaseFacts, OverlayFileDevice};
use crate::spec::{DeviceSpec, Locator, Scheme, SpecOptions};
use crate::{Device, Error, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens the overlay file over `base`, the device that `spec` names. For writing it is made if there is none.
pub(crate) fn open_over(
    base: Arc<dyn Device>,
    spec: &DeviceSpec,
    file: &Path,
    write: bool,
    force: bool,
) -> Result<Arc<dyn Device>> {
    let facts = facts(&*base, spec)?;
    if write && matches!(rustix::fs::stat(file), Err(Errno::NOENT)) {
        make(&*base, spec, &facts, file)?;
    }
    let store = open_file(file, write, force)?;
    Ok(Arc::new(OverlayFileDevice::open(base, &facts, store, file.display().to_string())?))
}

/// Opens the file itself; `force` reads it although it is in use.
pub(crate) fn open_file(file: &Path, write: bool, force: bool) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open(file, FileEngine::Uring, write, force)?))
}

/// What can be known of a base.
pub(crate) fn facts(base: &dyn Device, spec: &DeviceSpec) -> Result<BaseFacts> {
    let path = base_path(spec)?;
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MTIME | StatxFlags::TYPE)
        .map_err(failed(path, "stat"))?;
    // The time of a device's node says nothing about the device.
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    let changed = is_file.then_some((stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec));
    OverlayFileDevice::facts(base, changed)
}

fn base_path(spec: &DeviceSpec) -> Result<&Path> {
    match (&spec.locator, spec.scheme) {
        (Locator::Path(path), Scheme::File | Scheme::Sync | Scheme::Dax | Scheme::Nvme) => Ok(path),
        (Locator::Remote(_), _) => Err(Error::Unsupported(format!(
            "an overlay of `{}:`: its base is a file or block device",
            spec.scheme
        ))),
        _ => Err(Error::Unsupported(format!("an overlay of `{}:`, which keeps nothing", spec.scheme))),
    }
}

fn failed(path: &Path, action: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Open { path: path.display().to_string(), action, errno: errno.raw_os_error() }
}

/// The base as its overlay names it: from anywhere, and without what only matters while it is open.
fn spelling(spec: &DeviceSpec) -> Result<String> {
    let path = base_path(spec)?;
    let absolute = std::fs::canonicalize(path).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Error::Open { path: path.display().to_string(), action: "resolve", errno }
    })?;
    let SpecOptions { partition, offset, format, named, .. } = spec.options;
    let options = SpecOptions { partition, offset, format, named, ..SpecOptions::default() };
    Ok(DeviceSpec { scheme: spec.scheme, locator: Locator::Path(absolute), options }.to_string())
}

/// Makes an empty overlay file. It gets its name when it is whole and durable.
fn make(base: &dyn Device, spec: &DeviceSpec, facts: &BaseFacts, file: &Path) -> Result<()> {
    let mut name = file.as_os_str().to_owned().into_vec();
    name.extend_from_slice(format!(".new-{}", std::process::id()).as_bytes());
    let temporary = PathBuf::from(OsString::from_vec(name));
    let made = write_new(base, spec, facts, &temporary, file);
    if made.is_err() {
        let _was_not_made = rustix::fs::unlink(&temporary);
    }
    made
}

fn write_new(base: &dyn Device, spec: &DeviceSpec, facts: &BaseFacts, new: &Path, file: &Path) -> Result<()> {
    // It may have what only the owner of the base may read.
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let made = rustix::fs::open(new, flags, Mode::RUSR | Mode::WUSR).map_err(failed(new, "create"))?;
    let wanted = |granule| OverlayFileDevice::size(facts.size, granule);
    // The size decides whether the file system takes it; the blocks of the file decide the granule.
    rustix::fs::ftruncate(&made, wanted(512)?).map_err(failed(new, "set the size of"))?;
    let granule = open_file(new, true, false)?.geometry().logical_block.max(base.geometry().logical_block);
    rustix::fs::ftruncate(&made, wanted(granule)?).map_err(failed(new, "set the size of"))?;
    let store = open_file(new, true, false)?;
    OverlayFileDevice::format(&*store, facts, granule, spelling(spec)?.as_bytes(), identity()?)?;
    rustix::fs::fsync(&made).map_err(failed(new, "sync"))?;
    // Never over a file that has come meanwhile.
    rustix::fs::renameat_with(CWD, new, CWD, file, rustix::fs::RenameFlags::NOREPLACE)
        .map_err(failed(file, "create"))?;
    sync_folder(file)
}

/// What tells this overlay file from all others.
fn identity() -> Result<[u8; 16]> {
    let random = Path::new("/dev/urandom");
    let source = rustix::fs::open(random, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let source = source.map_err(failed(random, "open"))?;
    let mut id = [0; 16];
    // Reads of up to 256 bytes are whole.
    match rustix::io::read(source, &mut id).map_err(failed(random, "read"))? {
        16 => Ok(id),
        _ => Err(failed(random, "read")(Errno::IO)),
    }
}

/// Makes durable which names the folder of this file has.
pub(crate) fn sync_folder(file: &Path) -> Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(failed(folder, "open"))?;
    rustix::fs::fsync(opened).map_err(failed(folder, "sync"))
}
