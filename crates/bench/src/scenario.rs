//! The table of scenarios: what is requested, how, where.
//!
//! | scenario | after | standard device |
//! |---|---|---|
//! | `overwrite-randrw` | random file choice, 16 synchronous jobs | zram (root), else a tmpfs file |
//! | `overwrite-randrw-dax` | the same on mapped memory | `dax:` tmpfs file |
//! | `dax-shared-read`, `dax-shared-readwrite` | many threads, two files, more than the L3 cache | the same |
//! | `dsync-overwrite` | sequential O_DSYNC overwrites of 32 MiB | `mem:`, volatile cache, 2 ms a flush |
//! | the same, `one-at-a-time` | one thread, blocking calls | `mem:` with the times of the seed's disk |
//! | the same, `mixed` | two threads of plain writes beside it | the same, a cache that takes time to flush |
//! | the same, `1-thread`, `4-threads`, `16-threads` | blocking calls that share flushes | loop over tmpfs |
//! | `randread-poll` | one core, batches of 32 | loop over tmpfs (root), else a tmpfs file |
//! | the same, `no-device` | a device that completes at once and transfers no data | `null:` |
//! | the same, `no-nowait` | a queue where a ring would need worker threads | zram (root), else a tmpfs file |
//! | `subblock-overwrite` | 2 KiB in 4 KiB blocks, 8 × 256 | loop over tmpfs; `mem:`, 740 µs a request |
//! | the same, `sequential` | all threads from offset 0, so that they meet in the same blocks | the same |
//! | `seq-read` | 1 MiB reads | loop over tmpfs (root), else a tmpfs file |
//! | `append` | 4 KiB appended to an empty file | loop over tmpfs (root), else a tmpfs file; `mem:` |
//! | the same, `8-threads` | a file each | the same |
//! | the same, `durable` | with `O_DSYNC` | loop over tmpfs |
//! | `seq-write` | 1 MiB appended to an empty file | the same |
//! | `fsync`, `8-threads`, `1-thread` | an `fsync` after each append | `mem:`, 500 µs a flush; loop over tmpfs |
//! | `first-write` | random 4 KiB into unwritten blocks, each once | loop over tmpfs (root), else a tmpfs file |
//! | the same, `16-threads` | 16 synchronous jobs, 32 files | zram (root), else a tmpfs file |
//! | `lookup-scaling` | 4 KiB reads of a file of 10⁶ extents against one extent | tmpfs file, sparse |
//!
//! `metadata`, of which names and no requests to open files are the work, is in the module of that name.

use crate::arm::Arm;
use crate::metadata::METADATA;
use crate::volume::Standard;

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

/// The order of request positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Anywhere.
    Random,
    /// Sequential; each thread starts at a different offset.
    Sequential,
    /// Sequential; every thread starts at the first byte, so that all meet in the same blocks.
    Together,
    /// Sequential from the first byte on; each thread has its own file.
    Append,
    /// Anywhere, but every block of all files once.
    Once,
}

impl Order {
    /// No byte is requested twice.
    pub fn is_once(self) -> bool {
        matches!(self, Order::Append | Order::Once)
    }
}

/// What the files are before each slice. None of these is part of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// Empty.
    Empty,
    /// As long as ever, and unwritten from end to end.
    Unwritten,
}

/// What is measured.
#[derive(Debug)]
pub struct Scenario {
    /// Name on the command line; several shapes of a scenario share it.
    pub name: &'static str,
    /// Which of them; `None`: the only or first one.
    pub shape: Option<&'static str>,
    /// The switch it shows; `None`: all.
    pub switch: Option<&'static str>,
    /// Bytes of a request.
    pub block: u32,
    /// Writes among the requests, percent.
    pub write_percent: u8,
    /// Where requests lie.
    pub order: Order,
    /// Writes are durable when they complete.
    pub dsync: bool,
    /// Each write is followed by an `fsync`, which is part of it.
    pub fsync: bool,
    /// What the files are before each slice; `None`: written, as all slices leave them.
    pub renewed: Option<Renewed>,
    /// Threads.
    pub threads: usize,
    /// Further threads that write without `dsync` meanwhile. Their requests are no part of any rate. Only
    /// with blocking calls.
    pub beside: usize,
    /// An arm of this scenario's own.
    pub reference: Option<Arm>,
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
    pub standards: &'static [Standard],
}

const MIB: u64 = 1 << 20;
const SYNCHRONOUS: &[u32] = &[1];

