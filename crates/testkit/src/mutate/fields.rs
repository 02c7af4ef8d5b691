//! The fields of each structure: where they are, how wide, and what they mean, so that values can be chosen that hurt.

use super::bytes::{Order, be32, le16, le32};
use super::choices::Choices;
use super::journal;
use super::layout::{Kind, Layout, Site};

/// What a field means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A physical block number, or its low half.
    Block,
    /// A logical block number.
    Logical,
    /// A number of things: entries, blocks, links.
    Count,
    /// Bytes: a size, offset or length.
    Size,
    /// An inode number.
    Ino,
    /// Bits.
    Flags,
    /// Anything else.
    Any,
}

/// One field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// First byte, from the start of the image.
    pub at: usize,
    /// Bytes: 1, 2, 4 or 8.
    pub width: usize,
    /// Byte order.
    pub order: Order,
    /// Meaning.
    pub role: Role,
}

use Role::{Any, Block, Count, Flags, Ino, Logical, Size};

type Row = (usize, usize, Role);
/// Fields of one width that follow each other: the first one's byte, bytes of each, what they mean.
type FieldRow = (usize, usize, &'static [Role]);

/// One of the fields in these runs.
fn one_of(runs: &[FieldRow], choices: &mut Choices<'_>) -> Option<Row> {
    let row = |&(at, width, roles): &FieldRow| {
        (at..).step_by(width).zip(roles).map(move |(at, &role)| (at, width, role))
    };
    let rows: Vec<Row> = runs.iter().flat_map(row).collect();
    choices.pick(&rows).copied()
}

const SUPERBLOCK: &[FieldRow] = &[
    (0x00, 4, &[Count, Count]),
    (0x0c, 4, &[Count, Count, Block, Size, Size, Count, Count, Count]),
    (0x38, 2, &[Any, Flags, Any]),
    (0x48, 4, &[Any, Any]),
    (0x54, 4, &[Ino]),
    (0x58, 2, &[Size, Count]),
    (0x5c, 4, &[Flags, Flags, Flags]),
    (0xce, 2, &[Count]),
    (0xe0, 4, &[Ino, Any, Ino]),
    (0xfc, 1, &[Any]),
    (0xfe, 2, &[Size]),
    (0x100, 4, &[Flags, Count]),
    (0x150, 4, &[Count]),
    (0x15c, 2, &[Size, Size]),
    (0x160, 4, &[Flags]),
    (0x166, 2, &[Any]),
    (0x168, 4, &[Block, Block]),
    (0x174, 1, &[Size, Any]),
    (0x240, 4, &[Ino, Ino]),
    (0x24c, 4, &[Count, Count]),
    (0x26c, 4, &[Ino, Any]),
    (0x27c, 2, &[Any, Flags]),
    (0x280, 4, &[Ino]),
];

const DESCRIPTOR: &[FieldRow] = &[
    (0x00, 4, &[Block, Block, Block]),
    (0x0c, 2, &[Count, Count, Count, Flags]),
    (0x1c, 2, &[Count]),
    (0x20, 4, &[Block, Block, Block]),
    (0x2c, 2, &[Count, Count]),
    (0x32, 2, &[Count]),
];

const INODE: &[FieldRow] = &[
    (0x00, 2, &[Flags]),
    (0x04, 4, &[Size]),
    (0x14, 4, &[Ino]),
    (0x1a, 2, &[Count]),
    (0x1c, 4, &[Count, Flags]),
    (0x28, 2, &[Any, Count, Count, Count]),
    (0x34, 4, &[Logical, Block, Block]),
    (0x58, 4, &[Block, Block, Block, Any, Block, Size]),
    (0x74, 2, &[Count, Block]),
    (0x80, 2, &[Size]),
    (0x84, 4, &[Any]),
    (0x9c, 4, &[Any]),
];

const EXTENTS: &[Row] = &[(0, 2, Any), (2, 2, Count), (4, 2, Count), (6, 2, Count), (8, 4, Any)];

const XATTRS: &[Row] = &[(0, 4, Any), (4, 4, Count), (8, 4, Count), (12, 4, Any)];

const XATTR_ENTRY: &[Row] =
    &[(0, 1, Size), (1, 1, Any), (2, 2, Size), (4, 4, Ino), (8, 4, Size), (12, 4, Any), (16, 1, Any)];

const HTREE_INFO: &[Row] = &[(4, 1, Any), (5, 1, Size), (6, 1, Count), (7, 1, Flags)];

const DIR_ENTRY: &[Row] = &[(0, 4, Ino), (4, 2, Size), (6, 1, Size), (7, 1, Any), (8, 1, Any), (9, 1, Any)];

const JOURNAL_SUPER: &[FieldRow] = &[
    (0x00, 4, &[Any, Any]),
    (0x0c, 4, &[Size, Count, Logical, Any, Logical, Any, Flags, Flags, Flags]),
    (0x40, 4, &[Count]),
    (0x50, 1, &[Any]),
    (0x54, 4, &[Count, Logical]),
];

const LOG_HEADER: &[Row] = &[(0, 4, Any), (4, 4, Any), (8, 4, Any)];

const MMP: &[Row] = &[(0, 4, Any), (4, 4, Any), (8, 4, Any), (112, 2, Any)];

/// Draws a field of `site`, as its bytes now are, or any aligned place of it.
pub fn pick(image: &[u8], layout: &Layout, site: &Site, choices: &mut Choices<'_>) -> Field {
    let bytes = image.get(site.at..site.at + site.length).unwrap_or_default();
    let named = choices.below(8) != 0;
    let field = if named { named_field(bytes, layout, site, choices) } else { None };
    let (at, width, role) = field.unwrap_or_else(|| {
        let width = [1, 2, 4, 4][choices.below(4)];
        (choices.below(bytes.len() / width) * width, width, Any)
    });
    let big = matches!(
        site.kind,
        Kind::JournalSuper | Kind::JournalDescriptor | Kind::JournalRevoke | Kind::JournalCommit
    );
    Field { at: site.at + at, width, order: if big { Order::Big } else { Order::Little }, role }
}

fn named_field(bytes: &[u8], layout: &Layout, site: &Site, choices: &mut Choices<'_>) -> Option<Row> {
    match site.kind {
        Kind::Superblock => one_of(SUPERBLOCK, choices),
        Kind::Descriptor => one_of(DESCRIPTOR, choices),
        Kind::Inode => inode_field(bytes, choices),
        Kind::ExtentNode => extent_field(bytes, 0, choices),
        Kind::Indirect => Some((choices.below(bytes.len() / 4) * 4, 4, Block)),
        Kind::DirLeaf => dir_field(bytes, choices),
        Kind::HtreeRoot | Kind::HtreeNode => htree_field(bytes, site.kind, choices),
        Kind::Xattrs => match choices.below(4) {
            0 => choices.pick(XATTRS).copied(),
            _ => xattr_field(bytes, 32, choices),
        },
        Kind::JournalSuper => one_of(JOURNAL_SUPER, choices),
        Kind::JournalDescriptor => tag_field(bytes, layout, choices),
        Kind::JournalRevoke => match choices.below(2) {
            0 => choices.pick(&[(12, 4, Size), (0, 4, Any), (8, 4, Any)]).copied(),
            _ => Some((16 + 4 * choices.below(be32(bytes, 12) as usize / 4), 4, Block)),
        },
        Kind::JournalCommit => choices.pick(LOG_HEADER).copied(),
        Kind::FastCommit => fast_field(bytes, choices),
        Kind::Orphans => Some((4 * choices.below(bytes.len() / 4), 4, Ino)),
        Kind::Mmp => choices.pick(MMP).copied(),
        Kind::BlockBitmap | Kind::InodeBitmap | Kind::Data | Kind::JournalData => None,
    }
}

fn shifted(row: Option<&Row>, by: usize) -> Option<Row> {
    row.map(|&(at, width, role)| (at + by, width, role))
}

fn inode_field(bytes: &[u8], choices: &mut Choices<'_>) -> Option<Row> {
    let body = 128 + le16(bytes, 0x80) as usize;
    match choices.below(8) {
        0 if le16(bytes, 0x28) == 0xf30a => extent_field(bytes, 0x28, choices),
        1 => Some((0x28 + 4 * choices.below(15), 4, Block)),
        2 if bytes.len() > body + 4 => match choices.below(4) {
            0 => Some((body, 4, Any)),
            _ => xattr_field(bytes, body + 4, choices),
        },
        // Inline directories begin with the parent's number, entries behind it.
        3 => shifted(choices.pick(DIR_ENTRY), 0x28 + 4 + 12 * choices.below(4)),
        _ => one_of(INODE, choices),
    }
}

fn extent_field(bytes: &[u8], start: usize, choices: &mut Choices<'_>) -> Option<Row> {
    let entries = le16(bytes, start + 2) as usize;
    let leaf = le16(bytes, start + 6) == 0;
    if choices.below(3) == 0 {
        return shifted(choices.pick(EXTENTS), start);
    }
    let entry = start + 12 + 12 * choices.below(entries.min(bytes.len() / 12));
    let rows: [Row; 4] = if leaf {
        [(0, 4, Logical), (4, 2, Count), (6, 2, Block), (8, 4, Block)]
    } else {
        [(0, 4, Logical), (4, 4, Block), (8, 2, Block), (10, 2, Any)]
    };
    shifted(choices.pick(&rows), entry)
}

/// Starts of the entries of a linear directory block, as far as it makes sense.
fn dir_entries(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut entries) = (0, Vec::new());
    while at + 8 <= bytes.len() {
        entries.push(at);
        match le16(bytes, at + 4) as usize {
            length if length >= 8 => at += length,
            _ => break,
        }
    }
    entries
}

