//! The journal of ext4: handles, credits and the running transaction of a jbd2 log.
//!
//! A [`Journal`] is opened over a [`uext4_buffer::BufferCache`] and a [`LogMap`] that says where the blocks
//! of the log are; it knows nothing about inodes. An operation that changes metadata takes a [`Handle`] with
//! [`Journal::start`], asks for write access to each buffer, changes it, and stops the handle. Handles of the
//! same transaction become durable together.
//!
//! What is in which file follows the life of a change:
//!
//! | file | stage |
//! |---|---|
//! | `superblock.rs` | reading and checking the superblock of the log |
//! | `log_map.rs` | log block → block of the volume |
//! | `journal.rs` | opening, starting handles, quiescing, aborting, syncing |
//! | `space.rs` | how large a transaction may grow, how much log must be free for it |
//! | `transaction.rs` | the running transaction: credits, active handles, buffers |
//! | `handle.rs` | one operation's ticket |
//! | `wait.rs` | who sleeps for whom |
//! | `recovery/` | what a log that is not empty holds: scan, revoke, replay, fast commits |
//!
//! # Scope
//! This version does not write the log: a transaction that changed nothing needs no commit and is served
//! completely; syncing one that did change something is refused with [`Error::CommitUnavailable`], and a log
//! that holds transactions is refused with [`Error::NeedsRecovery`]: it goes through [`Recovery`] first. Nothing
//! is ever skipped silently. Freed blocks are listed ([`Handle::revoke`], [`Journal::revoked`]) for the commit
//! that will write the list.
//!
//! # Credits
//! A transaction may hold at most a quarter of the log. Its *outstanding credits* are
//! ```text
//! overhead (descriptor and commit blocks) + Σ credits left of its active handles + blocks it changed
//! ```
//! Starting a handle adds its credits, the first change of a block by the transaction turns one credit of the
//! handle into one changed block, the first freed block of each revoke block likewise, stopping gives the rest
//! back. So a block that was granted can always be written to the log.
//!
//! # Locks
//! A handle comes after rename mutex, directory locks and file gates, and before map locks, allocator groups
//! and buffers. Nothing here waits with a lock held, and only [`Journal::start`] (for credits, log space or a
//! locked transaction) and [`Journal::lock_updates`] (for active handles) wait at all; so never start a
//! handle, quiesce or sync inside a handle. Inside the crate: journal state → buffer state → members of the
//! transaction. The state is taken shared to start a handle and exclusively to change what is running;
//! credits and active handles are atomics, so stopping a handle takes no lock.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod handle;
mod journal;
mod log_map;
mod recovery;
mod space;
mod superblock;
mod sync;
mod transaction;
mod wait;

pub use error::{AbortCause, Damage, Error, ExtendRefusal, Result};
pub use handle::{Handle, Joined};
pub use journal::{Journal, JournalStats, SyncOutcome, Tail, UpdatesLocked};
pub use log_map::{LogMap, LogRun, RunMap};
pub use recovery::{
    Changes, FastCommitReplay, FastCommits, LogEnd, Recovery, RecoveryReport, Replay, mark_empty,
    store_empty_superblock,
};
pub use superblock::JournalInfo;
pub use uext4_buffer::Tid;
