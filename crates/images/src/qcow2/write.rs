//! Writes that change the tables: into holes, over the backing file, over compressed clusters and snapshots.
//!
//! A cluster gets its place in the file, and what the write leaves of it, before its entry says so. What loses its
//! place is used again when no durable table names it (`settle.rs`), and no request in flight may have found it
//! (`uses.rs`).

use super::entry::{COPIED, Kind};
use super::header::{AUTOCLEAR_AT, Header, autoclear};
use super::image::Image;
use super::refcounts::Refcounts;
use super::table::Table;
use super::uses::{InUse, Limbo, Uses};
use crate::bytes::Bytes;
use crate::order::bytes64;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4_blockdev::{Error, Result};

/// Bytes of changed tables after which they are written.
const CHANGED_BYTES: u64 = 8 << 20;
/// What a file grows by: fewer changes of its size.
const GROWTH: u64 = 1 << 20;
/// All subclusters are allocated.
const ALL_SUBCLUSTERS: u64 = 0xffff_ffff;

/// An image that is open for writing.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) state: Mutex<State>,
    /// The file lacks entries that the tables in memory have.
    pub(super) unsettled: AtomicBool,
    /// A flush has failed.
    pub(super) failed: AtomicBool,
    /// The header says of nothing that it is up to date which a write makes out of date.
    begun: AtomicBool,
    /// Counts the flushes of the tables that have begun.
    pub(super) flushes: AtomicU64,
    /// Requests that may use places in the file.
    pub(super) uses: Uses,
}

/// A table with entries that the file lacks.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) table: Arc<Table>,
    /// The file has nothing of it, and no table points to it.
    pub(super) whole: bool,
    /// Which of its blocks.
    pub(super) units: BTreeSet<usize>,
}

/// What is changed by one thread at a time.
#[derive(Debug)]
pub(super) struct State {
    pub(super) refcounts: Refcounts,
    pub(super) tables: BTreeMap<u64, Changed>,
    /// Entries of the first-level table that the file lacks.
    pub(super) l1: BTreeSet<u64>,
    /// Clusters that are used once less when the tables are durable.
    pub(super) freed: Vec<u64>,
    /// Those for which they are.
    pub(super) limbo: Limbo,
    /// Clusters from here on were never used: they read as zeros.
    fresh: u64,
}

impl Writing {
    pub(super) fn open(path: &Path, header: &Header, file: &Bytes) -> Result<Self> {
        let length = file.store().length()?;
        // The last cluster may be cut off.
        let whole = length.next_multiple_of(header.cluster_size());
        match file.store().grow(whole) {
            // A device may end inside of a cluster.
            Err(error) if error.errno() != libc::ENOSPC => return Err(error),
            _ => {}
        }
        let keeps = if header.has_data_file() { autoclear::RAW_DATA } else { 0 };
        let state = State {
            refcounts: Refcounts::open(path, header, file)?,
            tables: BTreeMap::new(),
            l1: BTreeSet::new(),
            freed: Vec::new(),
            limbo: Limbo::default(),
            fresh: whole >> header.cluster_bits,
        };
        Ok(Writing {
            state: Mutex::new(state),
            unsettled: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            begun: AtomicBool::new(header.autoclear & !keeps == 0),
            flushes: AtomicU64::new(0),
            uses: Uses::default(),
        })
    }
}

/// Clusters that get a place, and what of them the write fills.
struct Span {
    /// The first cluster of them on the disk.
    guest: u64,
    /// The entry of it.
    entry: usize,
    /// Where it is in the file of the data.
    host: u64,
    clusters: u64,
    /// What is there reads as zeros.
    fresh: bool,
}

impl Image {
    /// Refuses writes to what is read-only or has failed.
    pub(super) fn check_writable(&self) -> Result<()> {
        self.process.check()?;
        self.writing.as_ref().map_or(Err(Error::ReadOnly), |writing| self.check_flushes(writing))
    }

