//! Copies one file of the host into a volume.

use crate::error::{Cause, Error, Result};
use crate::options::{Holes, without_zeros};
use rustix::fs::SeekFrom;
use std::fs::File as HostFile;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use uext4::explain::Query;
use uext4::plan::Sync;
use uext4::{Buffer, BufferPool, File, OpenOptions, Volume, WriteFlags};

/// Bytes copied per step.
const STEP: usize = 1 << 20;

/// What a copy does with an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// Replaces it as a whole, once the last byte is written ([`Volume::replace_file`]): on any failure the old file
    /// stays. The new one has owner, permissions and attributes of the old, and only this name. Until then both take
    /// space.
    Replaced,
    /// Truncates it, after checking that there is room, and writes it again: the same inode, with all its names. A copy
    /// that fails midway, or a crash, leaves part of the new contents.
    InPlace,
}

/// The destination of a copy.
#[derive(Clone, Copy)]
pub struct Dest<'v> {
    /// The volume, open for writing.
    pub volume: &'v Volume,
    /// The file in it.
    pub path: &'v Path,
    /// User and group of a new file.
    pub owner: (u32, u32),
    /// Permissions that a new file does not get.
    pub umask: u32,
    /// What to do with an existing file.
    pub onto: Onto,
    /// Which zeros become holes.
    pub holes: Holes,
}

/// Copies the file `source` of the host to `dest`: its contents and, if the file is new, its permissions less the
/// umask of `dest`, without set-user-id, set-group-id and sticky bits. Holes become what `dest` says. A pipe or a
/// device is read to its end. `advance` is called with the bytes of each part. Returns the size in bytes.
///
/// A new file, or one that replaces another, gets its name once it is complete. Durable after the next sync or
/// [`Volume::close`].
///
/// # Errors
/// For the host: errors of opening and reading `source`, which must not be a directory. For the destination, with an
/// empty path: errors of creating and writing `dest`, which is then unchanged or absent; [`Onto::InPlace`] says what
/// it leaves.
pub fn import(source: &Path, dest: &Dest<'_>, advance: &mut dyn FnMut(u64)) -> Result<u64> {
    let refused = |action, error: io::Error| Error::refused(source, action, error);
    let host = HostFile::open(source).map_err(|error| refused("open", error))?;
    let metadata = host.metadata().map_err(|error| refused("stat", error))?;
    if metadata.is_dir() {
        return Err(Error::host(source, Cause::NotRecursive));
    }
    let size = metadata.is_file().then_some(metadata.len());
    let room = size.map(|size| (&host, size));
    fill(dest, metadata.mode(), room, &mut |file| match size {
        Some(size) => pour(source, &host, file, (size, dest.holes), &mut memory()?, advance),
        None => drain(source, &host, file, dest.holes, advance),
    })
}

/// As [`import`], from an open descriptor, read from its position to its end. `name` is its name in errors, `mode` has
/// the permissions of a new file. The size is unknown, so [`Onto::InPlace`] does not check for room.
///
/// # Errors
/// As [`import`].
pub fn import_stream(
    name: &Path,
    from: &HostFile,
    mode: u32,
    dest: &Dest<'_>,
    advance: &mut dyn FnMut(u64),
) -> Result<u64> {
    fill(dest, mode, None, &mut |file| drain(name, from, file, dest.holes, advance))
}

/// Fills a new file, which then gets its name, or the existing one. Returns the result of `fill`. `room`: the source
/// to check room for, if known.
pub(crate) fn fill(
    dest: &Dest<'_>,
    mode: u32,
    room: Option<(&HostFile, u64)>,
    fill: &mut dyn FnMut(&File) -> Result<u64>,
) -> Result<u64> {
    let Dest { volume, path, owner, umask, onto, holes } = *dest;
    if onto == Onto::InPlace {
        match volume.open_file(path, OpenOptions::new().write(true).direct(true)) {
            Err(uext4::Error::NotFound) => {}
            opened => {
                let file = opened.map_err(answer)?;
                if let Some((host, size)) = room {
                    check_room(volume, &file, host, (size, holes)).map_err(answer)?;
                }
                emptied(&file).map_err(answer)?;
                return fill(&file);
            }
        }
    }
    let options = OpenOptions::new().direct(true).mode(mode & 0o777 & !umask).owner(owner.0, owner.1);
    let new = volume.replace_file(path, options).map_err(answer)?;
    let filled = fill(new.file())?;
    new.finish().map_err(answer)?;
    Ok(filled)
}

/// Truncates the existing file, unless it could not be written again.
fn emptied(file: &File) -> uext4::Result<()> {
    let query = Query { write: true, pos: file.size(), length: 1, sync: Sync::None, queued: false };
    match file.explain(&query)?.refused {
        Some(feature) => Err(uext4::Error::Incompatible { action: "fill again", feature }),
        None => file.set_len(0),
    }
}

