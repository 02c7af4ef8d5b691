//! The kernel's table of mounts.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A mount as `/proc/self/mountinfo` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Its device number: `major:minor`.
    pub device: String,
    /// The mount point.
    pub point: PathBuf,
    /// The type, as `fuse.uext4`.
    pub kind: String,
    /// What it says is mounted.
    pub source: OsString,
    /// The user whom FUSE knows as the one who mounted it.
    pub user: Option<u32>,
}

impl MountEntry {
    /// What is mounted on a directory, the uppermost if there are several. The file system is not asked: its server
    /// may hang or be gone.
    ///
    /// # Errors
    /// `EINVAL` if nothing is mounted there; those of reading the path or the table.
    pub fn at(directory: &Path) -> io::Result<MountEntry> {
        let table = std::fs::read("/proc/self/mountinfo")?;
        let absolute = std::path::absolute(directory)?;
        if let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name())
            && let Some(found) = Self::find(&table, &std::fs::canonicalize(parent)?.join(name))
        {
            return Ok(found);
        }
        // Perhaps it is a symbolic link.
        let followed = std::fs::canonicalize(directory)?;
        Self::find(&table, &followed).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn find(table: &[u8], point: &Path) -> Option<MountEntry> {
        let mut entries = table.split(|&byte| byte == b'\n').filter_map(Self::parse);
        entries.rfind(|entry| entry.point == point)
    }

    /// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER_OPTIONS`
    fn parse(line: &[u8]) -> Option<MountEntry> {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
        let point = PathBuf::from(unescaped(fields.nth(1)?));
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let kind = String::from_utf8_lossy(fields.next()?).into_owned();
        let source = unescaped(fields.next()?);
        let options = fields.next().unwrap_or_default();
        let user = options.split(|&byte| byte == b',').find_map(|word| word.strip_prefix(b"user_id="));
        let user = user.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        Some(MountEntry { device, point, kind, source, user })
    }
}

/// The table has `\ooo` for space, tab, newline and backslash.
fn unescaped(mut field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    while let Some((&byte, rest)) = field.split_first() {
        let code = rest.get(..3).filter(|_| byte == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(value) => {
                plain.push(value);
                field = &rest[3..];
            }
            None => {
                plain.push(byte);
                field = rest;
            }
        }
    }
    OsString::from_vec(plain)
}

impl MountEntry {
    /// The beginning of the name of its server's socket.
    pub(crate) fn socket_prefix(&self) -> Vec<u8> {
        [b"uext4-mount/", self.device.as_bytes(), b"/"].concat()
    }

    /// Names of sockets that servers of this mount may have, of a table like `/proc/net/unix`.
    pub(crate) fn sockets(&self, table: &[u8]) -> Vec<Vec<u8>> {
        let prefix = self.socket_prefix();
        let lines = table.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end);
        let names = lines.filter_map(|line| line.rsplit(|&byte| byte == b' ').next()?.strip_prefix(b"@"));
        let mut names: Vec<_> = names.filter(|name| name.starts_with(&prefix)).map(<[u8]>::to_vec).collect();
        names.sort();
        // Connections have the name of the socket that took them.
        names.dedup();
        names
    }

    /// The mount point as text for people.
    #[must_use]
    pub fn point_text(&self) -> String {
        String::from_utf8_lossy(self.point.as_os_str().as_bytes()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        30 22 0:51 / /mnt/a\\040b rw,nosuid - fuse.uext4 /x/disk\\134.img rw,user_id=1000,group_id=7,allow_other\n\
        31 30 0:52 / /mnt/a\\040b rw - fuse.other x rw,user_id=0\n";

    #[test]
    fn the_uppermost_mount_is_found() {
        let entry = MountEntry::find(TABLE, Path::new("/mnt/a b")).unwrap();
        assert_eq!((entry.device.as_str(), entry.kind.as_str(), entry.user), ("0:52", "fuse.other", Some(0)));
        let entry = MountEntry::parse(TABLE.split(|&byte| byte == b'\n').nth(1).unwrap()).unwrap();
        assert_eq!((entry.source.to_str(), entry.user), (Some("/x/disk\\.img"), Some(1000)));
        assert!(MountEntry::find(TABLE, Path::new("/mnt")).is_none());
        assert!(MountEntry::parse(b"22 1").is_none() && MountEntry::parse(b"").is_none());
    }

    #[test]
    fn sockets_of_a_mount_are_told_from_others() {
        let entry = MountEntry::find(TABLE, Path::new("/mnt/a b")).unwrap();
        let table = b"Num RefCount\nffff: 2 0 10000 0001 01 7 @uext4-mount/0:52/9\n0: 2 0 0 1 1 8 @uext4-mount/0:521/\n\
            0: 2 0 0 1 1 8 /run/x\n0: 2 0 0 1 1 8\nffff: 3 0 0 0001 03 7 @uext4-mount/0:52/9\n";
        assert_eq!(entry.sockets(table), [b"uext4-mount/0:52/9".to_vec()]);
    }
}
