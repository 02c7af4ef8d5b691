//! Overlay files: what is read and written where, what a power cut leaves, and what is refused.

use crate::common;

use common::{conformance, pattern, reap_all, request};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::layer::{BaseFacts, CountingDevice, OverlayFileDevice};
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Buffer, BufferPool, Device, DeviceQueue, Error, Op, OpenOptions, OverlayFault, QueueOptions, Registry,
    Request, WriteDurability, open, overlay,
};
use uext4_testkit::crash::{Options, State, assert_states};
use uext4_testkit::device::{CrashDevice, CrashOptions, Fault, FaultDevice, FaultOn};
use uext4_testkit::{Rng, Scratch};

const SIZE: u64 = 8 << 20;
/// What the base has in every byte.
const BASE: u8 = 0xB5;

fn take(length: usize, fill: u8) -> Buffer {
    let mut buffer = BufferPool::new(length).unwrap().take(length).unwrap();
    buffer.fill(fill);
    buffer
}

fn base() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(MemoryOptions::new(SIZE)).unwrap();
    device.write_at(&take(SIZE as usize, BASE), 0, WriteDurability::Cached).unwrap();
    Arc::new(device)
}

fn is_untouched(base: &dyn Device) -> bool {
    let mut bytes = take(SIZE as usize, 0);
    base.read_at(&mut bytes, 0).unwrap();
    bytes.iter().all(|byte| *byte == BASE)
}

fn store(granule: u32) -> MemoryOptions {
    MemoryOptions::new(OverlayFileDevice::size(SIZE, granule).unwrap())
}

fn formatted(options: MemoryOptions, base: &dyn Device, granule: u32) -> (Arc<MemoryDevice>, BaseFacts) {
    let store = MemoryDevice::new(options).unwrap();
    let facts = OverlayFileDevice::facts(base, None).unwrap();
    OverlayFileDevice::format(&store, &facts, granule, b"/base", [7; 16]).unwrap();
    (Arc::new(store), facts)
}

fn over(
    base: Arc<dyn Device>,
    facts: &BaseFacts,
    store: Arc<dyn Device>,
) -> Result<OverlayFileDevice, Error> {
    OverlayFileDevice::open(base, facts, store, "o".into())
}

fn at(device: &dyn Device, pos: u64) -> u8 {
    let mut block = take(device.geometry().logical_block as usize, 0);
    device.read_at(&mut block, pos).unwrap();
    assert!(block.iter().all(|byte| *byte == block[0]));
    block[0]
}

#[test]
fn it_is_a_device_like_any_other_and_the_base_stays() {
    for (volatile_cache, fua) in [(false, true), (true, true), (true, false), (false, false)] {
        for granule in [512, 4096] {
            let base = base();
            let options = MemoryOptions { volatile_cache, fua, ..store(granule) };
            let (store, facts) = formatted(options, &*base, granule);
            let device = over(base.clone(), &facts, store.clone()).unwrap();
            let capabilities = device.capabilities();
            assert!(capabilities.volatile_cache && !capabilities.read_only);
            assert_eq!(
                (capabilities.fua, device.geometry().logical_block),
                (fua || !volatile_cache, granule)
            );
            conformance(&device);
            let changed = device.changed_bytes();
            assert!(changed > 0 && changed <= SIZE);
            assert!(device.describe().layers[0].starts_with("overlay o ("));
            drop(device);
            assert!(is_untouched(&*base));
            assert_eq!(over(base, &facts, store).unwrap().changed_bytes(), changed, "reopened");
        }
    }
}

/// A base that does not end with a granule, and blocks of a store larger than those of the base.
#[test]
fn the_larger_block_counts() {
    let size = SIZE + 3 * 512;
    let small = MemoryDevice::new(MemoryOptions::new(size)).unwrap();
    let facts = OverlayFileDevice::facts(&small, None).unwrap();
    let file = OverlayFileDevice::size(size, 512).unwrap();
    let large = |logical_block| MemoryOptions { logical_block, ..MemoryOptions::new(file) };
    let memory = Arc::new(MemoryDevice::new(large(4096)).unwrap());
    OverlayFileDevice::format(&*memory, &facts, 512, b"/base", [7; 16]).unwrap();
    let device = over(Arc::new(small), &facts, memory).unwrap();
    assert_eq!((device.geometry().logical_block, device.geometry().size), (4096, SIZE));
    device.write_at(&take(4096, 3), SIZE - 4096, WriteDurability::Fua).unwrap();
    assert_eq!(at(&device, SIZE - 4096), 3);
    let refused = MemoryDevice::new(large(8192)).unwrap();
    assert!(matches!(over(base(), &facts, Arc::new(refused)), Err(Error::Unsupported(_))));
}

