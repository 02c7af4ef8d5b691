//! The options of a new volume, named as in mke2fs.

use super::error::{Error, Result};
use super::kinds::{Defaults, Kind, Usage, usages};
use uext4_ondisk::ext4::{Compat, Features, Incompat, JournalLocation, RoCompat};

/// Options of a new volume. The default is what `mke2fs -t ext4` makes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// Where unset options get their values from.
    pub defaults: Defaults,
    /// The features to start with (`-t`).
    pub kind: Kind,
    /// Size of the volume in bytes; by default the device's.
    pub size: Option<u64>,
    /// Block size in bytes (`-b`).
    pub block_size: Option<u32>,
    /// Cluster size in bytes, with the feature `bigalloc` (`-C`).
    pub cluster_size: Option<u32>,
    /// Inode size in bytes (`-I`).
    pub inode_size: Option<u16>,
    /// Bytes of the volume per inode (`-i`).
    pub inode_ratio: Option<u32>,
    /// Number of inodes (`-N`).
    pub inodes: Option<u32>,
    /// Blocks per group, or clusters with the feature `bigalloc` (`-g`): a multiple of 8, from 256 to 8 × block size in
    /// bytes. By default that maximum.
    pub group_blocks: Option<u32>,
    /// Number of groups whose metadata lies together, with the feature `flex_bg` (`-G`): a power of two; 16 by default.
    pub flex_groups: Option<u32>,
    /// Label, at most 16 bytes (`-L`).
    pub label: Vec<u8>,
    /// UUID (`-U`); random by default.
    pub uuid: Option<[u8; 16]>,
    /// Percentage of blocks reserved for privileged users (`-m`), 0 to 50; 5 by default.
    pub reserved_percent: Option<f64>,
    /// The value of all time stamps, in seconds since 1970; by default the present time.
    pub time: Option<u64>,
    /// Format even if the device holds data.
    pub force: bool,
    /// Usage types (`-T`); by default chosen by the volume's size.
    pub(super) usages: Vec<Usage>,
    /// Features set or cleared, in order (`-O`).
    pub(super) features: Vec<FeatureEdit>,
    /// Options from `-E` and `-J`.
    pub(super) extended: Extended,
}

/// One word of `-O`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeatureEdit {
    /// `none`.
    ClearAll,
    Set(Features),
    Clear(Features),
}

/// Options from `-E` and `-J`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Extended {
    pub(super) stride: u16,
    pub(super) stripe_width: u32,
    pub(super) resize: Option<u64>,
    pub(super) lazy_itable_init: Option<bool>,
    pub(super) lazy_journal_init: bool,
    pub(super) hash_seed: Option<[u8; 16]>,
    pub(super) root_owner: Option<(u32, u32)>,
    pub(super) packed_meta_blocks: bool,
    pub(super) backups: Option<u32>,
    pub(super) mmp_interval: Option<u16>,
    /// An encoding was given: the volume has the feature `casefold`.
    pub(super) encoding: bool,
    pub(super) strict_encoding: Option<bool>,
    pub(super) orphan_file_size: Option<u64>,
    pub(super) test_fs: bool,
    pub(super) journal_size: Option<u64>,
    pub(super) fast_commit_size: Option<u64>,
    /// The device that is to hold the journal, as it was given.
    pub(super) journal_name: Option<String>,
    /// That device, found.
    pub(super) journal: Option<JournalIdentity>,
    pub(super) discard: bool,
    pub(super) offset: Option<u64>,
    /// Quota types: users, groups, projects.
    pub(super) quota_types: Option<Vec<QuotaType>>,
}

/// A journal on a device of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JournalIdentity {
    pub(super) uuid: [u8; 16],
    /// The number of the device.
    pub(super) number: u32,
}

impl JournalIdentity {
    /// What the superblock says.
    pub(super) fn location(self) -> JournalLocation {
        let JournalIdentity { uuid, number } = self;
        JournalLocation { uuid, inode: 0, device: number, backup_type: 0, backup: [0; 17] }
    }
}

/// A quota type (`-E quotatype=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QuotaType {
    Users,
    Groups,
    Projects,
}

/// Options of mke2fs that are not supported, by their names in `-E` and `-J`.
const MISSING: [&str; 8] = [
    "android_sparse",
    "assume_storage_prezeroed",
    "desc_size",
    "desc-size",
    "no_copy_xattrs",
    "revision",
    "root_perms",
    "location",
];

