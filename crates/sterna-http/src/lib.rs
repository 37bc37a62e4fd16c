//! HTTP/3, HTTP/2 and HTTP/1.1 for a server on the shards of [`sterna_net`]: complete requests up,
//! responses down. An [`Application`] gives them their meaning.
//!
//! A [`Carrier`] is one connection of any version. HTTP/3 is the engine [`sterna_h3`], with
//! WebTransport. HTTP/2 and HTTP/1.1 are a library's, whose futures are polled within the shard's
//! turn. No carrier waits, reads a clock or starts a task.
//!
//! # A step
//!
//! Each event of a connection is handled in a step: [`Carrier::begin`], the event,
//! [`Carrier::settle`], [`Carrier::flush`]. The network belongs to the application while it works.
//! So its responses are gathered and handed over at the end of the step. An application that
//! answers later does so in a step of its own, through [`Carrier::responses`].
//!
//! ```
//! use sterna_http::{
//!     Application, Carrier, Content, Date, ExchangeId, Fault, Head, Refusal, Request, Responses,
//! };
//! use sterna_net::{Chunk, ConnectionId, Network};
//!
//! /// Says which path was asked for.
//! struct Paths;
//!
//! impl Application for Paths {
//!     fn request(&mut self, out: &mut dyn Responses, request: Request) {
//!         let fields = [("content-type", &b"text/plain"[..])];
//!         let path = request.head.target().as_bytes();
//!         out.respond(request.id, 200, &fields, Content::Whole(path));
//!     }
//!     fn refuse(&mut self, out: &mut dyn Responses, id: ExchangeId, _: &Head, why: Refusal) {
//!         let status = if why == Refusal::ContentTooLarge { 413 } else { 400 };
//!         out.respond(id, status, &[], Content::Empty);
//!     }
//!     fn gone(&mut self, _: &mut dyn Responses, _: ExchangeId) {}
//!     fn writable(&mut self, _: &mut dyn Responses) {}
//!     fn stop(&mut self, _: &mut dyn Responses) {}
//!     fn turned_away(&mut self, _: Fault, code: &str, detail: &str) {
//!         eprintln!("{code}: {detail}");
//!     }
//! }
//!
//! /// What a handler of the shard does with bytes that arrived.
//! fn received(
//!     net: &mut dyn Network,
//!     id: ConnectionId,
//!     carrier: &mut Carrier,
//!     date: &mut Date,
//!     chunk: &Chunk<'_>,
//! ) {
//!     carrier.begin(net, date);
//!     carrier.received(&mut Paths, chunk);
//!     carrier.settle(&mut Paths);
//!     carrier.flush(net, false);
//!     if let Some(code) = carrier.close_code() {
//!         net.close(id, code);
//!     }
//!     // The handler's own deadline is now `carrier.deadline_ms()`, and then `Carrier::timeout`.
//! }
//! ```

mod carrier;
mod date;
mod exchange;
mod http3;
mod limits;
mod tcp;

pub use carrier::{Carrier, Settings};
pub use date::Date;
pub use exchange::{Application, Content, ExchangeId, Fault, Head, Refusal, Request, Responses};
pub use http3::{INTERNAL_ERROR, NO_ERROR};
pub use limits::Limits;
