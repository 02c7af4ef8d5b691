//! Copies extended attributes, within an allowance.

use crate::error::{Cause, Error};
use crate::export::{Destination, Observer, volume_size};
use crate::options::Keep;
use crate::target::{Failed, Target};
use rustix::io::Errno;
use uext4::{Acl, AclKind, AclTag, FileKind, Metadata, Volume, XATTR_SIZE_MAX, Xattr};

/// Maximum inodes sharing an attribute block (`EXT4_XATTR_REFCOUNT_MAX`).
const SHARED_MAX: u64 = 1024;
/// Allowance charged for reading an inode's attributes, or one of them, beside names and values. More than an entry
/// takes, and less than an inode's share of an honest volume.
const LOOK: u64 = 128;
/// Bad attributes of one file reported individually.
const BAD_MAX: u64 = 4;
/// Files reported individually whose attributes were left out because the allowance was spent.
const LEFT_OUT_MAX: u64 = 100;

/// Upper bound of the rights of a file's group and others, as mode bits. (The owner's rights come from the mode alone,
/// whatever the list contains.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(u32);

impl Limit {
    /// The mode's bits: the file has no access control list.
    const MODE: Limit = Limit(0o077);
    /// Nothing: the list is unknown.
    const NOTHING: Limit = Limit(0);

    /// `mode` reduced to these rights.
    pub fn of(self, mode: u32) -> u32 {
        mode & (!0o077 | self.0)
    }

    fn and(self, other: Limit) -> Limit {
        Limit(self.0 & other.0)
    }

    /// The limit for a file that lost this access control list, given in system call format. A user or group named in
    /// it may be in the file's group, or be neither that nor the owner, and must not gain rights. (Members of the
    /// owning group are not in the group of a copy that could not be given away.)
    fn of_lost(list: &[u8]) -> Limit {
        let Ok(list) = Acl::decode_xattr(list) else { return Limit::NOTHING };
        let most = least(&list, |tag| tag == AclTag::Mask).unwrap_or(7);
        let owning = least(&list, |tag| tag == AclTag::OwningGroup).unwrap_or(0);
        let users = least(&list, |tag| matches!(tag, AclTag::User(_))).unwrap_or(7);
        let groups = least(&list, |tag| matches!(tag, AclTag::Group(_))).unwrap_or(7);
        let other = least(&list, |tag| tag == AclTag::Other).unwrap_or(0);
        let group = owning & most & users;
        Limit(group << 3 | group & groups & other)
    }

    /// The limit for a file of this mode that keeps this list: changing the mode changes the list's mask (or the group
    /// entry if there is no mask) and the entry for others.
    fn of_kept(list: &[u8], mode: u32) -> Limit {
        let Ok(entries) = Acl::decode_xattr(list) else { return Limit::NOTHING };
        let mask = least(&entries, |tag| tag == AclTag::Mask);
        let group = mask.or_else(|| least(&entries, |tag| tag == AclTag::OwningGroup)).unwrap_or(0);
        let other = least(&entries, |tag| tag == AclTag::Other).unwrap_or(0);
        let limit = Limit(group << 3 | other);
        // Linux ignores the list of a file whose mode gives the group nothing. If that holds only for the copy, the
        // list is as good as lost: those it names get the rights of others.
        let unheeded = mode & 0o070 != 0 && limit.of(mode) & 0o070 == 0;
        if unheeded { limit.and(Limit::of_lost(list)) } else { limit }
    }
}

/// The rights that all entries of some kinds have in common, if there are any.
fn least(list: &Acl, which: impl Fn(AclTag) -> bool) -> Option<u32> {
    let those = list.entries.iter().filter(|entry| which(entry.tag));
    those.map(|entry| u32::from(entry.permissions)).reduce(|one, other| one & other)
}

/// The extended attributes of one copy.
pub struct Xattrs<'a> {
    volume: &'a Volume,
    destination: &'a Destination,
    keep: Keep,
    /// Allowance left.
    allowance: u64,
    /// Files that lost attributes because the allowance was spent.
    left_out: u64,
}

/// The result for one file.
struct One<'t> {
    path: &'t [u8],
    target: Target<'t>,
    metadata: &'t Metadata,
    observer: &'t mut dyn Observer,
    /// Number of bad attributes.
    bad: u64,
    /// The limit from the access control list, if there is one.
    limit: Option<Limit>,
    /// Whether an access control list may be among the unreadable attributes.
    hidden: bool,
    /// Which lists were set.
    set: Vec<AclKind>,
}

impl One<'_> {
    fn is_bad(&mut self, error: Error) {
        self.bad += 1;
        if self.bad <= BAD_MAX {
            self.observer.trouble(error);
        }
    }

    fn limit(&mut self, limit: Limit) {
        self.limit = Some(limit.and(self.limit.unwrap_or(Limit::MODE)));
    }
}

