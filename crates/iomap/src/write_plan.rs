//! Room 5, `shared-subblock-overwrite`, and the rest of the write table.
//!
//! A direct write smaller than a file-system block over *written* blocks needs no zeroing, so many can run concurrently
//! under the shared gate. Only a write that may have to zero the rest of a block takes the gate exclusively and drains:
//! two writers that each zero the rest of one block would destroy each other's data.
//!
//! Fast route: shared gate, no drain, asynchronous. Plain route: exclusive gate, drain, wait for completion under the
//! gate. Safe because the partial head and tail blocks are written and the write does not extend the file.

use crate::durability::write_durability;
use crate::mapping::{MapKind, Piece, Range};
use crate::plan::{
    Durability, Edges, Finish, GateMode, JournalWork, Plan, Request, Route, Summary, Sync, View,
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
    plan_write_of(request, view, &Summary::of(pieces), device, routing)
}

/// The same, from the summary of all pieces.
#[inline(always)]
pub(crate) fn plan_write_of<R: Routing>(
    request: &Request,
    view: &View,
    summary: &Summary,
    device: &Capabilities,
    routing: R,
) -> Plan {
    if view.kind == MapKind::Journaled {
        return plan_journaled(request, view);
    }
    if summary.all_written && !view.is_changed_by(request.range) {
        return plan_overwrite(request, view, device, routing);
    }
    plan_changing(request, view, summary, device, routing)
}

/// A write of contents that go through the log: by the file system, whatever is written there.
#[cold]
fn plan_journaled(request: &Request, view: &View) -> Plan {
    let mut plan = Plan::inline_write(request, view.size);
    if view.disk_size.is_privileged() {
        plan.drop_privileges(request);
    }
    plan
}

/// The rows of the table that change the inode.
#[inline(never)]
fn plan_changing<R: Routing>(
    request: &Request,
    view: &View,
    summary: &Summary,
    device: &Capabilities,
    routing: R,
) -> Plan {
    let overwrites = summary.all_written && !view.is_extended_by(request.range);
    let mut plan = match overwrites {
        true => plan_overwrite(request, view, device, routing),
        false => plan_allocating(request, view, summary, device, routing),
    };
    if view.disk_size.is_privileged() {
        plan.drop_privileges(request);
    }
    if view.disk_size.is_cached() {
        // Alone with the pages, and done before somebody else looks at them.
        plan.make_exclusive();
    }
    plan
}

/// Whether a write covers only a part of some file-system block.
#[inline]
pub(crate) fn is_subblock(request: &Request, block_bits: u32) -> bool {
    (request.range.pos | request.range.length) & ((1 << block_bits) - 1) != 0
}

/// Whether a write of this shape may share the gate.
#[inline]
pub(crate) fn shares_gate<R: Routing>(request: &Request, block_bits: u32, routing: R) -> bool {
    !request.bounced && (routing.switches().shared_subblock_overwrite || !is_subblock(request, block_bits))
}

/// Whether a write may turn out to share the gate, judged by its shape and by the sizes and privileges of the file.
/// Other writes skip the shared attempt: their plans never share.
#[inline]
pub(crate) fn may_share<R: Routing>(request: &Request, view: &View, routing: R) -> bool {
    !view.kind.is_held()
        && !view.is_changed_by(request.range)
        && shares_gate(request, view.block_bits, routing)
}

#[inline(always)]
fn plan_overwrite<R: Routing>(request: &Request, view: &View, device: &Capabilities, routing: R) -> Plan {
    let switches = routing.switches();
    let mut plan = Plan {
        route: Route::Overwrite,
        gate: GateMode::Shared,
        drain: false,
        counted: true,
        drops_privileges: false,
        journal: if switches.overwrite_no_transaction { JournalWork::None } else { JournalWork::Handle },
        zero_edges: Edges::default(),
        durability: write_durability(request.sync, true, view, device, routing),
        finish: if request.queued { Finish::Asynchronous } else { Finish::Synchronous },
    };
    if request.bounced {
        // A read-modify-write of device blocks: no other write may run between the read and the write.
        plan.route = Route::BouncedOverwrite;
    }
    if !shares_gate(request, view.block_bits, routing) {
        plan.make_exclusive();
        plan.drain = true;
    }
    if device.dax.is_some() {
        plan.finish = Finish::Synchronous;
        if !request.bounced {
            plan.route = Route::DaxOverwrite;
            plan.counted = !switches.dax_no_dio_count;
        }
    }
    plan
}

