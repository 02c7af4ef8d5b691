//! Overwrites that reuse the decision of an earlier one have the same effect as with their own.

use crate::common;

use common::sample::{DATA_SIZE, FRAG_SIZE, MIXED_SIZE, TAIL_SIZE, sample, sample_with, seeded};
use common::{Image, assert_same_bytes, open_rw, read_all, read_only, read_write, within};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::{
    Capabilities, Description, Device, Geometry, Queue, QueueOptions as DeviceQueueOptions,
    Result as DeviceResult, WriteDurability,
};
use uext4::{Buffer, Counter, FileSlot, IoQueue, QueueOptions, Volume, WriteFlags};

const COUNTERS: [Counter; 9] = [
    Counter::BytesWritten,
    Counter::OverwritesWithoutHandle,
    Counter::DioCounted,
    Counter::FuaWrites,
    Counter::SharedSubblockWrites,
    Counter::Flushes,
    Counter::Commits,
    Counter::ExclusiveWrites,
    Counter::AllocationsRefused,
];

/// A volume on a device with a volatile cache and FUA.
fn volume_of(image: &Image) -> Volume {
    open_rw(image.device_with(|options| (options.volatile_cache, options.fua) = (true, true)))
}

fn filled(queue: &IoQueue, length: usize, byte: u8) -> Buffer {
    let mut buffer = queue.buffer(length).unwrap();
    buffer.fill(byte);
    buffer
}

/// One write and its result: its error, or its completion.
fn write(
    queue: &mut IoQueue,
    slot: FileSlot,
    pos: u64,
    buffer: Buffer,
    flags: WriteFlags,
) -> Result<usize, String> {
    queue.write(slot, pos, buffer, flags, 1).map_err(|error| error.to_string())?;
    let done = queue.wait(1).unwrap().next().expect("a completion");
    assert_eq!(done.tag, 1);
    done.result.map_err(|error| error.to_string())
}

/// The same requests on two copies of a volume: all through one attachment, and each through a new one, without earlier
/// decisions.
#[test]
fn what_was_decided_once_is_what_would_be_decided_each_time() {
    for (block, seed) in [(4096, 1), (1024, 2)] {
        let image = sample_with(block, &["-O", "^has_journal"]);
        let mut random = seeded(seed);
        let (kept, fresh) = (volume_of(&image), volume_of(&image));
        let files =
            [("/data", DATA_SIZE), ("/frag", FRAG_SIZE), ("/tail", TAIL_SIZE), ("/mixed", MIXED_SIZE)];
        let mut kept_queue = kept.queue(QueueOptions::depth(4)).unwrap();
        let mut fresh_queue = fresh.queue(QueueOptions::depth(4)).unwrap();
        let open = |volume: &Volume, name: &str| volume.open_file(name, read_write()).unwrap();
        let slots = files.map(|(name, _)| kept_queue.attach(&open(&kept, name)).unwrap());
        let fresh_files = files.map(|(name, _)| open(&fresh, name));
        let all_flags = [WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC];
        let (mut flags, mut sent, mut refused) = (WriteFlags::empty(), 0, 0);
        for request in 0..3000 {
            if random.chance(20) {
                flags = *random.pick(&all_flags)
                    | if random.chance(30) { WriteFlags::NOWAIT } else { WriteFlags::empty() };
            }
            let index = random.below(files.len() as u64) as usize;
            let pos = random.below(files[index].1 / 512 + 4) * 512 + if random.chance(3) { 100 } else { 0 };
            let length = *random.pick(&[0, 512, 1024, 3584, 4096, 4096, 4096, 8192, 40_960, 100]);
            let what =
                format!("request {request}: {length} bytes at {pos} of {} with {flags:?}", files[index].0);
            let before = (kept.stats(), fresh.stats());
            let buffer = filled(&kept_queue, length, request as u8);
            let first = write(&mut kept_queue, slots[index], pos, buffer, flags);
            let slot = fresh_queue.attach(&fresh_files[index]).unwrap();
            let buffer = filled(&fresh_queue, length, request as u8);
            let second = write(&mut fresh_queue, slot, pos, buffer, flags);
            fresh_queue.detach(slot).unwrap();
            assert_eq!(first, second, "{what}");
            let counted = (kept.stats().since(&before.0), fresh.stats().since(&before.1));
            // Whether O_SYNC has a new time to write depends on the clock, and no two writes have the same time.
            let timed = flags.contains(WriteFlags::SYNC);
            let by_clock = |counter| timed && matches!(counter, Counter::Flushes | Counter::Commits);
            for counter in COUNTERS.into_iter().filter(|counter| !by_clock(*counter)) {
                assert_eq!(counted.0.get(counter), counted.1.get(counter), "{what}: {counter:?}");
            }
            if timed {
                // A commit frees what was freed before it: both volumes do it here.
                kept.sync_all().and_then(|()| fresh.sync_all()).unwrap();
            }
            sent += u32::from(first.is_ok());
            refused += u32::from(first.is_err());
        }
        assert!(sent > 1000 && refused > 300, "{sent} sent, {refused} refused");
        for (name, _) in files {
            let [kept, fresh] = [&kept, &fresh].map(|volume| read_all(&open(volume, name)));
            assert_same_bytes(&kept, &fresh);
        }
        let [kept, fresh] = [kept, fresh].map(|volume| Image::of(&**volume.device()).without_times());
        assert_same_bytes(&kept.bytes, &fresh.bytes);
    }
}

/// Creates queues that accept fewer requests than asked for.
#[derive(Debug)]
struct Narrow(Arc<dyn Device>, u32);

