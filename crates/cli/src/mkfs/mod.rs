//! `uext4 mkfs`: creates a volume, empty or with files.

mod digests;
mod files;
mod fit;
mod missing;

use crate::args::{Globals, JsonArgs};
use crate::error::{self, CliError};
use crate::moment;
use crate::open::{OpenHow, device};
use crate::out::Out;
use crate::text;
use clap::{Args, ValueEnum, ValueHint};
use digests::{DigestArgs, JsonHashed, Told};
use files::{Files, Size};
use fit::Fitted;
use missing::Missing;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use uext4::DeviceSpec;
use uext4::Switches;
use uext4::device::{self as devices, Device, Geometry, Locator};
use uext4::mkfs::{self, Defaults, Free, Image, Kind, Made, Options};
use uext4_transfer::IdRange;

/// Numbers of blocks that fit a line.
const BACKUPS_IN_LINE: usize = 8;
/// Bytes of a sector of an image file.
const SECTOR: u32 = 512;

/// Whose defaults.
#[derive(Clone, Copy, ValueEnum)]
pub enum Compat {
    /// Those of upstream e2fsprogs 1.47.
    Upstream,
    /// Those of Debian 12: without metadata_csum_seed and orphan_file.
    Debian12,
}

/// Which zeros of files become holes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sparse {
    /// Those that the sources say are holes.
    Auto,
    /// All whole blocks of zeros; contents are read twice.
    Always,
}

/// The base set of features.
#[derive(Clone, Copy, ValueEnum)]
pub enum Type {
    /// No journal, block pointers.
    Ext2,
    /// A journal, block pointers.
    Ext3,
    /// A journal, extents, checksums.
    Ext4,
}

/// `uext4 mkfs`.
#[derive(Args)]
#[command(after_long_help = "\
Creates the same volume as mke2fs of e2fsprogs 1.47 with the same options. A device with recognized contents is
refused without -F, a device in use always. Nothing is discarded without -E discard; blocks that must read as zeros
are written unless they are holes.

-T takes: floppy, small, default, big, huge, news, largefile, largefile4, hurd.
-E takes: stride=, stripe_width= (blocks), resize= (a size), lazy_itable_init=, lazy_journal_init=, hash_seed=UUID,
root_owner=UID:GID, packed_meta_blocks=, num_backup_sb=, mmp_update_interval=, encoding=utf8, encoding_flags=strict,
orphan_file_size=, quotatype=usrquota:grpquota:prjquota, test_fs, discard, nodiscard, offset= (bytes, or with a unit).
-J takes: size= (MiB, or with a unit), fast_commit_size= (KiB, or with a unit), or device=, a journal that was made with
-O journal_dev, which makes a journal for one volume instead of a volume.
-n prints what would be created, even if the device has contents or is in use; a missing image file is not created,
and is assumed to have sectors of 512 bytes.

-d takes directories and archives of tar (v7, ustar, GNU, pax; plain, gzip or zstd, as the data says), - for one on
standard input, and oci:DIRECTORY[:TAG] for a container's image in an OCI layout, whose digests are checked. Several
are layers: files of later ones take the place of earlier ones, and in images and from the second archive on .wh.NAME
removes NAME, and .wh..wh..opq what lower layers have in its directory. Nothing is left out: a file that cannot be
read, or an archive's path that leads out of the tree, ends the command before anything is written, and each is named.
Inodes are made for all files; without -N there are enough. Contents are written once, each file in one piece.

--verity seals files with fs-verity: the volume has the feature verity and, without -b and -T, blocks of 4096 bytes, and
blocks of that size are hashed; smaller ones if the volume's are (which needs Linux 6.3). --dm-verity hashes the whole
volume with the superblock of veritysetup, and prints the line that opens it: from then on any write to the volume, a
mount for writing too, makes it differ. Salt and UUID of the tree follow from the volume's UUID.

