//! Set-user-id, set-group-id and capabilities are stripped by the first write, however it is made, and by nothing else.

use crate::common;

use common::{Image, aligned, assert_clean, open_rw, read_all, read_only, read_write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use uext4::explain::Query;
use uext4::plan::{GateMode, Sync};
use uext4::{Counter, Error, Fallocate, File, QueueOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{Need, Scratch, VolumeBuilder, debugfs, needs, oracle};

const BLOCK: usize = 4096;
const CAPABILITY: &str = "security.capability";
/// Revision 2, effective: may bind low ports.
const VALUE: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A way to change a file, and its name.
type Way = (&'static str, fn(&Volume, &str));

fn open(volume: &Volume, path: &str) -> File {
    volume.open_file(path, read_write()).unwrap()
}

fn filled(length: usize) -> uext4::Buffer {
    let mut buffer = aligned(length);
    buffer.fill(b'n');
    buffer
}

fn write_with(volume: &Volume, path: &str, flags: WriteFlags) {
    assert_eq!(open(volume, path).write_at_with(&filled(BLOCK), 4096, flags).unwrap(), BLOCK);
}

fn queued(volume: &Volume, path: &str, flags: WriteFlags) {
    let file = open(volume, path);
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let slot = queue.attach(&file).unwrap();
    for pos in [0, 8192] {
        let mut buffer = queue.buffer(BLOCK).unwrap();
        buffer.fill(b'n');
        queue.write(slot, pos, buffer, flags, pos).unwrap();
    }
    let mut left = 2;
    while left > 0 {
        for done in queue.wait(1).unwrap() {
            assert_eq!(done.result.unwrap(), BLOCK);
            left -= 1;
        }
    }
}

fn falloc(volume: &Volume, path: &str, mode: Fallocate) {
    open(volume, path).fallocate(mode, 4096, 4096).unwrap();
}

const WAYS: [Way; 21] = [
    ("overwrite", |v, p| write_with(v, p, WriteFlags::empty())),
    ("durable overwrite", |v, p| write_with(v, p, WriteFlags::DSYNC)),
    ("synchronous overwrite", |v, p| write_with(v, p, WriteFlags::SYNC)),
    ("sub-block overwrite", |v, p| assert_eq!(open(v, p).write_at(&filled(512), 512).unwrap(), 512)),
    ("any bytes", |v, p| assert_eq!(open(v, p).write_any_at(b"new", 77, WriteFlags::empty()).unwrap(), 3)),
    ("behind the end", |v, p| assert_eq!(open(v, p).write_at(&filled(BLOCK), 1 << 20).unwrap(), BLOCK)),
    ("append", |v, p| {
        let file = v.open_file(p, uext4::OpenOptions::new().append(true)).unwrap();
        file.append(b"more", WriteFlags::empty()).unwrap();
    }),
    ("queued", |v, p| queued(v, p, WriteFlags::empty())),
    ("queued and durable", |v, p| queued(v, p, WriteFlags::DSYNC)),
    ("grown", |v, p| open(v, p).set_len(100_000).unwrap()),
    ("cut", |v, p| open(v, p).set_len(100).unwrap()),
    ("the same length", |v, p| {
        let file = open(v, p);
        file.set_len(file.size()).unwrap();
    }),
    ("emptied when opened", |v, p| drop(v.open_file(p, read_write().truncate(true)).unwrap())),
    ("prepared", |v, p| open(v, p).prepare(65536).unwrap()),
    ("allocated", |v, p| falloc(v, p, Fallocate::Allocate)),
    ("allocated behind the end", |v, p| {
        open(v, p).fallocate(Fallocate::KeepSize, 1 << 20, 4096).unwrap();
    }),
    ("punched", |v, p| falloc(v, p, Fallocate::Punch)),
    ("zeroed", |v, p| falloc(v, p, Fallocate::Zero)),
    ("zeroed, size kept", |v, p| falloc(v, p, Fallocate::ZeroKeepSize)),
    ("collapsed", |v, p| falloc(v, p, Fallocate::Collapse)),
    ("inserted", |v, p| falloc(v, p, Fallocate::Insert)),
];

/// A volume with files of 16 KiB, one for each way: `/0`, `/1` … All have this mode, a capability, and other attributes
/// before and after it.
fn image(mode: u32, args: &[&str], files: usize) -> Image {
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    for n in 0..files {
        std::fs::write(tree.join(n.to_string()), [b'o'; 4 * BLOCK]).unwrap();
    }
    let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).from_dir(&tree).build();
    let value = source.file("value");
    std::fs::write(&value, VALUE).unwrap();
    let requests: String = (0..files)
        .map(|n| {
            format!(
                "set_inode_field /{n} mode 0{:o}\nea_set /{n} user.before one\nea_set -f {} /{n} {CAPABILITY}\n\
                 ea_set /{n} user.zz behind\n",
                0o100000 | mode,
                value.display()
            )
        })
        .collect();
    oracle::debugfs_script(made.path(), &requests);
    // debugfs does not maintain quota.
    oracle::e2fsck(made.path(), &["-y"]);
    made.assert_clean();
    Image::load(made.path())
}

fn mode(volume: &Volume, path: &str) -> u32 {
    volume.metadata(path).unwrap().mode
}

fn has_capability(volume: &Volume, path: &str) -> bool {
    match volume.xattr(path, CAPABILITY, false) {
        Ok(value) => {
            assert_eq!(value, VALUE);
            true
        }
        Err(Error::NoAttribute) => false,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// e2fsck must find nothing on a device after the volume was dropped.
/// The volumes to test: attributes in the record, and in a block.
const VOLUMES: [&[&str]; 4] = [
    &["-I", "256"],
    &["-I", "128"],
    &["-I", "256", "-O", "^metadata_csum", "-b", "1024"],
    &["-I", "128", "-O", "bigalloc", "-C", "16384", "-b", "4096"],
];

#[test]
fn every_way_to_change_a_file_takes_them_away() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for args in VOLUMES {
        let device = image(0o7755, args, WAYS.len()).device();
        let volume = open_rw(device.clone());
        for (n, (name, change)) in WAYS.iter().enumerate() {
            let clusters = args.contains(&"bigalloc");
            if clusters && matches!(*name, "collapsed" | "inserted") {
                continue;
            }
            let path = format!("/{n}");
            assert_eq!((mode(&volume, &path), has_capability(&volume, &path)), (0o7755, true));
            change(&volume, &path);
            let after = (mode(&volume, &path), has_capability(&volume, &path));
            assert_eq!(after, (0o1755, false), "{name}, mke2fs {args:?}");
            for (other, value) in [("user.before", "one"), ("user.zz", "behind")] {
                assert_eq!(volume.xattr(&path, other, false).unwrap(), value.as_bytes(), "{name}");
            }
        }
        volume.close().unwrap();
        assert_clean(&*device);
        let volume = open_rw(device);
        for (n, (name, _)) in WAYS.iter().enumerate() {
            let path = format!("/{n}");
            let changed = mode(&volume, &path) == 0o1755;
            assert_eq!(changed, !has_capability(&volume, &path), "{name}");
        }
    }
}

/// They get and lose blocks by separate code.
#[test]
fn files_with_block_pointers_lose_them_too() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let refused = |name: &str| {
        ["allocated", "zeroed", "collapsed", "inserted"].iter().any(|refused| name.starts_with(refused))
    };
    let device = image(0o7755, &["-I", "256", "-O", "^extent,^64bit"], WAYS.len() + 1).device();
    let volume = open_rw(device.clone());
    let inside: Way = ("prepared inside", |v, p| open(v, p).prepare(4096).unwrap());
    for (n, (name, change)) in WAYS.iter().chain([&inside]).enumerate() {
        if refused(name) {
            continue;
        }
        let path = format!("/{n}");
        change(&volume, &path);
        let after = (mode(&volume, &path), has_capability(&volume, &path));
        assert_eq!(after, (0o1755, false), "{name}");
    }
    volume.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn what_changes_nothing_takes_nothing_away() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(0o6755, &["-I", "128"], 1).device();
    let volume = open_rw(device);
    let file = open(&volume, "/0");
    read_all(&file);
    file.sync_all().unwrap();
    assert_eq!(file.write_at(&[], 0).unwrap(), 0, "nothing");
    assert!(matches!(file.write_at(&filled(512)[..100], 0), Err(Error::Misaligned { .. })));
    assert!(matches!(file.set_len(u64::MAX), Err(Error::Limit(_))));
    let nowait = file.write_at_with(&filled(BLOCK), 0, WriteFlags::NOWAIT);
    assert!(matches!(nowait, Err(Error::WouldBlock(_))), "it would wait for a handle: {nowait:?}");
    let mut queue = volume.queue(QueueOptions::depth(1)).unwrap();
    let slot = queue.attach(&file).unwrap();
    let buffer = queue.buffer(BLOCK).unwrap();
    let nowait = queue.write(slot, 0, buffer, WriteFlags::NOWAIT, 1);
    assert!(matches!(nowait, Err(Error::WouldBlock(_))), "{nowait:?}");
    assert_eq!(read_all(&file), [b'o'; 4 * BLOCK]);
    assert_eq!((mode(&volume, "/0"), has_capability(&volume, "/0")), (0o6755, true));
    assert_eq!(volume.stats().get(Counter::PrivilegesDropped), 0);
}

#[test]
fn the_first_write_pays_and_no_other() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(0o4755, &["-I", "256"], 2).device();
    let volume = open_rw(device);
    let query = Query { write: true, pos: 0, length: 4096, sync: Sync::Data, queued: true };
    for (path, queue) in [("/0", false), ("/1", true)] {
        let before = volume.stats();
        let reader = volume.open_file(path, read_only()).unwrap();
        let told = reader.explain(&query).unwrap();
        assert!(told.plan.drops_privileges && told.plan.gate == GateMode::Exclusive);
        assert!(told.reasons.iter().any(|line| line.starts_with("privileges: ")), "{:?}", told.reasons);
        let file = open(&volume, path);
        for _ in 0..5 {
            match queue {
                true => queued(&volume, path, WriteFlags::empty()),
                false => assert_eq!(file.write_at(&filled(BLOCK), 0).unwrap(), BLOCK),
            }
        }
        let writes = if queue { 10 } else { 5 };
        let count = |counter| volume.stats().get(counter) - before.get(counter);
        assert_eq!(count(Counter::PrivilegesDropped), 1, "{path}");
        assert_eq!(count(Counter::ExclusiveWrites), 1, "{path}");
        assert_eq!(count(Counter::OverwritesWithoutHandle), writes - 1, "{path}");
        let told = reader.explain(&query).unwrap();
        assert!(!told.plan.drops_privileges && told.plan.gate == GateMode::Shared);
    }
}

#[test]
fn set_group_id_of_a_file_that_its_group_cannot_run_stays() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for (before, after) in [(0o6745, 0o2745), (0o2710, 0o710), (0o2700, 0o2700), (0o1777, 0o1777)] {
        let volume = open_rw(image(before, &["-I", "256"], 1).device());
        write_with(&volume, "/0", WriteFlags::empty());
        assert_eq!(mode(&volume, "/0"), after, "of {before:o}");
    }
}

