//! A small volume with every structure, and a walk over all of it that accepts only typed errors.

use super::{Image, open_ro, read_only, read_write};
use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock};
use uext4::device::Device;
use uext4::{Error, FileKind, Ino, QueueOptions, Result, Volume, VolumeOptions, WriteFlags};
use uext4_ondisk::Group;
use uext4_ondisk::ext4::{GroupDescriptor, Superblock};
use uext4_testkit::{Scratch, VolumeBuilder, oracle};

pub const BLOCK: usize = 1024;
/// The byte that all file data consists of, so that it differs from metadata.
const DATA: u8 = 0xd7;

/// Without checksums: only a structure's own checks protect it.
pub fn bare() -> Image {
    static MADE: LazyLock<Image> = LazyLock::new(|| make(&["-O", "^metadata_csum,^has_journal"]));
    MADE.clone()
}

/// With checksums and a journal.
pub fn guarded() -> Image {
    static MADE: LazyLock<Image> = LazyLock::new(|| make(&["-O", "metadata_csum", "-J", "size=1"]));
    MADE.clone()
}

fn make(args: &[&str]) -> Image {
    let source = Scratch::new(4 << 20);
    let dir = source.file("tree");
    std::fs::create_dir_all(dir.join("deep/er/est")).unwrap();
    std::fs::create_dir(dir.join("big")).unwrap();
    for n in 0..300 {
        std::fs::write(dir.join(format!("big/a rather long name, number {n:03}")), "").unwrap();
    }
    std::fs::write(dir.join("deep/er/est/file"), [DATA; 3000]).unwrap();
    std::fs::write(dir.join("plain"), vec![DATA; 50_000]).unwrap();
    let tree = std::fs::File::create(dir.join("tree")).unwrap();
    for pair in 0..350 {
        tree.write_all_at(&[DATA; 4096], pair * 8192).unwrap();
    }
    std::os::unix::fs::symlink("deep/er", dir.join("fast")).unwrap();
    std::os::unix::fs::symlink("s".repeat(300), dir.join("slow")).unwrap();
    let args = args.iter().copied().chain(["-b", "1024", "-N", "512"]);
    let volume = VolumeBuilder::new(8 << 20).args(args).from_dir(&dir).build();
    // mke2fs makes linear directories; e2fsck adds their hash trees.
    oracle::e2fsck(volume.path(), &["-y", "-D"]);
    assert!(oracle::debugfs(volume.path(), "stat /big").contains("Flags: 0x81000"), "extents and an index");
    assert!(oracle::debugfs(volume.path(), "dump_extents -n /tree").contains(" 0/ 2 "));
    volume.assert_clean();
    Image::load(volume.path())
}

/// Blocks that are neither empty nor file data.
pub fn metadata_blocks(image: &Image) -> Vec<usize> {
    let blocks = image.bytes.chunks(BLOCK).enumerate();
    let metadata = blocks.filter(|(_, block)| {
        block.iter().any(|&byte| byte != 0) && block.iter().filter(|&&byte| byte == DATA).count() < 500
    });
    metadata.map(|(number, _)| number).collect()
}

/// Locations of structures, taken from the undamaged image.
pub struct Layout {
    pub superblock: Superblock,
    pub descriptors: Vec<GroupDescriptor>,
    pub descriptor_bytes: Vec<usize>,
}

impl Layout {
    pub fn of(image: &Image) -> Layout {
        let superblock = Superblock::decode(&image.bytes[1024..2048]).unwrap();
        let mut layout = Layout { descriptors: Vec::new(), descriptor_bytes: Vec::new(), superblock };
        for group in layout.superblock.geometry.groups() {
            let (block, offset) = layout.superblock.geometry.descriptor_position(group).unwrap();
            let block_size = layout.superblock.geometry.block_size() as usize;
            let start = block.get() as usize * block_size + offset as usize;
            let size = usize::from(layout.superblock.geometry.desc_size());
            let bytes = &image.bytes[start..start + size];
            let decoded = GroupDescriptor::decode(bytes, group, &layout.superblock);
            layout.descriptors.push(decoded.unwrap());
            layout.descriptor_bytes.push(start);
        }
        layout
    }

    /// First byte of an inode on the image.
    pub fn inode(&self, ino: Ino) -> usize {
        let (Group(group), index) = self.superblock.geometry.group_of_inode(ino).unwrap();
        let (block, offset) = self.superblock.geometry.inode_table_position(index);
        let table = self.descriptors[group as usize].inode_table.get();
        let block_size = self.superblock.geometry.block_size() as usize;
        (table + u64::from(block)) as usize * block_size + offset as usize
    }

    /// First inode table block of group 0, and the number of blocks.
    pub fn inode_table(&self) -> (u64, u64) {
        let blocks = self.superblock.geometry.inode_table_blocks();
        (self.descriptors[0].inode_table.get(), u64::from(blocks))
    }
}

/// The inode number of a path on the undamaged image.
pub fn ino_of(image: &Image, path: &str) -> Ino {
    open_ro(image.device()).resolve(path, false).unwrap()
}

