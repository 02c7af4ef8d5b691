//! Tests on devices that only the virtual machine has: polled NVMe with FUA, null_blk, persistent memory.
//!
//! Run by `vm/init` in the guest without arguments, or with parts of test names. Prints `GUEST-PASS name` and
//! `GUEST-FAIL name: reason`; the exit status says whether all passed. The program owns the devices: each
//! test finds them with any content and leaves them so.

mod devices;
mod folding;
mod power_cut;
mod quota;
mod trace;
mod verity;
mod volumes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;

/// A name that begins with `vm_`, and a function that panics on failure.
type Test = (&'static str, fn());

/// Where the last panic happened and what it said, in one line.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        *LAST_PANIC.lock().expect("never poisoned") = info.to_string().replace('\n', " ");
    }));
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted == ["power-cut"] {
        power_cut::load();
    }
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let groups = [devices::TESTS, trace::TESTS, volumes::TESTS, folding::TESTS, quota::TESTS, verity::TESTS];
    let tests: Vec<&Test> = groups.into_iter().flatten().filter(|(name, _)| chosen(name)).collect();
    let failed = tests.iter().filter(|test| !passes(test)).count();
    if failed == 0 && !tests.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn passes((name, test): &Test) -> bool {
    if catch_unwind(AssertUnwindSafe(test)).is_ok() {
        println!("GUEST-PASS {name}");
        return true;
    }
    println!("GUEST-FAIL {name}: {}", LAST_PANIC.lock().expect("never poisoned"));
    false
}
