//! The decision of direct I/O as a pure function: request, inode view, all pieces, device, switches →
//! [`Plan`].
//!
//! Nothing here reads state or changes it, so the whole input grid can be tested, and `uext4 explain` prints
//! exactly what the executor will do. The rows of the write table are in `write_plan`, durability in `durability`.

use crate::error::Error;
use crate::mapping::{MapKind, Piece, Range, State};
use crate::switches::Routing;
use uext4_blockdev::Capabilities;

/// The size in the on-disk inode (`i_disksize`), in bytes, and what else a write has to look at: whether the file has
/// privileges that the next write takes away (set-user-id, set-group-id, capabilities), and whether every write of it
/// is durable when it completes (`chattr +S`), and whether the file has pages (`pages.rs`).
///
/// One number holds all of it: overwrites check the size anyway, so the other checks are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSize(i64);

/// Bits of a size with marks, which is negative.
const PRIVILEGED: i64 = 1 << 62;
const SYNCS: i64 = 1 << 61;
const CACHED: i64 = 1 << 60;
/// The rest of it. No file with marks is longer.
const BYTES: i64 = CACHED - 1;

impl DiskSize {
    /// A size. Sizes end at 2⁶³ - 1, with marks at 2⁶⁰ - 1.
    #[inline]
    pub const fn new(bytes: u64, privileged: bool) -> Self {
        DiskSize::marked(bytes, privileged, false)
    }

    /// The same of a file whose writes are durable if `syncs`.
    #[inline]
    pub const fn marked(bytes: u64, privileged: bool, syncs: bool) -> Self {
        let privileged = if privileged { PRIVILEGED } else { 0 };
        DiskSize::of(bytes, privileged | if syncs { SYNCS } else { 0 })
    }

    const fn of(bytes: u64, marks: i64) -> Self {
        let most = if marks != 0 { BYTES } else { i64::MAX };
        let bytes = if bytes > most as u64 { most } else { bytes as i64 };
        DiskSize(if marks != 0 { i64::MIN | marks | bytes } else { bytes })
    }

    const fn marks(self) -> i64 {
        if self.0 < 0 { self.0 & (PRIVILEGED | SYNCS | CACHED) } else { 0 }
    }

    const fn with(self, mark: i64, set: bool) -> Self {
        let marks = if set { self.marks() | mark } else { self.marks() & !mark };
        DiskSize::of(self.bytes(), marks)
    }

    /// Another size with the same marks.
    #[must_use]
    pub const fn with_bytes(self, bytes: u64) -> Self {
        DiskSize::of(bytes, self.marks())
    }

    /// The same with or without privileges.
    #[must_use]
    pub const fn with_privileged(self, privileged: bool) -> Self {
        self.with(PRIVILEGED, privileged)
    }

    /// The same with writes that are durable or not.
    #[must_use]
    pub const fn with_syncs(self, syncs: bool) -> Self {
        self.with(SYNCS, syncs)
    }

    /// The same with or without pages in memory.
    #[must_use]
    pub const fn with_cached(self, cached: bool) -> Self {
        self.with(CACHED, cached)
    }

    /// The size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        (if self.0 < 0 { self.0 & BYTES } else { self.0 }) as u64
    }

    /// Whether a write takes privileges away.
    #[inline]
    pub const fn is_privileged(self) -> bool {
        self.0 < 0 && self.0 & PRIVILEGED != 0
    }

    /// Whether every write is durable when it completes.
    #[inline]
    pub const fn syncs(self) -> bool {
        self.0 < 0 && self.0 & SYNCS != 0
    }

    /// Whether bytes of the file may be in pages, which direct requests have to look at.
    #[inline]
    pub const fn is_cached(self) -> bool {
        self.0 < 0 && self.0 & CACHED != 0
    }

    /// Bytes that can be overwritten without looking at anything else.
    #[inline(always)]
    pub const fn plain(self) -> u64 {
        if self.0 < 0 { 0 } else { self.0 as u64 }
    }

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        DiskSize(bits as i64)
    }

    pub(crate) const fn to_bits(self) -> u64 {
        self.0 as u64
    }
}

/// What a plan needs to know about the inode. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Size that users see (`i_size`).
    pub size: u64,
    /// Size already in the on-disk inode, and whether a write takes privileges away.
    pub disk_size: DiskSize,
    /// log2 of the file-system block size.
    pub block_bits: u32,
    /// Extent or size changes are in a transaction that is not committed yet.
    pub datasync_dirty: bool,
    /// Kind of its map.
    pub kind: MapKind,
}

