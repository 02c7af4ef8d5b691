//! Compression, recognised by the first bytes.

use super::error::GatherCause;
use super::tar::has_checksum;
use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::errors::ReadFrameHeaderError::SkipFrame;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Read};

/// Bytes that are looked at: one header.
pub const LOOK: usize = 512;
/// Bytes of a window that zstd may ask for: what `zstd -d` allows.
const WINDOW_MAX: u64 = 128 << 20;
const BUFFER: usize = 128 << 10;
/// Zeros that may follow the data of gzip.
const PADDING_MAX: usize = 64 << 20;

/// How data is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Formats that are told by name and not read.
const OTHERS: [(&[u8], &str); 8] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"LZIP", "lzip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x1f\x9d", "compress"),
    (b"\x5d\0\0", "lzma"),
    (b"PK\x03\x04", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
];

impl Compression {
    /// Recognises it from the first [`LOOK`] bytes, or all if there are fewer. The name of an entry may look like
    /// anything, so a header is one first.
    pub fn of(first: &[u8]) -> Result<Compression, GatherCause> {
        if let Ok(block) = <&[u8; LOOK]>::try_from(first)
            && (has_checksum(block) || *block == [0; LOOK])
        {
            return Ok(Compression::None);
        }
        match first {
            [0x1f, 0x8b, ..] => return Ok(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                return Ok(Compression::Zstd);
            }
            [] => return Err(GatherCause::Truncated("it is empty")),
            _ => {}
        }
        let text = match OTHERS.iter().find(|(magic, _)| first.starts_with(magic)) {
            Some((_, name)) => format!("{name} cannot be read: decompress it (tar, gzip and zstd can be)"),
            None => "not a tar archive, compressed with gzip or zstd or not at all".to_owned(),
        };
        Err(GatherCause::Format(text))
    }

    pub fn decode<'a>(self, from: impl Read + 'a) -> Box<dyn Read + 'a> {
        match self {
            Compression::None => Box::new(from),
            Compression::Gzip => Box::new(Members::new(from)),
            Compression::Zstd => Box::new(Frames::new(from)),
        }
    }
}

/// Members of gzip, one after the other. Zeros may follow the last, as tapes and block devices add them: gzip(1)
/// ignores them.
struct Members<R: Read> {
    /// `None` after the last.
    member: Option<GzDecoder<BufReader<R>>>,
}

impl<R: Read> Members<R> {
    fn new(from: R) -> Self {
        Members { member: Some(GzDecoder::new(BufReader::with_capacity(BUFFER, from))) }
    }

    /// What follows a member: another one, or the end.
    fn next(mut from: BufReader<R>) -> io::Result<Option<GzDecoder<BufReader<R>>>> {
        match from.fill_buf()? {
            [] => return Ok(None),
            [0, ..] => {}
            _ => return Ok(Some(GzDecoder::new(from))),
        }
        let mut zeros = 0;
        loop {
            let bytes = from.fill_buf()?;
            let length = bytes.len();
            if length == 0 {
                return Ok(None);
            }
            zeros += length;
            if zeros > PADDING_MAX || bytes.iter().any(|&byte| byte != 0) {
                let what = "something else than a few zeros behind the end of gzip's data";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            from.consume(length);
        }
    }
}

impl<R: Read> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else { return Ok(0) };
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let ended = self.member.take().map(GzDecoder::into_inner);
            self.member = ended.map(Self::next).transpose()?.flatten();
        }
    }
}

/// Frames of zstd, one after the other.
struct Frames<R: Read> {
    from: BufReader<R>,
    decoder: FrameDecoder,
    /// Whether a frame is being decoded.
    within: bool,
}

impl<R: Read> Frames<R> {
    fn new(from: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_MAX);
        Frames { from: BufReader::with_capacity(BUFFER, from), decoder, within: false }
    }

    /// Begins the next frame with data. Returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.from.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.from) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.from).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(false)
    }

    fn end(&self) -> io::Result<()> {
        let stated = self.decoder.get_checksum_from_data();
        if stated.is_some() && stated != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"));
        }
        Ok(())
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within {
                self.within = self.begin()?;
                if !self.within {
                    return Ok(0);
                }
            }
            if self.decoder.can_collect() > 0 || buffer.is_empty() {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.end()?;
                self.within = false;
                continue;
            }
            let one = BlockDecodingStrategy::UptoBlocks(1);
            self.decoder.decode_blocks(&mut self.from, one).map_err(failure)?;
        }
    }
}

/// An error of the decoder. That the data ended is one of reading.
fn failure(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(now) = cause {
        if now.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            return io::ErrorKind::UnexpectedEof.into();
        }
        cause = now.source();
    }
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
