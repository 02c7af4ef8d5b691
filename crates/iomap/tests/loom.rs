//! Models of the gate, of snapshot publication, of what a view shows beside it, of flush tickets and of the queue's
//! lock, explored by loom.
//!
//! What is bounded: three preemptions a run (two where three threads meet at a gate that changes hands), two or three
//! threads, one or two turns each, and two lines owned by threads beside the shared one. What is not explored:
//! sleeping and waking (waiting is yielding here), trying a closed gate again (in loom's memory an old value may be
//! read for ever), the making of the lines and the giving out of their numbers, `arc_swap`, and `membarrier(2)`,
//! which is modelled by the store and the fence that it stands for.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p uext4-iomap --test loom`.
#![cfg(loom)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use uext4_iomap::flush::FlushTickets;
use uext4_iomap::gate::InodeGate;
use uext4_iomap::thread_slot::own_slot;
use uext4_iomap::{Found, InodeState, Run, State};

fn model(name: &str, run: impl Fn() + Send + Sync + 'static) {
    bounded(name, 3, run);
}

fn bounded(name: &str, preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // Who waits for a turn looks again and again.
    builder.max_branches = 20_000;
    builder.check(run);
    println!("model {name}: explored");
}

/// An exclusive holder that drained never meets a request in flight, and a request never starts under it.
#[test]
fn exclusive_and_shared_exclude_each_other() {
    model("exclusive_and_shared", || {
        let gate = Arc::new(InodeGate::new());
        let cell = gate.register(&mut || ());
        // What the gate protects: true while somebody changes the structure.
        let changing = Arc::new(AtomicBool::new(false));
        let reader = {
            let (gate, changing) = (gate.clone(), changing.clone());
            thread::spawn(move || {
                if gate.enter(&cell).is_ok() {
                    assert!(!changing.load(Ordering::Relaxed), "entered while the gate was held exclusively");
                    gate.leave(&cell);
                    assert!(!changing.load(Ordering::Relaxed), "in flight while a drained change ran");
                    gate.complete(&cell);
                }
            })
        };
        let guard = gate.lock_exclusive(true, &mut || {});
        changing.store(true, Ordering::Relaxed);
        thread::yield_now();
        changing.store(false, Ordering::Relaxed);
        drop(guard);
        reader.join().unwrap();
        assert_eq!(gate.in_flight(), 0);
    });
}

/// Two exclusive holders exclude each other.
#[test]
fn exclusive_holders_exclude_each_other() {
    model("exclusive_holders", || {
        let gate = Arc::new(InodeGate::new());
        let held = Arc::new(AtomicBool::new(false));
        let other = {
            let (gate, held) = (gate.clone(), held.clone());
            thread::spawn(move || {
                let guard = gate.lock_exclusive(false, &mut || {});
                assert!(!held.swap(true, Ordering::Relaxed));
                held.store(false, Ordering::Relaxed);
                drop(guard);
            })
        };
        let guard = gate.lock_exclusive(true, &mut || {});
        assert!(!held.swap(true, Ordering::Relaxed));
        held.store(false, Ordering::Relaxed);
        drop(guard);
        other.join().unwrap();
    });
}

/// A reader that entered after a truncate published what it did never uses freed blocks, by what it kept or by what it
/// finds; one that entered before is waited for by the drain. `freed` stands for the blocks' reuse.
#[test]
fn what_ended_protects_freed_blocks() {
    model("end_of_answers", || {
        let inode = Arc::new(InodeState::new(1 << 20, 12, std::sync::Arc::new(AtomicU64::new(6))));
        let run = Run { first: 0, length: 8, state: State::Written, physical: 100 };
        inode.map.lock().add(0, 8, &[run]).unwrap();
        let kept = inode.map.generation();
        let freed = Arc::new(AtomicU64::new(0));
        let cell = inode.gate.register(&mut || ());
        let reader = {
            let (inode, freed) = (inode.clone(), freed.clone());
            thread::spawn(move || {
                if inode.gate.enter(&cell).is_err() {
                    return;
                }
                let written = inode.map.generation() == kept
                    || matches!(inode.map.find(3), Found::Known { state: State::Written, .. });
                inode.gate.leave(&cell);
                // The device reads here, outside the gate, counted in flight.
                if written {
                    assert_eq!(freed.load(Ordering::Relaxed), 0, "read a block that was freed and reused");
                }
                inode.gate.complete(&cell);
            })
        };
        let guard = inode.gate.lock_exclusive(true, &mut || {});
        inode.end(&guard, &mut inode.map.lock(), 0, 8, Some(&[])).unwrap();
        freed.store(1, Ordering::Relaxed);
        drop(guard);
        reader.join().unwrap();
    });
}

