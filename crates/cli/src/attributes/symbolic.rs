//! Modes as chmod(1) takes them: octal, or symbolic.

/// All bits that can be changed.
const ALL: u32 = 0o7777;
const SET_ID: u32 = 0o6000;
const STICKY: u32 = 0o1000;
const RWX: u32 = 0o777;

/// A change of a mode, compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeChange(Vec<Step>);

/// One operator with what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    operator: u8,
    /// The bits of those who were named; 0 if nobody was, which leaves out the bits of the umask.
    of: u32,
    value: u32,
    /// Bits that were given by name. The set-id bits of directories change only if they were.
    named: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// `X`: execute for directories and for files that somebody may execute.
    ExecuteIfAny,
    /// The permissions of the owner, the group or the others.
    Copy,
}

impl ModeChange {
    /// A mode, or a list of changes separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a mode: 644, u+x, go-w, a=rX …");
        if text.starts_with(|letter: char| letter.is_ascii_digit()) {
            let value = octal(text).ok_or_else(bad)?;
            let named = if text.len() < 5 { value & (SET_ID | STICKY) | RWX } else { ALL };
            return Ok(ModeChange(vec![Step { operator: b'=', of: ALL, value, named, kind: Kind::Plain }]));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause.as_bytes(), &mut steps).ok_or_else(bad)?;
        }
        Ok(ModeChange(steps))
    }

    /// The mode after the change.
    pub fn of(&self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        self.0.iter().fold(mode & ALL, |mode, step| step.of(mode, is_directory, umask))
    }
}

fn octal(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= ALL)
}

fn parse_clause(clause: &[u8], steps: &mut Vec<Step>) -> Option<()> {
    let is_operator = |byte: &u8| b"+-=".contains(byte);
    let start = clause.iter().position(is_operator)?;
    let mut of = 0;
    for who in &clause[..start] {
        of |= match who {
            b'u' => 0o4700,
            b'g' => 0o2070,
            b'o' => 0o1007,
            b'a' => ALL,
            _ => return None,
        };
    }
    let mut rest = &clause[start..];
    while let [operator, tail @ ..] = rest {
        let end = tail.iter().position(is_operator).unwrap_or(tail.len());
        steps.push(parse_step(*operator, of, &tail[..end])?);
        rest = &tail[end..];
    }
    Some(())
}

fn parse_step(operator: u8, of: u32, what: &[u8]) -> Option<Step> {
    let copy = |value| {
        Some(Step { operator, of, value, named: if of == 0 { value } else { of & value }, kind: Kind::Copy })
    };
    match what {
        b"u" => return copy(0o700),
        b"g" => return copy(0o070),
        b"o" => return copy(0o007),
        [digit, ..] if digit.is_ascii_digit() => {
            let value = octal(std::str::from_utf8(what).ok()?).filter(|_| of == 0)?;
            return Some(Step { operator, of: ALL, value, named: ALL, kind: Kind::Plain });
        }
        _ => {}
    }
    let (mut value, mut kind) = (0, Kind::Plain);
    for letter in what {
        value |= match letter {
            b'r' => 0o444,
            b'w' => 0o222,
            b'x' => 0o111,
            b's' => SET_ID,
            b't' => STICKY,
            b'X' => {
                kind = Kind::ExecuteIfAny;
                0
            }
            _ => return None,
        };
    }
    Some(Step { operator, of, value, named: if of == 0 { value } else { of & value }, kind })
}

impl Step {
    fn of(self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        let kept = if is_directory { SET_ID & !self.named } else { 0 };
        let mut value = match self.kind {
            Kind::Plain => self.value,
            Kind::ExecuteIfAny if is_directory || mode & 0o111 != 0 => self.value | 0o111,
            Kind::ExecuteIfAny => self.value,
            Kind::Copy => {
                let found = self.value & mode;
                [0o444, 0o222, 0o111].into_iter().filter(|bits| found & bits != 0).sum::<u32>() | found
            }
        };
        value &= if self.of == 0 { !umask } else { self.of };
        value &= !kept;
        match self.operator {
            b'+' => mode | value,
            b'-' => mode & !value,
            _ => mode & (kept | if self.of == 0 { 0 } else { !self.of }) | value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_chmod() {
        // Text, mode before, of a directory, mode after; with a umask of 022.
        for (text, before, directory, after) in [
            ("644", 0o7777, false, 0o644),
            ("755", 0o6711, true, 0o6755),
            ("00755", 0o6711, true, 0o755),
            ("u+x,go-w", 0o666, false, 0o744),
            ("+x", 0o600, false, 0o711),
            ("+w", 0o400, false, 0o600),
            ("-w", 0o666, false, 0o466),
            ("=rw", 0o777, false, 0o644),
            ("a=rX", 0o600, false, 0o444),
            ("a=rX", 0o700, false, 0o555),
            ("g=u", 0o640, false, 0o660),
            ("o=g-w", 0o670, false, 0o675),
            ("u+s,g+s,+t", 0o755, false, 0o7755),
            ("u-s", 0o4755, true, 0o755),
            ("a=", 0o2777, true, 0o2000),
            ("g=", 0o2777, true, 0o2707),
            ("=600", 0o777, false, 0o600),
            ("u=rwx,g+", 0o070, false, 0o770),
        ] {
            let change = ModeChange::parse(text).unwrap();
            assert_eq!(change.of(before, directory, 0o022), after, "{text} of {before:o}");
        }
        for bad in ["", "8", "77777", "u", "x+r", "u+q", "u+7", "644,u+x", ",", "+ug"] {
            assert!(ModeChange::parse(bad).is_err(), "{bad}");
        }
    }
}
