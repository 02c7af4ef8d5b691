//! Volumes: open, close, sync, what they are and count.

use crate::border::{path, put, text};
use crate::call::{Fault, Result, call, call_int};
use crate::handle::{Kind, Table};
use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::Duration;
use uext4::{Atime, Commits, DeviceSpec, Stats, Switches, Volume, VolumeOptions};

/// An open volume.
pub struct uext4_volume(());

pub(crate) static VOLUMES: Table<Volume> = Table::new(Kind::Volume);

/// The volume may be changed. Without it nothing is ever written to the device.
pub const UEXT4_OPEN_WRITE: u32 = 1;
/// Opens for reading although somebody else uses the device. What is read may change meanwhile.
pub const UEXT4_OPEN_FORCE: u32 = 2;
/// A thread of the library commits what is old and writes old times. Otherwise call `uext4_tick`.
pub const UEXT4_OPEN_BACKGROUND: u32 = 4;
/// Data of files may have the blocks that the volume sets aside for root.
pub const UEXT4_OPEN_RESERVED: u32 = 8;
/// The device is told of blocks that are freed.
pub const UEXT4_OPEN_DISCARD: u32 = 16;
/// Writes leave set-user-id and set-group-id alone.
pub const UEXT4_OPEN_KEEP_SET_ID: u32 = 32;

/// Reads set the time of the last access where the file changed since, or after a day.
pub const UEXT4_OPEN_RELATIME: u32 = 64;
/// Every read sets the time of the last access.
pub const UEXT4_OPEN_STRICT_ATIME: u32 = 128;

const OPEN_FLAGS: u32 = (UEXT4_OPEN_STRICT_ATIME << 1) - 1;

/// How a volume is opened. Zeros mean the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_options {
    /// `sizeof(struct uext4_options)`: programs that know fewer fields go on.
    pub size: usize,
    /// `UEXT4_OPEN_…`.
    pub flags: u32,
    /// Milliseconds after which a transaction is committed that nobody asked for; 0: 5 seconds.
    pub commit_interval_ms: u32,
    /// Bytes of metadata blocks kept in memory; 0: 64 MiB.
    pub metadata_budget: u64,
    /// Bytes of the map of one file kept in memory; 0: 64 MiB.
    pub map_budget: u64,
    /// Bytes of unused inodes kept in memory; 0: 8 MiB.
    pub inode_budget: u64,
    /// Which optimisations are off, such as `"simple-read=off"`; NULL: none.
    pub switches: *const c_char,
    /// Bytes of names kept in memory after they were looked up, absent ones too; 0: 8 MiB, `UINT64_MAX`: none.
    pub name_budget: u64,
    /// The device that holds the journal, as text in the device grammar, of a volume that has it outside; NULL: none.
    /// It is opened with the volume, for the same, and closed with it.
    pub journal: *const c_char,
    /// Bytes of files kept in memory for requests of any bytes; 0: 64 MiB, `UINT64_MAX`: none, so that every request
    /// goes to the device at once.
    pub page_budget: u64,
}

/// Space and inodes of a volume. Blocks are blocks of the volume.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_statfs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Not used, 0.
    pub reserved: u32,
    /// Blocks that data can have.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that data of files can have.
    pub available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

/// What direct I/O of a volume must obey, and what its device can do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_geometry {
    /// Positions and lengths of direct I/O are multiples of this many bytes.
    pub logical_block: u32,
    /// Addresses of direct I/O are multiples of this many bytes.
    pub memory_align: u32,
    /// Bytes of a block of the volume.
    pub block_size: u32,
    /// 1 if a write can be made durable by itself (FUA).
    pub fua: u8,
    /// 1 if the device has a volatile cache, so that durability takes a flush or FUA.
    pub volatile_cache: u8,
    /// 1 if the volume may be changed.
    pub writable: u8,
    /// Not used, 0.
    pub reserved: u8,
}

/// A counter of a volume.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_counter {
    /// Its name. Lives as long as the library.
    pub name: *const c_char,
    /// Since the volume was opened.
    pub value: u64,
}

/// The version of the library, such as `"0.1.0"`.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The options of a caller, of which there may be fewer than we know.
///
/// # Safety
/// `given` is NULL, or `size` bytes can be read there.
unsafe fn known_options(given: *const uext4_options) -> Result<uext4_options> {
    let mut known = uext4_options {
        size: size_of::<uext4_options>(),
        flags: 0,
        commit_interval_ms: 0,
        metadata_budget: 0,
        map_budget: 0,
        inode_budget: 0,
        switches: std::ptr::null(),
        name_budget: 0,
        journal: std::ptr::null(),
        page_budget: 0,
    };
    if given.is_null() {
        return Ok(known);
    }
    // SAFETY: not NULL; the size is the first field of every version.
    let size = unsafe { (&raw const (*given).size).read() };
    if size < size_of::<usize>() || size > size_of::<uext4_options>() {
        return Err(Fault::invalid(format!("options of {size} bytes: a program for another version")));
    }
    // SAFETY: `size` bytes can be read there, and the target has at least as many; all bytes of both are plain numbers.
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut known).cast::<u8>(), size) };
    known.size = size_of::<uext4_options>();
    Ok(known)
}

