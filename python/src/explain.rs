//! What the engine would do with a request, for `uext4.Explanation`.

use crate::call::{Fault, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use uext4::explain::{Explanation, Query};
use uext4::plan::{Durability, Finish, GateMode, JournalWork, Route, Sync};

/// A request, as keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Question {
    write: bool,
    pos: u64,
    length: u64,
    /// `none`, `data` or `all`.
    sync: String,
    queued: bool,
}

impl Question {
    pub(crate) fn query(&self) -> Result<Query> {
        let sync = match &*self.sync {
            "none" => Sync::None,
            "data" => Sync::Data,
            "all" => Sync::All,
            other => return Err(Fault::Value(format!("sync is none, data or all, not {other}"))),
        };
        Ok(Query { write: self.write, pos: self.pos, length: self.length, sync, queued: self.queued })
    }
}

/// The fields of `uext4.Explanation`, in the words of `uext4 explain --json`.
pub(crate) fn told<'py>(py: Python<'py>, explanation: &Explanation) -> PyResult<Bound<'py, PyDict>> {
    let plan = &explanation.plan;
    let requests: Vec<_> = explanation
        .requests
        .iter()
        .map(|request| (request.op, request.pos, request.length, request.fua))
        .collect();
    let edges = (plan.zero_edges.head, plan.zero_edges.tail, plan.zero_edges.old_tail);
    let dict = PyDict::new(py);
    dict.set_item("route", route(plan.route))?;
    dict.set_item("gate", if plan.gate == GateMode::Shared { "shared" } else { "exclusive" })?;
    dict.set_item("drain", plan.drain)?;
    dict.set_item("counted", plan.counted)?;
    dict.set_item("journal", journal(plan.journal))?;
    dict.set_item("zero_edges", edges)?;
    dict.set_item("zeroed", explanation.zeroed)?;
    dict.set_item("durability", durability(plan.durability))?;
    let asynchronous = matches!(plan.finish, Finish::Asynchronous);
    dict.set_item("completion", if asynchronous { "asynchronous" } else { "synchronous" })?;
    dict.set_item("refused", &explanation.refused)?;
    dict.set_item("reasons", &explanation.reasons)?;
    dict.set_item("advice", &explanation.advice)?;
    dict.set_item("piece_count", explanation.piece_count)?;
    dict.set_item("handles_before", explanation.journal.handles_before)?;
    dict.set_item("handles_after", explanation.journal.handles_after)?;
    dict.set_item("commits", explanation.journal.commits)?;
    dict.set_item("request_count", explanation.request_count)?;
    dict.set_item("requests", requests)?;
    Ok(dict)
}

fn route(route: Route) -> &'static str {
    match route {
        Route::SimpleRead => "simple-read",
        Route::GeneralRead => "general-read",
        Route::PastEnd => "past-end",
        Route::InlineRead => "inline-read",
        Route::InlineWrite => "inline-write",
        Route::DaxRead => "dax-read",
        Route::BouncedRead => "bounced-read",
        Route::Overwrite => "overwrite",
        Route::DaxOverwrite => "dax-overwrite",
        Route::BouncedOverwrite => "bounced-overwrite",
        Route::Allocate => "allocate",
        Route::DaxAllocate => "dax-allocate",
    }
}

fn journal(work: JournalWork) -> &'static str {
    match work {
        JournalWork::None => "none",
        JournalWork::Handle => "handle",
        JournalWork::Convert => "convert",
        JournalWork::Allocate => "allocate",
        JournalWork::AllocateConvert => "allocate-convert",
        JournalWork::Extend => "extend",
    }
}

fn durability(durability: Durability) -> &'static str {
    match durability {
        Durability::None => "none",
        Durability::Fua => "fua",
        Durability::WriteThrough => "write-through",
        Durability::Datasync => "datasync",
        Durability::Fsync => "fsync",
    }
}
