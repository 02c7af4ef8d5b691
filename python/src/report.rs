//! Facts, counters and checks, as dictionaries that `package/uext4/_facts.py` makes dataclasses of.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::format::Superblock;
use uext4::{Commits, Info, StatFs, Stats};
use uext4_check::{CheckOptions, Finding, Report};
use uuid::Uuid;

/// A UUID as text.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    Uuid::from_bytes(*bytes).hyphenated().to_string()
}

/// The fields of `uext4.Info`.
pub(crate) fn info<'py>(
    py: Python<'py>,
    info: &Info,
    superblock: &Superblock,
) -> PyResult<Bound<'py, PyDict>> {
    let (geometry, dict) = (&superblock.geometry, PyDict::new(py));
    dict.set_item("label", OsStr::from_bytes(superblock.label()))?;
    dict.set_item("uuid", uuid(&superblock.uuid))?;
    dict.set_item("block_size", geometry.block_size())?;
    dict.set_item("blocks", geometry.blocks_count())?;
    dict.set_item("inodes", geometry.inodes_count())?;
    dict.set_item("inode_size", geometry.inode_size())?;
    dict.set_item("groups", info.groups)?;
    dict.set_item("features", &info.features)?;
    dict.set_item("read_only", info.read_only)?;
    let journal = info.journal.as_ref().map(|journal| journal.superblock.blocks);
    dict.set_item("journal_blocks", journal)?;
    dict.set_item("recovery", info.recovery.state.name())?;
    dict.set_item("loss", info.recovery.loss())?;
    dict.set_item("damaged_descriptors", info.descriptors.map(|damage| damage.to_string()))?;
    dict.set_item("engine", info.device.engine)?;
    dict.set_item("device", &info.device.locator)?;
    dict.set_item("layers", &info.device.layers)?;
    dict.set_item("device_size", info.geometry.size)?;
    dict.set_item("logical_block", info.geometry.logical_block)?;
    dict.set_item("memory_align", info.geometry.memory_align)?;
    dict.set_item("volatile_cache", info.capabilities.volatile_cache)?;
    dict.set_item("fua", info.capabilities.fua)?;
    let notes: Vec<&String> = info.notes.iter().chain(&info.device.notes).collect();
    dict.set_item("notes", notes)?;
    Ok(dict)
}

/// The fields of `uext4.StatFs`.
pub(crate) fn statfs<'py>(py: Python<'py>, facts: &StatFs) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("block_size", facts.block_size)?;
    dict.set_item("blocks", facts.blocks)?;
    dict.set_item("overhead", facts.overhead)?;
    dict.set_item("free", facts.free)?;
    dict.set_item("available", facts.available)?;
    dict.set_item("inodes", facts.inodes)?;
    dict.set_item("free_inodes", facts.free_inodes)?;
    Ok(dict)
}

/// The fields of `uext4.Stats`, by the names of the counters.
pub(crate) fn stats<'py>(py: Python<'py>, stats: &Stats, commits: &Commits) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in stats.iter() {
        dict.set_item(name, value)?;
    }
    dict.set_item("fast_commits", commits.fast)?;
    dict.set_item("fast_commit_blocks", commits.fast_blocks)?;
    dict.set_item("full_commits_area", commits.full_for_area)?;
    dict.set_item("full_commits_undeclared", commits.full_for_undeclared)?;
    dict.set_item("full_commits_file", commits.full_for_file)?;
    dict.set_item("full_commits_unused", commits.full_for_unused)?;
    Ok(dict)
}

/// How a check is done.
pub(crate) fn check_options(threads: Option<u32>, per_kind: usize) -> CheckOptions {
    let options = CheckOptions::new().per_kind(per_kind);
    match threads {
        Some(threads) => options.threads(threads),
        None => options,
    }
}

/// The fields of `uext4.CheckReport`.
pub(crate) fn checked<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let findings: Vec<_> = report.findings.iter().map(|found| finding(py, found)).collect::<PyResult<_>>()?;
    let missed: Vec<_> =
        report.not_examined.iter().map(|missed| (missed.what, missed.reason, missed.count)).collect();
    let (counts, totals) = (&report.counts, PyDict::new(py));
    for (code, total) in &report.totals {
        totals.set_item(code, total)?;
    }
    let numbers = PyDict::new(py);
    numbers.set_item("inodes", counts.inodes)?;
    numbers.set_item("directories", counts.directories)?;
    numbers.set_item("files", counts.files)?;
    numbers.set_item("symlinks", counts.symlinks)?;
    numbers.set_item("special", counts.special)?;
    numbers.set_item("entries", counts.entries)?;
    numbers.set_item("blocks", counts.blocks)?;
    let dict = PyDict::new(py);
    dict.set_item("clean", report.is_clean())?;
    dict.set_item("findings", findings)?;
    dict.set_item("totals", totals)?;
    dict.set_item("notes", &report.notes)?;
    dict.set_item("not_examined", missed)?;
    dict.set_item("counts", numbers)?;
    Ok(dict)
}

fn finding<'py>(py: Python<'py>, finding: &Finding) -> PyResult<Bound<'py, PyDict>> {
    let (place, dict) = (&finding.place, PyDict::new(py));
    dict.set_item("code", finding.kind.code)?;
    dict.set_item("severity", finding.kind.severity.name())?;
    dict.set_item("text", &finding.text)?;
    dict.set_item("group", place.group.map(|group| group.get()))?;
    dict.set_item("inode", place.inode.map(|inode| inode.get()))?;
    dict.set_item("logical_block", place.lblk.map(|block| block.get()))?;
    dict.set_item("block", place.block.map(|block| block.get()))?;
    Ok(dict)
}
