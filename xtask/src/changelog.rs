//! `cargo xtask changelog VERSION`: moves the fragments of `changes/` into `CHANGELOG.md`.

use std::fs;
use std::process::Command;

use crate::command::output;
use crate::invariants::one_sentence;
use crate::workspace::{Workspace, read, write};
use crate::{Failure, Verdict};

/// The folder of the fragments.
const FOLDER: &str = "changes";
/// The file there that is no fragment.
const GUIDE: &str = "README.md";
/// The file that has all releases.
const CHANGELOG: &str = "CHANGELOG.md";
/// Longest line of the changelog, in characters.
const MAX_LINE: usize = 120;

/// A change that users notice.
#[derive(Debug, PartialEq, Eq)]
struct Fragment {
    /// The name of its file, relative to the root.
    file: String,
    text: String,
}

/// Moves all fragments below a heading with version and date, and removes their files.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let [version] = arguments else {
        return Err(Failure::new("it takes one argument, a version: 0.1.0"));
    };
    let manifest = read(&workspace.root.join("Cargo.toml"))?;
    let own = version_of(&manifest).ok_or_else(|| Failure::new("Cargo.toml has no version"))?;
    if version != own {
        return Err(Failure(format!("Cargo.toml has the version {own}")));
    }
    let fragments = fragments(workspace, &workspace.tracked_files()?)?;
    let faults: Vec<String> = fragments.iter().filter_map(fault).collect();
    if !faults.is_empty() {
        return Err(Failure(faults.join("\n")));
    }
    let date = output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let path = workspace.root.join(CHANGELOG);
    write(
        &path,
        &joined(&read(&path)?, version, date.trim(), &fragments)?,
    )?;
    for fragment in &fragments {
        fs::remove_file(workspace.root.join(&fragment.file))?;
    }
    println!("{} changes are in {CHANGELOG}", fragments.len());
    Ok(true)
}

/// The version of the workspace's packages, by its manifest.
fn version_of(manifest: &str) -> Option<&str> {
    let (_, package) = manifest.split_once("[workspace.package]")?;
    let (_, version) = package.split_once("\nversion = \"")?;
    version.split('"').next()
}

/// The fragments among the project's files, in order of their names.
fn fragments(workspace: &Workspace, tracked: &[String]) -> Result<Vec<Fragment>, Failure> {
    let files = tracked.iter().filter(|file| {
        let name = file
            .strip_prefix(FOLDER)
            .and_then(|it| it.strip_prefix('/'));
        name.is_some_and(|name| name != GUIDE)
    });
    files
        .map(|file| {
            let text = read(&workspace.root.join(file))?;
            let file = file.clone();
            Ok(Fragment { file, text })
        })
        .collect()
}

/// The faults of the fragments among these files.
pub(crate) fn malformed(workspace: &Workspace, tracked: &[String]) -> Result<Vec<String>, Failure> {
    let fragments = fragments(workspace, tracked)?;
    Ok(fragments.iter().filter_map(fault).collect())
}

/// The fault of a fragment, if it has one.
fn fault(fragment: &Fragment) -> Option<String> {
    let Fragment { file, text } = fragment;
    let slug = file
        .strip_prefix(FOLDER)
        .and_then(|name| name.strip_prefix('/')?.strip_suffix(".md"));
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let what = if !slug.is_some_and(|slug| !slug.is_empty() && slug.chars().all(is_plain)) {
        "its name is not `SLUG.md` with a slug of lower-case letters, digits and dashes"
    } else if text.trim().contains("\n\n") || text.trim_start().starts_with(['#', '-', '*', '|']) {
        "it is not one paragraph"
    } else if !text.trim_end().ends_with('.') || !one_sentence(text) {
        "it is not one sentence with a full stop"
    } else {
        return None;
    };
    Some(format!("{file}: {what}"))
}

/// The changelog with one more release, before all others.
fn joined(
    changelog: &str,
    version: &str,
    date: &str,
    fragments: &[Fragment],
) -> Result<String, Failure> {
    if fragments.is_empty() {
        return Err(Failure(format!("{FOLDER}/ has no change")));
    }
    let heading = format!("## {version} ");
    if changelog.lines().any(|line| line.starts_with(&heading)) {
        return Err(Failure(format!("{CHANGELOG} has {version} already")));
    }
    let place = changelog
        .find("\n## ")
        .map_or(changelog.len(), |place| place + 1);
    let items: String = fragments.iter().map(|one| item(&one.text)).collect();
    let (before, after) = changelog.split_at(place);
    let gap = if after.is_empty() { "" } else { "\n" };
    Ok(format!(
        "{}\n\n{heading}({date})\n\n{items}{gap}{after}",
        before.trim_end()
    ))
}

/// A list item of a text, in lines that are not too long.
fn item(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), "-".to_owned());
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > MAX_LINE {
            lines += &line;
            lines.push('\n');
            " ".clone_into(&mut line);
        }
        line.push(' ');
        line += word;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(slug: &str, text: &str) -> Fragment {
        Fragment {
            file: format!("{FOLDER}/{slug}.md"),
            text: text.to_owned(),
        }
    }

    #[test]
    fn fragments_become_a_release_before_the_others() {
        let fragments = [
            fragment("a", "The first\nchange of `0.2`.\n"),
            fragment("b", "Another one."),
        ];
        let changelog = "# Changelog\n\nAll of it.\n\n## 0.1.0 (2026-01-02)\n\n- Old.\n";
        let after = joined(changelog, "0.2.0", "2026-02-03", &fragments).unwrap();
        assert_eq!(
            after,
            "# Changelog\n\nAll of it.\n\n## 0.2.0 (2026-02-03)\n\n- The first change of `0.2`.\n- Another one.\n\n\
             ## 0.1.0 (2026-01-02)\n\n- Old.\n"
        );
        assert!(joined(&after, "0.2.0", "2026-02-03", &fragments).is_err());
        assert!(joined(&after, "0.3.0", "2026-02-03", &[]).is_err());
        let first = joined("# Changelog\n", "0.1.0", "2026-01-02", &fragments[1..]).unwrap();
        assert_eq!(
            first,
            "# Changelog\n\n## 0.1.0 (2026-01-02)\n\n- Another one.\n"
        );
    }

    #[test]
    fn long_items_have_several_lines() {
        let text = item(&vec!["word"; 50].join(" "));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() <= MAX_LINE));
        assert!(lines[0].starts_with("- word") && lines[1].starts_with("  word"));
    }

    #[test]
    fn fragments_that_are_not_one_sentence_are_found() {
        for (slug, text) in [
            ("a-2", "A listener has 1.5 times `a. b`."),
            ("b", "Lines may\nbreak."),
        ] {
            assert_eq!(fault(&fragment(slug, text)), None);
        }
        for (slug, text, what) in [
            ("A", "Good.", "name"),
            ("", "Good.", "name"),
            ("a/b", "Good.", "name"),
            ("a", "", "sentence"),
            ("a", "No stop", "sentence"),
            ("a", "One. Two.", "sentence"),
            ("a", "# Heading.", "paragraph"),
            ("a", "- Item.", "paragraph"),
            ("a", "One.\n\nTwo.", "paragraph"),
        ] {
            let found = fault(&fragment(slug, text)).unwrap();
            assert!(found.contains(what), "{slug} {text}: {found}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_workspace() {
        let manifest = "[package]\nversion = \"9.9.9\"\n[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        assert_eq!(version_of(manifest), Some("0.1.0"));
        assert_eq!(version_of("[package]\nversion = \"1.0.0\"\n"), None);
    }
}
