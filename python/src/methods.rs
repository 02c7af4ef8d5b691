//! The calls of a volume.

use crate::call::{DeviceName, Fault, Name, Opener, call, decoded};
use crate::file::{FileOptions, NativeFile};
use crate::queue::{NativeQueue, Wishes};
use crate::report;
use crate::stat::Stat;
use crate::volume::{NativeVolume, OpenHow};
use crate::walk::{Entry, Walker};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use uext4::{
    Caller, InodeFlags, NodeKind, RenameFlags, SetAttributes, Time, Timestamp, Volume, WalkOptions,
    XattrFlags,
};

/// Owner, group and mask of permissions of what is made.
#[derive(FromPyObject)]
pub(crate) struct Maker(u32, u32, u32);

impl Maker {
    fn caller(&self) -> Caller {
        Caller::new(self.0, self.1).umask(self.2)
    }
}

/// A time to set: none, now, or nanoseconds since 1970.
#[derive(FromPyObject)]
pub(crate) enum When {
    /// `True` for now; `False` leaves it.
    Now(bool),
    /// Nanoseconds.
    At(i128),
}

impl When {
    fn time(&self) -> Result<Option<Time>, Fault> {
        let nanoseconds = match self {
            When::Now(now) => return Ok(now.then_some(Time::Now)),
            When::At(nanoseconds) => *nanoseconds,
        };
        let billion = 1_000_000_000;
        let seconds = i64::try_from(nanoseconds.div_euclid(billion));
        let seconds = seconds.map_err(|_| Fault::Value(format!("a time of {nanoseconds} ns")))?;
        let nanoseconds = nanoseconds.rem_euclid(billion) as u32;
        Ok(Some(Time::At(Timestamp { seconds, nanoseconds })))
    }
}

#[pymethods]
impl NativeVolume {
    #[new]
    fn open(py: Python<'_>, device: DeviceName, how: OpenHow) -> PyResult<NativeVolume> {
        call(py, || {
            let opener = Opener::here()?;
            let (options, spec) = (how.options()?, device.spec()?);
            let opened = Volume::open_spec(&spec, options);
            let volume = opened.map_err(|error| Fault::from(error).at(device.bytes()))?;
            Ok(NativeVolume::new(volume, opener))
        })
    }

