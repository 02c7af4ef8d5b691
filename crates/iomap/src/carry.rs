//! Executes the writes that the calling thread waits for: synchronous writes, bounced writes, copies into mapped
//! memory, and queued writes that hold the gate exclusively.
//!
//! Order of an allocating write: orphan record if it extends → allocation, or a claim in memory → zeros around the
//! data → data → conversion, together with the new size → leave the gate. The zeros are written first, so they are in
//! place even if the data write fails. On mapped memory the blocks below the end of the file are zeroed and converted
//! before the copy; those past it are invisible until the size moves and are handled as on any other device.

use crate::bounce::{BOUNCE_MAX, next_step};
use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{Extended, FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::inode::InodeState;
use crate::mapping::{MapKind, Piece, Range, State};
use crate::pipeline::{Filled, Fresh, Mapping};
use crate::plan::{Durability, Edges, GateMode, JournalWork, Plan, Request, Route};
use crate::write_plan::{may_share, shares_gate};
use uext4_blockdev::WriteDurability;

/// Result of a write that was started, and the work still needed to make it durable.
pub(crate) type Carried<E> = (Result<(), E>, Durability);

impl<F: FileSystem> Engine<F> {
    /// Plans and executes a write of the buffers `data`, which follow one another in the file. `help` is called while
    /// it waits for the gate.
    ///
    /// # Errors
    /// Only if nothing was sent. Later failures are in the returned outcome.
    pub(crate) fn carry_out(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        request: &Request,
        flow: Flow,
        help: &mut dyn FnMut(),
    ) -> Result<Carried<F::Error>, F::Error> {
        let state = file.state();
        let Some((guard, mut plan)) = self.admit(file, request, flow, help)? else {
            return self.carry_over_pages(file, data, request, flow, help);
        };
        if plan.drops_privileges {
            self.fs.drop_privileges(&file.inode, &guard)?;
            self.counters.bump(Counter::PrivilegesDropped);
        }
        if plan.route == Route::InlineWrite {
            match self.write_inline(file, &guard, request, data)? {
                true => return Ok((Ok(()), plan.durability)),
                // The gate stays closed, so nobody was in between.
                false => plan = self.decide(file, request, &mut Mapping::Started, false)?,
            }
        }
        let (bits, exclusive) = (state.block_bits(), guard.is_exclusive());
        self.count_write(&self.counters, request, &plan, exclusive, bits, file.switches);
        if file.notes_writes() {
            guard.mark_written();
        }
        let end = flow.home.unwrap_or(request.range.end());
        let outcome = Writing { engine: self, file, guard: &guard, request, plan: &plan, data, end }.run();
        Ok((outcome, plan.durability))
    }

    /// A write to a file that has pages: those that it touches are out of the way until it is done.
    #[cold]
    fn carry_over_pages(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        request: &Request,
        flow: Flow,
        help: &mut dyn FnMut(),
    ) -> Result<Carried<F::Error>, F::Error> {
        if flow.nowait {
            return Err(self.would_block().into());
        }
        self.check_process()?;
        let cache = file.state().make_pages(&self.pages.totals);
        let _pages = self.settle(file, cache, request.range, help)?;
        self.carry_out(file, data, request, Flow { settled: true, ..flow }, help)
    }

    /// Writes into the inode. Returns whether it fits.
    #[cold]
    fn write_inline(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        request: &Request,
        data: &[&[u8]],
    ) -> Result<bool, F::Error> {
        if file.notes_writes() {
            guard.mark_written();
        }
        let stored = self.fs.write_inline(&file.inode, guard, request.range.pos, data)?;
        if stored {
            self.counters.bump(Counter::InlineWrites);
            self.counters.bump(Counter::ExclusiveWrites);
        } else if file.state().kind() == MapKind::Inline {
            return Err(Error::MapUnknown(request.range.pos).into());
        }
        Ok(stored)
    }

    /// Enters the gate and plans the write there. It tries the shared gate first if the write may share it; otherwise
    /// it takes the gate exclusively and plans again, since everything may have changed in between. `None`: the file
    /// has pages that are in the way.
    fn admit<'g>(
        &self,
        file: &'g OpenFile<F>,
        request: &Request,
        flow: Flow,
        help: &mut dyn FnMut(),
    ) -> Result<Option<(InodeGuard<'g>, Plan)>, F::Error> {
        let Flow { exclusive, nowait, mut mapping, settled, .. } = flow;
        let state = file.state();
        if !exclusive && may_share(request, &state.view(), file.switches) {
            let counted = self.capabilities.dax.is_none();
            let guard = match nowait {
                true => state.gate.try_lock_shared(counted).map_err(|_busy| self.would_block())?,
                false => self.enter(state, counted)?,
            };
            let plan = self.decide(file, request, &mut mapping, nowait)?;
            if plan.gate == GateMode::Shared {
                return Ok(Some((guard, plan)));
            }
        }
        if nowait {
            return Err(self.would_block().into());
        }
        self.check_process()?;
        let guard = state.gate.lock_exclusive(!shares_gate(request, state.block_bits(), file.switches), help);
        end_appends(state, &guard, help);
        // Read before the plan is made: a write that completes after the plan may be the one that made the drain
        // necessary.
        let drained = guard.is_drained();
        if !settled && state.is_cached() {
            return Ok(None);
        }
        let mut plan = self.decide(file, request, &mut mapping, nowait)?;
        if plan.drain && !drained {
            guard.drain(help);
            plan = self.decide(file, request, &mut mapping, nowait)?;
        }
        Ok(Some((guard, plan)))
    }

    /// The data of an extending write is complete: its blocks are converted, and the file gets its new size.
    pub(crate) fn end_extension(
        &self,
        inode: &F::Inode,
        guard: &InodeGuard<'_>,
        extension: F::Extension,
        mut fresh: Option<Fresh<F>>,
        size: u64,
    ) -> Result<(), F::Error> {
        let mut filled = Filled::of(fresh.as_mut_slice());
        let reserves = filled.as_mut().map_or_else(Vec::new, Filled::take_reserves);
        let blocks = filled.as_ref().map_or(&[][..], Filled::blocks);
        self.counters.bump(Counter::Extensions);
        if !blocks.is_empty() {
            self.counters.bump(Counter::Conversions);
        }
        self.fs.extend_end(inode, guard, extension, Extended::Complete { size, blocks, reserves })
    }

    /// Allocates the holes of a request under the exclusive gate, for a write that continues under the shared gate.
    pub(crate) fn allocate_exclusively(
        &self,
        file: &OpenFile<F>,
        request: &Request,
        plan: &Plan,
        help: &mut dyn FnMut(),
    ) -> Result<(), F::Error> {
        self.check_process()?;
        let _held = file.state().gate.lock_exclusive(plan.drain, help);
        self.counters.bump(Counter::ExclusiveWrites);
        let range = request.range;
        if range.end() <= file.state().size() {
            self.take_blocks(file, request, plan, false)?;
        }
        Ok(())
    }
}

