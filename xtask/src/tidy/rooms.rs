//! Floors inside a crate: a module names only what is in its own room or in rooms below.
//!
//! A folder named in `tidy.toml` is one module, whose files may name each other freely. The crate's root and the head
//! of a folder that several entries share hold `mod` and `use` alone (the root may hold code, which nothing below may
//! name): a path through them counts for the module that they take the name from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Finding;
use super::config::{Config, Room};
use super::edges::Graph;
use super::modules::{Module, Modules, is_in};

/// Rule name: an arrow upward.
pub const FLOOR: &str = "floor";
/// Rule name: modules of one room that name each other in a circle.
pub const CIRCLE: &str = "room-circle";
/// Rule name: the list of rooms and the modules that there are do not agree.
pub const PLAN: &str = "room-plan";

/// Checks every crate that has rooms. `files` are paths in the workspace and texts.
pub fn check(
    graph: &Graph,
    config: &Config,
    files: &[(String, String)],
    findings: &mut Vec<Finding>,
) -> Result<(), String> {
    for (name, rooms) in &config.rooms {
        let member =
            graph.get(name).ok_or_else(|| format!("tidy.toml: rooms of {name}, but no such crate"))?;
        let sources = files.iter().filter_map(|(file, text)| {
            let path = file.strip_prefix(&member.sources).filter(|path| path.ends_with(".rs"))?;
            Some((path, &**file, &**text))
        });
        let modules = Modules::read(sources)?;
        House { name, rooms, modules: &modules, findings: &mut *findings }.check();
    }
    Ok(())
}

/// An entry of a room: index of the room, path.
type Entry<'a> = (usize, &'a str);
/// Where an entry names another: file, line and path.
type Arrows<'a> = BTreeMap<(Entry<'a>, Entry<'a>), String>;

struct House<'a, 'f> {
    name: &'a str,
    rooms: &'a [Room],
    modules: &'a Modules,
    findings: &'f mut Vec<Finding>,
}

impl<'a> House<'a, '_> {
    fn find(&mut self, rule: &'static str, path: &str, line: usize, item: &str, text: String) {
        self.findings.push(Finding { rule, path: path.into(), line, item: item.into(), measure: 0, text });
    }

    fn check(&mut self) {
        let mut known = BTreeSet::new();
        for entry in self.entries() {
            if !self.modules.0.contains_key(entry.1) {
                self.find(PLAN, self.name, 0, entry.1, format!("no module `{}`", entry.1));
            }
            if !known.insert(entry.1) {
                self.find(PLAN, self.name, 0, entry.1, format!("`{}` is in two rooms", entry.1));
            }
        }
        let mut arrows = Arrows::new();
        for (at, module) in &self.modules.0 {
            match self.entry(at) {
                _ if at.is_empty() => {}
                _ if self.is_shared(at) => {
                    if let Some(line) = module.first_code {
                        let text = "code in the head of a folder that several modules share".into();
                        self.find(PLAN, &module.file, line, at, text);
                    }
                }
                None => self.find(PLAN, &module.file, 0, at, format!("`{at}` is in no room")),
                Some(entry) => self.arrows(at, module, entry, &mut arrows),
            }
        }
        self.circles(&arrows);
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let rooms = self.rooms.iter().enumerate();
        rooms.flat_map(|(index, room)| room.modules.iter().map(move |entry| (index, entry.as_str())))
    }

    /// The entry that the module is, or the nearest around it.
    fn entry(&self, at: &str) -> Option<Entry<'a>> {
        self.entries().filter(|entry| is_in(at, entry.1)).max_by_key(|entry| entry.1.len())
    }

    /// Whether the module is the crate's root or has entries inside it.
    fn is_shared(&self, at: &str) -> bool {
        at.is_empty() || self.entries().any(|entry| entry.1 != at && is_in(entry.1, at))
    }

    fn arrows(&mut self, at: &str, module: &Module, from: Entry<'a>, arrows: &mut Arrows<'a>) {
        let room = |entry: Entry<'_>| self.rooms[entry.0].name.as_str();
        let mut found = BTreeSet::new();
        for (line, path) in &module.uses {
            let ((way, is_item), spelt) = (self.modules.follow(at, path), path.join("::"));
            if is_item && way.last().is_some_and(|last| self.is_shared(last)) {
                let text = format!("`{spelt}` is of no module of a room: name it where it is defined");
                found.insert((*line, String::new(), text));
            }
            for to in way.iter().filter(|to| !self.is_shared(to)).filter_map(|to| self.entry(to)) {
                if to.0 < from.0 {
                    let (lower, upper) = (room(from), room(to));
                    let text =
                        format!("`{spelt}` leads up, from room `{lower}` to `{}` in room `{upper}`", to.1);
                    found.insert((*line, to.1.into(), text));
                } else if to.0 == from.0 && to != from {
                    arrows.entry((from, to)).or_insert_with(|| format!("`{spelt}` ({}:{line})", module.file));
                }
            }
        }
        for (line, item, text) in found {
            self.find(FLOOR, &module.file, line, &item, text);
        }
    }

    /// One finding for each circle, with a shortest way around.
    fn circles(&mut self, arrows: &Arrows<'a>) {
        let mut told = BTreeSet::new();
        for entry in self.entries() {
            let circle = round_trip(arrows, entry).unwrap_or_default();
            if circle.is_empty() || circle.iter().any(|(from, _)| told.contains(from)) {
                continue;
            }
            let steps: Vec<_> =
                circle.iter().map(|step| format!("`{}` names {}", step.0.1, arrows[step])).collect();
            let room = &self.rooms[entry.0].name;
            self.find(CIRCLE, self.name, 0, entry.1, format!("in room `{room}`: {}", steps.join(", ")));
            told.extend(circle.into_iter().map(|(from, _)| from));
        }
    }
}

