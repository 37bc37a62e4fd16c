//! Words: the length of sentences in the pages of `docs/`, and the beginnings of sentences in comments.

use std::path::Path;

use super::Rule;
use crate::Failure;
use crate::sources::SourceFile;
use crate::workspace::{Workspace, read};

/// Most words of a sentence in a page. A page aims at 20; enumerations may need more.
const LONG_SENTENCE_WORDS: usize = 25;

/// The beginning of a page's list of its chapters.
const CONTENTS: &str = "Contents: ";

/// Words that a warning quotes from the start of a sentence.
const QUOTED_WORDS: usize = 6;

/// Beginnings of a sentence that put off its thing.
const OPEN_SUBJECTS: [&str; 10] = [
    "What", "Whatever", "Who", "Whoever", "Whom", "Whose", "Such", "So many", "So much", "So few",
];

/// The sentences of comments in shipped code that do not begin with the thing.
pub(super) fn open_subjects(files: &[SourceFile]) -> Vec<String> {
    let shipped = files.iter().filter(|file| !file.only_tests);
    shipped.flat_map(open_subjects_of).collect()
}

fn open_subjects_of(file: &SourceFile) -> Vec<String> {
    let mut found = Vec::new();
    for (line, comment) in comments(file) {
        for sentence in sentences(&comment) {
            let start = sentence[..sentence.len().min(2)].join(" ");
            let is_open = |open: &&str| {
                let rest = start.strip_prefix(*open);
                rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            if OPEN_SUBJECTS.iter().any(is_open) {
                let start = sentence[..sentence.len().min(QUOTED_WORDS)].join(" ");
                found.push(format!("{}:{line}: {start} …", file.name));
            }
        }
    }
    found
}

/// The paragraphs of a file's comments with their first lines, without code, tables and tests.
fn comments(file: &SourceFile) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut before = "";
    let mut offset = 0;
    for (index, whole) in file.text.split_inclusive('\n').enumerate() {
        let line = whole.trim();
        let (mark, text) = line.split_at(line.len() - line.trim_start_matches(['/', '!']).len());
        let is_comment = mark.starts_with("//") && !file.is_test(offset);
        offset += whole.len();
        // `//`, `///` and `//!` are paragraphs of their own.
        if !is_comment || std::mem::replace(&mut before, mark) != mark {
            lines.push((index + 1, ""));
        }
        if is_comment {
            lines.push((index + 1, text));
        }
    }
    paragraphs(lines)
}

/// Warns of long sentences in the pages of `docs/`. Results of campaigns, in folders below, are left
/// out.
pub(super) fn long_sentences(workspace: &Workspace, tracked: &[String]) -> Result<Rule, Failure> {
    let mut rule = Rule::new("pages have short sentences", Vec::new());
    for name in tracked {
        if is_page(name) {
            let text = read(&workspace.root.join(name))?;
            rule.warnings.extend(long_sentences_of(name, &text));
        }
    }
    Ok(rule)
}

/// Whether a file is a page: `docs/NAME.md`.
fn is_page(name: &str) -> bool {
    let page = name.strip_prefix("docs/").map(Path::new);
    page.is_some_and(|page| {
        page.extension().is_some_and(|extension| extension == "md")
            && page.components().count() == 1
    })
}

/// The long sentences of one page, each with its paragraph's first line.
fn long_sentences_of(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines = text.lines().enumerate();
    for (line, paragraph) in paragraphs(lines.map(|(index, line)| (index + 1, line))) {
        if paragraph.starts_with(CONTENTS) {
            continue;
        }
        for sentence in sentences(&paragraph) {
            let count = sentence.len();
            if count > LONG_SENTENCE_WORDS {
                let start = sentence[..QUOTED_WORDS].join(" ");
                found.push(format!("{name}:{line}: {count} words: {start} …"));
            }
        }
    }
    found
}

/// The paragraphs and list items of numbered lines with their first lines, without headings, tables and code.
fn paragraphs<'a>(lines: impl IntoIterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (number, line) in lines {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_fence || is_code || line.is_empty() || line.starts_with(['#', '|']) {
            is_open = false;
            continue;
        }
        let item = list_item(line);
        match found.last_mut().filter(|_| is_open && item.is_none()) {
            Some((_, paragraph)) => {
                paragraph.push(' ');
                paragraph.push_str(line);
            }
            None => found.push((number, item.unwrap_or(line).to_owned())),
        }
        is_open = true;
    }
    found
}

