//! A name that is looked for, and how names of its directory are compared (`generic_ci_match` in `fs/libfs.c`).

use crate::ground::error::{Error, Result};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{CaseFolder, DirEntry, Incompat, Inode as DiskInode, InodeFlags, Superblock};

/// Whether a directory compares names by their folded forms.
pub(super) fn folds(superblock: &Superblock, ino: Ino, disk: &DiskInode) -> Result<bool> {
    let folds = disk.flags.contains(InodeFlags::CASEFOLD);
    if folds && !superblock.features.incompat.contains(Incompat::CASEFOLD) {
        return Err(Error::CorruptInode { ino, what: "a case-folded directory without the feature".into() });
    }
    Ok(folds)
}

/// Refuses names that no directory can hold.
///
/// # Errors
/// [`Error::NameTooLong`], [`Error::Invalid`].
pub(super) fn check(name: &[u8]) -> Result<()> {
    if name.len() > 255 {
        return Err(Error::NameTooLong);
    }
    let bad = name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if bad || matches!(name, b"." | b"..") {
        return Err(Error::Invalid(format!("`{}` cannot be the name of a file", name.escape_ascii())));
    }
    Ok(())
}

/// What a look-up wants to find.
pub(super) struct Wanted<'a> {
    name: &'a [u8],
    folded: Option<Folded>,
    /// The name as the entry that was found spells it, if that is another spelling.
    pub(super) spelling: Option<Vec<u8>>,
}

/// How a case-folded directory compares.
struct Folded {
    /// Folds the entries met; one memory for all of them.
    folder: CaseFolder,
    /// The folded form of the name.
    form: Vec<u8>,
}

impl<'a> Wanted<'a> {
    /// # Errors
    /// [`Error::Invalid`] if the name is not UTF-8 and the volume wants that of the names in case-folded
    /// directories.
    pub(super) fn new(superblock: &Superblock, folds: bool, name: &'a [u8]) -> Result<Self> {
        if !folds {
            return Ok(Wanted { name, folded: None, spelling: None });
        }
        let mut folder = CaseFolder::new();
        let form = folder.fold(name).map(<[u8]>::to_vec);
        if form.is_none() && superblock.strict_encoding() {
            let text = name.escape_ascii();
            return Err(Error::Invalid(format!("the name `{text}` is not UTF-8, which the volume wants")));
        }
        // A name without a folded form is an opaque string of bytes, equal to itself alone.
        Ok(Wanted { name, folded: form.map(|form| Folded { folder, form }), spelling: None })
    }

    /// The name as it was asked for.
    pub(super) fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The bytes whose hash places the name in a hash tree.
    pub(super) fn hashed(&self) -> &[u8] {
        self.folded.as_ref().map_or(self.name, |folded| &folded.form)
    }

    /// Whether the entry has this name.
    pub(super) fn is(&mut self, entry: &DirEntry<'_>) -> bool {
        if entry.name == self.name {
            return true;
        }
        match &mut self.folded {
            // `.` and `..` are no names: spelt with ignored characters they would lead out of the directory.
            Some(folded) if !entry.is_dot() && !entry.is_dot_dot() => {
                let same = folded.folder.fold(entry.name) == Some(folded.form.as_slice());
                if same {
                    self.spelling = Some(entry.name.to_vec());
                }
                same
            }
            _ => false,
        }
    }
}
