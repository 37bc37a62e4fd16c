//! One shard's replica of the routing index: which queues a topic's messages go to.
//!
//! A message is routed by its topic and keeps it, so what a subscriber gets matches what it asked for.
//! [MQTT-3.3.2-3] [MQTT311-3.3.2-3]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::broker::Reach;
use crate::cache::{Lookup, MatchCache, Matches};
use crate::copies;
use crate::fill::Fill;
use crate::filter::is_topic;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::hash::KeyedState;
use crate::levels::{LevelTree, Scratch};
use crate::limits::Limits;
use crate::message::Message;
use crate::peers::{Interest, OwnInterest, Wanted, WantedIndex};
use crate::queue_rules::QueueRules;
use crate::route::{Context, Place, RouteFlags, RouteUpdate, Target, topics_of_shared};
use crate::routes::{Route, Routes};
use crate::store::Share;

/// A match on its way to becoming a target.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) flags: RouteFlags,
    pub(crate) context: Option<Arc<Context>>,
}

/// Where the index has what it found for a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// In the cache, at this place.
    Remembered(usize),
    /// Outside of it.
    Fresh,
}

/// Topics of what is told of single clients. It is gathered only while somebody subscribes below.
const INSPECTION: &str = "$SYS/sterna/clients/";

/// Tells groups that sleep from sessions.
const SLEEPING_GROUP: u32 = 1 << 31;

/// Groups that have ended, and whose shards are still known.
const ENDED_GROUPS: usize = 1_024;

/// The facts known of a group on every shard.
#[derive(Debug)]
struct Home {
    shard: u16,
    /// The whole filter, `$share/NAME/FILTER`.
    filter: Arc<str>,
    /// Of a kept queue: how full it is.
    fill: Option<Arc<Fill>>,
    rules: Option<Arc<QueueRules>>,
    /// Whether its messages of QoS 1 and 2 are appended to the log.
    is_durable: bool,
}

/// The sessions and groups with routes at one filter.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    /// Sessions, by their subscriber numbers.
    pub(crate) sessions: Vec<u32>,
    /// Shared subscriptions whose queue is not kept.
    pub(crate) groups: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    shard: u16,
    shards: u16,
    hashing: KeyedState,
    /// Sessions' places by subscriber number.
    places: Vec<Place>,
    /// Groups by their number.
    homes: FxHashMap<u32, Home>,
    /// In a cluster: the shards of groups that have ended, the oldest first, for what members still have of them.
    ended: VecDeque<(u32, u16)>,
    /// Whether roots get what groups are for.
    is_clustered: bool,
    /// Those whose queue is kept.
    kept_groups: usize,
    /// Filters without wildcards.
    exact: HashMap<Arc<str>, Routes, KeyedState>,
    /// Filters with.
    wild: LevelTree<Routes>,
    /// Routes below [`INSPECTION`].
    inspecting: usize,
    /// In a cluster: what kept queues take, also at QoS 0.
    queues: WantedIndex,
    /// The filters that other nodes want.
    wanted: WantedIndex,
    /// The filters of sessions that have gone to other nodes, until these are known to want them.
    handed_over: WantedIndex,
    /// The filters of this node that other nodes are told; `None` where nobody asks this shard.
    own_interest: Option<Box<OwnInterest>>,
    /// Names that other nodes are told as if they were filters with a reader.
    announced: FxHashSet<Arc<str>>,
    cache: MatchCache,
    cache_targets: usize,
    scratch: Scratch,
    found: Vec<Found>,
    /// The result where it is not remembered.
    fresh: Matches,
}

/// The longest topic whose matches are remembered, in bytes. Remembered matches may keep their memory after routes
/// change, until another topic takes their place.
const LONGEST_REMEMBERED_BYTES: usize = 256;

impl Index {
    pub(crate) fn new(shard: u16, shards: u16, limits: &Limits, hashing: KeyedState) -> Self {
        Self {
            shard,
            shards,
            hashing,
            places: Vec::new(),
            homes: FxHashMap::default(),
            ended: VecDeque::new(),
            is_clustered: false,
            kept_groups: 0,
            exact: HashMap::with_hasher(hashing),
            wild: LevelTree::new(hashing),
            inspecting: 0,
            queues: WantedIndex::new(hashing),
            wanted: WantedIndex::new(hashing),
            handed_over: WantedIndex::new(hashing),
            own_interest: None,
            announced: FxHashSet::default(),
            cache: MatchCache::new(limits.match_cache_topics, hashing),
            cache_targets: limits.match_cache_targets,
            scratch: Scratch::default(),
            found: Vec::new(),
            fresh: Matches::default(),
        }
    }

