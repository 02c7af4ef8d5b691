//! The gate's promises that its models leave out.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use uext4_iomap::gate::{Busy, InodeGate};
use uext4_iomap::{InodeState, heavy_fences};

/// Bytes of an inode whose map is that of a small file.
fn bytes(inode: &InodeState) -> usize {
    size_of::<InodeState>() + inode.gate.allocated_bytes() + inode.map.lock().resident_bytes()
}

fn fences(run: impl FnOnce()) -> u64 {
    let before = heavy_fences();
    run();
    heavy_fences() - before
}

/// Exclusively, shared, twice shared, exclusively again.
fn use_it(gate: &InodeGate) {
    drop(gate.lock_exclusive(true, &mut || {}));
    let outer = gate.lock_shared(true, &mut || {});
    drop(gate.lock_shared(false, &mut || {}));
    drop(outer);
    let alone = gate.lock_exclusive(false, &mut || {});
    assert!(alone.is_exclusive());
}

/// Most inodes are used by one thread: it pays for no barrier, and memory for others comes with them.
#[test]
fn a_thread_alone_pays_for_nobody_else() {
    let inode = InodeState::new(1 << 20, 12, Default::default());
    let gate = &inode.gate;
    assert_eq!(fences(|| (0..100).for_each(|_| use_it(gate))), 0);
    assert!(bytes(&inode) <= 1024, "{} bytes", bytes(&inode));
    std::thread::scope(|scope| {
        let second = || {
            assert_eq!(fences(|| drop(gate.lock_shared(true, &mut || {}))), 1, "it comes second");
            assert_eq!(fences(|| drop(gate.lock_shared(true, &mut || {}))), 0, "once");
        };
        scope.spawn(second).join().unwrap();
    });
    assert!(gate.allocated_bytes() > 0);
    // From now on every exclusive holder has to ask the others.
    assert_eq!(fences(|| use_it(gate)), 2);
    assert_eq!(gate.in_flight(), 0);
    // A queue is somebody else, too: of a gate that nobody has used it need not ask anybody.
    let other = InodeState::new(0, 12, Default::default());
    assert_eq!(fences(|| drop(other.gate.register(&mut || ()))), 0);
    assert_eq!(fences(|| use_it(&other.gate)), 2);
}

/// Whoever opens a file and looks at it or changes its size does not own its gate: the thread that uses it then does.
#[test]
fn a_visitor_leaves_the_gate_to_who_uses_the_file() {
    let visits: [fn(&InodeGate); 3] = [
        |gate| drop(gate.visit_exclusive(true, &mut || {})),
        |gate| {
            drop(gate.lock_shared(false, &mut || {}));
            gate.end_visit();
        },
        |gate| {
            // A write between two visits is one all the same.
            drop(gate.visit_exclusive(false, &mut || {}));
            use_it(gate);
            drop(gate.visit_exclusive(false, &mut || {}));
        },
    ];
    for visit in visits {
        let gate = InodeGate::new();
        assert_eq!(fences(|| visit(&gate)), 0);
        std::thread::scope(|scope| {
            let user = || {
                assert_eq!(fences(|| (0..10).for_each(|_| use_it(&gate))), 0);
                // It stays so: this thread uses it.
                let outer = gate.lock_shared(true, &mut || {});
                gate.end_visit();
                drop(outer);
            };
            scope.spawn(user).join().unwrap();
        });
        assert_eq!(gate.allocated_bytes(), 0, "only one at a time was there");
    }
    // Of a gate that others use, nothing is given up.
    let gate = InodeGate::new();
    drop(gate.lock_shared(true, &mut || {}));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(gate.lock_shared(true, &mut || {}))).join().unwrap();
    });
    assert_eq!(fences(|| drop(gate.visit_exclusive(true, &mut || {}))), 1);
    gate.end_visit();
    use_it(&gate);
}

