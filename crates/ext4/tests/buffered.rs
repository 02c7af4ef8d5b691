//! Requests of any bytes over pages: what they read and write against a model, beside direct requests to the same file,
//! under a small budget, on full and failing devices.

use crate::common;
use crate::crash_named::layouts;

use common::{
    Image, assert_same_bytes, buffered, open_rw, patterned, read_all, read_only, read_write, within,
};
use layouts::{CLUSTERS, INLINE, LARGE, Layout, MIDDLE, POINTERS, SMALL};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::{Device, MemoryDevice, Op};
use uext4::{
    Counter, Error, Fallocate, File, OpenOptions, QueueOptions, RenameFlags, Volume, VolumeOptions,
    WriteFlags,
};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn};
use uext4_testkit::{Rng, Scratch, oracle};

const PLAIN: WriteFlags = WriteFlags::empty();
/// Largest file of the walk in bytes.
const MOST: u64 = 300_000;

fn volume_with(device: Arc<dyn Device>, budget: u64) -> Volume {
    Volume::open_device(device, VolumeOptions::read_write().page_budget(budget)).unwrap()
}

fn made(volume: &Volume, name: &str) -> File {
    volume.open_file(name, buffered().create(true)).unwrap()
}

fn count(volume: &Volume, counter: Counter) -> u64 {
    volume.stats().get(counter)
}

