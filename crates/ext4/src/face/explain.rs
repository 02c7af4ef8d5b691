//! Explains a request in words: the plan, the device requests, and what would make it faster.

use super::explain_journal::{self, share};
use crate::change::privileges;
use crate::face::volume::Shared;
use crate::ground::durable::{CommitStep, CommitSteps};
use crate::ground::error::{Error, Result};
use crate::inode::check_overwrite;
use crate::seam::Ext4;
use uext4_blockdev::{Capabilities, Cost, Geometry, Op};
use uext4_iomap::bounce::{Step, next_step};
use uext4_iomap::plan::{Durability, Edges, GateMode, JournalWork, Route, Summary, Sync};
use uext4_iomap::{
    MapKind, OpenFile, Outlook, PIECES_MAX, Piece, Pieces, Plan, Range, Request, State, Switches,
};

pub use super::explain_journal::JournalShare;

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
    /// `read`, `write`, `flush`, `zero` (memory only, nothing is sent); in a commit also `log` (a write to the log) or
    /// `home` (without a journal: a write of changed metadata).
    pub op: &'static str,
    /// First byte on the device.
    pub pos: u64,
    /// Bytes.
    pub length: u64,
    /// With FUA.
    pub fua: bool,
    /// What it costs below the volume's device, where that says so: in an image.
    pub cost: Option<Cost>,
}

const FLUSH: DeviceRequest = DeviceRequest { op: "flush", pos: 0, length: 0, fua: false, cost: None };

/// The requests with what the volume's device says of them.
fn priced(shared: &Shared, write: bool, mut requests: Vec<DeviceRequest>) -> Vec<DeviceRequest> {
    let device = if write { shared.given_device() } else { shared.engine.device() };
    for request in &mut requests {
        let op = match request.op {
            "read" => Op::Read,
            "write" | "log" | "home" => Op::Write,
            "flush" => Op::Flush,
            _ => continue,
        };
        request.cost = device.cost(op, request.pos, request.length);
    }
    requests
}

/// The explanation of a request.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The engine's decision.
    pub plan: Plan,
    /// The pieces of the mapping that the decision is based on; only the first ones.
    pub pieces: Vec<Piece>,
    /// How many pieces there are in all.
    pub piece_count: u64,
    /// The device requests, in order. Empty if the request is refused, or if it changes metadata, because blocks and
    /// log records are placed only when it runs. If it only has to commit earlier changes of the file, the writes of
    /// that commit are listed, as things stand now. If there are many, the first ones and those after the data.
    pub requests: Vec<DeviceRequest>,
    /// How many device requests there are in all. Filling memory with zeros does not count.
    pub request_count: u64,
    /// Bytes of whole blocks without data that are zeroed on the device before the data is sent, in addition to
    /// [`Plan::zero_edges`]. 0 if the request is refused.
    pub zeroed: u64,
    /// Handles and commits of the request; none if it is refused.
    pub journal: JournalShare,
    /// The reasons, line by line.
    pub reasons: Vec<String>,
    /// What would make it faster.
    pub advice: Vec<String>,
    /// Why it would be refused, if so. Considers only the volume and the file (including damage that fails an open for
    /// writing), not whether the device is read-only or in use. `plan` is then the plan without the refusal. For an
    /// unaligned queued request, it is the plan of a synchronous call of any bytes.
    pub refused: Option<String>,
}

