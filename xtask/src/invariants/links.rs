//! Links between pages: each leads to a page, and to a heading that is there.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::Failure;
use crate::workspace::{Workspace, read};

/// Pages whose old parts speak of what was there then.
const HISTORY: [&str; 1] = ["CHANGELOG.md"];

/// Links of tracked pages to pages or headings that are not there. Pages are the Markdown of the first folder and of
/// `docs/`.
pub(super) fn broken(workspace: &Workspace, tracked: &[String]) -> Result<Vec<String>, Failure> {
    let mut pages = BTreeMap::new();
    for name in tracked.iter().filter(|name| is_page(name)) {
        pages.insert(name.clone(), read(&workspace.root.join(name))?);
    }
    Ok(broken_in(&pages, |path| workspace.root.join(path).exists()))
}

fn is_page(name: &str) -> bool {
    let page = name.strip_prefix("docs/").unwrap_or(name);
    let is_markdown = Path::new(page).extension().is_some_and(|it| it == "md");
    is_markdown && !page.contains('/') && !HISTORY.contains(&page)
}

/// The broken links of pages by their names; `is_there` knows all other files.
fn broken_in(pages: &BTreeMap<String, String>, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let anchors: BTreeMap<&str, Vec<String>> = pages
        .iter()
        .map(|(name, text)| (name.as_str(), prose(text).filter_map(anchor).collect()))
        .collect();
    let mut found = Vec::new();
    for (name, text) in pages {
        for target in prose(text).flat_map(targets) {
            let (page, heading) = target.split_once('#').unwrap_or((target, ""));
            let page = if page.is_empty() {
                name.clone()
            } else {
                beside(name, page)
            };
            let is_sound = match anchors.get(page.as_str()) {
                Some(anchors) => heading.is_empty() || anchors.iter().any(|it| it == heading),
                None => is_there(&page),
            };
            if !is_sound {
                found.push(format!("{name}: {target}"));
            }
        }
    }
    found
}

/// The lines of a page outside of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of a line's links that are within the repository.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split("](").skip(1);
    links
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

/// The anchor of a heading, as the forges make it: small letters, digits, `-` for a blank.
fn anchor(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let letters = heading.to_lowercase();
    let letters = letters.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        letter if letter.is_alphanumeric() || "-_".contains(letter) => Some(letter),
        _ => None,
    });
    Some(letters.collect())
}

/// The path of a link on a page, from the repository's root.
fn beside(page: &str, link: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_and_headings() {
        let pages = [
            (
                "README.md",
                "# A `[b.c]`, d\n[x](docs/a.md#one-two) [y](docs/a.md) [z](#a-bc-d) [w](LICENSE) [v](https://x#y)\n",
            ),
            (
                "docs/a.md",
                "## One two\n```\n# No heading [x](nowhere.md)\n```\n[x](../README.md#no) [y](b.md)\n[z](#no-heading)\n",
            ),
        ];
        let pages = pages.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let found = broken_in(&BTreeMap::from(pages), |path| path == "LICENSE");
        assert_eq!(
            found,
            [
                "docs/a.md: ../README.md#no",
                "docs/a.md: b.md",
                "docs/a.md: #no-heading"
            ]
        );
    }

    #[test]
    fn pages_are_those_for_readers() {
        assert!(is_page("README.md") && is_page("docs/http.md"));
        assert!(
            !is_page("docs/results/a.md") && !is_page("CHANGELOG.md") && !is_page("docs/a.svg")
        );
    }
}
