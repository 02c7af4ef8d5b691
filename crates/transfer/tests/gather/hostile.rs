//! Archives that lie: each is a named error, at once and in little memory.

use crate::common::{Head, Tar, contents, gather_bytes, item, paths, record};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;
use uext4::mkfs::ItemKind;
use uext4_testkit::{Need, Rng, Scratch, Tmpfs, needs};
use uext4_transfer::{ArchiveInput, Failures, GatherCause, GatherOptions, Gathering};

fn tar() -> Tar {
    Tar::default()
}

/// From memory and from a file, which must fail alike.
#[track_caller]
fn fails(archive: &[u8], matches: impl Fn(&GatherCause) -> bool) {
    let streamed = gather_bytes(&[archive]).expect_err("a stream was not refused");
    assert!(matches(&streamed.errors[0].cause), "{streamed}");
    let scratch = Scratch::new(1 << 20);
    let path = scratch.file("hostile.tar");
    std::fs::write(&path, archive).unwrap();
    let mut gathering = Gathering::new(GatherOptions::default());
    let read = gathering.archive(&path, ArchiveInput::File(File::open(&path).unwrap()));
    let in_place = read.err().or_else(|| gathering.finish().err()).expect("a file was not refused");
    assert!(matches(&in_place.errors[0].cause), "{in_place}");
}

#[test]
fn archives_that_are_cut_are_not_taken_for_whole() {
    let whole = tar().file("a", "some text").records(b'x', &[("path", "b")]).file("x", "y").end();
    gather_bytes(&[&whole]).unwrap();
    for length in 0..whole.len() - 512 {
        let cut = gather_bytes(&[&whole[..length]]);
        let failures = cut.map(|gathered| paths(&gathered.tree)).expect_err(&format!("{length} bytes"));
        let cause = &failures.errors[0].cause;
        let named = matches!(cause, GatherCause::Truncated(_))
            || length < 512 && matches!(cause, GatherCause::Format(_));
        assert!(named, "{length} bytes: {failures}");
    }
    fails(&tar().head(&Head::new("a", b'0', 1 << 30)).0, |cause| matches!(cause, GatherCause::Truncated(_)));
    fails(&tar().records(b'x', &[("path", "a")]).end(), |cause| matches!(cause, GatherCause::Truncated(_)));
}

#[test]
fn headers_that_are_wrong_are_refused() {
    let mut wrong = tar().file("a", "").file("b", "").end();
    wrong[700] ^= 1;
    let failures = gather_bytes(&[&wrong]).unwrap_err();
    assert!(matches!(failures.errors[0].cause, GatherCause::Checksum), "{failures}");
    assert_eq!(failures.errors[0].offset, Some(512));
    for (at, field) in
        [(124, &b"0000000000x\0"[..]), (100, b"8000644\0"), (108, b"\xff\xff\xff\xff\xff\xff\xff\xff")]
    {
        let mut head = Head::new("a", b'0', 0);
        fails(&tar().head(head.put(at, field)).end(), |cause| matches!(cause, GatherCause::Field(_)));
    }
    // As large as a number can be, and one that the padding makes too large.
    for size in [
        &b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"[..],
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut head = Head::new("a", b'0', 0);
        fails(&tar().head(head.put(124, size)).end(), |cause| matches!(cause, GatherCause::Field(_)));
    }
    for text in ["PK\x03\x04", "BZh91AY", "\u{7f}ELF", "hello"] {
        fails(text.repeat(300).as_bytes(), |cause| matches!(cause, GatherCause::Format(_)));
    }
    fails(b"", |cause| matches!(cause, GatherCause::Truncated(_)));
}