impl View {
    /// File-system block size in bytes.
    #[inline]
    pub fn block_size(&self) -> u64 {
        1 << self.block_bits
    }

    /// The end of the block that holds the last byte of the file. Blocks past it are invisible until the size moves.
    #[inline]
    pub(crate) fn end_of_blocks(&self) -> u64 {
        self.size.next_multiple_of(self.block_size())
    }

    /// Whether a write of `range` needs a new size, in memory or on disk.
    #[inline(always)]
    pub(crate) fn is_extended_by(&self, range: Range) -> bool {
        range.end() > self.size || range.end() > self.disk_size.bytes()
    }

    /// The same behind appends in flight that end at `tail`.
    pub(crate) fn behind(self, tail: u64) -> View {
        let size = self.size.max(tail);
        View { size, disk_size: self.disk_size.with_bytes(self.disk_size.bytes().max(tail)), ..self }
    }

    /// Whether a write of `range` changes the inode, whatever its blocks are: its size, or its privileges. A file with
    /// pages counts as one: the write has to be alone with them.
    #[inline(always)]
    pub(crate) fn is_changed_by(&self, range: Range) -> bool {
        self.is_extended_by(range) || self.disk_size.is_privileged() || self.disk_size.is_cached()
    }

    /// Whether a write of `range` may need more than its data: it changes the inode, or the file has a mark that the
    /// short paths do not know.
    #[inline(always)]
    pub(crate) fn is_marked_for(&self, range: Range) -> bool {
        // Ranges end before 2^63.
        range.end() > self.size || range.end() as i64 > self.disk_size.0
    }
}

/// The durability requested for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Sync {
    /// None: durable after a later sync.
    #[default]
    None,
    /// `O_DSYNC`: the data and the metadata needed to read it back.
    Data,
    /// `O_SYNC`: data and all metadata.
    All,
}

bitflags::bitflags! {
    /// Flags of one write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct WriteFlags: u8 {
        /// As `O_DSYNC`: when it completes, the data and what is needed to read it back survive a crash.
        const DSYNC = 1;
        /// As `O_SYNC`: all metadata too.
        const SYNC = 2;
        /// `WouldBlock` instead of waiting for the gate, a drain, a lock of the map, an allocation, log space or
        /// metadata that is not in memory; decided before anything is sent. A write of one device request of up to 128
        /// KiB does not wait for room in the device queue either, if the device can report that; nothing was written
        /// then. The commit and flush for `DSYNC` and `SYNC` are waited for.
        const NOWAIT = 4;
        /// Never torn: after a crash all of its bytes are old or all are new, on any device, whatever its size of a
        /// block. The length is a power of two from the file system's block size to [`ATOMIC_MAX`], and the position a
        /// multiple of it. The data goes to other blocks, and one transaction puts them into the file in place of the
        /// old ones; with `DSYNC` or `SYNC` it is durable when it completes.
        const ATOMIC = 8;
    }
}

/// Most bytes of an atomic write.
pub const ATOMIC_MAX: u64 = 64 << 10;

impl WriteFlags {
    /// The durability that the flags ask for.
    #[inline]
    pub fn sync(self) -> Sync {
        if self.contains(WriteFlags::SYNC) {
            Sync::All
        } else if self.contains(WriteFlags::DSYNC) {
            Sync::Data
        } else {
            Sync::None
        }
    }
}

bitflags::bitflags! {
    /// Flags of one read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct ReadFlags: u8 {
        /// `WouldBlock` instead of waiting for the gate, for a mapping that is not loaded, or for room in the device
        /// queue. The last applies to device requests of up to 128 KiB on devices that can report it, in queued reads
        /// and in synchronous reads of one device request.
        const NOWAIT = 1;
    }
}

/// A request, as far as plans depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes of the file.
    pub range: Range,
    /// Durability requested for a write.
    pub sync: Sync,
    /// Not aligned to the device's logical block, or memory not aligned: goes through a bounce buffer.
    pub bounced: bool,
    /// Queued: the caller does not wait for it.
    pub queued: bool,
}

