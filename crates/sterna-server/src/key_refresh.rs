//! Keeps the keys of signed tokens as the issuer's URL has them, on a thread of its own.
//!
//! The thread asks when `authentication.jwt.keys_refresh_s` is over, or earlier when a token has named a
//! key that is not known. If the answer is not good, the last good keys stay.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::control::Needed;
use crate::identity::Issuer;

/// How often the thread looks whether something is to be done.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The same where the issuer has no URL. Each look wakes a processor that could rest.
const REST_INTERVAL: Duration = Duration::from_secs(5);

/// The parts of the process that the thread needs.
pub(crate) trait Place: Send + Sync {
    /// The issuer in force.
    fn issuer(&self) -> Arc<Issuer>;

    /// Puts `new` in force instead of `old`, if `old` still is.
    fn replace(&self, old: &Arc<Issuer>, new: Issuer);
}

/// Starts the thread. It ends when the place is gone.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start<P: Place + 'static>(place: &Arc<P>, needed: Needed) -> std::io::Result<()> {
    let place = Arc::downgrade(place);
    let thread = std::thread::Builder::new().name("token-keys".to_owned());
    let work = move || {
        let _needed = needed;
        run(&place);
    };
    thread.spawn(work).map(drop)
}

fn run<P: Place>(place: &Weak<P>) {
    let mut asked = Instant::now();
    let mut failed = false;
    let mut interval = LOOK_INTERVAL;
    loop {
        std::thread::sleep(interval);
        // The place is not kept while the URL is asked: it holds the things that the process gives up at its end.
        let Some(issuer) = place.upgrade().map(|place| place.issuer()) else {
            return;
        };
        let Some(url) = issuer.keys_url_shown() else {
            interval = REST_INTERVAL;
            continue;
        };
        interval = LOOK_INTERVAL;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let is_over = |interval_s: u32| asked.elapsed() >= seconds(interval_s);
        let config = issuer.config();
        // A key that was missed is still missed when it may be asked for.
        let is_due = is_over(config.keys_refresh_s)
            || (is_over(config.keys_retry_s)
                && (failed || !issuer.has_published() || issuer.take_missed()));
        if !is_due {
            continue;
        }
        let Some(found) = issuer.ask().transpose() else {
            continue;
        };
        asked = Instant::now();
        failed = found.is_err();
        match found {
            Ok(new) if issuer.has_published() && new.is_same(&issuer) => {}
            Ok(new) => {
                tracing::info!(url, "the issuer has other keys of tokens");
                if let Some(place) = place.upgrade() {
                    place.replace(&issuer, new);
                }
            }
            Err(why) => {
                tracing::warn!(
                    url,
                    why,
                    "the keys of tokens cannot be read; the last ones stay"
                );
            }
        }
    }
}
