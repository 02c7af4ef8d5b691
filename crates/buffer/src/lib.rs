//! The metadata block cache of uext4.
//!
//! A [`BufferCache`] keeps blocks of one device in memory under a byte budget. It knows nothing about what is
//! in a block: whoever reads a block says how to verify it ([`BufferCache::get_or_verify`]), and whoever
//! changes a block says on whose behalf ([`Owner`]).
//!
//! # Life of a buffer
//! | state ([`BufferState`]) | what it means | what leads on |
//! |---|---|---|
//! | `Empty` | no contents | a load → `Clean`, `overwrite` → as below |
//! | `Clean` | equals the device | `modify(Direct)` → `Dirty`, `join(tid)` → `InTransaction` |
//! | `Dirty` | must be written home | `write_back` → `Clean`, `forget` → `Empty`, `join(tid)` |
//! | `InTransaction` | a running transaction has it | `freeze(tid)` → `Committing`, `leave(tid)`, `abandon(tid)` |
//! | `Committing` | a commit has the frozen image | `committed(tid)` → `Dirty`, `join(tid + 1)` |
//!
//! Contents are immutable `Arc<[u8]>` images. A reader holds an image, so it neither blocks nor sees a
//! writer; a writer changes the image in place only while nobody else holds it and otherwise copies it first.
//! The *frozen copy* of a committing transaction is therefore just one more holder of the image: it costs a
//! copy only if the next transaction changes the block while the commit still needs it.
//!
//! # Verification
//! The verified flag belongs to one load of one block: it is set when the verifier of
//! [`BufferCache::get_or_verify`] accepts the contents and is lost when the contents are dropped (eviction,
//! forget, refused verification). Contents written by their owner with [`BufferCache::overwrite`] count as
//! verified.
//! Blocks whose soundness depends on who asks have a note of one asker instead, which also goes with every change by
//! somebody else ([`BufferCache::get_or_verify_for`]).
//!
//! # Budget
//! One resident block costs its block size. Blocks that are pinned, modified or owned by a transaction cannot
//! be evicted: while they exceed the budget the cache is larger than the budget, and shrinks again with the
//! next insertion or write-back after they are released. Old images still held by readers, frozen copies and
//! images waiting for their home write are not counted.
//!
//! # Locks
//! Last in the order of the file system (rename mutex → directories → file gates → handle → map lock →
//! allocator group → **buffer**). Inside: shard table → one buffer's state; device calls and verifiers run
//! with neither held. The closures of `modify` and `overwrite` run with the buffer's state held and must not
//! call into the cache.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod ahead;
mod buffer;
mod cache;
mod error;
mod guard;
mod options;
mod scratch;
mod shard;
mod stats;
mod sync;
mod tid;
mod write;

pub use buffer::BufferState;
pub use cache::BufferCache;
pub use error::{Error, Result};
pub use guard::{BufferPin, BufferRef};
pub use options::{CacheOptions, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, READ_AHEAD_BYTES};
pub use stats::Stats;
pub use tid::Tid;
pub use write::Owner;
