//! Reads and writes of any bytes against a model in memory.

use crate::common;

use common::sample::{DATA_SIZE, FRAG_SIZE, SPARSE_PAIRS, TAIL_SIZE, expected, sample, sample_with};
use common::{Image, aligned, assert_same_bytes, open_rw, patterned, read_all, read_write};
use proptest::prelude::*;
use uext4::{Switches, Volume, VolumeOptions, WriteFlags};

const FILES: [(&str, u64); 4] =
    [("/data", DATA_SIZE), ("/frag", FRAG_SIZE), ("/tail", TAIL_SIZE), ("/sparse", SPARSE_PAIRS * 8192)];

#[derive(Debug, Clone)]
struct Op {
    file: usize,
    write: bool,
    pos: u64,
    length: usize,
    /// Offset of the memory from an aligned address.
    skew: usize,
    flags: u8,
}

prop_compose! {
    fn op()(
        file in 0..FILES.len(),
        write in any::<bool>(),
        // Often near the boundaries of sectors and blocks, and past the end.
        unit in prop::sample::select(vec![1u64, 512, 4096, 8192]),
        units in 0u64..300,
        delta in -3i64..=3,
        length in prop_oneof![0usize..20, 500usize..530, 4090usize..4110, 0usize..70_000],
        skew in prop_oneof![Just(0usize), 0usize..4096],
        flags in 0u8..4,
    ) -> Op {
        let pos = (unit * units).saturating_add_signed(delta);
        Op { file, write, pos, length, skew, flags }
    }
}

fn apply(volume: &Volume, model: &mut [Vec<u8>], number: u64, op: &Op) {
    let (name, size) = (FILES[op.file].0, model[op.file].len() as u64);
    let file = volume.open_file(name, read_write()).unwrap();
    let mut memory = aligned(op.skew + op.length);
    if !op.write {
        memory.fill(0xee);
        let part = &mut memory[op.skew..];
        let read = file.read_any_at(part, op.pos).unwrap();
        assert_eq!(read as u64, size.saturating_sub(op.pos).min(op.length as u64));
        let start = op.pos.min(size) as usize;
        assert_same_bytes(&model[op.file][start..start + read], &part[..read]);
        return;
    }
    memory[op.skew..].copy_from_slice(&patterned(1000 + number, op.pos, op.length));
    let flags = WriteFlags::from_bits_truncate(op.flags);
    let written = file.write_any_at(&memory[op.skew..], op.pos, flags);
    assert_eq!(written.unwrap(), op.length, "{op:?}");
    if op.length > 0 {
        let (start, bytes) = (op.pos as usize, &mut model[op.file]);
        bytes.resize(bytes.len().max(start + op.length), 0);
        bytes[start..start + op.length].copy_from_slice(&memory[op.skew..]);
    }
}

fn run(image: &Image, switches: u8, ops: &[Op]) {
    let options = VolumeOptions::read_write().switches(Switches::from_bits(switches));
    let volume = Volume::open_device(image.device(), options).unwrap();
    let mut model: Vec<Vec<u8>> = FILES.iter().map(|(name, _)| expected(name)).collect();
    for (number, op) in ops.iter().enumerate() {
        apply(&volume, &mut model, number as u64, op);
    }
    for ((name, _), bytes) in FILES.iter().zip(&model) {
        assert_same_bytes(bytes, &read_all(&volume.open_file(name, read_write()).unwrap()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_behave_like_the_model(
        ops in prop::collection::vec(op(), 1..60),
        switches in 0u8..32,
        small_blocks in any::<bool>(),
    ) {
        let image = if small_blocks { sample_with(1024, &[]) } else { sample() };
        run(&image, switches, &ops);
    }
}

#[test]
fn io_adaptors_read_write_and_seek() {
    use std::io::{Read, Seek, SeekFrom, Write};
    let volume = open_rw(sample().device());
    let mut model = expected("/tail");
    let mut cursor = volume.open_file("/tail", read_write()).unwrap().cursor();
    let mut bytes = Vec::new();
    cursor.read_to_end(&mut bytes).unwrap();
    assert_same_bytes(&model, &bytes);
    assert_eq!(cursor.seek(SeekFrom::End(-10)).unwrap(), TAIL_SIZE - 10);
    cursor.write_all(b"0123456789").unwrap();
    model[TAIL_SIZE as usize - 10..].copy_from_slice(b"0123456789");
    cursor.write_all(b"x").unwrap();
    model.push(b'x');
    assert_eq!(cursor.seek(SeekFrom::Current(-4)).unwrap(), TAIL_SIZE - 3);
    let mut rest = String::new();
    cursor.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "789x");
    assert!(cursor.seek(SeekFrom::Current(-20_000)).is_err());
    assert_eq!(cursor.seek(SeekFrom::Start(5)).unwrap(), 5);
    cursor.write_all(&[0; 600]).unwrap();
    model[5..605].fill(0);
    assert_same_bytes(&model, &read_all(&volume.open_file("/tail", read_write()).unwrap()));

    // Holes are found without reading them.
    let mut sparse = volume.open_file("/sparse", read_write()).unwrap().cursor();
    assert_eq!(sparse.hole_end().unwrap(), None);
    sparse.seek(SeekFrom::Start(4096 + 100)).unwrap();
    assert_eq!(sparse.hole_end().unwrap(), Some(8192));
    sparse.seek(SeekFrom::Start(SPARSE_PAIRS * 8192 - 1)).unwrap();
    assert_eq!(sparse.hole_end().unwrap(), Some(SPARSE_PAIRS * 8192));
}

#[test]
fn maps_cover_files_without_gaps() {
    for (block, args) in [(4096, &[][..]), (1024, &["-O", "^metadata_csum"])] {
        let volume = open_rw(sample_with(block, args).device());
        for name in ["/data", "/tail", "/frag", "/mixed", "/sparse"] {
            let file = volume.open_file(name, read_write()).unwrap();
            let mut next = 0;
            for piece in file.map() {
                let piece = piece.unwrap();
                assert!(piece.logical == next && piece.length > 0, "{name}");
                next = piece.end();
            }
            assert_eq!(next, file.size().next_multiple_of(u64::from(block)), "{name}");
        }
        let mut states: Vec<(&str, u64)> = Vec::new();
        for piece in volume.open_file("/mixed", read_write()).unwrap().map().map(Result::unwrap) {
            match states.last_mut() {
                Some((state, length)) if *state == piece.state.name() => *length += piece.length,
                _ => states.push((piece.state.name(), piece.length)),
            }
        }
        assert_eq!(states, [("written", 16 << 10), ("unwritten", 48 << 10), ("hole", 64 << 10)]);
    }
}
