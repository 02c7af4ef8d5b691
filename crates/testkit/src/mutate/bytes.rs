//! Integers in images. What lies outside reads as 0 and is not written: the mutator must survive its own work.

/// Byte order of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// ext4.
    Little,
    /// jbd2.
    Big,
}

/// The unsigned integer of `width` bytes (1, 2, 4 or 8) at `at`.
pub fn get(bytes: &[u8], at: usize, width: usize, order: Order) -> u64 {
    let Some(field) = at.checked_add(width).and_then(|end| bytes.get(at..end)) else { return 0 };
    let value = |sum, &byte: &u8| (sum << 8) | u64::from(byte);
    match order {
        Order::Little => field.iter().rev().fold(0, value),
        Order::Big => field.iter().fold(0, value),
    }
}

/// Writes the low `width` bytes of `value` at `at`.
pub fn put(bytes: &mut [u8], at: usize, width: usize, order: Order, value: u64) {
    let Some(field) = at.checked_add(width).and_then(|end| bytes.get_mut(at..end)) else { return };
    for (index, byte) in field.iter_mut().enumerate() {
        let place = if order == Order::Little { index } else { width - 1 - index };
        *byte = (value >> (8 * place)) as u8;
    }
}

/// Little-endian, 16 bits.
pub fn le16(bytes: &[u8], at: usize) -> u64 {
    get(bytes, at, 2, Order::Little)
}

/// Little-endian, 32 bits.
pub fn le32(bytes: &[u8], at: usize) -> u64 {
    get(bytes, at, 4, Order::Little)
}

/// Big-endian, 32 bits.
pub fn be32(bytes: &[u8], at: usize) -> u64 {
    get(bytes, at, 4, Order::Big)
}

/// CRC-32C as the kernel uses it: raw start value, no final inversion.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 (reflected 0x8005) of group descriptors without metadata_csum.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |sum, &byte| {
        (0..8).fold(sum ^ u16::from(byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xa001 } else { sum >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_go_both_ways_and_stay_inside() {
        let mut bytes = [0; 6];
        put(&mut bytes, 1, 4, Order::Big, 0x0102_0304);
        assert_eq!(bytes, [0, 1, 2, 3, 4, 0]);
        assert_eq!((be32(&bytes, 1), le32(&bytes, 1)), (0x0102_0304, 0x0403_0201));
        put(&mut bytes, 3, 4, Order::Little, u64::MAX);
        put(&mut bytes, usize::MAX, 8, Order::Little, 1);
        assert_eq!((bytes, get(&bytes, 3, 4, Order::Little)), ([0, 1, 2, 3, 4, 0], 0));
    }

    #[test]
    fn checksums_have_their_published_check_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        // CRC-16/MODBUS is this polynomial with this start value.
        assert_eq!(crc16(!0, b"123456789"), 0x4b37);
    }
}
