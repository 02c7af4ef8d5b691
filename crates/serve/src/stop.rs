//! A switch that ends the server: once thrown, its descriptor is readable for ever.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
struct Switch {
    thrown: AtomicBool,
    event: OwnedFd,
}

/// Ends a [`Server`](crate::Server) from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Switch>);

impl Stopper {
    pub(crate) fn new() -> io::Result<Stopper> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stopper(Arc::new(Switch { thrown: AtomicBool::new(false), event })))
    }

    /// Asks the server to end: it accepts nobody any more, requests received later get an error, those before are
    /// finished. [`Server::run`](crate::Server::run) returns when all clients are served.
    pub fn stop(&self) {
        self.0.thrown.store(true, Ordering::Release);
        wake(&self.0.event);
    }

    pub(crate) fn is_thrown(&self) -> bool {
        self.0.thrown.load(Ordering::Acquire)
    }
}

impl AsFd for Stopper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

/// Makes an event descriptor readable.
pub(crate) fn wake(event: &OwnedFd) {
    // Any number but 0 will do, in any byte order. This fails only if the counter is full: then it is readable already.
    let _readable_anyway = rustix::io::write(event, &1u64.to_le_bytes());
}

/// Makes it unreadable. Look for what it announced after this call, not before.
pub(crate) fn clear(event: &OwnedFd) {
    let _count = rustix::io::read(event, &mut [0u8; 8]);
}
