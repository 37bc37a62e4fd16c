//! The type codec: any value round-trips, nothing that is cut or changed panics, nothing is read
//! beyond the input, and decoding allocates nothing.
#![allow(clippy::unwrap_used)] // it is all test

use bytes::{BufMut as _, BytesMut};
use proptest::prelude::*;
use sterna_amqp::types::{Encoded, ListWriter, MAX_DEPTH, MapWriter, Reader, Value, code};

/// The data of one value of a primitive type, as it stands after its format code.
fn data_of(code: u8) -> BoxedStrategy<Vec<u8>> {
    fn fixed(bytes: usize) -> BoxedStrategy<Vec<u8>> {
        prop::collection::vec(any::<u8>(), bytes).boxed()
    }
    fn variable8(content: impl Strategy<Value = Vec<u8>> + 'static) -> BoxedStrategy<Vec<u8>> {
        content
            .prop_map(|content| [&[content.len() as u8][..], &content].concat())
            .boxed()
    }
    fn variable32(content: impl Strategy<Value = Vec<u8>> + 'static) -> BoxedStrategy<Vec<u8>> {
        content
            .prop_map(|content| [&(content.len() as u32).to_be_bytes()[..], &content].concat())
            .boxed()
    }
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let text = || "\\PC{0,12}".prop_map(String::into_bytes);
    let ascii = || "[ -~]{0,12}".prop_map(String::into_bytes);
    match code {
        code::NULL
        | code::BOOLEAN_TRUE
        | code::BOOLEAN_FALSE
        | code::UINT0
        | code::ULONG0
        | code::LIST0 => Just(Vec::new()).boxed(),
        code::BOOLEAN => (0..2_u8).prop_map(|v| vec![v]).boxed(),
        code::CHAR => any::<char>()
            .prop_map(|v| u32::from(v).to_be_bytes().to_vec())
            .boxed(),
        code::VBIN8 => variable8(bytes()),
        code::VBIN32 => variable32(bytes()),
        code::STR8 => variable8(text()),
        code::STR32 => variable32(text()),
        code::SYM8 => variable8(ascii()),
        code::SYM32 => variable32(ascii()),
        // One small number within: enough for arrays of compounds.
        code::LIST8 => Just(vec![3, 1, code::SMALLINT, 7]).boxed(),
        code::LIST32 => Just(vec![0, 0, 0, 6, 0, 0, 0, 1, code::SMALLINT, 7]).boxed(),
        code::MAP8 => Just(vec![4, 2, code::UINT0, code::SMALLINT, 7]).boxed(),
        code::MAP32 => Just(vec![0, 0, 0, 7, 0, 0, 0, 2, code::UINT0, code::SMALLINT, 7]).boxed(),
        code::ARRAY8 => Just(vec![4, 2, code::BYTE, 1, 2]).boxed(),
        code::ARRAY32 => Just(vec![0, 0, 0, 7, 0, 0, 0, 2, code::BYTE, 1, 2]).boxed(),
        _ => fixed(match code >> 4 {
            0x5 => 1,
            0x6 => 2,
            0x7 => 4,
            0x8 => 8,
            _ => 16,
        }),
    }
}

fn primitive_code() -> impl Strategy<Value = u8> {
    prop::sample::select(code::PRIMITIVES.to_vec())
}

/// An encoded primitive value in any of its encodings, the wide ones too.
fn primitive() -> impl Strategy<Value = Vec<u8>> {
    primitive_code()
        .prop_flat_map(|code| data_of(code).prop_map(move |data| [&[code][..], &data].concat()))
}

fn descriptor() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<u64>().prop_map(|v| Encoded::new(&Value::Ulong(v)).bytes().to_vec()),
        "[a-z:]{1,9}".prop_map(|v| Encoded::new(&Value::Symbol(&v)).bytes().to_vec()),
        primitive(),
    ]
}

