//! Threads that read requests from `/dev/fuse`.
//!
//! Syncs, reads and writes wait for the device, which can hang. They must not take all threads, since an interrupt
//! has to be read by one, and the device does many requests at a time: when all threads wait, another one starts. It
//! ends when it was not needed for a while.

use crate::reply::Reply;
use crate::request::{Request, cut};
use crate::server::{Payload, Served};
use crate::transport::{DATA_MAX, RequestBuffer};
use crate::wire::{InHeader, InterruptIn, op};
use crate::work::{Last, Owed, Work};
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use uext4::{Buffer, BufferPool};

/// Most threads that are started beyond those asked for, while others wait for the device.
const MORE_MAX: usize = 64;
/// How long a thread stays that was not needed.
const SPARE: Duration = Duration::from_secs(1);

/// How many threads there are, and how many of them wait for the device.
struct Threads {
    all: usize,
    waiting: usize,
    /// When nearly all of them waited last.
    needed: Option<Instant>,
}

/// The threads.
pub(crate) struct Readers {
    work: Arc<Work>,
    threads: Mutex<Threads>,
    wanted: usize,
    /// Each thread has a reference to this.
    _last: Last,
}

/// Memory of one thread.
pub(crate) struct ThreadMemory {
    pub(crate) request: RequestBuffer,
    reply: Buffer,
}

impl ThreadMemory {
    /// # Errors
    /// If there is none.
    pub(crate) fn new() -> Result<ThreadMemory, uext4::Error> {
        let pool = BufferPool::new(4 * DATA_MAX)?;
        Ok(ThreadMemory { request: RequestBuffer::new(&pool)?, reply: pool.take(DATA_MAX)? })
    }
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

impl Readers {
    /// Starts so many threads. `last` is dropped with the last of them.
    ///
    /// # Errors
    /// If there is no memory or thread.
    pub(crate) fn start(work: Arc<Work>, wanted: usize, last: Last) -> io::Result<Weak<Readers>> {
        let threads = Mutex::new(Threads { all: wanted, waiting: 0, needed: None });
        let readers = Arc::new(Readers { work, threads, wanted, _last: last });
        for _ in 0..wanted {
            readers.spawn(false)?;
        }
        Ok(Arc::downgrade(&readers))
    }

    /// How many threads there are, and how many of them wait for the device.
    pub(crate) fn count(&self) -> (usize, usize) {
        let threads = self.threads.lock();
        (threads.all, threads.waiting)
    }

    fn spawn(self: &Arc<Self>, more: bool) -> io::Result<()> {
        let readers = self.clone();
        let mut memory = ThreadMemory::new().map_err(io::Error::other)?;
        let serve = move || {
            // An error of the transport ends the connection, like the end of the mount.
            while let Ok(Some(length)) = readers.work.channel.receive(&mut memory.request) {
                readers.handle(memory.request.filled(length), &mut memory.reply);
                if more && readers.threads.lock().lets_go(readers.wanted) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("uext4-fuse".into()).spawn(serve)?;
        Ok(())
    }

    /// Serves one request.
    fn handle(self: &Arc<Self>, bytes: &[u8], memory: &mut [u8]) {
        let work = &*self.work;
        let request = match Request::parse(bytes) {
            Ok(request) => request,
            Err(error) => {
                if let Ok((header, _)) = cut::<InHeader>(bytes) {
                    let _gone = Reply::new(work.channel.clone(), header.unique).answer(Err(error));
                }
                return;
            }
        };
        let (opcode, unique) = (request.header.opcode, request.header.unique);
        if opcode == op::INTERRUPT {
            if let Ok((asked, _)) = request.arguments::<InterruptIn>() {
                let _ending = work.interrupts.send((asked.unique, Instant::now()));
            }
            return;
        }
        let reply = match request.expects_reply() {
            true => Reply::new(work.channel.clone(), unique),
            false => Reply::none(work.channel.clone(), unique),
        };
        if !Served::waits(opcode) {
            return self.serve(&request, memory, || Some(reply));
        }
        if self.threads.lock().waits(self.wanted) && self.spawn(true).is_err() {
            self.threads.lock().all -= 1;
        }
        if Served::is_sync(opcode) {
            work.syncs.lock().insert(unique, Owed::Reply(reply));
            self.serve(&request, memory, || match work.syncs.lock().remove(&unique) {
                Some(Owed::Reply(reply)) => Some(reply),
                _ => None,
            });
        } else {
            self.serve(&request, memory, || Some(reply));
        }
        self.threads.lock().waiting -= 1;
    }

    /// Does what a request asks for, and answers if the reply is still owed.
    fn serve(&self, request: &Request<'_>, memory: &mut [u8], reply: impl FnOnce() -> Option<Reply>) {
        let served = self.work.served.read();
        let outcome = self.work.outcome(served.as_deref(), request, memory);
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
