//! The engine, from outside.
#![allow(clippy::unwrap_used)] // it is all test

mod budgets;
mod damage;
mod files;
mod full;
mod held;
mod interrupted;
mod reads;
mod rewrite;
mod shared_frames;
mod threads;

use std::sync::Arc;

use sterna_broker::{NeededFilter, ReaderNeeds};
use sterna_store::disk::{Disk as _, SimulatedDisk};
use sterna_store::{Appended, Draft, Engine, Full, Handle, Request, Settings, StoredMessage};

/// A store on a simulated disk, driven by hand.
struct Store {
    disk: SimulatedDisk,
    settings: Settings,
    engine: Engine,
    handle: Handle,
    now_ms: u64,
}

fn settings() -> Settings {
    Settings {
        segment_bytes: 4 << 10,
        minimum_free_bytes: 0,
        checkpoint_interval_ms: 1_000,
        ..Settings::default()
    }
}

/// Names of the files in the log's folder with an ending.
fn log_files(disk: &SimulatedDisk, ending: &str) -> Vec<String> {
    let names = disk.list("log").unwrap().into_iter();
    names
        .filter(|name| name.strip_suffix(ending).is_some())
        .map(|name| format!("log/{name}"))
        .collect()
}

fn draft(messages: &[(&str, &[u8])], changes: &[(&str, Option<&str>)]) -> Draft {
    let mut draft = Draft::default();
    for (topic, content) in messages {
        draft
            .message(topic, |out| out.extend_from_slice(content))
            .unwrap();
    }
    for (key, value) in changes {
        draft
            .change(key.as_bytes(), value.map(str::as_bytes))
            .unwrap();
    }
    draft
}

fn everything(from: u64) -> Request {
    Request {
        reader: 0,
        from,
        to: u64::MAX,
        filters: Arc::new(["#".into()]),
        most_messages: usize::MAX,
        most_bytes: usize::MAX,
    }
}

/// The needs of a reader of all that matches some filters, from a position on.
fn needs_of(filters: &[&str], from: u64) -> ReaderNeeds {
    let filters = filters.iter().map(|&filter| NeededFilter {
        filter: filter.into(),
        since: 0,
        until: u64::MAX,
    });
    ReaderNeeds {
        filters: filters.collect(),
        from,
        single: Vec::new(),
    }
}

impl Store {
    fn open(disk: &SimulatedDisk, settings: &Settings) -> Self {
        let engine =
            Engine::open_with_identity(Arc::new(disk.clone()), settings.clone(), [9; 16]).unwrap();
        let handle = engine.handle(Box::new(|| {}));
        Self {
            disk: disk.clone(),
            settings: settings.clone(),
            engine,
            handle,
            // The disk's clock goes on.
            now_ms: disk.busy_until_ms(),
        }
    }

    fn new() -> Self {
        Self::open(&SimulatedDisk::new(1), &settings())
    }

    fn reopen(self) -> Self {
        self.disk.kill_process();
        let Self { disk, settings, .. } = self;
        Self::open(&disk, &settings)
    }

    fn append(&mut self, messages: &[(&str, &[u8])]) -> Result<Appended, Full> {
        self.handle.append(&draft(messages, &[]))
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms += 1;
            self.disk.set_now_ms(self.now_ms);
            let (disk, now_ms) = (self.disk.clone(), self.now_ms);
            self.engine
                .turn(now_ms, &mut || disk.busy_until_ms() > now_ms);
            self.engine.check();
        }
    }

    fn read(&mut self, from: u64) -> Vec<StoredMessage> {
        self.handle.read_now(&everything(from)).messages
    }

    fn records(&mut self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut records = Vec::new();
        self.handle
            .load(&mut |key, value| records.push((text(key), text(value))))
            .unwrap();
        // One by one it is the same, whether a checkpoint has them or not.
        for (key, value) in &records {
            let one = self.handle.load_one(key.as_bytes()).unwrap();
            assert_eq!(one.as_deref(), Some(value.as_bytes()), "{key}");
        }
        assert_eq!(self.handle.load_one(b"no such key").unwrap(), None);
        records
    }
}