#[test]
fn extended_headers_are_bounded() {
    let too_large = |cause: &GatherCause| matches!(cause, GatherCause::TooLarge { .. });
    for typeflag in [b'x', b'g', b'L', b'K'] {
        fails(&tar().head(&Head::new("big", typeflag, 1 << 32)).end(), too_large);
        let long = "x".repeat(300_000);
        let mut many = tar();
        for _ in 0..4 {
            many = many.records(typeflag, &[("comment", &long)]);
        }
        fails(&many.file("a", "").end(), too_large);
    }
    for wrong in ["99 path=a\n", "5 pa\n", "x path=a\n", "9 path=ab", "99999999999999999999999999 path=a\n"] {
        let head = Head::new("pax", b'x', wrong.len() as u64);
        let archive = tar().head(&head).data(wrong.as_bytes()).file("a", "").end();
        fails(&archive, |cause| matches!(cause, GatherCause::Extended(_) | GatherCause::Field(_)));
    }
    for (key, value) in [("size", "-1"), ("uid", "4294967296"), ("mtime", "1.x"), ("gid", "1e3")] {
        let archive = tar().records(b'x', &[(key, value)]).file("a", "").end();
        fails(&archive, |cause| matches!(cause, GatherCause::Field(_)));
    }
}

#[test]
fn records_count_more_than_headers_and_local_ones_more_than_global_ones() {
    let archive = tar()
        .records(b'g', &[("uid", "7"), ("gid", "8"), ("mtime", "5.5")])
        .records(b'x', &[("uid", "9"), ("path", "named"), ("mtime", "-1.25"), ("SCHILY.fflags", "x")])
        .file("a", "a")
        .records(b'x', &[("gid", "")])
        .file("b", "b")
        .head(&Head::new("V", b'V', 0))
        .file("c", "c")
        .end();
    let found = gather_bytes(&[&archive]).unwrap();
    assert_eq!(paths(&found.tree), ["b", "c", "named"]);
    let (named, b, c) = (item(&found.tree, "named"), item(&found.tree, "b"), item(&found.tree, "c"));
    assert_eq!((named.uid, named.gid), (9, 8));
    assert_eq!((named.modified.seconds, named.modified.nanoseconds), (-2, 750_000_000));
    assert_eq!((b.uid, b.gid, c.gid), (7, 0, 8));
    assert_eq!((c.modified.seconds, c.modified.nanoseconds), (5, 500_000_000));
    // Two attributes, and a list that only directories have.
    let acl = "user::rwx,group::r-x,other::---";
    let records = [("RHT.security.selinux", "label\0"), ("SCHILY.acl.default", acl)];
    let labelled = tar().records(b'x', &records).file("a", "").records(b'x', &records).directory("d").end();
    let found = gather_bytes(&[&labelled]).unwrap();
    let names = |path: &str| item(&found.tree, path).xattrs.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names("a"), [b"security.selinux".to_vec()]);
    assert_eq!(names("d"), [b"security.selinux".to_vec(), b"system.posix_acl_default".to_vec()]);
    // A size of its own: the header's is not where the next one is found.
    let sized = tar()
        .records(b'x', &[("size", "600")])
        .head(&Head::new("a", b'0', 0))
        .data(&[b'z'; 600])
        .file("b", "b")
        .end();
    let found = gather_bytes(&[&sized]).unwrap();
    assert_eq!(contents(&found, item(&found.tree, "a")), [b'z'; 600]);
}

#[test]
fn names_that_no_file_has_are_refused() {
    let is_name = |cause: &GatherCause| matches!(cause, GatherCause::Name(_) | GatherCause::TooLarge { .. });
    let long = "n".repeat(256);
    let deep = "d/".repeat(4097);
    let huge = "h/".repeat(40_000);
    let wide = ("w".repeat(250) + "/").repeat(300);
    let target = "t".repeat(4096);
    for records in [
        [("path", &*long)],
        [("path", "a\0b")],
        [("path", &*deep)],
        [("path", &*huge)],
        [("path", &*wide)],
        [("SCHILY.xattr.", "x")],
    ] {
        fails(&tar().records(b'x', &records).file("a", "").end(), is_name);
    }
    fails(&tar().records(b'x', &[("linkpath", &target)]).symlink("a", "").end(), is_name);
    fails(&tar().symlink("a", "").end(), is_name);
    let value = "v".repeat(65_537);
    fails(&tar().records(b'x', &[("SCHILY.xattr.user.a", &value)]).file("a", "").end(), is_name);
    // As deep as allowed.
    let deep = "d/".repeat(4095) + "f";
    gather_bytes(&[&tar().records(b'x', &[("path", &deep)]).file("a", "").end()]).unwrap();
}

