//! The routes that the index has at one filter.

use std::slice;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::hash::KeyedState;
use crate::list::KeyedList;
use crate::peers::Interest;
use crate::route::{Context, RouteFlags};

/// The route of a session or a group, as the flags say.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) flags: RouteFlags,
    pub(crate) context: Option<Arc<Context>>,
}

/// Routes of groups and of sessions that are awake, by their numbers, and the numbers of sessions that sleep.
///
/// Most filters have one session, and a million may sleep: one is as small as can be.
#[derive(Debug, Default)]
pub(crate) enum Routes {
    #[default]
    None,
    Awake {
        id: u32,
        flags: RouteFlags,
        context: Option<Arc<Context>>,
    },
    Asleep {
        id: u32,
        /// Whether the log has something for it.
        is_kept: bool,
    },
    Many(Box<Crowd>),
}

/// See [`Routes`].
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// By number, and whether it is a group's.
    awake: KeyedList<(u32, bool), Route>,
    /// Sessions that read what they subscribe to in the log, and whether that has something for them.
    asleep: FxHashMap<u32, bool>,
    /// Those for which it has.
    kept: usize,
}

impl Crowd {
    fn enter(&mut self, id: u32, route: Route, hashing: KeyedState) -> bool {
        let key = (id, route.flags.is_group());
        self.awake.insert(key, route, hashing).is_none()
    }

    fn put_to_sleep(&mut self, id: u32, is_kept: bool) {
        let was_kept = self.asleep.insert(id, is_kept);
        self.kept += usize::from(is_kept);
        self.kept -= usize::from(was_kept.unwrap_or(false));
    }

