//! A commit in progress, or a batch of a volume without a journal: other calls come meanwhile, and it may fail.

use super::{device, image, open_device};
use crate::device::{
    Capabilities, Description, Device, Geometry, Queue, QueueOptions, Result, WriteDurability,
};
use crate::{OpenOptions, Volume, VolumeOptions};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uext4_testkit::{Need, needs};

type Then = Box<dyn FnOnce() + Send>;

/// A device that runs an action before its next flush.
struct Interrupted {
    inner: Arc<dyn Device>,
    then: Mutex<Option<Then>>,
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Device for Interrupted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn describe(&self) -> Description {
        self.inner.describe()
    }
    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.inner.read_at(buf, pos)
    }
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.inner.write_at(buf, pos, durability)
    }
    fn flush(&self) -> Result<()> {
        let then = self.then.lock().take();
        if let Some(then) = then {
            then();
        }
        self.inner.flush()
    }
    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.inner.discard(pos, length)
    }
    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.inner.queue(options)
    }
}

fn opened(features: &str) -> (Arc<Interrupted>, Volume) {
    let inner = device(&image(8, &["-O", features]));
    let device = Arc::new(Interrupted { inner, then: Mutex::default() });
    let volume = open_device(device.clone()).unwrap();
    (device, volume)
}

fn made() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

/// A file is loaded, or the volume closed, while nothing of the batch has reached the device.
#[test]
fn what_is_on_its_way_home_is_not_durable() {
    needs!(Need::Tool("mke2fs"));
    let (device, volume) = opened("^has_journal");
    let file = volume.open_file("/file", made()).unwrap();
    let ino = file.ino();
    let (seen, other) = (Arc::new(OnceLock::new()), volume.clone());
    let (told, early) = (seen.clone(), Duration::from_millis(200));
    *device.then.lock() = Some(Box::new(move || {
        let loaded = other.state().load_inode(ino).unwrap();
        let dirty = (loaded.state.datasync_tid().is_some(), loaded.state.sync_tid().is_some());
        let (done, waits) = channel();
        let closing = std::thread::spawn(move || {
            other.close().unwrap();
            let _nobody_waits = done.send(());
        });
        let closed = waits.recv_timeout(early) != Err(RecvTimeoutError::Timeout);
        told.set((dirty, closed, closing)).unwrap();
    }));
    file.sync_all().unwrap();
    let Some((dirty, closed, closing)) = Arc::into_inner(seen).and_then(OnceLock::into_inner) else {
        panic!("nothing was flushed");
    };
    closing.join().unwrap();
    assert_eq!(dirty, (true, true), "a file that is loaded counts as durable");
    assert!(!closed, "the volume counts as closed");
}

/// The contents of the batch must still be written then.
#[test]
fn a_panic_on_the_way_home_loses_nothing() {
    needs!(Need::Tool("mke2fs"));
    let (device, volume) = opened("^has_journal");
    let file = volume.open_file("/file", made()).unwrap();
    *device.then.lock() = Some(Box::new(|| panic!("on purpose")));
    assert!(catch_unwind(AssertUnwindSafe(|| file.sync_all())).is_err());
    file.sync_all().unwrap();
    let there = Volume::open_device(device.clone(), VolumeOptions::read_only()).unwrap();
    assert!(there.exists("/file").unwrap(), "it was never written");
    drop(file);
    volume.close().unwrap();
}

/// Of two files that are synced together, one waits for the transaction being committed, the other for the next.
#[test]
fn a_sync_of_several_waits_for_the_latest() {
    needs!(Need::Tool("mke2fs"));
    let (device, volume) = opened("has_journal");
    let [one, other] = ["/one", "/other"].map(|path| volume.open_file(path, made()).unwrap());
    let (second, theirs) = (volume.open_file("/one", made()).unwrap(), volume.clone());
    let (changes, changed) = channel();
    let (told, syncing) = channel();
    *device.then.lock() = Some(Box::new(move || {
        let syncs = std::thread::spawn(move || {
            other.set_len(5000).unwrap();
            changes.send(()).unwrap();
            theirs.sync_files(&[&second, &other]).unwrap();
            other.open_file().state().datasync_tid()
        });
        changed.recv().unwrap();
        told.send(syncs).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }));
    one.set_len(5000).unwrap();
    one.sync_all().unwrap();
    assert_eq!(syncing.recv().unwrap().join().unwrap(), None, "the other one is not durable");
}
