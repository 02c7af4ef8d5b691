//! The commands of a queued request: which have ended, and which are sent again.

use super::nvme_command::Status;
use crate::retries::is_put_off;
use crate::{Done, Op, Request};

/// Retries of a failed command, as in the kernel (`nvme_core.max_retries`).
pub(super) const RETRIES: u8 = 5;

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) request: Request,
    /// Commands that have not yet ended.
    pub(super) left: u32,
    /// First failure: a negative errno.
    pub(super) error: i32,
    /// Retries so far of all its commands, and their maximum.
    retries: u32,
    retries_max: u32,
    /// Its memory is sent as plain memory, because the kernel refused it as registered.
    plain: bool,
}

/// The tag of a command: which part of which request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) slot: u32,
    pub(super) number: u32,
}

impl Part {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.slot)
    }

    pub(super) fn unpack(word: u64) -> Self {
        Part { slot: word as u32, number: (word >> 32) as u32 }
    }
}

impl Slot {
    /// A request of `parts` commands.
    pub(super) fn new(request: Request, parts: u32) -> Self {
        let retries_max = u32::from(RETRIES).saturating_mul(parts);
        Slot { request, left: parts, error: 0, retries: 0, retries_max, plain: false }
    }

    /// A command succeeded. Returns the next one to send: a discard has one command at a time, because the slot has
    /// memory for one range.
    #[inline]
    pub(super) fn succeeds(&mut self, part: Part) -> Option<Part> {
        self.left -= 1;
        (self.left > 0 && self.request.op == Op::Discard).then_some(Part { number: part.number + 1, ..part })
    }

    /// A command failed. Returns it if it must be sent again.
    #[cold]
    pub(super) fn fails(&mut self, part: Part, result: i32) -> Option<Part> {
        let (again, errno) = match result {
            status if status > 0 => (Status::of(status).may_be_retried(), Status::of(status).errno()),
            // Cancelled by a controller reset, or not sent for lack of memory. EIO, because the layers above must not
            // conclude that it was not sent.
            result if is_put_off(-result) => (true, libc::EIO),
            // Before Linux 6.12, a registered region larger than the command (`block/blk-map.c`), of a shape that
            // `try_registered` did not try.
            result => {
                self.plain |= -result == libc::EINVAL && self.request.memory.registered.take().is_some();
                // Each command that was in flight with it is sent once more.
                (-result == libc::EINVAL && self.plain, -result)
            }
        };
        if again && self.retries < self.retries_max {
            self.retries += 1;
            return Some(part);
        }
        if self.error == 0 {
            self.error = -errno;
        }
        self.left = if self.request.op == Op::Discard { 0 } else { self.left - 1 };
        None
    }

    pub(super) fn done(&self) -> Done {
        let result = match self.request.op {
            _ if self.error != 0 => self.error,
            Op::Read | Op::Write => self.request.length as i32,
            Op::Flush | Op::Discard => 0,
        };
        Done { tag: self.request.tag, result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;

    fn slot(parts: u32, registered: bool) -> Slot {
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut memory = pool.take(1 << 20).unwrap().memory(0);
        if !registered {
            memory.registered = None;
        }
        let priority = crate::Priority::OF_THREAD;
        let (op, length) = (Op::Write, 1 << 20);
        Slot::new(Request { op, fua: false, nowait: false, priority, pos: 0, length, memory, tag: 1 }, parts)
    }

    #[test]
    fn each_command_of_a_request_is_sent_again() {
        let mut slot = slot(8, false);
        for number in 0..8 {
            // A controller reset: every command in flight comes back once.
            assert!(slot.fails(Part { slot: 0, number }, -libc::EINTR).is_some(), "part {number}");
        }
        let forever =
            (0..100).take_while(|_| slot.fails(Part { slot: 0, number: 0 }, -libc::EINTR).is_some());
        assert_eq!(forever.count(), 8 * usize::from(RETRIES) - 8);
    }

    #[test]
    fn what_is_refused_as_registered_is_sent_as_plain_memory() {
        let mut registered = slot(2, true);
        for number in 0..2 {
            let again = registered.fails(Part { slot: 0, number }, -libc::EINVAL);
            assert!(again.is_some(), "both were in flight with the region: {number}");
        }
        assert!(registered.request.memory.registered.is_none());
        assert!(slot(2, false).fails(Part { slot: 0, number: 0 }, -libc::EINVAL).is_none());
    }
}
