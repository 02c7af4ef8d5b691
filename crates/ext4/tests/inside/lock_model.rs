//! Model of the locks that operations on names take: all interleavings of three threads over four directories. Nobody
//! waits for ever in the order of the library; in other orders somebody does, so the model would tell.

use crate::operations::directories::in_order;
use uext4_ondisk::Ino;

const DIRECTORIES: u8 = 4;
const THREADS: usize = 3;

/// The lock of moves, after the directories.
const MOVES: u8 = DIRECTORIES;
/// Steps of a thread, at most: two attempts of up to five locks each, and what releases them.
const STEPS: usize = 16;

/// What one attempt of an operation locks, in the order in which the operation comes upon it.
#[derive(Clone)]
struct Locks {
    moves: bool,
    directories: Vec<u8>,
    /// The second directory was found in the first.
    nested: bool,
}

fn locks(moves: bool, directories: &[u8], nested: bool) -> Locks {
    Locks { moves, directories: directories.to_vec(), nested }
}

/// Every operation on every choice of directories, as its attempts: each is released before the next one begins. Where
/// the directories are in the tree does not matter, so they are all possible trees at once.
fn operations() -> Vec<Vec<Locks>> {
    let all = || 0..DIRECTORIES;
    let mut operations = Vec::new();
    for a in all() {
        for b in all().filter(|b| *b != a) {
            // A file is renamed from one directory to the other.
            operations.push(vec![locks(false, &[a, b], false)]);
            // A directory is removed.
            operations.push(vec![locks(false, &[a, b], true)]);
            // A directory replaces another one in the same parent.
            operations.push(vec![locks(false, &[a], false), locks(false, &[a, b], true)]);
            for c in all().filter(|c| ![a, b].contains(c)) {
                // A directory moves from one parent to another …
                operations.push(vec![locks(false, &[a, b], false), locks(true, &[a, b, c], false)]);
                let d = 6 - a - b - c;
                // … and replaces one there, or is exchanged with it.
                operations.push(vec![locks(false, &[a, b], false), locks(true, &[a, b, c, d], false)]);
            }
        }
    }
    operations
}

/// One step of a thread.
#[derive(Clone, Copy)]
enum Step {
    Lock(u8),
    ReleaseAll,
}

fn script(attempts: &[Locks], order: &dyn Fn(&Locks) -> Vec<u8>) -> Vec<Step> {
    let mut steps = Vec::new();
    for attempt in attempts {
        steps.extend(attempt.moves.then_some(Step::Lock(MOVES)));
        steps.extend(order(attempt).into_iter().map(Step::Lock));
        steps.push(Step::ReleaseAll);
    }
    assert!(steps.len() < STEPS);
    steps
}

/// The locks that a thread holds before this step, as bits.
fn held(script: &[Step], at: usize) -> u8 {
    script[..at].iter().fold(0, |held, step| match step {
        Step::Lock(lock) => held | 1 << lock,
        Step::ReleaseAll => 0,
    })
}

/// Whether these threads can come to a point where none of them goes on, and not all are done.
fn can_stop(scripts: [&[Step]; THREADS]) -> bool {
    let mut seen = vec![false; STEPS.pow(THREADS as u32)];
    let mut open = vec![[0; THREADS]];
    while let Some(state) = open.pop() {
        let number = state.iter().fold(0, |number, at| number * STEPS + at);
        if std::mem::replace(&mut seen[number], true) {
            continue;
        }
        let (mut moves_on, mut done) = (false, true);
        for thread in 0..THREADS {
            let Some(step) = scripts[thread].get(state[thread]) else { continue };
            done = false;
            let others = (0..THREADS).filter(|other| *other != thread);
            let taken = others.fold(0, |taken, other| taken | held(scripts[other], state[other]));
            if matches!(step, Step::Lock(lock) if taken & 1 << lock != 0) {
                continue;
            }
            moves_on = true;
            let mut next = state;
            next[thread] += 1;
            open.push(next);
        }
        if !moves_on && !done {
            return true;
        }
    }
    false
}

/// How many choices of three operations can stop.
fn stops(order: &dyn Fn(&Locks) -> Vec<u8>) -> usize {
    let scripts: Vec<Vec<Step>> = operations().iter().map(|attempts| script(attempts, order)).collect();
    let mut stops = 0;
    for (a, first) in scripts.iter().enumerate() {
        for (b, second) in scripts.iter().enumerate().skip(a) {
            stops += scripts[b..].iter().filter(|third| can_stop([first, second, third])).count();
        }
    }
    stops
}

fn ascending(locks: &Locks) -> Vec<u8> {
    let mut directories = locks.directories.clone();
    in_order(&mut directories, |directory| Ino(u32::from(*directory)));
    directories
}

#[test]
fn operations_on_names_never_wait_for_each_other_in_a_circle() {
    assert_eq!(stops(&ascending), 0);
}

/// Two renames across each other's directories, as they are named.
#[test]
fn the_model_finds_a_circle_of_locks_as_they_are_named() {
    let pair = |a, b| script(&[locks(false, &[a, b], false)], &|locks| locks.directories.clone());
    assert!(can_stop([&pair(0, 1), &pair(1, 0), &[]]));
    assert!(!can_stop([&pair(0, 1), &pair(0, 1), &pair(1, 2)]));
}

/// A parent before what is removed from it, otherwise by number: each rule alone is sound, both together are not. A
/// directory 2 holds 0, files are renamed between 0 and 1, and between 1 and 2.
#[test]
fn the_model_finds_a_circle_if_ancestors_come_first_without_the_lock_of_moves() {
    let order = |locks: &Locks| if locks.nested { locks.directories.clone() } else { ascending(locks) };
    let of = |directories: &[u8], nested| script(&[locks(false, directories, nested)], &order);
    assert!(can_stop([&of(&[2, 0], true), &of(&[0, 1], false), &of(&[1, 2], false)]));
    assert!(!can_stop([&of(&[2, 0], true), &of(&[2, 1], true), &of(&[2, 0], true)]));
    assert!(!can_stop([&of(&[2, 0], false), &of(&[0, 1], false), &of(&[1, 2], false)]));
}
