//! Files in memory behind the same transports: what is left of a mount's cost when the volume costs nothing. The bench
//! of mounts measures against it.

use crate::reply::{Errno, Outcome};
use crate::request::Request;
use crate::server::{Answer, Serve};
use crate::wire::{
    self, Attr, AttrOut, CreateIn, EntryOut, MkdirIn, OpenIn, OpenOut, ReadIn, SetattrIn, StatfsOut, WriteIn,
    WriteOut, fattr, op,
};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// How long the kernel may keep names and attributes, in seconds.
const VALID: u64 = 3600;
/// Contents are locked in pieces of so many bytes, so that several threads write one file.
const PIECE: usize = 64 << 10;
/// Most bytes of a file: even one without data takes a table of its pieces.
const MOST: u64 = 64 << 30;

fn check_size(size: u64) -> Outcome<()> {
    if size <= MOST { Ok(()) } else { Err(Errno(libc::EFBIG)) }
}

/// A file or a directory.
#[derive(Default)]
struct File {
    mode: u32,
    size: AtomicU64,
    pieces: RwLock<Vec<RwLock<Vec<u8>>>>,
}

/// A flat table of names in directories; nothing has other attributes than type, mode and size.
#[derive(Default)]
pub(crate) struct Memory {
    names: RwLock<HashMap<(u64, Vec<u8>), u64>>,
    files: RwLock<HashMap<u64, Arc<File>>>,
    /// The number of the latest node.
    last: AtomicU64,
}

impl File {
    fn new(mode: u32) -> Arc<File> {
        Arc::new(File { mode, ..File::default() })
    }

    /// Makes the file at least so long.
    fn grow(&self, end: u64) -> Outcome<()> {
        check_size(end)?;
        if end > self.size.load(Ordering::Acquire) {
            let mut pieces = self.pieces.write();
            if end > self.size.load(Ordering::Acquire) {
                pieces.resize_with(end.div_ceil(PIECE as u64) as usize, RwLock::default);
                self.size.store(end, Ordering::Release);
            }
        }
        Ok(())
    }

    fn resize(&self, size: u64) -> Outcome<()> {
        check_size(size)?;
        let mut pieces = self.pieces.write();
        pieces.resize_with(size.div_ceil(PIECE as u64) as usize, RwLock::default);
        if let Some(last) = pieces.get((size / PIECE as u64) as usize) {
            // Bytes past the end must not come back when the file grows.
            last.write().iter_mut().skip(size as usize % PIECE).for_each(|byte| *byte = 0);
        }
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    /// Calls with each piece that holds some of a range, the offset in it, and where the range's bytes for it are.
    fn each(
        &self,
        offset: u64,
        length: usize,
        mut act: impl FnMut(&RwLock<Vec<u8>>, usize, std::ops::Range<usize>),
    ) {
        let pieces = self.pieces.read();
        let mut done = 0;
        while done < length {
            let at = offset as usize + done;
            let (piece, within) = (at / PIECE, at % PIECE);
            let count = (PIECE - within).min(length - done);
            if let Some(piece) = pieces.get(piece) {
                act(piece, within, done..done + count);
            }
            done += count;
        }
    }

    fn read(&self, room: &mut [u8], offset: u64) -> usize {
        let length =
            (self.size.load(Ordering::Acquire).saturating_sub(offset)).min(room.len() as u64) as usize;
        self.each(offset, length, |piece, within, range| {
            let (piece, room) = (piece.read(), &mut room[range]);
            match piece.get(within..within + room.len()) {
                Some(bytes) => room.copy_from_slice(bytes),
                None => room.fill(0),
            }
        });
        length
    }

    fn write(&self, data: &[u8], offset: u64) -> Outcome<()> {
        self.grow(offset.saturating_add(data.len() as u64))?;
        self.each(offset, data.len(), |piece, within, range| {
            let mut piece = piece.write();
            piece.resize(PIECE, 0);
            piece[within..][..range.len()].copy_from_slice(&data[range]);
        });
        Ok(())
    }

    fn attributes(&self, node: u64) -> Attr {
        let size = self.size.load(Ordering::Acquire);
        Attr {
            ino: node,
            size,
            blocks: size / 512,
            mode: self.mode,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        }
    }
}

impl Memory {
    /// An empty root directory.
    pub(crate) fn new() -> Memory {
        let memory = Memory { last: AtomicU64::new(wire::ROOT), ..Memory::default() };
        memory.files.write().insert(wire::ROOT, File::new(libc::S_IFDIR | 0o755));
        memory
    }

