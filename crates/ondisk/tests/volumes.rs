//! Superblocks, group descriptors and journal superblocks of many kinds of volumes, against dumpe2fs.

use crate::common;

use common::{Image, VARIANTS, number_of, value_of};
use uext4_ondisk::ext4::{
    Compat, GroupFlags, HashVersion, Incompat, MmpBlock, MmpOwner, NodeLimits, RoCompat, Superblock,
    SuperblockFlags,
};
use uext4_ondisk::jbd2::JournalSuperblock;
use uext4_ondisk::{CorruptKind, Group, Pblk};

fn names(list: &[std::borrow::Cow<'static, str>]) -> String {
    list.join(" ")
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[0..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..16]].map(|part| part.concat()).join("-")
}

fn check_superblock(sb: &Superblock, listing: &str) {
    let geometry = &sb.geometry;
    let numbers = [
        ("Inode count", u64::from(geometry.inodes_count())),
        ("Block count", geometry.blocks_count()),
        ("Reserved block count", sb.reserved_blocks),
        ("Free blocks", sb.free_blocks),
        ("Free inodes", u64::from(sb.free_inodes)),
        ("First block", u64::from(geometry.first_data_block())),
        ("Block size", u64::from(geometry.block_size())),
        ("Blocks per group", u64::from(geometry.blocks_per_group())),
        ("Inodes per group", u64::from(geometry.inodes_per_group())),
        ("Inode blocks per group", u64::from(geometry.inode_table_blocks())),
        ("First inode", u64::from(geometry.first_inode().get())),
        ("Mount count", u64::from(sb.mount_count)),
        ("Filesystem revision #", u64::from(geometry.fields().revision)),
    ];
    for (name, value) in numbers {
        if name == "First inode" && geometry.fields().revision == 0 {
            continue;
        }
        assert_eq!(value, number_of(listing, name), "{name}");
    }
    let optional = [
        ("Inode size", u64::from(geometry.inode_size())),
        ("Group descriptor size", u64::from(geometry.desc_size())),
        ("Reserved GDT blocks", u64::from(geometry.fields().reserved_gdt_blocks)),
        ("Flex block group size", u64::from(sb.groups_per_flex())),
        ("Cluster size", u64::from(geometry.block_size() * geometry.cluster_blocks())),
        ("Clusters per group", u64::from(geometry.clusters_per_group())),
        ("Journal inode", u64::from(sb.journal.inode)),
        ("First meta block group", u64::from(geometry.fields().first_meta_bg)),
        ("Required extra isize", u64::from(sb.min_extra_isize)),
        ("Desired extra isize", u64::from(sb.want_extra_isize)),
        ("Overhead clusters", u64::from(sb.overhead_clusters)),
        ("Checksum seed", u64::from(sb.checksum_seed())),
        ("Orphan file inode", u64::from(sb.orphan_file_inode)),
        ("MMP block number", sb.mmp.block.get()),
        ("MMP update interval", u64::from(sb.mmp.interval)),
        ("User quota inode", u64::from(sb.user_quota_inode)),
        ("Project quota inode", u64::from(sb.project_quota_inode)),
    ];
    for (name, value) in optional {
        if value_of(listing, name).is_some() {
            assert_eq!(value, number_of(listing, name), "{name}");
        }
    }
    check_texts(sb, listing);
}

fn check_texts(sb: &Superblock, listing: &str) {
    let features = value_of(listing, "Filesystem features").unwrap();
    assert_eq!(names(&sb.features.names()), if features == "(none)" { "" } else { features });
    assert_eq!(Some(uuid_text(&sb.uuid).as_str()), value_of(listing, "Filesystem UUID"));
    assert_eq!(value_of(listing, "Filesystem state"), Some("clean"));
    assert_eq!(names(&sb.state.names()), "clean");
    if let Some(options) = value_of(listing, "Default mount options") {
        assert_eq!(names(&sb.default_mount_options.names()), options.trim_start_matches("(none)"));
    }
    if let Some(hash) = value_of(listing, "Default directory hash") {
        assert_eq!(HashVersion::from_disk(sb.hash.default_version, false).unwrap().to_string(), hash);
        let bytes: Vec<u8> = sb.hash.seed.iter().flat_map(|word| word.to_le_bytes()).collect();
        let seed = uuid_text(&bytes.try_into().unwrap());
        assert_eq!(Some(seed.as_str()), value_of(listing, "Directory Hash Seed"));
    }
    if let Some(flags) = value_of(listing, "Filesystem flags") {
        assert_eq!(names(&sb.flags.names()), flags);
    }
}

