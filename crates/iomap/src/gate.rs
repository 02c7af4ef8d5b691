//! The inode gate: shared for direct I/O, exclusive for whatever must see none of it.
//!
//! Every thread or queue that does I/O on an inode has a *cell* of its own, one cache line that only it
//! writes. Entering raises the cell, then looks at the one word that exclusive holders set; taking the gate
//! exclusively sets that word, then looks at all cells. Both sides order their store before their load, so at
//! least one of them sees the other. `tests/loom.rs` checks this protocol (up to three preemptions).
//!
//! **Owner.** Most inodes are used by one thread. The first thread owns the gate: its cell lies in the gate itself, and
//! as long as nobody else was ever here it takes the gate exclusively by a mark in that cell, some nanoseconds, without
//! a barrier and without looking anywhere. Whoever comes second says so in the word of users, then pays for the barrier
//! of both sides, then looks whether the owner holds the gate by its mark and waits until it does not. From then on the
//! owner takes the gate as everybody does; only now there are cells for other threads. Who only visits a file does not
//! come to own its gate (`gate/owner.rs`).
//!
//! **Lent.** A gate that is open to others may still be used by one thread, which took it over from another. After some
//! exclusive holds in a row it gets the gate *lent* and is as cheap as an owner alone until somebody else comes
//! (`gate/lease.rs`).
//!
//! A cell counts two things: callers *inside the gate* (mapping and submitting) and requests *in flight*
//! (until their completion work is done). An exclusive holder waits for the first; one that must also *drain*
//! waits for the second.
//!
//! Waiting never holds a lock that a completion needs: the caller passes a `help` that drives its own
//! queue and harvests idle ones.

mod lease;
mod owner;

use crate::mapping::Range;
use crate::snapshot::ByteRun;
use crate::sync::{
    AtomicU64, Mutex, Ordering, Waiters, add_then_fence, heavy_fence, prepare_fences, store_then_fence,
};
use crate::thread_slot::{OWNED_SLOTS, SHARED_SLOT, thread_slot};
use crate::turns::{Gets, HANDS, Turns};
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Stands for "now, when asked" in a cell's time of the last write.
const MARKED: u64 = 1;
const IN_FLIGHT_ONE: u64 = 1;
const INSIDE_ONE: u64 = 1 << 32;
const IN_FLIGHT_MASK: u64 = INSIDE_ONE - 1;
/// In the owner's cell: it holds the gate exclusively, and nobody else has ever used it.
const HELD: u64 = 1 << 63;

/// What a guard has of a hold by a lease. Its thread's cell has [`HELD`].
const LENT: u64 = 1 << 62;
/// In a guard only, beside [`HELD`]: a visit ends with it.
const VISIT: u64 = 1 << 61;
/// The word of exclusive holders: nobody holds or wants the gate, …
const OPEN: u64 = 0;
/// … somebody does, or it is lent (`gate/lease.rs`).
const CLOSED: u64 = 1;
/// No thread's slot.
const NOBODY: u64 = u64::MAX;
/// Of the word of users: the owner's slot and 1, 0 for nobody.
const OWNER: u64 = (1 << 16) - 1;
/// Somebody else has come, and looks whether the owner holds the gate alone.
const JOINING: u64 = 1 << 16;
/// Somebody else uses the gate, for good.
const SHARED: u64 = 1 << 17;
/// How long a waiter sleeps before it looks again by itself: the net under an announcement lost by a relaxed
/// check.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// One writer's line: callers inside the gate (high half), requests in flight (low half), and its last write.
#[derive(Debug, Default)]
pub struct Cell {
    counts: AtomicU64,
    modified_ns: AtomicU64,
    last: LastRuns,
}

impl Cell {
    /// Nobody is inside through it and nothing is in flight. Exact for its owner only.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.counts.load(Ordering::Relaxed) == 0
    }
}