/// The kernel's `CAP_FSETID`: it concerns only the mode bits.
#[test]
fn who_may_keep_set_id_loses_capabilities_all_the_same() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(0o6755, &["-I", "128"], 1).device();
    let volume = Volume::open_device(device, VolumeOptions::read_write().keep_set_id(true)).unwrap();
    write_with(&volume, "/0", WriteFlags::empty());
    assert_eq!((mode(&volume, "/0"), has_capability(&volume, "/0")), (0o6755, false));
    write_with(&volume, "/0", WriteFlags::empty());
    assert_eq!(volume.stats().get(Counter::PrivilegesDropped), 1);
}

/// The device's contents when a durable write returns: new data, and no privileges.
#[test]
fn durable_data_is_never_found_in_a_file_with_privileges() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (n, flags) in [WriteFlags::DSYNC, WriteFlags::SYNC, WriteFlags::DSYNC].into_iter().enumerate() {
        let device = image(0o4755, &["-I", "128"], 1).device();
        let volume = open_rw(device.clone());
        match n {
            2 => queued(&volume, "/0", flags),
            _ => write_with(&volume, "/0", flags),
        }
        // The device has no volatile cache: this is what a crash leaves.
        let crashed = Image::of(&*device).device();
        let found = open_rw(crashed.clone());
        assert_eq!((mode(&found, "/0"), has_capability(&found, "/0")), (0o755, false));
        let written = read_all(&found.open_file("/0", read_only()).unwrap());
        assert!(written[..3 * BLOCK].contains(&b'n'));
        found.close().unwrap();
        assert_clean(&*crashed);
    }
}

