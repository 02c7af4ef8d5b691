//! A device that fails at the n-th request, for every n of a scenario: typed errors, nothing stays in flight,
//! nothing hangs, and a broken durability promise aborts the volume for good.

use crate::common;

use common::sample::{FRAG_SIZE, expected, sample};
use common::{aligned, assert_same_bytes, patterned, read_all, read_only, read_write, within};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::MemoryDevice;
use uext4::device::Op;
use uext4::{Counter, Error, File, QueueOptions, Result, Switches, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultHandle, FaultOn};

const LIMIT: Duration = Duration::from_secs(60);
const EIO: i32 = 5;

fn memory() -> Arc<MemoryDevice> {
    sample().device_with(|options| options.volatile_cache = true)
}

fn volume_on(memory: Arc<MemoryDevice>, switches: Switches) -> Result<(Volume, FaultHandle)> {
    let device = Arc::new(FaultDevice::new(memory));
    let handle = device.handle();
    Ok((Volume::open_device(device, VolumeOptions::read_write().switches(switches))?, handle))
}

/// Stats, reads, overwrites and syncs by every route, and stops at the first error.
fn scenario(volume: &Volume) -> Result<()> {
    for entry in volume.read_dir("/dir")? {
        entry?;
    }
    volume.metadata("/up")?;
    let file = volume.open_file("/frag", read_write())?;
    let mut buffer = aligned(FRAG_SIZE as usize);
    file.read_at(&mut buffer[..4096], 0)?;
    file.read_at(&mut buffer, 0)?;
    file.read_any_at(&mut buffer[1..5001], 777)?;
    file.write_at(&buffer[..8192], 0)?;
    file.write_at_with(&buffer[..4096], 8192, WriteFlags::DSYNC)?;
    file.write_at_with(&buffer[..512], 512, WriteFlags::SYNC)?;
    file.write_any_at(&buffer[1..5001], 777, WriteFlags::DSYNC)?;
    queued(volume, &file)?;
    file.sync_data()?;
    file.sync_all()
}

/// Many concurrent requests; returns the first failure among them, after all are reaped.
fn queued(volume: &Volume, file: &File) -> Result<()> {
    let mut queue = volume.queue(QueueOptions::depth(16))?;
    let slot = queue.attach(file)?;
    let mut result = Ok(());
    let mut expected = 0;
    let mut note = |sent: Result<()>| match sent {
        Ok(()) => expected += 1,
        Err(error) => result = Err(error),
    };
    note(queue.read(slot, 0, queue.buffer(4096)?, 0));
    note(queue.read(slot, 0, queue.buffer(65_536)?, 1));
    note(queue.write(slot, 4096, queue.buffer(4096)?, WriteFlags::empty(), 2));
    note(queue.write(slot, 4096, queue.buffer(4096)?, WriteFlags::DSYNC, 3));
    note(queue.write(slot, 65_536, queue.buffer(65_536)?, WriteFlags::DSYNC, 4));
    note(queue.write(slot, 65_536, queue.buffer(65_536)?, WriteFlags::SYNC, 5));
    note(queue.write(slot, 1024, queue.buffer(512)?, WriteFlags::SYNC, 6));
    let pieces = vec![queue.buffer(512)?, queue.buffer(4096)?];
    note(queue.writev(slot, 131_072, pieces, WriteFlags::empty(), 7));
    note(queue.sync_data(slot, 8));
    let mut seen = 0;
    while seen < expected {
        for done in queue.wait(1)? {
            seen += 1;
            if let Err(error) = done.result {
                result = Err(*error);
            }
        }
    }
    assert_eq!(queue.pending(), 0);
    result
}