/// The written runs that the owner of a cell kept last, one for each class of positions, and the generation
/// of the mapping they come from. Only the owner reads and writes them.
#[derive(Debug, Default)]
struct LastRuns {
    generation: AtomicU64,
    runs: [LastRun; RUN_CLASSES],
}

#[derive(Debug, Default)]
struct LastRun {
    start: AtomicU64,
    end: AtomicU64,
    physical: AtomicU64,
}

/// Runs kept by a cell, and the size of the file ranges that take turns: a file of a few block groups has all.
const RUN_CLASSES: usize = 4;
const RUN_CLASS_BITS: u32 = 25;

#[inline(always)]
fn run_class(pos: u64) -> usize {
    (pos >> RUN_CLASS_BITS) as usize % RUN_CLASSES
}

/// The gate is exclusively held or wanted; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

/// The gate of one inode. What every request reads comes first, so that it shares a cache line with the
/// inode's size; the word of exclusive holders is written so rarely that it needs no line of its own.
#[derive(Debug)]
#[repr(C)]
pub struct InodeGate {
    /// [`OPEN`], [`CLOSED`], or lent.
    exclusive: AtomicU64,
    /// The owner's slot, [`NOBODY`] if it has none. Only a thread of this slot asks whether it is, and it wrote it.
    owner: AtomicU64,
    /// [`OWNER`], [`JOINING`], [`SHARED`]. The last two are set once.
    users: AtomicU64,
    /// Of all threads but the owner. Made when the second one comes.
    threads: OnceLock<Box<[CachePadded<Cell>; SHARED_SLOT + 1]>>,
    queues: Mutex<Vec<Arc<CachePadded<Cell>>>>,
    turns: Turns,
    /// The holder, while it waits for others to leave.
    exclusive_waiters: Waiters,
    /// The owner's cell. What lies beside it is touched rarely.
    first: Cell,
    shared_waiters: Waiters,
    /// Last write of the queues that are gone.
    left_modified_ns: AtomicU64,
}

// The owner writes its cell all the time, and everybody reads what is in front of `queues` and behind the gate.
#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    let first = offset_of!(InodeGate, first);
    assert!(first >= offset_of!(InodeGate, queues) + 64);
    assert!(size_of::<InodeGate>() >= first + offset_of!(Cell, last) + 64);
};

impl Default for InodeGate {
    fn default() -> Self {
        Self::new()
    }
}

impl InodeGate {
    /// A gate nobody is in.
    pub fn new() -> Self {
        Self::with_hands(HANDS)
    }

    /// A gate that is handed over `hands` times before it is opened. Only models choose.
    #[doc(hidden)]
    pub fn with_hands(hands: u32) -> Self {
        prepare_fences();
        let gate = InodeGate {
            exclusive: AtomicU64::new(OPEN),
            owner: AtomicU64::new(NOBODY),
            users: AtomicU64::new(0),
            queues: Mutex::new(Vec::new()),
            threads: OnceLock::new(),
            turns: Turns::new(hands),
            exclusive_waiters: Waiters::new(),
            first: Cell::default(),
            shared_waiters: Waiters::new(),
            left_modified_ns: AtomicU64::new(0),
        };
        // loom cannot see that `OnceLock` orders the making of the lines before their use.
        #[cfg(loom)]
        gate.thread_cells();
        gate
    }

    /// A cell for one queue. Give it back with [`InodeGate::unregister`]. A lease ends, and there is none while a queue
    /// is registered. Waits while the gate's owner holds it alone, or its borrower; not for others. The caller must not
    /// hold the gate exclusively.
    pub fn register(&self, help: &mut dyn FnMut()) -> Arc<CachePadded<Cell>> {
        while !self.join() {
            self.wait_open(help);
        }
        let cell = Arc::new(CachePadded::new(Cell::default()));
        self.queues.lock().push(cell.clone());
        while self.is_lent() {
            match self.enter(&cell) {
                Ok(()) => {
                    self.leave(&cell);
                    self.complete(&cell);
                }
                Err(Busy) => self.wait_open(help),
            }
        }
        cell
    }

