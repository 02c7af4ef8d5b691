//! Options of a check.

/// Maximum threads of a check.
pub const THREADS_MAX: u32 = 64;

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    pub(crate) threads: u32,
    pub(crate) per_kind: usize,
    pub(crate) contents: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        CheckOptions { threads: processors.min(2), per_kind: 100, contents: false }
    }
}

impl CheckOptions {
    /// Two threads (one on a machine of one processor), 100 findings of each kind, no contents.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of threads, including the caller's (1 ..= [`THREADS_MAX`]). They end with the call.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = threads.clamp(1, THREADS_MAX);
        self
    }

    /// Findings kept of each kind; further ones are only counted.
    #[must_use]
    pub fn per_kind(mut self, findings: usize) -> Self {
        self.per_kind = findings;
        self
    }

    /// Whether to read the contents of files that fs-verity seals, and compare them with their hashes.
    #[must_use]
    pub fn contents(mut self, compare: bool) -> Self {
        self.contents = compare;
        self
    }
}
