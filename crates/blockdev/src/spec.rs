//! The DEVICE grammar: `[scheme:]locator[?key[=value][&…]]`.
//!
//! A text is parsed in this order:
//!
//! 1. **Scheme.** The text before the first `:` is a scheme if it has a scheme's letters (`[A-Za-z][A-Za-z0-9+.-]*`, so
//!    never a `/`, `?`, `%`) and is not followed by a single `/`. Known schemes (`file`, `sync`, `dax`, `nvme`, `mem`,
//!    `null`, `nbd`, `nbd+unix`, `nbds`, `nbds+unix`, `rbd`) are recognised even before a single `/`. An unknown one is
//!    an error: `foo:bar.img` is refused; the file of that name is `./foo:bar.img` or `file:foo:bar.img`.
//!    `disk.img:/etc` has no scheme: one `/` follows. `x://…` always reads as a scheme.
//! 2. **Authority.** `file:///disk.img` is `/disk.img`; the authority must be empty or `localhost`. That of `nbd://` is
//!    the server: `nbd://host[:port]/export`.
//! 3. **Options** follow the first `?`, separated by `&`. Unknown, empty and repeated keys are errors.
//! 4. **Locator.** `:/`, `?`, `&`, `%` inside it are percent-encoded; any byte except NUL may be.
//!
//! `:/` after the scheme is not part of a device: it separates the device from a path inside its volume.

mod images;
mod remote;
mod units;

pub use images::{Format, Named};
pub use remote::{RbdName, Remote, RemoteOptions, Tls};
pub use units::{parse_scaled, parse_size};

use crate::{Error, Result};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Which engine a specification names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// `file:` or no scheme: image file or block device, queues on io_uring.
    #[default]
    File,
    /// `sync:`: the same without io_uring.
    Sync,
    /// `dax:`: mapped memory.
    Dax,
    /// `nvme:`: commands to an NVMe namespace, below the block layer.
    Nvme,
    /// `mem:SIZE`: private memory that models caches and costs.
    Memory,
    /// `null:IMAGE`: metadata from a copy of IMAGE in memory; queued data requests move nothing.
    Null,
    /// `nbd://host[:port]/export`: a network block device.
    Nbd,
    /// `nbd+unix:///export?socket=PATH`: the same over a local socket.
    NbdUnix,
    /// `nbds://…`: [`Scheme::Nbd`] with TLS.
    Nbds,
    /// `nbds+unix:///…`: [`Scheme::NbdUnix`] with TLS.
    NbdsUnix,
    /// `rbd:pool/[namespace/]image[@snapshot]`: an image of a Ceph cluster.
    Rbd,
}

/// Supported schemes and their spelling.
const SCHEMES: [(&str, Scheme); 11] = [
    ("file", Scheme::File),
    ("sync", Scheme::Sync),
    ("dax", Scheme::Dax),
    ("nvme", Scheme::Nvme),
    ("mem", Scheme::Memory),
    ("null", Scheme::Null),
    ("nbd", Scheme::Nbd),
    ("nbd+unix", Scheme::NbdUnix),
    ("nbds", Scheme::Nbds),
    ("nbds+unix", Scheme::NbdsUnix),
    ("rbd", Scheme::Rbd),
];

impl Scheme {
    /// The spelling, without the colon.
    pub fn name(self) -> &'static str {
        SCHEMES.iter().find(|(_, scheme)| *scheme == self).map_or("", |(name, _)| name)
    }

    /// Whether a server has the device: [`Locator::Remote`].
    pub fn is_remote(self) -> bool {
        self.is_nbd() || self == Scheme::Rbd
    }

    /// Whether it is a network block device, with TLS or without.
    pub fn is_nbd(self) -> bool {
        matches!(self, Scheme::Nbd | Scheme::NbdUnix | Scheme::Nbds | Scheme::NbdsUnix)
    }
}

/// What a specification opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locator {
    /// An image file or device node. Any bytes but NUL.
    Path(PathBuf),
    /// Bytes of memory (`mem:` only), a positive multiple of 512.
    Size(u64),
    /// What a server has ([`Scheme::is_remote`] only).
    Remote(Remote),
}

