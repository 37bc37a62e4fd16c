//! Other regions. Each is a cluster of its own, with a JetStream of its own. It goes on by itself while the way to
//! the others is down.
//!
//! Messages that leave a region are appended to one stream of it ([`OUT`]). The log of each other region has that
//! stream as a source. NATS copies new entries as soon as it can, in order and once. So messages of other regions
//! come by in the log. Only messages of this region's own clients are exported, so nothing goes in circles.

mod export;
mod import;
mod versions;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, External, Info, Source, SubjectTransform,
};
use futures_util::future::join_all;
use sterna_broker::{Message, NodeSet};
use tokio::sync::Notify;

pub(super) use export::{Waiting, dated};
pub(super) use versions::Standing;
use versions::Versions;

use super::streams::{LOG, NODES, RETAINED};
use super::writing::as_last;
use super::{Core, retained};
use crate::report::RegionView;
use crate::settings::Settings;
use crate::subjects;
use crate::table::OUTSIDE;

/// Messages that leave a region.
pub(super) const OUT: &str = "OUT";

/// The oldest server of NATS that remembers how far it has copied a stream after what it has copied was removed.
const LEAST_NATS: (i64, i64) = (2, 15);

/// How often is looked what waits, and told what has come.
const LOOK: Duration = Duration::from_secs(1);

/// Looks after which what has come is told again, also where it is the same.
const TOLD_AGAIN: u64 = 10;

/// The part of the bytes at which publishers are refused.
const FULL_EIGHTHS: u64 = 7;

/// The form of a word between regions.
const FORM: &str = "1";

/// The last of this region's entries that another region has said to have.
#[derive(Clone, Copy, Debug)]
struct Has {
    sequence: u64,
    heard_ms: u64,
}

/// The state that the tasks of regions share.
#[derive(Default)]
pub(super) struct Regions {
    waiting: RefCell<VecDeque<Waiting>>,
    arrived: Notify,
    is_full: Cell<bool>,
    /// Bytes that wait in NATS, as it said, and those that this node has handed over since.
    bytes: Cell<u64>,
    /// The last entry that has come from each region.
    came: RefCell<BTreeMap<String, import::Last>>,
    /// By region.
    has: RefCell<BTreeMap<String, Has>>,
    versions: RefCell<Versions>,
}

impl Regions {
    /// Notes a region's last retained message of a topic, and its place in this region's stream.
    pub(super) fn note_version(&self, region: &str, position: u64, message: &Message) -> Standing {
        (self.versions.borrow_mut()).replaces(message.topic(), region);
        self.versions.borrow_mut().note(
            message.topic(),
            (region, position),
            message.published_ms(),
            message.expires_at_ms(),
            message.payload().is_empty(),
        )
    }

    /// The region whose retained message of a topic is the newest.
    pub(super) fn newest_of(&self, topic: &str) -> Option<String> {
        self.versions.borrow().newest(topic).map(str::to_owned)
    }
}

/// The stream of what leaves this region, after the manner of `base`; `None` where nothing does.
pub(super) fn out(settings: &Settings, base: Config) -> Option<Config> {
    let region = settings.region.as_ref()?;
    if region.remotes.is_empty() {
        return None;
    }
    Some(Config {
        discard: if region.refuses_when_full {
            DiscardPolicy::New
        } else {
            DiscardPolicy::Old
        },
        max_bytes: i64::try_from(region.waiting_bytes).unwrap_or(i64::MAX),
        ..base
    })
}

/// All that other regions send, for the log.
pub(super) fn sources_of_log(settings: &Settings) -> Option<Vec<Source>> {
    sources(settings, |_| {
        let kinds = subjects::OUT_KINDS.into_iter();
        let all = kinds.map(|kind| (subjects::out(kind, ">"), subjects::log(">")));
        all.collect()
    })
}

