//! Appends in flight beside one another: whole blocks at the very end of a file with extents.
//!
//! An append claims its blocks under the exclusive gate, opens the gate, and sends its data. The next one begins where
//! the last one in flight ends. Blocks are mapped, and the size moves, when the data is complete, strictly in the order
//! of the file: an append that the device completes early waits for those before it. So the size never covers bytes
//! whose data is not complete, and appends that end together share one handle, and one commit if they must be durable.
//!
//! **One appender.** The appends in flight of a file belong to one attached file of one queue, which keeps their order.
//! [`InodeState::appender`](crate::InodeState) names it. They are counted in flight until they have ended. Everything
//! else that holds the gate exclusively and depends on the size drains them: another queue's append, and an append at
//! another place, included.
//!
//! **Failures.** Each append is a request of its own, as in Linux. If the device fails one, its blocks are released and
//! stay a hole; those behind it end as if it had succeeded, and the size covers the hole, which reads as zeros. If it
//! was the last one, the size ends before it.

use super::core::{General, QueueState};
use super::slot::{Kind, Slot};
use super::ticket::Ticket;
use crate::door::Payload;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::inode::InodeState;
use crate::mapping::{PIECES_MAX, Piece, Pieces, Range, State};
use crate::pipeline::{Fresh, Mapping};
use crate::plan::{Finish, JournalWork, Plan, Request, View};
use crate::write_plan::may_append;
use std::collections::VecDeque;

/// The appends of an attached file that are in flight.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    /// Slots of those whose turn to end has not come, in the order of the file.
    order: VecDeque<u32>,
    /// How many have not ended, those of `order` included.
    count: u32,
    /// Where the last one ends in the file, and on the device.
    tail: u64,
    after: u64,
}

/// An append that may be sent.
struct Begun<F: FileSystem> {
    plan: Plan,
    fresh: Fresh<F>,
    pieces: Pieces,
}

impl<F: FileSystem> QueueState<F> {
    /// Sends a write if it is an append that may be in flight beside others. Otherwise returns its memory.
    pub(super) fn try_append(
        &mut self,
        index: usize,
        request: &Request,
        mapping: &mut Mapping,
        payload: Payload,
        tag: u64,
    ) -> Result<Option<Payload>, F::Error> {
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let (state, own) = (attached.file.state(), attached.appender());
        let view = attached.behind(state, own);
        if !may_append(request, &view) || view.disk_size.is_privileged() || view.disk_size.is_cached() {
            return Ok(Some(payload));
        }
        self.engine.check_process()?;
        let file = attached.file.clone();
        let state = file.state();
        let guard = state.gate.lock_exclusive(false, &mut || self.help());
        if ![0, own].contains(&state.appender()) {
            guard.drain(&mut || self.help());
        }
        let Some(begun) = self.begin(index, &file, request, mapping)? else { return Ok(Some(payload)) };
        let Begun { plan, fresh, mut pieces } = begun;
        let number = self.take_slot(Slot::new(index, tag, Kind::General, plan.durability, true))?;
        let Some(attached) = &mut self.files[index] else { return Err(Error::BadSlot.into()) };
        let mut general = General::new(request.range.length, Some(fresh), Ticket::raise(&attached.hold));
        general.appends = true;
        let appends = attached.appends.get_or_insert_default();
        appends.order.push_back(number);
        appends.count += 1;
        appends.tail = request.range.end();
        appends.after = pieces.last().map_or(0, |piece| piece.physical + piece.length);
        state.set_appender(own);
        self.engine.count_write(&**self.counters, request, &plan, true, state.block_bits(), file.switches);
        drop(guard);
        self.push_all(number, general, payload, request.range, &mut pieces, Some(&plan));
        Ok(None)
    }

    /// Plans an append and takes its blocks, under the exclusive gate. `None`: it must not be in flight beside others.
    fn begin(
        &self,
        index: usize,
        file: &OpenFile<F>,
        request: &Request,
        mapping: &mut Mapping,
    ) -> Result<Option<Begun<F>>, F::Error> {
        let (state, engine, range) = (file.state(), &self.engine, request.range);
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let own = attached.appender();
        let tail = attached.tail(state, own);
        // Pages may have come since the look outside of the gate, and the end may be elsewhere.
        if state.is_cached() || !may_append(request, &attached.behind(state, own)) {
            return Ok(None);
        }
        let behind = |view: View| tail.map_or(view, |(tail, _)| view.behind(tail));
        let plan = engine.decide_behind(file, request, mapping, false, behind)?;
        let plan = engine.with_claims(file, range, plan);
        if plan.finish != Finish::Asynchronous || plan.journal != JournalWork::Extend {
            return Ok(None);
        }
        let mut pieces = Pieces::new();
        let mut claim = None;
        let fresh = if engine.holds(file, &range, State::Hole)? {
            let blocks = range.pos >> state.block_bits()..range.end() >> state.block_bits();
            claim = engine.fs.append_begin(&file.inode, blocks, tail.map(|(_, after)| after))?;
            let Some(claim) = &claim else { return Ok(None) };
            if !lay_out(range, &engine.fs.append_places(claim), &mut pieces) {
                return Ok(None);
            }
            None
        } else {
            engine.load_pieces(file, range, &mut pieces)?;
            if pieces.last().is_none_or(|last| last.end() < range.end()) {
                return Ok(None);
            }
            engine.take_blocks(file, request, &plan, false)?
        };
        let fresh = Fresh::append(&file.inode, fresh, claim, range.end());
        Ok(Some(Begun { plan, fresh, pieces }))
    }

    /// The transfers of an append are done. It ends with those before it.
    pub(super) fn finish_in_order(&mut self, index: usize) {
        while let Some(Some(attached)) = self.files.get_mut(index)
            && let Some(appends) = &mut attached.appends
            && let Some(&first) = appends.order.front()
            && self.general[first as usize].as_ref().is_some_and(|general| general.is_over())
        {
            appends.order.pop_front();
            self.finish_over(first);
        }
    }

    /// An append has ended, and is about to leave flight.
    pub(super) fn end_append(&mut self, index: usize) {
        let Some(Some(attached)) = self.files.get_mut(index) else { return };
        let own = attached.appender();
        if let Some(appends) = &mut attached.appends {
            appends.count -= 1;
            if appends.count == 0 {
                attached.file.state().clear_appender(own);
            }
        }
    }
}

impl<F: FileSystem> super::attach::Attached<F> {
    /// Names the attached file among all appenders of its inode.
    pub(super) fn appender(&self) -> usize {
        std::sync::Arc::as_ptr(&self.cell).addr()
    }

    /// Where its last append in flight ends in the file and on the device.
    fn tail(&self, state: &InodeState, own: usize) -> Option<(u64, u64)> {
        let appends = self.appends.as_ref().filter(|_| state.appender() == own)?;
        Some((appends.tail, appends.after))
    }

    /// The inode as the next append will find it.
    fn behind(&self, state: &InodeState, own: usize) -> View {
        let view = state.view();
        self.tail(state, own).map_or(view, |(tail, _)| view.behind(tail))
    }
}

/// The pieces of a range that lies at these places of the device. `false` if there are too many, or too few.
fn lay_out(range: Range, places: &[Range], pieces: &mut Pieces) -> bool {
    let mut logical = range.pos;
    for place in places.iter().take(PIECES_MAX) {
        let Range { pos: physical, length } = *place;
        pieces.push(Piece { logical, physical, length, state: State::Unwritten });
        logical += length;
    }
    logical == range.end()
}