/// Once the device works again: if the volume is not aborted, drains pass and everything works; if it is, every call on
/// any file that writes or promises durability reports that, and reads still work.
fn aftermath(volume: &Volume, first: &Error, aborting: bool) {
    let file = volume.open_file("/data", read_write()).unwrap();
    // An exclusive request drains the scenario's file: it ends only if nothing stayed in flight.
    let frag = volume.open_file("/frag", read_write()).unwrap();
    let drained = frag.write_any_at(&[1, 2, 3], 5, WriteFlags::empty());
    if !aborting {
        assert_eq!(drained.unwrap(), 3, "after {first}");
        scenario(volume).unwrap_or_else(|error| panic!("after {first}: {error}"));
        return;
    }
    let memory = aligned(512);
    let errors = [
        drained.map(|_| ()).unwrap_err(),
        file.write_at(&memory, 0).unwrap_err(),
        file.write_at_with(&memory, 0, WriteFlags::DSYNC).unwrap_err(),
        file.sync_data().unwrap_err(),
        frag.sync_all().unwrap_err(),
        volume.sync_files(&[&file]).unwrap_err(),
        queued(volume, &file).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, Error::Aborted(cause) if cause.contains("failed")), "{error}");
        assert_eq!(error.errno(), EIO);
    }
    still_readable(volume);
}

