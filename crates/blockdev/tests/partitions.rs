//! `?partition=N` on tables that other tools made, and on tables that are wrong.

use std::io::{Cursor, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{Device, Error, OpenOptions, open, partition as table};
use uext4_testkit::{Need, Rng, needs};

const SECTOR: u64 = 512;

fn image(directory: &Path, bytes: &[u8]) -> PathBuf {
    let path = directory.join("disk.img");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn partition(path: &Path, number: u32) -> Result<Arc<dyn Device>, Error> {
    let spec = DeviceSpec::parse(&format!("{}?ro&partition={number}", path.display())).unwrap();
    open(&spec, OpenOptions::default()).map(|opened| opened.device)
}

fn reason(path: &Path, number: u32) -> String {
    match partition(path, number) {
        Err(Error::Partition { number: told, reason }) => {
            assert_eq!(told, number);
            reason
        }
        other => panic!("{other:?}"),
    }
}

/// Marks the first byte of every sector with its number, outside the table's own sectors.
fn check_start(path: &Path, device: &dyn Device, start: u64, size: u64) {
    assert_eq!(device.geometry().size, size);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let marker = start.to_le_bytes();
    std::os::unix::fs::FileExt::write_all_at(&file, &marker, start).unwrap();
    let pool = uext4_blockdev::BufferPool::new(4096).unwrap();
    let mut buf = pool.take(device.geometry().logical_block as usize).unwrap();
    device.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf[..8], marker);
}

fn entry(kind: u8, start: u32, sectors: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4] = kind;
    bytes[8..12].copy_from_slice(&start.to_le_bytes());
    bytes[12..].copy_from_slice(&sectors.to_le_bytes());
    bytes
}

/// Writes an MBR or extended boot record at a sector.
fn record(disk: &mut [u8], sector: u64, entries: &[[u8; 16]]) {
    let at = (sector * SECTOR) as usize;
    for (index, entry) in entries.iter().enumerate() {
        disk[at + 446 + 16 * index..][..16].copy_from_slice(entry);
    }
    disk[at + 510..at + 512].copy_from_slice(&[0x55, 0xaa]);
}

/// 8 MiB: two primary partitions, an extended one with an empty record and two logical ones.
fn mbr_disk() -> Vec<u8> {
    let mut disk = vec![0; 8 << 20];
    record(&mut disk, 0, &[entry(0x83, 64, 1000), [0; 16], entry(0x05, 4096, 8192), entry(0x83, 2048, 2048)]);
    record(&mut disk, 4096, &[[0; 16], entry(0x05, 1024, 1024)]);
    record(&mut disk, 4096 + 1024, &[entry(0x83, 8, 100), entry(0x05, 2048, 1024)]);
    record(&mut disk, 4096 + 2048, &[entry(0x83, 16, 200)]);
    disk
}

#[test]
fn primary_and_logical_partitions() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), &mbr_disk());
    for (number, start, sectors) in
        [(1, 64, 1000), (4, 2048, 2048), (5, 4096 + 1024 + 8, 100), (6, 4096 + 2048 + 16, 200)]
    {
        let device = partition(&path, number).unwrap();
        check_start(&path, &*device, start * SECTOR, sectors * SECTOR);
        let layers = device.describe().layers;
        assert!(layers.len() == 1 && layers[0].contains(&format!("partition {number}")), "{layers:?}");
    }
    assert!(reason(&path, 2).contains("no such partition"));
    assert!(reason(&path, 3).contains("extended"));
    assert!(reason(&path, 7).contains("only 2 logical"));
    assert!(reason(&path, u32::MAX).contains("only 2 logical"));
}

#[test]
fn a_disk_without_table_says_so() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    for bytes in [vec![0u8; 1 << 20], vec![0xff; 1 << 20], vec![0; 512], Vec::new()] {
        let path = image(place.path(), &bytes);
        assert!(reason(&path, 1).contains("no partition table"), "{}", reason(&path, 1));
    }
}

