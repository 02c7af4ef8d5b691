//! The promised ratios, measured: `make floors`. Only the shipped code counts: a debug build has no such test.
#![cfg(not(debug_assertions))]

use std::process::Command;

#[test]
fn every_floor_is_kept() {
    let status =
        Command::new(env!("CARGO_BIN_EXE_uext4")).args(["bench", "--floors"]).status().expect("uext4 runs");
    assert!(status.success(), "a floor is missed: see the table above");
}
