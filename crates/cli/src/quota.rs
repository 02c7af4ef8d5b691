//! `uext4 quota`: what users, groups and projects use and may use.

use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::{OpenHow, device};
use crate::out::Out;
use crate::text::parse_size;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};
use uext4::{QuotaEntry, QuotaGrace, QuotaKind, QuotaLimits, Switches, Volume};

/// `uext4 quota`.
#[derive(Args)]
#[command(after_long_help = "\
A soft limit may be exceeded for the time of grace, a hard one never; 0 is no limit. Limits hold for callers other than
root: for the kernel's users, and for programs that ask this library on their behalf. Commands of uext4 act as root.
With --space, --inodes and --grace, exactly one of -u, -g and -P is needed.")]
pub struct QuotaArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// Numbers of users, groups or projects; all by default.
    #[arg(value_name = "ID")]
    pub ids: Vec<u32>,
    /// Of users.
    #[arg(short, long)]
    pub user: bool,
    /// Of groups.
    #[arg(short, long)]
    pub group: bool,
    /// Of projects.
    #[arg(short = 'P', long)]
    pub project: bool,
    /// Set the limits of space, in bytes with the usual suffixes, rounded up to KiB.
    #[arg(long, value_name = "SOFT:HARD", value_parser = sizes, requires = "ids")]
    pub space: Option<(u64, u64)>,
    /// Set the limits of inodes.
    #[arg(long, value_name = "SOFT:HARD", value_parser = numbers, requires = "ids")]
    pub inodes: Option<(u64, u64)>,
    /// Set the times of grace for space and inodes, in seconds, or with the suffixes m, h and d.
    #[arg(long, value_name = "SPACE:INODES", value_parser = times)]
    pub grace: Option<(u32, u32)>,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Two values with a colon between them.
fn pair<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<(T, T), String> {
    let (one, other) = text.split_once(':').ok_or("two values with a colon between them are needed")?;
    Ok((parse(one)?, parse(other)?))
}

fn sizes(text: &str) -> Result<(u64, u64), String> {
    pair(text, |size| parse_size(size).map_err(|error| error.to_string()))
}

fn numbers(text: &str) -> Result<(u64, u64), String> {
    pair(text, |number| number.parse().map_err(|_| format!("`{number}` is not a number")))
}

fn times(text: &str) -> Result<(u32, u32), String> {
    pair(text, |time| {
        let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
        let unit = units.into_iter().find(|(letter, _)| time.ends_with(*letter));
        let digits = unit.map_or(time, |(letter, _)| time.trim_end_matches(letter));
        let wrong = || format!("`{time}` is not a number of seconds, or one with s, m, h or d");
        let number: u32 = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(unit.map_or(1, |(_, seconds)| seconds)).ok_or_else(wrong)
    })
}

/// A report. Times are in seconds since 1970, space in bytes.
#[derive(Serialize)]
pub struct JsonReport {
    kind: &'static str,
    grace_space: u32,
    grace_inodes: u32,
    entries: Vec<JsonEntry>,
}

#[derive(Serialize)]
struct JsonEntry {
    id: u32,
    space: u64,
    space_soft: u64,
    space_hard: u64,
    /// When the soft limit of space becomes hard; absent if it is not exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    space_until: Option<u64>,
    inodes: u64,
    inodes_soft: u64,
    inodes_hard: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_until: Option<u64>,
}

/// Runs it.
pub fn run(args: &QuotaArgs, globals: &Globals) -> Result<(), CliError> {
    let spec = device(&args.device)?;
    let at = |error| CliError::at(&args.device, error);
    let chosen =
        [(args.user, QuotaKind::User), (args.group, QuotaKind::Group), (args.project, QuotaKind::Project)];
    let chosen: Vec<QuotaKind> =
        chosen.into_iter().filter(|(chosen, _)| *chosen).map(|(_, kind)| kind).collect();
    let write = args.space.is_some() || args.inodes.is_some() || args.grace.is_some();
    let how = OpenHow { write, ..OpenHow::reading(globals, args.common.force, Switches::ON) };
    if write {
        let [kind] = chosen[..] else {
            return Err(CliError::usage("to set limits or times of grace, give one of -u, -g and -P"));
        };
        let volume = how.open_volume(&spec).map_err(at)?;
        let done = set(args, &volume, kind);
        // The first failure is reported.
        let closed = how.close_volume(&spec, volume);
        return done.and(closed).map_err(at);
    }
    let volume = how.open_volume(&spec).map_err(at)?;
    let mut out = Out::new();
    let reports = reports(&volume, &chosen, &args.ids).map_err(at)?;
    match globals.json {
        true => out.json(&reports)?,
        false => reports.iter().try_for_each(|report| report.print(&mut out))?,
    }
    out.finish()
}

