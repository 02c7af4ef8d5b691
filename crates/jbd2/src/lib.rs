//! The journal of ext4: handles, transactions, commits, checkpoints and recovery of a jbd2 log.
//!
//! A [`Journal`] is opened over a [`uext4_buffer::BufferCache`] and a [`LogMap`] that locates the blocks of the log; it
//! knows nothing about inodes. An operation that changes metadata takes a [`Handle`] with [`Journal::start`], asks for
//! write access to each buffer, changes it, and stops the handle. Handles of the same transaction become durable
//! together, with [`Journal::datasync`] or when the transaction is full.
//!
//! The files follow the life of a change:
//!
//! | file | stage |
//! |---|---|
//! | `superblock.rs`, `store.rs` | reading and checking the superblock of the log; writing it |
//! | `log_map.rs` | log block → block of the volume |
//! | `journal.rs` | running, committing and logged transactions; opening, quiescing, aborting |
//! | `space.rs`, `reserve.rs` | limits of a transaction, free log space, reservations |
//! | `start.rs` | starting handles, and the waits of a start |
//! | `transaction.rs` | a transaction: credits, active handles, buffers |
//! | `handle.rs` | one operation in a transaction |
//! | `turn.rs`, `commit.rs`, `log_writer.rs` | who commits; the steps of a commit; the blocks of the log |
//! | `fast_area.rs`, `fast_commit.rs` | what a transaction changed so far, as records of the file system |
//! | `checkpoint.rs` | home writes, the tail, emptying the log |
//! | `hooks.rs` | calls of a commit into the file system |
//! | `wait.rs` | sleeping and waking |
//! | `recovery/` | reading a log that is not empty: scan, revoke, replay, fast commits |
//!
//! A log that holds transactions is refused with [`Error::NeedsRecovery`]: it goes through [`Recovery`] first. The log
//! is on the device of the cache or, with a [`DeviceMap`], on one of its own. No thread is started: a caller that waits
//! for a commit or for log space does the work itself unless another thread is doing it.
//!
//! # Order of writes
//! | before | comes |
//! |---|---|
//! | the first commit block of a log | whatever [`CommitHooks::log_begins`] makes durable, and the log's superblock |
//! | a commit block | ordered data and all other blocks of the transaction complete, then one flush (of each device) |
//! | the number of the last commit advances | the commit block is durable (FUA, or write and flush) |
//! | a home write | the commit of its image |
//! | a fast commit counts | everything written before it is flushed |
//! | the tail passes a transaction | its remaining home writes complete, then one flush |
//! | log blocks are used again | the superblock with the tail past them is durable |
//! | a freed block is used again | its commit, and its buffer is forgotten |
//!
//! The first failure of any of these writes and flushes aborts the journal, as does a handle dropped in the middle of
//! its change: every later call fails with the cause, nothing more is committed, and the error is recorded in the log's
//! superblock, if that can be written.
//!
//! # Credits
//! A transaction may hold at most a quarter of the usable log. That may be less than the whole log: the blocks of
//! committed transactions stay in memory until they are written home, and may take at most half of the cache's budget.
//! Its *outstanding credits* are
//! ```text
//! overhead (descriptor and commit blocks) + Σ credits left of its active handles + blocks it changed
//! ```
//! Starting a handle adds its credits, the first change of a block by the transaction turns one credit of the handle
//! into one changed block, the first freed block of each revoke block likewise, stopping returns the rest. So every
//! granted block can be written to the log.
//!
//! # Locks
//! A handle comes after rename mutex, directory locks and file gates, and before map locks, allocator groups and
//! buffers. [`Journal::start`] and [`Journal::reserve`] wait (for credits, log space, a locked transaction), as do
//! [`Journal::lock_updates`] and everything that commits or writes home, so never start a handle, quiesce, sync or
//! checkpoint inside a handle. Inside the crate: the commit turn, the checkpoint lock, then the superblock's lock; and,
//! held only briefly, journal state → buffer state → members of a transaction. The state is locked shared to start a
//! handle and exclusively to change transactions; credits and active handles are atomics, so stopping a handle takes no
//! lock.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod checkpoint;
mod commit;
mod error;
mod fast_area;
mod fast_commit;
mod handle;
mod hooks;
mod io;
mod journal;
mod log_map;
mod log_writer;
mod options;
mod outlook;
mod probes;
mod recovery;
mod reserve;
mod space;
mod start;
mod store;
mod superblock;
mod sync;
mod transaction;
#[cfg(not(loom))]
mod turn;
#[cfg(loom)]
pub mod turn;
mod wait;

pub use commit::SyncOutcome;
pub use error::{AbortCause, Damage, Error, ExtendRefusal, Result};
pub use handle::{Handle, Joined};
pub use hooks::{CommitHooks, FastCommitContents, FastCommitRoom, FreedRun, FullCommit};
pub use journal::{Journal, JournalStats, UpdatesLocked};
pub use log_map::{DeviceMap, LogMap, LogRun, RunMap};
pub use options::JournalOptions;
pub use outlook::CommitOutlook;
pub use recovery::{
    Changes, FastCommitReplay, FastCommits, LogEnd, Recovery, RecoveryReport, Replay, mark_empty,
    store_empty_superblock,
};
pub use reserve::Reservation;
pub use space::Tail;
pub use superblock::JournalInfo;
pub use uext4_buffer::Tid;
