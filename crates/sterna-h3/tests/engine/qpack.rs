//! QPACK against the specification and against what others write.

use proptest::prelude::*;
use sterna_h3::qpack::{DecodeError, decode, encode};
use sterna_h3::{Field, Fields};

use crate::harness::{fields, section};

fn decoded(bytes: &[u8]) -> Result<Fields, DecodeError> {
    let mut fields = Fields::new();
    decode(bytes, 16_384, 128, &mut fields).map(|()| fields)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

/// RFC 9204, appendix B.1.
#[test]
fn a_literal_with_the_name_of_an_entry() {
    let path = fields(&[(":path", "/index.html")]);
    assert_eq!(
        decoded(&bytes("0000 510b 2f69 6e64 6578 2e68 746d 6c")),
        Ok(path)
    );
}

/// RFC 9204, appendices B.2 to B.5, use the dynamic table, which was not allowed.
#[test]
fn what_needs_a_dynamic_table_is_refused() {
    let sections = [
        "0381 10 11",
        "0500 80 c1 81",
        "0402 80 11",
        "0000 10",
        "0000 80",
        "0000 40 00",
    ];
    for hex in sections {
        let error = decoded(&bytes(hex)).unwrap_err();
        assert!(matches!(error, DecodeError::Failed(_)), "{hex}");
    }
}

#[test]
fn broken_sections_are_refused() {
    let sections = [
        ("", "without a prefix"),
        ("00", "without a base"),
        ("0080", "a negative base"),
        ("00ff", "a base that is cut off"),
        ("0000 ff24", "an index beyond the static table: 63 + 36"),
        ("0000 5f54 0131", "the same with a literal value: 15 + 84"),
        (
            "0000 ffff ffff ffff ffff ffff ff01",
            "an index beyond all measure",
        ),
        ("0000 51", "no value"),
        ("0000 5105 2f", "a value that is cut off"),
        ("0000 5181 00", "zeros as padding"),
        ("0000 5181 ff", "a byte of padding"),
        ("0000 5184 ffff ffff", "the end of the string"),
        ("0000 2378", "a name that is cut off"),
        ("0000 2178", "a name without a value"),
        ("0000 29ff 00", "wrong padding in a name"),
    ];
    for (hex, why) in sections {
        let error = decoded(&bytes(hex)).unwrap_err();
        assert!(matches!(error, DecodeError::Failed(_)), "{why}");
    }
    // A positive base says nothing and breaks nothing, and the last entry is 98.
    assert_eq!(
        decoded(&bytes("0005 ff23")),
        Ok(fields(&[("x-frame-options", "sameorigin")]))
    );
}

#[test]
fn every_entry_of_the_static_table_has_its_index() {
    let mut previous = String::new();
    for index in 0..99_u8 {
        let coded = match index {
            0..63 => vec![0, 0, 0xc0 | index],
            _ => vec![0, 0, 0xff, index - 63],
        };
        let list = decoded(&coded).unwrap();
        let field = list.at(0).unwrap();
        let mut written = Vec::new();
        encode([field], &mut written);
        assert_eq!(written, coded, "{field:?}");
        assert_ne!(format!("{field:?}"), previous);
        previous = format!("{field:?}");
    }
}

/// Sections as pylsqpack 1.0 (ls-qpack) writes them without a dynamic table. It takes the shortest
/// form as well, so that both write the same.
#[test]
fn another_implementation_writes_the_same() {
    for (list, hex) in LS_QPACK {
        let written = section(list);
        assert_eq!(written, bytes(hex), "{list:?}");
        assert_eq!(decoded(&written), Ok(fields(list)));
    }
}

/// Sections as quic-go's qpack 0.5.1 writes them: it prefers Huffman code at any length.
#[test]
fn what_another_implementation_writes_is_read() {
    for (list, hex) in QUIC_GO {
        assert_eq!(decoded(&bytes(hex)), Ok(fields(list)));
        assert!(section(list).len() <= bytes(hex).len());
    }
}

#[test]
fn secrets_are_marked_and_stay_so() {
    for (name, value) in [("authorization", "Basic YTpi"), ("x-key", "1")] {
        let secret = Field::secret(name, value.as_bytes());
        let open = Field::new(name, value.as_bytes());
        let [mut marked, mut unmarked] = [Vec::new(), Vec::new()];
        encode([secret], &mut marked);
        encode([open], &mut unmarked);
        assert_eq!(marked.len(), unmarked.len());
        assert_ne!(marked, unmarked);
        assert_eq!(decoded(&marked).unwrap().at(0), Some(secret));
        assert_eq!(decoded(&unmarked).unwrap().at(0), Some(open));
        assert!(!format!("{secret:?}").contains(value));
    }
}

#[test]
fn limits_hold_exactly() {
    let list = [("name", "value"), (":status", "200")];
    let size = 4 + 5 + 32 + 7 + 3 + 32;
    let written = section(&list);
    let read = |max_bytes, max_fields| {
        let mut fields = Fields::new();
        decode(&written, max_bytes, max_fields, &mut fields).map(|()| fields.section_bytes())
    };
    assert_eq!(read(size, 2), Ok(size));
    assert_eq!(read(size - 1, 2), Err(DecodeError::TooLarge));
    assert_eq!(read(size, 1), Err(DecodeError::TooLarge));
    assert_eq!(read(0, 0), Err(DecodeError::TooLarge));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_written_is_read(
        list in prop::collection::vec(
            (
                prop_oneof![
                    "[a-z-]{1,20}",
                    Just(":path".to_owned()),
                    Just(":status".to_owned()),
                    Just("content-type".to_owned()),
                    Just("cache-control".to_owned()),
                ],
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..300),
                    "[a-z0-9/ .=-]{0,60}".prop_map(String::into_bytes),
                    Just(b"200".to_vec()),
                    Just(b"no-cache".to_vec()),
                ],
                any::<bool>(),
            ),
            0..20,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 8),
    ) {
        let all: Fields = list
            .iter()
            .map(|(name, value, secret)| match secret {
                true => Field::secret(name, value),
                false => Field::new(name, value),
            })
            .collect();
        let mut written = Vec::new();
        encode(all.iter(), &mut written);
        // No form is longer than the plainest one.
        let plainest: usize = all
            .iter()
            .map(|field| field.name.len() + field.value.len() + 6)
            .sum();
        prop_assert!(written.len() <= 2 + plainest);
        let read = decoded(&written).unwrap();
        prop_assert_eq!(read.len(), all.len());
        for (one, other) in read.iter().zip(all.iter()) {
            prop_assert_eq!((one.name, one.value), (other.name, other.value));
        }
        for cut in cuts {
            let cut = cut.index(written.len());
            if let Ok(part) = decoded(&written[..cut]) {
                prop_assert!(part.len() < all.len());
            }
        }
    }
}

