//! Short writes at the ends of several files as few requests of the device: what a cache writes home.
//!
//! Each file's gate is taken and its blocks are claimed, in order, so that files that were made one after another lie
//! side by side. The data of all is copied into one buffer, and what is adjacent on the device is sent at once. Then
//! each file gets its new size as after a write of its own. A gate that another thread uses is not waited for while
//! others are held: such files, and writes of other kinds, are written alone.

use crate::bounce::BOUNCE_MAX;
use crate::engine::{Engine, check_range};
use crate::error::Error;
use crate::fs::{Extended, FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::mapping::{Piece, Range};
use crate::pipeline::{Fresh, Mapping};
use crate::plan::{JournalWork, Request, Route, Sync, WriteFlags};
use crate::write_plan::may_share;
use std::collections::HashSet;
use std::ops;
use std::sync::Arc;
use uext4_blockdev::{Buffer, WriteDurability};

/// Most bytes of one request.
const TOGETHER_MAX: usize = 1 << 20;

/// A write that was noted before ([`Engine::note_write`]).
#[allow(missing_debug_implementations)]
pub struct NotedWrite<'a, F: FileSystem> {
    /// Where to.
    pub file: &'a OpenFile<F>,
    /// The bytes.
    pub buf: &'a [u8],
    /// Byte of the file.
    pub pos: u64,
}

impl<F: FileSystem> Engine<F> {
    /// Does what [`Engine::write_noted`] does for each of these, with fewer requests of the device. Returns the result
    /// of each, in order.
    pub fn write_noted_together(&self, writes: &[NotedWrite<'_, F>]) -> Vec<Result<(), F::Error>> {
        let mut results: Vec<Option<Result<(), F::Error>>> = writes.iter().map(|_| None).collect();
        let mut outbox =
            Outbox { engine: self, memory: None, used: 0, parts: Vec::new(), staged: Vec::new() };
        // Files of which a write is done alone, in the end: so are all that come after it.
        let mut left = HashSet::new();
        for (number, write) in writes.iter().enumerate() {
            if outbox.is_full_for(write) {
                outbox.send(&mut results);
            }
            let inode = Arc::as_ptr(&write.file.inode);
            match (!left.contains(&inode)).then(|| outbox.stage(number, write)) {
                Some(Ok(true)) => {}
                Some(Ok(false)) | None => drop(left.insert(inode)),
                Some(Err(error)) => results[number] = Some(Err(error)),
            }
        }
        outbox.send(&mut results);
        let alone = |(write, result): (&NotedWrite<'_, F>, Option<_>)| match result {
            Some(result) => result,
            None => self.write_alone(write),
        };
        writes.iter().zip(results).map(alone).collect()
    }

    fn write_alone(&self, write: &NotedWrite<'_, F>) -> Result<(), F::Error> {
        let written = write.file.priority.around(|| self.write_noted(write.file, write.buf, write.pos));
        written.map_err(Error::from)?.map(drop)
    }
}

/// Writes whose blocks are claimed. Their gates are held.
struct Outbox<'a, F: FileSystem> {
    engine: &'a Engine<F>,
    memory: Option<Buffer>,
    used: usize,
    /// Bytes of the memory and where they go, in order.
    parts: Vec<(ops::Range<usize>, u64)>,
    staged: Vec<Staged<'a, F>>,
}

struct Staged<'a, F: FileSystem> {
    number: usize,
    file: &'a OpenFile<F>,
    guard: InodeGuard<'a>,
    extension: F::Extension,
    fresh: Option<Fresh<F>>,
    size: u64,
    /// Its parts.
    parts: ops::Range<usize>,
}

impl<'a, F: FileSystem> Outbox<'a, F> {
    /// Bytes that a write needs at the most: whole blocks at both ends.
    fn needs(write: &NotedWrite<'_, F>) -> usize {
        write.buf.len() + 2 * write.file.state().view().block_size() as usize
    }

    fn is_full_for(&self, write: &NotedWrite<'_, F>) -> bool {
        self.used + Self::needs(write) > TOGETHER_MAX
    }

