//! Whatever a call of the library takes or gives has a name in the library: a program needs no other crate.

use uext4::device::{
    self, Cache, Capabilities, DaxKind, Description, Device, DeviceQueue, Done, Full, Geometry, Locator,
    Memory, Misaligned, Op, Queue, Request, Scheme, Sharing, SpecOptions, Wait, WriteDurability,
};
use uext4::explain::{DeviceRequest, Explanation, Query};
use uext4::format::{self, BlockRange, Compat, Features, Group, Incompat, Lblk, Pblk, RoCompat};
use uext4::journal::{self, JournalFeatures, JournalSuperblock};
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
    named::<(Error, Result<()>, Allocation, device::Error, Misaligned, journal::Error, Corrupt, CorruptKind)>(
    );
    named::<(Place, journal::AbortCause, journal::ExtendRefusal, journal::Damage)>();
    // Info and what lies in it
    named::<(Description, Geometry, Capabilities, DaxKind, Sharing, Fence, JournalInfo, MmpOwner)>();
    named::<(DescriptorDamage, RecoveryInfo, RecoveryState, RecoveryReport, FastCommits, LogEnd)>();
    named::<(journal::Tid, JournalSuperblock, JournalFeatures, journal::LogFormat)>();
    // Metadata, Superblock
    named::<(FileKind, InodeFlags, Timestamp, Features, Compat, Incompat, RoCompat, BlockRange)>();
    named::<(Group, Lblk, Pblk, format::Geometry, format::HashSettings, format::State)>();
    named::<(format::ErrorLog, format::JournalLocation, format::MmpSettings)>();
    // File, Cursor
    named::<(MapIter<'_>, Piece, State, Range, WriteFlags, Switches, BadSwitch, Counter, Cursor)>();
    named::<(Query, Explanation, DeviceRequest, Plan, Route, GateMode, JournalWork, Edges)>();
    named::<(Durability, plan::Finish, plan::Request, Summary, Sync, View, plan::MapKind, plan::DiskSize)>();
    // IoQueue, RawQueue
    named::<(FileSlot, Buffer, BufferPool, Completion, Completions<'_>, QueueFacts, Ask, Payload)>();
    named::<(RawCompletion, RawError, CompletionOf<Error>)>();
    // Walk
    named::<(WalkEntry<'_>, Visit, WalkError)>();
    // Device, DeviceSpec
    named::<(Scheme, Locator, SpecOptions, Cache, Queue, &dyn DeviceQueue, Request, Done, Full, Op, Wait)>();
    named::<(WriteDurability, Memory, device::QueueOptions, device::OpenOptions, device::Opened)>();
}
