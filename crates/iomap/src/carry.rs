//! Carries out the writes that the calling thread waits for: synchronous ones, bounced ones, copies into mapped memory,
//! and those of a queue that hold the gate alone.
//!
//! Order of what allocates: orphan record if it extends → blocks → zeros around the data → data → conversion, and the
//! size with it → gate. The zeros come first, so that they are there however the data ends. On mapped memory the blocks
//! in front of the end of the file are zeroed and converted before the copy; those behind it, which nobody sees until
//! the size moves, are treated as on any other device.

use crate::bounce::next_step;
use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{Extended, FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::mapping::{Piece, Range, State};
use crate::pipeline::{Filled, Fresh, Mapping};
use crate::plan::{Durability, GateMode, JournalWork, Plan, Request, Route};
use crate::write_plan::{may_share, shares_gate};
use uext4_blockdev::WriteDurability;

/// What became of a write that was begun: its outcome, and what is still due to make it durable.
pub(crate) type Carried<E> = (Result<(), E>, Durability);

impl<F: FileSystem> Engine<F> {
    /// Decides and carries out a write of the buffers `data`, one after another. `help` is called while it waits for
    /// the gate.
    ///
    /// # Errors
    /// Nothing was sent. What fails later is in the outcome.
    pub(crate) fn carry_out(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        request: &Request,
        flow: Flow,
        help: &mut dyn FnMut(),
    ) -> Result<Carried<F::Error>, F::Error> {
        let state = file.state();
        let (guard, plan) = self.admit(file, request, flow, help)?;
        if plan.drops_privileges {
            self.fs.drop_privileges(&file.inode, &guard)?;
            self.counters.bump(Counter::PrivilegesDropped);
        }
        let (bits, exclusive) = (state.block_bits(), guard.is_exclusive());
        self.count_write(&self.counters, request, &plan, exclusive, bits, file.switches);
        guard.mark_written();
        let outcome = Writing { engine: self, file, guard: &guard, request, plan: &plan, data }.run();
        Ok((outcome, plan.durability))
    }

    /// Lets a write into the gate and decides it there: together with others if it may share the gate and its plan says
    /// so, else exclusively, which is decided anew because everything may have changed meanwhile.
    fn admit<'g>(
        &self,
        file: &'g OpenFile<F>,
        request: &Request,
        flow: Flow,
        help: &mut dyn FnMut(),
    ) -> Result<(InodeGuard<'g>, Plan), F::Error> {
        let Flow { exclusive, nowait, mut mapping } = flow;
        let state = file.state();
        if !exclusive && may_share(request, &state.view(), file.switches) {
            let counted = self.capabilities.dax.is_none();
            let guard = match nowait {
                true => state.gate.try_lock_shared(counted).map_err(|_busy| self.would_block())?,
                false => self.enter(state, counted)?,
            };
            let plan = self.decide(file, request, &mut mapping, nowait)?;
            if plan.gate == GateMode::Shared {
                return Ok((guard, plan));
            }
        }
        if nowait {
            return Err(self.would_block().into());
        }
        self.check_process()?;
        let guard = state.gate.lock_exclusive(!shares_gate(request, state.block_bits(), file.switches), help);
        // Asked before the decision: a write that completes behind it may be what made the drain necessary.
        let drained = guard.is_drained();
        let mut plan = self.decide(file, request, &mut mapping, nowait)?;
        if plan.drain && !drained {
            guard.drain(help);
            plan = self.decide(file, request, &mut mapping, nowait)?;
        }
        Ok((guard, plan))
    }

    /// Gives the holes of a request blocks under the exclusive gate, for one that goes on under the shared gate.
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

/// How a write comes to be carried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    /// It is known to need the gate exclusively.
    pub(crate) exclusive: bool,
    /// Not if it had to wait.
    pub(crate) nowait: bool,
    /// Whether its mapping had its handle.
    pub(crate) mapping: Mapping,
}

/// A planned write under the gate.
struct Writing<'a, F: FileSystem> {
    engine: &'a Engine<F>,
    file: &'a OpenFile<F>,
    guard: &'a InodeGuard<'a>,
    request: &'a Request,
    plan: &'a Plan,
    data: &'a [&'a [u8]],
}

