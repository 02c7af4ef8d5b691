//! NVMe commands as the kernel takes them from user space: `struct nvme_uring_cmd` of `linux/nvme_ioctl.h`, which is
//! also the beginning of `struct nvme_passthru_cmd64`; and the meaning of a status.
//!
//! Numbers are from the NVMe Base and NVM Command Set specifications. The data that the structure points to (identify
//! data, ranges to deallocate) is little-endian. The structure itself has host byte order, and this crate's hosts are
//! little-endian.

const _: () = assert!(cfg!(target_endian = "little"));

/// `NVME_URING_CMD_IO` of `linux/nvme_ioctl.h`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub(super) const URING_CMD_IO: u32 = 0xC048_4E80;

/// Bytes of `struct nvme_uring_cmd`.
pub(super) const COMMAND_BYTES: usize = 72;

/// Room for a command in a large ring entry.
pub(super) const ENTRY_BYTES: usize = 80;
const _: () = assert!(ENTRY_BYTES >= COMMAND_BYTES);

/// Bytes of one range to deallocate.
pub(super) const RANGE_BYTES: u32 = 16;

/// Most blocks of a read or write: the field holds their number minus one in 16 bits.
pub(super) const BLOCKS_MAX: u64 = 1 << 16;

/// Most blocks of a range to deallocate: the field has 32 bits.
pub(super) const RANGE_BLOCKS_MAX: u64 = u32::MAX as u64;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const DATASET_MANAGEMENT: u8 = 0x09;
/// An admin command.
const IDENTIFY: u8 = 0x06;

/// Dword 12 of a write: durable when it completes.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Dword 11 of a dataset management command.
const DEALLOCATE: u32 = 1 << 2;

/// The data structure that [`Command::identify`] requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identify {
    Namespace = 0,
    Controller = 1,
}

/// Data of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Data {
    /// An address in this process.
    pub(super) address: u64,
    pub(super) length: u32,
}

/// Blocks of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NvmeBlocks {
    pub(super) first: u64,
    /// At least one, at most [`BLOCKS_MAX`].
    pub(super) count: u64,
}

/// A command: the fields that any command here uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Command {
    opcode: u8,
    namespace: u32,
    data: Data,
    /// Dwords 10, 11 and 12.
    words: [u32; 3],
}

impl Command {
    const NO_DATA: Data = Data { address: 0, length: 0 };

    #[inline]
    pub(super) fn read(namespace: u32, blocks: NvmeBlocks, data: Data) -> Self {
        Command { opcode: READ, namespace, data, words: transfer_words(blocks) }
    }

    #[inline]
    pub(super) fn write(namespace: u32, blocks: NvmeBlocks, data: Data, fua: bool) -> Self {
        let mut words = transfer_words(blocks);
        words[2] |= if fua { FORCE_UNIT_ACCESS } else { 0 };
        Command { opcode: WRITE, namespace, data, words }
    }

    pub(super) fn flush(namespace: u32) -> Self {
        Command { opcode: FLUSH, namespace, data: Self::NO_DATA, words: [0; 3] }
    }

    /// Deallocates the one range (see [`range`]) in `data`.
    pub(super) fn deallocate(namespace: u32, data: Data) -> Self {
        // Dword 10: the number of ranges minus one.
        Command { opcode: DATASET_MANAGEMENT, namespace, data, words: [0, DEALLOCATE, 0] }
    }

    /// An admin command that fills 4096 bytes at `address`.
    pub(super) fn identify(namespace: u32, what: Identify, address: u64) -> Self {
        let namespace = if what == Identify::Namespace { namespace } else { 0 };
        let data = Data { address, length: 4096 };
        Command { opcode: IDENTIFY, namespace, data, words: [what as u32, 0, 0] }
    }

    /// Encodes as `struct nvme_uring_cmd`, padded with zeros to `N` bytes.
    #[inline]
    pub(super) fn encode<const N: usize>(&self) -> [u8; N] {
        const { assert!(N >= COMMAND_BYTES) };
        let mut bytes = [0; N];
        bytes[0] = self.opcode;
        bytes[4..8].copy_from_slice(&self.namespace.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.data.address.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.data.length.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.words[0].to_le_bytes());
        bytes[44..48].copy_from_slice(&self.words[1].to_le_bytes());
        bytes[48..52].copy_from_slice(&self.words[2].to_le_bytes());
        bytes
    }
}

