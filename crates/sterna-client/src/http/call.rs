//! Requests of other resources than topics and sessions: of the broker's admin API (`docs/admin.md`).

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::client::Client;
use super::error::Error;
use super::exchange::{Inner, Keyed, Request};
use super::fields::Fields;
use super::link::Body;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads the resource.
    Get,
    /// Something is done with it. Not repeated when the connection is lost before the answer.
    Post,
    /// It is removed. Not repeated, either.
    Delete,
}

impl Method {
    const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// The answer to a call, one of success.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The status, from 200 to 299.
    pub status: u16,
    /// The entity tag.
    pub etag: Option<String>,
    /// The content.
    pub content: Bytes,
}

/// An answer without an end, line by line.
pub struct Lines {
    body: Body,
    /// Bytes that are no whole line yet.
    partial: BytesMut,
    max_line_bytes: usize,
    /// Keeps the connection.
    _inner: Arc<Inner>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("partial", &self.partial)
            .finish_non_exhaustive()
    }
}

impl Lines {
    /// The next line, without its end; `None` when the broker has ended the answer. A call that is given
    /// up loses nothing.
    ///
    /// # Errors
    /// When the connection is lost, and for a line beyond `Options::max_message_bytes`.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let mut line = self.partial.split_to(end + 1);
                line.truncate(end);
                return Ok(Some(line.freeze()));
            }
            if self.partial.len() > self.max_line_bytes {
                let max_bytes = self.max_line_bytes;
                return Err(Error::TooLarge { max_bytes });
            }
            match self.body.next().await? {
                Some(piece) => self.partial.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}

/// The fields of a call.
fn fields(method: Method, content: Option<&Bytes>) -> Fields {
    let mut fields = Fields::new();
    if method != Method::Get {
        // A page of another origin in a browser cannot send this field.
        fields.push(("sterna-request", b"1".to_vec()));
    }
    if content.is_some() {
        fields.push(("content-type", b"application/json".to_vec()));
    }
    fields
}

impl Client {
    /// Asks for a resource by path and query, with content in JSON where it is given.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn call(
        &self,
        method: Method,
        target: &str,
        content: Option<Bytes>,
    ) -> Result<Answer, Error> {
        let is_read = method == Method::Get;
        let request = Request {
            method: method.name(),
            target: target.to_owned(),
            fields: fields(method, content.as_ref()),
            content: content.unwrap_or_default(),
            // A change may do more when it comes twice.
            keyed: if is_read { Keyed::Never } else { Keyed::Early },
            is_safe: is_read,
        };
        let response = self.inner().execute(&request).await?;
        let status = response.status;
        let etag = response.text("etag").map(str::to_owned);
        let content = self.inner().content(response).await?;
        Ok(Answer {
            status,
            etag,
            content,
        })
    }

    /// Reads an answer that does not end, line by line.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn lines(&self, target: &str) -> Result<Lines, Error> {
        let request = Request::read("GET", target.to_owned());
        let response = self.inner().execute(&request).await?;
        Ok(Lines {
            body: response.body,
            partial: BytesMut::new(),
            max_line_bytes: self.inner().options.max_message_bytes,
            _inner: Arc::clone(self.inner()),
        })
    }
}
