//! Setting attributes does what the kernel does, becomes durable with the next sync, and changes nothing if refused.

use crate::common;

use common::{Image, aligned, assert_clean, assert_unchanged, open_ro, open_rw, read_write};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use uext4::{
    Error, File, FileKind, FileSlot, IoQueue, Metadata, QueueOptions, SetAttributes, Time, Timestamp, Volume,
    VolumeOptions, WriteFlags,
};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, e2fsck_clean, needs, oracle, with_kernel};

const FILES: [&str; 6] = ["/file", "/dir", "/dir/inner", "/link", "/pipe", "/dir/set-id"];

/// A volume with one of each kind.
fn image(args: &[&str]) -> Image {
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    for name in ["file", "dir/inner", "dir/set-id"] {
        std::fs::write(tree.join(name), [b'o'; 8192]).unwrap();
    }
    std::fs::set_permissions(tree.join("dir/set-id"), PermissionsExt::from_mode(0o6755)).unwrap();
    symlink("dir/inner", tree.join("link")).unwrap();
    rustix::fs::mknodat(CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).from_dir(&tree).build();
    made.assert_clean();
    Image::load(made.path())
}

fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

/// A change, and how it ended: 0 or an errno.
#[derive(Debug, Clone)]
enum Change {
    Mode(u32),
    Owner(Option<u32>, Option<u32>),
    Times(Option<Time>, Option<Time>),
}

fn any_time(rng: &mut Rng) -> Option<Time> {
    let seconds = *rng.pick(&[
        -(1i64 << 31),
        -(1 << 31) - 5,
        -1,
        0,
        1_600_000_000,
        i64::from(i32::MAX),
        1 << 31,
        5_000_000_000,
        (1 << 34) - (1 << 31) - 1,
        1 << 35,
    ]);
    match rng.below(6) {
        0 => None,
        // "Now" differs between two runs.
        _ => Some(Time::At(at(seconds, *rng.pick(&[0, 1, 999_999_999, 123_456_789])))),
    }
}

fn any_change(rng: &mut Rng) -> Change {
    let id = |rng: &mut Rng| {
        let id = *rng.pick(&[0, 1, 1000, 65_535, 65_536, 70_000, u32::MAX - 1]);
        rng.chance(75).then_some(id)
    };
    match rng.below(3) {
        0 => Change::Mode(rng.below(0o10000) as u32),
        1 => Change::Owner(id(rng), id(rng)),
        _ => Change::Times(any_time(rng), any_time(rng)),
    }
}

fn by_us(volume: &Volume, path: &str, change: &Change) -> i32 {
    let done = match change {
        Change::Mode(mode) => volume.set_permissions(path, *mode, false),
        Change::Owner(uid, gid) => volume.set_owner(path, *uid, *gid, false),
        Change::Times(accessed, modified) => volume.set_times(path, *accessed, *modified, false),
    };
    done.err().map_or(0, |error| error.errno())
}