/// A sparse file in format 1.0.
fn sparse(map: &str, size: u64, data: &str) -> Vec<u8> {
    let mut bytes = map.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend(data.as_bytes());
    let size = size.to_string();
    let records = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", "sparse"),
        ("GNU.sparse.realsize", &size),
    ];
    let head = Head::new("mangled", b'0', bytes.len() as u64);
    tar().records(b'x', &records).head(&head).data(&bytes).end()
}

#[test]
fn maps_of_sparse_files_are_checked() {
    let found = gather_bytes(&[&sparse("3\n0\n2\n10\n3\n20\n0\n", 20, "abcde")]).unwrap();
    let file = item(&found.tree, "sparse");
    let ItemKind::Regular(known) = &file.kind else { panic!() };
    assert_eq!((known.size, known.data.clone()), (20, vec![0..2, 10..13]));
    assert_eq!(contents(&found, file), b"ab\0\0\0\0\0\0\0\0cde\0\0\0\0\0\0\0");
    let is_sparse = |cause: &GatherCause| {
        matches!(cause, GatherCause::Sparse(_) | GatherCause::Field(_) | GatherCause::TooLarge { .. })
    };
    for (map, size) in [
        ("2\n0\n3\n2\n2\n", 20),
        ("2\n10\n3\n0\n2\n", 20),
        ("1\n16\n5\n", 20),
        ("1\n0\n4\n", 20),
        ("1\n0\n6\n", 20),
        ("1\n18446744073709551615\n5\n", 20),
        ("x\n", 20),
        ("1\n\n5\n", 20),
        ("99999999999\n0\n5\n", 20),
        ("100000\n0\n5\n", 20),
        ("123456789012345678901234567890", 20),
        ("1\n0\n5\n", u64::MAX),
    ] {
        fails(&sparse(map, size, "abcde"), is_sparse);
    }
    // What is wrong is seen at once.
    let is_field = |cause: &GatherCause| matches!(cause, GatherCause::Field("sparse map"));
    fails(&sparse(&"1".repeat(2000), 20, "abcde"), is_field);
    let is_large = |cause: &GatherCause| matches!(cause, GatherCause::TooLarge { .. });
    fails(&sparse("99999999999\n0\n5\n", 20, "abcde"), is_large);
    // Two blocks of map, of which the entry has one.
    let map = "200\n".to_owned() + &"0\n".repeat(400);
    let records = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "0")];
    let long = tar().records(b'x', &records).head(&Head::new("a", b'0', 512)).data(map.as_bytes()).end();
    fails(&long, is_sparse);
    for records in [
        &[("GNU.sparse.major", "2"), ("GNU.sparse.map", "0,1"), ("GNU.sparse.size", "9")][..],
        &[("GNU.sparse.map", "0,1,2"), ("GNU.sparse.size", "9")],
        &[("GNU.sparse.map", "0,1")],
        &[("GNU.sparse.numbytes", "1"), ("GNU.sparse.size", "9")],
    ] {
        fails(&tar().records(b'x', records).file("a", "a").end(), is_sparse);
    }
    // Old GNU: a chain of blocks that never ends, and a map that goes backwards.
    let mut head = Head::new("old", b'S', 0);
    head.put(257, b"ustar  \0").put(483, b"00000001000\0").put(482, b"\x01");
    fails(&[&head.done()[..], &[1; 512 * 9]].concat(), |cause| {
        is_sparse(cause) || matches!(cause, GatherCause::Truncated(_))
    });
    let mut head = Head::new("old", b'S', 2);
    head.put(257, b"ustar  \0").put(483, b"00000001000\0");
    head.put(386, b"00000000100\x0000000000001\x0000000000010\x0000000000001\0");
    fails(&tar().head(&head).data(b"ab").end(), is_sparse);
}

