//! A connected socket, of either kind, that never blocks.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of each direction that the kernel is asked to keep. It may keep fewer.
const KEPT: usize = 1 << 20;

/// A client's socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// What came of an attempt that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    Bytes(usize),
    /// Nothing now.
    Later,
    /// The other side has ended it.
    Closed,
}

impl Stream {
    /// Prepares a socket that was just accepted.
    pub(crate) fn prepared(self) -> io::Result<Stream> {
        match &self {
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
            Stream::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                // So that a client whose machine has gone does not keep its place for ever.
                sockopt::set_socket_keepalive(stream, true)?;
            }
        }
        // Larger batches in one call; the kernel's limit may be lower.
        let _as_much_as_allowed = sockopt::set_socket_send_buffer_size(&self, KEPT);
        let _as_much_as_allowed = sockopt::set_socket_recv_buffer_size(&self, KEPT);
        Ok(self)
    }

    /// Receives into `parts`, in order.
    pub(crate) fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Moved> {
        let received = match self {
            Stream::Unix(stream) => stream.read_vectored(parts),
            Stream::Tcp(stream) => stream.read_vectored(parts),
        };
        match received {
            Ok(0) => Ok(Moved::Closed),
            received => moved(received),
        }
    }

    /// Sends `parts`, in order, as far as the kernel takes them.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<Moved> {
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(self, parts, &mut SendAncillaryBuffer::default(), flags);
        moved(sent.map_err(io::Error::from))
    }
}

fn moved(result: io::Result<usize>) -> io::Result<Moved> {
    match result {
        Ok(bytes) => Ok(Moved::Bytes(bytes)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Moved::Later),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(Moved::Closed),
            _ => Err(error),
        },
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// Waits until one of `polled` is ready or `deadline` is reached.
pub(crate) fn wait(polled: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    // Rounded up, so that a wait never ends just before its deadline.
    let left =
        left.map(|left| Timespec::try_from(left + Duration::from_micros(1)).unwrap_or(Timespec::default()));
    match poll(polled, left.as_ref()) {
        Ok(_) => Ok(()),
        // The caller looks at its sources again.
        Err(rustix::io::Errno::INTR) => {
            polled.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether `polled` is ready, or broken: an attempt tells.
pub(crate) fn is_ready(polled: &PollFd<'_>) -> bool {
    !polled.revents().is_empty()
}

/// Asks for a descriptor to be readable.
pub(crate) fn poll_in(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}
