//! A mount that is served: threads that each read a request, do it and answer.
//!
//! Syncs, reads and writes wait for the device, which can hang. They must not take all threads, since an interrupt
//! has to be read by one, and the device does many requests at a time: when all threads wait, another one starts. It
//! ends when it was not needed for a while. An interrupted sync that goes on for a second is answered `EINTR`, so
//! that its caller can be killed; whatever it wrote may or may not be durable then.

use crate::mount::Connection;
use crate::options::ServeOptions;
use crate::reply::{Errno, Outcome, Reply};
use crate::request::{Request, cut};
use crate::server::{Answer, Negotiated, Payload, Served, negotiate};
use crate::stats::{Counters, single};
use crate::transport::{Channel, DATA_MAX, RequestBuffer};
use crate::wire::{InHeader, InitOut, InterruptIn, op};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use uext4::{Buffer, BufferPool, Volume};
use zerocopy::IntoBytes;

/// Most threads that are started beyond those asked for, while others wait for the device.
const MORE_MAX: usize = 64;
/// How long a thread stays that was not needed.
const SPARE: Duration = Duration::from_secs(1);
/// How long an interrupted sync may go on before its caller is let go: a signal alone shall not fail it.
const GRACE: Duration = Duration::from_secs(1);

/// Why serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The mount is gone.
    Unmounted,
    /// [`Stopper::stop`] was called. The mount may still be there.
    Stopped,
}

/// A mounted volume that is served by threads of this process.
pub struct Session {
    shared: Arc<Shared>,
    ended: Receiver<Ended>,
    stopper: Stopper,
}

/// Ends [`Session::wait`] from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Sender<Ended>);

impl Stopper {
    /// Has [`Session::wait`] return.
    pub fn stop(&self) {
        // Nobody waits any more: it has ended already.
        let _ended = self.0.send(Ended::Stopped);
    }
}

/// Tells the end of the last thread.
struct LastThread(Sender<Ended>);

impl Drop for LastThread {
    fn drop(&mut self) {
        let _nobody_waits = self.0.send(Ended::Unmounted);
    }
}

/// How many threads there are, and how many of them wait for the device.
struct Threads {
    all: usize,
    waiting: usize,
    /// When nearly all of them waited last.
    needed: Option<Instant>,
}

struct Shared {
    channel: Arc<dyn Channel>,
    /// Held for reading by each request; taken at the end.
    served: RwLock<Option<Served>>,
    /// Replies of syncs under way: the sync or an interrupt answers, whichever comes first.
    syncs: Mutex<HashMap<u64, Reply>>,
    interrupts: Sender<(u64, Instant)>,
    threads: Mutex<Threads>,
    wanted: usize,
    counters: Counters,
}

impl Session {
    /// Greets the kernel, and starts the threads that serve the mount.
    ///
    /// # Errors
    /// If the kernel is too old (before Linux 5.12), the mount is gone already, or there is no memory or thread.
    pub fn start(connection: Connection, volume: Volume, options: &ServeOptions) -> io::Result<Session> {
        let channel: Arc<dyn Channel> = Arc::new(connection.into_device());
        greet(&channel)?;
        let wanted = options.threads.max(1);
        let served = Served::new(volume, channel.clone(), options.clone())?;
        let (interrupts, interrupted) = std::sync::mpsc::channel();
        let shared = Arc::new(Shared {
            channel,
            served: RwLock::new(Some(served)),
            syncs: Mutex::default(),
            interrupts,
            threads: Mutex::new(Threads { all: wanted, waiting: 0, needed: None }),
            wanted,
            counters: Counters::new(wanted),
        });
        let (stop, ended) = channel_of_ends();
        let last = Arc::new(LastThread(stop.0.clone()));
        let weak = Arc::downgrade(&shared);
        let grace = move || {
            for (unique, since) in interrupted {
                std::thread::sleep((since + GRACE).saturating_duration_since(Instant::now()));
                let Some(shared) = weak.upgrade() else { return };
                let late = shared.syncs.lock().remove(&unique);
                if let Some(reply) = late {
                    let _gone = reply.answer(Err(Errno(libc::EINTR)));
                }
            }
        };
        std::thread::Builder::new().name("uext4-interrupt".into()).spawn(grace)?;
        for _ in 0..wanted {
            spawn(&shared, &last, false)?;
        }
        Ok(Session { shared, ended, stopper: stop })
    }