/// Zeros without end, and nothing else.
struct Zeros;

impl Read for Zeros {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(0);
        Ok(buffer.len())
    }
}

/// Counts bytes.
struct Counted<R>(R, Rc<Cell<usize>>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.set(self.1.get() + read);
        Ok(read)
    }
}

fn limited(options: GatherOptions, stream: impl Read + 'static) -> Failures {
    let mut gathering = Gathering::new(options);
    let read = gathering.archive(Path::new("bomb"), ArchiveInput::Stream(Box::new(stream)));
    read.err().or_else(|| gathering.finish().err()).expect("not refused")
}

#[test]
fn bombs_end_at_the_limits() {
    // Larger than the device: known from the header, before anything is written.
    let options = || GatherOptions { bytes_max: Some(1 << 20), ..GatherOptions::default() };
    let head = Head::new("a", b'0', 1 << 32);
    let read = Rc::new(Cell::new(0));
    let stream = Counted(io::Cursor::new(head.done().to_vec()).chain(Zeros), read.clone());
    let failures = limited(options(), stream);
    assert!(matches!(failures.errors[0].cause, GatherCause::TooMuchData(_)), "{failures}");
    assert!(read.get() < 1 << 20, "{} bytes were read", read.get());
    assert_eq!(failures.errno(), 28);
    // What is replaced counts once.
    let twice = tar().file("a", &"a".repeat(700_000)).file("a", &"b".repeat(700_000)).end();
    let mut gathering = Gathering::new(options());
    gathering.archive(Path::new("a"), ArchiveInput::Stream(Box::new(io::Cursor::new(twice)))).unwrap();
    assert_eq!(gathering.finish().unwrap().data, 700_000);
    let options_of_memory = || GatherOptions { memory_max: 1 << 20, ..GatherOptions::default() };
    let mut same = tar();
    for _ in 0..10_000 {
        same = same.file("d/a", "").directory("d").symlink("d/b", "x");
    }
    let mut gathering = Gathering::new(options_of_memory());
    gathering.archive(Path::new("a"), ArchiveInput::Stream(Box::new(io::Cursor::new(same.end())))).unwrap();
    assert_eq!(gathering.finish().unwrap().tree.len(), 4);
    // An end mark, and then no end.
    let failures = limited(options(), io::Cursor::new(tar().end()).chain(Zeros));
    assert!(matches!(failures.errors[0].cause, GatherCause::TooLarge { .. }), "{failures}");
    // Names alone.
    let mut many = tar();
    for at in 0..10_000 {
        many = many.file(&at.to_string(), "");
    }
    let failures = limited(options_of_memory(), io::Cursor::new(many.end()));
    assert!(matches!(failures.errors[0].cause, GatherCause::TooMuchMemory(_)), "{failures}");
    let missing = GatherOptions { spool: "/nowhere".into(), ..GatherOptions::default() };
    let failures = limited(missing, io::Cursor::new(tar().file("a", "a").end()));
    assert_eq!(failures.errno(), 2, "{failures}");
}

#[test]
fn a_full_disk_under_the_temporary_file_is_named() {
    needs!(Need::Root);
    let small = Tmpfs::new(1 << 20);
    let options = GatherOptions { spool: small.path().to_owned(), ..GatherOptions::default() };
    let failures = limited(options, io::Cursor::new(tar().file("a", &"a".repeat(3 << 20)).end()));
    assert_eq!(failures.errno(), 28, "{failures}");
    assert!(failures.to_string().starts_with("bomb: a: write to the temporary file: "), "{failures}");
}

