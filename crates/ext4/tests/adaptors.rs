//! The library in programs that use `std::io`: errors, and files with a position.

use crate::common;

use common::sample::{DATA_SIZE, TAIL_SIZE, VOLUME_SIZE, expected, not_left_cleanly, sample};
use common::{
    Image, assert_same_bytes, assert_unchanged, open_ro, open_rw, patterned, read_only, read_write,
};
use common::{read_all, within};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::CountingDevice;
use uext4::device::Op;
use uext4::{Error, OpenOptions, Volume, VolumeOptions};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn};
use uext4_testkit::{Need, Scratch, needs, oracle};

/// The library's error inside a std error.
#[track_caller]
fn inner(error: &io::Error) -> &Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner.unwrap_or_else(|| panic!("carries no error of the library: {error:?}"))
}

#[test]
fn positions_end_where_the_kernels_do() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = open_rw(sample().device());
    let mut cursor = volume.open_file("/tail", read_write()).unwrap().cursor();
    let far = i64::MAX as u64;
    for to in [SeekFrom::Start(far + 1), SeekFrom::Start(u64::MAX), SeekFrom::Current(-1)] {
        let error = cursor.seek(to).unwrap_err();
        assert_eq!((error.kind(), inner(&error).errno()), (ErrorKind::InvalidInput, 22), "{to:?}");
        assert_eq!(cursor.stream_position().unwrap(), 0, "{to:?}: a seek that failed moves nothing");
    }
    assert!(cursor.seek(SeekFrom::End(-(TAIL_SIZE as i64) - 1)).is_err());
    assert!(cursor.seek(SeekFrom::End(i64::MAX)).is_err(), "the end and the most behind it");
    // A position past the end is valid: reads there return nothing.
    let mut buf = [7; 1000];
    for pos in [TAIL_SIZE, TAIL_SIZE + 1, 1 << 40, far - 999, far - 5, far] {
        assert_eq!(cursor.seek(SeekFrom::Start(pos)).unwrap(), pos);
        assert_eq!(cursor.read(&mut buf).unwrap(), 0, "at {pos}");
        assert_eq!(cursor.stream_position().unwrap(), pos);
        let mut bytes = Vec::new();
        assert_eq!(cursor.read_to_end(&mut bytes).unwrap(), 0, "at {pos}");
    }
    assert_eq!(buf, [7; 1000]);
}

/// How a program sees errors that knows only `std::io`.
fn in_std(volume: &Volume, path: &str, write: bool) -> io::Result<u64> {
    let options = OpenOptions::new().read(true).write(write);
    let file = volume.open_file(path, options)?;
    io::copy(&mut file.cursor(), &mut io::sink())
}

#[test]
fn errors_become_those_of_std_and_stay_what_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = open_rw(sample().device());
    assert_eq!(in_std(&volume, "/data", true).unwrap(), DATA_SIZE);
    let seen = [
        (in_std(&volume, "/missing", false).unwrap_err(), ErrorKind::NotFound, 2),
        (in_std(&volume, "/data/x", false).unwrap_err(), ErrorKind::NotADirectory, 20),
        (in_std(&volume, "/dir", false).unwrap_err(), ErrorKind::IsADirectory, 21),
        (in_std(&volume, "/immutable", true).unwrap_err(), ErrorKind::PermissionDenied, 1),
        (in_std(&volume, &"x".repeat(256), false).unwrap_err(), ErrorKind::InvalidFilename, 36),
        (Error::Exists.into(), ErrorKind::AlreadyExists, 17),
        (Error::ReadOnly("the device").into(), ErrorKind::ReadOnlyFilesystem, 30),
        (Error::InUse("loop0".into()).into(), ErrorKind::ResourceBusy, 16),
        (Error::WouldBlock("the queue is full").into(), ErrorKind::WouldBlock, 11),
        (Error::NeedsRecovery("it".into()).into(), ErrorKind::InvalidData, 117),
        (Error::TooLarge { size: 2, most: 1 }.into(), ErrorKind::FileTooLarge, 7),
    ];
    for (error, kind, errno) in seen {
        assert_eq!((error.kind(), inner(&error).errno()), (kind, errno), "{error:?}");
        assert_eq!(error.to_string(), inner(&error).to_string());
        assert!(error.downcast::<Error>().is_ok(), "the error itself comes out again");
    }
    // std has no stable name for these kinds: compare with std's own conversion of the errno.
    let loops = in_std(&volume, "/loop", false).unwrap_err();
    assert_eq!((loops.kind(), inner(&loops).errno()), (io::Error::from_raw_os_error(40).kind(), 40));
    let mode = volume.open_file("/data", read_only()).unwrap().cursor().write(b"x").unwrap_err();
    assert_eq!((mode.kind(), inner(&mode).errno()), (io::Error::from_raw_os_error(9).kind(), 9));
}

#[test]
fn an_interrupted_device_does_not_hold_std_for_ever() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let device = Arc::new(FaultDevice::new(sample().device()));
    let faults = device.handle();
    let volume = Volume::open_device(device, VolumeOptions::read_only()).unwrap();
    let mut cursor = volume.open_file("/tail", read_only()).unwrap().cursor();
    cursor.read_exact(&mut [0; 100]).unwrap();
    let action = FaultAction::Errno(4);
    faults.arm(Fault { on: FaultOn::Op(Op::Read), range: None, after: 0, times: u64::MAX, action });
    let error = within(Duration::from_secs(20), move || cursor.read_exact(&mut [0; 100]).unwrap_err());
    assert_eq!(inner(&error).errno(), 4, "{error}");
    assert_ne!(error.kind(), ErrorKind::Interrupted);
}

