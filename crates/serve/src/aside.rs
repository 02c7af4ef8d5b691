//! A thread beside a connection's own, for requests that have to wait for something: changes of the map, flushes of
//! devices, bytes that are no whole blocks. The connection's own thread goes on meanwhile. It is started with the first
//! such request, and does them in order.

use crate::export::{Export, Zeroing, code};
use crate::protocol::{Code, Extent};
use crate::stop::{clear, wake};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use uext4::Buffer;

/// A request.
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    Read { offset: u64, into: Buffer },
    Write { offset: u64, bytes: Buffer, durable: bool },
    Flush,
    Trim { offset: u64, length: u64, durable: bool },
    Zero { offset: u64, length: u64, how: Zeroing },
    Status { offset: u64, length: u32, one: bool },
}

/// What came of it.
pub(crate) struct Finished {
    pub(crate) tag: u64,
    pub(crate) result: Result<Gained, Code>,
}

pub(crate) enum Gained {
    Nothing,
    Read(Buffer),
    Status(Vec<Extent>),
}

/// The thread, once there is one.
pub(crate) struct Aside {
    export: Arc<Export>,
    event: Arc<OwnedFd>,
    /// The client has gone without a word: what was not begun is not done any more.
    abandoned: Arc<AtomicBool>,
    helper: Option<Helper>,
}

struct Helper {
    jobs: Sender<Job>,
    finished: Receiver<Finished>,
    thread: JoinHandle<()>,
}

/// The thread ended early.
pub(crate) struct Gone;

impl Aside {
    pub(crate) fn new(export: &Arc<Export>) -> io::Result<Aside> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let event = Arc::new(rustix::event::eventfd(0, flags)?);
        Ok(Aside { export: export.clone(), event, abandoned: Arc::default(), helper: None })
    }

    /// Ends soon: hours of written zeros for a client that has gone would hold up the server's end.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Readable when something may be finished.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Hands over a request.
    pub(crate) fn take(&mut self, job: Job) -> Result<(), Gone> {
        if self.helper.is_none() {
            self.helper = Some(self.start().map_err(|_| Gone)?);
        }
        match &self.helper {
            Some(helper) => helper.jobs.send(job).map_err(|_| Gone),
            None => Err(Gone),
        }
    }

    fn start(&self) -> io::Result<Helper> {
        let (jobs, todo) = channel::<Job>();
        let (done, finished) = channel();
        let (export, event, abandoned) = (self.export.clone(), self.event.clone(), self.abandoned.clone());
        let work = move || {
            let _wakes = WakesAtEnd(event.clone());
            // Until the connection drops its end.
            for job in todo {
                let result = match abandoned.load(Ordering::Relaxed) {
                    true => Err(Code::Shutdown),
                    false => run(&export, job.work, &abandoned),
                };
                if done.send(Finished { tag: job.tag, result }).is_err() {
                    return;
                }
                wake(&event);
            }
        };
        let thread = std::thread::Builder::new().name("uext4-nbd-aside".into()).spawn(work)?;
        Ok(Helper { jobs, finished, thread })
    }

    /// Takes what is finished, without waiting.
    pub(crate) fn poll(&mut self, mut take: impl FnMut(Finished)) -> Result<(), Gone> {
        let Some(helper) = &self.helper else { return Ok(()) };
        clear(&self.event);
        loop {
            match helper.finished.try_recv() {
                Ok(finished) => take(finished),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Gone),
            }
        }
    }
}

impl Drop for Aside {
    /// Waits for what was handed over: nothing of a connection goes on after it.
    fn drop(&mut self) {
        if let Some(Helper { jobs, thread, .. }) = self.helper.take() {
            drop(jobs);
            // If it panicked, the connection has found that out.
            let _ended = thread.join();
        }
    }
}

/// Wakes the connection when the thread ends, however that comes about.
struct WakesAtEnd(Arc<OwnedFd>);

impl Drop for WakesAtEnd {
    fn drop(&mut self) {
        wake(&self.0);
    }
}

fn run(export: &Export, work: Work, abandoned: &AtomicBool) -> Result<Gained, Code> {
    match work {
        Work::Read { offset, mut into } => {
            export.read(&mut into, offset).map(|()| Gained::Read(into)).map_err(code)
        }
        Work::Write { offset, bytes, durable } => {
            export.write(&bytes, offset, durable).map_err(code).map(nothing)
        }
        Work::Flush => export.flush().map_err(code).map(nothing),
        Work::Trim { offset, length, durable } => {
            export.trim(offset, length, durable).map_err(code).map(nothing)
        }
        Work::Zero { offset, length, how } => {
            let goes_on = || !abandoned.load(Ordering::Relaxed);
            export.zero(offset, length, how, goes_on).map(nothing)
        }
        Work::Status { offset, length, one } => {
            export.status(offset, length, one).map(Gained::Status).map_err(code)
        }
    }
}

fn nothing((): ()) -> Gained {
    Gained::Nothing
}
