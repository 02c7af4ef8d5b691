//! Images that once broke a promise (`fuzz/regressions/*.patch`), each through every target.

use uext4_hostile::targets::TARGETS;
use uext4_hostile::{budget, images, patch};
use uext4_testkit::{Need, needs};

#[test]
fn what_once_failed_stays_mended() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    let dir = images::fuzz_dir().join("regressions");
    let mut paths: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut failures = Vec::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|ending| ending == "patch")) {
        let text = std::fs::read_to_string(path).unwrap();
        let image = patch::apply(&text).unwrap_or_else(|line| panic!("{}: {line}", path.display()));
        for target in TARGETS {
            if let Err(what) = budget::run(target, &image) {
                failures.push(format!("{}: {}: {what}", path.display(), target.name()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
