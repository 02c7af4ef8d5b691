//! Ranges collapsed and inserted in fragmented files, on volumes with hardly a free block: either entirely or not at
//! all.

use crate::common;

use common::sample::sample_with;
use common::{Image, assert_same_bytes, open_rw, open_to_the_last, patterned, read_all, read_write};
use uext4::{Error, Fallocate, File, Volume};
use uext4_testkit::{Need, Scratch, needs, oracle};

const BLOCK: u64 = 1024;
/// Extents of the file: several full leaves of its map.
const EXTENTS: u64 = 700;

/// A file with two of every three blocks written, and its contents.
fn fragmented(volume: &Volume) -> (File, Vec<u8>) {
    let file = volume.open_file("/data", read_write()).unwrap();
    file.set_len(0).unwrap();
    for number in 0..EXTENTS {
        let pos = 3 * number * BLOCK;
        file.write_at(&patterned(number, pos, 2 * BLOCK as usize), pos).unwrap();
    }
    let bytes = read_all(&file);
    (file, bytes)
}

/// Takes all blocks of a volume except this many.
fn fill(volume: &Volume, spare: u64) {
    let filler = volume.open_file("/tail", read_write()).unwrap();
    filler.set_len(0).unwrap();
    let (mut end, mut step) = (0, 1 << 20);
    while step >= BLOCK {
        match filler.fallocate(Fallocate::KeepSize, end, step) {
            Ok(()) => end += step,
            Err(Error::NoSpace) => step /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    // The first one extends it, the second one frees the blocks past its end.
    filler.set_len(end - spare * BLOCK).unwrap();
    filler.set_len(end - spare * BLOCK).unwrap();
    filler.sync_all().unwrap();
}

#[test]
fn a_full_volume_moves_all_or_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    for args in [&[][..], &["-O", "^has_journal"]] {
        let mut refused = 0;
        for (spare, mode) in
            (0..14).flat_map(|spare| [(spare, Fallocate::Collapse), (spare, Fallocate::Insert)])
        {
            let device = sample_with(BLOCK as u32, args).device();
            let volume = open_to_the_last(device.clone());
            let (file, mut bytes) = fragmented(&volume);
            fill(&volume, spare);
            // In the middle of an extent, and right before another one.
            let (start, length) = (7 * BLOCK, 401 * BLOCK);
            match (file.fallocate(mode, start, length), mode) {
                // Only the leaf whose extent is split may take a block.
                (Err(Error::NoSpace), Fallocate::Insert) => refused += 1,
                (Ok(()), Fallocate::Collapse) => drop(bytes.drain(start as usize..(start + length) as usize)),
                (Ok(()), _) => {
                    let (at, hole) = (start as usize, std::iter::repeat_n(0, length as usize));
                    drop(bytes.splice(at..at, hole));
                }
                (Err(error), _) => panic!("{error}"),
            }
            assert_same_bytes(&bytes, &read_all(&file));
            drop(file);
            volume.close().unwrap();
            Image::of(&*device).save(&scratch.file("full.img"));
            oracle::e2fsck_clean(&scratch.file("full.img"));
            let volume = open_rw(device);
            assert_same_bytes(&bytes, &volume.read("/data").unwrap());
        }
        assert!((1..14).contains(&refused), "{refused}");
    }
}
