//! A tree of topic levels. It holds filters that topics are matched against (the routing index), or topics that
//! filters are matched against (retained messages).
//!
//! Nodes lie in one vector and refer to each other by number. Level names are interned. A child is found by
//! (node, name) in one hash table. No operation recurses: depth costs no stack. [MQTT-4.7.3-4]: names are
//! compared byte for byte.

use std::collections::HashMap;

use crate::hash::KeyedState;

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;
/// The wildcards are names like any other, but always interned.
const PLUS: u32 = 0;
const HASH: u32 = 1;

/// A tree of fewer nodes keeps its memory.
const LEAST_NODES: usize = 1024;
/// A tree gives memory back where less than one in this many of its places is used.
const SPARSE: usize = 8;

#[derive(Debug)]
struct Node<T> {
    value: Option<T>,
    parent: u32,
    name: u32,
    first_child: u32,
    next: u32,
    previous: u32,
    /// Children of each kind there are, so that a lookup for what isn't there is saved.
    kinds: u8,
    /// Whether it is a first level that starts with `$`.
    reserved: bool,
}

const HAS_PLUS: u8 = 1;
const HAS_HASH: u8 = 2;

impl<T> Node<T> {
    const fn new(parent: u32, name: u32, reserved: bool) -> Self {
        Self {
            value: None,
            parent,
            name,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            kinds: 0,
            reserved,
        }
    }
}

/// Reusable memory for matching, and a count of its work.
#[derive(Debug)]
pub(crate) struct Scratch {
    names: Vec<u32>,
    stack: Vec<(u32, u32)>,
    /// Places of trees that were looked at.
    pub(crate) visited: u64,
    /// The number of those at which matching ends, whatever is left.
    pub(crate) most: u64,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            stack: Vec::new(),
            visited: 0,
            most: u64::MAX,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LevelTree<T> {
    nodes: Vec<Node<T>>,
    free_nodes: Vec<u32>,
    children: HashMap<(u32, u32), u32, KeyedState>,
    names: HashMap<Box<str>, u32, KeyedState>,
    name_uses: Vec<u32>,
    free_names: Vec<u32>,
    values: usize,
}

impl<T> LevelTree<T> {
    pub(crate) fn new(hashing: KeyedState) -> Self {
        Self {
            nodes: vec![Node::new(NONE, NONE, false)],
            free_nodes: Vec::new(),
            children: HashMap::with_hasher(hashing),
            names: HashMap::with_hasher(hashing),
            name_uses: vec![0, 0],
            free_names: Vec::new(),
            values: 0,
        }
    }

    /// Values in the tree.
    pub(crate) fn len(&self) -> usize {
        self.values
    }

    /// All values, in no particular order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().filter_map(|node| node.value.as_ref())
    }

    /// The values at so many places, from one on; `None` where there are no more places.
    pub(crate) fn values_at(
        &mut self,
        from: usize,
        most: usize,
    ) -> Option<impl Iterator<Item = &mut T>> {
        let until = self.nodes.len().min(from.saturating_add(most));
        let places = self.nodes.get_mut(from..until)?;
        let values = places.iter_mut().filter_map(|node| node.value.as_mut());
        (from < until).then_some(values)
    }

    fn node_count(&self) -> usize {
        self.nodes.len() - self.free_nodes.len()
    }

    fn node(&self, node: u32) -> &Node<T> {
        &self.nodes[node as usize]
    }

    fn node_mut(&mut self, node: u32) -> &mut Node<T> {
        &mut self.nodes[node as usize]
    }

    fn name(&self, level: &str) -> Option<u32> {
        match level {
            "+" => Some(PLUS),
            "#" => Some(HASH),
            _ => self.names.get(level).copied(),
        }
    }

    fn child(&self, node: u32, name: u32) -> Option<u32> {
        self.children.get(&(node, name)).copied()
    }

