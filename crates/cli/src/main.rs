//! The `uext4` command line: ext4 volumes on images and devices, without mounting them.
//!
//! Reading path: [`command`] (the commands; parse, run, report), [`open`] (opens every volume), then one module per
//! command, with its arguments. The libraries make all decisions; this program parses, calls them and prints.
//!
//! Exit status: 0 done, 1 failed (one line on standard error), 2 bad usage. If the reader closes standard
//! output early, the program ends quietly with 0.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod args;
mod attributes;
mod bench;
mod cat;
mod change;
mod check;
mod command;
mod cp;
mod df;
mod documents;
mod du;
mod error;
mod examples;
mod explain;
mod export;
mod fallocate;
mod find;
mod help;
mod hex;
mod info;
mod io;
mod ls;
mod map;
mod mkfs;
mod moment;
mod mount;
mod names;
mod open;
mod out;
mod overlay;
mod prepare;
mod progress;
mod quota;
mod rehearsal;
mod serve;
mod session;
mod shell;
mod stat;
mod stats;
mod svg;
mod text;
mod told;
mod trace;
mod tracer;
mod trim;
mod truncate;
mod umount;
mod verity;
mod xattr;

use std::process::ExitCode;

/// Names and inodes are many small objects of all ages. With the C library's allocator a create or an unlink takes a
/// quarter more processor time.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    command::execute(std::env::args_os().collect(), args::Watchers::default())
}
