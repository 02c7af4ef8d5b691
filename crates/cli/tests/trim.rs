//! `uext4 trim`.

use crate::common;

use common::{good, json, text};
use std::ffi::OsStr;
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs};

#[test]
fn what_is_free_is_told_and_the_rest_stays() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let source = Scratch::new(8 << 20);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("data"), vec![b'x'; 1 << 20]).unwrap();
    let volume = VolumeBuilder::new(32 << 20).from_dir(&tree).build();
    let image = volume.path().as_os_str();
    let run = |more: &[&'static str]| {
        let fixed = [OsStr::new("trim"), image];
        fixed.into_iter().chain(more.iter().map(OsStr::new)).map(OsStr::to_owned).collect::<Vec<_>>()
    };
    let told = json(run(&["--json"]));
    let free = json([OsStr::new("df"), "--json".as_ref(), image]);
    let bytes = free["free"].as_u64().unwrap() * free["block_size"].as_u64().unwrap();
    assert_eq!(told["trimmed"].as_u64(), Some(bytes));
    assert!(text(run(&[])).contains(&format!("({bytes} bytes) trimmed")));
    // A part of it, and nothing that is too short.
    let part = json(run(&["--json", "--offset", "8m", "--length", "1m"]));
    assert!(part["trimmed"].as_u64().unwrap() <= 1 << 20);
    assert_eq!(json(run(&["--json", "--minimum", "1t"]))["trimmed"], 0);
    volume.assert_clean();
    let mut path = image.to_owned();
    path.push(":/data");
    good([OsStr::new("cat"), &path]);
}