/// An aborted volume is read-only: every way of reading works.
fn still_readable(volume: &Volume) {
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    for name in ["/data", "/frag"] {
        let file = volume.open_file(name, read_only()).unwrap();
        let mut direct = aligned(4096);
        assert_eq!(file.read_at(&mut direct, 0).unwrap(), 4096);
        let mut any = [0; 777];
        assert_eq!(file.read_any_at(&mut any, 5).unwrap(), 777);
        assert_same_bytes(&direct[5..782], &any);
        let slot = queue.attach(&file).unwrap();
        queue.read(slot, 0, queue.buffer(4096).unwrap(), 1).unwrap();
        queue.readv(slot, 0, vec![queue.buffer(512).unwrap(), queue.buffer(4096).unwrap()], 2).unwrap();
        let mut done = 0;
        while done < 2 {
            for completion in queue.wait(1).unwrap() {
                done += 1;
                completion.result.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }
}

/// How often the scenario failed, and how often that aborted the volume.
fn every_request_once(on: FaultOn, action: FaultAction, switches: Switches) -> (u64, u64) {
    let (volume, handle) = volume_on(memory(), switches).unwrap();
    scenario(&volume).unwrap();
    let most = handle.requests();
    drop(volume);
    let (mut failures, mut aborts) = (0, 0);
    for n in 1..=most {
        // Use a fresh copy: an abort is recorded in the log, and the next open would write because of it.
        let device = Arc::new(FaultDevice::new(memory()));
        let handle = device.handle();
        handle.arm(Fault { action, ..Fault::nth(on, n) });
        let opened = Volume::open_device(device, VolumeOptions::read_write().switches(switches));
        let mut fired = 0;
        let result = opened.and_then(|volume| {
            scenario(&volume)
                .map(|()| {
                    // A failure during the drop is reported only to a caller that closes the volume.
                    fired = handle.fired();
                    handle.clear();
                })
                .map_err(|error| (error, volume))
                .map_or_else(
                    |(error, volume)| {
                        handle.clear();
                        let aborting = volume
                            .open_file("/data", read_only())
                            .is_ok_and(|file| matches!(file.sync_data(), Err(Error::Aborted(_))));
                        aborts += u64::from(aborting);
                        aftermath(&volume, &error, aborting);
                        Err(error)
                    },
                    Ok,
                )
        });
        match result {
            Ok(()) => assert_eq!(fired, 0, "request {n} failed and nobody was told"),
            Err(error) => {
                failures += 1;
                assert_eq!(handle.fired(), 1);
                let io = matches!(error, Error::Io(_) | Error::MetadataIo { .. } | Error::Aborted(_));
                assert!(io && error.errno() == EIO, "request {n}: {error:?}");
            }
        }
    }
    (failures, aborts)
}

#[test]
fn a_failed_request_is_a_typed_error_wherever_it_falls() {
    within(LIMIT, || {
        for switches in [Switches::ON, Switches::OFF] {
            let (failures, aborts) = every_request_once(FaultOn::Any, FaultAction::Errno(EIO), switches);
            assert!(
                failures > 60 && aborts > 2 && aborts < failures / 2,
                "{failures} failed, {aborts} aborted"
            );
        }
    });
}

#[test]
fn a_short_transfer_is_an_error_wherever_it_falls() {
    within(LIMIT, || {
        for kept in [0, 512] {
            let action = FaultAction::Short(kept);
            let (failures, _) = every_request_once(FaultOn::Op(Op::Read), action, Switches::ON);
            assert!(failures > 20, "{failures}");
            let (failures, _) = every_request_once(FaultOn::Op(Op::Write), action, Switches::ON);
            assert!(failures > 10, "{failures}");
        }
    });
}

#[test]
fn a_failed_flush_or_fua_write_aborts_the_volume_and_a_plain_one_does_not() {
    within(LIMIT, || {
        for (on, switches) in [(FaultOn::Op(Op::Flush), Switches::OFF), (FaultOn::FuaWrite, Switches::ON)] {
            let (failures, aborts) = every_request_once(on, FaultAction::Errno(EIO), switches);
            // A failed flush before anything is written fails the open: there is nothing to abort yet.
            let opening = u64::from(matches!(on, FaultOn::Op(Op::Flush)));
            assert!(
                failures >= 3 + opening && failures == aborts + opening,
                "{on:?}: {failures} failed, {aborts} aborted"
            );
        }
        let (volume, handle) = volume_on(memory(), Switches::ON).unwrap();
        let file = volume.open_file("/data", read_write()).unwrap();
        handle.arm(Fault::nth(FaultOn::Op(Op::Write), 1));
        assert!(matches!(file.write_at(&aligned(4096), 0), Err(Error::Io(_))));
        file.write_at(&aligned(4096), 0).unwrap();
        file.sync_all().unwrap();
    });
}

/// Parts that complete in one batch: a failure of the last one counts as much as one of the first.
#[test]
fn the_failure_of_any_part_fails_the_request() {
    within(LIMIT, || {
        let (volume, handle) = volume_on(memory(), Switches::ON).unwrap();
        let file = volume.open_file("/frag", read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(128)).unwrap();
        let slot = queue.attach(&file).unwrap();
        let parts = file.map().count() as u64;
        assert!((3..128).contains(&parts));
        let contents = read_all(&file);
        for n in 1..=parts {
            for flags in [None, Some(WriteFlags::empty()), Some(WriteFlags::SYNC)] {
                let mut buffer = queue.buffer(FRAG_SIZE as usize).unwrap();
                buffer.copy_from_slice(&contents);
                let id = handle.arm(Fault::nth(FaultOn::Any, n));
                match flags {
                    None => queue.read(slot, 0, buffer, n).unwrap(),
                    Some(flags) => queue.write(slot, 0, buffer, flags, n).unwrap(),
                }
                let results: Vec<_> = queue.wait(1).unwrap().map(|done| done.result).collect();
                assert_eq!(results.len(), 1);
                let error = results[0].as_ref().unwrap_err();
                assert!(matches!(**error, Error::Io(_)), "part {n} of {parts}: {error}");
                handle.disarm(id);
            }
        }
        file.write_any_at(&contents[..3], 0, WriteFlags::empty()).unwrap();
        assert_same_bytes(&expected("/frag"), &read_all(&file));
    });
}

/// The abort reaches requests in flight: durable ones of the same batch must not report success.
#[test]
fn durable_requests_beside_a_failed_one_fail_as_well() {
    for volatile_cache in [true, false] {
        within(LIMIT, move || {
            let memory = sample().device_with(|options| options.volatile_cache = volatile_cache);
            let (volume, handle) = volume_on(memory, Switches::ON).unwrap();
            let file = volume.open_file("/data", read_write()).unwrap();
            let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
            let slot = queue.attach(&file).unwrap();
            file.read_at(&mut aligned(512), 0).unwrap();
            handle.arm(Fault::nth(FaultOn::FuaWrite, 1));
            let buffer = |queue: &uext4::IoQueue| queue.buffer(4096).unwrap();
            queue.write(slot, 0, buffer(&queue), WriteFlags::DSYNC, 1).unwrap();
            queue.write(slot, 4096, buffer(&queue), WriteFlags::SYNC, 2).unwrap();
            queue.sync_data(slot, 3).unwrap();
            let mut results: Vec<(u64, Result<usize>)> = Vec::new();
            while results.len() < 3 {
                results.extend(
                    queue.wait(1).unwrap().map(|done| (done.tag, done.result.map_err(|error| *error))),
                );
            }
            for (tag, result) in results {
                assert!(result.is_err(), "request {tag} was acknowledged after the volume was aborted");
            }
        });
    }
}

/// Queued requests by every route, all of which must succeed; then checks the written data.
fn queued_requests_all_succeed(volume: &Volume, file: &File, fill: u8) {
    queued(volume, file).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(16)).unwrap();
    let slot = queue.attach(file).unwrap();
    for (tag, (pos, length)) in [(0, 4096), (65_536, 65_536)].into_iter().enumerate() {
        for flags in [WriteFlags::empty(), WriteFlags::DSYNC] {
            let mut buffer = queue.buffer(length).unwrap();
            buffer.fill(fill);
            queue.write(slot, pos, buffer, flags, tag as u64).unwrap();
            assert_eq!(queue.wait(1).unwrap().next().unwrap().result.unwrap(), length);
        }
        queue.read(slot, pos, queue.buffer(length).unwrap(), tag as u64).unwrap();
        let done = queue.wait(1).unwrap().next().unwrap();
        assert!(done.into_buffer().unwrap().iter().all(|&byte| byte == fill));
    }
}

/// A request that the device defers is sent again: no error is reported, and nothing is aborted.
#[test]
fn queued_requests_that_are_put_off_are_sent_again() {
    const TRANSIENT: [i32; 3] = [4, 11, 125]; // EINTR, EAGAIN, ECANCELED
    within(LIMIT, || {
        let (volume, handle) = volume_on(memory(), Switches::ON).unwrap();
        let file = volume.open_file("/frag", read_write()).unwrap();
        // With the maps loaded, the only reads are those of the queue.
        read_all(&file);
        for (round, errno) in TRANSIENT.into_iter().enumerate() {
            for on in [FaultOn::Op(Op::Read), FaultOn::Op(Op::Write), FaultOn::FuaWrite] {
                for after in 0..4 {
                    let before = handle.fired();
                    let id = handle.arm(Fault {
                        on,
                        range: None,
                        after,
                        times: 6,
                        action: FaultAction::Errno(errno),
                    });
                    queued_requests_all_succeed(&volume, &file, round as u8 + 1);
                    assert_eq!(handle.fired() - before, 6, "{on:?} {errno} after {after}");
                    handle.disarm(id);
                }
            }
        }
        // Every request has left the gate, once.
        file.write_any_at(&[1, 2, 3], 5, WriteFlags::DSYNC).unwrap();
    });
}

#[test]
fn requests_that_are_put_off_for_ever_fail_with_a_typed_error() {
    within(LIMIT, || {
        for (durable, length) in [(false, 4096), (false, 65_536), (true, 4096)] {
            let (volume, handle) = volume_on(memory(), Switches::ON).unwrap();
            let file = volume.open_file("/frag", read_write()).unwrap();
            read_all(&file);
            let mut queue = volume.queue(QueueOptions::depth(16)).unwrap();
            let slot = queue.attach(&file).unwrap();
            let on = FaultOn::Op(if durable { Op::Write } else { Op::Read });
            handle.arm(Fault { times: u64::MAX, action: FaultAction::Errno(11), ..Fault::nth(on, 1) });
            let buffer = queue.buffer(length).unwrap();
            if durable {
                queue.write(slot, 0, buffer, WriteFlags::DSYNC, 1).unwrap();
            } else {
                queue.read(slot, 0, buffer, 1).unwrap();
            }
            let done = queue.wait(1).unwrap().next().unwrap();
            let error = *done.result.unwrap_err();
            assert!(error.to_string().contains("gave up after"), "{error}");
            assert_eq!(error.errno(), EIO);
            assert!(handle.fired() > 8);
            assert_eq!(queue.pending(), 0);
            handle.clear();
            // As after every other failure: a broken promise of durability aborts the volume.
            assert_eq!(file.sync_data().is_err(), durable);
        }
    });
}

#[test]
fn a_failed_metadata_read_names_its_block_and_is_not_remembered() {
    let (volume, handle) = volume_on(memory(), Switches::ON).unwrap();
    handle.arm(Fault::nth(FaultOn::Op(Op::Read), 1));
    let error = volume.metadata("/data").unwrap_err();
    assert!(matches!(error, Error::MetadataIo { .. }) && error.block().is_some(), "{error:?}");
    assert_eq!(volume.metadata("/data").unwrap().size, 1 << 20);
    let file = volume.open_file("/data", read_only()).unwrap();
    assert_same_bytes(&patterned(common::sample::DATA, 0, 1 << 20), &read_all(&file));
}

/// Requests of two files complete alternately in one batch, some of them failing, with one file detached meanwhile:
/// each leaves its own file's gate exactly once (or a drain would wait forever), is counted once, and frees its file's
/// place.
#[test]
fn completions_of_several_files_in_one_batch_are_counted_apart() {
    let (volume, faults) = volume_on(memory(), Switches::ON).unwrap();
    let files = ["/frag", "/data"].map(|path| volume.open_file(path, read_write()).unwrap());
    // With their maps loaded, the only reads are those below.
    files.iter().for_each(|file| drop(read_all(file)));
    for failing in 0..8 {
        let before = volume.stats();
        let mut queue = volume.queue(QueueOptions::depth(16)).unwrap();
        let slots = files.each_ref().map(|file| queue.attach(file).unwrap());
        // Failed reads do not abort the volume.
        faults.clear();
        faults.arm(Fault::nth(FaultOn::Op(Op::Read), failing / 2 + 1));
        for tag in 0..8u64 {
            let slot = slots[tag as usize / (1 + failing as usize % 2) % 2];
            let buffer = queue.buffer(4096).unwrap();
            if tag % 2 == 0 {
                queue.read(slot, 0, buffer, tag).unwrap();
            } else {
                queue.write(slot, 0, buffer, WriteFlags::empty(), tag).unwrap();
            }
        }
        queue.submit().unwrap();
        queue.detach(slots[0]).unwrap();
        let done: Vec<_> = queue.wait(8).unwrap().map(|done| (done.tag, done.result.is_err())).collect();
        assert_eq!((done.len(), done.iter().filter(|(_, failed)| *failed).count()), (8, 1), "{done:?}");
        let counted = volume.stats().since(&before);
        let routes = [Counter::SimpleReads, Counter::OverwritesWithoutHandle, Counter::DioCounted];
        assert_eq!(routes.map(|route| counted.get(route)), [4, 4, 8], "failing {failing}");
        let again = queue.attach(&files[0]).unwrap();
        assert!(common::same_place(again, slots[0]), "the place of the detached file is free");
        for file in files.clone() {
            // A write of single bytes drains.
            within(LIMIT, move || file.write_any_at(&[1], 1, WriteFlags::empty()).unwrap());
        }
        // The slots are all free again.
        for tag in 0..16 {
            queue.read(slots[1], 0, queue.buffer(4096).unwrap(), tag).unwrap();
        }
        let error = queue.read(slots[1], 0, queue.buffer(4096).unwrap(), 16).unwrap_err();
        assert!(error.to_string().contains("queue is full"), "{error}");
        assert_eq!(queue.wait(16).unwrap().count(), 16);
    }
}