fn dir_field(bytes: &[u8], choices: &mut Choices<'_>) -> Option<Row> {
    let entries = dir_entries(bytes);
    let entry = *choices.pick(&entries)?;
    shifted(choices.pick(DIR_ENTRY), entry)
}

fn htree_field(bytes: &[u8], kind: Kind, choices: &mut Choices<'_>) -> Option<Row> {
    let (info, limits) = if kind == Kind::HtreeRoot { (24, 32) } else { (0, 8) };
    match choices.below(4) {
        0 if kind == Kind::HtreeRoot => shifted(choices.pick(HTREE_INFO), info),
        1 => shifted(choices.pick(&[(0, 2, Count), (2, 2, Count)]), limits),
        2 => shifted(choices.pick(DIR_ENTRY), 12 * choices.below(2)),
        _ => {
            let entry = limits + 8 * choices.below(le16(bytes, limits + 2).min(64) as usize);
            shifted(choices.pick(&[(4, 4, Logical), (4, 4, Logical), (0, 4, Any)]), entry)
        }
    }
}

fn xattr_field(bytes: &[u8], start: usize, choices: &mut Choices<'_>) -> Option<Row> {
    let (mut at, mut entries) = (start, vec![start]);
    while at + 16 <= bytes.len() && le32(bytes, at) != 0 && entries.len() < 32 {
        at += (16 + bytes[at] as usize).next_multiple_of(4);
        entries.push(at);
    }
    let entry = *choices.pick(&entries)?;
    shifted(choices.pick(XATTR_ENTRY), entry)
}

