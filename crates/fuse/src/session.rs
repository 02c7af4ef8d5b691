//! A mount that is served: its begin, what is told of it, and its end.

use crate::memory::Memory;
use crate::mount::Connection;
use crate::options::{ServeOptions, Transport};
use crate::queues::{Queues, processors, rings};
use crate::readers::{Readers, ThreadMemory};
use crate::reply::{Errno, Reply};
use crate::request::Request;
use crate::server::{Negotiated, Serve, Served, negotiate};
use crate::stats::{Counters, single};
use crate::transport::Channel;
use crate::wire::{InitOut, init, op};
use crate::work::{Last, Work, let_go_of_interrupted};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;
use uext4::Volume;
use zerocopy::IntoBytes;

/// Where the kernel tells that.
const OFFERED: &str = "/sys/module/fuse/parameters/enable_uring";

/// Why serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The mount is gone.
    Unmounted,
    /// [`Stopper::stop`] was called. The mount may still be there.
    Stopped,
    /// The kernel takes no answers through io_uring any more, with this error number. The mount is still there, and
    /// those who use it would wait for ever.
    Broken(i32),
}

impl Connection {
    /// Makes the rings that requests may come through, unless they are made already: before a
    /// [`Sandbox`](crate::Sandbox), inside of which none can be made. [`Session::start`] tells if that failed.
    #[must_use]
    pub fn with_rings(mut self, transport: Transport) -> Connection {
        let wanted = match transport {
            Transport::Dev => false,
            Transport::Auto => rings_are_offered(),
            Transport::Uring => true,
        };
        if wanted && self.rings.is_none() {
            self.rings = Some(rings(&self.device));
        }
        self
    }
}

/// A mounted volume that is served by threads of this process.
pub struct Session {
    work: Arc<Work>,
    // Their threads keep them.
    readers: Weak<Readers>,
    queues: Weak<Queues>,
    declined: Option<io::Error>,
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

impl Session {
    /// Greets the kernel, and starts the threads that serve the mount. Makes the rings for it, unless
    /// [`Connection::with_rings`] has.
    ///
    /// # Errors
    /// If the kernel is too old (before Linux 5.12) or lacks the transport that the options demand, the mount is gone
    /// already, or there is no memory or thread.
    pub fn start(connection: Connection, volume: Volume, options: &ServeOptions) -> io::Result<Session> {
        let serve = |channel| Ok(Box::new(Served::new(volume, channel, options.clone())?) as Box<dyn Serve>);
        Session::start_with(connection, serve, options)
    }

    /// As [`Session::start`], but with files in memory that are lost at the end, and of which only what a measurement
    /// needs is there: what a mount could do if the volume cost nothing.
    ///
    /// # Errors
    /// As of [`Session::start`].
    pub fn start_in_memory(connection: Connection, options: &ServeOptions) -> io::Result<Session> {
        Session::start_with(connection, |_| Ok(Box::new(Memory::new())), options)
    }

    fn start_with(
        connection: Connection,
        serve: impl FnOnce(Arc<dyn Channel>) -> io::Result<Box<dyn Serve>>,
        options: &ServeOptions,
    ) -> io::Result<Session> {
        let Connection { device, rings } = connection.with_rings(options.transport);
        let channel: Arc<dyn Channel> = Arc::new(device);
        let rings = rings.unwrap_or_else(|| Err(io::ErrorKind::Unsupported.into()));
        let offered = greet(&channel, rings.is_ok())?;
        let rings = rings.and_then(|rings| if offered { Ok(rings) } else { Err(not_offered()) });
        let threads = options.threads.max(1);
        let (interrupts, interrupted) = std::sync::mpsc::channel();
        let work = Arc::new(Work {
            served: RwLock::new(Some(serve(channel.clone())?)),
            channel,
            syncs: Mutex::default(),
            interrupts,
            counters: Counters::new(threads.max(processors().unwrap_or(1))),
        });
        let (stop, ended) = channel_of_ends();
        let last: Last = Arc::new(LastThread(stop.0.clone()));
        let broken = stop.0.clone();
        let broken = Box::new(move |error: io::Error| {
            let _ended = broken.send(Ended::Broken(error.raw_os_error().unwrap_or(libc::EIO)));
        });
        let queues = rings.and_then(|rings| {
            let spare = rings.take()?;
            // A kernel that waits for queues is told that there are none, or the mount fails.
            let started = Queues::start(work.clone(), rings, broken, last.clone());
            if started.is_err() {
                spare.refuse()?;
            }
            started
        });
        let (queues, declined) = match (queues, options.transport) {
            (Ok(queues), _) => (queues, None),
            (Err(error), Transport::Uring) => return Err(error),
            (Err(error), Transport::Auto) if rings_are_offered() => (Weak::new(), Some(error)),
            (Err(_), Transport::Auto | Transport::Dev) => (Weak::new(), None),
        };
        let_go_of_interrupted(Arc::downgrade(&work), interrupted, Queues::takers(queues.clone()))?;
        // FORGET and INTERRUPT never come through rings. One thread reads them; another starts when that one waits.
        let readers = if queues.strong_count() > 0 { 1 } else { threads };
        let readers = Readers::start(work.clone(), readers, last)?;
        Ok(Session { work, readers, queues, declined, ended, stopper: stop })
    }

