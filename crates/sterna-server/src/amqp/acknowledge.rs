//! Answers to clients that wait until their effects are kept.

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf};

use super::Door;
use super::attach::Attaching;
use super::client::{Accepted, Client};
use super::target::AttachingTarget;
use crate::context::Context;
use crate::door::StepOutput;

/// An answer to a client that waits until its effect is kept.
#[derive(Debug)]
pub(crate) enum Acknowledgement {
    /// Nothing: a settled delivery only has its place among the waiting answers, so that its sender is paced.
    Nothing,
    /// Deliveries from the client are accepted.
    Accepted(Accepted),
    /// The outcome of one delivery from the client.
    Disposed {
        session: SessionId,
        delivery_id: u32,
        settled: bool,
        state: DeliveryStateBuf,
    },
    /// A delivery to the client is settled with its transaction.
    Settled {
        session: SessionId,
        delivery_id: u32,
        state: DeliveryStateBuf,
    },
    /// A delivery to a client that settles second is settled for good.
    SettledForGood {
        link: LinkId,
        delivery_id: u32,
        state: DeliveryStateBuf,
    },
    /// A sender's link is attached.
    AttachedTarget(LinkId, Box<AttachingTarget>),
    /// A receiver's link is attached.
    Attached(LinkId, Box<Attaching>),
}

impl Acknowledgement {
    /// The session that it is for.
    pub(super) fn session(&self) -> Option<SessionId> {
        match self {
            Self::Nothing => None,
            Self::Accepted(accepted) => Some(accepted.session),
            Self::Disposed { session, .. } | Self::Settled { session, .. } => Some(*session),
            Self::SettledForGood { link, .. }
            | Self::AttachedTarget(link, _)
            | Self::Attached(link, _) => Some(link.session),
        }
    }
}

impl Door {
    /// Decides answers that are not sent any more, and notes them for suspended links. So an accepted message is
    /// not sent again, and a client hears what became of its transaction. Nothing is settled: the client knows of
    /// nothing, and asks when its link comes back.
    pub(super) fn decide_untold(client: &mut Client) {
        let mut nowhere = StepOutput::default();
        let mut decide = |session, range, state: &DeliveryState<'_>| {
            // A session that has ended remembers nothing.
            let _ = (client.engine).dispose(session, range, Some(state), false, &mut nowhere);
        };
        for acknowledgement in client.promises.take() {
            match acknowledgement {
                Acknowledgement::Accepted(accepted) => {
                    let range = (accepted.first, accepted.last);
                    decide(accepted.session, range, &DeliveryState::ACCEPTED);
                }
                Acknowledgement::Disposed {
                    session,
                    delivery_id,
                    state,
                    ..
                } => decide(session, (delivery_id, delivery_id), &state.view()),
                _ => {}
            }
        }
    }

    /// Writes an answer whose effect is kept now.
    pub(super) fn write_acknowledgement(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        acknowledgement: Acknowledgement,
    ) {
        let (engine, out) = (&mut client.engine, &mut self.out);
        // A session that has ended needs no word.
        match acknowledgement {
            Acknowledgement::Nothing => {}
            Acknowledgement::Accepted(accepted) => {
                let range = (accepted.first, accepted.last);
                let state = Some(&DeliveryState::ACCEPTED);
                let _ = engine.dispose(accepted.session, range, state, accepted.settled, out);
            }
            Acknowledgement::Disposed {
                session,
                delivery_id,
                settled,
                state,
            } => {
                let range = (delivery_id, delivery_id);
                let _ = engine.dispose(session, range, Some(&state.view()), settled, out);
            }
            Acknowledgement::Settled {
                session,
                delivery_id,
                state,
            } => {
                let range = (delivery_id, delivery_id);
                let _ = engine.settle(session, range, Some(&state.view()), out);
            }
            Acknowledgement::SettledForGood {
                link,
                delivery_id,
                state,
            } => {
                let range = (delivery_id, delivery_id);
                let _ = engine.settle(link.session, range, Some(&state.view()), out);
                self.resume(cx, client, link);
            }
            Acknowledgement::AttachedTarget(link, attaching) => {
                return self.answer_target(cx, client, link, &attaching);
            }
            Acknowledgement::Attached(link, attaching) => {
                return self.answer_source(cx, client, link, *attaching);
            }
        }
        self.renew_credits(cx, client);
    }

    /// Gives more credit to links that had less than they could have had.
    fn renew_credits(&mut self, cx: &Context<'_>, client: &mut Client) {
        if std::mem::take(&mut client.is_starved) {
            let links: Vec<LinkId> = client.targets.keys().copied().collect();
            for link in links {
                self.renew_credit(cx, client, link);
            }
        }
    }
}