    /// What gives the counters as Prometheus text, from any thread. While the volume is being closed only those of
    /// requests.
    pub fn metrics(&self) -> impl Fn() -> String + Send + use<> {
        let shared = Arc::downgrade(&self.shared);
        move || {
            let mut text = String::new();
            let Some(shared) = shared.upgrade() else { return text };
            shared.counters.write(&mut text);
            write_process(&mut text);
            let (all, waiting) = {
                let threads = shared.threads.lock();
                (threads.all, threads.waiting)
            };
            single(&mut text, "uext4_threads", "gauge", "Threads that serve requests.", all as u64);
            single(
                &mut text,
                "uext4_threads_waiting",
                "gauge",
                "Those of them that wait for the device.",
                waiting as u64,
            );
            if let Some(Some(served)) = shared.served.try_read().as_deref() {
                served.write_stats(&mut text);
            }
            text
        }
    }

    /// What ends [`Session::wait`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until the mount is gone, or somebody stops it.
    pub fn wait(&self) -> Ended {
        self.ended.recv().unwrap_or(Ended::Unmounted)
    }

    /// As [`Session::wait`], but no longer than this.
    #[must_use]
    pub fn wait_for(&self, length: Duration) -> Option<Ended> {
        self.ended.recv_timeout(length).ok()
    }

    /// Waits for requests under way, refuses later ones, and closes the volume: everything is written home then, and
    /// it is marked clean.
    ///
    /// # Errors
    /// As of [`Volume::close`]; a failure of a write that was acknowledged before, if no sync told it.
    pub fn close(self) -> Result<(), uext4::Error> {
        let served = self.shared.served.write().take();
        served.map_or(Ok(()), Served::close)
    }
}

/// Appends what the process holds.
fn write_process(out: &mut String) {
    single(out, "uext4_process_id", "gauge", "The process.", std::process::id().into());
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    let bytes = pages * rustix::param::page_size() as u64;
    single(out, "process_resident_memory_bytes", "gauge", "Memory.", bytes);
    // The listing has one open itself.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |list| list.count().saturating_sub(1));
    single(out, "process_open_fds", "gauge", "Open descriptors.", open as u64);
}

fn channel_of_ends() -> (Stopper, Receiver<Ended>) {
    let (sender, receiver) = channel();
    (Stopper(sender), receiver)
}

/// Memory of one thread.
struct ThreadMemory {
    request: RequestBuffer,
    reply: Buffer,
}

impl ThreadMemory {
    fn new() -> Result<ThreadMemory, uext4::Error> {
        let pool = BufferPool::new(4 * DATA_MAX)?;
        Ok(ThreadMemory { request: RequestBuffer::new(&pool)?, reply: pool.take(DATA_MAX)? })
    }
}

/// Serves INIT.
fn greet(channel: &Arc<dyn Channel>) -> io::Result<()> {
    let mut memory = ThreadMemory::new().map_err(io::Error::other)?;
    loop {
        let Some(length) = channel.receive(&mut memory.request)? else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let request = Request::parse(memory.request.filled(length));
        let request = request.map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))?;
        let reply = Reply::new(channel.clone(), request.header.unique);
        if request.header.opcode != op::INIT {
            // Nothing else comes before it.
            reply.answer(Err(Errno::IO))?;
            continue;
        }
        let send = |reply: Reply, out: InitOut| reply.answer(Ok(out.as_bytes()));
        match negotiate(&request) {
            Ok(Negotiated::Ready(out)) => return send(reply, out),
            Ok(Negotiated::Again(out)) => send(reply, out)?,
            Err(error) => {
                reply.answer(Err(error))?;
                return Err(io::Error::from_raw_os_error(error.0));
            }
        }
    }
}

