//! One file of the host into a volume.

use crate::error::{Cause, Error, Result};
use rustix::fs::SeekFrom;
use std::fs::File as HostFile;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use uext4::explain::Query;
use uext4::plan::Sync;
use uext4::{Buffer, BufferPool, File, OpenOptions, Volume, WriteFlags};

/// Bytes that are copied at once.
const STEP: usize = 1 << 20;

/// Copies the file `source` of the host into `volume`, as `dest`: its contents and, if the file is new, its permissions
/// without set-user-id, set-group-id and sticky bits. A new file belongs to user and group `owner`. Holes stay holes,
/// but for the last block of a file that ends in one. A pipe or a device is read to its end. `advance` is told of each
/// part, in bytes. Returns the size in bytes.
///
/// Durable after the next sync or [`Volume::close`]. If it fails half-way, a new file is removed; one that was there
/// is left as far as it came.
///
/// # Errors
/// About the host: that of opening and reading `source`, which must not be a directory. About the volume, with an empty
/// path: that of making and writing `dest`, which is left alone if it cannot be filled again.
pub fn import(
    source: &Path,
    volume: &Volume,
    dest: &Path,
    owner: (u32, u32),
    advance: &mut dyn FnMut(u64),
) -> Result<u64> {
    let refused = |action, error: io::Error| Error::refused(source, action, error);
    let host = HostFile::open(source).map_err(|error| refused("open", error))?;
    let metadata = host.metadata().map_err(|error| refused("stat", error))?;
    if metadata.is_dir() {
        return Err(refused("copy", io::Error::from_raw_os_error(libc::EISDIR)));
    }
    let size = metadata.is_file().then_some(metadata.len());
    fill(volume, dest, metadata.mode(), owner, &mut |file| match size {
        Some(size) => pour(source, &host, file, size, advance).map(|()| size),
        None => drain(source, &host, file, advance),
    })
}

/// As [`import`], from a descriptor that is open, read from where it stands to its end. `name` is what errors call it,
/// `mode` has the permissions of a new file.
///
/// # Errors
/// As [`import`].
pub fn import_stream(
    name: &Path,
    from: &HostFile,
    mode: u32,
    volume: &Volume,
    dest: &Path,
    owner: (u32, u32),
    advance: &mut dyn FnMut(u64),
) -> Result<u64> {
    fill(volume, dest, mode, owner, &mut |file| drain(name, from, file, advance))
}

/// Makes or empties `dest` and fills it; a new file that cannot be filled is removed. Returns what `fill` returns.
fn fill(
    volume: &Volume,
    dest: &Path,
    mode: u32,
    owner: (u32, u32),
    fill: &mut dyn FnMut(&File) -> Result<u64>,
) -> Result<u64> {
    let options = OpenOptions::new().write(true).mode(mode & 0o777).owner(owner.0, owner.1);
    let (opened, is_new) = match volume.open_file(dest, options.clone().create_new(true)) {
        Err(uext4::Error::Exists) => (volume.open_file(dest, options).and_then(emptied), false),
        other => (other, true),
    };
    let file = opened.map_err(answer)?;
    let filled = fill(&file);
    drop(file);
    if filled.is_err() && is_new {
        // What went wrong first is told.
        let _second = volume.remove_file(dest);
    }
    filled
}

/// The same file with nothing in it, unless it could not be filled again.
fn emptied(file: File) -> uext4::Result<File> {
    let query = Query { write: true, pos: file.size(), length: 1, sync: Sync::None, queued: false };
    match file.explain(&query)?.refused {
        Some(feature) => Err(uext4::Error::Incompatible { action: "fill again", feature }),
        None => file.set_len(0).map(|()| file),
    }
}

fn answer(error: uext4::Error) -> Error {
    Error::source(b"", Cause::Volume(error))
}

/// Memory of one step.
fn memory() -> Result<Buffer> {
    BufferPool::new(STEP).and_then(|pool| pool.take(STEP)).map_err(|error| answer(error.into()))
}

/// Copies whatever comes, to its end. Whole steps are written, so that a pipe's small pieces make no small writes.
fn drain(name: &Path, from: &HostFile, file: &File, advance: &mut dyn FnMut(u64)) -> Result<u64> {
    let mut buffer = memory()?;
    let (mut from, mut pos) = (from, 0);
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match from.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::refused(name, "read", error)),
            }
        }
        if filled > 0 {
            file.write_any_at(&buffer[..filled], pos, WriteFlags::empty()).map_err(answer)?;
        }
        pos += filled as u64;
        advance(filled as u64);
        if filled < buffer.len() {
            return Ok(pos);
        }
    }
}

/// Copies all that is no hole.
fn pour(source: &Path, host: &HostFile, file: &File, size: u64, advance: &mut dyn FnMut(u64)) -> Result<()> {
    let mut buffer = memory()?;
    let mut pos = 0;
    while let Some((start, end)) = next_data(host, pos, size) {
        advance(start - pos);
        pos = start;
        while pos < end {
            let part = buffer.len().min((end - pos) as usize);
            let part = &mut buffer[..part];
            let read = host.read_at(part, pos).map_err(|error| Error::refused(source, "read", error))?;
            if read == 0 {
                return Err(Error::host(source, Cause::ShortRead { pos, read: 0, length: end - pos }));
            }
            file.write_any_at(&part[..read], pos, WriteFlags::empty()).map_err(answer)?;
            pos += read as u64;
            advance(read as u64);
        }
    }
    if file.size() < size {
        file.write_any_at(&[0], size - 1, WriteFlags::empty()).map_err(answer)?;
    }
    advance(size.saturating_sub(pos));
    Ok(())
}

/// The next range with data, in bytes. A host that knows no holes has one range.
fn next_data(host: &HostFile, pos: u64, size: u64) -> Option<(u64, u64)> {
    if pos >= size {
        return None;
    }
    let start = match rustix::fs::seek(host, SeekFrom::Data(pos)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return None,
        Err(_) => pos,
    };
    let end = rustix::fs::seek(host, SeekFrom::Hole(start)).unwrap_or(size);
    (start < size).then_some((start, end.min(size)))
}