/// The text of a line that begins a list item.
fn list_item(line: &str) -> Option<&str> {
    let numbered = || {
        let text = line.trim_start_matches(|c: char| c.is_ascii_digit());
        (text.len() < line.len()).then(|| text.strip_prefix(". "))?
    };
    line.strip_prefix("- ").or_else(numbered)
}

/// Whether a text is one sentence.
pub(crate) fn one_sentence(text: &str) -> bool {
    let sentences = sentences(text).into_iter();
    sentences.filter(|words| !words.is_empty()).count() == 1
}

/// The words of each sentence. Code in backticks is one word; targets of links are none.
fn sentences(paragraph: &str) -> Vec<Vec<String>> {
    let mut sentences = vec![Vec::new()];
    for word in without_code(paragraph).split_whitespace() {
        // `](target)` of a link ends at the bracket.
        let word = match word.split_once("](") {
            Some((text, target)) => {
                let (_, rest) = target.split_once(')').unwrap_or(("", ""));
                format!("{text}]{rest}")
            }
            None => word.to_owned(),
        };
        let ends = word
            .trim_end_matches([')', '*', '"', ']'])
            .ends_with(['.', '!', '?']);
        if let Some(sentence) = sentences.last_mut() {
            if word.contains(char::is_alphanumeric) {
                sentence.push(word);
            }
            if ends {
                sentences.push(Vec::new());
            }
        }
    }
    sentences
}

/// The text with `code` in place of the parts in backticks.
fn without_code(paragraph: &str) -> String {
    let parts = paragraph.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 0 { part } else { "code" })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::divide;

    fn words(count: usize) -> String {
        vec!["word"; count].join(" ")
    }

    #[test]
    fn comments_that_put_their_thing_off_are_found() {
        let text = "\
//! Limits. Such a limit counts.
/// What a client may use.
#[derive(Debug)]
pub struct Limits {
    /// Whose they are.
    pub user: String,
    /// Number of them. So they count. Whatsoever.
    pub count: u32,
    // So many there
    // are. `What` is code.
    hidden: u32,
}
#[cfg(test)]
mod tests {
    /// Such a test.
    pub fn helper() {}
}
";
        let files = ["crates/sterna-net/src/a.rs", "crates/sterna-net/tests/a.rs"];
        let files = divide(files.map(|name| (name.to_owned(), text.to_owned())).into());
        let found = open_subjects(&files);
        let expected = [
            "crates/sterna-net/src/a.rs:1: Such a limit counts. …",
            "crates/sterna-net/src/a.rs:2: What a client may use. …",
            "crates/sterna-net/src/a.rs:5: Whose they are. …",
            "crates/sterna-net/src/a.rs:9: So many there are. …",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn only_long_sentences_are_found() {
        let long = words(LONG_SENTENCE_WORDS + 1);
        let short = words(LONG_SENTENCE_WORDS);
        let text =
            format!("# Title\n\n{short}. {short}!\n{short}\n\n- {short}\n- {short}\n1. {long}\n");
        assert_eq!(
            long_sentences_of("docs/a.md", &text),
            [format!(
                "docs/a.md:8: {} words: word word word word word word …",
                LONG_SENTENCE_WORDS + 1
            )]
        );
    }

    #[test]
    fn lines_of_a_paragraph_are_one_text() {
        let text = format!("{}\n{}\n", words(LONG_SENTENCE_WORDS), words(1));
        assert_eq!(long_sentences_of("docs/a.md", &text).len(), 1);
    }

    #[test]
    fn tables_code_and_targets_of_links_do_not_count() {
        let long = words(LONG_SENTENCE_WORDS + 1);
        let text = format!(
            "| {long} |\n\n```\n{long}\n```\n\n`{long}` [a](b.md#c) – {}.\n",
            words(LONG_SENTENCE_WORDS - 2)
        );
        assert_eq!(long_sentences_of("docs/a.md", &text), Vec::<String>::new());
    }

    #[test]
    fn pages_are_the_files_of_docs() {
        assert!(is_page("docs/http.md"));
        assert!(!is_page("docs/results/report.md"));
        assert!(!is_page("README.md") && !is_page("docs/a.svg"));
    }
}
