//! The command language: words, flags, numbers.

use uext4::Fallocate;
use uext4::device::{closest, parse_scaled};

/// Help for the whole language, also in `--help` and the manual page.
pub const LANGUAGE: &str = "\
Commands (as in xfs_io; numbers take 0x and the suffixes b (4096 bytes), s (512), k, m, g, t, p, e):
  pread [-qvC] [-b BS] [-V N] OFFSET LENGTH
        read, BS bytes (4096) per call, with -V into N vectors of BS bytes; -v dumps
  pwrite [-qACDNOwW] [-S SEED] [-b BS] [-V N] OFFSET LENGTH
        write bytes of SEED (0xcd); -A each call never torn (RWF_ATOMIC), -D durable (RWF_DSYNC),
        -N does not wait (RWF_NOWAIT), -O one call only, -w then fdatasync, -W then fsync, both timed
  fsync, fdatasync
        make completed writes durable
  fiemap [-v] [OFFSET [LENGTH]]
        extents in sectors of 512 bytes
  stat
        inode, type, size, blocks
  help [COMMAND]
        this text, or the help of one command
  quit
        leave
  falloc [-k] OFFSET LENGTH
        allocate blocks that read as zeros for holes; -k keeps the size
  fpunch OFFSET LENGTH, fzero [-k] OFFSET LENGTH
        make the range read as zeros: fpunch frees its blocks, fzero keeps them
  fcollapse OFFSET LENGTH, finsert OFFSET LENGTH
        collapse the range, or insert a hole; both in whole blocks (clusters)
  truncate OFFSET
        set the size
-q prints nothing, -C one line: bytes,calls,seconds,bytes/s,calls/s. A call whose position and length are
multiples of the device's logical block is direct; any other goes through a bounce buffer, or is an error
with `io -d`. With -V one call moves N vectors of BS bytes, in one device request if the device takes
vectors; if they are not such multiples, one call of that size goes through a bounce buffer. With --json
each command that prints writes one object on a line; the bytes of pread -v are in base64.";

/// Names of commands, without the short forms.
const NAMES: [&str; 14] = [
    "pread",
    "pwrite",
    "fsync",
    "fdatasync",
    "fiemap",
    "stat",
    "quit",
    "help",
    "falloc",
    "fpunch",
    "fzero",
    "fcollapse",
    "finsert",
    "truncate",
];

/// Bytes meant by the suffix `b`, and per call without `-b`.
const BLOCK: u64 = 4096;
/// Maximum memory of one call.
pub const CALL_MAX: u64 = 1 << 30;
/// Maximum vectors of one call, as in Linux (`IOV_MAX`).
const VECTORS_MAX: u64 = 1024;

/// The range to read or write, and the size of each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes per call.
    pub call: u64,
    /// Bytes per vector of a call: `call`, unless there are several.
    pub vector: u64,
    /// Print nothing.
    pub quiet: bool,
    /// Print one line of numbers.
    pub condensed: bool,
}

impl Span {
    /// Vectors per call.
    pub fn vectors(&self) -> u64 {
        self.call / self.vector
    }
}

/// `pread`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// What.
    pub span: Span,
    /// Dump the bytes.
    pub dump: bool,
}

