//! Changes a volume in every way there is: files grow, holes and unwritten blocks are filled, everything is synced and
//! brought home.

use crate::images;
use crate::targets::check;
use crate::typed::typed;
use uext4::{
    Error, Fallocate, Ino, InodeFlags, OpenOptions, SetAttributes, Time, Timestamp, Volume, VolumeOptions,
    WriteFlags,
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
        Err(Error::NoSpace | Error::Limit(_) | Error::Aborted(_)) => None,
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
    let closed = changed(volume.close()).is_some();
    if was_sound && closed {
        let after = images::bytes_of(&*device);
        assert_eq!(check(&after), 0, "a sound volume was damaged");
    }
    written
}
