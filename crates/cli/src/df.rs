//! `uext4 df`.

use crate::args::{ForceArgs, Globals, JsonArgs};
use crate::error::CliError;
use crate::open::{How, device};
use crate::out::Out;
use crate::text;
use clap::{ArgAction, Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::{StatFs, Switches};

/// `uext4 df`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// Powers of 1024 with a letter, instead of KiB.
    #[arg(short, long)]
    pub human_readable: bool,
    /// Inodes instead of space.
    #[arg(short, long)]
    pub inodes: bool,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

/// Blocks are counted in `block_size` bytes.
#[derive(Serialize)]
struct JsonSpace {
    block_size: u32,
    blocks: u64,
    used: u64,
    free: u64,
    available: u64,
    overhead: u64,
    inodes: u64,
    inodes_used: u64,
    inodes_free: u64,
}

/// Runs it.
pub fn run(args: &DfArgs, globals: &Globals) -> Result<(), CliError> {
    let spec = device(&args.device)?;
    let how = How::reading(globals, args.force.force, Switches::ON);
    let at = |error| CliError::at(&args.device, error);
    let space = how.open_volume(&spec).map_err(at)?.statfs().map_err(at)?;
    let mut out = Out::new();
    if globals.json {
        out.json(&JsonSpace {
            block_size: space.block_size,
            blocks: space.blocks,
            used: space.blocks.saturating_sub(space.free),
            free: space.free,
            available: space.available,
            overhead: space.overhead,
            inodes: space.inodes,
            inodes_used: space.inodes.saturating_sub(space.free_inodes),
            inodes_free: space.free_inodes,
        })?;
    } else {
        table(&mut out, args, &space)?;
    }
    out.finish()
}

fn table(out: &mut Out, args: &DfArgs, space: &StatFs) -> Result<(), CliError> {
    let (heads, cells) = if args.inodes {
        let used = space.inodes.saturating_sub(space.free_inodes);
        let cells = [space.inodes, used, space.free_inodes].map(|count| count.to_string());
        (["Inodes", "IUsed", "IFree", "IUse%"], (cells, percent(used, space.free_inodes)))
    } else {
        let used = space.blocks.saturating_sub(space.free);
        let amount = |blocks: u64| {
            let bytes = blocks.saturating_mul(space.block_size.into());
            if args.human_readable { text::short(bytes) } else { bytes.div_ceil(1024).to_string() }
        };
        let size = if args.human_readable { "Size" } else { "1K-blocks" };
        let cells = [space.blocks, used, space.available].map(amount);
        ([size, "Used", "Available", "Use%"], (cells, percent(used, space.available)))
    };
    let name = text::visible(args.device.as_bytes());
    let width = name.chars().count().max("Filesystem".len());
    let [a, b, c, d] = heads;
    writeln!(out, "{:width$} {a:>12} {b:>12} {c:>12} {d:>5}", "Filesystem")?;
    let ([a, b, c], d) = cells;
    writeln!(out, "{name:width$} {a:>12} {b:>12} {c:>12} {d:>5}")
}

/// Of what ordinary users can have, rounded up, as df(1).
fn percent(used: u64, available: u64) -> String {
    let all = u128::from(used) + u128::from(available);
    if all == 0 { "-".into() } else { format!("{}%", (u128::from(used) * 100).div_ceil(all)) }
}
