//! Steps of the walk that change flags (`chattr`) and access control lists.

use super::Walk;
use super::model::{ACCESS, DEFAULT, FLAGS, FOLDS, Id, Kind, ROOT, Thing};
use uext4::{
    Acl, AclEntry, AclTag, Error, InodeFlags, Node, OpenOptions, RenameFlags, SetAttributes, XattrFlags,
};

impl Walk {
    /// Sets flags that stay, and are inherited; now and then those that forbid changes, and asks for some.
    pub(super) fn flags(&mut self) {
        let Some(id) = self.pick(|thing| thing.is_directory() || matches!(thing.kind, Kind::File(_))) else {
            return;
        };
        if self.rng.below(4) == 0 {
            return self.forbidden(id);
        }
        let is_directory = self.model.things[&id].is_directory();
        let mut wanted = InodeFlags::empty();
        for (flag, one_in, allowed) in [
            (InodeFlags::NODUMP, 3, true),
            (InodeFlags::NOATIME, 3, true),
            // Each change is committed from then on, so not in the root.
            (InodeFlags::SYNC, 20, id != ROOT),
            (InodeFlags::DIRSYNC, 20, id != ROOT && is_directory),
        ] {
            if allowed && self.rng.below(one_in) == 0 {
                wanted |= flag;
            }
        }
        let node = self.node(id);
        set_flags(&node, FLAGS, wanted).unwrap();
        let thing = self.model.things.get_mut(&id).unwrap();
        thing.flags = thing.flags & FOLDS | wanted;
    }

    /// What is immutable does not change, and what is append-only only grows.
    fn forbidden(&mut self, id: Id) {
        let flag = if self.rng.chance(50) { InodeFlags::IMMUTABLE } else { InodeFlags::APPEND };
        let node = self.node(id);
        set_flags(&node, flag, flag).unwrap();
        let immutable = flag == InodeFlags::IMMUTABLE;
        let said = format!("{}, step {}: {flag:?} of {id}", self.what, self.steps);
        let refused = |what: &str, done: Result<(), Error>| {
            let errno = done.as_ref().err().map(Error::errno);
            assert_eq!(errno, Some(libc::EPERM), "{said}: {what}: {done:?}");
        };
        let open = |options: OpenOptions| node.open(options).map(drop);
        match &self.model.things[&id].kind {
            Kind::Directory { names, .. } => {
                if let Some(name) = names.keys().next() {
                    let is_directory = self.model.things[&names[name]].is_directory();
                    let removed = if is_directory { node.remove_dir(name) } else { node.unlink(name) };
                    refused("remove", removed);
                    let flags = RenameFlags::empty();
                    refused("rename", node.rename(name, &self.node(ROOT), b"never there", flags));
                }
                if immutable {
                    let caller = uext4::Caller::new(0, 0);
                    refused("create", node.create(b"never there", 0o600, &caller).map(drop));
                }
            }
            _ => {
                refused("open", open(OpenOptions::new().write(true)));
                refused("link", self.node(ROOT).link(b"never there", &node));
                match open(OpenOptions::new().append(true)) {
                    Ok(()) => assert!(!immutable, "{said}: appended"),
                    opened => refused("append", opened),
                }
            }
        }
        refused("chmod", node.set_attributes(&SetAttributes::new().mode(0o600)));
        refused("attribute", node.set_xattr(b"user.never", b"there", XattrFlags::empty()));
        set_flags(&node, flag, InodeFlags::empty()).unwrap();
    }

    /// Sets or removes an access control list.
    pub(super) fn lists(&mut self) {
        // A change of the list may strip set-group-id, which depends on who changes it.
        let suits = |thing: &Thing| {
            thing.mode & 0o2000 == 0 && (thing.is_directory() || matches!(thing.kind, Kind::File(_)))
        };
        let Some(id) = self.pick(suits) else { return };
        let is_default = self.model.things[&id].is_directory() && self.rng.chance(50);
        let name = if is_default { DEFAULT } else { ACCESS };
        let node = self.node(id);
        if self.rng.below(3) == 0 && self.model.things[&id].attributes.contains_key(name) {
            node.remove_xattr(name).unwrap();
            self.model.things.get_mut(&id).unwrap().attributes.remove(name);
            return;
        }
        let mut entry = |tag| AclEntry { tag, permissions: self.rng.below(8) as u16 };
        let mut entries = vec![entry(AclTag::Owner)];
        let short = !is_default && entry(AclTag::Owner).permissions == 0;
        if !short {
            entries.extend([AclTag::User(1000), AclTag::User(70_000)].map(&mut entry));
        }
        entries.push(entry(AclTag::OwningGroup));
        if !short {
            entries.push(entry(AclTag::Mask));
        }
        entries.push(entry(AclTag::Other));
        let acl = Acl { entries };
        let done = node.set_xattr(name, acl.encode_xattr(), XattrFlags::empty());
        done.unwrap_or_else(|error| panic!("{}, step {}: {error}", self.what, self.steps));
        let thing = self.model.things.get_mut(&id).unwrap();
        if is_default {
            thing.attributes.insert(name.to_vec(), acl.encode_xattr());
        } else {
            thing.set_list(&acl);
        }
    }
}

/// Sets these of the flags in `among`, and clears the others.
pub(super) fn set_flags(node: &Node, among: InodeFlags, flags: InodeFlags) -> Result<(), Error> {
    node.set_attributes(&SetAttributes::new().flags((node.attributes().flags - among) | flags))
}