/// An array of any element type, described ones too.
fn array() -> impl Strategy<Value = Vec<u8>> {
    let described = prop::option::of(descriptor());
    (primitive_code(), described, any::<bool>()).prop_flat_map(|(code, descriptor, wide)| {
        prop::collection::vec(data_of(code), 0..5).prop_map(move |elements| {
            let mut body = Vec::new();
            if let Some(descriptor) = &descriptor {
                body.push(code::DESCRIBED);
                body.extend_from_slice(descriptor);
            }
            body.push(code);
            body.extend(elements.iter().flatten());
            compound([code::ARRAY8, code::ARRAY32], elements.len(), &body, wide)
        })
    })
}

fn compound([code8, code32]: [u8; 2], count: usize, body: &[u8], wide: bool) -> Vec<u8> {
    let mut out = Vec::new();
    if wide || body.len() > 254 || count > 255 {
        out.put_u8(code32);
        out.put_u32(body.len() as u32 + 4);
        out.put_u32(count as u32);
    } else {
        out.put_slice(&[code8, body.len() as u8 + 1, count as u8]);
    }
    out.put_slice(body);
    out
}

/// Any encoded value.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![4 => primitive(), 1 => array()];
    leaf.prop_recursive(5, 60, 6, |inner| {
        let entries = prop::collection::vec(inner.clone(), 0..6);
        let pairs = prop::collection::vec((inner.clone(), inner.clone()), 0..4);
        prop_oneof![
            (entries, any::<bool>()).prop_map(|(entries, wide)| compound(
                [code::LIST8, code::LIST32],
                entries.len(),
                &entries.concat(),
                wide
            )),
            (pairs, any::<bool>()).prop_map(|(pairs, wide)| {
                let body: Vec<u8> = pairs
                    .iter()
                    .flat_map(|(k, v)| [&k[..], v].concat())
                    .collect();
                compound([code::MAP8, code::MAP32], pairs.len() * 2, &body, wide)
            }),
            (descriptor(), inner)
                .prop_map(|(descriptor, value)| [&[0][..], &descriptor, &value].concat()),
        ]
    })
}

