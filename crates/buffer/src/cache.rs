//! The cache: look-up, loading, verification.

use crate::buffer::{Buffer, BufferState, Check, Content};
use crate::guard::{BufferPin, BufferRef};
use crate::options::{CacheOptions, READ_AHEAD_BYTES, budget_blocks};
use crate::scratch::ScratchPool;
use crate::shard::{Shard, shard_count};
use crate::stats::Stats;
use crate::sync::{AtomicU64, Ordering};
use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;
use uext4_blockdev::{Device, Geometry};

/// Identities of caches, so that a pin cannot be used with the wrong one.
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// A cache of the blocks of one device. Cheap to clone: clones share everything. See the crate documentation.
#[derive(Clone)]
pub struct BufferCache(Arc<CacheInner>);

struct CacheInner {
    device: Arc<dyn Device>,
    geometry: Geometry,
    identity: u64,
    block_size: u32,
    blocks: u64,
    budget_bytes: AtomicU64,
    scratch: ScratchPool,
    /// Larger areas for reading ahead.
    runs: ScratchPool,
    shards: Box<[Shard]>,
}

impl BufferCache {
    /// A cache over `device`. Nothing is read.
    ///
    /// # Errors
    /// [`Error::BadOption`] if the options are malformed or ask for more than the device holds.
    pub fn new(device: Arc<dyn Device>, options: &CacheOptions) -> Result<BufferCache> {
        let geometry = device.geometry();
        let resolved = options.resolve(&geometry)?;
        let shards = shard_count(resolved.budget_blocks);
        let capacity = resolved.budget_blocks / shards;
        let transfer = resolved.block_size.max(geometry.logical_block) as usize;
        Ok(BufferCache(Arc::new(CacheInner {
            device,
            geometry,
            identity: NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed),
            block_size: resolved.block_size,
            blocks: resolved.blocks,
            budget_bytes: AtomicU64::new(options.budget_bytes),
            scratch: ScratchPool::new(transfer, geometry.memory_align as usize),
            runs: ScratchPool::new(READ_AHEAD_BYTES as usize, geometry.memory_align as usize),
            shards: (0..shards).map(|_| Shard::new(capacity)).collect(),
        })))
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.0.block_size
    }

    /// Blocks that can be addressed.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// The device underneath.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// Changes the budget and evicts down to it.
    ///
    /// # Errors
    /// [`Error::BadOption`] if it is less than one block per shard (shards are fixed at creation).
    pub fn set_budget(&self, bytes: u64) -> Result<()> {
        let capacity = budget_blocks(bytes, self.0.block_size)? / self.0.shards.len();
        if capacity == 0 {
            let reason = "less than one block per shard";
            return Err(Error::BadOption { option: "budget_bytes", value: bytes, reason });
        }
        self.0.budget_bytes.store(bytes, Ordering::Relaxed);
        self.0.shards.iter().for_each(|shard| shard.set_capacity(capacity));
        Ok(())
    }

    /// Pins a block without reading it. Not an access right: the contents may change any time.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn pin(&self, block: u64) -> Result<BufferPin> {
        self.check_range(block)?;
        Ok(self.shard(block).find_or_insert(block, self.0.identity))
    }

    /// The current contents of a block, read from the device if needed. Contents read here are **not**
    /// verified; readers of checksummed structures use [`BufferCache::get_or_verify`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or the device's error; a failed read leaves nothing in the cache.
    pub fn read(&self, block: u64) -> Result<BufferRef> {
        let pin = self.pin(block)?;
        match self.load(&pin) {
            Ok((image, check)) => Ok(BufferRef::new(pin, image, check == Check::Verified)),
            Err(error) => {
                self.discard(pin);
                Err(error)
            }
        }
    }

    /// The current contents of a block after `verify` accepted them.
    ///
    /// Each load of a block is verified once: one caller runs its `verify` (without any lock held), the
    /// others wait for the verdict. If the verifier refuses, its caller gets the reason, the contents are
    /// dropped, and the next caller reads the device again. All callers must agree on what they verify for a
    /// block. A verifier must not ask the cache for the same block.
    ///
    /// # Errors
    /// Those of [`BufferCache::read`], or what `verify` returned.
    pub fn get_or_verify<E: From<Error>>(
        &self,
        block: u64,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<BufferRef, E> {
        let pin = self.pin(block)?;
        match self.load_verified(&pin, block, verify) {
            Ok(image) => Ok(BufferRef::new(pin, image, true)),
            Err(error) => {
                self.discard(pin);
                Err(error)
            }
        }
    }

    /// The same for contents whose soundness depends on who asks, as that of a block whose checksum covers its owner:
    /// `whom` (not 0) names everything that `verify` depends on besides the contents. They are verified again for
    /// another one, and after every change but [`BufferCache::modify_for`]. What `verify` refuses stays in the cache.
    ///
    /// # Errors
    /// As [`BufferCache::get_or_verify`].
    pub fn get_or_verify_for<E: From<Error>>(
        &self,
        block: u64,
        whom: u128,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<BufferRef, E> {
        let pin = self.pin(block)?;
        let state = pin.buffer().lock();
        if let Content::Present { image, .. } = &state.content
            && state.sound_for == whom
        {
            let image = Arc::clone(image);
            drop(state);
            self.shard(block).counters.hits.count();
            return Ok(BufferRef::new(pin, image, false));
        }
        drop(state);
        let seen = self.read(block)?;
        self.shard(block).counters.verifications.count();
        verify(&seen)?;
        let mut state = pin.buffer().lock();
        // Contents that replaced these meanwhile are judged on their own.
        if state.content.is(seen.snapshot()) {
            state.sound_for = whom;
        }
        drop(state);
        Ok(seen)
    }

    /// State of a block, if it is resident.
    #[must_use]
    pub fn state(&self, block: u64) -> Option<BufferState> {
        let pin = self.shard(block).find(block)?;
        let state = pin.buffer().lock().describe();
        Some(state)
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let size = u64::from(self.0.block_size);
        let budget_bytes = self.0.budget_bytes.load(Ordering::Relaxed);
        let mut stats = Stats { budget_bytes, ..Stats::default() };
        for shard in &self.0.shards {
            shard.counters.add_to(&mut stats);
            for buffer in shard.buffers() {
                let state = buffer.lock();
                stats.resident_bytes += size;
                stats.pinned_blocks += u64::from(buffer.is_pinned());
                stats.dirty_bytes += if state.home.is_due() || state.writing { size } else { 0 };
            }
        }
        stats
    }

    pub(crate) fn identity(&self) -> u64 {
        self.0.identity
    }

    /// Runs `transfer` on [`READ_AHEAD_BYTES`] of aligned memory.
    pub(crate) fn with_run<R>(&self, transfer: impl FnOnce(&mut [u8]) -> R) -> R {
        self.0.runs.with(transfer)
    }

    /// Takes on the load of a block that has no contents, if nobody else is at it.
    pub(crate) fn begin_load<'a>(&self, pin: &'a BufferPin) -> Option<LoadGuard<'a>> {
        let buffer = pin.buffer();
        let mut state = buffer.lock();
        if !matches!(state.content, Content::Empty) {
            return None;
        }
        state.load_serial += 1;
        state.content = Content::Loading;
        self.shard(buffer.block).counters.misses.count();
        Some(LoadGuard { buffer, serial: state.load_serial, finished: false })
    }

    /// The pin again, unless the buffer has no contents.
    pub(crate) fn keep_if_present(&self, pin: BufferPin) -> Option<BufferPin> {
        if !matches!(pin.buffer().lock().content, Content::Empty) {
            return Some(pin);
        }
        self.discard(pin);
        None
    }

    /// Contents and verdict, loading first if needed. One caller loads, the others wait for its result.
    pub(crate) fn load(&self, pin: &BufferPin) -> Result<(Arc<[u8]>, Check)> {
        let buffer = pin.buffer();
        let counters = &self.shard(buffer.block).counters;
        let mut state = buffer.lock();
        loop {
            match &state.content {
                Content::Present { image, check } => {
                    counters.hits.count();
                    return Ok((Arc::clone(image), *check));
                }
                Content::Empty => break,
                Content::Loading => {}
            }
            counters.waits.count();
            let awaited = state.load_serial;
            while matches!(state.content, Content::Loading) && state.load_serial == awaited {
                buffer.wait(&mut state);
            }
            if let Some((serial, error)) = &state.load_failure
                && *serial >= awaited
            {
                return Err(error.clone());
            }
        }
        state.load_serial += 1;
        state.content = Content::Loading;
        let mut running = LoadGuard { buffer, serial: state.load_serial, finished: false };
        drop(state);
        counters.misses.count();
        let result = self.read_device(buffer.block);
        if result.is_err() {
            counters.load_errors.count();
        }
        running.finish(&result);
        result.map(|image| (image, Check::Unverified))
    }

    fn load_verified<E: From<Error>>(
        &self,
        pin: &BufferPin,
        block: u64,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Arc<[u8]>, E> {
        let buffer = pin.buffer();
        loop {
            let (image, check) = self.load(pin)?;
            if check == Check::Verified {
                return Ok(image);
            }
            let mut state = buffer.lock_settled();
            // Between the load and here the contents may have been verified, dropped or replaced by others.
            let Content::Present { image, check } = &mut state.content else {
                continue;
            };
            let image = Arc::clone(image);
            if *check == Check::Verified {
                return Ok(image);
            }
            *check = Check::Verifying;
            drop(state);
            self.shard(block).counters.verifications.count();
            let mut running = VerifyGuard { buffer, image, verdict: Verdict::Interrupted };
            let result = verify(&running.image);
            running.verdict = if result.is_ok() { Verdict::Accepted } else { Verdict::Refused };
            let image = Arc::clone(&running.image);
            drop(running);
            return result.map(|()| image);
        }
    }

    /// Reads one block. Where the device's logical block is larger, the device block around it is read.
    pub(crate) fn read_device(&self, block: u64) -> Result<Arc<[u8]>> {
        let core = &*self.0;
        let size = u64::from(core.block_size);
        // In range, so below the device size: no overflow.
        let pos = block * size;
        // Bytes before the block in its device block: zero unless device blocks are larger than ours.
        let skip = pos & (u64::from(core.geometry.logical_block) - 1);
        core.scratch.with(|memory| match core.device.read_at(memory, pos - skip) {
            Ok(()) => Ok(Arc::from(&memory[skip as usize..][..size as usize])),
            Err(source) => Err(Error::Device { block, source }),
        })
    }

    /// Writes images of neighbouring blocks to their home places, [`READ_AHEAD_BYTES`] at most, in one request. Only
    /// for devices that write whole blocks.
    pub(crate) fn write_device<'i>(
        &self,
        first: u64,
        images: impl ExactSizeIterator<Item = &'i [u8]>,
    ) -> Result<()> {
        let core = &*self.0;
        let size = core.block_size as usize;
        let pos = first * u64::from(core.block_size);
        let blocks = images.len();
        // A single block does not occupy a large area.
        let areas = if blocks == 1 { &core.scratch } else { &core.runs };
        let written = areas.with(|memory| {
            let memory = &mut memory[..blocks * size];
            for (place, image) in memory.chunks_exact_mut(size).zip(images) {
                place.copy_from_slice(image);
            }
            core.device.write_at(memory, pos, uext4_blockdev::WriteDurability::Cached)
        });
        written.map_err(|source| Error::Device { block: first, source })?;
        let count = |block| self.shard(block).counters.writes.count();
        (first..first + blocks as u64).for_each(count);
        Ok(())
    }

    /// Lets go of a pin whose buffer may have ended up without contents: an empty buffer must not use the
    /// budget.
    pub(crate) fn discard(&self, pin: BufferPin) {
        let block = pin.block();
        drop(pin);
        self.shard(block).remove_if_empty(block);
    }

    pub(crate) fn check_range(&self, block: u64) -> Result<()> {
        if block < self.0.blocks { Ok(()) } else { Err(Error::OutOfRange { block, blocks: self.0.blocks }) }
    }

    /// The pin is one of ours.
    pub(crate) fn check_pin(&self, pin: &BufferPin) -> Result<()> {
        if pin.buffer().cache == self.0.identity {
            Ok(())
        } else {
            Err(Error::ForeignPin { block: pin.block() })
        }
    }

    /// The device can write single blocks.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let CacheInner { block_size, geometry: Geometry { logical_block, .. }, .. } = *self.0;
        if self.0.device.capabilities().read_only {
            return Err(Error::ReadOnly);
        }
        if logical_block > block_size {
            Err(Error::SubBlockWrite { block_size, logical_block })
        } else {
            Ok(())
        }
    }

    pub(crate) fn shard(&self, block: u64) -> &Shard {
        // Fibonacci hashing spreads neighbours and strides (group starts) over the shards.
        let hash = block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.0.shards[hash as usize & (self.0.shards.len() - 1)]
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.0.shards
    }
}

