//! Writes that allocate, convert and extend, through every way there is, over a file system that looks closely at what
//! it is asked ([`common::model`]), against the bytes that the file should have.
use crate::common;

use common::model::{Call, GARBAGE, Ground, ground};
use common::{BLOCK, memory};
use std::ops::Range;
use std::sync::atomic::Ordering;
use uext4_blockdev::Op;
use uext4_iomap::{Counter, Error, MapKind, Payload, State, Switches, WriteFlags};
use uext4_testkit::device::{Fault, FaultOn};

const SECTOR: u64 = 512;

/// A way to write.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Direct,
    AnyByte,
    Queued,
    Vector,
}

const WAYS: [Way; 4] = [Way::Direct, Way::AnyByte, Way::Queued, Way::Vector];

/// A write of one byte value.
#[derive(Debug, Clone)]
struct Write {
    way: Way,
    range: Range<u64>,
    value: u8,
    flags: WriteFlags,
    switches: Switches,
}

impl Write {
    fn new(way: Way, range: Range<u64>, flags: WriteFlags) -> Self {
        Write { way, range, value: 7, flags, switches: Switches::ON }
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        let (start, end) = (self.range.start as usize, self.range.end as usize);
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].fill(self.value);
    }

    /// Does it and waits for it.
    fn run(&self, ground: &Ground) -> Result<usize, Error> {
        let (pos, length) = (self.range.start, (self.range.end - self.range.start) as usize);
        let file = ground.file(self.switches);
        match self.way {
            Way::Direct => ground.engine.write_at(&file, &memory(length, self.value), pos, self.flags),
            Way::AnyByte => {
                // Memory that no device takes.
                let data = vec![self.value; length + 1];
                let odd = usize::from(data.as_ptr().addr().is_multiple_of(2));
                ground.engine.write_any(&file, &data[odd..odd + length], pos, self.flags)
            }
            Way::Queued | Way::Vector => {
                let (mut queue, slot) = ground.queue(16, self.switches);
                if self.way == Way::Vector {
                    let sectors = (0..length as u64 / SECTOR).map(|_| memory(SECTOR as usize, self.value));
                    queue.writev(slot, pos, sectors.collect(), self.flags, 1)?;
                } else {
                    queue.write(slot, pos, memory(length, self.value), self.flags, 1)?;
                }
                let done = queue.wait(1)?.next().expect("a completion");
                done.result.map_err(|error| *error)
            }
        }
    }

    /// What must hold when it is told to be done.
    fn check_done(&self, ground: &Ground) {
        for pos in self.range.clone().step_by(SECTOR as usize) {
            assert_eq!(ground.inode.state_at(pos), State::Written, "{self:?} is told before it is converted");
        }
        if self.flags.intersects(WriteFlags::DSYNC | WriteFlags::SYNC) {
            let durable = ground.inode.is_durable(self.range.clone(), ground.engine.fs().committed());
            assert!(durable, "{self:?} is told before it is durable");
        }
    }
}

/// What lies in a file of this shape ([`ground`]).
fn contents(shape: &str, size: u64) -> Vec<u8> {
    let block = |letter| [u8::from(letter == b'w'); BLOCK as usize];
    let mut bytes: Vec<u8> = shape.bytes().flat_map(block).collect();
    bytes.resize(size as usize, 0);
    bytes
}

/// Scenes of one write: the file, its size, the bytes written.
const SCENES: [(&str, u64, Range<u64>); 14] = [
    ("wwww", 16384, 4096..8192),
    ("wuuw", 16384, 4096..8192),
    ("w..w", 16384, 4096..12288),
    ("w.uw", 16384, 2048..14336),
    ("wuuw", 16384, 4608..5120),
    ("w..w", 16384, 7680..8704),
    ("wwuw", 16384, 6144..10240),
    ("w", 4096, 4096..8192),
    ("w", 3000, 1024..8192),
    ("w", 3000, 8192..9216),
    ("wu", 5000, 6144..7168),
    ("wuuu", 4096, 4096..12288),
    ("w", 3000, 3072..3584),
    ("", 0, 512..1024),
];

const FLAGS: [WriteFlags; 3] = [WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC];

