//! What a tree of a file system is: names that lead to things, and the errors of changes that it does not allow.

use std::collections::{BTreeMap, HashMap, HashSet};
use uext4::{Acl, AclTag, InodeFlags, RenameFlags};

pub type Id = u64;
pub const ROOT: Id = 0;
/// Access control lists are attributes with these names.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Flags that the model knows. New things inherit them.
pub const FLAGS: InodeFlags =
    InodeFlags::NODUMP.union(InodeFlags::NOATIME).union(InodeFlags::SYNC).union(InodeFlags::DIRSYNC);

/// Of directories, whose names are the same in either case. New directories inherit it.
pub const FOLDS: InodeFlags = InodeFlags::CASEFOLD;

/// Something with a name, or without one while it waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thing {
    pub kind: Kind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: Option<i64>,
    pub flags: InodeFlags,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Directory { names: BTreeMap<Vec<u8>, Id>, parent: Id },
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Fifo,
    Device(u32, u32),
}

impl Thing {
    pub fn new(kind: Kind, mode: u32, owner: (u32, u32)) -> Thing {
        let (flags, attributes) = (InodeFlags::empty(), BTreeMap::new());
        Thing { kind, mode, owner, modified: None, flags, attributes }
    }

    /// chmod: the access control list follows.
    pub fn set_mode(&mut self, mode: u32) {
        self.mode = mode;
        let Some(list) = self.attributes.get_mut(ACCESS) else { return };
        let mut acl = Acl::decode_xattr(list).unwrap();
        let shifts = shifts(&acl);
        for (entry, shift) in acl.entries.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                entry.permissions = (mode >> shift & 7) as u16;
            }
        }
        *list = acl.encode_xattr();
    }

    /// Sets the access control list: the mode follows. One that says no more than the mode is not kept.
    pub fn set_list(&mut self, acl: &Acl) {
        for (entry, shift) in acl.entries.iter().zip(shifts(acl)) {
            if let Some(shift) = shift {
                self.mode = self.mode & !(7 << shift) | u32::from(entry.permissions) << shift;
            }
        }
        match acl.entries.len() {
            3 => self.attributes.remove(ACCESS),
            _ => self.attributes.insert(ACCESS.to_vec(), acl.encode_xattr()),
        };
    }

    /// What a new thing gets from the directory that it is made in.
    fn inherit(&mut self, above: &Thing) {
        // Set-group-id directories hand their group on, and directories the bit too.
        if above.mode & 0o2000 != 0 {
            self.owner.1 = above.owner.1;
            if self.is_directory() {
                self.mode |= 0o2000;
            }
        }
        self.flags = above.flags
            & match self.kind {
                Kind::Directory { .. } => FLAGS | FOLDS,
                Kind::File(_) => FLAGS - InodeFlags::DIRSYNC,
                _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
            };
        let Some(default) = above.attributes.get(DEFAULT) else { return };
        if let Kind::Symlink(_) = self.kind {
            return;
        }
        let mut acl = Acl::decode_xattr(default).unwrap();
        let shifts = shifts(&acl);
        for (entry, shift) in acl.entries.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                entry.permissions &= (self.mode >> shift & 7) as u16;
            }
        }
        self.set_list(&acl);
        if self.is_directory() {
            self.attributes.insert(DEFAULT.to_vec(), default.clone());
        }
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory { .. })
    }
}

/// Where the mode has the permissions of an entry. The mask stands for the group, if there is one.
fn shifts(acl: &Acl) -> Vec<Option<u32>> {
    let masked = acl.entries.iter().any(|entry| entry.tag == AclTag::Mask);
    let shift = |tag| match tag {
        AclTag::Owner => Some(6),
        AclTag::Mask => Some(3),
        AclTag::OwningGroup if !masked => Some(3),
        AclTag::Other => Some(0),
        _ => None,
    };
    acl.entries.iter().map(|entry| shift(entry.tag)).collect()
}

/// What names that are the same but for case have in common. The walk has few letters besides those of ASCII.
fn fold(name: &[u8]) -> Vec<u8> {
    std::str::from_utf8(name).map_or(name.to_vec(), |name| {
        name.to_lowercase().replace('ß', "ss").replace("e\u{301}", "é").into_bytes()
    })
}

/// A tree.
#[derive(Debug, Clone)]
pub struct Model {
    pub things: HashMap<Id, Thing>,
    next: Id,
}

type Done<T = ()> = Result<T, i32>;

impl Model {
    pub fn new() -> Model {
        let root = Kind::Directory { names: BTreeMap::new(), parent: ROOT };
        Model::of(HashMap::from([(ROOT, Thing::new(root, 0o755, (0, 0)))]))
    }

    /// A tree of these things, numbered from the root on.
    pub fn of(things: HashMap<Id, Thing>) -> Model {
        let next = things.len() as Id;
        Model { things, next }
    }

    pub fn names(&self, directory: Id) -> &BTreeMap<Vec<u8>, Id> {
        match &self.things[&directory].kind {
            Kind::Directory { names, .. } => names,
            _ => panic!("not a directory"),
        }
    }

    fn names_mut(&mut self, directory: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.things.get_mut(&directory).unwrap().kind {
            Kind::Directory { names, .. } => names,
            _ => panic!("not a directory"),
        }
    }

    /// Whether a directory folds case.
    pub fn folds(&self, directory: Id) -> bool {
        self.things[&directory].flags.contains(FOLDS)
    }

    /// How a name is spelled that is there, or this spelling of one that is not.
    fn spelled(&self, directory: Id, name: &[u8]) -> Vec<u8> {
        let (names, wanted) = (self.names(directory), fold(name));
        let other = |there: &&Vec<u8>| fold(there) == wanted;
        let there = if self.folds(directory) { names.keys().find(other) } else { None };
        there.map_or(name.to_vec(), Vec::clone)
    }

