//! Programs inside a mount: git, tar, SQLite, a build.

use super::{Mounted, NEEDS, drop_caches};
use std::path::Path;
use std::process::Command;
use uext4_testkit::manifest::{Kind, Manifest, assert_same, manifest};
use uext4_testkit::{Need, Scratch, VolumeBuilder, fixture, requirement};

#[track_caller]
fn runs(script: &str, directory: &Path) -> String {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(directory);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", directory);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A tree, without the sizes of directories, which are the file system's own, and with whole seconds: tar keeps no
/// fractions of the furthest, and no sockets.
fn tree(root: &Path) -> Manifest {
    let mut found = manifest(root);
    found.retain(|_, entry| entry.kind != Kind::Socket);
    for entry in found.values_mut() {
        entry.mtime_ns = entry.mtime_ns.div_euclid(1_000_000_000);
        if entry.kind == Kind::Directory {
            entry.size = 0;
        }
    }
    found
}

#[test]
fn root_programs_work_inside_a_mount() {
    let tools = ["git", "tar", "sqlite3", "cargo"].map(Need::Tool);
    let needs = [&NEEDS[..], &tools].concat();
    if !requirement::require("mount::programs", &needs) {
        return;
    }
    let volume = VolumeBuilder::new(256 << 20).args(["-b", "4096"]).build();
    let source = Scratch::new(64 << 20);
    fixture::standard_tree(source.path(), 7);
    let mounted = Mounted::new(volume.path(), "dev,suid,allow_other");
    let root = mounted.path();
    // tar, with attributes and holes, there and back.
    let whole = "tar --xattrs --xattrs-include=* --acls --sparse --numeric-owner";
    let from = source.path().display();
    runs(&format!("mkdir there back; {whole} -C {from} -cf t.tar . ; {whole} -C there -xpf t.tar"), root);
    drop_caches();
    assert_same(&tree(source.path()), &tree(&root.join("there")));
    runs(
        &format!("{whole} -C there -cf u.tar . && {whole} -C back -xpf u.tar && rm -rf there t.tar u.tar"),
        root,
    );
    assert_same(&tree(source.path()), &tree(&root.join("back")));
    // git: a repository, a clone of it, its check.
    let own = "-c user.name=a -c user.email=b";
    runs(
        &format!(
            "mkdir repo; cd repo; git init -q; for i in $(seq 200); do echo $i > f$i; done; git add .;
            git {own} commit -qm one; git rm -q f7; git {own} commit -qm two; git gc -q; cd ..;
            git clone -q repo clone; cd clone; git fsck --strict; git status --porcelain"
        ),
        root,
    );
    drop_caches();
    assert_eq!(runs("cd clone; git fsck; git status --porcelain; ls | wc -l", root).trim(), "199");
    // SQLite: journals of both kinds, and its check.
    let rows = "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
        INSERT INTO t SELECT i, hex(randomblob(100)) FROM n;";
    for mode in ["delete", "wal"] {
        let script = format!(
            "sqlite3 {mode}.db \"PRAGMA journal_mode={mode}; CREATE TABLE t(i INTEGER PRIMARY KEY, x); {rows}
            UPDATE t SET x = hex(randomblob(200)) WHERE i % 3 = 0; DELETE FROM t WHERE i % 5 = 0; VACUUM;\" >&2;
            sqlite3 {mode}.db 'PRAGMA integrity_check; SELECT count(*) FROM t'"
        );
        assert_eq!(runs(&script, root), "ok\n1600\n", "{mode}");
    }
    // A build, which maps and executes what it wrote.
    let cargo = "cargo init -q --vcs none --name built --bin built; cd built;
        CARGO_HOME=$PWD/home CARGO_TARGET_DIR=$PWD/target cargo build -q --offline;
        ./target/debug/built";
    let home = std::env::var("HOME").unwrap_or_default();
    let rustup = std::env::var("RUSTUP_HOME").unwrap_or(format!("{home}/.rustup"));
    assert_eq!(runs(&format!("export RUSTUP_HOME={rustup}; {cargo}"), root), "Hello, world!\n");
    mounted.unmount();
    volume.assert_clean();
}
