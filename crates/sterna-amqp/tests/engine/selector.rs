//! The language of selectors.
#![allow(clippy::unwrap_used)] // it is all test

use bytes::BytesMut;
use proptest::prelude::*;
use sterna_amqp::messaging::{Header, MessageId, MessageView, MessageWriter, Properties};
use sterna_amqp::selector::{Fields, Operand, Selector, SelectorLimits};
use sterna_amqp::types::{Symbol, Value};

fn message() -> BytesMut {
    let mut out = BytesMut::new();
    MessageWriter::new(&mut out)
        .header(&Header {
            durable: true,
            priority: 7,
            delivery_count: 2,
            ..Header::default()
        })
        .properties(&Properties {
            message_id: Some(MessageId::String("ID:1")),
            correlation_id: Some(MessageId::Uuid([0xab; 16])),
            subject: Some("weather"),
            content_type: Some(Symbol("text/plain")),
            to: Some(Value::String("sensors/room1")),
            ..Properties::default()
        })
        .application_properties(|map| {
            map.push(&Value::String("color"), &Value::String("red"));
            map.push(&Value::String("weight"), &Value::Uint(2_500));
            map.push(&Value::String("price"), &Value::Double(9.5));
            map.push(&Value::String("urgent"), &Value::Boolean(true));
            map.push(&Value::String("nothing"), &Value::Null);
            map.push(&Value::String("it's"), &Value::Int(-1));
            map.push(&Value::String("large"), &Value::Long(i64::MAX));
        })
        .data(b"body");
    out
}

/// Whether a selector takes the message; `None` if it is no selector.
fn selects(text: &str) -> Option<bool> {
    let message = message();
    let view = MessageView::parse(&message).unwrap();
    let selector = Selector::parse(text, &SelectorLimits::default()).ok()?;
    Some(selector.matches(&view))
}

#[test]
fn selectors_that_match() {
    for text in [
        "",
        "  ",
        "TRUE",
        "color = 'red'",
        "color='red' and weight>2000",
        "color <> 'blue'",
        "weight = 2500",
        "weight = 2500.0",
        "weight = 25e2",
        "weight = 0x9C4",
        "weight = 2500L",
        "price = 9.5d",
        "price > 9",
        "price < .96e1",
        "weight BETWEEN 2500 AND 2500",
        "weight NOT BETWEEN 1 AND 2",
        "color IN ('blue', 'red')",
        "color NOT IN ('blue', 'green')",
        "color LIKE 'r%'",
        "color LIKE 'r_d'",
        "color NOT LIKE 'b%'",
        "'100%' LIKE '100!%' ESCAPE '!'",
        "absent IS NULL",
        "nothing IS NULL",
        "color IS NOT NULL",
        "urgent",
        "urgent = TRUE",
        "NOT urgent = FALSE",
        "NOT (color = 'blue' OR weight < 1)",
        "absent = 1 OR color = 'red'",
        "1 + 2 * 3 = 7",
        "(1 + 2) * 3 = 9",
        "10 - 2 - 3 = 5",
        "7 / 2 = 3",
        "7 / 2.0 = 3.5",
        "-weight = -2500",
        "- - 1 = 1",
        "+1 = 1",
        "-9223372036854775808 < -9223372036854775807",
        "large > 9223372036854774784.0",
        "large = 9223372036854775807",
        "\"it's\" = -1",
        "'it''s' = 'it''s'",
        "JMSPriority > 4",
        "JMSDeliveryMode = 'PERSISTENT'",
        "JMSMessageID = 'ID:1'",
        "JMSCorrelationID LIKE 'abab%'",
        "JMSType = 'weather'",
        "JMSRedelivered",
        "JMSXDeliveryCount = 3",
        "JMSDestination = 'sensors/room1'",
        "amqp.content_type = 'text/plain'",
        "amqp.durable AND amqp.priority = 7",
        "color = 'red' AND (price > 9 OR price < 1) AND NOT absent IS NOT NULL",
    ] {
        assert_eq!(selects(text), Some(true), "{text}");
    }
}

