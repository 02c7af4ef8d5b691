//! The direct-I/O engine of uext4: decide in pure functions, execute the decision, count what was done.
//!
//! Reading path: [`mapping`] (the values), [`plan`] and [`write_plan`] (the decision), [`gate`] and
//! [`snapshot`] (what makes it safe), [`sync_io`] and [`queue`] (the executors), [`fs`] (what a file system
//! answers).
//!
//! | switch | room |
//! |---|---|
//! | `overwrite-no-transaction` | in the file system, behind [`FileSystem::start_mapping`] |
//! | `dax-no-dio-count` | [`dax`] |
//! | `fua-dsync-overwrite` | [`durability`] |
//! | `simple-read` | [`simple_read`] |
//! | `shared-subblock-overwrite` | [`write_plan`] |
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod atomic;
pub mod bounce;
mod buffered;
mod carry;
mod clock;
pub mod counters;
pub mod dax;
#[allow(unsafe_code)]
mod door;
pub mod durability;
mod engine;
mod error;
mod exclusive;
mod explain;
#[cfg(not(loom))]
mod flush;
#[allow(missing_docs)]
#[cfg(loom)]
pub mod flush;
mod flusher;
pub mod fs;
pub mod gate;
mod homeward;
mod inode;
pub mod mapping;
mod nowait;
#[allow(unsafe_code)]
#[cfg(not(loom))]
mod owner_lock;
#[allow(unsafe_code, missing_docs)]
#[cfg(loom)]
pub mod owner_lock;
mod pages;
pub mod pending;
mod pipeline;
pub mod plan;
mod probes;
pub mod queue;
mod raw;
pub mod simple_read;
pub mod snapshot;
pub mod switches;
mod sync;
pub mod sync_io;
#[cfg(not(loom))]
mod thread_slot;
#[allow(missing_docs)]
#[cfg(loom)]
pub mod thread_slot;
mod together;
mod turns;
mod write_back;
pub mod write_plan;

pub use clock::coarse_now_ns;
pub use counters::{Counter, Counters, Stats};
pub use door::Payload;
pub use engine::Engine;
pub use error::Error;
pub use explain::Outlook;
pub use fs::{Appended, Blocks, Count, Extended, FileSystem, OpenFile, Synced};
pub use homeward::{PageBell, Ring};
pub use inode::InodeState;
pub use mapping::{MapKind, PIECES_MAX, Piece, Pieces, Range, Run, State};
pub use plan::{ATOMIC_MAX, Plan, ReadFlags, Request, WriteFlags};
pub use queue::{Completion, FileSlot, IoQueue};
pub use raw::{RawCompletion, RawQueue};
pub use snapshot::{ByteRun, Found, MapCell, MapSnapshot};
pub use switches::{BadSwitch, SWITCH_NAMES, Switches};
pub use sync::Fence;
#[cfg(not(loom))]
#[doc(hidden)]
pub use sync::heavy_fences;
pub use together::NotedWrite;
pub use write_back::Sole;
