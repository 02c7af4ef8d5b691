//! Models of the gate and of snapshot publication, explored by loom with up to three preemptions.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p uext4-iomap --test loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use uext4_iomap::gate::InodeGate;
use uext4_iomap::{Found, MapCell, MapSnapshot, Run, State};

fn model(name: &str, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
    println!("model {name}: explored");
}

/// An exclusive holder that drained never meets a request in flight, and a request never starts under it.
#[test]
fn exclusive_and_shared_exclude_each_other() {
    model("exclusive_and_shared", || {
        let gate = Arc::new(InodeGate::new());
        let cell = gate.register();
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

/// A reader that entered after a truncate published its snapshot never uses freed blocks; one that entered
/// before is waited for by the drain. `freed` stands for the blocks' reuse.
#[test]
fn a_published_snapshot_protects_freed_blocks() {
    model("snapshot_publication", || {
        let gate = Arc::new(InodeGate::new());
        let map = Arc::new(MapCell::new());
        let run = Run { first: 0, length: 8, state: State::Written, physical: 100 };
        map.lock().publish(MapSnapshot::unknown().replaced(0, 8, Some(&[run])));
        let (mut generation, mut seen) = map.current();
        let freed = Arc::new(AtomicU64::new(0));
        let cell = gate.register();
        let reader = {
            let (gate, map, freed) = (gate.clone(), map.clone(), freed.clone());
            thread::spawn(move || {
                if gate.enter(&cell).is_err() {
                    return;
                }
                if map.generation() != generation {
                    (generation, seen) = map.current();
                }
                let found = seen.find(3);
                gate.leave(&cell);
                // The device reads here, outside the gate, counted in flight.
                if let Found::Known { state: State::Written, .. } = found {
                    assert_eq!(freed.load(Ordering::Relaxed), 0, "read a block that was freed and reused");
                }
                gate.complete(&cell);
            })
        };
        let guard = gate.lock_exclusive(true, &mut || {});
        let mut writer = map.lock();
        let punched = writer.current().replaced(0, 8, Some(&[]));
        writer.publish(punched);
        drop(writer);
        freed.store(1, Ordering::Relaxed);
        drop(guard);
        reader.join().unwrap();
    });
}

/// The owner of a queue and a drainer that tries to harvest it are never inside together, and the owner never
/// waits for ever.
#[test]
fn owner_and_guest_exclude_each_other() {
    model("owner_lock", || {
        let inside = Arc::new(AtomicBool::new(false));
        let (mut owner, guest) = uext4_iomap::owner_lock::owner_lock(());
        let harvester = {
            let inside = inside.clone();
            thread::spawn(move || {
                if let Some(guard) = guest.try_lock() {
                    assert!(!inside.swap(true, Ordering::Relaxed), "the guest met the owner");
                    thread::yield_now();
                    inside.store(false, Ordering::Relaxed);
                    drop(guard);
                }
            })
        };
        for _ in 0..2 {
            let guard = owner.lock();
            assert!(!inside.swap(true, Ordering::Relaxed), "the owner met the guest");
            inside.store(false, Ordering::Relaxed);
            drop(guard);
        }
        harvester.join().unwrap();
    });
}
