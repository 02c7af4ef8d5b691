//! The server's socket: it tells what the server counts, and whoever waits for its end how that went.
//!
//! A line asks: `metrics` (Prometheus text), `GET …` (the same by HTTP), `end` (`pid N` at once, and `clean` or
//! `failed: REASON` when the volume is closed). The socket is an abstract one, found by the mount's device number, and
//! answers its own user and root only; another one can be at a path, for whoever may open it.

use crate::mountinfo::MountEntry;
use crate::session::Session;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a client may take to ask, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest question, bytes.
const QUESTION_MAX: u64 = 16 << 10;
/// Most clients that wait for the end.
const WAITING_MAX: usize = 64;

/// The sockets of a server that does not answer yet.
pub struct Socket {
    abstract_one: UnixListener,
    at_path: Option<UnixListener>,
}

/// A server's sockets, answered by a thread.
pub struct Answering {
    /// Dropped to end the thread.
    wake: UnixStream,
    thread: JoinHandle<Vec<UnixStream>>,
}

/// Clients that wait for the end.
pub struct Waiting(Vec<UnixStream>);

impl Socket {
    /// The socket of a mount, and one at a path. A socket there that nobody listens to is replaced.
    ///
    /// # Errors
    /// Those of the system: the path is taken, or cannot be made.
    pub fn bind(mount: &MountEntry, path: Option<&Path>) -> io::Result<Socket> {
        let name = [&mount.socket_prefix()[..], std::process::id().to_string().as_bytes()].concat();
        let abstract_one = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok(Socket { abstract_one, at_path: path.map(bind_at).transpose()? })
    }

    /// Starts the thread that answers. `more` is told after what the session counts.
    ///
    /// # Errors
    /// If there is no thread or descriptor.
    pub fn answer_for(self, session: &Session, more: String) -> io::Result<Answering> {
        let (wake, woken) = UnixStream::pair()?;
        let metrics = session.metrics();
        let metrics = move || metrics() + &more;
        let serve = move || self.serve(&woken, &metrics);
        let thread = std::thread::Builder::new().name("uext4-socket".into()).spawn(serve)?;
        Ok(Answering { wake, thread })
    }

    fn serve(self, woken: &UnixStream, metrics: &impl Fn() -> String) -> Vec<UnixStream> {
        let mut waiting = Vec::new();
        loop {
            let at_path = self.at_path.as_ref().unwrap_or(&self.abstract_one);
            let all = PollFlags::IN;
            let mut polled =
                [PollFd::new(woken, all), PollFd::new(&self.abstract_one, all), PollFd::new(at_path, all)];
            if poll(&mut polled, None).is_err() {
                continue;
            }
            let [end, own, path] = polled.map(|polled| !polled.revents().is_empty());
            if end {
                return waiting;
            }
            let client = match (own, path) {
                (true, _) => self.abstract_one.accept().ok().filter(|(client, _)| is_trusted(client)),
                (_, true) => at_path.accept().ok(),
                _ => None,
            };
            let Some((client, _)) = client else { continue };
            waiting.retain(is_there);
            // A client that goes away, or is too slow, gets nothing.
            if let Ok(Some(client)) = answer(client, metrics)
                && waiting.len() < WAITING_MAX
            {
                waiting.push(client);
            }
        }
    }
}

