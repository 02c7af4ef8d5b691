//! Volumes made with the same options by us and by mke2fs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::DeviceSpec;
use uext4::device::{self, Device};
use uext4::mkfs::{Defaults, Options, format, parse_uuid};
use uext4_testkit::{Scratch, oracle};

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
         inode_ratio = 16384\n[fs_types]\next4 = {{\nfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,\
         64bit,dir_nlink,extra_isize{more}\n}}\nsmall = {{\nblocksize = 1024\ninode_ratio = 4096\n}}\n\
         floppy = {{\nblocksize = 1024\ninode_ratio = 8192\n}}\nbig = {{\ninode_ratio = 32768\n}}\n\
         huge = {{\ninode_ratio = 65536\n}}\n"
    )
}

/// One volume: bytes, options as words, extended options.
pub type Row = (u64, &'static str, &'static str);

pub fn options(words: &str, extended: &str, defaults: Defaults) -> Options {
    let mut options = Options::new(defaults);
    options.uuid = parse_uuid(UUID);
    options.time = Some(TIME);
    let mut words = words.split_whitespace();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match name {
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
    command.args(["-q", "-F", "-t", "ext4", "-U", UUID, "-E", &[SEED, extended].join(",")]);
    oracle::run(command.args(words.split_whitespace()).arg(&theirs));
    format(&*open(&ours), &options(words, extended, defaults))
        .unwrap_or_else(|error| panic!("{row:?}: {error}"));
    (theirs, ours)
}
