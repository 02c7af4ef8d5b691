//! What commands of `io` say with `--json`: one object, on a line of its own, for each thing said.

use crate::map::JsonPiece;
use crate::stat::JsonStat;
use serde::Serialize;
use std::collections::BTreeMap;

/// One thing said.
#[derive(Serialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Said<'a> {
    /// What a row of reads did, or with `-v` also the bytes of each.
    Pread(Row<'a>),
    /// What a row of writes did.
    Pwrite(Row<'a>),
    /// Extents, holes among them, in the order of the file.
    Fiemap { extents: Vec<JsonPiece> },
    /// As `uext4 stat`.
    Stat(JsonStat<'a>),
    /// The text.
    Help { text: &'a str },
    /// What was counted (`--stats`).
    Stats { counters: BTreeMap<&'static str, u64> },
}

/// Bytes, calls, seconds; or the bytes of one call.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Row<'a> {
    /// The end of the command.
    Done { offset: u64, length: u64, bytes: u64, calls: u64, seconds: f64 },
    /// One call of `pread -v`.
    Dump { offset: u64, data_b64: &'a str },
}