/// All scenes in all ways on all kinds of file.
fn for_each_scene(mut each: impl FnMut(&dyn Fn() -> Ground, &str, u64, &Write)) {
    for (shape, size, range) in SCENES {
        for way in WAYS {
            for flags in FLAGS {
                for (kind, mapped) in
                    [(MapKind::Extents, false), (MapKind::Extents, true), (MapKind::Indirect, false)]
                {
                    if kind == MapKind::Indirect && shape.contains('u') {
                        continue;
                    }
                    let write = Write::new(way, range.clone(), flags);
                    each(&|| ground(shape, size, kind, mapped), shape, size, &write);
                }
            }
        }
    }
}

#[test]
fn every_scene_ends_as_it_should() {
    for_each_scene(|make, shape, size, write| {
        for (switches, eager) in [(Switches::ON, true), (Switches::OFF, true), (Switches::ON, false)] {
            let ground = make();
            ground.engine.fs().eager.store(eager, Ordering::SeqCst);
            let write = Write { switches, ..write.clone() };
            assert_eq!(write.run(&ground), Ok((write.range.end - write.range.start) as usize), "{write:?}");
            write.check_done(&ground);
            let mut bytes = contents(shape, size);
            write.apply(&mut bytes);
            assert!(ground.contents() == bytes, "{shape} of {size}: {write:?}");
            ground.check_quiet();
        }
    });
}

/// No matter which call of the file system or which request of the device fails: the write fails whole, what was there
/// before or what was to be there is there in each sector, and nothing else.
#[test]
fn every_failure_fails_the_write_whole() {
    let mut failed = [0; 2];
    for_each_scene(|make, shape, size, write| {
        for (device, failed) in (0..).zip(&mut failed) {
            for n in 0.. {
                let ground = make();
                let handle = (device == 1).then(|| ground.faults.arm(Fault::nth(FaultOn::Any, n + 1)));
                ground.engine.fs().fault.store(if device == 0 { n as i64 } else { -1 }, Ordering::SeqCst);
                let outcome = write.run(&ground);
                let met = match handle {
                    Some(_) => ground.faults.fired() > 0,
                    None => ground.engine.fs().fault.load(Ordering::SeqCst) < 0,
                };
                ground.faults.clear();
                if !met {
                    assert!(outcome.is_ok(), "{write:?}: {outcome:?}");
                    break;
                }
                assert!(outcome.is_err(), "{shape} of {size}, failure {n}: {write:?} passes for done");
                *failed += 1;
                check_failed(
                    &ground,
                    &contents(shape, size),
                    write,
                    &format!("{shape} of {size}, failure {n}"),
                );
            }
        }
    });
    assert!(failed[0] > 500 && failed[1] > 500, "{failed:?}");
}

fn check_failed(ground: &Ground, before: &[u8], write: &Write, what: &str) {
    ground.check_quiet();
    let mut after = before.to_vec();
    write.apply(&mut after);
    let found = ground.contents();
    // A sync that fails comes behind everything else.
    assert!(
        found.len() == before.len() || found.len() == after.len(),
        "{what}: {write:?}: {} bytes",
        found.len()
    );
    assert!(found.len() == before.len() || found == after, "{what}: {write:?}: a size before its data");
    for (n, sector) in found.chunks(SECTOR as usize).enumerate() {
        let at = n * SECTOR as usize..n * SECTOR as usize + sector.len();
        let old = before.get(at.clone()).is_some_and(|old| old == sector);
        assert!(old || after[at] == *sector, "{what}: {write:?}: sector {n} is neither old nor new");
    }
}

