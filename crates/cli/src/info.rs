//! `uext4 info`: the volume, its device, and whether it needs recovery.

mod lines;

use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::{OpenHow, device};
use crate::out::Out;
use crate::text;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::borrow::Cow;
use std::ffi::OsString;
use uext4::device::{BufferPool, Capabilities, DaxKind, Device, Driving, Sharing};
use uext4::{DescriptorDamage, Error, Fence, Info, RecoveryInfo, RecoveryReport, Switches, Volume};
use uext4_ondisk::ext4::{
    ErrorRecord, MmpBlock, MmpOwner, OnError, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};

/// `uext4 info`.
#[derive(Args)]
pub struct InfoArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// How overwrites update times in this version.
pub const TIMES_NOTE: &str = "mtime/ctime of overwrites stay in memory until a sync or the close";

/// Everything, structured as the JSON.
#[derive(Serialize)]
pub struct Report {
    pub label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_b64: Option<String>,
    pub uuid: String,
    pub last_mounted: String,
    pub state: Vec<Cow<'static, str>>,
    pub on_error: &'static str,
    pub features: Vec<Cow<'static, str>>,
    /// Whose usage is counted.
    pub quota: Vec<&'static str>,
    pub block_size: u32,
    pub cluster_size: u64,
    pub blocks: u64,
    pub free_blocks: u64,
    pub reserved_blocks: u64,
    pub inodes: u32,
    pub free_inodes: u32,
    pub inode_size: u16,
    pub first_inode: u32,
    pub groups: u32,
    pub blocks_per_group: u32,
    pub inodes_per_group: u32,
    pub groups_per_flex: u32,
    pub descriptor_size: u16,
    /// None if no descriptor is damaged, or if the volume was not opened.
    pub damaged_descriptors: Option<DescriptorsReport>,
    pub checksum: Checksum,
    pub hash_seed: String,
    pub times: Times,
    pub mount_count: u16,
    pub kbytes_written: u64,
    pub journal: Option<JournalReport>,
    /// Absent without the feature `mmp`, or if its block cannot be read.
    pub mmp: Option<MmpReport>,
    pub errors: Errors,
    pub device: DeviceReport,
    /// How requests and the threads that drain them are ordered: `membarrier`, or `swap` if the kernel refuses it.
    pub fence: &'static str,
    pub recovery: Recovery,
    pub notes: Vec<String>,
}

/// Damage of group descriptors.
#[derive(Serialize)]
pub struct DescriptorsReport {
    /// Number of groups with damaged descriptors.
    pub groups: u32,
    /// Those whose descriptors point to impossible places: their inodes cannot be read.
    pub impossible: u32,
    /// Fault and place of the first one, with its group and block.
    pub first: String,
    pub first_group: Option<u32>,
    pub first_block: Option<u64>,
}

/// Metadata checksums.
#[derive(Serialize)]
pub struct Checksum {
    /// `crc32c`, `crc16` (group descriptors only) or `none`.
    pub kind: &'static str,
    pub seed: Option<String>,
}

/// Seconds since 1970; 0 = never.
#[derive(Serialize)]
pub struct Times {
    #[serde(serialize_with = "text::seconds")]
    pub created: u64,
    #[serde(serialize_with = "text::seconds")]
    pub mounted: u64,
    #[serde(serialize_with = "text::seconds")]
    pub written: u64,
    #[serde(serialize_with = "text::seconds")]
    pub checked: u64,
}

/// The journal.
#[derive(Serialize)]
pub struct JournalReport {
    /// Its inode; 0 for a journal on another device.
    pub inode: u32,
    pub external: bool,
    /// The UUID by which the volume finds a journal on another device.
    #[serde(rename = "external_uuid", skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// Why it cannot be used, if the volume is readable without it.
    pub damage: Option<String>,
    /// Known only if the volume could be opened.
    #[serde(flatten)]
    pub log: Option<Log>,
}

/// The superblock of the log.
#[derive(Serialize)]
pub struct Log {
    pub uuid: String,
    pub blocks: u32,
    pub bytes: u64,
    pub sequence: u32,
    pub start: u32,
    pub errno: i32,
    #[serde(rename = "journal_features")]
    pub features: Vec<Cow<'static, str>>,
}

/// Multi-mount protection: the other user of the volume.
#[derive(Serialize)]
pub struct MmpReport {
    /// `clean`, `fsck`, `in_use`, or `unknown` for an invalid sequence number.
    pub state: &'static str,
    pub block: u64,
    pub sequence: u32,
    /// Host that last refreshed the block, and the device's name there.
    pub node: String,
    pub device: String,
    /// Time of that refresh, in seconds since 1970.
    #[serde(serialize_with = "text::seconds")]
    pub time: u64,
    /// Seconds between refreshes, and seconds after which the owner is considered dead.
    pub update_interval: u16,
    pub check_interval: u16,
}