/// `pwrite`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// What.
    pub span: Span,
    /// The value of every byte written.
    pub seed: u8,
    /// Each call durable.
    pub dsync: bool,
    /// Fail rather than wait.
    pub nowait: bool,
    /// Never torn.
    pub atomic: bool,
    /// One call only.
    pub once: bool,
    /// `fdatasync` afterwards.
    pub sync_data: bool,
    /// `fsync` afterwards.
    pub sync_all: bool,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `pread`.
    Read(Read),
    /// `pwrite`.
    Write(Write),
    /// `fsync`, or `fdatasync`.
    Sync {
        /// All metadata too.
        all: bool,
    },
    /// `fiemap`.
    Map {
        /// As a table with flags.
        verbose: bool,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// `stat`.
    Stat,
    /// `help`.
    Help(Option<String>),
    /// `quit`.
    Quit,
    /// `falloc`, `fpunch`, `fzero`, `fcollapse`, `finsert`.
    Fallocate {
        /// What to do.
        mode: Fallocate,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// `truncate`.
    Truncate {
        /// The new size in bytes.
        size: u64,
    },
}

/// Parses a line: `None` if it is empty. The error is the reason, with the command's name.
pub fn parse(line: &str) -> Result<Option<Command>, String> {
    let mut words = line.split_whitespace();
    let Some(name) = words.next() else { return Ok(None) };
    let rest: Vec<&str> = words.collect();
    let command = match name {
        "pread" | "r" => read("pread", &rest),
        "pwrite" | "w" => write("pwrite", &rest),
        "fsync" | "s" => plain("fsync", &rest, Command::Sync { all: true }),
        "fdatasync" | "ds" => plain("fdatasync", &rest, Command::Sync { all: false }),
        "fiemap" => fiemap(&rest),
        "stat" => plain("stat", &rest, Command::Stat),
        "quit" | "q" => plain("quit", &rest, Command::Quit),
        "help" | "?" => help(&rest),
        "falloc" => fallocate("falloc", &rest, Fallocate::Allocate, Some(Fallocate::KeepSize)),
        "fpunch" => fallocate("fpunch", &rest, Fallocate::Punch, None),
        "fzero" => fallocate("fzero", &rest, Fallocate::Zero, Some(Fallocate::ZeroKeepSize)),
        "fcollapse" => fallocate("fcollapse", &rest, Fallocate::Collapse, None),
        "finsert" => fallocate("finsert", &rest, Fallocate::Insert, None),
        "truncate" | "t" => truncate(&rest),
        _ => {
            let hint = match closest(name, NAMES) {
                Some(known) => format!("did you mean {known}?"),
                None => "try `help`".into(),
            };
            Err(format!("command `{}` not found ({hint})", crate::text::visible(name.as_bytes())))
        }
    };
    command.map(Some)
}

/// Flags and operands, as in getopt: flags first, joined or separate, ended by `--`.
struct Words<'a> {
    name: &'static str,
    flags: Vec<(char, Option<&'a str>)>,
    operands: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// `plain`: flags without a value; `valued`: with one.
    fn split(name: &'static str, words: &[&'a str], plain: &str, valued: &str) -> Result<Self, String> {
        let mut flags = Vec::new();
        let mut operands = words.to_vec();
        let mut index = 0;
        while let Some(letters) = operands.get(index).and_then(|word| word.strip_prefix('-')) {
            index += 1;
            if letters == "-" {
                break;
            }
            if letters.is_empty() {
                return Err(format!("{name}: `-` is not a flag"));
            }
            let mut at = 0;
            for letter in letters.chars() {
                at += letter.len_utf8();
                if plain.contains(letter) {
                    flags.push((letter, None));
                } else if valued.contains(letter) {
                    let joined = &letters[at..];
                    let value = if joined.is_empty() {
                        index += 1;
                        *operands.get(index - 1).ok_or_else(|| format!("{name}: -{letter} needs a value"))?
                    } else {
                        joined
                    };
                    flags.push((letter, Some(value)));
                    break;
                } else {
                    return Err(format!("{name}: flag -{} is not supported", letter.escape_default()));
                }
            }
        }
        Ok(Words { name, flags, operands: operands.split_off(index) })
    }

    fn has(&self, flag: char) -> bool {
        self.flags.iter().any(|(letter, _)| *letter == flag)
    }

    /// The last one given counts.
    fn value(&self, flag: char) -> Option<&'a str> {
        self.flags.iter().rev().find(|(letter, _)| *letter == flag).and_then(|(_, value)| *value)
    }

    fn count(&self, range: std::ops::RangeInclusive<usize>) -> Result<(), String> {
        if range.contains(&self.operands.len()) {
            return Ok(());
        }
        Err(format!("{}: wrong number of arguments (try `help {}`)", self.name, self.name))
    }

    fn number(&self, index: usize, what: &str) -> Result<u64, String> {
        let word = self.operands.get(index).copied().unwrap_or_default();
        number(word).ok_or_else(|| format!("{}: `{word}` is not a valid {what}", self.name))
    }

    fn flag_number(&self, flag: char, what: &str) -> Result<Option<u64>, String> {
        let Some(word) = self.value(flag) else { return Ok(None) };
        number(word).map(Some).ok_or_else(|| format!("{}: `{word}` is not a valid {what}", self.name))
    }

    fn span(&self) -> Result<Span, String> {
        self.count(2..=2)?;
        let (offset, length) = (self.number(0, "offset")?, self.number(1, "length")?);
        if offset.checked_add(length).is_none_or(|end| end > 1 << 63) {
            return Err(format!("{}: the range ends past byte 2^63", self.name));
        }
        let block = self.flag_number('b', "block size")?.unwrap_or(BLOCK);
        let vectors = self.flag_number('V', "number of vectors")?.unwrap_or(1);
        if vectors == 0 || vectors > VECTORS_MAX {
            return Err(format!("{}: -V takes 1 to {VECTORS_MAX}", self.name));
        }
        let call = block.checked_mul(vectors).filter(|call| (1..=CALL_MAX).contains(call));
        let call = call.ok_or_else(|| format!("{}: a call moves 1 to {CALL_MAX} bytes", self.name))?;
        Ok(Span { offset, length, call, vector: block, quiet: self.has('q'), condensed: self.has('C') })
    }
}

