//! A tree with one of everything that an ext4 reader can get wrong.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags};
use rustix::io::Errno;

use crate::rng::{Rng, mix};

/// How much of everything. The default fits a 256 MiB volume.
#[derive(Debug, Clone, Copy)]
pub struct TreeOptions {
    /// Seed of all content.
    pub seed: u64,
    /// Entries of the one big directory: from a few hundred on it has a hash tree.
    pub big_dir: u32,
    /// Extents of each fragmented file: more than 4 leave the inode, more than 1360 (4 KiB blocks) need depth
    /// 2.
    pub extents: u32,
    /// Offset of the far block of the sparse file, bytes; beyond 4 GiB by default.
    pub far: u64,
    /// Device nodes and foreign owners, which need root.
    pub privileged: bool,
}

impl TreeOptions {
    /// The default amounts with this seed; device nodes and owners if this process is root.
    pub fn new(seed: u64) -> TreeOptions {
        let privileged = rustix::process::geteuid().is_root();
        TreeOptions { seed, big_dir: 2000, extents: 1500, far: 5 << 30, privileged }
    }
}

/// Fills `buf` with bytes that tell where they belong: each aligned 8-byte word is a function of `file` and
/// its own offset, so data at a wrong place, from another file or from an older fill cannot pass for right.
pub fn pattern(file: u64, offset: u64, buf: &mut [u8]) {
    let mut pos = offset;
    let mut rest = buf;
    while !rest.is_empty() {
        let word = mix(file.rotate_left(32) ^ mix(pos / 8)).to_le_bytes();
        let from = (pos % 8) as usize;
        let take = rest.len().min(8 - from);
        rest[..take].copy_from_slice(&word[from..from + take]);
        rest = &mut rest[take..];
        pos += take as u64;
    }
}

fn patterned(file: u64, length: usize) -> Vec<u8> {
    let mut buf = vec![0; length];
    pattern(file, 0, &mut buf);
    buf
}

/// [`standard_tree_with`] in the default amounts.
#[track_caller]
pub fn standard_tree(dir: &Path, seed: u64) {
    standard_tree_with(dir, TreeOptions::new(seed));
}

/// Fills `dir` (on a kernel mount, or any directory for `mke2fs -d`).
///
/// # Panics
/// On any error, no space included.
#[track_caller]
pub fn standard_tree_with(dir: &Path, options: TreeOptions) {
    Tree { dir, options }.fill().unwrap_or_else(|e| panic!("fixture in {}: {e}", dir.display()));
}

struct Tree<'a> {
    dir: &'a Path,
    options: TreeOptions,
}

type Done = std::io::Result<()>;

