//! The decision over its whole input grid, against the rules written down a second time.

use uext4_blockdev::{Capabilities, DaxKind};
use uext4_iomap::plan::{
    DiskSize, Durability, Edges, Finish, GateMode, JournalWork, Plan, Request, Route, Sync, View, plan_read,
};
use uext4_iomap::write_plan::{plan_shared_overwrite, plan_write};
use uext4_iomap::{MapKind, Piece, Range, State, Switches};

const BLOCK: u64 = 4096;
const STATES: [State; 3] = [State::Written, State::Unwritten, State::Hole];

struct Case {
    request: Request,
    view: View,
    /// States of the touched blocks, and the pieces made of them.
    blocks: Vec<State>,
    pieces: Vec<Piece>,
    device: Capabilities,
    switches: Switches,
}

impl Case {
    fn end(&self) -> u64 {
        self.request.range.end()
    }

    fn is_written(&self) -> bool {
        self.blocks.iter().all(|&state| state == State::Written)
    }

    fn is_aligned(&self) -> bool {
        self.request.range.pos.is_multiple_of(BLOCK) && self.request.range.length.is_multiple_of(BLOCK)
    }

    fn extends(&self) -> bool {
        self.end() > self.view.size || self.end() > self.view.disk_size.bytes()
    }

    /// Whole blocks at the very end, in one state, through a queue.
    fn is_append(&self) -> bool {
        let first = self.blocks[0];
        let fresh = first != State::Written && self.blocks.iter().all(|&state| state == first);
        let at_end = self.extends() && self.request.range.pos == self.view.size;
        fresh && at_end && self.is_aligned() && self.request.queued && self.view.kind == MapKind::Extents
    }

    fn is_mapped(&self) -> bool {
        self.device.dax.is_some()
    }
}

fn capabilities(bits: u32) -> Capabilities {
    Capabilities {
        volatile_cache: bits & 1 != 0,
        fua: bits & 2 != 0,
        nowait: true,
        discard: false,
        read_only: false,
        dax: if bits & 4 != 0 { Some(DaxKind::Msync) } else { None },
    }
}

/// Every combination of: position and length (aligned or not), one to three blocks of any states, size before, inside
/// or behind the request, size on disk, kind of map, datasync-dirty, durability, bounced, queued, device, all 32
/// switch settings.
fn grid(mut each: impl FnMut(&Case)) {
    let shapes: [(u64, u64); 6] =
        [(8192, 4096), (8192, 8192), (8704, 512), (8192, 6144), (8192 + 2048, 4096), (8192 + 2048, 8192)];
    for (pos, length) in shapes {
        let count = ((pos + length).div_ceil(BLOCK) - pos / BLOCK) as u32;
        for states in 0..3usize.pow(count) {
            let blocks: Vec<State> = (0..count).map(|n| STATES[states / 3usize.pow(n) % 3]).collect();
            let pieces = cut(pos, length, &blocks);
            let sizes = [
                (4096, 4096),
                (8192, 8192),
                (9000, 9000),
                (12288, 12288),
                (1 << 20, 1 << 20),
                (1 << 20, 8192),
            ];
            for ((size, disk_size), kind) in
                sizes.into_iter().flat_map(|size| [(size, MapKind::Extents), (size, MapKind::Indirect)])
            {
                for bits in 0..48u32 {
                    let sync = [Sync::None, Sync::Data, Sync::All][(bits / 16) as usize];
                    let range = Range { pos, length };
                    let request = Request { range, sync, bounced: bits & 1 != 0, queued: bits & 2 != 0 };
                    let datasync_dirty = bits & 4 != 0;
                    let disk_size = DiskSize::new(disk_size, false);
                    let view = View { size, disk_size, block_bits: 12, datasync_dirty, kind };
                    for setting in 0..8 * 32 {
                        let (device, switches) = (capabilities(setting / 32), setting % 32);
                        let switches = Switches::from_bits(switches as u8);
                        let (blocks, pieces) = (blocks.clone(), pieces.clone());
                        each(&Case { request, view, blocks, pieces, device, switches });
                    }
                }
            }
        }
    }
}

/// One piece for each block, or for neighbours of one state, far from the others.
fn cut(pos: u64, length: u64, blocks: &[State]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (n, &state) in (0..).zip(blocks) {
        let block = (pos / BLOCK + n) * BLOCK;
        let (start, end) = (block.max(pos), (block + BLOCK).min(pos + length));
        match pieces.last_mut() {
            Some(last) if last.state == state => last.length += end - start,
            _ => {
                pieces.push(Piece { logical: start, physical: (9 + 2 * n) << 20, length: end - start, state })
            }
        }
    }
    pieces
}