/// An archive with something of every kind, for the mutations.
fn rich() -> Vec<u8> {
    let xattr = record("SCHILY.xattr.user.a", b"\0\n=x");
    let mut old = Head::new("old", b'S', 2);
    old.put(257, b"ustar  \0").put(483, b"00000001000\0");
    old.put(386, b"00000000010\x0000000000001\x0000000000100\x0000000000001\0");
    let base = tar()
        .directory("d")
        .records(b'g', &[("comment", "x"), ("uid", "3")])
        .records(
            b'x',
            &[
                ("path", "d/long"),
                ("mtime", "1.5"),
                ("SCHILY.acl.access", "user::r--,user:1:r--,group::r--,mask::r--,other::r--"),
            ],
        )
        .file("a", "abc")
        .head(&Head::new("pax", b'x', xattr.len() as u64))
        .data(&xattr)
        .symlink("s", "d/long")
        .hard_link("h", "d/long")
        .head(&Head::new("name", b'L', 6))
        .data(b"d/name")
        .file("d/na", "text")
        .head(Head::new("c", b'3', 0).put(329, b"0000001\0").put(337, b"0000003\0"))
        .head(&Head::new("p", b'6', 0))
        .head(&old)
        .data(b"ab");
    let mut bytes = base.0;
    bytes.extend(sparse("2\n0\n2\n10\n3\n", 20, "abcde"));
    bytes
}

/// Changes bytes, and mostly mends the checksums so that what is behind them is reached.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] = rng.next_u64() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at] = *rng.pick(b"\0 0179=\n/.SxgLK5\x80\xff"),
            3 => {
                let block = at / 512 * 512;
                let field = [0, 100, 108, 124, 136, 156, 345, 386, 482, 483][rng.below(10) as usize];
                let end = (block + field + 12).min(bytes.len());
                for byte in bytes.get_mut(block + field..end).unwrap_or_default() {
                    *byte = *rng.pick(b"\0 01777\x80\xff");
                }
            }
            4 => {
                let block = at / 512 * 512;
                let other = rng.below(bytes.len() as u64 / 512) as usize * 512;
                if block + 512 <= bytes.len() {
                    bytes.copy_within(other..other + 512, block);
                }
            }
            _ => bytes.truncate(at.max(512)),
        }
    }
    if rng.chance(90) {
        for block in bytes.chunks_exact_mut(512) {
            if &block[257..262] == b"ustar" {
                let mut head = Head([0; 512]);
                head.0.copy_from_slice(block);
                block.copy_from_slice(&head.done());
            }
        }
    }
}

#[test]
fn thousands_of_changed_archives_end_in_a_tree_or_a_named_error() {
    let whole = rich();
    gather_bytes(&[&whole]).unwrap();
    let scratch = Scratch::new(1 << 20);
    let count: u64 = std::env::var("COUNT").map_or(20_000, |count| count.parse().unwrap());
    let (mut trees, mut refused) = (0, 0);
    for seed in 0..count {
        let mut rng = Rng::new(seed);
        let mut bytes = whole.clone();
        mutate(&mut bytes, &mut rng);
        let options = GatherOptions {
            bytes_max: Some(1 << 20),
            memory_max: 16 << 20,
            spool: scratch.path().to_owned(),
            ..GatherOptions::default()
        };
        let mut gathering = Gathering::new(options);
        let mut add = |bytes: Vec<u8>| {
            gathering.archive(Path::new("m"), ArchiveInput::Stream(Box::new(io::Cursor::new(bytes))))
        };
        // Every other one as a layer above the whole one.
        let added = if seed % 2 == 0 { add(bytes) } else { add(whole.clone()).and_then(|()| add(bytes)) };
        let found = added.and_then(|()| gathering.finish());
        match found {
            Ok(gathered) => {
                trees += 1;
                crate::common::described(&gathered);
            }
            Err(failures) => {
                refused += 1;
                assert!(!failures.to_string().is_empty(), "seed {seed}");
            }
        }
    }
    assert!(trees > count / 100 && refused > count / 4, "{trees} trees, {refused} refused");
}
