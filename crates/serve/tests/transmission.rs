//! Requests and their answers, compared with a model of the bytes.

use crate::common::*;
use uext4::{OpenOptions, State, Volume, VolumeOptions};
use uext4_serve::ServerOptions;
use uext4_testkit::{Need, Rng, VolumeBuilder, e2fsck_clean, needs, oracle};

#[test]
fn zeros_are_left_out_of_structured_replies() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut client = served.client(true);
    let mut read = |flags, offset, length| {
        client.send(READ, flags, 3, offset, length);
        client.chunks()
    };
    let mib = 1 << 20;
    assert_eq!(read(0, 0, 8192), (3, vec![Chunk::Data(0, contents(8192))]));
    assert_eq!(read(0, mib, 8192), (3, vec![Chunk::Hole(mib, 8192)]));
    assert_eq!(read(0, mib + 1, 3), (3, vec![Chunk::Hole(mib + 1, 3)]));
    let tail = contents(1 << 20)[(1 << 20) - 4096..].to_vec();
    let start = mib - 4096;
    assert_eq!(read(0, start, 12288), (3, vec![Chunk::Data(start, tail.clone()), Chunk::Hole(mib, 8192)]));
    // In one piece if asked.
    let whole = [&tail[..], &[0; 8192]].concat();
    assert_eq!(read(DF, start, 12288), (3, vec![Chunk::Data(start, whole)]));
    assert_eq!(read(DF, mib, 8192), (3, vec![Chunk::Hole(mib, 8192)]));
    served.end();
}

#[test]
fn a_reply_has_few_chunks() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut client = served.client(true);
    for block in 0..64 {
        if block % 2 == 0 {
            assert_eq!(client.write(0, block * 4096, &[0; 4096]), 0);
        }
    }
    client.send(READ, 0, 1, 0, 64 * 4096);
    let (_, chunks) = client.chunks();
    assert_eq!(chunks.len(), 17);
    assert!(matches!(&chunks[16], Chunk::Data(at, data) if *at == 16 * 4096 && data.len() == 48 * 4096));
    let expected: Vec<u8> = (0..64)
        .flat_map(|block| {
            if block % 2 == 0 { vec![0; 4096] } else { contents(1 << 20)[block * 4096..][..4096].to_vec() }
        })
        .collect();
    assert_eq!(client.read(0, 64 * 4096), Ok(expected));
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn block_status_tells_holes_and_unwritten_blocks() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut client = served.client(true);
    let (mib, size) = (1 << 20, SIZE as u32);
    assert_eq!(client.status(0, 0, size), Ok(vec![(mib, 0), (size - mib, 3)]));
    assert_eq!(client.status(REQ_ONE, 0, size), Ok(vec![(mib, 0)]));
    assert_eq!(client.status(0, 100, 200), Ok(vec![(200, 0)]));
    assert_eq!(client.status(0, u64::from(mib) - 1, 2), Ok(vec![(1, 0), (1, 3)]));
    assert_eq!(client.done(WRITE_ZEROES, 0, 2 << 20, mib), 0);
    assert_eq!(client.status(0, u64::from(mib), 3 * mib), Ok(vec![(mib, 3), (mib, 2), (mib, 3)]));
    assert_eq!(client.done(TRIM, 0, 0, mib / 2), 0);
    assert_eq!(client.status(0, 0, mib), Ok(vec![(mib / 2, 3), (mib / 2, 0)]));
    assert_eq!(client.status(0, SIZE - 1, 1), Ok(vec![(1, 3)]));
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn zeros_and_trims_do_to_blocks_what_was_asked() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut client = served.client(true);
    let (mib, all) = (1 << 20, contents(1 << 20));
    // Unwritten, written, unwritten: with edges that are no blocks.
    for (flags, offset) in [(0, 1000), (NO_HOLE | FUA, 300_000), (FAST_ZERO, 600_000)] {
        assert_eq!(client.done(WRITE_ZEROES, flags, offset, 100_000), 0, "{flags}");
    }
    let mut expected = all.clone();
    [1000, 300_000, 600_000].iter().for_each(|at| expected[*at..at + 100_000].fill(0));
    assert_eq!(client.read(0, mib), Ok(expected.clone()));
    let status = client.status(0, 0, mib).unwrap();
    let unwritten: u32 = status.iter().filter(|(_, flags)| *flags == 2).map(|(length, _)| length).sum();
    // Two of the three, whole blocks of them.
    assert!((180_000..200_000).contains(&unwritten), "{status:?}");
    // To write zeros is not fast.
    assert_eq!(client.done(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 0, 4096), ENOTSUP);
    assert_eq!(client.read(0, mib), Ok(expected.clone()));
    // Only whole blocks are let go of; the rest keeps its bytes.
    assert_eq!(client.done(TRIM, FUA, 799_999, 9000), 0);
    expected[196 * 4096..197 * 4096].fill(0);
    assert_eq!(client.read(0, mib), Ok(expected));
    assert_eq!(client.done(TRIM, 0, 4097, 4000), 0);
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn files_with_block_pointers_get_written_zeros() {
    needs!(Need::Tool("mke2fs"));
    let source = uext4_testkit::Scratch::new(4 << 20);
    std::fs::write(source.file("disk"), contents(1 << 20)).unwrap();
    let image = VolumeBuilder::new(16 << 20).args(["-O", "^extent,^64bit"]).from_dir(source.path()).build();
    let served = serve(&image);
    let mut client = served.client(true);
    assert_eq!(client.done(WRITE_ZEROES, FAST_ZERO, 0, 65536), ENOTSUP);
    assert_eq!(client.read(0, 65536), Ok(contents(65536)));
    assert_eq!(client.done(WRITE_ZEROES, 0, 100, 65536), 0);
    assert_eq!(client.read(0, 65736).unwrap()[100..65636], [0; 65536]);
    assert_eq!(client.read(0, 100), Ok(contents(100)));
    assert_eq!(client.done(TRIM, 0, 0, 65536), 0);
    assert_eq!(client.status(0, 0, 65536), Ok(vec![(65536, 3)]));
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn a_read_only_export_changes_nothing() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let before = std::fs::read(image.path()).unwrap();
    let (export, _) = export(device(image.path(), false), true);
    let served = Served::start(export, ServerOptions::default());
    let mut client = served.greet();
    let replies = client.option(GO, &go(b"", &[]));
    // HAS_FLAGS, READ_ONLY, FLUSH, FUA, MULTI_CONN.
    assert_eq!(number(&replies[0].1[10..]), 0b1_0000_1111);
    assert_eq!(client.write(0, 0, &[1; 512]), EPERM);
    assert_eq!(client.done(TRIM, 0, 0, 4096), EPERM);
    assert_eq!(client.done(WRITE_ZEROES, 0, 0, 4096), EPERM);
    assert_eq!(client.done(FLUSH, 0, 0, 0), 0);
    assert_eq!(client.read(0, 1000), Ok(contents(1000)));
    served.end();
    assert!(std::fs::read(image.path()).unwrap() == before);
}

