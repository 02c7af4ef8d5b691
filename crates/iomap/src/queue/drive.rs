//! Driving a queue: reap all, finish per slot, then one commit and flush for the whole batch, then deliver.

use super::Completion;
use super::core::QueueState;
use super::slot::{Kind, Label, Landed, Slot};
use crate::door::{part_of, slot_of};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::plan::Durability;
use std::time::{Duration, Instant};
use uext4_blockdev::{Done, Wait};

/// How long a wait with a time-out stays with the device while a commit or a flush is under way beside it.
const TURN: Duration = Duration::from_millis(1);

impl<F: FileSystem> QueueState<F> {
    /// Reaps what `wait` allows and finishes it, durability included. Also submits. Callers that hold a gate use
    /// [`QueueState::reap`]. One that is still waiting for a drain must finish these requests, which are in flight
    /// until they are durable, and may: a commit never waits for a gate (lock order).
    pub(crate) fn drive(&mut self, wait: Wait) -> Result<(), F::Error> {
        let reaped = self.reap(wait);
        self.sync_here();
        reaped
    }

    /// [`QueueState::drive`] up to the requests that need a commit or a flush, which stay for the next drive.
    pub(super) fn reap(&mut self, wait: Wait) -> Result<(), F::Error> {
        let mut done = std::mem::take(&mut self.done);
        done.clear();
        self.now_ns = crate::clock::coarse_now_ns();
        let reaped = self.door.reap(&mut done, wait);
        let mut batch = Landed::NONE;
        let mut left = &done[..];
        loop {
            let landed = left.iter().position(|&done| !self.deliver_plain(done, batch.label));
            let landed = landed.unwrap_or(left.len());
            batch.count += landed as u16;
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

    /// Drives without waiting, for somebody else's sake: a failure shows up at the owner's next call.
    pub(crate) fn drive_quietly(&mut self) {
        let _shown_to_the_owner = self.drive(Wait::No);
    }

    /// Delivers a plain request of this label if it transferred all its bytes. It stays in flight until
    /// [`QueueState::lower_all`].
    #[inline(always)]
    fn deliver_plain(&mut self, done: Done, label: Label) -> bool {
        let number = slot_of(done.tag);
        let slot = &mut self.slots[number as usize];
        if slot.label != label || done.result != slot.length as i32 {
            return false;
        }
        // Made where it stays: pushed as a value it would be put together on the stack first, and fetched from
        // there with loads wider than the stores, which wait for them.
        let door = &mut self.door;
        let completion = || {
            slot.label = Label::FREE;
            Completion { tag: slot.tag, result: Ok(slot.length as usize), payload: door.take_landed(done) }
        };
        self.ready.extend(std::iter::once_with(completion));
        self.free.push(number);
        true
    }

    /// Finishes what [`QueueState::deliver_plain`] refused: a request of another label, one with work at completion, a
    /// part of several, or a failure. Returns the batch to go on with.
    #[inline(never)]
    fn finish_part(&mut self, done: Done, batch: Landed) -> Landed {
        self.door.land(done);
        if self.retry(done) {
            return batch;
        }
        let number = slot_of(done.tag);
        let Slot { label, pos, length, .. } = self.slots[number as usize];
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

    /// All transfers of a general request are over.
    pub(super) fn finish_general(&mut self, number: u32) {
        let Some(general) = &mut self.general[number as usize] else { return };
        let payload = self.door.idle_payload(number);
        for (offset, length) in std::mem::take(&mut general.zero) {
            payload.zero(offset, length);
        }
        let (visible, error) = (general.visible, general.error.take());
        self.slots[number as usize].length = u32::try_from(visible).unwrap_or(u32::MAX);
        self.finish(number, visible, error);
    }

    /// The transfers of a request are over. What it still needs, conversion or durability, it gets with the batch.
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

    /// Why a device request of `label` failed, if it did. After a failed FUA write nobody knows what is on the medium,
    /// and nobody flushes it later: the volume is aborted.
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
        // Syncs that were queued are due now, after everything that completed before.
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
                // A request that a panic cut off holds its slot and never completes.
                break;
            }
        }
        self.hand_over(out);
        Ok(())
    }

    /// Delivers what is there; whatever takes long is done beside this call.
    pub(super) fn poll(&mut self, out: &mut Vec<Completion<F::Error>>) -> Result<(), F::Error> {
        self.reap(Wait::No)?;
        self.sync_aside();
        self.hand_over(out);
        Ok(())
    }

    /// The same, waiting at most `timeout` if nothing is there.
    pub(super) fn wait_timeout(
        &mut self,
        timeout: Duration,
        out: &mut Vec<Completion<F::Error>>,
    ) -> Result<(), F::Error> {
        // None: later than any clock tells.
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
                // Two things to wait for and one place to wait in: by turns.
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

    /// Gives the finished requests away; usually by exchanging the two lists, so that none is copied.
    fn hand_over(&mut self, out: &mut Vec<Completion<F::Error>>) {
        if out.is_empty() {
            std::mem::swap(&mut self.ready, out);
        } else {
            out.append(&mut self.ready);
        }
    }

    /// Waits for everything in flight and lets all files go.
    pub(super) fn shut_down(&mut self) {
        while self.free.len() < self.slots.len() {
            let before = self.free.len();
            // A queue that cannot be driven any more is waited for when it is dropped, with the files it
            // still has.
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
