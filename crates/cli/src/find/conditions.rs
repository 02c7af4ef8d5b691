//! The tests of `find`.

use super::args::FindArgs;
use chrono::NaiveDateTime;
use std::cmp::Ordering;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};
use uext4::{FileKind, Metadata, Timestamp, WalkEntry};

const DAY: i64 = 86_400;

/// `N`, `+N` or `-N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    order: Ordering,
    number: u64,
}

impl Amount {
    fn holds(self, value: u64) -> bool {
        value.cmp(&self.number) == self.order
    }
}

/// The order meant by a sign, and the rest of the text.
fn signed(text: &str) -> (Ordering, &str) {
    match text.as_bytes().first() {
        Some(b'+') => (Ordering::Greater, &text[1..]),
        Some(b'-') => (Ordering::Less, &text[1..]),
        _ => (Ordering::Equal, text),
    }
}

fn number(text: &str, whole: &str) -> Result<u64, String> {
    // `parse` would accept a second sign.
    let digits = text.starts_with(|letter: char| letter.is_ascii_digit()).then_some(text);
    let number = digits.and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| format!("`{whole}` is not a number, perhaps with + or - before it"))
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (order, digits) = signed(text);
        Ok(Amount { order, number: number(digits, text)? })
    }
}

/// A number of bytes, rounded up to a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    amount: Amount,
    unit: u64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (order, rest) = signed(text);
        let units = [('c', 1), ('b', 512), ('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
        let mut units =
            units.into_iter().filter_map(|(letter, unit)| Some((rest.strip_suffix(letter)?, unit)));
        let (digits, unit) = units.next().unwrap_or((rest, 512));
        Ok(Size { amount: Amount { order, number: number(digits, text)? }, unit })
    }
}

/// Mode bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permissions {
    /// Exactly these bits.
    Exactly(u32),
    /// All of these bits.
    All(u32),
    /// At least one of these bits; true if none are given.
    Any(u32),
}

impl FromStr for Permissions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix(['-', '/']).unwrap_or(text);
        let mode = u32::from_str_radix(digits, 8).ok();
        let mode = mode.filter(|&mode| mode <= 0o7777 && !digits.starts_with('+'));
        let mode = mode.ok_or_else(|| format!("`{text}` is not a mode: octal digits up to 7777"))?;
        Ok(match text.as_bytes().first() {
            Some(b'-') => Permissions::All(mode),
            Some(b'/') => Permissions::Any(mode),
            _ => Permissions::Exactly(mode),
        })
    }
}

impl Permissions {
    fn holds(self, mode: u32) -> bool {
        match self {
            Permissions::Exactly(wanted) => mode == wanted,
            Permissions::All(wanted) => mode & wanted == wanted,
            Permissions::Any(wanted) => wanted == 0 || mode & wanted != 0,
        }
    }
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(i64);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a time: 2026-11-21, 2026-11-21T05:16:27 or @SECONDS");
        if let Some(seconds) = text.strip_prefix('@') {
            return seconds.parse().map(Moment).map_err(|_| bad());
        }
        let mut whole = text.trim_end_matches('Z').replacen(' ', "T", 1);
        if !whole.contains('T') {
            whole.push_str("T00:00");
        }
        // The library would accept signs and spaces too.
        let plain = |byte: u8| byte.is_ascii_digit() || b"-:T".contains(&byte);
        if whole.starts_with('-') || !whole.bytes().all(plain) {
            return Err(bad());
        }
        let formats = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"];
        let moment = formats.iter().find_map(|format| NaiveDateTime::parse_from_str(&whole, format).ok());
        moment.map(|moment| Moment(moment.and_utc().timestamp())).ok_or_else(bad)
    }
}

/// The tests that an entry must pass.
pub struct Conditions<'a> {
    args: &'a FindArgs,
    now: i64,
}

impl<'a> Conditions<'a> {
    /// The tests of the arguments, with ages relative to now.
    pub fn new(args: &'a FindArgs) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Conditions { args, now: i64::try_from(now).unwrap_or(i64::MAX) }
    }

    /// Whether a test needs the inode, beyond name and type.
    pub fn need_attributes(&self) -> bool {
        let args = self.args;
        let times = args.mtime.len() + args.ctime.len() + args.atime.len();
        let numbers = args.size.len() + args.uid.len() + args.gid.len() + args.perm.len() + args.links.len();
        times + numbers > 0 || args.newermt.is_some() || args.empty
    }

