//! What a request costs on a device whose bytes lie elsewhere: in an image.

use std::fmt;

/// What a request costs, as things stand now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// The format of the image.
    pub format: &'static str,
    /// What is done.
    pub way: Way,
}

/// How an image answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One request to the file, at this byte of it.
    Mapped(u64),
    /// It reads as zeros, and nothing is read.
    Zeros,
    /// The backing file has it.
    Below,
    /// A compressed cluster at this byte of the file is read, unless it is in memory.
    Compressed(u64),
    /// It lies in several pieces, or behind the end of the file: read in the submitting call.
    Pieces,
    /// Clusters get a place in the file: how many.
    Allocates {
        /// Clusters.
        clusters: u64,
        /// What the write leaves of them is copied.
        copies: bool,
    },
    /// So many clusters lose their place; of the others the bytes are discarded.
    Frees(u64),
    /// A flush that writes changed tables first.
    Tables,
    /// Done in the submitting call, with requests of its own.
    Inline,
}

impl fmt::Display for Cost {
    /// For example `qcow2: mapped, host offset 327680`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.format)?;
        let many = |count: u64| if count == 1 { "a cluster".to_owned() } else { format!("{count} clusters") };
        match self.way {
            Way::Mapped(host) => write!(f, "mapped, host offset {host}"),
            Way::Zeros => f.write_str("zeros, nothing is read"),
            Way::Below => f.write_str("in the backing file"),
            Way::Compressed(host) => write!(f, "compressed, host offset {host}"),
            Way::Pieces => f.write_str("in pieces"),
            Way::Allocates { clusters, copies: false } => write!(f, "allocates {}", many(clusters)),
            Way::Allocates { clusters, copies: true } => {
                write!(f, "allocates {}, copies what is not written", many(clusters))
            }
            Way::Frees(0) => f.write_str("frees no cluster"),
            Way::Frees(clusters) => write!(f, "frees {}", many(clusters)),
            Way::Tables => f.write_str("writes tables first"),
            Way::Inline => f.write_str("in the submitting call"),
        }
    }
}
