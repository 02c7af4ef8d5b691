//! A million files, made by a process that does nothing else: how much memory that takes.

use super::names::{Spread, Tree};
use super::sides::{Library, Side};
use super::twins::Twins;
use crate::error::{Doing, Result};
use std::path::Path;
use uext4::{Caller, NodeKind, Switches};

const MANY: Tree = Tree { files: 1_000_000, directories: 1000, spread: Spread::Filled, slices: 100 };

/// The volume for them, in tmpfs.
pub fn image() -> Result<Twins> {
    Twins::new(1, &MANY, 0)
}

/// Makes them on the volume of an image, with the default budgets.
pub fn make(image: &Path) -> Result<()> {
    make_tree(image, &MANY)
}

fn make_tree(image: &Path, tree: &Tree) -> Result<()> {
    let library = Library::open(image, Switches::ON)?;
    tree.directory_names().try_for_each(|name| library.make_dir(&name))?;
    for number in 0..tree.slices {
        for path in tree.slice(number, 1).concat() {
            let made = library.volume().make_node(&path, NodeKind::Regular, 0o644, &Caller::root());
            made.doing(|| format!("make {path}"))?;
        }
    }
    Box::new(library).close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4::{DeviceSpec, Volume, VolumeOptions};

    #[test]
    fn every_file_is_made_and_the_volume_is_clean() {
        let tree = Tree { files: 3000, directories: 7, spread: Spread::Filled, slices: 3 };
        let twins = Twins::new(1, &tree, 0).unwrap();
        make_tree(twins.path(), &tree).unwrap();
        twins.check().unwrap();
        let volume = Volume::open_spec(&DeviceSpec::file(twins.path()), VolumeOptions::read_only()).unwrap();
        for path in (0..3).flat_map(|number| tree.slice(number, 1).concat()) {
            assert!(volume.exists(&path).unwrap(), "{path}");
        }
    }
}
