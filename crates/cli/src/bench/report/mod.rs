//! What is told: a table, JSON, a page with charts, a comparison with earlier JSON.

pub mod compare;
pub mod html;
pub mod model;
mod plots;
pub mod table;
pub mod words;
