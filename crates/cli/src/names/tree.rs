//! Removes a tree, depth first, without recursion: a hostile volume may be as deep as it likes.

use super::Changes;
use crate::error::CliError;
use crate::open::Operand;
use uext4::{Error, FileKind, Node, ReadDir};

/// A directory that is being emptied.
struct Level {
    node: Node,
    /// Where its own name is.
    parent: Node,
    name: Vec<u8>,
    entries: ReadDir,
    /// Length of its path below the operand.
    length: usize,
    /// Something in it was not removed: then neither is it.
    kept: bool,
}

/// Removes the directory `name` of `parent` with everything in it. What cannot be removed is reported, and the rest is
/// removed. Symbolic links are removed, not followed.
pub fn remove(
    changes: &mut Changes<'_>,
    operand: &Operand,
    parent: &Node,
    name: &[u8],
) -> Result<(), CliError> {
    let mut path = Vec::new();
    let node = parent.look_up(name).map_err(|error| operand.error(error))?;
    let entries = node.read_dir().map_err(|error| operand.error(error))?;
    let mut levels =
        vec![Level { node, parent: parent.clone(), name: name.to_vec(), entries, length: 0, kept: false }];
    while let Some(level) = levels.last_mut() {
        path.truncate(level.length);
        match level.entries.next() {
            Some(Ok(entry)) if matches!(&entry.name[..], b"." | b"..") => {}
            Some(Ok(entry)) => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&entry.name);
                match enter_or_remove(&level.node, &entry.name) {
                    Ok(None) => changes.done("removed ", &operand.below(&path)),
                    Ok(Some((node, entries))) => {
                        let parent = level.node.clone();
                        let (name, length) = (entry.name, path.len());
                        levels.push(Level { node, parent, name, entries, length, kept: false });
                    }
                    // Somebody else removed it.
                    Err(Error::NotFound) => {}
                    Err(error) => {
                        level.kept = true;
                        changes.tell(&CliError::at(&operand.below(&path), error));
                    }
                }
            }
            Some(Err(error)) => {
                changes.tell(&CliError::at(&operand.below(&path), error));
                leave(changes, operand, &mut levels, &path, true);
            }
            None => leave(changes, operand, &mut levels, &path, false),
        }
    }
    Ok(())
}

/// Removes a name, unless it is of a directory, which is opened.
fn enter_or_remove(directory: &Node, name: &[u8]) -> uext4::Result<Option<(Node, ReadDir)>> {
    let node = directory.look_up(name)?;
    if node.kind() != FileKind::Directory {
        drop(node);
        return directory.unlink(name).map(|()| None);
    }
    let entries = node.read_dir()?;
    Ok(Some((node, entries)))
}

/// Removes the last level's directory, unless something in it was kept.
fn leave(changes: &mut Changes<'_>, operand: &Operand, levels: &mut Vec<Level>, path: &[u8], failed: bool) {
    let Some(Level { node, parent, name, entries, kept, .. }) = levels.pop() else { return };
    // Not in use any more, so that its space is freed at once.
    drop((node, entries));
    let removed = if kept || failed {
        false
    } else {
        let shown = operand.below(path);
        match parent.remove_dir(&name) {
            Ok(()) => {
                changes.done("removed directory ", &shown);
                true
            }
            Err(error) => {
                changes.tell(&CliError::at(&shown, error));
                false
            }
        }
    };
    if !removed && let Some(above) = levels.last_mut() {
        above.kept = true;
    }
}