    /// Takes a cell out again, once nothing of it is in flight. Keeps its modification time.
    pub fn unregister(&self, cell: &Arc<CachePadded<Cell>>) {
        debug_assert_eq!(cell.counts.load(Ordering::Acquire), 0, "a cell in use cannot leave its gate");
        let modified = cell.modified_ns.load(Ordering::Relaxed);
        let mut queues = self.queues.lock();
        queues.retain(|other| !Arc::ptr_eq(other, cell));
        drop(queues);
        self.left_modified_ns.fetch_max(modified, Ordering::Relaxed);
    }

    /// Takes the cell of a queue that died with requests in flight out, once the device no longer works on
    /// them. Nobody will complete them any more.
    pub(crate) fn unregister_dead(&self, cell: &Arc<CachePadded<Cell>>) {
        cell.counts.store(0, Ordering::Release);
        self.unregister(cell);
        self.announce_progress();
    }

    /// Enters through a queue's own cell: inside the gate and one request in flight. The caller is the only
    /// writer of `cell` (it holds the queue).
    pub fn enter(&self, cell: &Cell) -> Result<(), Busy> {
        self.say_entered(cell);
        if self.exclusive.load(Ordering::SeqCst) == OPEN || self.lets_in(None) {
            return Ok(());
        }
        self.withdraw_queue(cell);
        Err(Busy)
    }

    /// [`InodeGate::enter`] of the short paths. A gate with queues is not lent, so nothing is called here before the
    /// caller goes on, and it keeps all it knows in registers.
    #[inline(always)]
    pub(crate) fn enter_open(&self, cell: &Cell) -> Result<(), Busy> {
        self.say_entered(cell);
        if self.exclusive.load(Ordering::SeqCst) != OPEN {
            self.withdraw_queue(cell);
            return Err(Busy);
        }
        Ok(())
    }

    #[inline(always)]
    fn say_entered(&self, cell: &Cell) {
        let counts = cell.counts.load(Ordering::Relaxed);
        store_then_fence(|order| cell.counts.store(counts + INSIDE_ONE + IN_FLIGHT_ONE, order));
    }

    #[cold]
    #[inline(never)]
    fn withdraw_queue(&self, cell: &Cell) {
        let counts = cell.counts.load(Ordering::Relaxed);
        cell.counts.store(counts - INSIDE_ONE - IN_FLIGHT_ONE, Ordering::Release);
        self.announce_progress();
    }

    /// Leaves the gate after submission; the request stays in flight.
    #[inline]
    pub fn leave(&self, cell: &Cell) {
        let counts = cell.counts.load(Ordering::Relaxed);
        cell.counts.store(counts - INSIDE_ONE, Ordering::Release);
    }

    /// One request and its completion work are done. Release: the drainer sees everything done before.
    #[inline]
    pub fn complete(&self, cell: &Cell) {
        self.complete_all(cell, 1);
    }

    /// [`InodeGate::complete`] for several requests at once.
    #[inline]
    pub fn complete_all(&self, cell: &Cell, requests: u16) {
        let counts = cell.counts.load(Ordering::Relaxed);
        cell.counts.store(counts - u64::from(requests) * IN_FLIGHT_ONE, Ordering::Release);
        self.announce_progress();
    }

    /// Tells an exclusive waiter to look again. Relaxed: it looks again by itself soon.
    #[inline(always)]
    fn announce_progress(&self) {
        if self.exclusive.load(Ordering::Relaxed) == CLOSED {
            self.wake_exclusive();
        }
    }

    #[cold]
    fn wake_exclusive(&self) {
        self.exclusive_waiters.announce_all();
    }

