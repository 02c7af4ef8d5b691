//! The volume of `uext4 shell`, as commands find it.

use uext4::{DeviceSpec, Volume};

/// A volume that stays open while commands run: they get it instead of opening it.
pub struct Session {
    spec: DeviceSpec,
    volume: Volume,
    write: bool,
}

impl Session {
    /// A session on an open volume. `write`: whether commands may change it.
    pub fn new(spec: DeviceSpec, volume: Volume, write: bool) -> Session {
        Session { spec, volume, write }
    }

    /// The volume.
    pub fn open(&self) -> &Volume {
        &self.volume
    }

    /// The volume for a command.
    ///
    /// # Errors
    /// [`uext4::Error::ReadOnly`] if it is to be written and is open for reading.
    pub fn volume(&self, write: bool) -> Result<Volume, uext4::Error> {
        match write && !self.write {
            true => Err(uext4::Error::ReadOnly("the shell's volume")),
            false => Ok(self.volume.clone()),
        }
    }

    /// Whether it is the volume on this device.
    pub fn has(&self, spec: &DeviceSpec) -> bool {
        self.spec == *spec
    }
}
