//! What the documents point to is there.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// All documents of a folder, those of its folders included.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
            documents(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// What stands between `open` and `close`.
fn between<'t>(text: &'t str, open: &'t str, close: char) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
}

/// Whether a word between backquotes is the path of a file or folder here.
fn is_path(word: &str) -> bool {
    let folders = ["crates/", "docs/", "scripts/", "xtask/", "vm/", "fuzz/"];
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    folders.iter().any(|folder| word.starts_with(folder))
        && word.chars().all(plain)
        && !word.contains("TARGET")
}

#[test]
fn every_link_and_path_leads_somewhere() {
    let root = root();
    let mut found = Vec::new();
    documents(&root, &mut found);
    assert!(found.len() > 20, "{} documents", found.len());
    let mut missing = Vec::new();
    for document in &found {
        let text = std::fs::read_to_string(document).unwrap();
        let folder = document.parent().unwrap();
        let links = between(&text, "](", ')').filter(|link| !link.contains("://") && !link.starts_with('#'));
        let links = links.map(|link| folder.join(link.split('#').next().unwrap()));
        let paths =
            text.split('`').skip(1).step_by(2).filter(|word| is_path(word)).map(|word| root.join(word));
        let gone = links.chain(paths).filter(|path| !path.exists());
        missing.extend(gone.map(|path| format!("{}: {}", document.display(), path.display())));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Words of claims that were true once, or that nobody knows when to take back. What is missing is named as missing.
const STALE: [&str; 14] = [
    "supported yet",
    "implemented yet",
    "decoded yet",
    "not yet a scenario",
    "allocates nothing",
    "replaces nothing",
    "cannot create files",
    "cannot make files",
    "look at and overwrite",
    "into them later",
    "a later version",
    "a future version",
    "will be supported",
    "to be implemented",
];

/// Sources, headers and scripts below `folder`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            sources(&path, found);
        } else if matches!(extension, Some("rs" | "h" | "c" | "sh")) {
            found.push(path);
        }
    }
}

/// Lower case, in one line, without what marks comments and broken strings.
fn in_one_line(text: &str) -> String {
    let marks = ['/', '!', '#', '*', '\\', '|', ' ', '\t'];
    let lines = text.lines().map(|line| line.trim_matches(marks));
    lines.collect::<Vec<_>>().join(" ").to_lowercase()
}

#[test]
fn no_help_page_or_message_claims_what_was_true_once() {
    let root = root();
    let mut found = Vec::new();
    documents(&root, &mut found);
    found.retain(|path| !path.ends_with("CHANGELOG.md"));
    for folder in ["scripts", "examples", "fio", "bench", "xtask/src", "vm"] {
        sources(&root.join(folder), &mut found);
    }
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        // Tests may say what no message says.
        for folder in ["src", "include"] {
            let folder = entry.as_ref().unwrap().path().join(folder);
            if folder.is_dir() {
                sources(&folder, &mut found);
            }
        }
    }
    assert!(found.len() > 500, "{} files", found.len());
    let mut claims = Vec::new();
    for path in &found {
        let text = in_one_line(&std::fs::read_to_string(path).unwrap_or_default());
        let said = STALE.iter().filter(|words| text.contains(**words));
        claims.extend(said.map(|words| format!("{}: {words}", path.display())));
    }
    assert!(claims.is_empty(), "{claims:#?}");
    assert!(in_one_line("    /// This is not\n    /// supported yet.").contains(STALE[0]));
}
