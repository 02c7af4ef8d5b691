//! The settings of a run.

use crate::arm::Arm;
use crate::error::{BenchError, Result};
use crate::scenario;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use uext4::Switches;

/// Default seconds measured of each arm.
pub const SECONDS: f64 = 2.0;
/// Default slices of each arm. Fewer give wide intervals.
pub const ROUNDS: u32 = 40;
/// Longest slice, seconds.
const SLICE_MAX: f64 = 0.25;
/// Shortest slice, seconds: a shorter one would measure the start of the threads.
const SLICE_MIN: f64 = 0.001;
/// Files that `metadata` can make: a slice of each thread needs one, and names have seven digits.
const FILES: RangeInclusive<u64> = 320..=10_000_000;

/// How long and how often each arm is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Slices of each arm.
    pub(crate) rounds: u32,
    /// Length of one, seconds.
    pub(crate) slice: f64,
}

impl Timing {
    /// `seconds` in `rounds` slices; more rounds if the slices would be longer than 250 ms, and at least one.
    pub fn new(seconds: f64, rounds: u32) -> Self {
        let rounds = rounds.max((seconds / SLICE_MAX).ceil() as u32).max(1);
        // NaN is not a valid time.
        Timing { rounds, slice: (seconds.max(0.0) / f64::from(rounds)).clamp(SLICE_MIN, SLICE_MAX) }
    }
}

/// What to measure, where and how. The scenarios decide each `None`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Scenarios by name ([`crate::scenario_names`]); all that suit the device but `metadata` without one.
    pub scenarios: Vec<String>,
    /// `DEVICE[:/dir]`, on whose files `uext4-bench.N` it measures. Existing ones lose their contents, others are
    /// created and removed. Without it, temporary volumes in `/dev/shm`.
    pub device: Option<OsString>,
    /// Format the device first: everything on it is lost. A device with recognized contents is refused.
    pub mkfs: bool,
    /// Format it whatever it contains.
    pub force: bool,
    /// The command `uext4`, which removes the files created on the device, however this process ends.
    pub program: PathBuf,
    /// Total size of the files that the requests are spread over.
    pub size: Option<u64>,
    /// Files that each shape of `metadata` makes.
    pub files: Option<u64>,
    /// Threads.
    pub threads: Option<u16>,
    /// Requests in flight per thread, in scenarios that use queues.
    pub depth: Option<u32>,
    /// Arms to run, of [`Arm::CHOICES`].
    pub arms: Vec<Arm>,
    /// The kernel's ext4 too, where there is a block device. It is mounted, which needs root.
    pub kernel: bool,
    /// The setting that [`Arm::On`] uses; the other arms switch off from there.
    pub switches: Switches,
    /// Duration and slices.
    pub timing: Timing,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            scenarios: Vec::new(),
            device: None,
            mkfs: false,
            force: false,
            program: "uext4".into(),
            size: None,
            files: None,
            threads: None,
            depth: None,
            arms: vec![Arm::On, Arm::Off, Arm::Raw],
            kernel: false,
            switches: Switches::ON,
            timing: Timing::new(SECONDS, ROUNDS),
        }
    }
}

impl Settings {
    /// Refuses settings that no scenario can measure.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(BenchError::Usage(why));
        let known = |name: &&String| scenario::names().contains(&name.as_str());
        if let Some(name) = self.scenarios.iter().find(|name| !known(name)) {
            return refuse(format!("no scenario is named {name}"));
        }
        if let Some(arm) = self.arms.iter().find(|arm| !Arm::CHOICES.contains(arm)) {
            return refuse(format!("arm {} belongs to some scenarios and runs with them", arm.name()));
        }
        if self.threads == Some(0) || self.depth == Some(0) {
            return refuse("threads and requests in flight are at least 1".into());
        }
        if self.files.is_some_and(|files| !FILES.contains(&files)) {
            return refuse(format!("files are {} to {}", FILES.start(), FILES.end()));
        }
        if self.kernel && !rustix::process::geteuid().is_root() {
            return refuse("--kernel mounts the device, which needs root".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_short_however_long_it_measures() {
        assert_eq!(Timing::new(2.0, 40), Timing { rounds: 40, slice: 0.05 });
        assert_eq!(Timing::new(10.0, 40), Timing { rounds: 40, slice: 0.25 });
        assert_eq!(Timing::new(60.0, 40), Timing { rounds: 240, slice: 0.25 });
        assert_eq!(Timing::new(0.04, 100), Timing { rounds: 100, slice: 0.001 });
        assert_eq!(Timing::new(f64::NAN, 0), Timing { rounds: 1, slice: 0.001 });
    }

    #[test]
    fn what_nobody_can_measure_is_bad_usage() {
        let base = Settings::default;
        assert!(base().check().is_ok());
        for settings in [
            Settings { scenarios: vec!["made-up".into()], ..base() },
            Settings { files: Some(319), ..base() },
            Settings { arms: vec![Arm::On, Arm::Kernel], ..base() },
            Settings { threads: Some(0), ..base() },
            Settings { depth: Some(0), ..base() },
        ] {
            assert!(matches!(settings.check(), Err(BenchError::Usage(_))), "{settings:?}");
        }
    }
}
