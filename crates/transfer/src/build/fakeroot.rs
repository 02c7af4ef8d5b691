//! The state that `fakeroot -s FILE` leaves: owners, modes and device nodes that files have in its eyes.

use super::error::{Failures, GatherCause, GatherError};
use crate::into::origin::Item;
use rustix::fs::{FileType, RawMode};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use uext4::FileKind;

/// Bytes of the state, at most.
const STATE_MAX: u64 = 1 << 30;
/// Bytes of a line, at most.
const LINE_MAX: u64 = 4096;

/// What files are in the eyes of fakeroot. Those that it does not know are root's there.
#[derive(Debug, Default)]
pub struct Fakeroot {
    files: HashMap<(u64, u64), Fake>,
}

#[derive(Debug, Clone, Copy)]
struct Fake {
    mode: u32,
    owner: (u32, u32),
    rdev: u64,
}

impl Fakeroot {
    /// Reads a state that fakeroot saved.
    ///
    /// # Errors
    /// A file that cannot be read or is no such state.
    pub fn read(path: &Path) -> Result<Fakeroot, Failures> {
        read(path).map_err(|cause| Failures { errors: vec![GatherError::new(path, cause)], more: 0 })
    }

    /// Makes a file what it is in fakeroot's eyes.
    pub(super) fn apply(&self, item: &mut Item) {
        let Some(fake) = self.files.get(&item.identity) else {
            item.owner = (0, 0);
            return;
        };
        item.mode = fake.mode & 0o7777;
        item.owner = fake.owner;
        // An ordinary user's nodes are empty files.
        let kind = match FileType::from_raw_mode(fake.mode as RawMode) {
            FileType::CharacterDevice => FileKind::CharDevice,
            FileType::BlockDevice => FileKind::BlockDevice,
            _ => return,
        };
        if item.kind == FileKind::Regular {
            item.kind = kind;
            item.device = (rustix::fs::major(fake.rdev), rustix::fs::minor(fake.rdev));
        }
    }
}

fn read(path: &Path) -> Result<Fakeroot, GatherCause> {
    let file = File::open(path).map_err(GatherCause::io("open"))?;
    let mut lines = BufReader::new(file.take(STATE_MAX));
    let mut files = HashMap::new();
    let mut line = String::new();
    loop {
        line.clear();
        let read = (&mut lines).take(LINE_MAX).read_line(&mut line).map_err(GatherCause::io("read"))?;
        if read == 0 {
            return Ok(Fakeroot { files });
        }
        let (identity, fake) = parse(line.trim_end()).ok_or_else(|| {
            GatherCause::Format(format!("no line of fakeroot's state: {:.100}", line.trim_end()))
        })?;
        files.insert(identity, fake);
    }
}

/// `dev=fe00,ino=12,mode=100644,uid=0,gid=0,nlink=1,rdev=0`
fn parse(line: &str) -> Option<((u64, u64), Fake)> {
    let mut fields = [None; 6];
    for field in line.split(',') {
        let (key, value) = field.split_once('=')?;
        let (at, base) = match key {
            "dev" => (0, 16),
            "ino" => (1, 10),
            "mode" => (2, 8),
            "uid" => (3, 10),
            "gid" => (4, 10),
            "rdev" => (5, 10),
            _ => continue,
        };
        fields[at] = Some(u64::from_str_radix(value, base).ok()?);
    }
    let [Some(dev), Some(ino), Some(mode), Some(uid), Some(gid), rdev] = fields else { return None };
    let small = |value: u64| u32::try_from(value).ok();
    let fake = Fake { mode: small(mode)?, owner: (small(uid)?, small(gid)?), rdev: rdev.unwrap_or(0) };
    Some(((dev, ino), fake))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_state_are_read() {
        let (identity, fake) = parse("dev=fe00,ino=12,mode=20644,uid=7,gid=8,nlink=1,rdev=1049900").unwrap();
        assert_eq!((identity, fake.mode, fake.owner), ((0xfe00, 12), 0o20644, (7, 8)));
        assert_eq!((rustix::fs::major(fake.rdev), rustix::fs::minor(fake.rdev)), (5, 300));
        for wrong in ["", "dev=1,ino=2", "dev=x,ino=1,mode=1,uid=1,gid=1", "dev=1,ino=1,mode=1,uid=-1,gid=1"]
        {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
