//! The blocks that one inode claims.

use crate::badblocks;
use crate::kinds;
use crate::map::Sink;
use crate::report::Findings;
use crate::scan::DirBlockRef;
use crate::shared::Shared;
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::{Group, Ino, Lblk, Pblk, Place};

/// Marks blocks as used and records facts about the map.
pub(crate) struct Claims<'s, 'd> {
    shared: &'s Shared<'d>,
    ino: Ino,
    directory: bool,
    /// Clusters claimed, a cluster that two neighbouring extents share counted once.
    pub clusters: u64,
    /// The logical block after the last one mapped.
    pub end: u64,
    /// The last logical block that is written.
    pub last_written: Option<u32>,
    /// The block of logical block 0.
    pub first: Option<u64>,
    previous: Option<u64>,
    blocks: Vec<DirBlockRef>,
    hole: Option<u64>,
    unwritten: Option<Lblk>,
    misaligned: Option<Extent>,
    excess: Option<u64>,
    /// Whether it is the list of bad blocks: that may name some of the file system's own.
    pub bad_list: bool,
    /// The first backup of a superblock, and of descriptors, that it names.
    bad_backups: [Option<(Group, u64)>; 2],
}

impl<'s, 'd> Claims<'s, 'd> {
    pub(crate) fn new(shared: &'s Shared<'d>, ino: Ino, directory: bool) -> Self {
        Claims {
            shared,
            ino,
            directory,
            clusters: 0,
            end: 0,
            last_written: None,
            first: None,
            previous: None,
            blocks: Vec::new(),
            hole: None,
            unwritten: None,
            misaligned: None,
            excess: None,
            bad_list: false,
            bad_backups: [None; 2],
        }
    }

    fn claim(&mut self, cluster: u64, count: u64, block: u64) {
        self.clusters += count;
        if count > 0 && !self.shared.claim(cluster, count) {
            self.excess.get_or_insert(block);
        }
    }

    /// Whether the list of bad blocks may name this one of the file system's own.
    fn is_spared(&mut self, block: u64) -> bool {
        let backup = badblocks::backup_at(self.shared, block);
        if let Some((group, superblock)) = backup {
            self.bad_backups[usize::from(!superblock)].get_or_insert((group, block));
        }
        let spared = backup.is_some() || self.shared.is_bad_table(block);
        if spared && !self.shared.pass_over(1) {
            self.excess.get_or_insert(block);
        }
        spared
    }

    fn list(&mut self, extent: &Extent) {
        let lblk = u64::from(extent.logical.get());
        if lblk > self.end {
            self.hole.get_or_insert(self.end);
        }
        if extent.unwritten {
            self.unwritten.get_or_insert(extent.logical);
            return;
        }
        for offset in 0..extent.length {
            if !self.shared.take_dir_block() {
                self.excess.get_or_insert(extent.physical.get());
                return;
            }
            self.blocks.push(DirBlockRef {
                block: extent.physical.get() + u64::from(offset),
                ino: self.ino.get(),
                lblk: extent.logical.get() + offset,
            });
        }
    }

    /// Reports what is wrong, and hands over the directory's blocks.
    pub(crate) fn report(&mut self, findings: &mut Findings, blocks: &mut Vec<DirBlockRef>) {
        blocks.append(&mut self.blocks);
        let place = Place { inode: Some(self.ino), ..Place::default() };
        let at = |lblk: Lblk| Place { lblk: Some(lblk), ..place };
        if self.directory && self.end == 0 {
            self.hole.get_or_insert(0);
        }
        if let Some(hole) = self.hole.and_then(|hole| u32::try_from(hole).ok()) {
            findings.add(&kinds::DIR_HOLE, at(Lblk(hole)), "no block is mapped here");
        }
        if let Some(lblk) = self.unwritten {
            findings.add(&kinds::DIR_UNWRITTEN, at(lblk), "blocks of a directory are unwritten");
        }
        if let Some(extent) = self.misaligned {
            let text =
                format_args!("logical and physical block {} differ inside their clusters", extent.physical);
            findings.add(&kinds::EXTENT_CLUSTER, at(extent.logical), text);
        }
        for (kind, backup) in [&kinds::SUPER_BACKUP, &kinds::GROUP_BACKUP].into_iter().zip(self.bad_backups) {
            if let Some((group, block)) = backup {
                let place = Place { group: Some(group), block: Some(Pblk(block)), ..Place::default() };
                findings.add(kind, place, "it is in a bad block");
            }
        }
        if let Some(block) = self.excess {
            let place = Place { block: Some(Pblk(block)), ..place };
            findings.add(&kinds::BLOCK_EXCESS, place, "this claim is not followed");
        }
    }
}

impl Sink for Claims<'_, '_> {
    fn node(&mut self, block: u64) {
        self.claim(self.shared.cluster_of(block), 1, block);
    }

    fn extent(&mut self, extent: Extent) {
        if self.bad_list {
            for offset in 0..extent.length {
                let physical = Pblk(extent.physical.get() + u64::from(offset));
                if self.excess.is_none() && !self.is_spared(physical.get()) {
                    let logical = Lblk(extent.logical.get() + offset);
                    self.data(Extent { logical, length: 1, physical, unwritten: extent.unwritten });
                }
            }
            return;
        }
        if self.directory {
            self.list(&extent);
        }
        self.data(extent);
    }
}

impl Claims<'_, '_> {
    fn data(&mut self, extent: Extent) {
        let (start, length) = (extent.physical.get(), u64::from(extent.length));
        let (first, last) = (self.shared.cluster_of(start), self.shared.cluster_of(start + length - 1));
        let mask = self.shared.sb.geometry.cluster_blocks() - 1;
        let within = (start - u64::from(self.shared.sb.geometry.first_data_block())) & u64::from(mask);
        if u64::from(extent.logical.get() & mask) != within {
            self.misaligned.get_or_insert(extent);
        }
        // With clusters of several blocks, neighbouring extents may share one; that is one claim.
        let again = mask != 0 && self.previous == Some(first);
        let from = first + u64::from(again);
        self.claim(from, (last + 1).saturating_sub(from), start);
        self.previous = Some(last);
        let end = u64::from(extent.logical.get()) + length;
        if extent.logical.get() == 0 {
            self.first = Some(start);
        }
        if !extent.unwritten && end > 0 {
            self.last_written = u32::try_from(end - 1).ok().max(self.last_written);
        }
        self.end = self.end.max(end);
    }
}
