//! Volumes made with the same options by us and by mke2fs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::device::{self, Device};
use uext4::mkfs::{Defaults, Kind, Options, format, parse_uuid};
use uext4::{DeviceSpec, Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs, oracle};

pub const UUID: &str = "6e7f3c51-2b0a-4d1e-9c57-0f1a2b3c4d5e";
pub const SEED: &str = "hash_seed=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
pub const TIME: u64 = 1_700_000_000;
pub const MIB: u64 = 1 << 20;

/// `/etc/mke2fs.conf` of e2fsprogs 1.47; Debian 12's has neither `metadata_csum_seed` nor `orphan_file`.
pub fn config(defaults: Defaults) -> String {
    let more = if defaults == Defaults::Upstream { ",metadata_csum_seed,orphan_file" } else { "" };
    format!(
        "[defaults]\nbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr\n\
         default_mntopts = acl,user_xattr\nenable_periodic_fsck = 0\nblocksize = 4096\ninode_size = 256\n\
         inode_ratio = 16384\n[fs_types]\next3 = {{\nfeatures = has_journal\n}}\next4 = {{\n\
         features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize{more}\n}}\n\
         small = {{\nblocksize = 1024\ninode_ratio = 4096\n}}\n\
         floppy = {{\nblocksize = 1024\ninode_ratio = 8192\n}}\nbig = {{\ninode_ratio = 32768\n}}\n\
         huge = {{\ninode_ratio = 65536\n}}\nnews = {{\ninode_ratio = 4096\n}}\n\
         largefile = {{\ninode_ratio = 1048576\nblocksize = -1\n}}\nlargefile4 = {{\ninode_ratio = 4194304\n\
         blocksize = -1\n}}\nhurd = {{\nblocksize = 4096\ninode_size = 128\n}}\n"
    )
}

/// One volume: bytes, options as words, extended options.
pub type Row = (u64, &'static str, &'static str);

fn kind(name: &str) -> Kind {
    match name {
        "ext2" => Kind::Ext2,
        "ext3" => Kind::Ext3,
        "ext4" => Kind::Ext4,
        other => panic!("{other}"),
    }
}

pub fn options(words: &str, extended: &str, defaults: Defaults) -> Options {
    let mut options = Options::new(defaults);
    options.uuid = parse_uuid(UUID);
    options.time = Some(TIME);
    let mut words = words.split_whitespace();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match name {
            "-t" => options.kind = kind(value),
            "-T" => options = options.usage(value).unwrap(),
            "-g" => options.group_blocks = Some(value.parse().unwrap()),
            "-G" => options.flex_groups = Some(value.parse().unwrap()),
            "-b" => options.block_size = Some(value.parse().unwrap()),
            "-C" => options.cluster_size = Some(value.parse().unwrap()),
            "-I" => options.inode_size = Some(value.parse().unwrap()),
            "-i" => options.inode_ratio = Some(value.parse().unwrap()),
            "-N" => options.inodes = Some(value.parse().unwrap()),
            "-m" => options.reserved_percent = Some(value.parse().unwrap()),
            "-L" => options.label = value.into(),
            "-O" => options = options.features(value).unwrap(),
            "-J" => options = options.journal(value).unwrap(),
            "-E" => options = options.extended(value).unwrap(),
            other => panic!("{other}"),
        }
    }
    options.extended(SEED).unwrap().extended(extended).unwrap()
}

pub fn open(path: &Path) -> Arc<dyn Device> {
    let how = device::OpenOptions { write: true, force: false };
    device::open(&DeviceSpec::file(path), how).unwrap().device
}

/// The volume of a row by mke2fs, and by us.
pub fn both(scratch: &Scratch, row: &Row, defaults: Defaults) -> (PathBuf, PathBuf) {
    let &(size, words, extended) = row;
    println!("{} KiB {words} -E {extended}", size >> 10);
    let (theirs, ours, config_file) = (scratch.file("theirs"), scratch.file("ours"), scratch.file("conf"));
    for path in [&theirs, &ours] {
        File::create(path).unwrap().set_len(size).unwrap();
    }
    std::fs::write(&config_file, config(defaults)).unwrap();
    let mut command = oracle::command("mke2fs");
    command.env("MKE2FS_CONFIG", &config_file).env("E2FSPROGS_FAKE_TIME", TIME.to_string());
    if !words.contains("-t ") {
        command.args(["-t", "ext4"]);
    }
    command.args(["-q", "-F", "-U", UUID, "-E", &[SEED, extended].join(",")]);
    oracle::run(command.args(words.split_whitespace()).arg(&theirs));
    format(&*open(&ours), &options(words, extended, defaults))
        .unwrap_or_else(|error| panic!("{row:?}: {error}"));
    (theirs, ours)
}

