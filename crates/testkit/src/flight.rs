//! A queue that owns the memory of its requests, for tests in crates without `unsafe`.

use std::collections::HashMap;
use uext4_blockdev::{Buffer, DeviceQueue, Done, Memory, Op, Priority, Queue, Request, Result, Wait};

/// See the module. The caller chooses the tags; two requests in flight never have the same.
pub struct Flight {
    // Dropped before the memory.
    queue: Queue,
    buffers: HashMap<u64, Buffer>,
}

impl Flight {
    /// Drives this queue.
    pub fn new(queue: Queue) -> Self {
        assert_eq!(queue.in_flight(), 0);
        Flight { queue, buffers: HashMap::new() }
    }

    /// Pushes a read into all of a buffer, or a write of it.
    #[track_caller]
    pub fn push(&mut self, op: Op, pos: u64, buffer: Buffer, tag: u64) {
        let length = buffer.len() as u32;
        let taken = self.buffers.insert(tag, buffer);
        assert!(taken.is_none(), "tag {tag} is in flight");
        let memory = self.buffers.get_mut(&tag).map_or(Memory::NONE, |buffer| buffer.memory(0));
        let priority = Priority::OF_THREAD;
        let request = Request { op, fua: false, nowait: false, priority, pos, length, memory, tag };
        // SAFETY: the buffer stays here, untouched, until its completion is reaped, and goes after the queue.
        let pushed = unsafe { self.queue.push(request) };
        pushed.unwrap_or_else(|full| panic!("{full:?}"));
    }

    /// Sends what was pushed, and returns how many that was.
    #[track_caller]
    pub fn submit(&mut self) -> usize {
        self.queue.submit().unwrap()
    }

    /// Requests without a completion.
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    /// Completions, each with its buffer, in the order in which they came.
    pub fn reap(&mut self, wait: Wait) -> Result<Vec<(Done, Buffer)>> {
        let mut out = Vec::with_capacity(self.queue.capacity() as usize);
        self.queue.reap(&mut out, wait)?;
        let buffer = |done: Done| self.buffers.remove(&done.tag).map(|buffer| (done, buffer));
        Ok(out.into_iter().filter_map(buffer).collect())
    }

    /// All that are in flight, by their tags.
    #[track_caller]
    pub fn reap_all(&mut self) -> Vec<(Done, Buffer)> {
        let mut all = Vec::new();
        while self.in_flight() > 0 {
            all.extend(self.reap(Wait::AtLeast(1)).unwrap());
        }
        all.sort_by_key(|(done, _)| done.tag);
        all
    }
}
