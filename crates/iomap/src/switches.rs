//! The five switches. They resolve once per open file; the hot path is compiled for "all on" and for "as
//! given".

use std::fmt;
use std::str::FromStr;

/// Which of the five optimisations are on. All are by default; turning one off is for measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Switches {
    /// `overwrite-no-transaction`: writes over written blocks start no handle.
    pub overwrite_no_transaction: bool,
    /// `dax-no-dio-count`: mapped copies touch no in-flight counter.
    pub dax_no_dio_count: bool,
    /// `fua-dsync-overwrite`: an `O_DSYNC` pure overwrite is one FUA write.
    pub fua_dsync_overwrite: bool,
    /// `simple-read`: reads of one mapping take the short path.
    pub simple_read: bool,
    /// `shared-subblock-overwrite`: sub-block overwrites run under the shared gate.
    pub shared_subblock_overwrite: bool,
}

/// Names of the switches in the order of [`Switches::from_bits`].
pub const SWITCH_NAMES: [&str; 5] = [
    "overwrite-no-transaction",
    "dax-no-dio-count",
    "fua-dsync-overwrite",
    "simple-read",
    "shared-subblock-overwrite",
];

impl Switches {
    /// Everything on.
    pub const ON: Switches = Switches::from_bits(0b11111);
    /// Everything off: the plain routes.
    pub const OFF: Switches = Switches::from_bits(0);

    /// The setting whose bit `n` is the switch [`SWITCH_NAMES`]`[n]`.
    pub const fn from_bits(bits: u8) -> Self {
        Switches {
            overwrite_no_transaction: bits & 1 != 0,
            dax_no_dio_count: bits & 2 != 0,
            fua_dsync_overwrite: bits & 4 != 0,
            simple_read: bits & 8 != 0,
            shared_subblock_overwrite: bits & 16 != 0,
        }
    }

    /// Bits as in [`Switches::from_bits`].
    pub const fn bits(self) -> u8 {
        self.overwrite_no_transaction as u8
            | (self.dax_no_dio_count as u8) << 1
            | (self.fua_dsync_overwrite as u8) << 2
            | (self.simple_read as u8) << 3
            | (self.shared_subblock_overwrite as u8) << 4
    }

    /// Sets one switch by name. `Err` if there is no such switch.
    pub fn set(&mut self, name: &str, on: bool) -> Result<(), BadSwitch> {
        let index = SWITCH_NAMES.iter().position(|&known| known == name);
        let index = index.ok_or_else(|| BadSwitch(name.to_owned()))?;
        let bits = if on { self.bits() | 1 << index } else { self.bits() & !(1 << index) };
        *self = Switches::from_bits(bits);
        Ok(())
    }
}

impl Default for Switches {
    fn default() -> Self {
        Switches::ON
    }
}

/// A switch, or a value of one, that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad switch `{0}`: expected NAME=on|off with NAME one of {names}", names = SWITCH_NAMES.join(", "))]
pub struct BadSwitch(pub String);

impl FromStr for Switches {
    type Err = BadSwitch;

    /// `a=off,b=on`: everything not named is on; `all=off` sets all.
    fn from_str(text: &str) -> Result<Self, BadSwitch> {
        let mut switches = Switches::ON;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| BadSwitch(part.to_owned()))?;
            let on = match value {
                "on" => true,
                "off" => false,
                _ => return Err(BadSwitch(part.to_owned())),
            };
            match name {
                "all" => switches = if on { Switches::ON } else { Switches::OFF },
                _ => switches.set(name, on)?,
            }
        }
        Ok(switches)
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in SWITCH_NAMES.iter().enumerate() {
            let on = self.bits() & 1 << index != 0;
            write!(f, "{}{name}={}", if index == 0 { "" } else { "," }, if on { "on" } else { "off" })?;
        }
        Ok(())
    }
}

/// How the routes read a switch: constants when all are on, fields otherwise. Only decisions read switches, not the
/// leaf functions.
pub trait Routing: Copy {
    /// The whole setting.
    fn switches(self) -> Switches;
}

/// All switches on, known to the compiler.
#[derive(Debug, Clone, Copy)]
pub struct AllOn;

impl Routing for AllOn {
    #[inline(always)]
    fn switches(self) -> Switches {
        Switches::ON
    }
}

impl Routing for Switches {
    #[inline(always)]
    fn switches(self) -> Switches {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_32_settings_survive_text_and_bits() {
        for bits in 0..32 {
            let switches = Switches::from_bits(bits);
            assert_eq!(switches.bits(), bits);
            assert_eq!(switches.to_string().parse::<Switches>().unwrap(), switches);
        }
        assert_eq!("".parse::<Switches>().unwrap(), Switches::ON);
        assert_eq!("all=off,simple-read=on".parse::<Switches>().unwrap(), Switches::from_bits(8));
        for bad in ["simple-read", "simple-read=no", "simple=on", "simple-read=on,x=off"] {
            assert!(bad.parse::<Switches>().is_err(), "{bad}");
        }
    }
}