/// The runs of a file that are no holes, in pages.
fn pages(file: &File) -> std::collections::BTreeSet<u64> {
    use rustix::fs::{SeekFrom, seek};
    let (mut pages, mut at) = (std::collections::BTreeSet::new(), 0);
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(start)).unwrap();
        pages.extend(start / 4096..at.div_ceil(4096));
    }
    pages
}

/// Takes what may differ out of a kilobyte that is a superblock.
pub fn without_freedom(bytes: &mut [u8]) {
    if bytes.len() < 1024 || bytes[0x38..0x3A] != [0x53, 0xEF] {
        return;
    }
    // KiB written, and the checksum over them.
    bytes[0x178..0x180].fill(0);
    bytes[0x3FC..].fill(0);
}

/// The first byte that is not the same, apart from what may differ.
fn first_difference(theirs: &Path, ours: &Path) -> Option<u64> {
    let (theirs, ours) = (File::open(theirs).unwrap(), File::open(ours).unwrap());
    assert_eq!(theirs.metadata().unwrap().len(), ours.metadata().unwrap().len());
    for page in pages(&theirs).union(&pages(&ours)) {
        let (mut left, mut right) = (vec![0; 4096], vec![0; 4096]);
        let count = theirs.read_at(&mut left, page * 4096).unwrap();
        assert_eq!(ours.read_at(&mut right, page * 4096).unwrap(), count);
        for (number, (left, right)) in left.chunks_mut(1024).zip(right.chunks_mut(1024)).enumerate() {
            without_freedom(left);
            without_freedom(right);
            let at = left.iter().zip(&*right).position(|(left, right)| left != right);
            if let Some(at) = at {
                return Some(page * 4096 + number as u64 * 1024 + at as u64);
            }
        }
    }
    None
}

/// What dumpe2fs says of a volume, apart from what may differ.
pub fn dump(path: &Path) -> String {
    let text = oracle::run(oracle::command("dumpe2fs").arg(path));
    let free = ["Lifetime writes", "Checksum:", "    mmp_", "Group 0: "];
    let kept = text.lines().filter(|line| !free.iter().any(|free| line.starts_with(free)));
    kept.collect::<Vec<_>>().join("\n")
}

/// Volumes of these rows are sound, and `differ` finds no difference between them and those of mke2fs.
fn compare(rows: &[Row], defaults: Defaults, differ: impl Fn(&Path, &Path) -> Option<String>) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    let mut wrong = Vec::new();
    for row in rows {
        let scratch = Scratch::new(1 << 30);
        let (theirs, ours) = both(&scratch, row, defaults);
        wrong.extend(differ(&theirs, &ours).map(|difference| format!("{row:?}: {difference}")));
        e2fsck_clean(&ours);
        Volume::open(ours.as_path(), VolumeOptions::read_only()).unwrap().read_dir("/lost+found").unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The volumes are the same, byte for byte but for what may differ.
pub fn equal(rows: &[Row], defaults: Defaults) {
    compare(rows, defaults, |theirs, ours| first_difference(theirs, ours).map(|byte| format!("byte {byte}")));
}

/// dumpe2fs says the same of both volumes, and the quotas in them are the same.
pub fn alike(rows: &[Row], defaults: Defaults) {
    let quotas = |path: &Path| {
        let superblock = oracle::dumpe2fs(path, &["-h"]);
        let inodes = superblock.lines().filter(|line| line.contains(" quota inode:"));
        let numbers = inodes.filter_map(|line| line.split_whitespace().last());
        numbers.map(|inode| debugfs_bytes(path, &format!("cat <{inode}>"))).collect::<Vec<_>>()
    };
    compare(rows, defaults, |theirs, ours| {
        let (left, right) = (dump(theirs), dump(ours));
        let line = left.lines().zip(right.lines()).find(|(left, right)| left != right);
        let line = line.map(|(left, right)| format!("`{left}` and not `{right}`"));
        let quota = (quotas(theirs) != quotas(ours)).then(|| "quotas".to_owned());
        line.or_else(|| (left != right).then(|| "more lines".to_owned())).or(quota)
    });
}

fn debugfs_bytes(path: &Path, request: &str) -> Vec<u8> {
    let output = oracle::command("debugfs").args(["-R", request]).arg(path).output().unwrap();
    assert!(output.status.success(), "{request}: {}", oracle::text(&output));
    output.stdout
}