/// Who learns that a write into unwritten blocks is complete finds its blocks written, whether they are noted beside
/// the snapshot, on their way into the next one or in it; and a block that was written before is so at any moment. The
/// second change makes the snapshot anew, and so does a reader who looked beside it.
#[test]
fn a_converted_block_is_found_written() {
    model("conversion", || {
        let inode = Arc::new(InodeState::new(1 << 20, 12, std::sync::Arc::new(AtomicU64::new(0))));
        let run = |first, length, state| Run { first, length, state, physical: 100 + u64::from(first) };
        let runs = [run(0, 1, State::Written), run(1, 7, State::Unwritten)];
        inode.map.lock().add(0, 8, &runs).unwrap();
        let completed = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let converter = {
            let (inode, completed) = (inode.clone(), completed.clone());
            thread::spawn(move || {
                for (index, block) in [(0, 3), (1, 6)] {
                    inode.converted(&mut inode.map.lock(), 7, &[block..block + 1]).unwrap();
                    completed[index].store(true, Ordering::Release);
                }
            })
        };
        let written = |block: u32, at| {
            inode.map.find(block) == Found::Known { state: State::Written, physical: at, blocks: 1 }
        };
        for (index, block) in [(1, 6), (0, 3)] {
            if completed[index].load(Ordering::Acquire) {
                assert!(written(block, 100 + u64::from(block)), "zeros for acknowledged data");
            }
        }
        assert!(written(0, 100));
        converter.join().unwrap();
        assert!(written(3, 103) && written(6, 106));
    });
}

/// The owner of a queue and a drainer that tries to harvest it are never inside together, the owner never waits for
/// ever, and each sees what the other did: the value is a cell that loom watches.
#[test]
fn owner_and_guest_exclude_each_other() {
    model("owner_lock", || {
        let (mut owner, guest) = uext4_iomap::owner_lock::owner_lock([0u32; 2]);
        let harvester = thread::spawn(move || {
            let Some(mut guard) = guest.try_lock() else { return 0 };
            let [mine, owners] = &mut *guard;
            *mine += 1;
            let seen = *owners;
            thread::yield_now();
            assert_eq!(guard[1], seen, "the guest met the owner");
            1
        });
        for turn in 0..2 {
            let mut guard = owner.lock();
            guard[1] += 1;
            assert_eq!(guard[1], turn + 1);
        }
        let harvested = harvester.join().unwrap();
        assert_eq!(*owner.lock(), [harvested, 2]);
    });
}

/// What a gate protects: a cell that loom watches, so that an access that is not ordered after the others' fails.
struct Guarded(UnsafeCell<u32>);

// The gate is the lock; that it is one is what the models find out.
#[allow(unsafe_code)]
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Guarded(UnsafeCell::new(0)))
    }
    #[allow(unsafe_code)]
    fn read(&self) -> u32 {
        self.0.with(|value| unsafe { *value })
    }
    #[allow(unsafe_code)]
    fn change(&self) {
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}

/// A synchronous call holds the gate through its thread's own line, another through the line that is shared; an
/// exclusive holder meets neither, and everybody sees what was done before.
fn thread_lines(name: &str, slots: [Option<usize>; 2], readers: usize) {
    model(name, move || {
        let gate = Arc::new(InodeGate::new());
        // Open to all: how that comes about has models of its own.
        drop(gate.try_lock_shared(false));
        let guarded = Guarded::new();
        let readers: Vec<_> = (0..readers)
            .map(|reader| {
                let (gate, guarded) = (gate.clone(), guarded.clone());
                thread::spawn(move || {
                    slots[reader].into_iter().for_each(own_slot);
                    let Ok(guard) = gate.try_lock_shared(reader == 0) else { return };
                    let seen = guarded.read();
                    thread::yield_now();
                    assert_eq!(guarded.read(), seen, "changed under a shared hold");
                    drop(guard);
                })
            })
            .collect();
        let guard = gate.lock_exclusive(false, &mut || {});
        guarded.change();
        drop(guard);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(gate.in_flight(), 0);
    });
}

