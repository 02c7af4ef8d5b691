//! Manifests in the form of mtree(5): owners, modes, times and kinds of files that are gathered already, and further
//! directories, links and nodes.
//!
//! Lines are `NAME KEY=VALUE …`. A name without a slash is in the current directory, which a line of `type=dir` enters
//! and `..` leaves; one with a slash is a whole path. `/set` gives values to all lines that follow. Keys that say
//! something of contents are not looked at: `size`, digests and the like.

use super::draft::{Attributes, Body, Draft, NodeId, ROOT, Xattrs};
use super::error::{Failures, GatherCause, GatherError};
use super::steps::{self, Through};
use super::tar::{look_up, parse_decimal};
use std::path::Path;
use uext4::Timestamp;

/// Bytes of a manifest, at most.
pub const MANIFEST_MAX: u64 = 1 << 30;

/// The values that a line has.
#[derive(Debug, Clone, Default)]
struct Keys {
    kind: Option<Vec<u8>>,
    mode: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
    /// Names of the owner and the group, which count if numbers are not given.
    uname: Option<Vec<u8>>,
    gname: Option<Vec<u8>>,
    time: Option<Timestamp>,
    target: Option<Vec<u8>>,
    device: Option<(u32, u32)>,
    optional: bool,
}

/// A manifest being applied.
pub struct Manifest<'a> {
    pub draft: &'a mut Draft,
    /// Of what it adds.
    pub time: Timestamp,
    pub name: &'a Path,
    pub failures: &'a mut Failures,
}

impl Manifest<'_> {
    /// Applies all lines. What is wrong with single ones is noted.
    pub fn run(mut self, text: &[u8]) -> Result<(), GatherError> {
        let mut set = Keys::default();
        let mut current: Vec<Vec<u8>> = Vec::new();
        for (at, line) in lines(text) {
            let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
            let Some(first) = words.next() else { continue };
            let done = match first {
                b"/set" => words.try_for_each(|word| set.add(word)),
                b"/unset" => {
                    words.for_each(|word| set.take(word));
                    Ok(())
                }
                b".." => {
                    let left = current.pop();
                    left.map(drop).ok_or(GatherCause::Format("`..` at the root".into()))
                }
                name => {
                    let mut keys = Keys::default();
                    let added = words.try_for_each(|word| keys.add(word));
                    let keys = added.and_then(|()| keys.or(&set).resolve());
                    keys.and_then(|keys| self.line(name, keys, &mut current))
                }
            };
            if let Err(cause) = done {
                let (input, entry) = (self.name.to_owned(), Some(first.to_vec()));
                self.failures.push(GatherError { input, entry, offset: Some(at as u64), cause });
            }
        }
        Ok(())
    }

    fn line(&mut self, name: &[u8], keys: Keys, current: &mut Vec<Vec<u8>>) -> Result<(), GatherCause> {
        let name = unescape(name)?;
        let whole = name.contains(&b'/');
        let parsed = steps::components(&name)?;
        let mut path: Vec<Vec<u8>> = if whole { Vec::new() } else { current.clone() };
        path.extend(parsed.iter().map(|name| name.to_vec()));
        let enters = !whole && keys.kind.as_deref() == Some(b"dir");
        if enters {
            *current = path.clone();
        }
        let components: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
        let Some((last, parents)) = components.split_last() else {
            return self.change(ROOT, &keys);
        };
        let directory = steps::find(self.draft, parents, Through::Nothing)?;
        let found = directory.and_then(|directory| self.draft.find(directory, last));
        match found {
            Some(link) => self.change(link.node, &keys),
            None => self.make(&components, keys),
        }
    }

    /// Changes what is there.
    fn change(&mut self, id: NodeId, keys: &Keys) -> Result<(), GatherCause> {
        let node = self.draft.node_mut(id);
        let is = match &node.body {
            Body::Directory(_) => &b"dir"[..],
            Body::Regular(_) => b"file",
            Body::Symlink(_) => b"link",
            Body::Fifo => b"fifo",
            Body::Socket => b"socket",
            Body::Char(..) => b"char",
            Body::Block(..) => b"block",
        };
        if keys.kind.as_deref().is_some_and(|kind| kind != is) {
            return Err(GatherCause::Format(format!("is of type {}", is.escape_ascii())));
        }
        let attributes = &mut node.attributes;
        attributes.mode = keys.mode.unwrap_or(attributes.mode);
        attributes.uid = keys.uid.unwrap_or(attributes.uid);
        attributes.gid = keys.gid.unwrap_or(attributes.gid);
        attributes.modified = keys.time.unwrap_or(attributes.modified);
        if let Body::Char(major, minor) | Body::Block(major, minor) = &mut node.body {
            (*major, *minor) = keys.device.unwrap_or((*major, *minor));
        }
        Ok(())
    }

    /// Adds what is not there, if a line can say all of it.
    fn make(&mut self, path: &[&[u8]], keys: Keys) -> Result<(), GatherCause> {
        let lacks = |what| GatherCause::Format(format!("is not there, and {what}"));
        let device = || keys.device.ok_or_else(|| lacks("its device number is not given"));
        let body = match keys.kind.as_deref() {
            Some(b"dir") => Body::directory(),
            Some(b"link") => {
                let target = keys.target.clone().ok_or_else(|| lacks("its target is not given"))?;
                Body::Symlink(target.into())
            }
            Some(b"fifo") => Body::Fifo,
            Some(b"socket") => Body::Socket,
            Some(b"char") => device().map(|(major, minor)| Body::Char(major, minor))?,
            Some(b"block") => device().map(|(major, minor)| Body::Block(major, minor))?,
            _ if keys.optional => return Ok(()),
            _ => return Err(lacks("only an input can have its contents")),
        };
        let usual = match body {
            Body::Directory(_) => 0o755,
            Body::Symlink(_) => 0o777,
            _ => 0o644,
        };
        let made = Attributes { mode: usual, uid: 0, gid: 0, modified: self.time, xattrs: Xattrs::new() };
        let Some(spot) = steps::locate(self.draft, path, Through::Nothing)? else { return Ok(()) };
        let id = self.draft.put(&spot, made, body)?;
        self.change(id, &keys)
    }
}

