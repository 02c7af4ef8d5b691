//! Selects the copy of each block: the latest one, unless the same or a later transaction revoked the block.

use super::reader::LogReader;
use super::scan::{Copy, Scan};
use super::{LogEnd, Recovery, Replay};
use crate::{Damage, Result};
use uext4_ondisk::CorruptKind;
use uext4_ondisk::jbd2::LogFormat;

/// A block with copies in the log.
#[derive(Debug)]
struct Home {
    block: u64,
    /// Copies of transactions before this one (counted from the first of the log) are revoked.
    revoked_before: u32,
}

/// The revokes of blocks that have copies.
#[derive(Debug)]
struct Revoked {
    homes: Vec<Home>,
    records: u64,
}

impl Revoked {
    /// Reads the revoke blocks of `scan`, whose copies are in the order of their homes.
    fn read(scan: &Scan, format: LogFormat, reader: &mut LogReader<'_>) -> Result<Revoked> {
        let homes = scan.copies.chunk_by(|one, other| one.home == other.home);
        let homes = homes.map(|copies| Home { block: copies[0].home, revoked_before: 0 }).collect();
        let mut revoked = Revoked { homes, records: 0 };
        for block in &scan.revoke_blocks {
            let contents = reader.block(block.log_block)?;
            // The scan has checked the count already.
            for number in format.revokes(contents)? {
                revoked.records += 1;
                if let Ok(index) = revoked.homes.binary_search_by_key(&number, |home| home.block) {
                    let before = &mut revoked.homes[index].revoked_before;
                    *before = (*before).max(block.transaction + 1);
                }
            }
        }
        Ok(revoked)
    }

    fn covers(&self, copy: &Copy) -> bool {
        let home = self.homes.binary_search_by_key(&copy.home, |home| home.block);
        home.is_ok_and(|index| copy.transaction < self.homes[index].revoked_before)
    }
}

/// Maximum cuts of one log, each of which examines the whole log.
const CUTS_MAX: u32 = 64;

/// Fills `recovery` from the results of the scan.
pub(super) fn select(mut scan: Scan, reader: &mut LogReader<'_>, recovery: &mut Recovery) -> Result<()> {
    let format = recovery.info.format();
    // Stable: the copies of one block stay in the order of the log.
    scan.copies.sort_by_key(|copy| copy.home);
    let mut revoked = Revoked::read(&scan, format, reader)?;
    let mut rounds = 0;
    loop {
        // A revoked copy is not used, so it may be bad, as long as the transaction that revokes it counts; but each cut
        // may remove that transaction. A log in which this repeats many times is malicious; it ends at the first bad
        // copy.
        let counted =
            scan.copies.iter().filter(|copy| copy.bad && (rounds > CUTS_MAX || !revoked.covers(copy)));
        let Some(bad) = counted.min_by_key(|copy| (copy.transaction, copy.log_block)).copied() else { break };
        rounds += 1;
        let first = recovery.report.first;
        let damage = Damage {
            tid: first.plus(bad.transaction),
            log_block: bad.log_block,
            block: reader.physical(bad.log_block)?,
            kind: CorruptKind::JournalDataChecksum,
        };
        cut(&mut scan, bad.transaction, damage, format.async_commit);
        revoked = Revoked::read(&scan, format, reader)?;
    }
    let report = &mut recovery.report;
    report.transactions = scan.transactions;
    report.end = report.first.plus(scan.transactions);
    report.copies = scan.copies.len() as u32;
    report.revokes = revoked.records;
    report.revoked = scan.copies.iter().filter(|copy| revoked.covers(copy)).count() as u32;
    report.ended = scan.end;
    for copies in scan.copies.chunk_by(|one, other| one.home == other.home) {
        if let Some(last) = copies.last().filter(|copy| !revoked.covers(copy)) {
            let copy = reader.physical(last.log_block)?;
            recovery.blocks.push(Replay { home: last.home, copy, escaped: last.escaped });
        }
    }
    report.blocks = recovery.blocks.len() as u32;
    Ok(())
}

/// Ends the log before the transaction with a bad copy.
fn cut(scan: &mut Scan, transaction: u32, damage: Damage, async_commit: bool) {
    let natural = matches!(scan.end, LogEnd::Complete | LogEnd::Full | LogEnd::Stale);
    let last = natural && transaction + 1 == scan.transactions;
    scan.end = if async_commit && last { LogEnd::Interrupted } else { LogEnd::Damaged(damage) };
    scan.transactions = transaction;
    scan.copies.retain(|copy| copy.transaction < transaction);
    scan.revoke_blocks.retain(|block| block.transaction < transaction);
}
