//! What a server says about an export, and what that makes of the device.

use super::api::{BlockSize, Fault, Handle};
use uext4_blockdev::{Capabilities, Error, Geometry, Result};

/// What a client assumes about a server that tells no largest request (NBD protocol, "Block size constraints"), bytes.
const MAXIMUM: u64 = 32 << 20;

/// Largest part of a discard, bytes: it has no data, so the server's largest request does not bound it.
const DISCARD: u32 = 1 << 30;

/// Largest part of a range of zeros, bytes: it has no data either, but a server may have to write them.
const ZEROS: u32 = 64 << 20;

/// Most bytes of one block.
const BLOCK_MAX: u64 = 64 << 10;

/// Block sizes are in bytes, 0 if the server does not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    size: u64,
    minimum: u64,
    preferred: u64,
    maximum: u64,
    read_only: bool,
    pub(super) flush: bool,
    fua: bool,
    trim: bool,
    pub(super) zero: bool,
    pub(super) multi_conn: bool,
    tls: bool,
    protocol: String,
}

impl Facts {
    /// Of a connection that has been negotiated.
    pub(super) fn of(handle: &Handle) -> std::result::Result<Self, Fault> {
        Ok(Facts {
            size: handle.size()?,
            minimum: handle.block_size(BlockSize::Minimum)?,
            preferred: handle.block_size(BlockSize::Preferred)?,
            maximum: handle.block_size(BlockSize::Maximum)?,
            read_only: handle.is_read_only()?,
            flush: handle.can_flush()?,
            fua: handle.can_fua()?,
            trim: handle.can_trim()?,
            zero: handle.can_zero()?,
            multi_conn: handle.can_multi_conn()?,
            tls: handle.has_tls()?,
            protocol: handle.protocol()?,
        })
    }

    /// Sizes, without the end of the export that is no whole block.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if its blocks cannot be used, or if it has not even one.
    pub(super) fn geometry(&self) -> Result<Geometry> {
        let block = self.minimum.max(512);
        if !block.is_power_of_two() || block > BLOCK_MAX {
            return Err(Error::Unsupported(format!("an export with blocks of {block} bytes")));
        }
        if self.size < block {
            return Err(Error::Unsupported(format!("an export of {} bytes", self.size)));
        }
        Ok(Geometry { size: self.size - self.size % block, logical_block: block as u32, memory_align: 1 })
    }

    /// What the device can do, if it is opened for writing or not.
    ///
    /// Without flush the protocol has no way to make a completed write durable, except FUA: then every write carries it
    /// ([`Facts::writes_through`]). Without both, the device has no volatile cache that could be flushed.
    pub(super) fn capabilities(&self, write: bool) -> Capabilities {
        let read_only = self.read_only || !write;
        Capabilities {
            volatile_cache: self.flush,
            fua: self.fua,
            nowait: true,
            discard: self.trim && !read_only,
            read_only,
            dax: None,
        }
    }

    /// Whether the server refuses writes.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether every write carries FUA.
    pub(super) fn writes_through(&self) -> bool {
        self.fua && !self.flush
    }

    /// Most bytes of a read or write: what the server takes, in whole blocks.
    pub(super) fn transfer_max(&self, geometry: &Geometry) -> u32 {
        let block = u64::from(geometry.logical_block);
        let most = if self.maximum == 0 { MAXIMUM } else { self.maximum.clamp(block, MAXIMUM) };
        (most - most % block) as u32
    }

    /// Most bytes of a discard.
    pub(super) fn discard_max(&self) -> u32 {
        DISCARD
    }

    /// Most bytes of a range of zeros.
    pub(super) fn zeros_max(&self) -> u32 {
        ZEROS
    }

    /// Whether a later connection has found the same export.
    pub(super) fn is_same(&self, later: &Facts) -> bool {
        self == later
    }

    /// For `info`.
    pub(super) fn notes(&self, geometry: &Geometry) -> Vec<String> {
        let mut notes =
            vec![format!("protocol {}{}", self.protocol, if self.tls { " with TLS" } else { "" })];
        let told = |size: u64| if size == 0 { "not told".to_owned() } else { size.to_string() };
        notes.push(format!(
            "block sizes in bytes: smallest {}, preferred {}, largest request {}",
            told(self.minimum),
            told(self.preferred),
            told(self.maximum)
        ));
        let rest = self.size - geometry.size;
        if rest != 0 {
            notes.push(format!("the last {rest} bytes are not used: they are no whole block"));
        }
        notes.extend(self.durability().map(str::to_owned));
        if !self.trim {
            notes.push("the server takes no discards".into());
        }
        if !self.zero && !self.read_only {
            notes.push("the server takes no request for zeros: they are written".into());
        }
        notes.push("no lock keeps other clients of the server away: see multi-mount protection".into());
        notes
    }

    fn durability(&self) -> Option<&'static str> {
        match (self.flush, self.fua) {
            _ if self.read_only => Some("the export is read-only"),
            (true, true) => None,
            (true, false) => Some("the server takes no FUA: a durable write is a write and a flush"),
            (false, true) => Some("the server takes no flush: every write carries FUA"),
            (false, false) => Some(
                "the server takes neither flush nor FUA: it does not tell whether a completed write survives its crash",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            size: 1 << 20,
            minimum: 0,
            preferred: 0,
            maximum: 0,
            read_only: false,
            flush: true,
            fua: true,
            trim: true,
            zero: true,
            multi_conn: true,
            tls: false,
            protocol: "newstyle-fixed".into(),
        }
    }

    #[test]
    fn blocks_are_the_servers_but_at_least_512_bytes() {
        for (minimum, block) in [(0, 512), (1, 512), (512, 512), (4096, 4096), (65536, 65536)] {
            assert_eq!(Facts { minimum, ..facts() }.geometry().unwrap().logical_block, block);
        }
        for minimum in [3, 1000, 131_072] {
            let refused = Facts { minimum, ..facts() }.geometry();
            assert_eq!(refused.is_err(), minimum != 3, "{minimum}: {refused:?}");
        }
    }

    #[test]
    fn the_end_that_is_no_block_is_cut_and_noted() {
        let facts = Facts { size: (1 << 20) + 100, ..facts() };
        let geometry = facts.geometry().unwrap();
        assert_eq!(geometry.size, 1 << 20);
        assert!(facts.notes(&geometry).iter().any(|note| note.contains("100 bytes")));
        assert!(Facts { size: 511, ..facts }.geometry().is_err());
    }

    #[test]
    fn requests_are_whole_blocks_and_no_longer_than_the_server_takes() {
        for (minimum, maximum, most) in [
            (0, 0, 32 << 20),
            (512, 65536, 65536),
            (4096, 10_000, 8192),
            (4096, 100, 4096),
            (1, u64::from(u32::MAX), 32 << 20),
        ] {
            let facts = Facts { minimum, maximum, ..facts() };
            assert_eq!(facts.transfer_max(&facts.geometry().unwrap()), most, "{minimum} {maximum}");
        }
    }

    #[test]
    fn what_makes_writes_durable() {
        for (flush, fua, cache, through) in [
            (true, true, true, false),
            (true, false, true, false),
            (false, true, false, true),
            (false, false, false, false),
        ] {
            let facts = Facts { flush, fua, ..facts() };
            let capabilities = facts.capabilities(true);
            assert_eq!((capabilities.volatile_cache, capabilities.fua), (cache, fua));
            assert_eq!(facts.writes_through(), through);
            assert_eq!(facts.durability().is_none(), flush && fua);
        }
        assert!(facts().capabilities(false).read_only && !facts().capabilities(false).discard);
    }
}
