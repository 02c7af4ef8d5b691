//! Checks a device before it is formatted: whether it is in use or holds data.

use super::error::{Error, Result};
use crate::ground::error::Error as VolumeError;
use crate::ground::foreign::{Contents, Foreign};
use crate::ground::options::VolumeOptions;
use crate::opening::external::Header;
use crate::opening::superblock::read_superblock;
use crate::opening::{identify, mmp};
use uext4_blockdev::Device;

/// Refuses a device with recognised contents, as [`super::format`] does without [`super::Options::force`], and a device
/// in use by another node.
///
/// # Errors
/// [`Error::Occupied`]; errors of reading the device.
pub fn refuse_occupied(device: &dyn Device) -> Result<()> {
    check(device, false)
}

fn is_journal(device: &dyn Device) -> bool {
    Header::read(device).is_ok()
}

/// Refuses a device in use by another node and, without `force`, one with recognised contents.
pub(super) fn check(device: &dyn Device, force: bool) -> Result<()> {
    let found = match read_superblock(device) {
        Ok(superblock) => {
            // Even with `force`: an active owner would write over the new volume.
            mmp::refuse_shared(device, &superblock, &VolumeOptions::read_only())?;
            let label = superblock.label().escape_ascii().to_string();
            match label.as_str() {
                "" => "it holds an ext2/3/4 volume".to_owned(),
                label => format!("it holds an ext2/3/4 volume `{label}`"),
            }
        }
        Err(error) => match identify::instead(device, error) {
            VolumeError::NotExt4(foreign) => match &*foreign {
                Foreign::Contents(Contents::Zeros(_) | Contents::Unknown) | Foreign::TooShort(_) => {
                    return Ok(());
                }
                foreign => foreign.to_string(),
            },
            VolumeError::Incompatible { .. } if is_journal(device) => {
                "it holds the journal of a volume".into()
            }
            VolumeError::Corrupt(_) | VolumeError::Incompatible { .. } => {
                "it holds a damaged or unknown ext4 volume".into()
            }
            error => return Err(error.into()),
        },
    };
    if force { Ok(()) } else { Err(Error::Occupied(format!("{found} (--force overwrites it)"))) }
}
