//! Requirements of a registry and its users for published crates, read from `cargo metadata`.

use serde_json::Value;

/// Fields of a manifest without which a crate is not found, or not understood.
const FIELDS: [&str; 5] = ["description", "license", "readme", "keywords", "categories"];

/// A version of Rust: major, minor, patch.
type RustVersion = [u64; 3];

fn rust_version(text: &str) -> RustVersion {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// The packages of the workspace.
fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let members = metadata["workspace_members"].as_array();
    packages(metadata).filter(move |package| {
        members.is_some_and(|members| members.iter().any(|id| *id == package["id"]))
    })
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or("?")
}

/// Dependencies that need a newer Rust than a crate of the workspace says that it needs.
pub(super) fn newer_rust(metadata: &Value) -> Vec<String> {
    let promised = members(metadata)
        .filter_map(|package| package["rust_version"].as_str())
        .map(rust_version)
        .min();
    let Some(promised) = promised else {
        return vec!["no crate of the workspace has a rust-version".to_owned()];
    };
    packages(metadata)
        .filter_map(|package| Some((package, package["rust_version"].as_str()?)))
        .filter(|(_, needed)| rust_version(needed) > promised)
        .map(|(package, needed)| {
            let version = package["version"].as_str().unwrap_or("?");
            format!("{} {version} needs Rust {needed}", name(package))
        })
        .collect()
}

/// Missing metadata of published crates.
pub(super) fn unpublishable(metadata: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    // A list of registries, which is empty where there is `publish = false`.
    for package in members(metadata).filter(|package| package["publish"].is_null()) {
        for field in FIELDS {
            let value = &package[field];
            if value.is_null() || value.as_array().is_some_and(Vec::is_empty) {
                violations.push(format!("{} has no {field}", name(package)));
            }
        }
        // Development dependencies without a version are left out when a crate is published.
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["kind"] != "dev" && dependency["req"] == "*" {
                let wanted = name(dependency);
                violations.push(format!("{} -> {wanted} has no version", name(package)));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metadata(own: &Value, others: &[Value]) -> Value {
        let mut packages = vec![own.clone()];
        packages.extend_from_slice(others);
        json!({"packages": packages, "workspace_members": ["own"]})
    }

    #[test]
    fn versions_of_rust_are_compared_by_number() {
        let own = json!({"id": "own", "name": "own", "rust_version": "1.88"});
        let other = |name: &str, needed: &str| json!({"id": name, "name": name, "version": "2.0.1", "rust_version": needed});
        let others = [
            other("old", "1.9"),
            other("same", "1.88.0"),
            other("new", "1.88.1"),
            json!({"id": "silent", "name": "silent", "rust_version": null}),
        ];
        assert_eq!(
            newer_rust(&metadata(&own, &others)),
            ["new 2.0.1 needs Rust 1.88.1"]
        );
        let silent = json!({"id": "own", "name": "own"});
        assert_eq!(newer_rust(&metadata(&silent, &[])).len(), 1);
    }

    #[test]
    fn what_a_registry_would_refuse_is_found() {
        let mut own = json!({
            "id": "own", "name": "own", "publish": null, "description": "x", "license": "MIT",
            "readme": null, "keywords": [], "categories": ["simulation"],
            "dependencies": [
                {"name": "a", "kind": null, "req": "*"},
                {"name": "b", "kind": "dev", "req": "*"},
                {"name": "c", "kind": null, "req": "^1"},
            ],
        });
        assert_eq!(
            unpublishable(&metadata(&own, &[])),
            [
                "own has no readme",
                "own has no keywords",
                "own -> a has no version"
            ]
        );
        own["publish"] = json!([]);
        assert!(unpublishable(&metadata(&own, &[])).is_empty());
    }
}
