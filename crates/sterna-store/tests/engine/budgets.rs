//! The cost of a message.

use super::{Store, settings};
use sterna_store::disk::SimulatedDisk;
use sterna_store::{Draft, Settings};

/// At most 1.3 times the size of a message, and 64 bytes.
#[test]
fn bytes_written_per_message_are_bounded() {
    // The broker's form of a message adds about this to topic and payload.
    const FORM_BYTES: usize = 20;
    for (payload, topics) in [
        (100, 1),
        (100, 10),
        (100, 1_000_000),
        (1_000, 10),
        (1_000, 1_000_000),
    ] {
        let settings = Settings {
            segment_bytes: 1 << 20,
            ..settings()
        };
        let mut store = Store::open(&SimulatedDisk::new(1), &settings);
        store.pass(1);
        let before = store.disk.written_bytes();
        let count = 20_000_u64;
        let mut draft = Draft::default();
        for number in 0..count {
            let topic = format!("site/device/{:08}", number % topics);
            draft.clear();
            draft
                .message(&topic, |out| {
                    out.resize(out.len() + FORM_BYTES, 7);
                    out.extend_from_slice(topic.as_bytes());
                    out.resize(out.len() + payload, 7);
                })
                .unwrap();
            store.handle.append(&draft).unwrap();
            if number % 100 == 99 {
                store.pass(1);
            }
        }
        store.pass(3_000);
        let written = store.disk.written_bytes() - before;
        let most = (20 + payload as u64) * 13 / 10 + 64;
        let each = written / count;
        println!("{payload} bytes, {topics} topics: {each} of {most}");
        assert!(
            each <= most,
            "{payload} bytes, {topics} topics: {each} of {most}"
        );
    }
}
