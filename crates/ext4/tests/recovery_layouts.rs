//! Journals that are not empty on volumes of every layout: our recovery equals e2fsck's, whether debugfs wrote them or
//! the kernel left them.

use crate::common;

use common::dirty::{block_size, recovers_as_e2fsck_does};
use common::log::magic;
use common::tree::{How, manifest, without_xattrs};
use common::{Image, open_ro};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use uext4_testkit::{KernelMount, LoopOptions, Need, Rng, Scratch, VolumeBuilder, needs, oracle};

/// A layout: arguments of mke2fs, and the size of the volume in megabytes.
struct Layout {
    kind: &'static str,
    args: &'static [&'static str],
    mebibytes: u64,
}

const fn layout(kind: &'static str, mebibytes: u64, args: &'static [&'static str]) -> Layout {
    Layout { kind, args, mebibytes }
}

/// Layouts that this host's kernel mounts.
const MOUNTABLE: [Layout; 8] = [
    layout("ext3", 24, &["-b", "1024", "-J", "size=4"]),
    layout("ext3", 48, &["-b", "4096", "-J", "size=8"]),
    layout("ext4", 64, &["-b", "4096", "-J", "size=4", "-O", "bigalloc,^orphan_file", "-C", "16384"]),
    layout("ext4", 32, &["-b", "1024", "-J", "size=1", "-O", "bigalloc,^orphan_file", "-C", "8192"]),
    layout("ext4", 48, &["-b", "1024", "-J", "size=1", "-O", "meta_bg,^resize_inode,^orphan_file"]),
    layout("ext4", 24, &["-b", "1024", "-J", "size=1", "-O", "^orphan_file"]),
    layout("ext4", 24, &["-b", "1024", "-J", "size=1", "-I", "128", "-O", "^orphan_file"]),
    layout("ext4", 32, &["-b", "2048", "-J", "size=2", "-I", "1024", "-O", "^extent,^64bit,^orphan_file"]),
];

/// Layouts whose blocks are larger than this host's pages.
const LARGE: [Layout; 3] = [
    layout("ext4", 48, &["-b", "16384", "-J", "size=16", "-O", "^orphan_file"]),
    layout("ext4", 160, &["-b", "65536", "-J", "size=64", "-O", "^orphan_file"]),
    layout("ext4", 160, &["-b", "65536", "-J", "size=64", "-I", "128", "-O", "^metadata_csum,^orphan_file"]),
];

/// Makes the volume. The journal of ext3 is mapped by pointer blocks, several of them.
fn volume(layout: &Layout) -> uext4_testkit::Volume {
    let source = Scratch::new(4 << 20);
    std::fs::write(source.file("hello"), "world\n".repeat(30_000)).unwrap();
    let builder = VolumeBuilder::new(layout.mebibytes << 20).kind(layout.kind);
    builder.args(layout.args.iter().copied()).from_dir(source.path()).build()
}

/// Five transactions by debugfs: several copies of a block, an escaped one, revokes, a revoked block that is written
/// again.
fn debugfs_journal(path: &Path, open: &str) -> Image {
    let image = Image::load(path);
    let size = block_size(&image);
    let blocks = image.bytes.len() / size;
    let [a, b, c, d] = [1, 2, 3, 4].map(|n| blocks - 10 * n);
    let data = path.with_extension("data");
    let mut bytes: Vec<u8> = [0xA1u8, 0xA2, 0xA3].iter().flat_map(|&byte| vec![byte; size]).collect();
    bytes[..4].copy_from_slice(&magic());
    std::fs::write(&data, &bytes).unwrap();
    let file = data.display();
    let mut script = format!("{open}\n");
    for request in [
        format!("jw -b {a},{b},{c} {file}"),
        format!("jw -r {b}"),
        // Right after its revoke, which does not cover it.
        format!("jw -b {b},{d} {file}"),
        format!("jw -b {a} {file}"),
        format!("jw -r {c}"),
    ] {
        writeln!(script, "{request}").unwrap();
    }
    script += "jc\n";
    let requests = path.with_extension("script");
    std::fs::write(&requests, script).unwrap();
    oracle::run(oracle::command("debugfs").args(["-w", "-f"]).arg(&requests).arg(path));
    Image::load(path)
}

#[test]
fn journals_of_every_layout_replay_as_e2fsck_does() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for layout in MOUNTABLE.iter().chain(&LARGE) {
        // Without metadata_csum debugfs gives a transaction of revokes a checksum that e2fsck finds wrong.
        let plain = layout.kind == "ext3" || layout.args.iter().any(|args| args.contains("^metadata_csum"));
        for open in if plain { &["jo"][..] } else { &["jo", "jo -c -v 3"] } {
            let volume = volume(layout);
            let image = debugfs_journal(volume.path(), open);
            let (log, _) = recovers_as_e2fsck_does(&image);
            assert_eq!((log.transactions, log.blocks), (5, 3), "{:?} {open}", layout.args);
        }
    }
}

/// Names created and removed, with every third one synced, so that the log holds blocks of all kinds and revokes.
fn work(root: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..8 {
        let dir = root.join(format!("d{round}"));
        std::fs::create_dir(&dir).unwrap();
        for n in 0..20 {
            let mut file = File::create(dir.join(format!("file-{n}"))).unwrap();
            let mut data = vec![0; rng.below(9000) as usize];
            rng.fill(&mut data);
            file.write_all(&data).unwrap();
            if n % 3 == 0 {
                file.sync_all().unwrap();
            }
        }
        if round % 3 == 2 {
            std::fs::remove_dir_all(root.join(format!("d{}", round - 1))).unwrap();
        }
    }
    oracle::sync(root);
}

#[test]
fn root_journals_that_the_kernel_left_on_every_layout_replay_as_e2fsck_does() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, layout) in (1..).zip(&MOUNTABLE) {
        let volume = volume(layout);
        let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "");
        work(mounted.path(), seed);
        // The backing file contains exactly what was written to the loop device.
        let image = Image::load(volume.path());
        mounted.unmount();
        let tree = manifest(&open_ro(image.device()), How::Direct);
        let (log, recovered) = recovers_as_e2fsck_does(&image);
        assert!(log.transactions > 0 && log.blocks > 0, "{:?}: {log:?}", layout.args);
        let scratch = Scratch::new(2 * image.bytes.len() as u64);
        recovered.save(&scratch.file("recovered.img"));
        let kernel = without_xattrs(uext4_testkit::kernel_manifest(&scratch.file("recovered.img")));
        uext4_testkit::manifest::assert_same(&kernel, &tree);
    }
}
