//! Hand-made fast commits: their effect, a crash during their replay, and refusals.

use crate::common;

use common::fast::{
    DIRECTORY, EXTENTS, FILE, ROOT, Records, fsck_clean, plant, raw_inode, tree, volume_with, writable,
};
use common::log::places;
use common::{Image, assert_same_bytes, assert_unchanged, open_ro, within};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use uext4::{Error, FileKind, RecoveryState, Volume, VolumeOptions};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{KernelMount, LoopOptions, Manifest, Need, Rng, Scratch, VolumeBuilder, needs, oracle};

/// A volume with some files, blocks of 1 KiB and an empty journal.
fn base() -> Image {
    static BASE: LazyLock<Image> =
        LazyLock::new(|| volume_with("metadata_csum,64bit,^orphan_file,fast_commit"));
    BASE.clone()
}

fn ino(path: &str) -> u32 {
    let volume = open_ro(base().device());
    volume.metadata(Path::new(path)).unwrap().ino.get()
}

/// An unused block.
fn free(n: u64) -> u64 {
    (base().bytes.len() / 1024) as u64 - 300 + n
}

fn planted(commits: &[Records]) -> Image {
    let mut image = base();
    plant(&mut image, commits);
    image
}

fn tools() -> [Need; 2] {
    [Need::Tool("mke2fs"), Need::Tool("e2fsck")]
}

/// Two fast commits that use every kind of record.
fn two() -> [Records; 2] {
    let (hello, dir, file) = (ino("/hello"), ino("/dir"), ino("/dir/file-03"));
    let first = Records::default()
        .inode(500, &raw_inode(FILE, 1, 3000, EXTENTS))
        .add(500, 0, 3, free(0))
        .create(dir, 500, b"new")
        .inode(501, &raw_inode(DIRECTORY, 2, 1024, EXTENTS))
        .create(ROOT, 501, b"sub")
        .inode(502, &raw_inode(FILE, 1, 0, EXTENTS))
        .create(501, 502, b"inside")
        .link(501, file, b"linked")
        .unlink(dir, file, b"file-03");
    let mut second = Records::default().unlink(ROOT, hello, b"hello").link(501, 500, b"second name");
    // More extents than fit into the inode, some of them unwritten.
    for n in 0..60 {
        let unwritten = if n % 3 == 0 { 0x8000 } else { 0 };
        second = second.add(500, 10 + 5 * n, unwritten + 2, free(10 + u64::from(n) * 3));
    }
    let second =
        second.delete(500, 1, 1).delete(500, 30, 12).inode(500, &raw_inode(FILE, 2, 400_000, EXTENTS));
    [first, second]
}

/// Everything except the log, whose leftovers contain the time.
fn without_log(image: &Image, log: &[u64]) -> Vec<u8> {
    let mut bytes = image.clone().without_lifetime().bytes;
    for place in &log[1..] {
        let start = *place as usize * 1024;
        bytes[start..start + 1024].fill(0);
    }
    bytes
}

#[test]
fn fast_commits_are_replayed_in_memory_and_on_the_device() {
    needs!(tools()[0], tools()[1]);
    let image = planted(&two());
    let device = image.device();
    let volume = open_ro(device.clone());
    let info = volume.info();
    let found = info.recovery.fast_commits().unwrap();
    assert_eq!((found.commits, found.records, found.blocks), (2, 78, 3));
    assert!(
        info.notes.contains(&"2 fast commits (78 records) are replayed, too".to_owned()),
        "{:?}",
        info.notes
    );
    let seen = tree(&volume);
    let names: Vec<_> = seen.keys().map(|name| name.escape_ascii().to_string()).collect();
    for name in ["/dir/new", "/sub/inside", "/sub/linked", "/sub/second name"] {
        assert!(names.iter().any(|other| other == name), "{name} is missing: {names:?}");
    }
    assert!(!names.iter().any(|name| name == "/hello" || name == "/dir/file-03"), "{names:?}");
    let links = |name: &str| seen[name.as_bytes()].nlink;
    assert_eq!([links("/sub/second name"), links("/sub/linked"), links("/sub")], [2, 1, 2]);
    drop(volume);
    assert_unchanged(&image, &*device);

    let volume = writable(device.clone()).unwrap();
    assert_eq!(volume.info().recovery.state, RecoveryState::Replayed);
    uext4_testkit::manifest::assert_same(&seen, &tree(&volume));
    drop(volume);
    fsck_clean(&Image::of(&*device));
    let again = writable(device).unwrap().info().recovery;
    assert_eq!((again.state, again.log), (RecoveryState::Clean, None));
}

