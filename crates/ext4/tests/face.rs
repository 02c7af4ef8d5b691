//! Whatever a call of the library takes or gives has a name in the library: a program needs no other crate.

use uext4::blockdev::spec::{Cache, Locator, Scheme, SpecOptions};
use uext4::blockdev::{
    Capabilities, DaxKind, Description, Device, DeviceQueue, Done, Full, Geometry, Memory, Misaligned, Op,
    Queue, Request, Sharing, Wait, WriteDurability,
};
use uext4::explain::{DeviceRequest, Explanation, Query};
use uext4::ondisk::ext4::{Compat, Features, Incompat, RoCompat};
use uext4::ondisk::jbd2::{JournalFeatures, JournalSuperblock};
use uext4::ondisk::{BlockRange, Group, Lblk, Pblk};
use uext4::plan::{Durability, Edges, GateMode, JournalWork, Plan, Route, Summary, Sync, View};
use uext4::*;

/// Compiles only if the types have these names. By what brings them into the face: methods of what is named first.
#[test]
fn every_type_of_the_face_has_a_name() {
    fn named<T: ?Sized>() {}
    // Volume
    named::<(Volume, VolumeOptions, DeviceSpec, Target, &dyn ToDevice, Superblock, Stats, Option<MmpBlock>)>(
    );
    named::<(&dyn Device, Info, Ino, File, OpenOptions, Metadata, ReadDir, DirEntry, StatFs)>();
    named::<(IoQueue, QueueOptions, RawQueue, Walk, WalkOptions)>();
    named::<(XattrNames, Xattrs<'_>, Xattr<'_>, XattrName, AclKind, Acl, AclEntry, AclTag)>();
    // Error
    named::<(Error, Result<()>, Allocation, blockdev::Error, Misaligned, jbd2::Error, Corrupt, CorruptKind)>(
    );
    named::<(Place, iomap::Error, buffer::Error, jbd2::AbortCause, jbd2::ExtendRefusal, jbd2::Damage)>();
    // Info and what lies in it
    named::<(Description, Geometry, Capabilities, DaxKind, Sharing, Fence, JournalInfo, MmpOwner)>();
    named::<(DescriptorDamage, RecoveryInfo, RecoveryState, RecoveryReport, FastCommits, LogEnd)>();
    named::<(jbd2::Tid, JournalSuperblock, JournalFeatures, jbd2::Result<()>, buffer::BufferCache)>();
    named::<(&dyn jbd2::LogMap, ondisk::jbd2::LogFormat)>();
    // Metadata, Superblock
    named::<(FileKind, InodeFlags, Timestamp, Features, Compat, Incompat, RoCompat, BlockRange)>();
    named::<(Group, Lblk, Pblk, ondisk::ext4::Geometry, ondisk::ext4::HashSettings, ondisk::ext4::State)>();
    named::<(ondisk::ext4::ErrorLog, ondisk::ext4::JournalLocation, ondisk::ext4::MmpSettings)>();
    // File, Cursor
    named::<(MapIter<'_>, Piece, State, Range, WriteFlags, Switches, BadSwitch, Counter, Cursor)>();
    named::<(Query, Explanation, DeviceRequest, Plan, Route, GateMode, JournalWork, Edges)>();
    named::<(Durability, plan::Finish, plan::Request, Summary, Sync, View)>();
    // IoQueue, RawQueue
    named::<(FileSlot, Buffer, BufferPool, Completion, Completions<'_>, QueueFacts, Ask, Payload)>();
    named::<(RawCompletion, iomap::Completion<Error>)>();
    // Walk
    named::<(WalkEntry<'_>, Visit, WalkError)>();
    // Device, DeviceSpec
    named::<(Scheme, Locator, SpecOptions, Cache, Queue, &dyn DeviceQueue, Request, Done, Full, Op, Wait)>();
    named::<(WriteDurability, Memory, blockdev::QueueOptions, blockdev::OpenOptions, blockdev::Opened)>();
    fn routes<R: iomap::switches::Routing>(routing: R) -> Switches {
        routing.switches()
    }
    assert_eq!(routes(Switches::OFF), Switches::OFF);
}

/// What makes the list above complete: a type of the face is this crate's, std's, or one of the crates below, and those
/// are here whole. That no crate has a type without a name is rustc's word (`unnameable_types`).
#[test]
fn the_crates_below_are_re_exported_whole() {
    let read =
        |file: &str| std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (manifest, face) = (read("Cargo.toml"), read("src/lib.rs"));
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split('[').next().unwrap();
    let below: Vec<&str> = dependencies
        .lines()
        .filter_map(|line| line.strip_prefix("uext4-")?.split(['.', ' ', '=']).next())
        .collect();
    assert!(below.len() >= 5, "{below:?}");
    for name in below {
        let whole = format!("pub use uext4_{name} as {name};");
        assert!(face.lines().any(|line| line == whole), "lib.rs lacks `{whole}`");
    }
    let workspace = read("../../Cargo.toml");
    assert!(workspace.lines().any(|line| line.starts_with("unnameable_types = ")), "the lint is off");
}
