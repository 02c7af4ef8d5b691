//! Positions in a directory listing, as 63-bit numbers that stay valid while names are added and removed.
//!
//! | place | what is there |
//! |---|---|
//! | 0, 1 | `.` and `..` |
//! | 2 + (major hash / 2) · 2³² + minor hash | names in a hash tree, in an inode, or in the first block otherwise |
//! | `OFFSETS` + byte / 4 | the names in the other blocks of a directory without a tree |
//!
//! An existing name keeps its position: in an inode, in the single block of a small directory, and in any leaf of a
//! tree that it may move to. In further blocks of a directory without a tree no name moves, and such a directory never
//! gets a tree. Source: the kernel's `fs/ext4/dir.c` (`hash2pos`), which has the same order for trees.

use super::rows::Shape;
use crate::ground::error::{Error, Result};
use uext4_ondisk::checksum::{CSUM_INIT, csum};
use uext4_ondisk::ext4::{CaseFolder, DirHash, HashVersion, Superblock, dir_hash};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// The first position of a hashed name.
const NAMES: u64 = 2;
/// From here on, positions are offsets. No hash has this major part (`ordered` in `ondisk`), and no entry positioned by
/// its offset lies in the first block.
const OFFSETS: u64 = 0x7FFF_FFFF << 32;

/// A position in a directory listing: returned by [`DirEntry::cookie`](crate::DirEntry::cookie) and
/// [`ReadDir::cookie`](crate::ReadDir::cookie), and taken by [`ReadDir::seek`](crate::ReadDir::seek). It stays valid as
/// long as the directory exists: after names were added and removed, in other listings, and after the volume was closed
/// and opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirCookie(u64);

impl DirCookie {
    /// The beginning of the listing.
    pub const START: DirCookie = DirCookie(0);

    /// The cookie with this number.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number of more than 63 bits, which is never a cookie.
    pub fn from_raw(raw: u64) -> Result<DirCookie> {
        match raw >> 63 {
            0 => Ok(DirCookie(raw)),
            _ => {
                Err(Error::Invalid(format!("{raw:#x} is no place in a directory: it has more than 63 bits")))
            }
        }
    }

    /// Its number, below 2⁶³. 0 is the beginning, 1 is after `.` and 2 after `..`.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The first position listed from here on.
    pub(super) fn place(self) -> Place {
        Place(self.0)
    }
}

/// The position of an entry in the listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

impl Place {
    pub(super) const DOT: Place = Place(0);
    pub(super) const DOT_DOT: Place = Place(1);
    /// The first position of a hashed name.
    pub(super) const NAMES: Place = Place(NAMES);
    /// After all hashed names.
    pub(super) const HASHES_END: Place = Place(OFFSETS + NAMES);
    /// No entry has this position: it would have to fit into four bytes.
    pub(super) const END: Place = Place(u64::MAX >> 1);

    pub(super) fn of_hash(hash: DirHash) -> Place {
        Place(NAMES + (u64::from(hash.major >> 1) << 32) + u64::from(hash.minor))
    }

    /// The position of an entry that begins at this byte of the directory, past its first block. `None` if that is too
    /// far for a cookie.
    pub(super) fn of_byte(byte: u64) -> Option<Place> {
        u32::try_from(byte / 4).ok().map(|fours| Place(OFFSETS + u64::from(fours)))
    }

    /// The major hash of the names that begin here.
    pub(super) fn major(self) -> u32 {
        ((self.0.saturating_sub(NAMES) >> 32) as u32) << 1
    }

    /// The byte of the directory at this position, if positions are offsets here.
    pub(super) fn byte(self) -> Option<u64> {
        (self > Place::HASHES_END).then(|| (self.0 - OFFSETS) * 4)
    }

    /// A cookie that continues with this position.
    pub(super) fn here(self) -> DirCookie {
        DirCookie(self.0)
    }

