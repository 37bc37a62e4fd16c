//! The users and tokens in force, read from their files.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use ring::hmac;
use sterna_auth::{
    DEFAULT_ITERATIONS, DecoySecret, PasswordFile, Record, TokenDigest, TokenFile, TokenRecord,
};

use super::secret_file::SecretFile;

/// Random bytes in the salt of a record.
const SALT_BYTES: usize = 16;

/// The users in force, and a secret from which unknown users get a decoy. So nobody can tell from
/// outside whether a user exists.
#[derive(Debug)]
pub struct Users {
    path: Option<PathBuf>,
    /// Records are replaced when they are raised.
    file: RwLock<PasswordFile>,
    decoy: DecoySecret,
    /// Iterations and bytes of salt of the records, and how many have them.
    likenesses: RwLock<BTreeMap<(u32, usize), usize>>,
    /// Whether it was said that records cannot be raised.
    has_warned: AtomicBool,
}

impl Users {
    /// Reads a password file; without one there are no users.
    ///
    /// # Errors
    /// A sentence that names the file, the line and its fault.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let file = match path {
            None => PasswordFile::new(),
            Some(path) => read(path).map_err(|why| format!("{}: {why}", path.display()))?,
        };
        Ok(Self {
            path: path.map(Path::to_owned),
            decoy: decoy_secret(&file)?,
            likenesses: RwLock::new(likenesses(&file)),
            file: RwLock::new(file),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Keeps the decoys of the users before: those that change with a file are known by it.
    pub(crate) fn succeed(&mut self, old: &Self) {
        self.decoy = old.decoy.clone();
    }

    /// Says in the log how many records cost a thief of the file less than `iterations`.
    pub(crate) fn warn_of_weak(&self, iterations: u32) {
        let file = self.file();
        let is_weak = |user: &&str| {
            file.get(user)
                .is_none_or(|record| record.iterations() < iterations)
        };
        let weak = file.users().filter(is_weak).count();
        if weak > 0 {
            tracing::warn!(
                file = self
                    .path
                    .as_deref()
                    .map(|path| tracing::field::display(path.display())),
                weak,
                users = file.len(),
                iterations,
                "password records have fewer iterations than passwords.iterations; \
                 each is raised at its user's next login with a plain password"
            );
        }
    }

    /// Whether there is anyone to check a password against.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file().is_empty()
    }

    /// Whether there is nobody, and the file does not say so: it may be one that is being written.
    pub(crate) fn are_lost(&self) -> bool {
        let file = self.file();
        file.is_empty() && !file.is_meant_empty()
    }

    /// Whether a file says who the users are, be there none: then a password has to be a user's.
    #[must_use]
    pub const fn are_configured(&self) -> bool {
        self.path.is_some()
    }

    /// Whether there is a user of this name.
    #[must_use]
    pub fn has(&self, user: &str) -> bool {
        self.file().has(user)
    }

    /// The names of all users.
    pub(crate) fn names(&self) -> Vec<String> {
        self.file().users().map(str::to_owned).collect()
    }

    pub(crate) fn have_same_names(&self, other: &Self) -> bool {
        self.file().users().eq(other.file().users())
    }

    fn file(&self) -> RwLockReadGuard<'_, PasswordFile> {
        self.file.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a user, or of nobody one that looks like those of users: as many names as users have such
    /// iterations and such a salt. The work is the same.
    pub(super) fn record_or_decoy(&self, user: &str) -> Record {
        let decoy = self.decoy.record_like(user, self.likeness(user));
        self.file().get(user).cloned().unwrap_or(decoy)
    }

    fn likeness(&self, user: &str) -> (u32, usize) {
        let likenesses = self.likenesses.read();
        let likenesses = likenesses.unwrap_or_else(PoisonError::into_inner);
        let mut place = self.decoy.choose(user, likenesses.values().sum());
        for (likeness, count) in &*likenesses {
            match place.checked_sub(*count) {
                Some(rest) => place = rest,
                None => return *likeness,
            }
        }
        (DEFAULT_ITERATIONS, SALT_BYTES)
    }

    /// A user's record as text; `None` where there is no such user.
    pub(super) fn record_text(&self, user: &str) -> Option<String> {
        self.file().record_text(user)
    }

    /// Whether a user has the same password here as there.
    pub(super) fn agrees_with(&self, other: &Self, user: &str) -> bool {
        std::ptr::eq(self, other) || {
            let record = self.record_text(user);
            record.is_some() && record == other.record_text(user)
        }
    }

    pub(super) fn verify(&self, user: &str, password: &[u8]) -> bool {
        // The lock is not held while the password is checked.
        let record = self.record_or_decoy(user);
        let (own, any) = {
            let file = self.file();
            (file.foreign(user).cloned(), file.any_foreign().cloned())
        };
        let is_right = record.verify_password(password);
        // Where a record is Mosquitto's, each check costs both, so that the time does not tell who is known by which.
        let foreign = own.as_ref().or(any.as_ref());
        let is_right_there = foreign.is_some_and(|record| record.verify_password(password));
        is_right || (own.is_some() && is_right_there)
    }

    /// Makes a record of more iterations for a password that was found right, if the record has fewer than
    /// `iterations`, or is Mosquitto's. It changes here and in the file; in the file it replaces the same record only.
    pub(super) fn raise(&self, user: &str, password: &[u8], iterations: u32) {
        let old = {
            let file = self.file();
            let is_good = |record: &Record| record.iterations() >= iterations;
            if iterations == 0 || file.get(user).is_some_and(is_good) {
                return;
            }
            file.record_text(user)
        };
        let Some(old) = old else {
            return;
        };
        let mut salt = [0; SALT_BYTES];
        if getrandom::fill(&mut salt).is_err() {
            return;
        }
        let new = std::str::from_utf8(password)
            .ok()
            .and_then(|password| Record::from_password(password, &salt, iterations).ok());
        let (Some(new), Some(path)) = (new, &self.path) else {
            return;
        };
        match replace_record(path, user, &old, &new) {
            Ok(()) => {
                let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
                let likenesses = self.likenesses.write();
                let mut likenesses = likenesses.unwrap_or_else(PoisonError::into_inner);
                let before = file.get(user).map(likeness_of);
                if let Some(count) = before.and_then(|before| likenesses.get_mut(&before)) {
                    *count -= 1;
                }
                *likenesses.entry(likeness_of(&new)).or_default() += 1;
                // A name that was taken once is taken again.
                let _ = file.set(user, new);
                tracing::info!(user, iterations, "password record raised");
            }
            Err(error) => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    let file = path.display();
                    tracing::warn!(%file, %error, "password records cannot be raised");
                }
            }
        }
    }
}

