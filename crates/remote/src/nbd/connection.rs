//! One connection to a server, which queues and calls share.

use super::api::{Fault, Handle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uext4_blockdev::Process;

/// Why the device is lost: its first connection that ended says it. Nothing is sent after that, on any connection.
#[derive(Debug, Default)]
pub(super) struct Lost(OnceLock<String>);

impl Lost {
    /// Why, if it is.
    #[inline]
    pub(super) fn why(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// A server's machine that has said nothing for so long is asked whether it is still there, again after each
/// [`ASK_AGAIN`], and [`ASK_TIMES`] at most: a machine that has gone without a word is lost after three minutes. For as
/// long as a request could not even be delivered, the system tries to (15 minutes, unless set otherwise).
const ASK_AFTER: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_secs(15);
const ASK_TIMES: u32 = 8;

/// See the module.
pub(super) struct Connection {
    handle: Handle,
    /// A duplicate of libnbd's.
    socket: OwnedFd,
    process: Process,
    lost: Arc<Lost>,
}

/// What a wait ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Woken {
    pub(super) socket: PollFlags,
    pub(super) bell: bool,
}

impl Connection {
    /// Takes over a connection that has been negotiated.
    pub(super) fn new(handle: Handle, process: Process, lost: Arc<Lost>) -> Result<Self, Fault> {
        let socket = handle.socket()?;
        // Without it, the system's own times hold: there are none for who waits for an answer.
        let _asked_or_not = ask_now_and_then(&socket);
        Ok(Connection { handle, socket, process, lost })
    }

    pub(super) fn process(&self) -> Process {
        self.process
    }

    pub(super) fn lost(&self) -> &Lost {
        &self.lost
    }

    #[inline]
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What the socket has to be polled for.
    #[inline]
    pub(super) fn interest(&self) -> PollFlags {
        if self.handle.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Records the end of the connection, if it is over. `fault`: what libnbd said last.
    #[inline]
    pub(super) fn look(&self, fault: Option<Fault>) {
        if self.handle.is_over() {
            self.record(fault);
        }
    }

    #[cold]
    fn record(&self, fault: Option<Fault>) {
        let reason =
            fault.map_or_else(|| "the server has closed the connection".into(), |fault| fault.reason);
        // The first reason stays.
        let _ = self.lost.0.set(reason);
        // A client that has gone should not hold a server's connection.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Goes on with what the socket is ready for. Completions are told. While `more`, takes another reply.
    pub(super) fn turn(&self, ready: PollFlags, mut more: impl FnMut() -> bool) {
        let mut last = Ok(());
        if ready.intersects(PollFlags::OUT) && self.handle.wants_write() {
            last = self.handle.notify_write();
        }
        if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            // A reply for each, if it is there: cheaper than to ask the system each time whether one is.
            last = self.handle.notify_read();
            while last.is_ok() && more() {
                last = self.handle.notify_read();
            }
            self.release();
        }
        self.look(last.err());
    }

    /// After a read of the socket that found nothing libnbd waits for the beginning of a reply, and sends nothing until
    /// one comes. Another read ends that. Other threads, and messages of TLS, are how the socket may have had nothing.
    #[inline]
    pub(super) fn release(&self) {
        while !self.handle.is_ready() && !self.handle.wants_write() && !self.handle.is_over() {
            if let Err(fault) = self.handle.notify_read() {
                self.look(Some(fault));
            }
        }
    }

    /// Waits until the socket is ready, the bell rings, or the time is over.
    pub(super) fn wait(&self, bell: BorrowedFd<'_>, limit: Option<Timespec>) -> Result<Woken, Errno> {
        let mut polled =
            [PollFd::new(&self.socket, self.interest()), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) => Ok(Woken { socket: polled[0].revents(), bell: !polled[1].revents().is_empty() }),
            // A signal: the caller looks again, and waits again.
            Err(Errno::INTR) => Ok(Woken { socket: PollFlags::empty(), bell: false }),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the socket is ready, without waiting.
    pub(super) fn ready(&self) -> PollFlags {
        let mut polled = [PollFd::new(&self.socket, self.interest())];
        match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => polled[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }

    /// Ends the connection: when this returns, libnbd uses no memory of any request of it.
    #[cold]
    pub(super) fn cut(&self, reason: &str) {
        let fault = || Some(Fault { reason: reason.into(), errno: libc::EIO });
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        while !self.handle.is_over() {
            // The socket has ended: libnbd reads what is left, and then its end.
            let _ = self.handle.notify_read();
        }
        self.record(fault());
    }
}

/// Lets the system ask the other machine now and then whether it still knows the connection.
fn ask_now_and_then(socket: &OwnedFd) -> Result<(), Errno> {
    if !matches!(sockopt::socket_domain(socket)?, AddressFamily::INET | AddressFamily::INET6) {
        return Ok(());
    }
    sockopt::set_tcp_keepidle(socket, ASK_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASK_AGAIN)?;
    sockopt::set_tcp_keepcnt(socket, ASK_TIMES)?;
    sockopt::set_socket_keepalive(socket, true)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.process.is_here() && self.handle.is_ready() {
            self.handle.disconnect();
        }
    }
}
