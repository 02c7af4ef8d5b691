//! Archives and images of containers that a fuzzer describes: they become a tree, and the tree a sound volume with the
//! same files, or a named error.
//!
//! The first byte chooses what the rest is, and the volume's options:
//!
//! | lowest two bits | the rest |
//! |---|---|
//! | 0 | an archive, byte by byte, maybe compressed |
//! | 1 | a script of headers, so that few bytes are one or two archives with right checksums |
//! | 2 | the files of an OCI layout: see [`layout`] |
//! | 3 | two archives; the length of the first comes first |

use crate::gather_script::archives;
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{Cursor, Write as _};
use std::path::Path;
use std::sync::Arc;
use uext4::device::{Device, MemoryDevice, MemoryOptions};
use uext4::mkfs::{self, Defaults, Free, ItemId, ItemKind, Options, Source, Tree, format_tree, smallest};
use uext4::{FileKind, Node, OpenOptions, Timestamp, Volume, VolumeOptions};
use uext4_check::{CheckOptions, check};
use uext4_transfer::{ArchiveInput, Failures, GatherOptions, Gathered, Gathering};

/// Bytes of contents and of memory that a tree may take.
const DATA_MAX: u64 = 1 << 20;
const MEMORY_MAX: u64 = 16 << 20;
/// Size of a volume that is not the smallest one.
const VOLUME: u64 = 8 << 20;
/// Features of the volumes.
const FEATURES: [&str; 8] = [
    "",
    "^has_journal",
    "inline_data",
    "ea_inode,quota,project",
    "^extent,^64bit,^flex_bg",
    "^dir_index",
    "^metadata_csum",
    "large_dir,casefold",
];

/// Gathers what the input describes, makes a volume of it and compares. Returns how many files the volume has; 0 if
/// the input is refused.
///
/// # Panics
/// If a tree cannot be read, or a volume is not sound or not the tree.
pub fn run(input: &[u8]) -> usize {
    let (&first, rest) = input.split_first().unwrap_or((&0, &[]));
    let gathered = match first & 3 {
        0 => gather(vec![rest.to_vec()]),
        1 => gather(archives(rest)),
        2 => gather_image(rest),
        _ => {
            let (length, rest) = rest.split_at(rest.len().min(2));
            let length = length.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
            let (lower, upper) = rest.split_at(length.min(rest.len()));
            gather(vec![lower.to_vec(), upper.to_vec()])
        }
    };
    match gathered {
        Ok(gathered) => make(&gathered, usize::from(first >> 2)),
        Err(failures) => {
            assert!(!failures.errors.is_empty() && !failures.to_string().is_empty());
            0
        }
    }
}

fn options() -> GatherOptions {
    let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    GatherOptions { bytes_max: Some(DATA_MAX), memory_max: MEMORY_MAX, time, ..GatherOptions::default() }
}

fn gather(layers: Vec<Vec<u8>>) -> Result<Gathered, Failures> {
    let mut gathering = Gathering::new(options());
    for layer in layers {
        gathering.archive(Path::new("layer"), ArchiveInput::Stream(Box::new(Cursor::new(layer))))?;
    }
    gathering.finish()
}

fn gather_image(input: &[u8]) -> Result<Gathered, Failures> {
    let folder = tempfile::tempdir().expect("a folder for the layout");
    for (name, bytes) in layout(input) {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder.path())).expect("a folder for blobs");
        std::fs::write(path, bytes).expect("a file of the layout");
    }
    let mut gathering = Gathering::new(options());
    gathering.oci(folder.path(), None)?;
    gathering.finish()
}

/// A file of a layout, as it is stored and before it was compressed.
struct Part {
    stored: Vec<u8>,
    plain: Vec<u8>,
}

/// The files of a layout. The input is a sequence of parts: a byte for the kind, two for the length, and the bytes. The
/// first part is `index.json`, the others are blobs. A part is stored as it is (kind 0), or is text (1), bytes to
/// compress (2), a script of headers (3), or one to compress (4). In a text, `@N` becomes the digest of part N, `#N`
/// its size, `^N` the digest of what it was before it was compressed: so digests are right even where parts are not.
pub fn layout(input: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut pieces = Vec::new();
    let mut rest = input;
    while let [kind, low, high, more @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (bytes, behind) = more.split_at(length);
        pieces.push((*kind, bytes));
        rest = behind;
    }
    // A text refers to parts behind it.
    let mut parts: Vec<Option<Part>> = pieces.iter().map(|_| None).collect();
    for (at, (kind, bytes)) in pieces.iter().enumerate().rev() {
        let plain = match kind % 5 {
            1 => filled_in(bytes, &parts),
            3 | 4 => archives(bytes).concat(),
            _ => bytes.to_vec(),
        };
        let stored = if matches!(kind % 5, 2 | 4) { packed(&plain) } else { plain.clone() };
        parts[at] = Some(Part { stored, plain });
    }
    let named = parts.into_iter().flatten().enumerate().map(|(at, part)| match at {
        0 => ("index.json".to_owned(), part.stored),
        _ => (format!("blobs/sha256/{}", hex(&part.stored)), part.stored),
    });
    let version = ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    std::iter::once(version).chain(named).collect()
}

