//! What is done with an overlay file besides using it: looking at it, merging it into its base, throwing it away.

use crate::layer::OverlayFile;
use crate::overlaid::{facts, open_file, sync_folder};
use crate::spec::DeviceSpec;
use crate::{Error, OpenOptions, OverlayFault, Registry, Result, open_with};
use std::path::Path;

/// Opens an overlay file to look at it.
///
/// # Errors
/// [`Error::InUse`] while it is open for writing, [`Error::Overlay`] if it is none or is damaged, [`Error::Open`].
pub fn inspect(file: &Path) -> Result<OverlayFile> {
    let device = open_file(file, false, false)?;
    OverlayFile::open(device, file.display().to_string())
}

/// The device that an overlay file names as its base.
///
/// # Errors
/// [`Error::BadSpec`] if the name is none.
pub fn base(overlay: &OverlayFile) -> Result<DeviceSpec> {
    DeviceSpec::parse_bytes(overlay.base_name())
}

/// Writes the changes of an overlay file into `base`, or else into the base that it names, and removes the file. All is
/// durable before it is removed, and so is its removal when this returns. A merge that was cut is finished by another;
/// until then the base has some of the changes, and the overlay cannot be opened. Returns the bytes merged; calls
/// `progress` with those of each step.
///
/// # Errors
/// [`Error::InUse`] while the overlay or the base is used, by another overlay too; [`Error::Overlay`] if the base is
/// another one or was changed; those of the base's format, one of `registry`; read and write errors.
pub fn merge(
    file: &Path,
    base: Option<&DeviceSpec>,
    registry: &Registry<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let mut overlay = OverlayFile::open(open_file(file, true, false)?, file.display().to_string())?;
    let spec = match base {
        Some(spec) => spec.clone(),
        None => self::base(&overlay)?,
    };
    if spec.options.overlay.is_some() {
        return Err(Error::Unsupported("a merge into an overlay".into()));
    }
    let device = open_with(&spec, OpenOptions { write: true, force: false }, registry)?.device;
    let facts = facts(&*device, &spec)?;
    overlay.merge(&*device, &facts, progress)?;
    let bytes = overlay.changed_bytes();
    // Still locked: nobody else has it open.
    remove(file)?;
    drop(overlay);
    Ok(bytes)
}

/// Removes an overlay file, and with it the changes.
///
/// # Errors
/// [`Error::InUse`] while it is used; [`Error::Overlay`] if it is no overlay file, and if it was being merged: its base
/// has some of the changes, and needs the others.
pub fn discard(file: &Path) -> Result<()> {
    let device = open_file(file, true, false)?;
    let name = file.display().to_string();
    match OverlayFile::open(device.clone(), name.clone()) {
        Ok(overlay) if overlay.is_merging() => {
            return Err(Error::Overlay { path: name, fault: OverlayFault::Merging });
        }
        // A damaged one is of no use, but it is one.
        Ok(_) | Err(Error::Overlay { fault: OverlayFault::Header(_) | OverlayFault::Map(_), .. }) => {}
        Err(Error::Overlay { fault: OverlayFault::TooShort { .. } | OverlayFault::Version(_), .. }) => {}
        Err(error) => return Err(error),
    }
    remove(file)?;
    drop(device);
    Ok(())
}

fn remove(file: &Path) -> Result<()> {
    rustix::fs::unlink(file).map_err(|errno| Error::Open {
        path: file.display().to_string(),
        action: "remove",
        errno: errno.raw_os_error(),
    })?;
    sync_folder(file)
}