#[test]
fn lines_are_read_and_blocks_rewritten_through_std() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let device = sample().device();
    let volume = open_rw(device.clone());
    let lines = BufReader::new(volume.open_file("/dir/file-07", read_only()).unwrap().cursor()).lines();
    assert_eq!(lines.map(Result::unwrap).collect::<Vec<_>>(), ["number 7"]);

    let file = volume.open_file("/data", read_write()).unwrap();
    let mut model = expected("/data");
    let mut writer = BufWriter::with_capacity(1000, file.cursor());
    writer.seek(SeekFrom::Start(4095)).unwrap();
    for number in 0..3000 {
        writeln!(writer, "{number}").unwrap();
    }
    let text: String = (0..3000).map(|number| format!("{number}\n")).collect();
    model[4095..][..text.len()].copy_from_slice(text.as_bytes());
    let mut cursor = writer.into_inner().unwrap();
    assert_eq!(cursor.position(), 4095 + text.len() as u64);
    // A clone moves on its own, and a cursor knows its file.
    let mut other = cursor.clone();
    cursor.rewind().unwrap();
    assert_eq!(other.stream_position().unwrap(), 4095 + text.len() as u64);
    let patch = patterned(77, 0, 5000);
    other.seek(SeekFrom::End(-5000)).unwrap();
    other.write_all(&patch).unwrap();
    model[DATA_SIZE as usize - 5000..].copy_from_slice(&patch);
    let mut back = Vec::new();
    cursor.read_to_end(&mut back).unwrap();
    assert_same_bytes(&model, &back);
    cursor.file().sync_all().unwrap();
    drop((file, cursor, other, volume));

    let scratch = Scratch::new(2 * VOLUME_SIZE);
    let path = scratch.file("after.img");
    Image::of(&*device).save(&path);
    oracle::e2fsck_clean(&path);
    let dumped = scratch.file("data");
    oracle::debugfs(&path, &format!("dump /data {}", dumped.display()));
    assert_same_bytes(&model, &std::fs::read(dumped).unwrap());
}

#[test]
fn what_cannot_be_overwritten_is_refused_whole_and_moves_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    // A volume without a journal that was not unmounted cleanly allocates nothing.
    let image = not_left_cleanly();
    let device = image.device();
    let volume = open_rw(device.clone());
    // Across the end, past it, into unwritten blocks, into a hole.
    for (path, pos, length) in [
        ("/tail", TAIL_SIZE - 10, 11),
        ("/tail", TAIL_SIZE, 1),
        ("/tail", i64::MAX as u64 - 1, 1),
        ("/mixed", 16_000, 1000),
        ("/sparse", 4000, 1000),
    ] {
        let mut cursor = volume.open_file(path, read_write()).unwrap().cursor();
        cursor.seek(SeekFrom::Start(pos)).unwrap();
        let error = cursor.write(&vec![1; length]).unwrap_err();
        assert!(matches!(inner(&error), Error::NeedsAllocation(_)), "{path}: {error}");
        assert_eq!((error.kind(), cursor.position()), (ErrorKind::Unsupported, pos), "{path}");
        assert_eq!(cursor.write(&[]).unwrap(), 0, "nothing to write is written");
    }
    // No byte can be written past the largest position.
    let mut cursor = volume.open_file("/tail", read_write()).unwrap().cursor();
    cursor.seek(SeekFrom::Start(i64::MAX as u64)).unwrap();
    assert_eq!(inner(&cursor.write(&[1]).unwrap_err()).errno(), 22);
    assert_unchanged(&image, &*device);
    // Refused because of how the file was opened.
    let mut reader = open_ro(device.clone()).open_file("/data", read_only()).unwrap().cursor();
    assert!(matches!(inner(&reader.write(b"x").unwrap_err()), Error::BadMode("writing")));
    let write_only = OpenOptions::new().write(true);
    let mut writer = volume.open_file("/data", write_only).unwrap().cursor();
    assert!(matches!(inner(&writer.read(&mut [0; 8]).unwrap_err()), Error::BadMode("reading")));
    assert_unchanged(&image, &*device);
}

#[test]
fn flush_has_nothing_to_do_and_syncing_is_for_the_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let counting =
        Arc::new(CountingDevice::new(sample().device_with(|options| options.volatile_cache = true)));
    let counters = counting.counters();
    let volume = Volume::open_device(counting, VolumeOptions::read_write()).unwrap();
    let file = volume.open_file("/tail", read_write()).unwrap();
    let mut cursor = file.cursor();
    counters.take();
    cursor.write_all(&patterned(5, 0, 4096)).unwrap();
    let written = counters.take();
    assert!(written.writes > 0 && written.flushes == 0, "on the device before the call returns: {written:?}");
    cursor.flush().unwrap();
    let flushed = counters.take();
    assert_eq!((flushed.reads, flushed.writes, flushed.flushes), (0, 0, 0));
    cursor.file().sync_data().unwrap();
    assert_eq!(counters.take().flushes, 1);
    assert_same_bytes(&patterned(5, 0, 4096), &read_all(&file)[..4096]);
}
