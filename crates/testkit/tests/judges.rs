//! The digest, the generator, and what e2fsck says.

use uext4_testkit::oracle::Fsck;
use uext4_testkit::{Rng, SparseDigest};

fn digest(pieces: &[(u64, &[u8])], size: u64) -> [u8; 32] {
    let mut d = SparseDigest::new();
    for (offset, data) in pieces {
        d.update(*offset, data);
    }
    d.finish(size)
}

#[test]
fn holes_and_zeros_and_piece_borders_do_not_matter() {
    let mut whole = vec![0u8; 20_000];
    whole[9_000..9_100].fill(7);
    let dense = digest(&[(0, &whole)], 20_000);
    assert_eq!(dense, digest(&[(9_000, &[7; 100])], 20_000));
    assert_eq!(dense, digest(&[(9_000, &[7; 30]), (9_030, &[7; 70]), (12_000, &[0; 5])], 20_000));
}

#[test]
fn content_place_and_size_matter() {
    let base = digest(&[(9_000, &[7; 100])], 20_000);
    assert_ne!(base, digest(&[(9_000, &[8; 100])], 20_000));
    assert_ne!(base, digest(&[(9_001, &[7; 100])], 20_000));
    assert_ne!(base, digest(&[(9_000 + 4096, &[7; 100])], 20_000));
    assert_ne!(base, digest(&[(9_000, &[7; 100])], 20_001));
}

#[test]
#[should_panic(expected = "must ascend")]
fn overlap_is_refused() {
    digest(&[(100, &[1; 10]), (109, &[1; 10])], 200);
}

#[test]
fn equals_the_published_sequence() {
    // First outputs of SplitMix64 for seed 1234567, as listed with the reference implementation.
    let mut rng = Rng::new(1_234_567);
    let got: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
    assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
}

#[test]
fn stays_in_bounds_and_reaches_all() {
    let mut rng = Rng::new(7);
    let mut seen = [false; 10];
    for _ in 0..1000 {
        seen[rng.range(5..15) as usize - 5] = true;
    }
    assert_eq!(seen, [true; 10]);
}

#[test]
fn forks_differ_and_repeat() {
    let rng = Rng::new(1);
    assert_ne!(rng.fork(0).next_u64(), rng.fork(1).next_u64());
    assert_eq!(rng.fork(3).next_u64(), rng.fork(3).next_u64());
}

#[test]
fn routine_lines_are_not_findings() {
    let output = "e2fsck 1.47.0 (5-Feb-2023)\nPass 1: Checking inodes, blocks, and sizes\n\
                  Pass 5: Checking group summary information\n\
                  vol: 11/64 files (0.0% non-contiguous), 1/2 blocks\n";
    let report = Fsck { status: 0, output: output.into() };
    assert!(report.is_clean(), "{:?}", report.findings());
}

#[test]
fn everything_else_is() {
    for line in [
        "Warning: skipping journal recovery because doing a read-only filesystem check.",
        "Pass 1B: Rescanning for multiply-claimed blocks",
        "Block bitmap differences:  +1234",
        "Fix? no",
    ] {
        let report = Fsck { status: 0, output: format!("{line}\n") };
        assert_eq!(report.findings(), [line]);
        assert!(!report.is_clean());
    }
    assert!(!Fsck { status: 4, output: String::new() }.is_clean());
}