/// A row of the write table (semantics, section 1).
#[derive(Debug, PartialEq)]
struct Row {
    gate: GateMode,
    drain: bool,
    synchronous: bool,
}

const SHARED: Row = Row { gate: GateMode::Shared, drain: false, synchronous: false };
const ALONE: Row = Row { gate: GateMode::Exclusive, drain: true, synchronous: true };

/// The table, for requests through a queue: a synchronous call waits in any case.
fn row(case: &Case) -> Row {
    let (first, last) = (case.blocks[0], case.blocks[case.blocks.len() - 1]);
    let fresh_head = !case.request.range.pos.is_multiple_of(BLOCK) && first != State::Written;
    let fresh_tail = !case.end().is_multiple_of(BLOCK) && last != State::Written;
    let fresh = fresh_head || fresh_tail;
    let indirect_hole = case.view.kind == MapKind::Indirect && case.blocks.contains(&State::Hole);
    // Read-modify-write of device blocks; the plain route of the switch.
    if case.request.bounced || !case.is_aligned() && !case.switches.shared_subblock_overwrite {
        return ALONE;
    }
    let row = match (case.extends(), case.is_aligned(), fresh) {
        (true, true, _) if case.is_append() => Row { drain: false, synchronous: false, ..ALONE },
        (true, true, _) => Row { drain: false, ..ALONE },
        (true, false, fresh) => Row { drain: fresh, ..ALONE },
        (false, false, true) => ALONE,
        (false, _, _) if indirect_hole => Row { gate: GateMode::Exclusive, ..SHARED },
        (false, _, _) => SHARED,
    };
    // Copies wait; those that change the map zero and convert before, which nobody may come between.
    match (case.is_mapped(), case.is_written() && !case.extends()) {
        (true, true) => Row { synchronous: true, ..row },
        (true, false) => Row { gate: GateMode::Exclusive, synchronous: true, ..row },
        (false, _) => row,
    }
}

fn journal(case: &Case) -> JournalWork {
    let holes = case.blocks.contains(&State::Hole);
    match (case.extends(), case.is_written(), case.view.kind) {
        (true, ..) => JournalWork::Extend,
        (false, true, _) if case.switches.overwrite_no_transaction => JournalWork::None,
        (false, true, _) => JournalWork::Handle,
        (false, false, MapKind::Indirect) if holes => JournalWork::Allocate,
        (false, false, _) if holes => JournalWork::AllocateConvert,
        (false, false, _) => JournalWork::Convert,
    }
}

fn route(case: &Case) -> Route {
    let overwrite = case.is_written() && !case.extends();
    match (overwrite, case.request.bounced, case.is_mapped()) {
        (true, true, _) => Route::BouncedOverwrite,
        (true, false, true) => Route::DaxOverwrite,
        (true, false, false) => Route::Overwrite,
        (false, _, true) => Route::DaxAllocate,
        (false, _, false) => Route::Allocate,
    }
}

/// Bytes of the block with `pos`, or from `pos` to the end of its block, that hold no data and get none.
fn edges(case: &Case) -> Edges {
    let last = case.blocks[case.blocks.len() - 1];
    let to_block = |pos: u64| pos.next_multiple_of(BLOCK) - pos;
    let (pos, size) = (case.request.range.pos, case.view.size);
    let old_tail = size..size.next_multiple_of(BLOCK);
    let overwritten = pos <= old_tail.start && case.end() >= old_tail.end;
    Edges {
        head: if case.blocks[0] == State::Written { 0 } else { pos % BLOCK },
        tail: if last == State::Written { 0 } else { to_block(case.end()) },
        old_tail: if case.end() <= size || overwritten { 0 } else { to_block(size) },
    }
}

fn durability(case: &Case) -> Durability {
    let pure = case.is_written() && !case.extends() && !case.view.datasync_dirty;
    match case.request.sync {
        Sync::None => Durability::None,
        Sync::All => Durability::Fsync,
        Sync::Data if !pure || !case.switches.fua_dsync_overwrite => Durability::Datasync,
        Sync::Data if case.device.fua => Durability::Fua,
        Sync::Data if !case.device.volatile_cache => Durability::WriteThrough,
        Sync::Data => Durability::Datasync,
    }
}

#[test]
fn writes_follow_the_table() {
    let mut cases = 0u64;
    grid(|case| {
        let plan = plan_write(&case.request, &case.view, &case.pieces, &case.device, case.switches);
        let mut want = row(case);
        want.synchronous |= !case.request.queued;
        let synchronous = plan.finish == Finish::Synchronous;
        assert_eq!(Row { gate: plan.gate, drain: plan.drain, synchronous }, want, "{:?}", case.request);
        assert_eq!((plan.route, plan.journal), (route(case), journal(case)));
        assert_eq!((plan.zero_edges, plan.durability), (edges(case), durability(case)));
        let counted = match case.is_mapped() && !case.request.bounced {
            true => !case.switches.dax_no_dio_count,
            // Alone to the end needs no count.
            false => row(case).gate == GateMode::Shared || !row(case).synchronous,
        };
        assert_eq!(plan.counted, counted, "{plan:?}");
        check_shared_overwrite(case, &plan);
        cases += 1;
    });
    assert!(cases > 1_000_000, "{cases}");
}