fn pushed(device: &dyn Device, request: Request) -> i32 {
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    // SAFETY: the request is delivered before this returns, and the callers' buffers outlive it.
    unsafe { queue.push(request) }.unwrap();
    reap_all(&mut queue)[0].result
}

/// What is in one place is one request there; what is in both is read from both.
#[test]
fn requests_go_where_the_data_is() {
    let base = base();
    let (store, facts) = formatted(store(512), &*base, 512);
    let (below, above) = (CountingDevice::new(base.clone()), CountingDevice::new(store));
    let (below_counts, above_counts) = (below.counters(), above.counters());
    let device = over(Arc::new(below), &facts, Arc::new(above)).unwrap();
    let mut buffer = take(8192, 1);
    let memory = buffer.memory(0);
    assert_eq!(pushed(&device, request(Op::Write, 4096, 4096, memory, 1)), 4096);
    assert_eq!((below_counts.get().writes, above_counts.get().writes), (0, 1), "no map yet");
    let before = (below_counts.get().reads, above_counts.get().reads);
    for (pos, length, reads) in [(0, 4096, (1, 0)), (4096, 4096, (1, 1)), (2048, 8192, (3, 2))] {
        buffer.fill(0);
        assert_eq!(pushed(&device, request(Op::Read, pos, length, memory, 1)), length as i32);
        let now = (below_counts.get().reads - before.0, above_counts.get().reads - before.1);
        assert_eq!(now, reads, "{pos}");
    }
    assert!(buffer[..2048].iter().chain(&buffer[6144..]).all(|byte| *byte == BASE));
    assert!(buffer[2048..6144].iter().all(|byte| *byte == 1));
    // Data, then the map: a block of it, durable by itself.
    let before = above_counts.get();
    assert_eq!(pushed(&device, request(Op::Flush, 0, 0, memory, 1)), 0);
    let after = above_counts.get();
    assert_eq!((after.flushes - before.flushes, after.writes - before.writes), (1, 1));
    // Now only the data.
    let write = Request { fua: true, ..request(Op::Write, 4096, 4096, memory, 1) };
    assert_eq!(pushed(&device, write), 4096);
    assert_eq!(pushed(&device, request(Op::Flush, 0, 0, memory, 1)), 0);
    let last = above_counts.get();
    assert_eq!((last.flushes - after.flushes, last.writes - after.writes), (1, 1));
    // Of what only the base has nothing is given back.
    assert_eq!(pushed(&device, request(Op::Discard, 65536, 4096, memory, 1)), 0);
    assert_eq!(above_counts.get().discards, 0);
    device.discard(4096, 4096).unwrap();
    assert_eq!((above_counts.get().discards, at(&device, 8192)), (1, BASE));
    drop(device);
    assert_eq!((below_counts.get().writes, below_counts.get().discards), (0, 0));
}

/// Neighbours are written at the same time, synchronously and queued: none takes the base's bytes for another's.
#[test]
fn neighbours_at_once() {
    let base = base();
    let (store, facts) = formatted(store(512), &*base, 512);
    let device = over(base.clone(), &facts, store.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let mut buffer = take(512, thread as u8);
                for round in 0..300 {
                    let pos = (round * 8 + thread * 2) * 512;
                    match round % 3 {
                        0 => device.write_at(&buffer, pos, WriteDurability::Cached).unwrap(),
                        1 => device.write_at(&buffer, pos, WriteDurability::Fua).unwrap(),
                        _ => {
                            let memory = buffer.memory(0);
                            assert_eq!(pushed(device, request(Op::Write, pos, 512, memory, 0)), 512);
                        }
                    }
                    if round % 50 == 0 {
                        device.flush().unwrap();
                    }
                }
            });
        }
    });
    device.flush().unwrap();
    let check = |device: &dyn Device| {
        for block in 0..300 * 8 {
            let wanted = if block % 2 == 0 { (block % 8 / 2) as u8 } else { BASE };
            assert_eq!(at(device, block * 512), wanted, "{block}");
        }
    };
    check(&device);
    // Nothing is left for the end.
    std::mem::forget(device);
    check(&over(base, &facts, store).unwrap());
}

