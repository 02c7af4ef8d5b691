//! Name patterns: `*`, `?`, `[a-z]`, `[!a-z]`, `\`.

use std::str::FromStr;

/// One element of a pattern.
#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// Any bytes.
    Star,
    /// One character, or one byte that is not UTF-8.
    Any,
    /// This character.
    One(char),
    /// One character in these ranges, or outside all of them.
    Set { ranges: Vec<(char, char)>, negated: bool },
}

/// A parsed pattern. Matching takes at most pattern × name steps.
#[derive(Debug, Clone)]
pub struct Glob {
    tokens: Vec<Token>,
}

/// The character at the start of a name and its length; `None` for a byte that is not UTF-8.
fn first(name: &[u8]) -> (Option<char>, usize) {
    match name {
        [] => (None, 0),
        [byte, ..] if byte.is_ascii() => (Some(char::from(*byte)), 1),
        _ => {
            let head = &name[..name.len().min(4)];
            match head.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next()) {
                Some(letter) => (Some(letter), letter.len_utf8()),
                None => (None, 1),
            }
        }
    }
}

/// Lower case, if that is a single letter.
fn folded(letter: char) -> char {
    let mut lower = letter.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(only), None) => only,
        _ => letter,
    }
}

impl Token {
    fn matches(&self, letter: Option<char>, fold: bool) -> bool {
        match (self, letter) {
            (Token::Star, _) => false,
            (Token::Any, _) => true,
            (Token::One(wanted), Some(letter)) => {
                *wanted == letter || fold && folded(*wanted) == folded(letter)
            }
            (Token::Set { ranges, negated }, Some(letter)) => {
                let inside = |letter: char| ranges.iter().any(|(low, high)| (*low..=*high).contains(&letter));
                let other = folded(letter);
                let upper = letter.to_uppercase().next().unwrap_or(letter);
                (inside(letter) || fold && (inside(other) || inside(upper))) != *negated
            }
            (Token::Set { negated, .. }, None) => *negated,
            (Token::One(_), None) => false,
        }
    }
}

impl Glob {
    /// Whether the pattern matches the whole name.
    pub fn matches(&self, name: &[u8], fold: bool) -> bool {
        let (mut at, mut rest) = (0, name);
        // Where to resume if the text after the last star does not match: one character later.
        let mut again: Option<(usize, &[u8])> = None;
        loop {
            match self.tokens.get(at) {
                Some(Token::Star) => {
                    at += 1;
                    again = Some((at, rest));
                    continue;
                }
                None if rest.is_empty() => return true,
                Some(token) if !rest.is_empty() => {
                    let (letter, length) = first(rest);
                    if token.matches(letter, fold) {
                        at += 1;
                        rest = &rest[length..];
                        continue;
                    }
                }
                _ => {}
            }
            let Some((after, from)) = again.filter(|(_, from)| !from.is_empty()) else { return false };
            let (_, length) = first(from);
            (at, rest) = (after, &from[length..]);
            again = Some((after, rest));
        }
    }
}

/// A set after its `[`, and the pattern after its `]`. `None`: there is no `]`, so it is not a set.
fn set(pattern: &str) -> Option<(Token, &str)> {
    let inner = pattern.strip_prefix(['!', '^']);
    let negated = inner.is_some();
    let mut letters = inner.unwrap_or(pattern).chars();
    let mut ranges: Vec<(char, char)> = Vec::new();
    // A `]` right at the start is literal.
    let mut begin = true;
    loop {
        let mut low = letters.next()?;
        if low == ']' && !begin {
            return Some((Token::Set { ranges, negated }, letters.as_str()));
        }
        begin = false;
        if low == '\\' {
            low = letters.next()?;
        }
        let mut ahead = letters.clone();
        let high = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(high)) if high != ']' => {
                letters = ahead;
                if high == '\\' { letters.next()? } else { high }
            }
            _ => low,
        };
        ranges.push((low, high));
    }
}

impl FromStr for Glob {
    type Err = String;

    fn from_str(pattern: &str) -> Result<Self, String> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut rest = pattern;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            let token = match letter {
                '*' => Token::Star,
                '?' => Token::Any,
                '[' => match set(rest) {
                    Some((token, behind)) => {
                        rest = behind;
                        token
                    }
                    None => Token::One('['),
                },
                '\\' => {
                    let escaped = rest.chars().next().ok_or("a backslash at the end escapes nothing")?;
                    rest = &rest[escaped.len_utf8()..];
                    Token::One(escaped)
                }
                letter => Token::One(letter),
            };
            if token != Token::Star || tokens.last() != Some(&Token::Star) {
                tokens.push(token);
            }
        }
        Ok(Glob { tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: impl AsRef<[u8]>) -> bool {
        pattern.parse::<Glob>().unwrap().matches(name.as_ref(), false)
    }

    #[test]
    fn as_find_matches() {
        for (pattern, name) in [
            ("", ""),
            ("*", ""),
            ("*", ".hidden/with/slashes"),
            ("*.rs", "lib.rs"),
            ("a*b*c", "aXbYbZc"),
            ("a**c", "ac"),
            ("?", "ż"),
            ("[a-c]x[!0-9]", "bxz"),
            ("[]a]", "]"),
            ("[!]]", "x"),
            ("[a-]", "-"),
            ("[", "["),
            ("[ab", "[ab"),
            ("\\*", "*"),
            ("[\\]]", "]"),
            ("*ż?ł*", "xżółć"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("?", ""),
            ("*.rs", "lib.rs.orig"),
            ("a*b*c", "aXbY"),
            ("[a-c]", "d"),
            ("[!a-c]", "b"),
            ("\\*", "a"),
            ("A", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(matches("?*", b"\xff\xfe") && !matches("?", b"\xff\xfe"));
        assert!(matches("[!a]", b"\xff") && !matches("[a-z]", b"\xff"));
        assert!("a\\".parse::<Glob>().is_err());
    }

    #[test]
    fn case_can_be_passed_over() {
        for (pattern, name) in [("LIB.*", "lib.RS"), ("[A-C]", "b"), ("[a-c]", "B"), ("ŻÓŁĆ", "żółć")]
        {
            assert!(pattern.parse::<Glob>().unwrap().matches(name.as_bytes(), true), "{pattern}");
        }
    }

    #[test]
    fn stars_cost_no_exponential_time() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!matches(&pattern, "a".repeat(255)));
    }
}
