//! The editor of maps.

mod corrupt;
mod cost;
mod limits;
mod random;
mod sheet;
mod twins;