    /// Why requests do not come through io_uring, though the kernel offers it and [`Transport::Auto`] was asked for.
    #[must_use]
    pub fn declined(&self) -> Option<&io::Error> {
        self.declined.as_ref()
    }

    /// How requests come.
    #[must_use]
    pub fn transport(&self) -> Transport {
        if self.queues.strong_count() > 0 { Transport::Uring } else { Transport::Dev }
    }

    /// What gives the counters as Prometheus text, from any thread. While the volume is being closed only those of
    /// requests.
    pub fn metrics(&self) -> impl Fn() -> String + Send + use<> {
        let work = Arc::downgrade(&self.work);
        let (readers, queues) = (self.readers.clone(), self.queues.clone());
        move || {
            let mut text = String::new();
            let Some(work) = work.upgrade() else { return text };
            work.counters.write(&mut text);
            write_process(&mut text);
            let through_rings = queues.upgrade().map(|queues| queues.count());
            let (all, waiting) = readers.upgrade().map_or((0, 0), |readers| readers.count());
            let (more, busy) = through_rings.unwrap_or((0, 0));
            let (all, waiting) = (all + more, waiting + busy);
            if let Some((stepped, recalled)) = queues.upgrade().and_then(|queues| queues.aside()) {
                let help = "Answers during which the thread stepped aside for its caller.";
                single(&mut text, "uext4_aside_total", "counter", help, stepped);
                let help = "Threads that stayed aside too long and were called back.";
                single(&mut text, "uext4_aside_recalled_total", "counter", help, recalled);
            }
            let rings = through_rings.is_some().into();
            single(&mut text, "uext4_uring", "gauge", "Whether requests come through io_uring.", rings);
            single(&mut text, "uext4_threads", "gauge", "Threads that serve requests.", all as u64);
            single(
                &mut text,
                "uext4_threads_waiting",
                "gauge",
                "Those of them that wait for the device, or are busy with a request of a ring.",
                waiting as u64,
            );
            if let Some(Some(served)) = work.served.try_read().as_deref() {
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
        let served = self.work.served.write().take();
        served.map_or(Ok(()), |served| served.close())
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

/// Whether the kernel offers FUSE over io_uring to new mounts. It may all the same not give the rings.
#[must_use]
pub fn rings_are_offered() -> bool {
    std::fs::read(OFFERED).is_ok_and(|told| told.starts_with(b"Y"))
}

fn not_offered() -> io::Error {
    let reason = format!("the kernel does not offer FUSE over io_uring ({OFFERED})");
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

/// Serves INIT. Returns whether requests are to come through rings, which the kernel must offer and this process want.
fn greet(channel: &Arc<dyn Channel>, rings: bool) -> io::Result<bool> {
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
        match negotiate(&request, rings) {
            Ok(Negotiated::Ready(out)) => {
                send(reply, out)?;
                return Ok(u64::from(out.flags2) << 32 & init::OVER_IO_URING != 0);
            }
            Ok(Negotiated::Again(out)) => send(reply, out)?,
            Err(error) => {
                reply.answer(Err(error))?;
                return Err(io::Error::from_raw_os_error(error.0));
            }
        }
    }
}
