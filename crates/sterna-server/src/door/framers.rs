//! The framers that cut the bytes of each stream of a connection.

use sterna_net::StreamId;
use thin_vec::ThinVec;

/// One framer per stream. Byte-stream transports have the control stream only.
#[derive(Debug, Default)]
pub(crate) struct Framers<F> {
    control: F,
    others: ThinVec<(StreamId, F)>,
}

impl<F: Default> Framers<F> {
    /// Takes out the framer of a stream while its output is handled. A stream that is not known yet gets one.
    pub(crate) fn take(&mut self, stream: StreamId) -> F {
        if stream == StreamId::FIRST {
            return std::mem::take(&mut self.control);
        }
        if let Some((_, framer)) = self.others.iter_mut().find(|(id, _)| *id == stream) {
            return std::mem::take(framer);
        }
        self.others.push((stream, F::default()));
        F::default()
    }

    /// Puts the framer of a stream back, unless the stream is gone.
    pub(crate) fn put_back(&mut self, stream: StreamId, framer: F) {
        if stream == StreamId::FIRST {
            self.control = framer;
        } else if let Some((_, place)) = self.others.iter_mut().find(|(id, _)| *id == stream) {
            *place = framer;
        }
    }

    /// All framers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &F> {
        let others = self.others.iter().map(|(_, framer)| framer);
        std::iter::once(&self.control).chain(others)
    }

    /// Whether a stream beside the control stream is known.
    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.others.iter().any(|(id, _)| *id == stream)
    }

    /// Forgets a stream beside the control stream.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        self.others.retain(|(id, _)| *id != stream);
    }
}