/// The attribute block that is freed counts for the owner.
#[test]
fn quota_counts_what_is_stripped() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image(0o4755, &["-I", "128", "-O", "quota"], 1);
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("counted.img");
    image.save(&path);
    // mke2fs 1.47.0 does not count what it copies in.
    assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    let device = Image::load(&path).device();
    let volume = open_rw(device.clone());
    write_with(&volume, "/0", WriteFlags::empty());
    assert_eq!((mode(&volume, "/0"), has_capability(&volume, "/0")), (0o755, false));
    volume.close().unwrap();
    assert_clean(&*device);
}

/// If it cannot be known whether there is something to strip, the file cannot be written.
#[test]
fn damaged_attributes_keep_a_file_from_being_opened_for_writing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let mut image = image(0o755, &["-I", "128", "-b", "4096"], 1);
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    image.save(&path);
    let said = debugfs(&path, "stat /0");
    let block = said.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let at = block.parse::<usize>().unwrap() * BLOCK;
    image.bytes[at + 40] ^= 1;
    let device = image.device();
    let volume = open_rw(device.clone());
    let refused = volume.open_file("/0", read_write());
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    assert_eq!(read_all(&volume.open_file("/0", read_only()).unwrap()), [b'o'; 4 * BLOCK]);
}

/// The same change by an unprivileged user on an open file, and here.
type Pair = (&'static str, fn(&File), &'static str);

