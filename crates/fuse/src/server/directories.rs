//! Listing directories: the places of a listing are the library's, which stay valid while names change.

use super::attributes::type_bits;
use super::{Answer, Served};
use crate::reply::Outcome;
use crate::request::Request;
use crate::transport::DATA_MAX;
use crate::wire::{Dirent, EntryOut, OpenIn, OpenOut, ReadIn, ReleaseIn};
use parking_lot::Mutex;
use uext4::{DirCookie, DirEntry, Node, ReadDir};
use zerocopy::IntoBytes;

/// An open directory.
pub(super) struct OpenDirectory {
    pub(super) node: Node,
    place: Mutex<Place>,
}

/// Where a listing stands.
struct Place {
    listing: ReadDir,
    /// What the kernel asks for if it goes on.
    next: DirCookie,
    /// An entry that had no room in the last reply.
    pending: Option<DirEntry>,
}

impl Place {
    /// The next entry from `place` on.
    fn go_to(&mut self, place: DirCookie) {
        if self.next != place {
            self.listing.seek(place);
            self.pending = None;
            self.next = place;
        }
    }

    fn take(&mut self) -> Outcome<Option<DirEntry>> {
        match self.pending.take() {
            Some(entry) => Ok(Some(entry)),
            None => Ok(self.listing.next().transpose()?),
        }
    }
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(8)
}

/// Appends an entry.
fn put(entry: &DirEntry, out: &mut Vec<u8>) {
    let kind = entry.kind.map_or(0, |kind| type_bits(kind) >> 12);
    let head = Dirent {
        ino: entry.ino.get().into(),
        offset: entry.cookie.raw(),
        name_len: entry.name.len() as u32,
        kind,
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(&entry.name);
    out.resize(padded(out.len()), 0);
}

impl Served {
    /// OPENDIR.
    pub(super) fn open_directory(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (_, _): (OpenIn, _) = request.arguments()?;
        let node = self.nodes.get(request.header.node)?;
        let place = Place { listing: node.read_dir()?, next: DirCookie::START, pending: None };
        let fh = self.directories.add(OpenDirectory { node, place: Mutex::new(place) });
        Ok(Answer { directory: Some(fh), ..Answer::of(&OpenOut { fh, open_flags: 0, padding: 0 }) })
    }

    /// READDIR and READDIRPLUS, which looks each name up too.
    pub(super) fn read_directory(&self, request: &Request<'_>, plus: bool) -> Outcome<Answer> {
        let (asked, _): (ReadIn, _) = request.arguments()?;
        let open = self.directories.get(asked.fh)?;
        let room = (asked.size as usize).min(DATA_MAX);
        let head = size_of::<Dirent>() + if plus { size_of::<EntryOut>() } else { 0 };
        let mut answer = Answer::DONE;
        let mut out = Vec::with_capacity(room.min(1 << 16));
        let mut place = open.place.lock();
        place.go_to(DirCookie::from_raw(asked.offset)?);
        loop {
            let next = match place.take() {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // What was found before is told first.
                Err(_) if !out.is_empty() => break,
                Err(error) => return Err(error),
            };
            if out.len() + padded(head + next.name.len()) > room {
                place.pending = Some(next);
                break;
            }
            place.next = next.cookie;
            if plus {
                let known = self.entry_of(&open.node, &next);
                if known.node != 0 {
                    answer.lookups.push(known.node);
                }
                out.extend_from_slice(known.as_bytes());
            }
            put(&next, &mut out);
        }
        Ok(Answer { lookups: answer.lookups, ..Answer::bytes(out) })
    }

    /// The node of a listed name, or none: of `.` and `..`, and of a name that is gone or cannot be read.
    fn entry_of(&self, directory: &Node, listed: &DirEntry) -> EntryOut {
        if matches!(&listed.name[..], b"." | b"..") {
            return EntryOut::default();
        }
        // The inode number was read with the name, which may lead elsewhere by now.
        directory.look_up(&listed.name).map_or_else(|_| EntryOut::default(), |node| self.known(node))
    }

    /// RELEASEDIR.
    pub(super) fn release_directory(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (ReleaseIn, _) = request.arguments()?;
        drop(self.directories.remove(asked.fh));
        Ok(Answer::DONE)
    }
}
