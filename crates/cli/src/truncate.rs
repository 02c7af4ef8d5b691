//! `uext4 truncate`: the sizes of truncate(1).

use crate::args::{Globals, JsonArgs};
use crate::change::{Missing, change_all};
use crate::error::CliError;
use crate::open::Operand;
use crate::text::parse_size;
use clap::{Args, ValueHint};
use std::ffi::OsString;

const USAGE: &str = "\
uext4 truncate [OPTIONS] -s SIZE DEVICE:/path...
       uext4 truncate [OPTIONS] DEVICE:/path SIZE";

/// `uext4 truncate`.
#[derive(Args)]
#[command(override_usage = USAGE)]
#[command(after_long_help = "\
SIZE may be prefixed with + (extend by), - (reduce by), < (at most), > (at least), / (round down to a multiple of),
% (round up to a multiple of), as for truncate(1).")]
pub struct TruncateArgs {
    /// The files; without -s, one file and its SIZE. A missing file is created.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// The size in bytes. Blocks past the new end are freed; an extension is a hole.
    #[arg(short, long, value_name = "SIZE", value_parser = NewSize::parse, allow_hyphen_values = true)]
    pub size: Option<NewSize>,
    /// Do not create the file.
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// The output format: with JSON, the size and the bytes that its blocks take.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// How the number relates to the current size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Exactly,
    More,
    Less,
    AtMost,
    AtLeast,
    DownTo,
    UpTo,
}

/// A size, absolute or relative to the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewSize(Relation, u64);

impl NewSize {
    fn parse(text: &str) -> Result<Self, String> {
        let prefixes = [
            ('+', Relation::More),
            ('-', Relation::Less),
            ('<', Relation::AtMost),
            ('>', Relation::AtLeast),
            ('/', Relation::DownTo),
            ('%', Relation::UpTo),
        ];
        let text = text.trim_start();
        let found = prefixes.into_iter().find_map(|(letter, how)| Some((how, text.strip_prefix(letter)?)));
        let (how, number) = found.unwrap_or((Relation::Exactly, text));
        let bytes = parse_size(number.trim_start())?;
        if bytes == 0 && matches!(how, Relation::DownTo | Relation::UpTo) {
            return Err("division by zero".into());
        }
        Ok(NewSize(how, bytes))
    }

    /// The size for a file of `old` bytes. Saturates at 64 bits, which no file can have.
    fn of(self, old: u64) -> u64 {
        let NewSize(how, bytes) = self;
        match how {
            Relation::Exactly => bytes,
            Relation::More => old.saturating_add(bytes),
            Relation::Less => old.saturating_sub(bytes),
            Relation::AtMost => old.min(bytes),
            Relation::AtLeast => old.max(bytes),
            Relation::DownTo => old - old % bytes,
            Relation::UpTo => old.checked_next_multiple_of(bytes).unwrap_or(u64::MAX),
        }
    }
}

/// Runs it.
pub fn run(args: &TruncateArgs, globals: &Globals) -> Result<(), CliError> {
    let (size, paths) = match (args.size, &args.operands[..]) {
        (Some(size), paths) => (size, paths),
        (None, [path, size]) => {
            let size = size.to_str().ok_or("it is not text".to_owned()).and_then(NewSize::parse);
            let why = |why| CliError::usage(format!("{why} (give the size after -s or after one file)"));
            (size.map_err(why)?, std::slice::from_ref(path))
        }
        (None, _) => return Err(CliError::usage("no size given: -s SIZE, or SIZE after one file")),
    };
    let operands = paths.iter().map(|path| Operand::parse(path)).collect::<Result<Vec<_>, _>>()?;
    let missing = if args.no_create { Missing::Skip } else { Missing::Create };
    change_all(&operands, globals, missing, |_, file| file.set_len(size.of(file.size())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_truncate() {
        let table = [
            ("5", 10, 5),
            ("+5", 10, 15),
            ("-5", 10, 5),
            ("-11", 10, 0),
            ("<5", 10, 5),
            ("<15", 10, 10),
            (">5", 10, 10),
            (" > 1k", 10, 1024),
            ("/4", 10, 8),
            ("%4", 10, 12),
            ("%5", 10, 10),
            ("+16383P", u64::MAX, u64::MAX),
            ("%2", u64::MAX, u64::MAX),
        ];
        for (text, old, new) in table {
            assert_eq!(NewSize::parse(text).map(|size| size.of(old)), Ok(new), "{text} of {old}");
        }
        for bad in ["", "+", "+-5", "<-5", "/0", "%0", "5x"] {
            assert!(NewSize::parse(bad).is_err(), "{bad}");
        }
    }
}
