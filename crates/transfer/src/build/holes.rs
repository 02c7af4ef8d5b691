//! Blocks of zeros become holes: contents of archives have no others unless they say so.

use super::error::{Failures, GatherError};
use super::gathered::Gathered;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use uext4::mkfs::{ItemId, ItemKind, Tree};

/// Bytes read at once.
const STEP: u64 = 1 << 20;
/// Threads. Reading and looking overlap.
const THREADS: usize = 4;

/// A file to be looked at: its key and its ranges that are not holes.
type Candidate = (ItemId, u64, Vec<Range<u64>>);

impl Gathered {
    /// Reads all contents, and makes holes of their blocks of so many bytes (a power of two) that are zeros.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn make_holes(&mut self, block: u64) -> Result<(), Failures> {
        let candidates = self.candidates();
        let (next, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        let done = Mutex::new(Vec::new());
        let work = || -> Result<(), GatherError> {
            let mut buffer = vec![0; STEP.max(block) as usize];
            while !ended.load(Ordering::Relaxed) {
                let Some((id, key, data)) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    break;
                };
                let left = self.without_zeros(*key, data, block, &mut buffer);
                let left = left.inspect_err(|_| ended.store(true, Ordering::Relaxed))?;
                done.lock().unwrap_or_else(PoisonError::into_inner).push((*id, left));
            }
            Ok(())
        };
        let ends: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS.min(candidates.len())).map(|_| scope.spawn(work)).collect();
            let end = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(end).collect()
        });
        let all: Result<Vec<()>, GatherError> = ends.into_iter().collect();
        all.map_err(|error| Failures::default().ended_by(error))?;
        for (id, left) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let ItemKind::Regular(contents) = &mut self.tree.item_mut(id).kind else { continue };
            let bytes = |data: &[Range<u64>]| data.iter().map(|range| range.end - range.start).sum::<u64>();
            self.data = self.data.saturating_sub(bytes(&contents.data) - bytes(&left));
            contents.data = left;
        }
        Ok(())
    }

    /// All files with contents, each once.
    fn candidates(&self) -> Vec<Candidate> {
        let (mut found, mut known, mut open) = (Vec::new(), BTreeSet::new(), vec![Tree::ROOT]);
        while let Some(directory) = open.pop() {
            for (_, id) in self.tree.names(directory) {
                match &self.tree.item(id).kind {
                    ItemKind::Directory(_) => open.push(id),
                    ItemKind::Regular(contents) if !contents.data.is_empty() && known.insert(id) => {
                        found.push((id, contents.key, contents.data.clone()));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// The ranges without the blocks that are zeros. What a range has of a block is looked at alone: the rest is a hole
    /// or another range.
    fn without_zeros(
        &self,
        key: u64,
        data: &[Range<u64>],
        block: u64,
        buffer: &mut [u8],
    ) -> Result<Vec<Range<u64>>, GatherError> {
        let mut left: Vec<Range<u64>> = Vec::new();
        for range in data {
            let mut at = range.start;
            while at < range.end {
                let end = (at / block * block + buffer.len() as u64).min(range.end);
                let piece = &mut buffer[..(end - at) as usize];
                self.read_at(key, at, piece)?;
                let mut from = at;
                while from < end {
                    let to = (from / block * block + block).min(end);
                    let zeros = piece[(from - at) as usize..(to - at) as usize].iter().all(|byte| *byte == 0);
                    match left.last_mut() {
                        _ if zeros => {}
                        Some(last) if last.end == from => last.end = to,
                        _ => left.push(from..to),
                    }
                    from = to;
                }
                at = end;
            }
        }
        Ok(left)
    }
}
