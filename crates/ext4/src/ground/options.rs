//! Options to open a volume, a file and a queue.

use crate::ground::error::{Error, Result};
use crate::ground::trace::Listener;
use std::sync::Arc;
use std::time::Duration;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{Ask, Device, Priority, QueueOptions as DeviceQueueOptions};
use uext4_iomap::Switches;
use uext4_ondisk::ext4::Timestamp;

/// When reads set the time of the last access. It is kept in memory, and stored with the next change of the inode, by
/// `fsync`, or with the times of overwrites ([`Volume::tick`](crate::Volume::tick)). Inodes that were read stay in
/// memory until then, so let the volume tick if many are. The time is never set on a volume that is open read-only, nor
/// of an inode with the flag [`NOATIME`](crate::InodeFlags::NOATIME).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    #[default]
    Off,
    /// If the contents or the attributes changed since the last access, or it was a day ago, as Linux does by default.
    Relatime,
    /// With every read.
    Strict,
}

/// How to open a volume.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    pub(crate) write: bool,
    pub(crate) force: bool,
    pub(crate) switches: Switches,
    pub(crate) metadata_budget: u64,
    pub(crate) map_budget: usize,
    pub(crate) inode_budget: usize,
    pub(crate) name_budget: usize,
    pub(crate) keeps_set_id: bool,
    pub(crate) atime: Atime,
    pub(crate) page_budget: u64,
    pub(crate) commit_interval: Duration,
    pub(crate) background: bool,
    pub(crate) reserved: bool,
    pub(crate) discard: bool,
    /// Where the clock stands, if what is stored must not depend on the time.
    pub(crate) fixed_time: Option<Timestamp>,
    /// Devices among which the journal is, if it is not in the volume.
    pub(crate) journals: Vec<JournalDevice>,
    pub(crate) trace: Option<Listener>,
    /// Length of a multi-mount protection second; shorter in tests.
    pub(crate) mmp_second: Duration,
}

impl VolumeOptions {
    /// Read-only: nothing is ever written to the device.
    pub fn read_only() -> Self {
        VolumeOptions {
            write: false,
            force: false,
            switches: Switches::ON,
            metadata_budget: 64 << 20,
            map_budget: 64 << 20,
            inode_budget: 8 << 20,
            name_budget: 8 << 20,
            keeps_set_id: false,
            atime: Atime::Off,
            page_budget: 64 << 20,
            commit_interval: Duration::from_secs(5),
            background: false,
            reserved: false,
            discard: false,
            fixed_time: None,
            journals: Vec::new(),
            trace: None,
            mmp_second: Duration::from_secs(1),
        }
    }

    /// Files can be written.
    pub fn read_write() -> Self {
        VolumeOptions { write: true, ..Self::read_only() }
    }

    /// Opens read-only even if the device is in use. Its contents may change meanwhile.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Optimisations for files of this volume, unless a file is opened with its own setting.
    #[must_use]
    pub fn switches(mut self, switches: Switches) -> Self {
        self.switches = switches;
        self
    }

    /// Most bytes of metadata blocks kept in memory (64 MiB unless set).
    #[must_use]
    pub fn metadata_budget(mut self, bytes: u64) -> Self {
        self.metadata_budget = bytes;
        self
    }

    /// Most bytes that the mapping snapshot of one file may take (64 MiB unless set). Beyond it, the oldest parts are
    /// evicted and loaded again on demand. The last leaf loaded always stays. Two snapshots exist while one is
    /// replaced. An idle queue keeps the one it used last. A thread keeps up to four from its synchronous calls.
    #[must_use]
    pub fn map_budget(mut self, bytes: usize) -> Self {
        self.map_budget = bytes;
        self
    }

    /// Most bytes of unused inodes kept in memory, with their mappings (8 MiB unless set; 0 keeps none). Inodes in use,
    /// and inodes with changes that are not durable yet, always stay.
    #[must_use]
    pub fn inode_budget(mut self, bytes: usize) -> Self {
        self.inode_budget = bytes;
        self
    }