/// The iterations of a record and the bytes of its salt: others see these.
fn likeness_of(record: &Record) -> (u32, usize) {
    (record.iterations(), record.salt().len())
}

/// See [`Users`].
fn likenesses(file: &PasswordFile) -> BTreeMap<(u32, usize), usize> {
    let mut all = BTreeMap::new();
    for record in file.users().filter_map(|user| file.get(user)) {
        *all.entry(likeness_of(record)).or_default() += 1;
    }
    all
}

/// A secret that is the same after a restart with the same users: made from their records, which nobody knows who does
/// not have the file. Without users it is random.
fn decoy_secret(file: &PasswordFile) -> Result<DecoySecret, String> {
    let mut secret = [0; 32];
    if file.is_empty() {
        getrandom::fill(&mut secret).map_err(|e| format!("no randomness: {e}"))?;
    } else {
        let records = file.to_string();
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"decoys of unknown users");
        secret.copy_from_slice(hmac::sign(&key, records.as_bytes()).as_ref());
    }
    Ok(DecoySecret::new(secret))
}

fn read(path: &Path) -> Result<PasswordFile, String> {
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    PasswordFile::parse(&text).map_err(|e| e.to_string())
}

/// Puts a file with a user's new record in the place of the old one, whole, if the user has the old record there.
fn replace_record(path: &Path, user: &str, old: &str, new: &Record) -> io::Result<()> {
    let before = SecretFile::read(path)?;
    let text = before.text().ok_or(io::ErrorKind::NotFound)?;
    let mut file = PasswordFile::parse(text).map_err(io::Error::other)?;
    let is_same = file.record_text(user).as_deref() == Some(old);
    if !is_same || file.set(user, new.clone()).is_err() {
        return Err(io::Error::other(
            "the file has changed; SIGHUP reads it again",
        ));
    }
    before.replace(&file.to_string())
}

