//! The device: calls, each a request of its own on a connection, and queues.

use super::pool::Pool;
use super::queue::NbdQueue;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Capabilities, Description, Device, Driving, Error, Geometry, Memory, Op, OpenOptions, Priority, Queue,
    QueueOptions, Request, Result, Sharing, WriteDurability, write_zeros,
};

use super::target::Target;

/// An export of an NBD server.
pub(super) struct NbdDevice {
    pool: Arc<Pool>,
    capabilities: Capabilities,
}

impl fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdDevice").field("device", &self.pool.target.name()).finish_non_exhaustive()
    }
}

/// A request, and how it is called in errors.
#[derive(Clone, Copy)]
struct Call {
    op: Op,
    fua: bool,
    pos: u64,
    length: u64,
    memory: Memory,
    /// A write without memory, of zeros.
    zeros: bool,
}

impl NbdDevice {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Library`] without libnbd, [`Error::Remote`] if the server refuses, with `EROFS` for writing to an
    /// export that is read-only, [`Error::Unsupported`] for an export that cannot be used.
    pub(super) fn open(spec: &DeviceSpec, options: OpenOptions) -> Result<Self> {
        let target = Target::new(spec)?;
        let pool = Pool::open(target)?;
        if options.write && pool.facts.is_read_only() {
            let fault = super::api::Fault { reason: "the export is read-only".into(), errno: libc::EROFS };
            return Err(pool.target.error("open for writing", fault));
        }
        let capabilities = pool.facts.capabilities(options.write);
        Ok(NbdDevice { pool: Arc::new(pool), capabilities })
    }

    /// Carries out a call that has been checked, in requests that a lane takes.
    ///
    /// # Safety
    /// Its memory has `length` bytes, valid and nobody else's until this returns.
    unsafe fn carry_out(&self, call: Call) -> Result<()> {
        self.pool.process.check()?;
        self.pool.check(call.op.name())?;
        // A request has less than 4 GiB.
        let most = u64::from(u32::MAX - u32::MAX % (64 << 10));
        let mut done = 0;
        loop {
            let length = (call.length - done).min(most);
            let address = call.memory.address.as_ptr().wrapping_add(done as usize);
            let memory =
                Memory { address: NonNull::new(address).unwrap_or(NonNull::dangling()), registered: None };
            let request = Request {
                op: call.op,
                fua: call.fua,
                nowait: false,
                priority: Priority::OF_THREAD,
                pos: call.pos + done,
                length: length as u32,
                memory,
                tag: 0,
            };
            let result = match call.zeros {
                true => self.pool.call_zeros(request),
                // SAFETY: a part of the caller's memory.
                false => unsafe { self.pool.call(request) },
            }?;
            if result < 0 {
                self.pool.check(call.op.name())?;
                let Call { op, pos, length, .. } = call;
                return Err(Error::Io { op: op.name(), pos, length, errno: -result });
            }
            done += length;
            if done == call.length {
                return Ok(());
            }
        }
    }

    fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let memory = Memory { address: NonNull::from(&mut *buf).cast(), registered: None };
        let call = Call { op: Op::Read, fua: false, pos, length: buf.len() as u64, memory, zeros: false };
        // SAFETY: the borrow lasts as long as the call.
        unsafe { self.carry_out(call) }
    }

    fn write(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.check_writable()?;
        let fua = durability == WriteDurability::Fua;
        if fua && !self.capabilities.fua && self.capabilities.volatile_cache {
            return Err(Error::Unsupported("a FUA write: the server has no FUA".into()));
        }
        // Without a volatile cache a plain write is what FUA amounts to.
        let fua = fua && self.capabilities.fua;
        let memory = Memory { address: NonNull::from(buf).cast(), registered: None };
        let call = Call { op: Op::Write, fua, pos, length: buf.len() as u64, memory, zeros: false };
        // SAFETY: the borrow lasts as long as the call, and the memory of a write is only read.
        unsafe { self.carry_out(call) }
    }

    fn check_writable(&self) -> Result<()> {
        if self.capabilities.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// `EAGAIN` for what would take several requests.
    fn check_one(&self, op: Op, pos: u64, length: usize) -> Result<()> {
        match length as u64 > u64::from(self.pool.limits.transfer) {
            true => Err(Error::Io { op: op.name(), pos, length: length as u64, errno: libc::EAGAIN }),
            false => Ok(()),
        }
    }
}

impl Device for NbdDevice {
    fn geometry(&self) -> Geometry {
        self.pool.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn describe(&self) -> Description {
        let name = self.pool.target.name();
        let scheme = self.pool.target.scheme();
        let mut notes = self.pool.facts.notes(&self.pool.geometry);
        notes.push(self.pool.note());
        Description {
            engine: scheme,
            locator: name
                .strip_prefix(scheme)
                .and_then(|rest| rest.strip_prefix(':'))
                .unwrap_or(&name)
                .into(),
            layers: Vec::new(),
            sharing: Sharing::Unlocked,
            driving: Driving::Engine,
            tags: None,
            notes,
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.pool.geometry.check_transfer(buf, pos)?;
        self.read(buf, pos)
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.pool.geometry.check_transfer(buf, pos)?;
        self.write(buf, pos, durability)
    }

    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.pool.geometry.check_transfer(buf, pos)?;
        self.check_one(Op::Read, pos, buf.len())?;
        self.read(buf, pos)
    }

    fn write_nowait(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.pool.geometry.check_transfer(buf, pos)?;
        self.check_one(Op::Write, pos, buf.len())?;
        self.write(buf, pos, durability)
    }

    fn flush(&self) -> Result<()> {
        if !self.capabilities.volatile_cache {
            self.pool.process.check()?;
            return self.pool.check(Op::Flush.name());
        }
        let call = Call { op: Op::Flush, fua: false, pos: 0, length: 0, memory: Memory::NONE, zeros: false };
        // SAFETY: a flush has no memory.
        unsafe { self.carry_out(call) }
    }

    fn write_zeros(&self, pos: u64, length: u64) -> Result<()> {
        self.pool.geometry.check(pos, length)?;
        self.check_writable()?;
        if !self.pool.facts.zero {
            return write_zeros(self, pos, length);
        }
        let call = Call { op: Op::Write, fua: false, pos, length, memory: Memory::NONE, zeros: true };
        // SAFETY: zeros have no memory.
        unsafe { self.carry_out(call) }
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.pool.geometry.check(pos, length)?;
        self.check_writable()?;
        if !self.capabilities.discard {
            return Err(Error::Unsupported("a discard: the server takes none".into()));
        }
        let call = Call { op: Op::Discard, fua: false, pos, length, memory: Memory::NONE, zeros: false };
        // SAFETY: a discard has no memory.
        unsafe { self.carry_out(call) }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let queue = NbdQueue::new(&self.pool, self.capabilities, options)?;
        Ok(Queue::Other(Box::new(queue)))
    }
}