/// What is called, in which order.
#[test]
fn calls_come_in_their_order() {
    use Call::*;
    let cases: [(&str, u64, Range<u64>, &[Call]); 6] = [
        ("wwww", 16384, 4096..8192, &[Datasync]),
        ("wuuw", 16384, 4096..8192, &[Reserve, Convert, Datasync]),
        ("w..w", 16384, 4096..8192, &[Allocate, Reserve, Convert, Datasync]),
        ("wuuw", 16384, 4608..5120, &[Reserve, Convert, Datasync]),
        ("w", 4096, 4096..8192, &[ExtendBegin, Allocate, Reserve, ExtendEnd, Datasync]),
        ("wu", 4096, 4096..8192, &[ExtendBegin, Reserve, ExtendEnd, Datasync]),
    ];
    for (shape, size, range, calls) in cases {
        for way in WAYS {
            let ground = ground(shape, size, MapKind::Extents, false);
            ground.engine.fs().eager.store(false, Ordering::SeqCst);
            Write::new(way, range.clone(), WriteFlags::SYNC).run(&ground).unwrap();
            assert_eq!(*ground.engine.fs().calls.lock(), calls, "{shape} {range:?} {way:?}");
        }
    }
    // Mapped memory: what lies in front of the end of the file is converted before the copy, the rest with the size.
    let cases: [(&str, u64, Range<u64>, &[Call]); 4] = [
        ("wuuw", 16384, 4096..8192, &[Reserve, Convert]),
        ("w", 4096, 4096..8192, &[ExtendBegin, Allocate, Reserve, ExtendEnd]),
        ("wu", 4096, 4096..8192, &[ExtendBegin, Reserve, ExtendEnd]),
        ("wu", 8192, 4096..12288, &[ExtendBegin, Reserve, Allocate, Reserve, Convert, ExtendEnd]),
    ];
    for (shape, size, range, calls) in cases {
        let ground = ground(shape, size, MapKind::Extents, true);
        ground.engine.fs().eager.store(false, Ordering::SeqCst);
        Write::new(Way::Direct, range.clone(), WriteFlags::empty()).run(&ground).unwrap();
        assert_eq!(*ground.engine.fs().calls.lock(), calls, "{shape} {range:?}");
    }
}

/// An aligned write over unwritten blocks shares the gate and starts nothing before it is complete; then all that
/// completed together is converted in one go, and the requests are in flight until then.
#[test]
fn a_queue_of_unwritten_blocks_is_converted_at_once() {
    let ground = ground(&"u".repeat(64), 64 * BLOCK, MapKind::Extents, false);
    let (mut queue, slot) = ground.queue(32, Switches::ON);
    for n in 0..32 {
        queue.write(slot, 2 * n * BLOCK, memory(BLOCK as usize, 7), WriteFlags::DSYNC, n).unwrap();
    }
    queue.submit().unwrap();
    assert_eq!(*ground.engine.fs().calls.lock(), [Call::Reserve; 32]);
    assert_eq!(
        (ground.inode.state.gate.in_flight(), ground.engine.stats().get(Counter::ExclusiveWrites)),
        (32, 0)
    );
    assert_eq!(queue.wait(32).unwrap().filter(|done| done.result.is_ok()).count(), 32);
    assert_eq!(ground.engine.fs().calls.lock()[32..], [Call::Convert, Call::Datasync]);
    ground.check_quiet();
}

/// A drainer converts for an idle queue, and meanwhile more of it lands: whoever comes next converts that.
#[test]
fn what_lands_while_a_drainer_converts_is_converted() {
    for flags in FLAGS {
        let ground = ground("uuuuw", 5 * BLOCK, MapKind::Extents, false);
        let (mut queue, slot) = ground.queue(4, Switches::ON);
        ground.late.hold();
        queue.write(slot, 0, memory(BLOCK as usize, 7), WriteFlags::DSYNC, 1).unwrap();
        queue.submit().unwrap();
        assert_eq!(ground.late.land(), 1);
        for n in 1..4 {
            queue.write(slot, n * BLOCK, memory(BLOCK as usize, 8), flags, n + 1).unwrap();
        }
        queue.submit().unwrap();
        ground.late.land_before(Some(Op::Flush));
        Write::new(Way::AnyByte, 4 * BLOCK + 5..4 * BLOCK + 9, FLAGS[0]).run(&ground).unwrap();
        ground.check_quiet();
        let results: Vec<_> = queue.wait(4).unwrap().map(|done| (done.tag, done.result.is_ok())).collect();
        assert_eq!(results, [(1, true), (2, true), (3, true), (4, true)], "{flags:?}");
        assert!(
            ground.contents()[BLOCK as usize..4 * BLOCK as usize].iter().all(|&byte| byte == 8),
            "{flags:?}"
        );
    }
}

