//! The journal's share of a request, beside its plan: handles and commits.

use uext4_iomap::plan::{Durability, JournalWork, Plan, Route, Summary, View};
use uext4_iomap::{MapKind, Range};

/// Handles and commits of a request. On a volume without a journal, steps and batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalShare {
    /// Handles before the data is sent, at least: an append and a hole take none unless they have to, and a hole takes
    /// more if no single free run fills it.
    pub handles_before: u32,
    /// Handles after the data is complete, at least: a conversion in several leaves of the map takes more.
    pub handles_after: u32,
    /// Commits.
    pub commits: u32,
}

/// The facts beside its plan that decide a write's share.
pub(super) struct Facts<'a> {
    pub(super) range: Range,
    pub(super) view: &'a View,
    pub(super) summary: &'a Summary,
    /// Bytes of whole blocks zeroed first.
    pub(super) zeroed: u64,
    /// Whether every write starts a handle around the look-up.
    pub(super) mapping: bool,
    /// Whether blocks for its holes are claimed in memory.
    pub(super) claims: bool,
    /// Whether the volume writes times.
    pub(super) times: bool,
}

/// The share of a write that is not refused.
pub(super) fn share(plan: &Plan, facts: &Facts<'_>) -> JournalShare {
    let Facts { range, view, summary, zeroed, mapping, claims, times } = *facts;
    let (holes, pointers) = (summary.hole > 0, view.kind == MapKind::Indirect);
    // Mapped memory before the end is converted before the copy.
    let first = u32::from(plan.route == Route::DaxAllocate && !pointers && zeroed > 0);
    // A file of pointers is an orphan while data may lie past its size.
    let block = view.block_size();
    let behind = view.size.div_ceil(block).max(range.pos / block);
    let orphaned = pointers && holes && behind < range.end().div_ceil(block);
    let (handles_before, handles_after) = match plan.journal {
        JournalWork::None | JournalWork::Handle => (0, 0),
        JournalWork::Allocate => (1, 0),
        JournalWork::Convert => (first, 1 - first),
        JournalWork::AllocateConvert => (u32::from(!claims) + first, 1 - first),
        // Blocks past the size may be mapped along with the new size: then nothing else comes before the data.
        JournalWork::Extend if !pointers => (first, 1),
        JournalWork::Extend => (u32::from(holes) + u32::from(orphaned), 1),
    };
    let overwrites = matches!(plan.journal, JournalWork::None | JournalWork::Handle);
    let syncs = matches!(plan.durability, Durability::Datasync | Durability::Fsync);
    // An overwrite still changes the times. (Not if the last write was in the same tick.)
    let told = times && plan.durability == Durability::Fsync && overwrites;
    let changes = !overwrites || plan.drops_privileges || told;
    JournalShare {
        handles_before: handles_before + u32::from(mapping) + u32::from(plan.drops_privileges),
        handles_after: handles_after + u32::from(told),
        commits: u32::from(syncs && (changes || view.datasync_dirty)),
    }
}

impl JournalShare {
    /// In words, if there is anything to say.
    pub(in crate::face) fn line(&self, journaled: bool) -> Option<String> {
        let JournalShare { handles_before, handles_after, commits } = *self;
        let (handles, commit) = match journaled {
            true => ("handles", "commit"),
            false => ("steps (there is no journal)", "batch of changes written home"),
        };
        let parts = [
            (handles_before, "or more before the data"),
            (handles_after, "or more after it"),
            (commits, commit),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
        (!parts.is_empty()).then(|| format!("{handles}: {}", parts.join(", ")))
    }
}
