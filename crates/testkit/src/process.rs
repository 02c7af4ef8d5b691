//! Tests whose subject belongs to the whole process (signals, forks, peaks of memory, counted allocations) run in a
//! process of their own: the tests of a crate are one program, and others run beside them.

use std::process::Command;

/// Set in the child, to the name of its test.
const NAME: &str = "UEXT4_OWN_PROCESS";

/// Runs the calling test again, as the only test of a new process, and says that it did: the caller returns. False in
/// that process: the caller goes on with the test.
///
/// # Panics
/// If the test fails there. Its output is passed on.
#[track_caller]
#[must_use = "the process that started the test returns from it"]
pub fn runs_elsewhere(name: &str) -> bool {
    // The path of a test within its program: what leads to it, without the program.
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    if std::env::var_os(NAME).is_some_and(|own| own == name) {
        return false;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new(program)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(NAME, name)
        .output()
        .expect("this program starts once more");
    let said = String::from_utf8_lossy(&output.stdout);
    let (told, complained) = (said.as_ref(), String::from_utf8_lossy(&output.stderr));
    print!("{told}");
    eprint!("{complained}");
    assert!(output.status.success(), "{name} failed in a process of its own: {}", output.status);
    assert!(told.contains("test result: ok. 1 passed"), "no test is named {name}");
    true
}

/// Makes the calling test run in a process of its own.
#[macro_export]
macro_rules! own_process {
    () => {
        fn __whole() {}
        // The name of a function nested in the test is the test's own path plus one segment.
        if $crate::process::runs_elsewhere(
            ::std::any::type_name_of_val(&__whole).trim_end_matches("::__whole"),
        ) {
            return;
        }
    };
}
