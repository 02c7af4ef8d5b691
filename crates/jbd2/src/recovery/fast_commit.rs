//! The fast commits after the last good transaction: found and checked here, replayed by the file system, which
//! interprets the records.

use super::reader::LogReader;
use crate::{Error, JournalInfo, Result, Tid};
use uext4_ondisk::jbd2::{
    FastCommitChecksum, FastCommitEntry, FastCommitRecord, FastCommitRecords, JournalIncompat,
};

/// Complete fast commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FastCommits {
    /// Records up to the end of the last complete fast commit.
    pub records: u32,
    /// Complete fast commits.
    pub commits: u32,
    /// Log blocks that hold them.
    pub blocks: u32,
}

/// Replays fast commits. Records are passed in the order in which they were written; those of an incomplete fast commit
/// are not passed.
pub trait FastCommitReplay {
    /// Why a replay ends early.
    type Error: From<Error>;

    /// A record that changes something. `number` is its position in the area, counted from 0 and including head,
    /// padding and tail records.
    ///
    /// # Errors
    /// End the replay.
    fn record(&mut self, number: u32, record: &FastCommitRecord<'_>) -> std::result::Result<(), Self::Error>;

    /// The end of one fast commit, at record `number`: the records before it must take effect together.
    ///
    /// # Errors
    /// End the replay.
    fn committed(&mut self, _number: u32) -> std::result::Result<(), Self::Error> {
        Ok(())
    }
}

/// The log blocks of the area. jbd2 leaves its first block unused (`j_fc_first = j_last + 1`).
fn area(info: &JournalInfo) -> std::ops::Range<u32> {
    let superblock = &info.superblock;
    if superblock.features.incompat.contains(JournalIncompat::FAST_COMMIT) {
        superblock.log_end() + 1..superblock.blocks
    } else {
        0..0
    }
}

/// State of the walk over the records.
struct Walk {
    expected: u32,
    checksum: FastCommitChecksum,
    records: u32,
    found: FastCommits,
    torn: Option<u32>,
}

/// Finds the complete fast commits that follow transaction `end` - 1 and so carry the number `end`. `None` if the log
/// has no area for them. Also returns the number of a torn one ([`crate::RecoveryReport::torn_fast_commit`]).
///
/// An incomplete fast commit is the ordinary end: it was never reported as durable. So is anything malformed, as
/// left-overs of older fast commits look like that. The kernel refuses to mount the volume if the first fast commit is
/// malformed; but the blocks of a fast commit are written in any order, so a crash can leave its last block without
/// those before it.
pub(super) fn scan(
    reader: &mut LogReader<'_>,
    info: &JournalInfo,
    end: Tid,
) -> Result<Option<(FastCommits, Option<u32>)>> {
    let blocks = area(info);
    if blocks.is_empty() {
        return Ok(None);
    }
    let checksum = FastCommitChecksum::default();
    let mut walk =
        Walk { expected: end.sequence(), checksum, records: 0, found: FastCommits::default(), torn: None };
    'blocks: for (walked, log_block) in (1..).zip(blocks) {
        for entry in FastCommitRecords::new(reader.block(log_block)?) {
            let Ok(entry) = entry else { break 'blocks };
            if !walk.take(&entry, walked)? {
                break 'blocks;
            }
        }
    }
    Ok(Some((walk.found, walk.torn)))
}

impl Walk {
    /// Takes one record. Returns whether the walk continues after it.
    fn take(&mut self, entry: &FastCommitEntry<'_>, blocks: u32) -> Result<bool> {
        let starts = matches!(entry.record, FastCommitRecord::Head { .. });
        if self.records == 0 && !starts {
            return Ok(false);
        }
        if let FastCommitRecord::Head { features, sequence } = entry.record {
            if sequence != self.expected {
                return Ok(false);
            }
            if features != 0 {
                let feature = format!("fast-commit features {features:#x}").into();
                return Err(Error::Unsupported { feature });
            }
        }
        self.checksum.update(entry);
        self.records += 1;
        if let FastCommitRecord::Tail { sequence, checksum } = entry.record {
            if sequence != self.expected {
                return Ok(false);
            }
            if checksum != self.checksum.value() {
                self.torn = Some(self.found.commits + 1);
                return Ok(false);
            }
            self.found = FastCommits { records: self.records, commits: self.found.commits + 1, blocks };
            self.checksum = FastCommitChecksum::default();
        }
        Ok(true)
    }
}

/// Passes on the records that [`scan`] found, of at most `commits` fast commits. Returns what was passed on.
pub(super) fn deliver<R: FastCommitReplay + ?Sized>(
    reader: &mut LogReader<'_>,
    info: &JournalInfo,
    found: FastCommits,
    commits: u32,
    replay: &mut R,
) -> std::result::Result<FastCommits, R::Error> {
    let mut number = 0;
    let mut done = FastCommits::default();
    for (blocks, log_block) in (1..).zip(area(info)) {
        for entry in FastCommitRecords::new(reader.block(log_block)?) {
            if number >= found.records || done.commits >= commits {
                return Ok(done);
            }
            match entry.map_err(Error::from)?.record {
                FastCommitRecord::Head { .. } | FastCommitRecord::Pad => {}
                FastCommitRecord::Tail { .. } => {
                    replay.committed(number)?;
                    done = FastCommits { records: number + 1, commits: done.commits + 1, blocks };
                }
                record => replay.record(number, &record)?,
            }
            number += 1;
        }
    }
    Ok(done)
}
