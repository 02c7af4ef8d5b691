//! Output: a table, JSON, a page with charts, a comparison with earlier JSON.

mod compare;
mod html;
mod ideas;
pub mod model;
mod plots;
pub mod table;
pub mod words;
