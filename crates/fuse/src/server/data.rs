//! The contents of files.

use super::files::OpenFile;
use super::{Answer, Served};
use crate::reply::{Errno, Outcome};
use crate::request::Request;
use crate::transport::DATA_MAX;
use crate::wire::{
    self, CopyFileRangeIn, FSYNC_FDATASYNC, FallocateIn, FsyncIn, LseekIn, LseekOut, ReadIn, WriteIn,
    WriteOut,
};
use uext4::{Fallocate, InodeFlags, WriteFlags};

/// Most bytes that one COPY_FILE_RANGE copies: the caller asks for the rest.
const COPY_MAX: u64 = 64 << 20;

/// Late writes end below this: every kind of file can be that large.
const LATE_END: u64 = 16 << 30;

/// How durable a write must be, by the flags of its open file.
fn durability(flags: u32) -> WriteFlags {
    let flags = flags as i32;
    match () {
        () if flags & libc::O_SYNC == libc::O_SYNC => WriteFlags::SYNC,
        () if flags & libc::O_DSYNC != 0 => WriteFlags::DSYNC,
        () => WriteFlags::empty(),
    }
}

/// What `fallocate` does for these flags.
fn mode_of(flags: u32) -> Outcome<Fallocate> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match flags as i32 {
        0 => Ok(Fallocate::Allocate),
        KEEP => Ok(Fallocate::KeepSize),
        PUNCH => Ok(Fallocate::Punch),
        ZERO => Ok(Fallocate::Zero),
        ZERO_KEEP => Ok(Fallocate::ZeroKeepSize),
        libc::FALLOC_FL_COLLAPSE_RANGE => Ok(Fallocate::Collapse),
        libc::FALLOC_FL_INSERT_RANGE => Ok(Fallocate::Insert),
        _ => Err(Errno::NOT_SUPPORTED),
    }
}

impl Served {
    /// READ.
    pub(super) fn read(&self, request: &Request<'_>, memory: &mut [u8]) -> Outcome<Answer> {
        let (asked, _): (ReadIn, _) = request.arguments()?;
        let open = self.files.get(asked.fh)?;
        let room = memory.get_mut(..asked.size as usize).ok_or(Errno::INVALID)?;
        self.behind.wait_for(request.header.node);
        Ok(Answer::memory(open.file.read_any_at(room, asked.offset)?))
    }

    /// WRITE. Its data is aligned in memory.
    pub(super) fn write(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, data) = request.arguments::<WriteIn>()?;
        let data = data.get(..asked.size as usize).ok_or(Errno::INVALID)?;
        let open = self.files.get(asked.fh)?;
        if asked.write_flags & wire::WRITE_KILL_SUIDGID != 0 {
            self.strip_and_tell(request, &open.node)?;
        }
        let flags = if self.options.sync { WriteFlags::SYNC } else { durability(asked.flags) };
        if !self.writes_late(&open, data, asked.offset, flags) {
            self.behind.count(data.len());
            self.behind.wait_for(request.header.node);
            self.write_now(&open, &asked, data, flags)?;
        }
        Ok(Answer::of(&WriteOut { size: data.len() as u32, padding: 0 }))
    }

    /// Leaves a write for later, if nobody asks for more than the cache of a kernel gives.
    fn writes_late(&self, open: &OpenFile, data: &[u8], pos: u64, flags: WriteFlags) -> bool {
        let ends = pos.checked_add(data.len() as u64).is_some_and(|end| end <= LATE_END);
        if !open.takes_late || !flags.is_empty() || !ends {
            return false;
        }
        // Flags that were set after it was opened make it wait for the device, or refuse it.
        let refuses = InodeFlags::SYNC | InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if open.node.attributes().flags.intersects(refuses) {
            return false;
        }
        open.file.note_write();
        self.behind.take(&open.late, pos, data)
    }

    fn write_now(&self, open: &OpenFile, asked: &WriteIn, data: &[u8], flags: WriteFlags) -> Outcome<()> {
        match open.appends {
            // Stores into a mapping of an append-only file have no place.
            true if asked.write_flags & wire::WRITE_CACHE != 0 => return Err(Errno(libc::EPERM)),
            true => drop(open.file.append(data, flags)?),
            false => drop(open.file.write_any_at(data, asked.offset, flags)?),
        }
        Ok(())
    }

    /// FSYNC.
    pub(super) fn sync_file(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (FsyncIn, _) = request.arguments()?;
        let open = self.files.get(asked.fh)?;
        self.behind.wait_for(request.header.node);
        let late = self.behind.tell(&open.late);
        match asked.flags & FSYNC_FDATASYNC {
            0 => open.file.sync_all()?,
            _ => open.file.sync_data()?,
        }
        late?;
        Ok(Answer::DONE)
    }

    /// FALLOCATE. The kernel does not say whether set-id bits go: they do, except for root.
    pub(super) fn fallocate(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (FallocateIn, _) = request.arguments()?;
        let (open, mode) = (self.files.get(asked.fh)?, mode_of(asked.mode)?);
        let only_allocates = matches!(mode, Fallocate::Allocate | Fallocate::KeepSize);
        if open.appends && !only_allocates {
            return Err(Errno(libc::EPERM));
        }
        if !request.is_root() {
            self.strip_and_tell(request, &open.node)?;
        }
        // What is late comes first, also where it only needs space.
        let _none_is_late = self.behind.takes_space();
        open.file.fallocate(mode, asked.offset, asked.length)?;
        Ok(Answer::DONE)
    }

    /// LSEEK: data and holes.
    pub(super) fn seek(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (LseekIn, _) = request.arguments()?;
        let open = self.files.get(asked.fh)?;
        self.behind.wait_for(request.header.node);
        let found = match asked.whence as i32 {
            libc::SEEK_DATA => open.file.seek_data(asked.offset)?,
            libc::SEEK_HOLE => open.file.seek_hole(asked.offset)?,
            _ => return Err(Errno::INVALID),
        };
        let offset = found.ok_or(Errno(libc::ENXIO))?;
        Ok(Answer::of(&LseekOut { offset }))
    }

    /// COPY_FILE_RANGE inside the volume.
    pub(super) fn copy_range(&self, request: &Request<'_>, memory: &mut [u8]) -> Outcome<Answer> {
        let (asked, _): (CopyFileRangeIn, _) = request.arguments()?;
        let (from, to) = (self.files.get(asked.fh_in)?, self.files.get(asked.fh_out)?);
        if asked.flags != 0 {
            return Err(Errno::INVALID);
        }
        if to.appends {
            return Err(Errno::BAD_HANDLE);
        }
        if !request.is_root() {
            self.strip_and_tell(request, &to.node)?;
        }
        let _none_is_late = self.behind.takes_space();
        let (wanted, mut done) = (asked.len.min(COPY_MAX), 0);
        while done < wanted {
            let length = (wanted - done).min(DATA_MAX as u64) as usize;
            match self.copy_piece(
                &from.file,
                asked.off_in + done,
                &to.file,
                asked.off_out + done,
                &mut memory[..length],
            ) {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Answer::of(&WriteOut { size: done as u32, padding: 0 }))
    }

    fn copy_piece(
        &self,
        from: &uext4::File,
        pos: u64,
        to: &uext4::File,
        new_pos: u64,
        memory: &mut [u8],
    ) -> Outcome<usize> {
        let read = from.read_any_at(memory, pos)?;
        if read > 0 {
            to.write_any_at(&memory[..read], new_pos, WriteFlags::empty())?;
        }
        Ok(read)
    }
}
