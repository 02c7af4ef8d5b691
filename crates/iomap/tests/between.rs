//! What happens to a file between any two steps of a request: conversions, forgotten maps, blocks that are not what
//! they were. Each is tried at every look that the engine takes.
use crate::common;

use common::{BLOCK, Bed, OneFile, memory, outcome};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::layer::CountingDevice;
use uext4_blockdev::{Buffer, Device};
use uext4_iomap::{Counter, Error, OpenFile, State, Switches, WriteFlags};

/// More pieces than one plan covers.
const PIECES: u64 = 80;

fn cached() -> Arc<dyn Device> {
    let mut options = MemoryOptions::new(4 << 20);
    (options.volatile_cache, options.fua) = (true, true);
    Arc::new(MemoryDevice::new(options).unwrap())
}

/// A way to write `O_DSYNC`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Synchronous,
    AnyByte,
    Queued,
    Vector,
}

const WAYS: [Way; 4] = [Way::Synchronous, Way::AnyByte, Way::Queued, Way::Vector];

impl Way {
    /// Writes `blocks` blocks of `byte` at the start of the file.
    fn write(self, bed: &Bed, blocks: u64, byte: u8, switches: Switches) -> Result<usize, Error> {
        let length = (blocks * BLOCK) as usize;
        let data = memory(length, byte);
        let file = bed.file(switches);
        match self {
            Way::Synchronous => bed.engine.write_at(&file, &data, 0, WriteFlags::DSYNC),
            Way::AnyByte => any_byte(bed, &file, &data),
            Way::Queued | Way::Vector => {
                let (mut queue, slot) = bed.queue(128, switches);
                if self == Way::Vector {
                    let parts = (0..blocks).map(|_| memory(BLOCK as usize, byte)).collect();
                    queue.writev(slot, 0, parts, WriteFlags::DSYNC, 1)?;
                } else {
                    queue.write(slot, 0, data, WriteFlags::DSYNC, 1)?;
                }
                outcome(&mut queue)
            }
        }
    }
}

/// All but the first and the last byte, from memory that no device would take, so that it is bounced.
fn any_byte(bed: &Bed, file: &OpenFile<OneFile>, data: &Buffer) -> Result<usize, Error> {
    let unaligned = [&[0], &data[..]].concat();
    let last = data.len() - 1;
    bed.engine.write_any(file, &unaligned[2..=last], 1, WriteFlags::DSYNC).map(|written| written + 2)
}

/// Tries `consequence` at every look of a request until it is over before the look; returns how many there were.
fn at_every_look(mut one: impl FnMut(u64) -> bool) -> u64 {
    (0..2000).find(|&at| !one(at)).expect("the request ends")
}

/// FUA over an extent whose conversion is not durable is a lost write. The conversion falls between any two steps.
#[test]
fn a_conversion_at_any_moment_is_made_durable_with_the_data() {
    for way in WAYS {
        for switches in [Switches::ON, Switches { overwrite_no_transaction: false, ..Switches::ON }] {
            for blocks in [1, PIECES] {
                let (mut written, mut refused) = (0, 0);
                let looks = at_every_look(|at| {
                    let bed = Bed::new(cached(), PIECES, 1, State::Unwritten);
                    bed.inode.arm(at, |inode| inode.convert());
                    let result = way.write(&bed, blocks, 7, switches);
                    let met = bed.inode.disarm().is_some();
                    match result {
                        Ok(length) => {
                            written += 1;
                            assert_eq!(length as u64, blocks * BLOCK);
                            let durable = (bed.engine.fs().commits(), bed.count(Counter::FuaWrites));
                            assert_eq!(durable, (1, 0), "{way:?} of {blocks} blocks, converted at look {at}");
                        }
                        Err(Error::NeedsAllocation { .. }) => refused += 1,
                        Err(error) => panic!("{way:?} of {blocks} blocks, converted at look {at}: {error}"),
                    }
                    met
                });
                assert!(looks > 2 && written > 0 && refused > 0, "{way:?}: {written} {refused} of {looks}");
            }
        }
    }
}

/// A map that is forgotten between judging and sending is loaded again; the request is whole.
#[test]
fn a_map_that_is_forgotten_at_any_moment_costs_nothing() {
    for way in WAYS {
        for window in [0, 1, 3] {
            let looks = at_every_look(|at| {
                let bed = Bed::new(cached(), PIECES, 1, State::Written);
                bed.engine.fs().window.store(window, Ordering::SeqCst);
                bed.inode.arm(at, |inode| inode.forget());
                let result = way.write(&bed, PIECES, 9, Switches::ON);
                assert_eq!(result, Ok((PIECES * BLOCK) as usize), "{way:?}, forgotten at look {at}");
                let met = bed.inode.disarm().is_some();
                let mut expected = vec![9; (PIECES * BLOCK) as usize];
                if way == Way::AnyByte {
                    (expected[0], expected[(PIECES * BLOCK) as usize - 1]) = (0, 0);
                }
                assert!(bed.on_device() == expected, "{way:?}, forgotten at look {at}");
                let mut read = memory((PIECES * BLOCK) as usize, 0);
                let file = bed.file(Switches::ON);
                bed.engine.read_at(&file, &mut read, 0).unwrap();
                assert!(read[..] == expected[..]);
                let (mut queue, slot) = bed.queue(128, Switches::ON);
                queue.read(slot, 0, memory((PIECES * BLOCK) as usize, 0), 1).unwrap();
                let done = queue.wait(1).unwrap().next().unwrap();
                assert!(done.into_buffer().unwrap()[..] == expected[..]);
                met
            });
            assert!(looks > 2, "{way:?}: {looks}");
        }
    }
}

