//! Listens, accepts clients, and gives each a thread.

use crate::connection;
use crate::export::Export;
use crate::fault::{Error, Fault};
use crate::handshake;
use crate::stop::{Stopper, clear, wake};
use crate::stream::{Stream, is_ready, poll_in, wait};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::Mode;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// How long to wait before accepting again when the process has too many descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// How a server treats its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOptions {
    /// Most clients at once; others are turned away.
    pub connections: usize,
    /// End when the last client leaves.
    pub once: bool,
}

impl Default for ServerOptions {
    /// 16 clients at once, and no end.
    fn default() -> ServerOptions {
        ServerOptions { connections: 16, once: false }
    }
}

/// Serves an [`Export`] on sockets.
#[derive(Debug)]
pub struct Server {
    export: Arc<Export>,
    options: ServerOptions,
    stop: Stopper,
    unix: Vec<AtPath>,
    tcp: Vec<TcpListener>,
}

/// A socket at a path, which is removed at the end.
#[derive(Debug)]
struct AtPath {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for AtPath {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// What the threads of clients tell the one that accepts.
struct Clients {
    now: AtomicUsize,
    /// Some client has asked for requests to be served.
    served: AtomicBool,
    /// Readable when one has left.
    left: OwnedFd,
}

impl Server {
    /// A server that listens nowhere yet.
    ///
    /// # Errors
    /// [`Error::System`] if there is no descriptor.
    pub fn new(export: Export, options: ServerOptions) -> Result<Server, Error> {
        Ok(Server {
            export: Arc::new(export),
            options,
            stop: Stopper::new()?,
            unix: Vec::new(),
            tcp: Vec::new(),
        })
    }

    /// Listens on a socket at `path`, for its owner only. A socket there to which nobody listens is replaced.
    ///
    /// # Errors
    /// [`Error::Taken`] if a server listens there, [`Error::Bind`] for those of the system.
    pub fn listen_at(&mut self, path: &Path) -> Result<(), Error> {
        let failed = |error| Error::Bind { path: path.to_owned(), error };
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            match UnixStream::connect(path) {
                Ok(_) => return Err(Error::Taken(path.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        // The mode must not be wider even for a moment.
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = bound.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        self.unix.push(AtPath { listener, path: std::path::absolute(path).map_err(failed)? });
        Ok(())
    }

    /// Listens on a TCP address, and returns it with the port that was chosen if it has none. There is no encryption
    /// and no password: whoever can connect can read and write.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub fn listen_on(&mut self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let failed = |error| Error::Listen { address, error };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let chosen = listener.local_addr().map_err(failed)?;
        self.tcp.push(listener);
        Ok(chosen)
    }

    /// What is served.
    #[must_use]
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Ends the server from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Serves until it is stopped, or the last client has left if [`ServerOptions::once`] says so; then makes all that
    /// was written durable. `tell` hears of clients that did not keep to the protocol, or that could not be served.
    ///
    /// # Errors
    /// Those of the system in accepting, and [`Error::Volume`] if what was written cannot be made durable.
    pub fn run(&self, tell: impl Fn(&Fault) + Sync) -> Result<(), Error> {
        let left = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let clients = Clients { now: AtomicUsize::new(0), served: AtomicBool::new(false), left };
        let accepted = std::thread::scope(|scope| {
            let accepted = self.accept(scope, &clients, &tell);
            self.stop.stop();
            accepted
        });
        let synced = self.export.sync();
        accepted.map_err(Error::System).and(synced)
    }

    fn accept<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        clients: &'s Clients,
        tell: &'s (impl Fn(&Fault) + Sync),
    ) -> io::Result<()> {
        let mut threads: Vec<ScopedJoinHandle<'s, ()>> = Vec::new();
        while !self.stop.is_thrown() {
            clear(&clients.left);
            threads.retain(|thread| !thread.is_finished());
            if self.options.once
                && clients.served.load(Ordering::Acquire)
                && clients.now.load(Ordering::Acquire) == 0
            {
                break;
            }
            let Some(stream) = self.next(clients)? else { continue };
            if clients.now.load(Ordering::Acquire) >= self.options.connections {
                // Turned away: it sees the socket closed.
                continue;
            }
            clients.now.fetch_add(1, Ordering::AcqRel);
            let counted = Counted(clients);
            let work = move || {
                let _counted = counted;
                if let Err(fault) = self.client(stream, clients) {
                    tell(&fault);
                }
            };
            let thread = std::thread::Builder::new().name("uext4-nbd".into()).spawn_scoped(scope, work);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => tell(&Fault::Socket(error)),
            }
        }
        Ok(())
    }

    /// The next client, if there is one after a wait.
    fn next(&self, clients: &Clients) -> io::Result<Option<Stream>> {
        let mut polled = vec![poll_in(self.stop.as_fd()), poll_in(clients.left.as_fd())];
        polled.extend(self.unix.iter().map(|at| poll_in(at.listener.as_fd())));
        polled.extend(self.tcp.iter().map(|listener| poll_in(listener.as_fd())));
        wait(&mut polled, None)?;
        let ready: Vec<bool> = polled[2..].iter().map(is_ready).collect();
        let (unix, tcp) = ready.split_at(self.unix.len());
        let unix = self.unix.iter().zip(unix).find(|(_, ready)| **ready);
        let tcp = self.tcp.iter().zip(tcp).find(|(_, ready)| **ready);
        let accepted = match (unix, tcp) {
            (Some((at, _)), _) => at.listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            (None, Some((listener, _))) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            (None, None) => return Ok(None),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    wait(&mut [poll_in(self.stop.as_fd())], Some(Instant::now() + BREATH))?;
                    Ok(None)
                }
                // Of the client: it left before it was accepted.
                _ => Ok(None),
            },
        }
    }

    fn client(&self, stream: Stream, clients: &Clients) -> Result<(), Fault> {
        let mut stream = stream.prepared()?;
        let Some(agreed) = handshake::negotiate(&mut stream, &self.export, &self.stop)? else {
            return Ok(());
        };
        clients.served.store(true, Ordering::Release);
        connection::serve(stream, &self.export, &self.stop, agreed)
    }
}

/// A client that counts until it is dropped.
struct Counted<'c>(&'c Clients);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::AcqRel);
        wake(&self.0.left);
    }
}
