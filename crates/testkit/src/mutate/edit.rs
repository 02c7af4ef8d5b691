//! One edit of an image: which structure, which field, which value.

use super::bytes::{Order, get, put};
use super::choices::Choices;
use super::fields::{self, Field, Role};
use super::geometry::SUPERBLOCK;
use super::layout::{Kind, Layout, Site};

/// Makes one edit and says which.
pub fn edit(image: &mut Vec<u8>, layout: &Layout, kinds: &[Kind], choices: &mut Choices<'_>) -> String {
    let Some(&kind) = choices.pick(kinds) else { return "nothing".into() };
    let sites = layout.of_kind(kind);
    let Some(site) = choices.pick(sites) else { return "nothing".into() };
    let what = match choices.below(16) {
        0 => whole(image, layout, site, choices),
        1 => place(image, site, choices),
        2 if kind == Kind::Superblock => shorten(image, layout, choices),
        3 if kind == Kind::Superblock => orphans(image, layout, choices),
        3 if kind == Kind::ExtentNode => lead_back(image, sites, site, choices),
        _ => value(image, layout, site, choices),
    };
    format!("{kind:?} {} at {:#x}: {what}", site.owner, site.at)
}

/// A device that ends too early.
fn shorten(image: &mut Vec<u8>, layout: &Layout, choices: &mut Choices<'_>) -> String {
    let blocks = (image.len() / layout.geometry.block) as u64;
    let kept = choices.below(blocks as usize) * layout.geometry.block;
    let kept = kept.max(512);
    image.truncate(kept);
    format!("cut to {kept} bytes")
}

/// A list of orphans that comes back to one of its own. (One field alone is no list.)
fn orphans(image: &mut [u8], layout: &Layout, choices: &mut Choices<'_>) -> String {
    let inodes = layout.of_kind(Kind::Inode);
    let (Some(first), Some(second)) = (choices.pick(inodes), choices.pick(inodes)) else {
        return "no inodes".into();
    };
    let last = if choices.below(2) == 0 { first.owner } else { second.owner };
    for (at, next) in
        [(SUPERBLOCK + 0xe8, first.owner), (first.at + 0x14, second.owner), (second.at + 0x14, last)]
    {
        put(image, at, 4, Order::Little, next);
    }
    format!("orphans {}, {}, {last}", first.owner, second.owner)
}

/// A node of an extent tree becomes an inner node whose first child is itself or another node.
fn lead_back(image: &mut [u8], sites: &[Site], site: &Site, choices: &mut Choices<'_>) -> String {
    if get(image, site.at + 6, 2, Order::Little) == 0 {
        // One entry: what follows is no index. The upper half of its block is where an extent has another field.
        put(image, site.at + 2, 2, Order::Little, 1);
        put(image, site.at + 6, 2, Order::Little, 1);
        put(image, site.at + 20, 2, Order::Little, 0);
    }
    let other = choices.pick(sites).filter(|_| choices.below(2) == 0);
    let child = other.map_or(site.block, |other| other.block);
    put(image, site.at + 16, 4, Order::Little, child);
    format!("the first child is block {child}")
}

/// Changes a whole structure.
fn whole(image: &mut [u8], layout: &Layout, site: &Site, choices: &mut Choices<'_>) -> String {
    let range = site.at..site.at + site.length;
    let siblings = layout.of_kind(site.kind);
    let way = choices.below(6);
    let other = match way {
        0 | 1 => choices.pick(siblings),
        // Another kind's bytes under this checksum.
        2 => choices.pick(&layout.sites),
        _ => None,
    };
    let Some(bytes) = image.get(range.clone()) else { return "cut off".into() };
    let mut bytes = bytes.to_vec();
    let what = match (way, other) {
        (0..3, Some(other)) => {
            let Some(from) = image.get(other.at..other.at + other.length) else { return "cut off".into() };
            let from = from.to_vec();
            let length = from.len().min(bytes.len());
            if way == 1 {
                // Exchanged.
                put_all(image, other.at, &bytes[..length]);
            }
            bytes[..length].copy_from_slice(&from[..length]);
            format!("copy of {:#x}, way {way}", other.at)
        }
        (3, _) => {
            bytes.fill(0);
            "zeros".into()
        }
        (4, _) => {
            bytes.fill(0xff);
            "ones".into()
        }
        _ => {
            let by = 1 + choices.below(64);
            bytes.rotate_right(by.min(site.length));
            format!("moved by {by}")
        }
    };
    put_all(image, site.at, &bytes);
    what
}

