//! A device that fails at any operation, once or permanently, during writes that allocate, convert and extend: errors
//! have types, nothing hangs, acknowledged data is there afterwards, and the volume recovers clean.

use crate::common;

use common::sample::sample_with;
use common::{Image, open_rw, patterned, read_all, read_only, read_write, within};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::{MemoryDevice, Op};
use uext4::{Error, QueueOptions, ReservedSpace, Result, State, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultDevice, FaultHandle, FaultOn};
use uext4_testkit::{Need, Scratch, needs, oracle};

/// Durable contents of a file: a length for each pattern, in order.
type Acknowledged = Vec<(u64, usize)>;

const FILE: &str = "/mixed";

/// Writes into unwritten blocks and holes, extends, through calls and a queue, and records what became durable.
/// `/mixed` is 128 KiB: 16 KiB written, unwritten up to 64 KiB, then a hole.
fn scenario(volume: &Volume, acknowledged: &mut Acknowledged) -> Result<()> {
    let file = volume.open_file(FILE, read_write())?;
    for step in 0..10 {
        let pos = 16_384 + step * 12_288;
        file.write_at_with(&patterned(step, pos, 12_288), pos, WriteFlags::DSYNC)?;
        acknowledged.push((step, 12_288));
    }
    let mut queue = volume.queue(QueueOptions::depth(4))?;
    let slot = queue.attach(&file)?;
    let start = 16_384 + 10 * 12_288;
    for part in 0..4 {
        let mut buffer = queue.buffer(4096)?;
        buffer.copy_from_slice(&patterned(10 + part, start + part * 4096, 4096));
        queue.write(slot, start + part * 4096, buffer, WriteFlags::empty(), part)?;
    }
    let (mut seen, mut result) = (0, Ok(()));
    while seen < 4 {
        for done in queue.wait(1)? {
            seen += 1;
            if let Err(error) = done.result {
                result = Err(*error);
            }
        }
    }
    result?;
    file.sync_all()?;
    acknowledged.extend((0..4).map(|part| (10 + part, 4096)));
    Ok(())
}

fn volume_on(memory: &Arc<MemoryDevice>) -> Result<(Volume, FaultHandle)> {
    let device = Arc::new(FaultDevice::new(memory.clone()));
    let handle = device.handle();
    Ok((Volume::open_device(device, VolumeOptions::read_write())?, handle))
}

fn check(device: Arc<MemoryDevice>, acknowledged: &Acknowledged, what: &str) {
    let volume = open_rw(device);
    let bytes = read_all(&volume.open_file(FILE, read_only()).unwrap());
    let mut pos = 16_384;
    for (number, length) in acknowledged {
        let wanted = patterned(*number, pos as u64, *length);
        assert!(bytes[pos..pos + length] == *wanted, "{what}: pattern {number} at byte {pos} is lost");
        pos += length;
    }
    volume.close().unwrap();
}

fn is_typed(error: &Error) -> bool {
    matches!(error, Error::Io(_) | Error::MetadataIo { .. } | Error::Aborted(_) | Error::Journal(_))
}

#[test]
fn a_fault_at_any_operation_loses_nothing_acknowledged() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    within(Duration::from_secs(300), || {
        let image = sample_with(1024, &[]);
        let memory = || image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
        let scratch = Scratch::new(64 << 20);
        let path = scratch.file("after.img");
        let (volume, handle) = volume_on(&memory()).unwrap();
        let before = handle.requests();
        scenario(&volume, &mut Vec::new()).unwrap();
        volume.close().unwrap();
        let all = handle.requests() - before;
        assert!(all > 60, "{all} operations");
        let (mut failed, mut aborted) = (0, 0);
        for for_good in [false, true] {
            for n in 1..=all {
                let memory = memory();
                let (volume, handle) = volume_on(&memory).unwrap();
                let times = if for_good { u64::MAX } else { 1 };
                handle.arm(Fault { times, ..Fault::nth(FaultOn::Any, n) });
                let mut acknowledged = Vec::new();
                let outcome = scenario(&volume, &mut acknowledged);
                let what = format!("operation {n}, for good: {for_good}: {outcome:?}");
                if let Err(error) = &outcome {
                    assert!(is_typed(error), "{what}");
                    failed += 1;
                }
                match volume.close() {
                    Ok(()) => {}
                    Err(error) => {
                        assert!(is_typed(&error), "{what}: {error}");
                        aborted += 1;
                    }
                }
                // As if the process had ended here. Data in the device's cache survives: for power cuts see
                // `crash_allocate`.
                check(memory.clone(), &acknowledged, &what);
                if n % 8 == 0 {
                    Image::of(&*memory).save(&path);
                    oracle::e2fsck_clean(&path);
                }
            }
        }
        println!("{all} operations, {failed} failed, {aborted} aborted");
        assert!(failed > 100 && aborted > 50);
    });
}

/// The blocks of a failed write were only claimed for it: there is a hole again, and as much room as before.
#[test]
fn a_failed_write_into_a_hole_leaves_the_hole() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = sample_with(1024, &[]);
    let memory = image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
    let (volume, handle) = volume_on(&memory).unwrap();
    let file = volume.open_file(FILE, read_write()).unwrap();
    let state_at = |pos: u64| {
        let piece = file.map().map(Result::unwrap).find(|piece| piece.logical <= pos && pos < piece.end());
        piece.unwrap().state
    };
    let (hole, room) = (100 << 10, volume.statfs().unwrap());
    assert_eq!(state_at(hole), State::Hole);
    for queued in [false, true] {
        handle.arm(Fault::nth(FaultOn::Op(Op::Write), 1));
        let failed = match queued {
            false => file.write_at(&patterned(1, hole, 4096), hole).map(drop),
            true => {
                let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
                let slot = queue.attach(&file).unwrap();
                queue.write(slot, hole, queue.buffer(4096).unwrap(), WriteFlags::empty(), 0).unwrap();
                let done = queue.wait(1).unwrap().next().unwrap();
                done.result.map(drop).map_err(|error| *error)
            }
        };
        assert!(failed.is_err(), "queued: {queued}");
        assert_eq!(state_at(hole), State::Hole, "queued: {queued}");
        assert_eq!(volume.statfs().unwrap(), room, "queued: {queued}");
        assert_eq!(volume.reserved_space(), ReservedSpace::default(), "queued: {queued}");
    }
    handle.clear();
    file.write_at(&patterned(1, hole, 4096), hole).unwrap();
    assert_eq!(state_at(hole), State::Written);
    drop(file);
    volume.close().unwrap();
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("after.img");
    Image::of(&*memory).save(&path);
    oracle::e2fsck_clean(&path);
}
