//! Where the contents of the files of a new volume go, and the requests that this makes.

use super::sealing::Sealed;
use super::write::REQUEST;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a file that lie together on the device. Whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Of the file, in the population.
    pub(super) position: u32,
    /// First byte in the file.
    pub(super) at: u64,
    /// First byte on the device.
    pub(super) disk: u64,
    pub(super) length: u64,
}

/// Where the contents of the files go.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    list: Vec<Piece>,
    /// Files to be sealed, by position.
    pub(super) sealed: BTreeMap<u32, Sealed>,
}

impl Pieces {
    /// Adds bytes of a file, whole blocks, and the first byte of the device that they go to.
    pub(super) fn add(&mut self, position: u32, bytes: Range<u64>, disk: u64) {
        self.list.push(Piece { position, at: bytes.start, disk, length: bytes.end - bytes.start });
    }

    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.list.iter().map(|piece| piece.length).sum()
    }

    /// Requests: pieces next to each other on the device, [`REQUEST`] bytes at most.
    pub(super) fn requests(mut self) -> Vec<Vec<Piece>> {
        self.list.sort_unstable_by_key(|piece| piece.disk);
        let mut requests: Vec<Vec<Piece>> = Vec::new();
        let (mut end, mut room) = (0, 0);
        for mut piece in self.list {
            while piece.length > 0 {
                if piece.disk != end || room == 0 {
                    requests.push(Vec::new());
                    room = REQUEST as u64;
                }
                let length = piece.length.min(room);
                if let Some(request) = requests.last_mut() {
                    request.push(Piece { length, ..piece });
                }
                (end, room) = (piece.disk + length, room - length);
                piece = Piece {
                    at: piece.at + length,
                    disk: piece.disk + length,
                    length: piece.length - length,
                    ..piece
                };
            }
        }
        requests
    }
}
