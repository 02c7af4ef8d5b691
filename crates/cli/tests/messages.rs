//! What is said when something fails, and help: one line, every name once, no numbers of the system, nothing too wide.

use crate::common;

use common::{at, bad, command, of, uext4, volume};
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use uext4_testkit::{Need, VolumeBuilder, needs, oracle};

const COMMANDS: [&str; 29] = [
    "info",
    "ls",
    "stat",
    "find",
    "du",
    "df",
    "cat",
    "xattr",
    "map",
    "explain",
    "io",
    "truncate",
    "fallocate",
    "prepare",
    "trace",
    "cp",
    "rm",
    "chmod",
    "chown",
    "touch",
    "chattr",
    "quota",
    "trim",
    "mkfs",
    "check",
    "bench",
    "completions",
    "man",
    "help",
];

/// A command line in which words stand for what the test made: DEV the image, NONE an image that is not there, DIR a
/// directory of the host, NODIR a file in a directory that is not there.
fn line(words: &str, image: &Path, dir: &Path) -> Vec<OsString> {
    let named = |word: &str| {
        word.replace("NODIR", &format!("{}/no/such/file", dir.display()))
            .replace("DIR", dir.to_str().unwrap())
            .replace("NONE", &format!("{}/none.img", dir.display()))
            .replace("DEV", image.to_str().unwrap())
    };
    words.split_whitespace().map(|word| named(word).into()).collect()
}

#[test]
fn failures_say_each_name_once_and_no_number() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let dir = volume.scratch().file("there");
    std::fs::create_dir(&dir).unwrap();
    let image = volume.path();
    for words in [
        "info NONE",
        "info dax:NONE",
        "info sync:NONE",
        "info DIR",
        "info DEV?partition=3",
        "info --json=NODIR DEV",
        "ls NONE:/",
        "ls DEV:/none",
        "ls DEV:/hello/x",
        "stat DEV:/none",
        "find NONE",
        "find DEV:/none",
        "du DEV:/none",
        "df NONE",
        "cat DEV:/dir",
        "cat DEV:/none",
        "xattr DEV:/hello user.none",
        "map DEV:/dir/none",
        "map --svg NODIR DEV:/hello",
        "explain DEV:/none --read 0 4k",
        "io NONE:/x -c stat",
        "io DEV:/dir -c stat",
        "truncate -s 0 DEV:/dir",
        "truncate -s 8E DEV:/hello",
        "fallocate -l 4k DEV:/dir",
        "prepare DEV:/none",
        "trace --output NODIR -- cat DEV:/hello",
        "cp DEV:/none DIR",
        "cp DEV:/hello NODIR",
        "cp NONE DEV:/new",
        "cp DIR DEV:/new",
        "cp -r DIR DEV:/hello",
        "cp DEV:/hello DEV:/hello",
        "rm DEV:/none",
        "rm DEV:/dir",
        "trim NONE",
        "quota NONE",
        "mkfs DEV",
        "mkfs NONE",
        "mkfs NODIR 64M",
        "mkfs DIR",
        "check NONE",
        "bench seq-read --device NONE",
        "bench seq-read --device DEV --mkfs",
        "bench --compare NONE",
        "man --dir NODIR",
    ] {
        let output = uext4(line(words, image, &dir));
        assert_eq!(output.status.code(), Some(1), "{words}: {}", oracle::text(&output));
        // `bench` may warn of a busy machine first.
        let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        assert!(said.lines().count() == 1 || words.starts_with("bench"), "{words}: {said}");
        assert!(!said.contains("os error"), "{words}: {said}");
        assert!(!said.contains("supported yet"), "{words}: {said}");
        for name in [image, &dir.join("none.img"), &dir.join("no/such/file")] {
            let count = said.matches(name.to_str().unwrap()).count();
            assert!(count <= 1, "{words}: {said}");
        }
        // `path: path: reason` by whatever name.
        let parts: Vec<&str> = said.split(": ").collect();
        assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "{words}: {said}");
        assert!(!said.contains("bench: bench"), "{said}");
    }
}