    fn find(&self, path: &str) -> Option<u32> {
        path.split('/')
            .try_fold(ROOT, |node, level| self.child(node, self.name(level)?))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&T> {
        self.node(self.find(path)?).value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, path: &str) -> Option<&mut T> {
        let node = self.find(path)?;
        self.node_mut(node).value.as_mut()
    }

    /// The value of a path, made where there was none.
    pub(crate) fn get_or_insert_with(&mut self, path: &str, make: impl FnOnce() -> T) -> &mut T {
        let mut node = ROOT;
        for level in path.split('/') {
            let known = self.name(level).and_then(|name| self.child(node, name));
            node = match known {
                Some(child) => child,
                None => self.add_child(node, level),
            };
        }
        let values = &mut self.values;
        self.nodes[node as usize].value.get_or_insert_with(|| {
            *values += 1;
            make()
        })
    }

    fn add_child(&mut self, parent: u32, level: &str) -> u32 {
        let name = self.intern(level);
        let made = Node::new(parent, name, parent == ROOT && level.starts_with('$'));
        let child = if let Some(free) = self.free_nodes.pop() {
            *self.node_mut(free) = made;
            free
        } else {
            self.nodes.push(made);
            self.nodes.len() as u32 - 1
        };
        let first = self.node(parent).first_child;
        self.node_mut(child).next = first;
        if first != NONE {
            self.node_mut(first).previous = child;
        }
        let parent_node = self.node_mut(parent);
        parent_node.first_child = child;
        parent_node.kinds |= kind(name);
        self.children.insert((parent, name), child);
        child
    }

    fn intern(&mut self, level: &str) -> u32 {
        let name = if let Some(name) = self.name(level) {
            name
        } else {
            let name = self.free_names.pop().unwrap_or_else(|| {
                self.name_uses.push(0);
                self.name_uses.len() as u32 - 1
            });
            self.names.insert(level.into(), name);
            name
        };
        self.name_uses[name as usize] += 1;
        name
    }

    /// Takes a value out, and the branch that led to nothing else.
    pub(crate) fn remove(&mut self, path: &str) -> Option<T> {
        let mut node = self.find(path)?;
        let value = self.node_mut(node).value.take()?;
        self.values -= 1;
        // Names are dropped from the last level up, beside the nodes that used them.
        let mut levels = path.rsplit('/');
        while node != ROOT && self.node(node).value.is_none() && self.node(node).first_child == NONE
        {
            let Node {
                parent,
                name,
                next,
                previous,
                ..
            } = *self.node(node);
            if previous == NONE {
                self.node_mut(parent).first_child = next;
            } else {
                self.node_mut(previous).next = next;
            }
            if next != NONE {
                self.node_mut(next).previous = previous;
            }
            self.node_mut(parent).kinds &= !kind(name);
            self.children.remove(&(parent, name));
            self.free_nodes.push(node);
            let level = levels.next().unwrap_or_default();
            self.name_uses[name as usize] -= 1;
            if self.name_uses[name as usize] == 0 && name > HASH {
                self.names.remove(level);
                self.free_names.push(name);
            }
            node = parent;
        }
        let is_sparse = self.nodes.len() / SPARSE > self.node_count();
        if is_sparse && (self.nodes.len() > LEAST_NODES || self.values == 0) {
            self.compact();
        }
        Some(value)
    }

    /// Gives the memory of a former crowd back: moves the nodes and names that are left into tables of
    /// their own size. Called when most have gone, so each removal has paid for its part.
    fn compact(&mut self) {
        let mut moved = vec![0; self.nodes.len()];
        for free in self.free_nodes.drain(..) {
            moved[free as usize] = NONE;
        }
        let mut left = 0;
        for place in moved.iter_mut().filter(|place| **place != NONE) {
            *place = left;
            left += 1;
        }
        let to = |moved: &[u32], at: u32| moved.get(at as usize).copied().unwrap_or(NONE);
        let hashing = *self.children.hasher();
        let mut names = HashMap::with_capacity_and_hasher(self.names.len(), hashing);
        let mut renamed = vec![NONE; self.name_uses.len()];
        (renamed[PLUS as usize], renamed[HASH as usize]) = (PLUS, HASH);
        let mut name_uses = self.name_uses[..=HASH as usize].to_vec();
        for (level, name) in self.names.drain() {
            renamed[name as usize] = name_uses.len() as u32;
            names.insert(level, name_uses.len() as u32);
            name_uses.push(self.name_uses[name as usize]);
        }
        let mut nodes = Vec::with_capacity(left as usize);
        let mut children = HashMap::with_capacity_and_hasher(left as usize, hashing);
        for (at, mut node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            if moved[at] == NONE {
                continue;
            }
            for link in [
                &mut node.parent,
                &mut node.first_child,
                &mut node.next,
                &mut node.previous,
            ] {
                *link = to(&moved, *link);
            }
            node.name = to(&renamed, node.name);
            if node.parent != NONE {
                children.insert((node.parent, node.name), moved[at]);
            }
            nodes.push(node);
        }
        self.nodes = nodes;
        self.free_nodes = Vec::new();
        self.children = children;
        self.names = names;
        self.name_uses = name_uses;
        self.free_names = Vec::new();
    }

    /// Calls `found` with the value of every filter in the tree that matches a topic, as far as the scratch has places left.
    pub(crate) fn matching_topic<'t>(
        &'t self,
        topic: &str,
        scratch: &mut Scratch,
        mut found: impl FnMut(&'t T),
    ) {
        if self.values == 0 {
            return;
        }
        scratch.names.clear();
        // A topic's level is never a wildcard: the caller has checked the topic.
        scratch.names.extend(
            topic
                .split('/')
                .map(|level| self.names.get(level).copied().unwrap_or(NONE)),
        );
        // [MQTT-4.7.2-1]
        let reserved = topic.starts_with('$');
        scratch.stack.clear();
        scratch.stack.push((ROOT, 0));
        while let Some((node, depth)) = scratch.stack.pop() {
            if scratch.visited >= scratch.most {
                return;
            }
            scratch.visited += 1;
            let Node { kinds, .. } = *self.node(node);
            let wildcards_match = !(reserved && depth == 0);
            if kinds & HAS_HASH != 0 && wildcards_match {
                // `#` includes the parent level: `sport/#` matches `sport`.
                if let Some(value) = self
                    .child(node, HASH)
                    .and_then(|rest| self.node(rest).value.as_ref())
                {
                    found(value);
                }
            }
            let Some(&name) = scratch.names.get(depth as usize) else {
                if let Some(value) = &self.node(node).value {
                    found(value);
                }
                continue;
            };
            if kinds & HAS_PLUS != 0
                && wildcards_match
                && let Some(child) = self.child(node, PLUS)
            {
                scratch.stack.push((child, depth + 1));
            }
            if name != NONE
                && let Some(child) = self.child(node, name)
            {
                scratch.stack.push((child, depth + 1));
            }
        }
    }

    /// Calls `found` with the value of every topic in the tree that a filter matches, until it
    /// returns false. Walks along the nodes' own links: no memory however many there are. Returns how many nodes it has
    /// been at.
    pub(crate) fn matching_filter<'t>(
        &'t self,
        filter: &str,
        mut found: impl FnMut(&'t T) -> bool,
    ) -> usize {
        let (fixed, open_ended) = match filter.strip_suffix("/#") {
            Some(front) => (Some(front), true),
            None if filter == "#" => (None, true),
            None => (Some(filter), false),
        };
        let mut steps = Vec::new();
        for level in fixed.into_iter().flat_map(|front| front.split('/')) {
            match self.name(level) {
                Some(name) => steps.push(name),
                None => return 0, // a level that no topic has
            }
        }
        // [MQTT-4.7.2-1]
        let skips_reserved = filter.starts_with(['+', '#']);
        let skip = |mut node: u32, depth: usize| {
            while skips_reserved && depth == 1 && node != NONE && self.node(node).reserved {
                node = self.node(node).next;
            }
            node
        };
        let (mut node, mut depth, mut visited) = (ROOT, 0, 0);
        loop {
            visited += 1;
            let complete = if open_ended {
                depth >= steps.len()
            } else {
                depth == steps.len()
            };
            if complete
                && let Some(value) = &self.node(node).value
                && !found(value)
            {
                return visited;
            }
            let down = match steps.get(depth) {
                Some(&PLUS) => skip(self.node(node).first_child, depth + 1),
                Some(&name) => self.child(node, name).unwrap_or(NONE),
                None if open_ended => skip(self.node(node).first_child, depth + 1),
                None => NONE,
            };
            if down != NONE {
                node = down;
                depth += 1;
                continue;
            }
            loop {
                if depth == 0 {
                    return visited;
                }
                let siblings_match = depth > steps.len() || steps[depth - 1] == PLUS;
                let across = if siblings_match {
                    skip(self.node(node).next, depth)
                } else {
                    NONE
                };
                if across != NONE {
                    node = across;
                    break;
                }
                node = self.node(node).parent;
                depth -= 1;
            }
        }
    }
}

const fn kind(name: u32) -> u8 {
    match name {
        PLUS => HAS_PLUS,
        HASH => HAS_HASH,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use sterna_topic::matches;

    use super::*;

    fn tree<'a>(paths: impl IntoIterator<Item = &'a str>) -> LevelTree<String> {
        let mut tree = LevelTree::new(KeyedState::new(1));
        for path in paths {
            tree.get_or_insert_with(path, || path.to_owned());
        }
        tree
    }

    /// Without the compaction the places of the crowd stay: 20,000 nodes for one value.
    #[test]
    fn a_tree_that_a_crowd_has_left_gives_its_places_back_and_keeps_the_rest() {
        let crowd: Vec<String> = (0..20_000).map(|n| format!("crowd/{n}")).collect();
        let few = ["a/b/c", "a/b/d", "a/+/c", "$SYS/x", "#", "crowd/+"];
        let mut tree = tree(crowd.iter().map(String::as_str).chain(few));
        for path in &crowd {
            assert_eq!(tree.remove(path).as_ref(), Some(path));
        }
        assert_eq!(tree.len(), few.len());
        assert!(tree.nodes.len() <= LEAST_NODES, "{}", tree.nodes.len());
        assert!(tree.nodes.capacity() <= LEAST_NODES * SPARSE);
        assert!(tree.children.capacity() <= LEAST_NODES * SPARSE * 2);
        assert!(tree.name_uses.capacity() <= LEAST_NODES * SPARSE);
        for path in few {
            assert_eq!(tree.get(path).map(String::as_str), Some(path));
        }
        let found = |topic| filters_of(&tree, topic).into_iter().collect::<Vec<_>>();
        assert_eq!(found("a/b/c"), ["#", "a/+/c", "a/b/c"]);
        assert_eq!(found("crowd/7"), ["#", "crowd/+"]);
        assert_eq!(found("$SYS/x"), ["$SYS/x"]);
        tree.get_or_insert_with("crowd/new", || "crowd/new".to_owned());
        assert_eq!(filters_of(&tree, "crowd/new").len(), 3);
        for path in few {
            assert!(tree.remove(path).is_some());
        }
        assert!(tree.remove("crowd/new").is_some());
        assert_eq!((tree.len(), tree.node_count()), (0, 1));
    }

    fn filters_of(tree: &LevelTree<String>, topic: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        tree.matching_topic(topic, &mut Scratch::default(), |value| {
            assert!(found.insert(value.clone()), "{value} came twice");
        });
        found
    }

    fn topics_of(tree: &LevelTree<String>, filter: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        tree.matching_filter(filter, |value| {
            assert!(found.insert(value.clone()), "{value} came twice");
            true
        });
        found
    }

    /// [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1]: the specification's own examples.
    #[test]
    fn matches_as_the_specification_says() {
        let filters = tree([
            "sport/tennis/player1/#",
            "sport/#",
            "#",
            "+",
            "sport/tennis/+",
            "sport/+",
            "+/+",
            "/+",
            "$SYS/#",
            "+/monitor/Clients",
            "$SYS/monitor/+",
        ]);
        let found = |topic| filters_of(&filters, topic).into_iter().collect::<Vec<_>>();
        assert_eq!(found("sport"), ["#", "+", "sport/#"]);
        assert_eq!(found("sport/"), ["#", "+/+", "sport/#", "sport/+"]);
        assert_eq!(found("/finance"), ["#", "+/+", "/+"]);
        assert_eq!(
            found("sport/tennis/player1"),
            ["#", "sport/#", "sport/tennis/+", "sport/tennis/player1/#"]
        );
        assert_eq!(
            found("sport/tennis/player1/score/wimbledon"),
            ["#", "sport/#", "sport/tennis/player1/#"]
        );
        assert_eq!(found("$SYS/monitor/Clients"), ["$SYS/#", "$SYS/monitor/+"]);
    }

    /// Attack 9: 65,536 levels, in both directions, on the small stack of a test thread.
    #[test]
    fn depth_costs_no_stack() {
        let deep = "/".repeat(65_535);
        let deep_wild = format!("{}#", "+/".repeat(32_000));
        let mut filters = tree([deep.as_str(), &deep_wild, "#"]);
        assert_eq!(filters_of(&filters, &deep).len(), 3);
        assert_eq!(topics_of(&tree([deep.as_str(), "a"]), &deep_wild).len(), 1);
        assert_eq!(topics_of(&tree([deep.as_str(), "a"]), "#").len(), 2);
        assert!(filters.remove(&deep).is_some() && filters.remove(&deep_wild).is_some());
        assert_eq!(filters.node_count(), 2);
        drop(tree([deep.as_str()]));
    }

    /// Attack 10: what was added and removed leaves nothing behind.
    #[test]
    fn an_emptied_tree_is_as_small_as_a_new_one() {
        let paths: Vec<String> = (0..5_000).map(|i| format!("a/{i}/{}/x", i % 7)).collect();
        let mut tree = tree(paths.iter().map(String::as_str));
        assert_eq!(tree.len(), 5_000);
        for path in &paths {
            assert_eq!(tree.remove(path).as_ref(), Some(path));
            assert!(tree.remove(path).is_none());
        }
        assert_eq!(
            (tree.node_count(), tree.names.len(), tree.children.len()),
            (1, 0, 0)
        );
        assert!(tree.nodes.capacity() < 100);
    }

    fn level() -> impl Strategy<Value = &'static str> {
        prop_oneof![Just("a"), Just("b"), Just(""), Just("$x"), Just("é")]
    }

