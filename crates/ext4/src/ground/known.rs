//! Names that were looked up, and whether they lead to an inode: the next look-up reads no block of the directory.
//!
//! An answer is put in and asked for while the names of its directory are locked, and a change of a name replaces its
//! answer under that lock (`operations/entry.rs`). A directory is known by a number that it gets with its object in
//! memory, not by its inode number: an answer does not outlive that object, and so never meets another directory that
//! has the same inode number.
//!
//! Case-folded directories are left out: a name there has many spellings.

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Equivalent, Lifecycle, Weighter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// Counts evicted answers.
#[derive(Clone)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<Key, Option<Ino>> for Evictions {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: Key, _: Option<Ino>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Look-ups of some threads: all of them look up names in the root.
#[repr(align(64))]
#[derive(Default)]
struct Lookups {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Parts of the counters.
const PARTS: usize = 16;

/// The part of the calling thread.
#[inline]
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    // A thread that ends has none any more.
    OWN.try_with(|own| *own).unwrap_or_default()
}

/// What a cache holds and did, as [`CacheUse`](crate::CacheUse) says.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) budget: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
}

/// The answers of a volume, within a budget of bytes.
pub(crate) struct KnownNames {
    /// `None` with a budget of 0.
    answers: Option<Cache<Key, Option<Ino>, Bytes, DefaultHashBuilder, Evictions>>,
    directories: AtomicU64,
    lookups: [Lookups; PARTS],
    evictions: Arc<AtomicU64>,
    budget: u64,
}

impl KnownNames {
    pub(crate) fn new(budget: usize) -> KnownNames {
        let (bytes, evictions) = (budget as u64, Arc::<AtomicU64>::default());
        let entries = budget / (ANSWER as usize + 16);
        let counted = Evictions(evictions.clone());
        let answers =
            (budget > 0).then(|| Cache::with(entries, bytes, Bytes, DefaultHashBuilder::default(), counted));
        let directories = AtomicU64::new(1);
        KnownNames { answers, directories, lookups: Default::default(), evictions, budget: bytes }
    }

    /// A number for a directory that was just loaded.
    pub(crate) fn directory(&self) -> DirectoryId {
        DirectoryId(self.directories.fetch_add(1, Ordering::Relaxed))
    }

    /// The answer for a name, if it is known: `Some(None)` if the name is known to be absent. The names of the
    /// directory are locked.
    pub(crate) fn get(&self, directory: DirectoryId, name: &[u8]) -> Option<Option<Ino>> {
        let found = self.answers.as_ref()?.get(&Asked { directory, name });
        let lookups = &self.lookups[own_part()];
        let counter = if found.is_some() { &lookups.hits } else { &lookups.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// What is held and was asked.
    pub(crate) fn usage(&self) -> Usage {
        let sum = |read: fn(&Lookups) -> &AtomicU64| -> u64 {
            self.lookups.iter().map(|part| read(part).load(Ordering::Relaxed)).sum()
        };
        let answers = self.answers.as_ref();
        Usage {
            entries: answers.map_or(0, |answers| answers.len() as u64),
            bytes: answers.map_or(0, Cache::weight),
            budget: self.budget,
            hits: sum(|part| &part.hits),
            misses: sum(|part| &part.misses),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
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