/// Begun: these blocks, this byte. `Durable`: all begun before this number.
struct Begun(u64, u64, u8);
struct Durable(usize);
struct DurableOne(u64, u8);

/// Whether a state has of each block what it may have.
fn is_legal(state: &State<'_>, device: &dyn Device) -> Result<(), String> {
    let begun: Vec<&Begun> = state.marks().collect();
    let flushed = state.marks::<Durable>().last().map_or(0, |durable| durable.0);
    for block in begun.iter().flat_map(|Begun(block, length, _)| *block..*block + *length) {
        let mut allowed = vec![BASE];
        for (at, Begun(first, length, number)) in begun.iter().enumerate() {
            if !(*first..*first + *length).contains(&block) {
                continue;
            }
            let one = |one: &DurableOne| (one.0, one.1) == (block, *number);
            if at < flushed || state.marks::<DurableOne>().any(one) {
                allowed.clear();
            }
            allowed.push(*number);
        }
        let found = at(device, block * 512);
        if !allowed.contains(&found) {
            return Err(format!("block {block}: {found}, not one of {allowed:?}"));
        }
    }
    Ok(())
}

/// Every state of the file is an overlay; what was flushed or written durably is there, and nothing else but the base.
#[test]
fn power_cuts() {
    for (seed, fua) in [(1, true), (2, true), (3, false)] {
        let base = base();
        let (store, facts) = formatted(store(512), &*base, 512);
        let crash = CrashDevice::new(store, CrashOptions { fua, ..CrashOptions::default() }).unwrap();
        let handle = crash.handle();
        handle.shuffle(Some(seed));
        let device = over(base.clone(), &facts, Arc::new(crash)).unwrap();
        let (mut rng, mut begun) = (Rng::new(seed), 0);
        let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
        for number in 1..=60u8 {
            // Around the border of two blocks of the map, in few places.
            let block = 8 * 4032 - 6 - 16384 + rng.below(12);
            let block = if rng.below(3) == 0 { 8 * 4032 - 32000 + block % 4 } else { block };
            let length = 1 + rng.below(3);
            let mut buffer = take(length as usize * 512, number);
            handle.mark(Begun(block, length, number));
            begun += 1;
            match rng.below(6) {
                0 if fua => {
                    device.write_at(&buffer, block * 512, WriteDurability::Fua).unwrap();
                    (block..block + length).for_each(|block| handle.mark(DurableOne(block, number)));
                }
                1 if fua => {
                    let memory = buffer.memory(0);
                    let write = request(Op::Write, block * 512, buffer.len() as u32, memory, 0);
                    // SAFETY: reaped before the buffer goes.
                    unsafe { queue.push(Request { fua: true, ..write }) }.unwrap();
                    assert!(reap_all(&mut queue)[0].result > 0);
                    (block..block + length).for_each(|block| handle.mark(DurableOne(block, number)));
                }
                2 => {
                    let memory = buffer.memory(0);
                    let write = request(Op::Write, block * 512, buffer.len() as u32, memory, 0);
                    // SAFETY: as above.
                    unsafe { queue.push(write) }.unwrap();
                    assert!(reap_all(&mut queue)[0].result > 0);
                }
                _ => device.write_at(&buffer, block * 512, WriteDurability::Cached).unwrap(),
            }
            if rng.below(5) == 0 {
                device.flush().unwrap();
                handle.mark(Durable(begun));
            }
        }
        drop(queue);
        std::mem::forget(device);
        let options = Options::new("overlay-file", seed).at_most(4000);
        let report = assert_states(&handle.log().unwrap(), &options, |state| {
            let device = over(base.clone(), &facts, state.device()).map_err(|error| error.to_string())?;
            is_legal(state, &device)
        });
        assert!(report.states > 500, "{report}");
    }
}

