//! The text output of `uext4 info`.

use super::{DeviceReport, ErrorReport, JournalReport, MmpReport, Recovery, Report};
use crate::error::CliError;
use crate::out::Out;
use crate::text;
use std::fmt::Display;

type Done = Result<(), CliError>;

/// Prints everything.
pub fn print(out: &mut Out, report: &Report) -> Done {
    volume(out, report)?;
    journal(out, report.journal.as_ref())?;
    if let Some(mmp) = &report.mmp {
        mount_protection(out, mmp)?;
    }
    errors(out, report)?;
    device(out, &report.device)?;
    line(
        out,
        "gate fence",
        match report.fence {
            "membarrier" => "membarrier: requests use plain stores",
            _ => "swap: membarrier(2) is refused, so every request costs one more locked instruction",
        },
    )?;
    recovery(out, &report.recovery)?;
    for note in &report.notes {
        line(out, "note", note)?;
    }
    Ok(())
}

fn line(out: &mut Out, name: &str, value: impl Display) -> Done {
    writeln!(out, "{:<22} {value}", format!("{name}:"))
}

fn volume(out: &mut Out, report: &Report) -> Done {
    let label = report.label.as_deref().map_or_else(
        || format!("(base64) {}", report.label_b64.as_deref().unwrap_or_default()),
        |label| text::visible(label.as_bytes()),
    );
    line(out, "label", if label.is_empty() { "<none>" } else { &label })?;
    line(out, "uuid", &report.uuid)?;
    line(
        out,
        "last mounted on",
        if report.last_mounted.is_empty() { "<never>" } else { &report.last_mounted },
    )?;
    line(out, "features", report.features.join(" "))?;
    if !report.quota.is_empty() {
        line(out, "quota", report.quota.join(" "))?;
    }
    line(out, "state", if report.state.is_empty() { "not clean".into() } else { report.state.join(" ") })?;
    line(out, "on error", report.on_error)?;
    let bytes = report.blocks as f64 * f64::from(report.block_size);
    line(
        out,
        "size",
        format!("{} blocks of {} bytes ({})", report.blocks, report.block_size, text::human(bytes)),
    )?;
    if report.cluster_size != u64::from(report.block_size) {
        line(out, "cluster size", report.cluster_size)?;
    }
    line(out, "free", format!("{} blocks, {} reserved", report.free_blocks, report.reserved_blocks))?;
    line(
        out,
        "inodes",
        format!(
            "{} of {} bytes, {} free, first {}",
            report.inodes, report.inode_size, report.free_inodes, report.first_inode
        ),
    )?;
    line(
        out,
        "groups",
        format!(
            "{} of {} blocks and {} inodes, {} in a flex group, descriptors of {} bytes",
            report.groups,
            report.blocks_per_group,
            report.inodes_per_group,
            report.groups_per_flex,
            report.descriptor_size
        ),
    )?;
    let seed = report.checksum.seed.as_ref().map_or_else(String::new, |seed| format!(", seed {seed}"));
    line(out, "metadata checksum", format!("{}{seed}", report.checksum.kind))?;
    for (name, seconds) in [
        ("created", report.times.created),
        ("last mounted", report.times.mounted),
        ("last written", report.times.written),
        ("last checked", report.times.checked),
    ] {
        line(out, name, when(seconds))?;
    }
    line(out, "mounts since check", report.mount_count)?;
    line(out, "lifetime writes", text::human(report.kbytes_written as f64 * 1024.0))
}

fn when(seconds: u64) -> String {
    match i64::try_from(seconds) {
        Ok(0) | Err(_) => "never".into(),
        Ok(seconds) => text::time(seconds),
    }
}

fn journal(out: &mut Out, journal: Option<&JournalReport>) -> Done {
    let Some(journal) = journal else { return line(out, "journal", "none") };
    let place =
        if journal.external { "on another device".into() } else { format!("inode {}", journal.inode) };
    let Some(log) = &journal.log else {
        let damaged = if journal.damage.is_some() { ", damaged" } else { "" };
        return match &journal.wanted {
            Some(wanted) => line(out, "journal", format!("{place}, uuid {wanted}{damaged}")),
            None => line(out, "journal", format!("{place}{damaged}")),
        };
    };
    let size = text::human(log.bytes as f64);
    line(out, "journal", format!("{place}, {} blocks ({size}), uuid {}", log.blocks, log.uuid))?;
    line(
        out,
        "journal features",
        if log.features.is_empty() { "none".into() } else { log.features.join(" ") },
    )?;
    line(out, "journal state", format!("sequence {}, start {}, errno {}", log.sequence, log.start, log.errno))
}