    /// Where a session with subscriptions is.
    pub(crate) fn place(&self, subscriber: u32) -> Option<Place> {
        self.places.get(subscriber as usize).copied()
    }

    /// Has groups get nothing of what matches: in a cluster, their roots do.
    pub(crate) const fn set_clustered(&mut self) {
        self.is_clustered = true;
    }

    /// The numbers of all groups.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u32> {
        self.homes.keys().copied()
    }

    /// The shard where a group's queue is; `None` once the group has ended. In a cluster it may be known for longer.
    pub(crate) fn home(&self, group: u32) -> Option<u16> {
        let known = self.homes.get(&group).map(|home| home.shard);
        known.or_else(|| {
            let ended = self.ended.iter().rev().find(|(known, _)| *known == group);
            ended.map(|&(_, shard)| shard)
        })
    }

    /// The whole filter of a group, also of one that lives on another shard.
    pub(crate) fn filter_of_group(&self, group: u32) -> Option<&str> {
        self.homes.get(&group).map(|home| &*home.filter)
    }

    /// The rules of a group's queue, where it has some.
    pub(crate) fn rules(&self, group: u32) -> Option<&Arc<QueueRules>> {
        self.homes.get(&group)?.rules.as_ref()
    }

    /// Whether some queue is kept, which is to say, may refuse a publication.
    pub(crate) const fn has_kept_groups(&self) -> bool {
        self.kept_groups > 0
    }

    /// Applies the next entry of the route log.
    pub(crate) fn apply(&mut self, update: &RouteUpdate) {
        match update {
            RouteUpdate::Placed { id, place, moved } => {
                let at = *id as usize;
                if self.places.len() <= at {
                    self.places.resize(at + 1, Place::default());
                }
                self.places[at] = *place;
                if *moved {
                    self.cache.outdate_all();
                }
            }
            RouteUpdate::Subscribed {
                id,
                filter,
                flags,
                context,
            } => {
                if let Some(own) = &mut self.own_interest {
                    own.note(filter, flags.qos().is_acknowledged());
                }
                self.add(filter, Some(filter), *id, *flags, context.clone());
            }
            RouteUpdate::Slept {
                id,
                filter,
                is_kept,
            } => {
                if let Some(own) = &mut self.own_interest {
                    own.note(filter, *is_kept);
                }
                self.put_to_sleep(filter, *id, *is_kept);
            }
            RouteUpdate::Unsubscribed { id, filter } => {
                if let Some(own) = &mut self.own_interest {
                    own.note(filter, false);
                }
                self.remove_route(filter, *id, false);
            }
            RouteUpdate::Peers { filter, wanted } => {
                let wild = is_wild(filter);
                self.wanted.set(filter, wild, *wanted);
                self.cache.outdate(filter, wild);
            }
            RouteUpdate::HandedOver { filter, holds } => {
                if *holds && let Some(own) = &mut self.own_interest {
                    own.hand_over(filter);
                }
                let wild = is_wild(filter);
                let wanted = Wanted {
                    is_durable: *holds,
                    ..Wanted::NOBODY
                };
                self.handed_over.set(filter, wild, wanted);
                self.cache.outdate(filter, wild);
            }
            RouteUpdate::Joined { group, filter, .. } => {
                // Only the first member makes a route. Its options are the members' business.
                if !self.homes.contains_key(group) {
                    let shard = Share::home(filter, self.shards);
                    self.homes.insert(
                        *group,
                        Home {
                            shard,
                            filter: Arc::clone(filter),
                            fill: None,
                            rules: None,
                            is_durable: false,
                        },
                    );
                    let topics = topics_of_shared(filter);
                    if self.is_clustered {
                        self.group_sleeps(topics, *group, true);
                    } else {
                        self.add(topics, None, *group, RouteFlags::GROUP_ROUTE, None);
                    }
                }
            }
            RouteUpdate::Kept {
                group,
                filter,
                fill,
                rules,
                is_durable,
                ..
            } => {
                if let Some(home) = self.homes.get_mut(group) {
                    self.kept_groups += usize::from(fill.is_some());
                    self.kept_groups -= usize::from(home.fill.is_some());
                    home.fill.clone_from(fill);
                    home.rules.clone_from(rules);
                    home.is_durable = *is_durable;
                    let topics = topics_of_shared(filter);
                    if self.is_clustered {
                        self.note_queue(topics);
                    }
                    self.cache.outdate(topics, is_wild(topics));
                }
            }
            RouteUpdate::Left { .. } => {}
            RouteUpdate::GroupEnded { group, filter } => {
                let topics = topics_of_shared(filter);
                if self.is_clustered {
                    self.group_sleeps(topics, *group, false);
                } else {
                    self.remove_route(topics, *group, true);
                }
                if let Some(home) = self.homes.remove(group) {
                    if self.is_clustered {
                        if self.ended.len() >= ENDED_GROUPS {
                            self.ended.pop_front();
                        }
                        self.ended.push_back((*group, home.shard));
                    }
                    self.kept_groups -= usize::from(home.fill.is_some());
                    if self.is_clustered && home.fill.is_some() {
                        self.note_queue(topics);
                    }
                }
            }
        }
    }

    /// Notes whether a queue of a cluster takes what a filter matches.
    fn note_queue(&mut self, topics: &str) {
        let mut homes = self.homes.values();
        let is_durable =
            homes.any(|home| home.fill.is_some() && topics_of_shared(&home.filter) == topics);
        let wanted = Wanted {
            is_durable,
            ..Wanted::NOBODY
        };
        self.queues.set(&Arc::from(topics), is_wild(topics), wanted);
    }

    fn add(
        &mut self,
        filter: &str,
        shared_text: Option<&Arc<str>>,
        id: u32,
        flags: RouteFlags,
        context: Option<Arc<Context>>,
    ) {
        let (wild, hashing) = (is_wild(filter), self.hashing);
        let routes = self.routes_at(filter, shared_text);
        if !flags.is_group() {
            routes.wake(id);
        }
        let is_new = routes.enter(id, Route { flags, context }, hashing);
        if is_new && filter.starts_with(INSPECTION) {
            self.inspecting += 1;
        }
        self.cache.outdate(filter, wild);
    }

    /// The routes at a filter; they are made where there are none.
    fn routes_at(&mut self, filter: &str, shared_text: Option<&Arc<str>>) -> &mut Routes {
        if is_wild(filter) {
            self.wild.get_or_insert_with(filter, Routes::default)
        } else {
            // All shards' replicas and the session share the one text.
            let text = shared_text.map_or_else(|| Arc::from(filter), Arc::clone);
            self.exact.entry(text).or_default()
        }
    }

    /// Takes a session's route out, and notes that the session sleeps.
    fn put_to_sleep(&mut self, filter: &Arc<str>, id: u32, is_kept: bool) {
        let hashing = self.hashing;
        let routes = self.routes_at(filter, Some(filter));
        let had_route = routes.leave(id, false);
        let is_seen = routes.put_to_sleep(id, is_kept, hashing) || had_route;
        if had_route && filter.starts_with(INSPECTION) {
            self.inspecting -= 1;
        }
        if is_seen {
            self.cache.outdate(filter, is_wild(filter));
        }
    }

    /// A group of a cluster gets its messages from its root, which reads them in the log. So the group is as a
    /// session that sleeps.
    fn group_sleeps(&mut self, topics: &str, group: u32, begins: bool) {
        let topics = Arc::from(topics);
        if let Some(own) = &mut self.own_interest {
            own.note(&topics, begins);
        }
        if begins {
            self.put_to_sleep(&topics, group | SLEEPING_GROUP, true);
        } else {
            self.remove_route(&topics, group | SLEEPING_GROUP, false);
        }
    }

    fn remove_route(&mut self, filter: &str, id: u32, is_group: bool) {
        let wild = is_wild(filter);
        let routes = if wild {
            self.wild.get_mut(filter)
        } else {
            self.exact.get_mut(filter)
        };
        if let Some(routes) = routes {
            if !is_group {
                routes.wake(id);
            }
            if routes.leave(id, is_group) && filter.starts_with(INSPECTION) {
                self.inspecting -= 1;
            }
            if routes.is_empty() {
                if wild {
                    self.wild.remove(filter);
                } else {
                    self.exact.remove(filter);
                    if self.exact.capacity() > 1024 && self.exact.capacity() > 8 * self.exact.len()
                    {
                        self.exact.shrink_to_fit();
                    }
                }
            }
        }
        self.cache.outdate(filter, wild);
    }

    /// The sessions and groups with routes at exactly this filter; groups with kept queues are left out.
    pub(crate) fn subscribers(&self, filter: &str) -> Subscribers {
        let routes = if is_wild(filter) {
            self.wild.get(filter)
        } else {
            self.exact.get(filter)
        };
        let mut subscribers = Subscribers::default();
        if self.is_clustered {
            let homes = self.homes.iter();
            let here = homes.filter(|(_, home)| topics_of_shared(&home.filter) == filter);
            let groups = here.filter(|(_, home)| home.fill.is_none());
            subscribers.groups.extend(groups.map(|(&group, _)| group));
        }
        if let Some(routes) = routes {
            routes.each_asleep(|id| subscribers.sessions.push(id));
        }
        for (id, flags, _) in routes.into_iter().flat_map(Routes::awake) {
            if !flags.is_group() {
                subscribers.sessions.push(id);
            } else if self.homes.get(&id).is_some_and(|home| home.fill.is_none()) {
                subscribers.groups.push(id);
            }
        }
        subscribers
    }

    /// Whether other nodes have readers of exactly this filter, which has no wildcard.
    pub(crate) fn is_wanted(&self, filter: &str) -> bool {
        self.wanted.has(filter)
    }

    /// Tells other nodes a name, or no longer. It counts as a filter, and gets no message.
    pub(crate) fn announce(&mut self, name: Arc<str>, is_there: bool) {
        if let Some(own) = &mut self.own_interest {
            own.note(&name, false);
            if is_there {
                self.announced.insert(name);
            } else {
                self.announced.remove(&name);
            }
        }
    }

    /// Begins to note which filters have readers. To be called while there are none.
    pub(crate) fn note_interest(&mut self) {
        self.own_interest = Some(Box::default());
    }

    /// The filters whose readers have changed for other nodes since the last time.
    pub(crate) fn take_interest(&mut self) -> Vec<(Arc<str>, Interest)> {
        let Some(own) = &mut self.own_interest else {
            return Vec::new();
        };
        let (exact, wild, announced) = (&self.exact, &self.wild, &self.announced);
        let routes = |filter: &str| {
            if is_wild(filter) {
                wild.get(filter)
            } else {
                exact.get(filter)
            }
        };
        own.take(
            |filter| announced.contains(filter) || routes(filter).is_some_and(Routes::has_session),
            |filter| {
                let highest = routes(filter).map_or(Interest::None, Routes::highest_interest);
                if announced.contains(filter) {
                    highest.max(Interest::AtMostOnce)
                } else {
                    highest
                }
            },
        )
    }

    /// Whether somebody wants to know of single clients.
    pub(crate) const fn is_inspected(&self) -> bool {
        self.inspecting > 0
    }

    /// The queues a message goes to; `None` where its topic is not a topic name.
    pub(crate) fn matches(&mut self, message: &Message, limits: &Limits) -> Option<&Matches> {
        let place = self.look_up(message.topic_bytes(), limits)?;
        Some(self.matches_at(place))
    }

    /// Whether a message of a topic goes to few queues, as far as a short look at the filters shows. True for what is no
    /// topic name.
    pub(crate) fn is_light(&mut self, topic: &str, limits: &Limits) -> bool {
        if let Lookup::Hit(place) = self.cache.look_up(topic.as_bytes()) {
            let known = self.cache.matches(place);
            return known.is_some_and(|matches| matches.targets() <= copies::LIGHT);
        }
        if !is_topic(topic, limits) {
            return true;
        }
        let scratch = &mut self.scratch;
        scratch.most = scratch.visited + copies::LIGHT_PLACES;
        let mut targets = self.exact.get(topic).map_or(0, Routes::awake_len);
        (self.wild).matching_topic(topic, scratch, |routes| targets += routes.awake_len());
        for of_nodes in [&self.wanted, &self.handed_over, &self.queues] {
            of_nodes.find(topic, scratch);
        }
        let is_short = scratch.visited < scratch.most;
        scratch.most = u64::MAX;
        is_short && targets <= copies::LIGHT
    }

    /// Places of filters that were looked at since [`begin_turn`](Self::begin_turn).
    pub(crate) const fn visited(&self) -> u64 {
        self.scratch.visited
    }

    /// A turn of the shard's loop begins.
    pub(crate) const fn begin_turn(&mut self) {
        self.scratch.visited = 0;
    }

    /// Where [`matches_at`](Self::matches_at) finds the queues that a topic's messages go to. The place holds until another
    /// topic is looked up or routes change. `None` where it is not a topic name.
    pub(crate) fn look_up(&mut self, topic: &[u8], limits: &Limits) -> Option<Answer> {
        match self.cache.look_up(topic) {
            Lookup::Hit(place) => Some(Answer::Remembered(place)),
            Lookup::Miss { place, enter } => {
                let topic = std::str::from_utf8(topic).unwrap_or_default();
                if !is_topic(topic, limits) {
                    return None;
                }
                self.find(topic);
                let targets = self.fresh.targets();
                let wanting = targets + self.fresh.peers.nodes().len();
                // A topic that nobody wants is found quickly. Its entry would lie between what publishers make
                // the shard hold for a while, and keep that memory from the system.
                let is_short = topic.len() <= LONGEST_REMEMBERED_BYTES;
                if enter && is_short && wanting > 0 && targets <= self.cache_targets {
                    let mut matches = std::mem::take(&mut self.fresh);
                    matches.local.shrink_to_fit();
                    matches.remote.shrink_to_fit();
                    matches.kept.shrink_to_fit();
                    self.cache.enter(place, topic, matches);
                    Some(Answer::Remembered(place))
                } else {
                    Some(Answer::Fresh)
                }
            }
        }
    }

    /// The readers of a topic, in numbers; `None` where it is not a topic name.
    pub(crate) fn reach(&mut self, topic: &str, limits: &Limits) -> Option<Reach> {
        if !is_topic(topic, limits) {
            return None;
        }
        self.find(topic);
        let fresh = &self.fresh;
        let remote = fresh.remote.iter().flat_map(|(_, targets)| targets.iter());
        let targets = fresh.local.iter().chain(remote);
        Some(Reach {
            matched: fresh.total,
            shared: targets.filter(|target| target.flags.is_group()).count(),
            queues: fresh.kept.len(),
            nodes: fresh.peers.any.union(fresh.peers.acknowledged).len(),
        })
    }

    /// The result of the last [`look_up`](Self::look_up).
    pub(crate) fn matches_at(&self, answer: Answer) -> &Matches {
        match answer {
            Answer::Remembered(place) => self.cache.matches(place).unwrap_or(&self.fresh),
            Answer::Fresh => &self.fresh,
        }
    }

    /// Matches a topic into `fresh`.
    fn find(&mut self, topic: &str) {
        let Self {
            places,
            homes,
            exact,
            wild,
            scratch,
            found,
            fresh,
            wanted,
            handed_over,
            queues,
            kept_groups,
            is_clustered,
            ..
        } = self;
        fresh.clear();
        fresh.peers = wanted.find(topic, scratch);
        if !handed_over.is_empty() {
            fresh.peers = fresh.peers.and(handed_over.find(topic, scratch));
        }
        fresh.is_for_queue =
            *is_clustered && *kept_groups > 0 && queues.find(topic, scratch).is_durable;
        found.clear();
        let mut filters = 0;
        let Matches {
            kept,
            total,
            asleep: all_asleep,
            is_durable,
            ..
        } = &mut *fresh;
        let mut collect = |routes: &Routes| {
            filters += 1;
            let (asleep, kept_asleep) = routes.asleep();
            *is_durable |= kept_asleep > 0;
            *total += asleep;
            *all_asleep += asleep;
            found.reserve(routes.awake_len());
            for (id, mut flags, context) in routes.awake() {
                let is_group = flags.is_group();
                if context.is_some_and(|context| !context.permits(topic)) {
                    continue;
                }
                *is_durable |= flags.is_durable();
                let place = if is_group {
                    let home = homes.get(&id);
                    *is_durable |= home.is_some_and(|home| home.is_durable);
                    if let Some(fill) = home.and_then(|home| home.fill.as_ref()) {
                        kept.push(Arc::clone(fill));
                        flags = RouteFlags::KEPT_GROUP_ROUTE;
                    }
                    let shard = home.map(|home| home.shard).unwrap_or_default();
                    Place {
                        shard,
                        slot: id,
                        generation: 0,
                    }
                } else {
                    places.get(id as usize).copied().unwrap_or_default()
                };
                found.push(Found {
                    place,
                    flags,
                    context: context.cloned(),
                });
            }
        };
        if let Some(routes) = exact.get(topic) {
            collect(routes);
        }
        wild.matching_topic(topic, scratch, &mut collect);
        scratch.visited += found.len() as u64;
        let is_grouped = found.iter().all(|found| found.place.shard == self.shard);
        if filters > 1 || !is_grouped {
            found.sort_by_key(|found| (found.place, found.flags.is_group()));
        }
        let mut found = found.drain(..).peekable();
        let mut shard_targets = Vec::new();
        while let Some(first) = found.next() {
            let place = first.place;
            let targets = if place.shard == self.shard {
                &mut fresh.local
            } else {
                &mut shard_targets
            };
            fresh.total += 1;
            let same = |next: &Found| {
                next.place == place && !first.flags.is_group() && !next.flags.is_group()
            };
            if found.peek().is_some_and(same) {
                let mut all = vec![Found {
                    place,
                    flags: first.flags,
                    context: first.context,
                }];
                while let Some(next) =
                    found.next_if(|next| next.place == place && !next.flags.is_group())
                {
                    all.push(next);
                }
                merge(&all, targets);
            } else {
                targets.push(target(place, first.flags, first.context));
            }
            let shard_is_complete = found
                .peek()
                .is_none_or(|next| next.place.shard != place.shard);
            if shard_is_complete && !shard_targets.is_empty() {
                fresh
                    .remote
                    .push((place.shard, std::mem::take(&mut shard_targets).into()));
            }
        }
    }
}