#[test]
fn a_full_volume_is_told_as_no_space() {
    needs!(Need::Tool("mke2fs"));
    let source = uext4_testkit::Scratch::new(1 << 20);
    source.sparse_file("disk", 64 << 20);
    let image = VolumeBuilder::new(16 << 20).from_dir(source.path()).build();
    let served = serve(&image);
    let mut client = served.client(false);
    let data = contents(1 << 20);
    let errors: Vec<u32> = (0..32).map(|at| client.write(0, at << 20, &data)).collect();
    assert_eq!(errors[0], 0);
    assert_eq!(*errors.last().unwrap(), ENOSPC);
    assert_eq!(client.read(0, 1 << 20), Ok(data));
    assert_eq!(client.done(FLUSH, 0, 0, 0), 0);
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn the_longest_requests_and_the_last_bytes() {
    needs!(Need::Tool("mke2fs"));
    let source = uext4_testkit::Scratch::new(1 << 20);
    let size = (40 << 20) + 777;
    source.sparse_file("disk", size);
    let image = VolumeBuilder::new(96 << 20).from_dir(source.path()).build();
    let served = serve(&image);
    let mut client = served.client(true);
    let data = contents(32 << 20);
    assert_eq!(client.write(FUA, 8 << 20, &data), 0);
    assert_eq!(client.read(8 << 20, 32 << 20).map(|read| read == data), Ok(true));
    assert_eq!(client.write(0, size - 777, &data[..777]), 0);
    assert_eq!(client.read(size - 800, 800).unwrap()[23..], data[..777]);
    assert_eq!(client.status(0, size - 777, 777), Ok(vec![(777, 0)]));
    assert_eq!(client.write(0, size - 776, &data[..777]), ENOSPC);
    served.end();
    e2fsck_clean(image.path());
    let volume = Volume::open(image.path(), VolumeOptions::read_only()).unwrap();
    assert_eq!(volume.open_file("/disk", OpenOptions::new().read(true)).unwrap().size(), size);
}

/// Requests of two connections in flight at once, none of which overlap, of all kinds and alignments.
#[test]
fn many_requests_at_once_match_a_model() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut rng = Rng::new(7);
    let mut model = contents(1 << 20);
    model.resize(SIZE as usize, 0);
    for round in 0..60 {
        let mut clients = [served.client(round % 2 == 0), served.client(false)];
        let mut sent = [0_usize; 2];
        // A stripe for each request, so that none overlap.
        let stripe = SIZE / 64;
        for number in 0..64 {
            let which = rng.below(2) as usize;
            let (mut offset, mut length) = (rng.below(stripe / 2), 1 + rng.below(stripe / 2));
            if rng.chance(60) {
                (offset, length) = (offset / 4096 * 4096, length.next_multiple_of(4096).min(stripe / 2));
            }
            let (start, end) =
                ((number * stripe + offset) as usize, (number * stripe + offset + length) as usize);
            let flags = if rng.chance(20) { FUA } else { 0 };
            let client = &mut clients[which];
            match rng.below(4) {
                0 => {
                    client.send(
                        WRITE_ZEROES,
                        flags | *rng.pick(&[0, NO_HOLE]),
                        number,
                        start as u64,
                        length as u32,
                    );
                    model[start..end].fill(0);
                }
                _ => {
                    let mut data = vec![0; length as usize];
                    rng.fill(&mut data);
                    client.put(
                        &[&header(WRITE, flags, number, start as u64, length as u32)[..], &data].concat(),
                    );
                    model[start..end].copy_from_slice(&data);
                }
            }
            sent[which] += 1;
        }
        for (client, sent) in clients.iter_mut().zip(sent) {
            let mut cookies: Vec<u64> = (0..sent)
                .map(|_| client.simple())
                .map(|(cookie, error)| {
                    assert_eq!(error, 0);
                    cookie
                })
                .collect();
            cookies.sort_unstable();
            cookies.dedup();
            assert_eq!(cookies.len(), sent);
        }
        let at = rng.below(SIZE - 100_000);
        let expected = &model[at as usize..][..100_000];
        assert!(clients[0].read(at, 100_000).unwrap() == expected, "round {round}");
    }
    assert!(served.client(true).read(0, SIZE as u32).unwrap() == model);
    served.end();
    e2fsck_clean(image.path());
    let volume = Volume::open(image.path(), VolumeOptions::read_only()).unwrap();
    assert!(volume.read("/disk").unwrap() == model);
}