fn by_kernel(path: &Path, change: &Change) -> i32 {
    let done = match change {
        // `chmod` of std follows links; the kernel has no other answer for a link itself.
        Change::Mode(_) if path.is_symlink() => return libc_eopnotsupp(),
        Change::Mode(mode) => std::fs::set_permissions(path, PermissionsExt::from_mode(*mode)),
        Change::Owner(uid, gid) => std::os::unix::fs::lchown(path, *uid, *gid),
        Change::Times(accessed, modified) => {
            let spec = |time: &Option<Time>| match time {
                None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                Some(Time::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                Some(Time::At(time)) => {
                    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
                }
            };
            let times = Timestamps { last_access: spec(accessed), last_modification: spec(modified) };
            utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(Into::into)
        }
    };
    done.err().map_or(0, |error| error.raw_os_error().unwrap())
}

fn libc_eopnotsupp() -> i32 {
    rustix::io::Errno::OPNOTSUPP.raw_os_error()
}

/// What must be equal: everything but the time of the change of attributes.
fn seen(path: &Path) -> String {
    let found = path.symlink_metadata().unwrap();
    format!(
        "{} {:o} {}:{} links {} size {} blocks {} accessed {}.{:09} modified {}.{:09}",
        path.file_name().unwrap().display(),
        found.mode(),
        found.uid(),
        found.gid(),
        found.nlink(),
        found.size(),
        found.blocks(),
        found.atime(),
        found.atime_nsec(),
        found.mtime(),
        found.mtime_nsec()
    )
}

fn all_seen(root: &Path) -> Vec<String> {
    FILES.iter().map(|name| seen(&root.join(&name[1..]))).collect()
}

fn told(volume: &Volume, path: &str) -> Metadata {
    volume.symlink_metadata(path).unwrap()
}

#[test]
fn root_they_are_set_as_the_kernel_sets_them() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, inode) in ["128", "256", "1024"].into_iter().enumerate() {
        let mut rng = Rng::new(0xa77 + seed as u64);
        let scratch = Scratch::new(128 << 20);
        let (ours, theirs) = (scratch.file("ours.img"), scratch.file("theirs.img"));
        let image = image(&["-I", inode]);
        image.save(&ours);
        image.save(&theirs);
        let changes: Vec<_> = (0..300).map(|_| (*rng.pick(&FILES), any_change(&mut rng))).collect();
        let expected = with_kernel(&theirs, "noatime", |root| {
            changes.iter().map(|(path, change)| by_kernel(&root.join(&path[1..]), change)).collect::<Vec<_>>()
        });
        let before = std::time::SystemTime::now() - std::time::Duration::from_secs(1);
        let volume = Volume::open(&ours, VolumeOptions::read_write()).unwrap();
        for ((path, change), expected) in changes.iter().zip(expected) {
            assert_eq!(by_us(&volume, path, change), expected, "{path} {change:?}");
        }
        for path in FILES {
            let Time::At(before) = Time::from(before) else { unreachable!() };
            assert!(told(&volume, path).changed.seconds >= before.seconds, "{path}");
        }
        volume.close().unwrap();
        e2fsck_clean(&ours);
        // Mounted again, so that the kernel shows what it has stored, and not what it only had in memory.
        let theirs = with_kernel(&theirs, "noatime", all_seen);
        let ours = with_kernel(&ours, "noatime", all_seen);
        assert_eq!(ours, theirs, "inodes of {inode} bytes");
    }
}

#[test]
fn a_change_is_durable_with_the_next_sync_of_the_file_and_not_before() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let crashed = |path: &str| {
            let volume = open_ro(Image::of(&*device).device());
            told(&volume, path)
        };
        let file = volume.open_file("/file", read_write()).unwrap();
        let set = SetAttributes::new().mode(0o640).uid(5).accessed(at(7, 8)).modified(at(9, 10));
        volume.node_at("/file", true).unwrap().set_attributes(&set).unwrap();
        assert_ne!(crashed("/file").mode, 0o640);
        file.sync_all().unwrap();
        let found = crashed("/file");
        assert_eq!((found.mode, found.uid, found.accessed, found.modified), (0o640, 5, at(7, 8), at(9, 10)));
        assert_eq!(found, file.metadata());
        volume.set_permissions("/dir", 0o700, true).unwrap();
        volume.sync_all().unwrap();
        assert_eq!(crashed("/dir").mode, 0o700);
        drop(file);
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// Overwrites a file's first block, by a call or through a queue.
struct Writer {
    file: File,
    queue: IoQueue,
    slot: FileSlot,
}

impl Writer {
    fn new(volume: &Volume, path: &str) -> Writer {
        let file = volume.open_file(path, read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
        let slot = queue.attach(&file).unwrap();
        Writer { file, queue, slot }
    }

    fn write(&mut self, queued: bool) -> uext4::Result<()> {
        if !queued {
            return self.file.write_at(&aligned(4096), 0).map(drop);
        }
        let buffer = self.queue.buffer(4096).unwrap();
        self.queue.write(self.slot, 0, buffer, WriteFlags::empty(), 1)?;
        Ok(self.queue.wait(1).unwrap().try_for_each(|done| done.result.map(drop))?)
    }
}

#[test]
fn a_time_that_was_set_stays_until_the_next_write() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[]).device();
    let volume = open_rw(device.clone());
    let mut writer = Writer::new(&volume, "/file");
    // The clock does not advance between these calls.
    for queued in [false, true, false, true] {
        writer.write(queued).unwrap();
        volume.set_times("/file", None, Some(at(1000, 5).into()), true).unwrap();
        assert_eq!(writer.file.metadata().modified, at(1000, 5));
        writer.write(queued).unwrap();
        assert_ne!(writer.file.metadata().modified, at(1000, 5));
        volume.set_times("/file", None, Some(at(1000, 5).into()), true).unwrap();
    }
    drop(writer);
    volume.close().unwrap();
    let volume = open_ro(device.clone());
    assert_eq!(told(&volume, "/file").modified, at(1000, 5));
    assert_clean(&*device);
}