/// The numbers of a phrase like `Block bitmap at 259 (+258)` or `Inode table at 275-786`.
fn range_after(line: &str, phrase: &str) -> Option<(u64, u64)> {
    let rest = line.split_once(phrase)?.1.trim_start();
    let token: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '-').collect();
    let (first, last) = token.split_once('-').unwrap_or((&token, &token));
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn check_group(image: &Image, sb: &Superblock, group: Group, section: &str) {
    let geometry = &sb.geometry;
    let descriptor = image.descriptor(sb, group);
    let head = section.lines().next().unwrap();
    let first = geometry.group_first_block(group).unwrap().get();
    let last = first + u64::from(geometry.group_blocks(group).unwrap()) - 1;
    assert_eq!(range_after(head, "(Blocks "), Some((first, last)));
    assert_eq!(geometry.group_of_block(Pblk(last)), Some((group, u32::try_from(last - first).unwrap())));
    assert_eq!(
        range_after(section, "Block bitmap at "),
        Some((descriptor.block_bitmap.0, descriptor.block_bitmap.0))
    );
    assert_eq!(
        range_after(section, "Inode bitmap at "),
        Some((descriptor.inode_bitmap.0, descriptor.inode_bitmap.0))
    );
    let table = descriptor.inode_table.get();
    let table_end = table + u64::from(geometry.inode_table_blocks()) - 1;
    assert_eq!(range_after(section, "Inode table at "), Some((table, table_end)));
    assert_eq!(section.contains("superblock at"), geometry.has_superblock(group), "{section}");
    for flag in [GroupFlags::INODE_UNINIT, GroupFlags::BLOCK_UNINIT, GroupFlags::INODE_ZEROED] {
        let name = flag.names().concat();
        // dumpe2fs shows flags only where descriptors have checksums.
        let shown = sb.features.metadata_csum() || sb.features.gdt_csum();
        assert_eq!(head.contains(&name), shown && descriptor.flags.contains(flag), "{name}");
    }
    let counts = section.lines().find(|line| line.contains("free inodes, ")).unwrap();
    let numbers: Vec<u32> =
        counts.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let free_clusters = numbers[0];
    assert_eq!(free_clusters, descriptor.free_clusters);
    assert_eq!(numbers[1], descriptor.free_inodes);
    assert_eq!(numbers[2], descriptor.used_dirs);
    assert_eq!(numbers.get(3).copied().unwrap_or(0), descriptor.unused_inodes);
    check_group_start(sb, group, section);
    if !descriptor.blocks_uninitialised(sb) {
        let bitmap = image.block(sb, descriptor.block_bitmap);
        descriptor.verify_block_bitmap(bitmap, group, sb).unwrap();
    }
}

/// Descriptor copies and reserved blocks, as dumpe2fs places them.
fn check_group_start(sb: &Superblock, group: Group, section: &str) {
    let geometry = &sb.geometry;
    let mut blocks = u32::from(geometry.has_superblock(group));
    let phrases = ["Group descriptors at ", "Group descriptor at "];
    let descriptors = phrases.iter().find_map(|phrase| range_after(section, phrase));
    let expected = geometry.descriptor_blocks_in(group);
    if let Some((first, last)) = descriptors {
        assert_eq!(u64::from(expected), last - first + 1, "{section}");
        blocks += expected;
    } else {
        assert_eq!(expected, 0, "{section}");
    }
    if let Some((first, last)) = range_after(section, "Reserved GDT blocks at ") {
        blocks += u32::try_from(last - first + 1).unwrap();
    }
    assert_eq!(geometry.base_metadata_blocks(group), blocks, "{section}");
}