/// The retained messages that other regions send, each region's beside the others'.
pub(super) fn sources_of_retained(settings: &Settings) -> Option<Vec<Source>> {
    sources(settings, |region| {
        let [retained, _] = subjects::OUT_KINDS;
        let from = subjects::out(retained, ">");
        vec![(from, subjects::retained_of(region, ">"))]
    })
}

fn sources(
    settings: &Settings,
    places: impl Fn(&str) -> Vec<(String, String)>,
) -> Option<Vec<Source>> {
    let region = settings.region.as_ref()?;
    let of_remote = region.remotes.iter().map(|remote| {
        let transforms = places(&remote.name).into_iter();
        let transforms = transforms.map(|(from, to)| SubjectTransform {
            source: settings.subject_of(&remote.name, &from),
            destination: settings.subject(&to),
        });
        Source {
            name: settings.stream_of(&remote.name, OUT),
            external: Some(External {
                api_prefix: format!("$JS.{}.API", remote.domain),
                delivery_prefix: None,
            }),
            subject_transforms: transforms.collect(),
            ..Source::default()
        }
    });
    Some(of_remote.collect()).filter(|all: &Vec<Source>| !all.is_empty())
}

impl Core {
    /// Whether there are other regions that messages go to.
    pub(super) fn has_outside(&self) -> bool {
        !self.settings.exported().is_empty()
    }

