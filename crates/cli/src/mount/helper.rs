//! How mount(8) and umount(8) call this program: by the name of a helper, or through `mount.fuse3` as a file system.

use crate::error::CliError;
use crate::text;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names under which mount(8) finds it, for the types `fuse.uext4` and `uext4`.
const MOUNT: [&str; 2] = ["mount.fuse.uext4", "mount.uext4"];
/// The same for umount(8).
const UMOUNT: [&str; 2] = ["umount.fuse.uext4", "umount.uext4"];
/// As `mount.fuse3` has it: what is right for a file system of root's.
const DEFAULTS: &str = "dev,suid";

/// The arguments as those of a command, if mount(8) called.
///
/// # Errors
/// Bad usage: what mount(8) asks for and is not there.
pub fn arguments(arguments: Vec<OsString>) -> Result<Vec<OsString>, CliError> {
    let name = arguments.first().and_then(|program| Path::new(program).file_name());
    match name {
        Some(name) if MOUNT.iter().any(|helper| name == *helper) => as_mount(&arguments),
        Some(name) if UMOUNT.iter().any(|helper| name == *helper) => as_umount(&arguments),
        _ if is_from_mount_fuse(&arguments) => {
            let mut arguments = arguments;
            arguments.insert(1, "mount".into());
            Ok(arguments)
        }
        _ => Ok(arguments),
    }
}

/// `uext4 /IMAGE /DIR -o OPTIONS`: what `mount.fuse3` has a shell run for the type `fuse.uext4`.
fn is_from_mount_fuse(arguments: &[OsString]) -> bool {
    let slash = |word: &OsStr| word.as_bytes().contains(&b'/') && !word.as_bytes().starts_with(b"-");
    matches!(arguments, [_, device, directory, option, _] if slash(device) && slash(directory) && option == "-o")
}

/// `DEVICE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]` (mount(8), "External helpers").
fn as_mount(arguments: &[OsString]) -> Result<Vec<OsString>, CliError> {
    let mut made: Vec<OsString> = vec!["uext4".into(), "mount".into(), "-o".into(), DEFAULTS.into()];
    let (mut places, mut words) = (Vec::new(), arguments.iter().skip(1));
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => {
                let options = words.next().ok_or_else(|| CliError::usage("-o needs options"))?;
                made.extend(["-o".into(), options.clone()]);
            }
            b"-t" => drop(words.next()),
            // Unknown options are errors all the same; there is no /etc/mtab.
            b"-s" | b"-n" | b"-v" => {}
            [b'-', _, ..] => {
                let word = text::visible(word.as_bytes());
                return Err(CliError::usage(format!("{word} of mount(8) is not supported")));
            }
            _ => places.push(word.clone()),
        }
    }
    made.push("--".into());
    made.extend(places);
    Ok(made)
}

/// `DIR [-flnrv] [-N NAMESPACE] [-t TYPE]` (umount(8), "External helpers").
fn as_umount(arguments: &[OsString]) -> Result<Vec<OsString>, CliError> {
    let mut made: Vec<OsString> = vec!["uext4".into(), "umount".into()];
    let (mut places, mut words) = (Vec::new(), arguments.iter().skip(1));
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-l" => made.push("--lazy".into()),
            b"-t" => drop(words.next()),
            b"-n" | b"-v" => {}
            [b'-', _, ..] => {
                let word = text::visible(word.as_bytes());
                return Err(CliError::usage(format!(
                    "{word} of umount(8) is not supported (umount -i takes it)"
                )));
            }
            _ => places.push(word.clone()),
        }
    }
    made.push("--".into());
    made.extend(places);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String, CliError> {
        let words = line.split(' ').map(OsString::from).collect();
        arguments(words).map(|words| words.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn calls_of_mount_become_commands() {
        for (line, command) in [
            ("/sbin/mount.fuse.uext4 a b -o ro,x=1", "uext4 mount -o dev,suid -o ro,x=1 -- a b"),
            ("mount.uext4 a b -s -n -v -o rw -t uext4", "uext4 mount -o dev,suid -o rw -- a b"),
            ("/sbin/umount.fuse.uext4 b -l -n -t fuse.uext4", "uext4 umount --lazy -- b"),
            ("uext4 /a.img /mnt -o rw,dev", "uext4 mount /a.img /mnt -o rw,dev"),
            ("uext4 ls a.img:/ -o x", "uext4 ls a.img:/ -o x"),
            ("uext4 mount a b -o ro", "uext4 mount a b -o ro"),
            ("uext4", "uext4"),
        ] {
            assert_eq!(translated(line).unwrap(), command);
        }
        for line in [
            "mount.uext4 a b -f",
            "mount.uext4 a b -N /proc/1/ns/mnt",
            "mount.uext4 a b -o",
            "umount.uext4 b -f",
        ] {
            assert!(matches!(translated(line), Err(CliError::Usage(_))), "{line}");
        }
    }
}