#[test]
fn hostile_mbr_tables_are_refused() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let with = |sector, entries: &[[u8; 16]]| {
        let mut disk = mbr_disk();
        record(&mut disk, sector, entries);
        image(place.path(), &disk)
    };
    let outside = "do not lie on the device";
    assert!(reason(&with(0, &[entry(0x83, 0, 1000)]), 1).contains(outside), "covers the table itself");
    assert!(reason(&with(0, &[entry(0x83, 64, u32::MAX)]), 1).contains(outside));
    assert!(reason(&with(0, &[entry(0x83, u32::MAX, u32::MAX)]), 1).contains(outside));
    assert!(reason(&with(0, &[entry(0x83, 16384, 1)]), 1).contains(outside));
    assert!(reason(&with(0, &[entry(0x83, 64, 0)]), 1).contains("no such partition"));
    // Extended partition beyond the device, and at a position that overflows 32 bits with the link.
    let far = entry(0x0f, u32::MAX, u32::MAX);
    assert!(reason(&with(0, &[[0; 16], [0; 16], far]), 5).contains("cannot be read"));
    // Chains that return to themselves or go back.
    let loops = with(4096, &[[0; 16], entry(0x05, 0, 1024)]);
    assert!(reason(&loops, 5).contains("goes backwards"));
    let back = with(4096 + 2048, &[entry(0x83, 16, 200), entry(0x05, 1024, 1024)]);
    assert!(reason(&back, 9).contains("goes backwards"));
    let beyond = with(4096 + 2048, &[entry(0x83, 16, 200), entry(0x05, u32::MAX, 1024)]);
    assert!(reason(&beyond, 7).contains("cannot be read"));
    let unsigned = {
        let mut disk = mbr_disk();
        disk[(4096 + 1024) * 512 + 510] = 0;
        image(place.path(), &disk)
    };
    assert!(reason(&unsigned, 5).contains("boot record at sector 5120"));
    let outside_logical = with(4096 + 2048, &[entry(0x83, 1 << 24, 200)]);
    assert!(reason(&outside_logical, 6).contains(outside));
}

#[test]
fn an_endless_chain_is_cut_off() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut disk = vec![0; 8 << 20];
    record(&mut disk, 0, &[entry(0x05, 64, 16000)]);
    for link in 0..10_000u32 {
        record(&mut disk, 64 + u64::from(link), &[[0; 16], entry(0x05, link + 1, 1)]);
    }
    let path = image(place.path(), &disk);
    assert!(reason(&path, 5).contains("longer than"));
}

/// A GPT made by the crate's own writer.
fn gpt_disk(sector: u64, size: usize) -> Vec<u8> {
    let mut disk = Cursor::new(vec![0u8; size]);
    gptman::GPT::write_protective_mbr_into(&mut disk, sector).unwrap();
    let mut gpt = gptman::GPT::new_from(&mut disk, sector, [7; 16]).unwrap();
    for (number, first, last) in [(1, 256, 511), (3, 512, 1023)] {
        gpt[number] = gptman::GPTPartitionEntry {
            partition_type_guid: [1; 16],
            unique_partition_guid: [number as u8; 16],
            starting_lba: first,
            ending_lba: last,
            attribute_bits: 0,
            partition_name: "data".into(),
        };
    }
    gpt.write_into(&mut disk).unwrap();
    disk.into_inner()
}

#[test]
fn gpt_partitions_by_number() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), &gpt_disk(512, 4 << 20));
    for (number, start, size) in [(1, 256 * 512, 256 * 512), (3, 512 * 512, 512 * 512)] {
        let device = partition(&path, number).unwrap();
        check_start(&path, &*device, start, size);
    }
    for number in [2, 128, 129, u32::MAX] {
        assert!(reason(&path, number).contains("no such partition"));
    }
}

#[test]
fn the_image_of_a_disk_with_4096_byte_sectors() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), &gpt_disk(4096, 8 << 20));
    let device = partition(&path, 1).unwrap();
    check_start(&path, &*device, 256 * 4096, 256 * 4096);
}