/// `poll` leaves conversions to another thread, and an owner who drops his queue waits for them.
#[test]
fn conversions_run_beside_a_polling_owner() {
    let ground = ground("uuuu", 4 * BLOCK, MapKind::Extents, false);
    let (mut queue, slot) = ground.queue(4, Switches::ON);
    queue.write(slot, 0, memory(BLOCK as usize, 7), WriteFlags::empty(), 1).unwrap();
    let mut polls = 0;
    while queue.poll().unwrap().count() == 0 {
        polls += 1;
        std::thread::yield_now();
    }
    assert!(polls > 0, "it was converted in the call");
    assert_eq!(ground.inode.state_at(0), State::Written);
    queue.write(slot, BLOCK, memory(BLOCK as usize, 7), WriteFlags::empty(), 1).unwrap();
    drop(queue);
    ground.check_quiet();
    assert_eq!(ground.inode.state_at(BLOCK), State::Written);
}

/// Zeros around a small write must not fall on what another request has just put there: complete is not converted, so
/// the block looks as fresh as before.
#[test]
fn a_small_write_waits_for_who_fills_its_block() {
    for (way, shape) in WAYS.into_iter().flat_map(|way| [(way, "wu"), (way, "w.")]) {
        for before in [None, Some(Op::Read), Some(Op::Write)] {
            for range in [4608..5120, 4608..8704] {
                let ground = ground(shape, 2 * BLOCK, MapKind::Extents, false);
                let (mut queue, slot) = ground.queue(4, Switches::ON);
                queue.write(slot, BLOCK, memory(BLOCK as usize, 9), FLAGS[0], 1).unwrap();
                queue.submit().unwrap();
                ground.late.land_before(before);
                let small = Write::new(way, range.clone(), FLAGS[0]);
                small.run(&ground).unwrap();
                assert_eq!(queue.wait(1).unwrap().filter(|done| done.result.is_ok()).count(), 1);
                let mut bytes = contents(shape, 2 * BLOCK);
                bytes[BLOCK as usize..].fill(9);
                small.apply(&mut bytes);
                assert!(ground.contents() == bytes, "{before:?}: {small:?}");
                ground.check_quiet();
            }
        }
    }
}

/// A file system that says that it has allocated, and has not: block 0 of the device is not what it meant.
#[test]
fn what_has_no_place_goes_nowhere() {
    for way in WAYS {
        for (size, range) in
            [(3 * BLOCK, 0..2 * BLOCK), (2 * BLOCK, BLOCK..3 * BLOCK), (3 * BLOCK, 512..1024)]
        {
            let ground = ground("..w", size, MapKind::Extents, false);
            ground.engine.fs().lies.store(true, Ordering::SeqCst);
            let failed = Write::new(way, range, FLAGS[1]).run(&ground);
            assert!(matches!(failed, Err(Error::NotWritten(_))), "{way:?}: {failed:?}");
            let mut first = memory(BLOCK as usize, 0);
            ground.engine.device().read_at(&mut first, 0).unwrap();
            assert!(first.iter().all(|&byte| byte == GARBAGE), "{way:?}");
            ground.check_quiet();
        }
    }
}

/// Who must not wait is refused before anything is done, or waits for nothing.
#[test]
fn nowait_is_decided_before_anything_is_sent() {
    for_each_scene(|make, shape, size, write| {
        let ground = make();
        let write = Write { flags: write.flags | WriteFlags::NOWAIT, ..write.clone() };
        let before = contents(shape, size);
        // An unknown map is one more reason to wait (`stale.rs`).
        let all = uext4_iomap::Range { pos: 0, length: size.next_multiple_of(BLOCK) };
        ground.engine.visit_pieces(&ground.file(write.switches), all, |_| ()).unwrap();
        match write.run(&ground) {
            Ok(_) => {
                let aligned =
                    write.range.start.is_multiple_of(BLOCK) && write.range.end.is_multiple_of(BLOCK);
                assert!(write.range.end <= size && write.way != Way::AnyByte, "{write:?}");
                let calls = ground.engine.fs().calls.lock();
                assert!(!calls.contains(&Call::Allocate) && (aligned || shape == "wwww"), "{write:?}");
            }
            Err(Error::WouldBlock) => {
                assert!(
                    ground.engine.fs().calls.lock().is_empty() && ground.contents() == before,
                    "{write:?}"
                );
                assert!(shape != "wwww" || write.way == Way::AnyByte, "{write:?}");
            }
            Err(error) => panic!("{write:?}: {error}"),
        }
        ground.check_quiet();
    });
}

