//! Prints what operations do to metadata, for `explain -- COMMAND` and `trace`: handles, credits, blocks.

use crate::text::{self, JsonBytes};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use uext4::QuotaKind;
use uext4::trace::{ChangedBlock, Event, HandleRecord, Listener, Operation, Role};

/// Handles of one operation that are printed one by one; more are only counted.
const HANDLES_MAX: usize = 1000;

/// An operation that has ended, with its handles.
pub struct Told<'t> {
    /// The device, as the command named it.
    pub device: &'t str,
    /// What and where.
    pub operation: &'t Operation,
    /// Its handles, up to [`HANDLES_MAX`].
    pub handles: &'t [HandleRecord],
    /// How many there were.
    pub count: u64,
    /// Sum of the credits that all of them asked for.
    pub credits_asked: u64,
    /// Sum of those that they used; 0 without a journal.
    pub credits_used: u64,
}

/// The handles of an operation that runs.
#[derive(Default)]
struct Running {
    handles: Vec<HandleRecord>,
    count: u64,
    credits_asked: u64,
    credits_used: u64,
}

impl Running {
    fn add(&mut self, record: &HandleRecord) {
        self.count += 1;
        self.credits_asked += u64::from(record.credits_asked);
        self.credits_used += record.credits_used.map_or(0, u64::from);
        if self.handles.len() < HANDLES_MAX {
            self.handles.push(record.clone());
        }
    }

    fn told<'t>(&'t self, device: &'t str, operation: &'t Operation) -> Told<'t> {
        let Running { handles, count, credits_asked, credits_used } = self;
        Told {
            device,
            operation,
            handles,
            count: *count,
            credits_asked: *credits_asked,
            credits_used: *credits_used,
        }
    }
}

/// A listener for the volume on `device` that calls `tell` for each operation when it ends.
pub fn listener(device: String, tell: impl Fn(&Told<'_>) + Send + Sync + 'static) -> Listener {
    let running: Mutex<HashMap<u64, Running>> = Mutex::default();
    let lock = move |work: &mut dyn FnMut(&mut HashMap<u64, Running>)| {
        work(&mut running.lock().unwrap_or_else(PoisonError::into_inner));
    };
    Listener::new(move |event| match event {
        Event::Handle(operation, record) if operation.number == 0 => {
            let mut one = Running::default();
            one.add(record);
            tell(&one.told(&device, operation));
        }
        Event::Handle(operation, record) => lock(&mut |running| {
            running.entry(operation.number).or_default().add(record);
        }),
        Event::End(operation) => {
            let mut ended = Running::default();
            lock(&mut |running| ended = running.remove(&operation.number).unwrap_or_default());
            tell(&ended.told(&device, operation));
        }
        _ => {}
    })
}

impl Told<'_> {
    fn place(&self, path: &Option<Vec<u8>>) -> String {
        match path {
            Some(path) => format!("{}:{}", self.device, text::visible(path)),
            None => self.device.to_owned(),
        }
    }

    /// Lines, each with `indent` before it and a line end.
    pub fn text(&self, indent: &str) -> String {
        let Operation { name, path, new_path, .. } = self.operation;
        let to = new_path.as_ref().map(|_| format!(" -> {}", self.place(new_path))).unwrap_or_default();
        let handles = count(self.count, "handle");
        let mut lines = format!("{indent}{name} {}{to}: {handles}\n", self.place(path));
        for handle in self.handles {
            lines += &format!("{indent}  {}\n", handle_line(handle));
            for block in &handle.blocks {
                let first = if block.first { "" } else { " (changed before in this transaction)" };
                lines += &format!("{indent}    block {}: {}{first}\n", block.block, roles(block));
            }
        }
        if self.count > self.handles.len() as u64 {
            lines += &format!("{indent}  … and {} more handles\n", self.count - self.handles.len() as u64);
        }
        lines
    }

    /// The same in JSON.
    pub fn json(&self) -> impl Serialize {
        JsonOperation {
            operation: self.operation.name,
            device: self.device,
            path: JsonBytes("path", self.operation.path.as_deref()),
            new_path: JsonBytes("new_path", self.operation.new_path.as_deref()),
            handle_count: self.count,
            handles: self.handles.iter().map(JsonHandle::of).collect(),
        }
    }
}

/// A number with its noun.
pub fn count(number: u64, noun: &str) -> String {
    match (number, noun.ends_with('h')) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{number} {noun}es"),
        (_, false) => format!("{number} {noun}s"),
    }
}

