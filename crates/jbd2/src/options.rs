//! How a journal is opened.

/// Format of the log once it is written, and the time in it. The default keeps the present format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalOptions {
    /// Block numbers of 64 bits, as on volumes with the feature `64bit`. Volumes that need them get them anyway.
    pub wide: bool,
    /// Checksums of version 3, as on volumes with `metadata_csum`.
    pub checksums: bool,
    /// An area for fast commits ([`crate::Journal::sync`]), if the log is long enough.
    pub fast_commits: bool,
    /// The time in commit blocks, in seconds and nanoseconds since 1970; the system's by default.
    pub time: Option<(u64, u32)>,
}
