//! Names that were looked up, and whether they lead to an inode: the next look-up reads no block of the directory.
//!
//! An answer is put in and asked for while the names of its directory are locked, and a change of a name replaces its
//! answer under that lock (`operations/entry.rs`). A directory is known by a number that it gets with its object in
//! memory, not by its inode number: an answer does not outlive that object, and so never meets another directory that
//! has the same inode number.
//!
//! Case-folded directories are left out: a name there has many spellings.

use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_ondisk::Ino;

/// Bytes of an answer beside its name: key, value, and its places in the tables.
const ANSWER: u64 = 112;

/// A directory in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DirectoryId(u64);

impl DirectoryId {
    /// Of what is no directory, and has no answers.
    pub(crate) const NONE: DirectoryId = DirectoryId(0);
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    directory: DirectoryId,
    name: Box<[u8]>,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Asked { directory: self.directory, name: &self.name }.hash(state);
    }
}

#[derive(Hash)]
struct Asked<'n> {
    directory: DirectoryId,
    name: &'n [u8],
}

impl Equivalent<Key> for Asked<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.directory == key.directory && *self.name == *key.name
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Option<Ino>> for Bytes {
    fn weight(&self, key: &Key, _: &Option<Ino>) -> u64 {
        ANSWER + key.name.len() as u64
    }
}

/// The answers of a volume, within a budget of bytes.
pub(crate) struct KnownNames {
    /// `None` with a budget of 0.
    answers: Option<Cache<Key, Option<Ino>, Bytes>>,
    directories: AtomicU64,
}

impl KnownNames {
    pub(crate) fn new(budget: usize) -> KnownNames {
        let bytes = budget as u64;
        let answers =
            (budget > 0).then(|| Cache::with_weighter(budget / (ANSWER as usize + 16), bytes, Bytes));
        KnownNames { answers, directories: AtomicU64::new(1) }
    }

    /// A number for a directory that was just loaded.
    pub(crate) fn directory(&self) -> DirectoryId {
        DirectoryId(self.directories.fetch_add(1, Ordering::Relaxed))
    }

    /// The answer for a name, if it is known: `Some(None)` if the name is known to be absent. The names of the
    /// directory are locked.
    pub(crate) fn get(&self, directory: DirectoryId, name: &[u8]) -> Option<Option<Ino>> {
        self.answers.as_ref()?.get(&Asked { directory, name })
    }

    /// Puts an answer in. The names of the directory are locked.
    pub(crate) fn put(&self, directory: DirectoryId, name: &[u8], answer: Option<Ino>) {
        if let Some(answers) = self.answers.as_ref().filter(|_| directory != DirectoryId::NONE) {
            answers.insert(Key { directory, name: name.into() }, answer);
        }
    }

    /// Forgets the answer for a name, before it changes.
    pub(crate) fn forget(&self, directory: DirectoryId, name: &[u8]) {
        if let Some(answers) = &self.answers {
            answers.remove(&Asked { directory, name });
        }
    }
}
