//! The pictures of the documentation, drawn from what they show: the house from `tidy.toml`, courses of events from
//! `docs/pictures/*.toml`, figures from what `uext4 bench --json=docs/proof/bench.json` kept.

mod canvas;
mod course;
mod figures;
mod house;

use std::fs;
use std::path::Path;

/// Where the pictures and the descriptions of courses lie.
const FOLDER: &str = "docs/pictures";
/// What the last kept measurement found.
const FIGURES: &str = "docs/proof/bench.json";

/// Name and contents of every picture.
fn draw(root: &Path) -> Result<Vec<(String, String)>, String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut pictures = vec![("house.svg".to_owned(), house::draw(&read(&root.join("tidy.toml"))?)?)];
    let folder = fs::read_dir(root.join(FOLDER)).map_err(|e| format!("{FOLDER}: {e}"))?;
    for entry in folder {
        let path = entry.map_err(|e| format!("{FOLDER}: {e}"))?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.with_extension("svg").file_name().map(|name| name.to_string_lossy().into_owned());
            let picture = course::draw(&read(&path)?).map_err(|e| format!("{}: {e}", path.display()))?;
            pictures.push((name.unwrap_or_default(), picture));
        }
    }
    if let Ok(figures) = fs::read_to_string(root.join(FIGURES)) {
        pictures.push(("throughput.svg".into(), figures::draw(&figures, figures::Shown::Throughput)?));
        pictures.push(("latency.svg".into(), figures::draw(&figures, figures::Shown::Latency)?));
    }
    pictures.sort();
    Ok(pictures)
}

/// Draws all pictures anew. Returns their names.
pub fn write(root: &Path) -> Result<Vec<String>, String> {
    let pictures = draw(root)?;
    for (name, picture) in &pictures {
        fs::write(root.join(FOLDER).join(name), picture).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(pictures.into_iter().map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_show_what_they_are_drawn_from() {
        let root = crate::root();
        for (name, picture) in draw(root).unwrap() {
            let kept = fs::read_to_string(root.join(FOLDER).join(&name)).unwrap_or_default();
            assert!(kept == picture, "{name} is not what `cargo xtask pictures` draws");
        }
    }
}
