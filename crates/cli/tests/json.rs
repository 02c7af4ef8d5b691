//! `--json[=FILE]` means the same in every command.

mod common;

use common::{at, bad, good, of, outside, volume};
use std::ffi::{OsStr, OsString};
use std::fs;

#[test]
fn json_in_a_file_is_the_json_of_standard_output() {
    let volume = volume();
    let (device, place) = (volume.path().as_os_str(), at(&volume, "/"));
    let file = outside(&volume).join("out.json");
    let mut named = OsString::from("--json=");
    named.push(&file);
    let lines: [(&[&str], &OsStr); 6] = [
        (&["info"], device),
        (&["ls"], &place),
        (&["stat"], &place),
        (&["df"], device),
        (&["du"], &place),
        (&["check"], device),
    ];
    for (words, argument) in lines {
        let printed = good(of(&[words, &["--json"]].concat(), &[argument]));
        let silent = good(of(words, &[&named, argument]));
        assert_eq!(silent, b"", "{words:?}: it is in the file");
        assert_eq!(fs::read(&file).unwrap(), printed, "{words:?}");
    }
    let nowhere = OsString::from("--json=/nonexistent/out.json");
    let words = bad(1, of(&["ls"], &[&nowhere, &place]));
    assert!(words.contains("/nonexistent/out.json"), "{words}");
    // Only behind `=`: what follows is the command's own.
    assert!(!good(of(&["ls", "--json"], &[&place])).is_empty());
}
