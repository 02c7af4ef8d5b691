//! Shared by queues without io_uring: a fixed ring of completions, and answers to [`QueueOptions`].

use crate::{Done, Full, QueueFacts, QueueOptions, Result, Wait};

/// Completions in order. Never allocates after creation.
#[derive(Debug)]
pub(crate) struct DoneRing {
    slots: Box<[Done]>,
    capacity: u32,
    /// Positions increase and wrap; the slot is the position modulo `slots.len()`, a power of two.
    head: u32,
    tail: u32,
    sent: u32,
}

impl DoneRing {
    /// A ring of `capacity` completions, 1 ..= [`QueueOptions::DEPTH_MAX`].
    pub(crate) fn new(capacity: u32) -> Self {
        let slots =
            vec![Done { tag: 0, result: 0 }; capacity.next_power_of_two() as usize].into_boxed_slice();
        DoneRing { slots, capacity, head: 0, tail: 0, sent: 0 }
    }

    /// Adds a completion.
    #[inline]
    pub(crate) fn push(&mut self, done: Done) -> std::result::Result<(), Full> {
        if self.is_full() {
            return Err(Full);
        }
        let slot = self.tail as usize & (self.slots.len() - 1);
        self.slots[slot] = done;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Whether `push` would refuse.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.capacity
    }

    /// How many were pushed since the last call.
    #[inline]
    pub(crate) fn send(&mut self) -> usize {
        let sent = self.tail.wrapping_sub(self.sent);
        self.sent = self.tail;
        sent as usize
    }

    /// Moves completions into the spare capacity of `out`, oldest first.
    #[inline]
    pub(crate) fn deliver(&mut self, out: &mut Vec<Done>) -> usize {
        let count = (self.len() as usize).min(out.capacity() - out.len());
        let start = self.head as usize & (self.slots.len() - 1);
        let first = count.min(self.slots.len() - start);
        out.extend_from_slice(&self.slots[start..start + first]);
        out.extend_from_slice(&self.slots[..count - first]);
        self.head = self.head.wrapping_add(count as u32);
        count
    }

    /// Completions held.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Most completions held.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }
}

/// Checks the depth and answers every optional request: such a queue has no ring that could poll or register. A
/// required feature is an error, a tried one a reported fallback.
pub fn grant(engine: &'static str, options: &QueueOptions) -> Result<QueueFacts> {
    options.check_depth()?;
    let mut facts = QueueFacts { owner_driven: options.owner_driven, ..QueueFacts::default() };
    let wishes = [
        (options.iopoll, "polled completions"),
        (options.sqpoll, "a kernel submission thread"),
        (options.register_file, "a registered file"),
        (options.register_buffers, "registered buffers"),
        (options.register_ring, "a registered ring"),
    ];
    for (ask, what) in wishes {
        ask.granted(what, || Err(format!("{engine} has no use for it")), &mut facts)?;
    }
    if !options.priority.is_of_thread() {
        facts.fallbacks.push(format!("{engine} does not use an I/O priority"));
    }
    Ok(facts)
}

/// How many completions a `reap` has to deliver before it may return, given what is in flight and what fits.
#[inline]
pub fn goal(wait: Wait, in_flight: u32, out: &Vec<Done>) -> usize {
    let wanted = match wait {
        Wait::No => 0,
        Wait::AtLeast(count) => count as usize,
        Wait::Timeout(_) => 1,
    };
    wanted.min(in_flight as usize).min(out.capacity() - out.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ask;

    #[test]
    fn the_ring_wraps_keeps_order_and_knows_its_limit() {
        let mut ring = DoneRing::new(3);
        // Start just before the positions overflow.
        (ring.head, ring.tail, ring.sent) = (u32::MAX - 1, u32::MAX - 1, u32::MAX - 1);
        let mut next = 0;
        let mut expected = 0;
        for _ in 0..5 {
            while ring.push(Done { tag: next, result: 0 }).is_ok() {
                next += 1;
            }
            assert_eq!(ring.len(), 3);
            let mut out = Vec::with_capacity(2);
            assert_eq!(ring.deliver(&mut out), 2);
            for done in out {
                assert_eq!(done.tag, expected);
                expected += 1;
            }
        }
        assert_eq!(ring.send(), next as usize);
        assert_eq!(ring.send(), 0);
    }

    #[test]
    fn required_wishes_are_errors_and_tried_ones_reported() {
        let mut options = QueueOptions::depth(8);
        assert_eq!(grant("x", &options).unwrap().fallbacks.len(), 2);
        options.iopoll = Ask::Require;
        assert_eq!(grant("x", &options).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert!(grant("x", &QueueOptions::depth(0)).is_err());
        assert!(grant("x", &QueueOptions::depth(QueueOptions::DEPTH_MAX + 1)).is_err());
    }
}
