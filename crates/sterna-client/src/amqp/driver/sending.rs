//! Messages leave: as new deliveries, or as ones that are taken up again after a link was suspended.

use sterna_amqp::connection::LinkId;
use sterna_amqp::link::{OutgoingTransfer, Recovery, Unsettled};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf, MessageView};
use sterna_amqp::transactions::TransactionalState;
use sterna_amqp::{CommandError, Lane};

use super::Driver;
use super::state::{EarlyMessage, Kind, OutgoingAmqpMessage, SenderState, Sending};
use super::wire::{MAX_UNSENT_BYTES, Wire};
use crate::amqp::Error;
use crate::link::Status;
use crate::transport::quic::EarlyData;

/// Bytes of a message that are written in one go, so that others get their turn.
const PIECE_BYTES: usize = 64 << 10;
/// Outcome of an attempt to send.
#[derive(PartialEq, Eq)]
enum Progress {
    /// Something went out, or was found to be over.
    Some,
    /// There is nothing to send, or the peer takes nothing now.
    None,
}

impl Wire {
    /// Sends what a link has and the peer takes.
    pub(super) fn send_from(&mut self, driver: &mut Driver, key: u64) {
        loop {
            if self.carrier.lanes.unsent_bytes() >= MAX_UNSENT_BYTES {
                return;
            }
            match self.send_one(driver, key) {
                Progress::Some => {}
                Progress::None => break,
            }
        }
        driver.active.remove(&key);
        let Some(link) = driver.links.get_mut(&key) else {
            return;
        };
        if let (Some(id), true, Kind::Sender(sender)) = (link.id, link.is_attached, &mut link.kind)
        {
            let idle = sender.waiting.is_empty() && sender.sending.is_none();
            if sender.drain && idle && sender.resuming.is_empty() {
                sender.drain = self.engine.drained(id, 0, &mut self.carrier.lanes).is_err();
            }
            self.complete_maps(id, sender);
        }
    }

    /// Where unsettled maps were incomplete: when everything else is settled, the link is suspended
    /// and attached once more (section 2.6.13).
    fn complete_maps(&mut self, id: LinkId, sender: &SenderState) {
        let rest_is_settled =
            sender.sent.len() == sender.undetermined && sender.resuming.is_empty();
        if self.engine.is_incomplete(id) && rest_is_settled && sender.sending.is_none() {
            let _ = self.engine.detach(id, false, None, &mut self.carrier.lanes);
        }
    }

    fn send_one(&mut self, driver: &mut Driver, key: u64) -> Progress {
        let Some(link) = driver.links.get_mut(&key) else {
            return Progress::None;
        };
        let (Some(id), Kind::Sender(sender)) = (link.id, &mut link.kind) else {
            return Progress::None;
        };
        if sender.sending.is_some() {
            return self.send_more(id, key, sender);
        }
        if link.detach_sent || !self.engine.can_send(id) {
            return Progress::None;
        }
        if let Some((token, (delivery, recovery))) = sender.resuming.pop_first() {
            return self.resume(id, sender, token, &delivery, recovery);
        }
        if self.engine.is_incomplete(id) {
            return Progress::None;
        }
        match sender.waiting.pop_first() {
            Some((token, message)) => self.send_new(driver, key, id, token, message),
            None => Progress::None,
        }
    }

    /// Begins a delivery, if its transaction has not ended.
    fn send_new(
        &mut self,
        driver: &mut Driver,
        key: u64,
        id: LinkId,
        token: u64,
        message: OutgoingAmqpMessage,
    ) -> Progress {
        if driver.is_over(message.attachment) {
            message.sent.tell(Err(Error::TransactionLost));
            return Progress::Some;
        }
        let Some(link) = driver.links.get_mut(&key) else {
            return Progress::None;
        };
        let Kind::Sender(sender) = &mut link.kind else {
            return Progress::None;
        };
        let max_bytes = match &*link.status.borrow() {
            Status::Ready(info) => info.max_message_bytes,
            _ => None,
        };
        let bytes = message.payload.len() as u64;
        if let Some(max_bytes) = max_bytes.filter(|max_bytes| bytes > *max_bytes) {
            message.sent.tell(Err(Error::TooLarge { bytes, max_bytes }));
            return Progress::Some;
        }
        let tag = tag(token);
        let piece = &message.payload[..message.payload.len().min(PIECE_BYTES)];
        let more = piece.len() < message.payload.len();
        let state = message.txn_id.as_deref().map(in_transaction);
        let transfer = OutgoingTransfer {
            settled: message.settled,
            state,
            ..OutgoingTransfer::new(trimmed(&tag), token)
        };
        match self
            .engine
            .transfer(id, &transfer, &[piece], more, &mut self.carrier.lanes)
        {
            Ok(sent) => {
                let settled = match (message.settled, sent.complete) {
                    (false, _) => {
                        sender.sent.insert(token, message);
                        None
                    }
                    (true, true) => {
                        self.settled_sent(id, key, token, message);
                        None
                    }
                    (true, false) => Some(message),
                };
                if !sent.complete {
                    sender.sending = Some(Sending {
                        token,
                        offset: sent.payload_bytes,
                        settled,
                    });
                }
                Progress::Some
            }
            Err(CommandError::NoCredit | CommandError::Limit | CommandError::State) => {
                sender.waiting.insert(token, message);
                Progress::None
            }
            Err(CommandError::FrameTooLarge) if !self.is_open => {
                sender.waiting.insert(token, message);
                Progress::None
            }
            Err(error) => {
                message.sent.tell(Err(error.into()));
                Progress::Some
            }
        }
    }