/// Fails every write and flush in turn, and crashes there: we and e2fsck get the same tree. Returns the recovered
/// image, the number of points of failure, and how many of them come after the commit.
fn survives_every_failure(image: &Image, log: &[u64]) -> (Image, u32, u32) {
    let device = image.device();
    let volume = writable(device.clone()).unwrap();
    let expected = tree(&volume);
    drop(volume);
    let recovered = Image::of(&*device);
    let done = without_log(&recovered, log);
    let (mut failures, mut conversions) = (0, 0);
    for nth in 1.. {
        let below = image.device();
        let faulty = FaultDevice::new(below.clone());
        let handle = faulty.handle();
        handle.arm(Fault::nth(FaultOn::Changes, nth));
        let opened = writable(Arc::new(faulty));
        if handle.fired() == 0 {
            opened.unwrap();
            return (recovered, failures, conversions);
        }
        failures += 1;
        assert_eq!(opened.map(drop).expect_err("no failure is swallowed").errno(), 5);
        let between = Image::of(&*below);
        let seen = open_ro(below.clone());
        uext4_testkit::manifest::assert_same(&expected, &tree(&seen));
        let recovery = seen.info().recovery;
        let converted = recovery.needed && recovery.fast_commits().is_none();
        conversions += u32::from(converted);
        drop(seen);
        assert_unchanged(&between, &*below);
        drop(writable(below.clone()).unwrap());
        assert_same_bytes(&done, &without_log(&Image::of(&*below), log));
        // From the transaction's commit block on, every recovery finds it.
        // e2fsck 1.47.0 fails on the fast commits as long as they are there.
        let head = log[log.len() - 64 + 1] as usize * 1024;
        if converted && between.bytes[head] == 0 {
            let scratch = Scratch::new(32 << 20);
            let path = scratch.file("volume.img");
            between.save(&path);
            assert!(oracle::e2fsck(&path, &["-y"]).status < 4);
            let theirs = open_ro(Image::load(&path).device());
            let (ours, theirs) = (tree_names(&expected), tree_names(&tree(&theirs)));
            assert_eq!(ours, theirs, "after the {nth}th change");
        }
    }
    unreachable!("the numbers end later than the changes")
}

#[test]
fn a_replay_that_fails_anywhere_is_done_again_with_the_same_result() {
    needs!(tools()[0], tools()[1]);
    let (_, failures, conversions) = survives_every_failure(&planted(&two()), &places(&base()));
    // Zeroing, superblock, descriptors and backups, commit, home blocks, superblocks, each with a flush.
    assert!(failures >= 30 && conversions >= 10, "only {failures} changes, {conversions} behind the commit");
}

