//! Rules about Rust code, on its tokens: comments and strings cannot confuse them, and code inside macro
//! calls (property tests, model tests) is seen too.

use std::str::FromStr;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::Finding;

/// Rule name.
pub const UNSAFE: &str = "unsafe-room";
/// Rule name.
pub const IGNORED: &str = "ignored-test";

struct Scan<'a> {
    path: &'a str,
    unsafe_lines: Vec<usize>,
    findings: &'a mut Vec<Finding>,
}

/// Checks one file.
pub fn check(path: &str, content: &str, findings: &mut Vec<Finding>) -> Result<(), String> {
    let tokens = TokenStream::from_str(content).map_err(|e| format!("{path}: {e}"))?;
    let mut scan = Scan { path, unsafe_lines: Vec::new(), findings };
    scan.stream(tokens);
    if let Some(first) = scan.unsafe_lines.first().copied() {
        let sites = scan.unsafe_lines.len();
        scan.find(UNSAFE, first, "", sites, format!("{sites} unsafe sites outside the listed files"));
    }
    // A documentation example that is not compiled is a test that does not run.
    for (index, line) in content.lines().enumerate() {
        if line.trim_start().starts_with("//") && line.contains("```ignore") {
            scan.find(IGNORED, index + 1, "", 0, "a documentation test that does not run".into());
        }
    }
    Ok(())
}

impl Scan<'_> {
    fn find(&mut self, rule: &'static str, line: usize, item: &str, measure: usize, text: String) {
        self.findings.push(Finding { rule, path: self.path.into(), line, item: item.into(), measure, text });
    }

    fn stream(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "unsafe" => {
                    self.unsafe_lines.push(word.span().start().line);
                }
                TokenTree::Group(group) => {
                    let before = index.checked_sub(1).map(|at| &tokens[at]);
                    self.attribute(before, group);
                    self.stream(group.stream());
                }
                _ => {}
            }
        }
    }

    /// `#[ignore]`, also inside `cfg_attr`.
    fn attribute(&mut self, before: Option<&TokenTree>, group: &Group) {
        if !is_punct(before, '#') || group.delimiter() != Delimiter::Bracket {
            return;
        }
        let words: Vec<TokenTree> = group.stream().into_iter().collect();
        let inner = match words.as_slice() {
            [TokenTree::Ident(name), TokenTree::Group(list), ..] if name == "cfg_attr" => list.stream(),
            _ => group.stream(),
        };
        if inner.into_iter().any(|token| matches!(token, TokenTree::Ident(name) if name == "ignore")) {
            self.find(IGNORED, group.span_open().start().line, "", 0, "a test that does not run".into());
        }
    }
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(content: &str) -> Vec<(&'static str, usize)> {
        let mut out = Vec::new();
        check("a.rs", content, &mut out).unwrap();
        out.into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn unsafe_is_found_wherever_it_is_code() {
        assert_eq!(found("fn f() { unsafe { g() } }"), [(UNSAFE, 1)]);
        assert_eq!(found("m! {\n unsafe impl Send for A {} }"), [(UNSAFE, 2)]);
        assert_eq!(found("#[unsafe(no_mangle)]\nfn f() {}"), [(UNSAFE, 1)]);
        assert!(found("#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";").is_empty());
    }

    #[test]
    fn unsafe_is_one_finding_for_a_file() {
        assert_eq!(found("\nunsafe fn f() {}\nunsafe fn g() {}"), [(UNSAFE, 2)]);
    }

    #[test]
    fn a_test_that_does_not_run_is_found() {
        assert_eq!(found("#[test]\n#[ignore = \"slow\"]\nfn f() {}"), [(IGNORED, 2)]);
        assert_eq!(found("#[cfg_attr(miri, ignore)]\nfn f() {}"), [(IGNORED, 1)]);
        assert_eq!(found("/// ```ignore\n/// x\n/// ```\nfn f() {}"), [(IGNORED, 1)]);
        assert!(found("fn ignore() { a[ignore]; }").is_empty());
    }

    #[test]
    fn what_does_not_lex_is_an_error() {
        let mut out = Vec::new();
        assert!(check("a.rs", "fn f( {", &mut out).is_err());
    }
}