impl<'a> Xattrs<'a> {
    /// For a copy out of `volume`.
    pub fn new(volume: &'a Volume, destination: &'a Destination, keep: Keep) -> Self {
        Xattrs { volume, destination, keep, allowance: allowance(volume), left_out: 0 }
    }

    /// Sets the attributes that are kept; access control lists belong to the mode. As in cp(1), lists inherited from
    /// the parent directory are removed with it, and other attributes that this host or user cannot set are skipped
    /// silently, unless they are required.
    pub fn keep(
        &mut self,
        path: &[u8],
        target: Target<'_>,
        metadata: &Metadata,
        observer: &mut dyn Observer,
    ) -> Limit {
        if !(self.keep.mode || self.keep.xattrs || self.keep.context) {
            return Limit::MODE;
        }
        let (bad, limit, hidden, set) = (0, None, false, Vec::new());
        let mut one = One { path, target, metadata, observer, bad, limit, hidden, set };
        self.copy(&mut one);
        if let Some(more) = one.bad.checked_sub(BAD_MAX).filter(|more| *more > 0) {
            one.observer.trouble(Error::source(path, Cause::MoreAttributes(more)));
        }
        self.remove_acls(&mut one);
        let otherwise = if one.hidden { Limit::NOTHING } else { Limit::MODE };
        one.limit.unwrap_or(otherwise)
    }

    fn copy(&mut self, one: &mut One<'_>) {
        if self.allowance == 0 {
            // Copy nothing more once the volume proved hostile.
            if self.volume.may_have_xattrs(one.metadata.ino).unwrap_or(true) {
                self.leave_out(one);
            }
            return;
        }
        let xattrs = match self.volume.xattrs_of(one.metadata.ino) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                one.hidden = true;
                return one.is_bad(Error::source(one.path, error));
            }
        };
        let mut spent = !self.spend(LOOK.saturating_mul(1 + xattrs.examined() as u64));
        for xattr in xattrs {
            spent = spent
                || match xattr {
                    Ok(xattr) => !self.copy_one(one, xattr),
                    Err(error) => {
                        one.hidden = true;
                        one.is_bad(Error::source(one.path, error));
                        !self.spend(self.volume.superblock().geometry.block_size().into())
                    }
                };
            if spent {
                return self.leave_out(one);
            }
        }
    }

    /// Charges the allowance; returns whether it sufficed.
    fn spend(&mut self, amount: u64) -> bool {
        self.allowance = self.allowance.saturating_sub(amount);
        self.allowance > 0
    }

    fn leave_out(&mut self, one: &mut One<'_>) {
        one.hidden = true;
        self.left_out += 1;
        if self.left_out <= LEFT_OUT_MAX {
            one.observer.trouble(Error::source(one.path, Cause::AttributesLeftOut(one.metadata.ino)));
        }
    }

    /// Whether the allowance sufficed.
    fn copy_one(&mut self, one: &mut One<'_>, xattr: Xattr<'_>) -> bool {
        let name = xattr.name().clone();
        let list = name.acl_kind();
        let name = name.as_bytes();
        let wanted = if list.is_some() { self.keep.mode } else { self.keep.has_xattr(name) };
        if !wanted {
            return true;
        }
        // Never read more, whatever an entry claims.
        let size = xattr.stored_size().min(XATTR_SIZE_MAX.into());
        if !self.spend(size + name.len() as u64) {
            return false;
        }
        let failed = match xattr.value() {
            Ok(value) => match (one.target.set_xattr(name, &value), list) {
                (Ok(()), _) => {
                    one.set.extend(list);
                    if list == Some(AclKind::Access) {
                        one.limit(Limit::of_kept(&value, one.metadata.mode));
                    }
                    return true;
                }
                (Err((_, Errno::OPNOTSUPP | Errno::PERM)), None) if !self.keep.xattrs_required => {
                    return true;
                }
                (Err((action, error)), _) => {
                    if list == Some(AclKind::Access) {
                        one.limit(Limit::of_lost(&value));
                    }
                    self.destination.refused(one.path, action, error)
                }
            },
            // An access control list without entries is none, although its name exists.
            Err(uext4::Error::NoAttribute) => return true,
            Err(error) => {
                one.hidden |= list == Some(AclKind::Access);
                Error::source(one.path, error)
            }
        };
        one.is_bad(failed.about_attribute(name));
        true
    }

    /// Removes the lists that the source does not have.
    fn remove_acls(&self, one: &mut One<'_>) {
        let kinds: &[AclKind] = match one.metadata.kind {
            _ if !self.keep.mode => &[],
            FileKind::Symlink => &[],
            FileKind::Directory => &[AclKind::Access, AclKind::Default],
            _ => &[AclKind::Access],
        };
        for &kind in kinds.iter().filter(|kind| !one.set.contains(kind)) {
            let removed: Result<(), Failed> = one.target.remove_acl(kind);
            if let Err((action, error)) = removed {
                let refused = self.destination.refused(one.path, action, error);
                one.observer.trouble(refused.about_attribute(kind.name().as_bytes()));
            }
        }
    }

    /// Reports the files that were not reported individually.
    pub fn finish(&self, observer: &mut dyn Observer) {
        if let Some(more) = self.left_out.checked_sub(LEFT_OUT_MAX).filter(|more| *more > 0) {
            observer.trouble(Error::source(b"", Cause::MoreLeftOut(more)));
        }
    }
}

