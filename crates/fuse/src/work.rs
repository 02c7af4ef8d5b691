//! What all threads of a served mount share, however their requests come.
//!
//! An interrupted sync that goes on for a second is answered `EINTR`, so that its caller can be killed; whatever it
//! wrote may or may not be durable then.

use crate::reply::{Errno, Outcome, Reply};
use crate::request::Request;
use crate::ring::Entry;
use crate::server::{Answer, Serve};
use crate::stats::Counters;
use crate::transport::Channel;
use parking_lot::{Mutex, RwLock};
use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long an interrupted sync may go on before its caller is let go: a signal alone shall not fail it.
const GRACE: Duration = Duration::from_secs(1);

/// What a sync under way owes its caller: the sync or an interrupt answers, whichever comes first.
pub(crate) enum Owed {
    /// On `/dev/fuse`.
    Reply(Reply),
    /// Through a ring, in this entry.
    Entry(Entry),
}

/// Takes over an entry whose thread hangs, and answers the request with an error. Returns the entry if it cannot.
pub(crate) type Taker = Box<dyn FnOnce(Entry, u64, Errno) -> Result<(), Entry>>;

/// Gives somebody who can take over an entry, if there is a thread and a ring for it.
pub(crate) type Takers = Box<dyn Fn() -> Option<Taker> + Send>;

/// Dropped with the last thread that serves.
pub(crate) type Last = Arc<dyn Any + Send + Sync>;

/// The volume and what is under way.
pub(crate) struct Work {
    /// `/dev/fuse`: notifications, and what does not come through rings.
    pub(crate) channel: Arc<dyn Channel>,
    /// Held for reading by each request; taken at the end.
    pub(crate) served: RwLock<Option<Box<dyn Serve>>>,
    pub(crate) syncs: Mutex<HashMap<u64, Owed>>,
    pub(crate) interrupts: Sender<(u64, Instant)>,
    pub(crate) counters: Counters,
}

impl Work {
    /// Does what a request asks for. `served` is the volume, if it is not closed.
    pub(crate) fn outcome(
        &self,
        served: Option<&dyn Serve>,
        request: &Request<'_>,
        memory: &mut [u8],
    ) -> Outcome<Answer> {
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| match served {
            Some(served) => served.serve(request, memory),
            None => Err(Errno(libc::ENOTCONN)),
        }));
        // A panic is a fault of this program, in one request.
        let outcome: Outcome<Answer> = outcome.unwrap_or(Err(Errno::IO));
        self.counters.count(request.header.opcode, outcome.is_err(), begun.elapsed());
        outcome
    }
}

/// Starts the thread that answers for syncs that were interrupted and go on.
///
/// # Errors
/// If there is no thread.
pub(crate) fn let_go_of_interrupted(
    work: Weak<Work>,
    interrupted: Receiver<(u64, Instant)>,
    takers: Takers,
) -> io::Result<()> {
    let serve = move || {
        for (unique, since) in interrupted {
            std::thread::sleep((since + GRACE).saturating_duration_since(Instant::now()));
            let Some(work) = work.upgrade() else { return };
            // Before the lock, which all syncs need.
            let needs_taker = matches!(work.syncs.lock().get(&unique), Some(Owed::Entry(_)));
            let taker = needs_taker.then(&takers).flatten();
            // A sync that ends now waits for the lock.
            let mut syncs = work.syncs.lock();
            match syncs.remove(&unique) {
                None => {}
                Some(Owed::Reply(reply)) => drop(reply.answer(Err(Errno(libc::EINTR)))),
                Some(Owed::Entry(entry)) => {
                    let taken = match taker {
                        Some(take) => take(entry, unique, Errno(libc::EINTR)),
                        None => Err(entry),
                    };
                    if let Err(entry) = taken {
                        syncs.insert(unique, Owed::Entry(entry));
                        let _later = work.interrupts.send((unique, Instant::now()));
                    }
                }
            }
        }
    };
    std::thread::Builder::new().name("uext4-interrupt".into()).spawn(serve)?;
    Ok(())
}
