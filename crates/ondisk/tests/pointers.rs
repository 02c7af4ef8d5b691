//! Pointer blocks of indirect maps, and blocks of the orphan file.

use uext4_ondisk::checksum::csum;
use uext4_ondisk::ext4::{IndirectLayout, IndirectRun, OrphanBlock, PointerBlock};
use uext4_ondisk::{CorruptKind, Ino, Lblk, Pblk};

const SIZES: [u32; 7] = [1024, 2048, 4096, 8192, 16384, 32768, 65536];

fn numbers(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn limits_are_those_of_the_format() {
    // 12 + p + p² + p³ blocks, bounded by 32-bit logical block numbers from 8 KiB on.
    let blocks: Vec<u64> = SIZES.iter().map(|&size| IndirectLayout::new(size).blocks()).collect();
    let p = |n: u64| 12 + n + n * n + n * n * n;
    let last = 0xffff_ffff;
    assert_eq!(blocks, [p(256), p(512), p(1024), last, last, last, last]);
    assert_eq!(p(256) * 1024, 17_247_252_480, "the 16 GiB of ext2 with blocks of 1 KiB");
}

#[test]
fn a_path_leads_to_the_block_it_was_asked_for() {
    for size in SIZES {
        let layout = IndirectLayout::new(size);
        let p = u64::from(layout.pointers_per_block());
        assert_eq!(p, u64::from(size) / 4);
        let borders = [12, 12 + p, 12 + p + p * p, layout.blocks()];
        let near =
            borders.iter().flat_map(|&border| (border.saturating_sub(3)..border + 3).chain([border + p]));
        for block in near.chain(0..20).filter(|&block| block < 1 << 32) {
            let found = layout.path(Lblk(block as u32));
            assert_eq!(found.is_some(), block < layout.blocks(), "{block} of blocks of {size}");
            let Some(path) = found else { continue };
            // The inverse, written out.
            let base = if path.depth() == 0 { 0 } else { borders[path.depth() as usize - 1] };
            let within: u64 =
                (1..=path.depth()).map(|level| u64::from(path.index(level)) * p.pow(level - 1)).sum();
            let direct = if path.depth() == 0 { u64::from(path.root_index()) } else { within };
            assert_eq!(base + direct, block, "blocks of {size}");
            assert!((1..=path.depth()).all(|level| u64::from(path.index(level)) < p));
            assert_eq!(path.root_index() >= 12, path.depth() > 0);
            for level in 1..=path.depth() {
                let (first, end) = path.window(level);
                assert!(first <= block && block < end && end - first <= p.pow(level), "level {level}");
                let one = path.window_of(level, path.index(level)..path.index(level) + 1);
                assert!(one.0 <= block && block < one.1 && one.1 - one.0 <= p.pow(level - 1));
            }
        }
        assert_eq!(layout.path(Lblk(u32::MAX)), None);
    }
}

#[test]
fn runs_merge_what_is_contiguous_and_stop_at_the_window() {
    let layout = IndirectLayout::new(1024);
    let mut values = vec![0; 256];
    values[..8].copy_from_slice(&[7, 8, 9, 0, 10, 20, 21, 5]);
    values[254..].copy_from_slice(&[u32::MAX, 0]);
    let bytes = numbers(&values);
    let block = PointerBlock::new(&bytes, layout).unwrap();
    let run =
        |logical, length, physical| IndirectRun { logical: Lblk(logical), length, physical: Pblk(physical) };
    let found: Vec<_> = block.runs((100, 356)).collect();
    let last = run(354, 1, u64::from(u32::MAX));
    assert_eq!(found, [run(100, 3, 7), run(104, 1, 10), run(105, 2, 20), run(107, 1, 5), last]);
    assert_eq!(block.runs((100, 102)).collect::<Vec<_>>(), [run(100, 2, 7)]);
    // At the end of logical block numbers nothing wraps.
    let end = u64::from(u32::MAX);
    assert_eq!(block.runs((end, end + 5)).collect::<Vec<_>>(), [run(u32::MAX, 1, 7)]);
    assert!(PointerBlock::new(&bytes[..1023], layout).is_err());
}

#[test]
fn gaps_reach_to_the_next_number() {
    let layout = IndirectLayout::new(1024);
    let mut values = vec![0; 256];
    values[10] = 1;
    values[20] = 1;
    let bytes = numbers(&values);
    let block = PointerBlock::new(&bytes, layout).unwrap();
    assert_eq!(
        [0, 9, 11, 15, 19, 21, 255].map(|at| block.gap(at)),
        [0..10, 0..10, 11..20, 11..20, 11..20, 21..256, 21..256]
    );
    assert!(block.gap(10).is_empty());
    assert_eq!((block.get(10), block.get(11), block.get(256)), (Some(Pblk(1)), None, None));
}

fn orphans(seed: u32) -> [u8; 1024] {
    let mut bytes = [0; 1024];
    let [entries @ .., _, _, _, _, _, _, _, _] = &mut bytes;
    entries.get_mut(40..44).unwrap().copy_from_slice(&77_u32.to_le_bytes());
    let sum = csum(csum(seed, &5_u64.to_le_bytes()), entries);
    bytes[1016..1020].copy_from_slice(&0x0B10_CA04_u32.to_le_bytes());
    bytes[1020..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn entries_are_read_and_checked() {
    let good = orphans(9);
    let decoded = OrphanBlock::decode(&good, Pblk(5), Some(9)).unwrap();
    assert_eq!(decoded.inodes().collect::<Vec<_>>(), [Ino(77)]);
    let kind = |bytes: &[u8], at, seed| OrphanBlock::decode(bytes, Pblk(at), seed).unwrap_err().kind;
    assert_eq!(kind(&good, 6, Some(9)), CorruptKind::OrphanChecksum);
    assert_eq!(kind(&good, 5, Some(8)), CorruptKind::OrphanChecksum);
    let mut bad = good;
    bad[1016] ^= 1;
    assert_eq!(kind(&bad, 5, None), CorruptKind::OrphanMagic);
    assert_eq!(kind(&good[..7], 5, None), CorruptKind::Truncated("orphan block"));
    assert_eq!(kind(&good[1..], 5, None), CorruptKind::Truncated("orphan block"));
}
