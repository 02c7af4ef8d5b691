//! Owners and times that the options give instead of those of the inputs.

use super::draft::Attributes;
use std::str::FromStr;
use uext4::{Acl, AclKind, AclTag, Timestamp};

/// Users or groups that become others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first that is replaced.
    pub from: u32,
    /// What the first becomes; those after it follow.
    pub to: u32,
    /// How many.
    pub count: u32,
}

impl IdRange {
    fn map(&self, id: u32) -> Option<u32> {
        let at = id.checked_sub(self.from).filter(|at| *at < self.count)?;
        self.to.checked_add(at)
    }
}

impl FromStr for IdRange {
    type Err = String;

    /// From `FROM:TO` or `FROM:TO:COUNT`.
    fn from_str(text: &str) -> Result<IdRange, String> {
        let wrong = || format!("FROM:TO or FROM:TO:COUNT, not {text}");
        let numbers: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        let (from, to, count) = match numbers.map_err(|_| wrong())?[..] {
            [from, to] => (from, to, 1),
            [from, to, count] => (from, to, count),
            _ => return Err(wrong()),
        };
        let last = count.checked_sub(1).ok_or_else(wrong)?;
        match from.checked_add(last).and(to.checked_add(last)) {
            Some(_) => Ok(IdRange { from, to, count }),
            None => Err(wrong()),
        }
    }
}

/// What the options say about owners and times.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    /// Owner and group of everything.
    pub all: Option<(u32, u32)>,
    /// What users and groups become. The first range counts that has one.
    pub users: Vec<IdRange>,
    pub groups: Vec<IdRange>,
    /// Times later than this many seconds since 1970 become it.
    pub latest: Option<i64>,
}

fn mapped(ranges: &[IdRange], id: u32) -> u32 {
    ranges.iter().find_map(|range| range.map(id)).unwrap_or(id)
}

impl Owners {
    pub fn apply(&self, attributes: &mut Attributes) {
        attributes.uid = mapped(&self.users, attributes.uid);
        attributes.gid = mapped(&self.groups, attributes.gid);
        self.apply_to_lists(attributes);
        if let Some((uid, gid)) = self.all {
            (attributes.uid, attributes.gid) = (uid, gid);
        }
        if let Some(latest) = self.latest {
            let bound = Timestamp { seconds: latest, nanoseconds: 0 };
            let time = attributes.modified;
            if (time.seconds, time.nanoseconds) > (bound.seconds, bound.nanoseconds) {
                attributes.modified = bound;
            }
        }
    }

    /// Users and groups that access control lists name. A list that cannot be read stays as it is.
    fn apply_to_lists(&self, attributes: &mut Attributes) {
        if self.users.is_empty() && self.groups.is_empty() {
            return;
        }
        for kind in [AclKind::Access, AclKind::Default] {
            let Some(value) = attributes.xattrs.get_mut(kind.name().as_bytes()) else { continue };
            let Ok(mut list) = Acl::decode_xattr(value) else { continue };
            for entry in &mut list.entries {
                entry.tag = match entry.tag {
                    AclTag::User(id) => AclTag::User(mapped(&self.users, id)),
                    AclTag::Group(id) => AclTag::Group(mapped(&self.groups, id)),
                    other => other,
                };
            }
            list.entries.sort_by_key(|entry| super::tar::acl_order(entry.tag));
            *value = list.encode_xattr();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::draft::Xattrs;
    use uext4::AclEntry;

    #[test]
    fn ranges_are_read_and_have_ends() {
        let read = |text: &str| text.parse::<IdRange>().ok();
        assert_eq!(read("1000:0"), Some(IdRange { from: 1000, to: 0, count: 1 }));
        assert_eq!(read("0:100000:65536"), Some(IdRange { from: 0, to: 100_000, count: 65_536 }));
        for wrong in ["", "1", "1:2:3:4", "1:2:0", "-1:2", "4294967295:0:2", "0:4294967295:2", "a:b"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn owners_and_the_users_of_lists_are_mapped_and_times_bounded() {
        let entry = |tag| AclEntry { tag, permissions: 7 };
        let list = [AclTag::Owner, AclTag::User(5), AclTag::User(9), AclTag::OwningGroup, AclTag::Group(5)];
        let list = Acl { entries: list.map(entry).to_vec() };
        let name = AclKind::Access.name().as_bytes().to_vec();
        let modified = Timestamp { seconds: 100, nanoseconds: 1 };
        let xattrs = Xattrs::from([(name.clone(), list.encode_xattr())]);
        let mut attributes = Attributes { mode: 0o644, uid: 5, gid: 6, modified, xattrs };
        let users = vec![IdRange { from: 5, to: 500, count: 3 }, IdRange { from: 0, to: 1, count: 100 }];
        let owners = Owners { users, latest: Some(100), ..Owners::default() };
        owners.apply(&mut attributes);
        assert_eq!((attributes.uid, attributes.gid, attributes.modified.nanoseconds), (500, 6, 0));
        let list = Acl::decode_xattr(&attributes.xattrs[&name]).unwrap();
        let tags: Vec<_> = list.entries.iter().map(|entry| entry.tag).collect();
        let wanted =
            [AclTag::Owner, AclTag::User(10), AclTag::User(500), AclTag::OwningGroup, AclTag::Group(5)];
        assert_eq!(tags, wanted);
        Owners { all: Some((1, 2)), ..owners }.apply(&mut attributes);
        assert_eq!((attributes.uid, attributes.gid), (1, 2));
    }
}