/// Numbers from a seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

const FILE_BLOCKS: u64 = 40;

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A random write that shares no sector with `busy`.
fn random_write(rng: &mut Rng, busy: &[Range<u64>]) -> Option<Write> {
    let way = WAYS[rng.below(4) as usize];
    let grain = match way {
        Way::AnyByte => 1 + rng.below(3),
        _ if rng.below(2) == 0 => BLOCK,
        _ => SECTOR,
    };
    let length = (1 + rng.below(3 * BLOCK)).next_multiple_of(grain);
    let start = rng.below(FILE_BLOCKS * BLOCK - 4 * BLOCK) / grain * grain;
    let range = start..start + length;
    let sectors = start / SECTOR * SECTOR..range.end.next_multiple_of(SECTOR);
    let flags = [FLAGS[0], FLAGS[0], FLAGS[1], FLAGS[2]][rng.below(4) as usize];
    let value = 2 + rng.below(200) as u8;
    let switches = if rng.below(2) == 0 { Switches::ON } else { Switches::from_bits(rng.below(32) as u8) };
    busy.iter().all(|other| !overlaps(&sectors, other)).then_some(Write {
        way,
        range,
        value,
        flags,
        switches,
    })
}

/// One round: some requests in flight at a time, of which none touches another's sectors.
fn round(ground: &Ground, rng: &mut Rng, bytes: &mut Vec<u8>) {
    let switches = Switches::from_bits(rng.below(32) as u8);
    let (mut queue, slot) = ground.queue(16, switches);
    let mut busy: Vec<Range<u64>> = Vec::new();
    let mut writes: Vec<Option<Write>> = Vec::new();
    let mut reads = Vec::new();
    ground.late.land_before([None, Some(Op::Read), Some(Op::Write)][rng.below(3) as usize]);
    for n in 0..1 + rng.below(8) {
        let Some(write) = random_write(rng, &busy) else { continue };
        let sectors = write.range.start / SECTOR * SECTOR..write.range.end.next_multiple_of(SECTOR);
        let (pos, length) = (sectors.start, (sectors.end - sectors.start) as usize);
        if rng.below(4) == 0 {
            // What it reads now, nobody changes in this round.
            queue.read(slot, pos, memory(length, 99), n).unwrap();
            let end = bytes.len().min(sectors.end as usize);
            reads.push((n, bytes.get(pos as usize..end).unwrap_or_default().to_vec()));
        } else if write.way == Way::Queued {
            queue.write(slot, write.range.start, memory(length, write.value), write.flags, n).unwrap();
            // One that extends is done; the others hide nothing of it that they will not write themselves.
            write.apply(bytes);
            writes.resize(n as usize + 1, None);
            writes[n as usize] = Some(write);
        } else {
            write.run(ground).unwrap();
            write.check_done(ground);
            write.apply(bytes);
        }
        busy.push(sectors);
    }
    for done in queue.wait(16).unwrap() {
        let read = done.result.unwrap();
        if let Some(Some(write)) = writes.get(done.tag as usize) {
            write.check_done(ground);
        } else if let Some((_, expected)) = reads.iter().find(|(tag, _)| *tag == done.tag)
            && let Payload::One(buffer) = &done.payload
        {
            assert_eq!(read, expected.len());
            assert!(buffer[..read] == expected[..], "what read {} has read", done.tag);
        }
    }
    ground.late.land_before(None);
}

fn random_run(seed: u64, rounds: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let kind = if rng.below(3) == 0 { MapKind::Indirect } else { MapKind::Extents };
    let letters = if kind == MapKind::Indirect { b"ww." } else { b"wu." };
    let shape: Vec<u8> = (0..rng.below(FILE_BLOCKS - 8)).map(|_| letters[rng.below(3) as usize]).collect();
    let shape = String::from_utf8(shape).unwrap();
    let size = (shape.len() as u64 * BLOCK).saturating_sub(rng.below(BLOCK));
    let ground = ground(&shape, size, kind, rng.below(4) == 0);
    let mut bytes = contents(&shape, size);
    for _ in 0..rounds {
        ground.engine.fs().eager.store(rng.below(2) == 0, Ordering::SeqCst);
        round(&ground, &mut rng, &mut bytes);
        ground.check_quiet();
        let found = ground.contents();
        let differs = found.iter().zip(&bytes).position(|(one, other)| one != other);
        assert!(found.len() == bytes.len() && differs.is_none(), "seed {seed}: byte {differs:?}");
        if rng.below(3) == 0 {
            ground.inode.forget();
        }
    }
}