/// After a flush that failed nothing is acknowledged, and what was is still there.
#[test]
fn a_flush_that_fails_is_the_last() {
    for nth in 1..=4 {
        let size = 8 * SIZE;
        let base = Arc::new(MemoryDevice::new(MemoryOptions::new(size)).unwrap());
        let options = MemoryOptions::new(OverlayFileDevice::size(size, 512).unwrap());
        let (store, facts) = formatted(options, &*base, 512);
        let faulty = FaultDevice::new(store.clone());
        let faults = faulty.handle();
        let device = over(base.clone(), &facts, Arc::new(faulty)).unwrap();
        device.write_at(&take(512, 1), 0, WriteDurability::Fua).unwrap();
        device.write_at(&take(512, 2), 512, WriteDurability::Cached).unwrap();
        // Another block of the map: two writes of it, and a flush after them.
        device.write_at(&take(512, 2), size - 512, WriteDurability::Cached).unwrap();
        let on = if nth % 2 == 0 { FaultOn::Op(Op::Flush) } else { FaultOn::Op(Op::Write) };
        faults.arm(Fault::nth(on, u64::from(nth > 2) + 1));
        let failed = device.flush();
        assert_eq!(failed.map_err(|error| error.errno()), Err(libc::EIO), "{nth}");
        let refused = |result: Result<(), Error>| {
            assert!(matches!(result, Err(Error::Overlay { fault: OverlayFault::Failed, .. })), "{result:?}");
        };
        refused(device.flush());
        refused(device.write_at(&take(512, 3), 0, WriteDurability::Fua));
        refused(device.discard(0, 512));
        let mut buffer = take(512, 3);
        for op in [Op::Write, Op::Flush] {
            assert_eq!(pushed(&device, request(op, 0, 512, buffer.memory(0), 0)), -libc::EIO);
        }
        assert_eq!(at(&device, 512), 2, "still readable");
        drop(device);
        assert_eq!(at(&over(base, &facts, store).unwrap(), 0), 1);
    }
}

