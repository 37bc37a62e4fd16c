//! Which modules of a crate may use which.

use std::collections::BTreeSet;

use crate::rust_source::{imports, line_of};
use crate::sources::SourceFile;

/// Where the modules are that this looks at.
const FOLDER: &str = "crates/sterna-server/src/";

/// The modules of the server from bottom to top: each may use those that stand before it.
const LAYERS: &[&str] = &[
    "config",
    "giving_way",
    "authorization",
    "repeats",
    "identity",
    "pace",
    "line",
    "holding",
    "seats",
    "bans",
    "data_directory",
    "certificate",
    "tracer",
    "policy",
    "mapping",
    "session",
    "rights",
    "weighing",
    "sys",
    "shares",
    "memory",
    "node_clock",
    "control",
    "otlp",
    "watch",
    "metrics",
    "mail",
    "store",
    "unread_store",
    "cluster",
    "transfer",
    "context",
    "last_refusal",
    "audit",
    "judge",
    "inspect",
    "door",
    "mqtt",
    "amqp",
    "http",
    "admin",
    "shard",
    "key_refresh",
    "reload",
    "file_watch",
    "directory_watch",
    "open_files",
    "server",
    "lib",
];

/// Uses of a module by one below it, and modules that have no place.
pub(super) fn upward(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let Some(name) = file.name.strip_prefix(FOLDER) else {
            continue;
        };
        let own = module(name.trim_end_matches(".rs"), '/');
        let Some(place) = place(own) else {
            violations.push(format!("{}: {own} is in no layer", file.name));
            continue;
        };
        let code = file.shipped_code();
        for (line, used) in used(&code) {
            // Other names of the crate's root are exports of `lib`.
            if self::place(&used).is_none_or(|other| other > place) {
                violations.push(format!("{}:{line}: {own} -> {used}", file.name));
            }
        }
    }
    violations
}

fn module(path: &str, end: char) -> &str {
    path.split(end).next().unwrap_or(path)
}

fn place(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == module)
}

/// The modules of the crate that code uses, with the lines.
fn used(code: &str) -> BTreeSet<(usize, String)> {
    const ROOT: &str = "crate::";
    let of_imports = imports(code).into_iter().filter_map(|(offset, path)| {
        let path = path.strip_prefix(ROOT)?;
        Some((line_of(code, offset), module(path, ':').to_owned()))
    });
    let paths = code.match_indices(ROOT).filter_map(|(offset, _)| {
        let rest = &code[offset + ROOT.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        // A group is taken apart above.
        (end > 0).then(|| (line_of(code, offset), rest[..end].to_owned()))
    });
    of_imports.chain(paths).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::divide;

    #[test]
    fn a_use_of_a_higher_module_is_found_unless_it_is_for_tests() {
        let file = |name: &str, text: &str| (format!("{FOLDER}{name}"), text.to_owned());
        let files = divide(vec![
            file(
                "door/mod.rs",
                "use crate::policy::Policy;\nuse crate::{sys, mqtt::Door};\nuse crate::Shard;\n",
            ),
            file("sys.rs", "fn f() {\n    crate::shard::run();\n}\n"),
            file(
                "http/api/a.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::server::Server;\n}\n",
            ),
            file("new.rs", ""),
        ]);
        let all = upward(&files);
        let found: Vec<&str> = (all.iter())
            .map(|line| line.trim_start_matches(FOLDER))
            .collect();
        assert_eq!(
            found,
            [
                "door/mod.rs:2: door -> mqtt",
                "door/mod.rs:3: door -> Shard",
                "sys.rs:2: sys -> shard",
                "new.rs: new is in no layer"
            ]
        );
    }
}
