//! Inline data: files, directories and symbolic links inside their inode, as written by the kernel, mke2fs and debugfs.

use crate::common;

use common::tree::{How, manifest, without_xattrs};
use common::{Image, aligned, assert_unchanged, open_ro, open_rw, read_all, read_only, read_write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use uext4::explain::Query;
use uext4::plan::{Route, Sync};
use uext4::{Counter, Error, QueueOptions, State, Volume, VolumeOptions};
use uext4_testkit::fixture::pattern;
use uext4_testkit::manifest::assert_same;
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, debugfs, needs, oracle};

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut value = vec![0; length];
    pattern(seed, 0, &mut value);
    value
}

/// Files of every size around the limits, directories that grow, links of all lengths, attributes that take up room.
fn fill(root: &Path, most: usize) {
    std::fs::create_dir(root.join("sizes")).unwrap();
    for size in 0..=most {
        std::fs::write(root.join(format!("sizes/{size}")), bytes(size as u64, size)).unwrap();
    }
    for entries in [0, 1, 2, 3, 4, 5, 8, 12, 20, 40] {
        let dir = root.join(format!("dir-{entries}"));
        std::fs::create_dir(&dir).unwrap();
        for n in 0..entries {
            std::fs::write(dir.join(format!("{n}{}", "n".repeat(n % 5))), n.to_string()).unwrap();
        }
        // Gaps of removed names.
        for n in (0..entries).filter(|n| n % 4 == 1) {
            std::fs::remove_file(dir.join(format!("{n}{}", "n".repeat(n % 5)))).unwrap();
        }
        std::fs::create_dir(dir.join("d")).unwrap();
    }
    for length in [1, 58, 59, 60, 61, 80, 150, 300, 700] {
        std::os::unix::fs::symlink("l".repeat(length), root.join(format!("link-{length}"))).unwrap();
    }
}

/// Attributes, which not every file system has. (The kernel must not truncate inline files: some versions of it crash.)
fn change(root: &Path) {
    std::fs::write(root.join("attributed"), bytes(1, 70)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("attributed"), "user.a", &bytes(2, 20), flags).unwrap();
}

fn open(volume: &uext4_testkit::Volume) -> Volume {
    Volume::open(volume.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap()
}

/// How many of the tree's inodes are inline.
fn inline_inodes(volume: &Volume, tree: &uext4_testkit::Manifest) -> usize {
    let flags = |path: &Vec<u8>| {
        let path = std::str::from_utf8(path).unwrap();
        volume.symlink_metadata(path).unwrap().flags
    };
    tree.keys().filter(|path| flags(path).names().iter().any(|name| name == "inline_data")).count()
}

#[test]
fn root_what_the_kernel_keeps_inline_reads_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (inode, least, block) in [("256", 150, "4096"), ("512", 350, "1024"), ("1024", 350, "4096")] {
        let args = ["-O", "inline_data", "-I", inode, "-b", block, "-N", "2048"];
        println!("{args:?}");
        let volume = VolumeBuilder::new(32 << 20).args(args).build();
        let (expected, taken) = volume.with_kernel(|root| {
            fill(root, 340);
            change(root);
            oracle::sync(root);
            let taken = |size| std::fs::metadata(root.join(format!("sizes/{size}"))).unwrap().blocks();
            (uext4_testkit::manifest(root), (0..=340).map(taken).collect::<Vec<_>>())
        });
        let here = open(&volume);
        for (size, taken) in taken.into_iter().enumerate() {
            let path = format!("/sizes/{size}");
            assert_eq!(here.metadata(&path).unwrap().blocks, taken, "{path}");
        }
        let count = inline_inodes(&here, &expected);
        assert!(count > least, "{count} inline inodes");
        let expected = without_xattrs(expected);
        for how in [How::Direct, How::AnyByte, How::Queue] {
            assert_same(&expected, &manifest(&here, how));
        }
        assert!(here.stats().get(Counter::InlineReads) > 300);
        // `system.data` is internal to the file system.
        let names = here.list_xattrs("/attributed", true).unwrap();
        assert_eq!(names.map(|name| name.unwrap().to_string()).collect::<Vec<_>>(), ["user.a"]);
        assert_eq!(here.xattr("/attributed", "user.a", true).unwrap(), bytes(2, 20));
        assert!(here.list_xattrs("/sizes/100", true).unwrap().next().is_none());
        assert!(matches!(here.xattr("/sizes/100", "system.data", true), Err(Error::NoAttribute)));
    }
}