/// More blocks than fit into one descriptor block, and one that begins like a log block.
#[test]
fn a_large_replay_that_fails_anywhere_is_done_again_with_the_same_result() {
    needs!(tools()[0], tools()[1]);
    let options = "metadata_csum,64bit,^orphan_file,^resize_inode,fast_commit";
    let volume = VolumeBuilder::new(12 << 20)
        .args(["-b", "1024", "-g", "2048", "-G", "16", "-N", "1024", "-J", "size=2", "-O", options])
        .build();
    let base = Image::load(volume.path());
    // Group 4 has no superblock backup and lies after the journal: its bitmap comes first.
    let group = 1 + 4 * 2048;
    let magic = u64::from(u32::from_le_bytes(common::log::magic()));
    let mut commit = Records::default().inode(500, &raw_inode(FILE, 1, 32 * 1024, EXTENTS));
    for bit in (0..32).filter(|bit| magic >> bit & 1 == 1) {
        commit = commit.add(500, bit as u32, 1, group + bit);
    }
    commit = commit.create(ROOT, 500, b"magic");
    // Four inodes per block of the table.
    for n in 0..70 {
        let ino = 600 + 4 * n;
        let name = format!("{n}");
        commit = commit.inode(ino, &raw_inode(FILE, 1, 0, EXTENTS)).create(ROOT, ino, name.as_bytes());
    }
    let mut image = base.clone();
    plant(&mut image, &[commit]);
    let log = places(&base);
    let (recovered, failures, conversions) = survives_every_failure(&image, &log);
    fsck_clean(&recovered);
    let escaped = recovered
        .bytes
        .chunks(1024)
        .zip(0..)
        .filter(|(block, place)| block.starts_with(&common::log::magic()) && !log.contains(place));
    assert_eq!(escaped.count(), 1, "the bitmap of group 4");
    let descriptors = log.iter().filter(|&&place| {
        let block = &recovered.bytes[place as usize * 1024..][..8];
        block.starts_with(&common::log::magic()) && block[4..8] == [0, 0, 0, 1]
    });
    assert!(descriptors.count() >= 2, "one descriptor is too few for this test");
    assert!(failures >= 80 && conversions >= 10, "only {failures} changes, {conversions} behind the commit");
}

fn tree_names(tree: &Manifest) -> Vec<(String, u64, u64)> {
    tree.iter()
        .filter(|(name, _)| *name != b"/lost+found")
        .map(|(name, entry)| (name.escape_ascii().to_string(), entry.nlink, entry.size))
        .collect()
}

/// Records that contradict the volume or each other.
fn hostile() -> Vec<(&'static str, Records)> {
    let (hello, dir, file) = (ino("/hello"), ino("/dir"), ino("/dir/file-03"));
    let new = || Records::default();
    let made = || new().inode(500, &raw_inode(FILE, 1, 0, EXTENTS));
    let long = [b'x'; 255];
    let all = u32::try_from(base().bytes.len() / 1024).unwrap();
    vec![
        ("inode number is out of range", new().add(u32::MAX, 0, 1, free(0))),
        ("inode number is out of range", new().delete(0, 0, 1)),
        ("inode number is out of range", new().inode(1 << 20, &raw_inode(FILE, 1, 0, EXTENTS))),
        ("inode number is out of range", new().link(ROOT, 1 << 20, b"x")),
        ("inode number is out of range", new().link(1 << 20, hello, b"x")),
        ("an inode of the volume's own", new().add(8, 0, 1, free(0))),
        ("an inode of the volume's own", new().inode(ROOT, &raw_inode(DIRECTORY, 2, 1024, EXTENTS))),
        ("an inode of the volume's own", new().unlink(ROOT, 8, b"hello")),
        ("field `fc_ex` is invalid", new().add(hello, 0, 0, free(0))),
        ("field `fc_ex` is invalid", new().add(hello, u32::MAX - 1, 2, free(0))),
        ("in metadata or outside the volume", new().add(hello, 0, 1, 1)),
        ("in metadata or outside the volume", new().add(hello, 0, 1, u64::from(all))),
        ("in metadata or outside the volume", new().add(hello, 0, 8, u64::from(all) - 4)),
        ("in metadata or outside the volume", new().add(hello, 0, 1, 1 << 40)),
        ("in metadata or outside the volume", new().add(hello, 0, 1, places(&base())[5])),
        ("field `fc_len` is invalid", new().delete(hello, 0, 0)),
        ("field `fc_len` is invalid", new().delete(hello, 7, u32::MAX)),
        ("a range of a directory", new().add(dir, 0, 1, free(0))),
        ("a range of a directory", new().delete(dir, 0, 1)),
        ("field `fc_dname` is invalid", new().link(ROOT, hello, b"a/b")),
        ("field `fc_dname` is invalid", new().link(ROOT, hello, b"a\0")),
        ("field `fc_dname` is invalid", new().unlink(ROOT, hello, b"..")),
        ("field `fc_dname` is invalid", made().create(ROOT, 500, b".")),
        ("names go into it, but it is no directory", new().link(hello, file, b"x")),
        ("which is that of inode", new().link(ROOT, hello, b"dir")),
        ("a name in itself", new().link(dir, dir, b"x")),
        ("gives a directory another name", new().link(ROOT, dir, b"x")),
        ("not in use", new().create(ROOT, 500, &long)),
        ("a directory that is not empty", new().unlink(ROOT, dir, b"dir")),
        ("a directory of an inode in use", new().inode(dir, &raw_inode(DIRECTORY, 2, 1024, EXTENTS))),
        ("changes the type", new().inode(hello, &raw_inode(0o120_777, 1, 5, 0))),
        ("names no file type", new().inode(500, &raw_inode(0o644, 1, 0, EXTENTS))),
        ("changes how the file is mapped", new().inode(hello, &raw_inode(FILE, 1, 0, 0))),
        ("`system.data` is missing", new().inode(500, &raw_inode(FILE, 1, 0, 0x1000_0000))),
        ("flags that no such file can have", new().inode(500, &raw_inode(FILE, 1, 0, 0x1008_0000))),
        ("changes the block of attributes", {
            let mut raw = raw_inode(FILE, 1, 0, EXTENTS);
            raw[0x68..0x6c].copy_from_slice(&(free(9) as u32).to_le_bytes());
            new().inode(hello, &raw)
        }),
        ("field `extra_isize` is invalid", {
            let mut raw = raw_inode(FILE, 1, 0, EXTENTS);
            raw[128..130].copy_from_slice(&1000_u16.to_le_bytes());
            new().inode(500, &raw)
        }),
        (
            "field `fc_len` is invalid",
            new().inode(500, &[raw_inode(FILE, 1, 0, EXTENTS), vec![0; 400]].concat()),
        ),
        ("to it and to inode", new().add(hello, 0, 2, free(0)).add(file, 0, 1, free(1))),
        ("to it and to inode", new().add(hello, 20, 1, free(0)).add(hello, 30, 1, free(0))),
    ]
}

