//! An open volume.

use crate::dir::ReadDir;
use crate::error::{Error, Result};
use crate::features;
use crate::file::File;
use crate::fs::Ext4;
use crate::groups::DescriptorDamage;
use crate::info::Info;
use crate::inline::InlineData;
use crate::inode::{Inode, InodeTable};
use crate::mmp;
use crate::options::{OpenOptions, VolumeOptions};
use crate::recovery::{RecoveryInfo, Settled};
use crate::stat::{FileKind, Metadata};
use crate::to_device::ToDevice;
use crate::walk::TableReader;
use crate::zones::SystemZones;
use crate::{foreign, journal, map, path, recovery};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{self as blockdev, BufferPool, Device};
use uext4_buffer::{BufferCache, CacheOptions};
use uext4_iomap::{Engine, OpenFile, Stats};
use uext4_jbd2::{Journal, JournalInfo};
use uext4_ondisk::ext4::{MmpBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// An open volume. Cheap to clone; every call may come from any thread. The device is released when the last
/// clone, file and queue are gone.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

/// What files and queues of a volume share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine<Ext4>>,
    pub(crate) fs: Arc<Ext4>,
    options: VolumeOptions,
    /// As it was given, without what recovery lays over it.
    device: Arc<dyn Device>,
    /// Whether an opening for writing would succeed, once somebody asked.
    writable: OnceLock<Result<()>>,
}

impl Shared {
    /// Whether the volume could be opened for writing, as far as it says itself: not whether the device can be
    /// written or is in use. Rehearsed once for a volume that is open read-only; nothing is written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.write {
            return Ok(());
        }
        self.writable.get_or_init(|| recovery::rehearse(&self.device, &self.options)).clone()
    }
}

/// The file system's own state.
pub(crate) struct Ext4State {
    pub(crate) superblock: Superblock,
    pub(crate) cache: BufferCache,
    pub(crate) zones: SystemZones,
    pub(crate) inodes: InodeTable,
    pub(crate) map_budget: usize,
    pub(crate) journal: Option<Journal>,
    pub(crate) journal_info: Option<JournalInfo>,
    pub(crate) mmp: Option<MmpBlock>,
    pub(crate) recovery: RecoveryInfo,
    /// Whether a damaged group descriptor is an error wherever it is met: of volumes that are to be written.
    pub(crate) trusts_only_sound: bool,
    pub(crate) descriptor_damage: Option<DescriptorDamage>,
}

/// The root directory's inode number.
pub(crate) const ROOT: Ino = Ino(2);

impl Volume {
    /// Opens the volume on `device`: text in the device grammar (`"disk.img"`, `"/dev/nvme0n1p3"`, `"dax:…"`,
    /// `"disk.img?partition=2"`), or the path of an image file or block device, whose bytes mean nothing but
    /// themselves. [`ToDevice`] says which type is which.
    ///
    /// # Errors
    /// [`Error::NotExt4`] saying what is there instead, [`Error::InUse`], [`Error::Incompatible`] naming the feature,
    /// [`Error::Journal`] if the journal is damaged and the volume is to be written, [`Error::Corrupt`], and the
    /// device's. A journal that is not empty is replayed first: onto the device, or for a read-only volume in memory
    /// ([`Info::recovery`]). Whatever the device was given before is made durable before a volume is written
    /// (`Device::settle`): that can take long for an image that was copied just now. Damaged group descriptors are an
    /// error if the volume is to be written; a read-only open tells of them ([`Info::descriptors`]).
    pub fn open(device: impl ToDevice, options: VolumeOptions) -> Result<Volume> {
        Self::open_spec(&device.to_device()?, options)
    }

    /// Opens the volume on a parsed device.
    pub fn open_spec(spec: &DeviceSpec, options: VolumeOptions) -> Result<Volume> {
        let how = blockdev::OpenOptions { write: options.write, force: options.force };
        let opened = blockdev::open(spec, how)?;
        Self::open_device(opened.device, options)
    }

