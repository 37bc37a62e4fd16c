//! The subject of a readiness event, packed into mio's token.

use mio::Token;

use crate::ConnectionId;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("tokens hold a slot and a generation, which takes 64 bits");

/// Bit that tells the shard's own sources from connections.
const OWN: usize = 1 << 63;
const UDP: usize = 1 << 62;
/// Connections carry this much of their generation: enough to recognise an event that was fetched
/// before its connection made room for another.
const GENERATION_MASK: u32 = (1 << 30) - 1;

/// The shard's waker.
pub(crate) const WAKER: Token = Token(usize::MAX);

/// The source of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Waker,
    /// A listening socket, by its place in the shard's list.
    Listener(usize),
    /// A UDP socket, by its place in the shard's list.
    Udp(usize),
    /// A byte-stream connection; the generation is cut to 30 bits.
    Connection(u32, u32),
}

pub(crate) fn listener(index: usize) -> Token {
    Token(OWN | index)
}

pub(crate) fn udp(index: usize) -> Token {
    Token(OWN | UDP | index)
}

pub(crate) fn connection(id: ConnectionId) -> Token {
    Token(((id.generation & GENERATION_MASK) as usize) << 32 | id.slot as usize)
}

/// Whether an event for this cut generation concerns a connection of that generation.
pub(crate) fn same_generation(cut: u32, generation: u32) -> bool {
    cut == generation & GENERATION_MASK
}

pub(crate) fn source(token: Token) -> Source {
    let Token(bits) = token;
    if token == WAKER {
        Source::Waker
    } else if bits & OWN == 0 {
        Source::Connection(bits as u32, (bits >> 32) as u32)
    } else if bits & UDP == 0 {
        Source::Listener(bits & !OWN)
    } else {
        Source::Udp(bits & !(OWN | UDP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_what_they_are_about() {
        assert_eq!(source(WAKER), Source::Waker);
        assert_eq!(source(listener(3)), Source::Listener(3));
        assert_eq!(source(udp(255)), Source::Udp(255));
        let id = ConnectionId {
            slot: 0x7fff_ffff,
            generation: u32::MAX,
        };
        let Source::Connection(slot, cut) = source(connection(id)) else {
            panic!("a connection");
        };
        assert_eq!(slot, id.slot);
        assert!(same_generation(cut, id.generation));
        assert!(!same_generation(cut, 0));
    }
}