/// Features that a new volume can have.
pub(super) const KNOWN: Features = Features {
    compat: Compat::HAS_JOURNAL
        .union(Compat::EXT_ATTR)
        .union(Compat::RESIZE_INODE)
        .union(Compat::DIR_INDEX)
        .union(Compat::SPARSE_SUPER2)
        .union(Compat::STABLE_INODES)
        .union(Compat::FAST_COMMIT)
        .union(Compat::ORPHAN_FILE),
    incompat: Incompat::FILETYPE
        .union(Incompat::META_BG)
        .union(Incompat::EXTENTS)
        .union(Incompat::BIT64)
        .union(Incompat::MMP)
        .union(Incompat::FLEX_BG)
        .union(Incompat::EA_INODE)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGEDIR)
        .union(Incompat::ENCRYPT)
        .union(Incompat::INLINE_DATA)
        .union(Incompat::CASEFOLD),
    ro_compat: RoCompat::SPARSE_SUPER
        .union(RoCompat::LARGE_FILE)
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::BIGALLOC)
        .union(RoCompat::METADATA_CSUM)
        .union(RoCompat::QUOTA)
        .union(RoCompat::PROJECT)
        .union(RoCompat::VERITY)
        .union(RoCompat::READONLY),
};

/// The feature with this name, as `dumpe2fs` prints it or under another name that mke2fs accepts.
fn feature(name: &str) -> Option<Features> {
    let name = match name {
        "extents" => "extent",
        "uninit_groups" => "uninit_bg",
        other => other,
    };
    let bits = (0..u32::BITS).map(|shift| 1 << shift);
    bits.flat_map(|bit| {
        let none = Features::default();
        [
            Features { compat: Compat::from_bits_retain(bit), ..none },
            Features { incompat: Incompat::from_bits_retain(bit), ..none },
            Features { ro_compat: RoCompat::from_bits_retain(bit), ..none },
        ]
    })
    .find(|candidate| candidate.names().iter().any(|known| known == name))
}

fn is_within(features: Features, known: Features) -> bool {
    known.compat.contains(features.compat)
        && known.incompat.contains(features.incompat)
        && known.ro_compat.contains(features.ro_compat)
}

impl Options {
    /// The options of `mke2fs -t ext4` with these defaults.
    pub fn new(defaults: Defaults) -> Options {
        Options { defaults, ..Options::default() }
    }

    /// Sets the usage types, which otherwise follow from the volume's size: a list as for `mke2fs -T` (`floppy`,
    /// `small`, `default`, `big`, `huge`, `news`, `largefile`, `largefile4`, `hurd`).
    ///
    /// # Errors
    /// [`Error::Option`] naming an unknown type.
    pub fn usage(mut self, list: &str) -> Result<Options> {
        self.usages = usages(list)?;
        Ok(self)
    }

    /// The options of a volume that is never written again: no journal, no orphan file, no room to grow, nothing
    /// reserved, all metadata at the start, and the feature `read-only`, with which Linux mounts it only so. Comes
    /// before [`Options::features`], which can take back each.
    pub fn for_reading(mut self) -> Options {
        let clear = Features {
            compat: Compat::HAS_JOURNAL | Compat::ORPHAN_FILE | Compat::RESIZE_INODE | Compat::FAST_COMMIT,
            ..Features::default()
        };
        let set = Features { ro_compat: RoCompat::READONLY, ..Features::default() };
        self.features.extend([FeatureEdit::Clear(clear), FeatureEdit::Set(set)]);
        self.extended.packed_meta_blocks = self.kind == Kind::Ext4;
        self.reserved_percent.get_or_insert(0.0);
        self
    }

    /// Removes and returns the byte of the device at which the volume starts (`-E offset=`). The caller opens the
    /// device from there on. [`format()`](super::format()) refuses options that still have an offset.
    pub fn take_offset(&mut self) -> Option<u64> {
        self.extended.offset.take()
    }

    /// Removes and returns the device for the journal (`-J device=`), in the device grammar. The caller opens it and
    /// calls [`format_with_journal()`](super::format_with_journal()).
    pub fn take_journal_device(&mut self) -> Option<String> {
        self.extended.journal_name.take()
    }

    /// The quota types given by `quotatype`; users and groups by default.
    pub(super) fn quota_types(&self) -> Vec<QuotaType> {
        let asked = self.extended.quota_types.clone();
        asked.unwrap_or_else(|| vec![QuotaType::Users, QuotaType::Groups])
    }