    /// Most bytes of names kept in memory after they were looked up, absent ones too (8 MiB unless set; 0 keeps none).
    #[must_use]
    pub fn name_budget(mut self, bytes: usize) -> Self {
        self.name_budget = bytes;
        self
    }

    /// Most bytes of files in memory, for requests of any bytes ([`File::read_any_at`](crate::File::read_any_at) and
    /// the like): 64 MiB unless set. At most half of them are newer than the device. 0: every request goes to the
    /// device at once, as with [`OpenOptions::direct`].
    #[must_use]
    pub fn page_budget(mut self, bytes: u64) -> Self {
        self.page_budget = bytes;
        self
    }

    /// Age at which [`Volume::tick`](crate::Volume::tick) commits a transaction without a sync (5 s unless set, as in
    /// the kernel).
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Starts a thread that calls [`Volume::tick`](crate::Volume::tick) while the volume is open for writing. The
    /// thread ends with the last clone of volume and files, and keeps none of them open.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Whether file data may use the reserved blocks: the superblock's share for root, and those that Linux keeps for
    /// maps. Unless set, allocation stops when [`StatFs::available`](crate::StatFs::available) is used up, as for users
    /// other than root in Linux: a library does not know who calls it, and a volume filled by mistake keeps room for
    /// repair. Maps and names may always use them.
    #[must_use]
    pub fn reserved(mut self, reserved: bool) -> Self {
        self.reserved = reserved;
        self
    }

    /// Discards freed blocks on the device after the freeing transaction is durable and before the blocks are reused.
    /// Every commit that frees blocks waits for it. Off unless set, and on devices without discard;
    /// [`Volume::trim`](crate::Volume::trim) does it in bulk instead.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// What is stored follows from the volume and the calls alone, byte for byte: all times are `time` (from 1970 on),
    /// numbers drawn for new inodes follow from the volume, no thread commits ([`VolumeOptions::background`] has no
    /// effect), and multi-mount protection notes no host. That holds for calls of one thread without queues, none of
    /// them [`Volume::tick`](crate::Volume::tick).
    #[must_use]
    pub fn deterministic(mut self, time: Timestamp) -> Self {
        self.fixed_time = Some(time);
        self
    }

    /// Whether writes keep set-user-id and set-group-id, as the kernel does for a caller with `CAP_FSETID`. A volume
    /// does not know who calls, so it strips them unless this is set. Every write removes the attribute
    /// `security.capability` in any case.
    #[must_use]
    pub fn keep_set_id(mut self, keep: bool) -> Self {
        self.keeps_set_id = keep;
        self
    }

    /// A device that may hold the journal of the volume, for volumes that have it on a device of its own (`mke2fs -J
    /// device=`). Each call adds one: the volume takes the one with the UUID that its superblock names, so the same
    /// options serve several volumes. It is opened and claimed with the volume, for writing if the volume is, and
    /// released with it. Volumes with their journal inside ignore it.
    #[must_use]
    pub fn journal(mut self, device: DeviceSpec) -> Self {
        self.journals.push(JournalDevice::Named(Box::new(device)));
        self
    }

    /// As [`VolumeOptions::journal`], for a device that the caller opened, possibly wrapped in layers.
    #[must_use]
    pub fn journal_device(mut self, device: Arc<dyn Device>) -> Self {
        self.journals.push(JournalDevice::Opened(device));
        self
    }

    /// Refuses a volume on an overlay file (`?overlay=FILE`) whose journal is not: half of the changes would be kept
    /// apart. [`Volume::open`](crate::Volume::open) does it; callers of
    /// [`Volume::open_device`](crate::Volume::open_device) may.
    ///
    /// # Errors
    /// [`Error::ExternalJournal`] if a journal that is named would be written to.
    pub fn check_overlay(&self, volume: &DeviceSpec) -> Result<()> {
        let exposed = self.journals.iter().any(|journal| match journal {
            JournalDevice::Named(device) => !device.spares_device(),
            JournalDevice::Opened(_) => false,
        });
        if self.write && volume.options.overlay.is_some() && exposed {
            let reason =
                "the volume is on an overlay file, and its journal must be, too: log.img?overlay=FILE";
            return Err(Error::ExternalJournal(reason.into()));
        }
        Ok(())
    }