/// Should a file system ever take written blocks away under the gate, data does not go where none belongs, and the
/// write does not pass for done. Not a debug assertion: this holds in release builds.
#[test]
fn what_is_not_written_any_more_is_not_written_over() {
    for way in WAYS {
        let mut stopped = 0;
        at_every_look(|at| {
            let bed = Bed::new(cached(), PIECES, 1, State::Written);
            // One piece known at a time: each is looked at again when it is sent.
            bed.engine.fs().window.store(1, Ordering::SeqCst);
            bed.inode.forget();
            bed.inode.arm(at, |inode| {
                inode.publish(State::Unwritten);
                inode.forget();
            });
            let result = way.write(&bed, PIECES, 5, Switches::ON);
            let met = bed.inode.disarm().is_some();
            match result {
                Ok(_) => assert!(bed.on_device()[1..].starts_with(&[5; 4095])),
                Err(Error::NeedsAllocation { .. }) => assert!(bed.on_device().iter().all(|&byte| byte == 0)),
                Err(Error::NotWritten(_)) => stopped += 1,
                Err(error) => panic!("{way:?}, at look {at}: {error}"),
            }
            met
        });
        assert!(stopped > 0, "{way:?}: the check was never reached");
    }
}

/// Each device request of an `O_DSYNC` overwrite carries FUA, however many there are.
#[test]
fn every_piece_carries_fua() {
    for way in WAYS {
        for blocks in [1, 3, PIECES] {
            let device = Arc::new(CountingDevice::new(cached()));
            let counters = device.counters();
            let bed = Bed::new(device, PIECES, 1, State::Written);
            counters.take();
            way.write(&bed, blocks, 3, Switches::ON).unwrap();
            let counts = counters.take();
            let sent = (counts.writes, counts.fua_writes, counts.flushes);
            assert_eq!(sent, (blocks, blocks, 0), "{way:?} of {blocks} pieces");
        }
    }
}

/// The plain route takes the gate exclusively at once: one handle, one mapping.
#[test]
fn a_write_that_cannot_share_the_gate_does_not_try_to() {
    let switches =
        Switches { shared_subblock_overwrite: false, overwrite_no_transaction: false, ..Switches::ON };
    let bed = Bed::new(cached(), PIECES, 1, State::Written);
    let file = bed.file(switches);
    let (mut queue, slot) = bed.queue(4, switches);
    for n in 1..=3 {
        bed.engine.write_at(&file, &memory(512, 1), 512, WriteFlags::empty()).unwrap();
        queue.write(slot, 1024, memory(512, 2), WriteFlags::empty(), n).unwrap();
        outcome(&mut queue).unwrap();
        // Two pieces: the short way gives it back, and it has had its handle.
        bed.engine.write_at(&file, &memory(8192, 1), 0, WriteFlags::empty()).unwrap();
        queue.write(slot, 0, memory(8192, 2), WriteFlags::empty(), n).unwrap();
        outcome(&mut queue).unwrap();
        let counts = (bed.count(Counter::HandlesStarted), bed.count(Counter::ExclusiveWrites));
        assert_eq!(counts, (4 * n, 2 * n));
    }
}

/// A panic in a call of the file system may leave a request cut off in its queue. With the queue it goes, however far
/// it came, and nobody waits for it.
#[test]
fn what_a_panic_cut_off_goes_with_its_queue() {
    for at in 0.. {
        let options = uext4_blockdev::engine::MemoryOptions::new(4 << 20);
        let device = Arc::new(uext4_blockdev::engine::MemoryDevice::new(options).unwrap());
        let bed = Bed::new(device, PIECES, 1, State::Written);
        let (mut queue, slot) = bed.queue(8, Switches::ON);
        bed.inode.arm(at, |_| panic!("in a call of the file system"));
        let request = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            queue.write(slot, 0, memory((PIECES * BLOCK) as usize, 1), WriteFlags::empty(), 1).unwrap();
            queue.wait(1).unwrap().count()
        }));
        let happened = bed.inode.disarm().is_some();
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(queue)));
        assert!(dropped.is_ok(), "the queue is dropped after a panic at look {at}");
        assert_eq!(bed.inode.state.gate.in_flight(), 0, "after a panic at look {at}");
        drop(bed.inode.state.gate.lock_exclusive(true, &mut || ()));
        if !happened {
            assert_eq!(request.unwrap(), 1);
            return;
        }
    }
}