/// Errors recorded since the last check.
#[derive(Serialize)]
pub struct Errors {
    pub count: u32,
    pub first: Option<ErrorReport>,
    pub last: Option<ErrorReport>,
}

/// One recorded error.
#[derive(Serialize)]
pub struct ErrorReport {
    #[serde(serialize_with = "text::seconds")]
    pub time: u64,
    pub function: String,
    pub line: u32,
    pub inode: u32,
    pub block: u64,
    pub code: u8,
}

/// The device.
#[derive(Serialize)]
pub struct DeviceReport {
    pub engine: &'static str,
    pub locator: String,
    pub layers: Vec<String>,
    pub sharing: &'static str,
    pub size: u64,
    pub logical_block: u32,
    pub memory_align: u32,
    pub read_only: bool,
    pub volatile_cache: bool,
    pub fua: bool,
    pub durable_without_flush: bool,
    pub nowait: bool,
    /// What carries out queued requests: `ring`, `workers` of the ring, `inline` (the submitting call), `engine`.
    pub driving: &'static str,
    /// Requests that the device takes at once; absent if unknown.
    pub tags: Option<u32>,
    pub discard: bool,
    /// `map_sync` or `msync`; absent for devices that are not mapped.
    pub dax: Option<&'static str>,
    pub notes: Vec<String>,
}

/// Whether the volume needs recovery before use.
#[derive(Serialize)]
pub struct Recovery {
    /// The journal contains transactions not yet checkpointed.
    pub needed: bool,
    /// Whether this version can open the volume.
    pub usable: bool,
    /// Why not.
    pub reason: Option<String>,
    /// First inode of the orphan list, 0 = none.
    pub last_orphan: u32,
    /// The orphan file may contain orphans.
    pub orphan_file_in_use: bool,
    /// How the state shown was reached: `clean`, `overlay` (the journal is replayed in memory, the device is
    /// unchanged), `empty_log`, `no_journal`, `ignored`; none if the volume was not opened.
    pub state: Option<&'static str>,
    /// Contents of the log.
    pub log: Option<Replayed>,
}

/// Contents of a log that is not empty.
#[derive(Serialize)]
pub struct Replayed {
    pub first_sequence: u32,
    /// The sequence number after the last good transaction.
    pub end_sequence: u32,
    pub transactions: u32,
    pub blocks: u32,
    pub copies: u32,
    pub revokes: u64,
    pub revoked_copies: u32,
    /// Why the log ended there.
    pub ended: String,
    pub damaged: bool,
    /// Complete fast commits and their records; none if the log has no fast commit area.
    pub fast_commits: Option<u32>,
    pub fast_commit_records: Option<u32>,
    /// Number of them that were replayed.
    pub fast_commits_replayed: u32,
    /// Why the others were not: the state shown lacks them.
    pub fast_commits_refused: Option<String>,
}

/// Runs it.
pub fn run(args: &InfoArgs, globals: &Globals) -> Result<(), CliError> {
    let spec = device(&args.device)?;
    let how = OpenHow::reading(globals, args.common.force, Switches::ON);
    let at = |error: Error| CliError::at(&args.device, error);
    let device = how.open_device(&spec).map_err(at)?;
    let (volume, refusal) = match how.open_on(device.clone()) {
        Ok(volume) => (Some(volume), None),
        // We hold the device, so multi-mount protection refused. A read-only look may override it.
        Err(error @ Error::InUse(_)) => {
            (OpenHow { force: true, ..how }.open_on(device.clone()).ok(), Some(error))
        }
        Err(error) => (None, Some(error)),
    };
    // If the volume cannot be opened, show its superblock and the reason.
    let superblock = volume.as_ref().map(|volume| volume.superblock().clone());
    let Some(superblock) = superblock.or_else(|| read_superblock(&*device)) else {
        return refusal.map_or(Ok(()), |error| Err(at(error)));
    };
    let info = volume.map(|volume| volume.info());
    let report = report(&superblock, info.as_ref(), refusal, &*device);
    let mut out = Out::new();
    if globals.json {
        out.json(&report)?;
    } else {
        lines::print(&mut out, &report)?;
    }
    out.finish()
}