    /// Opens the volume on a device that the caller opened and perhaps wrapped in layers.
    pub fn open_device(device: Arc<dyn Device>, options: VolumeOptions) -> Result<Volume> {
        if options.write && device.capabilities().read_only {
            return Err(Error::ReadOnly("the device"));
        }
        let superblock = read_superblock(&device).map_err(|error| foreign::instead(&*device, error))?;
        features::check_encoding(&superblock)?;
        check_device(&superblock, &*device)?;
        mmp::refuse_shared(&*device, &superblock, &options)?;
        if options.write {
            // A write that is promised durable is lost with the file system around it. Whoever made or copied the
            // image may not have synced it, and FUA makes one range durable.
            device.settle()?;
        }
        let given = device.clone();
        let Settled { device, superblock, info } = recovery::settle(device, superblock, &options)?;
        let state = open_state(device.clone(), superblock, &options, info)?;
        let fs = Arc::new(Ext4::new(state));
        let engine = Arc::new(Engine::new(fs.clone(), device)?);
        Ok(Volume {
            shared: Arc::new(Shared { engine, fs, options, device: given, writable: OnceLock::new() }),
        })
    }

    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Volume { shared }
    }

    pub(crate) fn state(&self) -> &Ext4State {
        &self.shared.fs.state
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<Ext4>> {
        &self.shared.engine
    }

    /// The device, outermost layer.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.shared.engine.device()
    }

    /// The superblock as it was when the volume was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.state().superblock
    }

    /// File-system block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.superblock().geometry.block_size()
    }

    /// Whether files can be opened for writing.
    pub fn is_writable(&self) -> bool {
        self.shared.options.write
    }

    /// Counters of routes since the volume was opened. Most queued requests are counted when a call to their queue has
    /// found them complete, so wait for what is in flight before comparing two readings.
    pub fn stats(&self) -> Stats {
        self.shared.engine.stats()
    }

    /// The block of multi-mount protection as it is on `device` now, or `None` without that feature: for looking at
    /// a volume that cannot be opened.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the block, and the device's.
    pub fn read_mmp(device: &dyn Device, superblock: &Superblock) -> Result<Option<MmpBlock>> {
        check_device(superblock, device)?;
        mmp::read(device, superblock)
    }

    /// What there is to know about volume and device.
    pub fn info(&self) -> Info {
        Info::of(self)
    }

    /// The inode that `path` names, following symbolic links on the way, and the last one if `follow`. Paths
    /// start at the root, with or without a slash.
    pub fn resolve(&self, path: impl AsRef<Path>, follow: bool) -> Result<Ino> {
        Ok(self.resolve_inode(path.as_ref(), follow)?.ino())
    }

    fn resolve_inode(&self, path: &Path, follow: bool) -> Result<Arc<Inode>> {
        path::resolve(self.state(), path.as_os_str().as_bytes(), follow)
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is to be opened neither for reading nor for writing, [`Error::IsDirectory`],
    /// [`Error::NotRegular`], [`Error::ReadOnly`] and [`Error::NotPermitted`] if it is to be written, and those of
    /// finding and reading it.
    pub fn open_file(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        options.check()?;
        let inode = self.resolve_inode(path.as_ref(), true)?;
        self.open_loaded(inode, options)
    }

    /// Opens a regular file by inode number.
    ///
    /// # Errors
    /// Those of [`Volume::open_file`].
    pub fn open_inode(&self, ino: Ino, options: OpenOptions) -> Result<File> {
        options.check()?;
        let inode = self.state().inode(ino)?;
        self.open_loaded(inode, options)
    }

    fn open_loaded(&self, inode: Arc<Inode>, options: OpenOptions) -> Result<File> {
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::NotRegular),
        }
        if inode.is_inline() {
            InlineData::of(self.state(), &inode)?;
        } else {
            inode.check_contents()?;
            map::check_inode(self.state(), &inode)?;
        }
        if options.write {
            if !self.shared.options.write {
                return Err(Error::ReadOnly("the volume was opened read-only"));
            }
            check_overwrite(self.superblock(), &inode)?;
        }
        let switches = options.switches.unwrap_or(self.shared.options.switches);
        let open = OpenFile::new(inode, options.read, options.write, switches);
        Ok(File::new(open, self.shared.clone()))
    }

    /// Attributes of what `path` names, following symbolic links.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.resolve_inode(path.as_ref(), true)?.metadata())
    }

    /// Attributes of what `path` names; of the link itself if it is one.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.resolve_inode(path.as_ref(), false)?.metadata())
    }

    /// Attributes of an inode.
    pub fn metadata_of(&self, ino: Ino) -> Result<Metadata> {
        TableReader::default().metadata(self.state(), ino, std::iter::empty())
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        path::read_link(self.state(), &*self.resolve_inode(path.as_ref(), false)?)
    }

    /// The target of a symbolic link by inode number.
    pub fn read_link_of(&self, ino: Ino) -> Result<Vec<u8>> {
        path::read_link(self.state(), &*self.state().inode(ino)?)
    }

    /// The entries of a directory in their order on disk, `.` and `..` included.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let inode = self.resolve_inode(path.as_ref(), true)?;
        ReadDir::new(self.clone(), inode)
    }

    /// The entries of a directory by inode number.
    pub fn read_dir_of(&self, ino: Ino) -> Result<ReadDir> {
        ReadDir::new(self.clone(), self.state().inode(ino)?)
    }

    /// One commit and one flush for all of `files`: their completed writes survive a crash.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a file belongs to another volume: it would not be made durable.
    pub fn sync_files(&self, files: &[&File]) -> Result<()> {
        if !files.iter().all(|file| file.is_of(self.engine())) {
            return Err(Error::Invalid("a file belongs to another volume".into()));
        }
        let open: Vec<_> = files.iter().map(|file| file.open_file()).collect();
        self.shared.engine.sync_many(&open, true)
    }
}

