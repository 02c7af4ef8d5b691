//! Owning a volume with multi-mount protection: claiming its block, refreshing it, releasing it.
//!
//! Follows Linux (`fs/ext4/mmp.c`): a block marked "clean" is claimed at once. Any other number must not change for
//! twice the check interval; then it is replaced, and the new one must not change for as long again. From then on a
//! thread writes the next number every few seconds, from before recovery until all blocks are written home.
//!
//! Linux checks whether somebody else has written the block only if its own refresh was late. Here each refresh checks
//! first. If another owner is found, we stop at once: the device is no longer ours, so nothing is written, not even the
//! cause into the log. A process that was stopped for longer than the check interval notices only at its next refresh,
//! as in Linux; its writes until then reach the device.

use super::mmp::{in_use, read};
use super::on_device::write_bytes;
use crate::ground::clock::Clock;
use crate::ground::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uext4_blockdev::Device;
use uext4_ondisk::ext4::{MmpBlock, MmpOwner, Superblock};

/// The shortest check interval in seconds, and the longest that adds to itself once more in the wait time.
const CHECK_MIN: u16 = 5;
const WAIT_MORE: u16 = 60;
/// The longest check interval that Linux writes. A larger one in a block must not make us wait for hours.
const CHECK_MAX: u16 = 300;
/// The largest sequence number of an owner.
const SEQUENCE_MAX: u32 = 0xE24D_4D4F;

/// Called with the cause when the volume is lost.
type OnLost = Box<dyn FnOnce(&str) + Send>;

