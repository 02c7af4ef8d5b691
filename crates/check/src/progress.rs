//! How far a check is.

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

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current pass.
    pub pass: Pass,
    /// Units of it that are done.
    pub done: u64,
    /// All its units.
    pub total: u64,
}

/// Who is told how far a check is, on the caller's thread.
pub(crate) type ProgressFn<'p> = dyn FnMut(Progress) + 'p;