impl<F: FileSystem> Writing<'_, F> {
    fn run(&self) -> Result<(), F::Error> {
        let (fs, inode) = (&self.engine.fs, &self.file.inode);
        match self.plan.journal {
            JournalWork::None | JournalWork::Handle => self.send(),
            JournalWork::Extend => {
                let extension = fs.extend_begin(inode, self.request.range)?;
                let mut filled = match self.fill() {
                    Ok(fresh) => Filled::of(fresh.into_iter().collect()),
                    Err(error) => {
                        // The first failure is told; a file system that cannot clean up either aborts itself.
                        let _of_less_interest = fs.extend_end(inode, self.guard, extension, Extended::Failed);
                        return Err(error);
                    }
                };
                let reserves = filled.as_mut().map_or_else(Vec::new, Filled::take_reserves);
                let blocks = filled.as_ref().map_or(&[][..], Filled::blocks);
                let size = self.request.range.end().max(self.file.state().size());
                self.engine.counters.bump(Counter::Extensions);
                if !blocks.is_empty() {
                    self.engine.counters.bump(Counter::Conversions);
                }
                fs.extend_end(inode, self.guard, extension, Extended::Complete { size, blocks, reserves })
            }
            _ => {
                let fresh = self.fill()?;
                self.engine.convert(fresh.into_iter().collect()).into_iter().collect()
            }
        }
    }

    /// Blocks, zeros, data. Returns what is to be converted.
    fn fill(&self) -> Result<Option<Fresh<F>>, F::Error> {
        let (visible, rest) = self.split();
        let first = self.take(visible)?;
        let fresh = self.take(rest)?;
        self.zero_edges()?;
        if visible.length > 0 {
            let block = self.file.state().view().block_size();
            let (start, end) = (visible.pos / block * block, visible.end().next_multiple_of(block));
            self.zero(start, end, State::Unwritten)?;
            self.engine.convert(first.into_iter().collect()).into_iter().collect::<Result<(), _>>()?;
        }
        self.send()?;
        Ok(fresh)
    }

    /// What is zeroed and converted before the data is sent, and the rest. The first part is empty except on mapped
    /// memory.
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

    fn zero_edges(&self) -> Result<(), F::Error> {
        let (edges, Range { pos, .. }, end) =
            (self.plan.zero_edges, self.request.range, self.request.range.end());
        let size = self.file.state().size();
        // Before the rest: that may begin in the same block.
        self.zero(size, size + edges.old_tail, State::Written)?;
        let block = u64::from(self.engine.geometry.logical_block);
        // Nothing is there yet, so whole device blocks can be zeroed.
        self.zero_all(pos - edges.head, if edges.head > 0 { pos.next_multiple_of(block) } else { pos })?;
        self.zero_all(if edges.tail > 0 { end / block * block } else { end }, end + edges.tail)
    }

    fn zero_all(&self, start: u64, end: u64) -> Result<(), F::Error> {
        self.zero(start, end, State::Written)?;
        self.zero(start, end, State::Unwritten)
    }

    /// Zeroes the bytes of the file from `start` to `end`, where its blocks are in this state.
    fn zero(&self, start: u64, end: u64, state: State) -> Result<(), F::Error> {
        let bytes = Range { pos: start, length: end.saturating_sub(start) };
        let write = |zeros: &[u8], piece: &Piece| self.write(zeros, self.plan.place(piece)?);
        self.engine.zero_by(self.file, bytes, state, write)
    }

    /// Sends the data.
    fn send(&self) -> Result<(), F::Error> {
        if !self.request.bounced {
            return self.send_part(self.request.range, self.data);
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

    /// Sends the first bytes of `buf` and returns how many: directly, or by changing whole device blocks.
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

    /// Sends buffers that lie one after another in `range`, piece by piece.
    fn send_part(&self, range: Range, data: &[&[u8]]) -> Result<(), F::Error> {
        let mut data = data.iter();
        let mut buf: &[u8] = &[];
        self.engine.for_each_piece(self.file, range, |piece: &Piece| {
            let (mut at, mut left) = (self.plan.place(piece)?, piece.length as usize);
            while left > 0 {
                while buf.is_empty() {
                    buf = data.next().expect("buffers as long as their range");
                }
                let (part, rest) = buf.split_at(left.min(buf.len()));
                self.write(part, at)?;
                (at, left, buf) = (at + part.len() as u64, left - part.len(), rest);
            }
            Ok(())
        })
    }

    /// One write of the device.
    fn write(&self, part: &[u8], physical: u64) -> Result<(), F::Error> {
        let fua = self.plan.durability == Durability::Fua;
        let how = if fua { WriteDurability::Fua } else { WriteDurability::Cached };
        let copies = matches!(self.plan.route, Route::DaxOverwrite | Route::DaxAllocate);
        let written = match copies {
            true => self.engine.copy_in(self.guard, part, physical, how, self.plan.counted),
            false => self.engine.device.write_at(part, physical, how).map_err(Error::from),
        };
        written.map_err(|error| self.engine.write_failed(error, self.plan.durability))
    }
}
