//! `uext4 touch`: the times of touch(1).

use super::{Changer, Missing, Reach, Reference, operands};
use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use crate::moment::{parse_date, parse_stamp};
use crate::open::creating;
use clap::{ArgAction, Args, ValueHint};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;
use uext4::{Error, OpenOptions, SetAttributes, Time, Timestamp};

/// `uext4 touch`.
#[derive(Args)]
#[command(disable_help_flag = true)]
#[command(after_long_help = "\
TIME is now, 2026-11-21, 2026-11-21T05:16:27.5, with Z or +02:00 after it, or @SECONDS. STAMP is [[CC]YY]MMDDhhmm[.ss].
Without a time zone, times are UTC.")]
pub struct TouchArgs {
    /// The files. A missing file is created.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Set the time of the last access only.
    #[arg(short = 'a')]
    pub access: bool,
    /// Set the time of the last change only.
    #[arg(short = 'm')]
    pub modification: bool,
    /// Do not create files.
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// Set this time instead of the current one.
    #[arg(short, long, value_name = "TIME", allow_hyphen_values = true)]
    pub date: Option<String>,
    /// Same, as digits.
    #[arg(short = 't', value_name = "STAMP", conflicts_with = "date")]
    pub stamp: Option<String>,
    /// Set the times of this file instead: DEVICE:/path, or a file of the host.
    #[arg(short, long, value_name = "OTHER", conflicts_with_all = ["date", "stamp"])]
    pub reference: Option<OsString>,
    /// Change a symbolic link instead of its target; create nothing.
    #[arg(short = 'h', long = "no-dereference")]
    pub no_dereference: bool,
    /// The output format: with JSON, the attributes afterwards.
    #[command(flatten)]
    pub form: JsonArgs,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

/// Runs it.
pub fn run(args: &TouchArgs, globals: &Globals) -> Result<(), CliError> {
    let operands = operands(&args.operands)?;
    let reach = Reach { recursive: false, follow: !args.no_dereference, silent: false };
    let mut changer = Changer::new(globals, reach, operands.len());
    let (accessed, modified) = times(args, &mut changer)?;
    // With neither, both.
    let set = SetAttributes::new();
    let set = if args.access || !args.modification { set.accessed(accessed) } else { set };
    let set = if args.modification || !args.access { set.modified(modified) } else { set };
    let create = creating(globals, OpenOptions::new().read(true).write(true));
    changer.run(
        &operands,
        |volume, operand| match volume.node_at(operand.inner(), !args.no_dereference) {
            Err(Error::NotFound) if args.no_create => Ok(Missing::Skip),
            Err(Error::NotFound) if !args.no_dereference => {
                volume.open_file(operand.inner(), create.clone())?;
                Ok(Missing::Change)
            }
            found => found.map(|_| Missing::Change),
        },
        |changer, found| changer.set(found, &set).map(drop),
    )
}

/// The times to set.
fn times(args: &TouchArgs, changer: &mut Changer<'_>) -> Result<(Time, Time), CliError> {
    let host = |seconds, nanoseconds: i64| {
        Time::At(Timestamp { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or(0) })
    };
    let one = match (&args.date, &args.stamp) {
        (Some(date), _) => parse_date(date).map_err(CliError::usage)?,
        (None, Some(stamp)) => {
            let now = changer.fixed_time().map_or_else(|| Time::from(SystemTime::now()), Time::At);
            let Time::At(now) = now else { return Ok((Time::Now, Time::Now)) };
            parse_stamp(stamp, now).map_err(CliError::usage)?
        }
        (None, None) => Time::Now,
    };
    let Some(reference) = &args.reference else { return Ok((one, one)) };
    Ok(match changer.reference(reference)? {
        Reference::Volume(found) => (found.accessed.into(), found.modified.into()),
        Reference::Host(found) => {
            (host(found.atime(), found.atime_nsec()), host(found.mtime(), found.mtime_nsec()))
        }
    })
}
