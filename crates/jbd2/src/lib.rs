//! The journal of ext4: handles, transactions, commits, checkpoints and recovery of a jbd2 log.
//!
//! A [`Journal`] is opened over a [`uext4_buffer::BufferCache`] and a [`LogMap`] that says where the blocks
//! of the log are; it knows nothing about inodes. An operation that changes metadata takes a [`Handle`] with
//! [`Journal::start`], asks for write access to each buffer, changes it, and stops the handle. Handles of the
//! same transaction become durable together, with [`Journal::datasync`] or when the transaction is full.
//!
//! What is in which file follows the life of a change:
//!
//! | file | stage |
//! |---|---|
//! | `superblock.rs`, `store.rs` | reading and checking the superblock of the log; writing it |
//! | `log_map.rs` | log block → block of the volume |
//! | `journal.rs` | what runs, commits and is in the log; opening, quiescing, aborting |
//! | `space.rs`, `reserve.rs` | how large a transaction may grow, how much log must be free, what is taken in advance |
//! | `start.rs` | starting handles, and what a start waits for |
//! | `transaction.rs` | a transaction: credits, active handles, buffers |
//! | `handle.rs` | one operation's ticket |
//! | `turn.rs`, `commit.rs`, `log_writer.rs` | who commits; the steps of a commit; the blocks of the log |
//! | `checkpoint.rs` | home writes, the tail, emptying the log |
//! | `hooks.rs` | what a commit asks of the file system |
//! | `wait.rs` | who sleeps for whom |
//! | `recovery/` | what a log that is not empty holds: scan, revoke, replay, fast commits |
//!
//! A log that holds transactions is refused with [`Error::NeedsRecovery`]: it goes through [`Recovery`] first. The log
//! is on the device of the cache; external journals have no [`LogMap`]. No thread is started: whoever waits for a
//! commit or for room in the log does the work if nobody else is at it.
//!
//! # Order of writes
//! | before | comes |
//! |---|---|
//! | the first commit block of a log | whatever [`CommitHooks::log_begins`] makes durable, and the log's superblock |
//! | a commit block | ordered data and all other blocks of the transaction complete, then one flush |
//! | the number of the last commit advances | the commit block is durable (FUA, or write and flush) |
//! | a home write | the commit of its image |
//! | the tail passes a transaction | the home writes that are due for it complete, then one flush |
//! | log blocks are used again | the superblock with the tail behind them is durable |
//! | a freed block is used again | its commit, and its buffer is forgotten |
//!
//! The first failure of any of these writes and flushes aborts the journal, as does a handle that is given up
//! half-way: every later call fails with the cause, nothing more is committed, and the error is recorded in the log's
//! superblock, if that can be written.
//!
//! # Credits
//! A transaction may hold at most a quarter of the log, or of what of it may be in use: the blocks of committed
//! transactions stay in memory until they are home, which shall be no more than half of the cache's budget. Its
//! *outstanding credits* are
//! ```text
//! overhead (descriptor and commit blocks) + Σ credits left of its active handles + blocks it changed
//! ```
//! Starting a handle adds its credits, the first change of a block by the transaction turns one credit of the
//! handle into one changed block, the first freed block of each revoke block likewise, stopping gives the rest
//! back. So a block that was granted can always be written to the log.
//!
//! # Locks
//! A handle comes after rename mutex, directory locks and file gates, and before map locks, allocator groups
//! and buffers. [`Journal::start`] and [`Journal::reserve`] wait (for credits, log space, a locked transaction), so do
//! [`Journal::lock_updates`] and whatever commits or writes home; so never start a handle, quiesce, sync or checkpoint
//! inside a handle. Inside the crate: the turn (who commits), the right to checkpoint, then the superblock's lock; and,
//! held for moments only, journal state → buffer state → members of a transaction. The state is taken shared to start a
//! handle and exclusively to change what is running; credits and active handles are atomics, so stopping a handle takes
//! no lock.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod checkpoint;
mod commit;
mod error;
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
pub use hooks::{CommitHooks, FreedRun};
pub use journal::{Journal, JournalStats, UpdatesLocked};
pub use log_map::{LogMap, LogRun, RunMap};
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
