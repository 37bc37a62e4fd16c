//! A run: kills, restarts, and comparisons between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sterna_ledger::{Promise, Protocol};

use super::broker::{Broker, Door};
use super::cast::Cast;
use super::report::{Report, Tally};
use super::site::{Phase, Site};
use super::weather::Weather;
use super::{Doing, Settings};
use super::{http, mqtt};
use crate::link::Random;

/// Longest time until a broker listens, whatever it has to recover.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Longest time until everything that was sent is acknowledged, once publishers send nothing new.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Longest time until the acknowledgement comes at which the broker is to end.
const ALARM_LIMIT: Duration = Duration::from_secs(5);
/// Longest silence of all readers while messages are missing. After it these messages count as lost.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// The time for second copies to come, once everything has come.
const AFTERWARDS: Duration = Duration::from_millis(300);
/// Interval of checks whether something has come.
const POLL: Duration = Duration::from_millis(25);
/// The time of load in a run without kills.
const UNDISTURBED: Duration = Duration::from_secs(3);
/// Longest cut, in milliseconds: connections over QUIC outlive short ones.
const LONGEST_CUT_MS: u64 = 1_500;
/// Most kills between two comparisons.
const MAX_KILLS_TOGETHER: u64 = 8;

/// Pause without a copy after which clients have read all that a killed broker had sent, and the longest wait for it.
const READ_PAUSE: Duration = Duration::from_millis(100);
const READ_LIMIT: Duration = Duration::from_secs(5);

/// When a broker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Under load, this long after it listens.
    Loaded(Duration),
    /// This long after its start, whatever it does then.
    Starting(Duration),
    /// With an acknowledgement under load, after this number of others. The message acknowledged a
    /// moment ago must be kept.
    Acknowledged(u64),
    /// When all that was sent is acknowledged, and nothing more is sent.
    Resting,
}

impl Moment {
    fn choose(random: &mut Random) -> Self {
        let up_to_ms =
            |random: &mut Random, limit: u64| Duration::from_millis(random.next_u64() % limit);
        match random.next_u64() % 10 {
            0 => Self::Starting(up_to_ms(random, 400)),
            1 => Self::Resting,
            2..=4 => Self::Acknowledged(random.next_u64() % 300),
            5..=6 => Self::Loaded(up_to_ms(random, 800)),
            _ => Self::Loaded(up_to_ms(random, 2_500)),
        }
    }
}

/// Kills a broker as often as the settings say. `progress` gets a line now and then.
///
/// # Errors
/// When the run could not be made: no program, no folder, no ports, or clients that cannot subscribe.
/// Broken promises of the broker are no error; the report has them.
pub fn run(settings: &Settings, progress: fn(&str)) -> Result<Report, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(mqtt::text)?;
    runtime.block_on(Run::make(settings, progress))
}

struct Run<'r> {
    settings: &'r Settings,
    progress: fn(&str),
    random: Random,
    broker: Broker,
    site: Site,
    cast: Cast,
    tally: Tally,
    /// Number of violations that were told.
    told: usize,
}

impl<'r> Run<'r> {
    async fn make(settings: &'r Settings, progress: fn(&str)) -> Result<Report, String> {
        let started = Instant::now();
        let random = Random::new(&[settings.seed]);
        let folder = tempfile::Builder::new()
            .prefix("sterna-crash-")
            .tempdir()
            .map_err(mqtt::text)?;
        let program = settings.program.as_path();
        let broker =
            Broker::prepare(program, folder.path(), settings.durability).map_err(mqtt::text)?;
        broker.start().map_err(mqtt::text)?;
        let fingerprint = broker.ready(START_LIMIT).await?;
        let site = Site::new(broker.addresses.clone(), fingerprint, settings.seed);
        site.ledger().life_begins();
        let mut run = Self {
            settings,
            progress,
            random,
            cast: Cast::new(site.clone(), settings.doing == Doing::Faults),
            broker,
            site,
            tally: Tally::default(),
            told: 0,
        };
        run.begin().await?;
        let ended = run.kill_all().await;
        if let Err(error) = &ended {
            let text = format!("the broker: {error}");
            run.site
                .complain(Promise::Serving, Protocol::Mqtt, "the broker", text);
        }
        run.broker.kill();
        run.tally.elapsed = started.elapsed();
        let ledger = run.site.ledger();
        let is_clean = ledger.all_breaches() == 0;
        let kept = if is_clean { None } else { Some(folder.keep()) };
        Ok(run.tally.report(settings, &ledger, kept))
    }

