//! What a copy keeps of its sources: attributes, holes, and symbolic links.

use uext4::FileKind;

/// The attributes that copies keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// All mode bits, with their access control lists. Without it, what is created gets the permissions of its source
    /// less the umask.
    pub mode: bool,
    /// What is created gets the permissions of a new file, whatever its source has. Of no effect with `mode`.
    pub new_mode: bool,
    /// Owner and group; on the host as root only.
    pub owner: bool,
    /// Times of the last access and of the last change of the contents, to the nanosecond.
    pub times: bool,
    /// Hard links among what is copied. With links that are followed, those are names of the same file too.
    pub links: bool,
    /// Extended attributes, but for access control lists and `security.selinux`.
    pub xattrs: bool,
    /// Whether those that this user or the destination cannot have are told, not left out silently.
    pub xattrs_required: bool,
    /// The attribute `security.selinux`.
    pub context: bool,
}

impl Keep {
    /// Nothing.
    pub const NOTHING: Keep = Keep {
        mode: false,
        new_mode: false,
        owner: false,
        times: false,
        links: false,
        xattrs: false,
        xattrs_required: false,
        context: false,
    };
    /// Mode, owner and times.
    pub const ATTRIBUTES: Keep = Keep { mode: true, owner: true, times: true, ..Keep::NOTHING };
    /// Everything.
    pub const EVERYTHING: Keep = Keep { links: true, xattrs: true, context: true, ..Keep::ATTRIBUTES };

    /// Whether attributes are set on what is complete.
    pub(crate) fn any(self) -> bool {
        self.mode || self.owner || self.times || self.xattrs || self.context
    }

    /// The permissions of a copy that does not keep its mode, before the umask.
    pub(crate) fn new_mode_of(self, mode: u32, kind: FileKind) -> u32 {
        match kind {
            _ if !self.new_mode => mode,
            FileKind::Directory => 0o777 | mode & 0o1000,
            FileKind::Socket => 0o777,
            _ => 0o666,
        }
    }

    /// The permissions for creating something. If it gets an owner or its own mode afterwards, others get none until
    /// then: with an access control list the mode may grant more than the list does, and the first group is another.
    pub(crate) fn at_first(self, mode: u32, kind: FileKind) -> u32 {
        match (self.mode, self.owner) {
            (true, _) => mode & 0o700,
            (false, true) => self.new_mode_of(mode, kind) & 0o700,
            (false, false) => self.new_mode_of(mode, kind),
        }
    }

    /// Whether it keeps an attribute of this name, which is no access control list.
    pub(crate) fn has_xattr(self, name: &[u8]) -> bool {
        if name == b"security.selinux" { self.context } else { self.xattrs }
    }
}

/// Which symbolic links a copy follows. Those that it does not follow are copied as links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// None.
    Never,
    /// Sources, but not what is found in them.
    Sources,
    /// All. One that leads back to a directory above it is refused ([`Cause::Loop`](crate::Cause::Loop)).
    All,
}

/// Which zeros become holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holes {
    /// Those that are holes of the source, or unwritten.
    #[default]
    Source,
    /// Blocks of zeros too.
    Zeros,
    /// None: zeros are written.
    None,
}

/// Calls `write` for the parts of `bytes`, which begin at byte `pos`, that are to be written: with [`Holes::Zeros`]
/// what lies between aligned pieces of `unit` bytes that are zeros throughout.
pub(crate) fn without_zeros<E>(
    holes: Holes,
    unit: usize,
    pos: u64,
    bytes: &[u8],
    mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    if holes != Holes::Zeros {
        return write(pos, bytes);
    }
    let unit = unit.max(1);
    let (mut at, mut rest) = (pos, bytes);
    while !rest.is_empty() {
        // Up to the next boundary, or the end.
        let piece = |at: u64, rest: &[u8]| (unit - (at % unit as u64) as usize).min(rest.len());
        let empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let mut length = piece(at, rest);
        let zeros = empty(&rest[..length]);
        while length < rest.len() {
            let next = piece(at + length as u64, &rest[length..]);
            if empty(&rest[length..length + next]) != zeros {
                break;
            }
            length += next;
        }
        if !zeros {
            write(at, &rest[..length])?;
        }
        (at, rest) = (at + length as u64, &rest[length..]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(holes: Holes, pos: u64, bytes: &[u8]) -> Vec<(u64, usize)> {
        let mut parts = Vec::new();
        without_zeros(holes, 4, pos, bytes, |at, part| {
            assert_eq!(part, &bytes[(at - pos) as usize..][..part.len()]);
            parts.push((at, part.len()));
            Ok::<(), ()>(())
        })
        .unwrap();
        parts
    }

    #[test]
    fn whole_pieces_of_zeros_are_left_out() {
        assert_eq!(written(Holes::Zeros, 0, &[0; 12]), []);
        assert_eq!(written(Holes::Zeros, 0, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]), [(0, 4), (8, 4)]);
        // Aligned in the file, not in the buffer; the last piece may be short.
        assert_eq!(written(Holes::Zeros, 3, &[0, 0, 1, 0, 0, 0, 0, 0, 0]), [(4, 4)]);
        assert_eq!(written(Holes::Zeros, 2, &[0, 1, 1, 1, 1, 1]), [(2, 6)]);
        assert_eq!(written(Holes::Zeros, 8, b""), []);
        for holes in [Holes::Source, Holes::None] {
            assert_eq!(written(holes, 8, &[0; 12]), [(8, 12)]);
        }
    }

    #[test]
    fn permissions_of_copies() {
        use FileKind::{Directory, Regular, Socket};
        let new = Keep { new_mode: true, ..Keep::NOTHING };
        let modes = [Directory, Regular, Socket].map(|kind| new.at_first(0o640, kind));
        assert_eq!(modes, [0o777, 0o666, 0o777]);
        assert_eq!(Keep::NOTHING.at_first(0o640, Regular), 0o640);
        assert_eq!(Keep { owner: true, ..new }.at_first(0o640, Regular), 0o600);
        assert_eq!(Keep { owner: true, ..Keep::NOTHING }.at_first(0o640, Regular), 0o600);
        assert_eq!(Keep { new_mode: true, ..Keep::EVERYTHING }.at_first(0o4755, Regular), 0o700);
    }
}