/// The record of an inode of the first group.
fn raw_of(ino: u32) -> Vec<u8> {
    let bytes = base().bytes;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let size = usize::from(u16::from_le_bytes([bytes[1024 + 0x58], bytes[1024 + 0x59]]));
    assert!((ino as usize) < word(1024 + 0x28), "an inode of the first group");
    let at = word(2048 + 8) * 1024 + (ino as usize - 1) * size;
    bytes[at..at + 160].to_vec()
}

/// Links and block counts that do not match the file.
fn contradictions() -> Vec<(&'static str, Records)> {
    let (hello, file) = (ino("/hello"), ino("/dir/file-03"));
    let new = || Records::default();
    let linked = |links: u16| {
        let mut raw = raw_of(hello);
        raw[26..28].copy_from_slice(&links.to_le_bytes());
        new().inode(hello, &raw)
    };
    let made = |links| new().inode(500, &raw_inode(FILE, links, 0, EXTENTS));
    let first = raw_of(hello)[0x28 + 20..0x28 + 24].try_into().map(u32::from_le_bytes).unwrap();
    let first = u64::from(first);
    vec![
        ("0 links and leaves it 1 names", linked(0)),
        ("7 links and leaves it 1 names", linked(7)),
        ("1 links and leaves it 2 names", new().link(ROOT, hello, b"x").inode(hello, &raw_of(hello))),
        ("1 links and leaves it 0 names", made(1)),
        ("0 links and leaves it 1 names", made(0).create(ROOT, 500, b"x")),
        ("1 links and leaves it 2 names", made(1).create(ROOT, 500, b"x").create(ROOT, 500, b"y")),
        ("2 links and leaves it 0 names", new().inode(500, &raw_inode(DIRECTORY, 2, 1024, EXTENTS))),
        ("changes the generation", {
            let mut raw = raw_of(hello);
            raw[0x64] ^= 1;
            new().inode(hello, &raw)
        }),
        ("never says what it is", new().link(ROOT, 700, b"x")),
        ("never says what it is", new().unlink(ROOT, hello, b"hello").link(ROOT, hello, b"x")),
        ("in a directory that it removes", {
            let made = new().inode(500, &raw_inode(DIRECTORY, 2, 1024, EXTENTS)).create(ROOT, 500, b"x");
            let removed = made.link(500, 501, b"y").unlink(ROOT, 500, b"x");
            removed.inode(501, &raw_inode(FILE, 1, 0, EXTENTS))
        }),
        ("which is that of inode 700", new().link(ROOT, 700, b"x").link(ROOT, 701, b"x")),
        ("not in use", new().unlink(ROOT, hello, b"hello").create(ROOT, hello, b"x")),
        ("that something else uses", new().add(file, 0, 1, first)),
        ("that something else uses", new().add(file, 7, 20, first + 1)),
        ("that something else uses", made(1).add(500, 0, 1, first).create(ROOT, 500, b"x")),
    ]
}

