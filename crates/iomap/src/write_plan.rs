//! Room 5, `shared-subblock-overwrite`, and the rest of the write table.
//!
//! A direct write smaller than a file-system block over *written* blocks needs no zeroing, so many may run at
//! a time under the shared gate. Only a write that may have to zero the rest of a block takes the gate
//! exclusively and drains: two writers zeroing one block's other half would destroy each other's data.
//!
//! Fast route: shared gate, no drain, asynchronous. Plain route: exclusive gate, drain, wait for completion
//! under the gate. Legal because every piece is written and the write does not extend the file.

use crate::durability::write_durability;
use crate::mapping::{Piece, State};
use crate::plan::{
    Completion, Durability, Edges, GateMode, JournalWork, Plan, Request, Route, Summary, View,
};
use crate::switches::Routing;
use uext4_blockdev::Capabilities;

/// Decides a write. `pieces` covers all of `request.range`.
#[inline(always)]
pub fn plan_write<R: Routing>(
    request: &Request,
    view: &View,
    pieces: &[Piece],
    device: &Capabilities,
    routing: R,
) -> Plan {
    plan_write_of(request, view, pieces, &Summary::of(pieces), device, routing)
}

/// The same for a request of more pieces than are kept: `summary` is of all, and of `pieces` only the first and the
/// last matter.
#[inline(always)]
pub(crate) fn plan_write_of<R: Routing>(
    request: &Request,
    view: &View,
    pieces: &[Piece],
    summary: &Summary,
    device: &Capabilities,
    routing: R,
) -> Plan {
    let extends = request.range.end() > view.size || request.range.end() > view.disk_size;
    if summary.all_written && !extends {
        return plan_overwrite(request, view, device, routing);
    }
    plan_allocating(request, view, pieces, summary, extends)
}

/// Whether a write touches only a part of some file-system block.
#[inline]
fn is_subblock(request: &Request, block_bits: u32) -> bool {
    (request.range.pos | request.range.length) & ((1 << block_bits) - 1) != 0
}

/// Whether an overwrite of this shape may hold the gate together with others.
#[inline]
pub(crate) fn shares_gate<R: Routing>(request: &Request, block_bits: u32, routing: R) -> bool {
    !request.bounced && (routing.switches().shared_subblock_overwrite || !is_subblock(request, block_bits))
}

#[inline(always)]
fn plan_overwrite<R: Routing>(request: &Request, view: &View, device: &Capabilities, routing: R) -> Plan {
    let switches = routing.switches();
    let mut plan = Plan {
        route: Route::Overwrite,
        gate: GateMode::Shared,
        drain: false,
        counted: true,
        journal: if switches.overwrite_no_transaction { JournalWork::None } else { JournalWork::Handle },
        zero_edges: Edges::default(),
        durability: write_durability(request.sync, true, view, device, routing),
        completion: if request.queued { Completion::Asynchronous } else { Completion::Synchronous },
    };
    if request.bounced {
        // A read-modify-write of device blocks: no other write may come between its halves.
        plan.route = Route::BouncedOverwrite;
    }
    if !shares_gate(request, view.block_bits, routing) {
        plan.make_exclusive();
        // The gate is held until the transfer is complete; only a queue's commit and flush come behind it.
        plan.counted = request.queued && !request.bounced;
    }
    if device.dax.is_some() {
        plan.completion = Completion::Synchronous;
        if !request.bounced {
            plan.route = Route::DaxOverwrite;
            plan.counted = !switches.dax_no_dio_count;
        }
    }
    plan
}

/// The row of the table that matters most, alone: a write over one written piece that may share the gate.
/// `Some` with its durability exactly when [`plan_write`] answers a shared (DAX) overwrite for such a piece
/// (`tests/plan.rs` compares the two over the whole grid); the fast ways of the executors ask this and leave
/// everything else to the general ones.
#[inline(always)]
pub fn plan_shared_overwrite<R: Routing>(
    request: &Request,
    view: &View,
    device: &Capabilities,
    routing: R,
) -> Option<Durability> {
    let inside = request.range.end() <= view.size && request.range.end() <= view.disk_size;
    if !inside || !shares_gate(request, view.block_bits, routing) {
        return None;
    }
    Some(write_durability(request.sync, true, view, device, routing))
}

/// The rows of the table that change metadata.
#[inline(never)]
fn plan_allocating(
    request: &Request,
    view: &View,
    pieces: &[Piece],
    summary: &Summary,
    extends: bool,
) -> Plan {
    let subblock = is_subblock(request, view.block_bits) || request.bounced;
    let mut plan = Plan {
        route: Route::Allocate,
        gate: GateMode::Shared,
        drain: false,
        counted: true,
        journal: JournalWork::Convert,
        zero_edges: edges(request, view, pieces),
        durability: match request.sync {
            crate::plan::Sync::None => Durability::None,
            crate::plan::Sync::Data => Durability::Datasync,
            crate::plan::Sync::All => Durability::Fsync,
        },
        completion: if request.queued { Completion::Asynchronous } else { Completion::Synchronous },
    };
    if extends {
        plan.journal = JournalWork::Extend;
        plan.gate = GateMode::Exclusive;
        plan.drain = subblock && !summary.all_written || request.bounced;
        plan.completion = Completion::Synchronous;
    } else {
        if summary.hole > 0 {
            plan.journal = JournalWork::AllocateConvert;
            plan.gate = GateMode::Exclusive;
        }
        if subblock {
            plan.make_exclusive();
        }
    }
    plan
}

/// What must be zeroed around the request: the rest of first and last block where they hold no data yet.
fn edges(request: &Request, view: &View, pieces: &[Piece]) -> Edges {
    let mask = view.block_size() - 1;
    let fresh = |piece: Option<&Piece>| piece.is_some_and(|piece| piece.state != State::Written);
    let head = request.range.pos & mask;
    let tail = request.range.end().wrapping_neg() & mask;
    Edges {
        head: if fresh(pieces.first()) { head } else { 0 },
        tail: if fresh(pieces.last()) { tail } else { 0 },
    }
}

impl Plan {
    #[inline]
    fn make_exclusive(&mut self) {
        self.gate = GateMode::Exclusive;
        self.drain = true;
        self.completion = Completion::Synchronous;
    }
}