impl Tree<'_> {
    fn fill(&self) -> Done {
        self.sizes()?;
        self.sparse()?;
        self.fragmented()?;
        self.links()?;
        self.odd_names()?;
        self.nested()?;
        self.big_directory()?;
        self.attributes()?;
        self.special()?;
        self.times()
    }

    fn sub(&self, name: &str) -> std::io::Result<std::path::PathBuf> {
        let path = self.dir.join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }

    /// Lengths around every border: inline data, sector, block of each size, cluster.
    fn sizes(&self) -> Done {
        let dir = self.sub("sizes")?;
        let borders = [1, 60, 160, 512, 1024, 2048, 4096, 8192, 65_536, 262_144];
        for size in borders.into_iter().flat_map(|n: usize| [n - 1, n, n + 1]).chain([1_234_567, 3_000_001]) {
            std::fs::write(dir.join(size.to_string()), patterned(self.options.seed ^ size as u64, size))?;
        }
        Ok(())
    }

    /// Holes, unwritten extents inside and past the end, a block beyond 4 GiB.
    fn sparse(&self) -> Done {
        let dir = self.sub("sparse")?;
        let far = File::create_new(dir.join("far"))?;
        far.write_all_at(&patterned(1, 10_000), self.options.far)?;
        far.write_all_at(&patterned(2, 5000), 70_000)?;
        File::create_new(dir.join("hole-only"))?.set_len(1 << 33)?;

        let mixed = File::create_new(dir.join("unwritten"))?;
        let allocated = fallocate(&mixed, FallocateFlags::empty(), 0, 1 << 20)?;
        mixed.write_all_at(&patterned(3, 8192), 128 << 10)?;
        mixed.write_all_at(&patterned(4, 100), 512 << 10)?;
        if allocated {
            fallocate(&mixed, FallocateFlags::KEEP_SIZE, 1 << 20, 256 << 10)?;
            fallocate(&mixed, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 64 << 10, 32 << 10)?;
        }
        mixed.sync_all()
    }

    /// Two files of many extents: alternating written and unwritten, and alternating data and hole.
    fn fragmented(&self) -> Done {
        let dir = self.sub("fragmented")?;
        let block = rustix::fs::statvfs(&dir)?.f_bsize.clamp(1024, 65_536);
        let pairs = u64::from(self.options.extents).div_ceil(2);
        let unwritten = File::create_new(dir.join("unwritten"))?;
        fallocate(&unwritten, FallocateFlags::empty(), 0, pairs * 2 * block)?;
        let holes = File::create_new(dir.join("holes"))?;
        // A hole apart from its neighbour needs two blocks per extent; what is written in between twice would
        // merge.
        let mut data = vec![0; block as usize];
        for n in 0..pairs {
            pattern(5, n * 2 * block, &mut data);
            unwritten.write_all_at(&data, n * 2 * block)?;
        }
        for n in 0..u64::from(self.options.extents) {
            pattern(6, n * 2 * block, &mut data);
            holes.write_all_at(&data, n * 2 * block)?;
        }
        unwritten.sync_all()?;
        holes.sync_all()
    }

    /// Symbolic links around the size that fits the inode (59) and of the longest that fits a block, hard
    /// links.
    fn links(&self) -> Done {
        let dir = self.sub("links")?;
        for length in [1, 58, 59, 60, 61, 255, 1000, self.longest_symlink()?] {
            let target: String = ('a'..='z').cycle().take(length).collect();
            symlink(target, dir.join(format!("symlink-{length}")))?;
        }
        symlink("../sizes/1024", dir.join("to-file"))?;
        symlink("loop", dir.join("loop"))?;
        std::fs::write(dir.join("one"), "several names\n")?;
        for n in 0..5 {
            std::fs::hard_link(dir.join("one"), dir.join(format!("link-{n}")))?;
        }
        Ok(())
    }

    /// ext4 takes a target that leaves room for a terminating zero in one block. What comes from elsewhere
    /// goes into a volume of any block size, so 1 KiB counts there.
    fn longest_symlink(&self) -> std::io::Result<usize> {
        const EXT4_SUPER_MAGIC: i64 = 0xef53;
        let fs = rustix::fs::statfs(self.dir)?;
        let block = if fs.f_type == EXT4_SUPER_MAGIC { fs.f_bsize as usize } else { 1024 };
        // PATH_MAX bounds it for larger blocks.
        Ok(block.min(4096) - 1)
    }

    fn odd_names(&self) -> Done {
        let dir = self.sub("names")?;
        let long = vec![b'x'; 255];
        let names: [&[u8]; 9] = [
            b"\xff\xfe\x80",
            b"new\nline",
            b" ",
            b"...",
            b"-rf",
            b"a\\b\"c'",
            "żółć".as_bytes(),
            b"\x01\x7f",
            &long,
        ];
        for (n, name) in names.into_iter().enumerate() {
            std::fs::write(dir.join(OsStr::from_bytes(name)), patterned(n as u64, n))?;
        }
        Ok(())
    }

    fn nested(&self) -> Done {
        let mut path = self.sub("nested")?;
        for depth in 0..40 {
            path = path.join(format!("d{depth}"));
            std::fs::create_dir(&path)?;
            std::fs::write(path.join("file"), depth.to_string())?;
        }
        std::fs::create_dir(self.dir.join("empty"))
    }

    /// Names of random length, some of them removed again so that the leaves have gaps.
    fn big_directory(&self) -> Done {
        let dir = self.sub("big")?;
        let mut rng = Rng::new(self.options.seed).fork(7);
        for n in 0..self.options.big_dir {
            let mut name = format!("{n:06}-").into_bytes();
            name.resize(7 + rng.below(80) as usize, b'a' + (n % 26) as u8);
            let path = dir.join(OsString::from_vec(name));
            if n % 7 == 0 {
                symlink(n.to_string(), &path)?
            } else {
                drop(File::create_new(&path)?)
            }
            if n % 5 == 4 {
                std::fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Extended attributes inside the inode and in a block of their own, modes, access control lists.
    fn attributes(&self) -> Done {
        let dir = self.sub("attributes")?;
        // Without privilege nobody but root could copy what its owner may not read.
        let readable = |mode: &u32| self.options.privileged || mode & 0o400 != 0;
        for (n, mode) in
            [0o000, 0o400, 0o777, 0o4755, 0o2755, 0o1777].into_iter().filter(readable).enumerate()
        {
            let path = dir.join(format!("mode-{mode:o}"));
            std::fs::write(&path, n.to_string())?;
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
        }
        let path = dir.join("xattrs");
        std::fs::write(&path, "attributed\n")?;
        for (n, length) in [0usize, 10, 40, 300, 400].into_iter().enumerate() {
            let name = format!("user.length-{length}");
            match rustix::fs::setxattr(&path, name, &patterned(n as u64, length), XattrFlags::CREATE) {
                // A tmpfs source tree may know no user attributes.
                Err(Errno::NOTSUP) => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }

    fn special(&self) -> Done {
        let dir = self.sub("special")?;
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, mode, 0)?;
        rustix::fs::mknodat(CWD, dir.join("socket"), FileType::Socket, mode, 0)?;
        if !self.options.privileged {
            return Ok(());
        }
        // Both encodings of device numbers: 8+8 bits, and the wider one.
        for (name, kind, major, minor) in [
            ("char-old", FileType::CharacterDevice, 1, 3),
            ("char-new", FileType::CharacterDevice, 300, 70_000),
            ("block-old", FileType::BlockDevice, 7, 255),
            ("block-new", FileType::BlockDevice, 259, 65_536),
        ] {
            rustix::fs::mknodat(CWD, dir.join(name), kind, mode, rustix::fs::makedev(major, minor))?;
        }
        std::fs::write(dir.join("owned"), "by somebody\n")?;
        std::os::unix::fs::chown(dir.join("owned"), Some(70_000), Some(4_000_000_000))
    }

    /// Times with nanoseconds: before 1970, today, after 2038 and near the format's end in 2446.
    fn times(&self) -> Done {
        let dir = self.sub("times")?;
        let epoch = UNIX_EPOCH;
        for (name, time) in [
            ("1930", epoch - Duration::new(1_262_304_000, 5)),
            ("2001", epoch + Duration::new(1_000_000_000, 123_456_789)),
            ("2038", epoch + Duration::new(0x7fff_ffff, 999_999_999)),
            ("2039", epoch + Duration::new(0x8000_0001, 1)),
            ("2446", epoch + Duration::new(0x3_7fff_ffff, 999_999_999)),
        ] {
            let path = dir.join(name);
            std::fs::write(&path, name)?;
            File::options().write(true).open(&path)?.set_modified(time)?;
        }
        Ok(())
    }
}

/// `false` where the file system has no such operation (an indirect-mapped file, ext3).
fn fallocate(file: &File, mode: FallocateFlags, offset: u64, length: u64) -> std::io::Result<bool> {
    match rustix::fs::fallocate(file, mode, offset, length) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