/// Blocks of a deleted file, or blocks that a file frees, may be reused by another file.
#[test]
fn blocks_that_one_file_gives_up_may_go_to_another() {
    needs!(tools()[0], tools()[1]);
    let (hello, file) = (ino("/hello"), ino("/dir/file-03"));
    let first = raw_of(hello)[0x28 + 20..0x28 + 24].try_into().map(u32::from_le_bytes).unwrap();
    let deleted = Records::default().unlink(ROOT, hello, b"hello");
    for records in [deleted, Records::default().delete(hello, 0, 1)] {
        let device = planted(&[records.add(file, 0, 1, first.into())]).device();
        drop(writable(device.clone()).unwrap());
        fsck_clean(&Image::of(&*device));
    }
}

#[test]
fn records_that_contradict_the_volume_are_refused_by_name() {
    needs!(tools()[0]);
    let good = Records::default().link(ROOT, ino("/dir/file-07"), b"good");
    let without = tree(&open_ro(planted(std::slice::from_ref(&good)).device()));
    assert!(without.contains_key(&b"/good"[..]));
    for (text, bad) in hostile().into_iter().chain(contradictions()) {
        // After a good one, which was durable before. The one after the bad one is good too, but does not count.
        let late = Records::default().link(ROOT, ino("/dir/file-08"), b"late");
        let at_end = ["to it and to inode", "that something else uses"].contains(&text);
        let mut commits = vec![good.clone(), bad.clone()];
        commits.extend((!at_end).then_some(late));
        let image = planted(&commits);
        let device = image.device();
        let volume = open_ro(device.clone());
        let info = volume.info();
        let why = info.recovery.fast_commits_refused.clone().unwrap_or_else(|| panic!("{text}: {bad:x?}"));
        assert!(why.contains(text), "{why} instead of {text}");
        assert!(info.notes.iter().any(|note| note.contains(&why)), "{:?}", info.notes);
        assert!(info.recovery.loss().is_some_and(|loss| loss.contains(&why)), "{:?}", info.recovery);
        let note = format!("from number 2 on are not replayed, later changes are lost: {why}");
        assert!(info.notes.iter().any(|other| other.ends_with(&note)), "{:?}", info.notes);
        assert!(
            info.notes.contains(&"1 fast commits (3 records) are replayed, too".to_owned()),
            "{:?}",
            info.notes
        );
        assert_eq!(info.recovery.fast_commits().map(|done| done.commits), Some(1));
        uext4_testkit::manifest::assert_same(&without, &tree(&volume));
        drop(volume);
        match writable(device.clone()) {
            Err(Error::FastCommit { record, cause }) => {
                assert!(record >= 3, "{text}: record {record}");
                assert!(cause.to_string().contains(text), "{cause} instead of {text}");
            }
            other => panic!("{text}: {:?}", other.map(drop)),
        }
        assert_unchanged(&image, &*device);
    }
}

