//! The connections of a device: one, or several where the server allows that.
//!
//! A second connection is made when every other one is in use. It is used only after the first one has answered once
//! more: a server that was restarted in between, and has lost its volatile cache, cannot pass for the same one.

use super::api::{Api, Fault};
use super::connection::{Connection, Lost};
use super::facts::Facts;
use super::lane::{Lane, Limits};
use super::target::Target;
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use uext4_blockdev::{Error, Geometry, Memory, Op, Priority, Process, Request, Result};

/// Most connections, unless the user says how many.
const CONNECTIONS: u32 = 8;

/// How long a further connection may take. A server that has all the clients it takes may leave it unanswered.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Pool {
    api: &'static Api,
    pub(super) target: Target,
    pub(super) process: Process,
    pub(super) facts: Facts,
    pub(super) geometry: Geometry,
    pub(super) limits: Limits,
    lost: Arc<Lost>,
    /// At least one.
    members: Mutex<Vec<Arc<Member>>>,
    /// Most connections.
    most: AtomicU32,
    /// Why there are fewer than the user or the server allows.
    refused: Mutex<Option<String>>,
}

/// A connection of a pool.
struct Member {
    connection: Arc<Connection>,
    /// Queues and calls that use it.
    users: AtomicU32,
    /// Lanes of calls that have ended.
    idle: Mutex<Vec<Lane>>,
}

impl Member {
    fn new(connection: Connection) -> Arc<Self> {
        let (users, idle) = (AtomicU32::new(0), Mutex::new(Vec::new()));
        Arc::new(Member { connection: Arc::new(connection), users, idle })
    }
}

/// The use of a connection by a queue or call.
pub(super) struct Seat(Arc<Member>);

