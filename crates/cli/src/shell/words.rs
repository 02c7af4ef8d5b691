//! Splits a line into words, as a shell does: quotes, backslashes, `#` for a comment, and patterns of names.

/// A word of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// Without quotes.
    pub text: Vec<u8>,
    /// The word as a pattern, with a backslash before what was quoted; `None` if it has no `*`, `?` or `[` outside
    /// quotes.
    pub pattern: Option<Vec<u8>>,
}

/// Why a line has no words.
pub type Open = &'static str;

/// The words of a line.
///
/// # Errors
/// If a quote is not closed.
pub fn split(line: &[u8]) -> Result<Vec<Word>, Open> {
    let mut words = Vec::new();
    let mut now: Option<Building> = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => words.extend(now.take().map(Building::done)),
            b'#' if now.is_none() => break,
            b'\'' | b'"' => {
                let word = now.get_or_insert_default();
                loop {
                    match bytes.next() {
                        None => return Err("a quote is not closed"),
                        Some(end) if end == byte => break,
                        Some(b'\\') if byte == b'"' => word.quoted(bytes.next().unwrap_or(b'\\')),
                        Some(inside) => word.quoted(inside),
                    }
                }
            }
            b'\\' => {
                now.get_or_insert_default().quoted(bytes.next().ok_or("the line ends with a backslash")?)
            }
            _ => now.get_or_insert_default().plain(byte),
        }
    }
    words.extend(now.map(Building::done));
    Ok(words)
}

#[derive(Default)]
struct Building {
    text: Vec<u8>,
    pattern: Vec<u8>,
    is_pattern: bool,
}

impl Building {
    fn quoted(&mut self, byte: u8) {
        self.text.push(byte);
        if b"*?[\\".contains(&byte) {
            self.pattern.push(b'\\');
        }
        self.pattern.push(byte);
    }

    fn plain(&mut self, byte: u8) {
        self.text.push(byte);
        self.pattern.push(byte);
        self.is_pattern |= b"*?[".contains(&byte);
    }

    fn done(self) -> Word {
        Word { text: self.text, pattern: Some(self.pattern).filter(|_| self.is_pattern) }
    }
}

/// A name as a word of a line.
pub fn quoted(name: &[u8]) -> Vec<u8> {
    let special = |byte: &u8| b" \t\n\r'\"\\*?[#".contains(byte);
    name.iter().flat_map(|byte| special(byte).then_some(b'\\').into_iter().chain([*byte])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        let words = split(line.as_bytes()).unwrap();
        words.into_iter().map(|word| String::from_utf8(word.text).unwrap()).collect()
    }

    #[test]
    fn lines_have_words() {
        assert_eq!(texts("  ls   -l /a\tb "), ["ls", "-l", "/a", "b"]);
        assert_eq!(texts("a 'b c' \"d \\\" e\" f\\ g '' # h"), ["a", "b c", "d \" e", "f g", ""]);
        assert_eq!(texts("a#b"), ["a#b"]);
        assert!(texts(" # nothing").is_empty());
        assert_eq!([split(b"'a"), split(b"a\\")].map(|words| words.is_err()), [true, true]);
    }

    #[test]
    fn quotes_take_the_meaning_from_patterns() {
        let pattern = |line: &str| split(line.as_bytes()).unwrap().remove(0).pattern;
        assert_eq!(pattern("a*"), Some(b"a*".to_vec()));
        assert_eq!(pattern("'a*'"), None);
        assert_eq!(pattern("'*'?"), Some(b"\\*?".to_vec()));
        for name in [&b"plain"[..], b"with space", b"*?[#'\"\\", b"\xFF"] {
            assert_eq!(split(&quoted(name)).unwrap(), [Word { text: name.to_vec(), pattern: None }]);
        }
    }
}