/// The executors' quick question has the same answer as the table, wherever it applies.
fn check_shared_overwrite(case: &Case, plan: &Plan) {
    if case.pieces.len() != 1 || !case.is_written() {
        return;
    }
    let quick = plan_shared_overwrite(&case.request, &case.view, &case.device, case.switches);
    let shared =
        matches!(plan.route, Route::Overwrite | Route::DaxOverwrite) && plan.gate == GateMode::Shared;
    assert_eq!(quick, shared.then_some(*plan));
}

#[test]
fn reads_follow_the_rules() {
    grid(|case| {
        if case.request.sync != Sync::None {
            return;
        }
        let plan = plan_read(&case.request, &case.view, &case.pieces, &case.device, case.switches);
        let inside = case.end() <= case.view.size;
        let want = if case.request.range.pos >= case.view.size {
            Route::PastEnd
        } else if case.request.bounced {
            Route::BouncedRead
        } else if case.is_mapped() {
            Route::DaxRead
        } else if case.switches.simple_read && case.pieces.len() == 1 && case.is_written() && inside {
            Route::SimpleRead
        } else {
            Route::GeneralRead
        };
        assert_eq!(plan.route, want);
        assert_eq!(plan.gate, GateMode::Shared, "reads never exclude");
        assert!(!plan.drain && plan.journal == JournalWork::None && plan.durability == Durability::None);
        let copied = case.is_mapped() && case.switches.dax_no_dio_count;
        let uncounted = want == Route::PastEnd || copied;
        assert_eq!(plan.counted, !uncounted);
    });
}

/// What lies inside the inode goes around the device, whatever the request.
#[test]
fn contents_inside_the_inode_are_no_device_requests() {
    let disk_size = DiskSize::new(100, false);
    let view = View { size: 100, disk_size, block_bits: 12, datasync_dirty: false, kind: MapKind::Inline };
    for bits in 0..8u32 {
        let (bounced, queued) = (bits & 1 != 0, bits & 2 != 0);
        for (pos, route) in [(0, Route::InlineRead), (4096, Route::PastEnd)] {
            let range = Range { pos, length: 4096 };
            let request = Request { range, sync: Sync::Data, bounced, queued };
            let pieces = [Piece { logical: pos, physical: 99, length: 4096, state: State::Inline }];
            let device = capabilities(bits);
            let read = plan_read(&request, &view, &pieces, &device, Switches::ON);
            assert_eq!(read, Plan::inline_read(range, 100));
            assert_eq!((read.route, read.counted), (route, false));
            let write = plan_write(&request, &view, &pieces, &device, Switches::ON);
            assert_eq!(write, Plan::inline_write(&request, 100));
            assert_eq!((write.journal, write.gate), (JournalWork::Extend, GateMode::Exclusive));
            assert_eq!((write.route, write.durability), (Route::InlineWrite, Durability::Datasync));
        }
    }
}

/// A write that takes privileges away is the same write, alone to its end; and what it acknowledges as durable is not
/// found in a file that still has them.
#[test]
fn a_file_with_privileges_is_written_alone() {
    let mut dropped = 0;
    grid(|case| {
        let Case { request, view, pieces, device, switches, .. } = case;
        let privileged = View { disk_size: DiskSize::new(view.disk_size.bytes(), true), ..*view };
        let plain = plan_write(request, view, pieces, device, *switches);
        let plan = plan_write(request, &privileged, pieces, device, *switches);
        let copies = matches!(plain.route, Route::DaxOverwrite | Route::DaxAllocate);
        let want = Plan {
            gate: GateMode::Exclusive,
            counted: copies && plain.counted,
            drops_privileges: true,
            durability: if request.sync == Sync::Data { Durability::Datasync } else { plain.durability },
            finish: Finish::Synchronous,
            ..plain
        };
        assert_eq!((plan, plain.drops_privileges), (want, false));
        assert_eq!(plan_shared_overwrite(request, &privileged, device, *switches), None);
        dropped += u64::from(case.is_written());
        let read = plan_read(request, &privileged, pieces, device, *switches);
        assert_eq!(read, plan_read(request, view, pieces, device, *switches), "reads take nothing away");
    });
    assert!(dropped > 10_000);
}