    /// Enters for a synchronous call. With `counted` the call is also in flight (device I/O); without, it is
    /// only inside the gate (a memory copy: holding the gate is enough). Waits while the gate is exclusively
    /// held.
    #[inline]
    pub fn lock_shared(&self, counted: bool, help: &mut dyn FnMut()) -> InodeGuard<'_> {
        loop {
            if let Ok(guard) = self.try_lock_shared(counted) {
                return guard;
            }
            self.wait_open(help);
        }
    }

    /// As [`InodeGate::lock_shared`], but refuses instead of waiting.
    #[inline(always)]
    pub fn try_lock_shared(&self, counted: bool) -> Result<InodeGuard<'_>, Busy> {
        let slot = thread_slot();
        let cell = self.cell_of(slot)?;
        let amount = INSIDE_ONE + if counted { IN_FLIGHT_ONE } else { 0 };
        if slot < OWNED_SLOTS {
            // A thread may be inside several times (a callback that reads): the count nests.
            let counts = cell.counts.load(Ordering::Relaxed);
            store_then_fence(|order| cell.counts.store(counts + amount, order));
        } else {
            add_then_fence(&cell.counts, amount);
        }
        if self.exclusive.load(Ordering::SeqCst) != OPEN && !self.lets_in(Some((slot, cell))) {
            self.withdraw(cell, slot, amount);
            return Err(Busy);
        }
        Ok(InodeGuard { gate: self, cell, slot, amount, _not_send: PhantomData })
    }

    /// The cell of the calling thread, which has `slot`. Refuses who comes second while the owner holds the gate alone.
    #[inline(always)]
    fn cell_of(&self, slot: usize) -> Result<&Cell, Busy> {
        if self.owner.load(Ordering::Relaxed) == slot as u64 {
            return Ok(&self.first);
        }
        // They are made when the gate was opened to others (in models at once).
        match self.threads.get() {
            Some(cells) if cfg!(not(loom)) || self.is_shared() => Ok(&cells[slot]),
            _ => self.first_cell_of(slot),
        }
    }

    fn is_shared(&self) -> bool {
        self.users.load(Ordering::Acquire) & SHARED != 0
    }

    #[cold]
    fn first_cell_of(&self, slot: usize) -> Result<&Cell, Busy> {
        if self.claim(slot) {
            Ok(&self.first)
        } else if self.join() {
            Ok(&self.thread_cells()[slot])
        } else {
            Err(Busy)
        }
    }

    /// Opens the gate to others than its owner, for good. `false`: the owner holds it alone.
    fn join(&self) -> bool {
        if self.is_shared() {
            return true;
        }
        let before = self.users.fetch_or(JOINING, Ordering::SeqCst);
        if before & OWNER != 0 {
            // Of this thread, which looks for the mark from here on, and the owner, which stores its mark and then
            // looks for joiners, at least one sees the other. Another joiner may not be as far yet: each pays for
            // itself.
            heavy_fence();
            if self.first.counts.load(Ordering::SeqCst) & HELD != 0 {
                return false;
            }
        }
        self.users.fetch_or(SHARED, Ordering::AcqRel);
        true
    }

    #[cold]
    fn withdraw(&self, cell: &Cell, slot: usize, amount: u64) {
        change(cell, slot, amount, false);
        self.announce_progress();
    }

    /// Waits until the gate is not exclusively held, once or until it seems worth another try.
    pub fn wait_open(&self, help: &mut dyn FnMut()) {
        help();
        let closed = || self.is_closed() || self.first.counts.load(Ordering::Relaxed) & HELD != 0;
        self.shared_waiters.park(closed, LOOK_AGAIN);
    }

    /// Takes the gate exclusively: nobody is inside and nobody enters until the guard is dropped. With
    /// `drain` nothing is in flight either. The caller must not be inside the gate. Several wait in the order in which
    /// they came.
    pub fn lock_exclusive(&self, drain: bool, help: &mut dyn FnMut()) -> InodeGuard<'_> {
        let slot = thread_slot();
        match self.lock_alone(slot).or_else(|| self.lock_lent(slot)) {
            Some(guard) => guard,
            None => self.lock_in_turn(slot, drain, help),
        }
    }

    /// The gate for its owner, if nobody else has ever used it. Nothing is in flight then: what the owner itself sends
    /// through its cell ends before it comes here.
    #[inline]
    fn lock_alone(&self, slot: usize) -> Option<InodeGuard<'_>> {
        let owner = slot as u64 + 1;
        let users = self.users.load(Ordering::Acquire);
        let alone = users == owner || users == 0 && self.claim(slot);
        if !alone || self.first.counts.load(Ordering::Relaxed) != 0 {
            return None;
        }
        store_then_fence(|order| self.first.counts.store(HELD, order));
        if self.users.load(Ordering::SeqCst) != owner {
            self.let_in();
            return None;
        }
        // For this thread itself. Nobody else looks at it before the mark is gone.
        self.exclusive.store(CLOSED, Ordering::Relaxed);
        Some(InodeGuard { gate: self, cell: &self.first, slot, amount: HELD, _not_send: PhantomData })
    }

    /// Takes the owner's mark away. The word stays as it is: without a hold it is another holder's by now.
    fn let_in(&self) {
        let counts = self.first.counts.load(Ordering::Relaxed);
        self.first.counts.store(counts & !HELD, Ordering::Release);
        // Who comes at this moment looks again by itself soon.
        if self.users.load(Ordering::Relaxed) & JOINING != 0 {
            self.shared_waiters.announce_all();
        }
    }

    fn lock_in_turn(&self, slot: usize, drain: bool, help: &mut dyn FnMut()) -> InodeGuard<'_> {
        while !self.join() {
            self.wait_open(help);
        }
        if self.turns.take(help, &|| self.open()) == Gets::Open {
            self.end_lease(help);
            self.exclusive.store(CLOSED, Ordering::SeqCst);
            // Orders the word before the loads of cells, of which some may only now come into being. A gate that
            // was handed over closed has been through this.
            heavy_fence();
        }
        let cell = self.shared_cell_of(slot);
        let guard = InodeGuard { gate: self, cell, slot, amount: 0, _not_send: PhantomData };
        self.wait_quiet(!0 ^ IN_FLIGHT_MASK, help);
        if drain {
            self.wait_quiet(!0, help);
        }
        guard
    }

    /// Ends an exclusive hold.
    #[inline(never)]
    fn reopen(&self, hold: u64, slot: usize) {
        match hold & !VISIT {
            HELD => {
                // Before the mark goes: from then on it may be another holder's.
                self.exclusive.store(OPEN, Ordering::Relaxed);
                self.let_in();
                if hold & VISIT != 0 {
                    self.end_visit();
                }
            }
            LENT => self.leave_lent(slot),
            _ => {
                self.turns.pass(slot, self.shared_waiters.any(), |may_lend| self.lend_or_open(slot, may_lend))
            }
        }
    }

    fn open(&self) {
        self.exclusive.store(OPEN, Ordering::SeqCst);
        self.shared_waiters.announce_all();
    }

    /// Waits until the counted parts `mask` of all cells are zero.
    fn wait_quiet(&self, mask: u64, help: &mut dyn FnMut()) {
        let mut rounds = 0u32;
        while !self.quiet(mask) {
            help();
            rounds += 1;
            // Being inside the gate lasts a microsecond; a device request lasts longer.
            if rounds > 16 {
                self.turns.nudge();
                self.exclusive_waiters.park(|| !self.quiet(mask), LOOK_AGAIN);
            } else {
                #[cfg(not(loom))]
                std::thread::yield_now();
                #[cfg(loom)]
                loom::thread::yield_now();
            }
        }
    }

    fn quiet(&self, mask: u64) -> bool {
        self.own_cells().all(|cell| is_quiet(cell, mask))
            && self.queues.lock().iter().all(|cell| is_quiet(cell, mask))
    }

    /// The cells of threads.
    fn own_cells(&self) -> impl Iterator<Item = &Cell> {
        let threads = self.threads.get().map_or(&[][..], |cells| &cells[..]);
        std::iter::once(&self.first).chain(threads.iter().map(|cell| &**cell))
    }

    /// Requests in flight, as far as can be seen without stopping anybody.
    pub fn in_flight(&self) -> u64 {
        let count = |cell: &Cell| cell.counts.load(Ordering::Acquire) & IN_FLIGHT_MASK;
        self.own_cells().map(count).sum::<u64>()
            + self.queues.lock().iter().map(|cell| count(cell)).sum::<u64>()
    }

    /// Bytes of memory beside the gate itself, but for the cells of queues.
    pub fn allocated_bytes(&self) -> usize {
        self.threads.get().map_or(0, |cells| size_of_val(&**cells))
    }

    /// Notes a write through a queue's cell at `now_ns` (coarse real time since 1970).
    #[inline]
    pub fn note_write(&self, cell: &Cell, now_ns: u64) {
        cell.modified_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Latest write noted in any cell, 0 if none: merged into mtime and ctime by stat and sync.
    pub fn last_write_ns(&self) -> u64 {
        let of = |cell: &Cell| {
            if cell.modified_ns.load(Ordering::Relaxed) != MARKED {
                return cell.modified_ns.load(Ordering::Relaxed);
            }
            let now = crate::clock::coarse_now_ns();
            // If the owner marks it again meanwhile, the mark stays and is due again.
            let _marked_again =
                cell.modified_ns.compare_exchange(MARKED, now, Ordering::Relaxed, Ordering::Relaxed);
            now
        };
        let queues = self.queues.lock();
        let latest = self.own_cells().map(of).chain(queues.iter().map(|cell| of(cell))).max().unwrap_or(0);
        latest.max(self.left_modified_ns.load(Ordering::Relaxed))
    }

    /// The cell of a slot, once the gate is open to others than the owner.
    fn shared_cell_of(&self, slot: usize) -> &Cell {
        let is_owner = self.owner.load(Ordering::Relaxed) == slot as u64;
        if is_owner { &self.first } else { &self.thread_cells()[slot] }
    }

    fn thread_cells(&self) -> &[CachePadded<Cell>; SHARED_SLOT + 1] {
        self.threads.get_or_init(|| Box::new(std::array::from_fn(|_| CachePadded::default())))
    }
}

