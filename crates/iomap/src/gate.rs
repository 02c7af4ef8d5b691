//! The inode gate: shared for direct I/O, exclusive for operations that must not run beside it.
//!
//! Every thread or queue that does I/O on an inode has its own *cell*, a cache line that only it writes. Entering
//! increments the cell, then reads the one word that exclusive holders set; taking the gate exclusively sets that word,
//! then reads all cells. Both sides order their store before their load, so at least one of them sees the other.
//! `tests/loom.rs` checks this protocol (up to three preemptions).
//!
//! **Owner.** Most inodes are used by one thread. The first thread owns the gate: its cell lies in the gate itself, and
//! until a second thread arrives it takes the gate exclusively by setting a mark in that cell, which takes a few
//! nanoseconds, needs no barrier and reads no other cell. A second thread announces itself in `users`, executes the
//! barrier for both sides, then waits until the owner's mark is clear. From then on the owner takes the gate like any
//! other thread; only now are cells for other threads allocated. A thread that only visits a file does not become its
//! owner (`gate/owner.rs`).
//!
//! **Lent.** A shared gate may still be used by a single thread, for example one that took over from another. After
//! some exclusive holds in a row the gate is *lent* to that thread, and its holds are as cheap as a sole owner's until
//! another thread arrives (`gate/lease.rs`).
//!
//! A cell counts two things: callers *inside the gate* (mapping and submitting) and requests *in flight*
//! (until their completion work is done). An exclusive holder waits for the first; one that must also *drain*
//! waits for the second.
//!
//! A waiter never holds a lock that a completion needs: the caller passes `help`, which drives its own queue and
//! harvests idle ones.

mod lease;
mod owner;
mod times;

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
/// In the owner's cell: it holds the gate exclusively, and no other thread has ever used it.
const HELD: u64 = 1 << 63;

/// A guard's amount for a hold by a lease. Its thread's cell has [`HELD`].
const LENT: u64 = 1 << 62;
/// In a guard only, beside [`HELD`]: a visit ends with it.
const VISIT: u64 = 1 << 61;
/// Value of `exclusive`: no thread holds or wants the gate.
const OPEN: u64 = 0;
/// Value of `exclusive`: a thread holds or wants it, or (with the bits of `gate/lease.rs`) it is lent.
const CLOSED: u64 = 1;
/// Not the slot of any thread.
const NOBODY: u64 = u64::MAX;
/// Bits of `users`: the owner's slot plus 1, 0 if there is no owner.
const OWNER: u64 = (1 << 16) - 1;
/// Bit of `users`: a second thread has arrived and is checking whether the owner holds the gate by its mark.
const JOINING: u64 = 1 << 16;
/// Bit of `users`: other threads use the gate; never cleared.
const SHARED: u64 = 1 << 17;
/// How long a waiter sleeps before it checks again unasked: a relaxed check can miss an announcement.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// One writer's cache line: callers inside the gate (high half), requests in flight (low half), and the time of its
/// last write.
#[derive(Debug, Default)]
pub struct Cell {
    counts: AtomicU64,
    modified_ns: AtomicU64,
    last: LastRuns,
}

impl Cell {
    /// No caller is inside through this cell and nothing is in flight. Exact only when its owner asks.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.counts.load(Ordering::Relaxed) == 0
    }
}

/// The written runs that the owner of a cell used last, one per class of positions, and the generation of the mapping
/// they come from. Only the owner reads and writes them.
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

/// Number of runs kept by a cell, and the size of the file ranges that map to them in turn: a file of a few block
/// groups keeps all its runs.
const RUN_CLASSES: usize = 4;
const RUN_CLASS_BITS: u32 = 25;

#[inline(always)]
fn run_class(pos: u64) -> usize {
    (pos >> RUN_CLASS_BITS) as usize % RUN_CLASSES
}

/// The gate is held or wanted exclusively; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

/// The gate of one inode. Fields that every request reads come first, to share a cache line with the inode's size;
/// `exclusive` is written too rarely to need its own line.
#[derive(Debug)]
#[repr(C)]
pub struct InodeGate {
    /// [`OPEN`], [`CLOSED`], or lent.
    exclusive: AtomicU64,
    /// The owner's slot, or [`NOBODY`]. Relaxed access suffices: only the owner compares it with its own slot, and it
    /// stored it itself.
    owner: AtomicU64,
    /// [`OWNER`], [`JOINING`], [`SHARED`]. The last two are never cleared.
    users: AtomicU64,
    /// Cells of all threads but the owner, allocated when the second thread arrives.
    threads: OnceLock<Box<[CachePadded<Cell>; SHARED_SLOT + 1]>>,
    queues: Mutex<Vec<Arc<CachePadded<Cell>>>>,
    turns: Turns,
    /// The exclusive holder, while it waits for others to leave.
    exclusive_waiters: Waiters,
    /// The owner's cell. Its neighbours are touched rarely.
    first: Cell,
    shared_waiters: Waiters,
    /// Last write of the queues that have left.
    left_modified_ns: AtomicU64,
}