    /// Claims blocks for a write, and copies its bytes. `false`: nothing was done, the write has to be done alone.
    ///
    /// # Errors
    /// Those of the write. It has failed then.
    fn stage(&mut self, number: usize, write: &NotedWrite<'a, F>) -> Result<bool, F::Error> {
        let (engine, file) = (self.engine, write.file);
        engine.check_process()?;
        engine.fs.check_alive()?;
        file.check_writable()?;
        let range = check_range(write.pos, write.buf.len() as u64)?;
        let request = Request { range, sync: Sync::None, bounced: true, queued: false };
        let state = file.state();
        let fits = !write.buf.is_empty() && Self::needs(write) as u64 <= BOUNCE_MAX;
        let plain = file.priority.is_of_thread() && file.flags_of(WriteFlags::empty()).is_empty();
        if !fits || !plain || may_share(&request, &state.view(), file.switches) {
            return Ok(false);
        }
        // A second write of a file finds its gate held.
        let Some(guard) = state.gate.try_visit_exclusive() else { return Ok(false) };
        if state.is_cached() {
            return Ok(false);
        }
        let plan = engine.decide(file, &request, &mut Mapping::Due, false)?;
        let block = state.view().block_size();
        let (start, end) = (range.pos - plan.zero_edges.head, range.end() + plan.zero_edges.tail);
        let whole = start.is_multiple_of(block) && end.is_multiple_of(block);
        let extends = plan.journal == JournalWork::Extend && plan.route == Route::Allocate;
        if !extends || !whole || plan.zero_edges.old_tail > 0 || plan.drops_privileges {
            return Ok(false);
        }
        engine.count_write(&engine.counters, &request, &plan, true, state.block_bits(), file.switches);
        let extension = engine.fs.extend_begin(&file.inode, range)?;
        let first = self.parts.len();
        let taken = engine.take_blocks(file, &request, &plan, false).and_then(|fresh| {
            let window = Range { pos: start, length: end - start };
            self.add(write, window, |piece| Ok(plan.place(piece)?)).map(|()| fresh)
        });
        match taken {
            Ok(fresh) => {
                let size = range.end().max(state.size());
                let parts = first..self.parts.len();
                self.staged.push(Staged { number, file, guard, extension, fresh, size, parts });
                Ok(true)
            }
            Err(error) => {
                self.parts.truncate(first);
                // The first failure is reported; a file system that cannot clean up either aborts itself.
                let _of_less_interest =
                    engine.fs.extend_end(&file.inode, &guard, extension, Extended::Failed);
                Err(error)
            }
        }
    }

    /// Takes the bytes of a window of whole blocks, zeros around those of the write.
    fn add(
        &mut self,
        write: &NotedWrite<'_, F>,
        window: Range,
        place: impl Fn(&Piece) -> Result<u64, F::Error>,
    ) -> Result<(), F::Error> {
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(self.engine.bounce_buffer(TOGETHER_MAX)?),
        };
        let (from, length) = (self.used, window.length as usize);
        let room = &mut memory[from..from + length];
        let head = (write.pos - window.pos) as usize;
        room[..head].fill(0);
        room[head..head + write.buf.len()].copy_from_slice(write.buf);
        room[head + write.buf.len()..].fill(0);
        self.engine.for_each_piece(write.file, window, |piece| {
            let at = from + (piece.logical - window.pos) as usize;
            self.parts.push((at..at + piece.length as usize, place(piece)?));
            Ok(())
        })?;
        self.used += length;
        Ok(())
    }

    /// Sends what was taken, and ends each write.
    fn send(&mut self, results: &mut [Option<Result<(), F::Error>>]) {
        let sent = self.send_parts();
        for staged in self.staged.drain(..) {
            let Staged { number, file, guard, extension, fresh, size, parts } = staged;
            let failure = sent[parts].iter().find_map(|part| part.as_ref().err());
            results[number] = Some(match failure {
                None => self.engine.end_extension(&file.inode, &guard, extension, fresh, size),
                Some(error) => {
                    drop(fresh);
                    let _of_less_interest =
                        self.engine.fs.extend_end(&file.inode, &guard, extension, Extended::Failed);
                    Err(error.clone().into())
                }
            });
        }
        self.parts.clear();
        self.used = 0;
    }

    /// Sends each run of adjacent parts as one request. If it fails, each part on its own: most of them may be good.
    fn send_parts(&self) -> Vec<Result<(), Error>> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let write = |bytes: &ops::Range<usize>, to| {
            self.engine.write_counted(&memory[bytes.clone()], to, WriteDurability::Cached)
        };
        let mut sent = Vec::with_capacity(self.parts.len());
        let adjacent = |(one, to): &(ops::Range<usize>, u64), (next, next_to): &(ops::Range<usize>, u64)| {
            one.end == next.start && to + one.len() as u64 == *next_to
        };
        for run in self.parts.chunk_by(adjacent) {
            let [(first, to), ..] = run else { continue };
            let last = run.last().map_or(first.end, |(last, _)| last.end);
            match write(&(first.start..last), *to) {
                Ok(()) => sent.extend(run.iter().map(|_| Ok(()))),
                Err(error) if run.len() == 1 => sent.push(Err(error)),
                Err(_) => sent.extend(run.iter().map(|(bytes, to)| write(bytes, *to))),
            }
        }
        sent
    }
}