    /// Sets and clears features: a list of names as for `mke2fs -O`; `^` before a name clears it, `none` clears all.
    ///
    /// # Errors
    /// [`Error::Option`] naming a feature that is unknown or not supported for new volumes.
    pub fn features(mut self, list: &str) -> Result<Options> {
        for word in list.split([',', ' ']).filter(|word| !word.is_empty()) {
            if word == "none" {
                self.features.push(FeatureEdit::ClearAll);
                continue;
            }
            let (name, clear) = match word.strip_prefix('^') {
                Some(name) => (name, true),
                None => (word, false),
            };
            let found = feature(name).ok_or_else(|| Error::Option(format!("unknown feature `{name}`")))?;
            let journal = found.incompat == Incompat::JOURNAL_DEV;
            if !clear && !journal && !is_within(found, KNOWN) {
                return Err(Error::Option(format!("feature `{name}`: not supported for new volumes")));
            }
            self.features.push(if clear { FeatureEdit::Clear(found) } else { FeatureEdit::Set(found) });
        }
        Ok(self)
    }

    /// Takes a list of extended options as for `mke2fs -E`.
    ///
    /// # Errors
    /// [`Error::Option`] naming an option that is unknown, not supported, or has an invalid value.
    pub fn extended(mut self, list: &str) -> Result<Options> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = split(word);
            self.extended.set(key, value)?;
        }
        Ok(self)
    }

    /// Takes a list of journal options as for `mke2fs -J`: `size=` in MiB and `fast_commit_size=` in KiB,
    /// or with a unit, or `device=`, which excludes both.
    ///
    /// # Errors
    /// Those of [`Options::extended`].
    pub fn journal(mut self, list: &str) -> Result<Options> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = split(word);
            match key {
                "size" => self.extended.journal_size = Some(amount(key, value, 1 << 20)?),
                "fast_commit_size" => self.extended.fast_commit_size = Some(amount(key, value, 1 << 10)?),
                "device" => {
                    let name = value.filter(|name| !name.is_empty()).ok_or_else(|| bad(key, "a device"))?;
                    self.extended.journal_name = Some(name.to_owned());
                }
                _ => return Err(unknown("journal option", key)),
            }
        }
        let Extended { journal_name, journal_size, fast_commit_size, .. } = &self.extended;
        if journal_name.is_some() && journal_size.or(*fast_commit_size).is_some() {
            return Err(Error::Option(
                "options `device` and `size` or `fast_commit_size` exclude each other".into(),
            ));
        }
        Ok(self)
    }

    /// The initial features with the edits of `-O` applied.
    pub(super) fn feature_words(&self) -> Features {
        let mut features = self.kind.features(self.defaults);
        for edit in &self.features {
            match *edit {
                FeatureEdit::ClearAll => features = Features::default(),
                FeatureEdit::Set(set) => {
                    features.compat |= set.compat;
                    features.incompat |= set.incompat;
                    features.ro_compat |= set.ro_compat;
                }
                FeatureEdit::Clear(clear) => {
                    features.compat -= clear.compat;
                    features.incompat -= clear.incompat;
                    features.ro_compat -= clear.ro_compat;
                }
            }
        }
        if self.extended.encoding {
            features.incompat |= Incompat::CASEFOLD;
        }
        if self.extended.journal_size.is_some() || self.extended.journal.is_some() {
            features.compat |= Compat::HAS_JOURNAL;
        }
        if self.quota_types().contains(&QuotaType::Projects) {
            features.ro_compat |= RoCompat::PROJECT;
        }
        features
    }
}

