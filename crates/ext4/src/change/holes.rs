//! Writing into holes inside the size: the data is written before its blocks are mapped, and one handle does the rest.
//!
//! The data goes to blocks that are claimed in memory ([`Claim`]) and published as unwritten. When it is complete, the
//! handle of the conversion marks them used and maps them as written. A crash before that, or a failed write, leaves
//! the hole.
//!
//! **Who keeps a claim.** A write is in the set of pending ones before it looks for holes, and until it is converted or
//! has failed. A claim stays as long as any pending write meets it, whoever made it: others may have found its blocks
//! unwritten, and write into them. When the last one goes and nobody mapped them, the blocks are published as a hole
//! again and released ([`Claims::release`]). A drained file has no claims.
//!
//! **Who sees the hole.** The volume has a hole where a file has a claim. So whoever reads the tree of a file that may
//! have some adds them ([`Claims::add_to`]), or passes them by ([`Claims::unclaimed`]).
//!
//! [`Claims::release`]: crate::inode::claims::Claims::release
//! [`Claims::add_to`]: crate::inode::claims::Claims::add_to
//! [`Claims::unclaimed`]: crate::inode::claims::Claims::unclaimed

use super::Files;
use crate::alloc::claims::{Ask, Claim};
use crate::alloc::shared::Promise;
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::claims::Claimed;
use crate::inode::draft::Draft;
use crate::map::{self, edit};
use std::ops::Range;
use uext4_iomap::snapshot::MapWriter;
use uext4_iomap::{MapKind, State};
use uext4_ondisk::ext4::{Extent, MAX_UNWRITTEN_LENGTH};
use uext4_ondisk::{Lblk, Pblk};

/// How often a write loads the map before it leaves its holes to a handle: other threads may have it forgotten.
const LOADS: usize = 4;
/// Runs of the map that are looked at for the place of the blocks before a hole.
const BEFORE: usize = 3;

/// What a claim of a file holds: one run, and blocks of the map that it may need.
type Held = (Claim, Promise);

impl Files<'_> {
    /// Claims blocks for the holes of a write, which is among the pending ones, and publishes them as unwritten.
    /// `false`: some of them must be allocated.
    ///
    /// # Errors
    /// Those of reading the map and the groups.
    pub(crate) fn claim_holes(&self, inode: &Inode, blocks: &Range<u64>) -> Result<bool> {
        if !self.can_claim_holes(inode, blocks) {
            return Ok(false);
        }
        let (mut at, mut loads) = (blocks.start, 0);
        let mut map = inode.state.map.lock();
        while at < blocks.end {
            match map.run_around(at as u32) {
                None if loads == LOADS => return Ok(false),
                None => {
                    loads += 1;
                    drop(map);
                    map::load(self.state, inode, at << inode.state.block_bits())?;
                    map = inode.state.map.lock();
                }
                Some(hole) if hole.state == State::Hole => {
                    let end = blocks.end.min(u64::from(hole.first) + hole.length);
                    if !self.claim_hole(inode, &mut map, at..end, hole.first)? {
                        return Ok(false);
                    }
                    at = end;
                }
                Some(run) => at = u64::from(run.first) + run.length,
            }
        }
        Ok(true)
    }

    /// Whether one handle may mark and map what is claimed.
    pub(crate) fn can_claim_holes(&self, inode: &Inode, blocks: &Range<u64>) -> bool {
        let (state, superblock) = (&inode.state, &self.state.superblock);
        // Limits of quota are checked where blocks are allocated.
        !inode.is_limited()
            && blocks.end - blocks.start <= u64::from(MAX_UNWRITTEN_LENGTH)
            && blocks.end <= state.size().div_ceil(1 << state.block_bits())
            && u32::try_from(blocks.end).is_ok()
            && superblock.geometry.cluster_blocks() == 1
            && state.kind() == MapKind::Extents
            && inode.disk().uses_extents()
    }

    /// Claims `blocks` of a hole that begins at block `from`.
    fn claim_hole(
        &self,
        inode: &Inode,
        map: &mut MapWriter<'_>,
        blocks: Range<u64>,
        from: u32,
    ) -> Result<bool> {
        let count = blocks.end - blocks.start;
        let ask = Ask {
            ino: inode.ino(),
            logical: blocks.start,
            count,
            goal: self.place_of_hole(inode, map, blocks.start, from),
            limit: edit::Form::Extents.reach(),
            apart: true,
        };
        let nodes = (u64::from(self.depth(inode)) + 2) * edit::copies(self.state) as u64;
        let asked = self.space.claim(&Direct(self.state), &ask).and_then(|claim| {
            let promise = self.space.promise(self.state, inode.ino(), nodes)?;
            Ok((claim, promise))
        });
        let (claim, promise) = match asked {
            Ok(asked) => asked,
            // The other way waits for room.
            Err(Error::NoSpace) => return Ok(false),
            Err(error) => return Err(error),
        };
        let [run] = claim.runs() else { return Ok(false) };
        let (first, physical) = (blocks.start as u32, run.first.get());
        let held: Held = (claim, promise);
        let claimed = Claimed { blocks: first..first + count as u32, physical, held: Box::new(held) };
        map.claimed(&claimed.run());
        inode.claims.lock().insert(first, claimed);
        Ok(true)
    }

    /// Where the blocks of a hole had best be: as far behind the blocks before it as in the file.
    fn place_of_hole(&self, inode: &Inode, map: &MapWriter<'_>, first: u64, from: u32) -> Pblk {
        let mut at = u64::from(from);
        for _ in 0..BEFORE {
            let Some(before) = at.checked_sub(1).and_then(|block| map.run_around(block as u32)) else {
                break;
            };
            at = u64::from(before.first);
            if before.state != State::Hole {
                return Pblk(before.physical.saturating_add(first - at));
            }
        }
        self.home(inode.ino())
    }

    /// Marks the claims with these first blocks used, and maps them. Ends before the first one that finds a fault, if
    /// one is mapped already: the next handle begins there. Returns how many were mapped.
    ///
    /// # Errors
    /// Those of the first one, with nothing changed; an error after a change aborts the volume.
    pub(super) fn map_claims(
        &self,
        blocks: &mut Journaled<'_>,
        inode: &Inode,
        draft: &mut Draft,
        firsts: &[u32],
        unwritten: bool,
    ) -> Result<usize> {
        let mut claims = inode.claims.lock();
        for (done, first) in firsts.iter().enumerate() {
            let Some(claimed) = claims.get_mut(first) else { return Ok(done) };
            let (length, before) =
                (claimed.blocks.end - claimed.blocks.start, (draft.disk.blocks_raw, draft.disk.flags));
            let Some((claim, _)) = claimed.held.downcast_mut::<Held>() else { return Ok(done) };
            let physical = Pblk(claimed.physical);
            let extent = Extent { logical: Lblk(*first), length, physical, unwritten };
            let mapped = draft
                .count(blocks.ground(), length.into())
                .and_then(|()| edit::insert(blocks, &mut self.space.promised(), draft, extent));
            match mapped {
                Ok(()) => {}
                Err(_) if done > 0 => {
                    (draft.disk.blocks_raw, draft.disk.flags) = before;
                    return Ok(done);
                }
                Err(error) => return Err(error),
            }
            claim.take_next(blocks)?;
            self.space.spend_late(inode.ino(), length.into());
            claims.remove(first);
        }
        Ok(firsts.len())
    }
}
