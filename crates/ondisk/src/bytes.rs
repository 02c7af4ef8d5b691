//! Small helpers at the byte border: joining and splitting integers, and reading records out of slices.

use zerocopy::byteorder::{ByteOrder, U16, U32, U64};
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

/// A field of a record: a number in the byte order of the disk, or an array of such.
pub(crate) trait Stored {
    /// What it stands for.
    type Value;
    /// Reads it.
    fn load(self) -> Self::Value;
    /// Overwrites it.
    fn store(&mut self, value: Self::Value);
}

macro_rules! stored_number {
    ($($field:ident => $value:ty),+) => {$(
        impl<O: ByteOrder> Stored for $field<O> {
            type Value = $value;

            fn load(self) -> $value {
                self.get()
            }

            fn store(&mut self, value: $value) {
                self.set(value);
            }
        }
    )+};
}

stored_number!(U16 => u16, U32 => u32, U64 => u64);

impl Stored for u8 {
    type Value = u8;

    fn load(self) -> u8 {
        self
    }

    fn store(&mut self, value: u8) {
        *self = value;
    }
}

impl<T: Stored, const N: usize> Stored for [T; N] {
    type Value = [T::Value; N];

    fn load(self) -> Self::Value {
        self.map(T::load)
    }

    fn store(&mut self, value: Self::Value) {
        self.iter_mut().zip(value).for_each(|(field, value)| field.store(value));
    }
}

/// A value whose fields `same` stand in the record under their own names.
macro_rules! load {
    ($name:ident from $raw:ident { same: $($field:ident),+; $($rest:tt)* }) => {
        $name { $($field: crate::bytes::Stored::load($raw.$field),)+ $($rest)* }
    };
}

/// Writes fields of a value into those of a record that have the same names.
macro_rules! store {
    ($value:ident into $raw:ident { $($field:ident),+ $(,)? }) => {
        $(crate::bytes::Stored::store(&mut $raw.$field, $value.$field);)+
    };
}

pub(crate) use {load, store};

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
