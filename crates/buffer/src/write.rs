//! The write side: changing, freezing and writing home.
//!
//! On a volume without a journal a change makes the block dirty and [`BufferCache::write_back`] writes it
//! home. With a journal a block is first filed under the running transaction ([`BufferCache::join`]),
//! changed, frozen by the commit and only due for its home write when the commit is durable: nothing
//! uncommitted ever goes home.

use crate::buffer::{Check, Content, Frozen, Home, HomeImage, Running, State};
use crate::guard::BufferPin;
use crate::options::READ_AHEAD_BYTES;
use crate::shard::Shard;
use crate::sync::MutexGuard;
use crate::{BufferCache, Error, Result, Tid};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

/// Threads that write blocks home at once, at the most, …
const WRITERS: usize = 4;
/// … and blocks for which one is worth it.
const BLOCKS_OF_WRITER: usize = 256;

/// On whose behalf a block is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nobody's: a volume without a journal. The block is dirty at once.
    Direct,
    /// A running transaction that the buffer was joined to.
    Transaction(Tid),
}

impl BufferCache {
    /// Changes a block in place, reading it first if needed. `f` runs with the buffer locked: it must not
    /// call into the cache, and what it changed before a panic stays changed. Snapshots taken before keep
    /// their contents.
    ///
    /// # Errors
    /// [`Error::NotOwner`] if `owner` has no right to the block, [`Error::SubBlockWrite`],
    /// [`Error::ReadOnly`], [`Error::ForeignPin`], or a failed read. `f` was not run then.
    pub fn modify<R>(&self, pin: &BufferPin, owner: Owner, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.modify_for(pin, owner, 0, f)
    }

    /// The same of contents that are sound for `whom` afterwards, as they were before
    /// ([`BufferCache::get_or_verify_for`]).
    ///
    /// # Errors
    /// As [`BufferCache::modify`].
    pub fn modify_for<R>(
        &self,
        pin: &BufferPin,
        owner: Owner,
        whom: u128,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.check_pin(pin)?;
        self.check_writable()?;
        loop {
            let mut state = pin.buffer().lock_settled();
            if matches!(state.content, Content::Empty) {
                drop(state);
                self.load(pin)?;
                continue;
            }
            self.shard(pin.block()).counters.hits.count();
            state.admit(pin.block(), owner)?;
            let changed = change(&mut state, f);
            state.sound_for = whom;
            return Ok(changed);
        }
    }

    /// Gives a block entirely new contents without reading it: `f` gets zeroes. Otherwise as
    /// [`BufferCache::modify`]. The contents count as verified, since their owner made them.
    ///
    /// # Errors
    /// As [`BufferCache::modify`], without the read.
    pub fn overwrite<R>(&self, pin: &BufferPin, owner: Owner, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.check_pin(pin)?;
        self.check_writable()?;
        let image: Arc<[u8]> = std::iter::repeat_n(0, self.block_size() as usize).collect();
        let mut state = pin.buffer().lock_settled();
        state.admit(pin.block(), owner)?;
        state.content = Content::Present { image, check: Check::Verified };
        Ok(change(&mut state, f))
    }

    /// Files a buffer under the running transaction `tid`, which may then change it. An older transaction
    /// that is committing the block keeps its frozen image. Joining twice is one joining.
    ///
    /// # Errors
    /// [`Error::NotOwner`] if another running transaction has the block or `tid` is already committing it;
    /// [`Error::SubBlockWrite`], [`Error::ReadOnly`], [`Error::ForeignPin`].
    pub fn join(&self, pin: &BufferPin, tid: Tid) -> Result<()> {
        self.check_pin(pin)?;
        self.check_writable()?;
        let mut state = pin.buffer().lock();
        if state.running.is_some_and(|running| running.tid == tid) {
            return Ok(());
        }
        let committing = state.frozen.as_ref().is_some_and(|frozen| frozen.tid == tid);
        if state.running.is_some() || committing {
            return Err(not_owner(pin, Some(tid), &state));
        }
        state.running = Some(Running { tid, modified: false });
        Ok(())
    }

