//! Mapped memory: copies instead of requests, nothing counted, the same bytes.

use crate::common;

use common::sample::{FRAG_SIZE, TAIL_SIZE, expected, sample};
use common::{aligned, assert_same_bytes, patterned, read_all, read_only, read_write, within};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uext4::device::{self, Device, Op};
use uext4::device::{CountingDevice, TraceEvent, TracePhase, TraceSink};
use uext4::explain::{Explanation, Query};
use uext4::plan::Sync;
use uext4::{
    Counter, DeviceSpec, Fallocate, File, QueueOptions, Stats, Switches, Volume, VolumeOptions, WriteFlags,
};
use uext4_testkit::Scratch;

/// The sample volume in a fully allocated file, as a writable mapping requires.
fn mapped_image() -> (Scratch, PathBuf) {
    let image = sample();
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    let path = scratch.file("volume.img");
    image.save(&path);
    (scratch, path)
}

fn open(path: &std::path::Path, switches: Switches) -> Volume {
    let device = format!("dax:{}", path.display());
    Volume::open(&device, VolumeOptions::read_write().switches(switches)).unwrap()
}

fn without_count() -> Switches {
    let mut switches = Switches::ON;
    switches.set("dax-no-dio-count", false).unwrap();
    switches
}

/// Reads and overwrites of every shape, synchronous and queued.
fn work(volume: &Volume) {
    for name in ["/data", "/tail", "/frag", "/mixed", "/sparse"] {
        let file = volume.open_file(name, read_only()).unwrap();
        assert_same_bytes(&expected(name), &read_all(&file));
        let mut direct = aligned(file.size().next_multiple_of(4096) as usize);
        direct.fill(0xee);
        assert_eq!(file.read_at(&mut direct, 0).unwrap() as u64, file.size());
        assert_same_bytes(&expected(name), &direct[..file.size() as usize]);
    }
    let file = volume.open_file("/frag", read_write()).unwrap();
    let mut wanted = expected("/frag");
    let mut write = |pos: usize, length: usize, send: &dyn Fn(&File, &[u8], u64)| {
        let bytes = patterned(200 + pos as u64, pos as u64, length);
        send(&file, &bytes, pos as u64);
        wanted[pos..pos + length].copy_from_slice(&bytes);
    };
    write(0, 4096, &|file, bytes, pos| {
        assert_eq!(file.write_at(bytes, pos).unwrap(), bytes.len());
    });
    write(512, 512, &|file, bytes, pos| {
        assert_eq!(file.write_at_with(bytes, pos, WriteFlags::DSYNC).unwrap(), bytes.len());
    });
    write(4096, 65_536, &|file, bytes, pos| {
        assert_eq!(file.write_at_with(bytes, pos, WriteFlags::SYNC).unwrap(), bytes.len());
    });
    write(100_001, 7, &|file, bytes, pos| {
        assert_eq!(file.write_any_at(bytes, pos, WriteFlags::DSYNC).unwrap(), 7);
    });
    for (pos, length, flags) in [(131_072, 65_536, WriteFlags::empty()), (262_144, 512, WriteFlags::DSYNC)] {
        write(pos, length, &|file, bytes, pos| {
            let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
            let slot = queue.attach(file).unwrap();
            let buffers = bytes.chunks(4096).map(|part| {
                let mut buffer = queue.buffer(part.len()).unwrap();
                buffer.copy_from_slice(part);
                buffer
            });
            queue.writev(slot, pos, buffers.collect(), flags, 1).unwrap();
            queue.readv(slot, pos, vec![queue.buffer(512).unwrap()], 2).unwrap();
            let results: Vec<_> = queue.wait(2).unwrap().map(|done| done.result.unwrap()).collect();
            assert_eq!(results, [bytes.len(), 512]);
        });
    }
    file.sync_all().unwrap();
    assert_same_bytes(&wanted, &read_all(&file));
}

/// The counters, and the files' contents afterwards: times differ.
fn run(switches: Switches) -> (Stats, Vec<Vec<u8>>) {
    let (_scratch, path) = mapped_image();
    let volume = open(&path, switches);
    work(&volume);
    let stats = volume.stats();
    drop(volume);
    uext4_testkit::e2fsck_clean(&path);
    let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
    let names = ["/data", "/tail", "/frag", "/mixed", "/sparse"];
    (stats, names.map(|name| read_all(&volume.open_file(name, read_only()).unwrap())).into())
}