    /// Tells the listener each journal handle and what it changes ([`trace`](crate::trace)). Only on a volume open for
    /// writing. A handle's record is dropped once it was told; up to 8 MiB of names are kept to tell paths. Unless set,
    /// this costs a branch for each handle, changed block and name looked up.
    #[must_use]
    pub fn trace(mut self, listener: Listener) -> Self {
        self.trace = Some(listener);
        self
    }

    /// When reads set the time of the last access. Off unless set. Files of such a volume are read on a slower path.
    #[must_use]
    pub fn atime(mut self, atime: Atime) -> Self {
        self.atime = atime;
        self
    }
}

/// A device that may hold the journal of a volume.
#[derive(Debug, Clone)]
pub(crate) enum JournalDevice {
    /// Opened when it is needed.
    Named(Box<DeviceSpec>),
    /// Opened by the caller.
    Opened(Arc<dyn Device>),
}

impl JournalDevice {
    /// For messages.
    pub(crate) fn name(&self) -> String {
        match self {
            JournalDevice::Named(spec) => spec.to_string(),
            JournalDevice::Opened(device) => device.describe().locator,
        }
    }
}

/// How to open a file. As [`std::fs::OpenOptions`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) switches: Option<Switches>,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: Create,
    pub(crate) mode: Option<u32>,
    pub(crate) owner: (u32, u32),
    pub(crate) generation: Option<u32>,
    pub(crate) priority: Priority,
    pub(crate) limited: bool,
    pub(crate) direct: bool,
}

/// What an open does if the file does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Create {
    /// Fail.
    #[default]
    Never,
    /// Create the file.
    Missing,
    /// Create the file, and fail if it exists.
    New,
}

/// Permissions of a new file by default.
const MODE: u32 = 0o644;

impl OpenOptions {
    /// No access yet: opening a file for neither reading nor writing is [`Error::Invalid`].
    pub fn new() -> Self {
        Self::default()
    }

    /// For reading.
    #[must_use]
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// For overwriting.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Requests of any bytes go to the device at once, through a bounce buffer if they are not aligned, and nothing of
    /// the file is kept in memory. Without it they are buffered: [`File::read_any_at`](crate::File::read_any_at).
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// For writing at the end, by [`File::append`](crate::File::append) only: writes with a position are refused, as on
    /// a file that is not open for writing.
    #[must_use]
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Truncates the file, as [`File::set_len`](crate::File::set_len) to 0 does. Needs writing.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist. Needs writing or appending. It is durable after the next sync of the
    /// file.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = if create { Create::Missing } else { Create::Never };
        self
    }

    /// Creates the file, and fails if its name exists, even as a symbolic link. Needs writing or appending.
    #[must_use]
    pub fn create_new(mut self, create: bool) -> Self {
        self.create = if create { Create::New } else { Create::Never };
        self
    }

    /// Permissions of a created file (`0o644` unless set): the lower twelve bits, with no umask applied.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// User and group of a created file (0 and 0 unless set). In a directory that passes on its group (set-group-id, or
    /// the volume's default mount option `bsdgroups`), the group is the directory's.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Opens an inode by number only if it has this generation ([`Metadata::generation`](crate::Metadata::generation));
    /// otherwise the number was freed and reused, which is [`Error::Stale`]. No effect on paths.
    #[must_use]
    pub fn generation(mut self, generation: u32) -> Self {
        self.generation = Some(generation);
        self
    }

    /// Whether limits of quota hold for the file's creation and for what is written through it, as for a caller other
    /// than root: [`Error::QuotaExceeded`]. While such a file is open, they hold for all writers of its inode.
    #[must_use]
    pub fn limited(mut self, limited: bool) -> Self {
        self.limited = limited;
        self
    }

    /// Permissions of a created file.
    pub(crate) fn new_mode(&self) -> u32 {
        self.mode.unwrap_or(MODE)
    }

    /// I/O priority of reads and writes of the file's data. Unless set, that of the queue ([`QueueOptions::priority`])
    /// or of the calling thread applies. A synchronous call sets its thread's priority for the call, which costs three
    /// more system calls; requests of a queue take the general route, not the shortest one.
    ///
    /// Opening fails ([`Error::errno`] `EPERM`) if the process lacks the right to the priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Optimisations for this open file; the volume's setting otherwise.
    #[must_use]
    pub fn switches(mut self, switches: Switches) -> Self {
        self.switches = Some(switches);
        self
    }

    /// Refuses contradictory options. Runs before the path is resolved, as in std.
    pub(crate) fn check(&self) -> Result<()> {
        let writes = self.write || self.append;
        if !self.read && !writes {
            return Err(Error::Invalid("open a file for reading, writing or appending".into()));
        }
        if self.write && self.append {
            return Err(Error::Invalid("open a file for writing or for appending, not both".into()));
        }
        if self.truncate && !self.write {
            return Err(Error::Invalid("truncating a file needs it open for writing".into()));
        }
        if self.create != Create::Never && !writes {
            return Err(Error::Invalid("creating a file needs it open for writing or appending".into()));
        }
        Ok(self.priority.check()?)
    }
}

