//! One buffer: contents, owner, pins.

use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use crate::{Error, Result, Tid};
use std::sync::Arc;

/// Where a buffer is in its life (see the crate documentation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferState {
    /// No contents (pinned before its first load, or being loaded).
    Empty,
    /// Contents equal the device's.
    Clean,
    /// Contents must be written home.
    Dirty,
    /// Filed under the running transaction.
    InTransaction {
        /// The running transaction.
        tid: Tid,
        /// Whether it changed the block yet.
        modified: bool,
        /// An older transaction that is committing its own frozen image of the block.
        frozen: Option<Tid>,
    },
    /// A committing transaction holds the frozen image; nobody has joined since.
    Committing {
        /// The committing transaction.
        tid: Tid,
    },
}

/// A block in memory. Everything that changes is in `state`; `pins` and `referenced` are what eviction looks
/// at.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub block: u64,
    /// Identity of the cache that made it.
    pub cache: u64,
    pins: AtomicUsize,
    referenced: AtomicBool,
    state: Mutex<State>,
    /// Signalled when a load, verification or home write ends.
    settled: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    pub content: Content,
    /// Loads begun so far: the number of the latest one.
    pub load_serial: u64,
    /// Number and error of the latest failed load, for those who waited for it.
    pub load_failure: Option<(u64, Error)>,
    pub running: Option<Running>,
    pub frozen: Option<Frozen>,
    pub home: Home,
    /// The transaction whose copy in the log stands for the home image until that is written; none if nothing is due
    /// or no copy exists.
    pub home_tid: Option<Tid>,
    /// A home write is on its way to the device.
    pub writing: bool,
    /// For whom the present contents are sound ([`crate::BufferCache::get_or_verify_for`]); 0: nobody asked, or they
    /// have changed.
    pub sound_for: u128,
}

#[derive(Debug)]
pub(crate) enum Content {
    Empty,
    Loading,
    Present { image: Arc<[u8]>, check: Check },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    Unverified,
    Verifying,
    Verified,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub tid: Tid,
    pub modified: bool,
}

#[derive(Debug)]
pub(crate) struct Frozen {
    pub tid: Tid,
    pub image: Arc<[u8]>,
}

/// What must be written to the block's home place.
#[derive(Debug)]
pub(crate) enum Home {
    Nothing,
    /// The current contents.
    Current,
    /// An older, committed image: the current contents belong to a transaction that is not committed.
    Image(Arc<[u8]>),
}

/// An image on its way home.
#[derive(Debug, Clone)]
pub(crate) struct HomeImage {
    pub image: Arc<[u8]>,
    /// See [`State::home_tid`].
    pub tid: Option<Tid>,
}

impl Buffer {
    pub(crate) fn new(block: u64, cache: u64) -> Self {
        Buffer {
            block,
            cache,
            pins: AtomicUsize::new(0),
            referenced: AtomicBool::new(false),
            state: Mutex::new(State {
                content: Content::Empty,
                load_serial: 0,
                load_failure: None,
                running: None,
                frozen: None,
                home: Home::Nothing,
                home_tid: None,
                writing: false,
                sound_for: 0,
            }),
            settled: Condvar::new(),
        }
    }

    pub(crate) fn add_pin(&self) {
        // Relaxed: a pin is only added under the shard table's lock or beside an existing pin, so eviction
        // (which holds the table exclusively and wants to see zero) cannot run between.
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_pin(&self) {
        // Release: what the holder did to the buffer comes before the zero that eviction acquires.
        self.pins.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) != 0
    }

    /// Notes a use for the CLOCK hand, without writing to the shared line if it is noted already.
    pub(crate) fn touch(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// The hand passes: was the buffer used since the last time?
    pub(crate) fn take_referenced(&self) -> bool {
        self.referenced.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sleeps until a load, verification or home write of this buffer ends.
    pub(crate) fn wait(&self, state: &mut MutexGuard<'_, State>) {
        self.settled.wait(state);
    }

    pub(crate) fn wake(&self) {
        self.settled.notify_all();
    }

    /// The state, once no load and no verification runs.
    pub(crate) fn lock_settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while state.content.is_busy() {
            self.wait(&mut state);
        }
        state
    }
}

impl Content {
    /// A load or verification runs.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Content::Loading | Content::Present { check: Check::Verifying, .. })
    }

