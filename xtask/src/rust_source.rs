//! Enough of Rust's grammar to tell code from comments and text, and shipped code from tests.

use std::ops::Range;

/// A Rust source file, divided.
#[derive(Debug)]
pub(crate) struct RustSource {
    /// The source with spaces in place of the bytes of comments and of string and character
    /// literals. Offsets and lines are those of the source.
    code: String,
    /// Parts that only tests see, in order of position.
    tests: Vec<Range<usize>>,
    /// Names of modules that lie in files of their own and that only tests see.
    test_modules: Vec<String>,
}

impl RustSource {
    /// Divides a source text. Never fails: text that is not Rust is divided somehow.
    pub(crate) fn parse(text: &str) -> Self {
        let code = mask(text);
        let mut source = Self {
            code,
            tests: Vec::new(),
            test_modules: Vec::new(),
        };
        source.find_tests(text);
        source
    }

    /// Whether only tests see the byte at this offset.
    pub(crate) fn is_test(&self, offset: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&offset))
    }

    /// Names of modules in files of their own that only tests see: `#[cfg(test)] mod name;`.
    pub(crate) fn test_modules(&self) -> &[String] {
        &self.test_modules
    }

    /// The code without comments, literals and tests; offsets are those of the source.
    pub(crate) fn shipped_code(&self) -> String {
        let mut bytes = self.code.clone().into_bytes();
        for range in &self.tests {
            blank(&mut bytes[range.clone()]);
        }
        // Blanking takes whole sequences, so the rest is as valid as before.
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Lines of the source, comments included, that do not belong to tests.
    pub(crate) fn shipped_lines(&self) -> usize {
        let total = self.code.lines().count();
        let tests: usize = self
            .tests
            .iter()
            .map(|range| self.code[range.clone()].lines().count())
            .sum();
        total.saturating_sub(tests)
    }

    fn find_tests(&mut self, text: &str) {
        let bytes = self.code.as_bytes();
        let mut tests: Vec<Range<usize>> = Vec::new();
        let mut modules = Vec::new();
        let mut position = 0;
        while let Some(found) = find(bytes, b'#', position) {
            position = found + 1;
            if tests.last().is_some_and(|range| range.contains(&found)) {
                continue;
            }
            let inner = bytes.get(found + 1) == Some(&b'!');
            let open = skip_space(bytes, found + 1 + usize::from(inner));
            if bytes.get(open) != Some(&b'[') {
                continue;
            }
            let Some(close) = matching(bytes, open) else {
                continue;
            };
            let attribute: String = self.code[open + 1..close]
                .chars()
                .filter(|c| !c.is_whitespace())
                .collect();
            if !is_test_attribute(&attribute) {
                continue;
            }
            if inner {
                tests = std::iter::once(0..bytes.len()).collect();
                break;
            }
            let item = after_attributes(bytes, close + 1);
            let (end, module) = item_end(&self.code, item);
            modules.extend(module);
            tests.push(with_heading(text, &self.code, found)..end);
        }
        self.tests = tests;
        self.test_modules = modules;
    }
}

fn is_test_attribute(attribute: &str) -> bool {
    attribute == "test"
        || attribute.ends_with("::test")
        || attribute.starts_with("tokio::test(")
        || attribute == "cfg(test)"
        || attribute.starts_with("cfg(all(test,")
}

/// The start of the comments and attributes right above an item, so that they count with it.
fn with_heading(text: &str, code: &str, start: usize) -> usize {
    let mut first = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    if !code[first..start].trim().is_empty() {
        return start;
    }
    while first > 0 {
        let above = text[..first - 1]
            .rfind('\n')
            .map_or(0, |newline| newline + 1);
        let line = text[above..first].trim();
        let is_comment = !line.is_empty() && code[above..first].trim().is_empty();
        let is_module_doc = line.starts_with("//!");
        if (is_comment && !is_module_doc) || line.starts_with("#[") {
            first = above;
        } else {
            break;
        }
    }
    first
}

/// The end of the item that starts at `start`, and its name where it is a module in another file.
fn item_end(code: &str, start: usize) -> (usize, Option<String>) {
    let bytes = code.as_bytes();
    let head = code[start..]
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
        .unwrap_or("");
    let is_item = matches!(
        head,
        "async"
            | "const"
            | "enum"
            | "extern"
            | "fn"
            | "impl"
            | "let"
            | "macro_rules"
            | "mod"
            | "pub"
            | "static"
            | "struct"
            | "trait"
            | "type"
            | "union"
            | "unsafe"
            | "use"
    );
    let mut position = start;
    while position < bytes.len() {
        match bytes[position] {
            b'(' | b'[' => match matching(bytes, position) {
                Some(close) => position = close,
                None => return (bytes.len(), None),
            },
            b'{' => {
                let end = matching(bytes, position).map_or(bytes.len(), |close| close + 1);
                return (end, None);
            }
            b';' => return (position + 1, module_name(&code[start..position])),
            b',' if !is_item => return (position + 1, None),
            b'}' | b')' | b']' => return (position, None),
            _ => {}
        }
        position += 1;
    }
    (bytes.len(), None)
}

