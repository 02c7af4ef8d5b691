//! The running transaction: credits, active handles, buffers, and other work for its commit.

use crate::space::Limits;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::{Error, FreedRun, Result, Tid};
use foldhash::fast::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;
use uext4_buffer::{BufferCache, BufferPin};

/// Credits and active handles. They share a cache line, because every start and stop of a handle changes all of them.
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

    /// Adds credits whose log blocks were reserved earlier, so no limit applies.
    pub(crate) fn add(&self, credits: u32) {
        self.outstanding.fetch_add(credits, Ordering::SeqCst);
    }

    /// Counts a handle that starts with reserved credits.
    pub(crate) fn begin(&self) {
        self.updates.fetch_add(1, Ordering::SeqCst);
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a handle that stops and returns its unused credits. Credits are changed first, so that a thread that sees
    /// no active handle sees the final credits. Announce to the waiters afterwards.
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

/// The buffers of the transaction, and the blocks that it revoked or freed.
#[derive(Debug, Default)]
struct Members {
    buffers: HashMap<u64, Member, RandomState>,
    /// Blocks that are no longer metadata. They may still have buffers.
    revoked: BTreeSet<u64>,
    /// Number of revoke records paid for with credits.
    paid: usize,
    /// Inodes whose data must be complete before the commit.
    ordered: BTreeSet<u64>,
    /// Blocks that may be allocated again after the commit.
    freed: Vec<FreedRun>,
}

/// A transaction frozen for its commit.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    /// Changed blocks and their images, in order.
    pub copies: Vec<(BufferPin, Arc<[u8]>)>,
    /// Blocks to revoke, in order.
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
    /// Whether a commit has other work to do.
    noted: AtomicBool,
    /// Whether a handle changed something that it did not declare.
    undeclared: AtomicBool,
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
            undeclared: AtomicBool::new(false),
            begun: Instant::now(),
            revokes_per_block: limits.revokes_per_block,
        }
    }

    /// Blocks the transaction changed.
    pub(crate) fn modified(&self) -> u32 {
        // Acquire: pairs with the release of a handle that changed a block before it stopped.
        self.modified.load(Ordering::Acquire)
    }

    /// Whether a commit would have work to do.
    pub(crate) fn has_work(&self) -> bool {
        // Acquire: as above.
        self.modified() > 0 || self.noted.load(Ordering::Acquire)
    }

    /// A handle changed something that no fast commit describes.
    pub(crate) fn note_undeclared(&self) {
        if !self.is_undeclared() {
            self.undeclared.store(true, Ordering::Release);
        }
    }

    /// Whether the transaction must be committed in full.
    pub(crate) fn is_undeclared(&self) -> bool {
        self.undeclared.load(Ordering::Acquire)
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

    /// Takes the buffers of a transaction that commits and has no active handle, so that the next one may use them.
    pub(crate) fn freeze(&self, cache: &BufferCache) -> Result<Frozen> {
        // Taken out, because buffers are locked before members.
        let members = std::mem::take(&mut *self.members.lock());
        let mut copies = Vec::with_capacity(self.modified() as usize);
        // In the order of the blocks, so that their home writes are sequential.
        let mut buffers: Vec<(u64, Member)> = members.buffers.into_iter().collect();
        buffers.sort_unstable_by_key(|(block, _)| *block);
        for (block, Member { pin, .. }) in buffers {
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

    /// Records a buffer that joined the transaction. If the block was revoked, it is metadata again.
    pub(crate) fn add_member(&self, pin: &BufferPin) {
        let mut members = self.members.lock();
        members.revoked.remove(&pin.block());
        members.buffers.entry(pin.block()).or_insert_with(|| Member { pin: pin.clone(), modified: false });
    }

    /// Revokes a block. Takes a credit by calling `credit` if this starts a revoke block; returns false, with nothing
    /// recorded, if there was none.
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

    /// Blocks that the transaction revokes, in order.
    pub(crate) fn revoked(&self) -> Vec<u64> {
        self.members.lock().revoked.iter().copied().collect()
    }

    /// Whether the block has write access, and if so whether it was changed before.
    pub(crate) fn is_modified(&self, block: u64) -> Result<bool> {
        let members = self.members.lock();
        let member = members.buffers.get(&block).filter(|_| !members.revoked.contains(&block));
        member.map(|member| member.modified).ok_or(Error::NoWriteAccess { block, tid: self.tid })
    }

    /// Whether the block has write access and was changed before.
    pub(crate) fn has_changed(&self, block: u64) -> bool {
        let members = self.members.lock();
        let changed = members.buffers.get(&block).is_some_and(|member| member.modified);
        changed && (members.revoked.is_empty() || !members.revoked.contains(&block))
    }

    /// Records a change. Returns true for the first change of the block, which costs a credit.
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

    /// Releases the buffers that were never changed, when the journal closes and no handle is active. The others stay
    /// in a transaction that will not be committed, so that none of its changes is written home.
    pub(crate) fn release_unmodified(&self, cache: &BufferCache) {
        // Taken out, because buffers are locked before members.
        let mut buffers = std::mem::take(&mut self.members.lock().buffers);
        buffers.retain(|_, member| member.modified || cache.leave(&member.pin, self.tid).is_err());
        self.members.lock().buffers = buffers;
    }
}
