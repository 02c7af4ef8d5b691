//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod check_clean;
mod check_damage;
mod check_descriptors;
mod check_features;
mod check_hostile;
mod check_journal;
mod check_odd;
mod check_random;
mod check_sound;
mod common;
