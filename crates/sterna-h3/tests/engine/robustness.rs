//! The bodies of the fuzz targets, as property tests.

use proptest::prelude::*;

use crate::{bodies, script};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn either_end_stands_anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        script::connection(&bytes);
    }

    #[test]
    fn any_bytes_of_a_stream(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        bodies::frames(&bytes);
        bodies::sections(&bytes);
        bodies::sections(&[&[0, 0][..], &bytes].concat());
    }

    /// A field section that was changed in a few places.
    #[test]
    fn changed_sections(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = crate::harness::section(&[
            (":method", "POST"),
            (":authority", "example.org"),
            ("content-type", "text/event-stream"),
            ("x-name", "with a value \u{1}"),
        ]);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bodies::sections(&bytes);
    }
}
