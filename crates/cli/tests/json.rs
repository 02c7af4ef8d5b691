//! `--json[=FILE]` means the same in every command.

use crate::common;

use common::{at, bad, good, of, outside, uext4, volume};
use serde_json::Value;
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

/// Whatever results are written into must not be what is read: the image would be emptied before it is opened.
#[test]
fn results_do_not_go_over_the_image() {
    let volume = volume();
    let (device, place) = (volume.path().as_os_str(), at(&volume, "/big"));
    let alias = outside(&volume).join("alias");
    fs::hard_link(volume.path(), &alias).unwrap();
    let before = fs::read(volume.path()).unwrap();
    let mut json = OsString::from("--json=");
    json.push(&alias);
    let (svg, output, html) = (OsStr::new("--svg"), OsStr::new("--output"), OsStr::new("--html"));
    let bench = of(&["bench", "seq-read", "--seconds", "0.04", "--device"], &[device, html, device]);
    for line in [
        of(&["info"], &[&json, device]),
        of(&["ls"], &[&json, &place]),
        of(&["check"], &[device, &json]),
        of(&["map"], &[svg, alias.as_os_str(), &place]),
        of(&["trace"], &[output, alias.as_os_str(), OsStr::new("--"), OsStr::new("cat"), &place]),
        of(&["trace"], &[&json, OsStr::new("--"), OsStr::new("cat"), &place]),
        bench,
    ] {
        let said = bad(2, &line);
        assert!(said.contains("would be overwritten"), "{line:?}: {said}");
        assert!(fs::read(volume.path()).unwrap() == before, "{line:?}");
    }
}

/// What a trace has to say are the requests; the command behind `--` has its own output.
#[test]
fn json_of_a_trace_is_the_requests() {
    let volume = volume();
    let file = outside(&volume).join("trace.json");
    let mut named = OsString::from("--json=");
    named.push(&file);
    let place = at(&volume, "/hello");
    let output = uext4(of(&["trace"], &[&named, OsStr::new("--"), OsStr::new("cat"), &place]));
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout == b"world\n", "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    let last: Value = text.lines().map(|line| serde_json::from_str(line).unwrap()).next_back().unwrap();
    assert!(last["total"]["reads"].as_u64() > Some(0), "{text}");
    let both = of(&["trace", "--output", "x"], &[&named, OsStr::new("--"), OsStr::new("cat"), &place]);
    assert!(bad(2, both).contains("--output"));
}
