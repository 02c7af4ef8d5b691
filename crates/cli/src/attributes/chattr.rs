//! `uext4 chattr`: the flags of e2fsprogs' chattr(1).

use super::{Changer, Missing, Reach, operands, typed};
use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use uext4::{FileKind, InodeFlags, SetAttributes};

const USAGE: &str = "uext4 chattr [OPTIONS] [+-=FLAGS]... DEVICE:/path...";

/// `uext4 chattr`.
#[derive(Args)]
#[command(override_usage = USAGE)]
#[command(after_long_help = "\
+ adds flags, - takes them away, = sets exactly these:
  a  append-only          A  no time of access    c  compress             d  not for dump
  D  dirsync              i  immutable            j  journaled data       m  do not compress
  P  inherit the project  s  secure deletion      S  synchronous          t  no tail merging
  T  top of a hierarchy   u  undeletable          x  direct access (DAX)
e (extents) and F (folded case) cannot be changed.
Flags of directories (D, T, P) are left out for other files. With -R, symbolic links and special files are skipped.")]
pub struct ChattrArgs {
    /// The flags, then the files.
    #[arg(value_name = "FLAGS DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Change everything below directories too.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print the flags of every file.
    #[arg(short = 'V', long)]
    pub verbose: bool,
    /// Do not report errors.
    #[arg(short = 'f', long)]
    pub silent: bool,
    /// Set the project.
    #[arg(short, long, value_name = "PROJECT")]
    pub project: Option<u32>,
    /// Set the generation number.
    #[arg(short = 'v', long, value_name = "NUMBER")]
    pub generation: Option<u32>,
    /// The output format: with JSON, the attributes afterwards.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// Letters that begin a mode after a hyphen; the other ones are options.
pub const HYPHENATED: &str = "suSDiadAcjtTeFmPx";

/// The letters, in the order of lsattr.
const LETTERS: [(u8, InodeFlags); 17] = [
    (b's', InodeFlags::SECURE_DELETE),
    (b'u', InodeFlags::UNDELETE),
    (b'S', InodeFlags::SYNC),
    (b'D', InodeFlags::DIRSYNC),
    (b'i', InodeFlags::IMMUTABLE),
    (b'a', InodeFlags::APPEND),
    (b'd', InodeFlags::NODUMP),
    (b'A', InodeFlags::NOATIME),
    (b'c', InodeFlags::COMPRESS),
    (b'j', InodeFlags::JOURNAL_DATA),
    (b't', InodeFlags::NO_TAIL),
    (b'T', InodeFlags::TOPDIR),
    (b'e', InodeFlags::EXTENTS),
    (b'F', InodeFlags::CASEFOLD),
    (b'm', InodeFlags::NO_COMPRESS),
    (b'P', InodeFlags::PROJECT_INHERIT),
    (b'x', InodeFlags::DAX),
];

/// Flags that only directories have.
const OF_DIRECTORIES: InodeFlags = InodeFlags::from_bits_retain(
    InodeFlags::DIRSYNC.bits() | InodeFlags::TOPDIR.bits() | InodeFlags::PROJECT_INHERIT.bits(),
);

/// What happens to the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FlagChange {
    add: InodeFlags,
    take: InodeFlags,
    exactly: Option<InodeFlags>,
}

impl FlagChange {
    /// The words at the front that begin with an operator. Returns the others too.
    fn parse(words: &[OsString]) -> Result<(Self, &[OsString]), String> {
        let none = InodeFlags::empty();
        let mut change = FlagChange { add: none, take: none, exactly: None };
        let mut rest = words;
        while let [word, tail @ ..] = rest
            && let Some(word) = word.to_str().map(typed)
            && let [operator @ (b'+' | b'-' | b'='), letters @ ..] = word.as_bytes()
        {
            let mut flags = none;
            for letter in letters {
                let known = LETTERS.iter().find(|(known, _)| known == letter);
                flags |= known.ok_or_else(|| format!("`{word}` is not +, - or = with letters of flags"))?.1;
            }
            match operator {
                b'+' => change.add |= flags,
                b'-' => change.take |= flags,
                _ => change.exactly = Some(change.exactly.unwrap_or(none) | flags),
            }
            rest = tail;
        }
        if change.exactly.is_some() && !(change.add | change.take).is_empty() {
            return Err("= cannot be combined with + and -".into());
        }
        if change.add.intersects(change.take) {
            return Err("a flag cannot be both added and taken away".into());
        }
        Ok((change, rest))
    }