#[test]
fn permissions_of_a_file_that_was_written_keep_the_time_of_the_write() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[]).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/file", read_write()).unwrap();
    file.write_at(&aligned(4096), 0).unwrap();
    let written = file.metadata().modified;
    volume.set_permissions("/file", 0o600, true).unwrap();
    drop(file);
    volume.close().unwrap();
    let found = told(&open_ro(device.clone()), "/file");
    assert_eq!((found.modified, found.mode), (written, 0o600));
    assert!(found.changed >= written);
    assert_clean(&*device);
}

#[test]
fn a_new_owner_strips_privileges_unless_they_are_kept() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    for inode in ["128", "256"] {
        image(&["-I", inode]).save(&path);
        let value = scratch.file("value");
        std::fs::write(&value, [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let set = format!("ea_set -f {} /dir/set-id security.capability\n", value.display());
        oracle::debugfs_script(&path, &set);
        let device = Image::load(&path).device();
        let volume = open_rw(device.clone());
        let capability = || volume.xattr("/dir/set-id", "security.capability", true).is_ok();
        let node = volume.node_at("/dir/set-id", true).unwrap();
        node.set_attributes(&SetAttributes::new().uid(7).keep_privileges(true)).unwrap();
        assert_eq!((told(&volume, "/dir/set-id").mode, capability()), (0o6755, true));
        node.set_attributes(&SetAttributes::new().gid(8)).unwrap();
        assert_eq!((told(&volume, "/dir/set-id").mode, capability()), (0o755, false));
        node.set_attributes(&SetAttributes::new().uid(9).mode(0o4711)).unwrap();
        assert_eq!(told(&volume, "/dir/set-id").mode, 0o4711);
        volume.set_owner("/dir/set-id", None, None, true).unwrap();
        assert_eq!(told(&volume, "/dir/set-id").mode, 0o711, "as the system call does");
        volume.set_permissions("/dir", 0o2755, true).unwrap();
        volume.set_owner("/dir", Some(1), None, true).unwrap();
        assert_eq!(told(&volume, "/dir").mode, 0o2755, "a directory keeps it");
        drop(node);
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// An open file learns of privileges it gets, and its next write strips them.
#[test]
fn privileges_that_are_set_go_with_the_next_write() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[]).device();
    let volume = open_rw(device.clone());
    let mut writer = Writer::new(&volume, "/file");
    for queued in [false, true] {
        writer.write(queued).unwrap();
        volume.set_permissions("/file", 0o6755, true).unwrap();
        writer.write(queued).unwrap();
        assert_eq!(writer.file.metadata().mode, 0o755, "queued: {queued}");
    }
    drop(writer);
    volume.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn the_size_is_set_with_the_rest() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[]).device();
    let volume = open_rw(device.clone());
    let node = volume.node_at("/file", true).unwrap();
    node.set_attributes(&SetAttributes::new().size(100).modified(at(5, 6)).mode(0o400)).unwrap();
    let found = node.attributes();
    assert_eq!((found.size, found.modified, found.mode), (100, at(5, 6), 0o400));
    node.set_attributes(&SetAttributes::new().size(1 << 20)).unwrap();
    assert_eq!(node.attributes().size, 1 << 20);
    let directory = volume.root().unwrap();
    assert!(matches!(directory.set_attributes(&SetAttributes::new().size(0)), Err(Error::IsDirectory)));
    drop((node, directory));
    volume.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn the_time_of_creation_is_set_where_there_is_room() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (inode, fits) in [("128", false), ("256", true)] {
        let device = image(&["-I", inode]).device();
        let volume = open_rw(device.clone());
        let node = volume.node_at("/file", true).unwrap();
        let set = node.set_attributes(&SetAttributes::new().created(at(5_000_000_000, 7)));
        match fits {
            true => assert_eq!(node.attributes().created, Some(at(5_000_000_000, 7))),
            false => assert!(matches!(set, Err(Error::NotSupported(_))), "{set:?}"),
        }
        drop(node);
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    image(&[]).save(&path);
    let protect = "sif /file flags 0x80010\nsif /dir/inner flags 0x80020\nsif /dir flags 0x80020\n";
    oracle::debugfs_script(&path, protect);
    let sealed = Image::load(&path);
    let device = sealed.device();
    let volume = open_rw(device.clone());
    let set = |path: &str, set: SetAttributes| {
        volume.node_at(path, false).unwrap().set_attributes(&set).map_err(|error| error.errno())
    };
    let all = SetAttributes::new;
    let both = all().accessed(Time::Now).modified(Time::Now);
    let one = all().modified(Time::Now);
    let mut wrong = Vec::new();
    let mut expect = |path: &str, wanted: SetAttributes, errno: i32| {
        let found = set(path, wanted.clone());
        if found.err().unwrap_or(0) != errno {
            wrong.push(format!("{path}: {found:?}, not {errno}: {wanted:?}"));
        }
    };
    for path in ["/file", "/dir/inner", "/dir"] {
        let times = [all().modified(at(1, 0)), all().created(at(1, 0)), one.clone()];
        for wanted in [all().mode(0o600), all().uid(1), all().gid(1), all().size(0)].into_iter().chain(times)
        {
            expect(path, wanted, 1);
        }
    }
    expect("/file", both.clone(), 1);
    expect("/link", all().mode(0o600), 95);
    // Not even the size.
    expect("/dir/set-id", all().project(7).size(0), 95);
    expect("/pipe", all().mode(0o10600), 22);
    expect("/pipe", all().uid(u32::MAX), 22);
    expect("/pipe", all().gid(u32::MAX), 22);
    expect("/pipe", all().accessed(at(0, 1_000_000_000)), 22);
    expect("/pipe", all().modified(at(0, 1_000_000_000)), 22);
    expect("/pipe", all().created(at(0, 1_000_000_000)), 22);
    for path in ["/dir", "/pipe", "/link"] {
        // Nothing to set.
        expect(path, all(), 0);
    }
    let journal = volume.node(uext4::Ino(8), None).unwrap();
    let chown = |path| volume.set_owner(path, None, None, true).map_err(|error| error.errno());
    for (what, found, errno) in [
        ("an immutable file", chown("/file"), 1),
        ("an append-only file", chown("/dir/inner"), 1),
        ("the journal", journal.set_attributes(&one).map_err(|error| error.errno()), 1),
    ] {
        if found != Err(errno) {
            wrong.push(format!("{what}: {found:?}"));
        }
    }
    volume.set_times("/pipe", None, None, true).unwrap();
    volume.sync_all().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_unchanged(&sealed, &*device);
    assert_eq!(set("/dir/inner", both), Ok(()), "an append-only file can be touched");
    drop((journal, volume));
    assert_clean(&*device);
    let volume = open_ro(device);
    assert!(matches!(volume.set_permissions("/pipe", 0o600, true), Err(Error::ReadOnly(_))));
    assert_eq!(told(&volume, "/pipe").kind, FileKind::Fifo);
}

/// Records with short extra fields have room for 32 bits of the version.
#[test]
fn a_version_that_is_full_begins_again() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    image(&["-I", "256"]).save(&path);
    let short = |name| format!("sif {name} extra_isize 24\nsif {name} version 0xffffffff\n");
    oracle::debugfs_script(&path, &["/dir", "/file"].map(short).concat());
    let device = Image::load(&path).device();
    let volume = open_rw(device.clone());
    volume.set_permissions("/file", 0o600, true).unwrap();
    volume.remove_file("/dir/inner").unwrap();
    volume.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn times_of_the_system_become_ours() {
    let since = std::time::UNIX_EPOCH;
    let nanos = std::time::Duration::from_nanos;
    assert_eq!(Time::from(since + nanos(1_500_000_000)), Time::At(at(1, 500_000_000)));
    assert_eq!(Time::from(since - nanos(1_500_000_000)), Time::At(at(-2, 500_000_000)));
    assert_eq!(Time::from(since - nanos(2_000_000_000)), Time::At(at(-2, 0)));
}
