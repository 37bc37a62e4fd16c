use std::collections::BTreeMap;

use serde_json::json;

use super::*;

const NOW_MS: u64 = 1_000;

/// A cluster whose nodes answer as they are told.
struct World {
    nodes: Vec<Node>,
    own: usize,
    /// Entries of each node, in its order.
    entries: BTreeMap<Arc<str>, Vec<Value>>,
    /// Nodes that are silent.
    dead: Vec<&'static str>,
    /// Entries that fit an answer.
    fits: usize,
    /// What a silent node costs, in milliseconds.
    costs_ms: u64,
    now_ms: u64,
    asked: Vec<String>,
}

fn parameter(target: &str, name: &str) -> Option<String> {
    let (_, query) = target.split_once('?')?;
    let mut parts = query.split('&').filter_map(|part| part.split_once('='));
    let (_, value) = parts.find(|(known, _)| *known == name)?;
    let value = sterna_mapping::percent::decode_text(value.as_bytes());
    Some(value.expect("a text").into_owned())
}

fn rank(figure: u64, node: &str, slot: usize) -> String {
    format!("{figure}.{node}.0.{slot}.1.")
}

impl World {
    fn new(counts: &[(&'static str, usize)]) -> Self {
        let nodes = counts.iter().map(|(name, _)| Node {
            name: (*name).into(),
            is_here: true,
        });
        let entries = counts.iter().map(|(name, count)| {
            let entries = (0..*count).map(|at| {
                let figure = (at * 7 + name.len()) as u64 % 10;
                json!({ "name": format!("{name}-{at}"), "figure": figure, "at": at })
            });
            ((*name).into(), entries.collect())
        });
        Self {
            nodes: nodes.collect(),
            own: 0,
            entries: entries.collect(),
            dead: Vec::new(),
            fits: usize::MAX,
            costs_ms: 0,
            now_ms: NOW_MS,
            asked: Vec::new(),
        }
    }

    fn round(&self, method: &str, target: &str, way: Way, limit: Option<usize>) -> Round {
        let call = Call::read(method, target).expect("a route");
        let bounds = Bounds {
            limit,
            answer_bytes: 1 << 20,
            until_ms: self.now_ms + 100,
        };
        let nodes = (self.nodes.clone(), self.own);
        Round::new(call, String::new(), nodes, way, bounds).expect("a round")
    }

    /// Answers with a page, by place or by rank.
    fn page(&self, node: &Arc<str>, target: &str) -> Said {
        let limit: usize =
            parameter(target, "limit").map_or(100, |text| text.parse().expect("a number"));
        let after = parameter(target, "after");
        let is_ranked = target.contains("sort=");
        let mut all = self.entries[node].clone();
        if is_ranked {
            let key = |entry: &Value| {
                let at = entry["at"].as_u64().expect("a place") as usize;
                Rank::parse(&rank(entry["figure"].as_u64().expect("a figure"), node, at))
                    .expect("a rank")
            };
            all.sort_by_key(key);
            let after = after
                .as_deref()
                .map(|text| Rank::parse(text).expect("a rank"));
            all.retain(|entry| after.as_ref().is_none_or(|after| key(entry) > *after));
            for entry in &mut all {
                entry["rank"] = key(entry).text().into();
            }
        } else if let Some(after) = after {
            all.drain(..after.parse::<usize>().expect("a place"));
        }
        let has_more = all.len() > limit;
        all.truncate(limit);
        if all.len() > self.fits {
            return Said::TooLarge;
        }
        let last = all.last().filter(|_| has_more);
        let next = last.map(|last| match last.get("rank") {
            Some(rank) => rank.clone(),
            None => (last["at"].as_u64().expect("a place") + 1)
                .to_string()
                .into(),
        });
        Said::Answer(200, json!({ "items": all, "next": next }), 10)
    }

    /// Plays a round to its end.
    fn play(&mut self, round: &mut Round, answer: impl Fn(&Self, &Arc<str>, &str) -> Said) -> Turn {
        let mut turn = round.begin(self.now_ms);
        for _ in 0..1_000 {
            if !matches!(turn, Turn::Ask) {
                return turn;
            }
            let questions: Vec<(Arc<str>, String)> = (round.asked().iter())
                .map(|asking| (Arc::clone(round.node(asking.node)), round.target(asking)))
                .collect();
            assert!(!questions.is_empty(), "it waits for somebody");
            let mut said = Vec::new();
            for (node, target) in questions {
                self.asked.push(format!("{node} {target}"));
                if self.dead.contains(&&*node) {
                    self.now_ms += self.costs_ms;
                    said.push(Said::Away);
                } else {
                    said.push(answer(self, &node, &target));
                }
            }
            turn = round.take(self.now_ms, said);
        }
        panic!("the round does not end");
    }

    /// All entries of a list, page by page; and each node that was named as silent.
    fn read(
        &mut self,
        target: &str,
        way: Way,
        limit: usize,
    ) -> (Vec<Value>, BTreeSet<String>, usize) {
        let (mut all, mut silent, mut pages, mut after) = (Vec::new(), BTreeSet::new(), 0, None);
        loop {
            let target = match &after {
                None => target.to_owned(),
                Some(after) => {
                    let separator = if target.contains('?') { '&' } else { '?' };
                    format!("{target}{separator}after={after}")
                }
            };
            let mut round = self.round("GET", &target, way, Some(limit));
            let turn = self.play(&mut round, Self::page);
            silent.extend(round.unanswered().into_iter().map(str::to_owned));
            let Turn::Page(items, next) = turn else {
                panic!("no page: {turn:?}");
            };
            assert!(items.len() <= limit);
            all.extend(items);
            pages += 1;
            match next {
                Some(next) => after = Some(next),
                None => return (all, silent, pages),
            }
        }
    }
}

fn names(items: &[Value]) -> Vec<&str> {
    items
        .iter()
        .map(|item| item["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn a_list_goes_through_all_nodes_in_the_order_of_their_names() {
    for limit in [1, 2, 3, 7, 100] {
        let mut world = World::new(&[("a", 5), ("b", 0), ("c", 3), ("d", 1)]);
        let (all, silent, _) = world.read("/admin/v1/clients?user=u", Way::Listed, limit);
        let expected = [
            "a-0", "a-1", "a-2", "a-3", "a-4", "c-0", "c-1", "c-2", "d-0",
        ];
        assert_eq!(names(&all), expected, "by {limit}");
        assert_eq!(all[6]["node"], "c");
        assert!(silent.is_empty());
        assert!(world.asked.iter().all(|asked| asked.contains("user=u")));
    }
}

#[test]
fn a_silent_node_is_named_and_costs_a_page_one_wait() {
    let mut world = World::new(&[("a", 2), ("b", 9), ("c", 9), ("d", 2)]);
    (world.dead, world.costs_ms) = (vec!["b", "c"], 200);
    let mut round = world.round("GET", "/admin/v1/clients", Way::Listed, Some(100));
    let Turn::Page(items, next) = world.play(&mut round, World::page) else {
        panic!("no page");
    };
    assert_eq!((items.len(), next.as_deref()), (2, Some("c:")));
    assert_eq!(round.unanswered(), ["b"]);
    let (all, silent, pages) = world.read("/admin/v1/clients", Way::Listed, 100);
    assert_eq!(names(&all), ["a-0", "a-1", "d-0", "d-1"]);
    assert_eq!(silent.into_iter().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(pages, 3);
}

#[test]
fn a_node_that_is_known_to_be_away_is_named_on_each_page_and_not_asked() {
    let mut world = World::new(&[("a", 2), ("b", 9), ("c", 2)]);
    world.nodes[1].is_here = false;
    let mut round = world.round("GET", "/admin/v1/clients", Way::Listed, Some(1));
    let turn = world.play(&mut round, World::page);
    assert!(matches!(turn, Turn::Page(items, Some(_)) if items.len() == 1));
    assert_eq!(round.unanswered(), ["b"]);
    let (all, _, _) = world.read("/admin/v1/clients", Way::Listed, 1);
    assert_eq!(all.len(), 4);
    assert!(world.asked.iter().all(|asked| !asked.starts_with("b ")));
    // The last is as good as any other.
    world.nodes[2].is_here = false;
    let (all, silent, _) = world.read("/admin/v1/clients", Way::Listed, 10);
    assert_eq!((all.len(), silent.len()), (2, 2));
}

#[test]
fn a_node_whose_answer_is_too_large_is_asked_for_fewer_entries() {
    for fits in [1, 3] {
        let mut world = World::new(&[("a", 20), ("b", 20)]);
        world.fits = fits;
        let (all, silent, _) = world.read("/admin/v1/clients", Way::Listed, 100);
        assert_eq!((all.len(), silent.len()), (40, 0), "{fits}");
        let (all, silent, _) = world.read("/admin/v1/clients?sort=rtt", Way::Ranked, 100);
        assert_eq!((all.len(), silent.len()), (40, 0), "{fits}");
    }
    // One entry alone does not fit.
    let mut world = World::new(&[("a", 2), ("b", 2)]);
    world.fits = 0;
    let (all, silent, _) = world.read("/admin/v1/clients", Way::Listed, 100);
    assert_eq!((all.len(), silent.len()), (0, 2));
}

#[test]
fn a_list_in_an_order_has_each_entry_once_whatever_each_node_gives() {
    for (limit, fits) in [(1, 100), (4, 100), (7, 3), (100, 5), (100, 100)] {
        let mut world = World::new(&[("a", 23), ("bb", 17), ("ccc", 0), ("dddd", 31)]);
        world.fits = fits;
        let (all, silent, _) = world.read("/admin/v1/clients?sort=rtt", Way::Ranked, limit);
        assert!(silent.is_empty());
        let figures: Vec<u64> = all
            .iter()
            .map(|item| item["figure"].as_u64().expect("a figure"))
            .collect();
        assert!(
            figures.is_sorted_by(|one, other| one >= other),
            "{figures:?}"
        );
        let each: BTreeSet<&str> = names(&all).into_iter().collect();
        assert_eq!((all.len(), each.len()), (71, 71), "{limit} {fits}");
        assert!(
            all.iter()
                .all(|item| item.get("rank").is_none() && item["node"].is_string())
        );
    }
}

#[test]
fn of_a_queue_the_account_of_the_node_that_has_it_counts() {
    let mut world = World::new(&[("a", 0), ("b", 0), ("c", 0)]);
    world.dead = vec!["c"];
    let mut round = world.round("GET", "/admin/v1/queues", Way::Queues, Some(10));
    let turn = world.play(&mut round, |_, node, _| {
        let of = |name: &str, owner: &str| {
            let mut queue = json!({ "name": name, "filter": "f", "node": owner });
            if owner == &**node {
                queue["messages"] = 7.into();
            }
            queue
        };
        let items = json!([of("jobs", "b"), of("mail", "a"), of("news", "c")]);
        Said::Answer(200, json!({ "items": items, "next": null }), 10)
    });
    let Turn::Page(items, None) = turn else {
        panic!("no page: {turn:?}");
    };
    assert_eq!(names(&items), ["jobs", "mail", "news"]);
    let messages: Vec<Option<u64>> = items.iter().map(|item| item["messages"].as_u64()).collect();
    assert_eq!(messages, [Some(7), Some(7), None]);
    assert_eq!(round.unanswered(), ["c"]);
}

fn refusal(kind: Kind) -> Said {
    let value = json!({ "type": format!("urn:sterna:problem:{}", kind.name()), "detail": "no" });
    Said::Answer(kind.status(), value, 10)
}

#[test]
fn a_session_is_where_one_node_has_it() {
    let play = |dead: Vec<&'static str>, owner: &'static str, others: Kind| {
        let mut world = World::new(&[("a", 0), ("b", 0), ("c", 0)]);
        world.dead = dead;
        let mut round = world.round("GET", "/admin/v1/sessions/s%2F1", Way::Owner, None);
        let turn = world.play(&mut round, |_, node, target| {
            assert_eq!(target, "/admin/v1/sessions/s%2F1");
            if **node == *owner {
                Said::Answer(200, json!({ "name": "s/1" }), 10)
            } else {
                refusal(others)
            }
        });
        (turn, world.asked.len())
    };
    let (turn, asked) = play(vec![], "a", Kind::NoSession);
    assert!(matches!(turn, Turn::One(node, _) if &*node == "a"));
    assert_eq!(asked, 1, "nobody else is asked");
    let (turn, _) = play(vec!["b"], "c", Kind::NoSession);
    assert!(matches!(turn, Turn::One(node, _) if &*node == "c"));
    let (turn, _) = play(vec![], "nobody", Kind::NoSession);
    assert!(matches!(turn, Turn::Refused(trouble) if trouble.kind() == Kind::NoSession));
    // It may be at the one that is silent.
    let (turn, _) = play(vec!["b"], "nobody", Kind::NoSession);
    let Turn::Refused(trouble) = turn else {
        panic!("nobody has it");
    };
    assert_eq!(trouble.kind(), Kind::ClusterAway);
    assert!(
        trouble.detail().ends_with("no answer from b"),
        "{}",
        trouble.detail()
    );
    let (turn, _) = play(vec!["b"], "nobody", Kind::SessionBusy);
    assert!(matches!(turn, Turn::Refused(trouble) if trouble.kind() == Kind::SessionBusy));
}

#[test]
fn what_each_node_does_is_told_of_each_and_silent_ones_are_named() {
    let mut world = World::new(&[("a", 0), ("b", 0), ("c", 0), ("d", 0)]);
    world.dead = vec!["b"];
    world.nodes[3].is_here = false;
    let target = "/admin/v1/sessions?user=eve";
    let mut round = world.round("DELETE", target, Way::Every, None);
    let turn = world.play(&mut round, |_, _, target| {
        assert_eq!(target, "/admin/v1/sessions?user=eve");
        Said::Answer(200, json!({ "sessions": 2 }), 10)
    });
    let Turn::Every(told) = turn else {
        panic!("{turn:?}");
    };
    let told: Vec<&str> = told.iter().map(|(node, _)| &**node).collect();
    assert_eq!(told, ["a", "c"]);
    assert_eq!(round.unanswered(), ["b", "d"]);
    // The node that is asked refuses for all.
    let mut round = world.round("DELETE", "/admin/v1/sessions", Way::Every, None);
    let turn = world.play(&mut round, |_, _, _| refusal(Kind::InvalidParameter));
    assert!(matches!(turn, Turn::Refused(trouble) if trouble.kind() == Kind::InvalidParameter));
}

#[test]
fn a_change_of_a_queue_goes_to_the_node_that_has_it() {
    let play = |dead: Vec<&'static str>, owner: Option<&'static str>| {
        let mut world = World::new(&[("a", 0), ("b", 0)]);
        world.dead = dead;
        let mut round = world.round(
            "DELETE",
            "/admin/v1/queues/q/messages?limit=3",
            Way::Queue,
            None,
        );
        world.play(&mut round, |_, node, target| {
            assert_eq!(target, "/admin/v1/queues/q/messages?limit=3");
            if owner == Some(&**node) {
                return Said::Answer(200, json!({ "messages": 3, "left": 0 }), 10);
            }
            Said::Answer(421, json!({ "node": owner }), 10)
        })
    };
    assert!(matches!(play(vec![], Some("a")), Turn::One(node, _) if &*node == "a"));
    assert!(matches!(play(vec![], Some("b")), Turn::One(node, _) if &*node == "b"));
    for (dead, owner, end) in [
        (
            vec!["b"],
            Some("b"),
            "node b has the queue, and does not answer",
        ),
        (
            vec![],
            None,
            "no node has the queue at the moment; try again",
        ),
        // It has just come to one that this node does not know.
        (
            vec![],
            Some("z"),
            "node z has the queue, and does not answer",
        ),
    ] {
        let turn = play(dead, owner);
        let Turn::Refused(trouble) = turn else {
            panic!("{turn:?}");
        };
        assert_eq!((trouble.kind(), trouble.detail()), (Kind::ClusterAway, end));
    }
}

#[test]
fn a_ban_is_lifted_at_all_nodes() {
    let mut world = World::new(&[("a", 0), ("b", 0), ("c", 0)]);
    let mut round = world.round("DELETE", "/admin/v1/bans/7", Way::Lift(1), None);
    let lift = |_: &World, node: &Arc<str>, _: &str| match &**node {
        "c" => refusal(Kind::NoBan),
        _ => Said::Answer(200, json!({ "id": "7", "user": "eve" }), 10),
    };
    assert!(matches!(world.play(&mut round, lift), Turn::One(node, _) if &*node == "b"));
    assert_eq!(world.asked.len(), 3);
    assert!(round.content.contains("eve"));
    world.dead = vec!["c"];
    let mut round = world.round("DELETE", "/admin/v1/bans/7", Way::Lift(1), None);
    let turn = world.play(&mut round, lift);
    assert!(
        matches!(turn, Turn::Refused(trouble) if trouble.detail().ends_with("no answer from c"))
    );
}

#[test]
fn places_of_lists_are_read_or_refused() {
    let world = World::new(&[("a", 1)]);
    let begin = |after: &str| {
        let call = Call::read("GET", &format!("/admin/v1/clients?after={after}")).expect("a route");
        let bounds = Bounds {
            limit: Some(1),
            answer_bytes: 1,
            until_ms: 0,
        };
        Round::new(
            call,
            String::new(),
            (world.nodes.clone(), 0),
            Way::Listed,
            bounds,
        )
        .map(drop)
    };
    assert!(begin("a:0.7").is_ok());
    assert!(begin("gone:0.7").is_ok(), "the next one goes on");
    let trouble = begin("0.7").expect_err("no node");
    assert_eq!(trouble.kind(), Kind::InvalidParameter);
}
