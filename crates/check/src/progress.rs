//! Progress of a check.

/// The parts of a check that take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Inode tables and maps; units are groups.
    Inodes,
    /// Directories; units are runs of blocks.
    Directories,
    /// Bitmaps and counts; units are groups.
    Bitmaps,
}

/// Progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current pass.
    pub pass: Pass,
    /// Units of the pass done.
    pub done: u64,
    /// Total units of the pass.
    pub total: u64,
}

/// Receives the progress of a check, on the caller's thread.
pub(crate) type ProgressFn<'p> = dyn FnMut(Progress) + 'p;