    /// Starts the readers, the publishers when the readers have subscribed, and waits until a message of each
    /// publisher was acknowledged.
    async fn begin(&mut self) -> Result<(), String> {
        self.cast.start_readers();
        let interests = self.cast.interests;
        self.wait(|run| run.site.ledger().granted_interests() >= interests)
            .await
            .map_err(|()| {
                let ledger = self.site.ledger();
                let names = ledger.unanswered_readers().join(", ");
                format!("readers wait for their subscriptions: {names}")
            })?;
        self.cast.start_publishers();
        self.site.set_phase(Phase::Load);
        let publishers = self.cast.publishers;
        self.wait(|run| run.site.ledger().heard_publishers() >= publishers)
            .await
            .map_err(|()| {
                let waiting = self.site.ledger().waiting();
                let texts: Vec<String> = waiting.into_iter().map(|(_, _, text)| text).collect();
                format!("publishers wait for an answer: {}", texts.join(", "))
            })?;
        self.cast.start_passers_by();
        Ok(())
    }

    /// Waits until a condition holds, as long as an answer may take.
    async fn wait(&self, is_so: impl Fn(&Self) -> bool) -> Result<(), ()> {
        let started = Instant::now();
        while !is_so(self) {
            if started.elapsed() > ANSWER_LIMIT {
                return Err(());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Makes all kills and comparisons. An error says that the broker does not start again.
    async fn kill_all(&mut self) -> Result<(), String> {
        if self.settings.kills == 0 {
            self.site.set_phase(Phase::Load);
            tokio::time::sleep(UNDISTURBED).await;
            return self.compare().await;
        }
        while self.tally.kills < self.settings.kills {
            let left = u64::from(self.settings.kills - self.tally.kills);
            let together = 1 + self.random.next_u64() % MAX_KILLS_TOGETHER.min(left);
            for _ in 0..together {
                let moment = Moment::choose(&mut self.random);
                self.site.set_phase(Phase::Load);
                self.live(moment).await?;
                if self.tally.kills >= self.settings.kills {
                    break;
                }
            }
            self.compare().await?;
            self.tell();
        }
        Ok(())
    }

    /// One life of the broker, which listens already, its end, and the start of the next one.
    async fn live(&mut self, moment: Moment) -> Result<(), String> {
        match moment {
            Moment::Loaded(after) => tokio::time::sleep(after).await,
            Moment::Acknowledged(others) => self.answered(others).await,
            Moment::Resting => {
                self.rest().await;
                self.tally.kills_at_rest += 1;
            }
            // That would be two kills, or no start.
            Moment::Starting(after)
                if self.settings.doing != Doing::Kills
                    || self.tally.kills + 1 == self.settings.kills =>
            {
                tokio::time::sleep(after).await;
            }
            Moment::Starting(after) => {
                self.kill().await?;
                self.start()?;
                tokio::time::sleep(after).await;
                self.tally.kills += 1;
                self.tally.kills_at_start += 1;
            }
        }
        self.tally.kills += 1;
        if self.settings.doing != Doing::Kills {
            let weather = match self.settings.doing {
                Doing::Faults => Weather::choose(&mut self.random, self.tally.kills),
                Doing::Kills | Doing::Cuts => Weather::Cut,
            };
            if let Some(index) = weather.index() {
                self.tally.faults[index] += 1;
            }
            self.site.set_weather(weather);
            let pause = Duration::from_millis(self.random.next_u64() % LONGEST_CUT_MS);
            tokio::time::sleep(pause).await;
            self.site.set_weather(Weather::Clear);
            return Ok(());
        }
        self.kill().await?;
        let pause = Duration::from_millis(self.random.next_u64() % 200);
        tokio::time::sleep(pause).await;
        self.start()?;
        let started = Instant::now();
        self.broker.ready(START_LIMIT).await?;
        self.tally.slowest_start = self.tally.slowest_start.max(started.elapsed());
        Ok(())
    }

    fn start(&self) -> Result<(), String> {
        self.site.ledger().life_begins();
        self.broker.start().map_err(mqtt::text)
    }

    /// Kills the broker, and waits until clients have read all that it had sent. A copy counts for the life in which it
    /// is read, and one that comes in a later life is proof that its message was kept.
    async fn kill(&self) -> Result<(), String> {
        if let Some(status) = self.broker.ended() {
            let tail = self.broker.tail();
            return Err(format!("it ended by itself with {status}{tail}"));
        }
        self.broker.kill();
        let killed = Instant::now();
        let mut copies = None;
        while killed.elapsed() < READ_LIMIT {
            let before = copies.replace(self.site.ledger().copies());
            if before == copies {
                break;
            }
            tokio::time::sleep(READ_PAUSE).await;
        }
        Ok(())
    }

    /// Ends the broker in the moment of an acknowledgement.
    async fn answered(&self, others: u64) {
        let life = self.broker.life();
        let (site, kills) = (self.site.clone(), self.settings.doing == Doing::Kills);
        let has_come = Arc::new(AtomicBool::new(false));
        let coming = Arc::clone(&has_come);
        let act = Box::new(move || {
            coming.store(true, Ordering::Relaxed);
            if kills {
                life.kill();
            } else {
                site.set_weather(Weather::Cut);
            }
        });
        self.site.ledger().set_alarm(Some((others, act)));
        let started = Instant::now();
        while !has_come.load(Ordering::Relaxed) && started.elapsed() < ALARM_LIMIT {
            tokio::time::sleep(POLL).await;
        }
        self.site.ledger().set_alarm(None);
    }

    /// Has the publishers rest, and waits until all they sent is answered.
    async fn rest(&self) {
        self.site.set_phase(Phase::Rest);
        let started = Instant::now();
        while self.site.ledger().pending() > 0 && started.elapsed() < ANSWER_LIMIT {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Reads what is left, and compares the ledgers.
    async fn compare(&mut self) -> Result<(), String> {
        self.rest().await;
        // Half of the time the log alone can have what is left to read.
        if self.random.happens(0.5) && self.tally.kills < self.settings.kills {
            self.live(Moment::Resting).await?;
        }
        let waiting = self.site.ledger().waiting();
        for (protocol, name, text) in waiting {
            self.site.complain(Promise::Serving, protocol, &name, text);
        }
        self.site.set_phase(Phase::Drain);
        let mut copies = self.site.ledger().copies();
        let mut heard = Instant::now();
        while self.site.ledger().missing() > 0 && heard.elapsed() < SILENCE_LIMIT {
            tokio::time::sleep(POLL).await;
            let now = self.site.ledger().copies();
            if now != copies {
                copies = now;
                heard = Instant::now();
            }
        }
        tokio::time::sleep(AFTERWARDS).await;
        self.site.ledger().close();
        self.compare_retained().await;
        self.tally.comparisons += 1;
        if let Some(status) = self.broker.ended() {
            return Err(format!(
                "it ended by itself with {status}{}",
                self.broker.tail()
            ));
        }
        Ok(())
    }

    async fn compare_retained(&self) {
        let site = &self.site;
        let topics = &self.cast.retained;
        let limit = ANSWER_LIMIT;
        let late = || Err("no answer".to_owned());
        let asked = tokio::time::timeout(limit, http::retained(site, Door::Http, topics));
        match asked.await.unwrap_or_else(|_| late()) {
            Ok(found) => {
                let mut ledger = site.ledger();
                for (topic, payload) in found {
                    ledger.judge_retained(Protocol::Http, &topic, payload.as_deref());
                }
            }
            Err(error) => site.complain(Promise::Serving, Protocol::Http, "retained", error),
        }
        let late = || Err("no answer".to_owned());
        let subscribed = tokio::time::timeout(limit, mqtt::retained(site, Door::Mqtt, "r/#"));
        match subscribed.await.unwrap_or_else(|_| late()) {
            Ok(found) => {
                let mut ledger = site.ledger();
                for topic in topics {
                    let mut found = found.iter().filter(|(name, _)| name == topic);
                    let payload = found.next().map(|(_, payload)| payload.as_slice());
                    ledger.judge_retained(Protocol::Mqtt, topic, payload);
                }
            }
            Err(error) => site.complain(Promise::Serving, Protocol::Mqtt, "retained", error),
        }
    }

    /// Says how far the run is, and what was broken since the last time: a long run may be cut off.
    fn tell(&mut self) {
        let ledger = self.site.ledger();
        for violation in ledger.violations().iter().skip(self.told) {
            (self.progress)(&format!("- {violation}"));
        }
        let told = ledger.violations().len();
        let acknowledged: u64 = (Protocol::ALL.iter())
            .map(|protocol| ledger.counts(*protocol).acknowledged)
            .sum();
        let line = format!(
            "{} of {} kills, {acknowledged} acknowledged, {} violations",
            self.tally.kills,
            self.settings.kills,
            ledger.all_breaches()
        );
        drop(ledger);
        self.told = told;
        (self.progress)(&line);
    }
}
