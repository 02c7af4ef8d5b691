//! The house rules as a test that ratchets: what `tidy.toml` excuses must still need the excuse.

mod config;
mod edges;
mod ledger;
mod modules;
mod rooms;
mod source;
mod suites;
mod text;

use std::path::Path;

pub use config::Config;
use ledger::Ledger;

/// One broken rule at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Rule name, as exceptions spell it.
    pub rule: &'static str,
    /// File, relative to the workspace, or a crate name.
    pub path: String,
    /// Line, from 1; 0 if the whole file or crate is meant.
    pub line: usize,
    /// Function or crate, where the rule is about one.
    pub item: String,
    /// The number that a limit is compared with; 0 for rules without one.
    pub measure: usize,
    /// What is wrong, for a reader.
    pub text: String,
}

/// What a run found.
pub struct Summary {
    /// Files read.
    pub files: usize,
    /// Workspace members.
    pub crates: usize,
    /// One line each; empty if all is in order.
    pub problems: Vec<String>,
}

/// Checks the workspace under `root`.
pub fn run(root: &Path) -> Result<Summary, String> {
    let config_path = root.join("tidy.toml");
    let config_text = std::fs::read_to_string(&config_path).map_err(|e| format!("tidy.toml: {e}"))?;
    let config = Config::parse(&config_text)?;
    let mut findings = Vec::new();
    let graph = edges::load(root)?;
    edges::check(&graph, &config, &mut findings);
    let files = text::files(root)?;
    for (path, content) in &files {
        text::check(path, content, &config, &mut findings);
        if path.ends_with(".rs") {
            source::check(path, content, &mut findings)?;
        }
    }
    suites::check(&files, &mut findings);
    rooms::check(&graph, &config, &files, &mut findings)?;
    let mut ledger = Ledger::new(&config);
    let problems = ledger.problems(findings);
    Ok(Summary { files: files.len(), crates: graph.len(), problems })
}
