//! A shard's letters for the other shards, and how far it may be ahead of them.
//!
//! A thread that has no processor for some milliseconds takes nothing up meanwhile. All that is published for its
//! queues then comes at once, and may be more than they have places. It takes memory, too. So each shard counts what
//! it has sent, and the publishers' front door reads no more while there is [too much](Outbox::is_ahead) on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::ShardId;
use crate::mail::{Letter, Mail};
use crate::route::Parcel;

/// Messages on their way to a shard, from which on others publish no more.
const MOST_ON_WAY: usize = 1_024;

/// The most messages of a letter: between two of them the receiving shard may drain its queues.
const MOST_PARCELS: usize = 256;

/// The messages that a letter has room for from the start.
const PARCELS: usize = 8;

/// The messages that are on their way to each shard. All shards share it.
#[derive(Clone, Debug)]
pub(crate) struct OnWay(Arc<[AtomicUsize]>);

impl OnWay {
    pub(crate) fn new(shards: u16) -> Self {
        Self((0..shards).map(|_| AtomicUsize::new(0)).collect())
    }

    fn of(&self, shard: u16) -> &AtomicUsize {
        &self.0[usize::from(shard)]
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Outbox<P> {
    letters: Vec<(ShardId, Mail<P>)>,
    /// Where a shard's last letter is, while that is one of deliveries.
    open: Box<[Option<usize>]>,
    /// Messages in the letters.
    parcels: usize,
    /// Whether a shard may not have taken up all that was sent to it.
    is_behind: Box<[bool]>,
    on_way: OnWay,
}

impl<P> Outbox<P> {
    pub(crate) fn new(on_way: OnWay) -> Self {
        let shards = on_way.0.len();
        Self {
            letters: Vec::new(),
            open: vec![None; shards].into(),
            parcels: 0,
            is_behind: vec![false; shards].into(),
            on_way,
        }
    }

    pub(crate) fn send(&mut self, shard: u16, letter: Letter<P>) {
        if let Some(open) = self.open.get_mut(usize::from(shard)) {
            *open = None;
        }
        self.letters.push((ShardId(shard), Mail(letter)));
    }

    /// Sends a message for queues of a shard.
    pub(crate) fn deliver(&mut self, shard: u16, parcel: Parcel) {
        self.parcels += 1;
        let open = &mut self.open[usize::from(shard)];
        if let Some((_, Mail(Letter::Deliver(parcels)))) =
            open.and_then(|at| self.letters.get_mut(at))
            && parcels.len() < MOST_PARCELS
        {
            parcels.push(parcel);
        } else {
            *open = Some(self.letters.len());
            let mut parcels = Vec::with_capacity(PARCELS);
            parcels.push(parcel);
            self.letters
                .push((ShardId(shard), Mail(Letter::Deliver(parcels))));
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// Takes the letters, in their order: they are on their way from now on.
    pub(crate) fn take(&mut self) -> std::vec::Drain<'_, (ShardId, Mail<P>)> {
        self.open.fill(None);
        if self.parcels > 0 {
            self.parcels = 0;
            for (shard, letter) in &self.letters {
                if let Mail(Letter::Deliver(parcels)) = letter {
                    let on_way = self.on_way.of(shard.0);
                    on_way.fetch_add(parcels.len(), Ordering::Relaxed);
                    self.is_behind[usize::from(shard.0)] = true;
                }
            }
        }
        self.letters.drain(..)
    }

    /// Notes that this shard, of this number, takes up a letter's messages.
    pub(crate) fn taken_up(&self, shard: u16, parcels: usize) {
        self.on_way.of(shard).fetch_sub(parcels, Ordering::Relaxed);
    }

    /// Whether more messages wait in the letters, or are on their way to a shard that this one sends to, than may.
    pub(crate) fn is_ahead(&mut self) -> bool {
        let mut is_ahead = self.parcels >= MOST_ON_WAY;
        for (is_behind, on_way) in self.is_behind.iter_mut().zip(&*self.on_way.0) {
            *is_behind = *is_behind && on_way.load(Ordering::Relaxed) >= MOST_ON_WAY;
            is_ahead |= *is_behind;
        }
        is_ahead
    }
}