fn put_all(image: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = image.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Changes some bytes anywhere inside.
fn place(image: &mut [u8], site: &Site, choices: &mut Choices<'_>) -> String {
    let at = site.at + choices.below(site.length);
    let length = 1 + choices.below(8);
    for index in 0..length {
        put(image, at + index, 1, Order::Little, choices.number(1));
    }
    format!("{length} bytes at {at:#x}")
}

fn value(image: &mut [u8], layout: &Layout, site: &Site, choices: &mut Choices<'_>) -> String {
    let field = fields::pick(image, layout, site, choices);
    let old = get(image, field.at, field.width, field.order);
    let new = match choices.below(3) {
        0 => general(image, layout, site, field, old, choices),
        1 => near(old, choices),
        _ => meaningful(layout, site, field, old, choices),
    };
    put(image, field.at, field.width, field.order, new);
    let offset = field.at - site.at;
    format!("+{offset:#x} ({} bytes, {:?}) {old:#x} -> {new:#x}", field.width, field.role)
}

/// Values that arithmetic does not like.
fn general(
    image: &[u8],
    layout: &Layout,
    site: &Site,
    field: Field,
    old: u64,
    choices: &mut Choices<'_>,
) -> u64 {
    let top = 1u64 << (8 * field.width - 1);
    match choices.below(10) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => top,
        4 => top - 1,
        5 => top | 1,
        6 => old.swap_bytes() >> (64 - 8 * field.width),
        7 => choices.number(field.width),
        8 => 1 << choices.below(8 * field.width),
        // What the same field holds elsewhere.
        _ => choices
            .pick(layout.of_kind(site.kind))
            .map_or(0, |other| get(image, other.at + (field.at - site.at), field.width, field.order)),
    }
}

/// Values close to the present one.
fn near(old: u64, choices: &mut Choices<'_>) -> u64 {
    match choices.below(8) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_add(4),
        3 => old.wrapping_sub(4),
        4 => old.wrapping_mul(2),
        5 => old / 2,
        6 => old ^ (1 << choices.below(32)),
        _ => old.wrapping_add(choices.number(1)),
    }
}

/// Values that mean something: the number of another structure, of this one, of the end.
fn meaningful(layout: &Layout, site: &Site, field: Field, old: u64, choices: &mut Choices<'_>) -> u64 {
    let geometry = &layout.geometry;
    match field.role {
        Role::Block => match choices.below(8) {
            0..4 => choices.pick(&layout.sites).map_or(0, |other| other.block),
            4 => site.block,
            5 => geometry.blocks.wrapping_sub(choices.below(3) as u64),
            6 => geometry.blocks + choices.below(3) as u64,
            _ => choices.below(geometry.blocks as usize) as u64,
        },
        Role::Logical => match choices.below(4) {
            0 => choices.below(64) as u64,
            1 => geometry.blocks,
            2 => 0xffff_fffe + choices.below(2) as u64,
            _ => old.wrapping_sub(1 + choices.below(16) as u64),
        },
        Role::Ino => match choices.below(5) {
            0 => choices.below(16) as u64,
            1 => site.owner,
            2 => layout.inodes.len() as u64 - choices.below(3) as u64,
            _ => choices.pick(layout.of_kind(Kind::Inode)).map_or(0, |other| other.owner),
        },
        Role::Count | Role::Size => match choices.below(10) {
            0 => geometry.block as u64,
            1 => geometry.block as u64 - 1 - choices.below(16) as u64,
            2 => geometry.block as u64 + 1 + choices.below(16) as u64,
            3 => (geometry.block as u64 / 12).wrapping_add(choices.below(8) as u64).wrapping_sub(4),
            4 => (geometry.inode as u64).wrapping_sub(128 + choices.below(32) as u64),
            5 => geometry.blocks,
            6 => 0x8000 + choices.below(3) as u64 - 1,
            7 => choices.below(300) as u64,
            8 => 4 * choices.below(64) as u64,
            _ => geometry.block as u64 * choices.below(64) as u64,
        },
        Role::Flags => old ^ FLAGS[choices.below(FLAGS.len())],
        Role::Any => choices.number(field.width),
    }
}

/// Bits with a meaning somewhere: features, inode flags, file types, log flags.
const FLAGS: [u64; 30] = [
    1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000, 0x10000,
    0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000, 0x10000000, 0x20000000, 0x40000000, 0xc000,
    0x6000, 0x10080000, 0x81000,
];

/// Kinds in the order in which scripts name them: the superblock is one of many, so that most images still open.
pub fn kinds_of(layout: &Layout) -> Vec<Kind> {
    let mut kinds = layout.kinds();
    // What leads to deep code comes twice.
    for kind in [Kind::Inode, Kind::ExtentNode, Kind::Indirect, Kind::DirLeaf, Kind::HtreeRoot, Kind::Xattrs]
    {
        if kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    debug_assert_eq!(layout.sites.first().map(|site| site.at), Some(SUPERBLOCK), "sorted by kind");
    kinds
}