/// Walks everything that can be reached, and checks that counts are what was promised.
fn walk(value: &Value<'_>) -> usize {
    1 + match value {
        Value::List(list) => {
            assert_eq!(list.iter().count(), list.len());
            list.iter().map(|one| walk(&one)).sum()
        }
        Value::Map(map) => {
            assert_eq!(map.iter().count(), map.len());
            let _ = map.check_keys(|_| true);
            map.iter().map(|(k, v)| walk(&k) + walk(&v)).sum()
        }
        Value::Array(array) => {
            assert_eq!(array.iter().count(), array.len());
            array.iter().map(|one| walk(&one)).sum()
        }
        Value::Described(described) => walk(&described.descriptor()) + walk(&described.value()),
        _ => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_value_round_trips_in_no_more_bytes(bytes in value()) {
        let decoded = Value::decode(&bytes).unwrap();
        walk(&decoded);
        let encoded = Encoded::new(&decoded);
        prop_assert!(encoded.bytes().len() <= bytes.len());
        let again = Encoded::new(&encoded.value());
        prop_assert_eq!(again.bytes(), encoded.bytes());
        // Not a number is not itself; its bits are.
        prop_assert_eq!(format!("{:?}", encoded.value()), format!("{decoded:?}"));
    }

    #[test]
    fn a_value_that_is_cut_off_is_an_error(bytes in value(), at in any::<prop::sample::Index>()) {
        let cut = at.index(bytes.len());
        prop_assert!(Value::decode(&bytes[..cut]).is_err());
    }

    #[test]
    fn nothing_is_read_beyond_a_value(bytes in value(), more in prop::collection::vec(any::<u8>(), 0..9)) {
        let together = [&bytes[..], &more].concat();
        let mut reader = Reader::new(&together);
        reader.value().unwrap();
        prop_assert_eq!(reader.rest(), &more[..]);
    }

    #[test]
    fn changed_bytes_never_panic(
        mut bytes in value(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(value) = Value::decode(&bytes) {
            walk(&value);
            let encoded = Encoded::new(&value);
            prop_assert!(Value::decode(encoded.bytes()).is_ok());
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(value) = Value::decode(&bytes) {
            walk(&value);
        }
    }
}

#[test]
fn scalars_take_their_shortest_form() {
    let cases: [(Value<'_>, &[u8]); 24] = [
        (Value::Null, &[0x40]),
        (Value::Boolean(true), &[0x41]),
        (Value::Boolean(false), &[0x42]),
        (Value::Ubyte(7), &[0x50, 7]),
        (Value::Ushort(7), &[0x60, 0, 7]),
        (Value::Uint(0), &[0x43]),
        (Value::Uint(255), &[0x52, 255]),
        (Value::Uint(256), &[0x70, 0, 0, 1, 0]),
        (Value::Ulong(0), &[0x44]),
        (Value::Ulong(255), &[0x53, 255]),
        (Value::Ulong(256), &[0x80, 0, 0, 0, 0, 0, 0, 1, 0]),
        (Value::Byte(-1), &[0x51, 255]),
        (Value::Short(-2), &[0x61, 255, 254]),
        (Value::Int(-128), &[0x54, 128]),
        (Value::Int(128), &[0x71, 0, 0, 0, 128]),
        (Value::Long(127), &[0x55, 127]),
        (
            Value::Long(-129),
            &[0x81, 255, 255, 255, 255, 255, 255, 255, 127],
        ),
        (Value::Float(1.0), &[0x72, 0x3f, 0x80, 0, 0]),
        (Value::Char('ä'), &[0x73, 0, 0, 0, 0xe4]),
        (Value::Timestamp(1), &[0x83, 0, 0, 0, 0, 0, 0, 0, 1]),
        (Value::Binary(b"ab"), &[0xa0, 2, b'a', b'b']),
        (Value::String("é"), &[0xa1, 2, 0xc3, 0xa9]),
        (Value::Symbol("a"), &[0xa3, 1, b'a']),
        (Value::Uint(1), &[0x52, 1]),
    ];
    for (value, expected) in cases {
        let encoded = Encoded::new(&value);
        assert_eq!(&encoded.bytes()[..], expected, "{value:?}");
        assert_eq!(encoded.value(), value);
    }
}

#[test]
fn long_strings_and_lists_take_the_wide_form() {
    for bytes in [255, 256, 70_000] {
        let text = "x".repeat(bytes);
        let encoded = Encoded::new(&Value::String(&text));
        assert_eq!(encoded.bytes()[0], if bytes < 256 { 0xa1 } else { 0xb1 });
        assert_eq!(encoded.value(), Value::String(&text));
    }
    for count in [0, 1, 126, 127, 254, 255, 256, 1000] {
        let mut out = BytesMut::new();
        let mut list = ListWriter::new(&mut out);
        let mut map_bytes = BytesMut::new();
        let mut map = MapWriter::new(&mut map_bytes);
        for index in 0..count {
            list.push(&Value::Ubyte(index as u8));
            map.push(&Value::Uint(index), &Value::Null);
        }
        list.finish();
        map.finish();
        let Value::List(list) = Value::decode(&out).unwrap() else {
            panic!("not a list");
        };
        assert_eq!(list.len(), count as usize);
        let Value::Map(map) = Value::decode(&map_bytes).unwrap() else {
            panic!("not a map");
        };
        assert_eq!(map.len(), count as usize);
        assert!(map.check_keys(|key| matches!(key, Value::Uint(_))).is_ok());
    }
}

#[test]
fn trailing_nulls_are_left_out_of_lists() {
    let mut out = BytesMut::new();
    let mut list = ListWriter::new(&mut out);
    list.skip();
    list.push(&Value::Boolean(true));
    list.skip();
    list.finish();
    assert_eq!(&out[..], [0xc0, 3, 2, 0x40, 0x41]);
}

#[test]
fn malformed_values_are_refused() {
    let cases: &[(&str, &[u8])] = &[
        ("nothing", &[]),
        ("unknown format code", &[0x3f]),
        ("boolean of 2", &[0x56, 2]),
        ("surrogate as char", &[0x73, 0, 0, 0xd8, 0]),
        ("char out of range", &[0x73, 0, 0x11, 0, 0]),
        ("string that is not UTF-8", &[0xa1, 1, 0xff]),
        ("symbol that is not ASCII", &[0xa3, 2, 0xc3, 0xa9]),
        (
            "string longer than the input",
            &[0xb1, 0xff, 0xff, 0xff, 0xff],
        ),
        ("list without a count", &[0xc0, 0]),
        ("list with more entries than bytes", &[0xc0, 2, 200, 0x40]),
        ("list with bytes left", &[0xc0, 3, 1, 0x40, 0x40]),
        ("map with an odd count", &[0xc1, 2, 1, 0x40]),
        ("array without a constructor", &[0xe0, 1, 0]),
        ("array with bytes left", &[0xe0, 4, 1, 0x50, 1, 2]),
        ("array with too few bytes", &[0xe0, 3, 2, 0x50, 1]),
        (
            "four billion nulls",
            &[0xf0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x40],
        ),
        ("descriptor without a value", &[0x00, 0x53, 1]),
        ("descriptor alone", &[0x00]),
        ("bytes after the value", &[0x40, 0x40]),
    ];
    for (name, bytes) in cases {
        assert!(Value::decode(bytes).is_err(), "{name}");
    }
}

#[test]
fn nesting_has_a_limit() {
    let nested = |levels: usize| {
        let mut bytes = vec![0x45];
        for _ in 0..levels {
            bytes = compound([code::LIST8, code::LIST32], 1, &bytes, false);
        }
        bytes
    };
    assert!(Value::decode(&nested(usize::from(MAX_DEPTH))).is_ok());
    assert!(Value::decode(&nested(usize::from(MAX_DEPTH) + 1)).is_err());
    // Descriptors nest, too: however many there are, the stack holds.
    let descriptors = vec![0_u8; 100_000];
    assert!(Value::decode(&descriptors).is_err());
}

/// Reading takes time in proportion to the input: were a descriptor read twice at each level, these
/// few bytes would take minutes.
#[test]
fn nested_descriptors_are_read_once() {
    let mut nested = vec![code::NULL];
    for _ in 0..MAX_DEPTH {
        nested = [&[code::DESCRIBED][..], &nested, &[code::NULL]].concat();
    }
    let list = compound([code::LIST8, code::LIST32], 1, &nested, true);
    for _ in 0..1000 {
        assert!(Value::decode(&nested).is_ok());
        assert!(Value::decode(&list).is_err());
    }
    // A long descriptor is not read again for each element.
    let name = "x".repeat(200_000);
    let mut body = vec![code::DESCRIBED];
    body.extend_from_slice(Encoded::new(&Value::Symbol(&name)).bytes());
    body.push(code::UBYTE);
    body.resize(body.len() + 200_000, 7);
    let array = compound([code::ARRAY8, code::ARRAY32], 200_000, &body, true);
    assert!(Value::decode(&array).is_ok());
}

#[test]
fn keys_that_come_twice_are_found() {
    let map = |keys: &[Value<'_>]| {
        let mut out = BytesMut::new();
        let mut map = MapWriter::new(&mut out);
        for key in keys {
            map.push(key, &Value::Null);
        }
        map.finish();
        out
    };
    let twice = |bytes: &[u8]| {
        let Value::Map(map) = Value::decode(bytes).unwrap() else {
            panic!("not a map");
        };
        map.check_keys(|_| true).is_err()
    };
    assert!(twice(&map(&[Value::String("a"), Value::String("a")])));
    assert!(!twice(&map(&[Value::String("a"), Value::String("b")])));
    let names: Vec<String> = (0..40).map(|index| index.to_string()).collect();
    let mut keys: Vec<Value<'_>> = names.iter().map(|name| Value::String(name)).collect();
    assert!(!twice(&map(&keys)));
    keys.push(Value::String("17"));
    assert!(twice(&map(&keys)));
}