/// The route of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// One written mapping inside the size: preset slot, one look-up, one device request.
    SimpleRead,
    /// Several mappings, zeros to fill in, or the end of the file.
    GeneralRead,
    /// At or past the end of the file: nothing to read.
    PastEnd,
    /// Served by the file system from the inode: no mapping, no device request.
    InlineRead,
    /// Stored by the file system in the inode, in one handle. If it does not fit, the contents move to a block, and the
    /// write is planned again.
    InlineWrite,
    /// A copy out of mapped memory under the gate.
    DaxRead,
    /// A read whose edges go through a bounce buffer.
    BouncedRead,
    /// A write over written blocks inside the size.
    Overwrite,
    /// The same as a copy into mapped memory under the gate.
    DaxOverwrite,
    /// Read-modify-write of device blocks over written blocks.
    BouncedOverwrite,
    /// A write that needs allocation, conversion or a new size.
    Allocate,
    /// The same into mapped memory. Blocks without data below the end of the file are zeroed and converted before the
    /// copy. Blocks past it are invisible until the size moves: they are not zeroed, and are converted in the handle
    /// that moves the size.
    DaxAllocate,
}

/// How the gate is held during mapping and submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateMode {
    /// Shared with others.
    Shared,
    /// Held alone.
    Exclusive,
}

/// Journal work around a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JournalWork {
    /// No handle at all.
    None,
    /// A handle around the mapping of a pure overwrite (the plain route; it dirties nothing). A volume without a
    /// journal starts none: there `explain` reports [`JournalWork::None`].
    Handle,
    /// Convert unwritten extents once the data is complete. No handle is started before that.
    Convert,
    /// Allocate blocks first, zeroed and in the written state (maps without an unwritten state).
    Allocate,
    /// Allocate unwritten blocks before the data, convert them after it.
    AllocateConvert,
    /// Orphan record before the data, new size and orphan removal after it, with any allocation needed.
    Extend,
}

/// Bytes to zero on the device before the data is sent: around the request in blocks that hold no data yet, and past
/// the old end of a file that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Edges {
    /// Bytes from the start of the first block to the request.
    pub head: u64,
    /// Bytes from the end of the request to the end of its last block.
    pub tail: u64,
    /// Bytes from the old size to the end of its block, if that block is written: a write through `mmap` may have left
    /// bytes there.
    pub old_tail: u64,
}

/// How a write reaches the requested durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// No durability was requested.
    None,
    /// Each device write carries FUA; nothing after.
    Fua,
    /// The device has no volatile cache: a completed write is durable.
    WriteThrough,
    /// Plain writes, then datasync: commit if the inode is datasync-dirty, flush.
    Datasync,
    /// Plain writes, then fsync: commit everything of the inode, flush.
    Fsync,
}

impl Durability {
    /// That of a change of metadata.
    pub(crate) fn by_commit(sync: Sync) -> Durability {
        match sync {
            Sync::None => Durability::None,
            Sync::Data => Durability::Datasync,
            Sync::All => Durability::Fsync,
        }
    }
}

/// Whether the caller waits until the request completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// The gate is left after submission; completion comes later. An append holds the gate exclusively until then.
    Asynchronous,
    /// The submitter waits for completion before it leaves the gate.
    Synchronous,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The route.
    pub route: Route,
    /// The gate.
    pub gate: GateMode,
    /// Whether to wait until nothing is in flight before starting.
    pub drain: bool,
    /// Whether the request is counted in flight. A synchronous request that holds the gate exclusively to its end is
    /// not, except on mapped memory with `dax-no-dio-count` off.
    pub counted: bool,
    /// The file has set-user-id, set-group-id or capabilities: a separate handle clears them before the data is sent,
    /// with the gate held exclusively.
    pub drops_privileges: bool,
    /// Journal work.
    pub journal: JournalWork,
    /// Zeroing.
    pub zero_edges: Edges,
    /// Durability.
    pub durability: Durability,
    /// Who waits for its end.
    pub finish: Finish,
}

impl Plan {
    /// A read of contents that the file system holds (`size`: bytes of the file): a copy.
    pub fn inline_read(range: Range, size: u64) -> Plan {
        let route = if range.pos >= size { Route::PastEnd } else { Route::InlineRead };
        Plan {
            route,
            gate: GateMode::Shared,
            drain: false,
            counted: false,
            drops_privileges: false,
            journal: JournalWork::None,
            zero_edges: Edges::default(),
            durability: Durability::None,
            finish: Finish::Synchronous,
        }
    }

