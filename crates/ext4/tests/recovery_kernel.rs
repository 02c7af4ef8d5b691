//! Journals left by the kernel: the image while it is mounted, after synced work.

use crate::common;

use common::dirty::{by_e2fsck, comparable};
use common::tree::{How, manifest};
use common::{Image, assert_same_bytes, assert_unchanged, open_ro, read_all, read_only};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use uext4::{RecoveryState, Volume, VolumeOptions};
use uext4_testkit::{KernelMount, LoopOptions, Need, Rng, Scratch, VolumeBuilder, needs, oracle};

/// Work that is synced at the end, so that all of it is in the journal or at home.
fn work(root: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    let sync_dir = |dir: &Path| File::open(dir).unwrap().sync_all().unwrap();
    for round in 0..12 {
        let dir = root.join(format!("d{round}"));
        std::fs::create_dir(&dir).unwrap();
        for n in 0..30 {
            let mut file = File::create(dir.join(format!("file-{n}"))).unwrap();
            let mut data = vec![0; rng.below(20_000) as usize];
            rng.fill(&mut data);
            // Data that looks like the journal's own blocks.
            if n % 5 == 0 && data.len() > 4 {
                data[..4].copy_from_slice(&common::log::magic());
            }
            file.write_all(&data).unwrap();
            if n % 7 == 0 {
                file.sync_all().unwrap();
            }
        }
        sync_dir(&dir);
        if round % 3 == 2 {
            // Directory blocks are freed and reused: revokes.
            std::fs::remove_dir_all(root.join(format!("d{}", round - 2))).unwrap();
        }
    }
    // Everything reaches the log, and nothing must be written home.
    oracle::sync(root);
}

/// The image after `work`, as a crash would leave it, with the manifest of its tree.
fn crash(args: &[&str], options: &str, seed: u64) -> Image {
    let volume = VolumeBuilder::new(32 << 20).args(args).build();
    let mounted = KernelMount::image(volume.path(), LoopOptions::default(), options);
    work(mounted.path(), seed);
    // The backing file contains exactly what was written to the loop device.
    let image = Image::load(volume.path());
    mounted.unmount();
    image
}

#[test]
fn root_journals_of_the_kernel_replay_as_e2fsck_does() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let cases: [(&[&str], &str); 6] = [
        (&["-b", "1024", "-J", "size=1", "-O", "^orphan_file"], ""),
        (&["-b", "4096", "-J", "size=4", "-O", "^orphan_file"], ""),
        (&["-b", "1024", "-J", "size=1", "-O", "^orphan_file,^metadata_csum,^64bit"], ""),
        (&["-b", "1024", "-J", "size=1", "-O", "^orphan_file,^metadata_csum"], "journal_checksum"),
        (&["-b", "4096", "-J", "size=4", "-O", "^orphan_file"], "journal_async_commit,data=writeback"),
        (&["-b", "1024", "-J", "size=8", "-O", "^orphan_file"], "data=journal"),
    ];
    for (seed, (args, options)) in (1..).zip(cases) {
        let image = crash(args, options, seed);
        let scratch = Scratch::new(128 << 20);
        let expected = by_e2fsck(&image);

        let device = image.device();
        let volume = open_ro(device.clone());
        let info = volume.info();
        let (log, journal) = (info.recovery.log.unwrap(), info.journal.unwrap().block);
        assert!(log.transactions > 0 && log.blocks > 0, "{options}: {log:?}");
        assert_eq!(log.ended.damage(), None, "{options}");
        let seen = Image::of(&**volume.device());
        let expected_bytes = comparable(&expected, journal);
        assert_same_bytes(&expected_bytes.bytes, &comparable(&seen, journal).bytes);
        let tree = manifest(&volume, How::Direct);
        assert_eq!(tree, manifest(&volume, How::Queue), "{options}");
        drop(volume);
        assert_unchanged(&image, &*device);

        match Volume::open_device(device.clone(), VolumeOptions::read_write()) {
            // A volume with data journaling by default is not written; this one was only mounted that way.
            Ok(volume) => {
                assert_eq!(volume.info().recovery.state, RecoveryState::Replayed);
                drop(volume);
                let found = Image::of(&*device);
                assert_same_bytes(&expected_bytes.bytes, &comparable(&found, journal).bytes);
                found.save(&scratch.file("ours.img"));
                oracle::e2fsck_clean(&scratch.file("ours.img"));
                let kernel =
                    common::tree::without_xattrs(uext4_testkit::kernel_manifest(&scratch.file("ours.img")));
                uext4_testkit::manifest::assert_same(&kernel, &tree);
            }
            Err(error) => panic!("{options}: {error}"),
        }
    }
}

#[test]
fn root_fast_commits_of_the_kernel_are_seen() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let args = ["-O", "^orphan_file,fast_commit", "-J", "size=16"];
    let volume = VolumeBuilder::new(64 << 20).args(args).build();
    let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "");
    std::fs::write(mounted.path().join("first"), "full\n").unwrap();
    oracle::sync(mounted.path());
    for n in 0..5 {
        let mut file = File::create(mounted.path().join(format!("fast-{n}"))).unwrap();
        file.write_all(b"fast\n").unwrap();
        file.sync_all().unwrap();
    }
    let image = Image::load(volume.path());
    mounted.unmount();
    let device = image.device();
    for options in [VolumeOptions::read_only(), VolumeOptions::read_write()] {
        let volume = Volume::open_device(device.clone(), options).unwrap();
        assert_eq!(volume.info().recovery.fast_commits().unwrap().commits, 5);
        for n in 0..5 {
            let file = volume.open_file(format!("/fast-{n}"), read_only()).unwrap();
            assert_eq!(read_all(&file), b"fast\n");
        }
    }
}
