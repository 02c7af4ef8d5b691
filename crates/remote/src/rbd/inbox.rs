//! Results of a queue's requests, on their way from the threads of librbd to the thread that reaps.

use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// A place for a request under way. librbd has its address meanwhile.
pub(super) struct Ticket {
    inbox: Arc<Inbox>,
    slot: u32,
}

impl Ticket {
    /// A ticket for each slot of a queue.
    pub(super) fn all(inbox: &Arc<Inbox>, slots: u32) -> Box<[Ticket]> {
        (0..slots).map(|slot| Ticket { inbox: Arc::clone(inbox), slot }).collect()
    }

    /// The request is done: bytes or 0, or a negative errno.
    pub(super) fn done(&self, result: i64) {
        // Whoever takes the result may drop the queue, and this ticket with it, while the lock is still given back.
        let inbox = Arc::clone(&self.inbox);
        inbox.put(self.slot, result);
    }
}

/// See the module.
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    results: VecDeque<(u32, i64)>,
    /// As many results wake the thread that waits; 0: none waits.
    wanted: usize,
    event: Option<Event>,
}

/// A descriptor that is readable while there are results.
struct Event {
    file: OwnedFd,
    readable: bool,
}

impl Event {
    fn set(&mut self, readable: bool) {
        if self.readable == readable {
            return;
        }
        self.readable = readable;
        // Neither blocks, since the counter changes between 0 and 1 only; a failure would be a closed descriptor.
        if readable {
            let _ = rustix::io::write(&self.file, &1_u64.to_le_bytes());
        } else {
            let _ = rustix::io::read(&self.file, &mut [0; 8]);
        }
    }
}

impl Inbox {
    /// With room for as many results, so that none of them allocates.
    pub(super) fn new(slots: u32) -> Arc<Self> {
        let results = VecDeque::with_capacity(slots as usize);
        let state = Mutex::new(State { results, ..State::default() });
        Arc::new(Inbox { state, arrived: Condvar::new() })
    }

    fn put(&self, slot: u32, result: i64) {
        let mut state = self.state.lock();
        state.results.push_back((slot, result));
        if let Some(event) = &mut state.event {
            event.set(true);
        }
        if state.wanted > 0 && state.results.len() >= state.wanted {
            state.wanted = 0;
            self.arrived.notify_one();
        }
    }

    /// Waits for `wanted` results, at most until the deadline, and passes at most `most` of them to `take`.
    pub(super) fn take(
        &self,
        wanted: usize,
        deadline: Option<Instant>,
        most: usize,
        mut take: impl FnMut(u32, i64),
    ) {
        let mut state = self.state.lock();
        while state.results.len() < wanted {
            state.wanted = wanted;
            match deadline {
                None => self.arrived.wait(&mut state),
                Some(deadline) => {
                    if self.arrived.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        state.wanted = 0;
        let count = state.results.len().min(most);
        for (slot, result) in state.results.drain(..count) {
            take(slot, result);
        }
        let rest = !state.results.is_empty();
        if let Some(event) = &mut state.event {
            event.set(rest);
        }
    }

    /// Makes the descriptor, which is readable at once if there are results.
    pub(super) fn watch(&self) -> rustix::io::Result<OwnedFd> {
        let file = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ours = rustix::io::fcntl_dupfd_cloexec(&file, 0)?;
        let mut state = self.state.lock();
        let mut event = Event { file, readable: false };
        event.set(!state.results.is_empty());
        state.event = Some(event);
        Ok(ours)
    }
}
