//! A name to look up, and how its directory compares names (`generic_ci_match` in `fs/libfs.c`).

use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
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

/// Longest name in bytes.
pub(crate) const MAX: usize = 255;

/// Refuses names that no directory can hold.
///
/// # Errors
/// [`Error::NameTooLong`], [`Error::Invalid`].
pub(crate) fn check(name: &[u8]) -> Result<()> {
    if name.len() > MAX {
        return Err(Error::NameTooLong);
    }
    let bad = name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if bad || matches!(name, b"." | b"..") {
        return Err(Error::Invalid(format!("`{}` cannot be the name of a file", name.escape_ascii())));
    }
    Ok(())
}

/// The key by which a directory compares a name. A name that folds to `.` or `..` but is spelt differently is another
/// name.
///
/// # Errors
/// [`Error::CorruptInode`] if names are folded without the feature.
pub(crate) fn key(superblock: &Superblock, draft: &Draft, name: &[u8]) -> Result<Box<[u8]>> {
    let mut folder = folds(superblock, draft.ino, &draft.disk)?.then(CaseFolder::new);
    Ok(match folder.as_mut().and_then(|folder| folder.fold(name)) {
        Some(form @ (b"." | b"..")) if form != name => [form, b"\0"].concat().into(),
        Some(form) => form.into(),
        None => name.into(),
    })
}

/// How much more work it is to fold a byte of a non-ASCII name than to compare one.
const FOLD_WORK: usize = 16;

/// The name to look up.
pub(super) struct Wanted<'a> {
    name: &'a [u8],
    folded: Option<Folded>,
    /// The spelling of the found entry, if it differs.
    pub(super) spelling: Option<Vec<u8>>,
    /// Work of comparing beyond reading the entries, in bytes.
    work: usize,
}

/// Comparison in a case-folded directory.
struct Folded {
    /// Folds the names of entries, reusing its memory.
    folder: CaseFolder,
    /// The folded form of the name.
    form: Vec<u8>,
}

impl<'a> Wanted<'a> {
    /// # Errors
    /// [`Error::Invalid`] if the name is not UTF-8 and the volume demands that in case-folded directories.
    pub(super) fn new(superblock: &Superblock, folds: bool, name: &'a [u8]) -> Result<Self> {
        if !folds {
            return Ok(Wanted { name, folded: None, spelling: None, work: 0 });
        }
        let mut folder = CaseFolder::new();
        let form = folder.fold(name).map(<[u8]>::to_vec);
        if form.is_none() && superblock.strict_encoding() {
            let text = name.escape_ascii();
            return Err(Error::Invalid(format!("the name `{text}` is not UTF-8, which the volume requires")));
        }
        // A name without a folded form is an opaque string of bytes, equal only to itself.
        let folded = form.map(|form| Folded { folder, form });
        Ok(Wanted { name, folded, spelling: None, work: 0 })
    }

    /// The name as given.
    pub(super) fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The name, if only an entry with exactly these bytes has it.
    pub(super) fn exact(&self) -> Option<&'a [u8]> {
        self.folded.is_none().then_some(self.name)
    }

    /// The bytes whose hash places the name in a hash tree.
    pub(super) fn hashed(&self) -> &[u8] {
        self.folded.as_ref().map_or(self.name, |folded| &folded.form)
    }

    /// Returns and resets the work of comparing.
    pub(super) fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// Whether the entry has this name.
    pub(super) fn is(&mut self, entry: &DirEntry<'_>) -> bool {
        if entry.name == self.name {
            return true;
        }
        match &mut self.folded {
            // `.` and `..` match no other spelling: otherwise a name with ignored characters could lead out of the
            // directory.
            Some(folded) if !entry.is_dot() && !entry.is_dot_dot() => {
                if !entry.name.is_ascii() {
                    self.work += FOLD_WORK * entry.name.len();
                }
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