fn bind_at(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// Whether a client is of this user, or root's.
fn is_trusted(client: &UnixStream) -> bool {
    socket_peercred(client).is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Whether a client that waits has not gone away.
fn is_there(client: &UnixStream) -> bool {
    let hung_up = PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(client, hung_up)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().intersects(hung_up)
}

/// Answers a question. Gives a client back that waits for the end.
fn answer(client: UnixStream, metrics: &impl Fn() -> String) -> io::Result<Option<UnixStream>> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new((&client).take(QUESTION_MAX));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    match line.trim_end() {
        "end" => {
            writeln!(&client, "pid {}", std::process::id())?;
            return Ok(Some(client));
        }
        "metrics" => (&client).write_all(metrics().as_bytes())?,
        get if get.starts_with("GET ") => {
            // The rest of the request.
            while reader.read_line(&mut line)? > 0 && !line.ends_with("\n\r\n") && !line.ends_with("\n\n") {}
            let text = metrics();
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            let length = text.len();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
            (&client).write_all(head.as_bytes())?;
            (&client).write_all(text.as_bytes())?;
        }
        _ => (&client).write_all(b"unknown question\n")?,
    }
    Ok(None)
}

impl Answering {
    /// Ends the thread, and takes no more questions.
    #[must_use]
    pub fn stop(self) -> Waiting {
        drop(self.wake);
        Waiting(self.thread.join().unwrap_or_default())
    }
}

impl Waiting {
    /// Tells how the end went.
    pub fn tell(self, closed: &Result<(), uext4::Error>) {
        let word = match closed {
            Ok(()) => "clean\n".to_owned(),
            Err(error) => format!("failed: {}\n", error.to_string().replace('\n', " ")),
        };
        for mut client in self.0 {
            let _gone = client.write_all(word.as_bytes());
        }
    }
}

/// A server, seen by a program that asks it.
#[derive(Debug)]
pub struct Server(UnixStream);

/// Why there was no clean end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotClean {
    /// It took too long.
    #[error("the server (process {0}) is still writing")]
    Late(u32),
    /// Closing the volume failed.
    #[error("{0}")]
    Failed(String),
    /// It ended without a word.
    #[error("the server was killed; the next use recovers the volume")]
    Killed,
}

/// A server that will tell its end.
#[derive(Debug)]
pub struct Ending {
    reader: BufReader<UnixStream>,
    process: u32,
}

impl Server {
    /// The server of a mount, or none: it is gone, or no `uext4`, or in another network name space.
    ///
    /// # Errors
    /// `EACCES` if it belongs to somebody else; those of reading the kernel's table.
    pub fn of(mount: &MountEntry) -> io::Result<Option<Server>> {
        let table = std::fs::read("/proc/net/unix")?;
        let mut refused = false;
        for name in mount.sockets(&table) {
            let Ok(stream) = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name)?) else {
                continue;
            };
            // Anybody can take such a name.
            let peer = socket_peercred(&stream)?.uid.as_raw();
            let own = rustix::process::geteuid().as_raw();
            match peer {
                _ if peer != 0 && Some(peer) != mount.user => {}
                _ if own != 0 && peer != own => refused = true,
                _ => return Ok(Some(Server(stream))),
            }
        }
        if refused { Err(io::Error::from_raw_os_error(libc::EACCES)) } else { Ok(None) }
    }

    /// What it counts, as Prometheus text.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn metrics(mut self) -> io::Result<String> {
        self.0.write_all(b"metrics\n")?;
        let mut text = String::new();
        self.0.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Asks to be told the end.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn end(mut self) -> io::Result<Ending> {
        self.0.write_all(b"end\n")?;
        let mut reader = BufReader::new(self.0);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let process = line.strip_prefix("pid ").and_then(|number| number.trim_end().parse().ok());
        process.map(|process| Ending { reader, process }).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Ending {
    /// Waits until everything is written home and the server has let go of the device, for at most so long.
    ///
    /// # Errors
    /// [`NotClean`].
    pub fn wait(mut self, timeout: Option<Duration>) -> Result<(), NotClean> {
        let mut line = String::new();
        let zero = timeout.is_some_and(|timeout| timeout.is_zero());
        let set = self.reader.get_ref().set_read_timeout(if zero {
            Some(Duration::from_millis(1))
        } else {
            timeout
        });
        match set.and_then(|()| self.reader.read_line(&mut line)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(NotClean::Late(self.process))
            }
            _ if line == "clean\n" => Ok(()),
            _ => Err(match line.strip_prefix("failed: ") {
                Some(reason) => NotClean::Failed(reason.trim_end().to_owned()),
                None => NotClean::Killed,
            }),
        }
    }
}
