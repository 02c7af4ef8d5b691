//! Small helpers at the byte border: joining and splitting integers, and reading records out of slices.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Corrupt, CorruptKind, EncodeError};

/// `u32` as an index. On a target whose `usize` is narrower the value saturates, so that a following `get`
/// fails.
pub(crate) fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A slice length as `u32`, saturating: records and blocks are at most 64 KiB long.
pub(crate) fn length32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

pub(crate) fn join16(low: u16, high: u16) -> u32 {
    (u32::from(high) << 16) | u32::from(low)
}

pub(crate) fn join32(low: u32, high: u32) -> u64 {
    (u64::from(high) << 32) | u64::from(low)
}

pub(crate) fn low16(value: u32) -> u16 {
    let [a, b, _, _] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

pub(crate) fn high16(value: u32) -> u16 {
    let [_, _, c, d] = value.to_le_bytes();
    u16::from_le_bytes([c, d])
}

pub(crate) fn low32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

pub(crate) fn high32(value: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// `N` bytes at `offset`, if they lie inside `bytes`.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<&[u8; N]> {
    bytes.get(offset..)?.first_chunk::<N>()
}

pub(crate) fn le32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).copied().map(u32::from_le_bytes)
}

/// The record at the start of `bytes`; `structure` names it in the error.
pub(crate) fn record<'a, T>(bytes: &'a [u8], structure: &'static str) -> Result<&'a T, Corrupt>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    match T::ref_from_prefix(bytes) {
        Ok((record, _)) => Ok(record),
        Err(_) => Err(CorruptKind::Truncated(structure).into()),
    }
}

/// The record at the start of `bytes`, to be patched.
pub(crate) fn record_mut<'a, T>(
    bytes: &'a mut [u8],
    structure: &'static str,
) -> Result<&'a mut T, EncodeError>
where
    T: FromBytes + IntoBytes + KnownLayout + Unaligned,
{
    match T::mut_from_prefix(bytes) {
        Ok((record, _)) => Ok(record),
        Err(_) => Err(EncodeError::too_short(structure)),
    }
}

/// Overwrites `value.len()` bytes at `offset`; `structure` names the target in the error.
pub(crate) fn put(
    bytes: &mut [u8],
    offset: usize,
    value: &[u8],
    structure: &'static str,
) -> Result<(), EncodeError> {
    let target = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..value.len()));
    match target {
        Some(target) => {
            target.copy_from_slice(value);
            Ok(())
        }
        None => Err(EncodeError::too_short(structure)),
    }
}
