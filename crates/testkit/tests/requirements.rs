//! What a test needs, and what is told if it is missing.

use uext4_testkit::{Need, needs};

#[test]
fn a_missing_program_is_named() {
    let need = Need::Tool("no-such-program-anywhere");
    assert_eq!(need.missing().unwrap(), "needs the program `no-such-program-anywhere`");
    assert_eq!(Need::Tool("sh").missing(), None);
    assert_eq!(Need::Runs(&["true"]).missing(), None);
    assert_eq!(Need::Runs(&["false", "it"]).missing().unwrap(), "needs that `false it` succeeds");
    assert_eq!(Need::Runs(&["no-such-program"]).missing().unwrap(), "needs the program `no-such-program`");
    assert!(Need::Memory(u64::MAX).missing().is_some());
}

#[test]
fn needs_returns_early_and_passes_the_test_name() {
    fn inner(reached: &mut bool) {
        needs!(Need::Tool("sh"));
        *reached = true;
    }
    let mut reached = false;
    inner(&mut reached);
    assert!(reached);
}