const PAIRS: [Pair; 6] = [
    ("write", |file| assert_eq!(file.write_any_at(b"x", 0, WriteFlags::empty()).unwrap(), 1), "printf x >&0"),
    ("cut", |file| file.set_len(100).unwrap(), "truncate -s 100 /proc/self/fd/0"),
    ("grown", |file| file.set_len(100_000).unwrap(), "truncate -s 100000 /proc/self/fd/0"),
    ("same", |file| file.set_len(16384).unwrap(), "truncate -s 16384 /proc/self/fd/0"),
    (
        "allocated",
        |file| file.fallocate(Fallocate::KeepSize, 0, 65536).unwrap(),
        "fallocate -n -l 65536 /proc/self/fd/0",
    ),
    (
        "punched",
        |file| file.fallocate(Fallocate::Punch, 4096, 4096).unwrap(),
        "fallocate -p -o 4096 -l 4096 /proc/self/fd/0",
    ),
];

/// With the file's group: for others set-group-id is stripped in any case, which does not apply here.
fn as_nobody(file: &Path, script: &str) {
    let open = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut shell = Command::new("sh");
    let done = shell.args(["-c", script]).stdin(Stdio::from(open)).uid(65534).gid(0).output().unwrap();
    assert!(done.status.success(), "{script}: {}", oracle::text(&done));
}

