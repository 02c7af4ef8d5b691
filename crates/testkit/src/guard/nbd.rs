//! Servers of NBD on local sockets, and a relay that cuts a connection.

use super::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server that listens on a socket in a directory of its own. Ended on drop.
#[derive(Debug)]
pub struct NbdServer {
    directory: tempfile::TempDir,
    command: Vec<std::ffi::OsString>,
    child: Child,
}

impl NbdServer {
    /// nbdkit with these arguments: filters, plugin and its parameters.
    ///
    /// # Panics
    /// If it does not begin to listen (ask [`crate::Need::Tool`] first).
    #[track_caller]
    pub fn nbdkit<S: AsRef<OsStr>>(arguments: &[S]) -> Self {
        Self::start("nbdkit", &["--foreground", "--exit-with-parent", "--unix"], arguments)
    }

    /// qemu-nbd with these arguments.
    ///
    /// # Panics
    /// As [`NbdServer::nbdkit`].
    #[track_caller]
    pub fn qemu<S: AsRef<OsStr>>(arguments: &[S]) -> Self {
        Self::start("qemu-nbd", &["--persistent", "--socket"], arguments)
    }

    #[track_caller]
    fn start<S: AsRef<OsStr>>(program: &str, options: &[&str], arguments: &[S]) -> Self {
        let directory = tempfile::Builder::new().prefix("uext4-nbd-").tempdir().expect("a directory");
        let mut command: Vec<std::ffi::OsString> = vec![program.into()];
        command.extend(options.iter().map(std::ffi::OsString::from));
        command.push(directory.path().join("socket").into());
        command.extend(arguments.iter().map(|argument| argument.as_ref().to_owned()));
        let child = spawn(&command, &directory.path().join("socket"));
        NbdServer { directory, command, child }
    }

    /// The requests of a kind (`Read`, `Write`, `Zero`, …) in the log of nbdkit's filter `log`: bytes of each, in the
    /// order in which its threads wrote them down.
    ///
    /// # Panics
    /// If the file is no such log.
    #[must_use]
    pub fn logged(log: &Path, kind: &str) -> Vec<u64> {
        let text = std::fs::read_to_string(log).expect("the log");
        let lines = text.lines().filter(|line| line.contains(&format!(" {kind} id=")));
        let counts = lines.map(|line| {
            let (_, count) = line.split_once("count=0x").expect("a count");
            let count = count.split_whitespace().next().expect("a number");
            u64::from_str_radix(count, 16).expect("a number")
        });
        counts.collect()
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// As a device, with this export.
    pub fn device(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it as its user would, so that it removes what it made; by force if it has requests that take long.
    pub fn end(&mut self) {
        // Once it was waited for, its number may be another's.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let ended = wait_until(Duration::from_secs(2), || !matches!(self.child.try_wait(), Ok(None)));
        if !ended {
            self.kill();
        }
    }

    /// For nbdkit, after a client was killed: waits until its worker threads are gone, and with them that client's
    /// requests. Version 1.32 may abort when it cannot send a reply (`raw_send_socket: Assertion`); it is restarted
    /// then. Its acknowledged writes are in the page cache.
    ///
    /// # Panics
    /// If the threads stay, or if it has ended in another way.
    #[track_caller]
    pub fn settle(&mut self) {
        if self.command[0] != "nbdkit" {
            return;
        }
        let mut ended = None;
        let settled = wait_until(Duration::from_secs(30), || {
            ended = self.child.try_wait().expect("its state");
            ended.is_some() || is_idle(self.child.id())
        });
        assert!(settled, "{:?} keeps its threads", self.command);
        if let Some(status) = ended {
            assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{:?}: {status}", self.command);
            eprintln!("nbdkit aborted, and is started again");
            self.restart();
        }
    }

    /// Starts it again on the same socket, after [`NbdServer::kill`].
    ///
    /// # Panics
    /// As [`NbdServer::nbdkit`].
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
        self.child = spawn(&self.command, &self.socket());
    }
}

#[track_caller]
fn spawn(command: &[std::ffi::OsString], socket: &Path) -> Child {
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut ended = None;
    let listens = wait_until(Duration::from_secs(30), || {
        ended = child.try_wait().expect("its state");
        // Only a look: a connection would be one of the clients that a server counts.
        ended.is_some() || is_listening(socket)
    });
    assert!(listens && ended.is_none(), "{command:?} does not listen: {ended:?}");
    child
}

/// Whether a socket of this name takes connections, by the kernel's table.
fn is_listening(socket: &Path) -> bool {
    let name = socket.to_string_lossy();
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    // The flag says that it was told to listen.
    table.lines().any(|line| line.ends_with(&*name) && line.split_whitespace().nth(3) == Some("00010000"))
}

/// Whether a process has one thread, and that one sleeps (a process that is dying does not).
fn is_idle(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // proc_pid_stat(5): fields 3 and 20.
    (fields[0], fields[17]) == ("S", "1")
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Stands between a client and a server, and ends every connection after it has passed on so many bytes of replies.
#[derive(Debug)]
pub struct CuttingRelay {
    directory: tempfile::TempDir,
}

impl CuttingRelay {
    /// Before the server that listens at `server`.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn new(server: PathBuf, bytes: u64) -> Self {
        let directory = tempfile::Builder::new().prefix("uext4-relay-").tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("a socket");
        // It ends with the program: nobody connects any more.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&server)) else { return };
                std::thread::spawn(move || relay(client, server, bytes));
            }
        });
        CuttingRelay { directory }
    }

    /// As a device.
    pub fn device(&self) -> String {
        format!("nbd+unix:///?socket={}", self.directory.path().join("socket").display())
    }
}

fn relay(client: UnixStream, server: UnixStream, bytes: u64) {
    let (Ok(from), Ok(mut to)) = (client.try_clone(), server.try_clone()) else { return };
    std::thread::spawn(move || {
        // Until either side is gone.
        let _ = std::io::copy(&mut &from, &mut to);
    });
    let (mut left, mut buffer) = (bytes, [0; 1000]);
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match (&server).read(&mut buffer[..most]) {
            Ok(count) if count > 0 && (&client).write_all(&buffer[..count]).is_ok() => left -= count as u64,
            _ => break,
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