/// Refuses overwriting what is not for users of the volume, or protected.
pub(crate) fn check_overwrite(superblock: &Superblock, inode: &Inode) -> Result<()> {
    // Reserved inodes (journal, resize, quota …) are the volume's own, even if a directory names one.
    if inode.ino() < superblock.geometry.first_inode() {
        return Err(Error::NotPermitted("a reserved inode"));
    }
    if is_system_file(superblock, inode.ino()) {
        return Err(Error::NotPermitted("the superblock names it as a file of the volume's own"));
    }
    inode.check_overwrite()
}

/// Whether the superblock names the inode as the journal or as the file of quotas or orphans. These may have any
/// number, and whoever overwrites one breaks accounting or recovery. A directory entry that leads to one is an error
/// or an attack, apart from `/.journal`, which `tune2fs -j` makes on a mounted volume. Fields whose feature is off
/// count as well: the tools clear them.
pub(crate) fn is_system_file(superblock: &Superblock, ino: Ino) -> bool {
    [
        superblock.journal.inode,
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
        superblock.orphan_file_inode,
    ]
    .contains(&ino.get())
}

/// Checks everything that decides whether a volume can be opened, and loads what every use of it needs. The log is
/// empty or does not count.
pub(crate) fn open_state(
    device: Arc<dyn Device>,
    superblock: Superblock,
    options: &VolumeOptions,
    recovery: RecoveryInfo,
) -> Result<Ext4State> {
    if options.write {
        features::check_writable(&superblock)?;
    }
    features::check_encoding(&superblock)?;
    check_device(&superblock, &*device)?;
    let mut state = Ext4State::bare(device, superblock, options)?;
    state.recovery = recovery;
    state.load_zones()?;
    journal::open(&mut state, options.write)?;
    Ok(state)
}

impl Ext4State {
    /// The state before anything but the superblock was read.
    pub(crate) fn bare(
        device: Arc<dyn Device>,
        superblock: Superblock,
        options: &VolumeOptions,
    ) -> Result<Ext4State> {
        let mut cache_options = CacheOptions::new(superblock.geometry.block_size());
        cache_options.blocks = superblock.geometry.blocks_count();
        cache_options.budget_bytes = options.metadata_budget;
        Ok(Ext4State {
            zones: SystemZones::new(superblock.geometry.usable_blocks()),
            mmp: mmp::read(&*device, &superblock)?,
            superblock,
            cache: BufferCache::new(device, &cache_options)?,
            inodes: InodeTable::default(),
            map_budget: options.map_budget,
            journal: None,
            journal_info: None,
            recovery: RecoveryInfo::clean(),
            trusts_only_sound: options.write,
            descriptor_damage: None,
        })
    }
}

/// Reads and checks the primary superblock, its features first.
pub(crate) fn read_superblock(device: &Arc<dyn Device>) -> Result<Superblock> {
    let geometry = device.geometry();
    let needed = SUPERBLOCK_OFFSET + u64::from(SUPERBLOCK_SIZE);
    let length = needed.next_multiple_of(u64::from(geometry.logical_block));
    if geometry.size < length {
        return Err(Corrupt::from(CorruptKind::Truncated("superblock")).into());
    }
    let mut buffer = BufferPool::new(length as usize)?.take(length as usize)?;
    device.read_at(&mut buffer, 0)?;
    let start = SUPERBLOCK_OFFSET as usize;
    let bytes = &buffer[start..start + SUPERBLOCK_SIZE as usize];
    features::check_readable(&Superblock::peek_features(bytes)?)?;
    Ok(Superblock::decode(bytes)?)
}

/// Refuses devices that cannot hold the volume or cannot address its blocks.
pub(crate) fn check_device(superblock: &Superblock, device: &dyn Device) -> Result<()> {
    let geometry = device.geometry();
    let block = superblock.geometry.block_size();
    let bytes = superblock.geometry.blocks_count().checked_mul(u64::from(block));
    if bytes.is_none_or(|bytes| bytes > geometry.size) {
        return Err(Error::TooSmall {
            blocks: superblock.geometry.blocks_count(),
            block,
            device: geometry.size,
        });
    }
    if block < geometry.logical_block {
        let feature = format!(
            "blocks of {block} bytes, smaller than the device's logical block of {} bytes",
            geometry.logical_block
        );
        return Err(Error::Incompatible { action: "open", feature });
    }
    Ok(())
}