    /// What is looked up while this lives is not used for anything else. `None`: nothing ever is.
    pub(super) fn in_use(&self) -> Option<InUse<'_>> {
        self.writing.as_ref().map(|writing| writing.uses.call())
    }

    /// Whether writes may go to their places.
    #[inline]
    pub(super) fn has_begun(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.begun.load(Ordering::Acquire))
    }

    /// Where `pos..end` may be written in one piece, and, for a durable write, needs nothing but that.
    pub(super) fn place_to_write(&self, pos: u64, end: u64, durable: bool) -> Result<Option<u64>> {
        let place = self.place(pos, end)?.filter(|place| place.copied && self.has_begun());
        let Some(place) = place else { return Ok(None) };
        if durable {
            let (index, _) = self.shape.split(pos);
            let settled =
                self.tables.get(index).is_some_and(|table| !table.unsettled.load(Ordering::Acquire));
            return Ok(settled.then_some(place.host));
        }
        Ok(Some(place.host))
    }

    /// Writes a checked range, in whole blocks of the disk.
    pub(super) fn write(&self, buf: &[u8], pos: u64, durable: bool) -> Result<()> {
        self.check_writable()?;
        let Some(writing) = &self.writing else { return Err(Error::ReadOnly) };
        let end = pos + buf.len() as u64;
        let mut state = writing.state.lock();
        self.check_flushes(writing)?;
        self.begin(writing)?;
        let mut at = pos;
        while at < end {
            let piece = self.piece(at, end)?;
            let rest = &buf[(at - pos) as usize..];
            at = match piece.kind {
                Kind::Data { host, copied: true } => {
                    if !self.has(host, piece.end - at) {
                        return Err(self.damaged("cluster", host, "it is behind the end of the file"));
                    }
                    self.data.write(&rest[..(piece.end - at) as usize], host)?;
                    piece.end
                }
                _ => {
                    self.prepare_change(writing, &mut state)?;
                    self.allocate(&mut state, rest, at)?
                }
            };
        }
        drop(state);
        if durable { self.flush() } else { Ok(()) }
    }

    /// Before tables are changed. Writes them if too much of them is changed, and gives back what nobody uses.
    pub(super) fn prepare_change(&self, writing: &Writing, state: &mut State) -> Result<()> {
        self.check_flushes(writing)?;
        self.begin(writing)?;
        if state.tables.len() as u64 * self.shape.cluster() > CHANGED_BYTES {
            self.settle_tables(writing, state)?;
        }
        writing.unsettled.store(true, Ordering::Release);
        if state.limbo.is_empty() {
            return Ok(());
        }
        self.reclaim(writing, state)
    }

    /// Counts as free what nobody uses any more.
    pub(super) fn reclaim(&self, writing: &Writing, state: &mut State) -> Result<()> {
        let free = state.limbo.take(&writing.uses);
        free.into_iter().try_for_each(|cluster| state.refcounts.release(&self.file, cluster))
    }

    /// Before the first write: clears the bits of what writes would make out of date, such as dirty bitmaps.
    fn begin(&self, writing: &Writing) -> Result<()> {
        if writing.begun.load(Ordering::Acquire) {
            return Ok(());
        }
        let kept = if self.shape.external { self.header.autoclear & autoclear::RAW_DATA } else { 0 };
        self.file.patch(&bytes64(kept), AUTOCLEAR_AT)?;
        self.file.store().flush()?;
        writing.begun.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes what `buf` has for clusters that have no place of their own yet, from the one at `at` on: as many as get
    /// one in a piece. Returns where it stopped.
    fn allocate(&self, state: &mut State, buf: &[u8], at: u64) -> Result<u64> {
        let (index, entry) = self.shape.split(at);
        let table = self.table_to_change(state, index)?;
        let (word, _) = table.entry(&self.shape, entry);
        if let Some(host) = self.shape.place(word)
            && self.is_ours(state, word, host)?
        {
            return self.complete(state, &table, buf, at, host);
        }
        let guest = at & !(self.shape.cluster() - 1);
        let end = at + buf.len() as u64;
        let most = self.placeless(
            state,
            &table,
            entry,
            end.div_ceil(self.shape.cluster()) - guest / self.shape.cluster(),
        )?;
        let (host, clusters, fresh) = self.take(state, guest, most)?;
        let span = Span { guest, entry, host, clusters, fresh };
        let upto = end.min(guest + clusters * self.shape.cluster());
        let written = self.fill_around(&span, at..upto);
        let written =
            written.and_then(|()| self.data.write(&buf[..(upto - at) as usize], host + (at - guest)));
        if let Err(error) = written {
            self.give_back(state, &span)?;
            return Err(error);
        }
        self.enter(state, index, &table, &span)?;
        Ok(upto)
    }

    /// Gives a range of clusters that read as zeros a place that does so too, for a write into it that follows. `None`:
    /// it takes more than that. A read meanwhile, a crash and a failure of the write find zeros, as before.
    pub(super) fn place_zeros(&self, pos: u64, end: u64) -> Result<Option<u64>> {
        let Some(writing) = &self.writing else { return Err(Error::ReadOnly) };
        let mask = self.shape.cluster() - 1;
        let guest = pos & !mask;
        let upto = (end + mask) & !mask;
        let ((index, entry), count) = (self.shape.split(guest), (upto - guest) >> self.shape.cluster_bits);
        let one_table = entry as u64 + count <= 1 << self.shape.l2_bits;
        if self.shape.external || !one_table || !self.is_zeros(guest, upto.min(self.header.size) - guest) {
            return Ok(None);
        }
        let mut state = writing.state.lock();
        self.prepare_change(writing, &mut state)?;
        let table = self.table_to_change(&mut state, index)?;
        let (word, _) = table.entry(&self.shape, entry);
        // Somebody else may have been quicker.
        let placed = match self.shape.place(word) {
            Some(host) => self.is_ours(&mut state, word, host)?,
            None => false,
        };
        if placed || self.placeless(&mut state, &table, entry, count)? < count {
            return Ok(None);
        }
        let (host, clusters, fresh) = self.take(&mut state, guest, count)?;
        let span = Span { guest, entry, host, clusters, fresh };
        let zeros = fresh || self.data_store().reads_zeros(host, clusters << self.shape.cluster_bits);
        if clusters < count || !zeros {
            self.give_back(&mut state, &span)?;
            return Ok(None);
        }
        self.enter(&mut state, index, &table, &span)?;
        Ok(Some(host + (pos - guest)))
    }

    /// Whether a cluster that an entry points to is used by this entry alone.
    pub(super) fn is_ours(&self, state: &mut State, word: u64, host: u64) -> Result<bool> {
        if self.shape.external {
            return Ok(true);
        }
        self.is_alone(state, word, host)
    }

    /// The same of what is in the file of the tables.
    fn is_alone(&self, state: &mut State, word: u64, host: u64) -> Result<bool> {
        let uses = state.refcounts.check_used(&self.file, host >> self.shape.cluster_bits)?;
        Ok(uses == 1 || word & COPIED != 0)
    }

    /// How many of `count` clusters from entry `entry` on have no place that may be written.
    fn placeless(&self, state: &mut State, table: &Table, entry: usize, count: u64) -> Result<u64> {
        let last = (entry as u64 + count).min(1 << self.shape.l2_bits);
        for next in entry as u64 + 1..last {
            let (word, _) = table.entry(&self.shape, next as usize);
            if let Some(host) = self.shape.place(word)
                && self.is_ours(state, word, host)?
            {
                return Ok(next - entry as u64);
            }
        }
        Ok(last - entry as u64)
    }

    /// Takes a place for up to `most` clusters: where it is, for how many, and whether it reads as zeros.
    fn take(&self, state: &mut State, guest: u64, most: u64) -> Result<(u64, u64, bool)> {
        let bits = self.shape.cluster_bits;
        if self.shape.external {
            let end = guest + (most << bits);
            self.grow_data(end)?;
            return Ok((guest, most, false));
        }
        let run = state.refcounts.allocate(&self.file, 1, most)?;
        let fresh = run.start >= state.fresh;
        if let Err(error) = self.grow_file(run.end << bits) {
            run.clone().try_for_each(|cluster| state.refcounts.release(&self.file, cluster))?;
            return Err(error);
        }
        state.fresh = state.fresh.max(run.end).max(state.refcounts.end() >> bits);
        Ok((run.start << bits, run.end - run.start, fresh))
    }

    fn give_back(&self, state: &mut State, span: &Span) -> Result<()> {
        if self.shape.external {
            return Ok(());
        }
        let first = span.host >> self.shape.cluster_bits;
        (first..first + span.clusters).try_for_each(|cluster| state.refcounts.release(&self.file, cluster))
    }

    /// Makes the file of the tables long enough.
    pub(super) fn grow_file(&self, end: u64) -> Result<()> {
        if self.shape.external {
            return self.file.store().grow(end);
        }
        self.grow_data(end)
    }

    fn grow_data(&self, end: u64) -> Result<()> {
        if end <= self.length.load(Ordering::Acquire) {
            return Ok(());
        }
        let store = self.data_store();
        if self.shape.external {
            // As long as the disk, since it may be a raw image by itself.
            store.grow(end.min(self.header.size.next_multiple_of(self.data.block())))?;
            self.length.fetch_max(store.length()?, Ordering::AcqRel);
            return Ok(());
        }
        let grown = end.next_multiple_of(GROWTH);
        let length = match store.grow(grown) {
            Ok(()) => grown,
            // A device may end before that.
            Err(_) => store.grow(end).map(|()| end)?,
        };
        self.length.fetch_max(length, Ordering::AcqRel);
        Ok(())
    }

    /// Puts what the disk has now before and behind `written` into the new place.
    fn fill_around(&self, span: &Span, written: Range<u64>) -> Result<()> {
        let end = span.guest + span.clusters * self.shape.cluster();
        for part in [span.guest..written.start, written.end..end] {
            if !part.is_empty() {
                self.fill(part.clone(), span.host + (part.start - span.guest), span.fresh)?;
            }
        }
        Ok(())
    }

    /// Puts what the disk has now into the file at `host`.
    fn fill(&self, part: Range<u64>, host: u64, fresh: bool) -> Result<()> {
        // The last cluster may reach behind the disk.
        let inside = self.header.size.saturating_sub(part.start).min(part.end - part.start);
        let length = match self.shape.external {
            true => inside.next_multiple_of(self.data.block()),
            false => part.end - part.start,
        };
        if inside == 0 || self.is_zeros(part.start, inside) {
            return if fresh { Ok(()) } else { self.data.zero(host, length) };
        }
        let mut bytes = uext4_blockdev::Scratch::new(length as usize);
        self.read_now(&mut bytes[..inside as usize], part.start)?;
        self.data.write(&bytes, host)
    }

    /// Writes into a cluster that has a place of its own, but does not have all of its bytes there: it reads as
    /// zeros, or some of its subclusters lie below.
    fn complete(&self, state: &mut State, table: &Arc<Table>, buf: &[u8], at: u64, host: u64) -> Result<u64> {
        let cluster = self.shape.cluster();
        let guest = at & !(cluster - 1);
        let end = guest + cluster;
        self.grow_data(host + cluster)?;
        let upto = end.min(at + buf.len() as u64);
        let mut pos = guest;
        let disk_end = self.header.size.min(end);
        while pos < disk_end {
            let piece = self.piece(pos, disk_end)?;
            if !matches!(piece.kind, Kind::Data { .. }) {
                for part in [pos..piece.end.min(at), pos.max(upto)..piece.end] {
                    if !part.is_empty() {
                        self.fill(part.clone(), host + (part.start - guest), false)?;
                    }
                }
            }
            pos = piece.end;
        }
        self.data.write(&buf[..(upto - at) as usize], host + (at - guest))?;
        let (index, entry) = self.shape.split(at);
        table.set(&self.shape, entry, host | COPIED, ALL_SUBCLUSTERS);
        self.note(state, index, table, entry);
        Ok(upto)
    }

    /// Enters the new places into the table.
    fn enter(&self, state: &mut State, index: u64, table: &Arc<Table>, span: &Span) -> Result<()> {
        let bits = self.shape.cluster_bits;
        for number in 0..span.clusters {
            let entry = span.entry + number as usize;
            let (old, _) = table.entry(&self.shape, entry);
            table.set(&self.shape, entry, (span.host + (number << bits)) | COPIED, ALL_SUBCLUSTERS);
            self.note(state, index, table, entry);
            self.free(state, old);
        }
        Ok(())
    }

    /// Notes that an entry does not use its place any more.
    pub(super) fn free(&self, state: &mut State, old: u64) {
        let bits = self.shape.cluster_bits;
        if old & super::entry::COMPRESSED != 0 {
            let (pos, length) = self.shape.compressed(old);
            state.freed.extend(pos >> bits..=(pos + length - 1) >> bits);
        } else if let Some(host) = self.shape.place(old).filter(|_| !self.shape.external) {
            state.freed.push(host >> bits);
        }
    }

    /// What the file lacks of a table.
    fn changed<'a>(&self, state: &'a mut State, index: u64, table: &Arc<Table>) -> &'a mut Changed {
        state.tables.entry(index).or_insert_with(|| Changed {
            table: Arc::clone(table),
            whole: false,
            units: BTreeSet::new(),
        })
    }

    /// Notes that the file lacks an entry.
    pub(super) fn note(&self, state: &mut State, index: u64, table: &Arc<Table>, entry: usize) {
        let changed = self.changed(state, index, table);
        changed.units.insert(entry * self.shape.entry_words() * 8 / self.file.block() as usize);
    }

    /// The table of this number, which is this image's alone and stays in memory. It is made if there is none, and
    /// copied if a snapshot has it too.
    pub(super) fn table_to_change(&self, state: &mut State, index: u64) -> Result<Arc<Table>> {
        let word = self.l1[index as usize].load(Ordering::Acquire);
        let host = self.table_place(index, word)?;
        let old = self.table(index)?;
        let ours = host != 0 && self.is_alone(state, word, host)?;
        if let (Some(_), true) = (&old, ours) {
            if word & COPIED == 0 {
                self.l1[index as usize].store(host | COPIED, Ordering::Release);
                state.l1.insert(index);
            }
            loop {
                // It may be forgotten between both.
                if let Some(table) = self.tables.get_to_change(index) {
                    // Also if nothing of it is changed then: the next flush of the tables lets it go.
                    self.changed(state, index, &table);
                    return Ok(table);
                }
                self.table(index)?;
            }
        }
        let run = state.refcounts.allocate(&self.file, 1, 1)?;
        state.fresh = state.fresh.max(run.end);
        let new = run.start << self.shape.cluster_bits;
        if let Err(error) = self.grow_file(new + self.shape.cluster()) {
            state.refcounts.release(&self.file, run.start)?;
            return Err(error);
        }
        let table = match old {
            Some(old) => old.moved(new),
            None => {
                let table = Table::new(new, &vec![0; self.shape.cluster() as usize]);
                table.unsettled.store(true, Ordering::Release);
                table
            }
        };
        let table = Arc::new(table);
        let changed = Changed { table: Arc::clone(&table), whole: true, units: BTreeSet::new() };
        state.tables.insert(index, changed);
        self.tables.replace(index, &table);
        self.l1[index as usize].store(new | COPIED, Ordering::Release);
        state.l1.insert(index);
        if host != 0 {
            state.freed.push(host >> self.shape.cluster_bits);
        }
        Ok(table)
    }
}
