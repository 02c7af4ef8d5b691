//! `uext4 mkfs`: makes a volume.

use crate::args::{Globals, JsonArgs};
use crate::error::{self, CliError};
use crate::open::{How, device};
use crate::out::Out;
use crate::text;
use clap::{Args, ValueEnum, ValueHint};
use serde::Serialize;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use uext4::Switches;
use uext4::mkfs::{self, Defaults, Image, Made, Options};

/// Whose defaults.
#[derive(Clone, Copy, ValueEnum)]
pub enum Compat {
    /// Those of e2fsprogs 1.47 as its authors ship it.
    Upstream,
    /// Those of Debian 12: without metadata_csum_seed and orphan_file.
    Debian12,
}

/// `uext4 mkfs`.
#[derive(Args)]
#[command(after_long_help = "\
Makes what `mke2fs -t ext4` of e2fsprogs 1.47 makes with the same options. A device that holds something known is
refused without -F, one in use always. Nothing is discarded; what must read as zeros is written unless it is a hole.

-E takes: stride=, stripe_width= (blocks), resize= (a size), lazy_itable_init=, lazy_journal_init=, hash_seed=UUID,
root_owner=UID:GID, packed_meta_blocks=, num_backup_sb=, mmp_update_interval=, encoding=utf8, encoding_flags=strict,
orphan_file_size=, test_fs, nodiscard. -J takes: size= (MiB, or with a unit).

The same UUID, hash_seed and time (SOURCE_DATE_EPOCH in the environment, seconds since 1970) make the same volume.")]
pub struct MkfsArgs {
    /// The device. An image file that is not there is created, if SIZE is given.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// Bytes of the volume, with k, m, g or t; the whole device by default.
    #[arg(value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Whose defaults.
    #[arg(long, value_name = "WHOSE", default_value = "upstream")]
    pub compat: Compat,
    /// Bytes of a block: 1024 to 65536; 4096, or 1024 below 512 MiB.
    #[arg(short, long, value_name = "BYTES", value_parser = bytes)]
    pub block_size: Option<u32>,
    /// Bytes of a cluster, with the feature bigalloc; 16 blocks.
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = bytes)]
    pub cluster_size: Option<u32>,
    /// Bytes of an inode; 256.
    #[arg(short = 'I', long, value_name = "BYTES")]
    pub inode_size: Option<u16>,
    /// Bytes of the volume for each inode; 16384, or by the volume's size.
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = bytes)]
    pub bytes_per_inode: Option<u32>,
    /// Inodes, about: every group has as many, a multiple of 8.
    #[arg(short = 'N', long, value_name = "NUMBER")]
    pub inodes: Option<u32>,
    /// Label, at most 16 bytes.
    #[arg(short = 'L', long)]
    pub label: Option<OsString>,
    /// Identity: an UUID, `random`, or `clear`.
    #[arg(short = 'U', long, default_value = "random")]
    pub uuid: String,
    /// Features to set, or with ^ to clear, by the names of dumpe2fs; `none` clears all.
    #[arg(short = 'O', long = "features", value_name = "FEATURE,…")]
    pub features: Vec<String>,
    /// Extended options; see below.
    #[arg(short = 'E', long = "extended", value_name = "OPTION,…")]
    pub extended: Vec<String>,
    /// Options of the journal.
    #[arg(short = 'J', long = "journal", value_name = "OPTION,…")]
    pub journal: Vec<String>,
    /// Percent of the blocks that only the privileged may use; 5.
    #[arg(short = 'm', long, value_name = "PERCENT")]
    pub reserved: Option<f64>,
    /// Go on although the device holds something.
    #[arg(short = 'F', long)]
    pub force: bool,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// A number alone would be bytes here and KiB for mke2fs.
