//! Why a request takes the way it takes, in words: the plan, the device requests, and what would make it
//! fast.

use crate::error::{Error, Result};
use crate::features;
use crate::fs::Ext4;
use crate::volume::{Shared, check_overwrite};
use uext4_blockdev::{Capabilities, Geometry};
use uext4_iomap::bounce::next_step;
use uext4_iomap::plan::{Durability, GateMode, JournalWork, Route, Sync};
use uext4_iomap::{OpenFile, PIECES_MAX, Piece, Pieces, Plan, Range, Request, State, Switches};

/// Most device requests that an explanation lists.
const REQUESTS_MAX: usize = 128;

/// A request to explain.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    /// A write rather than a read.
    pub write: bool,
    /// First byte.
    pub pos: u64,
    /// Bytes, at least 1.
    pub length: u64,
    /// Durability asked of a write.
    pub sync: Sync,
    /// Through a queue rather than a synchronous call.
    pub queued: bool,
}

/// One request to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRequest {
    /// `read`, `write`, `flush`, `zero` (memory only, nothing is sent).
    pub op: &'static str,
    /// First byte on the device.
    pub pos: u64,
    /// Bytes.
    pub length: u64,
    /// With FUA.
    pub fua: bool,
}

/// The answer.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// What was decided.
    pub plan: Plan,
    /// What the decision saw.
    pub pieces: Vec<Piece>,
    /// What the device would get: nothing if the request is refused.
    pub requests: Vec<DeviceRequest>,
    /// Why, line by line.
    pub reasons: Vec<String>,
    /// What would make it faster.
    pub advice: Vec<String>,
    /// Why it would be refused, if it would, as far as the volume and the file say it: not that the device is read-only
    /// or in somebody else's use.
    pub refused: Option<String>,
}

pub(crate) fn explain(shared: &Shared, open: &OpenFile<Ext4>, query: &Query) -> Result<Explanation> {
    if query.length == 0 {
        return Err(Error::Invalid("a request of 0 bytes does nothing".into()));
    }
    let geometry = shared.engine.device().geometry();
    let device = shared.engine.device().capabilities();
    let bounced = (query.pos | query.length) & (u64::from(geometry.logical_block) - 1) != 0;
    let request = Request {
        range: Range { pos: query.pos, length: query.length },
        sync: query.sync,
        bounced,
        queued: query.queued && !bounced,
    };
    let (plan, pieces) = shared.engine.explain(open, &request, query.write)?;
    let view = open.state().view();
    let facts = Facts { request, plan, view_size: view.size, block: view.block_size(), geometry, device };
    let (requests, all_listed) = match plan.route {
        Route::BouncedRead | Route::BouncedOverwrite => {
            let mut around = Pieces::new();
            shared.engine.map(open, facts.whole_blocks(), &mut around)?;
            facts.bounced_requests(&around)
        }
        _ => (facts.requests(&pieces), true),
    };
    let refused = if query.write { refusal(shared, open, &request, &plan, &pieces) } else { None };
    let requests = if refused.is_some() { Vec::new() } else { requests };
    let mut reasons = facts.reasons(&pieces, open.switches, query.write);
    if !all_listed && refused.is_none() {
        reasons.push(format!("the first {REQUESTS_MAX} device requests are listed, the rest is like them"));
    }
    if pieces.len() == PIECES_MAX {
        // The plan saw the first pieces only.
        reasons.push(format!(
            "more than {PIECES_MAX} pieces: the first ones are listed, the rest follows in steps"
        ));
    }
    let advice = facts.advice(&pieces, open.switches, query.write, refused.is_some());
    Ok(Explanation { plan, requests, reasons, advice, refused, pieces: pieces.to_vec() })
}

/// Why a write would be refused, if it would.
fn refusal(
    shared: &Shared,
    open: &OpenFile<Ext4>,
    request: &Request,
    plan: &Plan,
    pieces: &Pieces,
) -> Option<String> {
    if let Err(error) = check_writable(shared, open) {
        return Some(error.to_string());
    }
    if plan.route == Route::Allocate {
        return Some("it needs allocation, conversion or a new size, which this version cannot do".into());
    }
    // The plan saw the first pieces only; a write is refused as a whole if any later one is not written.
    if pieces.len() < PIECES_MAX {
        return None;
    }
    shared.engine.check_overwrite(open, request.range).err().map(|error| error.to_string())
}

/// Whether the volume and the file could be opened for writing, as far as they themselves say.
fn check_writable(shared: &Shared, open: &OpenFile<Ext4>) -> Result<()> {
    let superblock = &shared.fs.state.superblock;
    features::check_writable(superblock)?;
    check_overwrite(superblock, &open.inode)
}

struct Facts {
    request: Request,
    plan: Plan,
    view_size: u64,
    block: u64,
    geometry: Geometry,
    device: Capabilities,
}

