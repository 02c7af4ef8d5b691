//! The modules of a crate: what each defines, imports and names. Code that only tests see is left out.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// Names from the outside in: `crate::plan::Plan`.
pub type Names = Vec<String>;

/// A module: a file, or `mod name { … }` inside one.
#[derive(Debug, Default)]
pub struct Module {
    /// Its file, relative to the workspace.
    pub file: String,
    /// Names of what it defines itself.
    items: BTreeSet<String>,
    /// Name and path of what `use` brings in; a glob is named `*`, and its path ends so.
    imports: Vec<(String, Names)>,
    /// Line and path of everything it names.
    pub uses: Vec<(usize, Names)>,
    /// The first line that is neither `mod` nor `use`.
    pub first_code: Option<usize>,
}

/// Modules by path under `src`, without endings: `queue`, `queue/slot`. The root is empty.
#[derive(Debug, Default)]
pub struct Modules(pub BTreeMap<String, Module>);

/// The modules that a path goes through, in order: none if it leads out of the crate.
pub type Way = Vec<String>;

/// Imports may name imports; a circle of them leads nowhere, and the compiler refuses it.
const DEEPEST: usize = 16;

impl Modules {
    /// Reads the files of a crate's `src`: path under it, path in the workspace, and text.
    pub fn read<'a>(files: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> Result<Modules, String> {
        let (mut modules, mut hidden) = (Modules::default(), Vec::new());
        for (path, file, text) in files {
            let parsed = syn::parse_file(text).map_err(|e| format!("{file}: {e}"))?;
            let at = key(path);
            modules.0.entry(at.clone()).or_default().file = file.into();
            Reader { modules: &mut modules, hidden: &mut hidden, file, at }.visit_file(&parsed);
        }
        modules.0.retain(|at, _| !hidden.iter().any(|test| is_in(at, test)));
        Ok(modules)
    }

    /// Follows `path` from the module `at`, through imports. Whether it ends at an item of the last module: else that
    /// module itself is meant.
    pub fn follow(&self, at: &str, path: &[String]) -> (Way, bool) {
        self.walk(at, path, 0).unwrap_or_default()
    }

    /// Nothing if the first name is not known.
    fn walk(&self, at: &str, path: &[String], depth: usize) -> Option<(Way, bool)> {
        let (mut here, mut way) = (at.to_owned(), Way::new());
        for (index, name) in path.iter().enumerate() {
            let step = match name.as_str() {
                "crate" => Some((vec![String::new()], false)),
                "self" => Some((vec![here.clone()], false)),
                "super" => Some((vec![parent(&here).to_owned()], false)),
                name => self.step(&here, name, depth),
            };
            let Some((through, is_item)) = step else {
                // Something of `here` that a macro made; at the beginning a name of another crate.
                return (index > 0).then_some((way, true));
            };
            let Some(next) = through.last().cloned() else { return Some((Way::new(), true)) };
            way.extend(through);
            if is_item {
                return Some((way, true));
            }
            here = next;
        }
        Some((way, false))
    }

    fn step(&self, at: &str, name: &str, depth: usize) -> Option<(Way, bool)> {
        let (child, module) = (join(at, name), self.0.get(at).filter(|_| depth < DEEPEST)?);
        if self.0.contains_key(&child) {
            return Some((vec![child], false));
        }
        if module.items.contains(name) {
            return Some((vec![at.into()], true));
        }
        if let Some((_, path)) = module.imports.iter().find(|(bound, _)| bound == name) {
            let outside = path.first().is_some_and(|first| first == name);
            let way = if outside { None } else { self.walk(at, path, depth + 1) };
            return way.or(Some((Way::new(), true)));
        }
        let mut globs = module.imports.iter().filter(|(bound, _)| bound == "*");
        globs.find_map(|(_, path)| {
            let (mut way, is_item) = self.walk(at, &path[..path.len() - 1], depth + 1)?;
            let inner = way.last().filter(|inner| !is_item && *inner != at)?;
            let (rest, is_item) = self.step(inner, name, depth + 1)?;
            way.extend(rest);
            Some((way, is_item))
        })
    }
}

/// `plan.rs` and `plan/mod.rs` are `plan`; `lib.rs` and `main.rs` are the root.
fn key(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    match path {
        "lib" | "main" => String::new(),
        _ => path.strip_suffix("/mod").unwrap_or(path).into(),
    }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.into() } else { format!("{at}/{name}") }
}