/// Reports of these kinds, or of all that the volume keeps, and of these numbers, or of all.
pub fn reports(volume: &Volume, kinds: &[QuotaKind], ids: &[u32]) -> uext4::Result<Vec<JsonReport>> {
    let kept = volume.quota_kinds()?;
    if kept.is_empty() {
        return Err(uext4::Error::NotSupported("quota: the volume does not have the feature"));
    }
    let kinds = if kinds.is_empty() { &kept } else { kinds };
    kinds.iter().map(|kind| report(ids, volume, *kind)).collect()
}

fn set(args: &QuotaArgs, volume: &Volume, kind: QuotaKind) -> uext4::Result<()> {
    for &id in args.ids.iter().filter(|_| args.space.is_some() || args.inodes.is_some()) {
        let known = volume.quota(kind, id)?.unwrap_or_default();
        let space = args.space.map(|(soft, hard)| (soft.div_ceil(1024), hard.div_ceil(1024)));
        let (blocks_soft, blocks_hard) = space.unwrap_or((known.blocks_soft, known.blocks_hard));
        let (inodes_soft, inodes_hard) = args.inodes.unwrap_or((known.inodes_soft, known.inodes_hard));
        volume.set_quota(kind, id, &QuotaLimits { blocks_soft, blocks_hard, inodes_soft, inodes_hard })?;
    }
    match args.grace {
        Some((blocks, inodes)) => volume.set_quota_grace(kind, QuotaGrace { blocks, inodes }),
        None => Ok(()),
    }
}

fn report(ids: &[u32], volume: &Volume, kind: QuotaKind) -> uext4::Result<JsonReport> {
    let entries = match ids.is_empty() {
        true => volume.quotas(kind)?,
        false => {
            let entry = |id: &u32| {
                Ok(volume.quota(kind, *id)?.unwrap_or(QuotaEntry { id: *id, ..Default::default() }))
            };
            ids.iter().map(entry).collect::<uext4::Result<Vec<_>>>()?
        }
    };
    let grace = volume.quota_grace(kind)?;
    let entries = entries.iter().map(|entry| JsonEntry {
        id: entry.id,
        space: entry.bytes,
        space_soft: entry.blocks_soft.saturating_mul(1024),
        space_hard: entry.blocks_hard.saturating_mul(1024),
        space_until: Some(entry.block_time).filter(|time| *time != 0),
        inodes: entry.inodes,
        inodes_soft: entry.inodes_soft,
        inodes_hard: entry.inodes_hard,
        inodes_until: Some(entry.inode_time).filter(|time| *time != 0),
    });
    Ok(JsonReport {
        kind: kind.name(),
        grace_space: grace.blocks,
        grace_inodes: grace.inodes,
        entries: entries.collect(),
    })
}

impl JsonReport {
    /// A table as that of repquota(8): space in KiB.
    pub fn print(&self, out: &mut Out) -> Result<(), CliError> {
        let grace = [self.grace_space, self.grace_inodes].map(|time| duration(time.into()));
        writeln!(
            out,
            "Quotas of {}s; time of grace: {} for space, {} for inodes",
            self.kind, grace[0], grace[1]
        )?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let left = |until: Option<u64>| match until {
            None => "-".to_owned(),
            Some(until) if until <= now => "none".to_owned(),
            Some(until) => duration(until - now),
        };
        let heads =
            ["Id", "KiB", "soft", "hard", "grace", "Inodes", "soft", "hard", "grace"].map(str::to_owned);
        let kib = |bytes: u64| bytes.div_ceil(1024).to_string();
        let rows = self.entries.iter().map(|entry| {
            [
                entry.id.to_string(),
                kib(entry.space),
                kib(entry.space_soft),
                kib(entry.space_hard),
                left(entry.space_until),
                entry.inodes.to_string(),
                entry.inodes_soft.to_string(),
                entry.inodes_hard.to_string(),
                left(entry.inodes_until),
            ]
        });
        let rows: Vec<[String; 9]> = std::iter::once(heads).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..9).map(width).collect();
        for row in &rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            writeln!(out, "{}", cells.join("  "))?;
        }
        Ok(())
    }
}

/// The largest unit that fits.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
