//! Files that belong to the program: manual pages, completions, configuration, licences, the bill of
//! materials and the checksums.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{emptied, sha256, write_json};
use crate::Failure;
use crate::command::output;
use crate::workspace::{Workspace, write};

/// Shells, and where Debian has their completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/sterna"),
    ("zsh", "usr/share/zsh/vendor-completions/_sterna"),
    ("fish", "usr/share/fish/vendor_completions.d/sterna.fish"),
];

/// Writes what is the same on every machine, in a folder with the paths of an installation.
pub(super) fn make(
    workspace: &Workspace,
    program: &Path,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    emptied(folder)?;
    let place = |path: &str| -> Result<PathBuf, Failure> {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(path)
    };
    let template = output(Command::new(program).args(["config", "init", "-"]))?;
    write(&place("etc/sterna/sterna.toml")?, &template)?;
    for (shell, path) in COMPLETIONS {
        let script = output(Command::new(program).args(["completions", shell]))?;
        write(&place(path)?, &script)?;
    }
    let pages = place("usr/share/man/man1/x")?.with_file_name("");
    output(Command::new(program).arg("man-pages").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        output(Command::new("gzip").args(["-9n"]).arg(page?.path()))?;
    }
    let unit = workspace.root.join("contrib/systemd/sterna.service");
    fs::copy(unit, place("usr/lib/systemd/system/sterna.service")?)?;
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"] {
        fs::copy(
            workspace.root.join(name),
            place(&format!("usr/share/doc/sterna/{name}"))?,
        )?;
    }
    for name in [
        "grafana/sterna.json",
        "prometheus/sterna.rules.yml",
        "prometheus/prometheus.yml",
    ] {
        let copy = place(&format!("usr/share/doc/sterna/examples/{name}"))?;
        fs::copy(workspace.root.join("contrib").join(name), copy)?;
    }
    let copyright = "\
        Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
        Upstream-Name: sterna\n\n\
        Files: *\n\
        Copyright: the authors of Sterna\n\
        License: MIT or Apache-2.0\n\
        \x20The texts are in LICENSE-MIT and LICENSE-APACHE beside this file.\n";
    write(&place("usr/share/doc/sterna/copyright")?, copyright)?;
    Ok(folder.to_path_buf())
}

/// Writes the bill of materials: what the program is made of, in the form of CycloneDX.
pub(super) fn bill(
    workspace: &Workspace,
    version: &str,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    let arguments = ["metadata", "--locked", "--format-version", "1"];
    let text = output(workspace.cargo().args(arguments))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|error| Failure(format!("cargo metadata: {error}")))?;
    let lock = crate::workspace::read(&workspace.root.join("Cargo.lock"))?;
    let nodes = array(&metadata["resolve"]["nodes"]);
    let packages = array(&metadata["packages"]);
    let own = |package: &&Value| package["name"] == "sterna" && package["source"].is_null();
    let program = packages
        .iter()
        .find(own)
        .map_or("", |it| text_of(&it["id"]));
    // All that is reached by arrows which are not of tests only.
    let mut wanted = BTreeSet::from([program]);
    let mut todo = vec![program];
    let mut arrows = Vec::new();
    while let Some(id) = todo.pop() {
        let Some(node) = nodes.iter().find(|node| node["id"] == id) else {
            continue;
        };
        let is_used = |dependency: &&Value| {
            let kinds = array(&dependency["dep_kinds"]);
            kinds.iter().any(|kind| kind["kind"] != "dev")
        };
        let used = array(&node["deps"])
            .iter()
            .filter(is_used)
            .map(|it| text_of(&it["pkg"]));
        let used: Vec<&str> = used.collect();
        for id in &used {
            if wanted.insert(id) {
                todo.push(id);
            }
        }
        arrows.push(json!({ "ref": id, "dependsOn": used }));
    }
    let is_wanted = |package: &&Value| wanted.contains(text_of(&package["id"]));
    let components = packages
        .iter()
        .filter(is_wanted)
        .filter(|it| it["id"] != program);
    let components: Vec<Value> = components
        .map(|package| component(package, &lock))
        .collect();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": { "type": "application", "bom-ref": program, "name": "sterna", "version": version }
        },
        "components": components,
        "dependencies": arrows,
    });
    let file = folder.join(format!("sterna-{version}.cdx.json"));
    write_json(&file, &bill)?;
    Ok(file)
}

fn component(package: &Value, lock: &str) -> Value {
    let (name, version) = (text_of(&package["name"]), text_of(&package["version"]));
    let mut component = json!({
        "type": "library",
        "bom-ref": package["id"],
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
    });
    if let Some(licence) = package["license"].as_str() {
        // The old separator of cargo is none of SPDX.
        let expression = licence.replace('/', " OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
    let after = lock.split_once(&entry).map_or("", |(_, after)| after);
    let own = after.split("\n\n").next().unwrap_or_default();
    if let Some((_, digest)) = own.split_once("checksum = \"") {
        let digest = digest.split('"').next().unwrap_or_default();
        component["hashes"] = json!([{ "alg": "SHA-256", "content": digest }]);
    }
    component
}

/// Writes `SHA256SUMS` beside the files.
pub(super) fn checksums(folder: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let mut text = String::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        text.extend([sha256(file)?.as_str(), "  ", &name, "\n"]);
    }
    write(&folder.join("SHA256SUMS"), &text)
}

pub(super) fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
