//! Extended attributes of what was copied, and how much of them.

use super::target::{Failed, Target};
use super::{Destination, Keep, volume_size};
use crate::error::{CliError, Troubles};
use crate::open::Place;
use rustix::io::Errno;
use uext4::{Acl, AclKind, AclTag, FileKind, Metadata, Volume, XATTR_SIZE_MAX, Xattr};

/// Most inodes that share an attribute block (`EXT4_XATTR_REFCOUNT_MAX`).
const SHARED_MAX: u64 = 1024;
/// What looking at an inode's attributes or at one of them costs, beside names and values. More than an entry takes,
/// and less than what an inode's part of an honest volume leaves for it.
const LOOK: u64 = 128;
/// Bad attributes of one file that are told one by one.
const BAD_MAX: u64 = 4;
/// Files that are told one by one to have lost their attributes because the allowance was spent.
const LEFT_OUT_MAX: u64 = 100;

/// What a file's group may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// What the mode says: the file has no access control list, or its copy has the same.
    Mode,
    /// No more than these permissions: with the lost access control list, the mode says what everybody named in it
    /// gets at most (its mask), and not what the group gets.
    AtMost(u32),
}

impl Group {
    /// The mode that gives the group no more than it had.
    pub fn limit(self, mode: u32) -> u32 {
        match self {
            Group::Mode => mode,
            Group::AtMost(permissions) => mode & (!0o070 | permissions << 3),
        }
    }

    /// That of an access control list in the form of the system calls.
    fn of_acl(value: &[u8]) -> Group {
        let entries = Acl::decode_xattr(value).unwrap_or_default().entries;
        let of = |tag| entries.iter().filter(move |entry| entry.tag == tag).map(|entry| entry.permissions);
        let most = of(AclTag::Mask).fold(7, |most, permissions| most & permissions);
        let group = of(AclTag::OwningGroup).reduce(|one, other| one & other).unwrap_or(0);
        Group::AtMost(u32::from(group & most))
    }
}

/// Extended attributes of one copy.
pub struct Xattrs<'a> {
    place: &'a Place,
    volume: &'a Volume,
    destination: &'a Destination,
    keep: Keep,
    /// What may still be looked at.
    allowance: u64,
    /// Files that lost attributes because nothing of it was left.
    left_out: u64,
}

/// One file's.
struct One<'t> {
    path: &'t [u8],
    target: Target<'t>,
    metadata: &'t Metadata,
    troubles: &'t mut Troubles,
    /// How many were bad.
    bad: u64,
    /// That of the access control list, if there is one.
    group: Option<Group>,
    /// Whether an access control list may be among what could not be read.
    hidden: bool,
    /// Which lists were set.
    set: Vec<AclKind>,
}

impl One<'_> {
    fn is_bad(&mut self, error: &CliError) {
        self.bad += 1;
        if self.bad <= BAD_MAX {
            self.troubles.tell(error);
        }
    }
}

impl<'a> Xattrs<'a> {
    /// Of a copy of what `place` names.
    pub fn new(place: &'a Place, volume: &'a Volume, destination: &'a Destination, keep: Keep) -> Self {
        Xattrs { place, volume, destination, keep, allowance: allowance(volume), left_out: 0 }
    }

    /// Sets what was asked for: all attributes, or access control lists only, which belong to the mode. As with
    /// cp(1), lists that the directory around gave are taken away, and what else this host or this user cannot have
    /// is left out without a word.
    pub fn keep(
        &mut self,
        path: &[u8],
        target: Target<'_>,
        metadata: &Metadata,
        troubles: &mut Troubles,
    ) -> Group {
        let (bad, group, hidden, set) = (0, None, false, Vec::new());
        let mut one = One { path, target, metadata, troubles, bad, group, hidden, set };
        self.copy(&mut one);
        if let Some(more) = one.bad.checked_sub(BAD_MAX).filter(|more| *more > 0) {
            let what = format!("{more} more attributes could not be copied");
            one.troubles.tell(&CliError::failed(&self.place.below(path), what, libc::EUCLEAN));
        }
        self.remove_acls(&mut one);
        let otherwise = if one.hidden { Group::AtMost(0) } else { Group::Mode };
        one.group.unwrap_or(otherwise)
    }