/// Ownership of a volume; it lasts as long as this value.
pub(crate) struct Heartbeat {
    block: Arc<Block>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

/// The block's location, and what we know of it.
struct Block {
    device: Arc<dyn Device>,
    superblock: Superblock,
    /// Length of a second; shorter in tests.
    second: Duration,
    clock: Clock,
    state: Mutex<State>,
    told: Condvar,
}

struct State {
    /// The block as we last wrote it.
    written: MmpBlock,
    stop: bool,
    lost: Option<Arc<str>>,
    on_lost: Option<OnLost>,
}

/// For how many seconds a number must not change to show that its owner is gone.
fn wait_time(interval: u16) -> u32 {
    (2 * u32::from(interval) + 1).min(u32::from(interval) + u32::from(WAIT_MORE))
}

fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let length = text.len().min(N - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

/// Claims the volume, if it has the feature. May take a minute if the last owner did not release it.
///
/// # Errors
/// [`Error::InUse`] naming the owner; those of reading and writing the block; [`Error::Invalid`] if the system cannot
/// start a thread. The volume is then unclaimed, or released again.
pub(crate) fn claim(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    second: Duration,
    clock: Clock,
) -> Result<Option<Heartbeat>> {
    let Some(found) = read(&**device, superblock)? else { return Ok(None) };
    let update = superblock.mmp.interval.max(1);
    let wait = match found.owner() {
        MmpOwner::Nobody => Duration::ZERO,
        MmpOwner::Mounted(_) if found.check_interval.max(update) > CHECK_MAX => {
            return Err(in_use(&found, superblock));
        }
        MmpOwner::Mounted(_) => wait_time(found.check_interval.max(update).max(CHECK_MIN)) * second,
        MmpOwner::Checker | MmpOwner::Unknown(_) => return Err(in_use(&found, superblock)),
    };
    stands_still(device, superblock, found, wait)?;
    let (node, locator) = match clock.fixed() {
        // For people to read; it stays in the block.
        None => (
            std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default(),
            device.describe().locator,
        ),
        Some(_) => Default::default(),
    };
    let written = MmpBlock {
        sequence: (RandomState::new().hash_one(found.sequence) % u64::from(SEQUENCE_MAX)) as u32 + 1,
        time: clock.seconds(),
        node_name: text(node.trim_end()),
        device_name: text(locator.rsplit('/').next().unwrap_or_default()),
        check_interval: update.saturating_mul(2).max(CHECK_MIN),
    };
    let state = State { written, stop: false, lost: None, on_lost: None };
    let block = Arc::new(Block {
        device: device.clone(),
        superblock: superblock.clone(),
        second,
        clock,
        state: Mutex::new(state),
        told: Condvar::new(),
    });
    block.write(&written)?;
    stands_still(device, superblock, written, wait)?;
    let mut heartbeat = Heartbeat { block, thread: None, process: std::process::id() };
    let beats = heartbeat.block.clone();
    let spawned = std::thread::Builder::new().name("uext4-mmp".into()).spawn(move || beats.beat());
    let thread =
        spawned.map_err(|error| Error::Invalid(format!("cannot start the heartbeat thread: {error}")))?;
    heartbeat.thread = Some(thread);
    Ok(Some(heartbeat))
}

/// Refuses a volume whose block changes within the given time.
fn stands_still(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    found: MmpBlock,
    wait: Duration,
) -> Result<()> {
    std::thread::sleep(wait);
    match read(&**device, superblock)? {
        Some(now) if now != found => Err(in_use(&now, superblock)),
        _ => Ok(()),
    }
}

impl Block {
    fn write(&self, block: &MmpBlock) -> Result<()> {
        let size = self.superblock.geometry.block_size();
        let mut bytes = vec![0; size as usize];
        block.encode(&mut bytes, &self.superblock).map_err(|error| Error::Invalid(error.to_string()))?;
        write_bytes(&*self.device, self.superblock.mmp.block.get() * u64::from(size), &bytes)
    }

    /// Checks that the block is still as we last wrote it.
    fn is_ours(&self, state: &State) -> Result<()> {
        match read(&*self.device, &self.superblock)? {
            Some(found) if found == state.written => Ok(()),
            Some(found) => Err(in_use(&found, &self.superblock)),
            None => Ok(()),
        }
    }

    /// The thread: writes the next number periodically.
    fn beat(&self) {
        let update = u32::from(self.superblock.mmp.interval.max(1)) * self.second;
        let mut state = self.state.lock();
        let patience = u32::from(state.written.check_interval) * self.second;
        let mut refreshed = Instant::now();
        loop {
            let until = Instant::now() + update;
            while !state.stop && !self.told.wait_until(&mut state, until).timed_out() {}
            if state.stop {
                return;
            }
            match self.refresh(&mut state) {
                Ok(()) => refreshed = Instant::now(),
                Err(error @ (Error::InUse(_) | Error::Corrupt(_))) => return lose(&mut state, &error),
                // Retry a failing device while no other node can consider us dead.
                Err(error) if refreshed.elapsed() > patience => return lose(&mut state, &error),
                Err(_) => {}
            }
        }
    }

    fn refresh(&self, state: &mut State) -> Result<()> {
        self.is_ours(state)?;
        let sequence = state.written.sequence % SEQUENCE_MAX + 1;
        let next = MmpBlock { sequence, time: self.clock.seconds(), ..state.written };
        self.write(&next)?;
        state.written = next;
        Ok(())
    }
}

fn lose(state: &mut State, error: &Error) {
    let what = format!("multi-mount protection: {error}");
    state.lost = Some(what.as_str().into());
    if let Some(on_lost) = state.on_lost.take() {
        on_lost(&what);
    }
}

impl Heartbeat {
    /// From now on calls `on_lost` when the volume is lost; at once if it already is.
    pub(crate) fn connect(&self, on_lost: OnLost) {
        let mut state = self.block.state.lock();
        match state.lost.clone() {
            Some(what) => on_lost(&what),
            None => state.on_lost = Some(on_lost),
        }
    }

    /// Releases the volume: marks the block clean, unless somebody else owns it.
    ///
    /// # Errors
    /// [`Error::InUse`]; those of the device.
    pub(crate) fn release(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.block.state.lock().stop = true;
        self.block.told.notify_all();
        // A panic of the thread comes from `on_lost`, which is the caller's code.
        let _ended = thread.join();
        let state = self.block.state.lock();
        if let Some(what) = &state.lost {
            return Err(Error::InUse(what.to_string()));
        }
        self.block.is_ours(&state)?;
        // The interval that mke2fs writes: no owner, so no wait.
        let check_interval = self.block.superblock.mmp.interval;
        let sequence = MmpBlock::clean(0).sequence;
        let time = self.block.clock.seconds();
        self.block.write(&MmpBlock { sequence, check_interval, time, ..state.written })?;
        Ok(self.block.device.flush()?)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _not_told = self.end();
        } else {
            // The thread runs in the parent only.
            std::mem::forget(self.thread.take());
        }
    }
}