/// A shortest way from `start` back to it.
fn round_trip<'a>(arrows: &Arrows<'a>, start: Entry<'a>) -> Option<Vec<(Entry<'a>, Entry<'a>)>> {
    let mut came_from = BTreeMap::new();
    let mut pending = VecDeque::from([start]);
    while let Some(at) = pending.pop_front().filter(|_| !came_from.contains_key(&start)) {
        for (from, to) in arrows.keys().filter(|(from, _)| *from == at) {
            if !came_from.contains_key(to) {
                came_from.insert(*to, *from);
                pending.push_back(*to);
            }
        }
    }
    let (mut way, mut at) = (Vec::new(), start);
    while way.is_empty() || at != start {
        let from = *came_from.get(&at)?;
        way.insert(0, (from, at));
        at = from;
    }
    Some(way)
}

#[cfg(test)]
mod tests {
    use super::super::edges::Member;
    use super::*;

    const ROOMS: &str = r#"
        [[rooms.upper]]
        name = "hall"
        job = "where guests arrive"
        modules = ["face", "cellar/lift"]
        [[rooms.upper]]
        name = "kitchen"
        job = "where the work is done"
        modules = ["cook", "oven", "cellar"]
    "#;

    /// What is found in a crate of these files besides an empty root.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let all = ["lib", "face", "cook", "oven", "cellar/mod", "cellar/lift", "cellar/wine"];
        let mut texts: BTreeMap<String, String> =
            all.iter().map(|name| (format!("crates/upper/src/{name}.rs"), String::new())).collect();
        for (name, text) in files {
            texts.insert(format!("crates/upper/src/{name}"), (*text).into());
        }
        let member = Member { uses: Vec::new(), has_lints: true, sources: "crates/upper/src/".into() };
        let graph = Graph::from([("upper".into(), member)]);
        let mut findings = Vec::new();
        let files: Vec<_> = texts.into_iter().collect();
        check(&graph, &Config::sample(ROOMS), &files, &mut findings).unwrap();
        let told = findings.iter().map(|finding| finding.to_string().replace("crates/upper/src/", ""));
        told.collect()
    }

    fn up(line: usize, path: &str, to: &str) -> [String; 1] {
        [format!("cook.rs:{line}: floor: `{path}` leads up, from room `kitchen` to `{to}` in room `hall`")]
    }

    #[test]
    fn arrows_down_and_inside_a_room_are_free() {
        assert!(found(&[]).is_empty());
        assert!(found(&[("face.rs", "use crate::cook::Pot; fn f() { super::oven::heat(); }")]).is_empty());
        assert!(
            found(&[("cook.rs", "use crate::oven::Heat; use std::face::X; fn f() { face::g() }")]).is_empty()
        );
        assert!(
            found(&[(
                "cellar/wine.rs",
                "use super::super::oven::X; use self::face::X; mod face { struct X; }"
            )])
            .is_empty()
        );
    }

    #[test]
    fn every_way_of_naming_upward_is_found() {
        for (text, path) in [
            ("use crate::face::Guest;", "crate::face::Guest"),
            ("use super::face::Guest as G;", "super::face::Guest"),
            ("use crate::{oven, face::{self}};", "crate::face"),
            ("use crate::face::*;", "crate::face::*"),
            ("pub(crate) use crate::face::Guest;", "crate::face::Guest"),
            ("fn f() { crate::face::greet() }", "crate::face::greet"),
            ("fn f(guest: &Vec<crate::face::Guest>) {}", "crate::face::Guest"),
            ("impl crate::face::Greet for u8 {}", "crate::face::Greet"),
            ("fn f() { assert!(1 == crate::face::COUNT, \"x\") }", "crate::face::COUNT"),
            ("macro_rules! m { ($a:expr) => { use $crate::{oven, face::Guest}; } }", "crate::face::Guest"),
            ("mod inner { use super::super::face::Guest; }", "super::super::face::Guest"),
            ("use crate::cellar::lift::Rope;", "crate::cellar::lift::Rope"),
        ] {
            let to = if path.contains("lift") { "cellar/lift" } else { "face" };
            assert_eq!(found(&[("cook.rs", text)]), up(1, path, to), "{text}");
        }
    }

    #[test]
    fn an_export_of_the_root_hides_nothing() {
        let root = "mod face; pub use face::{Guest as Visitor, Name}; pub use oven::*; pub use uext4_x::Far;";
        let oven = "pub struct Heat; pub use crate::face::Inner;";
        let found = |text: &str| found(&[("lib.rs", root), ("oven.rs", oven), ("cook.rs", text)]);
        let oven_itself =
            "oven.rs:1: floor: `crate::face::Inner` leads up, from room `kitchen` to `face` in room `hall`";
        assert_eq!(found("use crate::{Far, Heat};"), [oven_itself]);
        for name in ["Visitor", "Name", "Inner"] {
            let path = format!("crate::{name}");
            let [wanted] = up(2, &path, "face");
            assert_eq!(found(&format!("\nuse {path};")), [wanted.as_str(), oven_itself]);
        }
        let [alias] = up(1, "c::face::Guest", "face");
        assert_eq!(found("use crate as c; type G = c::face::Guest;"), [alias.as_str(), oven_itself]);
    }

    #[test]
    fn what_the_root_and_shared_heads_define_is_above_all() {
        for (text, path) in [
            ("use crate::Own;", "crate::Own"),
            ("use crate::*;", "crate::*"),
            ("use super::cellar::Key;", "super::cellar::Key"),
        ] {
            let wanted =
                format!("cook.rs:1: floor: `{path}` is of no module of a room: name it where it is defined");
            assert_eq!(found(&[("lib.rs", "pub struct Own;"), ("cook.rs", text)]), [wanted]);
        }
        let wanted = "cellar/mod.rs:2: room-plan: code in the head of a folder that several modules share";
        assert_eq!(found(&[("cellar/mod.rs", "mod lift; pub use lift::Rope;\nstruct Key;")]), [wanted]);
    }

    #[test]
    fn a_circle_in_a_room_is_found() {
        let (cook, oven) = (("cook.rs", "use crate::oven::Heat;"), ("oven.rs", "use super::Pot;"));
        let wanted = "upper: room-circle: in room `kitchen`: `cook` names `crate::oven::Heat` (cook.rs:1), \
                      `oven` names `super::Pot` (oven.rs:1)";
        assert!(found(&[cook]).is_empty());
        assert_eq!(found(&[cook, oven, ("lib.rs", "pub use cook::Pot;")]), [wanted]);
        let longer =
            [("cook.rs", "use crate::cellar::wine::Red;"), ("cellar/wine.rs", "use crate::oven::Heat;")];
        let found = found(&[longer[0], longer[1], ("oven.rs", "use crate::cook::Pot;")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`cellar` names"), "{found:?}");
    }

    #[test]
    fn every_module_is_in_one_room() {
        let stranger = "stranger.rs: room-plan: `stranger` is in no room";
        assert_eq!(found(&[("stranger.rs", "")]), [stranger]);
        let twice = ROOMS.replace(r#""face""#, r#""face", "oven", "ghost""#);
        let config = Config::sample(&twice);
        let member = Member { uses: Vec::new(), has_lints: true, sources: "s/".into() };
        let graph = Graph::from([("upper".into(), member)]);
        let mut findings = Vec::new();
        let files: Vec<_> = ["face", "cook", "oven", "cellar/lift", "cellar/mod"]
            .map(|name| (format!("s/{name}.rs"), String::new()))
            .into();
        check(&graph, &config, &files, &mut findings).unwrap();
        let told: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["upper: room-plan: no module `ghost`", "upper: room-plan: `oven` is in two rooms"]);
        assert!(check(&Graph::new(), &config, &files, &mut findings).is_err(), "rooms of no crate");
    }

    #[test]
    fn tests_may_name_what_they_like() {
        for text in [
            "#[cfg(test)] mod tests { use crate::face::Guest; }",
            "#[cfg(all(test, unix))] use crate::face::Guest;",
            "struct S; impl S { #[cfg(test)] fn f() { crate::face::greet() } }",
        ] {
            assert!(found(&[("cook.rs", text)]).is_empty(), "{text}");
        }
        let file = [("cook.rs", "#[cfg(test)] mod tests;"), ("cook/tests.rs", "use crate::face::Guest;")];
        assert!(found(&file).is_empty());
        assert_eq!(
            found(&[("cook.rs", "#[cfg(not(test))] use crate::face::X;")]),
            up(1, "crate::face::X", "face")
        );
    }
}
