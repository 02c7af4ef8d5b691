//! Compressed clusters.

use super::header::Compression;
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::Read;

/// Largest window of a zstd frame, bytes: no cluster is larger, and its window need not be.
const WINDOW_MAX: u64 = 8 << 20;

/// The cluster that `bytes` begin with. What follows it does not matter.
pub(super) fn inflate(how: Compression, bytes: &[u8], cluster: usize) -> Result<Box<[u8]>, &'static str> {
    let mut out = vec![0; cluster].into_boxed_slice();
    match how {
        Compression::Deflate => deflate(bytes, &mut out)?,
        Compression::Zstd => zstd(bytes, &mut out)?,
    }
    Ok(out)
}

fn deflate(bytes: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let mut stream = Decompress::new(false);
    let status = stream.decompress(bytes, out, FlushDecompress::Finish);
    let whole = stream.total_out() == out.len() as u64;
    match status {
        // Full is full, whether or not the end was seen.
        Ok(Status::StreamEnd | Status::BufError | Status::Ok) if whole => Ok(()),
        Ok(_) => Err("its compressed data ends too early"),
        Err(_) => Err("its compressed data is none"),
    }
}

fn zstd(bytes: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let mut from = bytes;
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW_MAX);
    let none = "its compressed data is none";
    decoder.init(&mut from).map_err(|_| none)?;
    let mut filled = 0;
    while filled < out.len() {
        if decoder.can_collect() == 0 {
            if decoder.is_finished() {
                return Err("its compressed data ends too early");
            }
            let one = BlockDecodingStrategy::UptoBlocks(1);
            decoder.decode_blocks(&mut from, one).map_err(|_| none)?;
            continue;
        }
        let count = decoder.read(&mut out[filled..]).map_err(|_| none)?;
        if count == 0 {
            return Err("its compressed data ends too early");
        }
        filled += count;
    }
    Ok(())
}
