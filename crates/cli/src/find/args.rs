//! What `find` can be told.

use super::conditions::{Amount, Moment, Permissions, Size};
use super::glob::Glob;
use crate::args::{CommonArgs, choice};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use uext4::FileKind;

const FIND_HELP: &str = "\
An entry is told if it passes every test given. Names and paths given several times, and several types, are
alternatives: one must pass. N is exactly N, +N more, -N less. Globs know * ? [a-z] [!a-z] and \\, and match
the whole name (or path, with --path), slashes and leading dots too.

A name is printed as DEVICE:/path, the argument in front as it was typed, so that other commands take it. In JSON,
`path` is the path inside the volume. A directory comes before what is in it; its entries come together in the order
of their inodes.
Errors are told one by one, and make the exit status 1.";

/// `uext4 find`.
#[derive(Args)]
#[command(after_help = FIND_HELP)]
pub struct FindArgs {
    /// Where to begin; the root directory without a path. Every name is printed behind its argument.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// The last component of the path matches.
    #[arg(long, value_name = "GLOB")]
    pub name: Vec<Glob>,
    /// The same, whatever the case of letters.
    #[arg(long, value_name = "GLOB")]
    pub iname: Vec<Glob>,
    /// The path inside the volume matches, from its root directory on.
    #[arg(long, value_name = "GLOB")]
    pub path: Vec<Glob>,
    /// Regular file, directory, link, block or character device, pipe, socket; several: f,l
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', hide_possible_values = true)]
    #[arg(value_parser = choice(KINDS))]
    pub kind: Vec<FileKind>,
    /// Size, rounded up to the unit: c bytes, k, M, G; without one, units of 512 bytes.
    #[arg(long, value_name = "[+-]N[ckMG]", allow_hyphen_values = true)]
    pub size: Vec<Size>,
    /// Contents changed so many whole days ago.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub mtime: Vec<Amount>,
    /// Attributes changed so many whole days ago.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub ctime: Vec<Amount>,
    /// Read so many whole days ago.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub atime: Vec<Amount>,
    /// Contents changed after this: 2026-11-21, `2026-11-21T05:16[:27]` (UTC), `@SECONDS`.
    #[arg(long, value_name = "TIME")]
    pub newermt: Option<Moment>,
    /// Nothing deeper than this; the start has depth 0.
    #[arg(long, value_name = "N")]
    pub maxdepth: Option<u32>,
    /// Nothing less deep than this.
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
    /// Hard links.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub links: Vec<Amount>,
    /// Inode number.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub inum: Vec<Amount>,
    /// A regular file of no bytes, or a directory without entries.
    #[arg(long)]
    pub empty: bool,
    /// End each path with a zero byte instead of a line end.
    #[arg(long, conflicts_with = "json")]
    pub print0: bool,
    /// Inode, KiB on the device, mode, links, owner, group, size and time of change too.
    #[arg(long, conflicts_with_all = ["json", "print0"])]
    pub ls: bool,
    /// How to open, and in which form.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The types, as find(1) abbreviates them.
const KINDS: [(&str, FileKind, &str); 7] = [
    ("f", FileKind::Regular, "Regular file"),
    ("d", FileKind::Directory, "Directory"),
    ("l", FileKind::Symlink, "Symbolic link"),
    ("b", FileKind::BlockDevice, "Block device"),
    ("c", FileKind::CharDevice, "Character device"),
    ("p", FileKind::Fifo, "Named pipe"),
    ("s", FileKind::Socket, "Socket"),
];