fn size(text: &str) -> Result<u64, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{text}` has no unit: {text}k is what mke2fs would take it for"));
    }
    text::parse_size(text)
}

fn bytes(text: &str) -> Result<u32, String> {
    u32::try_from(text::parse_size(text)?).map_err(|_| format!("`{text}` is too large"))
}

#[derive(Serialize)]
struct JsonMade<'a> {
    created: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_b64: Option<String>,
    uuid: String,
    size: u64,
    block_size: u32,
    blocks: u64,
    reserved_blocks: u64,
    free_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    inode_size: u16,
    groups: u32,
    journal_blocks: u32,
    features: Vec<Cow<'static, str>>,
}

/// Runs it.
pub fn run(args: &MkfsArgs, globals: &Globals) -> Result<(), CliError> {
    let spec = device(&args.device)?;
    let failed = |error: mkfs::Error| told(&args.device, error);
    let options = options(args).map_err(failed)?;
    let image = Image::create(&spec, args.size).map_err(failed)?;
    let how = How { write: true, ..How::reading(globals, false, Switches::ON) };
    let opened = how.open_device(&spec).map_err(|error| CliError::at(&args.device, error))?;
    let made = mkfs::format(&*opened, &options).map_err(failed)?;
    let created = image.is_new();
    image.keep();
    let name = text::visible(args.device.as_bytes());
    if made.without_journal {
        error::warn(&globals.command, globals.json, &name, "too small for a journal: it has none");
    }
    let mut out = Out::new();
    if globals.json {
        out.json(&json(&made, created))?;
    } else {
        print(&mut out, &name, &made)?;
    }
    out.finish()
}

fn told(device: &OsStr, error: mkfs::Error) -> CliError {
    if error.is_usage() {
        return CliError::usage(error.to_string());
    }
    let errno = error.errno();
    match error {
        mkfs::Error::Device(error) => CliError::at(device, error),
        error => CliError::failed(device, error.to_string(), errno),
    }
}

fn options(args: &MkfsArgs) -> mkfs::Result<Options> {
    let option = |text: String| mkfs::Error::Option(text);
    let mut options = Options::new(match args.compat {
        Compat::Upstream => Defaults::Upstream,
        Compat::Debian12 => Defaults::Debian12,
    });
    options.size = args.size;
    options.block_size = args.block_size;
    options.cluster_size = args.cluster_size;
    options.inode_size = args.inode_size;
    options.inode_ratio = args.bytes_per_inode;
    options.inodes = args.inodes;
    options.label = args.label.clone().map(OsString::into_vec).unwrap_or_default();
    options.reserved_percent = args.reserved;
    options.force = args.force;
    options.uuid = match args.uuid.as_str() {
        "random" => None,
        "clear" => Some([0; 16]),
        text => Some(mkfs::parse_uuid(text).ok_or_else(|| option(format!("`{text}` is no UUID")))?),
    };
    if let Some(epoch) = std::env::var_os("SOURCE_DATE_EPOCH") {
        let seconds = epoch.to_str().and_then(|seconds| seconds.parse().ok());
        options.time =
            Some(seconds.ok_or_else(|| option("SOURCE_DATE_EPOCH is no number of seconds".into()))?);
    }
    options = args.features.iter().try_fold(options, |options, list| options.features(list))?;
    options = args.extended.iter().try_fold(options, |options, list| options.extended(list))?;
    args.journal.iter().try_fold(options, |options, list| options.journal(list))
}

fn json(made: &Made, created: bool) -> JsonMade<'_> {
    let sb = &made.superblock;
    let (label, label_b64) = text::utf8_or_base64(sb.label());
    JsonMade {
        created,
        label,
        label_b64,
        uuid: text::uuid(&sb.uuid),
        size: sb.geometry.blocks_count() * u64::from(sb.geometry.block_size()),
        block_size: sb.geometry.block_size(),
        blocks: sb.geometry.blocks_count(),
        reserved_blocks: sb.reserved_blocks,
        free_blocks: sb.free_blocks,
        inodes: sb.geometry.inodes_count(),
        free_inodes: sb.free_inodes,
        inode_size: sb.geometry.inode_size(),
        groups: sb.geometry.group_count(),
        journal_blocks: made.journal_blocks,
        features: sb.features.names(),
    }
}

fn print(out: &mut Out, name: &str, made: &Made) -> Result<(), CliError> {
    let sb = &made.superblock;
    let geometry = &sb.geometry;
    let (block, blocks) = (geometry.block_size(), geometry.blocks_count());
    let size = text::human(blocks as f64 * f64::from(block));
    let inodes = geometry.inodes_count();
    writeln!(out, "{name}: {size}: {blocks} blocks of {block} bytes, {inodes} inodes")?;
    match made.journal_blocks {
        0 => writeln!(out, "no journal")?,
        journal => writeln!(out, "journal of {}", text::human(f64::from(journal) * f64::from(block)))?,
    }
    writeln!(out, "UUID {}", text::uuid(&sb.uuid))
}