/// How a queue is made.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    pub(crate) device: DeviceQueueOptions,
    pub(crate) buffer_bytes: usize,
}

/// Deepest queue.
pub const DEPTH_MAX: u32 = 32768;

impl QueueOptions {
    /// A queue for up to `depth` requests (1 ..= 32768), with `depth` × 4 KiB of registered buffer memory.
    pub fn depth(depth: u32) -> Self {
        QueueOptions {
            device: DeviceQueueOptions::depth(depth),
            buffer_bytes: (depth as usize).saturating_mul(4096).max(64 * 1024),
        }
    }

    /// Bytes of buffer memory reserved (and registered) at the start. More is reserved and registered on demand,
    /// doubling the total each time, within 1 MiB to 64 MiB a step.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// Only the creating thread drives the queue (SINGLE_ISSUER, DEFER_TASKRUN). It must keep calling: no other thread
    /// can reap its completions.
    #[must_use]
    pub fn owner_driven(mut self, owner_driven: bool) -> Self {
        self.device.owner_driven = owner_driven;
        self
    }

    /// Busy-polled completions (IOPOLL). Implies an owner-driven queue.
    #[must_use]
    pub fn iopoll(mut self, ask: Ask) -> Self {
        self.device.iopoll = ask;
        self
    }

    /// A kernel thread that submits (SQPOLL).
    #[must_use]
    pub fn sqpoll(mut self, ask: Ask) -> Self {
        self.device.sqpoll = ask;
        self
    }

    /// Registered buffers: all memory handed out by [`IoQueue::buffer`](crate::IoQueue::buffer). With [`Ask::Require`]
    /// that call fails if the kernel does not register memory it has to add; with [`Ask::Try`] the buffer is then plain
    /// memory, which [`IoQueue::facts`](crate::IoQueue::facts) reports from then on. Buffers of other pools are plain
    /// memory to a queue.
    #[must_use]
    pub fn register_buffers(mut self, ask: Ask) -> Self {
        self.device.register_buffers = ask;
        self
    }

    /// I/O priority of requests of files that have none of their own. A hint to the kernel's I/O scheduler;
    /// [`QueueFacts::fallbacks`](crate::QueueFacts::fallbacks) reports devices that ignore it.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.device.priority = priority;
        self
    }

    /// A registered file.
    #[must_use]
    pub fn register_file(mut self, ask: Ask) -> Self {
        self.device.register_file = ask;
        self
    }

    /// A ring registered with the thread that drives it, which must also drop it (see
    /// [`uext4_blockdev::QueueOptions::register_ring`]). Only for an owner-driven queue.
    #[must_use]
    pub fn register_ring(mut self, ask: Ask) -> Self {
        self.device.register_ring = ask;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.device.depth == 0 || self.device.depth > DEPTH_MAX {
            return Err(Error::Invalid(format!(
                "the queue depth must be 1 to {DEPTH_MAX}, not {}",
                self.device.depth
            )));
        }
        Ok(())
    }
}