fn module_name(declaration: &str) -> Option<String> {
    let mut words = declaration
        .split_whitespace()
        .skip_while(|word| *word != "mod")
        .skip(1);
    words.next().map(str::to_owned)
}

fn after_attributes(bytes: &[u8], start: usize) -> usize {
    let mut position = skip_space(bytes, start);
    while bytes.get(position) == Some(&b'#') {
        let open = skip_space(bytes, position + 1);
        match (bytes.get(open), matching(bytes, open)) {
            (Some(b'['), Some(close)) => position = skip_space(bytes, close + 1),
            _ => break,
        }
    }
    position
}

fn skip_space(bytes: &[u8], start: usize) -> usize {
    bytes[start.min(bytes.len())..]
        .iter()
        .position(|byte| !byte.is_ascii_whitespace())
        .map_or(bytes.len(), |offset| start + offset)
}

fn find(bytes: &[u8], wanted: u8, start: usize) -> Option<usize> {
    bytes
        .get(start..)?
        .iter()
        .position(|byte| *byte == wanted)
        .map(|offset| start + offset)
}

/// The bracket that closes the one at `open`.
fn matching(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, byte) in bytes.get(open..)?.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(open + offset);
                }
            }
            _ => {}
        }
    }
    None
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

/// Replaces comments and literals by spaces.
fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut masked = bytes.to_vec();
    let mut position = 0;
    while position < bytes.len() {
        let end = match bytes[position] {
            b'/' if bytes[position..].starts_with(b"//") => {
                find(bytes, b'\n', position).unwrap_or(bytes.len())
            }
            b'/' if bytes[position..].starts_with(b"/*") => block_comment_end(bytes, position),
            b'"' => string_end(bytes, position),
            b'\'' => {
                if let Some(end) = character_end(text, position) {
                    end
                } else {
                    position += 1;
                    continue;
                }
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                let word = word_end(bytes, position);
                if let Some(end) = raw_string_end(bytes, position, word) {
                    end
                } else {
                    position = word;
                    continue;
                }
            }
            _ => {
                position += 1;
                continue;
            }
        };
        blank(&mut masked[position..end]);
        position = end;
    }
    // Only whole characters were replaced.
    String::from_utf8_lossy(&masked).into_owned()
}

