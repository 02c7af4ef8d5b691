//! What a tree looks like, as a value that two readers of one volume can compare.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::digest::SparseDigest;

/// Type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    BlockDevice,
    CharDevice,
    Fifo,
    Socket,
}

/// One path of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type.
    pub kind: Kind,
    /// Permission bits, set-id and sticky bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `st_size`, bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970 (negative before).
    pub mtime_ns: i128,
    /// Link count.
    pub nlink: u64,
    /// Device number (major, minor) of a device node, else (0, 0).
    pub rdev: (u32, u32),
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// [`SparseDigest`] of a regular file's content.
    pub digest: Option<[u8; 32]>,
    /// Extended attributes by full name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Path (bytes, `/` for the root itself, else `/a/b`) to entry.
pub type Manifest = BTreeMap<Vec<u8>, Entry>;

/// Describes the tree under `root` without crossing into other file systems.
///
/// # Panics
/// On any error: a tree that cannot be read has no manifest.
#[track_caller]
pub fn manifest(root: &Path) -> Manifest {
    let mut out = Manifest::new();
    let top = meta(root);
    let device = top.dev();
    let mut pending = vec![(b"/".to_vec(), root.to_owned(), top)];
    while let Some((name, path, meta_of)) = pending.pop() {
        if meta_of.is_dir() && meta_of.dev() == device {
            for child in std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
                let child = child.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let mut child_name = if name == b"/" { Vec::new() } else { name.clone() };
                child_name.push(b'/');
                child_name.extend(child.file_name().as_bytes());
                pending.push((child_name, child.path(), meta(&child.path())));
            }
        }
        out.insert(name, entry(&path, &meta_of));
    }
    out
}

#[track_caller]
fn meta(path: &Path) -> Metadata {
    std::fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn kind_of(meta: &Metadata) -> Kind {
    let kind = meta.file_type();
    match () {
        () if kind.is_file() => Kind::File,
        () if kind.is_dir() => Kind::Directory,
        () if kind.is_symlink() => Kind::Symlink,
        () if kind.is_block_device() => Kind::BlockDevice,
        () if kind.is_char_device() => Kind::CharDevice,
        () if kind.is_fifo() => Kind::Fifo,
        () => Kind::Socket,
    }
}

#[track_caller]
fn entry(path: &Path, meta: &Metadata) -> Entry {
    let kind = kind_of(meta);
    let is_device = matches!(kind, Kind::BlockDevice | Kind::CharDevice);
    let rdev = meta.rdev();
    Entry {
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        mtime_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
        nlink: meta.nlink(),
        rdev: if is_device { (rustix::fs::major(rdev), rustix::fs::minor(rdev)) } else { (0, 0) },
        target: (kind == Kind::Symlink).then(|| {
            let target = std::fs::read_link(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            target.into_os_string().into_vec()
        }),
        digest: (kind == Kind::File).then(|| file_digest(path)),
        xattrs: xattrs(path),
    }
}

/// [`SparseDigest`] of a file, reading only what `SEEK_DATA` names.
#[track_caller]
pub fn file_digest(path: &Path) -> [u8; 32] {
    digest_of(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn digest_of(path: &Path) -> std::io::Result<[u8; 32]> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut digest = SparseDigest::new();
    let mut buf = vec![0; 1 << 20];
    let mut pos = 0;
    while pos < size {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(pos)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?.min(size);
        pos = start;
        while pos < end {
            let want = buf.len().min((end - pos) as usize);
            file.read_exact_at(&mut buf[..want], pos)?;
            digest.update(pos, &buf[..want]);
            pos += want as u64;
        }
    }
    Ok(digest.finish(size))
}

#[track_caller]
fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    // One buffer of the kernel's limits (XATTR_LIST_MAX, XATTR_SIZE_MAX) instead of asking for sizes first.
    let mut names = vec![0; 65_536];
    let length = match rustix::fs::llistxattr(path, names.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return BTreeMap::new(),
        Err(e) => panic!("{}: llistxattr: {e}", path.display()),
    };
    let mut value = vec![0; 65_536];
    names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice())
                .unwrap_or_else(|e| panic!("{}: lgetxattr {}: {e}", path.display(), name.escape_ascii()));
            (name.to_vec(), value[..length].to_vec())
        })
        .collect()
}

/// Every difference between two manifests, one line each, at most 50.
pub fn differences(expected: &Manifest, found: &Manifest) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, entry) in expected {
        let name = path.escape_ascii();
        match found.get(path) {
            None => lines.push(format!("{name}: missing")),
            Some(other) if other == entry => {}
            Some(other) => lines.push(format!("{name}:\n  expected {entry:?}\n  found    {other:?}")),
        }
    }
    for path in found.keys().filter(|path| !expected.contains_key(*path)) {
        lines.push(format!("{}: not expected", path.escape_ascii()));
    }
    lines.truncate(50);
    lines
}

/// Checks that a manifest is one of several. The error tells how it differs from the nearest.
///
/// # Errors
/// If it is none of them.
pub fn is_one_of(possible: &[Manifest], found: &Manifest) -> Result<(), String> {
    if possible.contains(found) {
        return Ok(());
    }
    let nearest = possible.iter().map(|one| differences(one, found)).min_by_key(Vec::len);
    Err(format!("the tree was none of {}: {}", possible.len(), nearest.unwrap_or_default().join("\n")))
}

/// Asserts that two manifests are equal.
///
/// # Panics
/// With the differences.
#[track_caller]
pub fn assert_same(expected: &Manifest, found: &Manifest) {
    let lines = differences(expected, found);
    assert!(lines.is_empty(), "{} differences:\n{}", lines.len(), lines.join("\n"));
}