pub(crate) fn explain(shared: &Shared, open: &OpenFile<Ext4>, query: &Query) -> Result<Explanation> {
    if query.length == 0 {
        return Err(Error::Invalid("a request of 0 bytes does nothing".into()));
    }
    let geometry = shared.engine.device().geometry();
    // A reader may see the device through the overlay of recovery. A writer never does.
    let device = match query.write {
        true => shared.given_device().capabilities(),
        false => shared.engine.device().capabilities(),
    };
    let bounced = (query.pos | query.length) & (u64::from(geometry.logical_block) - 1) != 0;
    let request = Request {
        range: Range { pos: query.pos, length: query.length },
        sync: query.sync,
        bounced,
        queued: query.queued,
    };
    if query.write {
        // This was not checked when the file was opened for reading.
        privileges::note(&shared.fs.state, &open.inode)?;
    }
    let outlook = shared.engine.explain(open, &request, query.write, &device)?;
    let facts = Facts { shared, open, request, outlook: &outlook, geometry, device };
    let refused = facts.refusal(query.write);
    let mut reasons = facts.reasons(query);
    let mut journal = JournalShare::default();
    if query.write && refused.is_none() {
        journal = facts.share();
        reasons.extend(journal.line(facts.is_journaled()));
    }
    let mut transfers = 0;
    let mut list = List::default();
    let placed = facts.is_placed();
    if refused.is_none() && placed {
        let commit = if journal.commits > 0 { shared.fs.state.commit_outlook() } else { None };
        if commit.as_ref().is_some_and(|commit| commit.begins) {
            let text = "commit: the first one since the volume was at rest, so it also marks the volume as in use; \
                        those requests are not listed";
            reasons.push(text.into());
        }
        transfers = facts.transfers(query.write, commit, &mut list)?;
    }
    if !placed {
        let text = "requests: none are listed, since blocks and log records are placed when it runs";
        reasons.push(text.into());
    }
    if list.is_cut {
        let count = list.count;
        reasons.push(format!("only the first of {count} device requests are listed, the others are alike"));
    }
    if outlook.piece_count > PIECES_MAX as u64 {
        let count = outlook.piece_count;
        reasons.push(format!("{count} pieces: looked up {PIECES_MAX} at a time"));
    }
    let advice = facts.advice(transfers, query.write, refused.is_some());
    Ok(Explanation {
        plan: outlook.plan,
        pieces: outlook.pieces.to_vec(),
        piece_count: outlook.piece_count,
        requests: priced(shared, query.write, list.requests),
        request_count: list.count,
        zeroed: if refused.is_none() { outlook.zeroed } else { 0 },
        journal,
        reasons,
        advice,
        refused,
    })
}

/// Checks whether the volume and the file could be opened for writing. Ignores the device.
pub(crate) fn check_openings(shared: &Shared, open: &OpenFile<Ext4>) -> Result<()> {
    shared.check_writable()?;
    check_overwrite(&shared.fs.state.superblock, &open.inode)
}

/// Device requests: counts all, keeps the first.
#[derive(Default)]
struct List {
    requests: Vec<DeviceRequest>,
    count: u64,
    is_cut: bool,
}

impl List {
    fn push(&mut self, request: DeviceRequest) {
        self.count += u64::from(request.op != "zero");
        if self.is_full() {
            self.is_cut = true;
        } else {
            self.requests.push(request);
        }
    }

    fn is_full(&self) -> bool {
        self.requests.len() == REQUESTS_MAX
    }

    /// Adds a request that is always listed, as the last one.
    fn push_last(&mut self, request: DeviceRequest) {
        self.count += 1;
        self.requests.push(request);
    }
}

struct Facts<'a> {
    shared: &'a Shared,
    open: &'a OpenFile<Ext4>,
    request: Request,
    outlook: &'a Outlook<Error>,
    geometry: Geometry,
    device: Capabilities,
}