/// Only the most important row of the table: a write over one written piece that may share the gate. Returns the plan
/// of [`plan_write`] exactly when that is a shared (DAX) overwrite of such a piece, else `None`; `tests/plan.rs`
/// compares the two over the whole grid. The executors' short paths use this and leave everything else to the general
/// path.
#[inline(always)]
pub fn plan_shared_overwrite<R: Routing>(
    request: &Request,
    view: &View,
    device: &Capabilities,
    routing: R,
) -> Option<Plan> {
    if view.is_marked_for(request.range) || !shares_gate(request, view.block_bits, routing) {
        return None;
    }
    Some(plan_overwrite(request, view, device, routing))
}

/// The rows of the table that change metadata. They never use [`Durability::Fua`]: the metadata change must become
/// durable too.
fn plan_allocating<R: Routing>(
    request: &Request,
    view: &View,
    summary: &Summary,
    device: &Capabilities,
    routing: R,
) -> Plan {
    if view.kind == MapKind::Inline {
        return Plan::inline_write(request, view.size);
    }
    let (indirect, extends) = (view.kind == MapKind::Indirect, view.is_extended_by(request.range));
    let zero_edges = edges(request, view, summary);
    let zeroes = zero_edges.head + zero_edges.tail > 0;
    let mut plan = Plan {
        route: Route::Allocate,
        gate: GateMode::Shared,
        drain: zeroes || !shares_gate(request, view.block_bits, routing),
        counted: true,
        drops_privileges: false,
        journal: match (extends, summary.hole > 0) {
            (true, _) => JournalWork::Extend,
            (false, true) if indirect => JournalWork::Allocate,
            (false, true) => JournalWork::AllocateConvert,
            (false, false) => JournalWork::Convert,
        },
        zero_edges,
        durability: Durability::by_commit(request.sync),
        finish: if request.queued { Finish::Asynchronous } else { Finish::Synchronous },
    };
    if indirect && summary.hole > 0 {
        plan.gate = GateMode::Exclusive;
    }
    if extends || plan.drain || device.dax.is_some() {
        plan.make_exclusive();
    }
    if extends && device.dax.is_none() && appends_beside_others(request, view, summary) {
        plan.finish = Finish::Asynchronous;
        plan.counted = true;
    }
    if device.dax.is_some() {
        plan.route = Route::DaxAllocate;
        plan.counted = !request.bounced && !routing.switches().dax_no_dio_count;
    }
    plan
}

/// Whether a queued write that extends the file may be in flight beside others of its kind: whole blocks at its very
/// end, all holes or all unwritten, so that nothing has to be zeroed. Their data goes out while the gate is open. Only
/// their completions, in the order of the file, touch map and size.
fn appends_beside_others(request: &Request, view: &View, summary: &Summary) -> bool {
    may_append(request, view) && [summary.hole, summary.unwritten].contains(&request.range.length)
}

/// Whether a queued write of this shape may turn out to be such an append, behind others that are in flight.
#[inline]
pub(crate) fn may_append(request: &Request, view: &View) -> bool {
    let Range { pos, length } = request.range;
    let whole = (pos | length) & (view.block_size() - 1) == 0;
    request.queued && !request.bounced && view.kind == MapKind::Extents && whole && pos == view.size
}

/// What must be zeroed: the rest of the first and last block where they hold no data yet, and the bytes past the old
/// end of the file.
fn edges(request: &Request, view: &View, summary: &Summary) -> Edges {
    let mask = view.block_size() - 1;
    let (fresh_head, fresh_tail) = summary.fresh_ends();
    let (pos, end) = (request.range.pos, request.range.end());
    let rest = view.size.wrapping_neg() & mask;
    let covered = pos <= view.size && end >= view.size + rest;
    Edges {
        head: if fresh_head { pos & mask } else { 0 },
        tail: if fresh_tail { end.wrapping_neg() & mask } else { 0 },
        old_tail: if end > view.size && !covered { rest } else { 0 },
    }
}

impl Plan {
    /// Holds the gate exclusively until completion, so it need not be counted in flight.
    #[inline]
    pub(crate) fn make_exclusive(&mut self) {
        self.gate = GateMode::Exclusive;
        self.counted = false;
        self.finish = Finish::Synchronous;
    }

    /// Clears privileges first, with the gate held exclusively, so that the next writer finds none. After a crash, data
    /// acknowledged as durable must not be in a file that still has its privileges, so the clearing becomes durable
    /// with the data.
    fn drop_privileges(&mut self, request: &Request) {
        self.drops_privileges = true;
        let copies = matches!(self.route, Route::DaxOverwrite | Route::DaxAllocate);
        let counted = copies && self.counted;
        self.make_exclusive();
        self.counted = counted;
        if request.sync == Sync::Data {
            self.durability = Durability::Datasync;
        }
    }
}