// The owner writes its cell constantly, while every thread reads the fields before `queues` and those after the gate.
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
    /// An unused gate.
    pub fn new() -> Self {
        Self::with_hands(HANDS)
    }

    /// A gate that is handed over `hands` times before it is opened. For models only.
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
        // loom cannot see that `OnceLock` orders the creation of the lines before their use.
        #[cfg(loom)]
        gate.thread_cells();
        gate
    }

    /// A cell for one queue. Give it back with [`InodeGate::unregister`]. Ends a lease, and none starts while a queue
    /// is registered. Waits while the owner or the borrower holds the gate by its mark, not for other holders. The
    /// caller must not hold the gate exclusively.
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

    /// Removes a cell with nothing in flight. Keeps its modification time.
    pub fn unregister(&self, cell: &Arc<CachePadded<Cell>>) {
        debug_assert_eq!(cell.counts.load(Ordering::Acquire), 0, "a cell in use cannot leave its gate");
        // The time moves under the lock: otherwise a reader could miss it, or `forget_writes` could.
        let mut queues = self.queues.lock();
        queues.retain(|other| !Arc::ptr_eq(other, cell));
        self.left_modified_ns.fetch_max(cell.modified_ns.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Removes the cell of a queue that died with requests in flight, once the device no longer works on them. They
    /// will never be completed.
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

    /// [`InodeGate::enter`] of the short paths. A gate with queues is never lent, so this calls no function before the
    /// caller continues, and the caller's values stay in registers.
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

    /// Counts one request of a queue in flight, for a caller that holds the gate exclusively: an append, which stays in
    /// flight when the gate opens.
    pub(crate) fn raise(&self, cell: &Cell) {
        let counts = cell.counts.load(Ordering::Relaxed);
        cell.counts.store(counts + IN_FLIGHT_ONE, Ordering::Release);
    }

    /// Leaves the gate after submission; the request stays in flight.
    #[inline]
    pub fn leave(&self, cell: &Cell) {
        let counts = cell.counts.load(Ordering::Relaxed);
        cell.counts.store(counts - INSIDE_ONE, Ordering::Release);
    }

    /// One request and its completion work are done. Release, so that a drainer sees everything done before.
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

    /// Tells an exclusive waiter to check again. Relaxed: it soon checks again unasked.
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
            // The count nests: a thread may be inside several times (a callback that reads).
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

    /// The cell of the calling thread, which has `slot`. Refuses a second thread while the owner holds the gate by its
    /// mark.
    #[inline(always)]
    fn cell_of(&self, slot: usize) -> Result<&Cell, Busy> {
        if self.owner.load(Ordering::Relaxed) == slot as u64 {
            return Ok(&self.first);
        }
        // These cells exist once the gate is shared (in models from the start).
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

    /// Makes the gate shared, permanently. `false`: the owner holds it by its mark.
    fn join(&self) -> bool {
        if self.is_shared() {
            return true;
        }
        let before = self.users.fetch_or(JOINING, Ordering::SeqCst);
        if before & OWNER != 0 {
            // This thread reads the mark after the fence; the owner stores its mark, then reads `JOINING`: at least one
            // sees the other. Each joiner needs its own fence, since another joiner may not have reached its fence yet.
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

    /// Waits until the gate seems open. It may be closed again on return: try, and call this again.
    pub fn wait_open(&self, help: &mut dyn FnMut()) {
        help();
        let closed = || self.is_closed() || self.first.counts.load(Ordering::Relaxed) & HELD != 0;
        self.shared_waiters.park(closed, LOOK_AGAIN);
    }

    /// Takes the gate exclusively: no other caller is inside or enters until the guard is dropped. With `drain`,
    /// nothing is in flight either. The caller must not be inside the gate. Waiters are served in order of arrival.
    pub fn lock_exclusive(&self, drain: bool, help: &mut dyn FnMut()) -> InodeGuard<'_> {
        let slot = thread_slot();
        match self.lock_alone(slot).or_else(|| self.lock_lent(slot)) {
            Some(guard) => guard,
            None => self.lock_in_turn(slot, drain, help),
        }
    }

    /// Takes the gate for its owner, if no other thread has ever used it. Nothing is in flight then: requests that the
    /// owner counts in its cell end before it gets here.
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
        // For this thread only: others read it only after the mark is cleared.
        self.exclusive.store(CLOSED, Ordering::Relaxed);
        Some(InodeGuard { gate: self, cell: &self.first, slot, amount: HELD, _not_send: PhantomData })
    }

    /// Clears the owner's mark. `exclusive` stays as it is: without the mark it may belong to another holder already.
    fn let_in(&self) {
        let counts = self.first.counts.load(Ordering::Relaxed);
        self.first.counts.store(counts & !HELD, Ordering::Release);
        // A thread that arrives at this moment soon checks again unasked.
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
            // Orders the store of `exclusive` before the loads of cells, some of which may be created just now. The
            // previous holder has already done this for a gate that was handed over closed.
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
                // Before the mark is cleared: after that the word may belong to another holder.
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

    /// Waits until the counts under `mask` are zero in all cells.
    fn wait_quiet(&self, mask: u64, help: &mut dyn FnMut()) {
        let mut rounds = 0u32;
        while !self.quiet(mask) {
            help();
            rounds += 1;
            // A caller is inside the gate for about a microsecond; a device request lasts longer.
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

    /// Requests in flight; approximate, since no thread is stopped.
    pub fn in_flight(&self) -> u64 {
        let count = |cell: &Cell| cell.counts.load(Ordering::Acquire) & IN_FLIGHT_MASK;
        self.own_cells().map(count).sum::<u64>()
            + self.queues.lock().iter().map(|cell| count(cell)).sum::<u64>()
    }

    /// Bytes of memory outside the gate itself, without the cells of queues.
    pub fn allocated_bytes(&self) -> usize {
        self.threads.get().map_or(0, |cells| size_of_val(&**cells))
    }

    /// The cell of a slot of a shared gate.
    fn shared_cell_of(&self, slot: usize) -> &Cell {
        let is_owner = self.owner.load(Ordering::Relaxed) == slot as u64;
        if is_owner { &self.first } else { &self.thread_cells()[slot] }
    }

    fn thread_cells(&self) -> &[CachePadded<Cell>; SHARED_SLOT + 1] {
        self.threads.get_or_init(|| Box::new(std::array::from_fn(|_| CachePadded::default())))
    }
}

/// Proof that this thread holds the gate of an inode, shared or exclusively.
#[derive(Debug)]
pub struct InodeGuard<'g> {
    gate: &'g InodeGate,
    /// The calling thread's line.
    cell: &'g Cell,
    slot: usize,
    /// For a shared hold, the amount added to the cell. For an exclusive one: [`HELD`] if taken by the owner's mark
    /// (with or without [`VISIT`]), [`LENT`] if taken by a lease, 0 if taken in turn.
    amount: u64,
    /// Only the thread itself changes its line, so another thread must not drop the guard.
    _not_send: PhantomData<*const ()>,
}

impl InodeGuard<'_> {
    /// The calling thread's slot.
    #[inline(always)]
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Marks a change of the contents by this thread. The time is taken when it is next asked for, as POSIX allows
    /// ("marked for update").
    #[inline(always)]
    pub fn mark_written(&self) {
        self.cell.modified_ns.store(MARKED, Ordering::Relaxed);
    }

    /// The device position of `range`, if it lies in a run that this thread kept in this generation of the mapping.
    /// Load the generation under this guard.
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

    /// Keeps a run for [`InodeGuard::last_run`] (`MapSnapshot::find_written_keeping` chooses which).
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

    /// Whether nothing is in flight. For an exclusive hold, so the answer stays valid.
    pub(crate) fn is_drained(&self) -> bool {
        self.amount != 0 || self.gate.quiet(!0)
    }

    /// Waits until nothing is in flight, under an exclusive hold.
    pub(crate) fn drain(&self, help: &mut dyn FnMut()) {
        debug_assert_eq!(self.amount, 0);
        self.gate.wait_quiet(!0, help);
    }

    /// Whether the gate is held exclusively.
    #[inline(always)]
    pub fn is_exclusive(&self) -> bool {
        self.amount & !(HELD | LENT | VISIT) == 0
    }

    /// Counts one more request of this call in flight until the result is dropped. The guard already keeps drainers
    /// out, so only the plain route of `dax-no-dio-count` needs this.
    #[inline]
    pub fn count_in_flight(&self) -> InFlight<'_> {
        change(self.cell, self.slot, IN_FLIGHT_ONE, true);
        InFlight { cell: self.cell, slot: self.slot, _not_send: PhantomData }
    }
}

impl InodeGuard<'_> {
    /// Drops the guard inline: the compiler may otherwise emit the drop once and call it.
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

/// Whether the counts under `mask` are zero.
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