fn word_end(bytes: &[u8], start: usize) -> usize {
    bytes[start..]
        .iter()
        .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
        .map_or(bytes.len(), |offset| start + offset)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut position = start;
    while position < bytes.len() {
        if bytes[position..].starts_with(b"/*") {
            depth += 1;
            position += 2;
        } else if bytes[position..].starts_with(b"*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], quote: usize) -> usize {
    let mut position = quote + 1;
    while position < bytes.len() {
        match bytes[position] {
            b'\\' => position += 2,
            b'"' => return position + 1,
            _ => position += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"`, `br#"…"#` and the like, whose prefix is the word `start..word`.
fn raw_string_end(bytes: &[u8], start: usize, word: usize) -> Option<usize> {
    if !matches!(&bytes[start..word], b"r" | b"br" | b"cr") {
        return None;
    }
    let hashes = bytes[word..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    let quote = word + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return None;
    }
    let mut position = quote + 1;
    while let Some(found) = find(bytes, b'"', position) {
        let closing = bytes[found + 1..].iter().take(hashes);
        if closing.clone().count() == hashes && closing.clone().all(|byte| *byte == b'#') {
            return Some(found + 1 + hashes);
        }
        position = found + 1;
    }
    Some(bytes.len())
}

/// The end of a character literal; `None` where the quote starts a lifetime.
fn character_end(text: &str, quote: usize) -> Option<usize> {
    let mut characters = text[quote + 1..].char_indices();
    let (_, first) = characters.next()?;
    if first == '\\' {
        characters.next()?;
        let (offset, _) = characters.find(|(_, c)| *c == '\'')?;
        return Some(quote + 1 + offset + 1);
    }
    let (offset, second) = characters.next()?;
    (second == '\'').then_some(quote + 1 + offset + 1)
}

/// Every path that the `use` declarations of this code bring in, with groups written out.
pub(crate) fn imports(code: &str) -> Vec<(usize, String)> {
    let bytes = code.as_bytes();
    let mut paths = Vec::new();
    let mut position = 0;
    while position < bytes.len() {
        if !bytes[position].is_ascii_alphabetic() && bytes[position] != b'_' {
            position += 1;
            continue;
        }
        let end = word_end(bytes, position);
        if &bytes[position..end] == b"use" && !preceded_by_word(bytes, position) {
            let stop = find(bytes, b';', end).unwrap_or(bytes.len());
            let tree: String = code[end..stop]
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            expand("", &tree.replace(' ', "\u{1}"), position, &mut paths);
            position = stop;
        } else {
            position = end;
        }
    }
    paths
}

fn preceded_by_word(bytes: &[u8], position: usize) -> bool {
    position > 0 && (bytes[position - 1].is_ascii_alphanumeric() || bytes[position - 1] == b'_')
}

fn expand(prefix: &str, tree: &str, offset: usize, paths: &mut Vec<(usize, String)>) {
    let tree = tree.trim_matches('\u{1}');
    if let Some((head, group)) = tree.split_once('{') {
        let prefix = format!("{prefix}{}", head.trim_matches('\u{1}'));
        let group = group.strip_suffix('}').unwrap_or(group);
        let mut depth = 0_usize;
        let mut start = 0;
        for (index, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    expand(&prefix, &group[start..index], offset, paths);
                    start = index + 1;
                }
                _ => {}
            }
        }
        expand(&prefix, &group[start..], offset, paths);
    } else if !tree.is_empty() {
        let name = tree.split('\u{1}').next().unwrap_or("");
        let path = format!("{prefix}{name}");
        paths.push((offset, path.strip_prefix("::").unwrap_or(&path).to_owned()));
    }
}

/// The line, counted from 1, of an offset.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text[..offset].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_masked() {
        let text = r##"let a = "unsafe"; // unsafe
/* unsafe /* nested unsafe */ */ let b = r#"un"safe"#; let c = b"unsafe\"";
let d = '"'; let e: &'static str = "x"; let f = '\''; let g = 'ü'; let h = b'\\';"##;
        let code = RustSource::parse(text).shipped_code();
        assert_eq!(code.len(), text.len());
        assert!(!code.contains("unsafe"), "{code}");
        for word in [
            "let a",
            "let b",
            "let c",
            "let d",
            "&'static str",
            "let f",
            "let g",
            "let h",
        ] {
            assert!(code.contains(word), "{word} in {code}");
        }
    }

    #[test]
    fn test_items_are_told_from_what_ships() {
        let text = "\
fn ships() { inner(); }

/// Comment of the test module.
#[cfg(test)]
mod tests {
    fn helper() { \"}\" }
}

fn ships_too<A, B>(x: [u8; 2]) {}

// Comment of the test.
#[test]
#[should_panic(expected = \"a ; b\")]
fn alone() {}
#[cfg(not(test))]
fn last() {}
";
        let source = RustSource::parse(text);
        let code = source.shipped_code();
        for shipped in ["fn ships()", "fn ships_too", "fn last"] {
            assert!(code.contains(shipped), "{shipped}");
        }
        for test in ["mod tests", "fn helper", "fn alone"] {
            assert!(!code.contains(test), "{test}");
        }
        assert!(source.is_test(text.find("Comment of the test module").unwrap()));
        assert!(source.is_test(text.find("Comment of the test.").unwrap()));
        assert_eq!(source.shipped_lines(), text.lines().count() - 9);
    }

    #[test]
    fn test_modules_in_other_files_are_named() {
        let source = RustSource::parse(
            "mod a;\n#[cfg(test)]\nmod tests;\n#[cfg(test)] pub(crate) mod fakes;\n",
        );
        assert_eq!(source.test_modules(), ["tests", "fakes"]);
        assert!(source.shipped_code().contains("mod a;"));
    }

    #[test]
    fn a_file_can_be_a_test_as_a_whole() {
        let source = RustSource::parse("//! Tests.\n#![cfg(test)]\nfn f() {}\n");
        assert_eq!(source.shipped_lines(), 0);
    }

    #[test]
    fn a_test_field_ends_at_its_comma() {
        let text = "struct S {\n    #[cfg(test)]\n    seen: u8,\n    kept: u8,\n}\n";
        let code = RustSource::parse(text).shipped_code();
        assert!(!code.contains("seen") && code.contains("kept"), "{code}");
    }

    #[test]
    fn groups_of_imports_are_written_out() {
        let code = "use std::{fs::File, net::{IpAddr, SocketAddr as Address}, io};\nuse ::a::b as c;\nreuse(x);";
        let paths: Vec<String> = imports(code).into_iter().map(|(_, path)| path).collect();
        assert_eq!(
            paths,
            [
                "std::fs::File",
                "std::net::IpAddr",
                "std::net::SocketAddr",
                "std::io",
                "a::b"
            ]
        );
    }

    #[test]
    fn nonsense_is_divided_without_a_panic() {
        for text in [
            "#[",
            "#[cfg(test)]",
            "'",
            "\"",
            "r#\"",
            "/*",
            "#[cfg(test)] mod",
            "use",
            "}}",
            "b'",
        ] {
            let source = RustSource::parse(text);
            let _ = (source.shipped_code(), source.shipped_lines(), imports(text));
        }
    }
}