/// The bearer tokens in force.
#[derive(Debug, Default)]
pub struct Tokens {
    file: TokenFile,
}

impl Tokens {
    /// Reads a token file; without one there are no tokens.
    ///
    /// # Errors
    /// A sentence that names the file, the line and its fault.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let file = fs::read_to_string(path)
            .map_err(|e| e.to_string())
            .and_then(|text| TokenFile::parse(&text).map_err(|e| e.to_string()))
            .map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(Self { file })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Whether there are none, and the file does not say so: it may be one that is being written.
    pub(crate) fn are_lost(&self) -> bool {
        self.file.is_empty() && !self.file.is_meant_empty()
    }

    /// Whether a token still proves that its client is a user.
    pub(crate) fn prove(&self, user: &str, digest: &TokenDigest) -> bool {
        self.file.is_of(user, digest)
    }

    /// Whether there is a token of a user.
    #[must_use]
    pub fn has_user(&self, user: &str) -> bool {
        self.file.tokens().any(|token| token.user == user)
    }

    /// The users that tokens are of, each as often as it has tokens.
    pub(crate) fn users(&self) -> Vec<String> {
        let tokens = self.file.tokens();
        tokens.map(|token| token.user.clone()).collect()
    }

    pub(crate) fn have_same_names(&self, other: &Self) -> bool {
        self.users() == other.users()
    }

    /// The record of a token; `None` for an unknown or expired one. The time is in milliseconds since
    /// the Unix epoch. The search costs a digest, so a shard can do it.
    #[must_use]
    pub fn find(&self, token: &[u8], now_ms: u64) -> Option<&TokenRecord> {
        self.file.find(token, now_ms / 1000)
    }

    /// Whether the file has a token, also one that has expired.
    pub(crate) fn has(&self, token: &[u8]) -> bool {
        self.file.has(token)
    }
}

/// Passwords that were found right: a keyed digest of each, so that a client that comes again costs no
/// check. The key lives as long as the process.
#[derive(Debug)]
pub(super) struct Remembered {
    key: hmac::Key,
    /// By digests of the users' names.
    young: HashMap<[u8; 32], [u8; 32]>,
    old: HashMap<[u8; 32], [u8; 32]>,
}

