//! `uext4 df`.

use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::{OpenHow, device};
use crate::out::{Elements, Out};
use crate::quota::{self, JsonReport};
use crate::text::{self, JsonBytes};
use clap::{ArgAction, Args, ValueHint};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uext4::{StatFs, Switches};

/// `uext4 df`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// The devices.
    #[arg(value_name = "DEVICE", required = true, value_hint = ValueHint::FilePath)]
    pub devices: Vec<OsString>,
    /// Print sizes in powers of 1024 with a letter, instead of KiB.
    #[arg(short, long)]
    pub human_readable: bool,
    /// Count inodes instead of space.
    #[arg(short, long)]
    pub inodes: bool,
    /// Show what users, groups and projects use, and their limits.
    #[arg(short, long, conflicts_with_all = ["inodes", "human_readable"])]
    pub quota: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

/// Blocks are counted in `block_size` bytes.
#[derive(Serialize)]
struct JsonSpace<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
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

#[derive(Serialize)]
struct JsonQuotas<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    quotas: Vec<JsonReport>,
}

/// Runs it.
pub fn run(args: &DfArgs, globals: &Globals) -> Result<(), CliError> {
    let specs = args.devices.iter().map(|argument| device(argument)).collect::<Result<Vec<_>, _>>()?;
    let how = OpenHow::reading(globals, args.common.force, Switches::ON);
    let mut failures = globals.failures();
    let mut out = Out::new();
    let mut list = Elements::new(globals.json && specs.len() > 1);
    let mut table = Table::new(args);
    for (argument, spec) in args.devices.iter().zip(&specs) {
        let at = |error| CliError::at(argument, error);
        if args.quota {
            let found =
                how.open_volume(spec).and_then(|volume| quota::reports(&volume, &[], &[])).map_err(at);
            let Some(quotas) = failures.one_of(specs.len(), found)? else { continue };
            let argument = JsonBytes::argument(argument, specs.len());
            if globals.json {
                list.element(&mut out, &JsonQuotas { argument, quotas })?;
            } else {
                quotas.iter().try_for_each(|report| report.print(&mut out))?;
            }
            continue;
        }
        let space = how.open_volume(spec).and_then(|volume| volume.statfs()).map_err(at);
        let Some(space) = failures.one_of(specs.len(), space)? else { continue };
        if globals.json {
            list.element(&mut out, &JsonSpace::new(JsonBytes::argument(argument, specs.len()), &space))?;
        } else {
            table.line(&mut out, argument, &space)?;
        }
    }
    list.end(&mut out)?;
    out.finish()?;
    failures.finish()
}

impl<'a> JsonSpace<'a> {
    fn new(argument: JsonBytes<'a>, space: &StatFs) -> Self {
        JsonSpace {
            argument,
            block_size: space.block_size,
            blocks: space.blocks,
            used: space.blocks.saturating_sub(space.free),
            free: space.free,
            available: space.available,
            overhead: space.overhead,
            inodes: space.inodes,
            inodes_used: space.inodes.saturating_sub(space.free_inodes),
            inodes_free: space.free_inodes,
        }
    }
}

/// One line per volume under one heading.
struct Table<'a> {
    args: &'a DfArgs,
    /// Width of the first column.
    width: usize,
    headed: bool,
}

impl<'a> Table<'a> {
    fn new(args: &'a DfArgs) -> Self {
        let widths = args.devices.iter().map(|name| text::visible(name.as_bytes()).chars().count());
        Table { args, width: widths.fold("Filesystem".len(), usize::max), headed: false }
    }

    fn line(&mut self, out: &mut Out, device: &OsStr, space: &StatFs) -> Result<(), CliError> {
        let args = self.args;
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
        let width = self.width;
        if !self.headed {
            let [a, b, c, d] = heads;
            writeln!(out, "{:width$} {a:>12} {b:>12} {c:>12} {d:>5}", "Filesystem")?;
            self.headed = true;
        }
        let ([a, b, c], d) = cells;
        writeln!(out, "{:width$} {a:>12} {b:>12} {c:>12} {d:>5}", text::visible(device.as_bytes()))
    }
}

/// Percentage of the space available to ordinary users, rounded up, as in df(1).
fn percent(used: u64, available: u64) -> String {
    let all = u128::from(used) + u128::from(available);
    if all == 0 { "-".into() } else { format!("{}%", (u128::from(used) * 100).div_ceil(all)) }
}