type Vectors = [(&'static [(&'static str, &'static str)], &'static str); 6];

const GET_ROOT: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "example.org"),
    (":path", "/"),
];

const PUBLISH: &[(&str, &str)] = &[
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "broker.example.org:8443"),
    (":path", "/v1/topics/sensors/room1/temperature"),
    ("content-type", "text/plain"),
    ("authorization", "Basic ZGV2aWNlOnNlY3JldA=="),
    ("idempotency-key", "7f3a-22"),
];

const SUBSCRIBED: &[(&str, &str)] = &[
    (":status", "200"),
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
];

const TOO_EARLY: &[(&str, &str)] = &[
    (":status", "425"),
    ("content-length", "0"),
    ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
];

const WEBTRANSPORT: &[(&str, &str)] = &[
    (":method", "CONNECT"),
    (":protocol", "webtransport"),
    (":scheme", "https"),
    (":authority", "localhost:4433"),
    (":path", "/v1/session"),
    ("origin", "https://localhost"),
    ("sec-webtransport-http3-draft02", "1"),
];

const ODD: &[(&str, &str)] = &[
    ("x-binary", "\0\u{1}\u{7f}~!{}|<>^`"),
    ("empty", ""),
    (
        "x-long",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ),
];

const LS_QPACK: Vectors = [
    (GET_ROOT, "0000d1d750882f91d35d055cf64dc1"),
    (
        PUBLISH,
        "0000d4d750918ec3f52d8b97c8e9ae82ae7b26b8f34d33519963b85849eb3110c20b520f6218b0e7 \
         a42c24b4d65b069b6c2ff55f4595ba34188a7ee2e221f2d346aab4d1cd9cb4490c107f2f043485a6 \
         b3a4b513d2dd4beb85765646b085",
    ),
    (
        SUBSCRIBED,
        "0000d95f1d8c497ca582f72d495909b0a3a7e72f06f2b0c842d0b476cb296c35537f026e6f",
    ),
    (
        TOO_EARLY,
        "0000ff07c45697dd6d5f4a01c5349fba817df69403d71a7ee32ea98b46ff",
    ),
    (
        WEBTRANSPORT,
        "0000cf2f00b95d8749c87a3f89f058d360ea4567b13fd7508aa0e41d139d09b8d34cb3518863b858 \
         4150831eaf5f4b8c9d29ad1718628390744e74272f0e4148b782c69b07522b3d895a74a6b65692c1 \
         ca900b0131",
    ),
    (
        ODD,
        "00002ef2b466a8767a0c00017f7e217b7d7c3c3e5e602c2d35a7d7002df2b507aa6fff1c18c6318c \
         6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c \
         6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c \
         6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c \
         6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c63",
    ),
];

const QUIC_GO: Vectors = [
    (GET_ROOT, "0000d1d750882f91d35d055cf64dc1"),
    (
        PUBLISH,
        "0000d4d750918ec3f52d8b97c8e9ae82ae7b26b8f34d33519963b85849eb3110c20b520f6218b0e7 \
         a42c24b4d65b069b6c2ff55f4595ba34188a7ee2e221f2d346aab4d1cd9cb4490c107f2f043485a6 \
         b3a4b513d2dd4beb85765646b085",
    ),
    (
        SUBSCRIBED,
        "0000d95f1d8c497ca582f72d495909b0a3a7e72f06f2b0c842d0b476cb296c35537f82a8ff",
    ),
    (
        TOO_EARLY,
        "0000ff07c45697dd6d5f4a01c5349fba817df69403d71a7ee32ea98b46ff",
    ),
    (
        WEBTRANSPORT,
        "0000cf2f00b95d8749c87a3f89f058d360ea4567b13fd7508aa0e41d139d09b8d34cb3518863b858 \
         4150831eaf5f4b8c9d29ad1718628390744e74272f0e4148b782c69b07522b3d895a74a6b65692c1 \
         ca900b810f",
    ),
    (
        ODD,
        "00002ef2b466a8767a97ffc7fffd8ffffffcffeff1fffbffdff9fff3fefffcfffb2c2d35a7d7802d \
         f2b507aa6fff1c18c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c631 \
         8c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c631 \
         8c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c631 \
         8c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c6318c631 \
         8c63",
    ),
];
