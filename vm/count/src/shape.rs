//! What is asked for.

/// The size of the file.
pub const SPAN: u64 = 32 << 20;

/// One kind of load.
pub struct Shape {
    /// On the command line and in the output.
    pub name: &'static str,
    /// Overwrites, not reads.
    pub write: bool,
    /// Bytes of a request.
    pub block: usize,
    /// Requests in flight; 1: a call each.
    pub depth: usize,
    /// Requests sent, and waited for, together.
    pub batch: usize,
    /// Completions are busy-polled.
    pub polled: bool,
    /// Each write is durable when it is done.
    pub dsync: bool,
    /// On mapped memory.
    pub dax: bool,
    /// A change of names instead, or a look at them.
    pub names: Option<Operation>,
    /// A change of the map of a file instead, or one that is made durable at once.
    pub change: Option<Change>,
}

/// What is changed. The first three are synced at the end of a slice, the others one by one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Writes into a hole.
    Hole,
    /// Preallocates.
    Allocate,
    /// Frees a written block.
    Punch,
    /// Writes at the end of a file, and syncs the file.
    Append,
    /// Makes a file, and syncs it.
    Create,
}

/// What is done to a name. Changes are synced at the end of a slice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Attributes by name.
    Stat,
    /// Opens a file, and closes it.
    Open,
    /// Makes an empty file.
    Create,
    /// Removes an empty file.
    Unlink,
    /// Another name in the same directory.
    Rename,
    /// Makes a directory.
    Mkdir,
}

impl Shape {
    /// Positions are multiples of this.
    pub fn stride(&self) -> u64 {
        self.block as u64
    }

    /// Bytes that the requests are spread over.
    pub fn span(&self) -> u64 {
        // As many preallocations as fit beside the journal.
        if self.change == Some(Change::Allocate) { 192 << 20 } else { SPAN }
    }

    /// In a slice, of one thread alone.
    pub fn requests(&self) -> usize {
        match self.change {
            Some(Change::Allocate) => 192,
            Some(Change::Append | Change::Create) => 1024,
            _ => 4096,
        }
    }
}

const CALL: Shape = Shape {
    name: "sync-read",
    write: false,
    block: 4096,
    depth: 1,
    batch: 1,
    polled: false,
    dsync: false,
    dax: false,
    names: None,
    change: None,
};
const QUEUE: Shape = Shape { name: "queued-read", depth: 128, batch: 32, ..CALL };

/// All of them.
pub const SHAPES: [Shape; 26] = [
    CALL,
    Shape { name: "sync-overwrite", write: true, ..CALL },
    QUEUE,
    Shape { name: "queued-overwrite", write: true, ..QUEUE },
    Shape { name: "polled-read", polled: true, ..QUEUE },
    Shape { name: "polled-overwrite", polled: true, write: true, ..QUEUE },
    Shape { name: "dsync-overwrite", write: true, dsync: true, ..CALL },
    Shape { name: "nvme-read", ..QUEUE },
    Shape { name: "nvme-overwrite", write: true, ..QUEUE },
    Shape { name: "subblock-overwrite", write: true, block: 2048, depth: 256, ..QUEUE },
    Shape { name: "dax-read", dax: true, ..CALL },
    Shape { name: "dax-overwrite", dax: true, write: true, ..CALL },
    Shape { name: "dax-read-512", dax: true, block: 512, ..CALL },
    Shape { name: "dax-overwrite-512", dax: true, block: 512, write: true, ..CALL },
    Shape { name: "names-stat", names: Some(Operation::Stat), ..CALL },
    Shape { name: "names-open", names: Some(Operation::Open), ..CALL },
    Shape { name: "names-create", names: Some(Operation::Create), ..CALL },
    Shape { name: "names-unlink", names: Some(Operation::Unlink), ..CALL },
    Shape { name: "names-rename", names: Some(Operation::Rename), ..CALL },
    Shape { name: "names-mkdir", names: Some(Operation::Mkdir), ..CALL },
    Shape { name: "hole-write", change: Some(Change::Hole), write: true, ..CALL },
    Shape { name: "hole-queued", change: Some(Change::Hole), write: true, depth: 32, batch: 8, ..CALL },
    Shape { name: "fallocate", change: Some(Change::Allocate), block: 1 << 20, ..CALL },
    Shape { name: "punch", change: Some(Change::Punch), ..CALL },
    Shape { name: "fast-append-fsync", change: Some(Change::Append), write: true, ..CALL },
    Shape { name: "fast-create-fsync", change: Some(Change::Create), ..CALL },
];

/// The one of this name.
pub fn named(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}
