//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod commit;
mod common;
mod crash;
mod e2fsprogs;
mod fast_commit;
mod handles;
mod open;
mod oracle;
mod recovery;