/// The block of multi-mount protection, against `debugfs dump_mmp`.
fn check_mmp(image: &Image, sb: &Superblock) {
    if !sb.features.incompat.contains(Incompat::MMP) {
        return;
    }
    let bytes = image.block(sb, sb.mmp.block);
    let mmp = MmpBlock::decode(bytes, sb).unwrap();
    assert_eq!(mmp.owner(), MmpOwner::Nobody);
    let dump = image.debugfs("dump_mmp");
    assert!(dump.contains(&format!("check_interval: {}\n", mmp.check_interval)), "{dump}");
    assert!(dump.contains(&format!("sequence: {:08x}\n", mmp.sequence)), "{dump}");
    let mut again = bytes.to_vec();
    mmp.encode(&mut again, sb).unwrap();
    assert!(again == bytes, "multi-mount block changed");
    again[4] ^= 1;
    assert_eq!(MmpBlock::decode(&again, sb).unwrap_err().kind, CorruptKind::MmpChecksum);
    MmpBlock { sequence: 77, ..mmp }.encode(&mut again, sb).unwrap();
    assert_eq!(MmpBlock::decode(&again, sb).unwrap().owner(), MmpOwner::Mounted(77));
}

fn check_journal(image: &Image, sb: &Superblock, listing: &str) {
    let Some(inode) = sb.journal_inode() else {
        assert!(value_of(listing, "Journal inode").is_none());
        return;
    };
    let decoded = image.inode(sb, inode);
    let first = if decoded.uses_extents() {
        image.file_blocks(sb, inode)[0].1
    } else {
        Pblk(u64::from(u32::from_le_bytes(decoded.i_block[..4].try_into().unwrap())))
    };
    let bytes = image.block(sb, first);
    let journal = JournalSuperblock::decode(bytes).unwrap();
    assert_eq!(journal.block_size, sb.geometry.block_size());
    let number = |name| u32::try_from(number_of(listing, name)).unwrap();
    let blocks = value_of(listing, "Total journal blocks").or(value_of(listing, "Journal length")).unwrap();
    assert_eq!(journal.blocks.to_string(), blocks);
    assert_eq!(journal.sequence, number("Journal sequence"));
    assert_eq!(journal.start, number("Journal start"));
    assert_eq!(journal.first, 1);
    assert_eq!(journal.log_end(), journal.blocks);
    let mut again = bytes.to_vec();
    journal.encode(&mut again).unwrap();
    assert!(again == bytes, "journal superblock changed");
}

#[test]
fn every_variant_reads_as_dumpe2fs_does() {
    for (name, megabytes, arguments) in VARIANTS {
        eprintln!("volume: {name}");
        let image = Image::new(*megabytes, arguments);
        let listing = image.dumpe2fs();
        let sb = image.superblock();
        check_superblock(&sb, &listing);
        let sections =
            listing.split("\nGroup ").filter(|section| section.starts_with(|c: char| c.is_ascii_digit()));
        let sections: Vec<&str> = sections.collect();
        assert_eq!(sections.len(), usize::try_from(sb.geometry.group_count()).unwrap());
        for (group, section) in sb.geometry.groups().zip(sections) {
            check_group(&image, &sb, group, section);
        }
        check_journal(&image, &sb, &listing);
        check_mmp(&image, &sb);
    }
}

#[test]
fn backups_decode() {
    for (name, megabytes, arguments) in VARIANTS {
        let image = Image::new(*megabytes, arguments);
        let sb = image.superblock();
        for group in sb.geometry.groups().skip(1).filter(|group| sb.geometry.has_superblock(*group)) {
            let block = sb.geometry.group_first_block(group).unwrap();
            let backup = Superblock::decode(image.block(&sb, block)).unwrap();
            assert_eq!(u32::from(backup.block_group), group.0, "{name}");
            assert_eq!((backup.uuid, backup.geometry), (sb.uuid, sb.geometry), "{name}");
        }
    }
}

#[test]
fn records_survive_decode_and_encode() {
    for (name, megabytes, arguments) in VARIANTS {
        let image = Image::new(*megabytes, arguments);
        let sb = image.superblock();
        let mut bytes = image.superblock_bytes().to_vec();
        sb.encode(&mut bytes).unwrap();
        assert!(bytes == image.superblock_bytes(), "{name}: superblock changed");
        // From nothing: every known field is written, so only reserved bytes may differ, and mke2fs leaves
        // those 0.
        let mut fresh = vec![0; 1024];
        sb.encode(&mut fresh).unwrap();
        assert!(fresh == bytes, "{name}: superblock is not complete");
        for group in sb.geometry.groups() {
            let size = usize::from(sb.geometry.desc_size());
            let at = image.descriptor_offset(&sb, group);
            let mut bytes = vec![0; size];
            image.descriptor(&sb, group).encode(&mut bytes, group, &sb).unwrap();
            assert!(bytes == image.bytes[at..at + size], "{name}: descriptor of group {group} changed");
        }
        for inode in image.used_inodes(&sb) {
            let size = usize::from(sb.geometry.inode_size());
            let at = image.inode_offset(&sb, inode);
            let mut bytes = image.bytes[at..at + size].to_vec();
            image.inode(&sb, inode).encode(&mut bytes, inode, &sb).unwrap();
            assert!(bytes == image.bytes[at..at + size], "{name}: inode {inode} changed");
        }
    }
}

