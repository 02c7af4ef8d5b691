//! `mkdir`, `rmdir`, `mv`, `ln` and `rm`, each beside the tool of coreutils that does the same to a tree of the host.

use crate::common::{at, bad, good, json, of, text, uext4, volume};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Output;
use uext4_testkit::{Need, Volume, needs, oracle};

/// The volume, and a copy of its tree on the host.
struct Both {
    volume: Volume,
    host: PathBuf,
}

/// What is compared of a name: kind, permissions, link count, size of a file, target of a link.
type Row = (char, u32, u64, u64, PathBuf);

impl Both {
    fn new() -> Both {
        let volume = volume();
        let host = volume.scratch().file("host");
        good(of(&["cp", "-a"], &[&at(&volume, "/"), host.as_os_str()]));
        Both { volume, host }
    }

    /// Runs a command line on both, with `@` before each path; they must succeed alike.
    #[track_caller]
    fn run(&self, line: &str) -> Output {
        let words: Vec<&str> = line.split(' ').collect();
        let ours = words.iter().map(|word| match word.strip_prefix('@') {
            Some(path) => at(&self.volume, path),
            None => OsString::from(word),
        });
        let theirs = words[1..].iter().map(|word| match word.strip_prefix('@') {
            Some(path) => self.host.join(path.trim_start_matches('/')).into_os_string(),
            None => OsString::from(word),
        });
        let ours = uext4(ours);
        let tool = if words[0] == "rm" { vec!["--preserve-root"] } else { Vec::new() };
        let theirs = oracle::command(words[0]).args(tool).args(theirs).output().unwrap();
        let both = (ours.status.success(), theirs.status.success());
        assert!(both.0 == both.1, "{line}: {}, {}", oracle::text(&ours), oracle::text(&theirs));
        self.compare(line);
        ours
    }

    #[track_caller]
    fn compare(&self, line: &str) {
        let copy = self.volume.scratch().file("copy");
        good(of(&["cp", "-a"], &[&at(&self.volume, "/"), copy.as_os_str()]));
        let [ours, theirs] = [&copy, &self.host].map(|root| {
            let mut rows = BTreeMap::new();
            collect(root, Path::new(""), &mut rows);
            rows
        });
        assert!(ours.contains_key(Path::new("big")), "{line}: {ours:?}");
        assert_eq!(ours, theirs, "after {line}");
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

fn kind(mode: u32) -> char {
    match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o100_000 => '-',
        _ => '?',
    }
}

fn collect(root: &Path, below: &Path, rows: &mut BTreeMap<PathBuf, Row>) {
    for entry in std::fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        let found = entry.path().symlink_metadata().unwrap();
        let kind = kind(found.mode());
        assert_eq!(kind == '?', found.file_type().is_fifo());
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let links = if kind == 'd' { 0 } else { found.nlink() };
        let size = if kind == '-' { found.len() } else { 0 };
        rows.insert(path.clone(), (kind, found.mode() & 0o7777, links, size, target));
        if kind == 'd' {
            collect(root, &path, rows);
        }
    }
}

