//! Instructions of the encoder's and the decoder's stream (RFC 9204, sections 4.3 and 4.4).
//!
//! Nothing is ever inserted in either direction, so no instruction changes state.

use super::{Error, integer};

/// Takes one instruction of the peer's encoder off the input; false where it is not whole.
///
/// # Errors
///
/// Every instruction but one that sets the capacity to 0, which it has.
pub(crate) fn encoder_stream(input: &mut &[u8]) -> Result<bool, Error> {
    match input.first() {
        None => Ok(false),
        // Section 4.3.1.
        Some(0x20..=0x3f) => match integer::read(input, 5)? {
            None => Ok(false),
            Some((0, bytes)) => {
                *input = &input[bytes..];
                Ok(true)
            }
            Some(_) => Err(Error("capacity above the announced maximum of 0")),
        },
        // Sections 4.3.2 and 4.3.3.
        Some(0x40..) => Err(Error("insertion into a table without capacity")),
        // Section 4.3.4.
        Some(_) => Err(Error("duplicate of an entry that is not there")),
    }
}

/// Takes one instruction of the peer's decoder off the input; false where it is not whole.
///
/// # Errors
///
/// Acknowledgements of sections and of insertions: there was nothing to acknowledge.
pub(crate) fn decoder_stream(input: &mut &[u8]) -> Result<bool, Error> {
    match input.first() {
        None => Ok(false),
        // Section 4.4.1: only for sections that refer to the dynamic table.
        Some(0x80..) => Err(Error("acknowledgement of a section without references")),
        // Section 4.4.2: an abandoned stream may be announced with any content.
        Some(0x40..) => Ok(match integer::read(input, 6)? {
            None => false,
            Some((_, bytes)) => {
                *input = &input[bytes..];
                true
            }
        }),
        // Section 4.4.3.
        Some(_) => Err(Error("more insertions acknowledged than were sent")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_may_only_say_that_it_has_no_table() {
        let mut input = &[0x20_u8, 0x20][..];
        assert_eq!(encoder_stream(&mut input), Ok(true));
        assert_eq!(encoder_stream(&mut input), Ok(true));
        assert_eq!(encoder_stream(&mut input), Ok(false));
        for first in [0x21_u8, 0x00, 0x1f, 0x40, 0x80, 0xff] {
            assert!(
                encoder_stream(&mut &[first, 0, 0][..]).is_err(),
                "{first:#x}"
            );
        }
        // RFC 9204, appendix B.2: capacity 220 before anything is inserted.
        assert!(encoder_stream(&mut &[0x3f, 0xbd, 0x01][..]).is_err());
        assert_eq!(encoder_stream(&mut &[0x3f, 0xbd][..]), Ok(false));
    }

    #[test]
    fn a_decoder_may_only_abandon_streams() {
        let mut input = &[0x48_u8, 0x7f, 0x09][..];
        assert_eq!(decoder_stream(&mut input), Ok(true));
        assert_eq!(decoder_stream(&mut input), Ok(true));
        assert_eq!(decoder_stream(&mut input), Ok(false));
        assert_eq!(decoder_stream(&mut &[0x7f, 0x80][..]), Ok(false));
        for first in [0x84_u8, 0x80, 0x00, 0x01] {
            assert!(decoder_stream(&mut &[first][..]).is_err(), "{first:#x}");
        }
    }
}