fn packed(plain: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(plain).and_then(|()| packer.finish()).expect("memory takes everything")
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        let _always = write!(hex, "{byte:02x}");
        hex
    })
}

fn filled_in(text: &[u8], parts: &[Option<Part>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let part = behind.first().and_then(|digit| {
            let number = digit.checked_sub(b'0')?;
            parts.get(usize::from(number))?.as_ref()
        });
        let said = match (byte, part) {
            (b'@', Some(part)) => format!("sha256:{}", hex(&part.stored)),
            (b'^', Some(part)) => format!("sha256:{}", hex(&part.plain)),
            (b'#', Some(part)) => part.stored.len().to_string(),
            _ => {
                out.push(*byte);
                continue;
            }
        };
        out.extend(said.bytes());
        rest = &behind[1..];
    }
    out
}

/// Makes a volume of the tree, sometimes the smallest one, and compares it with the tree.
fn make(gathered: &Gathered, choice: usize) -> usize {
    let mut options = Options::new(Defaults::Upstream);
    (options.uuid, options.time) = (Some([7; 16]), Some(1_700_000_000));
    let features = FEATURES[choice / 4 % FEATURES.len()];
    options = options.features(features).expect("known features");
    if features.contains("casefold") {
        options = options.extended("encoding=utf8").expect("a known encoding");
    }
    let device = |size| MemoryDevice::new(MemoryOptions::new(size)).expect("a device in memory");
    if choice.is_multiple_of(4) {
        match smallest(device(VOLUME).geometry(), &options, &gathered.tree, Free::Bytes(0)) {
            Ok(smallest) => options = smallest,
            Err(error) => return refused(&error),
        }
    }
    let device: Arc<dyn Device> = Arc::new(device(options.size.unwrap_or(VOLUME)));
    if let Err(error) = format_tree(&*device, &options, &gathered.tree, gathered) {
        return refused(&error);
    }
    let volume = Volume::open_device(device, VolumeOptions::read_only()).expect("a new volume");
    let report = check(&volume, &CheckOptions::new().threads(1), &mut |_| ()).expect("a volume to check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    compare(gathered, &volume)
}

/// Trees that no volume can hold: which is no failure of the device.
fn refused(error: &mkfs::Error) -> usize {
    assert!(!matches!(error, mkfs::Error::Failed(_)), "{error}");
    assert!(!error.to_string().is_empty());
    0
}

/// The volume has the files of the tree, with their contents, and no others.
fn compare(gathered: &Gathered, volume: &Volume) -> usize {
    let tree = &gathered.tree;
    let (mut pending, mut found) = (vec![(Tree::ROOT, volume.root().expect("a root"))], 0);
    while let Some((id, node)) = pending.pop() {
        found += 1;
        same(gathered, id, &node);
        if node.kind() != FileKind::Directory {
            continue;
        }
        let mut names: Vec<Vec<u8>> =
            node.read_dir().expect("names").map(|entry| entry.expect("a name").name).collect();
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        let mut wanted: Vec<Vec<u8>> = tree.names(id).map(|(name, _)| name.to_vec()).collect();
        if id == Tree::ROOT && tree.find(id, b"lost+found").is_none() {
            wanted.push(b"lost+found".to_vec());
            wanted.sort();
        }
        assert_eq!(names, wanted);
        for (name, child) in tree.names(id) {
            pending.push((child, node.look_up(name).expect("what a name leads to")));
        }
    }
    found
}

fn same(gathered: &Gathered, id: ItemId, node: &Node) {
    let (item, seen) = (gathered.tree.item(id), node.attributes());
    assert_eq!((u32::from(item.mode), item.uid, item.gid), (seen.mode, seen.uid, seen.gid));
    for (name, value) in &item.xattrs {
        assert_eq!(&node.xattr(name).expect("an attribute"), value);
    }
    match &item.kind {
        ItemKind::Directory(_) => assert_eq!(seen.kind, FileKind::Directory),
        ItemKind::Symlink(target) => assert_eq!(&node.read_link().expect("a target"), target),
        ItemKind::Fifo => assert_eq!(seen.kind, FileKind::Fifo),
        ItemKind::Socket => assert_eq!(seen.kind, FileKind::Socket),
        ItemKind::Char(major, minor) => {
            assert_eq!((seen.kind, seen.rdev), (FileKind::CharDevice, (*major, *minor)))
        }
        ItemKind::Block(major, minor) => {
            assert_eq!((seen.kind, seen.rdev), (FileKind::BlockDevice, (*major, *minor)));
        }
        ItemKind::Regular(contents) => {
            assert_eq!((seen.kind, seen.size), (FileKind::Regular, contents.size));
            let file = node.open(OpenOptions::new().read(true)).expect("a file");
            let mut end = None;
            for range in &contents.data {
                assert!(end.is_none_or(|end| end < range.start) && range.start < range.end);
                assert!(range.end <= contents.size);
                end = Some(range.end);
                let mut wanted = vec![0; (range.end - range.start) as usize];
                gathered.read(contents.key, range.start, &mut wanted).expect("contents of the tree");
                let mut stored = vec![0; wanted.len()];
                let read = file.read_any_at(&mut stored, range.start).expect("contents of the volume");
                assert!(read == stored.len() && stored == wanted);
            }
        }
    }
}