fn spawn(shared: &Arc<Shared>, last: &Arc<LastThread>, more: bool) -> io::Result<()> {
    let (shared, last) = (shared.clone(), last.clone());
    let mut memory = ThreadMemory::new().map_err(io::Error::other)?;
    let serve = move || {
        // An error of the transport ends the connection, like the end of the mount.
        while let Ok(Some(length)) = shared.channel.receive(&mut memory.request) {
            shared.handle(memory.request.filled(length), &mut memory.reply, &last);
            if more && shared.threads.lock().lets_go(shared.wanted) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("uext4-fuse".into()).spawn(serve)?;
    Ok(())
}

impl Threads {
    /// One waits from now on. Returns whether one more is needed, which counts from now on.
    fn waits(&mut self, wanted: usize) -> bool {
        self.waiting += 1;
        if self.waiting + 1 >= self.all {
            self.needed = Some(Instant::now());
        }
        let more = self.waiting >= self.all && self.all < wanted + MORE_MAX;
        self.all += usize::from(more);
        more
    }

    /// Whether one that was started later may end, which does not count from now on.
    fn lets_go(&mut self, wanted: usize) -> bool {
        let enough =
            self.all - self.waiting > wanted && self.needed.is_none_or(|then| then.elapsed() > SPARE);
        self.all -= usize::from(enough);
        enough
    }
}

impl Shared {
    /// Serves one request.
    fn handle(self: &Arc<Self>, bytes: &[u8], memory: &mut Buffer, last: &Arc<LastThread>) {
        let request = match Request::parse(bytes) {
            Ok(request) => request,
            Err(error) => {
                if let Ok((header, _)) = cut::<InHeader>(bytes) {
                    let _gone = Reply::new(self.channel.clone(), header.unique).answer(Err(error));
                }
                return;
            }
        };
        let (opcode, unique) = (request.header.opcode, request.header.unique);
        if opcode == op::INTERRUPT {
            if let Ok((asked, _)) = request.arguments::<InterruptIn>() {
                let _ending = self.interrupts.send((asked.unique, Instant::now()));
            }
            return;
        }
        let reply = match request.expects_reply() {
            true => Reply::new(self.channel.clone(), unique),
            false => Reply::none(self.channel.clone(), unique),
        };
        if !Served::waits(opcode) {
            return self.serve(&request, memory, || Some(reply));
        }
        if self.threads.lock().waits(self.wanted) && spawn(self, last, true).is_err() {
            self.threads.lock().all -= 1;
        }
        if Served::is_sync(opcode) {
            self.syncs.lock().insert(unique, reply);
            self.serve(&request, memory, || self.syncs.lock().remove(&unique));
        } else {
            self.serve(&request, memory, || Some(reply));
        }
        self.threads.lock().waiting -= 1;
    }

    /// Does what a request asks for, and answers if the reply is still owed.
    fn serve(&self, request: &Request<'_>, memory: &mut Buffer, reply: impl FnOnce() -> Option<Reply>) {
        let begun = Instant::now();
        let served = self.served.read();
        let outcome = catch_unwind(AssertUnwindSafe(|| match &*served {
            Some(served) => served.serve(request, memory),
            None => Err(Errno(libc::ENOTCONN)),
        }));
        // A panic is a fault of this program, in one request.
        let outcome: Outcome<Answer> = outcome.unwrap_or(Err(Errno::IO));
        self.counters.count(request.header.opcode, outcome.is_err(), begun.elapsed());
        let Some(reply) = reply() else { return };
        match outcome {
            Err(error) => drop(reply.answer(Err(error))),
            Ok(answer) => {
                let bytes = match &answer.payload {
                    Payload::Nothing => &[][..],
                    Payload::Bytes(bytes) => bytes,
                    Payload::Memory(length) => &memory[..*length],
                };
                let sent = reply.answer(Ok(bytes));
                if let (Err(_), Some(served)) = (sent, &*served) {
                    served.undo(answer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_while_all_wait_and_leave_later() {
        let mut threads = Threads { all: 2, waiting: 0, needed: None };
        assert!(!threads.waits(2));
        assert!(threads.waits(2) && threads.all == 3);
        assert!(!threads.lets_go(2), "it is the only one that does not wait");
        threads.waiting = 0;
        assert!(!threads.lets_go(2), "it was needed just now");
        threads.needed = Instant::now().checked_sub(2 * SPARE);
        assert!(threads.lets_go(2) && threads.all == 2 && !threads.lets_go(2));
        let mut most = Threads { all: 2 + MORE_MAX, waiting: 1 + MORE_MAX, needed: None };
        assert!(!most.waits(2));
    }
}
