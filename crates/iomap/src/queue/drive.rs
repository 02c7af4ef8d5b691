//! Driving a queue: reap everything, finish each slot, commit and flush once for the whole batch, then deliver.

use super::Completion;
use super::core::QueueState;
use super::slot::{Kind, Label, Landed, Slot};
use crate::counters::Counter;
use crate::door::{part_of, slot_of};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::plan::Durability;
use std::time::{Duration, Instant};
use uext4_blockdev::{Done, Wait};

/// How long a wait with a time-out blocks on the device at a time while a commit or a flush is also running.
const TURN: Duration = Duration::from_millis(1);

impl<F: FileSystem> QueueState<F> {
    /// Submits, reaps what `wait` allows and finishes it, durability included. A caller inside a gate uses
    /// [`QueueState::reap`]. A caller waiting for a drain must finish these requests, because they stay in flight until
    /// they are durable; it may do so, because a commit never waits for a gate (lock order).
    pub(crate) fn drive(&mut self, wait: Wait) -> Result<(), F::Error> {
        let reaped = self.reap(wait);
        self.sync_here();
        reaped
    }

    /// [`QueueState::drive`] without the commit and flush: requests that need one stay for the next drive.
    pub(super) fn reap(&mut self, wait: Wait) -> Result<(), F::Error> {
        let mut done = std::mem::take(&mut self.done);
        done.clear();
        self.now_ns = crate::clock::coarse_now_ns();
        let reaped = self.door.reap(&mut done, wait);
        let mut batch = Landed::NONE;
        let mut left = &done[..];
        loop {
            let mut bytes = 0;
            let landed = left.iter().position(|&done| {
                let landed = self.deliver_plain(done, batch.label);
                bytes += if landed { u64::from(done.result as u32) } else { 0 };
                !landed
            });
            let landed = landed.unwrap_or(left.len());
            batch.count += landed as u16;
            if batch.label.writes() {
                self.counters.add(Counter::BytesWritten, bytes);
            }
            let Some((&other, rest)) = left[landed..].split_first() else { break };
            batch = self.finish_part(other, batch);
            left = rest;
        }
        self.lower_all(batch);
        self.done = done;
        reaped.map_err(Error::from)?;
        if self.put_off.is_unsent() {
            self.door.submit().map_err(Error::from)?;
        }
        Ok(())
    }

    /// Drives without waiting, for another thread: a failure shows up at the owner's next call.
    pub(crate) fn drive_quietly(&mut self) {
        let _shown_to_the_owner = self.drive(Wait::No);
    }

    /// Delivers a plain request with this label if it transferred all its bytes. It stays in flight until
    /// [`QueueState::lower_all`].
    #[inline(always)]
    fn deliver_plain(&mut self, done: Done, label: Label) -> bool {
        let number = slot_of(done.tag);
        let slot = &mut self.slots[number as usize];
        if slot.label != label || done.result != slot.length as i32 {
            return false;
        }
        // Built in place: a value built on the stack would be copied with loads wider than the stores, which stall
        // store forwarding.
        let door = &mut self.door;
        let completion = || {
            slot.label = Label::FREE;
            Completion { tag: slot.tag, result: Ok(slot.length as usize), payload: door.take_landed(done) }
        };
        self.ready.extend(std::iter::once_with(completion));
        self.free.push(number);
        true
    }

    /// Finishes what [`QueueState::deliver_plain`] refused: a request with another label, one with completion work, one
    /// part of several, or a failure. Returns the batch to continue with.
    #[inline(never)]
    fn finish_part(&mut self, done: Done, batch: Landed) -> Landed {
        self.door.land(done);
        if self.retry(done) {
            return batch;
        }
        let number = slot_of(done.tag);
        let Slot { label, pos, length, .. } = self.slots[number as usize];
        if label.writes() {
            self.counters.add(Counter::BytesWritten, u64::from(done.result.max(0) as u32));
        }
        let next = if label.kind() == Kind::Plain && label != batch.label {
            self.lower_all(batch);
            Landed { label, count: 0 }
        } else {
            batch
        };
        match label.kind() {
            Kind::Plain | Kind::Single => {
                let error = self.failure(done, pos, length, label);
                self.finish(number, u64::from(length), error);
            }
            Kind::General => self.finish_general_part(done, number, label),
            Kind::Free | Kind::Sync => {}
        }
        next
    }

    fn finish_general_part(&mut self, done: Done, number: u32, label: Label) {
        let Some(general) = &self.general[number as usize] else { return };
        let (pos, length, _) = general.parts[part_of(done.tag) as usize];
        let failed = self.failure(done, pos, length, label);
        let Some(general) = &mut self.general[number as usize] else { return };
        general.error = general.error.take().or(failed);
        general.ended += 1;
        if general.is_over() {
            self.finish_general(number);
        }
    }

