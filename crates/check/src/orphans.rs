//! Inodes waiting for deletion or truncation: the list that starts in the superblock, and the orphan file.

use crate::kinds;
use crate::map::{MapWalk, Sink};
use crate::read::Reader;
use crate::report::Findings;
use crate::shared::Shared;
use std::collections::HashSet;
use uext4::Result;
use uext4_ondisk::ext4::{Compat, Extent, Inode, OrphanBlock, RoCompat};
use uext4_ondisk::{Ino, Lblk, Pblk, Place};

/// Maximum blocks of an orphan file that are read; e2fsprogs and the kernel allow 512.
const FILE_BLOCKS: usize = 8192;

/// Collects all orphans. Orphans are no damage: a volume may have them.
pub(crate) fn collect(shared: &mut Shared<'_>, findings: &mut Findings) -> Result<()> {
    let mut found = HashSet::new();
    let mut reader = shared.reader()?;
    walk_list(shared, &mut reader, findings, &mut found)?;
    if shared.sb.features.compat.contains(Compat::ORPHAN_FILE) {
        read_file(shared, &mut reader, findings, &mut found)?;
    } else if shared.sb.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) && !shared.recovered {
        let text = "the superblock says that it has entries, but there is none";
        findings.add(&kinds::ORPHAN_FILE, Place::default(), text);
    }
    shared.orphans = found;
    Ok(())
}

/// An inode decoded from its record, ignoring the checksum.
pub(crate) fn load(shared: &Shared<'_>, reader: &mut Reader<'_>, ino: Ino) -> Result<Option<Inode>> {
    let Some((block, offset)) = shared.inode_place(ino) else { return Ok(None) };
    let bytes = reader.block(block.get(), 0)?;
    Ok(bytes.get(offset..).and_then(|bytes| Inode::decode(bytes, ino, &shared.lenient).ok()))
}

fn walk_list(
    shared: &Shared<'_>,
    reader: &mut Reader<'_>,
    findings: &mut Findings,
    found: &mut HashSet<u32>,
) -> Result<()> {
    let mut next = shared.sb.last_orphan;
    while let Some(ino) = Ino::nonzero(next) {
        let place = Place { inode: Some(ino), ..Place::default() };
        let inode = match shared.is_reserved(next) {
            true => None,
            false => load(shared, reader, ino)?,
        };
        let Some(inode) = inode else {
            findings.add(&kinds::ORPHAN_LIST, place, "no such inode can be on the list");
            return Ok(());
        };
        if !found.insert(next) {
            findings.add(&kinds::ORPHAN_LIST, place, "the list comes back to this inode");
            return Ok(());
        }
        next = inode.deleted;
    }
    Ok(())
}

/// The blocks of a file, up to the allowed number.
struct OrphanFileMap(Vec<Option<(Lblk, u64)>>);

impl Sink for OrphanFileMap {
    fn node(&mut self, _block: u64) {}

    fn extent(&mut self, extent: Extent) {
        for offset in 0..extent.length {
            if self.0.len() > FILE_BLOCKS {
                return;
            }
            let lblk = Lblk(extent.logical.get() + offset);
            self.0.push(extent.physical_of(lblk).map(|block| (lblk, block.get())));
        }
    }
}

fn read_file<'d>(
    shared: &Shared<'d>,
    reader: &mut Reader<'d>,
    findings: &mut Findings,
    found: &mut HashSet<u32>,
) -> Result<()> {
    let ino = Ino(shared.sb.orphan_file_inode);
    let place = Place { inode: Some(ino), ..Place::default() };
    if !shared.sb.features.compat.contains(Compat::HAS_JOURNAL) {
        findings.add(&kinds::ORPHAN_FILE, place, "there is no journal to go with it");
    }
    let Some(inode) = load(shared, reader, ino)? else {
        findings.add(&kinds::ORPHAN_FILE, place, "its inode cannot be read");
        return Ok(());
    };
    let seed = shared.sb.features.metadata_csum().then(|| inode.checksum_seed(ino, shared.sb));
    let mut blocks = OrphanFileMap(Vec::new());
    // Pass 1 checks the map with all others.
    let mut quiet = Findings::new(0);
    let mut walk = MapWalk::new(shared, &mut *reader, &mut quiet, ino);
    walk.all(&inode, &mut blocks)?;
    let mut whole = !walk.broken;
    let expected = inode.size / u64::from(shared.sb.geometry.block_size());
    if blocks.0.len() > FILE_BLOCKS || blocks.0.len() as u64 != expected {
        let text = format_args!("{} bytes, {} blocks", inode.size, blocks.0.len());
        findings.add(&kinds::ORPHAN_FILE, place, text);
        whole = false;
    }
    let before = found.len();
    let (mut entries, mut stale) = (0, false);
    for (lblk, block) in blocks.0.into_iter().flatten().take(FILE_BLOCKS) {
        let place = Place { lblk: Some(lblk), block: Some(Pblk(block)), ..place };
        let bytes = reader.block(block, 0)?;
        // e2fsck considers such a block not empty. Report it once: `tune2fs` leaves it in all of them.
        if seed.is_none() && !stale && bytes.last_chunk().is_some_and(|checksum| *checksum != [0; 4]) {
            findings.add(&kinds::ORPHAN_FILE, place, "a checksum on a volume without checksums");
            stale = true;
        }
        match OrphanBlock::decode(bytes, Pblk(block), seed) {
            Ok(orphans) => {
                for orphan in orphans.inodes() {
                    entries += 1;
                    if orphan.get() > shared.sb.geometry.inodes_count() || shared.is_reserved(orphan.get()) {
                        let text = format_args!("inode {orphan} cannot be an orphan");
                        findings.add(&kinds::ORPHAN_FILE, place, text);
                        continue;
                    }
                    found.insert(orphan.get());
                }
            }
            Err(fault) => {
                entries += 1;
                findings.corrupt(&kinds::ORPHAN_FILE, place, &fault);
            }
        }
    }
    let present = shared.sb.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    if found.len() > before && !present {
        findings.add(&kinds::ORPHAN_FILE, place, "it has entries, but the superblock says it is empty");
    }
    // The superblock says so as long as the volume is mounted, and still after a crash.
    if present && entries == 0 && whole && !shared.recovered {
        findings.add(&kinds::ORPHAN_FILE, place, "it is empty, but the superblock says it has entries");
    }
    Ok(())
}
