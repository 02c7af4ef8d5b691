//! Numbers in the order of bytes of the network, which qcow2 has everywhere.
#![allow(clippy::big_endian_bytes, reason = "the one place where the order of qcow2 becomes the machine's")]

/// A number from the bytes of a file.
pub(crate) fn number(bytes: &[u8; 8]) -> u64 {
    u64::from_be_bytes(*bytes)
}

/// The bytes of a number.
pub(crate) fn bytes64(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The bytes of a number.
pub(crate) fn bytes32(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// The bytes of a number.
pub(crate) fn bytes16(number: u16) -> [u8; 2] {
    number.to_be_bytes()
}