/// Proof that this thread holds the gate of an inode. What runs under it is synchronous and locked.
#[derive(Debug)]
pub struct InodeGuard<'g> {
    gate: &'g InodeGate,
    /// The calling thread's line.
    cell: &'g Cell,
    slot: usize,
    /// What a shared hold added to the line. Of an exclusive one [`HELD`] if it is by the owner alone, with
    /// [`VISIT`] or without; [`LENT`] if by a lease, 0 if in turn.
    amount: u64,
    /// A thread's line is changed by that thread only, so the guard must not be dropped by another.
    _not_send: PhantomData<*const ()>,
}

impl InodeGuard<'_> {
    /// The calling thread's slot.
    #[inline(always)]
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Marks a change of the contents by this thread. Its time is the one at which somebody asks, as POSIX has it
    /// ("marked for update").
    #[inline(always)]
    pub fn mark_written(&self) {
        self.cell.modified_ns.store(MARKED, Ordering::Relaxed);
    }

    /// The device position of `range`, if it lies in the run that this thread kept last in this generation of
    /// the mapping. Load the generation under this guard.
    #[inline(always)]
    pub(crate) fn last_run(&self, generation: u64, range: Range) -> Option<u64> {
        let last = &self.cell.last;
        if self.slot >= OWNED_SLOTS || last.generation.load(Ordering::Relaxed) != generation {
            return None;
        }
        let run = &last.runs[run_class(range.pos)];
        let run = ByteRun {
            start: run.start.load(Ordering::Relaxed),
            end: run.end.load(Ordering::Relaxed),
            physical: run.physical.load(Ordering::Relaxed),
        };
        run.locate(range)
    }

    /// Keeps a run for [`InodeGuard::last_run`] (`MapSnapshot::find_written_keeping` tells which).
    pub(crate) fn keep_run(&self, generation: u64, pos: u64, run: ByteRun) {
        if self.slot >= OWNED_SLOTS {
            return;
        }
        let last = &self.cell.last;
        if last.generation.load(Ordering::Relaxed) != generation {
            last.generation.store(generation, Ordering::Relaxed);
            for stale in &last.runs {
                stale.end.store(0, Ordering::Relaxed);
            }
        }
        let kept = &last.runs[run_class(pos)];
        kept.start.store(run.start, Ordering::Relaxed);
        kept.end.store(run.end, Ordering::Relaxed);
        kept.physical.store(run.physical, Ordering::Relaxed);
    }

    /// Whether this is a hold of `gate`.
    pub(crate) fn is_of(&self, gate: &InodeGate) -> bool {
        std::ptr::eq(self.gate, gate)
    }

    /// Whether nothing is in flight. Of an exclusive hold, so it stays so.
    pub(crate) fn is_drained(&self) -> bool {
        self.amount != 0 || self.gate.quiet(!0)
    }

    /// Waits until nothing is in flight, in an exclusive hold that found something.
    pub(crate) fn drain(&self, help: &mut dyn FnMut()) {
        debug_assert_eq!(self.amount, 0);
        self.gate.wait_quiet(!0, help);
    }

    /// Whether the gate is held exclusively.
    #[inline(always)]
    pub fn is_exclusive(&self) -> bool {
        self.amount & !(HELD | LENT | VISIT) == 0
    }

    /// Counts one more request of this call in flight, and back. The guard alone already keeps drainers out,
    /// so this is only for the plain route of `dax-no-dio-count`.
    #[inline]
    pub fn count_in_flight(&self) -> InFlight<'_> {
        change(self.cell, self.slot, IN_FLIGHT_ONE, true);
        InFlight { cell: self.cell, slot: self.slot, _not_send: PhantomData }
    }
}