    /// Whether `image` is what is here now.
    pub(crate) fn is(&self, image: &Arc<[u8]>) -> bool {
        matches!(self, Content::Present { image: current, .. } if Arc::ptr_eq(current, image))
    }
}

impl Home {
    pub(crate) fn is_due(&self) -> bool {
        !matches!(self, Home::Nothing)
    }
}

impl State {
    /// Dropping the buffer would lose nothing.
    pub(crate) fn is_evictable(&self) -> bool {
        self.is_unowned() && !matches!(self.content, Content::Loading)
    }

    /// Nothing but the device's contents is here.
    pub(crate) fn is_unowned(&self) -> bool {
        self.running.is_none() && self.frozen.is_none() && !self.home.is_due() && !self.writing
    }

    /// The transaction that holds the buffer, the running one first.
    pub(crate) fn owner(&self) -> Option<Tid> {
        self.running.map(|running| running.tid).or(self.frozen.as_ref().map(|frozen| frozen.tid))
    }

    /// What to write home, if anything. It is no longer due afterwards.
    pub(crate) fn take_home(&mut self) -> Option<HomeImage> {
        let tid = self.home_tid.take();
        match (std::mem::replace(&mut self.home, Home::Nothing), &self.content) {
            (Home::Image(image), _) => Some(HomeImage { image, tid }),
            (Home::Current, Content::Present { image, .. }) => {
                Some(HomeImage { image: Arc::clone(image), tid })
            }
            // Contents are only dropped from unowned buffers, so `Current` always has contents.
            (Home::Nothing | Home::Current, _) => None,
        }
    }

    /// A home image that must be written again, unless a newer one is due. What became due meanwhile without a copy in
    /// the log stands for this one too.
    pub(crate) fn restore_home(&mut self, due: HomeImage) {
        if self.home.is_due() {
            self.home_tid = self.home_tid.or(due.tid);
        } else {
            self.set_home(due);
        }
    }

    /// This image must be written home, in place of any older one.
    pub(crate) fn set_home(&mut self, due: HomeImage) {
        self.home = if self.content.is(&due.image) { Home::Current } else { Home::Image(due.image) };
        self.home_tid = due.tid;
    }

    /// Nothing of the block goes home any more.
    pub(crate) fn cancel_home(&mut self) {
        self.home = Home::Nothing;
        self.home_tid = None;
    }

    /// The transaction `tid` is about to change the contents: what must go home is kept aside.
    pub(crate) fn keep_home_aside(&mut self) {
        if let (Home::Current, Content::Present { image, .. }) = (&self.home, &self.content) {
            self.home = Home::Image(Arc::clone(image));
        }
    }

    pub(crate) fn describe(&self) -> BufferState {
        let frozen = self.frozen.as_ref().map(|frozen| frozen.tid);
        match (self.running, frozen) {
            (Some(Running { tid, modified }), frozen) => BufferState::InTransaction { tid, modified, frozen },
            (None, Some(tid)) => BufferState::Committing { tid },
            (None, None) if self.home.is_due() || self.writing => BufferState::Dirty,
            (None, None) if matches!(self.content, Content::Present { .. }) => BufferState::Clean,
            (None, None) => BufferState::Empty,
        }
    }

    /// Ends load number `serial`.
    pub(crate) fn finish_load(&mut self, serial: u64, result: &Result<Arc<[u8]>>) {
        self.sound_for = 0;
        match result {
            Ok(image) => {
                self.content = Content::Present { image: Arc::clone(image), check: Check::Unverified };
                self.load_failure = None;
            }
            Err(error) => {
                self.content = Content::Empty;
                self.load_failure = Some((serial, error.clone()));
            }
        }
    }
}
