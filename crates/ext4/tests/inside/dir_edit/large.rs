//! Large directories: the cost of an edit, and their limits.

use super::stage::Recipe;
use super::{Model, TOOLS, compare, is_indexed, levels, random_edits};
use crate::ground::error::{Error, Limit};
use std::collections::BTreeSet;
use uext4_testkit::{Rng, needs};

/// Names so long that a block holds few of them.
fn long(number: usize) -> Vec<u8> {
    format!("{number:06}{}", "n".repeat(90)).into_bytes()
}

/// A tree of three levels of index.
#[test]
fn an_edit_among_100_000_names_looks_at_few_blocks() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut recipe = Recipe::new(&["-b", "1024", "-O", "^has_journal,large_dir"]);
    (recipe.size, recipe.space) = (64 << 20, 28 << 20);
    let mut stage = recipe.build();
    let mut model = Model::default();
    let (mut most, mut most_blocks) = (0, 0);
    for number in 0..100_000 {
        stage.blocks.looks.borrow_mut().clear();
        stage.blocks.work.set(0);
        let (name, target) = (long(number), number % 4);
        let divides = stage.supply.places.len();
        stage.insert(&name, target).unwrap();
        model.names.insert(name.clone(), (name, target));
        let looks = stage.blocks.looks.borrow();
        let blocks = looks.iter().collect::<BTreeSet<_>>().len();
        // Its path, and the next block, to which names of its hash might continue.
        assert!(number < 10 || blocks <= 3 + 2 + 1, "{number}: {blocks} blocks");
        // A split descends a second time.
        let divides = stage.supply.places.len() - divides;
        assert!(number < 10 || looks.len() <= 10 + divides.min(1) * 16, "{number}: {} looks", looks.len());
        assert!(stage.blocks.work.get() <= 1024 * (looks.len() + 10));
        (most, most_blocks) = (most.max(looks.len()), most_blocks.max(blocks));
    }
    println!("at most {most} looks at {most_blocks} blocks");
    compare(&mut stage, &model);
    assert_eq!(levels(&stage), 2);
    // With nothing in memory.
    let mut stage = stage.again();
    let mut rng = Rng::new(29);
    for number in (0..100_000).step_by(3) {
        stage.blocks.looks.borrow_mut().clear();
        let (_, target) = model.names.remove(&long(number)).unwrap();
        stage.remove(&long(number), target).unwrap();
        assert!(stage.blocks.looks.borrow().len() <= 8);
    }
    random_edits(&mut stage, &mut model, &mut rng, 20_000, 40);
    compare(&mut stage, &model);
}

/// A tree of two levels fills up at some point; names that fit into existing blocks can still be added.
#[test]
fn a_tree_that_cannot_grow_is_full() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for checksums in super::CHECKSUMS {
        let features = format!("^has_journal,{checksums}");
        let mut recipe = Recipe::new(&["-b", "1024", "-O", &features]);
        (recipe.size, recipe.space) = (64 << 20, 24 << 20);
        let mut stage = recipe.build();
        let mut model = Model::default();
        let mut full = 0;
        for number in 0..200_000 {
            let (name, target) = ([&long(number), &[b'm'; 120][..]].concat(), number % 4);
            let looked_at = (number % 1024 == 0 || full > 0).then(|| stage.state());
            match stage.insert(&name, target) {
                Ok(()) => {
                    model.names.insert(name.clone(), (name, target));
                }
                Err(Error::Limit(Limit::Directory)) => {
                    full += 1;
                    assert!(looked_at.is_none_or(|before| stage.state() == before));
                }
                Err(error) => panic!("{error}"),
            }
            if full == 20 {
                break;
            }
        }
        // The root is full of nodes, some of which are full.
        println!("{} names in {} blocks", model.names.len(), stage.supply.places.len());
        assert!(full == 20 && stage.supply.places.len() > 61 * 120, "{full}");
        compare(&mut stage, &model);
        assert_eq!(levels(&stage), 1);
    }
}

/// Without `large_dir` a directory ends at 2 GiB.
#[test]
fn the_size_has_a_limit() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut recipe = Recipe::new(&["-b", "65536", "-O", "^has_journal"]);
    (recipe.size, recipe.space) = (4 << 30, 1 << 20);
    let mut stage = recipe.build();
    let (mut model, mut rng) = (Model::default(), Rng::new(31));
    while !is_indexed(&stage) {
        random_edits(&mut stage, &mut model, &mut rng, 100, 0);
    }
    stage.draft.disk.size = (2 << 30) - (64 << 10);
    let refused = (0..10_000).find_map(|number| {
        let before = stage.state();
        let result = stage.insert(&long(number), 0);
        assert!(result.is_ok() || stage.state() == before);
        result.err()
    });
    // The next block would be the last of the 2 GiB.
    assert!(matches!(refused, Some(Error::Limit(Limit::Directory))), "{refused:?}");
}
