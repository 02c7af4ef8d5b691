//! The static tracepoint of plans (USDT, provider `uext4`). The device has those of requests
//! (`uext4_blockdev::probes`).

use crate::mapping::Range;
use crate::plan::{Durability, GateMode, JournalWork, Plan};

/// `plan(write, pos, length, alone, drain, journal, durability)`: the plan of a request. The short paths make no plan
/// and do not fire it. `pos` is the position in the file; the other numbers are defined below.
#[inline(always)]
pub(crate) fn plan(write: bool, range: Range, plan: &Plan) {
    probe::probe_lazy!(
        uext4,
        plan,
        write,
        range.pos,
        range.length,
        plan.gate == GateMode::Exclusive,
        plan.drain,
        journal(plan.journal),
        durability(plan.durability),
    );
}

fn journal(work: JournalWork) -> u8 {
    match work {
        JournalWork::None => 0,
        JournalWork::Handle => 1,
        JournalWork::Convert => 2,
        JournalWork::Allocate => 3,
        JournalWork::AllocateConvert => 4,
        JournalWork::Extend => 5,
    }
}

fn durability(how: Durability) -> u8 {
    match how {
        Durability::None => 0,
        Durability::Fua => 1,
        Durability::WriteThrough => 2,
        Durability::Datasync => 3,
        Durability::Fsync => 4,
    }
}
