//! What entries do to each other: in one archive, and in several that are layers.

use crate::common::{Head, Tar, contents, find, gather_bytes, item, paths};
use uext4::mkfs::{ItemKind, Tree};
use uext4_transfer::{Failures, GatherCause, Gathered};

fn tar() -> Tar {
    Tar::default()
}

fn gathered(layers: &[&[u8]]) -> Gathered {
    gather_bytes(layers).unwrap()
}

#[track_caller]
fn text(gathered: &Gathered, path: &str) -> String {
    String::from_utf8(contents(gathered, item(&gathered.tree, path))).unwrap()
}

fn item_count(gathered: &Gathered, path: &str) -> usize {
    gathered.tree.names(find(&gathered.tree, path).unwrap()).count()
}

#[track_caller]
fn refused(layers: &[&[u8]]) -> Failures {
    match gather_bytes(layers) {
        Ok(gathered) => panic!("not refused: {:?}", paths(&gathered.tree)),
        Err(failures) => failures,
    }
}

#[test]
fn the_last_entry_of_a_name_wins() {
    let archive = tar().file("a", "old").file("b", "b").file("./a", "newer").file("/c", "c").end();
    let found = gathered(&[&archive]);
    assert_eq!(text(&found, "a"), "newer");
    assert_eq!(paths(&found.tree), ["a", "b", "c"]);
    assert_eq!(found.data, 5 + 1 + 1);
    assert_eq!(found.tree.len(), 4, "what was replaced is gone");
}

#[test]
fn directories_join_and_others_replace() {
    let archive = tar().file("d/x", "x").directory("d/").file("d/y", "y").end();
    let found = gathered(&[&archive]);
    assert_eq!(paths(&found.tree), ["d/", "d/x", "d/y"]);
    assert_eq!(item(&found.tree, "d").mode, 0o750, "described after its contents");
    let archive =
        tar().file("d/x", "x").file("d", "file").file("e", "e").directory("e").file("e/z", "z").end();
    let found = gathered(&[&archive]);
    assert_eq!(paths(&found.tree), ["d", "e/", "e/z"]);
    let made = gathered(&[&tar().file("p/q/r", "").end()]);
    let parent = item(&made.tree, "p/q");
    assert_eq!((parent.mode, parent.uid, parent.gid), (0o755, 0, 0));
    // Numbered as they are walked, whatever the archive's order.
    let ordered = gathered(&[&tar().file("c/z", "").file("b/y", "").file("a/x", "").file("a/w/v", "").end()]);
    let numbers = ["a", "b", "c", "a/w", "a/x", "a/w/v", "b/y", "c/z"].map(|path| find(&ordered.tree, path));
    assert!(numbers.is_sorted(), "{numbers:?}");
    let root = gathered(&[&tar().directory("./").end()]);
    assert_eq!(root.tree.item(Tree::ROOT).mode, 0o750);
}

#[test]
fn hard_links_are_names_of_one_file() {
    let archive = tar()
        .file("a", "data")
        .hard_link("b", "./a")
        .hard_link("a", "b")
        .symlink("s", "x")
        .hard_link("t", "s");
    let upper = tar().hard_link("c", "/b").file("a", "other").end();
    let found = gathered(&[&archive.end(), &upper]);
    assert_eq!(find(&found.tree, "b"), find(&found.tree, "c"));
    assert_eq!(find(&found.tree, "s"), find(&found.tree, "t"));
    assert_eq!((text(&found, "a"), text(&found, "c")), ("other".into(), "data".into()));
    // Over the directory that it is in.
    let over = gathered(&[&tar().file("d/f", "f").hard_link("d", "d/f").end()]);
    assert_eq!(text(&over, "d"), "f");
    for bad in
        [tar().hard_link("b", "a"), tar().directory("d").hard_link("b", "d"), tar().hard_link("b", "/")]
    {
        let failures = refused(&[&bad.end()]);
        assert!(matches!(failures.errors[0].cause, GatherCause::Link { .. }), "{failures}");
    }
}