/// Minimum blocks mapped by one leaf, unless nearly every block is isolated: to estimate the mapping blocks.
const BLOCKS_OF_LEAF: u64 = 256;

/// Whether the data of a host file fits once this one is truncated: in the free space, and the blocks it frees.
fn check_room(
    volume: &Volume,
    file: &File,
    host: &HostFile,
    (size, holes): (u64, Holes),
) -> uext4::Result<()> {
    let unit = u64::from(volume.block_size()) * u64::from(volume.superblock().geometry.cluster_blocks());
    let (mut pos, mut wanted) = (0, 0);
    while let Some((start, end)) = next(host, pos, size, holes) {
        // Two ranges may touch one unit: it counts once for the first of them.
        let first = (start / unit * unit).max(pos.next_multiple_of(unit));
        wanted += end.next_multiple_of(unit).saturating_sub(first);
        pos = end;
    }
    let block = u64::from(volume.block_size());
    wanted += wanted / block / BLOCKS_OF_LEAF * block;
    let own = file.metadata().blocks * 512;
    let free = volume.statfs()?.available * block;
    if wanted > free.saturating_add(own) { Err(uext4::Error::NoSpace) } else { Ok(()) }
}

/// An error of the destination.
pub(crate) fn answer(error: uext4::Error) -> Error {
    Error::destination(b"", error)
}

/// Memory of one step.
pub(crate) fn memory() -> Result<Buffer> {
    BufferPool::new(STEP).and_then(|pool| pool.take(STEP)).map_err(|error| answer(error.into()))
}

/// Copies a stream to its end. Writes whole steps, so that small reads from a pipe cause no small writes.
pub(crate) fn drain(
    name: &Path,
    from: &HostFile,
    file: &File,
    holes: Holes,
    advance: &mut dyn FnMut(u64),
) -> Result<u64> {
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
            put(file, holes, pos, &buffer[..filled])?;
        }
        pos += filled as u64;
        advance(filled as u64);
        if filled < buffer.len() {
            if file.size() < pos {
                file.set_len(pos).map_err(answer)?;
            }
            return Ok(pos);
        }
    }
}

/// Writes a part of a file that is new or empty.
pub(crate) fn put(file: &File, holes: Holes, pos: u64, bytes: &[u8]) -> Result<()> {
    let unit = if holes == Holes::Zeros { file.metadata().block_size as usize } else { 0 };
    let write = |pos, bytes: &[u8]| file.write_any_at(bytes, pos, WriteFlags::empty()).map(drop);
    without_zeros(holes, unit, pos, bytes, write).map_err(answer)
}

/// Copies a file that says it has `size` bytes through `buffer`, to its end, with its holes as `holes` says. Returns
/// its size in bytes: files of `/proc` say that they have none, those of `/sys` a page, and others grow meanwhile.
pub(crate) fn pour(
    source: &Path,
    host: &HostFile,
    file: &File,
    (size, holes): (u64, Holes),
    buffer: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> Result<u64> {
    let refused = |action, error: io::Error| Error::refused(source, action, error);
    let read = |part: &mut [u8], pos| host.read_at(part, pos).map_err(|error| refused("read", error));
    let mut pos = 0;
    while let Some((start, end)) = next(host, pos, size, holes) {
        advance(start - pos);
        pos = start;
        while pos < end {
            let part = buffer.len().min((end - pos) as usize);
            let got = read(&mut buffer[..part], pos)?;
            if got == 0 {
                if host.metadata().map_err(|error| refused("stat", error))?.len() < size {
                    return Err(Error::host(source, Cause::ShortRead { pos, read: 0, length: end - pos }));
                }
                return ended(file, pos);
            }
            put(file, holes, pos, &buffer[..got])?;
            pos += got as u64;
            advance(got as u64);
        }
    }
    advance(size.saturating_sub(pos));
    pos = size;
    loop {
        let got = read(buffer, pos)?;
        if got == 0 {
            return ended(file, pos);
        }
        put(file, holes, pos, &buffer[..got])?;
        pos += got as u64;
        advance(got as u64);
    }
}

/// Gives the file its last hole, and returns its size.
fn ended(file: &File, size: u64) -> Result<u64> {
    if file.size() < size {
        file.set_len(size).map_err(answer)?;
    }
    Ok(size)
}

/// The next range to copy.
fn next(host: &HostFile, pos: u64, size: u64, holes: Holes) -> Option<(u64, u64)> {
    match holes {
        Holes::None => (pos < size).then_some((pos, size)),
        Holes::Source | Holes::Zeros => next_data(host, pos, size),
    }
}

/// The next range with data, in bytes. A host without hole support has one range.
pub(crate) fn next_data(host: &HostFile, pos: u64, size: u64) -> Option<(u64, u64)> {
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