impl Remembered {
    pub(super) fn new(key: hmac::Key) -> Self {
        Self {
            key,
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }

    /// The place and the digest of a password. The user's record is part of the digest, so nothing is left when the
    /// record changes.
    fn entry(&self, users: &Users, user: &str, password: &[u8]) -> Option<([u8; 32], [u8; 32])> {
        let record = users.record_text(user)?;
        let place = self.digest(&[user.as_bytes()]);
        let digest = self.digest(&[user.as_bytes(), password, record.as_bytes()]);
        Some((place, digest))
    }

    /// Whether the password was found right, by the record that the user has now.
    pub(super) fn has(&self, users: &Users, user: &str, password: &[u8]) -> bool {
        self.compare(users, user, password) == Some(true)
    }

    /// Compares a password with the one of its user that is remembered; `None` where none is.
    pub(super) fn compare(&self, users: &Users, user: &str, password: &[u8]) -> Option<bool> {
        if self.young.is_empty() && self.old.is_empty() {
            return None;
        }
        let (place, digest) = self.entry(users, user, password)?;
        let known = self.young.get(&place).or_else(|| self.old.get(&place))?;
        // Two digests by a secret key: the time of their comparison tells nothing of use.
        Some(*known == digest)
    }

    /// Remembers a password that was found right: one for each user, and at most `most`.
    pub(super) fn add(&mut self, users: &Users, user: &str, password: &[u8], most: u32) {
        let Some((place, digest)) = self.entry(users, user, password).filter(|_| most > 0) else {
            return;
        };
        self.old.remove(&place);
        if !self.young.contains_key(&place) && self.young.len() >= (most as usize / 2).max(1) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(place, digest);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A file with one user, `ann`, in a folder of its own.
    pub(crate) fn users(password: &str) -> (tempfile::TempDir, Users) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        let record = Record::from_password(password, &[7; 16], sterna_auth::MIN_ITERATIONS);
        fs::write(&path, format!("# users\nann:{}\n", record.unwrap())).unwrap();
        let users = Users::load(Some(&path)).unwrap();
        (directory, users)
    }

    #[test]
    fn a_weak_record_is_raised_here_and_in_the_file() {
        let (directory, users) = users("secret");
        let path = directory.path().join("passwords");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        users.raise("ann", b"secret", 5000);
        let again = Users::load(Some(&path)).unwrap();
        for users in [&users, &again] {
            assert_eq!(users.record_or_decoy("ann").iterations(), 5000);
            assert!(users.verify("ann", b"secret") && !users.verify("ann", b"Secret"));
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# users\nann:"), "{text}");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        // No number is lowered, and a record that has changed in the file is not overwritten.
        users.raise("ann", b"secret", 4500);
        assert_eq!(users.record_or_decoy("ann").iterations(), 5000);
        fs::write(&path, "# nobody\n").unwrap();
        users.raise("ann", b"secret", 6000);
        assert_eq!(fs::read_to_string(&path).unwrap(), "# nobody\n");
        assert_eq!(users.record_or_decoy("ann").iterations(), 5000);
    }

    /// Both made by `mosquitto_passwd` 2.0 for the password `pass word`.
    const OF_MOSQUITTO: &str = "\
ann:$7$101$TW8yJOn8lwmx+LAH$mwDPYDx8osXJwYsxCEKHamrwAUtxS3jEr2ENsE43jWZkN55wqwGBXPzcPYT2/QkYhu6QAYB161OzABMU8LCepA==
bob:$6$06v3aHF2XQ6mvI8m$Lhmg9Cc/mnRY8D8+oxt0FEwe/HeSIg+g5RmyYyEng6H9ZSZNgCTiNXV8hJFezmECdz2BGj3+Ify8ppsHcpRYEQ==
";

    #[test]
    fn a_record_of_mosquitto_is_checked_and_raised() {
        let (directory, users) = users("secret");
        let path = directory.path().join("passwords");
        let own = fs::read_to_string(&path).unwrap().replace("ann:", "eve:");
        fs::write(&path, format!("{own}{OF_MOSQUITTO}")).unwrap();
        drop(users);
        let users = Users::load(Some(&path)).unwrap();
        for user in ["ann", "bob"] {
            assert!(
                users.has(user) && users.verify(user, b"pass word"),
                "{user}"
            );
            assert!(!users.verify(user, b"Pass word") && !users.verify(user, b""));
            assert!(users.record_or_decoy(user).is_decoy(), "nothing for SCRAM");
            users.raise(user, b"pass word", 0);
            assert!(users.record_text(user).unwrap().starts_with('$'));
            users.raise(user, b"pass word", 5000);
            let again = Users::load(Some(&path)).unwrap();
            for users in [&users, &again] {
                assert_eq!(users.record_or_decoy(user).iterations(), 5000);
                assert!(users.verify(user, b"pass word") && !users.verify(user, b"Pass word"));
            }
        }
        assert!(users.verify("eve", b"secret") && !users.verify("nobody", b"pass word"));
    }

    /// A name whose salt changes would be known to have no user.
    #[test]
    fn unknown_users_have_the_same_decoy_after_a_restart_and_after_other_users_came() {
        let (directory, users) = users("secret");
        let path = directory.path().join("passwords");
        let decoy = |users: &Users| users.record_or_decoy("nobody").to_string();
        let first = decoy(&users);
        assert_eq!(decoy(&Users::load(Some(&path)).unwrap()), first);
        let record = Record::from_password("x", &[9; 16], sterna_auth::MIN_ITERATIONS).unwrap();
        let more = format!("{}bob:{record}\n", fs::read_to_string(&path).unwrap());
        fs::write(&path, more).unwrap();
        let mut next = Users::load(Some(&path)).unwrap();
        next.succeed(&users);
        assert_eq!(decoy(&next), first);
        let unknown = |users: &Users| users.record_or_decoy("somebody").to_string();
        assert_ne!(unknown(&next), first, "each name has its own");
    }

    /// Of a file with records of two kinds, challenges to names that nobody has are of both kinds, as often.
    #[test]
    fn unknown_users_look_like_all_users_and_not_like_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        let record = |iterations, salt: usize| {
            Record::from_password("x", &vec![7; salt], iterations).unwrap()
        };
        let (weak, strong) = (record(4_096, 16), record(4_100, 24));
        let text = format!("first:{weak}\nu0:{strong}\nu1:{strong}\nu2:{strong}\n");
        fs::write(&path, text).unwrap();
        let users = Users::load(Some(&path)).unwrap();
        let kind = |users: &Users, name: &str| {
            let record = users.record_or_decoy(name);
            (record.iterations(), record.salt().len())
        };
        let names: Vec<_> = (0..1_000).map(|number| format!("nobody{number}")).collect();
        let weak = names
            .iter()
            .filter(|name| kind(&users, name) == (4_096, 16));
        let weak = weak.count();
        let strong = names
            .iter()
            .filter(|name| kind(&users, name) == (4_100, 24));
        assert_eq!(strong.count(), 1_000 - weak);
        assert!((200..300).contains(&weak), "a quarter of them: {weak}");
        // A user's record is raised. So are those of some others, and each gets another salt, as the user does.
        let before: Vec<_> = names
            .iter()
            .map(|name| users.record_or_decoy(name))
            .collect();
        users.raise("first", b"x", 4_200);
        let mut raised = 0;
        for (name, before) in names.iter().zip(before) {
            let after = users.record_or_decoy(name);
            raised += usize::from(after.iterations() == 4_200);
            let is_same = after.iterations() == before.iterations();
            assert_eq!(after.salt() == before.salt(), is_same, "{name}");
        }
        assert!((200..300).contains(&raised), "{raised}");
    }

    #[test]
    fn a_password_is_remembered_until_its_record_changes() {
        let (_directory, users) = users("secret");
        let mut remembered = Remembered::new(hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]));
        remembered.add(&users, "ann", b"secret", 10);
        assert!(remembered.has(&users, "ann", b"secret"));
        assert!(!remembered.has(&users, "ann", b"Secret"));
        assert!(!remembered.has(&users, "bob", b"secret"));
        users.raise("ann", b"secret", 5000);
        assert!(!remembered.has(&users, "ann", b"secret"));
        remembered.add(&users, "ann", b"secret", 0);
        assert!(!remembered.has(&users, "ann", b"secret"), "0: nothing is");
    }

    #[test]
    fn tokens_are_read_from_their_file_or_it_is_said_why_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let digest = TokenDigest::of(b"secret");
        fs::write(&path, format!("# ann's\nann:{digest}:2\n")).unwrap();
        let tokens = Tokens::load(Some(&path)).unwrap();
        let record = tokens.find(b"secret", 1_999).unwrap();
        assert_eq!((&*record.user, record.expires_at_s), ("ann", Some(2)));
        assert_eq!(tokens.find(b"secret", 2_000), None);
        assert_eq!(tokens.find(b"Secret", 0), None);
        fs::write(&path, "ann:secret\n").unwrap();
        let why = Tokens::load(Some(&path)).unwrap_err();
        assert!(
            why.ends_with("tokens: line 1: the digest is not 64 hexadecimal digits"),
            "{why}"
        );
        assert!(Tokens::load(None).unwrap().is_empty());
    }
}
