//! Tests that would not run: a crate whose tests are one program names their files itself; cargo looks for no others.

use super::Finding;

/// Rule name.
pub const TEST_FILE: &str = "test-file";

/// Every file beside a `tests/suite.rs` is one of its modules, or a program that the manifest names.
pub fn check(files: &[(String, String)], findings: &mut Vec<Finding>) {
    let content = |path: &str| files.iter().find(|(known, _)| known == path).map_or("", |(_, text)| text);
    for (path, _) in files {
        let Some((home, name)) = path.strip_suffix(".rs").and_then(|path| path.rsplit_once("/tests/")) else {
            continue;
        };
        let suite = content(&format!("{home}/tests/suite.rs"));
        if suite.is_empty() || name == "suite" || name.contains('/') {
            continue;
        }
        let is_module = suite.lines().any(|line| line == format!("mod {name};"));
        let is_program =
            content(&format!("{home}/Cargo.toml")).contains(&format!("path = \"tests/{name}.rs\""));
        if !is_module && !is_program {
            findings.push(Finding {
                rule: TEST_FILE,
                path: path.clone(),
                line: 0,
                item: String::new(),
                measure: 0,
                text: format!("never runs: {home}/tests/suite.rs has no line `mod {name};`"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_file_that_nobody_names_is_found() {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let files = [
            file("crates/a/Cargo.toml", "[[test]]\nname = \"counts\"\npath = \"tests/counts.rs\"\n"),
            file("crates/a/tests/counts.rs", ""),
            file("crates/a/tests/common/mod.rs", ""),
            file("crates/a/tests/named.rs", ""),
            file("crates/a/tests/lost.rs", ""),
            file("crates/a/tests/suite.rs", "mod common;\nmod named;\n"),
            file("crates/b/tests/alone.rs", ""),
        ];
        let mut findings = Vec::new();
        check(&files, &mut findings);
        assert_eq!(findings.iter().map(|found| &*found.path).collect::<Vec<_>>(), ["crates/a/tests/lost.rs"]);
    }
}
