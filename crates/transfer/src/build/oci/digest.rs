//! SHA-256 digests of blobs.

use super::Layer;
use crate::build::archive::FromStart;
use crate::build::error::GatherCause;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

/// A digest, known to be no more than that: its blob's name cannot lead elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// From `sha256:` and 64 digits.
    pub fn parse(text: &str) -> Result<Digest, GatherCause> {
        let wrong = || GatherCause::Image(format!("not a digest of SHA-256: {text:.100}"));
        let digits = text.strip_prefix("sha256:").ok_or_else(wrong)?.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| match digit {
                b'0'..=b'9' => Ok(digit - b'0'),
                b'a'..=b'f' => Ok(digit - b'a' + 10),
                _ => Err(wrong()),
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Digest(bytes))
    }

    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The path of its blob, below the folder.
    pub fn path(&self) -> String {
        self.to_string().replace("sha256:", "blobs/sha256/")
    }

    pub fn check(&self, found: &Digest) -> Result<(), GatherCause> {
        if self == found {
            return Ok(());
        }
        Err(GatherCause::Digest { wanted: self.to_string(), found: found.to_string() })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The digest of a file.
pub fn of_file(file: &File) -> Result<Digest, GatherCause> {
    let copy = file.try_clone().map_err(GatherCause::io("duplicate"))?;
    let mut hash = Hash::default();
    let from = Box::new(FromStart { file: Arc::new(copy), pos: 0 });
    let mut reading = Hashing { from, hash: &mut hash };
    let mut buffer = vec![0; 1 << 18];
    while reading.read(&mut buffer).map_err(GatherCause::io("read"))? > 0 {}
    drop(reading);
    Ok(Digest(hash.sha.finalize().into()))
}

/// The digest of a layer's contents, while they are read.
#[derive(Default)]
pub struct Hash {
    sha: Sha256,
    any: bool,
}

impl Hash {
    /// Whether what was read is what the layer has. A layer that was not compressed is known to be.
    pub fn check(self, layer: &Layer) -> Result<(), GatherCause> {
        match self.any {
            true => layer.diff_id.check(&Digest(self.sha.finalize().into())),
            false => layer.diff_id.check(&layer.digest),
        }
    }
}

/// A reader that hashes.
pub struct Hashing<'a> {
    pub from: Box<dyn Read + 'a>,
    pub hash: &'a mut Hash,
}

impl Read for Hashing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hash.sha.update(&buffer[..read]);
        self.hash.any = true;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_digits_and_nothing_else() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let digest = Digest::parse(empty).unwrap();
        assert_eq!((digest.to_string(), &digest), (empty.to_owned(), &Digest::of(b"")));
        assert_eq!(digest.path(), empty.replace("sha256:", "blobs/sha256/"));
        let upper = empty.to_uppercase();
        for wrong in ["sha256:", "sha256:../../../etc/passwd", "sha512:00", &empty[7..], &upper, &empty[..70]]
        {
            assert!(Digest::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Digest::parse(&format!("sha256:{}", "../".repeat(21) + "x")).is_err());
    }
}