/// Whoever uses a file that somebody else has opened soon pays for nobody else either. Whoever comes then gets in at
/// once, and coming often puts that off.
#[test]
fn a_gate_is_lent_to_who_uses_it() {
    let gate = InodeGate::new();
    drop(gate.lock_shared(true, &mut || {}));
    let visit = || {
        std::thread::scope(|scope| {
            let visitor = || {
                assert!(gate.try_lock_shared(true).is_ok(), "nobody is inside");
                assert_eq!(fences(|| drop(gate.try_lock_shared(true))), 0, "open");
            };
            scope.spawn(visitor).join().unwrap();
        });
    };
    visit();
    let holds = |count| fences(|| (0..count).for_each(|_| drop(gate.lock_exclusive(true, &mut || {}))));
    assert_eq!(holds(100), 4);
    assert_eq!(fences(|| (0..100).for_each(|_| use_it(&gate))), 0, "shared and exclusively");
    // Each of these was worth its end, …
    for after in [4, 4, 4] {
        visit();
        assert_eq!(holds(100), after);
    }
    visit();
    assert_eq!(holds(5), 4);
    // … and these were not.
    for after in [8, 16, 32] {
        visit();
        assert_eq!(holds(after + 1), after);
    }
    visit();
    assert_eq!(holds(200), 64);
    // A queue ends it too, and as long as one is there nobody gets the gate.
    assert!(gate.is_lent());
    let cell = gate.register(&mut || ());
    assert!(!gate.is_lent());
    assert_eq!(holds(100), 100);
    assert!(!gate.is_lent());
    gate.unregister(&cell);
    assert_eq!(holds(1), 1);
    assert_eq!(holds(100), 0);
}

/// A gate that is lent to the calling thread.
fn lent() -> InodeGate {
    let gate = InodeGate::new();
    // A thread that came later could have the number of one that came before and is gone, and own the gate with it.
    drop(gate.lock_shared(true, &mut || {}));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(gate.lock_shared(true, &mut || {}))).join().unwrap();
    });
    (0..10).for_each(|_| drop(gate.lock_exclusive(true, &mut || {})));
    assert!(gate.is_lent());
    gate
}

/// The borrower's mark is as good as any hold.
#[test]
fn who_comes_to_a_lent_gate_waits_for_its_borrower() {
    for way in 0..4 {
        let gate = lent();
        let held = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let mut lent = None;
            assert_eq!(fences(|| lent = Some(gate.lock_exclusive(true, &mut || {}))), 0, "it is lent");
            assert_eq!(gate.try_lock_shared(true).err(), Some(Busy), "the borrower itself shares it no more");
            let other = scope.spawn(|| {
                assert_eq!(gate.try_lock_shared(true).err(), Some(Busy));
                match way {
                    0 => drop(gate.lock_shared(true, &mut || {})),
                    1 => drop(gate.lock_exclusive(true, &mut || {})),
                    2 => drop(gate.lock_exclusive(false, &mut || {})),
                    _ => {
                        let cell = gate.register(&mut || ());
                        while gate.enter(&cell).is_err() {
                            gate.wait_open(&mut || {});
                        }
                        gate.leave(&cell);
                        gate.complete(&cell);
                        gate.unregister(&cell);
                    }
                }
                assert!(!held.load(Ordering::SeqCst), "way {way} did not wait");
            });
            std::thread::sleep(Duration::from_millis(20));
            held.store(false, Ordering::SeqCst);
            drop(lent);
            other.join().unwrap();
        });
        use_it(&gate);
    }
}

/// The owner's mark is as good as the word that everybody looks at.
#[test]
fn who_comes_second_waits_for_an_owner_alone() {
    for way in 0..3 {
        let gate = InodeGate::new();
        let (held, tried) = (AtomicBool::new(true), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let alone = gate.lock_exclusive(true, &mut || {});
            assert_eq!(gate.try_lock_shared(true).err(), Some(Busy), "the owner itself shares it no more");
            let second = scope.spawn(|| {
                assert_eq!(gate.try_lock_shared(true).err(), Some(Busy));
                tried.store(true, Ordering::SeqCst);
                match way {
                    0 => drop(gate.lock_shared(true, &mut || {})),
                    1 => drop(gate.lock_exclusive(true, &mut || {})),
                    _ => {
                        let cell = gate.register(&mut || ());
                        gate.unregister(&cell);
                    }
                }
                assert!(!held.load(Ordering::SeqCst), "way {way} did not wait");
            });
            while !tried.load(Ordering::SeqCst) {
                assert!(!second.is_finished(), "it did not find the gate busy");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            held.store(false, Ordering::SeqCst);
            drop(alone);
            second.join().unwrap();
        });
        use_it(&gate);
    }
}

