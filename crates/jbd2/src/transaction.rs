//! The running transaction: credits, active handles, buffers, and what its commit has to see to.

use crate::space::Limits;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::{Error, FreedRun, Result, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use uext4_buffer::{BufferCache, BufferPin};

/// Credits and active handles: what starting and stopping a handle changes. Side by side, because every start
/// and stop touches all of it.
#[derive(Debug)]
pub(crate) struct Account {
    /// Handles that have not stopped.
    updates: AtomicU32,
    /// See the crate documentation.
    outstanding: AtomicU32,
    /// Handles ever started.
    handles: AtomicU64,
}

impl Account {
    pub(crate) fn new(overhead: u32) -> Self {
        Account {
            updates: AtomicU32::new(0),
            outstanding: AtomicU32::new(overhead),
            handles: AtomicU64::new(0),
        }
    }

    /// Reserves `credits` unless the transaction would exceed `limit`. A failed attempt changes nothing, so
    /// it cannot make another one fail.
    pub(crate) fn reserve(&self, credits: u32, limit: u32) -> bool {
        let within = |outstanding: u32| outstanding.checked_add(credits).filter(|sum| *sum <= limit);
        self.outstanding.fetch_update(Ordering::SeqCst, Ordering::SeqCst, within).is_ok()
    }

    /// Takes credits that log blocks were reserved for before: they exceed no limit.
    pub(crate) fn add(&self, credits: u32) {
        self.outstanding.fetch_add(credits, Ordering::SeqCst);
    }

    /// A handle starts with credits it has reserved.
    pub(crate) fn begin(&self) {
        self.updates.fetch_add(1, Ordering::SeqCst);
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// A handle stops and returns what it did not use. Credits go first: whoever sees no active handle sees
    /// the final credits. Announce to the waiters afterwards.
    pub(crate) fn end(&self, credits: u32) {
        self.outstanding.fetch_sub(credits, Ordering::SeqCst);
        self.updates.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn updates(&self) -> u32 {
        self.updates.load(Ordering::SeqCst)
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::SeqCst)
    }

    pub(crate) fn handles(&self) -> u64 {
        self.handles.load(Ordering::Relaxed)
    }
}

/// The buffers of the transaction, and the blocks that it freed.
#[derive(Debug, Default)]
struct Members {
    buffers: BTreeMap<u64, Member>,
    /// Blocks that are no metadata any more and did not become any since. One of them may still have a buffer.
    revoked: BTreeSet<u64>,
    /// Revoke records for which credits were taken.
    paid: usize,
    /// Inodes whose data must be complete before the commit.
    ordered: BTreeSet<u64>,
    /// Blocks that may be allocated again after the commit.
    freed: Vec<FreedRun>,
}

/// A transaction as it is committed: it changes no more.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    /// Changed blocks and their images, in order.
    pub copies: Vec<(BufferPin, Arc<[u8]>)>,
    /// Blocks that are no metadata any more, in order.
    pub revoked: Vec<u64>,
    pub ordered: Vec<u64>,
    pub freed: Vec<FreedRun>,
}

/// A buffer of the transaction.
#[derive(Debug)]
struct Member {
    pin: BufferPin,
    modified: bool,
}

/// A transaction that handles can belong to.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub tid: Tid,
    pub account: Account,
    members: Mutex<Members>,
    /// Members that were changed; grows under the lock of `members`.
    modified: AtomicU32,
    /// There is something else that a commit has to see to.
    noted: AtomicBool,
    pub begun: Instant,
    /// Records that a revoke block holds.
    revokes_per_block: usize,
}

impl Transaction {
    pub(crate) fn new(tid: Tid, limits: &Limits) -> Self {
        Transaction {
            tid,
            account: Account::new(limits.overhead),
            members: Mutex::new(Members::default()),
            modified: AtomicU32::new(0),
            noted: AtomicBool::new(false),
            begun: Instant::now(),
            revokes_per_block: limits.revokes_per_block,
        }
    }

    /// Blocks the transaction changed.
    pub(crate) fn modified(&self) -> u32 {
        // Acquire: pairs with the release of a handle that changed a block before it stopped.
        self.modified.load(Ordering::Acquire)
    }