impl Extended {
    fn set(&mut self, key: &str, value: Option<&str>) -> Result<()> {
        match key {
            "stride" => self.stride = number(key, value)?,
            "stripe_width" | "stripe-width" => self.stripe_width = number(key, value)?,
            "resize" => self.resize = Some(amount(key, value, 0)?),
            "lazy_itable_init" => self.lazy_itable_init = Some(switch(key, value)?),
            "lazy_journal_init" => self.lazy_journal_init = switch(key, value)?,
            "hash_seed" => {
                let seed = value.and_then(parse_uuid);
                self.hash_seed = Some(seed.ok_or_else(|| bad(key, "an UUID"))?);
            }
            "root_owner" => self.root_owner = Some(owner(value)?),
            "packed_meta_blocks" => self.packed_meta_blocks = switch(key, value)?,
            "num_backup_sb" => {
                let backups = number(key, value).ok().filter(|&backups| backups <= 2_u32);
                self.backups = Some(backups.ok_or_else(|| bad(key, "0, 1 or 2"))?);
            }
            "mmp_update_interval" => {
                let seconds = number(key, value).ok().filter(|&seconds| seconds <= 300_u16);
                self.mmp_interval = Some(seconds.ok_or_else(|| bad(key, "0 to 300 seconds"))?);
            }
            "encoding" => match value {
                Some("utf8" | "utf8-12.1") => self.encoding = true,
                _ => return Err(bad(key, "`utf8`, the only encoding that is defined")),
            },
            "encoding_flags" => match value {
                Some("strict") => self.strict_encoding = Some(true),
                Some("nostrict") => self.strict_encoding = Some(false),
                _ => return Err(bad(key, "`strict` or `nostrict`")),
            },
            "orphan_file_size" => self.orphan_file_size = Some(amount(key, value, 0)?),
            "test_fs" => self.test_fs = true,
            "discard" | "nodiscard" if value.is_some() => return Err(bad(key, "no value")),
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "offset" => {
                let bytes =
                    value.and_then(|text| text.parse().ok()).map_or_else(|| amount(key, value, 0), Ok);
                self.offset = Some(bytes?);
            }
            "quotatype" => self.quota_types = Some(quota_types(value)?),
            _ => return Err(unknown("extended option", key)),
        }
        Ok(())
    }
}

fn split(word: &str) -> (&str, Option<&str>) {
    word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)))
}

fn unknown(what: &str, key: &str) -> Error {
    if MISSING.contains(&key) {
        return Error::Option(format!("{what} `{key}` of mke2fs is not supported"));
    }
    Error::Option(format!("unknown {what} `{key}`"))
}

fn bad(key: &str, needs: &str) -> Error {
    Error::Option(format!("option `{key}` needs {needs}"))
}

fn number<T: std::str::FromStr>(key: &str, value: Option<&str>) -> Result<T> {
    let value = value.filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
    value.and_then(|value| value.parse().ok()).ok_or_else(|| bad(key, "a number"))
}

/// Types separated by colons; `^` before a type removes it.
fn quota_types(value: Option<&str>) -> Result<Vec<QuotaType>> {
    let mut types = Vec::new();
    for word in value.unwrap_or_default().split(':') {
        let kind = match word.trim_start_matches('^') {
            "usr" | "usrquota" => QuotaType::Users,
            "grp" | "grpquota" => QuotaType::Groups,
            "prj" | "prjquota" => QuotaType::Projects,
            _ => return Err(bad("quotatype", "`usrquota`, `grpquota` or `prjquota`, separated by colons")),
        };
        types.retain(|known| *known != kind);
        if !word.starts_with('^') {
            types.push(kind);
        }
    }
    Ok(types)
}

/// Without a value the option is on.
fn switch(key: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err(bad(key, "0 or 1")),
    }
}

/// A size in bytes: a number with a unit (powers of 1024); without a unit, a multiple of `plain` bytes.
fn amount(key: &str, value: Option<&str>, plain: u64) -> Result<u64> {
    let missing = || bad(key, if plain == 0 { "a size with its unit, like 64M" } else { "a size" });
    let value = value.ok_or_else(missing)?;
    let digits = value.trim_end_matches(|end: char| !end.is_ascii_digit());
    let unit = match value[digits.len()..].to_ascii_lowercase().as_str() {
        "" => plain,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => 0,
    };
    let count: u64 = digits.parse().map_err(|_| missing())?;
    count.checked_mul(unit).filter(|&bytes| bytes > 0).ok_or_else(missing)
}

fn owner(value: Option<&str>) -> Result<(u32, u32)> {
    let ids = value.and_then(|value| value.split_once(':'));
    let ids = ids.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    ids.ok_or_else(|| bad("root_owner", "UID:GID, two numbers"))
}

/// Parses a UUID: 32 hexadecimal digits, with hyphens after the eighth, twelfth, sixteenth and twentieth.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let hyphens: Vec<usize> =
        text.bytes().enumerate().filter(|(_, byte)| *byte == b'-').map(|(at, _)| at).collect();
    if hyphens != [8, 13, 18, 23] || text.len() != 36 || !text.is_ascii() {
        return None;
    }
    let digits: String = text.chars().filter(|digit| *digit != '-').collect();
    let mut uuid = [0; 16];
    for (byte, at) in uuid.iter_mut().zip((0..).step_by(2)) {
        let pair =
            digits.get(at..at + 2).filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(uuid)
}