impl fmt::Debug for BufferCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferCache")
            .field("device", &self.0.device)
            .field("block_size", &self.0.block_size)
            .field("blocks", &self.0.blocks)
            .field("resident", &self.0.shards.iter().map(Shard::len).sum::<usize>())
            .finish_non_exhaustive()
    }
}

/// A load in progress. If the loading thread panics, the waiters get an error instead of waiting for ever.
pub(crate) struct LoadGuard<'a> {
    buffer: &'a Buffer,
    serial: u64,
    finished: bool,
}

impl LoadGuard<'_> {
    pub(crate) fn block(&self) -> u64 {
        self.buffer.block
    }

    pub(crate) fn finish(&mut self, result: &Result<Arc<[u8]>>) {
        self.finished = true;
        self.buffer.lock().finish_load(self.serial, result);
        self.buffer.wake();
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.finish(&Err(Error::LoadInterrupted { block: self.buffer.block }));
        }
    }
}

enum Verdict {
    Interrupted,
    Accepted,
    Refused,
}

/// A verification in progress; settles it also if the verifier panics.
struct VerifyGuard<'a> {
    buffer: &'a Buffer,
    image: Arc<[u8]>,
    verdict: Verdict,
}

impl Drop for VerifyGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.buffer.lock();
        let unowned = state.is_unowned();
        // The verdict is about this image: contents that replaced it are judged on their own.
        if let Content::Present { check, image } = &mut state.content
            && Arc::ptr_eq(image, &self.image)
        {
            match self.verdict {
                Verdict::Accepted => *check = Check::Verified,
                // Read again next time: the medium may answer better. Contents that somebody owns stay.
                Verdict::Refused if unowned => state.content = Content::Empty,
                Verdict::Refused | Verdict::Interrupted => *check = Check::Unverified,
            }
        }
        drop(state);
        self.buffer.wake();
    }
}
