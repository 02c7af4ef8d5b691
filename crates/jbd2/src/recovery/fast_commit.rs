//! The fast commits behind the last good transaction: found and checked here, replayed by the file system, which
//! alone knows what the records mean.

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

/// Replays fast commits. Records come in the order in which they were written, those of an incomplete fast commit
/// never.
pub trait FastCommitReplay {
    /// One record that changes something.
    ///
    /// # Errors
    /// End the replay.
    fn record(&mut self, record: &FastCommitRecord<'_>) -> Result<()>;

    /// End of one fast commit: what came before it must become visible together.
    ///
    /// # Errors
    /// End the replay.
    fn committed(&mut self) -> Result<()> {
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

/// Where the walk over the records is.
struct Walk {
    expected: u32,
    checksum: FastCommitChecksum,
    records: u32,
    found: FastCommits,
}

/// Finds the complete fast commits that follow transaction `end` - 1, so carry the number `end`. `None` if the log
/// has no area for them.
///
/// An incomplete fast commit is the ordinary end: nobody was told that it is durable. So is anything malformed, as
/// left-overs of older fast commits look like that.
pub(super) fn scan(reader: &mut LogReader<'_>, info: &JournalInfo, end: Tid) -> Result<Option<FastCommits>> {
    let blocks = area(info);
    if blocks.is_empty() {
        return Ok(None);
    }
    let checksum = FastCommitChecksum::default();
    let mut walk = Walk { expected: end.0, checksum, records: 0, found: FastCommits::default() };
    'blocks: for (walked, log_block) in (1..).zip(blocks) {
        for entry in FastCommitRecords::new(reader.block(log_block)?) {
            let Ok(entry) = entry else { break 'blocks };
            if !walk.take(&entry, walked)? {
                break 'blocks;
            }
        }
    }
    Ok(Some(walk.found))
}

impl Walk {
    /// Whether the walk goes on behind this record.
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
            if sequence != self.expected || checksum != self.checksum.value() {
                return Ok(false);
            }
            self.found = FastCommits { records: self.records, commits: self.found.commits + 1, blocks };
            self.checksum = FastCommitChecksum::default();
        }
        Ok(true)
    }
}

/// Hands out the records that [`scan`] found.
pub(super) fn deliver(
    reader: &mut LogReader<'_>,
    info: &JournalInfo,
    found: FastCommits,
    replay: &mut dyn FastCommitReplay,
) -> Result<()> {
    let mut left = found.records;
    for log_block in area(info) {
        for entry in FastCommitRecords::new(reader.block(log_block)?) {
            let Some(next) = left.checked_sub(1) else { return Ok(()) };
            left = next;
            match entry?.record {
                FastCommitRecord::Head { .. } | FastCommitRecord::Pad => {}
                FastCommitRecord::Tail { .. } => replay.committed()?,
                record => replay.record(&record)?,
            }
        }
    }
    Ok(())
}
