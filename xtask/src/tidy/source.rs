//! Rules about Rust code, on its tokens: comments and strings cannot confuse them, and code inside macro
//! calls (property tests, model tests) is seen too.

use std::collections::BTreeSet;
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};

use super::Finding;
use super::config::Config;

/// Rule name.
pub const FUNCTION_LINES: &str = "function-lines";
/// Rule name.
pub const UNSAFE: &str = "unsafe-room";
/// Rule name.
pub const IGNORED: &str = "ignored-test";
/// Rule name.
pub const UNFINISHED: &str = "unfinished-macro";

struct Scan<'a> {
    path: &'a str,
    /// Whether each line (from 0) is a comment of its own: documentation is a token, but no code.
    comment: Vec<bool>,
    limit: usize,
    functions: usize,
    unsafe_lines: Vec<usize>,
    findings: &'a mut Vec<Finding>,
}

/// Checks one file; returns how many functions it has.
pub fn check(
    path: &str,
    content: &str,
    config: &Config,
    findings: &mut Vec<Finding>,
) -> Result<usize, String> {
    let tokens = TokenStream::from_str(content).map_err(|e| format!("{path}: {e}"))?;
    let comment = content.lines().map(|line| line.trim_start().starts_with("//")).collect();
    let limit = config.limits.function_lines;
    let mut scan = Scan { path, comment, limit, functions: 0, unsafe_lines: Vec::new(), findings };
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
    Ok(scan.functions)
}

impl Scan<'_> {
    fn find(&mut self, rule: &'static str, line: usize, item: &str, measure: usize, text: String) {
        self.findings.push(Finding { rule, path: self.path.into(), line, item: item.into(), measure, text });
    }

    fn stream(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) => self.word(&word.to_string(), word.span(), &tokens[index..]),
                TokenTree::Group(group) => {
                    let before = index.checked_sub(1).map(|at| &tokens[at]);
                    self.attribute(before, group);
                    self.stream(group.stream());
                }
                _ => {}
            }
        }
    }

    fn word(&mut self, word: &str, span: Span, rest: &[TokenTree]) {
        let line = span.start().line;
        match word {
            "unsafe" => self.unsafe_lines.push(line),
            "todo" | "unimplemented" if is_punct(rest.get(1), '!') => {
                self.find(UNFINISHED, line, "", 0, format!("`{word}!` left in the tree"));
            }
            "fn" => self.function(line, rest),
            _ => {}
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

    /// `rest` begins with `fn`. A pointer type (`fn(u8)`) has no name, a declaration no body.
    fn function(&mut self, first: usize, rest: &[TokenTree]) {
        let Some(TokenTree::Ident(name)) = rest.get(1) else { return };
        let mut code = BTreeSet::new();
        for (index, token) in rest.iter().enumerate() {
            self.mark(token, &mut code);
            let is_argument =
                index > 0 && (is_punct(rest.get(index - 1), '<') || is_punct(rest.get(index - 1), ','));
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ';' => return,
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !is_argument => break,
                _ => {}
            }
        }
        self.functions += 1;
        if code.len() > self.limit {
            let name = name.to_string();
            let text = format!("`{name}` has {} code lines, limit {}", code.len(), self.limit);
            self.find(FUNCTION_LINES, first, &name, code.len(), text);
        }
    }

    /// Adds the lines that a token stands on: all lines of a literal, first and last of a group, those
    /// within.
    fn mark(&self, token: &TokenTree, code: &mut BTreeSet<usize>) {
        let mut add = |span: Span| {
            let lines = span.start().line..=span.end().line;
            code.extend(lines.filter(|line| !self.comment.get(line - 1).copied().unwrap_or(false)));
        };
        match token {
            TokenTree::Group(group) => {
                add(group.span_open());
                add(group.span_close());
                for inner in group.stream() {
                    self.mark(&inner, code);
                }
            }
            other => add(other.span()),
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
        check("a.rs", content, &Config::sample(""), &mut out).unwrap();
        out.into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    fn function(statements: usize) -> String {
        format!("fn long(\n    a: u8,\n) {{\n{}}}\n", "    a;\n".repeat(statements))
    }

    #[test]
    fn a_long_function_is_found() {
        assert!(found(&function(66)).is_empty(), "4 + 66 lines are the limit");
        assert_eq!(found(&function(67)), [(FUNCTION_LINES, 1)]);
        assert_eq!(found(&format!("impl A {{\n{}}}", function(67))), [(FUNCTION_LINES, 2)]);
        assert_eq!(found(&format!("proptest! {{\n{}}}", function(67))), [(FUNCTION_LINES, 2)]);
        assert_eq!(
            found(&format!("fn a(f: fn(u8)) -> A<{{ N }}>;\n{}", function(67))),
            [(FUNCTION_LINES, 2)]
        );
    }

    #[test]
    fn blank_lines_and_comments_are_not_code() {
        let padding = "\n    // why\n    /* aside\n       more */\n    /// inner\n";
        let body = format!("fn f() {{\n{}    1;\n}}\n", padding.repeat(40));
        assert!(found(&body).is_empty());
        let text = format!("fn f() {{\n    \"{}\";\n}}\n", "x\n".repeat(70));
        assert_eq!(found(&text), [(FUNCTION_LINES, 1)], "lines of a literal count");
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
    fn an_unfinished_macro_is_found() {
        assert_eq!(found("fn f() { todo!() }"), [(UNFINISHED, 1)]);
        assert_eq!(found("fn f() {\n unimplemented!(\"x\") }"), [(UNFINISHED, 2)]);
        assert!(found("fn todo() { let todo = 1; }").is_empty());
    }

    #[test]
    fn what_does_not_lex_is_an_error() {
        let mut out = Vec::new();
        assert!(check("a.rs", "fn f( {", &Config::sample(""), &mut out).is_err());
    }
}
