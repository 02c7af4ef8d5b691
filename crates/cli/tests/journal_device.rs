//! `--journal`: volumes whose journal is on a device of its own.

use crate::common;
use common::{bad, good, text};
use std::ffi::OsStr;
use std::path::Path;
use uext4_testkit::{Need, Scratch, needs, oracle};

fn made(scratch: &Scratch, name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    let (volume, journal) = (scratch.file(name), scratch.file(format!("{name}.log")));
    let said = text([
        OsStr::new("mkfs"),
        journal.as_os_str(),
        "8M".as_ref(),
        "-O".as_ref(),
        "journal_dev".as_ref(),
        "-b".as_ref(),
        "4k".as_ref(),
    ]);
    assert!(said.contains("journal of 8"), "{said}");
    let device = format!("device={}", journal.display());
    let said = text([OsStr::new("mkfs"), volume.as_os_str(), "32M".as_ref(), "-J".as_ref(), device.as_ref()]);
    assert!(said.contains("journal on another device"), "{said}");
    (volume, journal)
}

fn inside(volume: &Path, path: &str) -> String {
    format!("{}:{path}", volume.display())
}

#[test]
fn commands_find_the_journal_of_each_volume() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let ((first, first_log), (second, second_log)) = (made(&scratch, "one"), made(&scratch, "two"));
    let refused = bad(1, ["mkdir".into(), inside(&first, "/d")]);
    assert!(refused.contains("external journal (UUID") && refused.contains("--journal"), "{refused}");
    let with = |log: &Path| ["--journal".to_owned(), log.display().to_string()];
    good([&["mkdir".into(), inside(&first, "/d")][..], &with(&first_log)].concat());
    let wrong = bad(1, [&["mkdir".into(), inside(&first, "/e")][..], &with(&second_log)].concat());
    assert!(wrong.contains("two.log: another journal"), "{wrong}");
    std::fs::write(scratch.file("note"), "from the host").unwrap();
    let note = scratch.file("note").display().to_string();
    good([&["cp".into(), note, inside(&first, "/d/note")][..], &with(&first_log)].concat());
    let copy = ["cp".into(), "-r".into(), inside(&first, "/d"), inside(&second, "/d")];
    good([&copy[..], &with(&second_log), &with(&first_log)].concat());
    assert_eq!(text(["cat".into(), inside(&second, "/d/note")]), "from the host");
    let told = text([&["info".into(), second.display().to_string()][..], &with(&second_log)].concat());
    assert!(told.contains("on another device, 2048 blocks"), "{told}");
    let told = text(["info".into(), second.display().to_string()]);
    assert!(told.contains("journal:               on another device, uuid"), "{told}");
    for (volume, log) in [(&first, &first_log), (&second, &second_log)] {
        let said = text([&["check".into(), volume.display().to_string()][..], &with(log)].concat());
        assert!(said.contains(": clean:"), "{said}");
        let report = oracle::e2fsck(volume, &["-n", "-j", log.to_str().unwrap()]);
        assert!(report.is_clean(), "{report:?}");
    }
    let said = bad(1, ["mkdir".into(), inside(&first, "/f"), "--journal".into(), "missing".into()]);
    assert!(said.contains("missing: ") && said.contains("No such file"), "{said}");
    let said = bad(2, ["mkdir".into(), inside(&first, "/f"), "--journal".into(), inside(&first, "/x")]);
    assert!(said.contains("expected a device"), "{said}");
    let said = bad(1, ["mkfs".into(), first_log.display().to_string()]);
    assert!(said.contains("the journal of a volume"), "{said}");
}
