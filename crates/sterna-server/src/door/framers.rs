//! The streams of a connection: the framers that cut their bytes, and which of them are mute.

use sterna_net::StreamId;
use thin_vec::ThinVec;

/// One framer per stream. Byte-stream transports have the control stream only.
#[derive(Debug, Default)]
pub(crate) struct Framers<F> {
    control: F,
    others: ThinVec<Stream<F>>,
}

/// A stream beside the control stream.
#[derive(Debug)]
struct Stream<F> {
    id: StreamId,
    framer: F,
    /// Whether the client reads it no more.
    is_mute: bool,
}

impl<F: Default> Framers<F> {
    /// Takes out the framer of a stream while its output is handled. A stream that is not known yet gets one.
    pub(crate) fn take(&mut self, stream: StreamId) -> F {
        if stream == StreamId::FIRST {
            return std::mem::take(&mut self.control);
        }
        if let Some(known) = self.find_mut(stream) {
            return std::mem::take(&mut known.framer);
        }
        self.others.push(Stream {
            id: stream,
            framer: F::default(),
            is_mute: false,
        });
        F::default()
    }

    /// Puts the framer of a stream back, unless the stream is gone.
    pub(crate) fn put_back(&mut self, stream: StreamId, framer: F) {
        if stream == StreamId::FIRST {
            self.control = framer;
        } else if let Some(known) = self.find_mut(stream) {
            known.framer = framer;
        }
    }

    /// All framers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &F> {
        let others = self.others.iter().map(|stream| &stream.framer);
        std::iter::once(&self.control).chain(others)
    }

    /// # Panics
    /// Where a stream has two framers.
    pub(crate) fn check(&self) {
        for (at, stream) in self.others.iter().enumerate() {
            let is_control = stream.id == StreamId::FIRST;
            assert!(!is_control, "the control stream has its own framer");
            let mut before = self.others[..at].iter();
            assert!(
                before.all(|known| known.id != stream.id),
                "a stream has one framer"
            );
        }
    }

    /// Whether a stream beside the control stream is known.
    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.find(stream).is_some()
    }

    /// Notes that the client reads a stream no more, if that is known.
    pub(crate) fn mute(&mut self, stream: StreamId) {
        if let Some(known) = self.find_mut(stream) {
            known.is_mute = true;
        }
    }

    /// Whether a stream is known that the client reads no more.
    pub(crate) fn is_mute(&self, stream: StreamId) -> bool {
        self.find(stream).is_some_and(|known| known.is_mute)
    }

    /// Forgets a stream beside the control stream.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        self.others.retain(|known| known.id != stream);
    }

    fn find(&self, stream: StreamId) -> Option<&Stream<F>> {
        self.others.iter().find(|known| known.id == stream)
    }

    fn find_mut(&mut self, stream: StreamId) -> Option<&mut Stream<F>> {
        self.others.iter_mut().find(|known| known.id == stream)
    }
}
