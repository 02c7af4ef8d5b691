//! The static tracepoints of the program: they are there, and where Linux's tools look for them.

use std::collections::BTreeSet;
use std::process::Command;
use uext4_testkit::{Need, needs};

fn readelf(option: &str) -> String {
    let done = Command::new("readelf").args([option, env!("CARGO_BIN_EXE_uext4")]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn every_probe_of_the_guide_is_in_the_program() {
    needs!(Need::Tool("readelf"));
    let notes = readelf("-n");
    let mut lines = notes.lines().map(str::trim);
    let mut found = BTreeSet::new();
    while let Some(line) = lines.next() {
        if line == "Provider: uext4" {
            found.extend(lines.next().and_then(|line| line.strip_prefix("Name: ")).map(str::to_owned));
        }
    }
    let guide = include_str!("../../../docs/guide/tuning.md");
    let section = guide.split("| probe | arguments |").nth(1).unwrap();
    let rows = section.lines().skip(2).take_while(|line| line.starts_with('|'));
    let told: BTreeSet<_> = rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect();
    assert_eq!(found, told);
}

/// `perf` takes the place in memory of an instruction for its place in the file (`build.rs`).
#[test]
fn code_lies_in_the_file_as_in_memory() {
    needs!(Need::Tool("readelf"));
    let segments = readelf("-lW");
    let loads = segments.lines().filter_map(|line| line.trim().strip_prefix("LOAD"));
    let code: Vec<_> = loads.filter(|load| load.contains(" R E ")).collect();
    assert!(!code.is_empty(), "{segments}");
    for load in code {
        let mut words = load.split_whitespace();
        let (offset, address) = (words.next().unwrap(), words.next().unwrap());
        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        assert_eq!(number(offset), number(address), "{load}");
    }
}
