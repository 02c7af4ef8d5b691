//! The gate's promises that its models leave out.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uext4_iomap::gate::InodeGate;

/// A gate that is handed over closed is not yet drained: the holder before may not have asked for that.
#[test]
fn who_gets_the_gate_from_another_holder_drains_all_the_same() {
    let gate = InodeGate::new();
    let cell = gate.register();
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
