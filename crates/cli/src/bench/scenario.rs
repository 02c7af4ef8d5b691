//! The table of scenarios: what is requested, how, where.
//!
//! | scenario | after | standard device |
//! |---|---|---|
//! | `overwrite-randrw` | random file choice, 16 synchronous jobs | zram (root), else a tmpfs file |
//! | `overwrite-randrw-dax` | the same on mapped memory | `dax:` tmpfs file |
//! | `dax-shared-read`, `dax-shared-readwrite` | many threads, two files, more than the L3 cache | the same |
//! | `dsync-overwrite` | sequential O_DSYNC overwrites of 32 MiB | `mem:`, volatile cache, 2 ms a flush |
//! | `randread-poll` | one core, batches of 32 | loop over tmpfs (root), else a tmpfs file |
//! | `subblock-overwrite` | 2 KiB in 4 KiB blocks, 8 × 256 | loop over tmpfs; `mem:`, 740 µs a request |
//! | `seq-read` | 1 MiB reads | loop over tmpfs (root), else a tmpfs file |
//! | `lookup-scaling` | 4 KiB reads of a file of 10⁶ extents against one extent | tmpfs file, sparse |

use crate::bench::volume::Place;

/// Who makes the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Blocking calls: `File::read_at`, `File::write_at`.
    Synchronous,
    /// A queue per thread.
    Queued {
        /// Requests between two submissions, and completions waited for at once.
        batch: usize,
        /// Owner-driven, polled where the device can.
        poll: bool,
    },
}

/// What is measured.
#[derive(Debug)]
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// The switch it shows; `None`: all.
    pub switch: Option<&'static str>,
    /// Bytes of a request.
    pub block: u32,
    /// Writes among the requests, percent.
    pub write_percent: u8,
    /// One after another instead of anywhere.
    pub sequential: bool,
    /// Writes are durable when they complete.
    pub dsync: bool,
    /// Threads.
    pub threads: usize,
    /// How requests are made.
    pub mode: Mode,
    /// Requests in flight per thread; one measurement for each.
    pub depths: &'static [u32],
    /// Files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// At least twice the L3 cache, so that the caches of the processor do not serve it.
    pub beyond_cache: bool,
    /// Where, if no device is given.
    pub places: &'static [Place],
}

const MIB: u64 = 1 << 20;
const SYNCHRONOUS: &[u32] = &[1];

const OVERWRITE: Scenario = Scenario {
    name: "overwrite-randrw",
    switch: Some("overwrite-no-transaction"),
    block: 4096,
    write_percent: 50,
    sequential: false,
    dsync: false,
    threads: 16,
    mode: Mode::Synchronous,
    depths: SYNCHRONOUS,
    files: 32,
    bytes: 256 * MIB,
    beyond_cache: false,
    places: &[Place::Zram],
};

const DAX_SHARED: Scenario = Scenario {
    name: "dax-shared-read",
    switch: Some("dax-no-dio-count"),
    write_percent: 0,
    files: 2,
    bytes: 128 * MIB,
    beyond_cache: true,
    places: &[Place::Dax],
    ..OVERWRITE
};

const RANDREAD: Scenario = Scenario {
    name: "randread-poll",
    switch: Some("simple-read"),
    block: 4096,
    write_percent: 0,
    sequential: false,
    dsync: false,
    threads: 1,
    mode: Mode::Queued { batch: 32, poll: true },
    depths: &[1, 128, 256, 512],
    files: 1,
    bytes: 256 * MIB,
    beyond_cache: false,
    places: &[Place::Loop],
};

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    OVERWRITE,
    Scenario { name: "overwrite-randrw-dax", places: &[Place::Dax], ..OVERWRITE },
    DAX_SHARED,
    Scenario { name: "dax-shared-readwrite", write_percent: 50, ..DAX_SHARED },
    Scenario {
        name: "dsync-overwrite",
        switch: Some("fua-dsync-overwrite"),
        write_percent: 100,
        sequential: true,
        dsync: true,
        mode: Mode::Queued { batch: 8, poll: false },
        depths: &[32],
        bytes: 32 * MIB,
        places: &[Place::MemoryFlush],
        ..RANDREAD
    },
    RANDREAD,
    Scenario {
        name: "subblock-overwrite",
        switch: Some("shared-subblock-overwrite"),
        block: 2048,
        write_percent: 100,
        threads: 8,
        mode: Mode::Queued { batch: 32, poll: false },
        depths: &[256],
        bytes: 128 * MIB,
        places: &[Place::Loop, Place::MemoryLatency],
        ..RANDREAD
    },
    Scenario {
        name: "seq-read",
        switch: None,
        block: 1 << 20,
        sequential: true,
        mode: Mode::Queued { batch: 1, poll: false },
        depths: &[4],
        ..RANDREAD
    },
    Scenario {
        name: LOOKUP_SCALING,
        switch: None,
        mode: Mode::Synchronous,
        depths: SYNCHRONOUS,
        places: &[Place::Extents],
        ..RANDREAD
    },
];

/// The scenario whose volume cannot be made by copying files into it.
pub const LOOKUP_SCALING: &str = "lookup-scaling";

/// Names in the order of [`SCENARIOS`].
pub const NAMES: [&str; SCENARIOS.len()] = {
    let mut names = [""; SCENARIOS.len()];
    let mut index = 0;
    while index < SCENARIOS.len() {
        names[index] = SCENARIOS[index].name;
        index += 1;
    }
    names
};

/// By name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

impl Scenario {
    /// Whether it needs mapped memory.
    pub fn is_dax(&self) -> bool {
        self.places.contains(&Place::Dax)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4::SWITCH_NAMES;

    #[test]
    fn names_are_unique_and_switches_exist() {
        for (index, scenario) in SCENARIOS.iter().enumerate() {
            assert!(!NAMES[..index].contains(&scenario.name), "{}", scenario.name);
            assert!(scenario.switch.is_none_or(|name| SWITCH_NAMES.contains(&name)), "{}", scenario.name);
            assert!(scenario.bytes.is_multiple_of(scenario.files as u64 * u64::from(scenario.block)));
            assert_eq!(scenario.mode == Mode::Synchronous, scenario.depths == [1] && scenario.block == 4096);
            assert_eq!(find(scenario.name).map(|found| found.name), Some(scenario.name));
        }
        for later in ["seq-write", "append", "fsync", "metadata"] {
            assert!(find(later).is_none());
        }
    }
}