fn clean(device: &dyn Device) {
    let scratch = Scratch::new(256 << 20);
    let path = scratch.file("clean.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

/// The contents that a direct reader of the device finds after a crash now.
fn after_a_crash(device: &dyn Device, name: &str) -> Vec<u8> {
    let volume = open_rw(Image::of(device).device());
    read_all(&volume.open_file(name, read_only()).unwrap())
}

#[test]
fn writes_stay_in_memory_until_a_sync_and_everybody_sees_them() {
    let device = LARGE.image().device();
    let volume = open_rw(device.clone());
    let file = made(&volume, "/file");
    let bytes = patterned(1, 0, 100_000);
    for (number, part) in bytes.chunks(1000).enumerate() {
        file.write_any_at(part, number as u64 * 1000, PLAIN).unwrap();
    }
    assert_eq!(count(&volume, Counter::BufferedWrites), 100);
    assert_eq!(count(&volume, Counter::PageWrites), 0, "nothing went home");
    assert_eq!((file.size(), file.metadata().size), (100_000, 100_000));
    assert_eq!(volume.metadata("/file").unwrap().size, 100_000);
    assert_same_bytes(&bytes, &read_all(&file));
    // Others, direct ones too.
    assert_same_bytes(&bytes, &read_all(&volume.open_file("/file", read_only()).unwrap()));
    let direct = volume.open_file("/file", read_only()).unwrap();
    let mut part = common::aligned(8192);
    assert_eq!(direct.read_at(&mut part, 4096).unwrap(), 8192);
    assert_same_bytes(&bytes[4096..12_288], &part);
    let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
    let slot = queue.attach(&direct).unwrap();
    let buffer = queue.buffer(4096).unwrap();
    queue.read(slot, 8192, buffer, 7).unwrap();
    let done = queue.wait(1).unwrap().next().unwrap();
    assert_eq!(done.result.unwrap(), 4096);
    assert_same_bytes(&bytes[8192..12_288], &done.payload.into_buffer().unwrap());
    drop(queue);
    let crashed = open_rw(Image::of(&*device).device());
    assert!(matches!(crashed.metadata("/file"), Err(Error::NotFound)), "the name is not durable either");
    file.sync_data().unwrap();
    assert_eq!(count(&volume, Counter::PageWrites), 25);
    assert_same_bytes(&bytes, &after_a_crash(&*device, "/file"));
    drop((file, direct));
    volume.close().unwrap();
    clean(&*device);
}

#[test]
fn a_file_goes_home_with_its_last_user_a_close_and_a_sync_of_the_volume() {
    let device = SMALL.image().device();
    let volume = open_rw(device.clone());
    let bytes = patterned(2, 0, 50_000);
    let (one, two, three) = (made(&volume, "/one"), made(&volume, "/two"), made(&volume, "/three"));
    for file in [&one, &two, &three] {
        file.write_any_at(&bytes, 0, PLAIN).unwrap();
    }
    let clone = one.clone();
    drop(one);
    assert_eq!(count(&volume, Counter::PageWrites), 0, "a clone uses it");
    drop(clone);
    assert_eq!(count(&volume, Counter::PageWrites), 49);
    volume.sync_all().unwrap();
    for name in ["/one", "/two", "/three"] {
        assert_same_bytes(&bytes, &after_a_crash(&*device, name));
    }
    two.write_any_at(b"later", 3, PLAIN).unwrap();
    volume.close().unwrap();
    assert_eq!(&after_a_crash(&*device, "/two")[..9], [&bytes[..3], b"later", &bytes[8..9]].concat());
    drop((two, three));
    clean(&*device);
}

#[test]
fn a_removed_file_writes_nothing() {
    let device = LARGE.image().device();
    let volume = open_rw(device.clone());
    let file = made(&volume, "/gone");
    file.write_any_at(&patterned(3, 0, 200_000), 0, PLAIN).unwrap();
    volume.remove_file("/gone").unwrap();
    assert_eq!(read_all(&file).len(), 200_000);
    drop(file);
    assert_eq!(count(&volume, Counter::PageWrites), 0);
    let free = volume.statfs().unwrap().free;
    volume.close().unwrap();
    assert_eq!(open_rw(device.clone()).statfs().unwrap().free, free, "its promises are taken back");
    clean(&*device);
}

#[test]
fn pages_go_home_by_age() {
    let mut only_overwrites = LARGE.image();
    let volume = open_rw(only_overwrites.device());
    let device = volume.device().clone();
    made(&volume, "/file").write_any_at(&[1; 5000], 0, PLAIN).unwrap();
    volume.close().unwrap();
    only_overwrites = Image::of(&*device);
    only_overwrites.patch_superblock(|superblock| {
        superblock[0x3a] &= !1;
        superblock[0x5c] &= !4;
    });
    within(Duration::from_secs(60), move || {
        std::thread::scope(|scope| {
            for image in [LARGE.image(), only_overwrites] {
                scope.spawn(move || goes_home_by_age(&image));
            }
        });
    });
}

fn goes_home_by_age(image: &Image) {
    let volume = open_rw(image.device());
    let file = made(&volume, "/file");
    file.write_any_at(b"old", 0, PLAIN).unwrap();
    volume.tick().unwrap();
    assert_eq!(count(&volume, Counter::PageWrites), 0);
    while count(&volume, Counter::PageWrites) == 0 {
        std::thread::sleep(Duration::from_millis(100));
        volume.tick().unwrap();
    }
    drop(file);
}

#[test]
fn reads_are_kept_and_read_ahead() {
    let device = LARGE.image().device();
    let volume = open_rw(device.clone());
    let bytes = patterned(4, 0, 1 << 20);
    let file = made(&volume, "/file");
    file.write_any_at(&bytes, 0, PLAIN).unwrap();
    drop(file);
    drop(volume);
    let volume = open_rw(device);
    let file = volume.open_file("/file", buffered()).unwrap();
    let mut part = [0; 100];
    for pos in (0..1 << 20).step_by(100) {
        let length = part.len().min((1 << 20) - pos);
        assert_eq!(file.read_any_at(&mut part, pos as u64).unwrap(), length);
        assert_same_bytes(&bytes[pos..pos + length], &part[..length]);
    }
    assert_eq!(count(&volume, Counter::PageReads), 256, "each page once");
    assert_same_bytes(&bytes, &read_all(&file));
    assert_eq!(count(&volume, Counter::PageReads), 256);
    // Not in order: only what is asked for.
    let before = count(&volume, Counter::PageReads);
    let other = made(&volume, "/other");
    other.set_len(1 << 20).unwrap();
    other.read_any_at(&mut part, 500_000).unwrap();
    other.read_any_at(&mut part, 100_000).unwrap();
    assert_eq!(count(&volume, Counter::PageReads), before + 2);
}

#[test]
fn a_direct_write_drops_what_it_meets_and_keeps_the_rest() {
    let device = LARGE.image().device();
    let volume = open_rw(device.clone());
    let file = made(&volume, "/file");
    let mut model = patterned(5, 0, 64 << 10).to_vec();
    file.write_any_at(&model, 0, PLAIN).unwrap();
    let direct = volume.open_file("/file", read_write()).unwrap();
    // Past the end that the device knows: what is before it goes home too.
    direct.write_at(&patterned(5, 8192, 4096), 8192).unwrap();
    assert_eq!(count(&volume, Counter::PageWrites), 3);
    file.sync_all().unwrap();
    file.write_any_at(&model, 0, PLAIN).unwrap();
    let (written, read) = (count(&volume, Counter::PageWrites), count(&volume, Counter::PageReads));
    let new = patterned(6, 0, 8192);
    direct.write_at(&new, 16_384).unwrap();
    model[16_384..24_576].copy_from_slice(&new);
    assert_eq!(count(&volume, Counter::PageWrites), written + 2, "the dirty pages that it met");
    assert_same_bytes(&model, &read_all(&file));
    assert_eq!(count(&volume, Counter::PageReads), read + 2, "the pages that it dropped");
    // In a queue, and an atomic one.
    let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
    let slot = queue.attach(&direct).unwrap();
    let mut buffer = queue.buffer(4096).unwrap();
    buffer.fill(7);
    queue.write(slot, 4096, buffer, PLAIN, 1).unwrap();
    queue.wait(1).unwrap().next().unwrap().result.unwrap();
    model[4096..8192].fill(7);
    direct.write_at_with(&common::aligned(4096), 32_768, WriteFlags::ATOMIC).unwrap();
    model[32_768..36_864].fill(0);
    assert_same_bytes(&model, &read_all(&file));
    file.sync_all().unwrap();
    assert_same_bytes(&model, &after_a_crash(&*device, "/file"));
    // After many direct requests in a row the short path is taken again.
    let mut part = common::aligned(4096);
    let simple = count(&volume, Counter::SimpleReads);
    for _ in 0..20 {
        direct.read_at(&mut part, 0).unwrap();
    }
    assert!(count(&volume, Counter::SimpleReads) > simple + 5);
    assert_same_bytes(&model, &read_all(&file));
}

/// One file, its model, and how it is open.
struct Walk {
    volume: Volume,
    file: File,
    direct: File,
    model: Vec<u8>,
    rng: Rng,
    number: u64,
}

impl Walk {
    fn new(device: Arc<dyn Device>, budget: u64, seed: u64, model: Vec<u8>) -> Walk {
        let volume = volume_with(device, budget);
        let file = made(&volume, "/walk");
        let direct = volume.open_file("/walk", read_write()).unwrap();
        Walk { volume, file, direct, model, rng: Rng::new(seed), number: seed << 32 }
    }

    fn put(&mut self, pos: u64, length: u64) -> uext4::Buffer {
        self.number += 1;
        let bytes = patterned(self.number, pos, length as usize);
        let end = (pos + length) as usize;
        self.model.resize(self.model.len().max(end), 0);
        self.model[pos as usize..end].copy_from_slice(&bytes);
        bytes
    }

    fn step(&mut self) {
        let size = self.model.len() as u64;
        let (any, long) = (self.rng.below(size.max(1) + 8000).min(MOST), 1 + self.rng.below(20_000));
        let (sector, sectors) = (any / 512 * 512, long.div_ceil(512) * 512);
        match self.rng.below(20) {
            0..=4 => {
                let bytes = self.put(any, long);
                self.file.write_any_at(&bytes, any, PLAIN).unwrap();
            }
            5 | 6 => {
                let short = 1 + long % 100;
                let bytes = self.put(any, short);
                self.file.write_any_at(&bytes, any, PLAIN).unwrap();
            }
            7 if size < MOST => {
                let bytes = self.put(size, long);
                let tail = self.volume.open_file("/walk", OpenOptions::new().append(true)).unwrap();
                assert_eq!(tail.append(&bytes, PLAIN).unwrap(), size);
            }
            8 => {
                let bytes = self.put(any, long);
                self.file.write_any_at(&bytes, any, WriteFlags::DSYNC).unwrap();
            }
            9 | 10 => {
                let bytes = self.put(sector, sectors);
                self.direct.write_at(&bytes, sector).unwrap();
            }
            11 => {
                let bytes = self.put(any, long);
                self.direct.write_any_at(&bytes, any, PLAIN).unwrap();
            }
            12 => {
                self.file.set_len(any).unwrap();
                self.model.resize(any as usize, 0);
            }
            13 => {
                self.direct.fallocate(Fallocate::Punch, any, long).unwrap();
                let end = (any + long).min(size);
                self.model[any.min(end) as usize..end as usize].fill(0);
            }
            14 => self.file.sync_all().unwrap(),
            15 => {
                let mut part = common::aligned(sectors as usize);
                let read = self.direct.read_at(&mut part, sector).unwrap();
                let end = (sector + sectors).min(size).max(sector.min(size));
                assert_same_bytes(&self.model[sector.min(size) as usize..end as usize], &part[..read]);
            }
            _ => {
                let mut part = vec![0; long as usize];
                let read = self.file.read_any_at(&mut part, any).unwrap();
                let (from, end) = (any.min(size) as usize, (any + long).min(size) as usize);
                assert_same_bytes(&self.model[from..end.max(from)], &part[..read]);
            }
        }
        assert_eq!(self.file.size(), self.model.len() as u64);
    }
}

/// Buffered and direct requests at random, with crashes after syncs, and little memory.
fn walk(layout: Layout, budget: u64, seed: u64, steps: usize) {
    let mut device: Arc<MemoryDevice> = layout.image().device();
    let mut model = Vec::new();
    for round in 0..steps / 250 {
        let mut walk = Walk::new(device.clone(), budget, seed * 1000 + round as u64, model);
        (0..250).for_each(|_| walk.step());
        assert_same_bytes(&walk.model, &read_all(&walk.file));
        assert!(walk.volume.page_bytes().0 <= budget, "{:?} of {budget}", walk.volume.page_bytes());
        assert_eq!(count(&walk.volume, Counter::LateFailures), 0);
        match round % 3 {
            0 => walk.file.sync_all().unwrap(),
            1 => walk.volume.sync_all().unwrap(),
            _ => {
                let Walk { volume, file, direct, model: after, .. } = walk;
                drop((file, direct));
                volume.close().unwrap();
                clean(&*device);
                model = after;
                continue;
            }
        }
        // A crash: what was synced is there.
        let crashed = Image::of(&*device);
        model = walk.model.clone();
        drop(walk.file);
        drop(walk.direct);
        drop(walk.volume);
        device = crashed.device();
        let volume = open_rw(device.clone());
        assert_same_bytes(&model, &read_all(&volume.open_file("/walk", read_only()).unwrap()));
        volume.close().unwrap();
        clean(&*device);
    }
}

#[test]
fn any_mix_of_requests_reads_what_the_model_says() {
    for (seed, layout) in [SMALL, MIDDLE, LARGE, CLUSTERS, INLINE, POINTERS].into_iter().enumerate() {
        walk(layout, 64 << 20, seed as u64 + 1, 1500);
    }
}

#[test]
fn any_mix_of_requests_in_little_memory() {
    for (seed, layout) in [SMALL, LARGE, POINTERS].into_iter().enumerate() {
        walk(layout, 96 << 10, seed as u64 + 11, 1500);
        walk(layout, 8 << 10, seed as u64 + 21, 750);
    }
}

#[test]
fn files_give_up_pages_for_each_other() {
    const BUDGET: u64 = 256 << 10;
    let volume = volume_with(LARGE.image().device(), BUDGET);
    let files: Vec<_> = (0..40).map(|number| made(&volume, &format!("/file-{number}"))).collect();
    let contents = |number: usize| patterned(number as u64, 0, 40_000);
    for (number, file) in files.iter().enumerate() {
        file.write_any_at(&contents(number), 0, PLAIN).unwrap();
        let (used, dirty) = volume.page_bytes();
        assert!(used <= BUDGET && dirty <= BUDGET / 2, "{used} {dirty}");
    }
    for _ in 0..3 {
        for (number, file) in files.iter().enumerate() {
            assert_same_bytes(&contents(number), &read_all(file));
            assert!(volume.page_bytes().0 <= BUDGET);
        }
    }
    assert!(count(&volume, Counter::PageDrops) > 0);
    let read = count(&volume, Counter::PageReads);
    assert_same_bytes(&contents(39), &read_all(&files[39]));
    assert_eq!(count(&volume, Counter::PageReads), read, "the file read last is still there");
}

#[test]
fn a_full_volume_refuses_the_write_and_no_page_is_lost() {
    for layout in [SMALL, CLUSTERS, LARGE] {
        let device = layout.image().device();
        let volume = open_rw(device.clone());
        let files: Vec<_> = (0..4).map(|number| made(&volume, &format!("/file-{number}"))).collect();
        let (mut models, mut rng) = (vec![Vec::new(); 4], Rng::new(3));
        let mut full = 0;
        for number in 0.. {
            let which = rng.below(4) as usize;
            let model: &mut Vec<u8> = &mut models[which];
            let pos = if rng.below(4) == 0 {
                rng.below(model.len() as u64 + 1)
            } else {
                model.len() as u64 + rng.below(9000)
            };
            let bytes = patterned(number, pos, 1 + rng.below(30_000) as usize);
            match files[which].write_any_at(&bytes, pos, PLAIN) {
                Ok(_) => {
                    let end = pos as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[pos as usize..end].copy_from_slice(&bytes);
                }
                Err(Error::NoSpace) => {
                    full += 1;
                    // A part of it may be there.
                    *model = read_all(&files[which]);
                }
                Err(error) => panic!("{error}"),
            }
            if full == 20 {
                break;
            }
        }
        for (file, model) in files.iter().zip(&models) {
            file.sync_all().unwrap_or_else(|error| panic!("{layout:?}: {error}"));
            assert_same_bytes(model, &read_all(file));
        }
        assert_eq!(count(&volume, Counter::LateFailures), 0, "{layout:?}");
        for (number, model) in models.iter().enumerate() {
            assert_same_bytes(model, &after_a_crash(&*device, &format!("/file-{number}")));
        }
        drop(files);
        volume.close().unwrap();
        clean(&*device);
    }
}

#[test]
fn a_failed_write_home_is_told_by_the_next_sync_of_every_open_file() {
    let memory = LARGE.image().device();
    let device = FaultDevice::new(memory.clone());
    let faults = device.handle();
    let volume = open_rw(Arc::new(device));
    let one = made(&volume, "/file");
    one.write_any_at(&patterned(1, 0, 40_000), 0, PLAIN).unwrap();
    one.sync_all().unwrap();
    let two = volume.open_file("/file", buffered()).unwrap();
    let bytes = patterned(2, 0, 40_000);
    one.write_any_at(&bytes, 0, PLAIN).unwrap();
    let fault = Fault { action: FaultAction::Errno(libc::EIO), ..Fault::nth(FaultOn::Op(Op::Write), 1) };
    faults.arm(fault);
    assert!(matches!(one.sync_data(), Err(Error::Io { .. })), "the sync that failed");
    assert_eq!(count(&volume, Counter::LateFailures), 1);
    // The pages are still there: the next sync writes them, and tells the other open file what happened.
    assert!(matches!(two.sync_data(), Err(Error::Io { .. })), "the other one");
    let three = volume.open_file("/file", buffered()).unwrap();
    one.sync_data().unwrap();
    two.sync_data().unwrap();
    three.sync_data().unwrap();
    assert_same_bytes(&bytes, &after_a_crash(&*memory, "/file"));
    drop((one, two, three));
    volume.close().unwrap();
    clean(&*memory);
}

#[test]
fn a_new_name_leads_to_the_bytes() {
    let device = LARGE.image().device();
    let volume = open_rw(device.clone());
    let bytes = patterned(9, 0, 20_000);
    let file = made(&volume, "/new");
    file.write_any_at(&bytes, 0, PLAIN).unwrap();
    drop(made(&volume, "/old"));
    volume.rename("/new", "/old").unwrap();
    let replacement = volume.replace_file("/third", OpenOptions::new()).unwrap();
    replacement.file().write_any_at(&bytes, 0, PLAIN).unwrap();
    let third = replacement.finish().unwrap();
    made(&volume, "/beacon").write_any_at(b"x", 0, WriteFlags::DSYNC).unwrap();
    assert_same_bytes(&bytes, &after_a_crash(&*device, "/old"));
    assert_same_bytes(&bytes, &after_a_crash(&*device, "/third"));
    drop((file, third));
}

#[test]
fn names_that_change_places_lead_to_the_bytes() {
    let device = LARGE.image().device();
    let volume = open_rw(device.clone());
    let bytes = patterned(9, 0, 20_000);
    let by_path = |one: &str, two: &str| volume.rename_with(one, two, RenameFlags::EXCHANGE).unwrap();
    let by_handle = |one: &str, two: &str| {
        let root = volume.node_at("/", true).unwrap();
        root.rename(&one[1..], &root, &two[1..], RenameFlags::EXCHANGE).unwrap();
    };
    for number in 0..2 {
        let names = ["old", "new"].map(|name| format!("/{name}-{number}"));
        let files = names.each_ref().map(|name| made(&volume, name));
        files[1].write_any_at(&bytes, 0, PLAIN).unwrap();
        let exchange: &dyn Fn(&str, &str) = if number == 0 { &by_path } else { &by_handle };
        exchange(&names[0], &names[1]);
        made(&volume, &format!("/beacon-{number}")).write_any_at(b"x", 0, WriteFlags::DSYNC).unwrap();
        assert_same_bytes(&bytes, &after_a_crash(&*device, &names[0]));
    }
}

/// Threads with regions of their own in one file, some buffered and some direct, through calls and queues, while
/// another one truncates far behind, syncs and maps.
#[test]
fn threads_share_a_file() {
    let device = LARGE.image().device();
    let volume = volume_with(device.clone(), 256 << 10);
    const REGION: u64 = 128 << 10;
    let work = move || {
        let file = made(&volume, "/shared");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let volume = &volume;
                scope.spawn(move || region(volume, thread, thread * REGION, REGION));
            }
            let file = &file;
            scope.spawn(move || {
                for _ in 0..60 {
                    file.fallocate(Fallocate::KeepSize, 8 << 20, 4096).unwrap();
                    file.fallocate(Fallocate::Punch, 8 << 20, 4096).unwrap();
                    file.sync_data().unwrap();
                    file.map().for_each(|piece| assert!(piece.unwrap().length > 0));
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        });
        file.sync_all().unwrap();
        drop(file);
        volume.close().unwrap();
        clean(&*device);
    };
    within(Duration::from_secs(120), work);
}

fn region(volume: &Volume, thread: u64, start: u64, length: u64) {
    let file = made(volume, "/shared");
    let (mut rng, mut model) = (Rng::new(thread), vec![0u8; length as usize]);
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let slot = queue.attach(&file).unwrap();
    for number in 0..400 {
        let (at, long) = (rng.below(length - 8192), 1 + rng.below(8192));
        let (sector, sectors) = (at / 4096 * 4096, 4096);
        let bytes = patterned(thread << 32 | number, start + at, long as usize);
        match rng.below(5) {
            0 | 1 => {
                file.write_any_at(&bytes, start + at, PLAIN).unwrap();
                model[at as usize..][..long as usize].copy_from_slice(&bytes);
            }
            2 if thread.is_multiple_of(2) => {
                let bytes = patterned(thread << 32 | number, start + sector, sectors);
                file.write_at(&bytes, start + sector).unwrap();
                model[sector as usize..][..sectors].copy_from_slice(&bytes);
            }
            2 => {
                let mut buffer = queue.buffer(sectors).unwrap();
                buffer.copy_from_slice(&patterned(thread << 32 | number, start + sector, sectors));
                model[sector as usize..][..sectors].copy_from_slice(&buffer);
                queue.write(slot, start + sector, buffer, PLAIN, number).unwrap();
                queue.wait(1).unwrap().for_each(|done| assert_eq!(done.result.unwrap(), 4096));
            }
            _ => {
                let mut part = vec![0; long as usize];
                let read = file.read_any_at(&mut part, start + at).unwrap();
                assert_same_bytes(&model[at as usize..at as usize + read], &part[..read]);
            }
        }
    }
}
