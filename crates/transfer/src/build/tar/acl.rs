//! Access control lists as archives have them: text, with numbers of users and groups behind the names or instead.

use crate::build::draft::Attributes;
use crate::build::error::GatherCause;
use uext4::{Acl, AclEntry, AclKind, AclTag};

/// Gives a file the lists of an archive: of access, and a directory's default. As the system call does, the list of
/// access sets the permissions of the mode.
pub fn apply(
    attributes: &mut Attributes,
    [access, default]: [Option<Vec<u8>>; 2],
    is_directory: bool,
) -> Result<(), GatherCause> {
    if let Some(text) = access {
        let list = parse(&text)?;
        let permissions = |wanted| {
            let entry = list.entries.iter().find(|entry| entry.tag == wanted);
            entry.map(|entry| entry.permissions)
        };
        let group = permissions(AclTag::Mask).or(permissions(AclTag::OwningGroup));
        let bits = [permissions(AclTag::Owner), group, permissions(AclTag::Other)];
        let [Some(owner), Some(group), Some(other)] = bits else {
            return Err(GatherCause::Acl("an entry for the owner, the group or others is missing".into()));
        };
        attributes.mode = attributes.mode & 0o7000 | owner << 6 | group << 3 | other;
        // One that says no more than the mode is none.
        if list.entries.len() > 3 {
            attributes.xattrs.insert(AclKind::Access.name().as_bytes().to_vec(), list.encode_xattr());
        }
    }
    if let Some(text) = default.filter(|_| is_directory) {
        let list = parse(&text)?;
        if !list.entries.is_empty() {
            attributes.xattrs.insert(AclKind::Default.name().as_bytes().to_vec(), list.encode_xattr());
        }
    }
    Ok(())
}

fn parse(text: &[u8]) -> Result<Acl, GatherCause> {
    let mut entries = Vec::new();
    for line in text.split(|&byte| byte == b',' || byte == b'\n') {
        // Behind `#` it says what the mask leaves of it.
        let line = line.split(|&byte| byte == b'#').next().unwrap_or_default().trim_ascii();
        if !line.is_empty() {
            entries.push(entry(line).ok_or_else(|| {
                GatherCause::Acl(format!("the entry {} is not understood", line.escape_ascii()))
            })?);
        }
    }
    entries.sort_by_key(|entry| order(entry.tag));
    if entries.windows(2).any(|pair| order(pair[0].tag) == order(pair[1].tag)) {
        return Err(GatherCause::Acl("two entries are for the same user or group".into()));
    }
    Ok(Acl { entries })
}

/// The order that the kernel wants.
pub fn order(tag: AclTag) -> (u8, u32) {
    match tag {
        AclTag::Owner => (0, 0),
        AclTag::User(id) => (1, id),
        AclTag::OwningGroup => (2, 0),
        AclTag::Group(id) => (3, id),
        AclTag::Mask => (4, 0),
        AclTag::Other => (5, 0),
    }
}

/// `user:lisa:rwx:1001`, and the like with less.
fn entry(line: &[u8]) -> Option<AclEntry> {
    let line = line.strip_prefix(b"default:").unwrap_or(line);
    let mut fields = line.split(|&byte| byte == b':').map(<[u8]>::trim_ascii);
    let (tag, name, rights) = (fields.next()?, fields.next()?, fields.next());
    // star writes `other::r--`, others `other:r--`.
    let (name, rights) = match rights {
        Some(rights) => (name, rights),
        None => (&b""[..], name),
    };
    let id = |file| match fields.clone().next().and_then(decimal) {
        Some(id) => Some(id),
        None => decimal(name).or_else(|| look_up(file, name)),
    };
    let tag = match (tag, name) {
        (b"user" | b"u", b"") => AclTag::Owner,
        (b"user" | b"u", _) => AclTag::User(id("/etc/passwd")?),
        (b"group" | b"g", b"") => AclTag::OwningGroup,
        (b"group" | b"g", _) => AclTag::Group(id("/etc/group")?),
        (b"mask" | b"m", b"") => AclTag::Mask,
        (b"other" | b"o", b"") => AclTag::Other,
        _ => return None,
    };
    let mut permissions = 0;
    for &right in rights {
        permissions |= match right {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    Some(AclEntry { tag, permissions })
}

pub fn decimal(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The number of a user or group of this host: GNU tar writes names alone, and looks them up so itself.
pub fn look_up(file: &str, name: &[u8]) -> Option<u32> {
    let known = std::fs::read(file).ok()?;
    let mut lines = known.split(|&byte| byte == b'\n').map(|line| line.split(|&byte| byte == b':'));
    let mut fields = lines.find(|fields| fields.clone().next() == Some(name))?;
    decimal(fields.nth(2)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_all_programs_are_understood() {
        let star =
            parse(b"user::rw-,user:lisa:rw-:1001,group::r--,group:7:r-x,mask::rwx,other::---").unwrap();
        let tags: Vec<_> = star.entries.iter().map(|entry| (entry.tag, entry.permissions)).collect();
        let wanted = [
            (AclTag::Owner, 6),
            (AclTag::User(1001), 6),
            (AclTag::OwningGroup, 4),
            (AclTag::Group(7), 5),
            (AclTag::Mask, 7),
            (AclTag::Other, 0),
        ];
        assert_eq!(tags, wanted);
        let lines =
            parse(b"user::rw-\nuser:1001:rw-\t#effective:r--\ngroup::r--\nmask::r--\nother:r--\n").unwrap();
        assert_eq!(lines.entries.len(), 5);
        for wrong in
            ["user::rq-", "user:nobody-has-this-name:rw-", "user", "mask:1:r--", "user::r--,user::rw-"]
        {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
