//! The decision over its whole input grid, against the rules written down a second time.

use uext4_blockdev::{Capabilities, DaxKind};
use uext4_iomap::plan::{
    Completion, Durability, GateMode, JournalWork, Plan, Request, Route, Sync, View, plan_read,
};
use uext4_iomap::write_plan::{plan_shared_overwrite, plan_write};
use uext4_iomap::{Piece, Range, State, Switches};

const BLOCK: u64 = 4096;
const STATES: [State; 3] = [State::Written, State::Unwritten, State::Hole];

struct Case {
    request: Request,
    view: View,
    pieces: Vec<Piece>,
    device: Capabilities,
    switches: Switches,
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

/// Every combination of: position and length (aligned or not), one or two pieces of any state, size before,
/// inside or behind the request, size on disk, datasync-dirty, durability, bounced, queued, device, all 32
/// switch settings.
fn grid(mut each: impl FnMut(&Case)) {
    let shapes = [(8192, 4096), (8192, 8192), (8704, 512), (8192, 6144), (8192 + 2048, 4096)];
    for (pos, length) in shapes {
        for first in STATES {
            for second in [None, Some(State::Written), Some(State::Unwritten), Some(State::Hole)] {
                let pieces = cut(pos, length, first, second);
                for (size, disk_size) in [(4096, 4096), (9000, 9000), (1 << 20, 1 << 20), (1 << 20, 8192)] {
                    for bits in 0..48u32 {
                        let sync = [Sync::None, Sync::Data, Sync::All][(bits / 16) as usize];
                        let request = Request {
                            range: Range { pos, length },
                            sync,
                            bounced: bits & 1 != 0,
                            queued: bits & 2 != 0,
                        };
                        let view = View { size, disk_size, block_bits: 12, datasync_dirty: bits & 4 != 0 };
                        for device in 0..8 {
                            for switches in 0..32 {
                                each(&Case {
                                    request,
                                    view,
                                    pieces: pieces.clone(),
                                    device: capabilities(device),
                                    switches: Switches::from_bits(switches),
                                });
                            }
                        }
                    }
                }
            }
        }
    }
}

fn cut(pos: u64, length: u64, first: State, second: Option<State>) -> Vec<Piece> {
    let border = (pos / BLOCK + 1) * BLOCK;
    let piece = |logical: u64, length, state, place| Piece { logical, physical: place, length, state };
    match second {
        Some(state) if border < pos + length => {
            vec![
                piece(pos, border - pos, first, 1 << 20),
                piece(border, pos + length - border, state, 9 << 20),
            ]
        }
        _ => vec![piece(pos, length, first, 1 << 20)],
    }
}

fn written(case: &Case) -> bool {
    case.pieces.iter().all(|piece| piece.state == State::Written)
}

fn extends(case: &Case) -> bool {
    case.request.range.end() > case.view.size.min(case.view.disk_size)
}

#[test]
fn writes_follow_the_table() {
    let mut cases = 0u64;
    grid(|case| {
        let plan = plan_write(&case.request, &case.view, &case.pieces, &case.device, case.switches);
        check_shared_overwrite(case, &plan);
        let subblock = !(case.request.range.pos.is_multiple_of(BLOCK)
            && case.request.range.length.is_multiple_of(BLOCK));
        let holes = case.pieces.iter().any(|piece| piece.state == State::Hole);
        let overwrite = written(case) && !extends(case);
        check_durability(case, &plan, overwrite);
        if overwrite {
            check_overwrite(case, &plan, subblock);
        } else {
            assert_eq!(plan.route, Route::Allocate);
            let want = match (extends(case), holes) {
                (true, _) => JournalWork::Extend,
                (false, true) => JournalWork::AllocateConvert,
                (false, false) => JournalWork::Convert,
            };
            assert_eq!(plan.journal, want);
            let small = subblock || case.request.bounced;
            assert_eq!(plan.gate == GateMode::Exclusive, extends(case) || holes || small);
            if small && !written(case) {
                assert!(plan.drain, "zeroing a block's rest needs a drain");
                assert_eq!(plan.completion, Completion::Synchronous);
            }
        }
        if plan.drain {
            assert_eq!(plan.gate, GateMode::Exclusive, "only exclusive holders drain");
        }
        assert!(plan.zero_edges.head < BLOCK && plan.zero_edges.tail < BLOCK);
        let first_fresh = case.pieces[0].state != State::Written;
        let head = if first_fresh { case.request.range.pos % BLOCK } else { 0 };
        assert_eq!(plan.zero_edges.head, head);
        cases += 1;
    });
    assert!(cases > 100_000, "{cases}");
}

fn check_durability(case: &Case, plan: &Plan, overwrite: bool) {
    let want = match case.request.sync {
        Sync::None => Durability::None,
        Sync::All => Durability::Fsync,
        Sync::Data => {
            let safe = overwrite && !case.view.datasync_dirty && case.switches.fua_dsync_overwrite;
            if safe && case.device.fua {
                Durability::Fua
            } else if safe && !case.device.volatile_cache {
                Durability::WriteThrough
            } else {
                Durability::Datasync
            }
        }
    };
    assert_eq!(plan.durability, want);
}

/// The executors' quick question has the same answer as the table, wherever it applies.
fn check_shared_overwrite(case: &Case, plan: &Plan) {
    if case.pieces.len() != 1 || !written(case) {
        return;
    }
    let quick = plan_shared_overwrite(&case.request, &case.view, &case.device, case.switches);
    let shared =
        matches!(plan.route, Route::Overwrite | Route::DaxOverwrite) && plan.gate == GateMode::Shared;
    assert_eq!(quick, shared.then_some(plan.durability));
}

fn check_overwrite(case: &Case, plan: &Plan, subblock: bool) {
    let want = if case.switches.overwrite_no_transaction { JournalWork::None } else { JournalWork::Handle };
    assert_eq!(plan.journal, want);
    let alone = case.request.bounced || subblock && !case.switches.shared_subblock_overwrite;
    assert_eq!(plan.gate == GateMode::Exclusive, alone);
    assert_eq!(plan.drain, alone);
    let mapped = case.device.dax.is_some();
    let route = match (case.request.bounced, mapped) {
        (true, _) => Route::BouncedOverwrite,
        (false, true) => Route::DaxOverwrite,
        (false, false) => Route::Overwrite,
    };
    assert_eq!(plan.route, route);
    let counted = match route {
        Route::DaxOverwrite => !case.switches.dax_no_dio_count,
        Route::BouncedOverwrite => false,
        _ => !alone || case.request.queued,
    };
    assert_eq!(plan.counted, counted, "alone until it is over needs no count");
    let waits = alone || mapped || !case.request.queued;
    assert_eq!(plan.completion == Completion::Synchronous, waits);
    assert_eq!((plan.zero_edges.head, plan.zero_edges.tail), (0, 0));
}

#[test]
fn reads_follow_the_rules() {
    grid(|case| {
        if case.request.sync != Sync::None {
            return;
        }
        let plan = plan_read(&case.request, &case.view, &case.pieces, &case.device, case.switches);
        let inside = case.request.range.end() <= case.view.size;
        let want = if case.request.range.pos >= case.view.size {
            Route::PastEnd
        } else if case.request.bounced {
            Route::BouncedRead
        } else if case.device.dax.is_some() {
            Route::DaxRead
        } else if case.switches.simple_read && case.pieces.len() == 1 && written(case) && inside {
            Route::SimpleRead
        } else {
            Route::GeneralRead
        };
        assert_eq!(plan.route, want);
        assert_eq!(plan.gate, GateMode::Shared, "reads never exclude");
        assert!(!plan.drain && plan.journal == JournalWork::None && plan.durability == Durability::None);
        let copied = case.device.dax.is_some() && case.switches.dax_no_dio_count;
        let uncounted = want == Route::PastEnd || copied;
        assert_eq!(plan.counted, !uncounted);
    });
}
