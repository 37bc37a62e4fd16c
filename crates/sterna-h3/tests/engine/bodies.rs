//! The bodies of the fuzz targets for frames and field sections; the tests run them as well.

use sterna_h3::frame::{FrameType, Gather};
use sterna_h3::{Fields, Settings, qpack, varint};

/// Takes bytes as frames, one after the other, and checks that they are the same however they are
/// cut, and that what is written is read.
///
/// # Panics
///
/// Where one of these does not hold.
pub(crate) fn frames(data: &[u8]) {
    let whole = headers(data, data.len().max(1));
    for piece_bytes in [1, 3, 7] {
        assert_eq!(headers(data, piece_bytes), whole);
    }
    for (frame_type, payload_bytes, header_bytes) in whole {
        let mut written = Vec::new();
        sterna_h3::frame::write_header(frame_type, payload_bytes, &mut written);
        assert_eq!(
            written.len(),
            sterna_h3::frame::header_bytes(frame_type, payload_bytes)
        );
        // Integers may be longer than they have to be, and never shorter.
        assert!(written.len() <= header_bytes);
    }
    let mut rest = data;
    while let Some(value) = varint::take(&mut rest) {
        let mut written = Vec::new();
        varint::write(value, &mut written);
        assert_eq!(varint::read(&written), Some((value, written.len())));
    }
    if let Ok(settings) = Settings::decode(data, 64) {
        assert!(settings.webtransport_sessions <= varint::MAX);
        assert!(data.len() <= 64 * 16);
    }
}

/// Headers of frames whose payloads are passed over.
fn headers(data: &[u8], piece_bytes: usize) -> Vec<(FrameType, u64, usize)> {
    let mut gather = Gather::default();
    let mut found = Vec::new();
    let mut skip = 0_usize;
    for mut piece in data.chunks(piece_bytes) {
        loop {
            let passed = skip.min(piece.len());
            piece = &piece[passed..];
            skip -= passed;
            if piece.is_empty() {
                break;
            }
            let Some(header) = gather.frame(&mut piece, None) else {
                break;
            };
            skip = usize::try_from(header.1).unwrap_or(usize::MAX);
            found.push(header);
        }
    }
    found
}

/// Takes bytes as a field section, and checks that what is read can be written, no longer than it
/// was, and read again.
///
/// # Panics
///
/// Where one of these does not hold.
pub(crate) fn sections(data: &[u8]) {
    const MAX_BYTES: usize = 4_096;
    const MAX_FIELDS: usize = 32;
    let mut fields = Fields::new();
    let result = qpack::decode(data, MAX_BYTES, MAX_FIELDS, &mut fields);
    assert!(fields.len() <= MAX_FIELDS);
    // One field more than fits may be there, and it is no longer than Huffman code can make it.
    assert!(fields.section_bytes() <= MAX_BYTES + 2 * data.len() + 128);
    if result.is_err() {
        return;
    }
    assert!(fields.section_bytes() <= MAX_BYTES);
    let mut written = Vec::new();
    qpack::encode(fields.iter(), &mut written);
    assert!(written.len() <= data.len(), "{fields:?}");
    let mut again = Fields::new();
    let result = qpack::decode(&written, MAX_BYTES, MAX_FIELDS, &mut again);
    assert_eq!(result, Ok(()));
    let plain = |fields: &Fields| -> Vec<_> {
        fields
            .iter()
            .map(|field| (field.name.to_vec(), field.value.to_vec()))
            .collect()
    };
    assert_eq!(plain(&again), plain(&fields));
}
