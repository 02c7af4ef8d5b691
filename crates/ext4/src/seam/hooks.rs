//! The journal's callbacks into the file system.

use super::Ext4;
use crate::alloc::trim::discard_freed;
use crate::change::fast_commit;
use crate::opening::close;
use std::sync::{Arc, Weak};
use uext4_jbd2::{AbortCause, CommitHooks, FastCommitContents, FastCommitRoom, FreedRun, FullCommit, Tid};

/// The file system, as seen by its journal.
struct Hooks(Weak<Ext4>);

/// Connects the journal, or the batches that replace it, of a volume that is open for writing.
pub(super) fn connect(fs: &Arc<Ext4>) {
    let hooks = Arc::new(Hooks(Arc::downgrade(fs)));
    match (&fs.state.journal, &fs.state.unlogged) {
        (Some(journal), _) => journal.set_hooks(hooks),
        (None, Some(unlogged)) => unlogged.set_hooks(hooks),
        (None, None) => {}
    }
}

impl CommitHooks for Hooks {
    fn log_begins(&self) -> Result<(), AbortCause> {
        let gone = || AbortCause { what: "the volume is closed".into(), errno: libc::EIO };
        let fs = self.0.upgrade().ok_or_else(gone)?;
        close::log_begins(&fs.state).map_err(|error| AbortCause {
            what: format!("the superblock could not be marked (in use): {error}").into(),
            errno: error.errno(),
        })
    }

    fn describe(&self, room: &FastCommitRoom) -> FastCommitContents {
        let full = FastCommitContents::Full(FullCommit::File);
        self.0.upgrade().map_or(full, |fs| fast_commit::describe(&fs.state, room))
    }

    fn committed(&self, _tid: Tid, freed: &[FreedRun]) {
        if let Some(fs) = self.0.upgrade() {
            if fs.state.discards {
                discard_freed(&fs.state, freed.iter().map(|run| (run.first, run.blocks)));
            }
            fs.space.release(freed.iter().map(|run| (run.first, run.blocks)));
        }
    }

    fn aborted(&self, cause: &AbortCause) {
        if let Some(fs) = self.0.upgrade() {
            fs.note_abort(&cause.what);
        }
    }
}