fn tag_field(bytes: &[u8], layout: &Layout, choices: &mut Choices<'_>) -> Option<Row> {
    if choices.below(4) == 0 {
        return choices.pick(LOG_HEADER).copied();
    }
    // The feature bits do not matter much: a wrong guess hits another field of a tag.
    let wide = layout.log.tags.get(1).zip(layout.log.tags.get(2)).map_or(8, |(one, two)| two.at - one.at);
    let incompat = if wide == 16 { journal::INCOMPAT_CSUM_V3 } else { 0 };
    let tags = journal::tags(bytes, 0, bytes.len(), incompat);
    let tag = *choices.pick(&tags)?;
    shifted(choices.pick(&[(0, 4, Block), (4, 4, Flags), (6, 2, Flags), (8, 4, Block)]), tag)
}

fn fast_field(bytes: &[u8], choices: &mut Choices<'_>) -> Option<Row> {
    let (mut at, mut records) = (0, Vec::new());
    while at + 4 <= bytes.len() && le16(bytes, at) != 0 {
        records.push(at);
        at += 4 + le16(bytes, at + 2) as usize;
    }
    let record = *choices.pick(&records)?;
    match choices.below(4) {
        0 => Some((record, 2, Any)),
        1 => Some((record + 2, 2, Size)),
        _ => {
            let at = record + 4 + 4 * choices.below(le16(bytes, record + 2) as usize / 4);
            Some((at, 4, if choices.below(2) == 0 { Ino } else { Block }))
        }
    }
}