    /// Takes a buffer off the running transaction `tid`, which has not changed it.
    ///
    /// # Errors
    /// [`Error::Busy`] if it changed the block, [`Error::NotOwner`] if it does not have it,
    /// [`Error::ForeignPin`].
    pub fn leave(&self, pin: &BufferPin, tid: Tid) -> Result<()> {
        self.check_pin(pin)?;
        let mut state = pin.buffer().lock();
        match state.running {
            Some(running) if running.tid == tid && !running.modified => {
                state.running = None;
                Ok(())
            }
            Some(running) if running.tid == tid => Err(Error::Busy { block: pin.block(), tid }),
            _ => Err(not_owner(pin, Some(tid), &state)),
        }
    }

    /// The transaction `tid` commits: no handle of it is active any more. Returns the image to write to the
    /// log, or nothing if the transaction did not change the block (it then lets go of it). The image stays
    /// what it is; a younger transaction may join and change its own copy meanwhile.
    ///
    /// # Errors
    /// [`Error::Busy`] if an older commit of the block has not ended, [`Error::NotOwner`] if `tid` does not
    /// have the block, [`Error::ForeignPin`].
    pub fn freeze(&self, pin: &BufferPin, tid: Tid) -> Result<Option<Arc<[u8]>>> {
        self.check_pin(pin)?;
        let mut state = pin.buffer().lock();
        let Some(running) = state.running.filter(|running| running.tid == tid) else {
            return Err(not_owner(pin, Some(tid), &state));
        };
        if !running.modified {
            state.running = None;
            return Ok(None);
        }
        if let Some(frozen) = &state.frozen {
            return Err(Error::Busy { block: pin.block(), tid: frozen.tid });
        }
        // A modified buffer has contents: they are never dropped while it is owned.
        let Content::Present { image, .. } = &state.content else {
            return Err(not_owner(pin, Some(tid), &state));
        };
        let image = Arc::clone(image);
        state.frozen = Some(Frozen { tid, image: Arc::clone(&image) });
        state.running = None;
        Ok(Some(image))
    }

    /// The transaction `tid` commits and has freed this block: it lets go of the buffer, whose contents are dropped.
    /// What an older transaction left to be written home stays due until the block is
    /// [forgotten](BufferCache::forget_freed).
    ///
    /// # Errors
    /// [`Error::NotOwner`] if `tid` does not have the block, [`Error::ForeignPin`].
    pub fn abandon(&self, pin: &BufferPin, tid: Tid) -> Result<()> {
        self.check_pin(pin)?;
        let mut state = pin.buffer().lock_settled();
        let Some(running) = state.running.filter(|running| running.tid == tid) else {
            return Err(not_owner(pin, Some(tid), &state));
        };
        state.running = None;
        if running.modified {
            state.content = Content::Empty;
        }
        Ok(())
    }

    /// The commit of `tid` is durable: its frozen image replaces whatever was due to be written home. Until that is
    /// written the log must keep the copy of `tid` ([`BufferCache::write_committed`]).
    ///
    /// # Errors
    /// [`Error::NotOwner`] if `tid` has no frozen image of the block, [`Error::ForeignPin`].
    pub fn committed(&self, pin: &BufferPin, tid: Tid) -> Result<()> {
        self.check_pin(pin)?;
        let mut state = pin.buffer().lock();
        match state.frozen.take() {
            Some(frozen) if frozen.tid == tid => {
                state.set_home(HomeImage { image: frozen.image, tid: Some(tid) });
                Ok(())
            }
            other => {
                state.frozen = other;
                Err(not_owner(pin, Some(tid), &state))
            }
        }
    }

    /// A freed block: drops its contents and any pending home write, after waiting for one that is on its
    /// way, so that nothing of it reaches the device afterwards. Snapshots keep their contents.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Busy`] while a transaction has the block: the journal must let go
    /// first.
    pub fn forget(&self, block: u64) -> Result<()> {
        self.check_range(block)?;
        let Some(pin) = self.shard(block).find(block) else {
            return Ok(());
        };
        let buffer = pin.buffer();
        let mut state = buffer.lock();
        while state.writing || state.content.is_busy() {
            buffer.wait(&mut state);
        }
        if let Some(tid) = state.owner() {
            return Err(Error::Busy { block, tid });
        }
        state.cancel_home();
        state.content = Content::Empty;
        drop(state);
        self.discard(pin);
        Ok(())
    }