fn is_wild(filter: &str) -> bool {
    filter.bytes().any(|byte| byte == b'+' || byte == b'#')
}

fn target(place: Place, flags: RouteFlags, context: Option<Arc<Context>>) -> Target {
    Target {
        slot: place.slot,
        generation: place.generation,
        flags,
        context,
    }
}

/// One session's overlapping subscriptions become one delivery with the highest level and all
/// identifiers. [MQTT-3.3.4-2] [MQTT-3.3.4-4]
///
/// Where only some of them are no-local, what the session itself published goes by the others.
pub(crate) fn merge(all: &[Found], targets: &mut Vec<Target>) {
    let combine = |subset: &mut dyn Iterator<Item = &Found>| -> Option<Target> {
        let first = subset.next()?;
        let mut flags = first.flags.merged(first.flags);
        let mut strongest = first;
        let mut identifiers = Vec::new();
        let collect = |found: &Found, identifiers: &mut Vec<u32>| {
            if let Some(context) = &found.context {
                identifiers.extend_from_slice(&context.identifiers);
            }
        };
        collect(first, &mut identifiers);
        for found in subset {
            flags = flags.merged(found.flags);
            if found.flags.qos() > strongest.flags.qos() {
                strongest = found;
            }
            collect(found, &mut identifiers);
        }
        let (hint, attendance) = strongest
            .context
            .as_ref()
            .map_or((0, 0), |context| (context.hint, context.attendance));
        let context = (hint != 0 || !identifiers.is_empty()).then(|| {
            Arc::new(Context {
                identifiers: identifiers.into(),
                hint,
                attendance,
                permit: None,
                rest: None,
            })
        });
        Some(target(first.place, flags, context))
    };
    let open = all.iter().filter(|found| !found.flags.no_local()).count();
    let mut everything = combine(&mut all.iter());
    if open < all.len() {
        if let Some(target) = &mut everything {
            target.flags = target.flags.with_no_local();
        }
        let rest = combine(&mut all.iter().filter(|found| !found.flags.no_local()));
        targets.extend(rest.map(|mut target| {
            target.flags = target.flags.with_only_local();
            target
        }));
    }
    targets.extend(everything);
}