const OVERWRITE: Scenario = Scenario {
    name: "overwrite-randrw",
    switch: Some("overwrite-no-transaction"),
    block: 4096,
    shape: None,
    write_percent: 50,
    order: Order::Random,
    dsync: false,
    fsync: false,
    renewed: None,
    threads: 16,
    beside: 0,
    reference: None,
    mode: Mode::Synchronous,
    depths: SYNCHRONOUS,
    files: 32,
    bytes: 256 * MIB,
    beyond_cache: false,
    standards: &[Standard::Zram],
};

const DAX_SHARED: Scenario = Scenario {
    name: "dax-shared-read",
    switch: Some("dax-no-dio-count"),
    write_percent: 0,
    files: 2,
    bytes: 128 * MIB,
    beyond_cache: true,
    standards: &[Standard::Dax],
    ..OVERWRITE
};

const RANDREAD: Scenario = Scenario {
    name: "randread-poll",
    switch: Some("simple-read"),
    write_percent: 0,
    threads: 1,
    mode: Mode::Queued { batch: 32, poll: true },
    depths: &[1, 128, 256, 512],
    files: 1,
    standards: &[Standard::Loop],
    ..OVERWRITE
};

const DSYNC: Scenario = Scenario {
    name: "dsync-overwrite",
    switch: Some("fua-dsync-overwrite"),
    write_percent: 100,
    order: Order::Sequential,
    dsync: true,
    mode: Mode::Queued { batch: 8, poll: false },
    depths: &[32],
    bytes: 32 * MIB,
    standards: &[Standard::MemoryFlush],
    ..RANDREAD
};

/// As `pwrite -D` of xfs_io does it.
const DSYNC_ALONE: Scenario = Scenario {
    shape: Some(ALONE),
    mode: Mode::Synchronous,
    depths: SYNCHRONOUS,
    reference: Some(Arm::NoDsync),
    standards: &[Standard::MemoryDisk],
    ..DSYNC
};

/// By blocking calls of many threads, on a device whose flushes they have to share.
const DSYNC_SHARED: Scenario = Scenario {
    shape: Some(SHARED[0]),
    switch: None,
    order: Order::Random,
    files: 16,
    reference: None,
    standards: &[Standard::Loop],
    ..DSYNC_ALONE
};

const SUBBLOCK: Scenario = Scenario {
    name: "subblock-overwrite",
    switch: Some("shared-subblock-overwrite"),
    block: 2048,
    write_percent: 100,
    threads: 8,
    mode: Mode::Queued { batch: 32, poll: false },
    depths: &[256],
    bytes: 128 * MIB,
    standards: &[Standard::Loop, Standard::MemoryLatency],
    ..RANDREAD
};

const APPEND: Scenario = Scenario {
    name: "append",
    switch: None,
    write_percent: 100,
    order: Order::Append,
    renewed: Some(Renewed::Empty),
    threads: 1,
    files: 1,
    standards: &[Standard::Loop, Standard::MemoryFsync],
    ..OVERWRITE
};

const FSYNC: Scenario = Scenario {
    name: "fsync",
    fsync: true,
    threads: 8,
    files: 8,
    standards: &[Standard::MemoryFsync, Standard::Loop],
    ..APPEND
};

const FIRST_WRITE: Scenario = Scenario {
    name: "first-write",
    switch: None,
    write_percent: 100,
    order: Order::Once,
    renewed: Some(Renewed::Unwritten),
    depths: &[32],
    ..RANDREAD
};

/// Shapes.
pub const ALONE: &str = "one-at-a-time";
/// With 1, 4 and 16 threads.
pub const SHARED: [&str; 3] = ["1-thread", "4-threads", "16-threads"];
/// See [`ALONE`].
pub const EIGHT: &str = "8-threads";
/// See [`ALONE`].
pub const DURABLE: &str = "durable";
/// See [`ALONE`].
pub const MIXED: &str = "mixed";
/// See [`ALONE`].
pub const NO_DEVICE: &str = "no-device";
/// See [`ALONE`].
pub const NO_NOWAIT: &str = "no-nowait";
/// See [`ALONE`].
pub const SEQUENTIAL: &str = "sequential";