    /// A block that a committed transaction freed: as [`BufferCache::forget`]. Should a younger transaction have the
    /// block again, only the pending home write of what it was is dropped.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn forget_freed(&self, block: u64) -> Result<()> {
        self.check_range(block)?;
        let Some(pin) = self.shard(block).find(block) else {
            return Ok(());
        };
        let buffer = pin.buffer();
        let mut state = buffer.lock();
        while state.writing || state.content.is_busy() {
            buffer.wait(&mut state);
        }
        state.cancel_home();
        if state.is_unowned() {
            state.content = Content::Empty;
        }
        drop(state);
        self.discard(pin);
        Ok(())
    }

    /// Writes home every block that is due when the call begins, in block order, and waits for home writes of
    /// others that are on their way. Returns how many blocks this call wrote. They are durable after the next
    /// device flush.
    ///
    /// # Errors
    /// The first failed write. That block and those not reached stay due.
    pub fn write_back(&self) -> Result<u64> {
        let mut due: Vec<BufferPin> = Vec::new();
        for shard in self.shards() {
            due.extend(shard.pin_all().into_iter().filter(|pin| {
                let state = pin.buffer().lock();
                state.home.is_due() || state.writing
            }));
        }
        due.sort_unstable_by_key(BufferPin::block);
        let written = self.write_runs(&due, |_| true)?;
        drop(due);
        self.shards().iter().for_each(Shard::trim);
        Ok(written)
    }

    /// Writes home what of these blocks became due by transactions up to `newest`, neighbours together, and waits for
    /// home writes of others that are on their way. Blocks that a younger transaction committed again are left to it.
    /// Returns how many blocks this call wrote. They, and what others had written before, are durable after the next
    /// device flush: then the log need not keep copies of those transactions for the sake of these blocks.
    ///
    /// `pins` are in the order of their blocks.
    ///
    /// # Errors
    /// The first failed write; those blocks and the ones not reached stay due. [`Error::ForeignPin`].
    pub fn write_committed(&self, pins: &[BufferPin], newest: Tid) -> Result<u64> {
        pins.iter().try_for_each(|pin| self.check_pin(pin))?;
        self.write_runs(pins, |tid| tid.is_some_and(|tid| tid <= newest))
    }

    /// Writes home what is due of these blocks, neighbours together, and waits for home writes of others that are on
    /// their way. Returns how many blocks this call wrote. They are durable after the next device flush.
    ///
    /// `pins` are in the order of their blocks.
    ///
    /// # Errors
    /// The first failed write; those blocks and the ones not reached stay due. [`Error::ForeignPin`].
    pub fn write_due(&self, pins: &[BufferPin]) -> Result<u64> {
        pins.iter().try_for_each(|pin| self.check_pin(pin))?;
        self.write_runs(pins, |_| true)
    }

    /// [`BufferCache::write_back`], then a device flush: everything due when the call began is durable.
    ///
    /// # Errors
    /// A failed write, or [`Error::Flush`].
    pub fn sync(&self) -> Result<u64> {
        let written = self.write_back()?;
        self.device().flush().map_err(Error::Flush)?;
        Ok(written)
    }

    /// Writes the due images of blocks, those that `wanted` says by the transaction that they are due for. Many blocks
    /// are shared among threads, so that several requests are in flight. (A queue of the device would take tags of the
    /// queues that I/O of files goes through.) Writes of one block never overtake each other.
    fn write_runs(&self, pins: &[BufferPin], wanted: impl Fn(Option<Tid>) -> bool + Sync) -> Result<u64> {
        let writers = (pins.len() / BLOCKS_OF_WRITER).clamp(1, WRITERS);
        let part = pins.len().div_ceil(writers).next_multiple_of(self.most_at_once());
        let mut parts = pins.chunks(part.max(1));
        let own = parts.next().unwrap_or_default();
        let write = |part| self.write_part(part, &wanted);
        std::thread::scope(|scope| {
            let (mut threads, mut written) = (Vec::with_capacity(writers), Vec::with_capacity(writers));
            for part in parts {
                match std::thread::Builder::new().spawn_scoped(scope, move || write(part)) {
                    Ok(thread) => threads.push(thread),
                    // It may have no more threads.
                    Err(_) => written.push(write(part)),
                }
            }
            written.push(write(own));
            let end =
                |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            written.extend(threads.into_iter().map(end));
            written.into_iter().sum()
        })
    }

    /// What one thread writes, in order.
    fn write_part(&self, pins: &[BufferPin], wanted: &impl Fn(Option<Tid>) -> bool) -> Result<u64> {
        let most = self.most_at_once();
        let mut run: Vec<HomeWrite<'_>> = Vec::with_capacity(most.min(pins.len()));
        let mut written = 0;
        for pin in pins {
            let adjacent = run.last().is_some_and(|last| last.pin.block() + 1 == pin.block());
            if !run.is_empty() && (!adjacent || run.len() >= most) {
                written += self.write_run(&mut run)?;
            }
            let buffer = pin.buffer();
            let mut state = buffer.lock();
            if state.writing && !run.is_empty() {
                // Whoever writes it may wait for one of ours.
                drop(state);
                written += self.write_run(&mut run)?;
                state = buffer.lock();
            }
            while state.writing {
                buffer.wait(&mut state);
            }
            if !wanted(state.home_tid) {
                continue;
            }
            if let Some(due) = state.take_home() {
                state.writing = true;
                drop(state);
                run.push(HomeWrite { pin, due, failed: true });
            }
        }
        Ok(written + self.write_run(&mut run)?)
    }

    /// Blocks of a request, at the most.
    fn most_at_once(&self) -> usize {
        (READ_AHEAD_BYTES / self.block_size()) as usize
    }

    /// Writes neighbouring blocks in one request.
    fn write_run(&self, run: &mut Vec<HomeWrite<'_>>) -> Result<u64> {
        let Some(first) = run.first().map(|write| write.pin.block()) else { return Ok(0) };
        let images = run.iter().map(|write| &*write.due.image);
        let result = self.write_device(first, images);
        let written = run.len() as u64;
        run.iter_mut().for_each(|write| write.failed = result.is_err());
        run.clear();
        result.map(|()| written)
    }
}