#[test]
fn both_routes_copy_the_same_and_count_what_they_say() {
    let (on, first) = run(Switches::ON);
    let (off, second) = run(without_count());
    assert_eq!(first, second);
    assert!(on.get(Counter::DaxCopies) > 15, "{on:?}");
    assert_eq!(on.get(Counter::DaxCopies), off.get(Counter::DaxCopies));
    assert_eq!(on.get(Counter::DioCounted), 0, "nothing is counted in flight");
    // The bounced write holds the gate exclusively.
    let bounced_reads = off.get(Counter::Bounces) - 1;
    assert_eq!(off.get(Counter::DioCounted), off.get(Counter::DaxCopies) + bounced_reads);
    assert_eq!((on.get(Counter::SimpleReads), on.get(Counter::GeneralReads)), (0, 0));
    assert!(on.get(Counter::SharedSubblockWrites) > 0 && on.get(Counter::FuaWrites) > 0);
    let (plain, third) = run(Switches::OFF);
    assert_eq!(first, third);
    assert!(plain.get(Counter::HandlesStarted) > 0 && plain.get(Counter::ExclusiveWrites) > 1);
}

#[test]
fn any_byte_goes_and_the_end_is_the_end() {
    let (_scratch, path) = mapped_image();
    let volume = open(&path, Switches::ON);
    let tail = volume.open_file("/tail", read_write()).unwrap();
    let contents = expected("/tail");
    for (pos, length) in [(0usize, 1usize), (9_999, 1), (9_990, 100), (10_000, 5), (4095, 4098), (511, 2)] {
        let mut bytes = vec![0xee; length];
        let wanted = (TAIL_SIZE as usize).saturating_sub(pos).min(length);
        assert_eq!(tail.read_any_at(&mut bytes, pos as u64).unwrap(), wanted);
        assert_same_bytes(&contents[pos.min(10_000)..pos.min(10_000) + wanted], &bytes[..wanted]);
    }
    tail.write_any_at(&[9], TAIL_SIZE - 1, WriteFlags::empty()).unwrap();
    let mut last = [0; 2];
    assert_eq!(tail.read_any_at(&mut last, TAIL_SIZE - 1).unwrap(), 1);
    assert_eq!(last[0], 9);
    // The end moves, within its block and far past it.
    tail.write_any_at(&[8], TAIL_SIZE, WriteFlags::empty()).unwrap();
    tail.write_any_at(&[7; 3], TAIL_SIZE + 50_000, WriteFlags::DSYNC).unwrap();
    let mut grown = contents;
    grown[TAIL_SIZE as usize - 1] = 9;
    grown.push(8);
    grown.resize(TAIL_SIZE as usize + 50_000, 0);
    grown.extend([7; 3]);
    assert_same_bytes(&grown, &read_all(&tail));
    // Over written and unwritten blocks at once.
    let mixed = volume.open_file("/mixed", read_write()).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let slot = queue.attach(&mixed).unwrap();
    let mut buffers = vec![queue.buffer(16_384).unwrap(), queue.buffer(4096).unwrap()];
    buffers.iter_mut().for_each(|buffer| buffer.fill(6));
    queue.writev(slot, 0, buffers, WriteFlags::empty(), 1).unwrap();
    let results: Vec<_> = queue.wait(1).unwrap().map(|done| done.result.map_err(|error| *error)).collect();
    assert!(matches!(results[..], [Ok(20_480)]), "{results:?}");
    let mut changed = expected("/mixed");
    changed[..20_480].fill(6);
    assert_same_bytes(&changed, &read_all(&mixed));
    drop((queue, tail, mixed));
    volume.close().unwrap();
    uext4_testkit::e2fsck_clean(&path);
}

