//! What requests cost, in words for `explain` and `trace`.

use super::entry::Kind;
use super::image::Image;
use uext4_blockdev::{Cost, Op, Result, Way};

impl Image {
    /// As [`uext4_blockdev::Device::cost`]. `None`: its tables cannot be read.
    pub(super) fn cost(&self, op: Op, pos: u64, length: u64) -> Option<Cost> {
        let way = match op {
            Op::Flush if self.is_settled() => return None,
            Op::Flush => Way::Tables,
            _ if self.geometry().check(pos, length).is_err() => return None,
            Op::Read => self.cost_of_read(pos, pos + length).ok()?,
            Op::Write => self.cost_of_write(pos, pos + length).ok()?,
            Op::Discard => Way::Frees(self.freed_by(pos, pos + length).ok()?),
        };
        Some(Cost { format: "qcow2", way })
    }

    fn cost_of_read(&self, pos: u64, end: u64) -> Result<Way> {
        let piece = self.piece(pos, end)?;
        Ok(match piece.kind {
            _ if piece.end != end => Way::Pieces,
            Kind::Data { host, .. } if self.has(host, end - pos) => Way::Mapped(host),
            Kind::Data { .. } => Way::Pieces,
            Kind::Zero => Way::Zeros,
            Kind::Below if self.below.is_none() => Way::Zeros,
            Kind::Below => Way::Below,
            Kind::Compressed { word } => Way::Compressed(self.shape.compressed(word).0),
        })
    }

    fn cost_of_write(&self, pos: u64, end: u64) -> Result<Way> {
        let mask = self.shape.cluster() - 1;
        let (mut at, mut clusters, mut mapped) = (pos, 0, None);
        while at < end {
            let piece = self.piece(at, end)?;
            match piece.kind {
                Kind::Data { host, copied: true } => mapped = mapped.or(Some(host)),
                // The first one may be counted already: subclusters are pieces.
                _ => {
                    let first = if clusters > 0 { (at + mask) & !mask } else { at & !mask };
                    clusters += piece.end.saturating_sub(first).div_ceil(mask + 1);
                }
            }
            at = piece.end;
        }
        let whole = (pos | end) & mask == 0;
        let (first, last) = (pos & !mask, ((end + mask) & !mask).min(self.header.size));
        Ok(match mapped {
            Some(host) if clusters == 0 && self.piece(pos, end)?.end == end => Way::Mapped(host),
            _ if clusters == 0 => Way::Inline,
            _ => Way::Allocates { clusters, copies: !whole && !self.is_zeros(first, last - first) },
        })
    }

    fn freed_by(&self, pos: u64, end: u64) -> Result<u64> {
        let mask = self.shape.cluster() - 1;
        let end = if end >= self.geometry().size { (end + mask) & !mask } else { end & !mask };
        let (mut at, mut clusters) = ((pos + mask) & !mask, 0);
        while self.frees() && at < end {
            let (index, entry) = self.shape.split(at);
            let Some(table) = self.table(index)? else {
                at = (index + 1) << self.shape.table_bits();
                continue;
            };
            clusters += u64::from(self.is_placed(&table, entry));
            at += self.shape.cluster();
        }
        Ok(clusters)
    }
}