/// Waits for the appends in flight, which move the size without the gate. It is held exclusively, so no more begin.
pub(crate) fn end_appends(state: &InodeState, held: &InodeGuard<'_>, help: &mut dyn FnMut()) {
    if state.appender() != 0 && !held.is_drained() {
        held.drain(help);
    }
}

/// What is already known of a write when it reaches the executor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    /// It needs the gate exclusively; skip the shared attempt.
    pub(crate) exclusive: bool,
    /// Fail instead of waiting.
    pub(crate) nowait: bool,
    /// Whether the handle around its mapping was already started.
    pub(crate) mapping: Mapping,
    /// The file's pages are held, and none is in the way.
    pub(crate) settled: bool,
    /// They are pages that go home, whole blocks: the bytes of the file end there, if they do.
    pub(crate) home: Option<u64>,
}

/// A planned write under the gate.
struct Writing<'a, F: FileSystem> {
    engine: &'a Engine<F>,
    file: &'a OpenFile<F>,
    guard: &'a InodeGuard<'a>,
    request: &'a Request,
    plan: &'a Plan,
    data: &'a [&'a [u8]],
    /// Where the bytes of the file end.
    end: u64,
}

impl<F: FileSystem> Writing<'_, F> {
    fn run(&self) -> Result<(), F::Error> {
        let (fs, inode) = (&self.engine.fs, &self.file.inode);
        match self.plan.journal {
            JournalWork::None | JournalWork::Handle => self.send(None),
            JournalWork::Extend => {
                let extension = fs.extend_begin(inode, self.request.range)?;
                match self.fill() {
                    Ok(fresh) => {
                        let size = self.end.max(self.file.state().size());
                        self.engine.end_extension(inode, self.guard, extension, fresh, size)
                    }
                    Err(error) => {
                        // The first failure is reported; a file system that cannot clean up either aborts itself.
                        let _of_less_interest = fs.extend_end(inode, self.guard, extension, Extended::Failed);
                        Err(error)
                    }
                }
            }
            _ => {
                let mut fresh = self.fill()?;
                self.engine.convert_one(fresh.as_mut_slice())
            }
        }
    }

    /// Allocates, zeroes, then writes the data. Returns the blocks to convert.
    fn fill(&self) -> Result<Option<Fresh<F>>, F::Error> {
        let (visible, rest) = self.split();
        let mut first = self.take(visible)?;
        let fresh = self.take(rest)?;
        if let Some(window) = self.short_window() {
            self.zero_old_tail()?;
            self.send_short(window)?;
            return Ok(fresh);
        }
        self.zero_edges()?;
        if visible.length > 0 {
            let block = self.file.state().view().block_size();
            let (start, end) = (visible.pos / block * block, visible.end().next_multiple_of(block));
            self.zero(start, end, State::Unwritten)?;
            self.engine.convert_one(first.as_mut_slice())?;
        }
        self.send(fresh.as_ref().and_then(Fresh::piece))?;
        Ok(fresh)
    }

    /// Splits the range into the part that is zeroed and converted before the data is sent, and the rest. The first
    /// part is empty except on mapped memory.
    fn split(&self) -> (Range, Range) {
        let range = self.request.range;
        let end = match self.plan.route {
            Route::DaxAllocate => self.file.state().view().end_of_blocks().clamp(range.pos, range.end()),
            _ => range.pos,
        };
        (Range { pos: range.pos, length: end - range.pos }, Range { pos: end, length: range.end() - end })
    }

    fn take(&self, range: Range) -> Result<Option<Fresh<F>>, F::Error> {
        if range.length == 0 {
            return Ok(None);
        }
        self.engine.take_blocks(self.file, &Request { range, ..*self.request }, self.plan, false)
    }

    /// The whole blocks of a short write, if it goes to the device as one request with the zeros around its data: every
    /// block is either covered by the data, or holds none yet.
    fn short_window(&self) -> Option<Range> {
        let (edges, range) = (self.plan.zero_edges, self.request.range);
        let block = self.file.state().view().block_size();
        let (start, end) = (range.pos - edges.head, range.end() + edges.tail);
        let whole = start.is_multiple_of(block) && end.is_multiple_of(block);
        let short = self.request.bounced && end - start <= BOUNCE_MAX && self.plan.route == Route::Allocate;
        (whole && short).then_some(Range { pos: start, length: end - start })
    }

    fn send_short(&self, window: Range) -> Result<(), F::Error> {
        let mut bounce = self.engine.bounce_buffer(window.length as usize)?;
        let mut at = self.plan.zero_edges.head as usize;
        bounce[..at].fill(0);
        for part in self.data {
            bounce[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        bounce[at..].fill(0);
        self.send_part(window, &[&bounce])
    }

    /// Bytes of the old last block, which the file did not have until now.
    fn zero_old_tail(&self) -> Result<(), F::Error> {
        let size = self.file.state().size();
        self.zero(size, size + self.plan.zero_edges.old_tail, State::Written)
    }

    fn zero_edges(&self) -> Result<(), F::Error> {
        let (edges, Range { pos, .. }, end) =
            (self.plan.zero_edges, self.request.range, self.request.range.end());
        if edges == Edges::default() {
            return Ok(());
        }
        // Zero the old tail first: the new data may start in the same block.
        self.zero_old_tail()?;
        let block = u64::from(self.engine.geometry.logical_block);
        // These blocks hold no data yet, so whole device blocks can be zeroed.
        self.zero_all(pos - edges.head, if edges.head > 0 { pos.next_multiple_of(block) } else { pos })?;
        self.zero_all(if edges.tail > 0 { end / block * block } else { end }, end + edges.tail)
    }

    fn zero_all(&self, start: u64, end: u64) -> Result<(), F::Error> {
        self.zero(start, end, State::Written)?;
        self.zero(start, end, State::Unwritten)
    }

    /// Zeroes bytes `start..end` of the file wherever the blocks are in `state`.
    fn zero(&self, start: u64, end: u64, state: State) -> Result<(), F::Error> {
        let bytes = Range { pos: start, length: end.saturating_sub(start) };
        let write = |zeros: &[u8], piece: &Piece| self.write(zeros, self.plan.place(piece)?);
        self.engine.zero_by(self.file, bytes, state, write)
    }

    /// Sends the data: to `piece`, if its place is known.
    fn send(&self, piece: Option<Piece>) -> Result<(), F::Error> {
        match (self.request.bounced, piece, self.data) {
            (false, Some(piece), [part]) if piece.logical == self.request.range.pos => {
                return self.write(part, self.plan.place(&piece)?);
            }
            (false, ..) => return self.send_part(self.request.range, self.data),
            (true, ..) => {}
        }
        let Range { mut pos, .. } = self.request.range;
        for buf in self.data {
            let end = pos + buf.len() as u64;
            while pos < end {
                let left = &buf[buf.len() - (end - pos) as usize..];
                pos += self.send_step(left, pos)?;
            }
        }
        Ok(())
    }

    /// Writes one step from the front of `buf` and returns its length: directly, or by a read-modify-write of whole
    /// device blocks.
    fn send_step(&self, buf: &[u8], pos: u64) -> Result<u64, F::Error> {
        let rest = Range { pos, length: buf.len() as u64 };
        let step = next_step(&self.engine.geometry, rest, buf.as_ptr() as usize);
        let (window, part) = (step.window, &buf[..step.part.length as usize]);
        if step.direct {
            self.send_part(window, &[part])?;
            return Ok(step.part.length);
        }
        let start = (pos - window.pos) as usize;
        let mut bounce = if step.covers_window() {
            self.engine.bounce_buffer(part.len())?
        } else {
            self.engine.read_window(self.file, window)?
        };
        bounce[start..start + part.len()].copy_from_slice(part);
        self.send_part(window, &[&bounce])?;
        Ok(step.part.length)
    }

    /// Writes consecutive buffers that together fill `range`. What is adjacent on the device and in one buffer goes in
    /// one request.
    fn send_part(&self, range: Range, data: &[&[u8]]) -> Result<(), F::Error> {
        let mut rest = data.iter();
        // Bytes `from..at` of `buf` are due, at byte `to` of the device.
        let (mut buf, mut from, mut at, mut to): (&[u8], _, _, _) = (&[], 0, 0, 0);
        let write = |part: &[u8], to| if part.is_empty() { Ok(()) } else { self.write(part, to) };
        self.engine.for_each_piece(self.file, range, |piece: &Piece| {
            let (mut place, mut left) = (self.plan.place(piece)?, piece.length as usize);
            while left > 0 {
                if at == buf.len() {
                    write(&buf[from..], to)?;
                    (buf, from, at) = (rest.next().expect("buffers as long as their range"), 0, 0);
                    continue;
                }
                if from == at || to + (at - from) as u64 != place {
                    write(&buf[from..at], to)?;
                    (from, to) = (at, place);
                }
                let part = left.min(buf.len() - at);
                (at, left, place) = (at + part, left - part, place + part as u64);
            }
            Ok(())
        })?;
        write(&buf[from..at], to)
    }

    /// Sends one device write.
    fn write(&self, part: &[u8], physical: u64) -> Result<(), F::Error> {
        let fua = self.plan.durability == Durability::Fua;
        let how = if fua { WriteDurability::Fua } else { WriteDurability::Cached };
        let copies = matches!(self.plan.route, Route::DaxOverwrite | Route::DaxAllocate);
        let written = match copies {
            true => self.engine.copy_in(self.guard, part, physical, how, self.plan.counted),
            false => self.engine.write_counted(part, physical, how),
        };
        written.map_err(|error| self.engine.write_failed(error, self.plan.durability))
    }
}
