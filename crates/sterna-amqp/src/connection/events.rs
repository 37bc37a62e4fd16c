//! Events that wait until the caller takes them.

use std::collections::VecDeque;

use super::{Event, LinkId, SessionId};
use crate::messaging::DeliveryStateBuf;

/// Room for this many is kept when there are none.
const KEPT_EVENTS: usize = 32;

/// Events in their order. A frame can be about very many deliveries, and each takes little here.
#[derive(Debug, Default)]
pub(crate) struct Events(VecDeque<Waiting>);

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are single events, which take no memory of their own"
)]
#[derive(Debug)]
enum Waiting {
    One(Event<'static>),
    Many(Dispositions),
}

/// Deliveries of a session of which the peer has told the same.
#[derive(Debug)]
struct Dispositions {
    session: SessionId,
    state: Option<DeliveryStateBuf>,
    settled: bool,
    deliveries: VecDeque<Told>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) handle: u32,
    pub(crate) delivery_id: u32,
    pub(crate) token: u64,
}

impl Dispositions {
    /// Takes the next; `None` after the last.
    fn pop(&mut self) -> Option<Event<'static>> {
        let told = self.deliveries.pop_front()?;
        Some(told.event(self.session, self.state.clone(), self.settled))
    }
}

impl Told {
    const fn event(
        self,
        session: SessionId,
        state: Option<DeliveryStateBuf>,
        settled: bool,
    ) -> Event<'static> {
        Event::Disposition {
            link: LinkId {
                session,
                handle: self.handle,
            },
            delivery_id: self.delivery_id,
            token: self.token,
            state,
            settled,
        }
    }
}

impl Events {
    pub(crate) fn push_back(&mut self, event: Event<'static>) {
        self.0.push_back(Waiting::One(event));
    }

    /// Adds an [`Event::Disposition`]. The first of a kind takes no memory of its own, as most frames are about
    /// one delivery.
    pub(crate) fn push_disposition(
        &mut self,
        session: SessionId,
        told: Told,
        state: Option<&DeliveryStateBuf>,
        settled: bool,
    ) {
        let is_same = |of: SessionId, its: Option<&DeliveryStateBuf>, is_settled| {
            of == session && its == state && is_settled == settled
        };
        match self.0.back_mut() {
            Some(Waiting::Many(many))
                if is_same(many.session, many.state.as_ref(), many.settled) =>
            {
                many.deliveries.push_back(told);
            }
            Some(Waiting::One(Event::Disposition {
                link,
                state: its,
                settled: is_settled,
                ..
            })) if is_same(link.session, its.as_ref(), *is_settled) => {
                self.0.push_back(Waiting::Many(Dispositions {
                    session,
                    state: state.cloned(),
                    settled,
                    deliveries: VecDeque::from([told]),
                }));
            }
            _ => self.push_back(told.event(session, state.cloned(), settled)),
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<Event<'static>> {
        while let Some(Waiting::Many(many)) = self.0.front_mut() {
            if let Some(event) = many.pop() {
                return Some(event);
            }
            self.0.pop_front();
        }
        match self.0.pop_front() {
            Some(Waiting::One(event)) => Some(event),
            Some(Waiting::Many(_)) | None => {
                if self.0.capacity() > KEPT_EVENTS {
                    self.0 = VecDeque::new();
                }
                None
            }
        }
    }
}