#[test]
fn a_threads_own_line_excludes() {
    thread_lines("own_line", [Some(0), None], 1);
}

#[test]
fn the_shared_line_excludes() {
    thread_lines("shared_line", [None, None], 1);
}

#[test]
fn own_and_shared_line_at_a_time() {
    thread_lines("own_and_shared_line", [Some(0), None], 2);
}

#[test]
fn two_threads_on_the_shared_line() {
    thread_lines("two_on_the_shared_line", [None, None], 2);
}

/// Holds the gate alone. It stays closed to everybody meanwhile, this thread among them.
fn change_alone(gate: &InodeGate, drain: bool, guarded: &Guarded) {
    let guard = gate.lock_exclusive(drain, &mut || {});
    guarded.change();
    thread::yield_now();
    assert!(gate.try_lock_shared(false).is_err(), "opened under an exclusive hold");
    drop(guard);
}

/// The owner of a gate takes it by its mark while somebody else comes: nobody meets anybody, before, during and after
/// the gate is opened to others, and everybody sees what was done before.
fn owner_and_second(name: &str, second: fn(&InodeGate, &Guarded)) {
    bounded(name, 2, move || {
        own_slot(0);
        let gate = Arc::new(InodeGate::new());
        let guarded = Guarded::new();
        // It was used before: the second one has to find that out.
        drop(gate.try_lock_shared(true).expect("nobody else is here"));
        let other = {
            let (gate, guarded) = (gate.clone(), guarded.clone());
            thread::spawn(move || {
                own_slot(1);
                second(&gate, &guarded);
            })
        };
        for _ in 0..2 {
            change_alone(&gate, true, &guarded);
        }
        if let Ok(guard) = gate.try_lock_shared(false) {
            guarded.read();
            drop(guard);
        }
        other.join().unwrap();
        assert!(guarded.read() >= 2);
        assert_eq!(gate.in_flight(), 0);
    });
}

#[test]
fn who_shares_the_gate_of_an_owner() {
    owner_and_second("owner_and_sharer", |gate, guarded| {
        for _ in 0..2 {
            let Ok(guard) = gate.try_lock_shared(true) else { continue };
            let seen = guarded.read();
            thread::yield_now();
            assert_eq!(guarded.read(), seen, "changed under a shared hold");
            drop(guard);
        }
    });
}

#[test]
fn who_takes_the_gate_of_an_owner() {
    owner_and_second("owner_and_holder", |gate, guarded| change_alone(gate, false, guarded));
}

#[test]
fn a_queue_comes_to_the_gate_of_an_owner() {
    owner_and_second("owner_and_queue", |gate, guarded| {
        let cell = gate.register(&mut || ());
        if gate.enter(&cell).is_ok() {
            guarded.read();
            gate.leave(&cell);
            guarded.read();
            gate.complete(&cell);
        }
    });
}

