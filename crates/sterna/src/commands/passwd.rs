//! `sterna passwd`: the password file of a broker.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use sterna_auth::{DEFAULT_ITERATIONS, MAX_PASSWORD_BYTES, PasswordFile, Record};
use sterna_server::identity::SecretFile;

use super::{exit, output};

/// Random bytes in the salt of a new record.
const SALT_BYTES: usize = 16;

/// Add, change or remove users in a broker's password file.
///
/// The file holds one line per user with a SCRAM-SHA-256 record, in the form that PostgreSQL uses.
/// A broker can check a password with it, but the file does not reveal one.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  sterna passwd -c users.pw sensor       make the file, ask for sensor's password
  sterna passwd users.pw gateway         add gateway, or change its password
  echo secret | sterna passwd users.pw gateway
                                         the same from a script, without a trace in the process list
  sterna passwd -D users.pw sensor       remove sensor")]
pub(crate) struct Args {
    /// The password file
    file: PathBuf,
    /// The user; no colon, no control characters
    user: String,
    /// The password, with -b
    #[arg(requires = "batch", hide = true)]
    password: Option<String>,
    /// Make the file, which must not exist yet
    #[arg(short = 'c', long)]
    create: bool,
    /// Remove the user
    #[arg(short = 'D', long, conflicts_with_all = ["create", "batch", "iterations"])]
    delete: bool,
    /// Take the password from the command line, after the user; other users of this host can see it
    /// there
    #[arg(short = 'b', long, requires = "password")]
    batch: bool,
    /// Iterations of the password's hash. More protect better if the file is stolen, and cost each
    /// login. For small devices that use SCRAM with a long random password, take 4096
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ITERATIONS)]
    iterations: u32,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match change(args) {
        Ok(done) => {
            let written = output::print(format!("{done}\n").as_bytes());
            exit::tell(exit::RELOAD);
            exit::code(written, false)
        }
        Err(error) => exit::usage(error),
    }
}

fn change(args: &Args) -> Result<String, String> {
    let path = args.file.as_path();
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = SecretFile::read(path).map_err(|error| named(&error))?;
    let mut users = match file.text() {
        Some(_) if args.create => {
            return Err(named(&"exists already; leave -c out to add a user to it"));
        }
        Some(text) => PasswordFile::parse(text).map_err(|error| named(&error))?,
        None if args.create => PasswordFile::new(),
        None => return Err(named(&"does not exist; -c makes it")),
    };
    let done = if args.delete {
        if !users.remove(&args.user) {
            return Err(named(&format_args!("has no user {}", args.user)));
        }
        "removed"
    } else {
        let password = match &args.password {
            Some(password) => password.clone(),
            None => ask().map_err(|error| format!("cannot read the password: {error}"))?,
        };
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|error| format!("no random numbers: {error}"))?;
        let record = Record::from_password(&password, &salt, args.iterations)
            .map_err(|error| error.to_string())?;
        let is_new = users
            .set(&args.user, record)
            .map_err(|error| error.to_string())?;
        if is_new { "added" } else { "changed" }
    };
    file.replace(&users.to_string())
        .map_err(|error| named(&error))?;
    Ok(format!("{}: {done} {}", path.display(), args.user))
}

/// The password from the keyboard, twice and unseen, or the first line of standard input.
fn ask() -> io::Result<String> {
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        let limit = MAX_PASSWORD_BYTES as u64 + 2;
        io::Read::take(io::stdin().lock(), limit).read_line(&mut line)?;
        let end = line.trim_end_matches(['\r', '\n']).len();
        line.truncate(end);
        return Ok(line);
    }
    let password = ask_unseen("Password: ")?;
    if ask_unseen("The same again: ")? != password {
        return Err(io::Error::other("the two are not the same"));
    }
    Ok(password)
}

fn ask_unseen(prompt: &str) -> io::Result<String> {
    let mut screen = io::stderr();
    write!(screen, "{prompt}")?;
    screen.flush()?;
    crossterm::terminal::enable_raw_mode()?;
    let result = read_unseen();
    crossterm::terminal::disable_raw_mode()?;
    writeln!(screen)?;
    result
}

fn read_unseen() -> io::Result<String> {
    let mut line = String::new();
    loop {
        let Event::Key(key) = crossterm::event::read()? else {
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match key.code {
            KeyCode::Enter => return Ok(line),
            KeyCode::Backspace => {
                line.pop();
            }
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            KeyCode::Char(character) if line.len() < MAX_PASSWORD_BYTES => line.push(character),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
    use std::path::Path;

    use super::*;

    fn args(file: &Path, user: &str, password: Option<&str>) -> Args {
        Args {
            file: file.to_owned(),
            user: user.to_owned(),
            password: password.map(str::to_owned),
            create: false,
            delete: false,
            batch: password.is_some(),
            iterations: sterna_auth::MIN_ITERATIONS,
        }
    }

    #[test]
    fn users_come_change_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users.pw");
        assert!(
            change(&args(&file, "a", Some("x")))
                .unwrap_err()
                .contains("-c makes it")
        );
        let create = Args {
            create: true,
            ..args(&file, "a", Some("x"))
        };
        assert!(change(&create).unwrap().ends_with("added a"));
        assert!(change(&create).unwrap_err().contains("exists already"));
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );

        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(
            change(&args(&file, "b", Some("y")))
                .unwrap()
                .ends_with("added b")
        );
        assert!(
            change(&args(&file, "b", Some("z")))
                .unwrap()
                .ends_with("changed b")
        );
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        let users = PasswordFile::parse(&fs::read_to_string(&file).unwrap()).unwrap();
        assert!(users.get("b").unwrap().verify_password(b"z"));

        let delete = Args {
            delete: true,
            ..args(&file, "a", None)
        };
        assert!(change(&delete).unwrap().ends_with("removed a"));
        assert!(change(&delete).unwrap_err().contains("has no user a"));
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    /// The broker has to read it after root has changed it.
    #[test]
    fn a_file_stays_its_owners_also_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["users.pw", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "").unwrap();
        // Only root may; others keep their own.
        let _ = chown(&file, Some(12_345), Some(54_321));
        let owner = || fs::metadata(&file).map(|file| (file.uid(), file.gid()));
        let before = owner().unwrap();
        symlink(&file, &link).unwrap();
        change(&args(&link, "a", Some("x"))).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&file).unwrap().starts_with("a:"));
        assert_eq!(owner().unwrap(), before);
    }

    #[test]
    fn a_file_that_is_not_understood_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users.pw");
        fs::write(&file, "a:$7$101$salt$hash\n").unwrap();
        assert!(
            change(&args(&file, "b", Some("y")))
                .unwrap_err()
                .contains("line 1")
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "a:$7$101$salt$hash\n");
        assert!(change(&args(Path::new("/nonexistent/x"), "b", Some("y"))).is_err());
    }
}
