//! `uext4 xattr`: extended attributes, printed as by `getfattr -d -m -`, set and removed as by setfattr(1).

mod change;

use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::text::{self, JsonBytes};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::{Acl, AclKind, Ino, Switches, Volume};
use uext4_ondisk::CorruptKind;

/// `uext4 xattr`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct XattrArgs {
    /// The file; the root directory without a path.
    #[arg(value_name = "DEVICE[:/path]", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// One attribute by its full name, such as user.comment; all by default.
    pub name: Option<OsString>,
    /// Set an attribute: text with \\, \" and \ooo (octal), in quotes or not, 0x and hexadecimal digits, or 0s and
    /// base64. May be given several times, as --remove; removals come first.
    #[arg(short, long, value_name = "NAME=VALUE", conflicts_with_all = ["json", "only_values"])]
    pub set: Vec<OsString>,
    /// Remove an attribute.
    #[arg(short = 'x', long, value_name = "NAME", conflicts_with_all = ["json", "only_values"])]
    pub remove: Vec<OsString>,
    /// With --set: the attribute must not exist yet.
    #[arg(long, conflicts_with = "replace")]
    pub create: bool,
    /// With --set: the attribute must exist.
    #[arg(long)]
    pub replace: bool,
    /// Use a symbolic link itself instead of following it.
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// Print only the raw bytes of the values, one after another.
    #[arg(long, conflicts_with = "json")]
    pub only_values: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A value is printed as text unless more than one byte in this many would have to be escaped.
const TEXT_MIN: usize = 8;

#[derive(Serialize)]
struct JsonXattr<'a> {
    #[serde(flatten)]
    name: JsonBytes<'a>,
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
    /// The stored value of an invalid access control list.
    undecoded: bool,
}

/// Runs it.
pub fn run(args: &XattrArgs, globals: &Globals) -> Result<(), CliError> {
    change::check(args)?;
    if change::changes(args) {
        return change::run(args, globals);
    }
    let operand = Operand::parse_or_root(&args.operand)?;
    let volume = operand.volume(&OpenHow::reading(globals, args.common.force, Switches::ON))?;
    let at = |error: uext4::Error| operand.error(error);
    let ino = volume.resolve(operand.inner(), !args.no_dereference).map_err(at)?;
    let mut out = Out::new();
    if let Some(name) = &args.name {
        let (xattr, fault) = read(&volume, ino, name.as_bytes()).map_err(at)?;
        if globals.json {
            out.json(&json(&xattr))?;
        } else {
            print(&mut out, &xattr, args.only_values)?;
        }
        out.finish()?;
        return fault.map_or(Ok(()), |fault| Err(operand.error(fault).about_attribute(&xattr.name)));
    }
    let names = volume.list_xattrs_of(ino).map_err(at)?;
    if !globals.json && !args.only_values && names.clone().any(|name| name.is_ok()) {
        out.bytes(b"# file: ")?;
        out.bytes(&escaped(&operand.path))?;
        out.bytes(b"\n")?;
    }
    // One at a time: all values of a hostile file together could exceed memory. An unreadable one does not hide the
    // others.
    let mut failures = globals.failures();
    let mut list = Elements::new(globals.json);
    for name in names {
        let name = match name {
            Ok(name) => name,
            Err(damage) => {
                failures.tell(&operand.error(damage));
                continue;
            }
        };
        let (xattr, fault) = match read(&volume, ino, name.as_bytes()) {
            Ok((xattr, fault)) => (Some(xattr), fault),
            // A list without entries counts as no attribute, although its name exists.
            Err(uext4::Error::NoAttribute) => continue,
            Err(error) => (None, Some(error)),
        };
        if let Some(fault) = fault {
            failures.tell(&operand.error(fault).about_attribute(name.as_bytes()));
        }
        let Some(xattr) = xattr else { continue };
        if globals.json {
            list.element(&mut out, &json(&xattr))?;
        } else {
            print(&mut out, &xattr, args.only_values)?;
        }
    }
    list.end(&mut out)?;
    out.finish()?;
    failures.finish()
}

/// An attribute whose bytes could be read, and its error if any.
fn read(volume: &Volume, ino: Ino, name: &[u8]) -> uext4::Result<(Xattr, Option<uext4::Error>)> {
    let is_acl = [AclKind::Access, AclKind::Default].iter().any(|kind| kind.name().as_bytes() == name);
    let value = match volume.xattr_of(ino, name) {
        Err(fault) if is_acl && is_bad_acl(&fault) => {
            let value = volume.stored_xattr_of(ino, name)?;
            return Ok((Xattr { name: name.to_vec(), value, acl: None, undecoded: true }, Some(fault)));
        }
        value => value?,
    };
    let acl = is_acl.then(|| Acl::decode_xattr(&value)).transpose()?;
    Ok((Xattr { name: name.to_vec(), value, acl, undecoded: false }, None))
}

fn is_bad_acl(error: &uext4::Error) -> bool {
    let uext4::Error::Corrupt(corrupt) = error else { return false };
    matches!(corrupt.kind, CorruptKind::AclVersion | CorruptKind::AclEntry)
}

fn json(xattr: &Xattr) -> JsonXattr<'_> {
    let name = JsonBytes("name", Some(&xattr.name));
    let (value, value_b64) = match xattr.undecoded {
        true => (None, Some(text::base64(&xattr.value))),
        false => text::utf8_or_base64(&xattr.value),
    };
    let acl = xattr.acl.as_ref().map(|acl| acl.entries.iter().map(ToString::to_string).collect());
    JsonXattr { name, size: xattr.value.len(), value, value_b64, acl }
}

fn print(out: &mut Out, xattr: &Xattr, only_value: bool) -> Result<(), CliError> {
    if only_value {
        return out.bytes(&xattr.value);
    }
    out.bytes(&escaped(&xattr.name))?;
    let escapes = xattr.value.iter().filter(|byte| !is_plain(**byte)).count();
    let bare = xattr.acl.is_none() && !xattr.undecoded;
    if bare && escapes.saturating_mul(TEXT_MIN) <= xattr.value.len() {
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

/// Whether a byte is printed unescaped.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Printable ASCII unchanged, quotes and backslashes escaped with a backslash, all else in octal, as in `getfattr`.
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
