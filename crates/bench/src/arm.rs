//! Arms: the ways in which the same requests are made.

use uext4::Switches;

/// One way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arm {
    /// Every switch on.
    On,
    /// The scenario's switch off (every switch, if the scenario has no single one).
    Off,
    /// Every switch off.
    AllOff,
    /// The device without the file system.
    Raw,
    /// The kernel's ext4 on the same block device: `--kernel`.
    Kernel,
    /// As `on`, on a file of one extent: part of `lookup-scaling`.
    OneExtent,
    /// As `on`, with plain writes: what durability costs.
    NoDsync,
    /// As `on`, with one thread: part of `metadata`.
    OneThread,
}

impl Arm {
    /// Those that can be requested; the others belong to scenarios, or to [`crate::Settings::kernel`].
    pub const CHOICES: [Arm; 4] = [Arm::On, Arm::Off, Arm::AllOff, Arm::Raw];

    /// Name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Arm::On => "on",
            Arm::Off => "off",
            Arm::AllOff => "all-off",
            Arm::Raw => "raw",
            Arm::Kernel => "kernel",
            Arm::OneExtent => "one-extent",
            Arm::NoDsync => "no-dsync",
            Arm::OneThread => "one-thread",
        }
    }

    /// Which optimisations it uses, if it goes through the library. `base` is the setting of `on`, `switch`
    /// the scenario's, `None` for all of them.
    pub(crate) fn switches(self, base: Switches, switch: Option<&str>) -> Option<Switches> {
        match (self, switch) {
            (Arm::On | Arm::OneExtent | Arm::NoDsync | Arm::OneThread, _) => Some(base),
            (Arm::Off, None) | (Arm::AllOff, _) => Some(Switches::OFF),
            (Arm::Off, Some(name)) => {
                let mut switches = base;
                // The scenario table's test pins that its names exist.
                switches.set(name, false).ok()?;
                Some(switches)
            }
            (Arm::Raw | Arm::Kernel, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_differs_from_on_in_the_scenarios_switch_only() {
        let off = Arm::Off.switches(Switches::ON, Some("simple-read")).unwrap();
        assert_eq!(off, Switches { simple_read: false, ..Switches::ON });
        assert_eq!(Arm::Off.switches(Switches::ON, None), Some(Switches::OFF));
        assert_eq!(Arm::On.switches(off, Some("simple-read")), Some(off));
        assert_eq!(Arm::Raw.switches(Switches::ON, None), None);
    }
}