The same UUID and time (--time, or SOURCE_DATE_EPOCH in the environment, seconds since 1970) and the same files make the
same volume, whoever makes it; --hash-seed follows from the UUID. Times of files later than that time become it.")]
pub struct MkfsArgs {
    /// The device. A missing image file is created if SIZE is given.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// Size of the volume in bytes, with k, m, g or t, or `auto`: the smallest one for its files, which has no journal
    /// if it has less than 2048 blocks; the whole device by default.
    #[arg(value_name = "SIZE", value_parser = files::size)]
    pub size: Option<Size>,
    /// The same as an option.
    #[arg(long = "size", value_name = "SIZE", value_parser = files::size, conflicts_with = "size")]
    pub size_option: Option<Size>,
    /// Put these files into the volume; see below. Several are layers.
    #[arg(short = 'd', long = "from", value_name = "DIRECTORY|TAR|-|oci:DIR[:TAG]", value_hint = ValueHint::AnyPath)]
    pub from: Vec<OsString>,
    /// With `auto`, the volume has this much free space: a size, or with % a part of the volume.
    #[arg(long, value_name = "SIZE|N%", value_parser = files::free)]
    pub free: Option<Free>,
    /// Owner and group of all files, instead of those that the sources say.
    #[arg(long, value_name = "UID:GID", requires = "from")]
    pub owner: Option<String>,
    /// Users that become others, in access control lists too: FROM:TO, or COUNT of them from FROM on.
    #[arg(long, value_name = "FROM:TO[:COUNT]", requires = "from")]
    pub user_map: Vec<IdRange>,
    /// The same for groups.
    #[arg(long, value_name = "FROM:TO[:COUNT]", requires = "from")]
    pub group_map: Vec<IdRange>,
    /// What directories' files are in the eyes of fakeroot: a state that `fakeroot -s` saved.
    #[arg(long, value_name = "STATE", requires = "from", value_hint = ValueHint::FilePath)]
    pub fakeroot: Option<PathBuf>,
    /// Owners, permissions, times, devices and links of a manifest (mtree) over those of the files; what only the
    /// manifest has is made.
    #[arg(long, value_name = "MTREE", requires = "from", value_hint = ValueHint::FilePath)]
    pub manifest: Vec<PathBuf>,
    /// Which zeros become holes; auto by default.
    #[arg(long, value_name = "WHEN", requires = "from")]
    pub sparse: Option<Sparse>,
    /// The platform of a container's image that is for several; this machine's by default.
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", requires = "from")]
    pub platform: Option<String>,
    /// A volume that is never written: no journal, nothing reserved, metadata together, and the feature read-only. Its
    /// size is `auto` unless one is given.
    #[arg(long, requires = "from")]
    pub read_only: bool,
    /// Digests.
    #[command(flatten)]
    pub digests: DigestArgs,
    /// The time of all that has none, and the latest one that files have.
    #[arg(long, value_name = "TIME", value_parser = moment::parse_date)]
    pub time: Option<uext4::Time>,
    /// Seed of the hashes of names; by default it follows from a given UUID, and is random otherwise.
    #[arg(long, value_name = "UUID")]
    pub hash_seed: Option<String>,
    /// Where the contents of compressed archives and of pipes wait until they are written; the default is TMPDIR or
    /// /tmp.
    #[arg(long, value_name = "DIRECTORY", requires = "from", value_hint = ValueHint::DirPath)]
    pub spool: Option<PathBuf>,
    /// Whose defaults to use.
    #[arg(long, value_name = "WHOSE", default_value = "upstream")]
    pub compat: Compat,
    /// The base set of features.
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4")]
    pub kind: Type,
    /// Intended use, which sets block size and bytes per inode; by default the volume's size decides.
    #[arg(short = 'T', long = "usage", value_name = "USAGE,…")]
    pub usage: Option<String>,
    /// Block size in bytes: 1024 to 65536; 4096, or 1024 below 512 MiB.
    #[arg(short, long, value_name = "BYTES", value_parser = bytes)]
    pub block_size: Option<u32>,
    /// Cluster size in bytes, with the feature bigalloc; 16 blocks.
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = bytes)]
    pub cluster_size: Option<u32>,
    /// Inode size in bytes; 256.
    #[arg(short = 'I', long, value_name = "BYTES")]
    pub inode_size: Option<u16>,
    /// Bytes of the volume per inode; 16384, or by the volume's size.
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = bytes)]
    pub bytes_per_inode: Option<u32>,
    /// Approximate number of inodes: every group has the same number, a multiple of 8.
    #[arg(short = 'N', long, value_name = "NUMBER")]
    pub inodes: Option<u32>,
    /// Blocks (or clusters) per group: a multiple of 8, from 256 to 8 per byte of a block (the default).
    #[arg(short = 'g', long, value_name = "NUMBER")]
    pub blocks_per_group: Option<u32>,
    /// Groups per flex group, whose metadata is placed together: a power of two; 16.
    #[arg(short = 'G', long, value_name = "NUMBER")]
    pub flex_groups: Option<u32>,
    /// Label, at most 16 bytes.
    #[arg(short = 'L', long)]
    pub label: Option<OsString>,
    /// UUID of the volume: a UUID, `random`, or `clear`.
    #[arg(short = 'U', long, default_value = "random")]
    pub uuid: String,
    /// Features to set, or with ^ to clear, named as in dumpe2fs; `none` clears all.
    #[arg(short = 'O', long = "features", value_name = "FEATURE,…")]
    pub features: Vec<String>,
    /// Extended options; see below.
    #[arg(short = 'E', long = "extended", value_name = "OPTION,…")]
    pub extended: Vec<String>,
    /// Create a journal, also with -t ext2.
    #[arg(short = 'j')]
    pub with_journal: bool,
    /// Create a journal with these options.
    #[arg(short = 'J', long = "journal", value_name = "OPTION,…")]
    pub journal: Vec<String>,
    /// Percentage of the blocks reserved for privileged users; 5.
    #[arg(short = 'm', long, value_name = "PERCENT")]
    pub reserved: Option<f64>,
    /// Proceed even if the device has recognized contents.
    #[arg(short = 'F', long)]
    pub force: bool,
    /// Print what would be created, and write nothing.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print nothing but warnings and errors.
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub quiet: bool,
    /// The output format.
    #[command(flatten)]
    pub form: JsonArgs,
    /// Options of mke2fs that are refused with an explanation.
    #[command(flatten)]
    pub missing: Missing,
}

