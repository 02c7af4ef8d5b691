//! The decision of one read or write, as [`File::explain`](crate::File::explain) gives it and the executor follows it.

pub use uext4_iomap::MapKind;
pub use uext4_iomap::plan::{
    DiskSize, Durability, Edges, Finish, GateMode, JournalWork, Plan, Request, Route, Summary, Sync, View,
};