/// Both parts of the directory, its parent, and absent names.
#[test]
fn root_inline_directories_list_as_the_kernel_does() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let args = ["-O", "inline_data", "-I", "512"];
    let volume = VolumeBuilder::new(32 << 20).args(args).build();
    volume.with_kernel(|root| fill(root, 10));
    let here = open(&volume);
    let mut inline = 0;
    for n in [0, 1, 2, 3, 4, 5, 8, 12, 20, 40] {
        let path = format!("/dir-{n}");
        let entries: Vec<_> = here.read_dir(&path).unwrap().map(Result::unwrap).collect();
        let ino = here.resolve(&path, true).unwrap();
        assert_eq!((&entries[0].name[..], entries[0].ino), (&b"."[..], ino));
        assert_eq!((&entries[1].name[..], entries[1].ino), (&b".."[..], uext4::Ino::ROOT));
        let listed = debugfs(volume.path(), &format!("ls -p {path}"));
        for entry in &entries {
            let name = std::str::from_utf8(&entry.name).unwrap();
            assert!(listed.contains(&format!("/{name}/")), "{name}: {listed}");
            assert_eq!(here.resolve(format!("{path}/{name}"), true).unwrap(), entry.ino);
            assert_eq!(here.metadata_of(entry.ino).unwrap().kind, entry.kind.unwrap());
        }
        assert_eq!(here.resolve(format!("{path}/d/.."), true).unwrap(), ino);
        assert!(matches!(here.resolve(format!("{path}/none"), true), Err(Error::NotFound)));
        inline += usize::from(here.metadata(&path).unwrap().flags.names().iter().any(|n| n == "inline_data"));
    }
    assert!((5..10).contains(&inline), "some directories fit their inode and some do not: {inline}");
}

/// `mke2fs -d` makes inline files, directories and links without root.
fn made(args: &[&str]) -> Image {
    let source = Scratch::new(16 << 20);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    fill(&tree, 170);
    let args = ["-O", "inline_data", "-N", "1024", "-b", "1024"].iter().chain(args).copied();
    let volume = VolumeBuilder::new(16 << 20).args(args).from_dir(&tree).build();
    volume.assert_clean();
    let image = Image::load(volume.path());
    let mut expected = uext4_testkit::manifest(&tree);
    let here = open_ro(image.device());
    // Only names and kinds of the directories: their sizes differ from the source's.
    for how in [How::Direct, How::AnyByte, How::Queue] {
        let mut found = manifest(&here, how);
        found.retain(|path, _| !path.starts_with(b"/lost+found"));
        for entry in found.values_mut().chain(expected.values_mut()) {
            if entry.kind == uext4_testkit::Kind::Directory {
                (entry.size, entry.nlink) = (0, 0);
            }
            (entry.mtime_ns, entry.uid, entry.gid) = (0, 0, 0);
        }
        assert_same(&without_xattrs(expected.clone()), &found);
    }
    image
}

#[test]
fn what_mke2fs_keeps_inline_reads_the_same() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-I", "512"], &["-I", "1024", "-O", "^metadata_csum"]] {
        let image = made(args);
        let here = open_ro(image.device());
        assert_eq!(here.read_link("/link-80").unwrap(), b"l".repeat(80));
        let meta = here.symlink_metadata("/link-80").unwrap();
        assert!(meta.flags.names().iter().any(|name| name == "inline_data"), "an inline symbolic link");
    }
}