#[inline]
fn transfer_words(blocks: NvmeBlocks) -> [u32; 3] {
    debug_assert!((1..=BLOCKS_MAX).contains(&blocks.count));
    [blocks.first as u32, (blocks.first >> 32) as u32, (blocks.count - 1) as u32]
}

/// A range to deallocate, of at most [`RANGE_BLOCKS_MAX`] blocks.
pub(super) fn range(first: u64, count: u64) -> [u8; RANGE_BYTES as usize] {
    debug_assert!((1..=RANGE_BLOCKS_MAX).contains(&count));
    let mut bytes = [0; RANGE_BYTES as usize];
    bytes[4..8].copy_from_slice(&(count as u32).to_le_bytes());
    bytes[8..].copy_from_slice(&first.to_le_bytes());
    bytes
}

/// An error status as the kernel passes it on: bits 0…7 code, 8…10 type, 14 "do not retry".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(pub(super) u16);

impl Status {
    /// Status of a positive result of a command.
    #[inline]
    pub(super) fn of(result: i32) -> Self {
        Status(result as u16)
    }

    /// Whether the same command may succeed later ("do not retry" is clear).
    pub(super) fn may_be_retried(self) -> bool {
        self.0 & 0x4000 == 0
    }

    /// As the kernel's `nvme_error_status` and the block layer's table, except EIO for blocks that do not exist.
    pub(super) fn errno(self) -> i32 {
        match self.0 & 0x7ff {
            // Capacity exceeded.
            0x081 => libc::ENOSPC,
            // Invalid opcode, field or namespace; conflicting attributes.
            0x001 | 0x002 | 0x00b | 0x180 => libc::EOPNOTSUPP,
            // Interrupted; namespace not ready.
            0x021 | 0x082 => libc::EREMOTEIO,
            // Reservation conflict.
            0x083 => libc::EBADE,
            // Write to a range that is read-only; write fault, unrecovered read, compare, access denied, unwritten.
            0x182 | 0x280 | 0x281 | 0x285 | 0x286 | 0x287 => libc::ENODATA,
            // Protection information.
            0x181 | 0x282 | 0x283 | 0x284 => libc::EILSEQ,
            // No path to the device.
            0x300..=0x3ff => libc::ENOLINK,
            _ => libc::EIO,
        }
    }
}

/// Facts of a namespace from Identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NamespaceFacts {
    /// Size in blocks.
    pub(super) blocks: u64,
    pub(super) block_shift: u8,
    /// Bytes of metadata per block.
    pub(super) metadata: u16,
    /// Protection information is in use.
    pub(super) protected: bool,
}

impl NamespaceFacts {
    pub(super) fn decode(data: &[u8; 4096]) -> Self {
        // The format in use: a later specification added the high bits of its number.
        let format = usize::from(data[26] & 0xf | (data[26] >> 5 & 0x3) << 4);
        let at = 128 + format * 4;
        NamespaceFacts {
            blocks: u64::from_le_bytes(std::array::from_fn(|byte| data[byte])),
            block_shift: data[at + 2],
            metadata: u16::from_le_bytes([data[at], data[at + 1]]),
            protected: data[29] & 0x7 != 0,
        }
    }
}