#[test]
fn selectors_that_do_not_match() {
    for text in [
        "FALSE",
        "NULL",
        "color",
        "'red'",
        "1",
        "color = 'RED'",
        "COLOR = 'red'",
        // Of different kinds: neither equal nor unequal.
        "weight = '2500'",
        "weight <> '2500'",
        "color > 5",
        // Texts have no order.
        "color > 'a'",
        "urgent > FALSE",
        // Unknown, and what is made of it.
        "absent = 1",
        "absent <> 1",
        "NOT absent = 1",
        "absent = absent",
        "absent = NULL",
        "absent LIKE '%'",
        "absent NOT LIKE '%'",
        "absent IN ('a')",
        "absent NOT IN ('a')",
        "absent BETWEEN 1 AND 2",
        "absent = 1 AND color = 'red'",
        "absent + 1 = 1",
        "absent OR FALSE",
        "weight LIKE '2%'",
        "1 / 0 = 1",
        "9223372036854775807 + 1 > 0",
        "color + 1 = 1",
        "-color = 1",
        "large > 9223372036854775807.0",
    ] {
        assert_eq!(selects(text), Some(false), "{text}");
    }
}

#[test]
fn texts_that_are_no_selectors() {
    for text in [
        "color =",
        "= 1",
        "color = 'red",
        "\"color = 1",
        "(color = 1",
        "color = 1)",
        "color == 1",
        "color != 1",
        "AND",
        "color AND",
        "NOT",
        "color IS 1",
        "color IS NOT",
        "color BETWEEN 1",
        "color BETWEEN 1 OR 2",
        "color IN",
        "color IN ()",
        "color IN ('a'",
        "color IN ('a' 'b')",
        "color LIKE",
        "color LIKE 5",
        "color LIKE color",
        "color LIKE 'a' ESCAPE",
        "color LIKE 'a' ESCAPE 'ab'",
        "color LIKE 'a' ESCAPE ''",
        "color LIKE 'a!' ESCAPE '!'",
        "color NOT = 1",
        "color NOT",
        "1 +",
        "1 2",
        "1e",
        "1x",
        "0x",
        "1.2.3",
        "9223372036854775808",
        "18446744073709551616",
        "-9223372036854775809",
        "color # 1",
        "color ; 1",
        "a = 1 b",
        "LIKE = 1",
    ] {
        assert_eq!(selects(text), None, "{text}");
    }
}

#[test]
fn length_and_depth_are_limited() {
    let limits = SelectorLimits {
        max_bytes: 100_000,
        max_depth: 20,
        max_pattern_bytes: 10,
    };
    let parses = |text: &str| Selector::parse(text, &limits).is_ok();
    let nested = |levels: usize| format!("{}a{}", "(".repeat(levels), ")".repeat(levels));
    assert!(parses(&nested(19)));
    assert!(!parses(&nested(20)));
    assert!(parses(&format!("{}a", "NOT ".repeat(19))));
    assert!(!parses(&format!("{}a", "NOT ".repeat(20))));
    assert!(!parses(&format!("1 {} = 1", "+ 1 ".repeat(20))));
    assert!(!parses(&format!("1 {} = 1", "* 1 ".repeat(20))));
    assert!(!parses(&format!("{} 1 = 1", "-".repeat(20))));
    // A row of terms is not deep.
    assert!(parses(&vec!["a = 1"; 5_000].join(" AND ")));
    assert!(parses(&vec!["a = 1"; 5_000].join(" OR ")));
    assert!(!parses(&"a".repeat(100_001)));
    // Patterns together, wherever they are.
    assert!(parses("a LIKE '%12345' OR NOT b LIKE 'abc%'"));
    assert!(!parses("a LIKE '%12345' OR NOT b LIKE 'abcd%'"));
}