impl Facts {
    fn requests(&self, pieces: &[Piece]) -> Vec<DeviceRequest> {
        let mut requests = Vec::new();
        let write = !matches!(
            self.plan.route,
            Route::SimpleRead
                | Route::GeneralRead
                | Route::DaxRead
                | Route::BouncedRead
                | Route::InlineRead
                | Route::PastEnd
        );
        if matches!(self.plan.route, Route::PastEnd | Route::Allocate) {
            return requests;
        }
        let fua = self.plan.durability == Durability::Fua;
        // A read ends with the device's block that holds the end of the file.
        let end = match write {
            true => u64::MAX,
            false => self.view_size.next_multiple_of(u64::from(self.geometry.logical_block)),
        };
        for piece in pieces {
            let op = match (piece.state, write) {
                (State::Written, true) => "write",
                (State::Written, false) => "read",
                _ => "zero",
            };
            let length = piece.length.min(end.saturating_sub(piece.logical));
            if length > 0 {
                requests.push(DeviceRequest { op, pos: piece.physical, length, fua: fua && write });
            }
        }
        requests.extend(self.flush());
        requests
    }

    /// The part of a bounced request that is transferred at all, rounded out to logical blocks.
    fn whole_blocks(&self) -> Range {
        let block = u64::from(self.geometry.logical_block);
        let part = self.transferred();
        let start = part.pos / block * block;
        Range { pos: start, length: part.end().next_multiple_of(block) - start }
    }

    /// Nothing is read behind the end of the file; a bounced write is inside of it.
    fn transferred(&self) -> Range {
        let Range { pos, length } = self.request.range;
        match self.plan.route {
            Route::BouncedRead => Range { pos, length: length.min(self.view_size.saturating_sub(pos)) },
            _ => self.request.range,
        }
    }