/// Wherever the fault is and whenever it is found, the fast commits before it are replayed.
#[test]
fn what_shows_at_the_end_only_leaves_the_fast_commits_before_it() {
    needs!(tools()[0]);
    let (hello, file) = (ino("/hello"), ino("/dir/file-03"));
    let bad = Records::default().add(hello, 0, 2, free(0)).add(file, 0, 1, free(1));
    let good = |name: &[u8]| Records::default().link(ROOT, ino("/dir/file-07"), name);
    for (commits, expected) in [
        (vec![good(b"one"), good(b"two"), bad.clone()], &[&b"/one"[..], b"/two"][..]),
        (vec![good(b"one"), bad.clone(), good(b"two"), good(b"three")], &[b"/one"]),
        (
            vec![good(b"one"), good(b"two"), good(b"three"), bad.clone(), good(b"dir")],
            &[b"/one", b"/two", b"/three"],
        ),
        (vec![bad.clone(), good(b"one"), good(b"two"), good(b"three"), good(b"four")], &[]),
        (vec![bad, good(b"one")], &[]),
        // The record is named: the first replay stops there, the second one before it.
        (vec![good(b"one"), good(b"two"), good(b"dir"), good(b"four")], &[b"/one", b"/two"]),
        (vec![good(b"dir"), good(b"two")], &[]),
    ] {
        let image = planted(&commits);
        let device = image.device();
        let volume = open_ro(device.clone());
        let info = volume.info();
        let done = info.recovery.fast_commits().map_or(0, |done| done.commits as usize);
        assert!(info.recovery.fast_commits_refused.is_some());
        assert_eq!(done, expected.len(), "{:?}", info.notes);
        let seen = tree(&volume);
        for name in [&b"/one"[..], b"/two", b"/three", b"/four"] {
            assert_eq!(seen.contains_key(name), expected.contains(&name), "{}", name.escape_ascii());
        }
        drop(volume);
        assert!(matches!(writable(device.clone()), Err(Error::FastCommit { .. })));
        assert_unchanged(&image, &*device);
    }
}

#[test]
fn links_and_names_of_what_is_gone_are_ignored() {
    needs!(tools()[0], tools()[1]);
    let hello = ino("/hello");
    let records = Records::default()
        .link(ROOT, 700, b"never there")
        .unlink(ROOT, 700, b"never there")
        .link(701, hello, b"in no directory")
        .unlink(ROOT, hello, b"no such name")
        .add(700, 0, 1, free(0))
        .delete(700, 0, 1)
        // A file without a name from the start, and a name that comes before its inode.
        .inode(500, &raw_inode(FILE, 0, 0, EXTENTS))
        .link(ROOT, 501, b"from nowhere")
        .inode(501, &raw_inode(FILE, 1, 0, EXTENTS));
    let device = planted(&[records]).device();
    drop(writable(device.clone()).unwrap());
    let image = Image::of(&*device);
    fsck_clean(&image);
    let tree = tree(&open_ro(device));
    assert_eq!(tree[&b"/from nowhere"[..]].nlink, 1);
    assert!(!tree.contains_key(&b"/never there"[..]));
}

/// Adds names until the directory could fill a hash tree, then removes them.
#[test]
fn directories_grow_and_shrink() {
    needs!(tools()[0], tools()[1]);
    let dir = ino("/dir");
    let name = |n: u32| format!("a name that takes some room, number {n:04}").into_bytes();
    let mut commits = Vec::new();
    let mut records = Records::default();
    for n in 0..150 {
        records = records.inode(500 + n, &raw_inode(FILE, 1, 0, EXTENTS)).create(dir, 500 + n, &name(n));
    }
    commits.push(records);
    let mut records = Records::default();
    for n in (0..150).filter(|n| n % 3 != 0) {
        records = records.unlink(dir, 500 + n, &name(n));
    }
    commits.push(records);
    for upto in [1, 2] {
        let device = planted(&commits[..upto]).device();
        drop(writable(device.clone()).unwrap());
        fsck_clean(&Image::of(&*device));
        let count = tree(&open_ro(device)).keys().filter(|name| name.starts_with(b"/dir/a name")).count();
        assert_eq!(count, [150, 50][upto - 1]);
    }
}