/// What a selector costs is counted, whatever part of it is dear.
#[test]
fn no_more_work_is_done_than_there_are_steps() {
    let long = "a".repeat(65_000);
    let mut out = BytesMut::new();
    MessageWriter::new(&mut out).application_properties(|map| {
        for number in 0..1_000 {
            map.push(&Value::String(&format!("p{number}")), &Value::Int(number));
        }
        map.push(&Value::String("long"), &Value::String(&long));
    });
    let view = MessageView::parse(&out).unwrap();
    let cost = |text: &str| {
        let limits = SelectorLimits {
            max_bytes: 1 << 20,
            ..SelectorLimits::default()
        };
        let selector = Selector::parse(text, &limits).expect(text);
        let mut left = 1 << 40;
        assert_eq!(
            selector.matches_within(&view, &mut left),
            Some(false),
            "{text}"
        );
        let cost = (1 << 40) - left;
        // It stops where they end.
        let mut few = cost / 2;
        assert_eq!(selector.matches_within(&view, &mut few), None, "{text}");
        assert_eq!(few, 0);
        let mut enough = cost;
        assert_eq!(selector.matches_within(&view, &mut enough), Some(false));
        cost
    };
    let like = cost(&format!("long LIKE '%{}b'", "a".repeat(1_000)));
    assert!(like < 3_000, "an end is compared, not searched: {like}");
    let like = cost(&format!("long LIKE '%{}b%'", "a".repeat(1_000)));
    assert!((16_000..40_000).contains(&like), "{like}");
    let comparisons = cost(&vec!["long <> long"; 100].join(" OR "));
    assert!(comparisons > 100 * 16_000, "{comparisons}");
    let choices = cost(&format!("p1 IN ({})", vec!["7"; 5_000].join(",")));
    assert!(choices > 5_000, "{choices}");
    let names = cost("p1 + p2 IS NULL");
    assert!(
        names > 2_000,
        "each of few lookups looks at all properties: {names}"
    );
    let many = (0..900).map(|number| format!("p{number} = -1"));
    let many = cost(&many.collect::<Vec<_>>().join(" OR "));
    assert!(many < 900 * 60, "{many}");
}

struct NoFields;

impl Fields for NoFields {
    fn field(&self, _name: &str) -> Operand<'_> {
        Operand::Null
    }
}

/// Three-valued logic by its truth tables (JMS 2.0, section 3.8.1.2).
#[test]
fn truth_tables() {
    let values = [("TRUE", Some(true)), ("FALSE", Some(false)), ("u", None)];
    let evaluate = |text: &str| {
        let is = |text: &str| {
            Selector::parse(text, &SelectorLimits::default())
                .unwrap()
                .matches_fields(&NoFields)
        };
        match (is(text), is(&format!("NOT ({text})"))) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
            (true, true) => panic!("{text}: both"),
        }
    };
    for (a, left) in values {
        for (b, right) in values {
            let and = match (left, right) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            };
            let or = match (left, right) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            };
            assert_eq!(evaluate(&format!("{a} AND {b}")), and, "{a} AND {b}");
            assert_eq!(evaluate(&format!("{a} OR {b}")), or, "{a} OR {b}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
        if let Ok(selector) = Selector::parse(&text, &SelectorLimits::default()) {
            let _ = selector.matches_fields(&NoFields);
        }
    }

    #[test]
    fn any_words_are_read_or_refused(words in prop::collection::vec(prop::sample::select(vec![
        "a", "'x'", "1", "2.5", "(", ")", "=", "<>", "<", "+", "-", "*", "/", ",", "AND", "OR",
        "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "'!'", "IS", "NULL", "TRUE", "FALSE", "color",
    ]), 0..14)) {
        let text = words.join(" ");
        if let Ok(selector) = Selector::parse(&text, &SelectorLimits::default()) {
            let message = message();
            let _ = selector.matches(&MessageView::parse(&message).unwrap());
            // True and false exclude each other.
            let negated = Selector::parse(&format!("NOT ({text})"), &SelectorLimits::default());
            if let Ok(negated) = negated {
                prop_assert!(!(selector.matches_fields(&NoFields) && negated.matches_fields(&NoFields)));
            }
        }
    }
}

#[test]
fn many_names_are_found_among_many_properties() {
    for count in [10, 17, 100] {
        let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
        let mut out = BytesMut::new();
        MessageWriter::new(&mut out).application_properties(|map| {
            for name in &names {
                map.push(&Value::String(name), &Value::String(name));
            }
        });
        let view = MessageView::parse(&out).unwrap();
        let terms = names.iter().map(|name| format!("{name} = '{name}' AND "));
        let all = terms.collect::<String>() + "missing IS NULL";
        let limits = SelectorLimits {
            max_depth: 255,
            ..SelectorLimits::default()
        };
        assert!(Selector::parse(&all, &limits).unwrap().matches(&view));
        let not_all = all + " AND p3 = 'p4'";
        assert!(!Selector::parse(&not_all, &limits).unwrap().matches(&view));
    }
}
