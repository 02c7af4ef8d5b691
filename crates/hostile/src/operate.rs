//! Changes a volume in every way there is: files grow, holes and unwritten blocks are filled, everything is synced and
//! brought home.

use crate::images;
use crate::targets::check;
use crate::typed::typed;
use uext4::{
    Caller, Error, Fallocate, FileKind, Ino, InodeFlags, Node, NodeKind, OpenOptions, QuotaGrace, QuotaKind,
    QuotaLimits, RenameFlags, SetAttributes, Time, Timestamp, Volume, VolumeOptions, WriteFlags, XattrFlags,
};

/// What is written.
const INK: u8 = 0x5a;
/// Bytes that a file gets more at a time.
const MORE: u64 = 3000;
/// Files that are changed.
const FILES: u32 = 128;

/// The value, if there is one. A volume may besides be full, or have been given up after a first change.
#[track_caller]
fn changed<T>(result: uext4::Result<T>) -> Option<T> {
    match result {
        Err(Error::NoSpace | Error::Limit(_) | Error::QuotaExceeded { .. } | Error::Aborted(_)) => None,
        other => typed(other),
    }
}

/// Makes files in the root directory, fills them, and removes every second one, one of them while it is open.
fn names(volume: &Volume) -> usize {
    let mut made = 0;
    for number in 0..6 {
        let name = format!("/a name that nobody else has, {number}");
        let options = OpenOptions::new().write(true).create_new(true);
        let Some(file) = changed(volume.open_file(&name, options)) else { continue };
        made += 1;
        changed(file.write_any_at(&[INK; MORE as usize], 0, WriteFlags::empty()));
        if number % 2 == 0 {
            changed(volume.remove_file(&name));
        }
    }
    made
}

/// Directories in which names are changed, and names of each that are tried.
const DIRECTORIES: usize = 24;
const NAMES: usize = 6;

/// As [`changed`], of a change that the state of the names may rule out too.
#[track_caller]
fn renamed<T>(result: uext4::Result<T>) -> Option<T> {
    match result {
        Err(Error::Exists | Error::NotEmpty | Error::Invalid(_) | Error::OtherProject | Error::Stale(_)) => {
            None
        }
        other => changed(other),
    }
}

/// Makes, links, renames and removes names of all kinds in the directories that are there, and what they lead to.
fn tree(volume: &Volume) {
    let inodes = volume.superblock().geometry.inodes_count().min(4 * FILES);
    let nodes = (1..=inodes).filter_map(|ino| typed(volume.node(Ino(ino), None)));
    let directories: Vec<Node> =
        nodes.filter(|node| node.kind() == FileKind::Directory).take(DIRECTORIES).collect();
    let caller = Caller::new(5, 6);
    for (at, node) in directories.iter().enumerate() {
        let other = &directories[(at + 1) % directories.len()];
        let made = renamed(node.make_dir(b"new directory", 0o755, &caller));
        renamed(node.make_symlink(b"new link", vec![b't'; 40 * at + 1], &caller));
        renamed(node.make_node(b"new node", NodeKind::Char { major: 1, minor: 2 }, 0o600, &caller));
        if let Some(made) = &made {
            renamed(made.create("n".repeat(200), 0o644, &caller));
            renamed(made.make_dir(b"below", 0o2775, &caller));
            renamed(made.set_xattr(b"user.ink", vec![INK; 60 * at], XattrFlags::empty()));
            renamed(made.remove_dir(b"below"));
        }
        if let Some(unnamed) = renamed(node.make_unnamed(0o600, &caller)) {
            renamed(node.link(b"named at last", &unnamed));
        }
        // What was there before: some names of each directory.
        let listed = typed(node.read_dir()).into_iter().flatten().map_while(typed);
        let names: Vec<Vec<u8>> = listed.map(|entry| entry.name).take(2 + NAMES).collect();
        for (number, name) in names.iter().filter(|name| *name != b"." && *name != b"..").enumerate() {
            if let Some(found) = renamed(node.look_up(name)) {
                renamed(other.link(format!("link {number}"), &found));
                renamed(found.set_xattr(b"user.ink", vec![INK; 300], XattrFlags::empty()));
                renamed(found.remove_xattr(b"user.ink"));
            }
            let new = format!("renamed {number}");
            match number % 4 {
                0 => renamed(node.rename(name, other, &new, RenameFlags::empty())),
                1 => renamed(node.rename(name, other, b"new link", RenameFlags::EXCHANGE)),
                2 => renamed(node.rename(name, node, &new, RenameFlags::WHITEOUT)),
                _ => renamed(node.unlink(name)),
            };
        }
        renamed(node.rename(b"new node", other, b"new node", RenameFlags::empty()));
        renamed(node.remove_dir(b"new directory"));
    }
    renamed(volume.remove_dir_all("/new directory"));
}

