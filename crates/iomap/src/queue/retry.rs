//! Retries device requests that failed with a transient error, a bounded number of times.
//!
//! `EAGAIN`, `EINTR` and `ECANCELED` mean that a request was not finished, not that it cannot succeed. The requests
//! retried here are whole overwrites and reads whose memory and gate are still held, so sending one again repeats the
//! same request.

use super::core::QueueState;
use super::slot::Kind;
use crate::door::{Part, part_of, slot_of};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::plan::Durability;
use uext4_blockdev::{Done, Error as DeviceError, Op, Retries, is_put_off};

const EIO: i32 = 5;
const EAGAIN: i32 = 11;

/// Requests with transient errors that have not ended, by tag.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    sent: Vec<(u64, Retries)>,
    unsent: bool,
}

impl PutOff {
    /// Whether any were pushed since the last call and still must be submitted.
    pub(super) fn is_unsent(&mut self) -> bool {
        std::mem::take(&mut self.unsent)
    }

    /// Records a result. Returns whether the request may be sent again.
    fn note(&mut self, tag: u64, transient: bool) -> bool {
        let known = self.sent.iter().position(|(known, _)| *known == tag);
        if !transient {
            known.map(|at| self.sent.swap_remove(at));
            return false;
        }
        let at = known.unwrap_or(self.sent.len());
        if at == self.sent.len() {
            self.sent.push((tag, Retries::default()));
        }
        self.sent[at].1.count()
    }

    /// Forgets a request that has ended and returns how often it was sent.
    fn forget(&mut self, tag: u64) -> u32 {
        let known = self.sent.iter().position(|(known, _)| *known == tag);
        known.map_or(1, |at| self.sent.swap_remove(at).1.trials())
    }
}

impl<F: FileSystem> QueueState<F> {
    /// Sends a device request again after a transient error. Returns whether it did.
    pub(super) fn retry(&mut self, done: Done) -> bool {
        let transient = is_put_off(-done.result);
        if !transient && self.put_off.sent.is_empty() {
            return false;
        }
        if transient && self.refuses_to_wait(done) {
            return false;
        }
        if !self.put_off.note(done.tag, transient) {
            return false;
        }
        let number = slot_of(done.tag);
        let slot = self.slots[number as usize];
        let label = slot.label;
        let (pos, length, offset) = match label.kind() {
            Kind::Plain | Kind::Single => (slot.pos, slot.length, 0),
            Kind::General => match &self.general[number as usize] {
                Some(general) => general.parts[part_of(done.tag) as usize],
                None => return false,
            },
            Kind::Free | Kind::Sync => return false,
        };
        let op = if label.writes() { Op::Write } else { Op::Read };
        let fua = label.durability() == Durability::Fua && label.writes();
        let (priority, index) = (self.priority(number), part_of(done.tag));
        let part = Part { op, fua, nowait: false, priority, pos, offset, length, index };
        // The device queue has room: a completion was just removed from it.
        if self.door.push(number, part).is_err() {
            return false;
        }
        if label.kind() == Kind::Plain {
            // Its completion must be examined here, not delivered as a plain one.
            self.slots[number as usize].label = label.single();
            if let Some(attached) = &mut self.files[label.file()] {
                attached.waiting += 1;
            }
        }
        self.put_off.unsent = true;
        true
    }

    /// Whether the device refused a no-wait request. Nothing was transferred.
    fn refuses_to_wait(&self, done: Done) -> bool {
        let general = &self.general[slot_of(done.tag) as usize];
        done.result == -EAGAIN && general.as_ref().is_some_and(|general| general.nowait)
    }

    /// Why a device request of `expected` bytes failed, if it did.
    #[inline]
    pub(super) fn reason(&mut self, done: Done, pos: u64, expected: u32, write: bool) -> Option<Error> {
        if done.result == expected as i32 {
            return None;
        }
        if self.refuses_to_wait(done) {
            return Some(self.engine.would_block());
        }
        let (op, length) = (if write { "write" } else { "read" }, u64::from(expected));
        if is_put_off(-done.result) {
            let trials = self.put_off.forget(done.tag);
            return Some(DeviceError::GaveUp { op, pos, length, errno: -done.result, trials }.into());
        }
        let errno = if done.result < 0 { -done.result } else { EIO };
        Some(DeviceError::Io { op, pos, length, errno }.into())
    }
}