fn options_of(given: &uext4_options) -> Result<VolumeOptions> {
    if given.flags & !OPEN_FLAGS != 0 {
        return Err(Fault::invalid(format!("unknown flags {:#x}", given.flags & !OPEN_FLAGS)));
    }
    let has = |flag| given.flags & flag != 0;
    let mut options = match has(UEXT4_OPEN_WRITE) {
        true => VolumeOptions::read_write(),
        false => VolumeOptions::read_only(),
    };
    options = options
        .force(has(UEXT4_OPEN_FORCE))
        .background(has(UEXT4_OPEN_BACKGROUND))
        .reserved(has(UEXT4_OPEN_RESERVED))
        .discard(has(UEXT4_OPEN_DISCARD))
        .keep_set_id(has(UEXT4_OPEN_KEEP_SET_ID))
        .atime(match (has(UEXT4_OPEN_STRICT_ATIME), has(UEXT4_OPEN_RELATIME)) {
            (true, _) => Atime::Strict,
            (false, true) => Atime::Relatime,
            (false, false) => Atime::Off,
        });
    if given.commit_interval_ms > 0 {
        options = options.commit_interval(Duration::from_millis(u64::from(given.commit_interval_ms)));
    }
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    if given.metadata_budget > 0 {
        options = options.metadata_budget(given.metadata_budget);
    }
    if given.map_budget > 0 {
        options = options.map_budget(bytes(given.map_budget));
    }
    if given.inode_budget > 0 {
        options = options.inode_budget(bytes(given.inode_budget));
    }
    if given.page_budget > 0 {
        options = options.page_budget(if given.page_budget == u64::MAX { 0 } else { given.page_budget });
    }
    if given.name_budget > 0 {
        let kept = if given.name_budget == u64::MAX { 0 } else { bytes(given.name_budget) };
        options = options.name_budget(kept);
    }
    Ok(options)
}

/// Switches as text, such as `simple-read=off`.
///
/// # Safety
/// As of a string of C, or NULL.
pub(crate) unsafe fn switches_of(given: *const c_char) -> Result<Option<Switches>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { text(given) }?;
    let text = text.to_str().map_err(|_| Fault::invalid("switches that are not UTF-8"))?;
    text.parse().map(Some).map_err(|error| Fault::invalid(format!("{error}")))
}

/// Opens the volume on `device`, which is text in the device grammar (`disk.img`, `/dev/nvme0n1p3`,
/// `dax:/mnt/image?offset=1M`). Recovery happens here, if it is open for writing; otherwise in memory.
///
/// `options` may be NULL: for reading, with the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_open(
    device: *const c_char,
    options: *const uext4_options,
    volume: *mut *mut uext4_volume,
) -> i32 {
    call_int(|| {
        // SAFETY: the caller promises a string.
        let device = unsafe { path(device) }?;
        // SAFETY: the caller promises readable options, or NULL.
        let given = unsafe { known_options(options) }?;
        let mut options = options_of(&given)?;
        // SAFETY: the caller promises a string, or NULL.
        if let Some(switches) = unsafe { switches_of(given.switches) }? {
            options = options.switches(switches);
        }
        if !given.journal.is_null() {
            // SAFETY: not NULL, and the caller promises a string.
            let journal = unsafe { path(given.journal) }?;
            let spec = DeviceSpec::parse_bytes(journal.as_os_str().as_bytes());
            options = options.journal(spec.map_err(|error| Fault::from(uext4::Error::from(error)))?);
        }
        // SAFETY: the caller promises a place for a handle.
        unsafe { put(volume, std::ptr::null_mut()) }?;
        let about = |error| Fault::from(error).about(device.display());
        let spec =
            DeviceSpec::parse_bytes(device.as_os_str().as_bytes()).map_err(|error| about(error.into()))?;
        let handle = VOLUMES.insert(Volume::open_spec(&spec, options).map_err(about)?)?;
        // SAFETY: as above.
        unsafe { put(volume, handle) }?;
        Ok(0)
    })
}