#[test]
fn reads_keep_the_rules_of_direct_requests() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = made(&[]);
    let device = image.device();
    let here = open_ro(device.clone());
    let file = here.open_file("/sizes/100", read_only()).unwrap();
    assert!(file.is_inline());
    assert_eq!(read_all(&file), bytes(100, 100));
    let mut memory = aligned(4096);
    memory.fill(0xee);
    assert_eq!(file.read_at(&mut memory[..1024], 0).unwrap(), 100);
    assert_eq!(memory[..100], bytes(100, 100));
    assert!(memory[100..512].iter().all(|&byte| byte == 0), "zeros up to the end of the device block");
    assert_eq!(file.read_at(&mut memory, 512).unwrap(), 0);
    assert_eq!(file.read_at(&mut memory[..0], 0).unwrap(), 0);
    for error in [
        file.read_at(&mut memory[..100], 0).unwrap_err(),
        file.read_at(&mut memory[..512], 1).unwrap_err(),
        file.read_at(&mut memory[1..513], 0).unwrap_err(),
        file.read_at(&mut memory, i64::MAX as u64 - 511).unwrap_err(),
    ] {
        assert_eq!(error.errno(), 22, "{error}");
    }
    let mut rng = Rng::new(5);
    for _ in 0..500 {
        let (pos, length) = (rng.below(120), rng.below(150) as usize);
        let mut buf = vec![0xee; length];
        let read = file.read_any_at(&mut buf, pos).unwrap();
        assert_eq!(read as u64, 100u64.saturating_sub(pos).min(length as u64));
        assert_eq!(buf[..read], bytes(100, 100)[(pos as usize).min(100)..][..read]);
    }
    assert!(matches!(file.write_at(&memory, 0), Err(Error::BadMode(_))));
    let write_only = uext4::OpenOptions::new().write(true);
    let writer = open_rw(image.device()).open_file("/sizes/100", write_only).unwrap();
    assert!(matches!(writer.read_at(&mut memory, 0), Err(Error::BadMode(_))));
    assert_unchanged(&image, &*device);
}

#[test]
fn queued_reads_are_delivered_like_others() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = made(&[]);
    let here = open_ro(image.device());
    let file = here.open_file("/sizes/99", read_only()).unwrap();
    // The root directory's neighbour that has blocks.
    let other = here.open_file("/sizes/170", read_only()).unwrap();
    assert!(!other.is_inline());
    let mut queue = here.queue(QueueOptions::depth(8)).unwrap();
    let (slot, plain) = (queue.attach(&file).unwrap(), queue.attach(&other).unwrap());
    queue.read(slot, 0, queue.buffer(512).unwrap(), 1).unwrap();
    queue.readv(slot, 0, vec![queue.buffer(512).unwrap(), queue.buffer(512).unwrap()], 2).unwrap();
    queue.read(slot, 512, queue.buffer(512).unwrap(), 3).unwrap();
    queue.read(plain, 0, queue.buffer(512).unwrap(), 4).unwrap();
    queue.sync_data(slot, 5).unwrap();
    let mut seen = 0;
    while seen < 5 {
        for done in queue.wait(1).unwrap() {
            let expected = [99, 99, 0, 170, 0][done.tag as usize - 1];
            assert_eq!(*done.result.as_ref().unwrap(), expected, "{}", done.tag);
            match done.tag {
                1 => assert_eq!(done.into_buffer().unwrap()[..99], bytes(99, 99)),
                4 => assert_eq!(done.into_buffer().unwrap()[..170], bytes(170, 170)),
                _ => {}
            }
            seen += 1;
        }
    }
    assert_eq!(queue.read(slot, 1, queue.buffer(512).unwrap(), 6).unwrap_err().errno(), 22);
    assert_eq!(queue.readv(slot, 0, vec![queue.buffer(100).unwrap()], 6).unwrap_err().errno(), 22);
    queue.detach(slot).unwrap();
    assert_eq!(queue.read(slot, 0, queue.buffer(512).unwrap(), 7).unwrap_err().errno(), 9);
    assert_eq!(here.stats().get(Counter::SimpleReads), 0, "a short file of blocks is a general read");
}

