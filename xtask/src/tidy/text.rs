//! Rules about text: length of files, width of lines, unfinished marks.

use std::path::Path;

use super::Finding;
use super::config::Config;

/// Rule name.
pub const FILE_LINES: &str = "file-lines";
/// Rule name.
pub const COLUMNS: &str = "columns";
/// Rule name.
pub const MARK: &str = "unfinished-mark";

/// Spelt in two halves so that this file does not find itself.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Kinds of files that are read.
const ENDINGS: [&str; 8] = [".rs", ".sh", ".c", ".h", ".py", ".toml", ".md", "Makefile"];

/// The repository's text files, path relative to `root` and content, in order of path.
pub fn files(root: &Path) -> Result<Vec<(String, String)>, String> {
    let mut out = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        let entries = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        for entry in entries {
            let entry = entry.map_err(|e| format!("{}: {e}", dir.display()))?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(|e| format!("{}: {e}", path.display()))?;
            if kind.is_dir() {
                // Build output, and the version control's own.
                if !name.starts_with("target") && name != ".git" {
                    pending.push(path);
                }
            } else if ENDINGS.iter().any(|ending| name.ends_with(ending)) {
                let content =
                    std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                let relative = path.strip_prefix(root).expect("walked from the root");
                out.push((relative.to_string_lossy().into_owned(), content));
            }
        }
    }
    out.sort();
    Ok(out)
}

/// Checks one file.
pub fn check(path: &str, content: &str, config: &Config, findings: &mut Vec<Finding>) {
    let mut find = |rule, line, measure, text| {
        findings.push(Finding { rule, path: path.into(), line, item: String::new(), measure, text });
    };
    let is_code = [".rs", ".c", ".h", ".sh", ".py"].iter().any(|ending| path.ends_with(ending));
    let lines = content.lines().count();
    if is_code && lines > config.limits.file_lines {
        find(FILE_LINES, 0, lines, format!("{lines} lines, limit {}", config.limits.file_lines));
    }
    for (index, line) in content.lines().enumerate() {
        let width = line.chars().count();
        if is_code && width > config.limits.columns {
            find(COLUMNS, index + 1, width, format!("{width} columns, limit {}", config.limits.columns));
        }
        if let Some(mark) = MARKS.into_iter().find(|mark| has_word(line, mark)) {
            find(MARK, index + 1, 0, format!("`{mark}` left in the tree"));
        }
    }
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, content: &str) -> Vec<(&'static str, usize)> {
        let mut out = Vec::new();
        check(path, content, &Config::sample(""), &mut out);
        out.into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn a_long_file_is_found() {
        assert!(rules("a.rs", &"x\n".repeat(700)).is_empty());
        assert_eq!(rules("a.rs", &"x\n".repeat(701)), [(FILE_LINES, 0)]);
        assert!(rules("a.md", &"x\n".repeat(701)).is_empty(), "documents have no limit");
    }

    #[test]
    fn a_wide_line_is_found_in_characters() {
        assert!(rules("a.rs", &format!("ok\n{}\n", "é".repeat(110))).is_empty());
        assert_eq!(rules("a.rs", &format!("ok\n{}\n", "x".repeat(111))), [(COLUMNS, 2)]);
    }

    #[test]
    fn an_unfinished_mark_is_found_as_a_word() {
        for mark in MARKS {
            assert_eq!(rules("a.rs", &format!("fine\n// {mark}: later\n")), [(MARK, 2)]);
            assert_eq!(rules("a.md", &format!("({mark})\n")), [(MARK, 1)]);
            assert!(rules("a.rs", &format!("{mark}S {mark}_A a{mark}\n")).is_empty());
        }
    }
}
