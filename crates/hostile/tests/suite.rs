//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod bounded;
mod corpus;
mod debugfs;
mod descriptors;
mod differential;
mod giants;
mod parts;
mod regressions;