/// A volatile write cache that the user claims or denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// `cache=volatile`: completed writes may be lost before a flush.
    Volatile,
    /// `cache=none`: completed writes are durable.
    None,
}

/// The options after `?`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpecOptions {
    /// `ro`: never write, whatever the opener asks for.
    pub read_only: bool,
    /// `partition=N`, from 1. Excludes `offset`.
    pub partition: Option<u32>,
    /// `offset=B`: the device begins at this byte. Excludes `partition`.
    pub offset: Option<u64>,
    /// `latency=T`: every request completes no earlier than T after its submission.
    pub latency: Option<Duration>,
    /// `flush_latency=T`: the same for flushes.
    pub flush_latency: Option<Duration>,
    /// `fua_latency=T`: the same for FUA writes; `latency` applies to them too.
    pub fua_latency: Option<Duration>,
    /// `flush_rate=B` (`mem:` only): bytes of cached writes that a flush writes out per second, on top of
    /// `flush_latency`. Not zero.
    pub flush_rate: Option<u64>,
    /// `cache=volatile|none`.
    pub cache: Option<Cache>,
    /// `fua=on|off`.
    pub fua: Option<bool>,
    /// `format=raw|qcow2|vmdk`: what the file holds; by its content if absent.
    pub format: Option<Format>,
    /// `backing=no|beside|any`: which files an image may name.
    pub named: Named,
    /// `overlay=FILE`: changes are kept in this file, and the device itself is only read. The file is made if there is
    /// none and the device is opened for writing.
    pub overlay: Option<PathBuf>,
    /// What only devices of servers have.
    pub remote: RemoteOptions,
}

/// A parsed device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Engine.
    pub scheme: Scheme,
    /// What it opens: [`Locator::Size`] for [`Scheme::Memory`], [`Locator::Remote`] for what a server has, otherwise
    /// [`Locator::Path`].
    pub locator: Locator,
    /// Options.
    pub options: SpecOptions,
}

/// The text before the first colon.
enum Prefix<'a> {
    Absent,
    Known(Scheme),
    Unknown(&'a str),
}

impl DeviceSpec {
    /// Parses a device.
    ///
    /// # Errors
    /// [`Error::BadSpec`] for anything malformed.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_bytes(text.as_bytes())
    }

    /// [`DeviceSpec::parse`] for arguments that may not be UTF-8 (paths of the host are bytes).
    ///
    /// # Errors
    /// Those of [`DeviceSpec::parse`].
    pub fn parse_bytes(text: &[u8]) -> Result<Self> {
        let (prefix, rest) = split_prefix(text);
        let scheme = match prefix {
            Prefix::Absent => Scheme::File,
            Prefix::Known(scheme) => scheme,
            Prefix::Unknown(name) => {
                let meant = closest_scheme(name)
                    .map_or_else(String::new, |known| format!("did you mean `{known}:`? "));
                let reason = format!("unknown scheme `{name}` ({meant}a file of this name is `./{name}:…`)");
                return Err(bad(text, reason));
            }
        };
        let body = match prefix {
            Prefix::Known(scheme) if scheme != Scheme::Memory && !scheme.is_remote() => {
                strip_authority(text, rest)?
            }
            _ => rest,
        };
        if body.windows(2).any(|pair| pair == b":/") {
            return Err(bad(text, "expected a device, without `:/path`"));
        }
        let (locator, options) = match body.iter().position(|&b| b == b'?') {
            Some(mark) => (&body[..mark], parse_options(text, &body[mark + 1..])?),
            None => (body, SpecOptions::default()),
        };
        options.remote.check(scheme).map_err(|reason| bad(text, reason))?;
        Ok(DeviceSpec { scheme, locator: parse_locator(text, scheme, locator)?, options })
    }

    /// Length in bytes of the scheme of `text`, including its colon: 0 without a scheme, `None` for an unknown one.
    #[must_use]
    pub fn scheme_length(text: &[u8]) -> Option<usize> {
        match split_prefix(text) {
            (Prefix::Unknown(_), _) => None,
            (_, rest) => Some(text.len() - rest.len()),
        }
    }

    /// Whether the device itself stays as it is, whoever opens it: changes go to an overlay file, or are refused.
    #[must_use]
    pub fn spares_device(&self) -> bool {
        self.options.overlay.is_some() || self.options.read_only
    }

    /// An image file or block device opened through [`Scheme::File`] with no options.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        DeviceSpec {
            scheme: Scheme::File,
            locator: Locator::Path(path.into()),
            options: SpecOptions::default(),
        }
    }
}