/// Whether Identify reports a volatile write cache of the controller.
pub(super) fn has_volatile_cache(controller: &[u8; 4096]) -> bool {
    controller[525] & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Data = Data { address: 0x1122_3344_5566_7788, length: 0x0002_0000 };

    /// Every byte, at the offsets of the kernel's header.
    fn expected(fields: &[(usize, &[u8])]) -> [u8; 72] {
        let mut bytes = [0; 72];
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    #[test]
    fn transfers_byte_by_byte() {
        let blocks = NvmeBlocks { first: 0x0102_0304_0506_0708, count: 256 };
        let read: [u8; 72] = Command::read(0x0a0b_0c0d, blocks, DATA).encode();
        let common: [(usize, &[u8]); 5] = [
            (4, &[0x0d, 0x0c, 0x0b, 0x0a]),
            (24, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]),
            (36, &[0, 0, 2, 0]),
            (40, &[8, 7, 6, 5]),
            (44, &[4, 3, 2, 1]),
        ];
        let with = |more: &[(usize, &'static [u8])]| expected(&[&common[..], more].concat());
        assert_eq!(read, with(&[(0, &[2]), (48, &[0xff, 0, 0, 0])]));
        let write: [u8; 72] = Command::write(0x0a0b_0c0d, blocks, DATA, false).encode();
        assert_eq!(write, with(&[(0, &[1]), (48, &[0xff, 0, 0, 0])]));
        let fua: [u8; 72] = Command::write(0x0a0b_0c0d, blocks, DATA, true).encode();
        assert_eq!(fua, with(&[(0, &[1]), (48, &[0xff, 0, 0, 0x40])]));
        let longest = NvmeBlocks { first: 0, count: BLOCKS_MAX };
        let longest: [u8; 72] = Command::read(1, longest, DATA).encode();
        assert_eq!(longest[48..52], [0xff, 0xff, 0, 0]);
        let short: [u8; 80] = Command::read(1, NvmeBlocks { first: 9, count: 1 }, DATA).encode();
        assert_eq!((&short[40..52], &short[52..]), (&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0; 28][..]));
    }

    #[test]
    fn commands_without_blocks_byte_by_byte() {
        let flush: [u8; 72] = Command::flush(7).encode();
        assert_eq!(flush, expected(&[(4, &[7])]));
        let discard: [u8; 72] =
            Command::deallocate(7, Data { address: 0x1000, length: RANGE_BYTES }).encode();
        assert_eq!(discard, expected(&[(0, &[9]), (4, &[7]), (25, &[0x10]), (36, &[16]), (44, &[4])]));
        let namespace: [u8; 72] = Command::identify(7, Identify::Namespace, 0x1000).encode();
        assert_eq!(namespace, expected(&[(0, &[6]), (4, &[7]), (25, &[0x10]), (37, &[0x10])]));
        let controller: [u8; 72] = Command::identify(7, Identify::Controller, 0x1000).encode();
        assert_eq!(controller, expected(&[(0, &[6]), (25, &[0x10]), (37, &[0x10]), (40, &[1])]));
    }

    #[test]
    fn a_range_is_attributes_blocks_and_start() {
        let bytes = range(0x0102_0304_0506_0708, 0x0a0b_0c0d);
        assert_eq!(bytes, [0, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn the_operation_is_what_the_header_computes() {
        // _IOC(_IOC_READ | _IOC_WRITE, 'N', 0x80, 72)
        assert_eq!(URING_CMD_IO, 3 << 30 | 72 << 16 | u32::from(b'N') << 8 | 0x80);
    }

    #[test]
    fn statuses_have_one_errno() {
        let table = [
            (0x0080, libc::EIO),
            (0x4080, libc::EIO),
            (0x0081, libc::ENOSPC),
            (0x6081, libc::ENOSPC),
            (0x0006, libc::EIO),
            (0x4002, libc::EOPNOTSUPP),
            (0x400b, libc::EOPNOTSUPP),
            (0x0082, libc::EREMOTEIO),
            (0x0083, libc::EBADE),
            (0x0281, libc::ENODATA),
            (0x4286, libc::ENODATA),
            (0x0282, libc::EILSEQ),
            (0x0371, libc::ENOLINK),
            (0x07ff, libc::EIO),
        ];
        for (status, errno) in table {
            assert_eq!(Status::of(status).errno(), errno, "{status:#x}");
        }
        assert!(Status(0x0082).may_be_retried() && !Status(0x4082).may_be_retried());
    }

    #[test]
    fn identify_data_is_decoded() {
        let mut data = [0; 4096];
        data[..8].copy_from_slice(&0x1_0000u64.to_le_bytes());
        // Format 3: no metadata, 4096 bytes. Format 0x13: 8 bytes of metadata, 512 bytes.
        data[26] = 3;
        data[128 + 3 * 4 + 2] = 12;
        data[128 + 0x13 * 4] = 8;
        data[128 + 0x13 * 4 + 2] = 9;
        let plain = NamespaceFacts { blocks: 0x1_0000, block_shift: 12, metadata: 0, protected: false };
        assert_eq!(NamespaceFacts::decode(&data), plain);
        // Bit 4: metadata follows each block; not part of the number.
        data[26] = 1 << 5 | 1 << 4 | 3;
        data[29] = 1;
        let other = NamespaceFacts { block_shift: 9, metadata: 8, protected: true, ..plain };
        assert_eq!(NamespaceFacts::decode(&data), other);
        let mut controller = [0; 4096];
        assert!(!has_volatile_cache(&controller));
        // Present, plus bits for the flush behaviour.
        controller[525] = 0x7;
        assert!(has_volatile_cache(&controller));
        controller[525] = 0x6;
        assert!(!has_volatile_cache(&controller));
    }
}
