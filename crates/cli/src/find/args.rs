//! The arguments of `find`.

use super::conditions::{Amount, Moment, Permissions, Size};
use super::glob::Glob;
use crate::args::{CommonArgs, choice};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use uext4::FileKind;

const FIND_HELP: &str = "\
An entry is printed if it passes every test given. Names and paths given several times, and several types, are
alternatives: one must pass. N is exactly N, +N more, -N less. Globs take * ? [a-z] [!a-z] and \\, and match
the whole name (or path, with --path), including slashes and leading dots.

A name is printed as DEVICE:/path, with the argument as typed, so that other commands accept it. In JSON, `path` is
the path inside the volume. A directory comes before its contents; its entries come together in inode order.
Errors are reported one by one, and make the exit status 1.";

/// `uext4 find`.
#[derive(Args)]
#[command(after_help = FIND_HELP)]
pub struct FindArgs {
    /// Where to start; the root directory without a path. Every name is printed after its argument.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// The last component of the path matches.
    #[arg(long, value_name = "GLOB")]
    pub name: Vec<Glob>,
    /// Same, ignoring case.
    #[arg(long, value_name = "GLOB")]
    pub iname: Vec<Glob>,
    /// The whole path inside the volume, from its root directory, matches.
    #[arg(long, value_name = "GLOB")]
    pub path: Vec<Glob>,
    /// Regular file, directory, link, block or character device, pipe, socket; several: f,l
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', hide_possible_values = true)]
    #[arg(value_parser = choice(KINDS))]
    pub kind: Vec<FileKind>,
    /// Size, rounded up to the unit: c bytes, k, M, G; without one, units of 512 bytes.
    #[arg(long, value_name = "[+-]N[ckMG]", allow_hyphen_values = true)]
    pub size: Vec<Size>,
    /// Contents changed this many whole days ago.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub mtime: Vec<Amount>,
    /// Attributes changed this many whole days ago.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub ctime: Vec<Amount>,
    /// Read this many whole days ago.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub atime: Vec<Amount>,
    /// Contents changed after this: 2026-11-21, `2026-11-21T05:16[:27]` (UTC), `@SECONDS`.
    #[arg(long, value_name = "TIME")]
    pub newermt: Option<Moment>,
    /// Go no deeper than this; the start has depth 0.
    #[arg(long, value_name = "N")]
    pub maxdepth: Option<u32>,
    /// Skip entries less deep than this.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub mindepth: u32,
    /// Owner, a number.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub uid: Vec<Amount>,
    /// Group, a number.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub gid: Vec<Amount>,
    /// Mode bits, octal: exactly these, all of these (-644), any of these (/222).
    #[arg(long, value_name = "[-/]MODE", allow_hyphen_values = true)]
    pub perm: Vec<Permissions>,
    /// Number of hard links.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub links: Vec<Amount>,
    /// Inode number.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub inum: Vec<Amount>,
    /// An empty regular file, or a directory without entries.
    #[arg(long)]
    pub empty: bool,
    /// End each path with a zero byte instead of a line end.
    #[arg(long, conflicts_with = "json")]
    pub print0: bool,
    /// Print inode, KiB on the device, mode, links, owner, group, size and modification time too.
    #[arg(long, conflicts_with_all = ["json", "print0"])]
    pub ls: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The types with the letters of find(1).
const KINDS: [(&str, FileKind, &str); 7] = [
    ("f", FileKind::Regular, "Regular file"),
    ("d", FileKind::Directory, "Directory"),
    ("l", FileKind::Symlink, "Symbolic link"),
    ("b", FileKind::BlockDevice, "Block device"),
    ("c", FileKind::CharDevice, "Character device"),
    ("p", FileKind::Fifo, "Named pipe"),
    ("s", FileKind::Socket, "Socket"),
];