/// Runs every read, and some overwrites: any outcome except a panic, a hang or an untyped error is fine. Returns how
/// many files and directories could be read to the extent tried here.
pub fn explore(device: Arc<dyn Device>, write: bool) -> usize {
    let options = if write { VolumeOptions::read_write() } else { VolumeOptions::read_only() };
    let Some(volume) = typed(Volume::open_device(device, options)) else { return 0 };
    volume.info();
    let mut seen: HashSet<Ino> = HashSet::from([Ino::ROOT]);
    let mut pending = vec![Ino::ROOT];
    let mut readable = 0;
    while let Some(ino) = pending.pop() {
        let Some(meta) = typed(volume.metadata_of(ino)) else { continue };
        let fine = match meta.kind {
            FileKind::Directory => list(&volume, ino, &mut seen, &mut pending),
            FileKind::Symlink => typed(volume.read_link_of(ino)).is_some(),
            FileKind::Regular => read(&volume, ino, write),
            _ => true,
        };
        attributes(&volume, ino);
        readable += usize::from(fine);
    }
    for path in ["/big/a rather long name, number 299", "/big/none", "/fast/est/file", "/slow", "/tree/.."] {
        typed(volume.resolve(path, true));
    }
    readable
}

/// Reads every attribute, and one that does not exist.
pub fn attributes(volume: &Volume, ino: Ino) {
    for name in typed(volume.list_xattrs_of(ino)).into_iter().flatten().filter_map(typed) {
        if let Some(value) = typed(volume.xattr_of(ino, &name)) {
            assert!(value.len() <= 2 * uext4::XATTR_SIZE_MAX as usize);
        }
    }
    typed(volume.xattr_of(ino, "user.none"));
    for xattr in typed(volume.xattrs_of(ino)).into_iter().flatten().filter_map(typed) {
        let name = xattr.name().clone();
        let (here, looked_up) = (typed(xattr.value()), typed(volume.xattr_of(ino, &name)));
        assert!(here == looked_up, "{name}");
    }
}

fn list(volume: &Volume, ino: Ino, seen: &mut HashSet<Ino>, pending: &mut Vec<Ino>) -> bool {
    let Some(entries) = typed(volume.read_dir_of(ino)) else { return false };
    // A damaged size may claim billions of blocks that are all the same block: do not read them all.
    for entry in entries.take(3000) {
        let Some(entry) = typed(entry) else { return false };
        assert!(!entry.name.is_empty() && entry.name.len() <= 255);
        if seen.insert(entry.ino) {
            pending.push(entry.ino);
        }
    }
    true
}

fn read(volume: &Volume, ino: Ino, write: bool) -> bool {
    let options = if write { read_write() } else { read_only() };
    let Some(file) = typed(volume.open_inode(ino, options)) else { return false };
    let mut pieces = file.map().take(1000);
    let fine = pieces.all(|piece| typed(piece).is_some());
    let size = file.size();
    let mut memory = vec![0; 9000];
    for pos in [0, 1, size / 2, size.saturating_sub(5000), size, 1 << 42, i64::MAX as u64 - 9000] {
        if let Some(read) = typed(file.read_any_at(&mut memory, pos)) {
            assert_eq!(read as u64, size.saturating_sub(pos).min(9000), "{ino} at {pos} of {size}");
        }
    }
    if let Some(mut queue) = typed(volume.queue(QueueOptions::depth(2))) {
        let slot = queue.attach(&file).unwrap();
        let sent = queue.read(slot, 0, queue.buffer(65_536).unwrap(), 1);
        if typed(sent).is_some() {
            for done in queue.wait(1).unwrap() {
                typed(done.result.map_err(|error| *error));
            }
        }
    }
    if write {
        typed(file.write_any_at(&[DATA; 700], 300, WriteFlags::DSYNC));
    }
    fine
}

/// Errors must be of the kinds that say "this volume is damaged" or "this needs more than I can".
fn typed<T>(result: Result<T>) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let damaged = matches!(
        error,
        Error::NotExt4(_)
            | Error::Corrupt(_)
            | Error::CorruptInode { .. }
            | Error::Journal(_)
            | Error::FastCommit { .. }
    );
    let limited = matches!(
        error,
        Error::Incompatible { .. }
            | Error::NeedsRecovery(_)
            | Error::TooSmall { .. }
            | Error::NeedsAllocation(_)
            // A damaged superblock may reserve every block.
            | Error::NoSpace
    );
    let path = matches!(
        error,
        Error::NotFound
            | Error::NotDirectory
            | Error::IsDirectory
            | Error::NotRegular
            | Error::NotSymlink
            | Error::TooManyLinks
            | Error::NameTooLong
            | Error::NoAttribute
            | Error::TooLarge { .. }
    );
    let forbidden = matches!(error, Error::ReadOnly(_) | Error::NotPermitted(_));
    let expected = damaged || limited || path || forbidden;
    assert!(expected, "not an error of a damaged volume: {error:?}");
    None
}

/// A device that is changed for one case and put back afterwards.
pub struct Bench {
    image: Image,
    metadata: Vec<usize>,
    device: Arc<uext4::device::MemoryDevice>,
}

impl Bench {
    pub fn new(image: Image) -> Bench {
        Bench { device: image.device(), metadata: metadata_blocks(&image), image }
    }

    /// Runs `work` on the image with these bytes in place of its own.
    pub fn with<T>(&self, changed: &Image, blocks: &[usize], work: impl FnOnce(Arc<dyn Device>) -> T) -> T {
        self.put(changed, blocks);
        let result = work(self.device.clone());
        self.put(&self.image, blocks);
        // A damaged volume may direct an overwrite of file data anywhere except fixed metadata.
        self.put(&self.image, &self.metadata);
        result
    }

    fn put(&self, from: &Image, blocks: &[usize]) {
        let mut buffer = super::aligned(BLOCK);
        for &block in blocks {
            buffer.copy_from_slice(&from.bytes[block * BLOCK..(block + 1) * BLOCK]);
            let pos = (block * BLOCK) as u64;
            self.device.write_at(&buffer, pos, uext4::device::WriteDurability::Cached).unwrap();
        }
    }
}
