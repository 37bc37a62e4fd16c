//! A store in memory, where a call can panic: in the midst of the broker's work.

use std::sync::Arc;

use sterna_broker::{Appended, Committed, Frame, Full, ReadAnswer, ReadRequest, Store};
use sterna_store::MemoryStore;

use crate::fixture::Fault;

#[derive(Debug)]
pub(crate) struct Faulty(pub(crate) Arc<Fault>, pub(crate) MemoryStore);

impl Store for Faulty {
    fn next_position(&self) -> u64 {
        self.1.next_position()
    }
    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        self.0.call("append");
        self.1.append(frame)
    }
    fn committed(&self) -> Committed {
        self.0.call("committed");
        self.1.committed()
    }
    fn read(&mut self, request: ReadRequest) {
        self.0.call("read");
        self.1.read(request);
    }
    fn next_answer(&mut self) -> Option<ReadAnswer> {
        self.0.call("next_answer");
        self.1.next_answer()
    }
    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        self.1.read_now(request)
    }
    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.1.load(visit);
    }
    fn needed_from(&mut self, position: u64) {
        self.1.needed_from(position);
    }
    fn hold_from(&mut self, position: u64) {
        self.1.hold_from(position);
    }
}
