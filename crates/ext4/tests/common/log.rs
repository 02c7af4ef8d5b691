//! Hand-made logs, written into an image whose journal is empty.

use super::Image;
use uext4_ondisk::jbd2::{
    CommitBlock, JournalCompat, JournalIncompat, JournalSuperblock, LogChecksums, LogFormat, MAGIC, Tag,
    TagFlags, TransactionChecksum,
};

/// The kind of log to write.
#[derive(Clone, Copy, Debug)]
pub struct LogKind {
    pub checksums: LogChecksums,
    pub wide: bool,
    pub async_commit: bool,
    /// Blocks for fast commits, 0 = without the feature.
    pub fast_commit_blocks: u32,
    /// First log block and sequence number.
    pub start: u32,
    pub sequence: u32,
}

impl LogKind {
    pub fn new(checksums: LogChecksums) -> LogKind {
        let (wide, async_commit) = (checksums == LogChecksums::V3, false);
        LogKind { checksums, wide, async_commit, fast_commit_blocks: 0, start: 1, sequence: 7 }
    }
}

/// Writes a log, block by block.
pub struct Log<'i> {
    pub image: &'i mut Image,
    /// Log block → block of the volume.
    places: Vec<u64>,
    superblock: JournalSuperblock,
    pub format: LogFormat,
    next: u32,
    pub sequence: u32,
    checksum: TransactionChecksum,
    /// Time of the next commit, seconds.
    pub time: u64,
}

/// The log blocks of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Written {
    pub descriptors: Vec<u32>,
    pub data: Vec<u32>,
    pub revokes: Vec<u32>,
    pub commit: u32,
}

/// First word of the journal's structures.
pub fn magic() -> [u8; 4] {
    [24, 16, 8, 0].map(|shift| (MAGIC >> shift) as u8)
}

/// The locations of an image's log blocks: from the extents in the journal's inode, or its block pointers.
pub fn places(image: &Image) -> Vec<u64> {
    let bytes = &image.bytes;
    let half = |at: usize| u64::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let word = |at: usize| half(at) | half(at + 2) << 16;
    let size = 1024 << bytes[1048];
    let descriptor = if size == 1024 { 2 * size } else { size };
    let inode = word(descriptor + 8) as usize * size + 7 * half(1024 + 0x58) as usize;
    let root = inode + 0x28;
    if word(inode + 0x20) & 0x80000 == 0 {
        let row = |at: usize, count: usize| (0..count).map(move |n| word(at + 4 * n));
        let level = |block: u64| row(block as usize * size, size / 4);
        let mut all: Vec<u64> = row(root, 12).chain(level(word(root + 48))).collect();
        all.extend(level(word(root + 52)).filter(|block| *block > 0).flat_map(level));
        return all.into_iter().take_while(|block| *block > 0).collect();
    }
    assert_eq!((half(root), half(root + 6)), (0xF30A, 0), "a journal of a few extents");
    let entries = (1..=half(root + 2) as usize).map(|entry| root + entry * 12);
    entries
        .flat_map(|at| (0..half(at + 4)).map(move |block| (at, block)))
        .map(|(at, block)| (half(at + 6) << 32 | word(at + 8)) + block)
        .collect()
}