    /// What [`uext4_iomap::bounce`] sends, for memory that begins on a page: windows of logical blocks through a
    /// bounce buffer, read before they are written where the request covers only a part of them, and directly
    /// what happens to be aligned in file and memory. `pieces` are those of [`Facts::whole_blocks`].
    /// The flag says whether all of them are listed.
    fn bounced_requests(&self, pieces: &[Piece]) -> (Vec<DeviceRequest>, bool) {
        let write = self.plan.route == Route::BouncedOverwrite;
        let fua = self.plan.durability == Durability::Fua;
        let (all, mut rest) = (self.transferred(), self.transferred());
        let mut requests = Vec::new();
        let known = pieces.last().map_or(0, Piece::end);
        while rest.length > 0 && rest.pos < known && requests.len() < REQUESTS_MAX {
            let step = next_step(&self.geometry, rest, (rest.pos - all.pos) as usize);
            let mut send = |op: &'static str, fua: bool| {
                for piece in pieces {
                    let start = piece.logical.max(step.window.pos);
                    let end = piece.end().min(step.window.end());
                    if start >= end {
                        continue;
                    }
                    let op = if piece.state == State::Written { op } else { "zero" };
                    let inside = if piece.state == State::Hole { 0 } else { start - piece.logical };
                    let pos = piece.physical + inside;
                    requests.push(DeviceRequest { op, pos, length: end - start, fua });
                }
            };
            if !write || !(step.direct || step.covers_window()) {
                send("read", false);
            }
            if write {
                send("write", fua);
            }
            rest = Range { pos: step.part.end(), length: rest.end() - step.part.end() };
        }
        let all_listed = requests.len() <= REQUESTS_MAX && (rest.length == 0 || rest.pos >= known);
        requests.truncate(REQUESTS_MAX);
        requests.extend(self.flush());
        (requests, all_listed)
    }

    fn flush(&self) -> Option<DeviceRequest> {
        let syncs = matches!(self.plan.durability, Durability::Datasync | Durability::Fsync);
        (syncs && self.device.volatile_cache).then_some(DeviceRequest {
            op: "flush",
            pos: 0,
            length: 0,
            fua: false,
        })
    }

    fn reasons(&self, pieces: &[Piece], switches: Switches, write: bool) -> Vec<String> {
        let mut lines = vec![self.shape(pieces)];
        lines.push(if write { self.write_route(switches) } else { self.read_route(pieces, switches) });
        lines.push(match (self.plan.gate, self.plan.drain) {
            (GateMode::Shared, _) => "gate: shared, many requests at a time".into(),
            (GateMode::Exclusive, false) => "gate: exclusive while it allocates".into(),
            (GateMode::Exclusive, true) => "gate: exclusive, after a drain of everything in flight".into(),
        });
        if !self.plan.counted {
            lines.push("in-flight counter: untouched, the gate is held until the end".into());
        }
        if write {
            lines.push(self.journal_line());
            lines.push(self.durability_line(switches));
        }
        lines
    }

    fn shape(&self, pieces: &[Piece]) -> String {
        let sum =
            |state| pieces.iter().filter(|piece| piece.state == state).map(|piece| piece.length).sum::<u64>();
        format!(
            "mapping: {} piece(s): {} bytes in written blocks, {} in unwritten blocks, {} in holes; \
             file of {} bytes, blocks of {} bytes",
            pieces.len(),
            sum(State::Written),
            sum(State::Unwritten),
            sum(State::Hole),
            self.view_size,
            self.block
        )
    }

    fn read_route(&self, pieces: &[Piece], switches: Switches) -> String {
        match self.plan.route {
            Route::SimpleRead => {
                "route: simple read, one written mapping: one look-up, one device request".into()
            }
            Route::PastEnd => "route: nothing to read at or behind the end of the file".into(),
            Route::DaxRead => "route: a copy out of mapped memory".into(),
            Route::BouncedRead => format!(
                "route: bounced, position or length is not a multiple of {} bytes",
                self.geometry.logical_block
            ),
            _ if !switches.simple_read => "route: general read, the switch simple-read is off".into(),
            _ if pieces.len() > 1 => format!("route: general read, {} mappings", pieces.len()),
            _ if self.request.range.end() > self.view_size => {
                "route: general read, it crosses the end".into()
            }
            _ => "route: general read, zeros are filled in for what is not in written blocks".into(),
        }
    }

    fn write_route(&self, switches: Switches) -> String {
        let subblock = (self.request.range.pos | self.request.range.length) & (self.block - 1) != 0;
        match self.plan.route {
            Route::Allocate => "route: not a pure overwrite".into(),
            Route::BouncedOverwrite => format!(
                "route: bounced overwrite (read, change, write), position or length is not a multiple of {} bytes",
                self.geometry.logical_block
            ),
            Route::DaxOverwrite => "route: overwrite by a copy into mapped memory".into(),
            _ if subblock && !switches.shared_subblock_overwrite => {
                "route: sub-block overwrite alone, the switch shared-subblock-overwrite is off".into()
            }
            _ if subblock => {
                "route: sub-block overwrite, concurrent: all of it lies in written blocks".into()
            }
            _ => "route: overwrite, all of it lies in written blocks and inside the size".into(),
        }
    }

    fn journal_line(&self) -> String {
        match self.plan.journal {
            JournalWork::None => "journal: no handle, no transaction".into(),
            JournalWork::Handle => {
                "journal: a handle around the mapping (overwrite-no-transaction is off)".into()
            }
            JournalWork::Convert => "journal: converts unwritten extents when the data is complete".into(),
            JournalWork::AllocateConvert => "journal: allocates before, converts after".into(),
            JournalWork::Extend => "journal: orphan record before, new size after".into(),
        }
    }

    fn durability_line(&self, switches: Switches) -> String {
        match self.plan.durability {
            Durability::None => "durability: none asked, a later sync makes it durable".into(),
            Durability::Fua => "durability: each device write carries FUA, no flush follows".into(),
            Durability::WriteThrough => {
                "durability: the device has no volatile cache, a completed write is durable".into()
            }
            Durability::Fsync => "durability: O_SYNC, commit of all metadata and a flush follow".into(),
            Durability::Datasync if !switches.fua_dsync_overwrite => {
                "durability: a flush follows, the switch fua-dsync-overwrite is off".into()
            }
            Durability::Datasync if !self.device.durable_without_flush() => {
                "durability: a flush follows, the device cannot do FUA".into()
            }
            Durability::Datasync => {
                "durability: a commit and a flush follow, metadata must become durable too".into()
            }
        }
    }

    /// `refused`: nothing is sent, so nothing is said about what is.
    fn advice(&self, pieces: &[Piece], switches: Switches, write: bool, refused: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let blocks = |state| {
            let bytes: u64 =
                pieces.iter().filter(|piece| piece.state == state).map(|piece| piece.length).sum();
            bytes.div_ceil(self.block)
        };
        if write {
            let (unwritten, hole) = (blocks(State::Unwritten), blocks(State::Hole));
            if unwritten > 0 {
                lines.push(format!(
                    "{unwritten} unwritten block(s): write them once through a mounted volume first"
                ));
            }
            if hole > 0 {
                lines.push(format!(
                    "{hole} block(s) in holes: allocate and write them through a mounted volume first"
                ));
            }
            if self.request.range.end() > self.view_size {
                lines.push(
                    "it ends behind the end of the file: extend the file through a mounted volume first"
                        .into(),
                );
            }
        }
        if self.request.bounced {
            let block = self.geometry.logical_block;
            lines.push(format!("use positions and lengths that are multiples of {block} bytes"));
        }
        let sent =
            |piece: &&Piece| piece.state == State::Written && (write || piece.logical < self.view_size);
        let transfers = pieces.iter().filter(sent).count();
        if transfers > 1 && !refused {
            lines.push(format!("{transfers} device requests: a contiguous file needs one"));
        }
        if write && !refused && self.request.sync == Sync::Data && !self.device.durable_without_flush() {
            lines.push("a device with FUA would need no flush for O_DSYNC overwrites".into());
        }
        if switches != Switches::ON {
            lines.push(format!("switches are off: {switches}"));
        }
        lines
    }
}