/// Attribute allowance for `volume`: bytes of names and values, and [`LOOK`] for each.
///
/// Even in an honest volume 1024 inodes may share an attribute block, and any number a value stored in its own inode:
/// the kernel stores equal ones once. So no bound both admits every honest volume and keeps a hostile one from filling
/// the host. The volume's size covers everything unshared, and shared data up to the same amount; beyond that, the
/// largest value may be referenced as often as an attribute block, so that small volumes may share too. Attributes
/// past that are left out, and reported.
fn allowance(volume: &Volume) -> u64 {
    volume_size(volume).saturating_add(SHARED_MAX * u64::from(XATTR_SIZE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: AclTag = AclTag::Owner;
    const USER: AclTag = AclTag::User(1);
    const OWNING: AclTag = AclTag::OwningGroup;
    const GROUP: AclTag = AclTag::Group(1);
    const MASK: AclTag = AclTag::Mask;
    const OTHER: AclTag = AclTag::Other;

    fn list(entries: &[(AclTag, u16)]) -> Vec<u8> {
        let entry = |&(tag, permissions)| uext4::AclEntry { tag, permissions };
        Acl { entries: entries.iter().map(entry).collect() }.encode_xattr()
    }

    #[test]
    fn a_lost_list_gives_nobody_more() {
        let lost = |entries: &[(AclTag, u16)]| Limit::of_lost(&list(entries)).of(0o777);
        assert_eq!(lost(&[(OWNER, 7), (USER, 6), (OWNING, 0), (MASK, 6), (OTHER, 0)]), 0o700);
        assert_eq!(lost(&[(OWNER, 7), (USER, 6), (OWNING, 5), (MASK, 6), (OTHER, 0)]), 0o740);
        assert_eq!(lost(&[(OWNER, 7), (OWNING, 5), (OTHER, 1)]), 0o751);
        assert_eq!(lost(&[(OWNER, 7), (USER, 7), (MASK, 7)]), 0o700);
        // Named users may be in the group, and are else among all others.
        assert_eq!(lost(&[(OWNER, 6), (USER, 0), (OWNING, 4), (MASK, 4), (OTHER, 4)]), 0o700);
        assert_eq!(lost(&[(OWNER, 7), (USER, 6), (OWNING, 7), (MASK, 7), (OTHER, 7)]), 0o766);
        let two = [(OWNER, 7), (USER, 6), (AclTag::User(2), 5), (OWNING, 7), (MASK, 7), (OTHER, 7)];
        assert_eq!(lost(&two), 0o744);
        // Groups may have less than all others, because of the mask, too.
        assert_eq!(lost(&[(OWNER, 7), (OWNING, 7), (GROUP, 4), (MASK, 7), (OTHER, 7)]), 0o774);
        assert_eq!(lost(&[(OWNER, 7), (OWNING, 4), (GROUP, 6), (MASK, 6), (OTHER, 7)]), 0o744);
        assert_eq!(lost(&[(OWNER, 7), (USER, 7), (OWNING, 7), (MASK, 1), (OTHER, 5)]), 0o711);
        assert_eq!(Limit::of_lost(b"nonsense"), Limit::NOTHING);
    }

    #[test]
    fn a_kept_list_is_no_wider_than_it_was() {
        let kept = |mode, entries: &[(AclTag, u16)]| Limit::of_kept(&list(entries), mode).of(mode);
        let masked = |mask, other| [(OWNER, 6), (USER, 6), (OWNING, 6), (MASK, mask), (OTHER, other)];
        assert_eq!(kept(0o664, &masked(6, 4)), 0o664);
        assert_eq!(kept(0o660, &masked(0, 0)), 0o600);
        assert_eq!(kept(0o664, &masked(4, 0)), 0o640);
        assert_eq!(kept(0o664, &[(OWNER, 6), (OWNING, 4), (OTHER, 4)]), 0o644);
        assert_eq!(kept(0o640, &masked(6, 6)), 0o640, "never more than the mode");
        // Ignored in the copy, as in the volume.
        assert_eq!(kept(0o664, &masked(0, 4)), 0o600);
        assert_eq!(kept(0o604, &masked(6, 4)), 0o604);
        assert_eq!(Limit::of_kept(b"nonsense", 0o664), Limit::NOTHING);
    }

    #[test]
    fn a_limit_never_adds_to_the_mode() {
        assert_eq!(Limit(0o040).of(0o2765), 0o2740);
        assert_eq!(Limit(0o077).of(0o604), 0o604);
        assert_eq!(Limit::MODE.of(0o2765), 0o2765);
        assert_eq!(Limit::NOTHING.of(0o6777), 0o6700);
    }
}