impl<'i> Log<'i> {
    /// Begins a log in an image whose journal is empty. Sets `needs_recovery`.
    pub fn begin(image: &'i mut Image, kind: LogKind) -> Log<'i> {
        let places = places(image);
        image.set_bits(0x60, 4);
        let size = u32::from_le_bytes(image.bytes[1048..1052].try_into().unwrap());
        let start = places[0] as usize * (1024 << size);
        let mut superblock = JournalSuperblock::decode(&image.bytes[start..start + 1024]).unwrap();
        superblock.features.incompat = JournalIncompat::REVOKE;
        superblock.features.compat = JournalCompat::empty();
        match kind.checksums {
            LogChecksums::None => {}
            LogChecksums::Transaction => superblock.features.compat |= JournalCompat::CHECKSUM,
            LogChecksums::V2 => superblock.features.incompat |= JournalIncompat::CSUM_V2,
            LogChecksums::V3 => superblock.features.incompat |= JournalIncompat::CSUM_V3,
        }
        superblock.features.incompat.set(JournalIncompat::BIT64, kind.wide);
        superblock.features.incompat.set(JournalIncompat::ASYNC_COMMIT, kind.async_commit);
        superblock.features.incompat.set(JournalIncompat::FAST_COMMIT, kind.fast_commit_blocks > 0);
        superblock.fast_commit_blocks_raw = kind.fast_commit_blocks;
        superblock.checksum_type = if superblock.features.metadata_checksums() { 4 } else { 0 };
        // Positions near the end of the log are given relative to its end.
        let end = superblock.log_end();
        superblock.start = if kind.start == 0 { end - 5 } else { kind.start };
        superblock.sequence = kind.sequence;
        let format = LogFormat::of(&superblock);
        let (next, sequence) = (superblock.start, kind.sequence);
        let checksum = TransactionChecksum::default();
        let mut log =
            Log { image, places, superblock, format, next, sequence, checksum, time: 1_700_000_000 };
        log.seal();
        log
    }

    /// Changes the superblock of the log.
    pub fn superblock(&mut self, change: impl FnOnce(&mut JournalSuperblock)) {
        change(&mut self.superblock);
        self.seal();
    }

    fn seal(&mut self) {
        let superblock = self.superblock.clone();
        superblock.encode(&mut self.block(0)[..1024]).unwrap();
    }

    /// The bytes of a log block.
    pub fn block(&mut self, log_block: u32) -> &mut [u8] {
        let size = self.superblock.block_size as usize;
        let start = self.places[log_block as usize] as usize * size;
        &mut self.image.bytes[start..start + size]
    }

    /// The first used block of the fast-commit area.
    pub fn fast_commit_start(&self) -> u32 {
        self.superblock.log_end() + 1
    }

    pub fn take(&mut self) -> u32 {
        let block = self.next;
        self.next = if block + 1 >= self.superblock.log_end() { self.superblock.first } else { block + 1 };
        block
    }

    /// One descriptor block and its data.
    pub fn blocks(&mut self, blocks: &[(u64, Vec<u8>)], written: &mut Written) {
        let format = self.format;
        let size = self.superblock.block_size as usize;
        let descriptor = self.take();
        let mut bytes = vec![0; size];
        let mut offset = format.start_descriptor(&mut bytes, self.sequence).unwrap();
        let mut datas = Vec::new();
        for (index, (home, data)) in blocks.iter().enumerate() {
            let mut data = data.clone();
            data.resize(size, 0);
            let mut flags = if index == 0 { TagFlags::empty() } else { TagFlags::SAME_UUID };
            flags.set(TagFlags::LAST, index + 1 == blocks.len());
            if data[..4] == magic() {
                data[..4].fill(0);
                flags |= TagFlags::ESCAPE;
            }
            let checksum = format.tag_checksum(self.sequence, &data);
            let tag = Tag { block: *home, flags, checksum };
            offset = format.put_tag(&mut bytes, offset, &tag, &self.superblock.uuid).unwrap().unwrap();
            datas.push(data);
        }
        format.seal_tail(&mut bytes).unwrap();
        self.checksum.update(&bytes);
        self.block(descriptor).copy_from_slice(&bytes);
        written.descriptors.push(descriptor);
        for data in datas {
            self.checksum.update(&data);
            let place = self.take();
            self.block(place).copy_from_slice(&data);
            written.data.push(place);
        }
    }

    pub fn revoke(&mut self, blocks: &[u64], written: &mut Written) {
        let (format, sequence, place) = (self.format, self.sequence, self.take());
        let count = format.encode_revokes(self.block(place), sequence, blocks).unwrap();
        assert_eq!(count, blocks.len());
        written.revokes.push(place);
    }

    pub fn commit(&mut self, written: &mut Written) {
        let (format, place) = (self.format, self.take());
        let commit = CommitBlock { sequence: self.sequence, seconds: self.time, ..CommitBlock::default() };
        let summed = format.checksums == LogChecksums::Transaction;
        let commit = if summed { commit.with_checksum(self.checksum) } else { commit };
        let block = self.block(place);
        commit.encode(block).unwrap();
        format.seal_commit(block).unwrap();
        written.commit = place;
        self.checksum = TransactionChecksum::default();
        self.sequence = self.sequence.wrapping_add(1);
        self.time += 5;
    }

    /// A whole transaction.
    pub fn transaction(&mut self, blocks: &[(u64, Vec<u8>)], revokes: &[u64]) -> Written {
        let mut written = Written::default();
        if !blocks.is_empty() {
            self.blocks(blocks, &mut written);
        }
        if !revokes.is_empty() {
            self.revoke(revokes, &mut written);
        }
        self.commit(&mut written);
        written
    }
}