#[test]
fn paths_that_lead_out_are_refused_and_all_are_listed() {
    let archive = tar()
        .file("../a", "")
        .file("x/../../b", "")
        .symlink("l", "/etc")
        .file("l/passwd", "")
        .hard_link("h", "../a")
        .file("f", "")
        .file("f/below", "")
        .file("..", "")
        .head(&Head::new("strange", b'Z', 0))
        .symlink("", "root")
        .end();
    let failures = refused(&[&archive]);
    let causes: Vec<_> = failures.errors.iter().map(|error| &error.cause).collect();
    use GatherCause as C;
    assert!(
        matches!(
            causes[..],
            [
                C::Outside,
                C::Outside,
                C::ThroughLink(_),
                C::Outside,
                C::NotDirectory(_),
                C::Outside,
                C::Type(b'Z'),
                C::Name(_),
            ]
        ),
        "{failures}"
    );
    let message = failures.errors[2].to_string();
    assert_eq!(message, "0.tar: l/passwd: the path leads through the symbolic link l (at byte 1536)");
    assert_eq!(failures.errors[2].entry.as_deref(), Some(&b"l/passwd"[..]));
}

#[test]
fn layers_follow_links_within_the_root() {
    let lower = tar()
        .directory("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("up", "../../../usr")
        .symlink("x/absolute", "/usr/lib")
        .symlink("new", "made/here")
        .symlink("loop", "loop2/x")
        .symlink("loop2", "loop")
        .end();
    let upper = tar()
        .file("lib/a", "a")
        .file("up/b", "b")
        .file("x/absolute/c", "c")
        .file("new/d", "d")
        .hard_link("e", "lib/a")
        .end();
    let found = gathered(&[&lower, &upper]);
    for (path, wanted) in
        [("usr/lib/a", "a"), ("usr/b", "b"), ("usr/lib/c", "c"), ("made/here/d", "d"), ("e", "a")]
    {
        assert_eq!(text(&found, path), wanted);
    }
    assert!(matches!(item(&found.tree, "lib").kind, ItemKind::Symlink(_)));
    let failures = refused(&[&lower, &tar().file("loop/x", "").end()]);
    assert!(matches!(failures.errors[0].cause, GatherCause::TooManyLinks(40)), "{failures}");
    // Links that are long and lead through each other.
    let mut long = tar();
    for at in 0..30 {
        let target = "./".repeat(1000) + &format!("l{}", at + 1);
        long = long.records(b'x', &[("linkpath", &target)]).symlink(&format!("l{at}"), "");
    }
    let failures = refused(&[&long.directory("l30").end(), &tar().file("l0/x", "").end()]);
    assert!(matches!(failures.errors[0].cause, GatherCause::Name(_)), "{failures}");
    // A file of a lower layer is no parent: the directory may come later.
    let over = gathered(&[&tar().file("f", "1").end(), &tar().file("f/x", "2").directory("f").end()]);
    assert_eq!(paths(&over.tree), ["f/", "f/x"]);
    // A directory of its own is no link any more.
    let replaced = gathered(&[&lower, &tar().directory("lib").file("lib/a", "a").end()]);
    assert!(matches!(item(&replaced.tree, "lib").kind, ItemKind::Directory(_)));
    assert!(find(&replaced.tree, "usr/lib/a").is_none());
}

#[test]
fn whiteouts_hide_what_lower_layers_have_in_any_order() {
    let lower =
        tar().file("d/a", "1").file("d/b", "1").file("d/sub/x", "1").file("f", "1").file("keep", "1").end();
    let hidden = gathered(&[&lower, &tar().file("d/.wh.a", "").file(".wh.f", "").file(".wh.none", "").end()]);
    assert_eq!(paths(&hidden.tree), ["d/", "d/b", "d/sub/", "d/sub/x", "keep"]);
    // Not of its own layer, wherever it stands.
    for upper in [tar().file("d/.wh.a", "").file("d/a", "2"), tar().file("d/a", "2").file("d/.wh.a", "")] {
        assert_eq!(text(&gathered(&[&lower, &upper.end()]), "d/a"), "2");
    }
    // A directory that is hidden and comes again has only what is new.
    for upper in [
        tar().file(".wh.d", "").directory("d").file("d/new", "2"),
        tar().directory("d").file("d/new", "2").file(".wh.d", ""),
        tar().directory("d").file("d/.wh..wh..opq", "").file("d/new", "2"),
        tar().directory("d").file("d/new", "2").file("d/.wh..wh..opq", ""),
        tar().file("d/new", "2").directory("d").file("d/.wh..wh..opq", ""),
    ] {
        let found = gathered(&[&lower, &upper.end()]);
        assert_eq!(paths(&found.tree), ["d/", "d/new", "f", "keep"]);
        assert_eq!(item(&found.tree, "d").mode, 0o750);
    }
    let below = gathered(&[&lower, &tar().file("d/sub/y", "2").file("d/.wh..wh..opq", "").end()]);
    assert_eq!(paths(&below.tree), ["d/", "d/sub/", "d/sub/y", "f", "keep"]);
    let all = gathered(&[&lower, &tar().file(".wh..wh..opq", "").file("only", "").end()]);
    assert_eq!(paths(&all.tree), ["only"]);
    let through =
        gathered(&[&tar().file("usr/x", "").symlink("l", "usr").end(), &tar().file("l/.wh.x", "").end()]);
    assert_eq!(paths(&through.tree), ["l", "usr/"]);
}

/// Processor time for so many whiteouts in a directory of so many names.
fn time_of_whiteouts(names: usize) -> f64 {
    let mut upper = tar();
    for at in 0..names {
        upper = upper.file(&format!("d/{at}"), "");
    }
    for _ in 0..names {
        upper = upper.file("d/.wh..wh..opq", "").file(".wh.d", "");
    }
    let layers = [tar().file("d/lower", "").end(), upper.end()];
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let start = now();
    let found = gathered(&[&layers[0], &layers[1]]);
    assert_eq!(item_count(&found, "d"), names);
    now() - start
}

#[test]
fn whiteouts_take_time_for_each_but_not_for_each_name() {
    let (few, many) = (time_of_whiteouts(5000), time_of_whiteouts(20_000));
    // Four times as long, and not sixteen times.
    assert!(many < 9.0 * few, "{few} s and {many} s");
}

#[test]
fn attributes_of_a_hidden_directory_are_gone() {
    let lower = tar().directory("d").file("d/sub/old", "").directory("d/sub").end();
    for upper in [tar().file("d/new", "").file(".wh.d", ""), tar().file("d/sub/new", "").file(".wh.d", "")] {
        let found = gathered(&[&lower, &upper.end()]);
        assert_eq!(item(&found.tree, "d").mode, 0o755);
        assert!(find(&found.tree, "d/sub").is_none_or(|sub| found.tree.item(sub).mode == 0o755));
    }
}

#[test]
fn names_of_whiteouts_are_files_in_a_first_archive_and_never_in_a_layer() {
    let names = tar().file(".wh.a", "").file("d/.wh..wh..opq", "").end();
    assert_eq!(paths(&gathered(&[&names]).tree), [".wh.a", "d/", "d/.wh..wh..opq"]);
    let aufs = tar().file(".wh..wh.plnk/1.2", "x").directory(".wh..wh.orph").file(".wh..wh.aufs", "").end();
    assert!(paths(&gathered(&[&tar().end(), &aufs]).tree).is_empty());
    for bad in [".wh.", ".wh..", ".wh...", ".wh.d/x"] {
        let failures = refused(&[&tar().end(), &tar().file(bad, "").end()]);
        assert!(matches!(failures.errors[0].cause, GatherCause::Name(_)), "{failures}");
    }
}
