//! Watches the files of `[tls]`, on a thread of its own. Changes are put in force as by a reload, and the
//! log warns before certificates end.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use std::os::unix::fs::MetadataExt as _;

use crate::certificate::{Certificate, CertificateUse};
use crate::config::Tls;
use crate::control::Needed;
use crate::last_refusal::date;
use crate::reload::{Live, locked};

/// How often the thread looks at most whether something is to be done, and at least: the setting may change.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const REST_INTERVAL: Duration = Duration::from_secs(5);

/// The mark by which another file is noticed: inode, size and time of change; `None` without a file.
type Mark = Option<(u64, u64, i64, i64)>;

/// The files as they were at a look.
pub(crate) type Marks = Vec<(PathBuf, Mark)>;

/// Starts the thread. It ends when the server is gone. `known` are the files before they were read for the start.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start(live: &Arc<Live>, known: Marks, needed: Needed) -> std::io::Result<()> {
    let mut watcher = Watcher {
        known,
        ..Watcher::default()
    };
    // Also about certificates that are in force from the start.
    watcher.warn(&live.sources.certificates(), &warning_days(live));
    let live = Arc::downgrade(live);
    let thread = std::thread::Builder::new().name("files".to_owned());
    let work = move || {
        let _needed = needed;
        watcher.run(&live);
    };
    thread.spawn(work).map(drop)
}

#[derive(Default)]
struct Watcher {
    /// The files before those in force were read.
    known: Marks,
    /// Changed files that could not be put in force, and why, as the log was told.
    refused: Option<(String, String)>,
    /// Fingerprints of certificates, and the days before their end, that were warned of.
    warned: HashSet<(String, u32)>,
}

fn mark(path: &Path) -> Mark {
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

/// The files that a configuration names, as they are.
pub(crate) fn marks(tls: &Tls) -> Marks {
    let files = tls.files().into_iter();
    files.map(|path| (path.to_owned(), mark(path))).collect()
}

fn warning_days(live: &Live) -> Vec<u32> {
    locked(&live.in_force)
        .config
        .tls
        .expiry_warning_days
        .clone()
}

impl Watcher {
    fn run(mut self, live: &Weak<Live>) {
        let mut looked = Instant::now();
        let mut rest = LOOK_INTERVAL;
        loop {
            std::thread::sleep(rest);
            let Some(live) = live.upgrade() else {
                return;
            };
            let interval_s = locked(&live.in_force).config.tls.watch_interval_s;
            let interval = Duration::from_secs(interval_s.into());
            let left = interval.saturating_sub(looked.elapsed());
            rest = left.clamp(LOOK_INTERVAL, REST_INTERVAL);
            if interval_s == 0 {
                rest = REST_INTERVAL;
                continue;
            }
            if !left.is_zero() {
                continue;
            }
            looked = Instant::now();
            self.look(&live);
            self.warn(&live.sources.certificates(), &warning_days(&live));
        }
    }

    /// Puts files in force that have changed, all or none. Files that cannot be put in force are tried again at each look:
    /// the fault may be in a file of another section.
    fn look(&mut self, live: &Live) {
        let tls = locked(&live.in_force).config.tls.clone();
        let now = marks(&tls);
        if now == self.known {
            return;
        }
        let is_new = |one: &&(PathBuf, Mark)| !self.known.contains(one);
        let changed = now.iter().filter(is_new);
        let files: Vec<String> = changed
            .map(|(path, _)| path.display().to_string())
            .collect();
        let files = files.join(", ");
        // None where the configuration names fewer since the last look: a reload has read them.
        if files.is_empty() {
            self.known = now;
            return;
        }
        match live.reload_files() {
            Ok(()) => {
                self.known = now;
                self.refused = None;
                tracing::info!(files, "files of tls have changed and are in force");
            }
            Err(why) => {
                let refused = Some((files, why));
                if refused != self.refused
                    && let Some((files, why)) = &refused
                {
                    tracing::warn!(
                        files,
                        why,
                        "files of tls have changed and cannot be put in force; what was stays"
                    );
                }
                self.refused = refused;
            }
        }
    }

    /// Warns of certificates that end soon, once for each number of days.
    fn warn(&mut self, certificates: &[Certificate], days: &[u32]) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_s = now.map_or(0, |now| now.as_secs().cast_signed());
        for (certificate, left_days) in due(certificates, days, now_s) {
            let is_list = certificate.usage == CertificateUse::RevocationList;
            if self
                .warned
                .insert((certificate.fingerprint.clone(), left_days))
            {
                let (file, subject) = (certificate.file.display(), &certificate.subject);
                if is_list {
                    tracing::warn!(
                        %file,
                        issuer = subject,
                        due = date(certificate.expires_s),
                        "a revocation list is overdue: what was revoked since is not known"
                    );
                } else {
                    tracing::warn!(
                        %file,
                        subject,
                        expires = date(certificate.expires_s),
                        days = left_days,
                        "a certificate ends within so many days"
                    );
                }
            }
        }
        let is_there = |one: &(String, u32)| {
            let mut all = certificates.iter();
            all.any(|certificate| certificate.fingerprint == one.0)
        };
        self.warned.retain(is_there);
    }
}

/// Certificates that end soon, and within how many of some days; of revocation lists, those that are overdue. Many
/// authorities make a list every day.
fn due<'a>(
    certificates: &'a [Certificate],
    days: &[u32],
    now_s: i64,
) -> Vec<(&'a Certificate, u32)> {
    let of_one = |certificate: &'a Certificate| {
        if certificate.expires_s == 0 {
            return None;
        }
        let left_s = certificate.expires_s - now_s;
        if certificate.usage == CertificateUse::RevocationList {
            return (left_s <= 0).then_some((certificate, 0));
        }
        let is_near = |days: &&u32| left_s <= i64::from(**days) * 86_400;
        let nearest = days.iter().filter(is_near).min()?;
        Some((certificate, *nearest))
    };
    certificates.iter().filter_map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_in_the_log() {
        assert_eq!(date(1_796_168_460), "Tue, 01 Dec 2026 23:41:00 +0000");
        assert_eq!(date(i64::MAX), i64::MAX.to_string());
    }

    #[test]
    fn each_certificate_is_warned_of_at_its_days() {
        let day = 86_400;
        let of = |usage, expires_s| Certificate {
            fingerprint: "f".to_owned(),
            subject: String::new(),
            expires_s,
            file: PathBuf::new(),
            usage,
            trust_anchor: PathBuf::new(),
            development: false,
        };
        let certificate = |expires_s| of(CertificateUse::Shown, expires_s);
        let days = [30, 7, 1];
        for (left, expected) in [
            (31 * day, None),
            (30 * day, Some(30)),
            (8 * day, Some(30)),
            (7 * day, Some(7)),
            (day, Some(1)),
            (-day, Some(1)),
        ] {
            let all = [certificate(1_000_000_000 + left)];
            let found = due(&all, &days, 1_000_000_000);
            assert_eq!(found.first().map(|(_, days)| *days), expected, "{left}");
        }
        assert!(due(&[certificate(0)], &days, 1_000_000_000).is_empty());
        // A list is as it should be until the next one is due.
        for (due_s, expected) in [
            (0, 0),
            (999_999_999, 1),
            (1_000_000_000, 1),
            (1_000_000_001, 0),
        ] {
            let all = [of(CertificateUse::RevocationList, due_s)];
            assert_eq!(due(&all, &days, 1_000_000_000).len(), expected, "{due_s}");
        }
    }
}