#[test]
fn names_come_out_as_with_coreutils() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let both = Both::new();
    let lines = [
        "mkdir @/new @/new/inner",
        "mkdir @/new",
        "mkdir @/no/such",
        "mkdir -p @/no/such/path @/new",
        "mkdir -p @/hello/below",
        "mkdir -m 700 @/private",
        "mkdir -p -m 1777 @/deep/down/shared",
        "mkdir -m g+w @/group",
        "mkdir -p @/dirlink/through",
        "ln @/hello @/new/same",
        "ln @/hello @/new",
        "ln @/hello @/new/same",
        "ln -f @/big @/new/same",
        "ln -f @/big @/big",
        "ln -f @/new/same @/big",
        "ln @/dir @/dir2",
        "ln @/none @/dir2",
        "ln @/link @/link2",
        "ln -s target @/new/sym",
        "ln -s target @/new/sym",
        "ln -sf other/target @/new/sym",
        "ln -s one two/three @/new/inner",
        "ln -sfn elsewhere @/dirlink",
        "ln -sT x @/new/inner",
        "ln @/big @/empty @/new/inner",
        "ln @/big @/empty @/hello",
        "mv @/hello @/greeting",
        "mv @/none @/elsewhere",
        "mv @/greeting @/new",
        "mv @/new/greeting @/hello",
        "mv -n @/hello @/big",
        "mv @/hello @/empty",
        "mv @/empty @/empty",
        "mv @/new @/private",
        "mv @/private @/private/new/itself",
        "mv -T @/group @/private",
        "mv -T @/group @/deep/down/shared",
        "mv @/sparse @/holed @/fifo @/deep/down",
        "mv @/sparse @/holed @/empty",
        "mv @/deep/down/sparse @/dir",
        "mv @/link @/deep",
        "rmdir @/private",
        "rmdir @/no/such/path",
        "rmdir --ignore-fail-on-non-empty @/private",
        "rmdir @/no/such @/no",
        "rmdir @/empty",
        "rm @/private",
        "rm -d @/deep/down/shared",
        "rm @/none",
        "rm -f @/none @/deep/link",
        "rm -r @/private @/dirlink @/dangling",
        "rm -r @/dir/.",
        "rm -rf @/none @/deep",
        "rm -r @/dir",
    ];
    for line in lines {
        both.run(line);
    }
    both.volume.assert_clean();
}

#[test]
fn steps_are_printed_as_coreutils_print_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let of = |words: &[&str], paths: &[&str]| {
        let paths: Vec<OsString> = paths.iter().map(|path| at(&volume, path)).collect();
        of(words, &paths.iter().map(|path| &**path).collect::<Vec<&OsStr>>())
    };
    let shown = |line: &str| line.replace('@', &at(&volume, "").to_string_lossy());
    let cases: [(&[&str], &[&str], &str); 8] = [
        (&["mkdir", "-pv"], &["/a/b"], "created directory '@/a'\ncreated directory '@/a/b'\n"),
        (&["mv", "-v"], &["/hello", "/a/b"], "renamed '@/hello' -> '@/a/b/hello'\n"),
        (&["mv", "-v", "--exchange"], &["/a/b/hello", "/empty"], "exchanged '@/a/b/hello' <-> '@/empty'\n"),
        (&["ln", "-v"], &["/empty", "/a/two"], "'@/a/two' => '@/empty'\n"),
        (&["ln", "-sv", "to"], &["/a/three"], "'@/a/three' -> 'to'\n"),
        (&["rm", "-v"], &["/a/three"], "removed '@/a/three'\n"),
        (&["rm", "-rv"], &["/a/b"], "removed '@/a/b/hello'\nremoved directory '@/a/b'\n"),
        (&["rmdir", "-v"], &["/dir/inner"], ""),
    ];
    for (words, paths, expected) in cases {
        let output = uext4(of(words, paths));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), shown(expected), "{words:?} {paths:?}");
        assert_eq!(output.status.success(), !expected.is_empty(), "{words:?} {paths:?}");
    }
    let rows = json(of(&["mv", "-v", "--json"], &["/empty", "/a/new"]));
    assert_eq!(rows[0]["source"], shown("@/empty"));
    assert_eq!(rows[0]["dest"], shown("@/a/new"));
    assert_eq!(text(of(&["mkdir", "--json"], &["/quiet"])), "");
    volume.assert_clean();
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let (volume, other) = (volume(), volume());
    let (here, there) = (at(&volume, "/hello"), at(&other, "/hello"));
    for words in [&["mv"][..], &["ln"]] {
        let said = bad(1, of(words, &[&here, &there]));
        assert!(said.contains("another volume"), "{said}");
        bad(2, of(words, &[&here]));
        bad(2, of(words, &[OsStr::new("hello"), &here]));
    }
    for path in ["/", "/.", "/dir/..", "/dir/."] {
        let said = bad(1, of(&["rm", "-r"], &[&at(&volume, path)]));
        assert!(said.contains("not removed"), "{said}");
    }
    bad(2, of(&["mkdir", "-m", "q"], &[&at(&volume, "/made")]));
    let said = bad(1, of(&["ln"], &[&at(&volume, "/dir"), &at(&volume, "/made")]));
    assert!(said.contains("-s"), "{said}");
    volume.assert_clean();
    other.assert_clean();
}
