//! Responses, as the application gives them.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::Carrier;
use super::service::Answer;
use crate::exchange::{Content, ExchangeId, Responses};

impl Responses for Carrier {
    fn respond(
        &mut self,
        id: ExchangeId,
        status: u16,
        fields: &[(&str, &[u8])],
        content: Content<'_>,
    ) {
        let Some(answer) = self.answer(id) else {
            return;
        };
        let mut answer = answer.borrow_mut();
        if answer.has_begun {
            return;
        }
        let has_content = !answer.is_head && !matches!(status, 204 | 304);
        let length = match &content {
            Content::Empty => Some(0),
            Content::Whole(bytes) => Some(bytes.len()),
            Content::Shared(bytes) => Some(bytes.len()),
            Content::Open => None,
        };
        let Some((status, mut fields)) = self.head(status, fields) else {
            tracing::debug!(connection = ?self.id, "a response that cannot be sent");
            answer.is_broken = true;
            answer.wake();
            return;
        };
        // For others the library says it.
        if let Some(length) = length
            && answer.is_head
        {
            fields.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        answer.head = Some((status, fields));
        answer.has_begun = true;
        answer.is_complete = length.is_some() || !has_content;
        match content {
            Content::Whole(bytes) if has_content => answer.push(bytes),
            Content::Shared(bytes) if has_content => answer.push_shared(bytes),
            _ => {}
        }
        answer.wake();
        if answer.is_complete {
            self.forget(id);
        }
    }

    fn send(&mut self, id: ExchangeId, bytes: &[u8]) {
        self.with_open(id, |answer| answer.push(bytes));
    }

    fn send_shared(&mut self, id: ExchangeId, bytes: Bytes) {
        self.with_open(id, |answer| answer.push_shared(bytes));
    }

    fn finish(&mut self, id: ExchangeId) {
        self.with_open(id, |answer| answer.is_complete = true);
        self.forget(id);
    }

    fn cancel(&mut self, id: ExchangeId) {
        if let Some(answer) = self.answer(id) {
            let mut answer = answer.borrow_mut();
            answer.is_broken = true;
            answer.wake();
        }
        self.forget(id);
    }

    fn has_room(&mut self, id: ExchangeId) -> bool {
        let most = self.hall.borrow().limits.response_bytes();
        let mut has_room = true;
        self.with_open(id, |answer| {
            answer.is_full = answer.queued_bytes() >= most;
            has_room = !answer.is_full;
        });
        has_room &= !self.hall.borrow_mut().is_full();
        let is_taken = self.pipe.borrow().has_room();
        self.is_full |= !is_taken;
        has_room && is_taken
    }

    fn taken_bytes(&mut self, id: ExchangeId) -> u64 {
        let answer = self.answer(id);
        answer.map_or(0, |answer| answer.borrow().taken_bytes)
    }

    // WebTransport is HTTP/3's.

    fn accept_session(&mut self, id: ExchangeId, _: &[(&str, &[u8])]) {
        self.cancel(id);
    }
}

impl Carrier {
    /// Lets `add` add to an open response, and has the library look at it.
    fn with_open(&self, id: ExchangeId, add: impl FnOnce(&mut Answer)) {
        if let Some(answer) = self.answer(id) {
            let mut answer = answer.borrow_mut();
            if answer.has_begun {
                add(&mut answer);
                answer.wake();
            }
        }
    }

    /// Status and fields; `None` where the library does not take one of them.
    fn head(&self, status: u16, fields: &[(&str, &[u8])]) -> Option<(StatusCode, HeaderMap)> {
        let mut map = HeaderMap::with_capacity(fields.len() + 2);
        map.insert(header::DATE, HeaderValue::from_bytes(&self.date).ok()?);
        if let Some(service) = &self.alternative {
            map.insert(header::ALT_SVC, service.clone());
        }
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            map.append(name, HeaderValue::from_bytes(value).ok()?);
        }
        Some((StatusCode::from_u16(status).ok()?, map))
    }
}
