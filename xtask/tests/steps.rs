//! What `scripts/steps.sh` says of steps: which tests failed, by name, and that a step in which everything was skipped
//! is not ok.

use std::path::Path;
use std::process::Command;

/// Runs `script` with the functions of `steps.sh` in an empty directory: exit status and standard output.
fn run(script: &str) -> (bool, String) {
    let steps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/steps.sh");
    let dir = tempfile::tempdir().unwrap();
    let text = format!("set -u\n. '{}'\n{script}\n", steps.display());
    let output = Command::new("bash")
        .arg("-c")
        .arg(text)
        .current_dir(&dir)
        // Those of the run that this test is part of.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("STEPS")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let here = format!("{}/", dir.path().canonicalize().unwrap().display());
    (output.status.success(), String::from_utf8(output.stdout).unwrap().replace(&here, ""))
}

/// What `cargo test` prints of two programs of the same name, one of which fails, of one that is killed and of
/// examples in comments.
const FAILING: &str = r#"
tests() {
    cat <<'OUTPUT'
   Compiling something v0.1.0
     Running unittests src/lib.rs (target/debug/deps/one-0123456789abcdef)

running 1 test
test good ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running unittests src/lib.rs (target/debug/deps/two-0123456789abcdef)

running 3 tests
test inner::bad ... FAILED
test good ... ok
test worse ... FAILED

failures:

---- inner::bad stdout ----
    what it printed itself
failures:
    of its own

---- worse stdout ----

thread 'worse' panicked

failures:
    inner::bad
    worse

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/killed.rs (target/debug/deps/killed-0123456789abcdef)

running 1 test
   Doc-tests one

running 1 test
test crates/one/src/lib.rs - name (line 3) ... FAILED

failures:

failures:
    crates/one/src/lib.rs - name (line 3)

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
OUTPUT
    return 101
}
"#;

#[test]
fn failed_tests_are_named_at_the_end() {
    let (good, said) = run(&format!("{FAILING}\nstep tests tests\nstep lint false\nfinish"));
    assert!(!good);
    let end = said.split("Failed steps: ").nth(1).unwrap_or_else(|| panic!("{said}"));
    let expected = "tests lint (output in target/test-logs)
  tests: two src/lib.rs: inner::bad
  tests: two src/lib.rs: worse
  tests: tests/killed.rs: ended without a result
  tests: documentation of one: crates/one/src/lib.rs - name (line 3)
2 passed, 3 failed, 0 skipped
";
    assert_eq!(end, expected);
}

/// CI often asks cargo for colours.
#[test]
fn names_are_found_in_colours_too() {
    let script = r#"
tests() {
    printf '\033[1m\033[32m     Running\033[0m tests/one.rs (target/debug/deps/one-0123456789abcdef)\n\n'
    printf 'failures:\n\nfailures:\n    bad\n\n'
    printf 'test result: \033[31mFAILED\033[m. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n'
    return 101
}
step tests tests
finish
"#;
    let (good, said) = run(script);
    assert!(!good && said.ends_with("  tests: tests/one.rs: bad\n0 passed, 1 failed, 0 skipped\n"), "{said}");
}

#[test]
fn steps_are_chosen_and_a_wrong_name_is_told() {
    let steps = "step one echo 1\nstep two echo 2\nstep three false\nfinish";
    let (good, said) = run(&format!("STEPS=one,two\n{steps}"));
    assert!(good && said.contains("== one") && said.contains("== two") && !said.contains("three"), "{said}");
    let (good, said) = run(&format!("STEPS=two,tow\n{steps}"));
    assert!(!good && !said.contains("== one"), "{said}");
    assert!(said.contains("no step is named tow; there are: one two three"), "{said}");
}

#[test]
fn a_skipped_step_is_not_ok() {
    let script = r#"
whole() { echo "SKIP vm-test: needs a machine" | tee -a "$UEXT4_SKIP_LOG"; }
each() {
    echo "SKIP one::test: needs root" >> "$UEXT4_SKIP_LOG"
    echo "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
}
some() {
    echo "SKIP two::test: needs root" >> "$UEXT4_SKIP_LOG"
    echo "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
}
step whole whole
step each each
step some some
step all true
finish
"#;
    let (good, said) = run(script);
    assert!(good, "{said}");
    let verdicts: Vec<&str> =
        said.lines().filter_map(|line| Some(line.strip_prefix("== ")?.rsplit_once(", ")?.0)).collect();
    assert_eq!(verdicts, ["whole: skipped", "each: skipped", "some: ok, 1 skipped", "all: ok"], "{said}");
    assert!(said.ends_with("2 passed, 0 failed, 3 skipped\n"), "{said}");
}
