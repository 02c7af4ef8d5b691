//! One descriptor for a queue that has completions of its own as well as those of the queues it wraps.

use crate::timer::TimerFd;
use crate::{DeviceQueue, Error, Queue, Result};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// An epoll descriptor over the wrapped queues' descriptors and a timer for the layer's own completions: a waiter on
/// one alone would miss the others. Created on first use; poll it, do not read it.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    epoll: Option<OwnedFd>,
    own: TimerFd,
}

impl Wake {
    /// The descriptor, or `None` if one of `inner` has none: then only calls of `reap` find all completions.
    pub(crate) fn get(&mut self, inner: &mut [&mut Queue]) -> Result<Option<BorrowedFd<'_>>> {
        if self.epoll.is_none() {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
            let add = |data, fd| {
                epoll::add(&epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN).map_err(failed)
            };
            for (data, inner) in (1..).zip(inner) {
                let Some(fd) = inner.event_fd()? else { return Ok(None) };
                add(data, fd)?;
            }
            add(0, self.own.get()?)?;
            self.epoll = Some(epoll);
        }
        Ok(self.epoll.as_ref().map(AsFd::as_fd))
    }

    /// When the layer's own next completion is due (0: at once). Does nothing if the descriptor was never requested.
    pub(crate) fn set(&self, due: Option<u64>) -> Result<()> {
        self.own.set(due)
    }
}

fn failed(errno: rustix::io::Errno) -> Error {
    Error::Open { path: "epoll".into(), action: "create", errno: errno.raw_os_error() }
}