fn handle_line(handle: &HandleRecord) -> String {
    let HandleRecord { purpose, transaction, credits_asked, credits_used, blocks, revoked, .. } = handle;
    let credits = match credits_used {
        Some(used) => format!("transaction {transaction}, {used} of {credits_asked} credits"),
        None => format!("batch {transaction}, no journal"),
    };
    let mut line = format!("{purpose}: {credits}, {} changed", count(blocks.len() as u64, "block"));
    if !revoked.is_empty() {
        line += &format!(", {} revoked", revoked.len());
    }
    if handle.freed_blocks > 0 {
        line += &format!(", {} freed", handle.freed_blocks);
    }
    line
}

fn roles(block: &ChangedBlock) -> String {
    let told: Vec<String> = block.roles.iter().map(|role| role_text(*role)).collect();
    if told.is_empty() { "metadata".into() } else { told.join(", ") }
}

fn role_text(role: Role) -> String {
    match role {
        Role::Superblock => "superblock".into(),
        Role::OrphanList => "superblock (orphan list)".into(),
        Role::OrphanFile => "orphan file".into(),
        Role::GroupDescriptor(group) => format!("descriptor of group {group}"),
        Role::BlockBitmap(group) => format!("block bitmap of group {group}"),
        Role::InodeBitmap(group) => format!("inode bitmap of group {group}"),
        Role::Inode(ino) => format!("inode {ino}"),
        Role::InodeTable(group) => format!("inode table of group {group}"),
        Role::Directory(ino, number) => format!("block {number} of directory {ino}"),
        Role::Map(ino) => format!("map of inode {ino}"),
        Role::Attributes => "extended attributes".into(),
        Role::Data(ino) => format!("data of inode {ino}"),
        Role::Value(ino) => format!("attribute value in inode {ino}"),
        Role::LinkTarget(ino) => format!("target of symbolic link {ino}"),
        Role::Quota(kind) => format!("{} quota", quota(kind)),
        _ => "metadata".into(),
    }
}

fn quota(kind: QuotaKind) -> &'static str {
    match kind {
        QuotaKind::User => "user",
        QuotaKind::Group => "group",
        QuotaKind::Project => "project",
    }
}

#[derive(Serialize)]
struct JsonOperation<'t> {
    operation: &'static str,
    device: &'t str,
    #[serde(flatten)]
    path: JsonBytes<'t>,
    #[serde(flatten)]
    new_path: JsonBytes<'t>,
    handle_count: u64,
    handles: Vec<JsonHandle<'t>>,
}

#[derive(Serialize)]
struct JsonHandle<'t> {
    purpose: &'static str,
    transaction: u64,
    credits_asked: u32,
    credits_used: Option<u32>,
    blocks: Vec<JsonBlock>,
    revoked: &'t [u64],
    freed_blocks: u64,
}

#[derive(Serialize)]
struct JsonBlock {
    block: u64,
    first: bool,
    roles: Vec<JsonRole>,
}

#[derive(Serialize, Default)]
struct JsonRole {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
}

impl<'t> JsonHandle<'t> {
    fn of(handle: &'t HandleRecord) -> Self {
        let block = |block: &ChangedBlock| JsonBlock {
            block: block.block,
            first: block.first,
            roles: block.roles.iter().map(|role| JsonRole::of(*role)).collect(),
        };
        JsonHandle {
            purpose: handle.purpose,
            transaction: handle.transaction,
            credits_asked: handle.credits_asked,
            credits_used: handle.credits_used,
            blocks: handle.blocks.iter().map(block).collect(),
            revoked: &handle.revoked,
            freed_blocks: handle.freed_blocks,
        }
    }
}

impl JsonRole {
    fn of(role: Role) -> JsonRole {
        let plain = |role| JsonRole { role, ..JsonRole::default() };
        let group = |role, group: uext4::format::Group| JsonRole { group: Some(group.get()), ..plain(role) };
        let inode = |role, ino: uext4::Ino| JsonRole { inode: Some(ino.get()), ..plain(role) };
        match role {
            Role::Superblock => plain("superblock"),
            Role::OrphanList => plain("orphan-list"),
            Role::OrphanFile => plain("orphan-file"),
            Role::GroupDescriptor(of) => group("group-descriptor", of),
            Role::BlockBitmap(of) => group("block-bitmap", of),
            Role::InodeBitmap(of) => group("inode-bitmap", of),
            Role::Inode(ino) => inode("inode", ino),
            Role::InodeTable(of) => group("inode-table", of),
            Role::Directory(ino, number) => {
                JsonRole { number: Some(number.get()), ..inode("directory", ino) }
            }
            Role::Map(ino) => inode("map", ino),
            Role::Attributes => plain("attributes"),
            Role::Data(ino) => inode("data", ino),
            Role::Value(ino) => inode("attribute-value", ino),
            Role::LinkTarget(ino) => inode("link-target", ino),
            Role::Quota(kind) => plain(match kind {
                QuotaKind::User => "user-quota",
                QuotaKind::Group => "group-quota",
                QuotaKind::Project => "project-quota",
            }),
            _ => plain("metadata"),
        }
    }
}