    fn file(&self, node: u64) -> Outcome<Arc<File>> {
        self.files.read().get(&node).cloned().ok_or(Errno(libc::ESTALE))
    }

    fn entry(&self, node: u64) -> Outcome<EntryOut> {
        let attr = self.file(node)?.attributes(node);
        Ok(EntryOut { node, entry_valid: VALID, attr_valid: VALID, attr, ..EntryOut::default() })
    }

    fn make(&self, directory: u64, name: &[u8], mode: u32) -> Outcome<EntryOut> {
        let node = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.files.write().insert(node, File::new(mode));
        self.names.write().insert((directory, name.to_vec()), node);
        self.entry(node)
    }

    fn open(&self, node: u64, flags: u32) -> Outcome<OpenOut> {
        let flags = flags as i32;
        if flags & libc::O_TRUNC != 0 {
            self.file(node)?.resize(0)?;
        }
        let open_flags = match flags & libc::O_DIRECT {
            0 => wire::FOPEN_KEEP_CACHE,
            _ => wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES,
        };
        Ok(OpenOut { fh: node, open_flags, padding: 0 })
    }

    fn set_attributes(&self, node: u64, asked: &SetattrIn) -> Outcome<()> {
        if asked.valid & fattr::SIZE != 0 {
            self.file(node)?.resize(asked.size)?;
        }
        Ok(())
    }

    /// A file is gone with its name, even if it is open.
    fn remove(&self, directory: u64, name: &[u8]) -> Outcome<Answer> {
        let removed = self.names.write().remove(&(directory, name.to_vec()));
        let node = removed.ok_or(Errno(libc::ENOENT))?;
        self.files.write().remove(&node);
        Ok(Answer::DONE)
    }
}

impl Serve for Memory {
    fn serve(&self, request: &Request<'_>, memory: &mut [u8]) -> Outcome<Answer> {
        let node = request.header.node;
        let attributes = || -> Outcome<Answer> {
            let attr = self.file(node)?.attributes(node);
            Ok(Answer::of(&AttrOut { attr_valid: VALID, attr_valid_nsec: 0, dummy: 0, attr }))
        };
        match request.header.opcode {
            op::LOOKUP => {
                let found = self.names.read().get(&(node, request.name()?.to_vec())).copied();
                Ok(Answer::of(&self.entry(found.ok_or(Errno(libc::ENOENT))?)?))
            }
            op::GETATTR => attributes(),
            op::SETATTR => {
                self.set_attributes(node, &request.arguments::<SetattrIn>()?.0)?;
                attributes()
            }
            op::MKDIR => {
                let (asked, name) = request.with_name::<MkdirIn>()?;
                Ok(Answer::of(&self.make(node, name, libc::S_IFDIR | asked.mode & 0o7777)?))
            }
            op::CREATE => {
                let (asked, name) = request.with_name::<CreateIn>()?;
                let entry = self.make(node, name, libc::S_IFREG | asked.mode & 0o7777)?;
                let out = self.open(entry.node, asked.flags)?;
                Ok(Answer::bytes([entry.as_bytes(), out.as_bytes()].concat()))
            }
            op::OPEN => Ok(Answer::of(&self.open(node, request.arguments::<OpenIn>()?.0.flags)?)),
            op::READ => {
                let (asked, _): (ReadIn, _) = request.arguments()?;
                let room = memory.get_mut(..asked.size as usize).ok_or(Errno::INVALID)?;
                Ok(Answer::memory(self.file(node)?.read(room, asked.offset)))
            }
            op::WRITE => {
                let (asked, data) = request.arguments::<WriteIn>()?;
                let data = data.get(..asked.size as usize).ok_or(Errno::INVALID)?;
                self.file(node)?.write(data, asked.offset)?;
                Ok(Answer::of(&WriteOut { size: asked.size, padding: 0 }))
            }
            op::UNLINK | op::RMDIR => self.remove(node, request.name()?),
            op::FORGET => Ok(Answer::DONE),
            op::GETXATTR => Err(Errno(libc::ENODATA)),
            op::STATFS => Ok(Answer::of(&StatfsOut { bsize: 4096, frsize: 4096, ..StatfsOut::default() })),
            op::OPENDIR | op::RELEASE | op::RELEASEDIR | op::FSYNC | op::READDIR => Ok(Answer::DONE),
            _ => Err(Errno::NO_OPERATION),
        }
    }
}
