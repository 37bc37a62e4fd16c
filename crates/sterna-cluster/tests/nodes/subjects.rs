//! Topics and subjects stand for each other, and both match alike, whatever the topic.

use proptest::prelude::*;
use sterna_cluster::subject;

/// Levels that are hard on one of the two notations.
fn level() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[ab]",
        "[ab.*>% $\u{1}\u{7f}é]{1,3}",
        "%[0-9A-F]{2}",
        any::<String>().prop_map(|text| text.replace(['/', '+', '#', '\0'], "x")),
    ]
}

fn topic() -> impl Strategy<Value = String> {
    prop::collection::vec(level(), 1..5)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("a topic has a character", |topic| !topic.is_empty())
}

fn filter() -> impl Strategy<Value = String> {
    let levels = prop::collection::vec(prop_oneof![2 => level(), 1 => Just("+".to_owned())], 0..5);
    (levels, any::<bool>())
        .prop_map(|(mut levels, has_rest)| {
            if has_rest {
                levels.push("#".to_owned());
            }
            levels.join("/")
        })
        .prop_filter("a filter has a character", |filter| !filter.is_empty())
}

/// Topics that filters of few levels are likely to match.
fn near() -> impl Strategy<Value = (String, String)> {
    let level = || prop_oneof![Just(""), Just("a"), Just("."), Just("$"), Just(">")];
    let wild = prop_oneof![
        Just(""),
        Just("a"),
        Just("."),
        Just("$"),
        Just(">"),
        Just("+")
    ];
    let topics = prop::collection::vec(level(), 1..4).prop_map(|levels| levels.join("/"));
    let filters =
        (prop::collection::vec(wild, 0..4), any::<bool>()).prop_map(|(mut levels, has_rest)| {
            if has_rest {
                levels.push("#");
            }
            levels.join("/")
        });
    (topics, filters).prop_filter("neither is empty", |(topic, filter)| {
        !topic.is_empty() && !filter.is_empty()
    })
}

fn agree(topic: &str, filter: &str) -> Result<(), TestCaseError> {
    let of_topic = subject::of_topic(topic);
    let by_subject = subject::of_filter(filter)
        .iter()
        .any(|pattern| subject::matches(pattern, &of_topic));
    prop_assert_eq!(
        by_subject,
        sterna_topic::matches(filter, topic),
        "{:?} {:?}",
        filter,
        of_topic
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_topic_comes_back_from_its_subject(topic in topic()) {
        let subject = subject::of_topic(&topic);
        prop_assert_eq!(subject::to_topic(&subject), Some(topic));
        for token in subject.split('.') {
            prop_assert!(!token.is_empty() && token != "*" && token != ">");
            prop_assert!(!token.bytes().any(|byte| byte <= b' ' || byte == 0x7f));
        }
    }

    #[test]
    fn a_subject_that_stands_for_a_topic_comes_back_from_it(subject in "[ts]\\.[ab%.$25E0* >]{0,8}") {
        if let Some(topic) = subject::to_topic(&subject) {
            prop_assert_eq!(subject::of_topic(&topic), subject);
        }
    }

    #[test]
    fn different_topics_have_different_subjects(one in topic(), other in topic()) {
        prop_assert_eq!(one == other, subject::of_topic(&one) == subject::of_topic(&other));
    }

    #[test]
    fn subjects_match_as_topics_do(topic in topic(), filter in filter()) {
        agree(&topic, &filter)?;
        // A topic name without wildcards is a filter, too, which matches itself.
        agree(&topic, &topic)?;
    }

    #[test]
    fn subjects_match_as_topics_do_where_both_are_alike((topic, filter) in near()) {
        agree(&topic, &filter)?;
    }
}