/// Sets limits of the user who makes directories and of root, and writes as somebody whom they hold for.
fn quotas(volume: &Volume) {
    for kind in QuotaKind::ALL {
        for id in [0, 5] {
            let limits = QuotaLimits { blocks_soft: 1, blocks_hard: 64, inodes_soft: 1, inodes_hard: 4 };
            renamed(volume.set_quota(kind, id, &limits));
            typed(volume.quota(kind, id));
        }
        renamed(volume.set_quota_grace(kind, QuotaGrace { blocks: 0, inodes: 9 }));
        typed(volume.quotas(kind));
    }
    let options = OpenOptions::new().write(true).create(true).limited(true);
    if let Some(file) = renamed(volume.open_file("/limited", options)) {
        changed(file.write_any_at(&vec![INK; 40 * MORE as usize], 0, WriteFlags::empty()));
    }
}

/// Sets attributes of an inode of any type.
fn attributes(volume: &Volume, ino: Ino) {
    let Some(node) = typed(volume.node(ino, None)) else { return };
    let found = node.attributes();
    let time = Timestamp { seconds: i64::from(ino.get()) << 27, nanoseconds: 1 };
    for set in [
        SetAttributes::new().mode(found.mode ^ 0o022),
        SetAttributes::new().uid(ino.get()).gid(70_000),
        SetAttributes::new().accessed(time).modified(Time::Now),
        SetAttributes::new().created(time),
        SetAttributes::new().flags(found.flags ^ InodeFlags::NODUMP),
        SetAttributes::new().project(ino.get() % 3),
        SetAttributes::new().generation(ino.get()),
    ] {
        changed(node.set_attributes(&set));
    }
}

/// Writes behind the end, across holes and over what is there, takes away, makes and removes files. A volume in which a
/// check finds nothing has nothing to be found afterwards either.
pub fn operate(image: &[u8]) -> usize {
    let was_sound = check(image) == 0;
    let device = images::device(image);
    let Some(volume) = typed(Volume::open_device(device.clone(), VolumeOptions::read_write())) else {
        return 0;
    };
    let mut written = 0;
    let inodes = volume.superblock().geometry.inodes_count().min(FILES);
    for ino in (1..=inodes).map(Ino) {
        attributes(&volume, ino);
        let options = OpenOptions::new().read(true).write(true);
        let Some(file) = typed(volume.open_inode(ino, options)) else { continue };
        let size = file.size();
        for (pos, flags) in [
            (size, WriteFlags::DSYNC),
            (size / 2, WriteFlags::empty()),
            (size.saturating_add(100_000), WriteFlags::empty()),
            (0, WriteFlags::SYNC),
        ] {
            let bytes = vec![INK; MORE as usize];
            if pos < 1 << 40 {
                written += usize::from(changed(file.write_any_at(&bytes, pos, flags)).is_some());
            }
        }
        let size = file.size();
        match ino.get() % 5 {
            0 => changed(file.set_len(size / 2)),
            1 => changed(file.fallocate(Fallocate::Punch, size / 3, size / 3 + 1)),
            2 => changed(file.fallocate(Fallocate::Zero, size / 3, size / 3 + 1)),
            3 => changed(file.set_len(size.saturating_add(5000))),
            _ => changed(file.fallocate(Fallocate::KeepSize, size, 9000)),
        };
        changed(file.sync_all());
    }
    written += names(&volume);
    quotas(&volume);
    tree(&volume);
    let closed = changed(volume.close()).is_some();
    if was_sound && closed {
        let after = images::bytes_of(&*device);
        assert_eq!(check(&after), 0, "a sound volume was damaged");
    }
    written
}