    /// A cookie that continues after this position.
    pub(super) fn behind(self) -> DirCookie {
        DirCookie(self.0 + 1)
    }
}

/// How the names of a directory are hashed.
pub(super) struct Hasher<'s> {
    version: HashVersion,
    seed: &'s [u32; 4],
    folder: Option<CaseFolder>,
    ino: Ino,
}

impl<'s> Hasher<'s> {
    pub(super) fn new(superblock: &'s Superblock, shape: &Shape, version: HashVersion) -> Hasher<'s> {
        let folder = shape.folds.then(CaseFolder::new);
        Hasher { version, seed: &superblock.hash.seed, folder, ino: shape.ino }
    }

    /// As in the tree that a directory without one gets when it grows. If that hash needs a key or is unknown, the
    /// directory never gets a tree, and any hash will do.
    pub(super) fn of_new_tree(superblock: &'s Superblock, shape: &Shape) -> Hasher<'s> {
        let version = HashVersion::from_disk(superblock.hash.default_version, superblock.hash_unsigned());
        let version = version.filter(|version| *version != HashVersion::SipHash);
        Hasher::new(superblock, shape, version.unwrap_or(HashVersion::HalfMd4))
    }

    /// The hash that orders the names. The legacy hash has no minor part: a checksum of the name replaces it, so that
    /// few names share a position.
    pub(super) fn hash(&mut self, name: &[u8]) -> Result<DirHash> {
        let form = self.folder.as_mut().and_then(|folder| folder.fold(name)).unwrap_or(name);
        let hash = dir_hash(form, self.version, self.seed)
            .map_err(|_| Corrupt::from(CorruptKind::HtreeRoot("hash_version")).in_inode(self.ino))?;
        Ok(match self.version {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => {
                DirHash { minor: csum(CSUM_INIT, form), ..hash }
            }
            _ => hash,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{DirCookie, Place};
    use uext4_ondisk::ext4::DirHash;

    #[test]
    fn all_places_are_below_two_to_the_63_and_no_kind_is_read_as_another() {
        // `ordered` in `ondisk`: the major hash is even, and below 0xFFFF_FFFE.
        let last = Place::of_hash(DirHash { major: 0xFFFF_FFFC, minor: u32::MAX });
        assert!(
            Place::DOT_DOT < Place::NAMES && Place::NAMES == Place::of_hash(DirHash { major: 0, minor: 0 })
        );
        assert!(last.behind() <= Place::HASHES_END.here());
        assert_eq!((last.byte(), last.major()), (None, 0xFFFF_FFFC));
        assert_eq!((Place::HASHES_END.byte(), Place::HASHES_END.major()), (None, 0xFFFF_FFFE));
        // The first entry of the second block of the smallest block size.
        let first = Place::of_byte(1024).unwrap();
        assert!(first > Place::HASHES_END);
        assert_eq!(first.byte(), Some(1024));
        let furthest = Place::of_byte(4 * u64::from(u32::MAX)).unwrap();
        assert_eq!(furthest, Place::END);
        assert_eq!(DirCookie::from_raw(furthest.here().raw()).unwrap(), furthest.here());
        assert_eq!(Place::of_byte(4 << 32), None);
        let wide = DirCookie::from_raw(1 << 63).unwrap_err();
        assert_eq!(wide.errno(), 22, "{wide}");
    }

    #[test]
    fn places_are_in_the_order_of_major_then_minor_hash() {
        let hash = |major, minor| Place::of_hash(DirHash { major, minor });
        let all = [
            hash(0, 0),
            hash(0, 1),
            hash(0, u32::MAX),
            hash(2, 0),
            hash(0x8000_0000, 5),
            hash(0x8000_0002, 4),
        ];
        assert!(all.is_sorted());
        assert!(all.iter().all(|place| Place(place.behind().raw()) > *place));
        assert_eq!(hash(0x8000_0000, 5).major(), 0x8000_0000);
    }
}
