//! Mosquitto's users.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sterna_auth::PasswordFile;

use super::Report;
use super::access::Door;
use super::source::Line;

/// The password file of the listeners. There is one: a listener with other users is left out, and so is one that
/// lets in nobody of them.
pub(super) fn keep_one_file(
    doors: &mut Vec<Door>,
    by_certificate: bool,
    report: &mut Report,
) -> Option<Line> {
    let file = doors
        .iter()
        .find_map(|door| door.access.password_file.clone())?;
    doors.retain(|door| {
        let url = &door.listener.url;
        match &door.access.password_file {
            Some(own) if own.path() != file.path() => {
                report.less(
                    own,
                    &format!(
                        "there is one password file for all listeners, that of {file}; `{url}` with other users is left \
                         out"
                    ),
                );
                false
            }
            // Without a file of its own Mosquitto lets in who says nothing or anything, or nobody.
            // Where certificates name the users, a password makes nobody another one.
            None if door.listener.anonymous != Some(true) && !(by_certificate && door.encrypts()) => {
                report.less(
                    &file,
                    &format!("its users may not come in by `{url}`, which has no password file; it is left out"),
                );
                false
            }
            _ => true,
        }
    });
    Some(file)
}

/// A password file with Mosquitto's users and their passwords.
pub(super) fn users(line: &Line, passwords: &Path, report: &mut Report) -> Result<String, String> {
    let path = line.path();
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("{line}: {}: {error}", path.display()))?;
    let mut file = String::new();
    let (mut left_out, mut known) = (0, HashSet::new());
    for entry in text.lines().map(str::trim) {
        let (name, _) = entry.split_once(':').unwrap_or((entry, ""));
        if entry.is_empty() || entry.starts_with('#') {
            continue;
        }
        if !known.contains(name) && PasswordFile::parse(entry).is_ok() {
            known.insert(name);
            // A text takes everything.
            let _ = writeln!(file, "{entry}");
        } else {
            left_out += 1;
            let _ = writeln!(file, "# {name}");
        }
    }
    let passwords = passwords.display();
    if left_out > 0 {
        report.less(
            line,
            &format!(
                "{left_out} entries are no $7$ or $6$ records, or of users that are there already. They are comments in \
                 {passwords}; `sterna passwd {passwords} NAME` sets a password"
            ),
        );
    }
    Ok(file)
}