#[test]
fn damaged_files_are_refused_by_name() {
    let base = base();
    let (store, facts) = formatted(store(512), &*base, 512);
    let device = over(base.clone(), &facts, store.clone()).unwrap();
    device.write_at(&take(512, 1), 0, WriteDurability::Fua).unwrap();
    drop(device);
    let mut sound = take(12288, 0);
    store.read_at(&mut sound, 0).unwrap();
    let with = |pos: usize, bytes: &[u8]| {
        let mut damaged = take(12288, 0);
        damaged.copy_from_slice(&sound);
        damaged[pos..pos + bytes.len()].copy_from_slice(bytes);
        store.write_at(&damaged, 0, WriteDurability::Cached).unwrap();
        let opened = over(base.clone(), &facts, store.clone());
        store.write_at(&sound, 0, WriteDurability::Cached).unwrap();
        match opened {
            Err(Error::Overlay { fault, path }) if path == "o" => fault,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(with(0, b"x"), OverlayFault::NotOne);
    assert_eq!(with(8, &[9]), OverlayFault::Version(9));
    assert!(matches!(with(100, &[1]), OverlayFault::Header(_)));
    assert_eq!(with(4096, &[1]), OverlayFault::State);
    assert_eq!(with(8192, &[1]), OverlayFault::Map(0));
    assert_eq!(with(8192 + 512 + 9, &[1]), OverlayFault::Map(1));
    let refused = |facts: &BaseFacts, wanted: OverlayFault| {
        let Err(Error::Overlay { fault, .. }) = over(base.clone(), facts, store.clone()) else { panic!() };
        assert_eq!(fault, wanted);
    };
    let (recorded, found) = (SIZE, SIZE + 512);
    refused(&BaseFacts { size: found, ..facts }, OverlayFault::BaseSize { recorded, found });
    refused(&BaseFacts { sample: facts.sample ^ 1, ..facts }, OverlayFault::BaseContents);
    let short = Arc::new(MemoryDevice::new(MemoryOptions::new(1 << 20)).unwrap());
    short.write_at(&sound, 0, WriteDurability::Cached).unwrap();
    let cut = over(base.clone(), &facts, short);
    assert!(matches!(cut, Err(Error::Overlay { fault: OverlayFault::TooShort { .. }, .. })), "{cut:?}");
}

/// Random bytes in header, state and map, some with the right checksum of the header: an error or a device, no panic.
#[test]
fn hostile_files() {
    let base = base();
    let (store, facts) = formatted(store(512), &*base, 512);
    over(base.clone(), &facts, store.clone())
        .unwrap()
        .write_at(&take(4096, 1), 4096, WriteDurability::Fua)
        .unwrap();
    let mut sound = take(12288, 0);
    store.read_at(&mut sound, 0).unwrap();
    let mut rng = Rng::new(5);
    for _ in 0..2000 {
        let mut hostile = take(12288, 0);
        hostile.copy_from_slice(&sound);
        for _ in 0..1 + rng.below(4) {
            let at = match rng.below(3) {
                0 => rng.below(80),
                1 => rng.below(4096),
                _ => rng.below(12288),
            };
            hostile[at as usize] = rng.below(256) as u8;
        }
        if rng.below(2) == 0 {
            let sum = crc32c(&hostile[..4092]);
            hostile[4092..4096].copy_from_slice(&sum.to_le_bytes());
        }
        store.write_at(&hostile, 0, WriteDurability::Cached).unwrap();
        if let Ok(device) = over(base.clone(), &facts, store.clone()) {
            device.write_at(&take(512, 1), SIZE - 512, WriteDurability::Fua).unwrap();
        }
    }
}

/// Bit by bit, since this crate's tests have no library for it.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0x82F6_3B78 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

/// A base of `SIZE` bytes in a file, write-protected.
fn base_file(scratch: &Scratch) -> PathBuf {
    let path = scratch.path().join("base.img");
    let mut bytes = vec![0; SIZE as usize];
    pattern(3, &mut bytes);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    path
}

fn spec(base: &Path, overlay: &Path) -> DeviceSpec {
    let mut spec = DeviceSpec::file(base);
    spec.options.overlay = Some(overlay.to_owned());
    spec
}

fn open_rw(spec: &DeviceSpec) -> Result<Arc<dyn Device>, Error> {
    open(spec, OpenOptions { write: true, force: false }).map(|opened| opened.device)
}

#[test]
fn files_are_shared_merged_and_dropped() {
    let scratch = Scratch::new(64 << 20);
    let base = base_file(&scratch);
    let before = fs::read(&base).unwrap();
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
    let missing = open(&spec(&base, &one), OpenOptions::default());
    assert_eq!(missing.unwrap_err().errno(), libc::ENOENT, "nothing is made to be read");
    let (first, second) = (open_rw(&spec(&base, &one)).unwrap(), open_rw(&spec(&base, &two)).unwrap());
    conformance(&*first);
    let block = first.geometry().logical_block as usize;
    second.write_at(&take(block, 2), 0, WriteDurability::Cached).unwrap();
    assert!(matches!(open_rw(&spec(&base, &one)), Err(Error::InUse(_))), "one writer of an overlay");
    assert!(matches!(overlay::discard(&one), Err(Error::InUse(_))));
    assert!(matches!(overlay::merge(&one, None, &Registry::EMPTY, &mut |_| ()), Err(Error::InUse(_))));
    assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o600);
    drop(second);
    // The base is still in use by the first overlay.
    assert!(matches!(overlay::merge(&two, None, &Registry::EMPTY, &mut |_| ()), Err(Error::InUse(_))));
    let mut wanted = vec![0; SIZE as usize];
    let mut piece = take(1 << 20, 0);
    for (number, part) in wanted.chunks_mut(1 << 20).enumerate() {
        first.read_at(&mut piece, (number as u64) << 20).unwrap();
        part.copy_from_slice(&piece);
    }
    drop(first);
    assert!(fs::read(&base).unwrap() == before && wanted != before);

    let inspected = overlay::inspect(&one).unwrap();
    let mut at = 0;
    while let Some(run) = inspected.next_change(at) {
        assert!(run.start >= at);
        at = run.end;
    }
    assert_eq!(inspected.base_name(), fs::canonicalize(&base).unwrap().as_os_str().as_encoded_bytes());
    let changed = inspected.changed_bytes();
    drop(inspected);
    let mut merged = 0;
    assert_eq!(overlay::merge(&one, None, &Registry::EMPTY, &mut |bytes| merged += bytes).unwrap(), changed);
    assert_eq!(merged, changed);
    assert!(fs::read(&base).unwrap() == wanted && !one.exists());

    // The other overlay is about what the base was.
    let refused = open_rw(&spec(&base, &two));
    let fault = match refused {
        Err(Error::Overlay { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    assert!(matches!(fault, OverlayFault::BaseContents | OverlayFault::BaseTime { .. }), "{fault}");
    overlay::discard(&two).unwrap();
    assert!(!two.exists());
    assert!(matches!(overlay::discard(&base), Err(Error::Overlay { fault: OverlayFault::NotOne, .. })));
    assert!(base.exists());
}

/// Only the time of the base has changed: the message says how to go on.
#[test]
fn a_base_with_another_time() {
    let scratch = Scratch::new(64 << 20);
    let base = base_file(&scratch);
    let overlay = scratch.path().join("o");
    drop(open_rw(&spec(&base, &overlay)).unwrap());
    let file = fs::File::open(&base).unwrap();
    let was = file.metadata().unwrap().modified().unwrap();
    file.set_modified(was + std::time::Duration::from_nanos(1)).unwrap();
    let Err(error) = open_rw(&spec(&base, &overlay)) else { panic!() };
    assert_eq!(error.errno(), libc::ESTALE);
    let since = was.duration_since(std::time::UNIX_EPOCH).unwrap();
    let touch = format!("touch -d @{}.{:09}", since.as_secs(), since.subsec_nanos());
    assert!(error.to_string().contains(&touch), "{error}");
    file.set_modified(was).unwrap();
    open_rw(&spec(&base, &overlay)).unwrap();
    // The file of another base.
    let other = scratch.path().join("other.img");
    fs::write(&other, vec![1; SIZE as usize]).unwrap();
    let Err(error) = open_rw(&spec(&other, &overlay)) else { panic!() };
    assert!(matches!(error, Error::Overlay { fault: OverlayFault::BaseContents, .. }), "{error}");
    let named = spec(Path::new("/dev/null"), &overlay);
    assert!(open_rw(&named).is_err());
    let memory = DeviceSpec::parse("mem:8M?overlay=x").unwrap();
    assert!(matches!(open_rw(&memory), Err(Error::Unsupported(_))));
}

/// A merge that was cut at any write is finished by another, and not into another base.
#[test]
fn merges_are_cut_and_run_again() {
    for nth in 1..=4 {
        let base = base();
        let (store, facts) = formatted(store(512), &*base, 512);
        let device = over(base.clone(), &facts, store.clone()).unwrap();
        for (number, block) in [(1, 0), (2, 3), (3, 16000)] {
            device.write_at(&take(512, number), block * 512, WriteDurability::Cached).unwrap();
        }
        drop(device);
        let faulty = FaultDevice::new(base.clone());
        faulty.handle().arm(Fault::nth(FaultOn::Op(Op::Write), nth));
        let mut file = uext4_blockdev::layer::OverlayFile::open(store.clone(), "o".into()).unwrap();
        let cut = file.merge(&faulty, &facts, &mut |_| ());
        assert_eq!(cut.is_err(), nth <= 3);
        drop(file);
        let refused = over(base.clone(), &facts, store.clone());
        assert!(matches!(refused, Err(Error::Overlay { fault: OverlayFault::Merging, .. })), "{refused:?}");
        let mut file = uext4_blockdev::layer::OverlayFile::open(store, "o".into()).unwrap();
        assert!(file.is_merging());
        let other = MemoryDevice::new(MemoryOptions::new(SIZE)).unwrap();
        let refused = file.merge(&other, &facts, &mut |_| ());
        assert!(matches!(refused, Err(Error::Overlay { fault: OverlayFault::BaseContents, .. })));
        let now = OverlayFileDevice::facts(&*base, None).unwrap();
        file.merge(&*base, &now, &mut |_| ()).unwrap();
        for (wanted, block) in [(1, 0), (BASE, 1), (2, 3), (3, 16000), (BASE, 16001)] {
            assert_eq!(at(&*base, block * 512), wanted);
        }
    }
}
