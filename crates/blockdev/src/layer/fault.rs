//! Makes chosen requests fail: the n-th of a kind, or those that touch a range, with an errno or cut short.

use super::inject::{Inject, forward_to_inject};
use crate::{
    Capabilities, Description, Device, DeviceQueue, Done, Error, Full, Geometry, Op, Queue, QueueFacts,
    QueueOptions, Request, Result, Wait, WriteDurability,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Which requests a [`Fault`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOn {
    /// Every request.
    Any,
    /// Requests of one kind; FUA writes are writes.
    Op(Op),
    /// Writes that must be durable by themselves.
    FuaWrite,
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

    fn matches(&self, seen: &Seen) -> bool {
        let kind = match self.on {
            FaultOn::Any => true,
            FaultOn::Op(op) => seen.op == op,
            FaultOn::FuaWrite => seen.fua,
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

/// The part of a request that faults look at.
#[derive(Debug, Clone, Copy)]
struct Seen {
    op: Op,
    pos: u64,
    length: u64,
    fua: bool,
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

    fn meet(&self, seen: Seen) -> Option<FaultAction> {
        let mut state = self.state.lock();
        let action = state.peek(&seen);
        state.commit(&seen, action.is_some());
        action
    }
}

impl State {
    /// How the request fails, without counting it: its queue may turn out to be full.
    fn peek(&self, seen: &Seen) -> Option<FaultAction> {
        self.armed
            .iter()
            .find(|armed| {
                let failed = armed.matched.checked_sub(armed.fault.after);
                armed.fault.matches(seen) && failed.is_some_and(|failed| failed < armed.fault.times)
            })
            .map(|armed| armed.fault.action)
    }

    fn commit(&mut self, seen: &Seen, fired: bool) {
        self.requests += 1;
        self.fired += u64::from(fired);
        for armed in self.armed.iter_mut().filter(|armed| armed.fault.matches(seen)) {
            armed.matched += 1;
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

    fn failure(seen: &Seen, errno: i32) -> Error {
        Error::Io { op: seen.op.name(), pos: seen.pos, length: seen.length, errno }
    }
}

impl Device for FaultDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn describe(&self) -> Description {
        let mut description = self.inner.describe();
        description.layers.push("fault".into());
        description
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let seen = Seen { op: Op::Read, pos, length: buf.len() as u64, fua: false };
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
        let seen = Seen { op: Op::Write, pos, length: buf.len() as u64, fua };
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

    fn flush(&self) -> Result<()> {
        let seen = Seen { op: Op::Flush, pos: 0, length: 0, fua: false };
        match self.handle.meet(seen) {
            None => self.inner.flush(),
            Some(action) => Err(Self::failure(&seen, action.errno())),
        }
    }

    fn merges_flushes(&self) -> bool {
        self.inner.merges_flushes()
    }

    /// Meets the rules of flushes.
    fn settle(&self) -> Result<()> {
        let seen = Seen { op: Op::Flush, pos: 0, length: 0, fua: false };
        match self.handle.meet(seen) {
            None => self.inner.settle(),
            Some(action) => Err(Self::failure(&seen, action.errno())),
        }
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        let seen = Seen { op: Op::Discard, pos, length, fua: false };
        match self.handle.meet(seen) {
            None => self.inner.discard(pos, length),
            Some(action) => Err(Self::failure(&seen, action.errno())),
        }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let inject = Inject::new(self.inner.queue(options)?);
        let block = self.inner.geometry().logical_block;
        Ok(Queue::Other(Box::new(FaultQueue { inject, handle: self.handle.clone(), block })))
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
    inject: Inject,
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

impl DeviceQueue for FaultQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        let (pos, length) =
            if request.op == Op::Flush { (0, 0) } else { (request.pos, u64::from(request.length)) };
        let seen = Seen { op: request.op, pos, length, fua: request.fua && request.op == Op::Write };
        let handle = self.handle.clone();
        // Locked until the queue has accepted the request, so that one refused as `Full` is not counted.
        let mut state = handle.state.lock();
        let action = state.peek(&seen);
        match action {
            // SAFETY: the caller's promise is passed on unchanged.
            None => unsafe { self.inject.pass(request) }?,
            Some(action) => match self.kept(&request, action) {
                None => self.inject.answer(request.tag, -action.errno())?,
                Some(0) => self.inject.answer(request.tag, 0)?,
                // SAFETY: the caller's promise covers a prefix of the memory as well.
                Some(length) => unsafe { self.inject.pass(Request { length, ..request }) }?,
            },
        }
        state.commit(&seen, action.is_some());
        Ok(())
    }

    forward_to_inject!();
}