#[test]
fn an_inline_file_is_served_too() {
    needs!(Need::Tool("mke2fs"));
    let image = VolumeBuilder::new(16 << 20).args(["-O", "inline_data", "-I", "256"]).build();
    oracle::sync(image.path());
    {
        let volume = Volume::open(image.path(), VolumeOptions::read_write()).unwrap();
        let file = volume.open_file("/disk", OpenOptions::new().read(true).write(true).create(true)).unwrap();
        file.write_any_at(b"small", 0, uext4::WriteFlags::empty()).unwrap();
        assert!(file.is_inline());
        drop(file);
        volume.close().unwrap();
    }
    let served = serve(&image);
    let mut client = served.client(true);
    assert_eq!(client.status(0, 0, 5), Ok(vec![(5, 0)]));
    assert_eq!(client.write(FUA, 1, b"MAL"), 0);
    assert_eq!(client.read(0, 5), Ok(b"sMALl".to_vec()));
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn overwrites_start_no_transaction() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let (export, volume) = export(device(image.path(), true), false);
    let served = Served::start(export, ServerOptions::default());
    let mut client = served.client(false);
    assert_eq!(client.write(0, 0, &contents(4096)), 0);
    let handles = |stats: &uext4::Stats| stats.get(uext4::Counter::HandlesStarted);
    let before = volume.stats();
    for at in 0..200 {
        assert_eq!(client.write(if at % 4 == 0 { FUA } else { 0 }, at * 4096, &[5; 4096]), 0);
    }
    let after = volume.stats();
    assert_eq!(handles(&after), handles(&before));
    // A hole needs one.
    assert_eq!(client.write(0, 4 << 20, &[5; 4096]), 0);
    assert!(handles(&volume.stats()) > handles(&after));
    let file = volume.open_file("/disk", OpenOptions::new().read(true)).unwrap();
    assert!(file.map().any(|piece| piece.unwrap().state == State::Hole));
    drop(file);
    served.end();
    volume.close().unwrap();
    e2fsck_clean(image.path());
}
