//! Load from other processes: a measurement beside other work is slower and less certain.
//!
//! The kernel counts the time of all processes in user mode (`/proc/stat`), whatever namespace they are in; what
//! this process and its children took of it is taken off. Time in the kernel is left out: that of loop devices
//! and zram is our own doing. A host that gives the processors of a virtual machine to others shows as stolen.

use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{Duration, Instant};

/// Processors that others may use without a warning. The kernel counts in ticks, so less is noise.
const BUSY: f64 = 0.15;

/// Processor use by others during a measurement: 1.0 is one processor all the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Other processes, in user mode.
    pub others: f64,
    /// Other guests of the host.
    pub stolen: f64,
}

impl Load {
    /// A warning, if the load is enough to spoil a measurement.
    pub fn warning(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.others >= BUSY {
            parts.push(format!("other processes took {:.1} processors", self.others));
        }
        if self.stolen >= BUSY {
            parts.push(format!("the host took {:.1} processors away", self.stolen));
        }
        (!parts.is_empty()).then(|| format!("busy machine: {}", parts.join(", ")))
    }
}

/// A snapshot of the counts. Missing counts (no `/proc`) mean no load.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    at: Instant,
    ticks: Option<Ticks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    /// All processes in user mode.
    user: u64,
    stolen: u64,
    /// This process and its children that ended, in user mode.
    own: u64,
}

impl Meter {
    /// Now.
    pub fn start() -> Self {
        let read = |path| fs::read_to_string(path).ok();
        let ticks = read("/proc/stat").zip(read("/proc/self/stat"));
        Meter { at: Instant::now(), ticks: ticks.and_then(|(all, own)| ticks_of(&all, &own)) }
    }

    /// Use by others since then.
    pub fn load(&self) -> Option<Load> {
        let now = Meter::start();
        let per_second = rustix::param::clock_ticks_per_second();
        between(self.ticks?, now.ticks?, now.at - self.at, per_second)
    }
}

/// Samples the use by others for 250 ms.
pub fn now() -> Option<Load> {
    let meter = Meter::start();
    std::thread::sleep(Duration::from_millis(250));
    meter.load()
}

fn between(before: Ticks, after: Ticks, time: Duration, per_second: u64) -> Option<Load> {
    let whole = time.as_secs_f64() * per_second as f64;
    if whole < 1.0 {
        return None;
    }
    let own = after.own.saturating_sub(before.own);
    let others = after.user.saturating_sub(before.user).saturating_sub(own);
    let stolen = after.stolen.saturating_sub(before.stolen);
    Some(Load { others: others as f64 / whole, stolen: stolen as f64 / whole })
}

/// From `/proc/stat` and `/proc/self/stat`, whose columns proc(5) names.
fn ticks_of(all: &str, own: &str) -> Option<Ticks> {
    let columns = all.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let columns: Vec<u64> = columns.split_whitespace().map_while(|column| column.parse().ok()).collect();
    // The name of a program may contain anything, even parentheses.
    let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
    // user and nice; the eighth is stolen. utime is column 14 of the line, the twelfth behind the name; cutime
    // is two further.
    let own = own.get(11)?.parse::<u64>().ok()? + own.get(13)?.parse::<u64>().ok()?;
    Some(Ticks { user: columns.first()? + columns.get(1)?, stolen: *columns.get(7)?, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_their_columns() {
        let all = "cpu  100 20 30 4000 5 6 7 8 9 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        let own = "42 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 1400 15 1600 17 18\n";
        assert_eq!(ticks_of(all, own), Some(Ticks { user: 120, stolen: 8, own: 3000 }));
        assert_eq!(ticks_of("", own), None);
        assert_eq!(ticks_of(all, "42 (x) R 1"), None);
    }

    #[test]
    fn what_this_process_took_is_not_of_others() {
        let before = Ticks { user: 1000, stolen: 10, own: 500 };
        let after = Ticks { user: 1300, stolen: 20, own: 600 };
        let load = between(before, after, Duration::from_secs(1), 100).unwrap();
        assert_eq!(load, Load { others: 2.0, stolen: 0.1 });
        let quiet = Ticks { user: 1100, own: 610, ..before };
        let load = between(before, quiet, Duration::from_secs(1), 100).unwrap();
        assert_eq!(load, Load { others: 0.0, stolen: 0.0 }, "counts that disagree by some ticks");
        assert_eq!(between(before, after, Duration::from_millis(5), 100), None, "less than a tick");
    }

    #[test]
    fn a_quiet_machine_is_no_warning() {
        assert_eq!(Load { others: 0.1, stolen: 0.0 }.warning(), None);
        let warning = Load { others: 1.25, stolen: 0.0 }.warning().unwrap();
        assert!(warning.contains("1.2 processors") && !warning.contains("host"), "{warning}");
        assert!(Load { others: 0.0, stolen: 0.5 }.warning().unwrap().contains("host"));
    }

    #[test]
    fn work_of_this_process_is_its_own_and_that_of_a_child_is_not() {
        let spin = "while :; do :; done";
        let meter = Meter::start();
        let mut child = std::process::Command::new("sh").args(["-c", spin]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        // Before it is waited for, a child is another process.
        let busy = meter.load().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(busy.others > BUSY, "{busy:?}");
    }
}