/// Seeded mutations of records with correct checksums: a result or a typed error, in bounded time, and nothing is
/// written when refused.
#[test]
fn mutated_records_are_answered_with_values_or_typed_errors() {
    needs!(tools()[0]);
    let (mut replayed, mut refused) = (0, 0);
    within(Duration::from_secs(100), move || {
        let mut rng = Rng::new(0xFA57);
        for round in 0..250 {
            let mut commits = two();
            for _ in 0..1 + rng.below(4) {
                mutate(&mut commits, &mut rng);
            }
            let image = planted(&commits);
            let device = image.device();
            let volume = Volume::open_device(device.clone(), VolumeOptions::read_only()).unwrap();
            let recovery = volume.info().recovery;
            match (&recovery.fast_commits_refused, recovery.fast_commits()) {
                (Some(_), _) => refused += 1,
                (None, Some(_)) => replayed += 1,
                (None, None) => {}
            }
            drop(volume);
            assert_unchanged(&image, &*device);
            if round % 8 == 0 {
                match writable(device.clone()) {
                    Ok(_) => assert_eq!(recovery.fast_commits_refused, None),
                    Err(Error::FastCommit { .. }) => assert_unchanged(&image, &*device),
                    Err(error) => panic!("not an error of damaged fast commits: {error:?}"),
                }
            }
        }
        assert!(replayed > 30 && refused > 30, "{replayed} replayed, {refused} refused");
    });
}

fn mutate(commits: &mut [Records; 2], rng: &mut Rng) {
    let commit = &mut commits[rng.below(2) as usize].list;
    let at = rng.below(commit.len() as u64) as usize;
    match rng.below(5) {
        0 => drop(commit.remove(at)),
        1 => commit.insert(at, commit[rng.below(commit.len() as u64) as usize].clone()),
        2 => {
            let other = rng.below(commit.len() as u64) as usize;
            commit.swap(at, other);
        }
        _ => {
            // After tag and length; a change of those would only end the fast commits.
            let record = &mut commit[at];
            let place = 4 + rng.below(record.len() as u64 - 4) as usize;
            record[place] = if rng.chance(50) { rng.below(256) as u8 } else { record[place] ^ 1 };
        }
    }
}

/// The kernel makes a whole transaction of every change of these (6.18: `fc_info` counts "Data journalling"), but the
/// format does not forbid them.
#[test]
fn links_pipes_and_devices_may_be_in_fast_commits() {
    needs!(tools()[0], tools()[1]);
    let with = |mode: u16, size: u32, content: &[u8]| {
        let mut raw = raw_inode(mode, 1, size, 0);
        raw[0x28..0x28 + content.len()].copy_from_slice(content);
        raw
    };
    let device = 0x0100_0321_u32.to_le_bytes();
    let image = planted(&[Records::default()
        .inode(500, &with(0o120_777, 6, b"target"))
        .create(ROOT, 500, b"link")
        .inode(501, &with(0o010_640, 0, b""))
        .create(ROOT, 501, b"pipe")
        .inode(502, &with(0o060_640, 0, &[[0; 4], device].concat()))
        .create(ROOT, 502, b"block")]);
    let device = image.device();
    let volume = open_ro(device.clone());
    assert_eq!(volume.read_link("/link").unwrap(), b"target");
    let seen = tree(&volume);
    drop(volume);
    let volume = writable(device.clone()).unwrap();
    uext4_testkit::manifest::assert_same(&seen, &tree(&volume));
    let kinds = ["/link", "/pipe", "/block"].map(|name| volume.symlink_metadata(name).unwrap().kind);
    assert_eq!(kinds, [FileKind::Symlink, FileKind::Fifo, FileKind::BlockDevice]);
    drop(volume);
    fsck_clean(&Image::of(&*device));
}

