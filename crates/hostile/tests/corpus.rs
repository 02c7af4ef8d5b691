//! The inputs that the long runs found worth keeping (`fuzz/corpus/*.tar.zst`): each reaches something that the others
//! do not. Each goes through the target that it was found for.

use std::path::PathBuf;
use uext4_hostile::targets::TARGETS;
use uext4_hostile::{budget, gather, images};
use uext4_testkit::{Need, Scratch, needs, oracle};

#[test]
fn kept_inputs_are_survived() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"), Need::Tool("tar"));
    let mut failures = Vec::new();
    for target in TARGETS {
        failures.extend(each(target.name(), |input| {
            let (_, mutated) = target.image_of(input);
            budget::run(target, &mutated.image).map(drop)
        }));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Archives and images of containers that become volumes, or are refused.
#[test]
fn kept_archives_are_volumes_or_refused() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"), Need::Tool("tar"));
    let mut volumes = 0;
    let failures = each("gather", |input| {
        volumes += usize::from(budget::within(|| gather::run(input))?.found > 0);
        Ok(())
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(volumes > 100, "{volumes} volumes");
}

/// Passes the inputs of a target to `run`. What failed.
fn each(target: &str, mut run: impl FnMut(&[u8]) -> Result<(), String>) -> Vec<String> {
    let packed: PathBuf = images::fuzz_dir().join(format!("corpus/{target}.tar.zst"));
    let scratch = Scratch::new(64 << 20);
    oracle::run(oracle::command("tar").arg("--zstd").arg("-xf").arg(packed).arg("-C").arg(scratch.path()));
    let (mut failures, mut count) = (Vec::new(), 0);
    for path in std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()) {
        if let Err(what) = run(&std::fs::read(&path).unwrap()) {
            failures.push(format!("{target}: {}: {what}", path.display()));
        }
        count += 1;
    }
    println!("{target}: {count} inputs");
    assert!(count > 100, "{target}: {count} inputs");
    failures
}
