//! Makes chosen requests fail: the n-th of a kind, or those that touch a range, with an errno or cut short.

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use uext4_blockdev::layer::wrap::{DeviceLayer, Fate, QueueLayer, What, Wrapped, inner_reads_zeros};
use uext4_blockdev::{Device, Error, Op, Queue, QueueOptions, Request, Result, WriteDurability};

/// Which requests a [`Fault`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOn {
    /// Every request.
    Any,
    /// Requests of one kind; FUA writes are writes.
    Op(Op),
    /// Writes that must be durable by themselves.
    FuaWrite,
    /// Queued reads and writes that fail rather than wait.
    Nowait,
    /// Everything that can change or harden contents: writes, flushes, discards.
    Changes,
}

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAction {
    /// Nothing is transferred; the request fails with this errno (positive).
    Errno(i32),
    /// Only the first bytes of a read or write are transferred, rounded down to logical blocks and always at
    /// least one block short. A queue reports the short count; a synchronous call fails with `EIO`, as every
    /// engine does for short transfers. Flushes and discards fail with `EIO`.
    Short(u64),
}

/// One programmed failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Which requests count.
    pub on: FaultOn,
    /// Only those that touch this range of bytes count; flushes touch nothing.
    pub range: Option<Range<u64>>,
    /// How many of them succeed first.
    pub after: u64,
    /// How many of the following fail; `u64::MAX` for all.
    pub times: u64,
    /// How they fail.
    pub action: FaultAction,
}

impl Fault {
    /// The `n`-th request (from 1) of a kind after arming fails once with `EIO`.
    pub fn nth(on: FaultOn, n: u64) -> Self {
        let action = FaultAction::Errno(libc::EIO);
        Fault { on, range: None, after: n.saturating_sub(1), times: 1, action }
    }

    fn matches(&self, seen: &What) -> bool {
        let kind = match self.on {
            FaultOn::Any => true,
            FaultOn::Op(op) => seen.op == op,
            FaultOn::FuaWrite => seen.fua,
            FaultOn::Nowait => seen.nowait,
            FaultOn::Changes => seen.op != Op::Read,
        };
        let inside = self.range.as_ref().is_none_or(|range| {
            seen.op != Op::Flush && seen.pos < range.end && range.start < seen.pos.saturating_add(seen.length)
        });
        kind && inside
    }
}

/// Names an armed fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultId(u64);

/// Programs a [`FaultDevice`] from anywhere, while it is in use.
#[derive(Debug, Clone, Default)]
pub struct FaultHandle {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    armed: Vec<Armed>,
    next_id: u64,
    requests: u64,
    fired: u64,
}

#[derive(Debug)]
struct Armed {
    id: FaultId,
    fault: Fault,
    matched: u64,
}

impl FaultHandle {
    /// Arms a fault; it counts requests from now on. Several may be armed; the oldest that applies decides,
    /// and all that match count the request.
    pub fn arm(&self, fault: Fault) -> FaultId {
        let mut state = self.state.lock();
        let id = FaultId(state.next_id);
        state.next_id += 1;
        state.armed.push(Armed { id, fault, matched: 0 });
        id
    }

    /// Disarms a fault. Returns how many requests it matched, or `None` if it is not armed.
    pub fn disarm(&self, id: FaultId) -> Option<u64> {
        let mut state = self.state.lock();
        let index = state.armed.iter().position(|armed| armed.id == id)?;
        Some(state.armed.remove(index).matched)
    }

    /// Disarms all.
    pub fn clear(&self) {
        self.state.lock().armed.clear();
    }

    /// Requests seen since the device was made, failed ones included. What a scenario needs once without
    /// faults is the largest `n` worth trying.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// Requests that were made to fail.
    pub fn fired(&self) -> u64 {
        self.state.lock().fired
    }

    fn meet(&self, seen: What) -> Option<FaultAction> {
        self.state.lock().meet(&seen)
    }
}

impl State {
    /// How the request fails.
    fn meet(&mut self, seen: &What) -> Option<FaultAction> {
        self.requests += 1;
        let mut action = None;
        for armed in self.armed.iter_mut().filter(|armed| armed.fault.matches(seen)) {
            let failed = armed.matched.checked_sub(armed.fault.after);
            let fires = failed.is_some_and(|failed| failed < armed.fault.times);
            action = action.or(fires.then_some(armed.fault.action));
            armed.matched += 1;
        }
        self.fired += u64::from(action.is_some());
        action
    }

