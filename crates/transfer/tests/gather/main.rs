//! Directories, archives and images become trees: what the tools that made them say, and what nobody may make of them.

mod common;
mod host;
mod hostile;
mod layers;
mod oci;
mod owners;
mod tools;
