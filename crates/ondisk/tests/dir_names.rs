//! Names in a block of a directory: which one is found, and which are refused, of every length and wherever they
//! differ.

use uext4_ondisk::ext4::{DirBlock, DirBlockKind, DirFormat, encode_dir_entry, entry_length};
use uext4_ondisk::{CorruptKind, Ino};

/// More than two words of eight bytes, and a rest.
const LENGTHS: std::ops::RangeInclusive<usize> = 1..=37;
const FORMAT: DirFormat =
    DirFormat { block_size: 1024, checksums: false, file_types: true, inodes_count: 100, large_dir: false };

/// A block with these names, of inodes 11, 12 and so on.
fn block(names: &[&[u8]]) -> Vec<u8> {
    let (mut bytes, mut at) = (vec![0; 1024], 0);
    for (name, ino) in names.iter().zip(11..) {
        let least = entry_length(name.len() as u8);
        let length = if ino - 10 == names.len() as u32 { 1024 - at } else { least };
        encode_dir_entry(&mut bytes, at, length, Some(Ino(ino)), name, None, &FORMAT).unwrap();
        at += length;
    }
    bytes
}

/// The inode that a name leads to; 0 if there is no such name.
fn find(block: &[u8], name: &[u8]) -> Result<u32, CorruptKind> {
    let block = DirBlock::new(block, DirBlockKind::Linear, &FORMAT).unwrap();
    block.find(name).map(|found| found.map_or(0, |found| found.inode.get())).map_err(|fault| fault.kind)
}

#[test]
fn names_that_differ_in_one_byte_are_told_apart() {
    for length in LENGTHS {
        let name: Vec<u8> = (0..length).map(|at| b'A' + at as u8).collect();
        let (longer, shorter) = ([&name[..], b"x"].concat(), &name[..length - 1]);
        for at in 0..length {
            let mut other = name.clone();
            other[at] ^= 0x80;
            let bytes = block(&[&other, &name]);
            assert_eq!(find(&bytes, &other), Ok(11), "{length}, {at}");
            assert_eq!(find(&bytes, &name), Ok(12), "{length}, {at}");
            let bytes = block(&[&other]);
            for absent in [&name[..], &longer, shorter] {
                assert_eq!(find(&bytes, absent), Ok(0), "{length}, {at}");
            }
        }
        let [bytes, behind] = [[&longer[..], &name], [&name, &longer]].map(|names| block(&names));
        assert_eq!((find(&bytes, &name), find(&bytes, &longer)), (Ok(12), Ok(11)), "{length}");
        assert_eq!((find(&behind, &name), find(&behind, &longer)), (Ok(11), Ok(12)), "{length}");
    }
}

/// Also beside bytes that a borrow or a carry of a comparison by words would reach.
#[test]
fn a_name_with_a_slash_or_a_nul_is_refused_wherever_it_is() {
    for length in LENGTHS {
        for filling in [1, b'.', b'0', b'a', 0x7f, 0x80, 0xaf, 0xff] {
            let name = vec![filling; length];
            let bytes = block(&[&name, b"other"]);
            assert_eq!(find(&bytes, b"other"), Ok(12), "{length} of {filling}");
            for (at, hostile) in (0..length).flat_map(|at| [(at, 0), (at, b'/')]) {
                let mut name = name.clone();
                name[at] = hostile;
                let bytes = block(&[&name, b"other"]);
                let what = format!("{hostile} at {at} of {length} of {filling}");
                assert_eq!(find(&bytes, b"other"), Err(CorruptKind::DirEntryName), "{what}");
                assert_eq!(find(&bytes, &name), Err(CorruptKind::DirEntryName), "{what}");
                let block = DirBlock::new(&bytes, DirBlockKind::Linear, &FORMAT).unwrap();
                assert!(!block.entries().next().unwrap().unwrap().has_valid_name(), "{what}");
            }
        }
    }
}