    /// All transfers of a general request are done.
    pub(super) fn finish_general(&mut self, number: u32) {
        match &self.general[number as usize] {
            Some(general) if general.appends => {
                self.finish_in_order(self.slots[number as usize].label.file());
            }
            _ => self.finish_over(number),
        }
    }

    /// The same when its turn has come.
    pub(super) fn finish_over(&mut self, number: u32) {
        let Some(general) = &mut self.general[number as usize] else { return };
        let payload = self.door.idle_payload(number);
        for (offset, length) in std::mem::take(&mut general.zero) {
            payload.zero(offset, length);
        }
        let (visible, error) = (general.visible, general.error.take());
        self.slots[number as usize].length = u32::try_from(visible).unwrap_or(u32::MAX);
        self.finish(number, visible, error);
    }

    /// The transfers of a request are done. Conversion and durability, if needed, follow with the batch.
    fn finish(&mut self, number: u32, bytes: u64, error: Option<F::Error>) {
        let label = self.slots[number as usize].label;
        self.note_write(label);
        let durability = label.durability();
        let fills = self.general[number as usize].as_ref().is_some_and(|general| general.fresh.is_some());
        if error.is_none() && (fills || matches!(durability, Durability::Datasync | Durability::Fsync)) {
            self.to_sync.push(number);
            return;
        }
        self.lower(number);
        self.deliver(number, error.map_or(Ok(bytes as usize), Err));
    }

    /// Why a device request of `label` failed, if it did. After a failed FUA write the contents of the medium are
    /// unknown, and no later flush reports that: the volume is aborted.
    #[inline]
    fn failure(&mut self, done: Done, pos: u64, expected: u32, label: Label) -> Option<F::Error> {
        let error = self.reason(done, pos, expected, label.writes())?;
        let lost = label.durability() == Durability::Fua && error != Error::WouldBlock;
        Some(if lost { self.engine.fatal(error) } else { error.into() })
    }

    pub(super) fn submit(&mut self) -> Result<usize, F::Error> {
        Ok(self.door.submit().map_err(Error::from)?)
    }

    pub(super) fn wait(&mut self, count: usize, out: &mut Vec<Completion<F::Error>>) -> Result<(), F::Error> {
        // Queued syncs run now, after all requests that completed before.
        self.drive(Wait::No)?;
        while self.ready.len() < count && self.free.len() < self.slots.len() {
            let before = self.ready.len();
            if self.door.in_flight() == 0 && self.syncing.is_some() {
                self.await_synced(None);
                self.drive(Wait::No)?;
                continue;
            }
            let missing = (count - self.ready.len()).min(self.door.in_flight() as usize).max(1);
            self.drive(Wait::AtLeast(missing as u32))?;
            if self.ready.len() == before && self.door.in_flight() == 0 && self.syncing.is_none() {
                // A request interrupted by a panic keeps its slot and never completes.
                break;
            }
        }
        self.hand_over(out);
        Ok(())
    }

    /// Delivers the completions available; slow work runs on another thread.
    pub(super) fn poll(&mut self, out: &mut Vec<Completion<F::Error>>) -> Result<(), F::Error> {
        self.reap(Wait::No)?;
        self.sync_aside();
        self.hand_over(out);
        Ok(())
    }

    /// The same, waiting at most `timeout` if nothing is available.
    pub(super) fn wait_timeout(
        &mut self,
        timeout: Duration,
        out: &mut Vec<Completion<F::Error>>,
    ) -> Result<(), F::Error> {
        // `None`: past the end of the clock, so no deadline.
        let deadline = Instant::now().checked_add(timeout);
        self.reap(Wait::No)?;
        self.sync_aside();
        while self.ready.is_empty() {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            match (&self.syncing, self.door.in_flight()) {
                (Some(_), 0) => self.await_synced(deadline),
                // Alternate between the two things to wait for: the device and the running batch.
                (Some(_), _) => self.reap(Wait::Timeout(left.min(TURN)))?,
                (None, _) => self.reap(Wait::Timeout(left))?,
            }
            self.sync_aside();
            if self.syncing.is_none() && self.door.in_flight() == 0 {
                break;
            }
        }
        self.hand_over(out);
        Ok(())
    }

    /// Hands over the finished requests, usually by swapping the two lists, so that none is copied.
    fn hand_over(&mut self, out: &mut Vec<Completion<F::Error>>) {
        if out.is_empty() {
            std::mem::swap(&mut self.ready, out);
        } else {
            out.append(&mut self.ready);
        }
    }

    /// Waits for everything in flight and releases all files.
    pub(super) fn shut_down(&mut self) {
        while self.free.len() < self.slots.len() {
            let before = self.free.len();
            // If the queue cannot be driven any more, its drop waits for it and releases the remaining files.
            let stuck = self.drive(Wait::AtLeast(1)).is_err() || self.door.in_flight() == 0;
            self.await_synced(None);
            if stuck && self.free.len() == before {
                break;
            }
        }
        for file in self.files.iter_mut() {
            drop(file.take_if(|file| file.is_idle()));
        }
    }
}