impl Seat {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.0.connection
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl Pool {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::Remote`], [`Error::Unsupported`] for an export or a library that cannot be used.
    pub(super) fn open(target: Target) -> Result<Self> {
        let (api, process) = (Api::get()?, Process::current()?);
        target.check(api)?;
        let failed = |fault| target.error("connect", fault);
        let handle = target.connect(api, process, None).map_err(failed)?;
        let facts = Facts::of(&handle).map_err(failed)?;
        let geometry = facts.geometry().map_err(|error| match error {
            Error::Unsupported(what) => Error::Unsupported(format!("{}: {what}", target.name())),
            other => other,
        })?;
        let limits = Limits {
            transfer: facts.transfer_max(&geometry),
            discard: facts.discard_max(),
            zeros: facts.zeros_max(),
            write_through: facts.writes_through(),
        };
        let lost = Arc::new(Lost::default());
        let first = Connection::new(handle, process, lost.clone()).map_err(failed)?;
        let most = if facts.multi_conn { target.connections().unwrap_or(CONNECTIONS) } else { 1 };
        let pool = Pool {
            api,
            process,
            facts,
            geometry,
            limits,
            lost,
            members: Mutex::new(vec![Member::new(first)]),
            most: AtomicU32::new(most),
            refused: Mutex::new(None),
            target,
        };
        if pool.target.connections().is_some() {
            // All that the user wants now: a mount cannot connect any more when it serves.
            let _all: Vec<Seat> = (0..most).map(|_| pool.sit()).collect();
        }
        Ok(pool)
    }

    /// [`Error::Remote`] with `EIO` if a connection has ended.
    #[inline]
    pub(super) fn check(&self, action: &'static str) -> Result<()> {
        match self.lost.why() {
            None => Ok(()),
            Some(why) => Err(self.lost_error(action, why)),
        }
    }

    #[cold]
    fn lost_error(&self, action: &'static str, why: &str) -> Error {
        let fault = Fault { reason: format!("the connection is lost: {why}"), errno: libc::EIO };
        self.target.error(action, fault)
    }

    /// A connection that nobody uses, or the one that the fewest use.
    pub(super) fn sit(&self) -> Seat {
        let mut members = self.members.lock();
        let users = |member: &Arc<Member>| member.users.load(Ordering::Acquire);
        let mut best = members.iter().min_by_key(|member| users(member)).cloned();
        if best.as_ref().is_none_or(|best| users(best) > 0)
            && (members.len() as u32) < self.most.load(Ordering::Relaxed)
            && self.lost.why().is_none()
        {
            match self.another(&members[0]) {
                Ok(another) => {
                    members.push(another.clone());
                    best = Some(another);
                }
                Err(fault) => {
                    self.most.store(members.len() as u32, Ordering::Relaxed);
                    *self.refused.lock() = Some(fault.reason);
                }
            }
        }
        // The pool begins with one, and none is ever taken out.
        let member = best.unwrap_or_else(|| members[0].clone());
        member.users.fetch_add(1, Ordering::AcqRel);
        Seat(member)
    }

    /// Makes another connection, and lets the first one show that the server is still the same.
    fn another(&self, first: &Member) -> std::result::Result<Arc<Member>, Fault> {
        let refused = |reason: String| Fault { reason, errno: libc::EIO };
        let handle = self.target.connect(self.api, self.process, Some(PATIENCE))?;
        if !self.facts.is_same(&Facts::of(&handle)?) {
            return Err(refused("the server describes the export differently than before".into()));
        }
        let another = Connection::new(handle, self.process, self.lost.clone())?;
        let mut block = vec![0; self.geometry.logical_block as usize];
        let request = Request {
            op: Op::Read,
            fua: false,
            nowait: false,
            priority: Priority::OF_THREAD,
            pos: 0,
            length: self.geometry.logical_block,
            memory: Memory { address: NonNull::from(&mut block[..]).cast(), registered: None },
            tag: 0,
        };
        // SAFETY: the memory outlives the call, and nothing else uses it.
        let answered = self.call_on(first, |lane| unsafe { lane.start(request) });
        match answered {
            Ok(result) if result >= 0 => Ok(Member::new(another)),
            Ok(errno) => Err(refused(format!("the first connection answers with error {}", -errno))),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    /// Sends a request and waits for its answer: bytes, or a negative errno.
    ///
    /// # Safety
    /// The request's memory is valid, and nobody else's, until this returns.
    pub(super) unsafe fn call(&self, request: Request) -> Result<i32> {
        let seat = self.sit();
        // SAFETY: passed on.
        self.call_on(&seat.0, |lane| unsafe { lane.start(request) })
    }

    /// The same for a write of zeros, whose memory is not used.
    pub(super) fn call_zeros(&self, request: Request) -> Result<i32> {
        let seat = self.sit();
        self.call_on(&seat.0, |lane| lane.start_zeros(request))
    }

    /// Waits for the answer of the one request that is started.
    fn call_on(&self, member: &Member, start: impl FnOnce(&mut Lane)) -> Result<i32> {
        let idle = member.idle.lock().pop();
        let mut lane = match idle {
            Some(lane) => lane,
            None => Lane::new(member.connection.clone(), 1, self.limits)?,
        };
        start(&mut lane);
        loop {
            lane.collect();
            if let Some(done) = lane.take() {
                member.idle.lock().push(lane);
                return Ok(done.result);
            }
            lane.wait(None);
        }
    }

    /// Why a queue may have to share a connection although the server allows several.
    pub(super) fn shortage(&self) -> Option<String> {
        let reason = self.refused.lock();
        reason.as_ref().map(|reason| format!("without another connection: {reason}"))
    }

    /// A sentence about connections, for `info`.
    pub(super) fn note(&self) -> String {
        let now = self.members.lock().len();
        match (self.facts.multi_conn, &*self.refused.lock()) {
            (false, _) => "one connection: the server promises nothing about several (no multi-conn)".into(),
            (true, None) => format!("{now} of at most {} connections", self.most.load(Ordering::Relaxed)),
            (true, Some(reason)) => format!("{now} connections; another one was refused: {reason}"),
        }
    }
}
