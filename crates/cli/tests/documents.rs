//! Help, completion scripts and manual pages.

use crate::common;

use common::{good, text};
use std::ffi::OsStr;
use uext4_testkit::{Scratch, oracle, requirement};

const COMMANDS: [&str; 18] = [
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
    "trace",
    "quota",
    "cp",
    "mkfs",
    "bench",
    "completions",
    "man",
];

#[test]
fn help_knows_every_command_and_the_device_grammar() {
    let help = text(["--help"]);
    for name in COMMANDS {
        assert!(help.lines().any(|line| line.trim_start().starts_with(name)), "{name}: {help}");
        assert!(text([name, "--help"]).contains("Usage: uext4"), "{name}");
    }
    for word in
        ["sync:", "dax:", "nvme:", "null:", "nbd://", "nbd+unix:", "?ro", "?partition=N", "Exit status"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(text(["--version"]).starts_with("uext4 "));
    assert!(text(["io", "--help"]).contains("pwrite [-qACDNOwW]"));
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(["completions", shell]);
        for name in COMMANDS {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    if requirement::tool("bash").is_some() {
        let scratch = Scratch::new(1 << 20);
        let file = scratch.file("uext4.bash");
        std::fs::write(&file, good(["completions", "bash"])).unwrap();
        oracle::run(oracle::command("bash").arg("-n").arg(file));
    }
}

#[test]
fn manual_pages() {
    assert!(text(["man"]).contains(".TH uext4 1"));
    let scratch = Scratch::new(1 << 20);
    good([OsStr::new("man"), OsStr::new("--dir"), scratch.path().as_os_str()]);
    for name in COMMANDS {
        let page = std::fs::read_to_string(scratch.file(format!("uext4-{name}.1"))).unwrap();
        assert!(
            page.contains(&format!("uext4\\-{name}")) || page.contains(&format!("uext4-{name}")),
            "{name}"
        );
    }
    let io = std::fs::read_to_string(scratch.file("uext4-io.1")).unwrap();
    assert!(io.contains("fdatasync"), "the command language is in the manual");
    assert!(scratch.file("uext4.1").exists());
}
