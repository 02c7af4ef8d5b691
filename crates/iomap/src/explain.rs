//! Predicts what a request would do, with the executors' own decisions. Nothing is sent or counted except loads of
//! unknown mappings.

use crate::engine::{Engine, check_range};
use crate::fs::{FileSystem, OpenFile};
use crate::mapping::{MapKind, Piece, Pieces, Range, State};
use crate::pipeline::needs_allocation;
use crate::plan::{JournalWork, Plan, Request, Route, Summary, Sync, View, WriteFlags, plan_read};
use crate::write_plan::plan_write_of;
use uext4_blockdev::Capabilities;

/// The prediction for one request in the present state.
#[derive(Debug, Clone)]
pub struct Outlook<E> {
    /// The plan.
    pub plan: Plan,
    /// The inode's state that the plan is based on.
    pub view: View,
    /// The first pieces of the range.
    pub pieces: Pieces,
    /// Number of pieces.
    pub piece_count: u64,
    /// Summary of all pieces.
    pub summary: Summary,
    /// Bytes in whole blocks without data that the write zeroes first, in addition to the edges in its plan: on mapped
    /// memory the blocks below the end of the file, on any device the blocks allocated for an indirect map.
    pub zeroed: u64,
    /// Why the executor refuses it, if it does: the write needs a change that the file system cannot make, or a queued
    /// request has a position or length that is not a multiple of the logical block (`request.queued` and
    /// `request.bounced`).
    pub refused: Option<E>,
}

impl<F: FileSystem> Engine<F> {
    /// Plans a request for a device with the given capabilities and returns the plan with its inputs. Nothing is
    /// changed.
    pub fn explain(
        &self,
        file: &OpenFile<F>,
        request: &Request,
        write: bool,
        device: &Capabilities,
    ) -> Result<Outlook<F::Error>, F::Error> {
        self.visit(file, || self.explain_inside(file, request, write, device))
    }

    fn explain_inside(
        &self,
        file: &OpenFile<F>,
        request: &Request,
        write: bool,
        device: &Capabilities,
    ) -> Result<Outlook<F::Error>, F::Error> {
        let range = check_range(request.range.pos, request.range.length)?;
        let mut pieces = Pieces::new();
        // Twice: a piece that the first pass split at a load boundary is one piece for later requests.
        self.load_pieces(file, range, &mut pieces)?;
        self.load_pieces(file, range, &mut pieces)?;
        let mut summary = Summary::of(&[]);
        let mut piece_count = 0;
        self.for_each_piece(file, range, |piece| {
            summary.add(piece);
            piece_count += 1;
            Ok(())
        })?;
        let view = file.state().view();
        let misaligned = request.queued && request.bounced;
        // A queue never bounces, so plan it as the synchronous call that would.
        let sync =
            if request.sync == Sync::None { file.flags_of(WriteFlags::empty()).sync() } else { request.sync };
        let request = Request { sync, queued: request.queued && !request.bounced, ..*request };
        let (plan, zeroed, refused) = if write {
            let plan = plan_write_of(&request, &view, &summary, device, file.switches);
            let needs = needs_allocation(range, &view, &summary);
            let unprivileged =
                || plan.drops_privileges.then(|| self.fs.check_privileges(&file.inode).err())?;
            let refused = needs.and_then(|needs| self.fs.check_allocates(&file.inode, needs).err());
            let refused = refused.or_else(unprivileged);
            let plan =
                self.with_old_tail(file, self.with_claims(file, range, self.with_journal(plan)), &view)?;
            (plan, self.zeroed(file, &plan, range, &view)?, refused)
        } else {
            (plan_read(&request, &view, &pieces, device, file.switches), 0, None)
        };
        let refused = match self.check_direct(range.pos, range.length) {
            Err(error) if misaligned => Some(error.into()),
            _ => refused,
        };
        Ok(Outlook { plan, view, pieces, piece_count, summary, zeroed, refused })
    }

    /// The plan of a write on this volume, which may have no journal.
    fn with_journal(&self, plan: Plan) -> Plan {
        match plan.journal {
            JournalWork::Handle if !self.fs.has_journal() => Plan { journal: JournalWork::None, ..plan },
            _ => plan,
        }
    }

    /// Keeps the zeroing past the old end of file only where the block there is written.
    fn with_old_tail(&self, file: &OpenFile<F>, mut plan: Plan, view: &View) -> Result<Plan, F::Error> {
        let block = u64::from(self.geometry.logical_block);
        let pos = view.size / block * block;
        let tail = Range { pos, length: view.size + plan.zero_edges.old_tail - pos };
        if plan.zero_edges.old_tail > 0 && !self.holds(file, &tail, State::Written)? {
            plan.zero_edges.old_tail = 0;
        }
        Ok(plan)
    }

    /// See [`Outlook::zeroed`].
    fn zeroed(&self, file: &OpenFile<F>, plan: &Plan, range: Range, view: &View) -> Result<u64, F::Error> {
        let block = view.block_size();
        let (pos, end) = (range.pos / block * block, range.end().next_multiple_of(block));
        let end = match (plan.journal, plan.route, view.kind) {
            (JournalWork::None | JournalWork::Handle, ..) => pos,
            (_, _, MapKind::Indirect) => end,
            (_, Route::DaxAllocate, _) => end.min(view.end_of_blocks()),
            _ => pos,
        };
        let mut zeroed = 0;
        self.for_each_piece(file, Range { pos, length: end.saturating_sub(pos) }, |piece| {
            zeroed += if piece.state == State::Written { 0 } else { piece.length };
            Ok(())
        })?;
        Ok(zeroed)
    }

    /// Makes the checks of a queue and the direct calls: position and length are multiples of the logical block, and
    /// the range ends at most at 2⁶³ - 1.
    pub fn check_aligned(&self, pos: u64, length: u64) -> Result<(), F::Error> {
        self.check_direct(pos, length)?;
        Ok(())
    }

    /// Calls `each` for all pieces of `range`, in order, in their present state.
    pub fn visit_pieces(
        &self,
        file: &OpenFile<F>,
        range: Range,
        mut each: impl FnMut(&Piece),
    ) -> Result<(), F::Error> {
        let mut show = |piece: &Piece| {
            each(piece);
            Ok(())
        };
        self.visit(file, || self.for_each_piece(file, range, &mut show))
    }
}