/// Every scenario in all its shapes; those of one name follow each other.
pub const SCENARIOS: &[Scenario] = &[
    OVERWRITE,
    Scenario { name: "overwrite-randrw-dax", standards: &[Standard::Dax], ..OVERWRITE },
    DAX_SHARED,
    Scenario { name: "dax-shared-readwrite", write_percent: 50, ..DAX_SHARED },
    DSYNC,
    DSYNC_ALONE,
    Scenario { shape: Some(MIXED), beside: 2, standards: &[Standard::MemoryCache], ..DSYNC_ALONE },
    DSYNC_SHARED,
    Scenario { shape: Some(SHARED[1]), threads: 4, ..DSYNC_SHARED },
    Scenario { shape: Some(SHARED[2]), threads: 16, ..DSYNC_SHARED },
    RANDREAD,
    Scenario {
        shape: Some(NO_DEVICE),
        mode: Mode::Queued { batch: 32, poll: false },
        depths: &[128],
        bytes: 64 * MIB,
        standards: &[Standard::Null],
        ..RANDREAD
    },
    Scenario {
        shape: Some(NO_NOWAIT),
        mode: Mode::Queued { batch: 32, poll: false },
        depths: &[1, 128],
        standards: &[Standard::Zram],
        ..RANDREAD
    },
    SUBBLOCK,
    Scenario { shape: Some(SEQUENTIAL), order: Order::Together, ..SUBBLOCK },
    Scenario {
        name: "seq-read",
        switch: None,
        block: 1 << 20,
        order: Order::Sequential,
        mode: Mode::Queued { batch: 1, poll: false },
        depths: &[4],
        ..RANDREAD
    },
    APPEND,
    Scenario { shape: Some(EIGHT), threads: 8, files: 8, ..APPEND },
    Scenario { shape: Some(DURABLE), dsync: true, standards: &[Standard::Loop], ..APPEND },
    Scenario { name: "seq-write", block: 1 << 20, standards: &[Standard::Loop], ..APPEND },
    FSYNC,
    Scenario { shape: Some(SHARED[0]), threads: 1, files: 1, ..FSYNC },
    Scenario { mode: Mode::Queued { batch: 32, poll: false }, ..FIRST_WRITE },
    Scenario {
        shape: Some(SHARED[2]),
        mode: Mode::Synchronous,
        depths: SYNCHRONOUS,
        threads: 16,
        files: 32,
        standards: &[Standard::Zram],
        ..FIRST_WRITE
    },
    Scenario {
        name: LOOKUP_SCALING,
        switch: None,
        mode: Mode::Synchronous,
        depths: SYNCHRONOUS,
        reference: Some(Arm::OneExtent),
        standards: &[Standard::Extents],
        ..RANDREAD
    },
];

/// The scenario whose volume cannot be made by copying files into it.
pub const LOOKUP_SCALING: &str = "lookup-scaling";

/// Names of all scenarios, each once.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
    names.dedup();
    names.push(METADATA);
    names
}

/// By name and shape.
pub fn find(name: &str, shape: Option<&str>) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name && scenario.shape == shape)
}

impl Scenario {
    /// Name and shape, for people.
    pub fn title(&self) -> String {
        title(self.name, self.shape)
    }

    /// Whether it needs mapped memory.
    pub fn is_dax(&self) -> bool {
        self.standards.contains(&Standard::Dax)
    }
}

/// Name and shape, for people.
pub fn title(name: &str, shape: Option<&str>) -> String {
    shape.map_or_else(|| name.to_owned(), |shape| format!("{name}, {shape}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4::SWITCH_NAMES;

    #[test]
    fn names_are_unique_and_switches_exist() {
        let listed = SCENARIOS.iter().filter(|scenario| scenario.shape.is_none()).count();
        assert_eq!(names().len(), listed + 1, "metadata is none of requests to files");
        for (index, scenario) in SCENARIOS.iter().enumerate() {
            let same = |other: &&Scenario| (other.name, other.shape) == (scenario.name, scenario.shape);
            assert!(!SCENARIOS[..index].iter().any(|other| same(&other)), "{}", scenario.title());
            assert_eq!(names().iter().filter(|&&name| name == scenario.name).count(), 1);
            assert!(scenario.beside == 0 || scenario.mode == Mode::Synchronous);
            assert!(scenario.switch.is_none_or(|name| SWITCH_NAMES.contains(&name)), "{}", scenario.name);
            assert!(scenario.bytes.is_multiple_of(scenario.files as u64 * u64::from(scenario.block)));
            assert!(scenario.mode != Mode::Synchronous || scenario.depths == [1]);
            assert!(!scenario.fsync || scenario.mode == Mode::Synchronous);
            assert_eq!(
                scenario.renewed.is_some(),
                scenario.order.is_once(),
                "what is written twice is no first write"
            );
            assert!(scenario.order != Order::Append || scenario.threads == scenario.files);
            let found = find(scenario.name, scenario.shape).unwrap();
            assert_eq!((found.name, found.shape), (scenario.name, scenario.shape));
        }
        assert!(find("made-up", None).is_none(), "there is none of that name");
    }
}
