//! The plan of a read or write, as reported by [`File::explain`](crate::File::explain) and followed by the executor.

pub use uext4_iomap::MapKind;
pub use uext4_iomap::plan::{
    DiskSize, Durability, Edges, Finish, GateMode, JournalWork, Plan, Request, Route, Summary, Sync, View,
};
