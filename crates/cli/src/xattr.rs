//! `uext4 xattr`: extended attributes, in the manner of `getfattr -d -m -`.

use crate::args::{Globals, XattrArgs};
use crate::error::CliError;
use crate::open::{How, Place};
use crate::out::Out;
use crate::text;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use uext4::{Acl, AclKind, Ino, Switches, Volume};

/// A value is printed as text unless more than one byte of this many would have to be escaped.
const TEXT_MIN: usize = 8;

#[derive(Serialize)]
struct JsonXattr<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_b64: Option<String>,
    /// Entries of an access control list, as `getfacl` prints them.
    #[serde(skip_serializing_if = "Option::is_none")]
    acl: Option<Vec<String>>,
}

/// One attribute.
struct Xattr {
    name: Vec<u8>,
    value: Vec<u8>,
    acl: Option<Acl>,
}

/// Runs it.
pub fn run(args: &XattrArgs, globals: &Globals) -> Result<(), CliError> {
    let place = Place::parse_or_root(&args.place)?;
    let volume = place.volume(&How::reading(globals, args.force.force, Switches::ON))?;
    let at = |error: uext4::Error| place.error(error);
    let ino = volume.resolve(place.inner(), !args.no_dereference).map_err(at)?;
    let mut out = Out::new();
    if let Some(name) = &args.name {
        let xattr = read(&volume, ino, name.as_bytes()).map_err(at)?;
        if globals.json {
            out.json(&json(&xattr))?;
        } else {
            print(&mut out, &xattr, args.only_values)?;
        }
        return out.finish();
    }
    let names = volume.list_xattrs_of(ino).map_err(at)?;
    if !globals.json && !args.only_values && !names.is_empty() {
        out.bytes(b"# file: ")?;
        out.bytes(&escaped(&place.path))?;
        out.bytes(b"\n")?;
    }
    // One at a time: all values of a hostile file together could be larger than memory.
    let mut separator = "[\n";
    for name in names {
        let xattr = read(&volume, ino, name.as_bytes()).map_err(at)?;
        if globals.json {
            out.bytes(separator.as_bytes())?;
            out.json_compact(&json(&xattr))?;
            separator = ",\n";
        } else {
            print(&mut out, &xattr, args.only_values)?;
        }
    }
    if globals.json {
        out.bytes(if separator == "[\n" { b"[]\n" } else { b"\n]\n" })?;
    }
    out.finish()
}

fn read(volume: &Volume, ino: Ino, name: &[u8]) -> uext4::Result<Xattr> {
    let value = volume.xattr_of(ino, name)?;
    let is_acl = [AclKind::Access, AclKind::Default].iter().any(|kind| kind.name().as_bytes() == name);
    let acl = is_acl.then(|| Acl::decode_xattr(&value)).transpose()?;
    Ok(Xattr { name: name.to_vec(), value, acl })
}

fn json(xattr: &Xattr) -> JsonXattr<'_> {
    let (name, name_b64) = text::utf8_or_base64(&xattr.name);
    let (value, value_b64) = text::utf8_or_base64(&xattr.value);
    let acl = xattr.acl.as_ref().map(|acl| acl.entries.iter().map(ToString::to_string).collect());
    JsonXattr { name, name_b64, size: xattr.value.len(), value, value_b64, acl }
}

fn print(out: &mut Out, xattr: &Xattr, only_value: bool) -> Result<(), CliError> {
    if only_value {
        return out.bytes(&xattr.value);
    }
    out.bytes(&escaped(&xattr.name))?;
    let escapes = xattr.value.iter().filter(|byte| !is_plain(**byte)).count();
    if xattr.acl.is_none() && escapes.saturating_mul(TEXT_MIN) <= xattr.value.len() {
        out.bytes(b"=\"")?;
        out.bytes(&escaped(&xattr.value))?;
        out.bytes(b"\"\n")?;
    } else {
        writeln!(out, "=0s{}", text::base64(&xattr.value))?;
    }
    match &xattr.acl {
        Some(acl) => writeln!(out, "# {acl}"),
        None => Ok(()),
    }
}

/// Whether a byte stands for itself in text.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Printable ASCII as it is, quotes and backslashes behind a backslash, all else in octal, as `getfattr` does.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => shown.extend([b'\\', byte]),
            byte if is_plain(byte) => shown.push(byte),
            byte => shown.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_getfattr() {
        assert_eq!(escaped(b"a \"b\\\n\xff"), b"a \\\"b\\\\\\012\\377");
    }
}