impl std::str::FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        DeviceSpec::parse(text)
    }
}

/// Splits at the first colon if what precedes it is a scheme; otherwise the rest is the whole text.
fn split_prefix(text: &[u8]) -> (Prefix<'_>, &[u8]) {
    let Some(colon) = text.iter().position(|&b| b == b':') else {
        return (Prefix::Absent, text);
    };
    let (name, rest) = (&text[..colon], &text[colon + 1..]);
    let is_name = name.first().is_some_and(u8::is_ascii_alphabetic)
        && name.iter().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(b));
    let Ok(name) = std::str::from_utf8(name) else {
        return (Prefix::Absent, text);
    };
    if !is_name {
        return (Prefix::Absent, text);
    }
    if let Some((_, scheme)) = SCHEMES.iter().find(|(known, _)| *known == name) {
        return (Prefix::Known(*scheme), rest);
    }
    if rest.starts_with(b"/") && !rest.starts_with(b"//") {
        return (Prefix::Absent, text);
    }
    (Prefix::Unknown(name), rest)
}

/// Strips `//` or `//localhost` from a path scheme's locator.
fn strip_authority<'a>(text: &[u8], rest: &'a [u8]) -> Result<&'a [u8]> {
    let Some(after) = rest.strip_prefix(b"//") else {
        return Ok(rest);
    };
    let end = after.iter().position(|&b| b == b'/').unwrap_or(after.len());
    match &after[..end] {
        b"" | b"localhost" if end < after.len() => Ok(&after[end..]),
        b"" | b"localhost" => Err(bad(text, "a path must follow `//`")),
        other => Err(bad(text, format!("cannot open a file on host `{}`", String::from_utf8_lossy(other)))),
    }
}

fn parse_locator(text: &[u8], scheme: Scheme, raw: &[u8]) -> Result<Locator> {
    if raw.contains(&b'&') {
        return Err(bad(text, "`&` inside the locator must be written `%26`"));
    }
    if scheme.is_remote() {
        let remote = Remote::parse(scheme, raw, |raw| percent_decode(text, raw));
        return remote.map(Locator::Remote).map_err(|reason| bad(text, reason));
    }
    let bytes = percent_decode(text, raw)?;
    if bytes.is_empty() {
        return Err(bad(text, "the locator is empty"));
    }
    if bytes.contains(&0) {
        return Err(bad(text, "the locator has a NUL byte"));
    }
    if scheme != Scheme::Memory {
        return Ok(Locator::Path(path_of(bytes)));
    }
    let size = std::str::from_utf8(&bytes).ok().and_then(units::parse_size);
    match size {
        Some(size) if size != 0 && size.is_multiple_of(512) => Ok(Locator::Size(size)),
        Some(_) => Err(bad(text, "the size must be a positive multiple of 512")),
        None => Err(bad(text, "`mem:` needs a size like 64M")),
    }
}

