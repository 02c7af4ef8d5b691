//! Compares `explain` with the counters and the device requests.

use super::{Bed, Case, Done};
use uext4::device::Op;
use uext4::device::TracePhase;
use uext4::explain::{DeviceRequest, Explanation};
use uext4::plan::{Durability, Finish, GateMode, JournalWork, Route, Sync};
use uext4::{Counter, Error, State};

/// The counts of a request that is not refused, according to its plan.
fn counts(bed: &Bed, case: &Case, told: &Explanation, counter: Counter) -> bool {
    let (plan, query) = (&told.plan, &case.query);
    let exclusive = plan.gate == GateMode::Exclusive;
    // It allocates with the gate held exclusively, then continues as a shared overwrite.
    let extends = plan.journal == JournalWork::Extend;
    let halves = exclusive && plan.finish == Finish::Asynchronous && !extends;
    match counter {
        Counter::SimpleReads => plan.route == Route::SimpleRead,
        Counter::GeneralReads => plan.route == Route::GeneralRead,
        Counter::InlineReads => plan.route == Route::InlineRead,
        Counter::InlineWrites => plan.route == Route::InlineWrite,
        Counter::DaxCopies => {
            matches!(plan.route, Route::DaxRead | Route::DaxOverwrite)
                || plan.route == Route::DaxAllocate && !case.is_misaligned(bed)
        }
        Counter::Bounces => {
            matches!(plan.route, Route::BouncedRead | Route::BouncedOverwrite)
                || matches!(plan.route, Route::Allocate | Route::DaxAllocate) && case.is_misaligned(bed)
        }
        Counter::DioCounted => plan.counted,
        Counter::OverwritesWithoutHandle => {
            let plain = bed.has_journal && !case.switches.overwrite_no_transaction;
            let no_handle = plan.journal == JournalWork::None && !plan.drops_privileges;
            query.write && (no_handle || halves && !plain)
        }
        Counter::HandlesStarted => plan.journal == JournalWork::Handle && bed.has_journal,
        Counter::Extensions => plan.journal == JournalWork::Extend && plan.route != Route::InlineWrite,
        Counter::PrivilegesDropped => plan.drops_privileges,
        Counter::ExclusiveWrites => exclusive,
        Counter::SharedSubblockWrites => {
            query.write && (!exclusive || halves) && !(query.pos | query.length).is_multiple_of(bed.block)
        }
        Counter::FuaWrites => plan.durability == Durability::Fua,
        Counter::Flushes => {
            let syncs = matches!(plan.durability, Durability::Datasync | Durability::Fsync);
            syncs && bed.capabilities.volatile_cache
        }
        _ => false,
    }
}

/// Whether metadata of the volume is read and changed too: a plan does not include those requests.
pub fn changes_the_map(told: &Explanation) -> bool {
    // With O_SYNC the times are a change of the inode.
    let writes_times = told.plan.durability == Durability::Fsync;
    let privileges = told.plan.drops_privileges;
    privileges || writes_times || !matches!(told.plan.journal, JournalWork::None | JournalWork::Handle)
}

pub fn compare_requests(told: &Explanation, sent: &[DeviceRequest]) {
    assert_eq!(told.request_count, sent.len() as u64);
    let op = |op| if matches!(op, "log" | "home") { "write" } else { op };
    let listed = told.requests.iter().filter(|request| request.op != "zero");
    let listed: Vec<_> = listed.map(|&request| DeviceRequest { op: op(request.op), ..request }).collect();
    if listed.len() == sent.len() {
        return assert_eq!(listed, sent);
    }
    assert!(told.reasons.iter().any(|line| line.contains("are listed")), "the list is cut silently");
    // Even in a shortened list the flush and the requests after it come last.
    let same = listed.iter().rev().zip(sent.iter().rev()).take_while(|(listed, sent)| listed == sent).count();
    let (transfers, last) = listed.split_at(listed.len() - same.min(listed.len() - 32));
    assert!(transfers.len() >= 32 && last == &sent[sent.len() - last.len()..]);
    assert_eq!(transfers, &sent[..transfers.len()]);
}

/// Whether contents move out of the inode: the write that follows is planned then.
fn leaves_inode(told: &Explanation) -> bool {
    told.plan.route == Route::InlineWrite && told.reasons.iter().any(|line| line.contains("move to a block"))
}

