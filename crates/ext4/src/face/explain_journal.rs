//! What a request asks of the journal, beside its plan: handles and commits.

use uext4_iomap::plan::{Durability, JournalWork, Plan, Summary, View};
use uext4_iomap::{MapKind, Range};

/// Handles and commits of a request. On a volume without a journal, steps and batches of changes that go home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalShare {
    /// Handles before the data is sent, at least: an append takes none unless it has to, and a hole that free blocks do
    /// not fill in one run takes more.
    pub handles_before: u32,
    /// Handles when the data is complete, at least: a conversion in several leaves of the map takes more.
    pub handles_after: u32,
    /// Commits.
    pub commits: u32,
}

/// The share of a write that is not refused. `copies`: into mapped memory. `mapping`: a handle is started around the
/// look-up of every write. `times`: the volume writes times.
pub(super) fn share(
    plan: &Plan,
    range: Range,
    view: &View,
    summary: &Summary,
    copies: bool,
    mapping: bool,
    times: bool,
) -> JournalShare {
    let (holes, pointers) = (summary.hole > 0, view.kind == MapKind::Indirect);
    // A file of pointers is among the orphans while data may lie behind its size.
    let block = view.block_size();
    let behind = view.size.div_ceil(block).max(range.pos / block);
    let orphaned = pointers && holes && behind < range.end().div_ceil(block);
    let (handles_before, handles_after) = match plan.journal {
        JournalWork::None | JournalWork::Handle => (0, 0),
        JournalWork::Allocate => (1, 0),
        JournalWork::Convert => (0, 1),
        JournalWork::AllocateConvert => (1, 1),
        // What lies behind the size may get its blocks with the size: least of all, nothing comes before the data.
        // Mapped memory is converted before the copy.
        JournalWork::Extend if !pointers => (u32::from(copies && summary.unwritten > 0), 1),
        JournalWork::Extend => (u32::from(holes) + u32::from(orphaned), 1),
    };
    let changes = !matches!(plan.journal, JournalWork::None | JournalWork::Handle) || plan.drops_privileges;
    let syncs = matches!(plan.durability, Durability::Datasync | Durability::Fsync);
    // What changes nothing else of the inode still changes its times. (Not if the last write was in the same tick.)
    let told = times
        && plan.durability == Durability::Fsync
        && matches!(plan.journal, JournalWork::None | JournalWork::Handle);
    let handles_after = handles_after + u32::from(told);
    let changes = changes || told;
    let handles_before = handles_before + u32::from(mapping) + u32::from(plan.drops_privileges);
    JournalShare {
        handles_before,
        handles_after,
        commits: u32::from(syncs && (changes || view.datasync_dirty)),
    }
}

impl JournalShare {
    /// In words, if there is anything to say.
    pub(super) fn line(&self, journaled: bool) -> Option<String> {
        let JournalShare { handles_before, handles_after, commits } = *self;
        let (handles, commit) = match journaled {
            true => ("handles", "commit"),
            false => ("steps (there is no journal)", "batch of changes that goes home"),
        };
        let parts = [
            (handles_before, "or more before the data"),
            (handles_after, "or more behind it"),
            (commits, commit),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
        (!parts.is_empty()).then(|| format!("{handles}: {}", parts.join(", ")))
    }
}
