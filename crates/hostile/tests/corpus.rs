//! The inputs that the long runs found worth keeping (`fuzz/corpus/*.tar.zst`): each reaches something that the others
//! do not. Each goes through the target that it was found for.

use uext4_hostile::targets::TARGETS;
use uext4_hostile::{budget, images};
use uext4_testkit::{Need, Scratch, needs, oracle};

#[test]
fn kept_inputs_are_survived() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"), Need::Tool("tar"));
    let mut failures = Vec::new();
    for target in TARGETS {
        let packed = images::fuzz_dir().join(format!("corpus/{}.tar.zst", target.name()));
        let scratch = Scratch::new(64 << 20);
        oracle::run(
            oracle::command("tar").arg("--zstd").arg("-xf").arg(packed).arg("-C").arg(scratch.path()),
        );
        let inputs = std::fs::read_dir(scratch.path()).unwrap();
        let mut count = 0;
        for path in inputs.map(|entry| entry.unwrap().path()) {
            let (_, mutated) = target.image_of(&std::fs::read(&path).unwrap());
            if let Err(what) = budget::run(target, &mutated.image) {
                failures.push(format!("{}: {}: {what}", target.name(), path.display()));
            }
            count += 1;
        }
        println!("{}: {count} inputs", target.name());
        assert!(count > 100, "{}: {count} inputs", target.name());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