#[test]
fn copies_by_many_threads_and_bounced_writes_exclude_each_other() {
    within(Duration::from_secs(60), || {
        let (_scratch, path) = mapped_image();
        let volume = open(&path, Switches::ON);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let volume = &volume;
                scope.spawn(move || {
                    let file = volume.open_file("/frag", read_write()).unwrap();
                    for round in 0..400u64 {
                        let block = round % 32 * 4096;
                        // Threads 0 to 3 write stripes of one sector, the others the next sectors.
                        let (pos, length) = match thread {
                            0..4 => (block + thread * 100 + 37, 100),
                            _ => (block + thread * 512, 512),
                        };
                        let bytes = patterned(thread << 32 | round, pos, length);
                        let written = match thread {
                            0..4 => file.write_any_at(&bytes, pos, WriteFlags::empty()),
                            _ => file.write_at(&bytes, pos),
                        };
                        assert_eq!(written.unwrap(), length);
                        let mut back = vec![0; length];
                        file.read_any_at(&mut back, pos).unwrap();
                        assert_same_bytes(&bytes, &back);
                    }
                });
            }
        });
        let bytes = read_all(&volume.open_file("/frag", read_only()).unwrap());
        assert_same_bytes(&expected("/frag")[131_072..], &bytes[131_072..]);
        assert_eq!(bytes.len() as u64, FRAG_SIZE);
    });
}

/// Bytes written to the device while `work` runs.
fn written(events: &Mutex<Vec<TraceEvent>>, work: impl FnOnce()) -> u64 {
    events.lock().unwrap().clear();
    work();
    let events = events.lock().unwrap();
    let writes = events.iter().filter(|event| event.op == Op::Write && event.phase == TracePhase::Submit);
    writes.map(|event| event.length).sum()
}

/// Blocks past the end are invisible until the size changes, so nobody would see zeros in them.
#[test]
fn an_append_writes_each_byte_once_and_explain_says_so() {
    let (_scratch, path) = mapped_image();
    let spec = DeviceSpec::parse(&format!("dax:{}", path.display())).unwrap();
    let how = device::OpenOptions { write: true, force: false };
    let device = device::open(&spec, how).unwrap().device;
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink: TraceSink = {
        let events = events.clone();
        Arc::new(move |event: &TraceEvent| events.lock().unwrap().push(*event))
    };
    let device: Arc<dyn Device> = Arc::new(CountingDevice::with_trace(device, sink));
    let volume = Volume::open_device(device, VolumeOptions::read_write()).unwrap();
    let file = volume.open_file("/new", read_write().create(true)).unwrap();
    let length = 1 << 20;
    let bytes = patterned(9, 0, length);
    let explain = |pos, length| {
        let query = Query { write: true, pos, length, sync: Sync::None, queued: false };
        file.explain(&query).unwrap()
    };
    let append = |pos: u64, length: usize| {
        let told = explain(pos, length as u64);
        let before = volume.stats();
        let sent = written(&events, || {
            assert_eq!(file.write_at(&bytes[..length], pos).unwrap(), length);
        });
        let handles = volume.stats().since(&before).get(Counter::HandlesStarted);
        (sent, told, handles)
    };
    let none = "zeros: none, blocks past the end are invisible until the size changes";
    let says = |told: &Explanation, line: &str| told.reasons.iter().any(|reason| reason == line);
    for part in 0..3 {
        let (sent, told, handles) = append((part * length) as u64, length);
        assert_eq!((sent, told.zeroed, handles), (length as u64, 0, 1), "append {part}");
        assert!(says(&told, none), "{told:#?}");
        assert_eq!((told.journal.handles_before, told.journal.handles_after), (0, 1));
    }
    // Preallocated blocks past the end hold no data either.
    let end = file.size();
    file.fallocate(Fallocate::KeepSize, end, length as u64).unwrap();
    let (sent, told, _) = append(end, length);
    assert_eq!((sent, told.zeroed), (length as u64, 0));
    // Before the end they are visible: they are converted before the copy, and so zeroed before that.
    let end = file.size();
    file.set_len(end + 4096).unwrap();
    let (sent, told, _) = append(end, 8192);
    assert_eq!((sent, told.zeroed), (8192 + 4096, 4096));
    let line = "zeros: 4096 bytes in whole blocks without data, written before the data";
    assert!(says(&told, line), "{told:#?}");
    // Of a partial block only the rest of the device block is zeroed.
    let end = file.size();
    let (sent, told, _) = append(end, 512);
    assert_eq!((sent, told.plan.zero_edges.tail), (4096, 4096 - 512));
    let contents = read_all(&file);
    assert_same_bytes(&bytes, &contents[..length]);
    assert_same_bytes(&bytes, &contents[3 * length..4 * length]);
    drop((file, volume));
    uext4_testkit::e2fsck_clean(&path);
}