/// Of the owner, of another thread, and of a queue that is gone.
#[test]
fn every_write_is_remembered() {
    let gate = InodeGate::new();
    assert_eq!(gate.last_write_ns(), 0);
    let cell = gate.register(&mut || ());
    gate.note_write(&cell, 7);
    gate.unregister(&cell);
    assert_eq!(gate.last_write_ns(), 7);
    let cell = gate.register(&mut || ());
    gate.note_write(&cell, 9);
    assert_eq!(gate.last_write_ns(), 9);
    gate.unregister(&cell);
}

/// A gate that is handed over closed is not yet drained: the holder before may not have asked for that.
#[test]
fn who_gets_the_gate_from_another_holder_drains_all_the_same() {
    let gate = InodeGate::new();
    let cell = gate.register(&mut || ());
    gate.enter(&cell).unwrap();
    gate.leave(&cell);
    let completed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let holder = gate.lock_exclusive(false, &mut || {});
        scope.spawn(|| {
            let drained = gate.lock_exclusive(true, &mut || {});
            assert!(completed.load(Ordering::SeqCst), "a request is in flight");
            drop(drained);
        });
        // It stands in the line.
        std::thread::sleep(Duration::from_millis(50));
        drop(holder);
        std::thread::sleep(Duration::from_millis(50));
        completed.store(true, Ordering::SeqCst);
        gate.complete(&cell);
    });
    gate.unregister(&cell);
}

/// Whoever waits for the borrower has the turn already: if that ends him, the turn is the next one's.
#[test]
fn a_panic_while_a_lease_ends_leaves_the_gate_to_others() {
    for others in [0, 2] {
        let gate = lent();
        let (done, waits) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let lent = gate.lock_exclusive(true, &mut || {});
            let unlucky = scope.spawn(|| {
                let mut help = || {
                    waits.store(true, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    panic!("on purpose");
                };
                drop(gate.lock_exclusive(true, &mut help));
            });
            while !waits.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            for _ in 0..others {
                scope.spawn(|| {
                    drop(gate.lock_exclusive(true, &mut || {}));
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
            assert!(unlucky.join().is_err());
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(done.load(Ordering::SeqCst), 0, "the borrower holds it");
            drop(lent);
        });
        assert_eq!(done.load(Ordering::SeqCst), others);
        drop(gate.lock_exclusive(true, &mut || {}));
    }
}

/// A gate that is free is taken without waiting; whoever else uses it is not waited for.
#[test]
fn a_visit_is_not_waited_for() {
    let gate = InodeGate::new();
    let taken = |gate: &InodeGate| gate.try_visit_exclusive().map(|held| held.is_exclusive());
    let elsewhere =
        |gate: &InodeGate| std::thread::scope(|scope| scope.spawn(|| taken(gate)).join().unwrap());
    // Unused: each thread may, since the one before was only a visitor.
    assert_eq!([taken(&gate), elsewhere(&gate), taken(&gate)], [Some(true); 3]);
    let inside = gate.try_lock_shared(true).unwrap();
    assert_eq!([taken(&gate), elsewhere(&gate)], [None; 2], "somebody is inside");
    drop(inside);
    assert_eq!([elsewhere(&gate), taken(&gate)], [Some(true); 2], "it is shared, and free again");
    let alone = gate.lock_exclusive(true, &mut || {});
    assert_eq!(elsewhere(&gate), None, "it is held");
    drop(alone);
    let held = gate.try_visit_exclusive().unwrap();
    std::thread::scope(|scope| {
        assert!(scope.spawn(|| gate.try_lock_shared(true).is_err()).join().unwrap(), "nobody comes in");
    });
    drop(held);
    // Lent to a thread that has held it again and again.
    (0..20).for_each(|_| drop(gate.lock_exclusive(true, &mut || {})));
    assert!(gate.is_lent());
    assert_eq!([taken(&gate), elsewhere(&gate), elsewhere(&gate)], [Some(true); 3]);
    let lent = {
        (0..200).for_each(|_| drop(gate.lock_exclusive(true, &mut || {})));
        assert!(gate.is_lent());
        gate.lock_exclusive(true, &mut || {})
    };
    assert_eq!(elsewhere(&gate), None, "the borrower holds it");
    drop(lent);
    // A request that another thread has in flight.
    let cell = gate.register(&mut || {});
    gate.enter(&cell).unwrap();
    gate.leave(&cell);
    assert_eq!([taken(&gate), elsewhere(&gate)], [None; 2], "a request is in flight");
    gate.complete(&cell);
    assert_eq!([taken(&gate), elsewhere(&gate)], [Some(true); 2]);
    gate.unregister(&cell);
}
