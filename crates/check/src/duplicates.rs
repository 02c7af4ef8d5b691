//! Pass 1B: finds the owners of blocks that are claimed more than once. Only damaged volumes need it.

use crate::badblocks;
use crate::inode::each_record;
use crate::kinds;
use crate::map::{MapWalk, Sink};
use crate::report::Findings;
use crate::shared::{MARK_BROKEN, RUN_MEMORY, Shared};
use crate::special::Role;
use uext4::Result;
use uext4_ondisk::ext4::{Extent, FileType, Inode};
use uext4_ondisk::{Ino, Pblk, Place};

/// Names every inode that claims such blocks.
pub(crate) fn find_owners(
    shared: &Shared<'_>,
    xattr_blocks: &[(u64, u32)],
    findings: &mut Findings,
) -> Result<()> {
    if !shared.twice.any() {
        return Ok(());
    }
    shared.renew_nodes();
    let (mut table, mut nodes) = (shared.reader_of(RUN_MEMORY)?, shared.reader()?);
    for group in shared.sb.geometry.groups() {
        if shared.inodes.group(group.get()).is_none() {
            continue;
        }
        each_record(shared, &mut table, group, |ino, _, record| {
            let known = shared.inodes.in_use(ino.get()).is_some_and(|slot| slot.marks() & MARK_BROKEN == 0);
            let role = Role::of(shared.sb, ino);
            // The map of the resize inode is file system metadata, except for one block.
            if !known || role == Role::Resize {
                return Ok(());
            }
            let Ok(inode) = Inode::decode(record, ino, &shared.lenient) else { return Ok(()) };
            let mapped = match inode.file_type() {
                Some(FileType::Symlink) => inode.short_link_target().is_none(),
                Some(FileType::Regular | FileType::Directory) => true,
                Some(_) => false,
                None => role == Role::BadBlocks,
            };
            if !mapped || inode.has_inline_data() {
                return Ok(());
            }
            // Damage of the map itself is already reported.
            let mut quiet = Findings::new(0);
            let mut owner = Owner { shared, findings, ino };
            MapWalk::new(shared, &mut nodes, &mut quiet, ino).all(&inode, &mut owner)
        })?;
    }
    for (block, ino) in xattr_blocks {
        Owner { shared, findings, ino: Ino(*ino) }.tell(*block, 1, "attribute block");
    }
    Ok(())
}

struct Owner<'a, 'd> {
    shared: &'a Shared<'d>,
    findings: &'a mut Findings,
    ino: Ino,
}

impl Owner<'_, '_> {
    fn tell(&mut self, start: u64, count: u64, what: &str) {
        let (first, last) = (self.shared.cluster_of(start), self.shared.cluster_of(start + count - 1));
        let Some((cluster, shared)) = self.shared.twice.overlap(first, last - first + 1) else { return };
        let block = self.shared.block_of(cluster).max(start);
        let place = Place { inode: Some(self.ino), block: Some(Pblk(block)), ..Place::default() };
        match self.shared.zone_at(start, count) {
            Some(zone) => {
                let text = format_args!("{what} over the {} of group {}", zone.what, zone.group);
                self.findings.add(&kinds::BLOCK_SYSTEM, place, text);
            }
            None => {
                let text = format_args!(
                    "{shared} of the {count} blocks of {what} from {start} on have another owner"
                );
                self.findings.add(&kinds::BLOCK_SHARED, place, text);
            }
        }
    }
}

impl Sink for Owner<'_, '_> {
    fn node(&mut self, block: u64) {
        self.tell(block, 1, "a map's node");
    }

    fn extent(&mut self, extent: Extent) {
        if self.ino == Ino::BAD_BLOCKS {
            for block in (0..extent.length).map(|offset| extent.physical.get() + u64::from(offset)) {
                if !self.shared.is_bad_table(block) && badblocks::backup_at(self.shared, block).is_none() {
                    self.tell(block, 1, "data");
                }
            }
            return;
        }
        self.tell(extent.physical.get(), u64::from(extent.length), "data");
    }
}