    fn topic() -> impl Strategy<Value = String> {
        prop::collection::vec(level(), 1..6)
            .prop_map(|levels| levels.join("/"))
            .prop_filter("empty", |topic| !topic.is_empty())
    }

    fn filter() -> impl Strategy<Value = String> {
        let part = prop_oneof![3 => level(), 2 => Just("+")];
        (prop::collection::vec(part, 0..6), any::<bool>())
            .prop_map(|(mut levels, open)| {
                if open {
                    levels.push("#");
                }
                levels.join("/")
            })
            .prop_filter("empty", |filter| !filter.is_empty())
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            steps in prop::collection::vec((filter(), any::<bool>()), 0..60),
            topics in prop::collection::vec(topic(), 1..20),
        ) {
            let mut tree = LevelTree::new(KeyedState::new(3));
            let mut model = BTreeMap::new();
            for (filter, add) in steps {
                if add {
                    tree.get_or_insert_with(&filter, || filter.clone());
                    model.insert(filter.clone(), filter);
                } else {
                    prop_assert_eq!(tree.remove(&filter), model.remove(&filter));
                }
            }
            prop_assert_eq!(tree.len(), model.len());
            for topic in topics {
                let expected: BTreeSet<String> =
                    model.keys().filter(|filter| matches(filter, &topic)).cloned().collect();
                prop_assert_eq!(filters_of(&tree, &topic), expected, "{}", topic);
            }
            for filter in model.keys() {
                prop_assert_eq!(tree.get(filter), Some(filter));
                prop_assert!(tree.remove(filter).is_some());
            }
            prop_assert_eq!(tree.node_count(), 1);
        }

        #[test]
        fn finds_the_topics_of_a_filter(
            topics in prop::collection::btree_set(topic(), 0..40),
            removed in prop::collection::vec(topic(), 0..10),
            filters in prop::collection::vec(filter(), 1..20),
        ) {
            let mut tree = tree(topics.iter().map(String::as_str));
            let mut topics = topics;
            for topic in removed {
                prop_assert_eq!(tree.remove(&topic).is_some(), topics.remove(&topic));
            }
            for filter in filters {
                let expected: BTreeSet<String> =
                    topics.iter().filter(|topic| matches(&filter, topic)).cloned().collect();
                prop_assert_eq!(topics_of(&tree, &filter), expected, "{}", filter);
            }
        }
    }
}
