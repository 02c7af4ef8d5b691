//! Claims: blocks reserved in memory for a file before any bitmap marks them used.
//!
//! An append writes its data into blocks that are free on the volume and claimed in memory. When the data is complete,
//! one handle marks them used, maps them and sets the size. A crash before that leaves free blocks with other contents,
//! and nothing else: no orphan, no unwritten extent to convert.
//!
//! A growing file also gets a *window*: blocks after its last ones, claimed for its next appends, as many as it already
//! has (a short first write gets none). So files that grow side by side stay contiguous, and most appends need no
//! search. Windows exist in memory only. They are released when the file is closed, when others find no room, and when
//! there are many. So small files that are made one after another lie side by side, and a search for blocks finds no
//! holes between them.

use super::search::{self, Run, Wish};
use super::shared::{Account, FreeSpace, Groups};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4_ondisk::{Ino, Pblk};

/// Most runs of a claim for the end of a file: one handle marks and maps them all.
pub(crate) const RUNS: usize = 8;
/// Bytes of a window.
const WINDOW: std::ops::RangeInclusive<u64> = 64 << 10..=8 << 20;
/// A window takes at most one part in this many of the available blocks.
const PART: u64 = 16;
/// Most windows of a volume.
const WINDOWS: usize = 256;

/// Blocks after the last ones of a file.
#[derive(Debug)]
pub(super) struct Preallocation {
    /// The logical block that its first block is meant for.
    logical: u64,
    run: Run,
}

impl Preallocation {
    pub(super) fn blocks(&self) -> u64 {
        self.run.count
    }
}

/// Windows by file.
pub(super) type Windows = BTreeMap<Ino, Preallocation>;

/// Claimed blocks for a hole of a file. Dropping it releases those not yet taken.
pub(crate) struct Claim {
    space: Arc<FreeSpace>,
    ino: Ino,
    runs: Vec<Run>,
    /// How many blocks had been promised to pages of the file.
    promised: u64,
    /// How many of the runs are marked used.
    taken: usize,
}

/// A request for a claim.
pub(crate) struct Ask {
    pub(crate) ino: Ino,
    /// The first block of the hole, and how many it has.
    pub(crate) logical: u64,
    pub(crate) count: u64,
    /// Preferred first block, if there is no window.
    pub(crate) goal: Pblk,
    /// Block numbers must be below this.
    pub(crate) limit: u64,
    /// The blocks may be for any part of the file. They are not taken from its preallocation window, which is for the
    /// end. They come in one run if there is one that is long enough, else in as many runs as it takes.
    pub(crate) apart: bool,
}

impl Claim {
    /// The runs, in the order of the hole.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The next run to mark used.
    pub(crate) fn next(&self) -> Option<Run> {
        self.runs.get(self.taken).copied()
    }

    /// Marks it used in the bitmap.
    ///
    /// # Errors
    /// As of [`search::mark_claimed`].
    pub(crate) fn take_next(&mut self, blocks: &mut impl Blocks) -> Result<Run> {
        let run = self.next().ok_or(Error::NoSpace)?;
        {
            let _groups = self.space.groups.lock();
            search::mark_claimed(blocks, run)?;
        }
        self.space.lock().took_claimed(blocks.ground(), run);
        self.taken += 1;
        Ok(run)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.taken < self.runs.len() {
            let mut account = self.space.lock();
            let left = &self.runs[self.taken..];
            left.iter().for_each(|run| account.unclaim(*run));
            // The pages are still to go home, and nobody else may have their blocks until then.
            account.promise_again(self.ino, self.promised.min(left.iter().map(|run| run.count).sum()));
        }
    }
}

impl FreeSpace {
    /// Claims blocks for a file. Volumes with clusters have no claims.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there are too few blocks, or, for the end of a file, if they lie in more than [`RUNS`]
    /// runs; those of reading the groups.
    pub(crate) fn claim(self: &Arc<Self>, blocks: &impl Blocks, ask: &Ask) -> Result<Claim> {
        let (space, ino) = (Arc::clone(self), ask.ino);
        let mut claim = Claim { space, ino, runs: Vec::new(), promised: 0, taken: 0 };
        let mut account = self.lock();
        let before = account.late_of(Some(ino));
        let done = match ask.apart {
            true => account.claim_apart(blocks, &self.groups, ask, &mut claim.runs),
            false => account.claim(blocks, &self.groups, ask, &mut claim.runs),
        };
        claim.promised = before - account.late_of(Some(ino));
        // Dropping a claim takes the lock.
        drop(account);
        done.map(|()| claim)
    }

