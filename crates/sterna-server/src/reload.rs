//! The state in force that can change while connections live, and its changes.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sterna_broker::LostRights;
use sterna_net::{Certificates, ClientAuthority, ClientKeys, Courier, Identity, SharedPages};

use crate::authorization::without_effect;
use crate::certificate::{self, Certificate};
use crate::config::{Config, Tls, without_secrets};
use crate::control::{Awaited, Obeyed, Reloaded};
use crate::data_directory::DataDirectory;
use crate::identity::{Issuer, Tokens, Users, Webhook};
use crate::key_refresh;
use crate::mail::Mail;
use crate::metrics::Sources;
use crate::policy::{self, Policy};
use crate::unread_store;
use crate::weighing::{self, Weighing};

/// Time after which a reload does not wait for a shard any more: for its count of what is lost, or for its judgement.
const MOST_WEIGHING: Duration = Duration::from_secs(60);

/// The parts of a running broker that a reload changes.
#[derive(Debug)]
pub(crate) struct Live {
    /// The ports of the listeners, in the order of the configuration.
    pub(crate) ports: Vec<u16>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) authority: Option<Arc<ClientAuthority>>,
    pub(crate) client_keys: Option<Arc<ClientKeys>>,
    pub(crate) pages: SharedPages,
    pub(crate) in_force: Arc<Mutex<InForce>>,
    pub(crate) sources: Arc<Sources>,
    pub(crate) courier: Mutex<Courier<Mail>>,
}

/// Takes a lock, also after a panic of a thread that held it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Posts a letter to every shard.
pub(crate) fn tell_all(courier: &Mutex<Courier<Mail>>, letter: impl Fn() -> Mail) {
    let mut courier = locked(courier);
    for shard in 0..courier.shards() {
        courier.post(shard, letter());
    }
    courier.flush();
}

/// The state that a reload replaces as a whole.
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) config: Config,
    pub(crate) policy: Arc<Policy>,
    pub(crate) certificate: Certificate,
    /// Locked as long as a shard runs; `None` where nothing is kept.
    pub(crate) directory: Option<Arc<DataDirectory>>,
}

/// Everything that a configuration names, read and found good, before any of it is in force.
pub(crate) struct Prepared {
    pub(crate) policy: Policy,
    pub(crate) certificate: Certificate,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) authority: Option<Arc<ClientAuthority>>,
    pub(crate) client_keys: Option<Arc<ClientKeys>>,
    pub(crate) directory: Option<Arc<DataDirectory>>,
}

impl Prepared {
    /// Reads it. `claimed` is the data directory, where this process uses it already.
    pub(crate) fn read(
        config: &Config,
        claimed: Option<&Arc<DataDirectory>>,
    ) -> Result<Self, String> {
        let policy = Policy::load(config)?;
        let mut directory = claimed.map(Arc::clone);
        if config.store.enabled && directory.is_none() {
            directory = Some(Arc::new(DataDirectory::claim(&config.data_directory()?)?));
        }
        let (certificate, identity) = if let Some(loaded) = certificate::load(&config.tls)? {
            loaded
        } else {
            let directory = match &mut directory {
                Some(directory) => directory,
                none => none.insert(Arc::new(DataDirectory::claim(&config.data_directory()?)?)),
            };
            certificate::development(directory, &config.encrypted_addresses())?
        };
        Ok(Self {
            policy,
            certificate,
            certificates: presented(&config.tls, identity)?,
            authority: authority(&config.tls)?,
            client_keys: client_keys(&config.tls)?,
            directory,
        })
    }

    /// The refusals of [`Prepared::read`], as far as they can be known without making or locking
    /// anything.
    pub(crate) fn problems(config: &Config) -> Vec<String> {
        let files = &config.authentication;
        // By its name a problem is found in the file of the configuration.
        let of = |setting: &str, why: String| {
            let section = setting
                .rsplit_once('.')
                .map_or(setting, |(section, _)| section);
            if why.starts_with(&format!("{section}.")) {
                why
            } else {
                format!("{setting}: {why}")
            }
        };
        let users = Users::load(files.password_file.as_deref()).err();
        let tokens = Tokens::load(files.token_file.as_deref()).err();
        let issuer = Issuer::load(&files.jwt).err();
        let webhook = Webhook::load(&config.webhook).err();
        let credentials = [
            users.map(|why| of("authentication.password_file", why)),
            tokens.map(|why| of("authentication.token_file", why)),
            issuer.map(|why| of("authentication.jwt.key_files", why)),
            webhook.map(|why| of("webhook.headers_file", why)),
        ];
        let rest = if credentials.iter().all(Option::is_none) {
            Policy::load(config).err()
        } else {
            None
        };
        let own = || {
            let found = match certificate::load(&config.tls)? {
                None => match DataDirectory::inspect(&config.data_directory()?)? {
                    None => None,
                    Some(directory) => certificate::existing(&directory)?,
                },
                found => found,
            };
            found.map_or(Ok(()), |(_, identity)| {
                presented(&config.tls, identity).map(drop)
            })
        };
        let tls = [
            own().err(),
            authority(&config.tls).err(),
            client_keys(&config.tls).err(),
        ];
        let store = unread_store::refusal(config);
        let found = credentials
            .into_iter()
            .chain([rest])
            .chain(tls)
            .chain([store]);
        let mut problems: Vec<String> = found.flatten().collect();
        // Traces and certificates are kept in one directory.
        problems.dedup();
        problems
    }
}

