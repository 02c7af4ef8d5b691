//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod crash_counts;
mod crash_model;
mod crash_speed;
mod crash_toy;
mod guards;
mod judges;
mod requirements;
mod script;
mod volumes;