/// Even the first one, unlike in the kernel: its blocks may have reached the medium in any order.
#[test]
fn a_fast_commit_with_a_wrong_checksum_ends_them_and_is_told() {
    needs!(tools()[0]);
    let good = |name: &[u8]| Records::default().link(ROOT, ino("/dir/file-07"), name);
    for bad in 1..=2_u32 {
        let mut image = planted(&[good(b"one"), good(b"two")]);
        let name = [&b"one"[..], b"two"][bad as usize - 1];
        let at = image.bytes.windows(name.len()).rposition(|part| part == name).unwrap();
        image.bytes[at] ^= 1;
        let device = image.device();
        let volume = open_ro(device.clone());
        let info = volume.info();
        assert_eq!(info.recovery.fast_commits().map_or(0, |done| done.commits), bad - 1, "{:?}", info.notes);
        assert_eq!(info.recovery.log.unwrap().torn_fast_commit, Some(bad));
        let told = format!("fast commit {bad} of the journal has a wrong checksum");
        assert!(info.notes.iter().any(|note| note.starts_with(&told)), "{:?}", info.notes);
        assert_eq!(info.recovery.fast_commits_refused, None);
        assert_eq!(tree(&volume).contains_key(&b"/one"[..]), bad == 2);
    }
}

/// Removing single blocks from one extent makes more extents than two leaves hold.
#[test]
fn an_extent_may_fall_into_many_pieces() {
    needs!(tools()[0], tools()[1]);
    let raw = |size: u32| raw_inode(FILE, 1, size, EXTENTS);
    let mut records = Records::default()
        .inode(500, &raw(1000 * 1024))
        .add(500, 0, 1000, free(0) - 2000)
        .create(ROOT, 500, b"new");
    for n in 0..400 {
        records = records.delete(500, 2 * n + 1, 1);
    }
    let device = planted(&[records]).device();
    let volume = open_ro(device.clone());
    assert_eq!(volume.info().recovery.fast_commits_refused, None);
    let file = volume.open_file("/new", uext4::OpenOptions::new().read(true)).unwrap();
    let written = file.map().map(Result::unwrap).filter(|run| run.state == uext4::State::Written);
    assert_eq!(written.map(|run| run.length / 1024).sum::<u64>(), 600);
    drop((file, volume));
    drop(writable(device.clone()).unwrap());
    fsck_clean(&Image::of(&*device));
}

/// When contents leave the inode, attribute values in inodes of their own still count for the file.
#[test]
fn root_files_and_directories_that_leave_their_inodes_keep_what_is_counted_for_them() {
    needs!(tools()[0], tools()[1], Need::Loop);
    let features = "metadata_csum,64bit,^orphan_file,fast_commit,inline_data,ea_inode";
    let volume =
        VolumeBuilder::new(8 << 20).args(["-b", "1024", "-I", "256", "-J", "size=2", "-O", features]).build();
    let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "noatime");
    std::fs::write(mounted.path().join("file"), "tiny").unwrap();
    std::fs::create_dir(mounted.path().join("dir")).unwrap();
    std::fs::write(mounted.path().join("dir/one"), "").unwrap();
    for name in ["file", "dir"] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mounted.path().join(name), "user.big", &[b'v'; 3000], flags).unwrap();
    }
    mounted.unmount();
    oracle::e2fsck_clean(volume.path());
    let mut image = Image::load(volume.path());
    let opened = open_ro(image.device());
    let [file, dir] = ["/file", "/dir"].map(|path| opened.metadata(path).unwrap().ino.get());
    let one = opened.metadata("/dir/one").unwrap().ino.get();
    drop(opened);
    let mut records = Records::default().add(file, 0, 1, free(0));
    for n in 0..20 {
        records = records.link(dir, one, format!("another name of some length, {n:03}").as_bytes());
    }
    plant(&mut image, &[records]);
    let device = image.device();
    assert_eq!(open_ro(device.clone()).info().recovery.fast_commits_refused, None);
    drop(writable(device.clone()).unwrap());
    fsck_clean(&Image::of(&*device));
}