/// A number as in xfs_io, or a fraction (`1.5g`).
pub fn number(word: &str) -> Option<u64> {
    parse_scaled(word, |unit| match unit {
        "" => Some(1),
        "b" => Some(BLOCK),
        "s" => Some(512),
        "k" | "K" => Some(1 << 10),
        "m" | "M" => Some(1 << 20),
        "g" | "G" => Some(1 << 30),
        "t" | "T" => Some(1 << 40),
        "p" | "P" => Some(1 << 50),
        "e" | "E" => Some(1 << 60),
        _ => None,
    })
}

fn read(name: &'static str, words: &[&str]) -> Result<Command, String> {
    let words = Words::split(name, words, "qvC", "bV")?;
    Ok(Command::Read(Read { span: words.span()?, dump: words.has('v') }))
}

fn write(name: &'static str, words: &[&str]) -> Result<Command, String> {
    let words = Words::split(name, words, "qADNOwWC", "bVS")?;
    let seed = words.flag_number('S', "seed")?.unwrap_or(0xcdcd_cdcd);
    Ok(Command::Write(Write {
        span: words.span()?,
        // The lowest byte, as in memset(3).
        seed: (seed & 0xff) as u8,
        dsync: words.has('D'),
        nowait: words.has('N'),
        atomic: words.has('A'),
        once: words.has('O'),
        sync_data: words.has('w'),
        sync_all: words.has('W'),
    }))
}

fn plain(name: &'static str, words: &[&str], command: Command) -> Result<Command, String> {
    let words = Words::split(name, words, "", "")?;
    words.count(0..=0)?;
    Ok(command)
}

fn fiemap(words: &[&str]) -> Result<Command, String> {
    let words = Words::split("fiemap", words, "v", "")?;
    words.count(0..=2)?;
    let given = |index: usize, what, default| {
        if words.operands.len() > index { words.number(index, what) } else { Ok(default) }
    };
    Ok(Command::Map {
        verbose: words.has('v'),
        offset: given(0, "offset", 0)?,
        length: given(1, "length", u64::MAX)?,
    })
}

fn help(words: &[&str]) -> Result<Command, String> {
    let words = Words::split("help", words, "", "")?;
    words.count(0..=1)?;
    let Some(&name) = words.operands.first() else { return Ok(Command::Help(None)) };
    if LANGUAGE.lines().any(|line| describes(line, name)) {
        return Ok(Command::Help(Some(name.to_owned())));
    }
    Err(format!("help: command `{}` not found", crate::text::visible(name.as_bytes())))
}