    /// Whether the server of NATS can do what regions need.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(super) fn may_have_regions(&self) -> Result<(), String> {
        let (major, minor) = LEAST_NATS;
        let remotes = self
            .settings
            .region
            .iter()
            .map(|region| region.remotes.len());
        if remotes.sum::<usize>() == 0 || self.client.is_server_compatible(major, minor, 0) {
            return Ok(());
        }
        Err(format!(
            "cluster.remote_regions need NATS {major}.{minor} or later, and this server has {}",
            self.client.server_info().version
        ))
    }

    /// Gives a stream the sources that it is to have, and that of what leaves the region its bounds.
    pub(super) async fn set_sources(&self, wanted: &Config, found: &Info) -> Result<(), String> {
        let plain = |sources: &Option<Vec<Source>>| {
            let all = sources.iter().flatten();
            let mut all: Vec<_> = all
                .map(|one| {
                    let prefix = one
                        .external
                        .as_ref()
                        .map(|external| external.api_prefix.clone());
                    (one.name.clone(), prefix, one.subject_transforms.clone())
                })
                .collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        };
        let bounds = |config: &Config| (config.max_bytes, config.discard);
        let is_out = wanted.name == self.settings.stream(OUT);
        let has_bounds = !is_out || bounds(wanted) == bounds(&found.config);
        if has_bounds && plain(&wanted.sources) == plain(&found.config.sources) {
            return Ok(());
        }
        let mut config = Config {
            sources: wanted.sources.clone(),
            ..found.config.clone()
        };
        if is_out {
            (config.max_bytes, config.discard) = bounds(wanted);
        }
        let updated = self.jetstream.update_stream(config).await;
        updated.map_err(|error| format!("stream {}: its regions: {error}", wanted.name))?;
        tracing::info!(
            stream = wanted.name,
            sources = wanted.sources.iter().flatten().count(),
            "the stream follows the configuration of regions"
        );
        Ok(())
    }

    /// Learns what has come from other regions before this start.
    pub(super) async fn learn_what_came(&self) -> Result<(), String> {
        let Some(region) = &self.settings.region else {
            return Ok(());
        };
        for remote in &region.remotes {
            if let Some(found) = self
                .last_of_subject(NODES, &subjects::came(&remote.name))
                .await?
                && let Some(last) = import::Last::read(&found.payload)
            {
                self.regions
                    .came
                    .borrow_mut()
                    .insert(remote.name.clone(), last);
            }
        }
        Ok(())
    }

    /// Looks after what waits for other regions, and tells them what has come of theirs.
    pub(super) async fn look_after_regions(self: Rc<Self>) {
        let Some(region) = self.settings.region.clone() else {
            return;
        };
        let (mut told, mut looks) = (BTreeMap::new(), 0_u64);
        let mut cleared = 0;
        let mut to_remove = Vec::new();
        loop {
            tokio::time::sleep(LOOK).await;
            looks += 1;
            if !self.status.is_connected() {
                continue;
            }
            if self.has_outside() {
                self.look_at_out(&mut cleared).await;
            }
            let now_ms = self.wall_ms();
            let cleared = (self.regions.versions.borrow_mut()).forget_before(now_ms, &region.name);
            to_remove.extend(cleared);
            // Writes of this region remove those before them; copies that NATS makes do not.
            let replaced = (self.regions.versions.borrow_mut()).take_replaced();
            to_remove.extend(replaced.into_iter().filter(|one| one.region != region.name));
            if !self.table.borrow().is_first() {
                to_remove.clear();
                continue;
            }
            to_remove = self.remove_cleared(to_remove).await;
            for remote in &region.remotes {
                let came = self.regions.came.borrow().get(&remote.name).cloned();
                let Some(last) = came else { continue };
                let is_news = told.get(&remote.name) != Some(&last);
                if is_news || looks.is_multiple_of(TOLD_AGAIN) {
                    self.tell_what_came(&remote.name, &last).await;
                    told.insert(remote.name.clone(), last);
                }
            }
        }
    }

    /// Removes retained messages of regions that have expired, or that another message has cleared or replaced. Returns
    /// those that NATS may still have.
    async fn remove_cleared(&self, cleared: Vec<versions::Cleared>) -> Vec<versions::Cleared> {
        let mut left = Vec::new();
        let Ok(stream) = self.stream(RETAINED).await else {
            return cleared;
        };
        for some in cleared.chunks(self.settings.maximum_in_flight) {
            let removals = some.iter().map(async |one| {
                let subject = self.retained_subject(&one.region, &one.topic);
                // Later messages of its region lie behind that.
                let purge = stream.purge().filter(subject).sequence(one.position + 1);
                (one, purge.await.is_ok())
            });
            for (one, is_removed) in join_all(removals).await {
                if is_removed {
                    self.regions.versions.borrow_mut().was_removed(one);
                } else {
                    left.push(one.clone());
                }
            }
        }
        left
    }

    /// Where the last retained message of a region lies.
    pub(super) fn retained_subject(&self, region: &str, topic: &str) -> String {
        let own = self.settings.region.as_ref().map(|own| &*own.name);
        let place = retained::place(topic);
        self.settings.subject(&if own == Some(region) {
            subjects::retained(&place)
        } else {
            subjects::retained_of(region, &place)
        })
    }

    /// Tells a region how far its messages have come, and notes it for those who start later.
    async fn tell_what_came(&self, remote: &str, last: &import::Last) {
        let own = self.settings.region.iter().map(|region| &*region.name);
        let own: String = own.collect();
        let subject = self.settings.subject_of(remote, &subjects::taken(&own));
        let line = format!("{FORM} {}", last.sequence);
        // Both are told again soon.
        let _ = self.client.publish(subject, line.into()).await;
        let note = self.settings.subject(&subjects::came(remote));
        let word = as_last(PublishMessage::build().payload(last.write().into()));
        if let Ok(noted) = self.jetstream.send_publish(note, word).await {
            let _ = noted.await;
        }
    }

    /// Hears how far this region's messages have come elsewhere.
    pub(super) async fn hear_regions(self: Rc<Self>) {
        // Without other regions nobody says so, and the node may lack the right.
        let mut regions = self.settings.region.iter();
        if regions.all(|own| own.remotes.is_empty()) {
            return;
        }
        let hear = async |word: async_nats::Message| {
            let region = word.subject.rsplit('.').next().unwrap_or_default();
            let line = std::str::from_utf8(&word.payload).unwrap_or_default();
            let sequence = line
                .strip_prefix(FORM)
                .and_then(|rest| rest.trim().parse().ok());
            let remotes = self.settings.region.iter().flat_map(|own| &own.remotes);
            let is_known = remotes.into_iter().any(|remote| remote.name == region);
            let (Some(sequence), true) = (sequence, is_known) else {
                tracing::debug!(region, line, "a region's word is not understood");
                return;
            };
            let heard_ms = self.now_ms();
            let has = Has { sequence, heard_ms };
            self.regions.has.borrow_mut().insert(region.to_owned(), has);
        };
        self.hear_each(&subjects::taken("*"), hear).await;
    }

    /// The last entry that all other regions have; 0 where one has not said so.
    fn all_have(&self) -> u64 {
        let has = self.regions.has.borrow();
        let remotes = self.settings.region.iter().flat_map(|own| &own.remotes);
        let each = remotes.map(|remote| has.get(&remote.name).map_or(0, |has| has.sequence));
        each.min().unwrap_or(0)
    }

    /// Refuses publishers while too much waits, and removes what all have.
    async fn look_at_out(&self, cleared: &mut u64) {
        let Ok(info) = self.look_at_stream(OUT).await else {
            return;
        };
        let state = info.state;
        self.status.region_bytes.set(state.bytes);
        self.regions.bytes.set(state.bytes);
        self.note_room();
        let all_have = self.all_have().min(state.last_sequence);
        let is_news = all_have > *cleared && all_have >= state.first_sequence;
        if !is_news || !self.table.borrow().is_first() {
            return;
        }
        if let Ok(stream) = self.stream(OUT).await
            && stream.purge().sequence(all_have + 1).await.is_ok()
        {
            *cleared = all_have;
        }
    }

    /// Counts what is handed over: NATS says only now and then how much waits.
    fn note_handed_over(&self, bytes: usize) {
        self.regions
            .bytes
            .set(self.regions.bytes.get() + bytes as u64);
        self.note_room();
    }

    fn note_room(&self) {
        let Some(region) = &self.settings.region else {
            return;
        };
        let bytes = self.regions.bytes.get();
        let is_full = region.refuses_when_full && bytes >= region.waiting_bytes / 8 * FULL_EIGHTHS;
        if self.regions.is_full.replace(is_full) == is_full {
            return;
        }
        let mut full = NodeSet::EMPTY;
        if is_full {
            full.insert(OUTSIDE);
            tracing::warn!(
                bytes,
                "too much waits for other regions (cluster.maximum_region_bytes): publishers of what crosses are \
                 refused"
            );
        } else {
            tracing::info!(bytes, "there is room again for messages to other regions");
        }
        self.gate.set_full(full);
    }

    /// Other regions, for a report.
    pub(super) async fn region_views(&self) -> Vec<RegionView> {
        let Some(region) = &self.settings.region else {
            return Vec::new();
        };
        let (mut out, mut log) = (None, None);
        if self.status.has_joined.load(Ordering::Acquire) {
            out = self
                .jetstream
                .get_stream(self.settings.stream(OUT))
                .await
                .ok();
            let stream = self.settings.stream(LOG);
            log = self.jetstream.get_stream(stream).await.ok();
        }
        let (has, now_ms) = (self.regions.has.borrow(), self.now_ms());
        let views = region.remotes.iter().map(|remote| {
            let has = has.get(&remote.name);
            let source = self.settings.stream_of(&remote.name, OUT);
            let sources = log.iter().flat_map(|log| &log.cached_info().sources);
            let mut source = sources.filter(|found| found.name == source);
            RegionView {
                region: remote.name.clone(),
                waiting: out.as_ref().map(|out| {
                    let state = &out.cached_info().state;
                    let gone = state.first_sequence.saturating_sub(1);
                    let last = has.map_or(0, |has| has.sequence).max(gone);
                    state.last_sequence.saturating_sub(last)
                }),
                heard_ms: has.map(|has| now_ms - has.heard_ms),
                behind: source.next().map(|source| source.lag),
            }
        });
        views.collect()
    }
}
