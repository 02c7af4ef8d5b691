//! Which crate may depend on which.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::Finding;
use super::config::Config;

/// Rule name.
pub const EDGE: &str = "crate-edge";
/// Rule name.
pub const LINTS: &str = "workspace-lints";
/// The one crate that any crate's tests may use.
const TEST_KIT: &str = "uext4-testkit";

/// A workspace member.
pub struct Member {
    /// Workspace crates it depends on, with whether only its tests do.
    pub uses: Vec<(String, bool)>,
    /// Whether it takes the workspace's lint table.
    pub has_lints: bool,
    /// Its sources, relative to the workspace: `crates/cli/src/`.
    pub sources: String,
}

/// Workspace members by name.
pub type Graph = BTreeMap<String, Member>;

/// Asks `cargo metadata`.
pub fn load(root: &Path) -> Result<Graph, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    let output = command.output().map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata = serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    parse(root, &metadata, |manifest| {
        let text = std::fs::read_to_string(manifest).map_err(|e| format!("{manifest}: {e}"))?;
        Ok(text.contains("[lints]\nworkspace = true"))
    })
}

fn parse(
    root: &Path,
    metadata: &Value,
    has_lints: impl Fn(&str) -> Result<bool, String>,
) -> Result<Graph, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let name_of = |value: &Value| value["name"].as_str().map(str::to_owned).ok_or("a package without a name");
    let members = packages.iter().map(name_of).collect::<Result<Vec<_>, _>>()?;
    let mut graph = Graph::new();
    for (package, name) in packages.iter().zip(&members) {
        let dependencies = package["dependencies"].as_array().ok_or("a package without dependencies")?;
        let mut uses = Vec::new();
        for dependency in dependencies {
            let target = name_of(dependency)?;
            if members.contains(&target) {
                uses.push((target, dependency["kind"].as_str() == Some("dev")));
            }
        }
        let manifest = package["manifest_path"].as_str().ok_or("a package without a manifest")?;
        let folder = Path::new(manifest).parent().and_then(|folder| folder.strip_prefix(root).ok());
        let folder = folder.ok_or("a package outside the workspace")?;
        let sources = folder.join("src/").display().to_string();
        graph.insert(name.clone(), Member { uses, has_lints: has_lints(manifest)?, sources });
    }
    Ok(graph)
}

/// Every edge must be in the table; tests may use the test kit besides.
pub fn check(graph: &Graph, config: &Config, findings: &mut Vec<Finding>) {
    let mut find = |rule, name: &str, item: &str, text: String| {
        findings.push(Finding { rule, path: name.into(), line: 0, item: item.into(), measure: 0, text });
    };
    for (name, member) in graph {
        if !member.has_lints {
            find(LINTS, name, "", "its Cargo.toml lacks `[lints] workspace = true`".into());
        }
        let Some(allowed) = config.edges.get(name) else {
            find(EDGE, name, "", "not in the table of edges".into());
            continue;
        };
        for (target, dev) in &member.uses {
            let free = *dev && target == TEST_KIT;
            if !free && !allowed.contains(target) {
                find(EDGE, name, target, format!("may not depend on {target}"));
            }
        }
    }
    for name in config.edges.keys().filter(|name| !graph.contains_key(*name)) {
        find(EDGE, name, "", "in the table of edges, but no such crate".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(upper: &str, lower: &str) -> Vec<String> {
        let text = format!(
            r#"{{"packages": [
                {{"name": "upper", "manifest_path": "/u/Cargo.toml", "dependencies": [{upper}]}},
                {{"name": "lower", "manifest_path": "/l/Cargo.toml", "dependencies": [{lower}]}},
                {{"name": "uext4-testkit", "manifest_path": "/t/Cargo.toml", "dependencies": []}}]}}"#
        );
        let graph = parse(Path::new("/"), &serde_json::from_str(&text).unwrap(), |_| Ok(true)).unwrap();
        let mut config = Config::sample("");
        config.edges.insert(TEST_KIT.into(), Vec::new());
        let mut out = Vec::new();
        check(&graph, &config, &mut out);
        out.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn arrows_point_down() {
        let down = r#"{"name": "lower", "kind": null}, {"name": "serde", "kind": null}"#;
        let kit = r#"{"name": "uext4-testkit", "kind": "dev"}"#;
        assert!(findings(down, kit).is_empty());
        let up = findings("", r#"{"name": "upper", "kind": null}"#);
        assert_eq!(up, ["lower: crate-edge: may not depend on upper"]);
        assert_eq!(findings("", r#"{"name": "upper", "kind": "dev"}"#).len(), 1, "tests obey the arrows too");
        assert_eq!(
            findings("", r#"{"name": "uext4-testkit", "kind": null}"#).len(),
            1,
            "only tests use the kit"
        );
    }

    #[test]
    fn every_crate_has_its_row_and_the_lints() {
        let graph = Graph::from([(
            "stranger".into(),
            Member { uses: Vec::new(), has_lints: false, sources: String::new() },
        )]);
        let mut out = Vec::new();
        check(&graph, &Config::sample(""), &mut out);
        let rules: Vec<_> = out.iter().map(|finding| (finding.rule, finding.path.as_str())).collect();
        assert_eq!(rules, [(LINTS, "stranger"), (EDGE, "stranger"), (EDGE, "lower"), (EDGE, "upper")]);
    }
}
