//! The cache against a model: random operations on a few blocks under a budget of two, so that eviction and
//! reload happen all the time. A block's contents are one byte repeated.

use crate::common;

use common::{BLOCK, Disk};
use proptest::prelude::*;
use std::sync::Arc;
use uext4_buffer::{BufferCache, CacheOptions, Error, Owner, Tid};

const BLOCKS: u64 = 6;
const BUDGET: usize = 2;

#[derive(Debug, Clone)]
enum Step {
    Read(u64),
    Verify(u64),
    Direct(u64, u8),
    Overwrite(u64, u8),
    Join(u64),
    Change(u64, u8),
    Leave(u64),
    /// Freezes every block of the running transaction; the next transaction begins.
    Freeze,
    /// The committing transaction is durable.
    Committed,
    Forget(u64),
    WriteBack,
}

fn step() -> impl Strategy<Value = Step> {
    let block = || 0..BLOCKS;
    prop_oneof![
        block().prop_map(Step::Read),
        block().prop_map(Step::Verify),
        (block(), any::<u8>()).prop_map(|(block, byte)| Step::Direct(block, byte)),
        (block(), any::<u8>()).prop_map(|(block, byte)| Step::Overwrite(block, byte)),
        block().prop_map(Step::Join),
        (block(), any::<u8>()).prop_map(|(block, byte)| Step::Change(block, byte)),
        block().prop_map(Step::Leave),
        Just(Step::Freeze),
        Just(Step::Committed),
        block().prop_map(Step::Forget),
        Just(Step::WriteBack),
    ]
}

#[derive(Debug, Clone, Default)]
struct Block {
    disk: u8,
    now: u8,
    running: Option<bool>,
    frozen: Option<u8>,
    home: Option<u8>,
}

impl Block {
    fn owned(&self) -> bool {
        self.running.is_some() || self.frozen.is_some()
    }
}

struct World {
    disk: Arc<Disk>,
    cache: BufferCache,
    tid: Tid,
    blocks: Vec<Block>,
}

impl World {
    fn new() -> Self {
        let disk = Arc::new(Disk::new(BLOCKS));
        let options =
            CacheOptions { budget_bytes: BUDGET as u64 * u64::from(BLOCK), ..CacheOptions::new(BLOCK) };
        let cache = BufferCache::new(disk.clone(), &options).unwrap();
        let blocks = (0..BLOCKS).map(|n| Block { disk: n as u8, now: n as u8, ..Block::default() }).collect();
        World { disk, cache, tid: Tid(u64::from(u32::MAX) - 1), blocks }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Read(block) => self.check_read(block),
            Step::Verify(block) => {
                let now = self.blocks[block as usize].now;
                let verify = |bytes: &[u8]| {
                    assert!(bytes.iter().all(|byte| *byte == now), "the verifier sees the current contents");
                    Ok::<(), Error>(())
                };
                assert!(self.cache.get_or_verify(block, verify).unwrap().is_verified());
            }
            Step::Direct(block, byte) => self.direct(block, byte, false),
            Step::Overwrite(block, byte) => self.direct(block, byte, true),
            Step::Join(block) => {
                let pin = self.cache.pin(block).unwrap();
                self.cache.join(&pin, self.tid).unwrap();
                self.blocks[block as usize].running.get_or_insert(false);
            }
            Step::Change(block, byte) => self.change(block, byte),
            Step::Leave(block) => {
                let pin = self.cache.pin(block).unwrap();
                let model = &mut self.blocks[block as usize];
                assert_eq!(self.cache.leave(&pin, self.tid).is_ok(), model.running == Some(false));
                model.running = model.running.filter(|modified| *modified);
            }
            Step::Freeze => self.freeze(),
            Step::Committed => self.committed(),
            Step::Forget(block) => {
                let model = &mut self.blocks[block as usize];
                assert_eq!(self.cache.forget(block).is_ok(), !model.owned());
                if !model.owned() {
                    (model.home, model.now) = (None, model.disk);
                }
            }
            Step::WriteBack => {
                let due = self.blocks.iter().filter(|model| model.home.is_some()).count();
                assert_eq!(self.cache.write_back().unwrap(), due as u64);
                for model in &mut self.blocks {
                    model.disk = model.home.take().unwrap_or(model.disk);
                }
            }
        }
    }

    fn check_read(&self, block: u64) {
        let bytes = self.cache.read(block).unwrap();
        let now = self.blocks[block as usize].now;
        assert!(bytes.iter().all(|byte| *byte == now), "block {block}: {} instead of {now}", bytes[0]);
    }

    fn direct(&mut self, block: u64, byte: u8, whole: bool) {
        let pin = self.cache.pin(block).unwrap();
        let result = if whole {
            self.cache.overwrite(&pin, Owner::Direct, |bytes| bytes.fill(byte))
        } else {
            self.cache.modify(&pin, Owner::Direct, |bytes| bytes.fill(byte))
        };
        let model = &mut self.blocks[block as usize];
        assert_eq!(result.is_ok(), !model.owned());
        if result.is_ok() {
            (model.now, model.home) = (byte, Some(byte));
        }
    }

    fn change(&mut self, block: u64, byte: u8) {
        let pin = self.cache.pin(block).unwrap();
        let result = self.cache.modify(&pin, Owner::Transaction(self.tid), |bytes| bytes.fill(byte));
        let model = &mut self.blocks[block as usize];
        assert_eq!(result.is_ok(), model.running.is_some());
        if result.is_ok() {
            (model.now, model.running) = (byte, Some(true));
        }
    }

    fn freeze(&mut self) {
        // One commit at a time, as in the journal.
        self.committed();
        for (block, model) in (0..).zip(&mut self.blocks) {
            let Some(modified) = model.running.take() else {
                continue;
            };
            let pin = self.cache.pin(block).unwrap();
            let frozen = self.cache.freeze(&pin, self.tid).unwrap();
            assert_eq!(frozen.as_ref().map(|image| image[7]), modified.then_some(model.now));
            model.frozen = modified.then_some(model.now);
        }
        self.tid = self.tid.next();
    }

    fn committed(&mut self) {
        for (block, model) in (0..).zip(&mut self.blocks) {
            let Some(image) = model.frozen.take() else {
                continue;
            };
            let pin = self.cache.pin(block).unwrap();
            self.cache.committed(&pin, self.tid.previous()).unwrap();
            model.home = Some(image);
        }
    }

    fn check(&self) {
        for (block, model) in (0..).zip(&self.blocks) {
            assert_eq!(self.disk.block(block), [model.disk; BLOCK as usize], "home of block {block}");
        }
        // What became evictable since the last insertion goes now.
        self.cache.set_budget(BUDGET as u64 * u64::from(BLOCK)).unwrap();
        let kept = self.blocks.iter().filter(|model| model.owned() || model.home.is_some()).count();
        let resident = self.cache.stats().resident_bytes as usize / BLOCK as usize;
        // One insertion may find nothing to evict; everything else that is resident is owned or due.
        assert!(resident <= BUDGET.max(kept + 1), "{resident} blocks resident, {kept} cannot be evicted");
        assert_eq!(self.cache.stats().pinned_blocks, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cache_behaves_like_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
            world.check();
        }
        (0..BLOCKS).for_each(|block| world.check_read(block));
    }
}
