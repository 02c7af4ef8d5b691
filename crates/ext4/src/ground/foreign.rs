//! What a device holds instead of an ext2, ext3 or ext4 volume: names for the error message.

use std::fmt;
use uext4_blockdev::partition::Scheme;

/// What a device, or a partition of it, looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// A file system, swap space or a container of volumes, by its usual name (`XFS`, `Linux swap`, `LUKS`).
    Volume(&'static str),
    /// A file of this format: a compressed file, an archive, a virtual disk.
    File {
        /// The name of the format.
        name: String,
        /// What converts it to a raw image, if anything does.
        hint: Option<&'static str>,
    },
    /// Nothing but zeros in this many bytes at the start.
    Zeros(u64),
    /// Nothing known.
    Unknown,
}

/// What is on a device instead of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// A single file system, file or nothing known.
    Contents(Contents),
    /// A disk with partitions.
    Partitions {
        /// The kind of partition table.
        scheme: Scheme,
        /// Number, bytes and contents of the first usable partitions.
        partitions: Vec<(u32, u64, Contents)>,
        /// How many more partitions there are, not examined.
        more: usize,
    },
    /// A device of this many bytes: too small for a superblock.
    TooShort(u64),
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contents::Volume(name) => f.write_str(name),
            Contents::File { name, hint: None } => f.write_str(name),
            Contents::File { name, hint: Some(hint) } => write!(f, "{name} ({hint})"),
            Contents::Zeros(_) => f.write_str("empty"),
            Contents::Unknown => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Foreign::Contents(Contents::Zeros(bytes)) => write!(f, "its first {} are zeros", Bytes(*bytes)),
            Foreign::Contents(Contents::Unknown) => f.write_str(
                "it has no superblock, and nothing else known (if it was one, `e2fsck -b 32768` may find a copy)",
            ),
            Foreign::Contents(contents) => write!(f, "it looks like {contents}"),
            Foreign::TooShort(bytes) => write!(f, "it has {bytes} bytes, too few for a superblock"),
            Foreign::Partitions { scheme, partitions, more } => {
                let scheme = match scheme {
                    Scheme::Mbr => "MBR",
                    Scheme::Gpt => "GPT",
                };
                write!(f, "it looks like a disk with a partition table ({scheme})")?;
                if partitions.is_empty() {
                    return f.write_str(", without a partition that can be used (is the image whole?)");
                }
                f.write_str(": ")?;
                for (number, bytes, contents) in partitions {
                    write!(f, "{number} ({}, {contents}), ", Bytes(*bytes))?;
                }
                if *more > 0 {
                    write!(f, "{more} more, ")?;
                }
                f.write_str("to be chosen with `?partition=N`")
            }
        }
    }
}

/// An amount in readable units: `512 bytes`, `1.5 MiB`, `3 GiB`.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let power = (self.0.max(1).ilog2() / 10).min(4);
        let Some(unit) = power.checked_sub(1).and_then(|index| UNITS.get(index as usize)) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> (10 * power);
        match tenths % 10 {
            0 => write!(f, "{} {unit}", tenths / 10),
            tenth => write!(f, "{}.{tenth} {unit}", tenths / 10),
        }
    }
}