    /// A settled message is in the buffer to its end. It counts as sent when it was handed to the
    /// transport, and early data only when the server has taken it.
    fn settled_sent(&mut self, id: LinkId, link: u64, token: u64, message: OutgoingAmqpMessage) {
        let lane = self.engine.lane_of(id.session).unwrap_or(Lane::CONTROL);
        let bytes = message.payload.len();
        if self.carrier.early_data() == EarlyData::Pending {
            self.carrier.lanes.note_sent(lane, None, bytes);
            self.early.push(EarlyMessage {
                link,
                token,
                lane,
                message,
            });
        } else {
            self.carrier
                .lanes
                .note_sent(lane, Some(message.sent), bytes);
        }
    }

    fn send_more(&mut self, id: LinkId, key: u64, sender: &mut SenderState) -> Progress {
        let Some(sending) = &mut sender.sending else {
            return Progress::None;
        };
        let message = sending
            .settled
            .as_ref()
            .or_else(|| sender.sent.get(&sending.token));
        let Some(message) = message else {
            // It was settled before it was whole.
            let _ = self.engine.abort(id, &mut self.carrier.lanes);
            sender.sending = None;
            return Progress::Some;
        };
        let end = (sending.offset + PIECE_BYTES).min(message.payload.len());
        let piece = &message.payload[sending.offset..end];
        let more = end < message.payload.len();
        match self
            .engine
            .transfer_more(id, &[piece], more, &mut self.carrier.lanes)
        {
            Ok(sent) => {
                sending.offset += sent.payload_bytes;
                if sent.complete
                    && let Some(sending) = sender.sending.take()
                    && let Some(message) = sending.settled
                {
                    self.settled_sent(id, key, sending.token, message);
                }
                Progress::Some
            }
            Err(CommandError::MessageTooLarge) => {
                let bytes = message.payload.len() as u64;
                let _ = self.engine.abort(id, &mut self.carrier.lanes);
                let message = sender.sending.take().and_then(|sending| {
                    sending
                        .settled
                        .or_else(|| sender.sent.remove(&sending.token))
                });
                if let Some(message) = message {
                    message.sent.tell(Err(Error::TooLarge {
                        bytes,
                        max_bytes: bytes.saturating_sub(1),
                    }));
                }
                Progress::Some
            }
            Err(_) => Progress::None,
        }
    }

    /// Goes on with a delivery of before.
    fn resume(
        &mut self,
        id: LinkId,
        sender: &mut SenderState,
        token: u64,
        delivery: &Unsettled,
        recovery: Recovery,
    ) -> Progress {
        let Some(message) = sender.sent.get(&token) else {
            return Progress::Some;
        };
        if recovery == Recovery::Abort {
            if self
                .engine
                .abort_resumed(id, delivery.tag.as_bytes(), &mut self.carrier.lanes)
                .is_err()
            {
                sender.resuming.insert(token, (delivery.clone(), recovery));
                return Progress::None;
            }
            if let Some(message) = sender.sent.remove(&token) {
                match &delivery.state {
                    Some(state) if state.is_terminal() => {
                        message.sent.tell(Ok(Some(state.clone())));
                    }
                    // The receiver has lost its part of it, so it is sent again from the start.
                    _ => {
                        sender.waiting.insert(token, message);
                    }
                }
            }
            return Progress::Some;
        }
        let decided = match &recovery {
            Recovery::Settle(state) => Some(state.clone()),
            _ => None,
        };
        let start = match &recovery {
            _ if decided.is_some() => message.payload.len(),
            Recovery::Resume(Some(received)) => MessageView::parse(&message.payload)
                .ok()
                .and_then(|view| view.offset_of(*received))
                .unwrap_or(0),
            _ => 0,
        };
        let end = (start + PIECE_BYTES).min(message.payload.len());
        let more = end < message.payload.len();
        let transfer = OutgoingTransfer {
            resume: true,
            settled: decided.is_some(),
            state: decided.as_ref().map(DeliveryStateBuf::view),
            ..OutgoingTransfer::new(delivery.tag.as_bytes(), token)
        };
        let piece = &message.payload[start..end];
        let Ok(sent) = self
            .engine
            .transfer(id, &transfer, &[piece], more, &mut self.carrier.lanes)
        else {
            sender.resuming.insert(token, (delivery.clone(), recovery));
            return Progress::None;
        };
        if let Some(state) = decided {
            if let Some(message) = sender.sent.remove(&token) {
                message.sent.tell(Ok(Some(state)));
            }
        } else if !sent.complete {
            sender.sending = Some(Sending {
                token,
                offset: start + sent.payload_bytes,
                settled: None,
            });
        }
        Progress::Some
    }
}

/// The name of a delivery.
const fn tag(token: u64) -> [u8; 8] {
    token.to_be_bytes()
}

fn trimmed(tag: &[u8; 8]) -> &[u8] {
    let zeros = tag.iter().take(7).take_while(|byte| **byte == 0).count();
    &tag[zeros..]
}

/// The state of a message that is posted in a transaction.
const fn in_transaction(txn_id: &[u8]) -> DeliveryState<'_> {
    DeliveryState::Transactional(TransactionalState {
        txn_id,
        outcome: None,
    })
}