    fn is_empty(self) -> bool {
        self.exactly.is_none() && (self.add | self.take).is_empty()
    }

    /// The flags afterwards.
    fn of(self, before: InodeFlags, kind: FileKind) -> InodeFlags {
        let letters = LETTERS.iter().fold(InodeFlags::empty(), |all, (_, flag)| all | *flag);
        // The kind of the map stays.
        let kept = InodeFlags::EXTENTS | InodeFlags::INDEX;
        let after = match self.exactly {
            Some(flags) => before & (!letters | kept) | flags,
            None => (before - self.take) | self.add,
        };
        if kind == FileKind::Directory { after } else { after - OF_DIRECTORIES }
    }
}

/// The flags as lsattr prints them.
fn shown(flags: InodeFlags) -> String {
    LETTERS.iter().map(|(letter, flag)| if flags.contains(*flag) { *letter as char } else { '-' }).collect()
}

/// Runs it.
pub fn run(args: &ChattrArgs, globals: &Globals) -> Result<(), CliError> {
    let (change, paths) = FlagChange::parse(&args.operands).map_err(CliError::usage)?;
    if change.is_empty() && args.project.is_none() && args.generation.is_none() {
        return Err(CliError::usage("nothing to change: give +, - or = with flags, -p or -v"));
    }
    let operands = operands(paths)?;
    if operands.is_empty() {
        return Err(CliError::usage("DEVICE:/path is needed"));
    }
    let reach = Reach { recursive: args.recursive, follow: true, silent: args.silent };
    let changer = Changer::new(globals, reach, operands.len());
    changer.run(
        &operands,
        |_, _| Ok(Missing::Change),
        |changer, found| {
            let kind = found.before.kind;
            if args.recursive && !matches!(kind, FileKind::Regular | FileKind::Directory) {
                return Ok(());
            }
            let set = SetAttributes::new();
            let set = if change.is_empty() { set } else { set.flags(change.of(found.before.flags, kind)) };
            let set = args.project.into_iter().fold(set, SetAttributes::project);
            let set = args.generation.into_iter().fold(set, SetAttributes::generation);
            let after = changer.set(found, &set)?;
            if args.verbose {
                changer.line("flags of", found, &format!("set as {}", shown(after.flags)))?;
            }
            Ok(())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<(FlagChange, usize), String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        FlagChange::parse(&words).map(|(change, rest)| (change, rest.len()))
    }

    #[test]
    fn flags_are_those_of_chattr() {
        let (extents, immutable) = (InodeFlags::EXTENTS, InodeFlags::IMMUTABLE);
        for (words, before, kind, after) in [
            (&["+i", "a.img:/x"][..], extents, FileKind::Regular, extents | immutable),
            (&["-i", "x"], extents | immutable, FileKind::Regular, extents),
            (&["=A", "x"], extents | immutable, FileKind::Regular, extents | InodeFlags::NOATIME),
            (&["+iD", "-A", "x"], extents | InodeFlags::NOATIME, FileKind::Regular, extents | immutable),
            (&["+D", "x"], extents, FileKind::Directory, extents | InodeFlags::DIRSYNC),
        ] {
            let (change, left) = parse(words).unwrap();
            assert_eq!((change.of(before, kind), left), (after, 1), "{words:?}");
        }
        for bad in [&["+q", "x"][..], &["+i", "=a", "x"], &["+i", "-i", "x"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(shown(immutable | extents), "----i-------e----");
    }
}
