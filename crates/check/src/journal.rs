//! The journal's log: whether the checked state is the last one committed.
//!
//! A sound log is replayed before the check begins. Committed changes that cannot be replayed are damage, even if the
//! older state is consistent. `e2fsck -fn` does not read the log; without `-n` it reports the same.

use crate::kinds;
use crate::report::Findings;
use uext4::{Error, RecoveryInfo, RecoveryState};
use uext4_ondisk::ext4::{Compat, Superblock};
use uext4_ondisk::{Pblk, Place};

/// Reports how the log was replayed when the volume was opened, or why it could not be opened. Returns notes.
pub(crate) fn check_log(
    sb: &Superblock,
    opened: Result<&RecoveryInfo, &Error>,
    findings: &mut Findings,
) -> Vec<String> {
    let info = match opened {
        Ok(info) => info,
        Err(error) => {
            if sb.needs_recovery() {
                let place = Place { block: error.block().map(Pblk), ..Place::default() };
                let text = format_args!(
                    "not replayed, as the volume cannot be opened: its latest changes may be missing: {error}"
                );
                findings.add(&kinds::JOURNAL_LOG, place, text);
            }
            return Vec::new();
        }
    };
    if let Some(damage) = info.log_damage() {
        let place = Place { block: Some(Pblk(damage.block)), ..Place::default() };
        let text = format_args!("damaged, later changes are lost: {damage}");
        findings.add(&kinds::JOURNAL_LOG, place, text);
    }
    if info.state == RecoveryState::NoJournal {
        findings.add(&kinds::SUPER_RECOVERY, Place::default(), "there is no journal");
    }
    if let Some(why) = &info.fast_commits_refused {
        let text = format_args!("not replayed, later changes are lost: {why}");
        findings.add(&kinds::JOURNAL_FAST, Place::default(), text);
    }
    info.facts()
}

/// Reports why the journal cannot be used, if its inode and superblock did not show it.
pub(crate) fn check_use(sb: &Superblock, opened: Result<&RecoveryInfo, &Error>, findings: &mut Findings) {
    if sb.features.compat.contains(Compat::HAS_JOURNAL) && !sb.has_journal() {
        findings.add(&kinds::JOURNAL, Place::default(), "no inode holds it, and no other device");
    }
    if let Ok(RecoveryInfo { journal_damage: Some(why), .. }) = opened
        && !findings.has(&kinds::JOURNAL)
    {
        let place = Place { inode: sb.journal_inode(), ..Place::default() };
        findings.add(&kinds::JOURNAL, place, format_args!("it cannot be used: {why}"));
    }
}
