//! debugfs as the second reader, where no kernel here can mount the volume: attributes of inodes and locations of their
//! blocks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use uext4::{File, Metadata, State, Timestamp};
use uext4_testkit::SparseDigest;
use uext4_testkit::oracle::{command, text};

/// Where a logical block is, and whether it is unwritten.
pub type Blocks = BTreeMap<u64, (u64, bool)>;

/// An inode as debugfs's `stat` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub ino: u32,
    pub mode: u32,
    pub flags: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub links: u32,
    pub sectors: u64,
    pub changed: Timestamp,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub rdev: (u32, u32),
}

impl Seen {
    /// The same, as reported by this library.
    pub fn ours(meta: &Metadata) -> Seen {
        Seen {
            ino: meta.ino.get(),
            mode: meta.mode,
            flags: meta.flags.bits(),
            uid: meta.uid,
            gid: meta.gid,
            size: meta.size,
            links: meta.links,
            sectors: meta.blocks,
            changed: meta.changed,
            accessed: meta.accessed,
            modified: meta.modified,
            rdev: meta.rdev,
        }
    }
}

/// One `stat` for each path, in one run of debugfs.
#[track_caller]
pub fn stat_all(image: &Path, paths: &[String]) -> Vec<(Seen, Blocks)> {
    let script = image.with_extension("stat");
    let mut requests = String::new();
    paths.iter().for_each(|path| writeln!(requests, "stat \"{path}\"").unwrap());
    std::fs::write(&script, requests).unwrap();
    let output = command("debugfs").arg("-f").arg(&script).arg(image).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    let inodes: Vec<_> = said.split("Inode: ").skip(1).map(inode).collect();
    assert_eq!(inodes.len(), paths.len(), "{}", String::from_utf8_lossy(&output.stderr));
    inodes
}

/// The word after `name` in `text`.
fn word<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = &text[text.find(name)? + name.len()..];
    rest.split_whitespace().next()
}

fn number<T: std::str::FromStr>(text: &str, name: &str) -> T {
    let value = word(text, name).and_then(|word| word.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// `0xseconds[:extra]`: the extra word has two more bits of seconds and the nanoseconds.
fn time(text: &str, name: &str) -> Timestamp {
    let value = word(text, name).unwrap().trim_start_matches("0x");
    let (seconds, extra) = value.split_once(':').unwrap_or((value, "0"));
    let seconds = u32::from_str_radix(seconds, 16).unwrap() as i32;
    let extra = u32::from_str_radix(extra, 16).unwrap();
    Timestamp { seconds: i64::from(seconds) + (i64::from(extra & 3) << 32), nanoseconds: extra >> 2 }
}

fn inode(text: &str) -> (Seen, Blocks) {
    let device = word(text, "Device major/minor number: ").map(|word| {
        let (major, minor) = word.split_once(':').unwrap();
        (major.parse().unwrap(), minor.parse().unwrap())
    });
    let flags = word(text, "Flags: ").unwrap().trim_start_matches("0x");
    let seen = Seen {
        ino: text.split_whitespace().next().unwrap().parse().unwrap(),
        mode: u32::from_str_radix(word(text, "Mode:").unwrap(), 8).unwrap(),
        flags: u32::from_str_radix(flags, 16).unwrap(),
        uid: number(text, "User:"),
        gid: number(text, "Group:"),
        size: number(text, "Size:"),
        links: number(text, "Links:"),
        sectors: number(text, "Blockcount:"),
        changed: time(text, "ctime: "),
        accessed: time(text, "atime: "),
        modified: time(text, "mtime: "),
        rdev: device.unwrap_or((0, 0)),
    };
    (seen, blocks(text))
}

/// The list `(0-11):595-606, (IND):607, (12[u]):608`: data blocks only.
fn blocks(text: &str) -> Blocks {
    let mut found = Blocks::new();
    let list =
        ["EXTENTS:\n", "BLOCKS:\n"].iter().find_map(|head| text.split_once(head)).map_or("", |both| both.1);
    for item in list.split([',', '\n']) {
        let Some((place, physical)) = item.trim().strip_prefix('(').and_then(|item| item.split_once("):"))
        else {
            continue;
        };
        let unwritten = place.ends_with("[u]");
        let ends = |range: &str| -> Option<(u64, u64)> {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        // An entry that is not a number is a block of the map itself.
        let Some((first, last)) = ends(place.trim_end_matches("[u]")) else { continue };
        let start = ends(physical).unwrap().0;
        found.extend((first..=last).map(|block| (block, (start + block - first, unwritten))));
    }
    found
}

/// The map of a file as reported by this library, up to its size.
pub fn our_blocks(file: &File, block: u64) -> Blocks {
    let mut found = Blocks::new();
    for piece in file.map().map(Result::unwrap).filter(|piece| piece.state != State::Hole) {
        for at in (0..piece.length).step_by(block as usize) {
            let place = ((piece.physical + at) / block, piece.state == State::Unwritten);
            found.insert((piece.logical + at) / block, place);
        }
    }
    found
}

/// The content of a file, read from the image at the blocks that debugfs reports.
pub fn digest(image: &std::fs::File, blocks: &Blocks, block: u64, size: u64) -> [u8; 32] {
    let mut digest = SparseDigest::new();
    let mut bytes = vec![0; block as usize];
    for (&logical, &(physical, unwritten)) in blocks {
        let length = block.min(size.saturating_sub(logical * block));
        if unwritten || length == 0 {
            continue;
        }
        image.read_exact_at(&mut bytes, physical * block).unwrap();
        digest.update(logical * block, &bytes[..length as usize]);
    }
    digest.finish(size)
}
