//! Queued writes: map, plan, execute. The executor asserts what the plan says; it does not decide.

use super::attach::FileSlot;
use super::core::{General, QueueState};
use super::slot::{Kind, Label, Slot};
use super::ticket::Ticket;
use crate::carry::{Carried, Flow};
use crate::door::Payload;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::mapping::{Pieces, Range};
use crate::pipeline::{Fresh, Mapping};
use crate::plan::{Durability, Edges, Finish, GateMode, JournalWork, Plan, Request, WriteFlags};
use crate::switches::{AllOn, Routing, Switches};
use crate::write_plan::{may_share, plan_shared_overwrite, shares_gate};
use uext4_blockdev::{Buffer, Op};

impl<F: FileSystem> QueueState<F> {
    /// Writes one buffer that no window covers.
    // Out of line, so that the window path spills nothing. Also the plain route, which pays about ten instructions for
    // the window check.
    #[cold]
    #[inline(never)]
    pub(super) fn write_deciding(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        if flags.intersects(WriteFlags::NOWAIT | WriteFlags::ATOMIC) {
            // The device may refuse a no-wait request, which the short path does not handle.
            return self.write(slot, pos, Payload::One(buffer), flags, tag, Mapping::Due);
        }
        if self.is_all_on(slot) {
            return self.write_one(slot, pos, buffer, flags, tag, AllOn);
        }
        let file = &self.file(slot)?.file;
        let (switches, flags) = (file.switches, file.flags_of(flags));
        self.write_one(slot, pos, buffer, flags, tag, switches)
    }

    /// Writes one buffer: if it is a shared overwrite of one piece it is sent here, else by [`QueueState::write`].
    #[inline]
    pub(super) fn write_one<R: Routing>(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
        routing: R,
    ) -> Result<(), F::Error> {
        let number = self.free.pop();
        let sent = match number {
            Some(number) => self.try_write_one(number, slot, pos, buffer, flags, tag, routing),
            None => Err(NotSent::Refused(buffer, Mapping::Due)),
        };
        let Err(not_sent) = sent else { return Ok(()) };
        self.free.extend(number);
        match not_sent {
            NotSent::Failed(error) => Err(error),
            NotSent::Refused(buffer, mapping) => {
                self.write(slot, pos, Payload::One(buffer), flags, tag, mapping)
            }
        }
    }

    /// A shared overwrite of one piece in the free slot `number`. Refuses without any side effect.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "a request and its place, in registers")]
    fn try_write_one<R: Routing>(
        &mut self,
        number: u32,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
        routing: R,
    ) -> Result<(), NotSent<F::Error>> {
        let length = buffer.len() as u64;
        let address = buffer.address().addr().get() as u64;
        let misaligned = (pos | length) & self.position_mask | address & self.memory_mask;
        let Some(Some(attached)) = self.files.get_mut(slot.index as usize) else {
            return Err(NotSent::Refused(buffer, Mapping::Due));
        };
        let usable = attached.overwrites && attached.serial == slot.serial && misaligned == 0 && length != 0;
        if !usable || self.engine.fs.check_alive().is_err() {
            return Err(NotSent::Refused(buffer, Mapping::Due));
        }
        let Some(end) = pos.checked_add(length) else { return Err(NotSent::Refused(buffer, Mapping::Due)) };
        let range = Range { pos, length };
        debug_assert_eq!(range.end(), end);
        let request = Request { range, sync: flags.sync(), bounced: false, queued: true };
        let bits = F::state(&attached.file.inode).block_bits();
        // An early check, as in the synchronous path.
        if end > F::state(&attached.file.inode).size()
            || !shares_gate(&request, bits, routing)
            || F::state(&attached.file.inode).gate.enter_open(&attached.cell).is_err()
        {
            return Err(NotSent::Refused(buffer, Mapping::Due));
        }
        let handle = match self.engine.fs.start_mapping(routing, &**self.counters) {
            Ok(handle) => handle,
            Err(error) => return Err(attached.withdraw(NotSent::Failed(error))),
        };
        attached.refresh();
        let located = attached.find_written(range, bits);
        if let Some(handle) = handle
            && let Err(error) = self.engine.fs.stop_mapping(handle)
        {
            return Err(attached.withdraw(NotSent::Failed(error)));
        }
        let Some(physical) = located else {
            return Err(attached.withdraw(NotSent::Refused(buffer, Mapping::Started)));
        };
        // Load the mapping before the view: a reader that sees a converted block must also see that its conversion is
        // not durable yet (`InodeState::set_datasync_tid`).
        let changes = F::state(&attached.file.inode).changes();
        let view = F::state(&attached.file.inode).view();
        let Some(plan) = plan_shared_overwrite(&request, &view, &self.engine.capabilities, routing) else {
            return Err(attached.withdraw(NotSent::Refused(buffer, Mapping::Started)));
        };
        let label = Label::write(slot.index, plan.durability);
        if routing.switches() == Switches::ON {
            attached.open_window(&view, changes, flags, label, self.memory_mask);
        }
        self.slots[number as usize] = Slot { tag, pos: physical, length: length as u32, label };
        attached.waiting += u16::from(label.kind() != Kind::Plain);
        let fua = plan.durability == Durability::Fua;
        if let Err(buffer) = self.door.send(number, buffer, Op::Write, fua, physical) {
            self.slots[number as usize].label = Label::FREE;
            attached.waiting -= u16::from(label.kind() != Kind::Plain);
            return Err(attached.withdraw(NotSent::Refused(buffer, Mapping::Started)));
        }
        F::state(&attached.file.inode).gate.leave(&attached.cell);
        self.engine.count_write(&**self.counters, &request, &plan, false, bits, routing);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        slot: FileSlot,
        pos: u64,
        payload: Payload,
        flags: WriteFlags,
        tag: u64,
        mut mapping: Mapping,
    ) -> Result<(), F::Error> {
        self.engine.fs.check_alive()?;
        let range = self.engine.check_direct(pos, payload.len())?;
        let index = self.index(slot)?;
        self.check_memory(&payload)?;
        let file = &self.file(slot)?.file;
        file.check_writable()?;
        let flags = file.flags_of(flags);
        if flags.contains(WriteFlags::ATOMIC) && range.length > 0 {
            return self.write_atomic(index, pos, payload, flags, tag);
        }
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        if range.length == 0 {
            self.deliver_at_once(tag, Ok(0), payload);
            return Ok(());
        }
        if self.engine.capabilities.dax.is_some() {
            let file = file.clone();
            let result = self.engine.write_payload(&file, &payload, range.pos, flags);
            self.deliver_at_once(tag, result, payload);
            return Ok(());
        }
        let request = Request { range, sync: flags.sync(), bounced: false, queued: true };
        let nowait = flags.contains(WriteFlags::NOWAIT);
        while may_share(&request, &self.file(slot)?.file.state().view(), self.file(slot)?.file.switches) {
            let ticket = self.enter(index, nowait)?;
            let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
            let plan = self.engine.decide(&attached.file, &request, &mut mapping, nowait)?;
            if plan.gate == GateMode::Shared {
                return self.send(index, &request, &plan, nowait, payload, tag, ticket);
            }
            drop(ticket);
            if plan.finish == Finish::Synchronous || plan.journal == JournalWork::Extend {
                break;
            }
            let (engine, file) = (self.engine.clone(), attached.file.clone());
            engine.allocate_exclusively(&file, &request, &plan, &mut || self.help())?;
        }
        let payload = match nowait {
            true => payload,
            false => match self.try_append(index, &request, &mut mapping, payload, tag)? {
                Some(payload) => payload,
                None => return Ok(()),
            },
        };
        self.write_exclusively(
            index,
            &Request { queued: false, ..request },
            Flow { exclusive: true, nowait, mapping, settled: false, home: None },
            payload,
            tag,
        )
    }

