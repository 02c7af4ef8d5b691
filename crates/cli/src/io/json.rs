//! Output of `io` commands with `--json`: one object per line.

use crate::map::JsonPiece;
use crate::stat::JsonStat;
use serde::Serialize;
use std::collections::BTreeMap;

/// One output object.
#[derive(Serialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Said<'a> {
    /// The result of a series of reads; with `-v` also the bytes of each.
    Pread(Row<'a>),
    /// The result of a series of writes.
    Pwrite(Row<'a>),
    /// Extents, holes included, in file order.
    Fiemap { extents: Vec<JsonPiece> },
    /// As `uext4 stat`.
    Stat(JsonStat<'a>),
    /// The text.
    Help { text: &'a str },
    /// Counters (`--stats`).
    Stats { counters: BTreeMap<&'static str, u64> },
}

/// Bytes, calls, seconds; or the bytes of one call.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Row<'a> {
    /// Totals of the command.
    Done { offset: u64, length: u64, bytes: u64, calls: u64, seconds: f64 },
    /// One call of `pread -v`.
    Dump { offset: u64, data_b64: &'a str },
}