    /// Ends it: all changes are durable and home. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || {
            self.opener.check()?;
            self.take().map_or(Ok(()), |volume| volume.close().map_err(Fault::from))
        })
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.opener.is_here() && py.detach(|| self.is_closed())
    }

    /// Whether it was opened by this process, and not by one that forked it.
    #[getter]
    fn is_ours(&self) -> bool {
        self.opener.is_here()
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || Ok(self.get()?.sync_all()?))
    }

    fn tick(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || Ok(self.get()?.tick()?))
    }

    fn trim(&self, py: Python<'_>, start: u64, length: u64, minimum: u64) -> PyResult<u64> {
        call(py, || Ok(self.get()?.trim(start..start.saturating_add(length), minimum)?))
    }

    /// Opens a file: what `mode` of `open()` means is decided in Python.
    fn open_file(&self, py: Python<'_>, path: Name, how: FileOptions) -> PyResult<NativeFile> {
        call(py, || {
            let file = self.get()?.open_file(path.path(), how.options()?);
            let file = file.map_err(|error| Fault::from(error).at(&path.0))?;
            Ok(NativeFile::new(file, path.0, how.appends(), self.opener))
        })
    }

    fn queue(&self, py: Python<'_>, depth: u32, wishes: Wishes) -> PyResult<NativeQueue> {
        call(py, || NativeQueue::new(&self.get()?, depth, &wishes, self.opener))
    }

    /// Bytes that direct I/O obeys: of positions and lengths, and of addresses.
    #[getter]
    fn alignment(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        call(py, || {
            let geometry = self.get()?.device().geometry();
            Ok((geometry.logical_block, geometry.memory_align))
        })
    }

    #[getter]
    fn block_size(&self, py: Python<'_>) -> PyResult<u32> {
        call(py, || Ok(self.get()?.block_size()))
    }

    #[getter]
    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        call(py, || Ok(self.get()?.is_writable()))
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (info, superblock) = call(py, || {
            let volume = self.get()?;
            Ok((volume.info(), volume.superblock().clone()))
        })?;
        report::info(py, &info, &superblock)
    }

    fn statfs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = call(py, || Ok(self.get()?.statfs()?))?;
        report::statfs(py, &facts)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, commits) = call(py, || {
            let volume = self.get()?;
            Ok((volume.stats(), volume.commits()))
        })?;
        report::stats(py, &stats, &commits)
    }

    /// Looks for damage, with the volume as it is open.
    fn check<'py>(
        &self,
        py: Python<'py>,
        threads: Option<u32>,
        per_kind: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = report::check_options(threads, per_kind);
        let found = call(py, || Ok(uext4_check::check(&self.get()?, &options, &mut |_| {})?))?;
        report::checked(py, &found)
    }

    fn stat(&self, py: Python<'_>, path: Name, follow: bool) -> PyResult<Stat> {
        self.at(py, &path, |volume, path| {
            let metadata = match follow {
                true => volume.metadata(path)?,
                false => volume.symlink_metadata(path)?,
            };
            Ok(Stat::new(metadata, volume))
        })
    }

    /// Names of a directory, without `.` and `..`.
    fn list_dir(&self, py: Python<'_>, path: Name) -> PyResult<Vec<Py<PyString>>> {
        let names = self.at(py, &path, |volume, path| {
            let entries = volume.read_dir(path)?.map(|entry| entry.map(|entry| entry.name));
            entries.filter(|name| !matches!(name.as_deref(), Ok(b"." | b".."))).collect::<Result<Vec<_>, _>>()
        })?;
        names.iter().map(|name| decoded(py, name).map(Bound::unbind)).collect()
    }

    /// Entries of a directory with their attributes.
    fn scan_dir(&self, py: Python<'_>, path: Name) -> PyResult<Vec<Entry>> {
        call(py, || {
            let volume = self.get()?;
            let start = volume.resolve(path.path(), true).map_err(|error| Fault::from(error).at(&path.0))?;
            Walker::directory(&volume, start, &path.0)
        })
    }

    /// `object`: what closes the volume when it is forgotten, which a walk keeps.
    #[pyo3(signature = (path, stat, max_depth, object=None))]
    fn walk(
        &self,
        py: Python<'_>,
        path: Name,
        stat: bool,
        max_depth: Option<u32>,
        object: Option<Py<PyAny>>,
    ) -> PyResult<Walker> {
        let options = WalkOptions::new().stat(stat).max_depth(max_depth.unwrap_or(u32::MAX));
        let holds = (self.opener, object);
        self.at(py, &path, |volume, inner| {
            let walker = Walker::new(volume, volume.resolve(inner, true)?, &path.0, options, holds);
            self.note(walker.open_walk());
            Ok(walker)
        })
    }

    fn exists(&self, py: Python<'_>, path: Name) -> PyResult<bool> {
        self.at(py, &path, |volume, path| volume.exists(path))
    }

    fn canonicalize<'py>(&self, py: Python<'py>, path: Name) -> PyResult<Bound<'py, PyString>> {
        let found = self.at(py, &path, |volume, path| volume.canonicalize(path))?;
        Ok(found.as_os_str().into_pyobject(py)?)
    }

    fn readlink<'py>(&self, py: Python<'py>, path: Name) -> PyResult<Bound<'py, PyString>> {
        let target = self.at(py, &path, |volume, path| volume.read_link(path))?;
        decoded(py, &target)
    }

    fn read_whole<'py>(&self, py: Python<'py>, path: Name) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.at(py, &path, |volume, path| volume.read(path))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn mkdir(&self, py: Python<'_>, path: Name, mode: u32, maker: Maker) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.create_dir(path, mode, &maker.caller()))
    }

    fn symlink(&self, py: Python<'_>, target: Name, link: Name, maker: Maker) -> PyResult<()> {
        self.between(py, (&target, &link), |volume, target, link| {
            volume.symlink(target, link, &maker.caller())
        })
    }

    fn link(&self, py: Python<'_>, original: Name, link: Name) -> PyResult<()> {
        self.between(py, (&original, &link), |volume, original, link| volume.hard_link(original, link))
    }

    /// `kind`: one letter, as of `mknod`: p, s, c, b or f for a regular file.
    fn mknod(
        &self,
        py: Python<'_>,
        path: Name,
        kind: char,
        numbers: (u32, u32),
        mode: u32,
        maker: Maker,
    ) -> PyResult<()> {
        let (major, minor) = numbers;
        let kind = match kind {
            'p' => NodeKind::Fifo,
            's' => NodeKind::Socket,
            'c' => NodeKind::Char { major, minor },
            'b' => NodeKind::Block { major, minor },
            'f' => NodeKind::Regular,
            other => return Err(Fault::Value(format!("no kind of node: {other}")).into()),
        };
        self.at(py, &path, |volume, path| volume.make_node(path, kind, mode, &maker.caller()))
    }

    fn unlink(&self, py: Python<'_>, path: Name) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.remove_file(path))
    }

    fn rmdir(&self, py: Python<'_>, path: Name) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.remove_dir(path))
    }

    fn rmtree(&self, py: Python<'_>, path: Name) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.remove_dir_all(path))
    }

    fn rename(&self, py: Python<'_>, old: Name, new: Name, exchange: bool, replace: bool) -> PyResult<()> {
        let mut flags = RenameFlags::empty();
        flags.set(RenameFlags::EXCHANGE, exchange);
        flags.set(RenameFlags::NOREPLACE, !replace);
        self.between(py, (&old, &new), |volume, from, to| volume.rename_with(from, to, flags))
    }

    fn chmod(&self, py: Python<'_>, path: Name, mode: u32, follow: bool) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.set_permissions(path, mode, follow))
    }

    fn chown(
        &self,
        py: Python<'_>,
        path: Name,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.set_owner(path, uid, gid, follow))
    }

    fn utime(&self, py: Python<'_>, path: Name, times: (When, When), follow: bool) -> PyResult<()> {
        let (accessed, modified) = (times.0.time()?, times.1.time()?);
        self.at(py, &path, |volume, path| volume.set_times(path, accessed, modified, follow))
    }

    fn truncate(&self, py: Python<'_>, path: Name, size: u64) -> PyResult<()> {
        self.at(py, &path, |volume, path| {
            volume.node_at(path, true)?.set_attributes(&SetAttributes::new().size(size))
        })
    }

    fn set_flags(&self, py: Python<'_>, path: Name, flags: u32, follow: bool) -> PyResult<()> {
        let flags = InodeFlags::from_bits_retain(flags);
        self.at(py, &path, |volume, path| volume.set_flags(path, flags, follow))
    }

    fn set_project(&self, py: Python<'_>, path: Name, project: u32, follow: bool) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.set_project(path, project, follow))
    }

    fn list_xattrs(&self, py: Python<'_>, path: Name, follow: bool) -> PyResult<Vec<Py<PyString>>> {
        let names = self.at(py, &path, |volume, path| {
            volume
                .list_xattrs(path, follow)?
                .map(|name| name.map(|name| name.into_bytes()))
                .collect::<Result<Vec<_>, _>>()
        })?;
        names.iter().map(|name| decoded(py, name).map(Bound::unbind)).collect()
    }

    fn get_xattr<'py>(
        &self,
        py: Python<'py>,
        path: Name,
        name: Name,
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.at(py, &path, |volume, path| volume.xattr(path, &name.0, follow))?;
        Ok(PyBytes::new(py, &value))
    }

    /// `create`: it must not exist yet; `replace`: it must.
    #[expect(clippy::too_many_arguments, reason = "those of os.setxattr")]
    fn set_xattr(
        &self,
        py: Python<'_>,
        path: Name,
        name: Name,
        value: &[u8],
        create: bool,
        replace: bool,
        follow: bool,
    ) -> PyResult<()> {
        let mut flags = XattrFlags::empty();
        flags.set(XattrFlags::CREATE, create);
        flags.set(XattrFlags::REPLACE, replace);
        self.at(py, &path, |volume, path| volume.set_xattr(path, &name.0, value, flags, follow))
    }

    fn remove_xattr(&self, py: Python<'_>, path: Name, name: Name, follow: bool) -> PyResult<()> {
        self.at(py, &path, |volume, path| volume.remove_xattr(path, &name.0, follow))
    }
}