#[test]
fn random_writes_leave_what_they_should() {
    let number =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (first, count) = (number("UEXT4_PIPELINE_SEED", 1), number("UEXT4_PIPELINE_RUNS", 600));
    for seed in first..first + count {
        let run = std::panic::catch_unwind(|| random_run(seed, 6));
        assert!(run.is_ok(), "again by UEXT4_PIPELINE_SEED={seed} UEXT4_PIPELINE_RUNS=1");
    }
}

/// Threads whose sectors lie between each other's, in every block: synchronous, bounced and queued writes together.
#[test]
fn threads_in_the_same_blocks_lose_nothing() {
    const THREADS: u64 = 4;
    for seed in 1..=40 {
        let ground = ground(&"u.w.".repeat(6), 24 * BLOCK, MapKind::Extents, false);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let ground = &ground;
                scope.spawn(move || {
                    let mut rng = Rng((seed << 8) + thread + 1);
                    for block in 0..24 {
                        let pos = block * BLOCK + (2 * thread + rng.below(2)) * SECTOR;
                        let way = WAYS[rng.below(4) as usize];
                        let range = pos / SECTOR * SECTOR..(pos / SECTOR + 1) * SECTOR;
                        let range = if way == Way::AnyByte { range.start + 1..range.end - 1 } else { range };
                        let write = Write { value: 10 + thread as u8, ..Write::new(way, range, FLAGS[0]) };
                        write.run(ground).unwrap();
                        write.check_done(ground);
                    }
                });
            }
        });
        ground.check_quiet();
        for (n, block) in ground.contents().chunks(BLOCK as usize).enumerate() {
            let background = if n % 4 == 2 { 1 } else { 0 };
            for (sector, bytes) in block.chunks(SECTOR as usize).enumerate() {
                let of = |byte: u8| byte == background || byte == 10 + sector as u8 / 2;
                assert!(bytes.iter().all(|&byte| of(byte)), "seed {seed}: block {n}, sector {sector}");
            }
            for thread in 0..THREADS as usize {
                let own = &block[2 * thread * SECTOR as usize..(2 * thread + 2) * SECTOR as usize];
                let written = own.iter().filter(|&&byte| byte == 10 + thread as u8).count() as u64;
                assert!(written >= SECTOR - 2, "seed {seed}: block {n} of thread {thread}: {written} bytes");
            }
        }
    }
}

/// Short ranges by writes, long ones by the device, both with edges that are no blocks of it.
#[test]
fn zeros_are_made_where_blocks_are_in_the_state_and_nowhere_else() {
    let shape = "wuw.wwwu".repeat(14);
    let size = shape.len() as u64 * BLOCK;
    for (state, range) in [
        (State::Written, 1000..size - BLOCK - 1000),
        (State::Written, 5 * BLOCK + 1..7 * BLOCK - 511),
        (State::Written, 0..size),
        (State::Unwritten, BLOCK..size - 2 * BLOCK),
    ] {
        let ground = ground(&shape, size, MapKind::Extents, false);
        let file = ground.file(Switches::ON);
        let held = ground.engine.lock_exclusive(&file, true).unwrap();
        let bytes = uext4_iomap::Range { pos: range.start, length: range.end - range.start };
        ground.engine.zero(&file, &held, bytes, state).unwrap();
        drop(held);
        for (block, letter) in (0..).zip(shape.bytes()) {
            let Some((found, data)) = ground.block(block) else { continue };
            for (at, byte) in (block * BLOCK..).zip(&data) {
                let before = if letter == b'w' { 1 } else { GARBAGE };
                let wanted = if found == state && range.contains(&at) { 0 } else { before };
                assert_eq!(*byte, wanted, "{state:?} {range:?}: byte {at}");
            }
        }
    }
}