    fn copy(&mut self, one: &mut One<'_>) {
        let source = self.place.below(one.path);
        if self.allowance == 0 {
            // Nothing more is taken from a volume that was found to be hostile.
            if self.volume.may_have_xattrs(one.metadata.ino).unwrap_or(true) {
                self.leave_out(one);
            }
            return;
        }
        let xattrs = match self.volume.xattrs_of(one.metadata.ino) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                one.hidden = true;
                return one.is_bad(&CliError::at(&source, error));
            }
        };
        let mut spent = !self.spend(LOOK.saturating_mul(1 + xattrs.examined() as u64));
        for xattr in xattrs {
            spent = spent
                || match xattr {
                    Ok(xattr) => !self.copy_one(one, xattr),
                    Err(error) => {
                        one.hidden = true;
                        one.is_bad(&CliError::at(&source, error));
                        !self.spend(self.volume.superblock().geometry.block_size().into())
                    }
                };
            if spent {
                return self.leave_out(one);
            }
        }
    }

    /// Takes it from the allowance; whether there was so much.
    fn spend(&mut self, amount: u64) -> bool {
        self.allowance = self.allowance.saturating_sub(amount);
        self.allowance > 0
    }

    fn leave_out(&mut self, one: &mut One<'_>) {
        one.hidden = true;
        self.left_out += 1;
        if self.left_out <= LEFT_OUT_MAX {
            let what = format!(
                "attributes of inode {} are left out: all copied so far hold more than the volume (they share values)",
                one.metadata.ino
            );
            one.troubles.tell(&CliError::failed(&self.place.below(one.path), what, libc::E2BIG));
        }
    }

    /// Whether there was enough allowance for it.
    fn copy_one(&mut self, one: &mut One<'_>, xattr: Xattr<'_>) -> bool {
        let name = xattr.name().clone();
        let list = name.acl_kind();
        if self.keep != Keep::Everything && list.is_none() {
            return true;
        }
        let name = name.as_bytes();
        // More is not read, whatever an entry says.
        let size = xattr.stored_size().min(XATTR_SIZE_MAX.into());
        if !self.spend(size + name.len() as u64) {
            return false;
        }
        let failed = match xattr.value() {
            Ok(value) => match (one.target.set_xattr(name, &value), list) {
                (Ok(()), _) => {
                    one.set.extend(list);
                    one.group = if list == Some(AclKind::Access) { Some(Group::Mode) } else { one.group };
                    return true;
                }
                (Err((_, Errno::OPNOTSUPP | Errno::PERM)), None) => return true,
                (Err((action, error)), _) => {
                    one.group =
                        if list == Some(AclKind::Access) { Some(Group::of_acl(&value)) } else { one.group };
                    self.destination.refused(one.path, action, error)
                }
            },
            // An access control list without entries is none, though its name is there.
            Err(uext4::Error::NoAttribute) => return true,
            Err(error) => {
                one.hidden |= list == Some(AclKind::Access);
                CliError::at(&self.place.below(one.path), error)
            }
        };
        one.is_bad(&failed.about_attribute(name));
        true
    }

    /// Takes the lists away that the source does not have.
    fn remove_acls(&self, one: &mut One<'_>) {
        let kinds: &[AclKind] = match one.metadata.kind {
            FileKind::Symlink => &[],
            FileKind::Directory => &[AclKind::Access, AclKind::Default],
            _ => &[AclKind::Access],
        };
        for &kind in kinds.iter().filter(|kind| !one.set.contains(kind)) {
            let removed: Result<(), Failed> = one.target.remove_acl(kind);
            if let Err((action, error)) = removed {
                let refused = self.destination.refused(one.path, action, error);
                one.troubles.tell(&refused.about_attribute(kind.name().as_bytes()));
            }
        }
    }

    /// Tells what was not told of every file.
    pub fn finish(&self, troubles: &mut Troubles) {
        if let Some(more) = self.left_out.checked_sub(LEFT_OUT_MAX).filter(|more| *more > 0) {
            let what = format!("attributes of {more} more files are left out for the same reason");
            troubles.tell(&CliError::failed(&self.place.below(b""), what, libc::E2BIG));
        }
    }
}

/// What may be looked at in `volume` besides its data: bytes of names and values, and [`LOOK`] for each.
///
/// An attribute block may be shared by 1024 inodes, and a value in an inode of its own by any number of them, in an
/// honest volume too: the kernel stores equal ones once. So there is no bound that every honest volume meets and that
/// keeps a hostile one from filling the host. The volume's size is enough for all that is not shared, and for what is
/// shared if it comes to no more than that; on top of it the largest value may be named as often as an attribute
/// block, so that sharing is no offence in small volumes either. Who shares more than that loses the rest, and is told.
fn allowance(volume: &Volume) -> u64 {
    volume_size(volume).saturating_add(SHARED_MAX * u64::from(XATTR_SIZE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_list_gives_the_group_nothing() {
        let list = |entries: &[(AclTag, u16)]| {
            let entry = |&(tag, permissions)| uext4::AclEntry { tag, permissions };
            Group::of_acl(&Acl { entries: entries.iter().map(entry).collect() }.encode_xattr())
        };
        let (owner, user, group, mask) = (AclTag::Owner, AclTag::User(1), AclTag::OwningGroup, AclTag::Mask);
        assert_eq!(list(&[(owner, 7), (user, 6), (group, 0), (mask, 6)]), Group::AtMost(0));
        assert_eq!(list(&[(owner, 7), (user, 6), (group, 5), (mask, 6)]), Group::AtMost(4));
        assert_eq!(list(&[(owner, 7), (group, 5)]), Group::AtMost(5));
        assert_eq!(list(&[(owner, 7), (user, 7), (mask, 7)]), Group::AtMost(0));
        assert_eq!(Group::of_acl(b"nonsense"), Group::AtMost(0));
        assert_eq!(Group::AtMost(4).limit(0o2765), 0o2745);
        assert_eq!(Group::AtMost(7).limit(0o604), 0o604, "never more than the mode");
        assert_eq!(Group::Mode.limit(0o2765), 0o2765);
    }
}
