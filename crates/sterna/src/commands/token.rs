//! `sterna token`: the token file of a broker.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use sterna_auth::{TOKEN_BYTES, TokenDigest, TokenFile, TokenRecord, token_from_random};
use sterna_server::identity::SecretFile;

use super::{exit, output};

/// Digits of a digest that tell tokens apart for people.
const SHOWN_DIGITS: usize = 12;

/// Add, list or remove bearer tokens in a broker's token file.
///
/// A token is shown once, when it is made: the file has only its SHA-256, which does not reveal it.
/// A client of HTTP sends it as `Authorization: Bearer TOKEN`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  sterna token add tokens sensor                make a token for the user sensor, and the file if need be
  sterna token add tokens sensor --expires 30d  one that is refused after 30 days
  sterna token list tokens                      whose there are, and until when
  sterna token remove tokens sensor             remove all of sensor's
  sterna token remove tokens sensor 3f0c9a      remove the one whose digest begins so, as `list` shows it")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Make a token, and print it
    Add {
        /// The token file; it is made if it does not exist
        file: PathBuf,
        /// The user it stands for; no colon, no control characters
        user: String,
        /// Time that it is valid: a number with s, m, h, d or w; for ever by default
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        expires: Option<u64>,
    },
    /// Print users, first digits of digests, and ends
    List {
        /// The token file
        file: PathBuf,
    },
    /// Remove a user's tokens
    Remove {
        /// The token file
        file: PathBuf,
        /// The user
        user: String,
        /// Only the tokens whose digests begin with these digits
        #[arg(default_value = "", hide_default_value = true)]
        digest: String,
    },
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = now_s.map_or(0, |since| since.as_secs());
    let mut random = [0; TOKEN_BYTES];
    let done = getrandom::fill(&mut random)
        .map_err(|error| format!("no random numbers: {error}"))
        .and_then(|()| act(&args.action, now_s, &random));
    match done {
        Ok(text) => {
            let written = output::print(text.as_bytes());
            if !matches!(args.action, Action::List { .. }) {
                exit::tell(exit::RELOAD);
            }
            exit::code(written, false)
        }
        Err(error) => exit::usage(error),
    }
}

/// Does it, and returns what to print.
fn act(action: &Action, now_s: u64, random: &[u8; TOKEN_BYTES]) -> Result<String, String> {
    match action {
        Action::Add {
            file: path,
            user,
            expires,
        } => {
            let (place, tokens) = read(path)?;
            let mut tokens = tokens.unwrap_or_default();
            let token = token_from_random(random);
            let record = TokenRecord {
                user: user.clone(),
                digest: TokenDigest::of(token.as_bytes()),
                expires_at_s: expires.map(|lasts_s| now_s.saturating_add(lasts_s)),
            };
            tokens.add(record).map_err(|error| error.to_string())?;
            replace(path, &place, &tokens)?;
            Ok(format!("{token}\n"))
        }
        Action::List { file: path } => {
            let (_, tokens) = existing(path)?;
            let lines = tokens.tokens().map(|record| line(record, now_s));
            Ok(lines.collect())
        }
        Action::Remove {
            file: path,
            user,
            digest,
        } => {
            let (place, mut tokens) = existing(path)?;
            let removed = tokens.remove(user, &digest.to_ascii_lowercase());
            if removed == 0 {
                return Err(named(path, &format_args!("has no such token of {user}")));
            }
            replace(path, &place, &tokens)?;
            let of = if removed == 1 { "token" } else { "tokens" };
            Ok(format!(
                "{}: removed {removed} {of} of {user}\n",
                path.display()
            ))
        }
    }
}

fn line(record: &TokenRecord, now_s: u64) -> String {
    let digest = record.digest.to_string();
    let digest = digest.get(..SHOWN_DIGITS).unwrap_or_default();
    let validity = match record.expires_at_s {
        None => "for ever".to_owned(),
        Some(at_s) if at_s <= now_s => "expired".to_owned(),
        Some(at_s) => format!("for {}", Time(at_s - now_s)),
    };
    format!("{digest}  {:<24}  {validity}\n", record.user)
}