    /// The device position of a piece's data, in bytes. A piece without one is refused: a hole would be written to
    /// block 0. Only allocating writes may write to unwritten blocks: for other writes the blocks would never be
    /// converted.
    #[inline(always)]
    pub(crate) fn place(&self, piece: &Piece) -> Result<u64, Error> {
        let fits = match piece.state {
            State::Written => true,
            State::Unwritten => !matches!(self.journal, JournalWork::None | JournalWork::Handle),
            State::Hole | State::Inline => false,
        };
        if fits && piece.physical != 0 { Ok(piece.physical) } else { Err(Error::NotWritten(piece.logical)) }
    }

    /// Whether a write with this plan waits: for the exclusive gate, a drain, an allocation, or the handle of a
    /// conversion. A queue does not wait for the last: it converts after the data is complete.
    pub(crate) fn waits(&self) -> bool {
        let handle = match self.journal {
            JournalWork::None | JournalWork::Handle => false,
            JournalWork::Convert => self.finish == Finish::Synchronous,
            JournalWork::Allocate | JournalWork::AllocateConvert | JournalWork::Extend => true,
        };
        handle || self.gate == GateMode::Exclusive
    }

    /// A write to inline data: a change of the inode itself, through the journal.
    pub fn inline_write(request: &Request, size: u64) -> Plan {
        Plan {
            route: Route::InlineWrite,
            gate: GateMode::Exclusive,
            drain: true,
            journal: JournalWork::Extend,
            durability: Durability::by_commit(request.sync),
            ..Plan::inline_read(request.range, size)
        }
    }
}

/// Totals over the pieces of a request, however many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Every byte is written.
    pub all_written: bool,
    /// Bytes in unwritten extents.
    pub unwritten: u64,
    /// Bytes in holes.
    pub hole: u64,
    /// States of the first and the last piece, which hold the request's partial blocks.
    ends: Option<(State, State)>,
}

impl Summary {
    /// Sums over `pieces`.
    pub fn of(pieces: &[Piece]) -> Self {
        let mut summary = Summary { all_written: true, unwritten: 0, hole: 0, ends: None };
        for piece in pieces {
            summary.add(piece);
        }
        summary
    }

    /// Adds one piece.
    pub fn add(&mut self, piece: &Piece) {
        self.ends = Some((self.ends.map_or(piece.state, |(first, _)| first), piece.state));
        match piece.state {
            State::Written => {}
            State::Unwritten => {
                self.all_written = false;
                self.unwritten += piece.length;
            }
            State::Hole | State::Inline => {
                self.all_written = false;
                self.hole += piece.length;
            }
        }
    }

    /// Whether the first and the last block hold no data yet.
    pub(crate) fn fresh_ends(&self) -> (bool, bool) {
        let fresh = |state| state != State::Written;
        self.ends.map_or((false, false), |(first, last)| (fresh(first), fresh(last)))
    }
}

/// Whether a synchronous request under the shared gate is counted in flight: a copy from or to mapped memory need not
/// be.
#[inline(always)]
pub(crate) fn counts_copy<R: Routing>(device: &Capabilities, routing: R) -> bool {
    device.dax.is_none() || !routing.switches().dax_no_dio_count
}

/// Decides a read. `pieces` covers `request.range` (all of it, or the first part of a request that is split).
#[inline]
pub fn plan_read<R: Routing>(
    request: &Request,
    view: &View,
    pieces: &[Piece],
    device: &Capabilities,
    routing: R,
) -> Plan {
    let plan = Plan {
        route: Route::GeneralRead,
        gate: GateMode::Shared,
        drain: false,
        counted: true,
        drops_privileges: false,
        journal: JournalWork::None,
        zero_edges: Edges::default(),
        durability: Durability::None,
        finish: if request.queued { Finish::Asynchronous } else { Finish::Synchronous },
    };
    if view.kind.is_held() {
        return Plan::inline_read(request.range, view.size);
    }
    if request.range.pos >= view.size {
        let finish = Finish::Synchronous;
        return Plan { route: Route::PastEnd, counted: false, finish, ..plan };
    }
    let counted = counts_copy(device, routing);
    if request.bounced {
        return Plan { route: Route::BouncedRead, counted, finish: Finish::Synchronous, ..plan };
    }
    if device.dax.is_some() {
        return Plan { route: Route::DaxRead, counted, finish: Finish::Synchronous, ..plan };
    }
    let one_written =
        matches!(pieces, [piece] if piece.state == State::Written && piece.end() >= request.range.end());
    if routing.switches().simple_read && one_written && request.range.end() <= view.size {
        return Plan { route: Route::SimpleRead, ..plan };
    }
    plan
}