    /// A commit would have something to do.
    pub(crate) fn has_work(&self) -> bool {
        // Acquire: as above.
        self.modified() > 0 || self.noted.load(Ordering::Acquire)
    }

    /// The data of this inode must be complete before the commit.
    pub(crate) fn order(&self, inode: u64) {
        self.members.lock().ordered.insert(inode);
        self.noted.store(true, Ordering::Release);
    }

    /// These blocks may be allocated again after the commit.
    pub(crate) fn free(&self, run: FreedRun) {
        self.members.lock().freed.push(run);
        self.noted.store(true, Ordering::Release);
    }

    /// The transaction commits, no handle is left: takes its buffers from it, so that the next one may have them.
    pub(crate) fn freeze(&self, cache: &BufferCache) -> Result<Frozen> {
        // Taken out, because buffers are locked before members.
        let members = std::mem::take(&mut *self.members.lock());
        let mut copies = Vec::with_capacity(self.modified() as usize);
        for (block, Member { pin, .. }) in members.buffers {
            if members.revoked.contains(&block) {
                cache.abandon(&pin, self.tid)?;
            } else if let Some(image) = cache.freeze(&pin, self.tid)? {
                copies.push((pin, image));
            }
        }
        Ok(Frozen {
            copies,
            revoked: members.revoked.into_iter().collect(),
            ordered: members.ordered.into_iter().collect(),
            freed: members.freed,
        })
    }

    /// How many blocks a commit would copy and how many it would revoke.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let members = self.members.lock();
        let copied = |(block, member): &(&u64, &Member)| member.modified && !members.revoked.contains(*block);
        (members.buffers.iter().filter(copied).count(), members.revoked.len())
    }

    /// Notes a buffer that has joined the transaction. The block is metadata again, if it was freed before.
    pub(crate) fn add_member(&self, pin: &BufferPin) {
        let mut members = self.members.lock();
        members.revoked.remove(&pin.block());
        members.buffers.entry(pin.block()).or_insert_with(|| Member { pin: pin.clone(), modified: false });
    }

    /// Notes a block that is no metadata any more. Takes a credit, which `credit` tries, where a revoke block is begun;
    /// false if there was none, and nothing was noted.
    pub(crate) fn revoke(&self, block: u64, credit: impl FnOnce() -> bool) -> bool {
        let mut members = self.members.lock();
        let needed = members.revoked.len() + usize::from(!members.revoked.contains(&block));
        if needed > members.paid {
            if !credit() {
                return false;
            }
            members.paid += self.revokes_per_block;
        }
        members.revoked.insert(block);
        self.noted.store(true, Ordering::Release);
        true
    }

    /// Blocks that the transaction freed, in order.
    pub(crate) fn revoked(&self) -> Vec<u64> {
        self.members.lock().revoked.iter().copied().collect()
    }

    /// Whether the block has write access, and if so whether it was changed before.
    pub(crate) fn is_modified(&self, block: u64) -> Result<bool> {
        let members = self.members.lock();
        let member = members.buffers.get(&block).filter(|_| !members.revoked.contains(&block));
        member.map(|member| member.modified).ok_or(Error::NoWriteAccess { block, tid: self.tid })
    }

    /// Notes a change. True for the first one: it costs the credit.
    pub(crate) fn mark_modified(&self, block: u64) -> bool {
        let mut members = self.members.lock();
        match members.buffers.get_mut(&block) {
            Some(member) if !member.modified => {
                member.modified = true;
                self.modified.fetch_add(1, Ordering::Release);
                true
            }
            // Members stay until the transaction ends, and access was checked: an unknown block cannot come
            // here.
            Some(_) | None => false,
        }
    }

    /// The journal closes, no handle is left: gives back the buffers that were never changed. The others stay
    /// with a transaction that will not be committed, so that nothing of it can reach its home.
    pub(crate) fn release_unmodified(&self, cache: &BufferCache) {
        // Taken out, because buffers are locked before members.
        let mut buffers = std::mem::take(&mut self.members.lock().buffers);
        buffers.retain(|_, member| member.modified || cache.leave(&member.pin, self.tid).is_err());
        self.members.lock().buffers = buffers;
    }
}
