//! A layer's state of requests in flight: a fixed table, indexed by tags of the layer's own.

/// Up to a fixed number of entries; never allocates after creation.
#[derive(Debug)]
pub struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    /// A table of `capacity` entries.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Slots { entries: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().collect() }
    }

    /// Stores an entry and returns the tag that finds it, or `None` if the table is full.
    pub fn insert(&mut self, entry: T) -> Option<u64> {
        let index = self.free.pop()?;
        self.entries[index as usize] = Some(entry);
        Some(u64::from(index))
    }

    /// The entry of a tag.
    pub fn get_mut(&mut self, tag: u64) -> Option<&mut T> {
        self.entries.get_mut(usize::try_from(tag).ok()?)?.as_mut()
    }

    /// Removes the entry of a tag.
    pub fn remove(&mut self, tag: u64) -> Option<T> {
        let index = u32::try_from(tag).ok()?;
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_find_their_entries_until_removed() {
        let mut slots = Slots::new(2);
        let (a, b) = (slots.insert('a').unwrap(), slots.insert('b').unwrap());
        assert_eq!(slots.insert('c'), None);
        assert_eq!(slots.get_mut(a), Some(&mut 'a'));
        assert_eq!((slots.remove(b), slots.remove(b), slots.remove(u64::MAX)), (Some('b'), None, None));
        let c = slots.insert('c').unwrap();
        assert_eq!((c, slots.remove(a), slots.remove(c)), (b, Some('a'), Some('c')));
    }
}