    fn wake(&mut self, id: u32) {
        if let Some(is_kept) = self.asleep.remove(&id) {
            self.kept -= usize::from(is_kept);
            if self.asleep.capacity() > 1024 && self.asleep.capacity() > 8 * self.asleep.len() {
                self.asleep.shrink_to_fit();
            }
        }
    }
}

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::Awake { .. } | Self::Asleep { .. } => false,
            Self::Many(crowd) => crowd.awake.is_empty() && crowd.asleep.is_empty(),
        }
    }

    /// Routes of groups and of sessions that are awake: their numbers, flags and contexts.
    pub(crate) fn awake(&self) -> impl Iterator<Item = (u32, RouteFlags, Option<&Arc<Context>>)> {
        let (one, many) = match self {
            Self::Awake { id, flags, context } => (
                Some((*id, *flags, context.as_ref())),
                slice::Iter::default(),
            ),
            Self::Many(crowd) => (None, crowd.awake.iter()),
            Self::None | Self::Asleep { .. } => (None, slice::Iter::default()),
        };
        let many = many.map(|((id, _), route)| (*id, route.flags, route.context.as_ref()));
        one.into_iter().chain(many)
    }

    /// Number of routes that [`awake`](Self::awake) has.
    pub(crate) fn awake_len(&self) -> usize {
        match self {
            Self::Awake { .. } => 1,
            Self::Many(crowd) => crowd.awake.len(),
            Self::None | Self::Asleep { .. } => 0,
        }
    }

    /// Number of sessions that sleep, and of those for which the log has something.
    pub(crate) fn asleep(&self) -> (usize, usize) {
        match self {
            Self::Asleep { is_kept, .. } => (1, usize::from(*is_kept)),
            Self::Many(crowd) => (crowd.asleep.len(), crowd.kept),
            Self::None | Self::Awake { .. } => (0, 0),
        }
    }

    /// The numbers of the sessions that sleep.
    pub(crate) fn each_asleep(&self, mut visit: impl FnMut(u32)) {
        match self {
            Self::Asleep { id, .. } => visit(*id),
            Self::Many(crowd) => crowd.asleep.keys().copied().for_each(visit),
            Self::None | Self::Awake { .. } => {}
        }
    }

    /// Whether a session subscribes here; shared subscriptions are left out.
    pub(crate) fn has_session(&self) -> bool {
        self.asleep().0 > 0 || self.awake().any(|(_, flags, _)| !flags.is_group())
    }

    /// The interest of the most demanding session, where there are some.
    pub(crate) fn highest_interest(&self) -> Interest {
        if self.asleep().1 > 0 {
            return Interest::Durable;
        }
        let sessions = self.awake().filter(|(_, flags, _)| !flags.is_group());
        let takes = |flags: RouteFlags| match (flags.qos().is_acknowledged(), flags.is_durable()) {
            (false, _) => Interest::AtMostOnce,
            (true, false) => Interest::Acknowledged,
            (true, true) => Interest::Durable,
        };
        let highest = sessions.map(|(_, flags, _)| takes(flags)).max();
        highest.unwrap_or(Interest::AtMostOnce)
    }

    /// Enters or replaces a route; true where there was none.
    pub(crate) fn enter(&mut self, id: u32, route: Route, hashing: KeyedState) -> bool {
        match self {
            Self::None => {
                let Route { flags, context } = route;
                *self = Self::Awake { id, flags, context };
                true
            }
            Self::Awake {
                id: known,
                flags,
                context,
            } if *known == id && flags.is_group() == route.flags.is_group() => {
                (*flags, *context) = (route.flags, route.context);
                false
            }
            _ => self.crowd(hashing).enter(id, route, hashing),
        }
    }

    /// Takes a route out; false where there was none.
    pub(crate) fn leave(&mut self, id: u32, is_group: bool) -> bool {
        match self {
            Self::Awake {
                id: known, flags, ..
            } => {
                let is_it = *known == id && flags.is_group() == is_group;
                if is_it {
                    *self = Self::None;
                }
                is_it
            }
            Self::Many(crowd) => crowd.awake.remove(&(id, is_group)).is_some(),
            Self::None | Self::Asleep { .. } => false,
        }
    }

    /// Notes a session that sleeps; true where that changes whether the log has something for one of them.
    pub(crate) fn put_to_sleep(&mut self, id: u32, is_kept: bool, hashing: KeyedState) -> bool {
        let had_kept = self.asleep().1 > 0;
        match self {
            Self::None => *self = Self::Asleep { id, is_kept },
            Self::Asleep {
                id: known,
                is_kept: was,
            } if *known == id => *was = is_kept,
            _ => self.crowd(hashing).put_to_sleep(id, is_kept),
        }
        had_kept != (self.asleep().1 > 0)
    }

    /// Takes out a session that sleeps.
    pub(crate) fn wake(&mut self, sleeper: u32) {
        match self {
            Self::Asleep { id, .. } if *id == sleeper => *self = Self::None,
            Self::Many(crowd) => crowd.wake(sleeper),
            _ => {}
        }
    }

    /// The same as a crowd.
    fn crowd(&mut self, hashing: KeyedState) -> &mut Crowd {
        if !matches!(self, Self::Many(_)) {
            let mut crowd = Box::<Crowd>::default();
            match std::mem::take(self) {
                Self::Awake { id, flags, context } => {
                    crowd.enter(id, Route { flags, context }, hashing);
                }
                Self::Asleep { id, is_kept } => crowd.put_to_sleep(id, is_kept),
                Self::None | Self::Many(_) => {}
            }
            *self = Self::Many(crowd);
        }
        match self {
            Self::Many(crowd) => crowd,
            _ => unreachable!("it was made one"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn one_session_is_small() {
        assert_eq!(size_of::<Routes>(), 16);
    }

    #[test]
    fn behaves_like_two_maps_however_many_there_are() {
        let hashing = KeyedState::new(7);
        let mut routes = Routes::default();
        let mut awake: BTreeSet<(u32, bool)> = BTreeSet::new();
        let mut asleep: BTreeMap<u32, bool> = BTreeMap::new();
        let mut random = 1_u64;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // Often empty or alone, and now and then a crowd.
            let range = 1 + u64::from(step / 1_000 % 4) * 20;
            let id = ((random >> 33) % range) as u32;
            let (is_group, is_kept) = (random >> 63 == 0, random >> 62 & 1 == 0);
            let had_kept = asleep.values().any(|&is_kept| is_kept);
            match random >> 60 & 3 {
                0 => {
                    let flags = if is_group {
                        RouteFlags::GROUP_ROUTE
                    } else {
                        RouteFlags::from_bits(0)
                    };
                    let route = Route {
                        flags,
                        context: None,
                    };
                    let is_new = routes.enter(id, route, hashing);
                    assert_eq!(is_new, awake.insert((id, is_group)));
                }
                1 => assert_eq!(routes.leave(id, is_group), awake.remove(&(id, is_group))),
                2 => {
                    let is_seen = routes.put_to_sleep(id, is_kept, hashing);
                    asleep.insert(id, is_kept);
                    let keeps = asleep.values().any(|&is_kept| is_kept);
                    assert_eq!(is_seen, had_kept != keeps);
                }
                _ => {
                    routes.wake(id);
                    asleep.remove(&id);
                }
            }
            let kept = asleep.values().filter(|&&is_kept| is_kept).count();
            assert_eq!(routes.asleep(), (asleep.len(), kept));
            assert_eq!(routes.awake_len(), awake.len());
            let found: BTreeSet<(u32, bool)> = (routes.awake())
                .map(|(id, flags, _)| (id, flags.is_group()))
                .collect();
            assert_eq!(found, awake);
            let mut sleepers = BTreeSet::new();
            routes.each_asleep(|id| assert!(sleepers.insert(id)));
            assert!(sleepers.iter().eq(asleep.keys()));
            assert_eq!(routes.is_empty(), awake.is_empty() && asleep.is_empty());
        }
    }
}