/// The kernel does the same for an unprivileged user; attribute blocks shared by files stay for the others.
#[test]
fn root_the_kernel_takes_away_the_same() {
    needs!(Need::Loop, Need::Tool("fallocate"), Need::Tool("truncate"));
    for inode in ["128", "256"] {
        let made = VolumeBuilder::new(32 << 20).args(["-I", inode]).build();
        let modes = [0o4777, 0o6777, 0o2777, 0o2767, 0o777];
        made.with_kernel(|root| {
            for (name, ..) in PAIRS {
                for mode in modes {
                    for who in ["kernel", "here", "keeps"] {
                        let file = root.join(format!("{name}-{mode:o}-{who}"));
                        std::fs::write(&file, [b'o'; 16384]).unwrap();
                        rustix::fs::setxattr(&file, CAPABILITY, &VALUE, rustix::fs::XattrFlags::empty())
                            .unwrap();
                        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
                    }
                }
            }
            for (name, _, script) in PAIRS {
                for mode in modes {
                    as_nobody(&root.join(format!("{name}-{mode:o}-kernel")), script);
                }
            }
        });
        let volume = Volume::open(made.path(), VolumeOptions::read_write()).unwrap();
        for (name, change, _) in PAIRS {
            for mode in modes {
                change(&open(&volume, &format!("/{name}-{mode:o}-here")));
            }
        }
        volume.close().unwrap();
        made.assert_clean();
        let tree = made.kernel_manifest();
        let seen = |name: &str, mode: u32, who: &str| {
            let entry = &tree[format!("/{name}-{mode:o}-{who}").as_bytes()];
            (entry.mode & 0o7777, entry.xattrs.contains_key(CAPABILITY.as_bytes()))
        };
        for (name, ..) in PAIRS {
            for mode in modes {
                assert_eq!(
                    seen(name, mode, "here"),
                    seen(name, mode, "kernel"),
                    "{name} {mode:o}, -I {inode}"
                );
                assert!(!seen(name, mode, "here").1, "{name} {mode:o}");
                assert_eq!(seen(name, mode, "keeps"), (mode, true), "a neighbour of the same attributes");
            }
        }
    }
}

/// A file that shares its attribute block needs its own for the remaining attributes. Without room for one it is not
/// written, and keeps everything.
#[test]
fn root_a_full_volume_keeps_file_and_privileges() {
    needs!(Need::Loop);
    let made = VolumeBuilder::new(16 << 20).args(["-I", "128", "-m", "0"]).build();
    made.with_kernel(|root| {
        for name in ["one", "two"] {
            let file = root.join(name);
            std::fs::write(&file, [b'o'; 16384]).unwrap();
            for (attribute, value) in [("user.other", &b"stays"[..]), (CAPABILITY, &VALUE)] {
                rustix::fs::setxattr(&file, attribute, value, rustix::fs::XattrFlags::empty()).unwrap();
            }
        }
    });
    let volume = Volume::open(made.path(), VolumeOptions::read_write().reserved(true)).unwrap();
    // The second file needs no map blocks.
    for path in ["/fill", "/rest"] {
        let fill = volume.open_file(path, read_write().create(true)).unwrap();
        let mut at = 0;
        for length in [1 << 20, 1 << 16, 4096, 1024] {
            while fill.fallocate(Fallocate::Allocate, at, length).is_ok() {
                at += length;
            }
        }
    }
    assert_eq!(volume.statfs().unwrap().free, 0);
    let file = open(&volume, "/one");
    let written = file.write_at(&filled(BLOCK), 0);
    assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
    assert_eq!((read_all(&file), has_capability(&volume, "/one")), (vec![b'o'; 16384], true));
    // Removing one file drops its reference, so the other one needs no block.
    drop(file);
    volume.remove_file("/two").unwrap();
    write_with(&volume, "/one", WriteFlags::empty());
    assert!(!has_capability(&volume, "/one"));
    assert_eq!(volume.xattr("/one", "user.other", false).unwrap(), b"stays");
    volume.close().unwrap();
    made.assert_clean();
}