impl InodeGuard<'_> {
    /// What dropping does, but in place: the compiler may keep one copy of a type's drop for all its users, and calls
    /// it then.
    #[inline(always)]
    pub(crate) fn leave(self) {
        std::mem::ManuallyDrop::new(self).let_go();
    }

    #[inline(always)]
    fn let_go(&self) {
        if self.is_exclusive() {
            self.gate.reopen(self.amount, self.slot);
        } else {
            change(self.cell, self.slot, self.amount, false);
            self.gate.announce_progress();
        }
    }
}

impl Drop for InodeGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.let_go();
    }
}

/// One counted request of a synchronous call.
#[derive(Debug)]
pub struct InFlight<'g> {
    cell: &'g Cell,
    slot: usize,
    _not_send: PhantomData<*const ()>,
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        change(self.cell, self.slot, IN_FLIGHT_ONE, false);
    }
}

/// Whether nothing of this is counted.
fn is_quiet(cell: &Cell, mask: u64) -> bool {
    cell.counts.load(Ordering::SeqCst) & mask == 0
}

/// Changes a thread cell: the owner of a line stores plainly, the shared line needs an atomic addition.
#[inline(always)]
fn change(cell: &Cell, slot: usize, amount: u64, up: bool) {
    if slot < OWNED_SLOTS {
        let counts = cell.counts.load(Ordering::Relaxed);
        let counts = if up { counts + amount } else { counts - amount };
        cell.counts.store(counts, Ordering::Release);
    } else if up {
        cell.counts.fetch_add(amount, Ordering::AcqRel);
    } else {
        cell.counts.fetch_sub(amount, Ordering::AcqRel);
    }
}