impl MkfsArgs {
    /// The size that was given.
    fn asked(&self) -> Option<Size> {
        self.size.or(self.size_option)
    }

    /// That size in bytes.
    fn bytes(&self) -> Option<u64> {
        match self.asked() {
            Some(Size::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Whether the files decide the size.
    fn is_auto(&self) -> bool {
        match self.asked() {
            Some(size) => size == Size::Auto,
            None => self.read_only,
        }
    }

    /// Refuses what means nothing together.
    fn check(&self) -> Result<(), CliError> {
        if self.is_auto() && self.from.is_empty() {
            return Err(CliError::usage("the size `auto` is that of files: name them with -d"));
        }
        if self.free.is_some() && !self.is_auto() {
            return Err(CliError::usage("--free is for the size `auto`"));
        }
        Ok(())
    }
}

/// Requires a unit: a bare number would be bytes here and KiB for mke2fs.
fn size(text: &str) -> Result<u64, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{text}` has no unit: mke2fs would read it as {text}k"));
    }
    text::parse_size(text)
}

fn bytes(text: &str) -> Result<u32, String> {
    u32::try_from(text::parse_size(text)?).map_err(|_| format!("`{text}` is too large"))
}

#[derive(Serialize)]
struct JsonJournal {
    created: bool,
    uuid: String,
    block_size: u32,
    blocks: u32,
}

#[derive(Serialize)]
struct JsonMade<'a> {
    created: bool,
    dry_run: bool,
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
    /// Blocks with copies of the superblock.
    backups: Vec<u64>,
    features: Vec<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dm_verity: Option<JsonHashed<'a>>,
}

/// Runs it.
pub fn run(args: &MkfsArgs, globals: &Globals) -> Result<(), CliError> {
    args.missing.refuse()?;
    args.check()?;
    let mut spec = device(&args.device)?;
    let failed = |error: mkfs::Error| told(&args.device, error);
    let mut options = options(args).map_err(failed)?;
    if let Some(offset) = options.take_offset() {
        begin_at(&mut spec, offset)?;
    }
    if options.is_journal() {
        return make_journal(args, &spec, &options, globals);
    }
    let journal = options.take_journal_device();
    if journal.is_some() && !args.from.is_empty() {
        return Err(CliError::usage("-d with -J device=: make the volume first, then copy into it with cp"));
    }
    let mut files = Files::gather(args, &spec, (&options, room(args, &spec)), globals)?;
    if let Some(files) = &mut files {
        args.digests.seal(files.tree_mut(), globals)?;
        let geometry = geometry(&spec)?;
        if !args.digests.verity.is_empty() && args.usage.is_none() {
            options.block_size.get_or_insert(digests::BLOCK.max(geometry.logical_block));
        }
        options = files.sized(args, geometry, options).map_err(failed)?;
    }
    let volume = NewVolume { args, spec: &spec, options: &options, journal, files: files.as_ref(), globals };
    let (made, created, hashed) = match args.dry_run {
        true => (volume.dry_run()?, false, None),
        false => volume.make()?,
    };
    let name = text::visible(args.device.as_bytes());
    if made.without_journal && !args.is_auto() {
        error::warn(&globals.command, globals.json, &name, "too small for a journal: it has none");
    }
    if args.quiet {
        return Ok(());
    }
    let mut out = Out::new();
    if globals.json {
        out.json(&JsonMade { dm_verity: hashed.as_ref().map(Told::json), ..json(&made, created, args) })?;
    } else {
        print(&mut out, &name, &made, args)?;
        hashed.map_or(Ok(()), |hashed| hashed.print(&mut out, &spec))?;
    }
    out.finish()
}

/// A volume that is to be made.
struct NewVolume<'a> {
    args: &'a MkfsArgs,
    spec: &'a DeviceSpec,
    options: &'a Options,
    /// The device of its journal, as it was named.
    journal: Option<String>,
    files: Option<&'a Files>,
    globals: &'a Globals,
}

impl NewVolume<'_> {
    /// Makes it. Also returns whether its image file was created.
    fn make(&self) -> Result<(Made, bool, Option<Told>), CliError> {
        let NewVolume { args, spec, options, globals, .. } = *self;
        let failed = |error: mkfs::Error| told(&args.device, error);
        let hashed = args.digests.hashed(args, spec, (options, self.files))?;
        let length = hashed.as_ref().and_then(|hashed| hashed.end()).or(options.size);
        let image = Image::create(spec, length).map_err(failed)?;
        let how = OpenHow { write: true, ..OpenHow::reading(globals, false, Switches::ON) };
        let open = || how.open_device(spec).map_err(|error| CliError::at(&args.device, error));
        let mut fitted = None;
        if let Some(wanted) = length.filter(|_| args.is_auto() && !image.is_new()) {
            // The length of a file that is in use, or holds something, stays as it is.
            let device = open()?;
            if !args.force {
                mkfs::refuse_occupied(&*device).map_err(failed)?;
            }
            drop(device);
            fitted = Fitted::grow(spec, wanted)?;
        }
        let opened = open()?;
        let hashes = hashed.as_ref().map(|hashed| hashed.open(args, &*opened, &how)).transpose()?;
        let made = match self.files {
            Some(files) => mkfs::format_tree(&*opened, options, files.tree(), files),
            None => format(&*opened, self.journal.as_deref(), options, &how),
        };
        let made = made.map_err(failed)?;
        let created = image.is_new();
        image.keep();
        let hash = |(hashed, file): (digests::Hashed, _)| hashed.make(args, &*opened, &made.superblock, file);
        let told = hashed.zip(hashes).map(hash).transpose()?;
        drop(opened);
        fitted.map_or(Ok(()), Fitted::keep)?;
        Ok((made, created, told))
    }

    /// What would be made. Opens the device even if it is in use, since the contents do not matter.
    fn dry_run(&self) -> Result<Made, CliError> {
        let NewVolume { args, spec, options, globals, .. } = *self;
        let failed = |error: mkfs::Error| told(&args.device, error);
        args.digests.hashed(args, spec, (options, self.files))?;
        let geometry = match Image::would_be(spec, options.size).map_err(failed)? {
            Some(geometry) => geometry,
            None => {
                let how = OpenHow::reading(globals, true, Switches::ON);
                how.open_device(spec).map_err(|error| CliError::at(&args.device, error))?.geometry()
            }
        };
        match self.files {
            Some(files) => mkfs::dry_run_tree(geometry, options, files.tree()).map_err(failed),
            None => mkfs::dry_run(geometry, options).map_err(failed),
        }
    }
}

/// Bytes that the files of a volume can take, if that is known before: an archive that is larger is not read on.
fn room(args: &MkfsArgs, spec: &DeviceSpec) -> Option<u64> {
    if args.is_auto() {
        return None;
    }
    args.bytes().or_else(|| geometry(spec).ok().map(|geometry| geometry.size).filter(|size| *size > 0))
}

/// The geometry of the device, even if it is in use; that of a usual one if it does not exist yet.
fn geometry(spec: &DeviceSpec) -> Result<Geometry, CliError> {
    let missing = matches!(&spec.locator, Locator::Path(path) if !path.exists());
    if missing {
        return Ok(Geometry { size: 0, logical_block: SECTOR, memory_align: SECTOR });
    }
    let how = devices::OpenOptions { write: false, force: true };
    let opened = devices::open(spec, how).map_err(uext4::Error::from);
    let opened = opened.map_err(|error| CliError::at(OsStr::new(&spec.to_string()), error))?;
    Ok(opened.device.geometry())
}

/// Makes the volume, its journal on another device if one is named.
fn format(
    device: &dyn Device,
    journal: Option<&str>,
    options: &Options,
    how: &OpenHow<'_>,
) -> mkfs::Result<Made> {
    let Some(journal) = journal else { return mkfs::format(device, options) };
    let spec = DeviceSpec::parse(journal).map_err(uext4::Error::from)?;
    // Linux looks for a block device of this number.
    let number = match &spec.locator {
        Locator::Path(path) => {
            rustix::fs::stat(path).ok().filter(is_block_device).map_or(0, |stat| stat.st_rdev)
        }
        _ => 0,
    };
    let opened = how.open_device(&spec)?;
    mkfs::format_with_journal(device, &*opened, number as u32, options)
}

fn is_block_device(stat: &rustix::fs::Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice
}

/// Makes a journal for a volume on another device.
fn make_journal(
    args: &MkfsArgs,
    spec: &DeviceSpec,
    options: &Options,
    globals: &Globals,
) -> Result<(), CliError> {
    let failed = |error: mkfs::Error| told(&args.device, error);
    if args.digests.dm_verity {
        return Err(CliError::usage("--dm-verity with -O journal_dev: a journal alone is not hashed"));
    }
    if args.dry_run {
        return Err(CliError::usage("-n with -O journal_dev: a journal is not previewed"));
    }
    let image = Image::create(spec, args.bytes()).map_err(failed)?;
    let how = OpenHow { write: true, ..OpenHow::reading(globals, false, Switches::ON) };
    let opened = how.open_device(spec).map_err(|error| CliError::at(&args.device, error))?;
    let made = mkfs::format_journal(&*opened, options).map_err(failed)?;
    let created = image.is_new();
    image.keep();
    if args.quiet {
        return Ok(());
    }
    let (blocks, block, uuid) = (made.blocks, made.block_size, text::uuid(&made.uuid));
    let mut out = Out::new();
    if globals.json {
        out.json(&JsonJournal { created, uuid, block_size: block, blocks })?;
    } else {
        let name = text::visible(args.device.as_bytes());
        let size = text::human(f64::from(blocks) * f64::from(block));
        writeln!(out, "{name}: journal of {size}: {blocks} blocks of {block} bytes")?;
        writeln!(out, "UUID {uuid}")?;
    }
    out.finish()
}

/// Makes the device begin at this byte, as `?offset=` does.
fn begin_at(spec: &mut DeviceSpec, offset: u64) -> Result<(), CliError> {
    if spec.options.offset.is_some() || spec.options.partition.is_some() {
        return Err(CliError::usage("-E offset= and ?offset= or ?partition= exclude each other"));
    }
    spec.options.offset = Some(offset);
    Ok(())
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
    options.kind = match args.kind {
        Type::Ext2 => Kind::Ext2,
        Type::Ext3 => Kind::Ext3,
        Type::Ext4 => Kind::Ext4,
    };
    options.size = args.bytes();
    options.block_size = args.block_size;
    options.cluster_size = args.cluster_size;
    options.inode_size = args.inode_size;
    options.inode_ratio = args.bytes_per_inode;
    options.inodes = args.inodes;
    options.group_blocks = args.blocks_per_group;
    options.flex_groups = args.flex_groups;
    options.label = args.label.clone().map(OsString::into_vec).unwrap_or_default();
    options.reserved_percent = args.reserved;
    options.force = args.force;
    options.uuid = match args.uuid.as_str() {
        "random" => None,
        "clear" => Some([0; 16]),
        text => Some(mkfs::parse_uuid(text).ok_or_else(|| option(format!("`{text}` is not a UUID")))?),
    };
    options.time = time(args)?;
    if args.read_only {
        options = options.for_reading();
    }
    if let Some(list) = &args.usage {
        options = options.usage(list)?;
    }
    options = args.features.iter().try_fold(options, |options, list| options.features(list))?;
    if let Some(seed) = hash_seed(args, &options)? {
        options = options.extended(&format!("hash_seed={seed}"))?;
    }
    options = args.extended.iter().try_fold(options, |options, list| options.extended(list))?;
    if args.with_journal {
        options = options.features("has_journal")?;
    }
    args.journal.iter().try_fold(options, |options, list| options.journal(list))
}

/// The time of everything, in seconds since 1970.
fn time(args: &MkfsArgs) -> mkfs::Result<Option<u64>> {
    let option = |text: &str| mkfs::Error::Option(text.into());
    match args.time {
        Some(uext4::Time::At(time)) => {
            let seconds = u64::try_from(time.seconds);
            return seconds.map(Some).map_err(|_| option("--time is before 1970"));
        }
        Some(_) => return Ok(None),
        None => {}
    }
    moment::source_date_epoch().map_err(option)
}

/// The seed of the hashes of names: the given one, or one that follows from a given UUID.
fn hash_seed(args: &MkfsArgs, options: &Options) -> mkfs::Result<Option<String>> {
    if let Some(seed) = &args.hash_seed {
        let known = mkfs::parse_uuid(seed).is_some();
        let bad = || mkfs::Error::Option(format!("`{seed}` is not a UUID"));
        return if known { Ok(Some(seed.clone())) } else { Err(bad()) };
    }
    let of = |uuid: [u8; 16]| {
        let digest = Sha256::new().chain_update(b"hash_seed").chain_update(uuid).finalize();
        let bytes = digest.first_chunk().copied().unwrap_or_default();
        uuid::Builder::from_custom_bytes(bytes).into_uuid().hyphenated().to_string()
    };
    Ok(options.uuid.filter(|uuid| *uuid != [0; 16]).map(of))
}

fn json<'a>(made: &'a Made, created: bool, args: &MkfsArgs) -> JsonMade<'a> {
    let sb = &made.superblock;
    let (label, label_b64) = text::utf8_or_base64(sb.label());
    JsonMade {
        created,
        dry_run: args.dry_run,
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
        backups: made.backups(),
        features: sb.features.names(),
        dm_verity: None,
    }
}

fn print(out: &mut Out, name: &str, made: &Made, args: &MkfsArgs) -> Result<(), CliError> {
    let sb = &made.superblock;
    let geometry = &sb.geometry;
    let (block, blocks) = (geometry.block_size(), geometry.blocks_count());
    let size = text::human(blocks as f64 * f64::from(block));
    let inodes = geometry.inodes_count();
    if args.dry_run {
        writeln!(out, "nothing is written; without -n:")?;
    }
    writeln!(out, "{name}: {size}: {blocks} blocks of {block} bytes, {inodes} inodes")?;
    match made.journal_blocks {
        0 if sb.has_external_journal() => {
            writeln!(out, "journal on another device, UUID {}", text::uuid(&sb.journal.uuid))?;
        }
        0 => writeln!(out, "no journal")?,
        journal => writeln!(out, "journal of {}", text::human(f64::from(journal) * f64::from(block)))?,
    }
    if !(args.dry_run && args.uuid == "random") {
        writeln!(out, "UUID {}", text::uuid(&sb.uuid))?;
    }
    let backups = made.backups();
    for (number, line) in backups.chunks(BACKUPS_IN_LINE).enumerate() {
        let words: Vec<String> = line.iter().map(u64::to_string).collect();
        let start = if number == 0 { "superblock also in blocks" } else { " " };
        writeln!(out, "{start} {}", words.join(" "))?;
    }
    Ok(())
}