fn parent(at: &str) -> &str {
    at.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Whether the module `at` is `outer` or inside it.
pub fn is_in(at: &str, outer: &str) -> bool {
    at.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

struct Reader<'a> {
    modules: &'a mut Modules,
    /// Modules that only tests see.
    hidden: &'a mut Vec<String>,
    file: &'a str,
    at: String,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.modules.0.entry(self.at.clone()).or_default()
    }

    fn names(&mut self, names: Vec<Ident>) {
        if let [first, _, ..] = names.as_slice() {
            let line = first.span().start().line;
            let names = names.iter().map(Ident::to_string).collect();
            self.module().uses.push((line, names));
        }
    }

    fn import(&mut self, before: &[String], tree: &UseTree) {
        let (name, bound) = match tree {
            UseTree::Path(path) => {
                let longer = [before, &[path.ident.to_string()]].concat();
                return self.import(&longer, &path.tree);
            }
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(before, tree)),
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(name) => (name.ident.to_string(), name.rename.to_string()),
            UseTree::Glob(_) => ("*".into(), "*".into()),
        };
        let line = tree.span().start().line;
        let module = self.module();
        let itself = before.last().filter(|_| name == "self");
        let bound = itself.filter(|_| bound == "self").cloned().unwrap_or(bound);
        let full = if itself.is_some() { before.to_vec() } else { [before, &[name]].concat() };
        module.uses.push((line, full.clone()));
        module.imports.push((bound, full));
    }

    /// Paths in the tokens of a macro call or definition, each behind `before`.
    fn tokens(&mut self, before: &[Ident], stream: TokenStream) {
        let (mut path, mut colons) = (before.to_vec(), 2);
        for token in stream {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.names(std::mem::take(&mut path));
                    }
                    path.push(name);
                    colons = 0;
                }
                TokenTree::Group(group) => {
                    let continues = group.delimiter() == Delimiter::Brace && colons == 2;
                    self.tokens(if continues { &path } else { &[] }, group.stream());
                    self.names(std::mem::take(&mut path));
                    colons = 0;
                }
                _ => {
                    self.names(std::mem::replace(&mut path, before.to_vec()));
                    colons = 2;
                }
            }
        }
        self.names(path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Const(it) => (&it.attrs, Some(&it.ident)),
            Item::Enum(it) => (&it.attrs, Some(&it.ident)),
            Item::Fn(it) => (&it.attrs, Some(&it.sig.ident)),
            Item::Impl(it) => (&it.attrs, None),
            Item::Macro(it) => (&it.attrs, it.ident.as_ref()),
            Item::Mod(it) => (&it.attrs, Some(&it.ident)),
            Item::Static(it) => (&it.attrs, Some(&it.ident)),
            Item::Struct(it) => (&it.attrs, Some(&it.ident)),
            Item::Trait(it) => (&it.attrs, Some(&it.ident)),
            Item::Type(it) => (&it.attrs, Some(&it.ident)),
            Item::Use(it) => (&it.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if let Item::Mod(module) = item {
            let inner = join(&self.at, &module.ident.to_string());
            if attributes.iter().any(is_test) {
                self.hidden.push(inner);
            } else if module.content.is_some() {
                let outer = std::mem::replace(&mut self.at, inner);
                self.module().file = self.file.into();
                visit::visit_item(self, item);
                self.at = outer;
            }
            return;
        }
        if attributes.iter().any(is_test) {
            return;
        }
        if let Some(name) = name {
            self.module().items.insert(name.to_string());
        }
        if !matches!(item, Item::Use(_)) {
            let line = item.span().start().line;
            self.module().first_code.get_or_insert(line);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !function.attrs.iter().any(is_test) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.names(path.segments.iter().map(|segment| segment.ident.clone()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(&[], call.tokens.clone());
    }

    /// Documentation and derives name what they like.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// `#[cfg(test)]`, and `#[cfg(all(test, …))]`.
fn is_test(attribute: &Attribute) -> bool {
    let Ok(list) = attribute.meta.require_list() else { return false };
    let words: Vec<String> = list.tokens.clone().into_iter().map(|token| token.to_string()).collect();
    let all_of = |inner: &str| inner.trim_start_matches('(').split(',').any(|word| word.trim() == "test");
    list.path.is_ident("cfg")
        && match words.as_slice() {
            [word] => word == "test",
            [word, inner] => word == "all" && all_of(inner.trim_end_matches(')')),
            _ => false,
        }
}
