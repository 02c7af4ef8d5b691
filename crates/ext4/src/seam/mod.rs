//! The file system as the direct-I/O engine sees it.

use crate::ground::error::{Error, Result};
use crate::inline;
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::map;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4_iomap::switches::Routing;
use uext4_iomap::{Count, FileSystem, InodeState, MapSnapshot, Piece, Synced};

/// The file system half of an open volume.
pub struct Ext4 {
    pub(crate) state: Ext4State,
    aborted: AtomicBool,
    cause: OnceLock<Arc<str>>,
}

impl Ext4 {
    pub(crate) fn new(state: Ext4State) -> Self {
        Ext4 { state, aborted: AtomicBool::new(false), cause: OnceLock::new() }
    }

    /// File-system block size in bytes.
    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.state.cache.block_size())
    }

    #[cold]
    fn abort_error(&self) -> Error {
        Error::Aborted(self.cause.get().cloned().unwrap_or_else(|| "an earlier failure".into()))
    }
}

impl FileSystem for Ext4 {
    type Inode = Inode;
    type Error = Error;

    #[inline]
    fn state(inode: &Inode) -> &InodeState {
        &inode.state
    }

    #[inline(always)]
    fn check_alive(&self) -> Result<()> {
        if self.aborted.load(Ordering::Relaxed) { Err(self.abort_error()) } else { Ok(()) }
    }

    fn abort(&self, cause: uext4_iomap::Error) {
        let text: Arc<str> = cause.to_string().into();
        // The first cause stays: it explains the later ones.
        let _first_wins = self.cause.set(text.clone());
        self.aborted.store(true, Ordering::SeqCst);
        if let Some(journal) = &self.state.journal {
            journal.abort(uext4_jbd2::AbortCause { what: text.to_string().into(), errno: cause.errno() });
        }
    }

    fn map(&self, inode: &Inode, pos: u64) -> Result<Arc<MapSnapshot>> {
        map::load(&self.state, inode, pos)
    }

    fn inline_piece(&self, inode: &Inode) -> Result<Piece> {
        inline::piece(&self.state, inode)
    }

    fn read_inline(&self, inode: &Inode, buf: &mut [u8], pos: u64) -> Result<()> {
        inline::read(&self.state, inode, buf, pos)
    }

    fn check_allocates(&self, inode: &Inode, needs: uext4_iomap::Error) -> Result<()> {
        Err(if inode.is_inline() { inline::refuse_write(inode) } else { needs.into() })
    }

    fn has_journal(&self) -> bool {
        self.state.superblock.journal_inode().is_some()
    }

    type Handle<'a> = uext4_jbd2::Handle<'a>;

    #[inline(always)]
    fn start_mapping<R: Routing>(
        &self,
        routing: R,
        counters: &impl Count,
    ) -> Result<Option<Self::Handle<'_>>> {
        map::overwrite::start(self.state.journal.as_ref(), routing, counters)
    }

    fn stop_mapping(&self, handle: Self::Handle<'_>) -> Result<()> {
        Ok(handle.stop()?)
    }

    // No write changes a map or a size yet: what is not a pure overwrite is refused.
    type Reserve = ();
    type Extension = ();

    fn datasync(&self, batch: &[Synced<'_, Self>]) -> Result<bool> {
        // Nothing dirties metadata yet, so there is nothing to commit. If an inode disagrees, its transaction is
        // committed.
        if let Some(journal) = &self.state.journal {
            let tid = |synced: &Synced<'_, Self>| {
                let inode = &synced.inode.state;
                if synced.all { inode.sync_tid() } else { inode.datasync_tid() }
            };
            // A commit of the newest transaction covers the older ones.
            if let Some(tid) = batch.iter().filter_map(tid).max() {
                journal.datasync(uext4_jbd2::Tid(tid))?;
            }
        }
        Ok(false)
    }
}
