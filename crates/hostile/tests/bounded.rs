//! A bounded run of every target over seeds of the structured mutator: what `make fuzz` does for hours.
//!
//! `UEXT4_FUZZ_SEEDS` sets the number of seeds for each base image, `UEXT4_FUZZ_FIRST` the first; what fails is written
//! to `target/hostile/` as a patch for `fuzz/regressions`.

use std::path::PathBuf;

use uext4_hostile::budget::{self, Cost};
use uext4_hostile::images::{self, NAMES};
use uext4_hostile::patch;
use uext4_hostile::targets::Target;
use uext4_testkit::mutate::script_of;
use uext4_testkit::{Need, needs};

/// Seeds for each base image and target.
const SEEDS: u64 = 120;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn campaign(target: Target) {
    let (first, seeds) =
        (number("UEXT4_FUZZ_FIRST").unwrap_or(0), number("UEXT4_FUZZ_SEEDS").unwrap_or(SEEDS));
    // Panics are results here; their messages come with the report.
    let mut failures = Vec::new();
    let mut most = Cost::default();
    for index in target.images() {
        let sound = budget::run(target, &images::base(index).image).expect("a sound volume");
        let mut all = Cost::default();
        for seed in first..first + seeds {
            let mutated = images::base(index).mutate(&script_of(seed));
            match budget::run(target, &mutated.image) {
                Ok(cost) => all = all.max(cost),
                Err(what) => {
                    let name = format!("{}-{}-{seed}.patch", target.name(), NAMES[index]);
                    let mut comments = vec![format!("target {}: {what}", target.name())];
                    comments.extend(mutated.edits);
                    keep(&name, &patch::describe(index, &mutated.image, &comments));
                    failures.push(format!("{name}: {what}"));
                }
            }
        }
        println!("{} {}: {} on the sound volume, then {all:?}", target.name(), NAMES[index], sound.found);
        most = most.max(all);
    }
    println!("{}: {most:?}", target.name());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn keep(name: &str, text: &str) {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hostile");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(name), text).unwrap();
    println!("kept {}", dir.join(name).display());
}

#[test]
fn hostile_volumes_are_walked() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    campaign(Target::OpenWalkRead);
}

#[test]
fn hostile_logs_are_recovered_or_refused() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    campaign(Target::Recovery);
}

#[test]
fn hostile_volumes_are_overwritten_only_where_files_are() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    campaign(Target::Overwrite);
}

#[test]
fn hostile_volumes_are_checked() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    campaign(Target::Check);
}

#[test]
fn hostile_volumes_are_changed_or_refused() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    campaign(Target::Operate);
}
