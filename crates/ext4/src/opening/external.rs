//! A journal on a device of its own: finding it among the devices that the caller names, and checking that it is this
//! volume's.
//!
//! Such a device begins like a volume, with a superblock that has the feature `journal_dev`; the log's superblock is in
//! the next block. The volume knows the journal by its UUID (`s_journal_uuid`), and the log's superblock lists the
//! volumes that use it (`s_users`): one, as for Linux. The device number that the volume also stores is a hint that is
//! not followed, as it may mean another device by now.

use crate::ground::devices;
use crate::ground::error::{Error, Result};
use crate::ground::options::{JournalDevice, VolumeOptions};
use crate::opening::on_device::read_bytes;
use std::fmt::Write as _;
use std::sync::Arc;
use uext4_blockdev::{self as blockdev, Device};
use uext4_jbd2::DeviceMap;
use uext4_ondisk::ext4::{JournalDeviceSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use uext4_ondisk::jbd2::JournalSuperblock;

/// The devices of a volume.
#[derive(Clone)]
pub(crate) struct Devices {
    /// The volume itself.
    pub(crate) volume: Arc<dyn Device>,
    /// The log, if it is not in the volume.
    pub(crate) log: Option<DeviceMap>,
}

impl Devices {
    /// The device that holds the log.
    pub(crate) fn log_device(&self) -> &Arc<dyn Device> {
        self.log.as_ref().map_or(&self.volume, DeviceMap::own_device)
    }
}

/// Opens the journal of a volume that has it on another device. `None` for other volumes, and without a journal named
/// if it is not `needed`: to read a volume that needs no recovery.
///
/// # Errors
/// [`Error::ExternalJournal`] if none of the devices in the options is it, or the log is not this volume's;
/// [`Error::InUse`] and others of the device.
pub(crate) fn find(
    superblock: &Superblock,
    options: &VolumeOptions,
    needed: bool,
) -> Result<Option<DeviceMap>> {
    if !superblock.has_external_journal() {
        return Ok(None);
    }
    let mut refused = Vec::new();
    for candidate in &options.journals {
        let name = candidate.name();
        match identify(candidate, superblock) {
            Ok(()) => return open(candidate, superblock, options).map(Some),
            Err(Error::ExternalJournal(why)) => refused.push(format!("{name}: {why}")),
            Err(failed) => return Err(failed),
        }
    }
    if !needed {
        return Ok(None);
    }
    Err(Error::ExternalJournal(missing(superblock, &refused).into()))
}

/// Says which journal the volume needs, and why the devices that were named are not it.
fn missing(superblock: &Superblock, refused: &[String]) -> String {
    let location = &superblock.journal;
    let mut text = format!("the volume uses an external journal (UUID {}", uuid(&location.uuid));
    if location.device != 0 {
        let (major, minor) = numbers(location.device);
        let _infallible = write!(text, ", once device {major}:{minor}");
    }
    text.push_str("): ");
    if refused.is_empty() {
        text.push_str("name that device (--journal DEVICE, VolumeOptions::journal)");
    } else {
        let _infallible = write!(text, "none of those named is it: {}", refused.join("; "));
    }
    text
}

/// Major and minor device number as Linux packs them into 32 bits.
fn numbers(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}

/// Checks by its UUID that a device is the volume's journal. It may be in use meanwhile.
fn identify(candidate: &JournalDevice, superblock: &Superblock) -> Result<()> {
    let device = match candidate {
        JournalDevice::Opened(device) => device.clone(),
        JournalDevice::Named(spec) => {
            let how = blockdev::OpenOptions { write: false, force: true };
            devices::open(spec, how)?.device
        }
    };
    Header::read(&*device)?.check_is_of(superblock)
}

/// Opens the device for what the volume is opened for, and checks the log on it.
fn open(candidate: &JournalDevice, superblock: &Superblock, options: &VolumeOptions) -> Result<DeviceMap> {
    let device = match candidate {
        JournalDevice::Opened(device) => device.clone(),
        JournalDevice::Named(spec) => {
            let how = blockdev::OpenOptions { write: options.write, force: options.force };
            devices::open(spec, how)
                .map_err(|error| match error.into() {
                    Error::InUse(by) => Error::InUse(format!("{by} (the journal device {spec})")),
                    other => other,
                })?
                .device
        }
    };
    if options.write && device.capabilities().read_only {
        return Err(Error::ReadOnly("the journal device"));
    }
    // Another process may have changed it until it was claimed.
    let header = Header::read(&*device)?;
    header.check_is_of(superblock)?;
    header.check_log(&*device, superblock, candidate)?;
    let blocks = u32::try_from(header.fields.blocks).unwrap_or(u32::MAX);
    Ok(DeviceMap::new(device, header.log_superblock(), blocks))
}

/// What stands at the start of a journal device.
pub(crate) struct Header {
    pub(crate) fields: JournalDeviceSuperblock,
}

fn refuse(text: impl Into<Arc<str>>) -> Error {
    Error::ExternalJournal(text.into())
}

impl Header {
    pub(crate) fn read(device: &dyn Device) -> Result<Header> {
        if device.geometry().size < SUPERBLOCK_OFFSET + u64::from(SUPERBLOCK_SIZE) {
            return Err(refuse("no journal device (too short)"));
        }
        let bytes = read_bytes(device, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE as usize)?;
        let fields = JournalDeviceSuperblock::decode(&bytes)
            .map_err(|corrupt| refuse(format!("no journal device: {corrupt}")))?;
        let Some(fields) = fields else { return Err(refuse("a volume, no journal device")) };
        let bytes = fields.blocks.checked_mul(u64::from(fields.block_size));
        let size = device.geometry().size;
        if bytes.is_none_or(|bytes| bytes > size) {
            let JournalDeviceSuperblock { blocks, block_size, .. } = fields;
            return Err(refuse(format!(
                "a journal of {blocks} blocks of {block_size} bytes on a device of only {size} bytes"
            )));
        }
        Ok(Header { fields })
    }

    fn check_is_of(&self, superblock: &Superblock) -> Result<()> {
        if self.fields.uuid == superblock.journal.uuid {
            return Ok(());
        }
        Err(refuse(format!("another journal (UUID {})", uuid(&self.fields.uuid))))
    }

    /// Block of the log's superblock: the one after this.
    pub(crate) fn log_superblock(&self) -> u64 {
        Self::log_superblock_of(self.fields.block_size)
    }

    pub(crate) fn log_superblock_of(block_size: u32) -> u64 {
        SUPERBLOCK_OFFSET / u64::from(block_size) + 1
    }

    /// Checks that the log is one of this volume.
    fn check_log(&self, device: &dyn Device, superblock: &Superblock, named: &JournalDevice) -> Result<()> {
        let (ours, its) = (superblock.geometry.block_size(), self.fields.block_size);
        if ours != its {
            let name = named.name();
            return Err(refuse(format!("{name} has blocks of {its} bytes, the volume of {ours}")));
        }
        if device.geometry().logical_block > its {
            let logical = device.geometry().logical_block;
            let name = named.name();
            return Err(refuse(format!(
                "{name} has blocks of {its} bytes, smaller than the device's logical block of {logical} bytes"
            )));
        }
        let block = self.log_superblock();
        let bytes = read_bytes(device, block * u64::from(its), its as usize)?;
        let log = JournalSuperblock::decode(&bytes).map_err(uext4_jbd2::Error::from)?;
        let name = named.name();
        if log.uuid != superblock.journal.uuid {
            return Err(refuse(format!(
                "the log on {name} has another UUID than the device: {}",
                uuid(&log.uuid)
            )));
        }
        // Several users are refused by the journal itself.
        match log.users {
            0 => Err(refuse(format!("the journal on {name} is used by no volume"))),
            1 if log.user != superblock.uuid => {
                let text =
                    format!("the journal on {name} is used by another volume (UUID {})", uuid(&log.user));
                Err(refuse(text))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{numbers, uuid};

    #[test]
    fn device_numbers_are_unpacked_as_linux_does() {
        assert_eq!(numbers(0x0701), (7, 1));
        assert_eq!(numbers(0x0010_3412), (0x34, 0x112));
    }

    #[test]
    fn uuids_are_written_in_groups() {
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8);
        assert_eq!(uuid(&bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