fn named(path: &Path, error: &dyn fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

/// The file, and its tokens; `None` where it does not exist.
fn read(path: &Path) -> Result<(SecretFile, Option<TokenFile>), String> {
    let file = SecretFile::read(path).map_err(|error| named(path, &error))?;
    let tokens = file.text().map(TokenFile::parse).transpose();
    let tokens = tokens.map_err(|error| named(path, &error))?;
    Ok((file, tokens))
}

fn existing(path: &Path) -> Result<(SecretFile, TokenFile), String> {
    let (file, tokens) = read(path)?;
    let tokens = tokens.ok_or_else(|| named(path, &"does not exist"))?;
    Ok((file, tokens))
}

fn replace(path: &Path, file: &SecretFile, tokens: &TokenFile) -> Result<(), String> {
    let replaced = file.replace(&tokens.to_string());
    replaced.map_err(|error| named(path, &error))
}

/// Units of time, the largest first.
const UNITS: [(char, u64); 5] = [
    ('w', 7 * 24 * 3600),
    ('d', 24 * 3600),
    ('h', 3600),
    ('m', 60),
    ('s', 1),
];

/// Reads a time such as `30d`, in seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a time such as 90s, 15m, 12h, 30d or 4w");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let number = &text[..text.len() - unit.len_utf8()];
    let (_, unit_s) = UNITS
        .into_iter()
        .find(|(known, _)| *known == unit)
        .ok_or_else(wrong)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let count: u64 = number.parse().map_err(|_| wrong())?;
    (count.checked_mul(unit_s).filter(|&lasts_s| lasts_s > 0)).ok_or_else(wrong)
}

/// A time in the largest unit, up to days, of which there are at least two.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, unit_s) = UNITS
            .into_iter()
            .find(|(unit, unit_s)| *unit != 'w' && self.0 >= 2 * unit_s)
            .unwrap_or(('s', 1));
        write!(f, "{}{unit}", self.0 / unit_s)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn add(path: &Path, user: &str, expires: Option<u64>, random: u8) -> Result<String, String> {
        let action = Action::Add {
            file: path.to_owned(),
            user: user.to_owned(),
            expires,
        };
        act(&action, 1_000, &[random; TOKEN_BYTES])
    }

    #[test]
    fn tokens_come_are_listed_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let list = Action::List { file: path.clone() };
        let of = |action: &Action| act(action, 1_000, &[0; TOKEN_BYTES]);
        assert!(of(&list).unwrap_err().ends_with("does not exist"));
        let first = add(&path, "ann", Some(3 * 24 * 3600), 1).unwrap();
        let second = add(&path, "ann", None, 2).unwrap();
        add(&path, "bob", Some(0), 3).unwrap();
        assert!(
            add(&path, "a:b", None, 4)
                .unwrap_err()
                .contains("user name")
        );
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(first.trim()), "only digests are kept");
        let file = TokenFile::parse(&text).unwrap();
        assert_eq!(file.user_of(second.trim().as_bytes(), 0), Some("ann"));
        let listed = of(&list).unwrap();
        let ends: Vec<_> = listed
            .lines()
            .map(|line| {
                line.split_whitespace()
                    .skip(1)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        assert_eq!(ends, ["ann for 3d", "ann for ever", "bob expired"]);

        let remove = |user: &str, digest: &str| {
            of(&Action::Remove {
                file: path.clone(),
                user: user.to_owned(),
                digest: digest.to_owned(),
            })
        };
        let shown = listed.lines().next().unwrap().split(' ').next().unwrap();
        assert!(
            remove("bob", shown)
                .unwrap_err()
                .contains("no such token of bob")
        );
        assert!(
            remove("ann", &shown.to_uppercase())
                .unwrap()
                .ends_with("removed 1 token of ann\n")
        );
        let (_, file) = existing(&path).unwrap();
        assert_eq!(file.user_of(first.trim().as_bytes(), 0), None);
        assert_eq!(file.len(), 2);
        assert!(remove("ann", "").unwrap().contains("removed 1 token"));
        assert!(remove("ann", "").is_err());
    }

    #[test]
    fn times_have_units() {
        for (text, time_s) in [
            ("90s", 90),
            ("15m", 900),
            ("12h", 43_200),
            ("30d", 2_592_000),
            ("4w", 2_419_200),
        ] {
            assert_eq!(seconds(text), Ok(time_s), "{text}");
        }
        for wrong in [
            "",
            "d",
            "30",
            "-1d",
            "+1d",
            "0s",
            "1é",
            "99999999999999999999s",
            "9999999999999999999w",
        ] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        for (time_s, text) in [
            (59, "59s"),
            (7_200, "2h"),
            (86_400, "24h"),
            (172_800, "2d"),
            (2_592_000, "30d"),
        ] {
            assert_eq!(Time(time_s).to_string(), text);
        }
    }
}