    /// Releases the window of a file, if it has one.
    pub(crate) fn close_window(&self, ino: Ino) {
        let mut account = self.lock();
        if let Some(window) = account.windows().remove(&ino) {
            account.unclaim(window.run);
        }
    }

    /// Releases all windows. Returns whether there were any.
    pub(crate) fn close_windows(&self) -> bool {
        let mut account = self.lock();
        let windows = std::mem::take(account.windows());
        let any = !windows.is_empty();
        windows.into_values().for_each(|window| account.unclaim(window.run));
        any
    }
}

impl Account {
    fn claim(&mut self, blocks: &impl Blocks, groups: &Groups, ask: &Ask, runs: &mut Vec<Run>) -> Result<()> {
        let mut left = ask.count;
        if let Some(mut window) = self.windows().remove(&ask.ino) {
            if window.logical == ask.logical {
                let count = left.min(window.run.count);
                self.spend(ask.ino, count);
                runs.push(Run { first: window.run.first, count });
                left -= count;
                window.run =
                    Run { first: Pblk(window.run.first.get() + count), count: window.run.count - count };
                window.logical += count;
            }
            match window.run.count {
                0 => {}
                _ if left == 0 => drop(self.windows().insert(ask.ino, window)),
                _ => self.unclaim(window.run),
            }
        }
        let _groups = (left > 0).then(|| groups.lock());
        let mut goal = runs.last().map_or(ask.goal, |run| Pblk(run.first.get() + run.count));
        while left > 0 {
            let available = self.available_for_data(blocks.ground(), Some(ask.ino));
            if runs.len() == RUNS || available < left {
                return Err(Error::NoSpace);
            }
            let extra = window_blocks(blocks.ground(), ask).min(available / PART);
            let most = left.saturating_add(extra).min(available);
            let run = self.claim_run(blocks, &Wish { goal, least: 1, most, limit: ask.limit })?;
            let count = left.min(run.count);
            self.spend(ask.ino, count);
            runs.push(Run { first: run.first, count });
            left -= count;
            goal = Pblk(run.first.get() + run.count);
            if run.count > count {
                let rest = Run { first: Pblk(run.first.get() + count), count: run.count - count };
                self.open_window(ask.ino, Preallocation { logical: ask.logical + ask.count, run: rest });
            }
        }
        Ok(())
    }

    fn claim_apart(
        &mut self,
        blocks: &impl Blocks,
        groups: &Groups,
        ask: &Ask,
        runs: &mut Vec<Run>,
    ) -> Result<()> {
        let _groups = groups.lock();
        let (mut left, mut goal) = (ask.count, ask.goal);
        while left > 0 {
            // Not those promised to pages of the file, some of which may go home now.
            if self.available_for_data(blocks.ground(), None) < left {
                return Err(Error::NoSpace);
            }
            let mut wish = Wish { goal, least: left, most: left, limit: ask.limit };
            let run = match self.claim_run(blocks, &wish) {
                Err(Error::NoSpace) => {
                    wish.least = 1;
                    self.claim_run(blocks, &wish)?
                }
                run => run?,
            };
            runs.push(run);
            left -= run.count;
            goal = Pblk(run.first.get() + run.count);
        }
        Ok(())
    }

    fn open_window(&mut self, ino: Ino, window: Preallocation) {
        if self.windows().len() >= WINDOWS
            && let Some((_, old)) = self.windows().pop_first()
        {
            self.unclaim(old.run);
        }
        self.windows().insert(ino, window);
    }
}

/// Size of a window in blocks: as many as the file already has. A short first write gets none: most such files do not
/// grow, and until they are closed a window keeps the files of other threads away from each other.
fn window_blocks(ground: &Ground, ask: &Ask) -> u64 {
    let block = u64::from(ground.superblock.geometry.block_size());
    let bytes = (ask.logical + ask.count).saturating_mul(block);
    if ask.logical == 0 && bytes < *WINDOW.start() {
        return 0;
    }
    bytes.clamp(*WINDOW.start(), *WINDOW.end()) / block
}