fn read_superblock(device: &dyn Device) -> Option<Superblock> {
    let start = SUPERBLOCK_OFFSET as usize;
    let end = start + SUPERBLOCK_SIZE as usize;
    let length = end.next_multiple_of(device.geometry().logical_block as usize);
    let mut buffer = BufferPool::new(length).and_then(|pool| pool.take(length)).ok()?;
    device.read_at(&mut buffer, 0).ok()?;
    Superblock::decode(buffer.get(start..end)?).ok()
}

fn report(
    superblock: &Superblock,
    info: Option<&Info>,
    refusal: Option<Error>,
    device: &dyn Device,
) -> Report {
    let geometry = &superblock.geometry;
    let (label, label_b64) = text::utf8_or_base64(superblock.label());
    Report {
        label: label.map(str::to_owned),
        label_b64,
        uuid: text::uuid(&superblock.uuid),
        last_mounted: text::visible(superblock.last_mount_point()),
        state: superblock.state.names(),
        on_error: on_error(superblock),
        features: superblock.features.names(),
        quota: quota(superblock),
        block_size: geometry.block_size(),
        cluster_size: u64::from(geometry.block_size()) * u64::from(geometry.cluster_blocks()),
        blocks: geometry.blocks_count(),
        free_blocks: superblock.free_blocks,
        reserved_blocks: superblock.reserved_blocks,
        inodes: geometry.inodes_count(),
        free_inodes: superblock.free_inodes,
        inode_size: geometry.inode_size(),
        first_inode: geometry.first_inode().get(),
        groups: geometry.group_count(),
        blocks_per_group: geometry.blocks_per_group(),
        inodes_per_group: geometry.inodes_per_group(),
        groups_per_flex: superblock.groups_per_flex(),
        descriptor_size: geometry.desc_size(),
        damaged_descriptors: info.and_then(|info| info.descriptors).map(descriptors),
        checksum: checksum(superblock),
        hash_seed: superblock.hash.seed.map(|word| format!("{:08x}", word.swap_bytes())).concat(),
        times: Times {
            created: superblock.times.created,
            mounted: superblock.times.mounted,
            written: superblock.times.written,
            checked: superblock.times.checked,
        },
        mount_count: superblock.mount_count,
        kbytes_written: superblock.kbytes_written,
        journal: journal(superblock, info),
        mmp: info
            .map_or_else(|| Volume::read_mmp(device, superblock).ok().flatten(), |info| info.mmp)
            .map(|mmp| mmp_report(&mmp, superblock)),
        errors: errors(superblock),
        device: device_report(device),
        fence: match Fence::active() {
            Fence::Membarrier => "membarrier",
            Fence::Swap => "swap",
        },
        recovery: recovery(superblock, info, refusal),
        notes: notes(info),
    }
}

fn descriptors(damage: DescriptorDamage) -> DescriptorsReport {
    let place = damage.first.place;
    DescriptorsReport {
        groups: damage.groups,
        impossible: damage.impossible,
        first: damage.first.to_string(),
        first_group: place.group.map(|group| group.get()),
        first_block: place.block.map(|block| block.get()),
    }
}

fn notes(info: Option<&Info>) -> Vec<String> {
    let mut notes = vec![TIMES_NOTE.to_owned()];
    // The library has its own version of the first note.
    let known = |note: &&String| !(note.contains("mtime") && note.contains("ctime"));
    notes.extend(info.into_iter().flat_map(|info| &info.notes).filter(known).cloned());
    notes
}

fn on_error(superblock: &Superblock) -> &'static str {
    match superblock.on_error() {
        Some(OnError::Continue) => "continue",
        Some(OnError::ReadOnly) => "remount-ro",
        Some(OnError::Panic) => "panic",
        None => "unknown",
    }
}

/// The kinds of quota that the volume keeps.
fn quota(superblock: &Superblock) -> Vec<&'static str> {
    superblock.quota_files().map(|(kind, _)| kind.name()).collect()
}

fn checksum(superblock: &Superblock) -> Checksum {
    if superblock.features.metadata_csum() {
        Checksum { kind: "crc32c", seed: Some(format!("{:#010x}", superblock.checksum_seed())) }
    } else if superblock.features.gdt_csum() {
        Checksum { kind: "crc16", seed: None }
    } else {
        Checksum { kind: "none", seed: None }
    }
}