impl Facts<'_> {
    fn plan(&self) -> &Plan {
        &self.outlook.plan
    }

    fn is_journaled(&self) -> bool {
        self.shared.fs.state.superblock.has_journal()
    }

    /// Whether the places of all device requests are known: no metadata is written except by a commit of earlier
    /// changes.
    fn is_placed(&self) -> bool {
        let Plan { journal, drops_privileges, durability, .. } = *self.plan();
        let writes_times = durability == Durability::Fsync && self.shared.fs.state.takes_changes();
        let overwrites = matches!(journal, JournalWork::None | JournalWork::Handle);
        overwrites && !drops_privileges && !writes_times
    }

    fn share(&self) -> JournalShare {
        let Outlook { plan, view, summary, zeroed, .. } = self.outlook;
        let (range, block) = (self.request.range, view.block_size());
        let blocks = range.pos / block..range.end().div_ceil(block);
        let facts = explain_journal::Facts {
            range,
            view,
            summary,
            claims: self.shared.fs.files().can_claim_holes(&self.open.inode, &blocks),
            zeroed: *zeroed,
            mapping: self.is_journaled() && !self.open.switches.overwrite_no_transaction,
            times: self.shared.fs.state.takes_changes(),
        };
        share(plan, &facts)
    }

    /// Why the request would be refused, if so. Checks the opens for writing first.
    fn refusal(&self, write: bool) -> Option<String> {
        if write && let Err(error) = check_openings(self.shared, self.open) {
            return Some(error.to_string());
        }
        self.outlook.refused.as_ref().map(Error::to_string)
    }

    /// Lists the device requests, with those of the `commit` after the data. Returns in how many places on the device
    /// the data lies.
    fn transfers(&self, write: bool, commit: Option<CommitSteps>, list: &mut List) -> Result<u64> {
        let mut places = 0;
        let part = self.transferred();
        if part.length > 0 {
            self.shared.engine.visit_pieces(self.open, part, |piece| {
                places += u64::from(piece.state == State::Written);
            })?;
            match self.plan().route {
                Route::BouncedRead | Route::BouncedOverwrite => self.bounced_requests(write, list)?,
                _ => {
                    let op = if write { "write" } else { "read" };
                    self.send(self.whole_blocks(), op, list)?;
                }
            }
        }
        match commit {
            // The commit's flush covers the data.
            Some(commit) => self.commit_requests(commit, list),
            None => self.flush().into_iter().for_each(|flush| list.push_last(flush)),
        }
        Ok(places)
    }

    fn commit_requests(&self, commit: CommitSteps, list: &mut List) {
        let op = if self.is_journaled() { "log" } else { "home" };
        let write = |bytes: std::ops::Range<u64>, fua| DeviceRequest {
            op,
            pos: bytes.start,
            length: bytes.end - bytes.start,
            fua,
            cost: None,
        };
        for step in commit.steps {
            match step {
                CommitStep::Write(bytes) => list.push(write(bytes, false)),
                CommitStep::Durable(bytes) => {
                    list.push_last(write(bytes, self.device.fua));
                    if !self.device.fua {
                        list.push_last(FLUSH);
                    }
                }
                CommitStep::Flush => list.push_last(FLUSH),
            }
        }
    }

    /// Adds one request for each piece of `range`.
    fn send(&self, range: Range, op: &'static str, list: &mut List) -> Result<()> {
        let fua = op == "write" && self.plan().durability == Durability::Fua;
        self.shared.engine.visit_pieces(self.open, range, |piece| {
            let op = if piece.state == State::Written { op } else { "zero" };
            list.push(DeviceRequest { op, pos: piece.physical, length: piece.length, fua, cost: None });
        })
    }

    /// The part of a request that is transferred, rounded out to logical blocks.
    fn whole_blocks(&self) -> Range {
        let block = u64::from(self.geometry.logical_block);
        let part = self.transferred();
        let start = part.pos / block * block;
        Range { pos: start, length: part.end().next_multiple_of(block) - start }
    }

    /// The part of a request inside the file. A write that is not refused lies inside entirely.
    fn transferred(&self) -> Range {
        let Range { pos, length } = self.request.range;
        Range { pos, length: length.min(self.outlook.view.size.saturating_sub(pos)) }
    }

    /// Lists the requests of [`uext4_iomap::bounce`], for page-aligned memory. Windows of logical blocks go through a
    /// bounce buffer. A write first reads a window that it covers only partly. Whatever is aligned in file and memory
    /// goes directly.
    fn bounced_requests(&self, write: bool, list: &mut List) -> Result<()> {
        let (all, mut rest) = (self.transferred(), self.transferred());
        while rest.length > 0 {
            let step = next_step(&self.geometry, rest, (rest.pos - all.pos) as usize);
            let mut next = step.part.end();
            if list.is_full() {
                next = next.max(self.behind_hole(&step)?.min(rest.end()));
            }
            if next == step.part.end() {
                if !write || !(step.direct || step.covers_window()) {
                    self.send(step.window, "read", list)?;
                }
                if write {
                    self.send(step.window, "write", list)?;
                }
            }
            rest = Range { pos: next, length: rest.end() - next };
        }
        Ok(())
    }

    /// If `step` lies in a hole: where to continue, past the windows inside the same hole. A hole may be too large to
    /// list step by step.
    fn behind_hole(&self, step: &Step) -> Result<u64> {
        let mut pieces = Pieces::new();
        let window = step.window;
        let range = Range { pos: window.pos, length: self.whole_blocks().end() - window.pos };
        self.shared.engine.map(self.open, range, &mut pieces)?;
        let hole =
            pieces.first().filter(|piece| piece.state != State::Written).map_or(0, |piece| piece.length);
        Ok(window.pos + hole / window.length * window.length)
    }

    fn flush(&self) -> Option<DeviceRequest> {
        let syncs = matches!(self.plan().durability, Durability::Datasync | Durability::Fsync);
        (syncs && self.device.volatile_cache).then_some(FLUSH)
    }

    fn reasons(&self, query: &Query) -> Vec<String> {
        let (switches, write) = (self.open.switches, query.write);
        let mut lines = vec![self.shape()];
        if query.queued && self.request.bounced {
            lines.push("a queue does not bounce; the rest describes a synchronous call of any bytes".into());
        }
        lines.push(if write { self.write_route(switches) } else { self.read_route(switches) });
        lines.push(match (self.plan().gate, self.plan().drain) {
            (GateMode::Shared, _) => "gate: shared, many requests at a time".into(),
            (GateMode::Exclusive, false) if self.plan().drops_privileges => {
                "gate: exclusive to the end, as this write strips the file's privileges".into()
            }
            (GateMode::Exclusive, false) if self.outlook.view.disk_size.is_cached() => {
                "gate: exclusive to the end, as the file has pages in memory".into()
            }
            (GateMode::Exclusive, false) => "gate: exclusive while it allocates".into(),
            (GateMode::Exclusive, true) => "gate: exclusive, after draining all requests in flight".into(),
        });
        if !self.plan().counted {
            lines.push("in-flight counter: untouched, the gate is held until the end".into());
        }
        if self.outlook.view.disk_size.is_cached() {
            lines.push(match write {
                true => {
                    "pages: newer ones that it touches go home first, and all that it touches are dropped"
                        .into()
                }
                false => {
                    "pages: bytes that are in memory are taken from there, the rest from the device".into()
                }
            });
        }
        if self.plan().drops_privileges {
            let text = "privileges: set-user-id, set-group-id or capabilities of the file are taken away first, in a \
                        handle of its own; the next write finds none";
            lines.push(text.into());
        }
        if write {
            lines.extend(self.zeros_line());
            lines.push(self.journal_line());
            lines.push(self.durability_line(switches));
        }
        lines
    }

    fn shape(&self) -> String {
        let Summary { unwritten, hole, .. } = self.outlook.summary;
        format!(
            "mapping: {} piece(s): {} bytes in written blocks, {unwritten} in unwritten blocks, {hole} in holes; \
             file of {} bytes, blocks of {} bytes",
            self.outlook.piece_count,
            self.request.range.length - unwritten - hole,
            self.outlook.view.size,
            self.outlook.view.block_size()
        )
    }

    fn read_route(&self, switches: Switches) -> String {
        match self.plan().route {
            Route::SimpleRead => {
                "route: simple read, one written mapping: one look-up, one device request".into()
            }
            Route::PastEnd => "route: nothing to read at or past the end of the file".into(),
            Route::DaxRead => "route: copy from mapped memory".into(),
            Route::BouncedRead => format!(
                "route: bounced, position or length is not a multiple of {} bytes",
                self.geometry.logical_block
            ),
            _ if !switches.simple_read => "route: general read, the switch simple-read is off".into(),
            _ if self.outlook.piece_count > 1 => {
                format!("route: general read, {} mappings", self.outlook.piece_count)
            }
            _ if self.request.range.end() > self.outlook.view.size => {
                "route: general read, it crosses the end".into()
            }
            _ => "route: general read, zeros are filled in outside written blocks".into(),
        }
    }

    fn write_route(&self, switches: Switches) -> String {
        let subblock =
            (self.request.range.pos | self.request.range.length) & (self.outlook.view.block_size() - 1) != 0;
        match self.plan().route {
            Route::Allocate | Route::DaxAllocate => "route: not a pure overwrite".into(),
            Route::BouncedOverwrite => format!(
                "route: bounced overwrite (read, modify, write), position or length is not a multiple of {} bytes",
                self.geometry.logical_block
            ),
            Route::DaxOverwrite => "route: overwrite by copying into mapped memory".into(),
            _ if subblock && !switches.shared_subblock_overwrite => {
                "route: exclusive sub-block overwrite, the switch shared-subblock-overwrite is off".into()
            }
            _ if subblock => {
                "route: sub-block overwrite, concurrent: all of it lies in written blocks".into()
            }
            _ => "route: overwrite, all of it lies in written blocks and inside the size".into(),
        }
    }

    /// What is zeroed before the data is sent, or why nothing is.
    fn zeros_line(&self) -> Option<String> {
        let Outlook { plan, zeroed, view, .. } = self.outlook;
        let Edges { head, tail, old_tail } = plan.zero_edges;
        let parts = [
            (head, "before the data in its first block"),
            (tail, "after the data in its last block"),
            (old_tail, "past the old end of the file"),
            (*zeroed, "in whole blocks without data"),
        ];
        let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
        let parts: Vec<_> = parts.map(|(bytes, place)| format!("{bytes} bytes {place}")).collect();
        let copies = plan.route == Route::DaxAllocate;
        if !parts.is_empty() {
            return Some(format!("zeros: {}, written before the data", parts.join(", ")));
        }
        let behind = copies && self.request.range.end() > view.size;
        behind.then(|| "zeros: none, blocks past the end are invisible until the size changes".into())
    }

    fn journal_line(&self) -> String {
        match self.plan().journal {
            JournalWork::None if self.plan().drops_privileges => "journal: no other handle".into(),
            JournalWork::None => "journal: no handle, no transaction".into(),
            JournalWork::Handle => {
                "journal: a handle around the mapping (overwrite-no-transaction is off)".into()
            }
            JournalWork::Allocate => "journal: allocates zeroed blocks before the data".into(),
            JournalWork::Convert => "journal: converts unwritten extents when the data is complete".into(),
            JournalWork::AllocateConvert => {
                "journal: claims or allocates blocks before the data, maps or converts them after it".into()
            }
            JournalWork::Extend if self.outlook.view.kind == MapKind::Indirect => {
                "journal: new blocks are zeroed, and the file is an orphan until its size is set".into()
            }
            JournalWork::Extend => {
                "journal: new blocks are unwritten; one handle converts them and sets the size after the data"
                    .into()
            }
        }
    }

    fn durability_line(&self, switches: Switches) -> String {
        match self.plan().durability {
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

    /// `transfers`: places on the device with data of the request. `refused`: nothing is sent, so there is no advice on
    /// transfers.
    fn advice(&self, transfers: u64, write: bool, refused: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let (view, switches) = (&self.outlook.view, self.open.switches);
        if write {
            let blocks = |bytes: u64| bytes.div_ceil(view.block_size());
            let (unwritten, hole) =
                (blocks(self.outlook.summary.unwritten), blocks(self.outlook.summary.hole));
            let ahead = match refused {
                true => "write them once through a mounted volume first",
                false => "`uext4 prepare` makes later writes pure overwrites",
            };
            if unwritten > 0 {
                lines.push(format!("{unwritten} unwritten block(s): {ahead}"));
            }
            if hole > 0 {
                lines.push(format!("{hole} block(s) in holes: {ahead}"));
            }
            if self.request.range.end() > view.size && hole == 0 {
                lines.push(format!("bytes past the end of the file: {ahead}"));
            }
        }
        if self.request.bounced {
            let block = self.geometry.logical_block;
            lines.push(format!("use positions and lengths that are multiples of {block} bytes"));
        }
        if transfers > 1 && !refused {
            lines.push(format!("{transfers} device requests: a contiguous file needs one"));
        }
        let overwrites = matches!(self.plan().journal, JournalWork::None | JournalWork::Handle);
        let syncs = write && !refused && overwrites && self.request.sync == Sync::Data;
        if syncs && !self.device.durable_without_flush() {
            lines.push("a device with FUA would need no flush for O_DSYNC overwrites".into());
        }
        if switches != Switches::ON {
            lines.push(format!("switches are off: {switches}"));
        }
        lines
    }
}
