//! Which files there are, and which of them belong to a slice and a thread.

/// How files are spread over directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// One directory is filled after another, as a tree is unpacked.
    Filled,
    /// Each file goes to the next directory, so that as many threads as directories have one each.
    InTurn,
}

/// The files of a shape.
#[derive(Debug, Clone, Copy)]
pub struct Tree {
    pub files: u64,
    pub directories: u64,
    pub spread: Spread,
    /// Shares that the files are done in.
    pub slices: u64,
}

impl Tree {
    /// Directories, in the order in which they are made.
    pub fn directory_names(&self) -> impl Iterator<Item = String> {
        (0..self.directories).map(directory)
    }

    /// Paths of the files of slice `number`, for each of `threads`, in the order in which they are done.
    pub fn slice(&self, number: u64, threads: usize) -> Vec<Vec<String>> {
        let start = |number| number * self.files / self.slices;
        let mut all = vec![Vec::new(); threads];
        for file in start(number)..start(number + 1) {
            all[(file % threads as u64) as usize].push(self.path(file));
        }
        all
    }

    fn path(&self, file: u64) -> String {
        let number = match self.spread {
            Spread::Filled => file * self.directories / self.files,
            Spread::InTurn => file % self.directories,
        };
        format!("{}/file.{file:07}", directory(number))
    }
}

fn directory(number: u64) -> String {
    format!("/directory.{number:04}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all(tree: &Tree, threads: usize) -> Vec<String> {
        (0..tree.slices).flat_map(|number| tree.slice(number, threads)).flatten().collect()
    }

    #[test]
    fn every_file_is_in_one_slice_whatever_the_threads() {
        for (files, directories, spread, slices) in
            [(100, 1, Spread::Filled, 40), (100, 1000, Spread::Filled, 7), (4001, 8, Spread::InTurn, 40)]
        {
            let tree = Tree { files, directories, spread, slices };
            let (one, eight) = (all(&tree, 1), all(&tree, 8));
            assert_eq!(one.len() as u64, files);
            let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
            assert_eq!(set(&one).len() as u64, files);
            assert_eq!(set(&one), set(&eight));
            let known: BTreeSet<_> = tree.directory_names().collect();
            assert!(one.iter().all(|path| known.contains(path.rsplit_once('/').unwrap().0)));
        }
    }

    #[test]
    fn in_turn_means_a_directory_for_each_thread() {
        let tree = Tree { files: 4001, directories: 8, spread: Spread::InTurn, slices: 40 };
        for (thread, names) in tree.slice(3, 8).iter().enumerate() {
            assert!(!names.is_empty());
            let own = format!("{}/", directory(thread as u64));
            assert!(names.iter().all(|name| name.starts_with(&own)), "{names:?}");
        }
    }
}