/// An inline directory can be case-folded.
#[test]
fn names_of_inline_directories_fold() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(1 << 20);
    std::fs::create_dir_all(source.file("tree/dir")).unwrap();
    std::fs::write(source.file("tree/dir/Stra\u{df}e"), "").unwrap();
    let args = ["-O", "inline_data,casefold", "-b", "1024"];
    let volume = VolumeBuilder::new(4 << 20).args(args).from_dir(&source.file("tree")).build();
    assert!(matches!(open(&volume).resolve("/dir/STRASSE", true), Err(Error::NotFound)));
    uext4_testkit::oracle::debugfs_write(volume.path(), "set_inode_field /dir flags 0x50000000");
    let here = open(&volume);
    let ino = here.resolve("/dir/Stra\u{df}e", true).unwrap();
    assert_eq!(here.resolve("/dir/STRASSE", true).unwrap(), ino);
    assert!(matches!(here.resolve("/dir/strase", true), Err(Error::NotFound)));
}

#[test]
fn maps_and_explanations_say_inline() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = made(&[]);
    let here = open_ro(image.device());
    let file = here.open_file("/sizes/50", read_only()).unwrap();
    let pieces: Vec<_> = file.map().map(Result::unwrap).collect();
    assert_eq!(pieces.len(), 1);
    assert_eq!((pieces[0].state, pieces[0].logical, pieces[0].length), (State::Inline, 0, 50));
    let at = pieces[0].physical as usize;
    assert_eq!(image.bytes[at..at + 50], bytes(50, 50), "where the bytes are on the device");
    assert_eq!(here.open_file("/sizes/0", read_only()).unwrap().map().count(), 0);

    let query = Query { write: false, pos: 10, length: 100, sync: Sync::None, queued: false };
    let read = file.explain(&query).unwrap();
    assert_eq!((read.plan.route, read.requests.len()), (Route::InlineRead, 0));
    let states: Vec<_> = read.pieces.iter().map(|piece| (piece.state, piece.logical, piece.length)).collect();
    assert_eq!(states, [(State::Inline, 10, 40), (State::Hole, 50, 60)]);
    let past = file.explain(&Query { pos: 50, ..query }).unwrap();
    assert_eq!(past.plan.route, Route::PastEnd);
    let here = open_rw(image.device());
    let file = here.open_file("/sizes/50", read_write()).unwrap();
    let write = |pos, length| file.explain(&Query { write: true, pos, length, ..query }).unwrap();
    for (pos, length, moves) in [(0, 50, false), (40, 40, false), (0, 500, true), (5000, 1, true)] {
        let write = write(pos, length);
        assert_eq!((write.plan.route, write.refused), (Route::InlineWrite, None), "{pos} {length}");
        assert_eq!(
            write.reasons.iter().any(|reason| reason.contains("move to a block")),
            moves,
            "{pos} {length}"
        );
        assert_eq!((write.journal.handles_before, write.journal.handles_after), (u32::from(moves), 1));
        assert_eq!((write.journal.commits, write.request_count), (0, 0));
    }
    assert_eq!(file.explain(&Query { write: true, sync: Sync::Data, ..query }).unwrap().journal.commits, 1);
    let unaligned = Query { write: true, queued: true, ..query };
    assert!(file.explain(&unaligned).unwrap().refused.unwrap().contains("multiple"));
    assert!(write(u64::MAX / 2 - 100, 100).refused.is_some(), "past the largest file");
    assert!(file.explain(&Query { length: 0, ..query }).is_err());
    assert!(file.explain(&Query { pos: u64::MAX, ..query }).is_err());
}