impl Keys {
    fn add(&mut self, word: &[u8]) -> Result<(), GatherCause> {
        let equals = word.iter().position(|&byte| byte == b'=').unwrap_or(word.len());
        let (key, value) = (&word[..equals], word.get(equals + 1..).unwrap_or_default());
        let wrong = || GatherCause::Format(format!("not understood: {}", word.escape_ascii()));
        let text = std::str::from_utf8(value).map_err(|_| wrong());
        match key {
            b"type" => self.kind = Some(value.to_vec()),
            b"mode" => {
                let mode = u16::from_str_radix(text?, 8).ok().filter(|mode| *mode <= 0o7777);
                self.mode = Some(mode.ok_or_else(wrong)?);
            }
            b"uid" => self.uid = Some(parse_decimal(value).ok_or_else(wrong)?),
            b"gid" => self.gid = Some(parse_decimal(value).ok_or_else(wrong)?),
            b"uname" => self.uname = Some(value.to_vec()),
            b"gname" => self.gname = Some(value.to_vec()),
            b"time" => self.time = Some(time(text?).ok_or_else(wrong)?),
            b"link" => self.target = Some(unescape(value)?),
            b"device" | b"rdev" => self.device = Some(device(text?).ok_or_else(wrong)?),
            b"optional" => self.optional = true,
            _ => {}
        }
        Ok(())
    }

    /// What a line says, and else what all say.
    fn or(self, set: &Keys) -> Keys {
        // A name of its own counts more than a number for all.
        let (user, group) =
            (self.uid.is_none() && self.uname.is_none(), self.gid.is_none() && self.gname.is_none());
        Keys {
            kind: self.kind.or_else(|| set.kind.clone()),
            mode: self.mode.or(set.mode),
            uid: if user { set.uid } else { self.uid },
            uname: if user { set.uname.clone() } else { self.uname },
            gid: if group { set.gid } else { self.gid },
            gname: if group { set.gname.clone() } else { self.gname },
            time: self.time.or(set.time),
            target: self.target.or_else(|| set.target.clone()),
            device: self.device.or(set.device),
            optional: self.optional || set.optional,
        }
    }