    pub fn find(&self, directory: Id, name: &[u8]) -> Option<Id> {
        self.names(directory).get(&self.spelled(directory, name)).copied()
    }

    fn take(&mut self, directory: Id, name: &[u8]) {
        let spelled = self.spelled(directory, name);
        self.names_mut(directory).remove(&spelled);
    }

    /// Link counts of all things.
    pub fn links(&self) -> HashMap<Id, u32> {
        let mut links = HashMap::from([(ROOT, 2)]);
        for (&id, thing) in &self.things {
            let Kind::Directory { names, .. } = &thing.kind else { continue };
            for child in names.values() {
                if self.things[child].is_directory() {
                    *links.entry(*child).or_default() += 2;
                    *links.entry(id).or_default() += 1;
                } else {
                    *links.entry(*child).or_default() += 1;
                }
            }
        }
        links
    }

    pub fn add(&mut self, directory: Id, name: &[u8], mut thing: Thing) -> Done<Id> {
        if self.find(directory, name).is_some() {
            return Err(libc::EEXIST);
        }
        if let Kind::Directory { parent, .. } = &mut thing.kind {
            *parent = directory;
        }
        thing.inherit(&self.things[&directory]);
        let id = self.next;
        self.next += 1;
        self.things.insert(id, thing);
        self.names_mut(directory).insert(name.to_vec(), id);
        Ok(id)
    }

    pub fn link(&mut self, directory: Id, name: &[u8], id: Id) -> Done {
        if self.find(directory, name).is_some() {
            return Err(libc::EEXIST);
        }
        if self.things[&id].is_directory() {
            return Err(libc::EPERM);
        }
        self.names_mut(directory).insert(name.to_vec(), id);
        Ok(())
    }

    fn drop_if_nameless(&mut self, id: Id) {
        if !self.links().contains_key(&id) {
            self.things.remove(&id);
        }
    }

    pub fn unlink(&mut self, directory: Id, name: &[u8]) -> Done {
        let id = self.find(directory, name).ok_or(libc::ENOENT)?;
        if self.things[&id].is_directory() {
            return Err(libc::EISDIR);
        }
        self.take(directory, name);
        self.drop_if_nameless(id);
        Ok(())
    }

    pub fn remove_dir(&mut self, directory: Id, name: &[u8]) -> Done {
        let id = self.find(directory, name).ok_or(libc::ENOENT)?;
        if !self.things[&id].is_directory() {
            return Err(libc::ENOTDIR);
        }
        if !self.names(id).is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.take(directory, name);
        self.things.remove(&id);
        Ok(())
    }

    /// Whether `inner` is `outer`, or below it.
    pub fn is_inside(&self, mut inner: Id, outer: Id) -> bool {
        loop {
            if inner == outer {
                return true;
            }
            match self.things[&inner].kind {
                Kind::Directory { parent, .. } if inner != ROOT => inner = parent,
                _ => return false,
            }
        }
    }

    fn set_parent(&mut self, id: Id, to: Id) {
        if let Kind::Directory { parent, .. } = &mut self.things.get_mut(&id).unwrap().kind {
            *parent = to;
        }
    }

    pub fn rename(
        &mut self,
        (from, old_name): (Id, &[u8]),
        (to, new_name): (Id, &[u8]),
        flags: RenameFlags,
    ) -> Done {
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        let old = self.find(from, old_name).ok_or(libc::ENOENT)?;
        let new = self.find(to, new_name);
        match new {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(libc::EEXIST),
            None if exchanges => return Err(libc::ENOENT),
            Some(new) if new == old => return Ok(()),
            _ => {}
        }
        if self.things[&old].is_directory() && self.is_inside(to, old) {
            return Err(libc::EINVAL);
        }
        if let Some(new) = new {
            let (old_is, new_is) = (self.things[&old].is_directory(), self.things[&new].is_directory());
            if new_is && self.is_inside(from, new) {
                return Err(if exchanges { libc::EINVAL } else { libc::ENOTEMPTY });
            }
            match (old_is, new_is) {
                _ if exchanges => {}
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if !self.names(new).is_empty() => return Err(libc::ENOTEMPTY),
                _ => {}
            }
        }
        // An entry that stays keeps its spelling.
        let (old_name, new_name) = (&self.spelled(from, old_name)[..], self.spelled(to, new_name));
        self.names_mut(from).remove(old_name);
        self.names_mut(to).insert(new_name, old);
        self.set_parent(old, to);
        match new {
            Some(new) if exchanges => {
                self.names_mut(from).insert(old_name.to_vec(), new);
                self.set_parent(new, from);
            }
            Some(new) => self.drop_if_nameless(new),
            None => {}
        }
        if flags.contains(RenameFlags::WHITEOUT) {
            let whiteout = Thing::new(Kind::Device(0, 0), 0, (0, 0));
            self.add(from, old_name, whiteout)?;
        }
        Ok(())
    }

    pub fn remove_all(&mut self, directory: Id, name: &[u8]) -> Done {
        let id = self.find(directory, name).ok_or(libc::ENOENT)?;
        if !self.things[&id].is_directory() {
            return Err(libc::ENOTDIR);
        }
        self.take(directory, name);
        // Everything that no name outside leads to goes.
        let mut there = HashSet::new();
        let mut waiting = vec![ROOT];
        while let Some(id) = waiting.pop() {
            if there.insert(id)
                && let Kind::Directory { names, .. } = &self.things[&id].kind
            {
                waiting.extend(names.values());
            }
        }
        self.things.retain(|id, _| there.contains(id));
        Ok(())
    }
}