impl Device for Narrow {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn describe(&self) -> Description {
        self.0.describe()
    }
    fn read_at(&self, buf: &mut [u8], pos: u64) -> DeviceResult<()> {
        self.0.read_at(buf, pos)
    }
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> DeviceResult<()> {
        self.0.write_at(buf, pos, durability)
    }
    fn flush(&self) -> DeviceResult<()> {
        self.0.flush()
    }
    fn discard(&self, pos: u64, length: u64) -> DeviceResult<()> {
        self.0.discard(pos, length)
    }
    fn queue(&self, options: &DeviceQueueOptions) -> DeviceResult<Queue> {
        self.0.queue(&DeviceQueueOptions { depth: self.1, ..options.clone() })
    }
}

/// Requests are counted before they go to the device's queue: refused ones are uncounted, and take the general route.
#[test]
fn a_refusing_device_queue_loses_and_doubles_nothing() {
    let device = sample().device_with(|options| (options.volatile_cache, options.fua) = (true, true));
    let volume = open_rw(Arc::new(Narrow(device, 2)));
    let file = volume.open_file("/data", read_write()).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
    let slot = queue.attach(&file).unwrap();
    for round in 0..20_u64 {
        let before = volume.stats();
        let mut tags = Vec::new();
        for tag in 0..8 {
            let length = if tag % 2 == 0 { 4096 } else { 512 };
            let flags = if round % 3 == 0 { WriteFlags::empty() } else { WriteFlags::DSYNC };
            queue
                .write(slot, tag * 8192, filled(&queue, length, (round * 8 + tag) as u8), flags, tag)
                .unwrap();
        }
        while tags.len() < 8 {
            tags.extend(queue.wait(1).unwrap().map(|done| (done.tag, done.result.unwrap())));
        }
        tags.sort_unstable();
        let expected: Vec<_> = (0..8).map(|tag| (tag, if tag % 2 == 0 { 4096 } else { 512 })).collect();
        assert_eq!(tags, expected);
        let counted = volume.stats().since(&before);
        let dsync = if round % 3 == 0 { 0 } else { 8 };
        assert_eq!(counted.get(Counter::FuaWrites), dsync, "round {round}");
        assert_eq!(counted.get(Counter::OverwritesWithoutHandle), 8, "round {round}");
        assert_eq!(counted.get(Counter::SharedSubblockWrites), 4, "round {round}");
        assert_eq!(counted.get(Counter::DioCounted), 8, "round {round}");
        for tag in 0..8 {
            queue.read(slot, tag * 8192, queue.buffer(512).unwrap(), tag).unwrap();
        }
        let mut seen = 0;
        while seen < 8 {
            for done in queue.wait(1).unwrap() {
                let (tag, buffer) = (done.tag, done.into_buffer().unwrap());
                assert!(buffer.iter().all(|&byte| byte == (round * 8 + tag) as u8), "round {round}, {tag}");
                seen += 1;
            }
        }
        let reads = volume.stats().since(&before);
        assert_eq!(reads.get(Counter::SimpleReads) + reads.get(Counter::GeneralReads), 8, "round {round}");
        assert_eq!(reads.get(Counter::DioCounted), 16, "round {round}");
    }
    // Nothing is pending: the place is free at once.
    queue.detach(slot).unwrap();
    let again = queue.attach(&file).unwrap();
    assert!(again != slot && common::same_place(again, slot), "{slot:?}, {again:?}");
    // Nothing is left in flight: a write that drains gets the gate.
    within(Duration::from_secs(20), move || file.write_any_at(&[1], 1, WriteFlags::empty()).unwrap());
}

/// A place is reused by another file: no decision of the first file survives.
#[test]
fn a_new_file_in_an_old_place_starts_undecided() {
    let volume = volume_of(&sample());
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let data = queue.attach(&volume.open_file("/data", read_write()).unwrap()).unwrap();
    for pos in [0, 4096] {
        let buffer = filled(&queue, 4096, 9);
        write(&mut queue, data, pos, buffer, WriteFlags::DSYNC).unwrap();
    }
    queue.detach(data).unwrap();
    let frag = queue.attach(&volume.open_file("/frag", read_only()).unwrap()).unwrap();
    for slot in [data, frag] {
        let buffer = filled(&queue, 4096, 1);
        let error = queue.write(slot, 4096, buffer, WriteFlags::DSYNC, 1).unwrap_err();
        let text = error.to_string();
        assert_eq!(text.contains("slot"), slot == data, "{text}");
    }
    queue.detach(frag).unwrap();
    let tail = queue.attach(&volume.open_file("/tail", read_write()).unwrap()).unwrap();
    let written = common::read_all(&volume.open_file("/tail", read_only()).unwrap());
    let mut buffer = queue.buffer(4096).unwrap();
    buffer.copy_from_slice(&written[..4096]);
    write(&mut queue, tail, 0, buffer, WriteFlags::DSYNC).unwrap();
    for slot in [data, frag] {
        let buffer = filled(&queue, 4096, 1);
        let error = queue.write(slot, 0, buffer, WriteFlags::DSYNC, 1).unwrap_err();
        assert!(error.to_string().contains("slot"), "{error}");
    }
    assert_eq!(queue.pending(), 0);
    assert_same_bytes(&common::sample::expected("/tail"), &written);
    let kept = common::read_all(&volume.open_file("/data", read_only()).unwrap());
    assert!(kept[..8192].iter().all(|&byte| byte == 9));
    assert_same_bytes(
        &common::sample::expected("/frag"),
        &common::read_all(&volume.open_file("/frag", read_only()).unwrap()),
    );
}