    /// Looks names of this host's users and groups up, where there are no numbers.
    fn resolve(mut self) -> Result<Keys, GatherCause> {
        let id = |file, name: &[u8]| {
            let unknown = || GatherCause::Format(format!("{file} does not have {}", name.escape_ascii()));
            look_up(file, name).ok_or_else(unknown)
        };
        if let (None, Some(name)) = (self.uid, &self.uname) {
            self.uid = Some(id("/etc/passwd", name)?);
        }
        if let (None, Some(name)) = (self.gid, &self.gname) {
            self.gid = Some(id("/etc/group", name)?);
        }
        Ok(self)
    }

    fn take(&mut self, key: &[u8]) {
        match key {
            b"type" => self.kind = None,
            b"mode" => self.mode = None,
            b"uid" => self.uid = None,
            b"gid" => self.gid = None,
            b"uname" => self.uname = None,
            b"gname" => self.gname = None,
            b"time" => self.time = None,
            b"link" => self.target = None,
            b"device" | b"rdev" => self.device = None,
            b"optional" => self.optional = false,
            b"all" => *self = Keys::default(),
            _ => {}
        }
    }
}

/// Seconds, and behind a dot nanoseconds as a number: `1.5` is five nanoseconds after one second.
fn time(text: &str) -> Option<Timestamp> {
    let (seconds, nanoseconds) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds = nanoseconds.parse().ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000)?;
    Some(Timestamp { seconds: seconds.parse().ok()?, nanoseconds })
}

/// `native,8,1`, `linux,8,1` and the like, or a number as Linux has it.
fn device(text: &str) -> Option<(u32, u32)> {
    let mut fields = text.split(',');
    match (fields.next(), fields.next(), fields.next(), fields.next()) {
        (Some(_), Some(major), Some(minor), None) => Some((number(major)?, number(minor)?)),
        (Some(whole), None, ..) => {
            let whole = u64::from(number(whole)?);
            Some((rustix::fs::major(whole), rustix::fs::minor(whole)))
        }
        _ => None,
    }
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Lines with where they begin, those that a backslash continues joined, without comments.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (start, mut line) = (at, Vec::new());
        if at >= text.len() {
            return None;
        }
        while at < text.len() {
            let rest = &text[at..];
            let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            at += end + 1;
            match rest[..end].strip_suffix(b"\\") {
                Some(part) => line.extend_from_slice(part),
                None => {
                    line.extend_from_slice(&rest[..end]);
                    break;
                }
            }
        }
        if line.trim_ascii_start().starts_with(b"#") {
            line.clear();
        }
        Some((start, line))
    })
}

/// Replaces what vis(3) writes for bytes that a manifest cannot have.
fn unescape(name: &[u8]) -> Result<Vec<u8>, GatherCause> {
    let (mut bytes, mut rest) = (Vec::with_capacity(name.len()), name);
    while let [first, after @ ..] = rest {
        let (byte, next) = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', next @ ..] => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), next)
            }
            [b'\\', other, next @ ..] => match other {
                b'n' => (b'\n', next),
                b't' => (b'\t', next),
                b'r' => (b'\r', next),
                b's' => (b' ', next),
                b'a' => (7, next),
                b'b' => (8, next),
                b'v' => (11, next),
                b'f' => (12, next),
                b'\\' | b'#' | b'*' | b'?' | b'[' => (*other, next),
                _ => return Err(GatherCause::Name("the name has an escape that is not known")),
            },
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = next;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_manifests_are_read() {
        assert_eq!(time("12.5").map(|time| (time.seconds, time.nanoseconds)), Some((12, 5)));
        assert_eq!(time("-1"), Some(Timestamp { seconds: -1, nanoseconds: 0 }));
        assert!(time("1.1000000000").is_none() && time("x").is_none());
        assert_eq!(device("native,8,300"), Some((8, 300)));
        assert_eq!(device("0x10052c"), Some((5, 300)));
        assert!(device("linux,8").is_none() && device("").is_none());
        assert_eq!(unescape(b"a\\040b\\\\\\sc\\#").unwrap(), b"a b\\ c#");
        assert!(unescape(b"a\\q").is_err());
        let text = b"#mtree\n. type=dir \\\n  uid=3\n\n /set x\n";
        let found: Vec<_> = lines(text).map(|(at, line)| (at, String::from_utf8(line).unwrap())).collect();
        let wanted = [(0, ""), (7, ". type=dir   uid=3"), (28, ""), (29, " /set x")];
        assert_eq!(found, wanted.map(|(at, line)| (at, line.to_owned())));
    }
}