#[test]
fn changed_records_satisfy_e2fsck() {
    let variants = ["default", "crc16", "32 bits, crc32c", "seed stored", "128-byte inodes", "64 KiB blocks"];
    for (name, megabytes, arguments) in VARIANTS.iter().filter(|variant| variants.contains(&variant.0)) {
        let mut image = Image::new(*megabytes, arguments);
        let mut sb = image.superblock();
        sb.label_raw = *b"changed\0\0\0\0\0\0\0\0\0";
        sb.times.written += 1 << 33;
        sb.kbytes_written += 77;
        sb.encode(&mut image.bytes[1024..2048]).unwrap();
        let root = uext4_ondisk::Ino::ROOT;
        let mut inode = image.inode(&sb, root);
        inode.mode = inode.file_type().unwrap().mode_bits() | 0o751;
        // A new owner would need new quota accounts.
        let owner = if sb.features.ro_compat.contains(RoCompat::QUOTA) { 0 } else { 0x1234_5678 };
        inode.uid = owner;
        inode.modified.seconds = 0x7FFF_FFFF;
        let at = image.inode_offset(&sb, root);
        inode.encode(&mut image.bytes[at..], root, &sb).unwrap();
        for group in sb.geometry.groups() {
            let mut descriptor = image.descriptor(&sb, group);
            if !descriptor.inodes_uninitialised(&sb) {
                let bitmap = image.block(&sb, descriptor.inode_bitmap).to_vec();
                descriptor.set_inode_bitmap_csum(&bitmap, &sb).unwrap();
            }
            let at = image.descriptor_offset(&sb, group);
            descriptor.encode(&mut image.bytes[at..], group, &sb).unwrap();
        }
        image.assert_clean();
        let listing = image.dumpe2fs();
        assert_eq!(value_of(&listing, "Filesystem volume name"), Some("changed"), "{name}");
        assert_eq!(image.superblock().label(), b"changed");
        let stat = image.debugfs("stat <2>");
        assert!(
            stat.contains("Mode:  0751") && stat.contains(&format!("User: {owner:>5}")),
            "{name}: {stat}"
        );
    }
}

#[test]
fn feature_names_are_those_of_e2fsprogs() {
    // As printed by e2p_feature2string of e2fsprogs 1.47 for single bits.
    assert_eq!(
        names(&Incompat::from_bits_retain(1 << 20 | 1 << 6 | 1 << 5).names()),
        "FEATURE_I5 extent FEATURE_I20"
    );
    assert_eq!(names(&Compat::from_bits_retain(1 << 8 | 1 << 7).names()), "FEATURE_C7 snapshot_bitmap");
    assert_eq!(
        names(&RoCompat::from_bits_retain(1 << 31 | 1 << 4 | 1 << 12).names()),
        "uninit_bg read-only FEATURE_R31"
    );
    assert_eq!(Incompat::from_bits_retain(1 << 20 | 1 << 6).unknown().bits(), 1 << 20);
    assert_eq!(Incompat::all().unknown(), Incompat::from_bits_retain(!Incompat::KNOWN.bits()));
}

#[test]
fn unsigned_hash_flag_is_seen() {
    let mut image = Image::new(8, &["-t", "ext4"]);
    assert!(!image.superblock().hash_unsigned());
    image.debugfs_write("set_super_value flags 2");
    let sb = image.superblock();
    assert!(sb.hash_unsigned() && sb.flags == SuperblockFlags::UNSIGNED_HASH);
    assert_eq!(NodeLimits::root(&sb).volume, sb.geometry.usable_blocks());
}