fn parse_options(text: &[u8], raw: &[u8]) -> Result<SpecOptions> {
    let mut options = SpecOptions::default();
    let mut seen: Vec<&[u8]> = Vec::new();
    for item in raw.split(|&b| b == b'&') {
        let (key, value) = match item.iter().position(|&b| b == b'=') {
            Some(equals) => (&item[..equals], Some(&item[equals + 1..])),
            None => (item, None),
        };
        let key_text = String::from_utf8_lossy(key).into_owned();
        if key.is_empty() {
            return Err(bad(text, "an option is empty"));
        }
        if seen.contains(&key) {
            return Err(bad(text, format!("option `{key_text}` is given twice")));
        }
        seen.push(key);
        let value = value.map(|value| percent_decode(text, value)).transpose()?;
        if key == b"overlay" {
            options.overlay = Some(overlay_path(value).map_err(|reason| bad(text, reason))?);
            continue;
        }
        if let Some(stored) = options.remote.set(&key_text, value.as_deref()) {
            stored.map_err(|reason| bad(text, reason))?;
            continue;
        }
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        set_option(&mut options, &key_text, value.as_deref()).map_err(|reason| bad(text, reason))?;
    }
    if options.partition.is_some() && options.offset.is_some() {
        return Err(bad(text, "`partition` and `offset` exclude each other"));
    }
    Ok(options)
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The value of `overlay`: any bytes that a path may have.
fn overlay_path(value: Option<Vec<u8>>) -> std::result::Result<PathBuf, String> {
    match value {
        Some(path) if !path.is_empty() && !path.contains(&0) => Ok(path_of(path)),
        _ => Err("option `overlay` needs the path of a file".into()),
    }
}

/// The keys of the options that every device has. Others are [`RemoteOptions::KEYS`].
const KEYS: [&str; 12] = [
    "ro",
    "partition",
    "offset",
    "latency",
    "flush_latency",
    "fua_latency",
    "flush_rate",
    "cache",
    "fua",
    "format",
    "backing",
    "overlay",
];

/// The scheme, without the colon, that `name` may stand for.
#[must_use]
pub fn closest_scheme(name: &str) -> Option<&'static str> {
    closest(name, SCHEMES.map(|(known, _)| known))
}

/// The word of `known` that `word` resembles most. Up to a third of the letters may be wrong, or the end may be
/// missing.
#[must_use]
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let rated = known.into_iter().filter_map(|known| {
        // Two swapped letters are one mistake.
        let mistakes = strsim::osa_distance(word, known);
        let begun = word.len() >= 3 && known.starts_with(word);
        (begun || mistakes * 3 <= word.len().max(known.len())).then_some((mistakes, known))
    });
    rated.min_by_key(|(mistakes, _)| *mistakes).map(|(_, known)| known)
}

/// Stores one option. The error is the reason, without the specification.
fn set_option(options: &mut SpecOptions, key: &str, value: Option<&str>) -> std::result::Result<(), String> {
    let needs = |what: &str| format!("option `{key}` needs {what}");
    match key {
        "ro" => match value {
            None => options.read_only = true,
            Some(_) => return Err("option `ro` takes no value".into()),
        },
        "partition" => {
            let number = value.filter(|v| v.bytes().all(|b| b.is_ascii_digit())).and_then(|v| v.parse().ok());
            options.partition = Some(number.filter(|&n| n != 0).ok_or_else(|| needs("a number from 1"))?);
        }
        "offset" => {
            let offset = value.and_then(units::parse_size);
            options.offset = Some(offset.ok_or_else(|| needs("a size like 1M"))?);
        }
        "latency" | "flush_latency" | "fua_latency" => {
            let time = value.and_then(units::parse_duration).ok_or_else(|| needs("a time like 740us"))?;
            let slot = match key {
                "latency" => &mut options.latency,
                "flush_latency" => &mut options.flush_latency,
                _ => &mut options.fua_latency,
            };
            *slot = Some(time);
        }
        "flush_rate" => {
            let rate = value.and_then(units::parse_size).filter(|&rate| rate != 0);
            options.flush_rate = Some(rate.ok_or_else(|| needs("a size per second, like 64M"))?);
        }
        "cache" => {
            options.cache = Some(match value {
                Some("volatile") => Cache::Volatile,
                Some("none") => Cache::None,
                _ => return Err(needs("`volatile` or `none`")),
            });
        }
        "fua" => {
            options.fua = Some(match value {
                Some("on") => true,
                Some("off") => false,
                _ => return Err(needs("`on` or `off`")),
            });
        }
        "format" => {
            let format = value.and_then(Format::of).ok_or_else(|| needs("`raw`, `qcow2` or `vmdk`"))?;
            options.format = Some(format);
        }
        "backing" => {
            options.named = value.and_then(Named::of).ok_or_else(|| needs("`no`, `beside` or `any`"))?;
        }
        _ => {
            let known = KEYS.into_iter().chain(RemoteOptions::KEYS);
            let meant =
                closest(key, known).map_or_else(String::new, |known| format!(" (did you mean `{known}`?)"));
            return Err(format!("unknown option `{key}`{meant}"));
        }
    }
    Ok(())
}