pub fn compare_counters(bed: &Bed, case: &Case, told: &Explanation, done: &Done, beside: bool) {
    if leaves_inode(told) && done.result.is_ok() {
        assert_eq!(done.stats.get(Counter::InlineWrites), 0);
        let least = u64::from(told.journal.handles_before + told.journal.handles_after);
        assert!(!bed.has_journal || done.stats.get(Counter::HandlesStarted) >= least);
        return;
    }
    for &counter in Counter::ALL {
        let counted = done.stats.get(counter);
        if matches!(counter, Counter::BlocksLogged | Counter::Checkpoints | Counter::HomeWrites) {
            // Blocks of a commit, and blocks written home, are not predicted.
            let commits = done.stats.get(Counter::Commits);
            assert!(counted == 0 || commits > 0, "{} without a commit", counter.name());
            continue;
        }
        if changes_the_map(told) && counter == Counter::MapLoads {
            continue;
        }
        if counter == Counter::BytesWritten {
            compare_bytes(bed, told, done, counted);
            continue;
        }
        if compare_work(told, case, done, counter, counted) {
            continue;
        }
        let aside = beside && matches!(counter, Counter::SimpleReads | Counter::DioCounted);
        let expected = match &done.result {
            // A refused request may or may not have started a handle.
            Err(_) if counter == Counter::HandlesStarted => counted.min(1),
            Err(error) => {
                let allocates = matches!(error, Error::NeedsAllocation(_) | Error::Limit(_));
                u64::from(allocates && counter == Counter::AllocationsRefused)
            }
            Ok(_) => u64::from(counts(bed, case, told, counter)),
        };
        assert_eq!(expected + u64::from(aside), counted, "{}", counter.name());
    }
}

/// The bytes counted are those that the device got, but for copies into mapped memory and for metadata.
fn compare_bytes(bed: &Bed, told: &Explanation, done: &Done, counted: u64) {
    let writes =
        done.events.iter().filter(|event| event.op == Op::Write && event.phase == TracePhase::Submit);
    let sent = writes.map(|event| event.length).sum::<u64>();
    let only_data = !changes_the_map(told) && done.stats.get(Counter::Commits) == 0;
    match bed.capabilities.dax {
        Some(_) => assert_eq!(counted, 0, "bytes of copies"),
        None if only_data && done.result.is_ok() => assert_eq!(counted, sent, "bytes written"),
        None => assert!(counted <= sent, "{counted} bytes written, {sent} sent"),
    }
}

/// The minimum of handles, commits and flushes of a change of the map, which is exact if nothing interfered. Returns
/// whether the counter was compared.
fn compare_work(told: &Explanation, case: &Case, done: &Done, counter: Counter, counted: u64) -> bool {
    let (journal, stats) = (&told.journal, &done.stats);
    if !changes_the_map(told) {
        if counter == Counter::Commits && done.result.is_ok() {
            assert_eq!(counted, u64::from(journal.commits), "commits");
            return true;
        }
        // A batch of a volume without a journal needs more than one flush.
        if counter == Counter::Flushes && journal.commits > 0 {
            assert!(counted > 0, "no flush");
            return true;
        }
        return false;
    }
    if done.result.is_err() {
        return matches!(counter, Counter::HandlesStarted | Counter::Commits | Counter::Flushes);
    }
    let holes = told.pieces.iter().any(|piece| piece.state == State::Hole)
        || told.piece_count > told.pieces.len() as u64;
    let syncs = case.query.sync != Sync::None;
    let flushes =
        done.events.iter().filter(|event| event.op == Op::Flush && event.phase == TracePhase::Submit);
    match counter {
        Counter::HandlesStarted => {
            let least = u64::from(journal.handles_before + journal.handles_after);
            let least = least.saturating_sub(u64::from(case.query.sync == Sync::All));
            assert!(counted >= least, "{counted} handles, {least} were told");
            // One leaf, and no hole that free space could fill only in parts.
            assert!(
                counted == least || holes || told.piece_count > 1 || case.query.sync == Sync::All,
                "{counted} handles, {least} were told"
            );
            // In any case at most one for each block or piece.
            let most = least + 2 * (told.piece_count + case.query.length / 1024 + 2);
            assert!(counted <= most, "{counted} handles, {least} were told");
        }
        Counter::Commits => {
            // Times need none if the last write was in the same clock tick.
            let unchanged = case.query.sync == Sync::All && counted == 0 && !done.stamped;
            assert!(case.query.sync == Sync::All || u64::from(journal.commits) == u64::from(syncs));
            assert!(
                counted <= u64::from(journal.commits) || holes,
                "{counted} commits, {} told",
                journal.commits
            );
            // A full volume commits to release space.
            assert!(unchanged || counted == u64::from(syncs) || holes && counted > 0, "{counted} commits");
        }
        Counter::Flushes => {
            let sent = flushes.count() as u64;
            assert!(syncs || counted == 0 || stats.get(Counter::Commits) > 0, "{counted} flushes");
            assert!((sent > 0) == (counted > 0) && sent >= counted, "{sent} flushes sent, {counted} counted");
        }
        Counter::Allocations => {
            // Holes after the last reported piece are allocated too.
            // Mapped memory: one before the end of the file and one past it.
            let most = 1 + u64::from(told.plan.route == Route::DaxAllocate);
            assert!(counted <= most && (holes || counted == 0), "{counted} allocations");
        }
        Counter::Conversions => {
            let pointers = told.plan.journal == JournalWork::Allocate;
            assert!(counted <= 1 + u64::from(told.plan.route == Route::DaxAllocate), "{counted} conversions");
            assert!(!pointers || counted == 0, "{counted} conversions");
        }
        _ => return false,
    }
    true
}