fn journal(superblock: &Superblock, info: Option<&Info>) -> Option<JournalReport> {
    let external = superblock.has_external_journal();
    let inode = superblock.journal_inode().map_or(0, |ino| ino.get());
    if inode == 0 && !external {
        return None;
    }
    let log = info.and_then(|info| info.journal.as_ref()).map(|journal| {
        let log = &journal.superblock;
        Log {
            uuid: text::uuid(&log.uuid),
            blocks: log.blocks,
            bytes: u64::from(log.blocks) * u64::from(log.block_size),
            sequence: log.sequence,
            start: log.start,
            errno: log.errno,
            features: log.features.names(),
        }
    });
    let damage = info.and_then(|info| info.recovery.journal_damage.clone());
    let wanted = external.then(|| text::uuid(&superblock.journal.uuid));
    Some(JournalReport { inode, external, wanted, damage, log })
}

fn mmp_report(mmp: &MmpBlock, superblock: &Superblock) -> MmpReport {
    let name = |bytes: &[u8]| text::visible(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
    MmpReport {
        state: match mmp.owner() {
            MmpOwner::Nobody => "clean",
            MmpOwner::Checker => "fsck",
            MmpOwner::Mounted(_) => "in_use",
            MmpOwner::Unknown(_) => "unknown",
        },
        block: superblock.mmp.block.get(),
        sequence: mmp.sequence,
        node: name(&mmp.node_name),
        device: name(&mmp.device_name),
        time: mmp.time,
        update_interval: superblock.mmp.interval,
        check_interval: mmp.check_interval,
    }
}

fn errors(superblock: &Superblock) -> Errors {
    let one = |record: &ErrorRecord| {
        (record.time != 0).then(|| ErrorReport {
            time: record.time,
            function: text::visible(record.function.split(|byte| *byte == 0).next().unwrap_or_default()),
            line: record.line,
            inode: record.inode,
            block: record.block,
            code: record.code,
        })
    };
    let log = &superblock.errors;
    Errors { count: log.count, first: one(&log.first), last: one(&log.last) }
}

fn device_report(device: &dyn Device) -> DeviceReport {
    let (description, geometry, capabilities) = (device.describe(), device.geometry(), device.capabilities());
    DeviceReport {
        engine: description.engine,
        locator: text::visible(description.locator.as_bytes()),
        layers: description.layers,
        sharing: match description.sharing {
            Sharing::Exclusive => "exclusive",
            Sharing::SharedRead => "shared_read",
            Sharing::Forced => "forced",
            Sharing::Private => "private",
            Sharing::Unlocked => "unlocked",
        },
        size: geometry.size,
        logical_block: geometry.logical_block,
        memory_align: geometry.memory_align,
        read_only: capabilities.read_only,
        volatile_cache: capabilities.volatile_cache,
        fua: capabilities.fua,
        durable_without_flush: capabilities.durable_without_flush(),
        nowait: capabilities.nowait,
        driving: match description.driving {
            Driving::Ring => "ring",
            Driving::Workers => "workers",
            Driving::Inline => "inline",
            Driving::Engine => "engine",
        },
        tags: description.tags,
        discard: capabilities.discard,
        dax: dax(&capabilities),
        notes: description.notes,
    }
}

fn dax(capabilities: &Capabilities) -> Option<&'static str> {
    capabilities.dax.map(|kind| match kind {
        DaxKind::MapSync => "map_sync",
        DaxKind::Msync => "msync",
    })
}

fn recovery(superblock: &Superblock, info: Option<&Info>, refusal: Option<Error>) -> Recovery {
    let recovered = info.map(|info| &info.recovery);
    Recovery {
        needed: superblock.needs_recovery()
            || recovered.is_some_and(|recovered| recovered.needed)
            || matches!(refusal, Some(Error::NeedsRecovery(_))),
        usable: refusal.is_none(),
        reason: refusal.map(|error| error.to_string()),
        last_orphan: superblock.last_orphan,
        orphan_file_in_use: superblock
            .features
            .ro_compat
            .contains(uext4_ondisk::ext4::RoCompat::ORPHAN_PRESENT),
        state: recovered.map(|recovered| recovered.state.name()),
        log: recovered.and_then(|recovered| Some(replayed(recovered, recovered.log.as_ref()?))),
    }
}

fn replayed(recovered: &RecoveryInfo, log: &RecoveryReport) -> Replayed {
    Replayed {
        first_sequence: log.first.sequence(),
        end_sequence: log.end.sequence(),
        transactions: log.transactions,
        blocks: log.blocks,
        copies: log.copies,
        revokes: log.revokes,
        revoked_copies: log.revoked,
        ended: log.ended.to_string(),
        damaged: log.ended.damage().is_some(),
        fast_commits: log.fast_commits.map(|found| found.commits),
        fast_commit_records: log.fast_commits.map(|found| found.records),
        fast_commits_replayed: recovered.fast_commits().map_or(0, |done| done.commits),
        fast_commits_refused: recovered.fast_commits_refused.clone(),
    }
}