/// A gate that is lent, and others who come while the borrower takes it and leaves: nobody meets anybody, and everybody
/// sees what was done before. In models the first hold in turn lends the gate.
fn borrower_and(name: &str, preemptions: usize, holds: u32, others: &'static [fn(&InodeGate, &Guarded)]) {
    bounded(name, preemptions, move || {
        own_slot(0);
        let gate = Arc::new(InodeGate::new());
        let guarded = Guarded::new();
        // Not the owner's any more: the shared line opens it.
        let guest = gate.clone();
        drop(gate.try_lock_shared(false));
        thread::spawn(move || drop(guest.try_lock_shared(false))).join().unwrap();
        change_alone(&gate, true, &guarded);
        assert!(gate.is_lent());
        let others: Vec<_> = (1..)
            .zip(others)
            .map(|(slot, other)| {
                let (gate, guarded) = (gate.clone(), guarded.clone());
                thread::spawn(move || {
                    if slot == 1 {
                        own_slot(slot);
                    }
                    other(&gate, &guarded);
                })
            })
            .collect();
        gate.end_visit();
        (0..holds).for_each(|_| change_alone(&gate, true, &guarded));
        if holds == 1
            && let Ok(guard) = gate.try_lock_shared(false)
        {
            guarded.read();
            drop(guard);
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(guarded.read() >= 2);
        assert_eq!(gate.in_flight(), 0);
    });
}

fn share(gate: &InodeGate, guarded: &Guarded) {
    let Ok(guard) = gate.try_lock_shared(true) else { return };
    let seen = guarded.read();
    thread::yield_now();
    assert_eq!(guarded.read(), seen, "changed under a shared hold");
    drop(guard);
}

/// Holds the gate alone if nobody is there.
fn change_if_alone(gate: &InodeGate, guarded: &Guarded) {
    let Some(guard) = gate.try_visit_exclusive() else { return };
    guarded.change();
    thread::yield_now();
    assert!(gate.try_lock_shared(false).is_err(), "opened under an exclusive hold");
    drop(guard);
}

#[test]
fn who_does_not_wait_comes_to_the_gate_of_an_owner() {
    owner_and_second("owner_and_trier", change_if_alone);
    visitor_and_second("visitor_and_trier", change_if_alone);
}

#[test]
fn who_does_not_wait_comes_to_a_lent_gate() {
    borrower_and("borrower_and_trier", 2, 1, &[change_if_alone]);
    borrower_and("borrower_trier_and_sharer", 2, 1, &[change_if_alone, share]);
}

#[test]
fn who_shares_a_lent_gate() {
    borrower_and("borrower_and_sharer", 3, 1, &[share]);
}

#[test]
fn who_takes_a_lent_gate() {
    borrower_and("borrower_and_holder", 2, 1, &[|gate, guarded| change_alone(gate, false, guarded)]);
}

#[test]
fn two_who_come_to_a_lent_gate() {
    borrower_and("borrower_and_two", 2, 1, &[share, share]);
}

#[test]
fn a_holder_and_a_sharer_come_to_a_lent_gate() {
    borrower_and(
        "borrower_holder_and_sharer",
        1,
        1,
        &[|gate, guarded| change_alone(gate, false, guarded), share],
    );
}

/// Somebody is late to end a lease: another has ended it, the gate is lent again, and the borrower holds it.
#[test]
fn who_is_late_does_not_end_the_next_lease() {
    borrower_and(
        "late_end_of_a_lease",
        2,
        2,
        &[
            |gate, guarded| {
                share(gate, guarded);
                share(gate, guarded);
            },
            share,
        ],
    );
}

#[test]
fn a_queue_comes_to_a_lent_gate() {
    borrower_and(
        "borrower_and_queue",
        2,
        1,
        &[|gate, guarded| {
            let cell = gate.register(&mut || ());
            if gate.enter(&cell).is_ok() {
                guarded.read();
                gate.leave(&cell);
                guarded.read();
                gate.complete(&cell);
            }
        }],
    );
}

/// A visitor owns the gate for as long as its change takes, and somebody else comes meanwhile or then, and owns it or
/// opens it to both.
fn visitor_and_second(name: &str, second: fn(&InodeGate, &Guarded)) {
    bounded(name, 2, move || {
        own_slot(0);
        let gate = Arc::new(InodeGate::new());
        let guarded = Guarded::new();
        let other = {
            let (gate, guarded) = (gate.clone(), guarded.clone());
            thread::spawn(move || {
                own_slot(1);
                second(&gate, &guarded);
            })
        };
        for _ in 0..2 {
            let guard = gate.visit_exclusive(true, &mut || {});
            guarded.change();
            drop(guard);
        }
        other.join().unwrap();
        assert!(guarded.read() >= 2);
        assert_eq!(gate.in_flight(), 0);
    });
}

#[test]
fn who_shares_the_gate_of_a_visitor() {
    visitor_and_second("visitor_and_sharer", |gate, guarded| {
        share(gate, guarded);
        share(gate, guarded);
    });
}

#[test]
fn who_takes_the_gate_of_a_visitor() {
    visitor_and_second("visitor_and_holder", |gate, guarded| change_alone(gate, false, guarded));
}

#[test]
fn visitors_of_a_gate_exclude_each_other() {
    visitor_and_second("two_visitors", |gate, guarded| {
        let guard = gate.visit_exclusive(true, &mut || {});
        guarded.change();
        drop(guard);
        share(gate, guarded);
        gate.end_visit();
    });
}

#[test]
fn a_queue_comes_to_the_gate_of_a_visitor() {
    visitor_and_second("visitor_and_queue", |gate, guarded| {
        let cell = gate.register(&mut || ());
        if gate.enter(&cell).is_ok() {
            guarded.read();
            gate.leave(&cell);
            guarded.read();
            gate.complete(&cell);
        }
    });
}

/// A hold inside a hold (a callback that reads): the line counts both, and an exclusive holder waits for the outer.
#[test]
fn shared_holds_nest() {
    model("nested_shared", || {
        let gate = Arc::new(InodeGate::new());
        let guarded = Guarded::new();
        let reader = {
            let (gate, guarded) = (gate.clone(), guarded.clone());
            thread::spawn(move || {
                own_slot(1);
                let Ok(outer) = gate.try_lock_shared(true) else { return };
                let seen = guarded.read();
                // Refused if somebody wants the gate meanwhile, and then the outer hold must still count.
                drop(gate.try_lock_shared(false));
                assert_eq!(guarded.read(), seen, "changed under the outer hold");
                drop(outer);
            })
        };
        let guard = gate.lock_exclusive(true, &mut || {});
        guarded.change();
        drop(guard);
        reader.join().unwrap();
    });
}

/// Two holders in a row and somebody who shares: nobody meets anybody, and each sees what the one before did. The gate
/// is handed over closed, or opened between the holders.
fn holders_in_a_row(name: &str, hands: u32, shares: bool) {
    bounded(name, if shares { 2 } else { 3 }, move || {
        let gate = Arc::new(InodeGate::with_hands(hands));
        let guarded = Guarded::new();
        let holder = {
            let (gate, guarded) = (gate.clone(), guarded.clone());
            thread::spawn(move || {
                let guard = gate.lock_exclusive(false, &mut || {});
                guarded.change();
                drop(guard);
            })
        };
        let reader = shares.then(|| {
            let (gate, guarded) = (gate.clone(), guarded.clone());
            thread::spawn(move || {
                own_slot(0);
                let Ok(guard) = gate.try_lock_shared(false) else { return };
                guarded.read();
                drop(guard);
            })
        });
        let guard = gate.lock_exclusive(false, &mut || {});
        guarded.change();
        drop(guard);
        holder.join().unwrap();
        reader.into_iter().for_each(|reader| reader.join().unwrap());
        // Open again, and nobody is left in the line.
        let guard = gate.try_lock_shared(false).expect("the gate is open");
        assert_eq!(guarded.read(), 2);
        drop(guard);
    });
}

#[test]
fn holders_hand_the_gate_over_closed() {
    holders_in_a_row("handed_over_closed", 16, false);
}

#[test]
fn holders_hand_the_gate_over_opened() {
    holders_in_a_row("handed_over_opened", 0, false);
}

#[test]
fn sharing_beside_a_gate_that_is_handed_over() {
    holders_in_a_row("sharing_beside_a_hand_over", 16, true);
}

#[test]
fn sharing_between_two_holders() {
    holders_in_a_row("sharing_between_holders", 0, true);
}

/// A conversion dirties the inode, then publishes the written block: whoever maps first and views then never takes a
/// converted block for durable. The same for a decision that was kept: it counts only while neither mapping nor view
/// changed, and is asked in this order.
#[test]
fn who_sees_a_converted_block_sees_that_it_is_not_durable() {
    model("view_after_mapping", || {
        let inode = Arc::new(InodeState::new(1 << 20, 12, std::sync::Arc::new(AtomicU64::new(6))));
        let run = Run { first: 0, length: 8, state: State::Unwritten, physical: 100 };
        inode.map.lock().add(0, 8, &[run]).unwrap();
        let kept = (inode.changes(), inode.view());
        let converter = {
            let inode = inode.clone();
            thread::spawn(move || inode.converted(&mut inode.map.lock(), 7, &[0..8]).unwrap())
        };
        // The first reader has kept what it saw before, the second looks anew.
        let found = inode.map.find(3);
        let changes = inode.changes();
        let dirty = inode.view().datasync_dirty;
        if let Found::Known { state: State::Written, .. } = found {
            assert!(dirty, "a converted block passes for durable");
            assert!(changes != kept.0, "what was decided before the conversion is still believed");
        }
        assert!(!kept.1.datasync_dirty);
        converter.join().unwrap();
        assert!(inode.view().datasync_dirty);
    });
}

/// The same with the commit that makes the conversion durable, and a second conversion behind it. A reader takes a
/// written block for durable only if the transaction that converted it is, and whoever kept such a decision, with the
/// count of changes that it was made under, drops it before the next conversion shows.
#[test]
fn a_converted_block_is_durable_once_its_transaction_is_committed() {
    model("conversion_and_commit", || {
        let committed = std::sync::Arc::new(AtomicU64::new(6));
        let inode = Arc::new(InodeState::new(1 << 20, 12, committed.clone()));
        let run = Run { first: 0, length: 8, state: State::Unwritten, physical: 100 };
        inode.map.lock().add(0, 8, &[run]).unwrap();
        // What the medium has: the number of the transaction whose commit block is durable.
        let durable = Arc::new(AtomicU64::new(6));
        let writer = {
            let (inode, durable) = (inode.clone(), durable.clone());
            thread::spawn(move || {
                inode.converted(&mut inode.map.lock(), 7, &[0..4]).unwrap();
                // The handle stopped: now the transaction may commit.
                durable.store(7, Ordering::Relaxed);
                committed.fetch_max(7, Ordering::Release);
                inode.converted(&mut inode.map.lock(), 8, &[4..8]).unwrap();
            })
        };
        let look = |block, tid| {
            let generation = inode.map.generation();
            let written = matches!(inode.map.find(block), Found::Known { state: State::Written, .. });
            let changes = inode.changes();
            let fua = written && !inode.view().datasync_dirty;
            if fua {
                assert!(durable.load(Ordering::Relaxed) >= tid, "block {block} passes for durable");
            }
            (generation, changes, fua)
        };
        let kept = look(0, 7);
        look(4, 8);
        // A window that was kept is asked in this order.
        if kept.2 && inode.map.generation() == kept.0 && inode.changes() == kept.1 {
            assert!(durable.load(Ordering::Relaxed) >= 7);
        }
        writer.join().unwrap();
        assert!(inode.view().datasync_dirty, "transaction 8 is not committed");
    });
}

/// Two callers whose data is complete and one flush at a time: each returns only when a flush that started after its
/// data was complete has ended.
#[test]
fn a_shared_flush_covers_what_was_complete() {
    model("flush_tickets", || {
        let tickets = Arc::new(FlushTickets::new());
        let live = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        let durable = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        let caller = |index: usize| {
            let (tickets, live, durable) = (tickets.clone(), live.clone(), durable.clone());
            move || {
                live[index].store(1, Ordering::Relaxed);
                let flushed = tickets.covered(|| {
                    // What is complete when it starts, and nothing of what comes later.
                    let taken = [0, 1, 2].map(|index: usize| live[index].load(Ordering::Relaxed));
                    thread::yield_now();
                    for (index, taken) in taken.into_iter().enumerate() {
                        durable[index].fetch_max(taken, Ordering::Relaxed);
                    }
                    Ok::<(), ()>(())
                });
                assert_eq!(flushed, Ok(()));
                assert_eq!(durable[index].load(Ordering::Relaxed), 1, "acknowledged and not durable");
            }
        };
        let others = [thread::spawn(caller(0)), thread::spawn(caller(1))];
        caller(2)();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
