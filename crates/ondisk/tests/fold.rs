//! Folded names against e2fsprogs: `debugfs dx_hash -e utf8 -c` hashes the form that its own tables of Unicode
//! 12.1 give, so equal hashes mean equal forms.

use std::process::Command;

use uext4_ondisk::ext4::{CaseFolder, HashVersion, dir_hash};

/// `dx_hash` of each name, by one debugfs: major and minor hash.
fn hashed_by_debugfs(options: &str, names: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    let request = format!("dx_hash {options} ");
    let lines: Vec<_> = names.iter().flat_map(|name| [request.as_bytes(), name, b"\n"].concat()).collect();
    std::fs::write(&script, lines).unwrap();
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("debugfs").env("PATH", path).arg("-f").arg(&script).output().unwrap();
    let said = output.stdout.split(|&byte| byte == b'\n');
    let hashes = said.filter(|line| line.starts_with(b"Hash of ")).map(|line| {
        let tail = String::from_utf8_lossy(&line[line.len().saturating_sub(50)..]).into_owned();
        let numbers: Vec<u32> = tail
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter_map(|word| word.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok()))
            .collect();
        let [.., major, minor] = numbers[..] else { panic!("{tail}") };
        (major, minor)
    });
    let hashes: Vec<_> = hashes.collect();
    assert_eq!(hashes.len(), names.len(), "{}", String::from_utf8_lossy(&output.stderr));
    hashes
}

/// Code points that a request of debugfs can carry.
fn points() -> impl Iterator<Item = char> {
    ('!'..=char::MAX).filter(|point| !matches!(point, '"' | '\u{7F}'))
}

#[track_caller]
fn assert_folded_as_debugfs(names: &[Vec<u8>]) {
    let mut folder = CaseFolder::new();
    let expected = hashed_by_debugfs("-h half_md4 -e utf8 -c", names);
    for (name, expected) in names.iter().zip(expected) {
        let form = folder.fold(name).unwrap();
        let hash = dir_hash(form, HashVersion::HalfMd4, &[0; 4]).unwrap();
        assert_eq!((hash.major, hash.minor), expected, "{}", name.escape_ascii());
    }
}

#[test]
fn every_code_point_folds_as_in_e2fsprogs() {
    let all: Vec<char> = points().collect();
    let names: Vec<Vec<u8>> =
        all.chunks(16).map(|points| points.iter().collect::<String>().into_bytes()).collect();
    assert_folded_as_debugfs(&names);
}

/// Letters, marks of many classes, ignorable and later code points, Hangul. (debugfs gives no hash for what is
/// not UTF-8.)
const PARTS: [&str; 25] = [
    "a",
    "Q",
    "É",
    "ß",
    "Σ",
    "ᾴ",
    "한",
    "\u{1112}\u{1161}",
    "İ",
    "\u{301}",
    "\u{323}",
    "\u{334}",
    "\u{345}",
    "\u{3099}",
    "\u{5B4}",
    "\u{5BC}",
    "\u{F71}",
    "\u{F73}",
    "\u{1D160}",
    "\u{200D}",
    "\u{FE0F}",
    "\u{34F}",
    // Marks of Unicode 13.0 and 14.0: of class 0 here.
    "\u{1ABF}",
    "\u{1DFA}",
    "🧀",
];

#[test]
fn sequences_fold_as_in_e2fsprogs() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % bound
    };
    let mut name = || -> String { (0..1 + below(12)).map(|_| PARTS[below(PARTS.len())]).collect() };
    let names: Vec<Vec<u8>> = (0..40_000).map(|_| name().into_bytes()).collect();
    assert_folded_as_debugfs(&names);
}

#[test]
fn names_hash_as_in_e2fsprogs() {
    let names: Vec<Vec<u8>> = points().step_by(37).map(|point| format!("{point}-x{point}").into()).collect();
    for (option, version) in
        [("legacy", HashVersion::Legacy), ("half_md4", HashVersion::HalfMd4), ("tea", HashVersion::Tea)]
    {
        for (seed, words) in [
            ("", [0; 4]),
            ("-s 0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", [0x3C2D_1E0F, 0x7869_5A4B, 0xB4A5_9687, 0xF0E1_D2C3]),
        ] {
            let expected = hashed_by_debugfs(&format!("-h {option} {seed}"), &names);
            for (name, expected) in names.iter().zip(expected) {
                let hash = dir_hash(name, version, &words).unwrap();
                assert_eq!((hash.major, hash.minor), expected, "{option} {}", name.escape_ascii());
            }
        }
    }
}
