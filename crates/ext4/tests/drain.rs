//! Freeing blocks of a file waits for requests in flight to them, which must not land in the blocks' next owner.

use crate::common;

use common::sample::sample_with;
use common::{Image, assert_same_bytes, open_rw, patterned, read_all, read_write};
use uext4::{Fallocate, File, QueueOptions, Result, WriteFlags};
use uext4_testkit::crash::Image as Pages;
use uext4_testkit::{Need, Scratch, needs, oracle};

const LENGTH: u64 = 64 << 10;

/// Operations that free or move blocks of a file from byte 0 on.
type Ends = fn(&File) -> Result<()>;

const ALL: [(&str, Ends); 5] = [
    ("truncate", |file| file.set_len(0)),
    ("punch", |file| file.fallocate(Fallocate::Punch, 0, LENGTH)),
    ("zero", |file| file.fallocate(Fallocate::Zero, 0, LENGTH)),
    ("collapse", |file| file.fallocate(Fallocate::Collapse, 0, LENGTH)),
    ("insert", |file| file.fallocate(Fallocate::Insert, 0, LENGTH)),
];

/// On this device a queued write reaches the medium when its completion is reaped.
#[test]
fn a_write_in_flight_lands_before_its_blocks_are_others() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    for (name, end) in ALL {
        let device = Pages::new(&sample_with(4096, &[]).bytes).device(512);
        let volume = open_rw(device.clone());
        let file = volume.open_file("/data", read_write()).unwrap();
        let mut model = read_all(&file);
        let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
        let slot = queue.attach(&file).unwrap();
        for part in 0..4 {
            let mut buffer = queue.buffer(16 << 10).unwrap();
            buffer.copy_from_slice(&patterned(77, part << 14, 16 << 10));
            queue.write(slot, part << 14, buffer, WriteFlags::empty(), part).unwrap();
        }
        queue.submit().unwrap();
        model[..LENGTH as usize].copy_from_slice(&patterned(77, 0, LENGTH as usize));
        end(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let length = LENGTH as usize;
        match name {
            "truncate" => model.clear(),
            "collapse" => drop(model.drain(..length)),
            "insert" => drop(model.splice(..0, vec![0; length])),
            _ => model[..length].fill(0),
        }
        // Freed blocks can be reused by others after a commit.
        file.sync_all().unwrap();
        let other = volume.open_file("/other", read_write().create_new(true)).unwrap();
        let mut wanted = Vec::new();
        while let Ok(count) = other.write_any_at(
            &patterned(5, wanted.len() as u64, 1 << 20),
            wanted.len() as u64,
            WriteFlags::empty(),
        ) {
            wanted.extend_from_slice(&patterned(5, wanted.len() as u64, count));
        }
        assert!(wanted.len() > 4 << 20, "{name}: the volume is full");
        let mut seen = 0;
        while seen < 4 {
            for done in queue.wait(1).unwrap() {
                done.result.unwrap();
                seen += 1;
            }
        }
        assert_same_bytes(&wanted, &read_all(&other));
        assert_same_bytes(&model, &read_all(&file));
        drop((queue, file, other));
        volume.close().unwrap();
        let path = scratch.file("after.img");
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
    }
}

/// Writes to a block that a write in flight also fills: zeros around the new bytes must not overwrite that write.
const FILL: [(&str, Ends, usize); 3] = [
    ("small", |file| file.write_at(&patterned(9, 0, 512), 0).map(drop), 512),
    ("any bytes", |file| file.write_any_at(&patterned(9, 0, 100), 0, WriteFlags::empty()).map(drop), 100),
    ("prepare", |file| file.prepare(LENGTH), 0),
];

/// On this device a queued write reaches the medium when it is sent, while its block is still unwritten.
#[test]
fn zeros_do_not_land_on_a_write_in_flight() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (name, fill, own) in FILL {
        let volume = open_rw(sample_with(4096, &[]).device());
        let file = volume.open_file("/new", read_write().create_new(true)).unwrap();
        file.fallocate(Fallocate::Allocate, 0, LENGTH).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
        let slot = queue.attach(&file).unwrap();
        let mut buffer = queue.buffer(4096).unwrap();
        buffer.copy_from_slice(&patterned(77, 0, 4096));
        queue.write(slot, 0, buffer, WriteFlags::empty(), 1).unwrap();
        queue.submit().unwrap();
        fill(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(queue.wait(1).unwrap().all(|done| done.result.is_ok()));
        let mut wanted = patterned(77, 0, 4096).to_vec();
        wanted[..own].copy_from_slice(&patterned(9, 0, 512)[..own]);
        wanted.resize(LENGTH as usize, 0);
        assert!(read_all(&file) == wanted, "{name}: a lost write");
    }
}