/// Ends the handle. Makes all changes durable and brings them home, so that the next open needs no recovery. Files and
/// queues that are still open stay usable.
///
/// A failure says that the volume was aborted: what was acknowledged as durable is in its log, and the next open
/// recovers it. The handle is closed in any case.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_close(volume: *mut uext4_volume) -> i32 {
    call_int(|| {
        let named = VOLUMES.remove(volume)?;
        named.object.clone().close()?;
        Ok(0)
    })
}

/// Commits transactions that are old, and writes times that are. Call it about once a second, or open with
/// `UEXT4_OPEN_BACKGROUND`.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_tick(volume: *mut uext4_volume) -> i32 {
    call_int(|| {
        VOLUMES.get(volume)?.tick()?;
        Ok(0)
    })
}

/// Makes all durable that was done before the call: names, sizes, attributes, and data whose writes have completed, of
/// every file. As `syncfs`. It is the call that makes a `uext4_unlink` durable.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_sync(volume: *mut uext4_volume) -> i32 {
    call_int(|| {
        VOLUMES.get(volume)?.sync_all()?;
        Ok(0)
    })
}

/// How full the volume is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_statfs(volume: *mut uext4_volume, facts: *mut uext4_statfs) -> i32 {
    call_int(|| {
        let found = VOLUMES.get(volume)?.statfs()?;
        let found = uext4_statfs {
            block_size: found.block_size,
            reserved: 0,
            blocks: found.blocks,
            free: found.free,
            available: found.available,
            inodes: found.inodes,
            free_inodes: found.free_inodes,
        };
        // SAFETY: the caller promises a place for it.
        unsafe { put(facts, found) }?;
        Ok(0)
    })
}

/// What direct I/O must obey.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_geometry(volume: *mut uext4_volume, facts: *mut uext4_geometry) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        let (geometry, can) = (volume.device().geometry(), volume.device().capabilities());
        let found = uext4_geometry {
            logical_block: geometry.logical_block,
            memory_align: geometry.memory_align,
            block_size: volume.block_size(),
            fua: u8::from(can.fua),
            volatile_cache: u8::from(can.volatile_cache),
            writable: u8::from(volume.is_writable()),
            reserved: 0,
        };
        // SAFETY: the caller promises a place for it.
        unsafe { put(facts, found) }?;
        Ok(0)
    })
}

/// Tells the device which blocks of the `length` bytes from `pos` on are free, in runs of `minimum` bytes at least.
/// Returns how many bytes that were.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_trim(volume: *mut uext4_volume, pos: u64, length: u64, minimum: u64) -> i64 {
    call(|| {
        let trimmed = VOLUMES.get(volume)?.trim(pos..pos.saturating_add(length), minimum)?;
        Ok(i64::try_from(trimmed).unwrap_or(i64::MAX))
    })
}

/// Counters of routes and of the journal, `most` at the most. Returns how many there are. Queued requests are counted
/// when a call to their queue finds them complete.
///
/// `fast_commits`, `fast_commit_blocks`: of a volume with the feature `fast_commit`. `full_commits_…`: its syncs that
/// committed in full, since the area was full, a change has no records, no record describes the file, or the log was
/// not in use yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_stats(
    volume: *mut uext4_volume,
    counters: *mut uext4_counter,
    most: usize,
) -> i64 {
    call(|| {
        let volume = VOLUMES.get(volume)?;
        let (stats, commits) = (volume.stats(), fast_commits(&volume.commits()));
        let names = names_of(&stats);
        let values = stats.iter().map(|(_, value)| value).chain(commits.map(|(_, value)| value));
        for (index, (name, value)) in names.iter().zip(values).take(most).enumerate() {
            let name = name.as_ptr().cast();
            // SAFETY: the caller promises places for `most` of them.
            unsafe { put(counters.wrapping_add(index), uext4_counter { name, value }) }?;
        }
        Ok(names.len() as i64)
    })
}

/// What became of the syncs of a volume with the feature `fast_commit`.
fn fast_commits(commits: &Commits) -> [(&'static str, u64); 6] {
    [
        ("fast_commits", commits.fast),
        ("fast_commit_blocks", commits.fast_blocks),
        ("full_commits_area", commits.full_for_area),
        ("full_commits_undeclared", commits.full_for_undeclared),
        ("full_commits_file", commits.full_for_file),
        ("full_commits_unused", commits.full_for_unused),
    ]
}

/// Names of the counters as C has them: made once.
fn names_of(stats: &Stats) -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    let commits = fast_commits(&Commits::default());
    let all = stats.iter().map(|(name, _)| name).chain(commits.map(|(name, _)| name));
    NAMES.get_or_init(|| all.map(|name| format!("{name}\0")).collect())
}