#[test]
fn what_resembles_a_word_is_hinted_at() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let (image, dir) = (volume.path(), volume.scratch().path());
    for (words, meant) in [
        ("fnd DEV", "did you mean find?"),
        ("informations DEV", "did you mean info?"),
        ("help trnucate", "did you mean truncate?"),
        ("ls --human DEV", "did you mean --human-readable?"),
        ("mkfs --forse DEV", "did you mean --force?"),
        ("bench dsync-overwrit", "did you mean dsync-overwrite?"),
        ("info dxa:disk.img", "did you mean `dax:`?"),
        ("info nvm:disk.img", "did you mean `nvme:`?"),
        ("info dxa:DEV", "did you mean dax:/"),
        ("info DEV?partiton=1", "did you mean `partition`?"),
        ("info DEV?flush_latencey=1ms", "did you mean `flush_latency`?"),
        ("io DEV:/hello -c praed", "did you mean pread?"),
    ] {
        let said = bad(2, line(words, image, dir));
        assert!(said.contains(meant), "{words}: {said}");
    }
    let said = bad(1, line("ls snyc:DEV", image, dir));
    assert!(said.contains("did you mean sync:/"), "{said}");
    for words in ["xyzzy", "ls --quux DEV", "info quux:DEV", "info DEV?colour=1", "io DEV:/hello -c quux"] {
        let said = bad(2, line(words, image, dir));
        assert!(!said.contains("did you mean"), "{words}: {said}");
    }
}

/// Help of a command, on a terminal of so many columns.
fn help(args: &[&str], columns: Option<&str>) -> String {
    let mut command = command(args);
    command.env_remove("COLUMNS").stdin(Stdio::null());
    if let Some(columns) = columns {
        command.env("COLUMNS", columns);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", oracle::text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_is_as_wide_as_the_terminal() {
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    for name in COMMANDS.iter().filter(|name| **name != "help") {
        let whole: Vec<String> =
            help(&[name, "--help"], Some("400")).split_whitespace().map(str::to_owned).collect();
        for columns in [60, 80, 100, 132] {
            let told = columns.to_string();
            for args in [[*name, "--help"], ["help", *name]] {
                let text = help(&args, Some(&told));
                assert!(widest(&text) <= columns, "{columns}: {text}");
                let words: Vec<&str> = text.split_whitespace().collect();
                assert_eq!(words, whole, "{args:?}");
            }
        }
        // Not a terminal.
        assert!(widest(&help(&[name, "--help"], None)) <= 80);
    }
    for args in [&["--help"][..], &["-h"], &["help"]] {
        assert!(widest(&help(args, None)) <= 80);
        assert!(widest(&help(args, Some("100"))) > 80, "the room is used");
    }
    assert_eq!(help(&["--help"], Some("nonsense")), help(&["--help"], None));
}

#[test]
fn help_asks_the_terminal_for_its_width() {
    needs!(Need::Tool("script"));
    let program = env!("CARGO_BIN_EXE_uext4");
    let script = format!("stty cols 66; exec {program} help bench");
    let output = oracle::command("script")
        .args(["-q", "-e", "-c", &script, "/dev/null"])
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    assert_eq!(told, help(&["help", "bench"], Some("66")));
}

#[test]
fn a_volume_that_was_not_left_cleanly_is_named_when_it_is_the_reason() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = uext4_testkit::Scratch::new(1 << 20);
    std::fs::write(source.file("file"), [7; 8192]).unwrap();
    // Without a journal, in use when it was copied.
    let volume = VolumeBuilder::new(16 << 20).args(["-O", "^has_journal"]).from_dir(source.path()).build();
    oracle::debugfs_write(volume.path(), "set_super_value state 0");
    let said = bad(1, of(&["io", "-c", "pwrite 8k 4k"], &[&at(&volume, "/file")]));
    assert!(said.contains("not unmounted cleanly") && said.contains("e2fsck"), "{said}");
    let output = uext4(of(&["io", "-c", "pwrite 0 4k"], &[&at(&volume, "/file")]));
    assert!(output.status.success(), "{}", oracle::text(&output));
}