/// A home write in progress: an image that did not reach the device (error or panic) is due again.
struct HomeWrite<'a> {
    pin: &'a BufferPin,
    due: HomeImage,
    failed: bool,
}

impl Drop for HomeWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.pin.buffer().lock();
        state.writing = false;
        if self.failed {
            state.restore_home(self.due.clone());
        }
        drop(state);
        self.pin.buffer().wake();
    }
}

impl State {
    /// Checks the right of `owner` and notes that it changes the block.
    fn admit(&mut self, block: u64, owner: Owner) -> Result<()> {
        match owner {
            Owner::Direct => {
                if let Some(tid) = self.owner() {
                    return Err(Error::NotOwner { block, wanted: None, owner: Some(tid) });
                }
                // A copy in the log stands for the block until it is written, with whatever contents.
                self.home = Home::Current;
            }
            Owner::Transaction(tid) => {
                let owner = self.owner();
                let Some(running) = self.running.as_mut().filter(|running| running.tid == tid) else {
                    return Err(Error::NotOwner { block, wanted: Some(tid), owner });
                };
                running.modified = true;
                self.keep_home_aside();
            }
        }
        Ok(())
    }
}

/// Runs `f` on the contents, on a private copy if a reader, a commit or a home write holds the image.
fn change<R>(state: &mut MutexGuard<'_, State>, f: impl FnOnce(&mut [u8]) -> R) -> R {
    state.sound_for = 0;
    match &mut state.content {
        Content::Present { image, .. } => f(Arc::make_mut(image)),
        Content::Empty | Content::Loading => {
            unreachable!("callers make sure of contents under the same lock")
        }
    }
}

fn not_owner(pin: &BufferPin, wanted: Option<Tid>, state: &State) -> Error {
    Error::NotOwner { block: pin.block(), wanted, owner: state.owner() }
}