    /// Whether the entry passes, except for `--empty` of directories. `path`: as printed.
    pub fn hold(&self, entry: &WalkEntry<'_>, path: &[u8]) -> bool {
        let args = self.args;
        let name = path.rsplit(|&byte| byte == b'/').next().filter(|name| !name.is_empty()).unwrap_or(b"/");
        entry.depth >= args.mindepth
            && any(&args.name, |glob| glob.matches(name, false))
            && any(&args.iname, |glob| glob.matches(name, true))
            && any(&args.path, |glob| glob.matches(path, false))
            && any(&args.kind, |kind| entry.kind == Some(*kind))
            && args.inum.iter().all(|amount| amount.holds(entry.ino.get().into()))
            && entry.metadata.is_none_or(|metadata| self.attributes(metadata))
    }

    fn attributes(&self, metadata: &Metadata) -> bool {
        let args = self.args;
        let empty = match metadata.kind {
            FileKind::Regular => metadata.size == 0,
            kind => kind == FileKind::Directory,
        };
        args.size.iter().all(|size| size.amount.holds(metadata.size.div_ceil(size.unit)))
            && args.mtime.iter().all(|days| self.age(*days, metadata.modified))
            && args.ctime.iter().all(|days| self.age(*days, metadata.changed))
            && args.atime.iter().all(|days| self.age(*days, metadata.accessed))
            && args.newermt.is_none_or(|Moment(from)| {
                (metadata.modified.seconds, metadata.modified.nanoseconds) > (from, 0)
            })
            && args.uid.iter().all(|amount| amount.holds(metadata.uid.into()))
            && args.gid.iter().all(|amount| amount.holds(metadata.gid.into()))
            && args.perm.iter().all(|perm| perm.holds(metadata.mode))
            && args.links.iter().all(|amount| amount.holds(metadata.links.into()))
            && (!args.empty || empty)
    }

    fn age(&self, days: Amount, time: Timestamp) -> bool {
        // A future time counts as less than any number of days ago.
        match u64::try_from(self.now.saturating_sub(time.seconds).div_euclid(DAY)) {
            Ok(age) => days.holds(age),
            Err(_) => days.order == Ordering::Less,
        }
    }
}

/// At least one must hold, if there are any.
fn any<T>(wanted: &[T], holds: impl FnMut(&T) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_sizes() {
        for (text, order, number) in
            [("7", Ordering::Equal, 7), ("+0", Ordering::Greater, 0), ("-12", Ordering::Less, 12)]
        {
            assert_eq!(text.parse(), Ok(Amount { order, number }));
        }
        for bad in ["", "+", "--1", "+-1", "1x", "99999999999999999999"] {
            assert!(bad.parse::<Amount>().is_err(), "{bad}");
        }
        let holds = |text: &str, bytes: u64| {
            let size: Size = text.parse().unwrap();
            size.amount.holds(bytes.div_ceil(size.unit))
        };
        // A size is rounded up: -1M matches only empty files, as in find(1).
        assert!(holds("-1M", 0) && !holds("-1M", 1));
        assert!(holds("1M", 1) && holds("1M", 1 << 20) && holds("+1M", (1 << 20) + 1));
        assert!(holds("3", 1025) && holds("1025c", 1025) && holds("2k", 1025));
        assert!(holds("+8388607G", u64::MAX));
        assert!("k".parse::<Size>().is_err() && "1T".parse::<Size>().is_err());
    }

    #[test]
    fn modes() {
        let holds = |text: &str, mode| text.parse::<Permissions>().unwrap().holds(mode);
        assert!(holds("644", 0o644) && !holds("644", 0o4644));
        assert!(holds("-644", 0o4755) && !holds("-644", 0o640));
        assert!(holds("/222", 0o020) && !holds("/222", 0o555) && holds("/000", 0o555));
        for bad in ["", "8", "u+x", "+644", "17777", "-"] {
            assert!(bad.parse::<Permissions>().is_err(), "{bad}");
        }
    }

    #[test]
    fn moments() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2000-02-29T00:00", 951_782_400),
            ("2446-05-10 22:38:55", 15_032_385_535),
            ("1969-12-31T23:59:59Z", -1),
            ("@-5", -5),
        ] {
            assert_eq!(text.parse(), Ok(Moment(seconds)), "{text}");
        }
        for bad in [
            "",
            "yesterday",
            "2000-13-01",
            "2000-02-30",
            "2000-01",
            "2000-01-01T25:00",
            "2000-1-1T1:2:3:4",
            "@x",
            "+1-1-1",
            "1-+1-1",
            "-1-1-1",
            "1-1-1T1:-1",
            "1-1- 1",
            "1-1-1 1: 1",
        ] {
            assert!(bad.parse::<Moment>().is_err(), "{bad}");
        }
    }
}
