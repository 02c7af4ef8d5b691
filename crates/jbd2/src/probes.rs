//! Static tracepoints of commits (USDT, provider `uext4`).

use crate::Tid;

/// `commit_start(tid)`: a commit of the running transaction begins. No handle starts until the next one runs.
#[inline(always)]
pub(crate) fn commit_start(tid: Tid) {
    probe::probe_lazy!(uext4, commit_start, tid.0);
}

/// `commit(tid, blocks)`: it is durable, in `blocks` blocks of the log.
#[inline(always)]
pub(crate) fn commit(tid: Tid, blocks: u32) {
    probe::probe_lazy!(uext4, commit, tid.0, blocks);
}
