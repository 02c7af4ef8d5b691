//! What is asked for.

/// Bytes that the requests are spread over: the size of the file.
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
};
const QUEUE: Shape = Shape { name: "queued-read", depth: 128, batch: 32, ..CALL };

/// All of them.
pub const SHAPES: [Shape; 20] = [
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
];

/// The one of this name.
pub fn named(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}
