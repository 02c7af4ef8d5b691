//! The editor of maps.

mod corrupt;
mod cost;
mod random;
mod sheet;