    /// Sends a planned write under the shared gate.
    #[allow(clippy::too_many_arguments, reason = "a decided request and its place")]
    fn send(
        &mut self,
        index: usize,
        request: &Request,
        plan: &Plan,
        nowait: bool,
        payload: Payload,
        tag: u64,
        ticket: Ticket<F>,
    ) -> Result<(), F::Error> {
        debug_assert!(plan.finish == Finish::Asynchronous && plan.zero_edges == Edges::default());
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let file = &attached.file;
        let fresh = self.engine.take_blocks(file, request, plan, nowait)?;
        let mut pieces = Pieces::new();
        match fresh.as_ref().and_then(Fresh::piece) {
            Some(piece) => pieces.push(piece),
            None => self.engine.load_pieces(file, request.range, &mut pieces)?,
        }
        let bits = file.state().block_bits();
        self.engine.count_write(&**self.counters, request, plan, false, bits, file.switches);
        let number = self.take_slot(Slot::new(index, tag, Kind::General, plan.durability, true))?;
        let mut general = General::new(request.range.length, fresh, ticket);
        // If one of several device requests were refused, half of the write would be done.
        let one = matches!(payload, Payload::One(_)) && pieces.len() == 1;
        general.nowait = nowait && one && pieces[0].length == request.range.length;
        self.push_all(number, general, payload, request.range, &mut pieces, Some(plan));
        Ok(())
    }

    /// A write that holds the gate exclusively to its end. Its data is written on return; the next drive makes it
    /// durable, after the gate is open again.
    #[cold]
    fn write_exclusively(
        &mut self,
        index: usize,
        request: &Request,
        flow: Flow,
        payload: Payload,
        tag: u64,
    ) -> Result<(), F::Error> {
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let (engine, file) = (self.engine.clone(), attached.file.clone());
        let carried = engine.carry_out(&file, &payload.parts(), request, flow, &mut || self.help());
        self.deliver_carried(index, carried?, request.range.length as usize, payload, tag)
    }

    /// An atomic write: as [`QueueState::write_exclusively`].
    #[cold]
    fn write_atomic(
        &mut self,
        index: usize,
        pos: u64,
        payload: Payload,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let (engine, file) = (self.engine.clone(), attached.file.clone());
        let carried = engine.carry_atomic(&file, &payload.parts(), pos, flags, &mut || self.help())?;
        let length = payload.len() as usize;
        self.deliver_carried(index, carried, length, payload, tag)
    }

    /// Completes a write that is done, at once or with the next sync.
    fn deliver_carried(
        &mut self,
        index: usize,
        carried: Carried<F::Error>,
        length: usize,
        payload: Payload,
        tag: u64,
    ) -> Result<(), F::Error> {
        match carried {
            (Ok(()), durability @ (Durability::Datasync | Durability::Fsync)) => {
                let slot = Slot::new(index, tag, Kind::Sync, durability, false);
                let number = self.take_slot(Slot { length: length as u32, ..slot })?;
                self.door.store(number, payload);
                self.to_sync.push(number);
            }
            (outcome, _) => self.deliver_at_once(tag, outcome.map(|()| length), payload),
        }
        Ok(())
    }
}

/// Why the short path did not send a write.
enum NotSent<E> {
    /// It needs the general path; at most the journal handle around its mapping was started and stopped.
    Refused(Buffer, Mapping),
    /// It failed.
    Failed(E),
}
