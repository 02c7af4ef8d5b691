//! A bounded map: what was not used for the longest time is dropped first (second chance).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
struct Slot<V: ?Sized> {
    value: Arc<V>,
    used: AtomicBool,
}

/// At most so many values, by their keys.
#[derive(Debug)]
pub(crate) struct Bounded<V: ?Sized> {
    slots: HashMap<u64, Slot<V>>,
    order: VecDeque<u64>,
    limit: usize,
}

impl<V: ?Sized> Bounded<V> {
    pub(crate) fn new(limit: usize) -> Self {
        Bounded { slots: HashMap::new(), order: VecDeque::new(), limit: limit.max(1) }
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<V>> {
        let slot = self.slots.get(&key)?;
        slot.used.store(true, Ordering::Relaxed);
        Some(Arc::clone(&slot.value))
    }

    /// Adds or replaces a value. Those for which `keep` is true are not forgotten, even if they are too many. Returns
    /// whether one was forgotten or replaced.
    pub(crate) fn insert(&mut self, key: u64, value: Arc<V>, keep: impl Fn(&V) -> bool) -> bool {
        let forgot = self.slots.len() >= self.limit && !self.slots.contains_key(&key) && self.forget(keep);
        let old = self.slots.insert(key, Slot { value, used: AtomicBool::new(true) });
        if old.is_none() {
            self.order.push_back(key);
        }
        forgot || old.is_some()
    }

    fn forget(&mut self, keep: impl Fn(&V) -> bool) -> bool {
        for _ in 0..2 * self.order.len() {
            let Some(key) = self.order.pop_front() else { return false };
            match self.slots.get(&key) {
                Some(slot) if slot.used.swap(false, Ordering::Relaxed) || keep(&slot.value) => {
                    self.order.push_back(key);
                }
                _ => {
                    self.slots.remove(&key);
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_forgets_what_was_not_used_and_may_be_forgotten() {
        let mut cache = Bounded::new(3);
        for key in 0..3u64 {
            assert!(!cache.insert(key, Arc::new(key), |_| false));
        }
        // All were used: the first round takes that from them, and the oldest goes unless it is kept.
        assert!(cache.insert(3, Arc::new(3), |value| *value == 0));
        assert!(cache.get(0).is_some() && cache.get(1).is_none());
        cache.get(2);
        assert!(cache.insert(4, Arc::new(4), |_| false));
        assert_eq!(cache.slots.len(), 3);
        // If none may go, there are more.
        assert!(!cache.insert(5, Arc::new(5), |_| true));
        assert_eq!(cache.slots.len(), 4);
    }
}