    /// The request was not taken: it does not count.
    fn forget(&mut self, seen: &What, fired: bool) {
        self.requests -= 1;
        self.fired -= u64::from(fired);
        for armed in self.armed.iter_mut().filter(|armed| armed.fault.matches(seen)) {
            armed.matched = armed.matched.saturating_sub(1);
        }
    }
}

/// A device that fails on command.
#[derive(Debug)]
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    handle: FaultHandle,
}

impl FaultDevice {
    /// Wraps `inner`; no fault is armed.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        FaultDevice { inner, handle: FaultHandle::default() }
    }

    /// Programs it.
    pub fn handle(&self) -> FaultHandle {
        self.handle.clone()
    }

    /// How many bytes of a request that is cut short are transferred.
    fn cut(&self, kept: u64, length: usize) -> usize {
        let block = u64::from(self.inner.geometry().logical_block);
        (kept.min((length as u64).saturating_sub(1)) / block * block) as usize
    }

    fn failure(seen: &What, errno: i32) -> Error {
        Error::Io { op: seen.op.name(), pos: seen.pos, length: seen.length, errno }
    }
}

impl DeviceLayer for FaultDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        inner_reads_zeros(self, pos, length)
    }

    fn names(&self) -> Vec<String> {
        vec!["fault".into()]
    }

    /// Flushes and discards. Opening for writing meets the rules of flushes.
    fn run(&self, seen: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        match self.handle.meet(seen) {
            None => call(&*self.inner),
            Some(action) => Err(Self::failure(&seen, action.errno())),
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let seen = What::call(Op::Read, pos, buf.len() as u64);
        match self.handle.meet(seen) {
            None => self.inner.read_at(buf, pos),
            Some(FaultAction::Errno(errno)) => Err(Self::failure(&seen, errno)),
            Some(FaultAction::Short(kept)) => {
                let kept = self.cut(kept, buf.len());
                if kept > 0 {
                    self.inner.read_at(&mut buf[..kept], pos)?;
                }
                Err(Self::failure(&seen, libc::EIO))
            }
        }
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let fua = durability == WriteDurability::Fua;
        let seen = What { fua, ..What::call(Op::Write, pos, buf.len() as u64) };
        match self.handle.meet(seen) {
            None => self.inner.write_at(buf, pos, durability),
            Some(FaultAction::Errno(errno)) => Err(Self::failure(&seen, errno)),
            Some(FaultAction::Short(kept)) => {
                let kept = self.cut(kept, buf.len());
                if kept > 0 {
                    self.inner.write_at(&buf[..kept], pos, durability)?;
                }
                Err(Self::failure(&seen, libc::EIO))
            }
        }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let block = self.inner.geometry().logical_block;
        Ok(Wrapped::queue(self.inner.queue(options)?, FaultQueue { handle: self.handle.clone(), block }))
    }
}

impl FaultAction {
    /// The errno for a request that cannot be cut short.
    fn errno(self) -> i32 {
        match self {
            FaultAction::Errno(errno) => errno,
            FaultAction::Short(_) => libc::EIO,
        }
    }
}

struct FaultQueue {
    handle: FaultHandle,
    block: u32,
}

impl FaultQueue {
    /// How many bytes still go to the device, if the action is to cut this request.
    fn kept(&self, request: &Request, action: FaultAction) -> Option<u32> {
        match (action, request.op) {
            (FaultAction::Short(kept), Op::Read | Op::Write) => {
                let kept = u32::try_from(kept).unwrap_or(u32::MAX).min(request.length.saturating_sub(1));
                Some(kept / self.block * self.block)
            }
            _ => None,
        }
    }
}

impl QueueLayer for FaultQueue {
    fn meet(&mut self, request: &Request) -> Fate {
        let Some(action) = self.handle.meet(What::of(request)) else { return Fate::pass(request) };
        match self.kept(request, action) {
            None => Fate::Answer(-action.errno()),
            Some(0) => Fate::Answer(0),
            Some(length) => Fate::Pass { pos: request.pos, length, tag: request.tag },
        }
    }

    fn met(&mut self, request: &Request, fate: Fate, taken: bool) {
        if !taken {
            self.handle.state.lock().forget(&What::of(request), fate != Fate::pass(request));
        }
    }
}