fn percent_decode(text: &[u8], raw: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            out.push(byte);
            rest = tail;
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|&b| (b as char).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(bad(text, "`%` must be followed by two hexadecimal digits (`%` itself is `%25`)"));
        };
        // Two hexadecimal digits are at most 255.
        out.push((high * 16 + low) as u8);
        rest = &tail[2..];
    }
    Ok(out)
}

fn bad(text: &[u8], reason: impl Into<String>) -> Error {
    Error::BadSpec { spec: String::from_utf8_lossy(text).into_owned(), reason: reason.into() }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The canonical spelling: [`DeviceSpec::parse`] of it gives an equal value.
impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scheme != Scheme::File {
            write!(f, "{}:", self.scheme)?;
        }
        match &self.locator {
            Locator::Size(size) => f.write_str(&units::format_size(*size))?,
            Locator::Path(path) => write_path(f, self.scheme, path.as_os_str())?,
            Locator::Remote(remote) => remote.write(self.scheme, f)?,
        }
        write_options(f, &self.options)
    }
}

fn write_path(f: &mut fmt::Formatter<'_>, scheme: Scheme, path: &OsStr) -> fmt::Result {
    let bytes = path.as_bytes();
    if scheme != Scheme::File && bytes.starts_with(b"//") {
        // An empty authority, so that the path's own slashes are not taken for one.
        f.write_str("//")?;
    }
    let first_slash = bytes.iter().position(|&b| b == b'/').unwrap_or(bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        let colon_misread = byte == b':' && (at < first_slash || bytes.get(at + 1) == Some(&b'/'));
        // A path that follows the device may begin with `/`, and a final colon would turn that into `:/`.
        let colon_last = byte == b':' && at + 1 == bytes.len();
        if byte.is_ascii_graphic() && !b"%?&".contains(&byte) && !colon_misread && !colon_last {
            write!(f, "{}", byte as char)?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

/// The value of an option, percent-encoded.
fn encoded(bytes: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"%?&:".contains(&byte);
    let code = |&byte: &u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    bytes.iter().map(code).collect()
}

fn write_options(f: &mut fmt::Formatter<'_>, options: &SpecOptions) -> fmt::Result {
    let mut items = Vec::new();
    if options.read_only {
        items.push("ro".to_string());
    }
    if let Some(number) = options.partition {
        items.push(format!("partition={number}"));
    }
    if let Some(offset) = options.offset {
        items.push(format!("offset={}", units::format_size(offset)));
    }
    if let Some(time) = options.latency {
        items.push(format!("latency={}", units::format_duration(time)));
    }
    if let Some(time) = options.flush_latency {
        items.push(format!("flush_latency={}", units::format_duration(time)));
    }
    if let Some(time) = options.fua_latency {
        items.push(format!("fua_latency={}", units::format_duration(time)));
    }
    if let Some(rate) = options.flush_rate {
        items.push(format!("flush_rate={}", units::format_size(rate)));
    }
    if let Some(cache) = options.cache {
        items.push(format!("cache={}", if cache == Cache::Volatile { "volatile" } else { "none" }));
    }
    if let Some(fua) = options.fua {
        items.push(format!("fua={}", if fua { "on" } else { "off" }));
    }
    if let Some(format) = options.format {
        items.push(format!("format={format}"));
    }
    if options.named != Named::default() {
        items.push(format!("backing={}", options.named.name()));
    }
    if let Some(path) = &options.overlay {
        items.push(format!("overlay={}", encoded(path.as_os_str().as_bytes())));
    }
    options.remote.write(&mut items);
    if !items.is_empty() {
        write!(f, "?{}", items.join("&"))?;
    }
    Ok(())
}