/// Whether a line of [`LANGUAGE`] describes the command.
pub fn describes(line: &str, name: &str) -> bool {
    let is_entry = line.starts_with("  ") && !line.starts_with("   ");
    is_entry && line.split([' ', ',']).any(|word| word == name && !word.is_empty())
}

/// `keeping`: the mode with `-k`, if the command has that flag.
fn fallocate(
    name: &'static str,
    words: &[&str],
    plain: Fallocate,
    keeping: Option<Fallocate>,
) -> Result<Command, String> {
    let words = Words::split(name, words, if keeping.is_some() { "k" } else { "" }, "")?;
    words.count(2..=2)?;
    let mode = keeping.filter(|_| words.has('k')).unwrap_or(plain);
    Ok(Command::Fallocate { mode, offset: words.number(0, "offset")?, length: words.number(1, "length")? })
}

fn truncate(words: &[&str]) -> Result<Command, String> {
    let words = Words::split("truncate", words, "", "")?;
    words.count(1..=1)?;
    Ok(Command::Truncate { size: words.number(0, "offset")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(line: &str) -> Write {
        match parse(line) {
            Ok(Some(Command::Write(write))) => write,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn numbers_of_xfs_io() {
        let table = [
            ("0", Some(0)),
            ("32m", Some(32 << 20)),
            ("4k", Some(4096)),
            ("2b", Some(8192)),
            ("2s", Some(1024)),
            ("0x10", Some(16)),
            ("0x1b", Some(27)),
            ("7e", Some(7 << 60)),
            ("16e", None),
            ("-1", None),
            ("", None),
            ("k", None),
            ("4kk", None),
            ("4.5k", Some(4608)),
            ("4.5", None),
        ];
        for (word, value) in table {
            assert_eq!(number(word), value, "{word}");
        }
    }

    #[test]
    fn flags_mean_what_they_mean_there() {
        let write = written("pwrite -V 1 -D 0 32m");
        assert!(write.dsync && !write.nowait && !write.sync_all);
        assert_eq!((write.span.offset, write.span.length, write.span.call), (0, 32 << 20, 4096));
        assert_eq!(write.seed, 0xcd);
        let write = written("w -qNWb64k -V4 -S 0x1ab 4k 1");
        assert_eq!(write.span.call, 256 << 10);
        assert!(write.nowait && write.sync_all && write.span.quiet && !write.sync_data);
        assert_eq!(write.seed, 0xab);
    }

    #[test]
    fn bad_language() {
        for line in [
            "pwrit 0 1",
            "pwrite 0",
            "pwrite 0 1 2",
            "pwrite -x 0 1",
            "pwrite -i file 0 1",
            "pwrite -B 0 1",
            "pwrite -b 0 0 1",
            "pwrite -b 2g 0 1",
            "pwrite -V 0 0 1",
            "pwrite -V 1025 0 1",
            "pwrite 0 -1",
            "pread 0 1q",
            "pread -S 1 0 1",
            "pread -b",
            "pread 8e 1",
            "fsync 1",
            "fdatasync -a",
            "fiemap 1 2 3",
            "falloc 0",
            "fpunch -k 0 1",
            "truncate",
            "truncate x",
            "help nothing",
            "pread - 0 1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert_eq!(parse("  "), Ok(None));
        let falloc = |mode, offset, length| Ok(Some(Command::Fallocate { mode, offset, length }));
        assert_eq!(parse("falloc -k 0 1m"), falloc(Fallocate::KeepSize, 0, 1 << 20));
        assert_eq!(parse("fzero 1k 5"), falloc(Fallocate::Zero, 1024, 5));
        assert_eq!(parse("t 1b"), Ok(Some(Command::Truncate { size: 4096 })));
        assert_eq!(parse("fsync"), Ok(Some(Command::Sync { all: true })));
    }

    #[test]
    fn every_command_has_help() {
        for name in ["pread", "pwrite", "fsync", "fdatasync", "fiemap", "stat", "quit", "falloc", "truncate"]
        {
            assert_eq!(parse(&format!("help {name}")), Ok(Some(Command::Help(Some(name.into())))), "{name}");
        }
    }
}
