//! The house: crates in floors, as the arrows of `tidy.toml` allow them.

use super::canvas::{Canvas, Tone};
use std::collections::BTreeMap;

const WIDTH: usize = 150;
const HEIGHT: usize = 26;
const GAP: usize = 24;
const FLOOR: usize = 64;

/// Crates that are no part of the product.
const BESIDE: [&str; 5] = ["xtask", "uext4-testkit", "uext4-hostile", "uext4-vm-guest", "uext4-vm-count"];

#[derive(serde::Deserialize)]
struct Tidy {
    edges: BTreeMap<String, Vec<String>>,
}

/// How many crates stand below each other under this one.
fn depth(of: &str, edges: &BTreeMap<String, Vec<String>>) -> usize {
    edges.get(of).into_iter().flatten().map(|below| 1 + depth(below, edges)).max().unwrap_or(0)
}

/// Draws the house.
pub fn draw(tidy: &str) -> Result<String, String> {
    let Tidy { mut edges } = toml::from_str(tidy).map_err(|e| format!("tidy.toml: {e}"))?;
    edges.retain(|name, _| !BESIDE.contains(&name.as_str()));
    let mut floors: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in edges.keys() {
        floors.entry(depth(name, &edges)).or_default().push(name);
    }
    let top = floors.keys().max().copied().unwrap_or(0);
    let widest = floors.values().map(Vec::len).max().unwrap_or(0);
    let mut places = BTreeMap::new();
    for (floor, crates) in &floors {
        let left = 10 + (widest - crates.len()) * (WIDTH + GAP) / 2;
        for (number, name) in crates.iter().enumerate() {
            places.insert(*name, (left + number * (WIDTH + GAP), 10 + (top - floor) * FLOOR));
        }
    }
    let mut canvas = Canvas::default();
    for (name, below) in &edges {
        let direct = |other: &&String| {
            let around = below.iter().filter(|between| between != other);
            !around.into_iter().any(|between| reaches(between, other, &edges))
        };
        for other in below.iter().filter(direct) {
            let (Some(from), Some(to)) = (places.get(name.as_str()), places.get(other.as_str())) else {
                continue;
            };
            canvas.line((from.0 + WIDTH / 2, from.1 + HEIGHT), (to.0 + WIDTH / 2, to.1), true);
        }
    }
    for (name, (x, y)) in &places {
        let tone = if *name == "uext4" { Tone::Strong } else { Tone::Plain };
        canvas.labelled(*x, *y, WIDTH, HEIGHT, tone, &[(*name).to_owned()]);
    }
    Ok(canvas.finish("The crates of uext4: arrows point down only"))
}

fn reaches(from: &str, to: &str, edges: &BTreeMap<String, Vec<String>>) -> bool {
    edges.get(from).into_iter().flatten().any(|below| below == to || reaches(below, to, edges))
}
