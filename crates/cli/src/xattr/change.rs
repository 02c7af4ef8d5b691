//! `xattr --set` and `--remove`: values are written as for setfattr(1).

use super::XattrArgs;
use crate::args::Globals;
use crate::cat::Volumes;
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use crate::text;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uext4::{Switches, XattrFlags};

/// `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Removes all attributes of `--remove`, then sets those of `--set`. Ends with the first failure.
pub fn run(args: &XattrArgs, globals: &Globals) -> Result<(), CliError> {
    let operand = Operand::parse_or_root(&args.operand)?;
    let settings = args.set.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let flags = match (args.create, args.replace) {
        (true, _) => XattrFlags::CREATE,
        (_, true) => XattrFlags::REPLACE,
        _ => XattrFlags::empty(),
    };
    let how = OpenHow { write: true, ..OpenHow::reading(globals, args.common.force, Switches::ON) };
    let mut volumes = Volumes::default();
    let volume = volumes.get(&operand, &how)?;
    let changed = (|| {
        let node = volume.node_at(operand.inner(), !args.no_dereference);
        let node = node.map_err(|error| operand.error(error))?;
        let about = |name: &[u8], error: uext4::Error| operand.error(error).about_attribute(name);
        for name in args.remove.iter().map(|name| name.as_bytes()) {
            node.remove_xattr(name).map_err(|error| about(name, error))?;
        }
        for Setting { name, value } in &settings {
            node.set_xattr(name, value, flags).map_err(|error| about(name, error))?;
        }
        Ok(())
    })();
    drop(volume);
    // What was changed before a failure is made durable.
    let closed = volumes.close();
    changed.and(closed)
}

fn parse(text: &OsString) -> Result<Setting, CliError> {
    let bytes = text.as_bytes();
    let split = bytes.iter().position(|&byte| byte == b'=').unwrap_or(bytes.len());
    let (name, rest) = bytes.split_at(split);
    // Without a value it is empty, as for setfattr.
    let value = value(rest.get(1..).unwrap_or_default());
    let value =
        value.map_err(|why| CliError::usage(format!("`{}`: {why}", text::visible(text.as_bytes()))))?;
    Ok(Setting { name: name.to_vec(), value })
}

/// A value as setfattr takes it: `0x` and hexadecimal digits, `0s` and base64, or text, in quotes or not, with escapes.
fn value(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    match text {
        [b'0', b'x' | b'X', digits @ ..] => hex(digits),
        [b'0', b's' | b'S', encoded @ ..] => base64(encoded),
        [b'"', inner @ .., b'"'] => Ok(unescaped(inner)),
        plain => Ok(unescaped(plain)),
    }
}

/// A backslash makes a quote, a backslash, or a byte of one to three octal digits; before anything else it is itself.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.iter().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
        rest = match (byte, after) {
            (b'\\', [literal @ (b'\\' | b'"'), behind @ ..]) => {
                value.push(*literal);
                behind
            }
            (b'\\', _) if digits > 0 => {
                let (octal, behind) = after.split_at(digits);
                let number = octal.iter().fold(0, |number: u32, digit| number * 8 + u32::from(digit - b'0'));
                value.push(number as u8);
                behind
            }
            _ => {
                value.push(byte);
                after
            }
        };
    }
    value
}

fn hex(digits: &[u8]) -> Result<Vec<u8>, &'static str> {
    // Blanks between bytes are allowed.
    let digits: Vec<u8> = digits.iter().copied().filter(|digit| !digit.is_ascii_whitespace()).collect();
    if !digits.len().is_multiple_of(2) {
        return Err("a byte has two hexadecimal digits");
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    digits.chunks(2).map(|pair| byte(pair).ok_or("not a hexadecimal number")).collect()
}

fn base64(encoded: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut value = Vec::with_capacity(encoded.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    let text: Vec<u8> = encoded.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let length = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    if text.len() - length > 2 || length % 4 == 1 {
        return Err("not base64");
    }
    for &letter in &text[..length] {
        let six = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err("not base64"),
        };
        (bits, held) = (bits << 6 | u32::from(six), held + 6);
        if held >= 8 {
            held -= 8;
            value.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Ok(value)
}

/// Whether the arguments change anything.
pub fn changes(args: &XattrArgs) -> bool {
    !args.set.is_empty() || !args.remove.is_empty()
}

/// Refuses arguments that say both what to print and what to change.
pub fn check(args: &XattrArgs) -> Result<(), CliError> {
    let prints = args.name.as_deref().map(OsStr::to_string_lossy);
    match prints {
        Some(name) if changes(args) => {
            Err(CliError::usage(format!("`{name}` would be printed: name it with --set or --remove")))
        }
        _ if (args.create || args.replace) && args.set.is_empty() => {
            Err(CliError::usage("--create and --replace are for --set"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_setfattr() {
        for (text, wanted) in [
            (&b""[..], &b""[..]),
            (b"plain \\ text", b"plain \\ text"),
            (b"a\\\"b\\101\\7x\\18\\q\\", b"a\"bA\x07x\x018\\q\\"),
            (b"\"ab", b"\"ab"),
            (b"\"x\\\"", b"x\\"),
            (b"\\777", b"\xff"),
            (b"\"a \\\"b\\\\\\012\\377\"", b"a \"b\\\n\xff"),
            (b"\"", b"\""),
            (b"\"\"", b""),
            (b"0x", b""),
            (b"0X00 fF", b"\x00\xff"),
            (b"0s", b""),
            (b"0sAAEC/w==", b"\x00\x01\x02\xff"),
            (b"0sAAEC/w", b"\x00\x01\x02\xff"),
            (b"0saGVsbG8=", b"hello"),
        ] {
            assert_eq!(value(text).unwrap(), wanted, "{}", String::from_utf8_lossy(text));
        }
        for text in [&b"0x1"[..], b"0xzz", b"0sA", b"0s?", b"0sAA==="] {
            value(text).unwrap_err();
        }
        assert_eq!(parse(&"user.a=b=c".into()).unwrap().value, b"b=c");
        assert_eq!(parse(&"user.a".into()).unwrap(), Setting { name: b"user.a".to_vec(), value: Vec::new() });
    }
}
