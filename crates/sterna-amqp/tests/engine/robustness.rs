//! The bodies of the fuzz targets, as property tests.

use proptest::prelude::*;

use crate::bodies;
use crate::harness::encode;
use crate::script;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn either_end_stands_anything(bytes in prop::collection::vec(any::<u8>(), 0..500), start in prop_oneof![1 => 0..16_u8, 4 => 8..10_u8]) {
        script::connection(&[&[start][..], &bytes].concat());
    }

    #[test]
    fn any_bytes_of_a_lane(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        bodies::frames(&bytes);
        bodies::types(&bytes);
    }

    /// A frame body that was changed in a few places, in a frame of its own.
    #[test]
    fn changed_frames(
        which in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        use sterna_amqp::performatives::{Open, Performative, Role};
        let body = match which {
            0 => Performative::Open(Open::new("me")),
            1 => Performative::Attach(crate::harness::attach("link", 0, Role::Sender)),
            2 => Performative::Close(sterna_amqp::performatives::Close { error: None }),
            _ => Performative::Attach(crate::harness::attach("link", 0, Role::Receiver)),
        };
        let mut bytes = encode(0, &body, &[]);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bodies::frames(&bytes);
    }

    #[test]
    fn any_selector(text in "[a-z'() =<>%0-9A-Z]{0,40}") {
        bodies::selector(text.as_bytes());
    }
}
