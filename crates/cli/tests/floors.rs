//! The measured promises: `uext4 bench --floors` in the release build. Run by `make floors`, not by `make
//! test`: ratios of speeds depend on the machine being quiet.
#![cfg(not(debug_assertions))]

use std::process::Command;

#[test]
fn floors_hold() {
    let status = Command::new(env!("CARGO_BIN_EXE_uext4")).args(["bench", "--floors"]).status();
    assert!(status.expect("uext4 runs").success(), "a floor is not reached, see the table above");
}
