//! Why a connection was ended by the server, and why a server fails.

use crate::protocol::STRING_MAX;
use std::io;
use std::path::PathBuf;

/// Why the server ended a connection before its client did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The handshake took too long.
    #[error("the handshake took longer than {0} seconds")]
    Slow(u64),
    /// The client set flags that the protocol does not have.
    #[error("the client set unknown flags in the handshake ({0:#x})")]
    Flags(u32),
    /// What came is no option.
    #[error("the client sent no option where one was due (magic {0:#x})")]
    Option(u64),
    /// An option with more data than any has.
    #[error("the client sent an option with {0} bytes of data")]
    OptionLength(u32),
    /// More options than any client needs.
    #[error("the client sent more than {0} options")]
    Options(u32),
    /// Another export than this one, in a way that has no reply.
    #[error("the client asked for another export: `{0}`")]
    Export(String),
    /// What came is no request.
    #[error("the client sent no request where one was due")]
    Request,
    /// The client left in the middle of a message. Nothing of it was done.
    #[error("the client left in the middle of a message")]
    Torn,
    /// The client took no replies while the server was shutting down.
    #[error("the client took no replies for {0} seconds while the server was shutting down")]
    Stuck(u64),
    /// The socket failed.
    #[error("the client's socket: {0}")]
    Socket(#[from] io::Error),
    /// The queue of the connection failed, or could not be made.
    #[error("the connection's queue: {0}")]
    Queue(#[from] uext4::Error),
    /// A thread of the connection panicked.
    #[error("a thread of the connection ended early")]
    Thread,
}

/// Why a server cannot begin, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file or device cannot be served, or its changes could not be made durable at the end.
    #[error(transparent)]
    Volume(#[from] uext4::Error),
    /// The socket cannot be made.
    #[error("{}: {error}", path.display())]
    Bind {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another server listens there.
    #[error("{}: a server listens there", .0.display())]
    Taken(PathBuf),
    /// The address cannot be listened to.
    #[error("{address}: {error}")]
    Listen {
        /// Which.
        address: std::net::SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// A name that no client could send.
    #[error("the name of an export has at most {STRING_MAX} bytes and no zero byte")]
    Name,
    /// The system gives no thread, no descriptor, or fails to wait.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Error {
    /// The system's number for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Error::Volume(error) => error.errno(),
            Error::Bind { error, .. } | Error::Listen { error, .. } | Error::System(error) => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::Taken(_) => libc::EADDRINUSE,
            Error::Name => libc::EINVAL,
        }
    }
}