fn mount_protection(out: &mut Out, mmp: &MmpReport) -> Done {
    let state = match mmp.state {
        "clean" => "not in use".into(),
        "fsck" => "a file system check is at work".into(),
        "in_use" => "in use".into(),
        _ => format!("unknown sequence number {:#x}", mmp.sequence),
    };
    line(
        out,
        "mount protection",
        format!(
            "{state}; last node {}, device {}, {}; block {}, refreshed every {} s",
            mmp.node,
            mmp.device,
            when(mmp.time),
            mmp.block,
            mmp.update_interval
        ),
    )
}

fn errors(out: &mut Out, report: &Report) -> Done {
    line(out, "errors recorded", report.errors.count)?;
    let mut one = |name: &str, error: &ErrorReport| {
        line(
            out,
            name,
            format!(
                "{} in {}:{}, inode {}, block {}, code {}",
                when(error.time),
                error.function,
                error.line,
                error.inode,
                error.block,
                error.code
            ),
        )
    };
    report.errors.first.as_ref().map_or(Ok(()), |error| one("first error", error))?;
    report.errors.last.as_ref().map_or(Ok(()), |error| one("last error", error))
}

fn device(out: &mut Out, device: &DeviceReport) -> Done {
    line(out, "device", format!("{} {}", device.engine, device.locator))?;
    if !device.layers.is_empty() {
        line(out, "device layers", device.layers.join("; "))?;
    }
    line(out, "device use", device.sharing.replace('_', " "))?;
    line(
        out,
        "device size",
        format!(
            "{} bytes, logical blocks of {} bytes, memory aligned to {} bytes",
            device.size, device.logical_block, device.memory_align
        ),
    )?;
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    line(
        out,
        "device abilities",
        format!(
            "volatile cache: {}; durable single writes (FUA): {}; requests that never wait (nowait): {}; discard: {}; \
             opened: {}",
            yes(device.volatile_cache),
            yes(device.fua),
            yes(device.nowait),
            yes(device.discard),
            if device.read_only { "read-only" } else { "for writing" }
        ),
    )?;
    let tags = device.tags.map_or(String::new(), |tags| format!(", {tags} at once"));
    let driving = match device.driving {
        "ring" => "by io_uring",
        "workers" => "by worker threads of io_uring",
        "inline" => "in the call that submits them",
        _ => "by the engine",
    };
    line(out, "queued requests", format!("run {driving}{tags}"))?;
    match device.dax {
        Some("map_sync") => line(out, "dax", "MAP_SYNC: durable by cache write-back and a fence")?,
        Some(_) => line(out, "dax", "no MAP_SYNC: durable by msync")?,
        None => {}
    }
    device.notes.iter().try_for_each(|note| line(out, "device note", note))
}

fn recovery(out: &mut Out, recovery: &Recovery) -> Done {
    line(out, "recovery", if recovery.needed { "needed" } else { "not needed" })?;
    if let Some(log) = &recovery.log {
        let place =
            if recovery.state == Some("overlay") { "in memory, device unchanged" } else { "on the device" };
        line(
            out,
            "journal replayed",
            format!(
                "{place}: {} transactions from {}, {} blocks ({} copies, {} revoked), {}",
                log.transactions, log.first_sequence, log.blocks, log.copies, log.revoked_copies, log.ended
            ),
        )?;
        match (&log.fast_commits_refused, log.fast_commits, log.fast_commit_records) {
            (Some(why), Some(commits), _) if log.fast_commits_replayed > 0 => {
                let done = log.fast_commits_replayed;
                line(out, "fast commits", format!("{done} of {commits} replayed, not the others: {why}"))?;
            }
            (Some(why), ..) => line(out, "fast commits", format!("not replayed: {why}"))?,
            (None, Some(commits @ 1..), Some(records)) => {
                line(out, "fast commits", format!("{commits} replayed, {records} records"))?;
            }
            _ => {}
        }
    }
    if recovery.last_orphan != 0 || recovery.orphan_file_in_use {
        line(out, "orphans", "there are inodes to delete or truncate: the next open for writing does it")?;
    }
    match &recovery.reason {
        Some(reason) => line(out, "not usable", reason),
        None => Ok(()),
    }
}