/// The certificate as listeners present it.
fn presented(tls: &Tls, identity: Identity) -> Result<Arc<Certificates>, String> {
    let mut identities = vec![identity];
    let apart = |setting: String, chain: &Path, key: &Path, why| {
        format!(
            "{setting}: {} and {}: {why}",
            chain.display(),
            key.display()
        )
    };
    for (of, pair) in tls.additional_pairs() {
        let (chain, key) = (&pair.certificate, &pair.key);
        let found = certificate::read_identity(chain, key, &of)?;
        // Whether they go together is said of each, with its files.
        Certificates::new(vec![found])
            .map_err(|why| apart(of("certificate"), chain, key, why.to_string()))?;
        identities.push(certificate::read_identity(chain, key, &of)?);
    }
    Certificates::new(identities).map_err(|why| match (&tls.certificate, &tls.key) {
        (Some(chain), Some(key)) => {
            apart("tls.certificate".to_owned(), chain, key, why.to_string())
        }
        _ => why.to_string(),
    })
}

/// The authority of clients' certificates, where one is configured.
fn authority(tls: &Tls) -> Result<Option<Arc<ClientAuthority>>, String> {
    let mut lists = Vec::new();
    for path in &tls.client_revocation_lists {
        lists.extend(certificate::read_revocation_list(path)?);
    }
    let read = |path: &Path| {
        ClientAuthority::from_pem(&certificate::read(path)?, &lists)
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    let read = |path| read(path).map_err(|why| format!("tls.client_ca: {why}"));
    tls.client_ca.as_deref().map(read).transpose()
}

/// The bare keys of clients, where they are configured.
fn client_keys(tls: &Tls) -> Result<Option<Arc<ClientKeys>>, String> {
    let read = |path: &Path| {
        ClientKeys::from_pem(&certificate::read(path)?)
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    let read = |path| read(path).map_err(|why| format!("tls.client_keys: {why}"));
    tls.client_keys.as_deref().map(read).transpose()
}

/// The issuer after a reload, with the keys that its URL has published. If the URL stays, they are the last
/// known ones. Otherwise the URL is asked now.
fn issuer_after(new: &Issuer, old: &Issuer) -> Result<Option<Issuer>, String> {
    let Some(url) = new.keys_url() else {
        return Ok(None);
    };
    let shown = without_secrets(url);
    let fault = |why: String| format!("authentication.jwt.keys_url: {shown}: {why}");
    if let Some(text) = new.published_by(old) {
        return new.with_published(&text).map(Some).map_err(fault);
    }
    match new.ask() {
        Ok(asked) => Ok(asked),
        // It was not there before, and the thread goes on asking.
        Err(_) if old.keys_url() == Some(url) => Ok(None),
        Err(why) => Err(fault(why)),
    }
}

/// Settings and certificates that are better not left as they are: sentences that name them.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = config.warnings();
    warnings.extend(certificate::weaknesses(&config.tls));
    warnings.extend(without_effect(config));
    warnings
}

/// Warns the operator of settings that are better not left as they are.
pub(crate) fn warn_of(config: &Config) {
    for warning in warnings(config) {
        tracing::warn!("{warning}");
    }
}

impl key_refresh::Place for Live {
    fn issuer(&self) -> Arc<Issuer> {
        Arc::clone(&locked(&self.in_force).policy.issuer)
    }

    fn replace(&self, old: &Arc<Issuer>, new: Issuer) {
        // No reload meanwhile.
        let mut in_force = locked(&self.in_force);
        if Arc::ptr_eq(&in_force.policy.issuer, old) {
            let policy = Arc::new(in_force.policy.with_issuer(new));
            in_force.policy = Arc::clone(&policy);
            tell_all(&self.courier, || Mail::Policy(Arc::clone(&policy)));
        }
    }
}

impl Live {
    /// See [`Server::reload`](crate::Server::reload).
    pub(crate) fn reload(&self, config: &Config, is_dry_run: bool) -> Obeyed {
        self.put_in_force(config, locked(&self.in_force), is_dry_run)
    }

    /// Reads the files that the configuration in force names again, and puts them in force.
    ///
    /// # Errors
    /// As [`Live::reload`].
    pub(crate) fn reload_files(&self) -> Result<(), String> {
        let in_force = locked(&self.in_force);
        let config = in_force.config.clone();
        self.put_in_force(&config, in_force, false).map(drop)
    }

    /// Asks all shards what a policy would take, and waits for their answers.
    fn weigh(&self, policy: &Arc<Policy>) -> LostRights {
        let (tell, told) = channel();
        let tell: Arc<dyn Fn(LostRights) + Send + Sync> = Arc::new(move |lost| {
            // Nobody may wait any more.
            let _ = tell.send(lost);
        });
        tell_all(&self.courier, || {
            Mail::Weigh(Box::new(Weighing::new(policy, &tell)))
        });
        drop(tell);
        let until = Instant::now() + MOST_WEIGHING;
        let mut lost = LostRights::default();
        while let Ok(more) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            weighing::add(&mut lost, more);
        }
        lost
    }

    /// Waits until all shards have judged all sessions by the policy that they were told of last. False where some have
    /// not in time.
    fn await_judgement(&self) -> bool {
        let (word, told) = Awaited::new();
        tell_all(&self.courier, || Mail::Judging(word.clone()));
        drop(word);
        // A shard drops its end. One that has failed judges nobody any more.
        told.recv_timeout(MOST_WEIGHING) == Err(RecvTimeoutError::Disconnected)
    }

    fn put_in_force(
        &self,
        config: &Config,
        // One reload at a time.
        mut in_force: MutexGuard<'_, InForce>,
        is_dry_run: bool,
    ) -> Obeyed {
        let said = |problems: Vec<String>| problems.join("\n");
        config.check().map_err(said)?;
        let (next, unchanged) = config.after(&in_force.config);
        next.check()
            .map_err(|problems| format!("with what only a restart changes: {}", said(problems)))?;
        let weaker = next.weaker_than(&in_force.config);
        if !weaker.is_empty() {
            return Err(said(weaker));
        }
        let prepared = Prepared::read(&next, in_force.directory.as_ref())?;
        let policy = prepared.policy.succeeding(&in_force.policy);
        let mut policy = policy.announcing(&next, &self.ports);
        if let Some(issuer) = issuer_after(&policy.issuer, &in_force.policy.issuer)? {
            policy.issuer = Arc::new(issuer);
        }
        let policy = Arc::new(policy);
        policy.keeps_users_of(&in_force.policy)?;
        let all = certificate::all(&next.tls, &prepared.certificate, &prepared.certificates)?;
        let grants_like = policy.grants_like(&in_force.policy);
        let lost = if grants_like {
            LostRights::default()
        } else {
            self.weigh(&policy)
        };
        let mut reloaded = Reloaded {
            unchanged,
            lost,
            is_judging: false,
        };
        if is_dry_run {
            return Ok(reloaded);
        }
        warn_of(&next);
        // From here on nothing can fail.
        self.pages.replace(policy::pages(&next.http));
        if let (Some(authority), Some(new)) = (&self.authority, &prepared.authority) {
            authority.take_over(new);
        }
        if let (Some(keys), Some(new)) = (&self.client_keys, &prepared.client_keys) {
            keys.take_over(new);
        }
        self.certificates.take_over(&prepared.certificates);
        // After those who verify handshakes: none that they let in is overlooked.
        tell_all(&self.courier, || Mail::Policy(Arc::clone(&policy)));
        self.sources.set_certificates(all);
        if let Some(said) = weighing::said(lost) {
            tracing::warn!(
                subscriptions = lost.subscriptions,
                sessions = lost.sessions,
                "{said}: they get nothing until it is back"
            );
        }
        *in_force = InForce {
            config: next,
            policy,
            certificate: prepared.certificate,
            directory: prepared.directory,
        };
        // From the answer on, messages are kept for all who have a right back.
        if !grants_like && !self.await_judgement() {
            reloaded.is_judging = true;
            tracing::warn!(
                after_s = MOST_WEIGHING.as_secs(),
                "sessions that are away are still to be judged by the new rules"
            );
        }
        Ok(reloaded)
    }
}
