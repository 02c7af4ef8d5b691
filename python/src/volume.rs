//! Open volumes, and how they are opened. Their calls are in `methods.rs`.

use crate::call::{DeviceName, Fault, Name, Opener, Result, call, let_go};
use crate::walk::OpenWalk;
use parking_lot::{Mutex, RwLock};
use pyo3::prelude::*;
use std::path::Path;
use std::time::Duration;
use uext4::{Atime, Switches, Volume, VolumeOptions};

/// An open volume, until it is closed.
#[pyclass(frozen, module = "uext4._uext4")]
pub(crate) struct NativeVolume {
    open: RwLock<Option<Volume>>,
    pub(crate) opener: Opener,
    /// Walks that hold the volume.
    walks: Mutex<Vec<OpenWalk>>,
}

/// Options of a volume, as keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct OpenHow {
    read_only: bool,
    force: bool,
    background: bool,
    reserved: bool,
    discard: bool,
    keep_set_id: bool,
    atime: String,
    commit_interval: Option<f64>,
    metadata_budget: Option<u64>,
    map_budget: Option<usize>,
    inode_budget: Option<usize>,
    name_budget: Option<usize>,
    page_budget: Option<u64>,
    journals: Vec<DeviceName>,
    switches: Option<String>,
}

impl OpenHow {
    pub(crate) fn options(&self) -> Result<VolumeOptions> {
        let mut options = match self.read_only {
            true => VolumeOptions::read_only(),
            false => VolumeOptions::read_write(),
        };
        options = options
            .force(self.force)
            .background(self.background)
            .reserved(self.reserved)
            .discard(self.discard)
            .keep_set_id(self.keep_set_id)
            .atime(match &*self.atime {
                "off" => Atime::Off,
                "relatime" => Atime::Relatime,
                "strict" => Atime::Strict,
                other => return Err(Fault::Value(format!("atime is off, relatime or strict, not {other}"))),
            });
        if let Some(seconds) = self.commit_interval {
            let interval = Duration::try_from_secs_f64(seconds);
            options = options
                .commit_interval(interval.map_err(|_| Fault::Value("commit_interval in seconds".into()))?);
        }
        if let Some(bytes) = self.metadata_budget {
            options = options.metadata_budget(bytes);
        }
        if let Some(bytes) = self.map_budget {
            options = options.map_budget(bytes);
        }
        if let Some(bytes) = self.inode_budget {
            options = options.inode_budget(bytes);
        }
        if let Some(bytes) = self.name_budget {
            options = options.name_budget(bytes);
        }
        if let Some(bytes) = self.page_budget {
            options = options.page_budget(bytes);
        }
        if let Some(text) = &self.switches {
            let switches: Switches = text.parse().map_err(|error| Fault::Value(format!("{error}")))?;
            options = options.switches(switches);
        }
        with_journals(options, &self.journals)
    }
}

/// With devices that may hold the journal.
pub(crate) fn with_journals(options: VolumeOptions, journals: &[DeviceName]) -> Result<VolumeOptions> {
    journals.iter().try_fold(options, |options, journal| Ok(options.journal(journal.spec()?)))
}

impl NativeVolume {
    pub(crate) fn new(volume: Volume, opener: Opener) -> NativeVolume {
        NativeVolume { open: RwLock::new(Some(volume)), opener, walks: Mutex::default() }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.read().is_none()
    }

    /// Takes the volume, for who closes it. Walks end.
    pub(crate) fn take(&self) -> Option<Volume> {
        let volume = self.open.write().take();
        std::mem::take(&mut *self.walks.lock()).iter().for_each(OpenWalk::close);
        volume
    }

    /// Notes a walk that has begun.
    pub(crate) fn note(&self, walk: OpenWalk) {
        let mut walks = self.walks.lock();
        walks.retain(|walk| !walk.is_forgotten());
        walks.push(walk);
        // Who closed the volume meanwhile has not seen it.
        if self.is_closed() {
            walks.drain(..).for_each(|walk| walk.close());
        }
    }

    /// The volume, if it is open.
    pub(crate) fn get(&self) -> Result<Volume> {
        self.opener.check()?;
        self.open.read().clone().ok_or(Fault::Closed("the volume"))
    }

    /// A call about a path.
    pub(crate) fn at<T: Send>(
        &self,
        py: Python<'_>,
        name: &Name,
        work: impl FnOnce(&Volume, &Path) -> uext4::Result<T> + Send,
    ) -> PyResult<T> {
        call(py, || work(&self.get()?, name.path()).map_err(|error| Fault::from(error).at(&name.0)))
    }

    /// A call about two paths.
    pub(crate) fn between(
        &self,
        py: Python<'_>,
        (from, to): (&Name, &Name),
        work: impl FnOnce(&Volume, &Path, &Path) -> uext4::Result<()> + Send,
    ) -> PyResult<()> {
        call(py, || {
            let done = work(&self.get()?, from.path(), to.path());
            done.map_err(|error| Fault::from(error).between(&from.0, &to.0))
        })
    }
}

impl Drop for NativeVolume {
    fn drop(&mut self) {
        if let Some(volume) = self.open.get_mut().take() {
            let_go(volume);
        }
    }
}
