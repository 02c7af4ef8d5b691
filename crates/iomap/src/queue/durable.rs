//! Completion work for requests whose data is complete and that filled unwritten blocks or must be durable. They are
//! batched: one conversion per inode, one commit and one flush per batch, run outside the queue ([`crate::flusher`]).

use super::core::QueueState;
use crate::error::Error;
use crate::flusher::{Outcome, SyncJob, Waker};
use crate::fs::FileSystem;
use crate::plan::Durability;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// A batch whose conversion, commit and flush are running.
pub(crate) struct Syncing<E> {
    slots: Vec<u32>,
    outcome: Arc<Outcome<E>>,
}

impl<F: FileSystem> QueueState<F> {
    /// Makes one job of all requests waiting to be converted or made durable. `None` while the previous batch is
    /// running: later requests share the next one.
    pub(super) fn start_sync(&mut self) -> Option<SyncJob<F>> {
        if self.syncing.is_some() || self.to_sync.is_empty() {
            return None;
        }
        let slots = std::mem::take(&mut self.to_sync);
        let wake = self.signal.as_ref().map(|signal| signal.own.clone());
        let mut job = SyncJob::new(&self.engine, wake);
        for &number in &slots {
            let label = self.slots[number as usize].label;
            if let Some(general) = &mut self.general[number as usize]
                && let Some(fresh) = general.fresh.take()
            {
                general.converting = true;
                job.convert(fresh);
            }
            let all = label.durability() == Durability::Fsync;
            if let Some(attached) = &self.files[label.file()]
                && (all || label.durability() == Durability::Datasync)
            {
                job.sync(&attached.file.inode, all);
            }
        }
        self.syncing = Some(Syncing { slots, outcome: job.outcome() });
        Some(job)
    }

    /// Delivers the running batch, if its outcome is known.
    pub(super) fn finish_synced(&mut self) {
        if let Some(signal) = &self.signal {
            signal.own.clear();
        }
        let Some(done) = self.syncing.as_ref().and_then(|syncing| syncing.outcome.get()) else { return };
        let Some(syncing) = self.syncing.take() else { return };
        if let Some(signal) = &self.signal {
            // The thread that set the outcome may have been between its two wake-up steps at the first clear.
            signal.own.clear();
        }
        let mut converted = done.converted.into_iter();
        for &number in &syncing.slots {
            let slot = self.slots[number as usize];
            let converting = self.general[number as usize].as_ref().is_some_and(|general| general.converting);
            let mut result =
                if converting { converted.next().unwrap_or_else(|| done.synced.clone()) } else { Ok(()) };
            if matches!(slot.label.durability(), Durability::Datasync | Durability::Fsync) {
                result = result.and_then(|()| done.synced.clone());
            }
            self.lower(number);
            self.deliver(number, result.map(|()| slot.length as usize));
        }
        if self.to_sync.is_empty() {
            // Reuse its memory for the next batch.
            self.to_sync = syncing.slots;
            self.to_sync.clear();
        }
    }

    /// Waits for the running batch, at most until `deadline`, and delivers it. Running it needs nothing of this queue.
    pub(super) fn await_synced(&mut self, deadline: Option<Instant>) {
        if let Some(syncing) = &self.syncing {
            syncing.outcome.wait(deadline);
        }
        self.finish_synced();
    }

    /// Makes the waiting requests durable on this thread, if no batch is running.
    pub(super) fn sync_here(&mut self) {
        self.finish_synced();
        if let Some(job) = self.start_sync() {
            job.run();
            self.finish_synced();
        }
    }

    /// Hands the waiting requests to the flusher, or finishes them here if that never waits.
    pub(super) fn sync_aside(&mut self) {
        self.finish_synced();
        let Some(job) = self.start_sync() else { return };
        if job.is_short() {
            job.run();
            self.finish_synced();
        } else {
            self.engine.flusher.take(job);
        }
    }

    /// For a drainer: delivers the running batch, if its outcome is known, and wakes the owner.
    pub(super) fn deliver_synced(&mut self) {
        self.finish_synced();
        self.wake_owner();
    }

    /// Wakes an owner that sleeps on a descriptor after another thread reaped its completions: the device will not
    /// signal them again.
    fn wake_owner(&self) {
        if let Some(signal) = self.signal.as_ref().filter(|_| !self.ready.is_empty()) {
            signal.own.wake();
        }
    }

    pub(super) fn eventfd(&mut self) -> Result<Option<OwnedFd>, F::Error> {
        if self.signal.is_none() {
            let Some(device) = self.door.event_fd().map_err(Error::from)? else { return Ok(None) };
            let signal = Signal::over(device).map_err(failed)?;
            if let Some(syncing) = &self.syncing {
                syncing.outcome.wakes(&signal.own);
            }
            self.signal = Some(signal);
            self.wake_owner();
        } else {
            // Completions since the last look must be signalled again.
            self.door.event_fd().map_err(Error::from)?;
        }
        let shared = self.signal.as_ref().map(|signal| signal.both.try_clone());
        shared.transpose().map_err(|error| failed(error).into())
    }
}

/// One descriptor for device completions and for the outcomes of batches. Poll it, do not read it.
pub(crate) struct Signal {
    both: OwnedFd,
    own: Arc<Waker>,
}

impl Signal {
    fn over(device: BorrowedFd<'_>) -> std::io::Result<Self> {
        let own = Waker::new()?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (data, fd) in [(0, device), (1, own.as_fd())] {
            epoll::add(&both, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)?;
        }
        Ok(Signal { both, own: Arc::new(own) })
    }
}

#[cold]
fn failed(error: std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(5);
    uext4_blockdev::Error::Io { op: "eventfd", pos: 0, length: 0, errno }.into()
}
