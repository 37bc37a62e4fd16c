//! The matcher against sets of topics that are small enough to be listed.

use proptest::prelude::*;
use sterna_topic::{Level, begins_wild, covers, is_reserved, matches, overlaps, split};

const LEVELS: [&str; 5] = ["a", "b", "", "$a", "é"];

/// All topics of up to three levels.
fn topics() -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut longest = vec![String::new()];
    for depth in 0..3 {
        longest = (longest.iter())
            .flat_map(|front| {
                LEVELS.map(|level| {
                    if depth == 0 {
                        level.to_owned()
                    } else {
                        format!("{front}/{level}")
                    }
                })
            })
            .collect();
        all.extend(longest.iter().cloned());
    }
    all.retain(|topic| !topic.is_empty());
    all
}

/// Filters of up to two levels and `#`: those whose every topic has a like in [`topics`].
fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![3 => prop::sample::select(&LEVELS[..]), 2 => Just("+")];
    (prop::collection::vec(level, 0..3), any::<bool>())
        .prop_map(|(mut levels, open)| {
            if open {
                levels.push("#");
            }
            levels.join("/")
        })
        .prop_filter("empty", |filter| !filter.is_empty())
}

/// Another definition of section 4.7, by recursion from the end of what was matched.
fn defined(filter: &[&str], name: &[&str]) -> bool {
    match (filter, name) {
        (["#"], _) | ([], []) => true,
        (["+", filter @ ..], [_, name @ ..]) => defined(filter, name),
        ([first, filter @ ..], [level, name @ ..]) => first == level && defined(filter, name),
        _ => false,
    }
}

fn any_level(filter: &str, name: &str) -> bool {
    let filter: Vec<&str> = filter.split('/').collect();
    let name: Vec<&str> = name.split('/').collect();
    defined(&filter, &name)
}

proptest! {
    #[test]
    fn matches_is_the_definition(filter in filter()) {
        for topic in topics() {
            let hidden = is_reserved(&topic) && begins_wild(&filter);
            prop_assert_eq!(matches(&filter, &topic), !hidden && any_level(&filter, &topic), "{}", topic);
        }
    }

    #[test]
    fn a_filter_covers_another_where_it_matches_all_its_topics(outer in filter(), inner in filter()) {
        let inside = topics().iter().all(|topic| !any_level(&inner, topic) || any_level(&outer, topic));
        let is_covered = covers(split(&outer), &inner);
        // What covers a filter matches all its topics, always.
        prop_assert!(!is_covered || inside, "{} {}", outer, inner);
        // Three levels show the depth of `#`, five texts the breadth of `+`.
        if !(outer.ends_with('#') && inner.ends_with('#')) {
            let is_broad = inner.ends_with('#') || inner.contains('+');
            prop_assert!(is_covered || !inside || is_broad, "{} {}", outer, inner);
        }
    }

    #[test]
    fn filters_overlap_where_a_topic_matches_both(one in filter(), other in filter()) {
        let both = topics().iter().any(|topic| any_level(&one, topic) && matches(&other, topic));
        // No topic is empty, but it would match both: `+` and `/#`.
        let empty = any_level(&one, "") && any_level(&other, "");
        prop_assert_eq!(overlaps(split(&one), &other), both || empty, "{} {}", one, other);
    }

    #[test]
    fn a_name_is_covered_where_it_overlaps(filter in filter()) {
        for topic in topics() {
            prop_assert_eq!(covers(split(&filter), &topic), overlaps(split(&filter), &topic));
        }
    }
}

#[test]
fn wildcards_are_levels_of_their_own() {
    let levels: Vec<Level<&str>> = split("a/+//#").collect();
    let expected = [Level::Text("a"), Level::Any, Level::Text(""), Level::Rest];
    assert_eq!(levels, expected);
}

/// [MQTT-4.7.2-1]
#[test]
fn a_leading_wildcard_does_not_reach_what_begins_with_a_dollar() {
    for filter in ["#", "+/a", "+/#"] {
        assert!(!matches(filter, "$a/a"), "{filter}");
        assert!(!overlaps(split("$a/a"), filter), "{filter}");
        // The levels that cover are asked for more than section 4.7.2 lets through.
        assert!(covers(split(filter), "$a/a"), "{filter}");
    }
    assert!(matches("$a/#", "$a") && matches("$a/+", "$a/a"));
}

/// Attack 9: 65,536 levels, on the small stack of a test thread.
#[test]
fn depth_costs_no_stack() {
    let deep = "/".repeat(65_535);
    let deep_wild = format!("{}#", "+/".repeat(32_000));
    assert!(matches(&deep_wild, &deep) && overlaps(split(&deep_wild), &deep));
    assert!(!matches("+/+", &deep));
}