#[test]
fn the_backup_gpt_serves_when_the_primary_is_damaged() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let good = gpt_disk(512, 4 << 20);
    for damaged in [512, 512 + 16, 1024 + 40] {
        let mut disk = good.clone();
        disk[damaged] ^= 0xff;
        let path = image(place.path(), &disk);
        let device = partition(&path, 3).unwrap();
        check_start(&path, &*device, 512 * 512, 512 * 512);
        // Both gone: the reasons of both are told.
        let end = disk.len();
        disk[end - 512] ^= 0xff;
        let path = image(place.path(), &disk);
        let text = reason(&path, 3);
        assert!(text.contains("primary GPT") && text.contains("backup GPT"), "{text}");
    }
}

/// Rewrites the header at sector 1 with valid checksums and drops the backup.
fn change_header(disk: &[u8], change: impl FnOnce(&mut gptman::GPTHeader)) -> Vec<u8> {
    let mut bytes = disk.to_vec();
    let mut header = gptman::GPTHeader::read_from(&mut Cursor::new(&bytes[512..1024])).unwrap();
    change(&mut header);
    header.update_crc32_checksum();
    // The fields in their order on disk (UEFI 2.10, table 5.5), all little-endian.
    let mut raw = Vec::new();
    raw.extend(header.signature);
    raw.extend(header.revision);
    raw.extend(header.header_size.to_le_bytes());
    raw.extend(header.crc32_checksum.to_le_bytes());
    raw.extend(header.reserved);
    for lba in [header.primary_lba, header.backup_lba, header.first_usable_lba, header.last_usable_lba] {
        raw.extend(lba.to_le_bytes());
    }
    raw.extend(header.disk_guid);
    raw.extend(header.partition_entry_lba.to_le_bytes());
    raw.extend(header.number_of_partition_entries.to_le_bytes());
    raw.extend(header.size_of_partition_entry.to_le_bytes());
    raw.extend(header.partition_entry_array_crc32.to_le_bytes());
    assert_eq!(raw.len(), 92);
    let mut cursor = Cursor::new(&mut bytes);
    cursor.seek(SeekFrom::Start(512)).unwrap();
    cursor.write_all(&raw).unwrap();
    let end = bytes.len();
    bytes[end - 512..].fill(0);
    bytes
}

#[test]
fn hostile_gpt_headers_with_good_checksums_are_refused() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let good = gpt_disk(512, 4 << 20);
    let refused = |change: fn(&mut gptman::GPTHeader), part: &str| {
        let path = image(place.path(), &change_header(&good, change));
        let text = reason(&path, 1);
        assert!(text.contains(part), "{part}: {text}");
    };
    refused(|h| h.number_of_partition_entries = u32::MAX, "4294967295 entries");
    refused(|h| h.number_of_partition_entries = 0, "0 entries");
    refused(|h| h.size_of_partition_entry = u32::MAX, "entries of 4294967295 bytes");
    refused(|h| h.size_of_partition_entry = 0, "entries of 0 bytes");
    refused(|h| h.partition_entry_lba = u64::MAX, "beyond the device");
    refused(|h| h.partition_entry_lba = u64::MAX / 512, "beyond the device");
    refused(|h| h.primary_lba = 7, "says that it is at 7");
    refused(|h| (h.first_usable_lba, h.last_usable_lba) = (9, 8), "usable sectors");
    refused(|h| h.last_usable_lba = u64::MAX, "usable sectors");
    refused(|h| h.last_usable_lba = 300, "outside the usable range");
    refused(|h| h.first_usable_lba = 300, "outside the usable range");
    refused(|h| h.partition_entry_array_crc32 ^= 1, "primary GPT");
    // Unchanged, the helper makes a table that is accepted.
    let path = image(place.path(), &change_header(&good, |_| {}));
    partition(&path, 1).unwrap();
}

