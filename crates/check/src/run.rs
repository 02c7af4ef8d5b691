//! Runs a check: the order of the passes.

use crate::options::CheckOptions;
use crate::progress::{Pass, Progress, ProgressFn};
use crate::report::{Counts, Findings, Report};
use crate::scan::{DirBlockRef, Directory, InlineDirectory};
use crate::shared::Shared;
use crate::{
    badblocks, bitmaps, dir, duplicates, groups, htree, inode, journal, kinds, orphans, sealed, tree,
    workers, xattr,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4::device::Device;
use uext4::{Error, RecoveryState, Result, Volume, VolumeOptions};
use uext4_ondisk::ext4::{Compat, RoCompat, State, Superblock};
use uext4_ondisk::{Group, Place};

/// Checks a whole open volume. Reads the device past the volume's cache; writes nothing. If the volume is written
/// meanwhile, the findings are meaningless.
///
/// # Errors
/// The device's, when it cannot be read. Damage is not an error but a finding.
pub fn check(volume: &Volume, options: &CheckOptions, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
    examine(&**volume.device(), volume.superblock(), Ok(volume), options, progress)
}

/// Checks the volume on a device, even if it is too damaged to be opened. `volume` says how to open it: read-only, or
/// its log is replayed onto the device before the check.
///
/// # Errors
/// What [`Volume::open_device`] refuses for other reasons than damage (an unknown feature, a journal that needs
/// recovery, a device that is too small), and the device's errors.
pub fn check_device(
    device: Arc<dyn Device>,
    volume: VolumeOptions,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let error = match Volume::open_device(device.clone(), volume) {
        Ok(volume) => return check(&volume, options, progress),
        Err(error @ (Error::Corrupt(_) | Error::CorruptInode { .. } | Error::Journal(_))) => error,
        Err(other) => return Err(other),
    };
    match Volume::read_superblock(&*device) {
        Ok(superblock) => examine(&*device, &superblock, Err(&error), options, progress),
        Err(Error::Corrupt(fault)) => {
            let mut findings = Findings::new(options.per_kind);
            findings.corrupt(&kinds::SUPER_UNREADABLE, Place::default(), &fault);
            findings.not_examined("the volume", "its superblock is damaged");
            Ok(findings.into_report())
        }
        Err(other) => Err(other),
    }
}

fn examine(
    device: &dyn Device,
    sb: &Superblock,
    volume: std::result::Result<&Volume, &Error>,
    options: &CheckOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<Report> {
    let opened = volume.map(Volume::recovery);
    let mut findings = Findings::new(options.per_kind);
    let mut notes = journal::check_log(sb, opened, &mut findings);
    if !groups::fits(sb, &mut findings) {
        findings.not_examined("the volume", "its superblock describes an impossible layout");
        return Ok(Report { notes, ..findings.into_report() });
    }
    let mut shared = Shared::new(device, sb, options.per_kind, options.threads);
    shared.recovered = opened.is_ok_and(|info| info.state != RecoveryState::Clean);
    groups::check_superblock(&shared, &mut findings);
    groups::load(&mut shared, &mut findings)?;
    groups::check_mmp(&shared, &mut findings)?;
    groups::check_backups(&shared, &mut findings)?;
    badblocks::collect(&shared)?;
    orphans::collect(&mut shared, &mut findings)?;
    let mut counts = Counts::default();
    let mut found = pass_inodes(&shared, &mut findings, &mut counts, progress)?;
    journal::check_use(sb, opened, &mut findings);
    let lost = pass_directories(&shared, &mut found, &mut findings, &mut counts, progress)?;
    notes.extend(tree::check_links(&shared, &found.directories, &lost, &mut findings));
    pass_bitmaps(&shared, &mut findings, &mut counts, progress)?;
    pass_contents(volume, &found.sealed, options, &mut findings)?;
    if sb.features.ro_compat.contains(RoCompat::QUOTA) {
        findings.not_examined("quota usage", "the contents of quota files are not decoded");
    }
    notes.extend(state_notes(sb));
    if shared.maps_incomplete.load(Ordering::Relaxed) {
        let text =
            "damaged maps were followed in part: blocks that they claim behind the damage are not counted";
        notes.push(text.into());
    }
    if shared.groups.iter().any(Option::is_none) {
        let text = "groups have impossible descriptors: what their inodes name, own or hold is not counted";
        notes.push(text.into());
    }
    Ok(Report { notes, counts, ..findings.into_report() })
}

/// Whether the volume's total counts may be outdated: only a clean unmount updates them, not the journal. e2fsck then
/// silently takes them from the groups.
fn totals_may_lag(sb: &Superblock) -> bool {
    sb.needs_recovery() || !sb.state.contains(State::CLEAN)
}

/// Notes on the volume's history, and on features unknown here, from the superblock.
fn state_notes(sb: &Superblock) -> Vec<String> {
    let mut notes = Vec::new();
    let features = &sb.features;
    // Some features have a name but were never implemented.
    let compat = features.compat.unknown() | (features.compat & (Compat::LAZY_BG | Compat::EXCLUDE_BITMAP));
    let ro_compat = features.ro_compat.unknown() | (features.ro_compat & RoCompat::REPLICA);
    let unknown = [compat.names(), ro_compat.names()].concat();
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        notes.push(format!(
            "features that this version does not know, and what they ask for is not examined: {names}"
        ));
    }
    if sb.journal.inode != 0 && sb.journal.uuid != [0; 16] {
        notes.push("the superblock names a journal on another device beside the volume's own".into());
    }
    if !sb.state.contains(State::CLEAN) {
        notes.push("the superblock does not say that the volume was cleanly unmounted".into());
    }
    if sb.state.contains(State::ERRORS) || sb.errors.count > 0 {
        notes.push(format!("the superblock remembers {} errors since the last check", sb.errors.count));
    }
    notes
}

/// Results of pass 1 for pass 2.
#[derive(Default)]
struct Found {
    directories: Vec<Directory>,
    dir_blocks: Vec<DirBlockRef>,
    inline: Vec<InlineDirectory>,
    /// Files that fs-verity seals.
    sealed: Vec<u32>,
}

/// Pass 1: all inodes, then attribute blocks, then owners of what is claimed twice.
fn pass_inodes(
    shared: &Shared<'_>,
    findings: &mut Findings,
    counts: &mut Counts,
    progress: &mut ProgressFn<'_>,
) -> Result<Found> {
    let mut found = Found::default();
    let (mut xattr_blocks, mut value_inodes, mut policies) = (Vec::new(), Vec::new(), Vec::new());
    let mut counted = Vec::new();
    let make = || inode::Scanner::new(shared);
    let units = u64::from(shared.sb.geometry.group_count());
    let work = |scanner: &mut inode::Scanner<'_, '_>, unit: u64| scanner.group(Group(unit as u32));
    for worker in workers::run(shared.threads, units, Pass::Inodes, progress, make, work)? {
        let scan = worker.scan;
        findings.merge(scan.findings);
        counts.add(&scan.counts);
        found.directories.extend(scan.directories);
        found.dir_blocks.extend(scan.dir_blocks);
        found.inline.extend(scan.inline_directories);
        xattr_blocks.extend(scan.xattr_blocks);
        value_inodes.extend(scan.value_inodes);
        counted.extend(scan.counted);
        policies.extend(scan.policies);
        found.sealed.extend(scan.sealed);
    }
    found.directories.sort_unstable_by_key(|directory| directory.ino);
    found.dir_blocks.sort_unstable();
    policies.sort_unstable();
    found.sealed.sort_unstable();
    shared.policies.get_or_init(|| policies);
    found.inline.sort_unstable_by_key(|directory| directory.ino);
    inode::check_large_files(shared, findings);
    xattr_blocks.sort_unstable();
    let mut uncounted = xattr::Uncounted::default();
    xattr::check_blocks(shared, &xattr_blocks, &mut value_inodes, &mut uncounted, findings)?;
    xattr::check_value_inodes(shared, &mut value_inodes, &mut uncounted, findings)?;
    xattr::check_value_references(shared, &uncounted, findings)?;
    xattr::check_counted(shared, &counted, &uncounted, findings);
    duplicates::find_owners(shared, &xattr_blocks, findings)?;
    Ok(found)
}

/// Passes 2 and 3. Returns the unconnected directories.
fn pass_directories(
    shared: &Shared<'_>,
    found: &mut Found,
    findings: &mut Findings,
    counts: &mut Counts,
    progress: &mut ProgressFn<'_>,
) -> Result<std::collections::HashSet<u32>> {
    let units: Vec<&[DirBlockRef]> = found.dir_blocks.chunks(dir::UNIT).collect();
    let make = || dir::DirScanner::new(shared, &found.directories);
    let work = |scanner: &mut dir::DirScanner<'_, '_>, unit: u64| scanner.blocks(units[unit as usize]);
    let (mut parents, mut children) = (Vec::new(), Vec::new());
    let (mut leaves, mut nodes) = (Vec::new(), Vec::new());
    let mut workers =
        workers::run(shared.threads, units.len() as u64, Pass::Directories, progress, make, work)?;
    if let Some(first) = workers.first_mut() {
        found.inline.iter().for_each(|directory| first.scan.inline(directory));
    }
    for worker in workers {
        let scan = worker.scan;
        findings.merge(scan.findings);
        counts.add(&scan.counts);
        parents.extend(scan.parents);
        children.extend(scan.children);
        leaves.extend(scan.leaves);
        nodes.extend(scan.nodes);
    }
    htree::check(&found.directories, &mut leaves, &mut nodes, findings);
    // A directory inside its inode is one like all others from here on.
    found.directories.extend(found.inline.iter().map(Directory::inline));
    found.directories.sort_unstable_by_key(|directory| directory.ino);
    Ok(tree::check_connections(&found.directories, &mut parents, &mut children, findings))
}

/// The contents of sealed files, on request.
fn pass_contents(
    volume: std::result::Result<&Volume, &Error>,
    sealed: &[u32],
    options: &CheckOptions,
    findings: &mut Findings,
) -> Result<()> {
    let why = match volume {
        _ if sealed.is_empty() => return Ok(()),
        _ if !options.contents => "only on request",
        Err(_) => "the volume cannot be opened",
        Ok(volume) => return sealed::check_contents(volume, sealed, findings),
    };
    sealed.iter().for_each(|_| findings.not_examined("contents of sealed files", why));
    Ok(())
}

fn pass_bitmaps(
    shared: &Shared<'_>,
    findings: &mut Findings,
    counts: &mut Counts,
    progress: &mut ProgressFn<'_>,
) -> Result<()> {
    let make = || bitmaps::GroupScanner::new(shared);
    let units = u64::from(shared.sb.geometry.group_count());
    let work = |scanner: &mut bitmaps::GroupScanner<'_, '_>, unit: u64| scanner.group(Group(unit as u32));
    let (mut clusters, mut inodes) = (0, 0);
    for worker in workers::run(shared.threads, units, Pass::Bitmaps, progress, make, work)? {
        findings.merge(worker.findings);
        counts.blocks += worker.used_clusters << shared.sb.geometry.cluster_log();
        clusters += worker.free_clusters;
        inodes += worker.free_inodes;
    }
    if !shared.recovered && !totals_may_lag(shared.sb) {
        bitmaps::check_totals(shared, clusters, inodes, findings);
    }
    Ok(())
}
