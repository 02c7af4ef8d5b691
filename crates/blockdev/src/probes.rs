//! Static tracepoints on device requests (USDT, provider `uext4`). A disabled one costs a load and a branch.
//! `docs/guide/tuning.md` says how to attach to them.

use crate::{Op, Result};

/// Tag of a synchronous call, for which the calling thread waits.
pub const SYNCHRONOUS: u64 = u64::MAX;

/// `submit(op, pos, length, fua, tag)`: a request goes to the device. `op`: 0 read, 1 write, 2 flush, 3 discard. The
/// tag is the queue's, unique among its requests in flight.
#[inline(always)]
pub fn submit(op: Op, pos: u64, length: u64, fua: bool, tag: u64) {
    probe::probe_lazy!(uext4, submit, number(op), pos, length, fua, tag);
}

/// `complete(tag, result)`: the request completed. The result is a byte count or a negative errno.
#[inline(always)]
pub fn complete(tag: u64, result: i64) {
    probe::probe_lazy!(uext4, complete, tag, result);
}

/// Runs a synchronous call between its two probes.
#[inline(always)]
pub(crate) fn around(
    op: Op,
    pos: u64,
    length: u64,
    fua: bool,
    call: impl FnOnce() -> Result<()>,
) -> Result<()> {
    submit(op, pos, length, fua, SYNCHRONOUS);
    let outcome = call();
    probe::probe_lazy!(uext4, complete, SYNCHRONOUS, result(&outcome, length));
    outcome
}

fn result(outcome: &Result<()>, length: u64) -> i64 {
    outcome.as_ref().map_or_else(|error| -i64::from(error.errno()), |()| length as i64)
}

fn number(op: Op) -> u8 {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
    }
}