#[test]
fn random_damage_never_panics() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut rng = Rng::new(0x9a27);
    for base in [mbr_disk(), gpt_disk(512, 1 << 20)] {
        for _ in 0..400 {
            let mut disk = base.clone();
            for _ in 0..1 + rng.below(12) {
                // The table sectors: the MBR, the GPT behind it, the extended boot records.
                let sector = [0, 1, 2, 4096, 4096 + 1024, 4096 + 2048][rng.below(6) as usize];
                let at = sector * 512 + [446 + rng.below(66), rng.below(512)][rng.below(2) as usize];
                if let Some(byte) = disk.get_mut(at as usize) {
                    *byte = rng.below(256) as u8;
                }
            }
            let path = image(place.path(), &disk);
            for number in [1, 3, 5, 6] {
                if let Ok(device) = partition(&path, number) {
                    assert!(device.geometry().size < disk.len() as u64);
                }
            }
        }
    }
}

#[test]
fn an_offset_is_checked() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), &vec![0; 1 << 20]);
    let at = |text: &str| {
        let spec = DeviceSpec::parse(&format!("{}?ro&offset={text}", path.display())).unwrap();
        open(&spec, OpenOptions::default()).map(|opened| opened.device.geometry().size)
    };
    assert_eq!(at("64K"), Ok((1 << 20) - (64 << 10)));
    assert_eq!(at("0"), Ok(1 << 20));
    assert!(matches!(at("100"), Err(Error::Misaligned { .. })));
    assert!(matches!(at("1M"), Err(Error::OutOfRange { .. })));
    assert!(matches!(at("8T"), Err(Error::OutOfRange { .. })));
}

#[test]
fn tables_of_sfdisk() {
    needs!(Need::Tool("sfdisk"));
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    type Partitions = &'static [(u32, u64, u64)];
    let tables: [(&str, Partitions); 2] = [
        (
            "label: dos\nstart=2048,size=2048,type=83\nstart=4096,size=20480,type=5\n\
             start=6144,size=4096,type=83\nstart=12288,size=2048,type=83\n",
            &[(1, 2048, 2048), (5, 6144, 4096), (6, 12288, 2048)],
        ),
        ("label: gpt\nstart=2048,size=2048\nstart=8192,size=4096\n", &[(1, 2048, 2048), (2, 8192, 4096)]),
    ];
    for (script, wanted) in tables {
        let path = image(place.path(), &vec![0; 16 << 20]);
        let mut sfdisk = std::process::Command::new(uext4_testkit::requirement::tool("sfdisk").unwrap())
            .args(["--quiet", "--no-tell-kernel"])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        sfdisk.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(sfdisk.wait().unwrap().success());
        for &(number, start, sectors) in wanted {
            let device = partition(&path, number).unwrap();
            check_start(&path, &*device, start * SECTOR, sectors * SECTOR);
        }
    }
}

/// What is listed is what is found, by number.
#[test]
fn the_list_is_what_can_be_found() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let whole = |disk: &[u8]| {
        let path = image(place.path(), disk);
        let spec = DeviceSpec::parse(&format!("{}?ro", path.display())).unwrap();
        (open(&spec, OpenOptions::default()).unwrap().device, path)
    };
    let (device, path) = whole(&mbr_disk());
    let listing = table::list(&*device).unwrap().unwrap();
    assert_eq!(listing.scheme, table::Scheme::Mbr);
    let numbers: Vec<u32> = listing.partitions.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 4, 5, 6]);
    for (number, extent) in listing.partitions {
        assert_eq!(table::find(&*device, number).unwrap(), extent);
        assert_eq!(opened_size(&path, number), extent.size);
    }
    // The mark of a boot sector alone is no table, nor are entries that could not be booted or not.
    let mut disk = vec![0; 1 << 20];
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(table::list(&*whole(&disk).0).unwrap(), None);
    record(&mut disk, 0, &[entry(0x83, 64, 1000)]);
    assert_eq!(table::list(&*whole(&disk).0).unwrap().unwrap().partitions.len(), 1);
    disk[446 + 16] = 0x7f;
    assert_eq!(table::list(&*whole(&disk).0).unwrap(), None);
    assert_eq!(table::list(&*whole(&vec![0; 1 << 20]).0).unwrap(), None);
}

fn opened_size(path: &Path, number: u32) -> u64 {
    partition(path, number).unwrap().geometry().size
}
