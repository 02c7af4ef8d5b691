//! Entries of the tables: where a cluster is.

/// The entry is the only reference to what it points to.
pub(super) const COPIED: u64 = 1 << 63;
/// The cluster is compressed.
pub(super) const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros.
const ZERO: u64 = 1;
/// The place in the file.
pub(super) const PLACE: u64 = 0x00ff_ffff_ffff_fe00;
/// All subclusters read as zeros.
const ALL_ZEROS: u64 = 0xffff_ffff << 32;
/// Subclusters of a cluster.
pub(super) const SUBCLUSTERS: u64 = 32;

/// Why an entry cannot be used.
pub(super) type Reason = &'static str;

/// What an image has of a cluster or subcluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its bytes, from byte `host` of the data file on. Only a `copied` cluster may be written there.
    Data { host: u64, copied: bool },
    /// Zeros.
    Zero,
    /// Nothing: the backing file has it, or else it is zeros.
    Below,
    /// A compressed cluster, whose entry is this.
    Compressed { word: u64 },
}

/// How entries are read: what the header says of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) cluster_bits: u32,
    /// Entries of a table, as a power of two.
    pub(super) l2_bits: u32,
    pub(super) extended: bool,
    /// Bytes are in another file, each at its own place.
    pub(super) external: bool,
    /// Version 2 has no clusters of zeros.
    pub(super) zeros: bool,
}

impl Shape {
    pub(super) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of the disk that a table is about, as a power of two.
    pub(super) fn table_bits(&self) -> u32 {
        self.l2_bits + self.cluster_bits
    }

    /// Which table, and which of its entries, a byte of the disk belongs to.
    pub(super) fn split(&self, pos: u64) -> (u64, usize) {
        let entry = (pos >> self.cluster_bits) & ((1 << self.l2_bits) - 1);
        (pos >> self.table_bits(), entry as usize)
    }

    /// Words of an entry.
    pub(super) fn entry_words(&self) -> usize {
        if self.extended { 2 } else { 1 }
    }

    /// What a unit has: the cluster, or subcluster `unit` of it. `guest`: where the cluster is on the disk.
    pub(super) fn decode(&self, word: u64, bitmap: u64, unit: u64, guest: u64) -> Result<Kind, Reason> {
        if word & COMPRESSED != 0 {
            return if self.external { Err("a compressed cluster") } else { Ok(Kind::Compressed { word }) };
        }
        let host = word & PLACE;
        if !host.is_multiple_of(self.cluster()) {
            return Err("a place inside a cluster");
        }
        let copied = word & COPIED != 0;
        // In a data file, place 0 is one.
        let placed = host != 0 || (self.external && copied);
        let (allocated, zero) = if self.extended {
            let (allocated, zero) = (bitmap >> unit & 1 != 0, bitmap >> (32 + unit) & 1 != 0);
            if allocated && zero {
                return Err("a subcluster that is allocated and zeros");
            }
            if allocated && !placed {
                return Err("a subcluster without a place");
            }
            (allocated, zero)
        } else {
            (placed, self.zeros && word & ZERO != 0)
        };
        if self.external && placed && host != guest {
            return Err("another place in the data file than on the disk");
        }
        Ok(match (zero, allocated) {
            (true, _) => Kind::Zero,
            (false, true) => Kind::Data { host: host + unit * (self.cluster() / SUBCLUSTERS), copied },
            (false, false) => Kind::Below,
        })
    }

    /// Where the cluster of an entry is, if it has a place, whatever it reads as.
    pub(super) fn place(&self, word: u64) -> Option<u64> {
        let host = word & PLACE;
        let placed = host != 0 || (self.external && word & COPIED != 0);
        (word & COMPRESSED == 0 && placed).then_some(host)
    }

    /// Both words of the entry of a cluster without a place, which reads as zeros (in version 2: as what is below).
    pub(super) fn empty(&self) -> (u64, u64) {
        if self.extended { (0, ALL_ZEROS) } else { (if self.zeros { ZERO } else { 0 }, 0) }
    }

    /// Place and length of the bytes of a compressed cluster. They may end earlier.
    pub(super) fn compressed(&self, word: u64) -> (u64, u64) {
        let bits = 62 - (self.cluster_bits - 8);
        let pos = word & ((1 << bits) - 1);
        let sectors = (word & (COMPRESSED - 1)) >> bits;
        (pos, (sectors + 1) * 512 - pos % 512)
    }

    /// Units of an entry that are decoded by themselves, and the bytes of one.
    pub(super) fn unit(&self) -> u64 {
        if self.extended { self.cluster() / SUBCLUSTERS } else { self.cluster() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Shape =
        Shape { cluster_bits: 16, l2_bits: 13, extended: false, external: false, zeros: true };

    #[test]
    fn entries_mean_what_the_format_says() {
        let decode = |word| PLAIN.decode(word, 0, 0, 0);
        assert_eq!(decode(0), Ok(Kind::Below));
        assert_eq!(decode(COPIED | 0x50000), Ok(Kind::Data { host: 0x50000, copied: true }));
        assert_eq!(decode(0x50000), Ok(Kind::Data { host: 0x50000, copied: false }));
        assert_eq!(decode(COPIED | 0x50001), Ok(Kind::Zero));
        assert_eq!(decode(1), Ok(Kind::Zero));
        assert!(decode(COPIED | 0x50200).is_err());
        let two = Shape { zeros: false, ..PLAIN };
        assert_eq!(two.decode(0x50001, 0, 0, 0), Ok(Kind::Data { host: 0x50000, copied: false }));
        // 64 KiB clusters: 54 bits of place, 8 bits of further sectors.
        let word = COMPRESSED | 3 << 54 | 0x12345;
        assert_eq!(decode(word), Ok(Kind::Compressed { word }));
        assert_eq!(PLAIN.compressed(word), (0x12345, 4 * 512 - 0x145));
    }

    #[test]
    fn subclusters_have_bits_of_their_own() {
        let shape = Shape { extended: true, l2_bits: 12, ..PLAIN };
        let (word, bitmap) = (COPIED | 0x50000, 1 << 3 | 1 << (32 + 4));
        assert_eq!(
            shape.decode(word, bitmap, 3, 0),
            Ok(Kind::Data { host: 0x50000 + 3 * 2048, copied: true })
        );
        assert_eq!(shape.decode(word, bitmap, 4, 0), Ok(Kind::Zero));
        assert_eq!(shape.decode(word, bitmap, 5, 0), Ok(Kind::Below));
        assert!(shape.decode(word, 1 << 3 | 1 << 35, 3, 0).is_err());
        assert!(shape.decode(0, 1 << 3, 3, 0).is_err());
        assert_eq!(shape.split(0x1000_0000 + 0x30000), (1, 3));
    }

    #[test]
    fn a_data_file_has_each_byte_at_its_own_place() {
        let shape = Shape { external: true, ..PLAIN };
        assert_eq!(shape.decode(COPIED, 0, 0, 0), Ok(Kind::Data { host: 0, copied: true }));
        assert_eq!(shape.decode(0, 0, 0, 0), Ok(Kind::Below));
        assert!(shape.decode(COPIED | 0x50000, 0, 0, 0x40000).is_err());
        assert!(shape.decode(COMPRESSED | 0x50000, 0, 0, 0x50000).is_err());
    }
}
