//! Everything a program may do with a volume that it only looks at.

use std::collections::HashSet;
use std::path::Component;

use uext4::explain::Query;
use uext4::plan::Sync;
use uext4::{FileKind, Ino, OpenOptions, QueueOptions, Visit, Volume, WalkOptions};

use crate::typed::typed;

/// Directory entries and pieces of a file that are looked at: a damaged size may promise four thousand million, and
/// nobody has to read them all.
const SOME: usize = 2000;
const BUFFER: usize = 9000;
/// Longest file that is read at once.
const READ_MOST: u64 = 1 << 20;
/// Places of a walk over the whole tree.
const TOLD_MOST: usize = 20_000;

/// Paths that exist on most base images, and some that lead astray.
const PATHS: [&str; 10] = [
    "/big/a rather long name for an entry, number 42",
    "/big/none",
    "/fast/file",
    "/slow",
    "/tree/..",
    "/deep/er/../er/./file",
    "/folded/NAME",
    "/new/file-7",
    "/lost+found",
    "//plain/",
];

/// Visits every inode that can be reached, and every one that exists. Returns how many could be read.
pub fn walk(volume: &Volume) -> usize {
    let mut pending = vec![Ino(2)];
    let mut seen: HashSet<Ino> = pending.iter().copied().collect();
    let mut readable = 0;
    let inodes = volume.superblock().geometry.inodes_count().min(256);
    pending.extend((1..=inodes).map(Ino).filter(|&ino| seen.insert(ino)));
    while let Some(ino) = pending.pop() {
        readable += usize::from(visit(volume, ino, &mut seen, &mut pending));
    }
    tree(volume);
    for kind in typed(volume.quota_kinds()).into_iter().flatten() {
        typed(volume.quotas(kind));
        typed(volume.quota_grace(kind));
    }
    for path in PATHS {
        typed(volume.resolve(path, true));
        typed(volume.symlink_metadata(path));
        typed(volume.read_link(path));
        typed(volume.exists(path));
        typed(volume.read_up_to(path, READ_MOST));
        if let Some(canonical) = typed(volume.canonicalize(path)) {
            assert!(
                canonical.is_absolute() && !canonical.components().any(|part| part == Component::ParentDir)
            );
        }
    }
    assert!(!format!("{:?}", volume.info()).is_empty());
    readable
}

/// The tree as the library walks it: no directory is entered twice, so it ends.
fn tree(volume: &Volume) {
    let Some(mut walk) = typed(volume.walk("/", WalkOptions::new().brackets(true))) else { return };
    let mut entered = HashSet::new();
    for _ in 0..TOLD_MOST {
        match walk.advance() {
            None => return,
            Some(Ok(entry)) if entry.visit == Visit::Enter => {
                assert!(entered.insert(entry.ino), "directory {} is entered twice", entry.ino);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                typed::<()>(Err(error.error));
            }
        }
    }
}

fn visit(volume: &Volume, ino: Ino, seen: &mut HashSet<Ino>, pending: &mut Vec<Ino>) -> bool {
    let Some(meta) = typed(volume.metadata_of(ino)) else { return false };
    attributes(volume, ino);
    match meta.kind {
        FileKind::Directory => list(volume, ino, seen, pending),
        FileKind::Symlink => typed(volume.read_link_of(ino)).is_some_and(|target| target.len() < 65_536),
        FileKind::Regular => read(volume, ino),
        _ => true,
    }
}

fn attributes(volume: &Volume, ino: Ino) {
    for name in typed(volume.list_xattrs_of(ino)).into_iter().flatten().filter_map(typed) {
        if let Some(value) = typed(volume.xattr_of(ino, name.as_bytes())) {
            assert!(value.len() <= uext4::XATTR_SIZE_MAX as usize, "{}", value.len());
        }
    }
    typed(volume.xattr_of(ino, "user.none"));
    // All at once says the same as one by one.
    for xattr in typed(volume.xattrs_of(ino)).into_iter().flatten().filter_map(typed) {
        let name = xattr.name().clone();
        assert_eq!(typed(xattr.value()), typed(volume.xattr_of(ino, &name)), "{name} of inode {ino}");
    }
    for kind in [uext4::AclKind::Access, uext4::AclKind::Default] {
        typed(volume.acl_of(ino, kind));
    }
    if let Some(node) = typed(volume.node(ino, None)) {
        typed(node.permits(&uext4::Caller::new(7, 7), uext4::Access::READ));
    }
}

fn list(volume: &Volume, ino: Ino, seen: &mut HashSet<Ino>, pending: &mut Vec<Ino>) -> bool {
    let Some(entries) = typed(volume.read_dir_of(ino)) else { return false };
    for entry in entries.take(SOME) {
        let Some(entry) = typed(entry) else { return false };
        assert!(!entry.name.is_empty() && entry.name.len() <= 255 && !entry.name.contains(&b'/'));
        if seen.insert(entry.ino) {
            pending.push(entry.ino);
        }
    }
    true
}

fn read(volume: &Volume, ino: Ino) -> bool {
    let Some(file) = typed(volume.open_inode(ino, OpenOptions::new().read(true))) else { return false };
    let size = file.size();
    let (mut fine, mut next) = (true, 0);
    for piece in file.map().take(SOME) {
        let Some(piece) = typed(piece) else {
            fine = false;
            break;
        };
        assert_eq!(piece.logical, next, "pieces follow one another");
        assert!(piece.length > 0);
        next = piece.end();
    }
    let mut memory = vec![0; BUFFER];
    for pos in [0, 1, size / 2, size.saturating_sub(5000), size, 1 << 42, i64::MAX as u64 - BUFFER as u64] {
        if let Some(read) = typed(file.read_any_at(&mut memory, pos)) {
            assert_eq!(read as u64, size.saturating_sub(pos).min(BUFFER as u64), "{ino} at {pos} of {size}");
        }
    }
    typed(file.verity());
    if size < READ_MOST {
        typed(file.verify_verity(&mut |_| {}));
    }
    for write in [false, true] {
        let query = Query { write, pos: size / 3, length: 8192, sync: Sync::Data, queued: true };
        typed(file.explain(&query));
    }
    if let Some(mut queue) = typed(volume.queue(QueueOptions::depth(1))) {
        let slot = queue.attach(&file).expect("an empty queue takes a file");
        let buffer = queue.buffer(16_384).expect("memory");
        if typed(queue.read(slot, 0, buffer, 1)).is_some() {
            for done in queue.wait(1).expect("a queue in memory") {
                typed(done.result.map_err(|error| *error));
            }
        }
    }
    fine
}
