//! `tidy.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Limits, arrows and exceptions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Size limits.
    pub limits: Limits,
    /// Crate to the workspace crates it may depend on.
    pub edges: BTreeMap<String, Vec<String>>,
    /// Crate to its rooms, from top to bottom.
    #[serde(default)]
    pub rooms: BTreeMap<String, Vec<Room>>,
    /// Files that may hold `unsafe`.
    #[serde(default)]
    pub unsafe_files: Vec<UnsafeFile>,
    /// Excused findings.
    #[serde(default)]
    pub exceptions: Vec<Exception>,
}

/// Size limits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Lines of a Rust file, tests included.
    pub file_lines: usize,
    /// Columns of a line.
    pub columns: usize,
}

/// Modules of a crate that stand on one floor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    /// Its name.
    pub name: String,
    /// What is done there, in a sentence.
    pub job: String,
    /// Paths under `src`, of files without their ending or of folders.
    pub modules: Vec<String>,
}

/// A file that may hold `unsafe`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsafeFile {
    /// File, relative to the workspace.
    pub path: String,
    /// Why it cannot do without.
    pub reason: String,
}

/// An excused finding.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// Rule name.
    pub rule: String,
    /// File, relative to the workspace, or crate.
    pub path: String,
    /// Function, where the rule is about one; empty means any in the file.
    #[serde(default)]
    pub item: String,
    /// The measure it may reach, for rules with a limit.
    #[serde(default)]
    pub limit: usize,
    /// Why.
    pub reason: String,
}

impl Config {
    /// Reads the file's text; every exception needs a reason.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|e| format!("tidy.toml: {e}"))?;
        let reasons = config.exceptions.iter().map(|e| (&e.path, &e.reason));
        let reasons = reasons.chain(config.unsafe_files.iter().map(|u| (&u.path, &u.reason)));
        let rooms = config.rooms.values().flatten().map(|room| (&room.name, &room.job));
        for (path, reason) in reasons.chain(rooms) {
            if reason.trim().len() < 10 {
                return Err(format!("tidy.toml: the entry for {path} has no reason"));
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
impl Config {
    /// The limits of the house and one arrow, for tests.
    pub fn sample(rest: &str) -> Config {
        let text = format!(
            "[limits]\nfile_lines = 700\ncolumns = 110\n\
             [edges]\nupper = [\"lower\"]\nlower = []\n{rest}"
        );
        Config::parse(&text).expect("sample")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_needs_a_reason_and_known_fields() {
        let head = "[limits]\nfile_lines = 1\ncolumns = 1\n[edges]\n";
        let without = format!("{head}[[exceptions]]\nrule = \"columns\"\npath = \"a\"\nreason = \" \"\n");
        assert!(Config::parse(&without).unwrap_err().contains("no reason"));
        let misspelt = format!("{head}[[exception]]\nrule = \"columns\"\n");
        assert!(Config::parse(&misspelt).is_err());
    }
}
