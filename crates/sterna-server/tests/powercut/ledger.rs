//! What was promised to whom, and what became of it. It knows clients only, nothing of the broker's inside.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::world::Settings;

/// What a broker promises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Promise {
    /// An acknowledged message reaches every durable reader that had its subscription acknowledged before.
    Kept,
    /// What is sent and read exactly once comes once.
    Once,
    /// First copies of a publisher's messages come in its order.
    Ordered,
    /// A reader gets nothing that it did not ask for, or not any more.
    Asked,
    /// An acknowledged session is there again.
    Remembered,
    /// The retained message is the newest acknowledged one, or a later one.
    Newest,
    /// Everybody is answered in the end, and the store opens without damage.
    Served,
}

impl Promise {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Kept, "lost"),
        (Self::Once, "doubled"),
        (Self::Ordered, "out of order"),
        (Self::Asked, "unasked"),
        (Self::Remembered, "forgotten"),
        (Self::Newest, "not newest"),
        (Self::Served, "not served"),
    ];
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Pending,
    /// Acknowledged at this time, in milliseconds.
    Acknowledged(u64),
    /// It may come or not.
    Doubtful,
}

#[derive(Clone, Copy, Debug)]
struct Publication {
    /// Its place among all that clients did.
    sent: u64,
    state: State,
}

/// Who publishes.
#[derive(Debug)]
pub struct Publisher {
    pub name: &'static str,
    is_exact: bool,
    is_retained: bool,
    /// By number, from 0.
    publications: Vec<Publication>,
    /// Before this number everything has been compared.
    compared: usize,
}

/// Who reads.
#[derive(Debug)]
struct Reader {
    name: &'static str,
    is_exact: bool,
    is_ordered: bool,
    /// Of these publishers; empty for all.
    wants: Option<usize>,
    /// Since when it has its subscription: its place among all that was done, and the time.
    granted: Option<(u64, u64)>,
    /// Since when it has none any more.
    ended: Option<(u64, u64)>,
    /// Copies by publisher and number, and when the last of them came.
    copies: BTreeMap<(usize, usize), (u32, u64)>,
    /// The highest number that has come, by publisher.
    highest: BTreeMap<usize, usize>,
}

/// The name of a reader.
pub type ReaderId = usize;

#[derive(Debug, Default)]
pub struct Ledger {
    pub now_ms: u64,
    done: u64,
    pub publishers: Vec<Publisher>,
    readers: Vec<Reader>,
    /// What was broken, the first of them in words.
    pub violations: Vec<(Promise, String)>,
    broken: BTreeMap<Promise, u64>,
    pub cuts: u32,
    pub kills: u32,
    pub lost_connections: u64,
    pub clock_jumps: u64,
    comparisons: u64,
    acknowledged: u64,
    delivered: u64,
    excused: u64,
}

/// Violations that are listed.
const MOST_LISTED: usize = 20;

impl Ledger {
    pub fn publisher(&mut self, name: &'static str, is_exact: bool, is_retained: bool) -> usize {
        self.publishers.push(Publisher {
            name,
            is_exact,
            is_retained,
            publications: Vec::new(),
            compared: 0,
        });
        self.publishers.len() - 1
    }

    pub fn reader(
        &mut self,
        name: &'static str,
        is_exact: bool,
        is_ordered: bool,
        wants: Option<usize>,
    ) -> ReaderId {
        self.readers.push(Reader {
            name,
            is_exact,
            is_ordered,
            wants,
            granted: None,
            ended: None,
            copies: BTreeMap::new(),
            highest: BTreeMap::new(),
        });
        self.readers.len() - 1
    }

    fn next(&mut self) -> u64 {
        self.done += 1;
        self.done
    }

    /// Notes a new message; its number, and its text.
    pub fn send(&mut self, publisher: usize) -> (usize, String) {
        let sent = self.next();
        let publications = &mut self.publishers[publisher].publications;
        let number = publications.len();
        publications.push(Publication {
            sent,
            state: State::Pending,
        });
        (number, Self::text(publisher, number))
    }

    /// The text of a message. Its length differs, so that frames lie differently in sectors.
    pub fn text(publisher: usize, number: usize) -> String {
        let filler = "x".repeat((number * 37) % 700);
        format!("{publisher}/{number}/{filler}")
    }

    pub fn acknowledged(&mut self, publisher: usize, number: usize) {
        let now_ms = self.now_ms;
        let publication = &mut self.publishers[publisher].publications[number];
        if publication.state == State::Pending {
            publication.state = State::Acknowledged(now_ms);
            self.acknowledged += 1;
        }
    }

    /// It was refused, or its publisher does not send it again and has no answer.
    pub fn doubtful(&mut self, publisher: usize, number: usize) {
        let publication = &mut self.publishers[publisher].publications[number];
        if publication.state == State::Pending {
            publication.state = State::Doubtful;
        }
    }

    pub fn is_granted(&self, reader: ReaderId) -> bool {
        self.readers[reader].granted.is_some()
    }

    pub fn granted(&mut self, reader: ReaderId) {
        let (at, now_ms) = (self.next(), self.now_ms);
        let reader = &mut self.readers[reader];
        reader.ended = None;
        if reader.granted.is_none() {
            reader.granted = Some((at, now_ms));
        }
    }

    /// The reader asks for the end of its subscription: nothing more is owed.
    pub fn ends(&mut self, reader: ReaderId) {
        self.readers[reader].granted = None;
    }

    /// The end was acknowledged: nothing of what is sent from now on may come.
    pub fn ended(&mut self, reader: ReaderId) {
        let ended = (self.next(), self.now_ms);
        self.readers[reader].ended = Some(ended);
    }

    /// The reader asks anew.
    pub fn asks(&mut self, reader: ReaderId) {
        self.readers[reader].ended = None;
    }

    pub fn received(&mut self, reader: ReaderId, text: &str) {
        let mut parts = text.split('/');
        let mut part = || parts.next().and_then(|part| part.parse::<usize>().ok());
        let (Some(publisher), Some(number)) = (part(), part()) else {
            return self.complain(Promise::Asked, &format!("a message `{text}`"));
        };
        self.delivered += 1;
        let now_ms = self.now_ms;
        let sender = &self.publishers[publisher];
        let known = &mut self.readers[reader];
        let which = format!("{} of {} at {}", number, sender.name, known.name);
        let is_exact = sender.is_exact && known.is_exact;
        let mut complaints = Vec::new();
        if text != Self::text(publisher, number) || number >= sender.publications.len() {
            complaints.push((Promise::Asked, "changed: "));
        } else if known
            .ended
            .is_some_and(|(ended, _)| sender.publications[number].sent > ended)
        {
            complaints.push((Promise::Asked, ""));
        }
        let copies = known.copies.entry((publisher, number)).or_insert((0, 0));
        let is_first = copies.1 == 0;
        copies.0 += 1;
        copies.1 = now_ms;
        if copies.0 > 1 && is_exact {
            complaints.push((Promise::Once, ""));
        }
        let highest = known.highest.entry(publisher).or_insert(0);
        if is_first {
            let has_been = number < sender.compared;
            // Of what was sent before the subscription, a repetition may be the first that comes.
            let was_asked = (known.granted.zip(sender.publications.get(number)))
                .is_some_and(|((granted, _), publication)| publication.sent > granted);
            if known.is_ordered && was_asked && number < *highest && !has_been {
                complaints.push((Promise::Ordered, ""));
            }
            *highest = number.max(*highest);
        }
        for (promise, word) in complaints {
            self.complain(promise, &format!("{word}{which}"));
        }
    }

    /// A message came again that a client knows already: its second copies are no fault until now.
    pub fn touched(&mut self, reader: ReaderId, text: &str) {
        let mut parts = text.split('/').filter_map(|part| part.parse().ok());
        if let (Some(publisher), Some(number)) = (parts.next(), parts.next())
            && let Some(copies) = self.readers[reader].copies.get_mut(&(publisher, number))
        {
            copies.1 = self.now_ms;
        }
    }

    /// The power was cut, and what was acknowledged at a time or later may be gone.
    pub fn excuse(&mut self, from_ms: u64) {
        for publisher in &mut self.publishers {
            for publication in &mut publisher.publications[publisher.compared..] {
                if matches!(publication.state, State::Acknowledged(at_ms) if at_ms >= from_ms) {
                    publication.state = State::Doubtful;
                    self.excused += 1;
                }
            }
        }
        for reader in &mut self.readers {
            if reader.granted.is_some_and(|(_, at_ms)| at_ms >= from_ms) {
                reader.granted = None;
            }
            if reader.ended.is_some_and(|(_, at_ms)| at_ms >= from_ms) {
                reader.ended = None;
            }
            for (count, at_ms) in reader.copies.values_mut() {
                if *at_ms >= from_ms {
                    *count = 0;
                }
            }
        }
    }

    pub fn complain(&mut self, promise: Promise, text: &str) {
        *self.broken.entry(promise).or_default() += 1;
        if self.violations.len() < MOST_LISTED {
            let at = format!("cut {}, {} ms: ", self.cuts, self.now_ms);
            self.violations.push((promise, at + text));
        }
    }

    pub fn broken(&self, promise: Promise) -> u64 {
        self.broken.get(&promise).copied().unwrap_or_default()
    }

    /// What a reader is owed and has not got.
    fn owed(&self, reader: &Reader) -> Vec<(usize, usize)> {
        let Some((granted, _)) = reader.granted else {
            return Vec::new();
        };
        let mut owed = Vec::new();
        for (index, publisher) in self.publishers.iter().enumerate() {
            if publisher.is_retained || reader.wants.is_some_and(|wanted| wanted != index) {
                continue;
            }
            let all = publisher.publications.iter().enumerate();
            for (number, publication) in all.skip(publisher.compared) {
                let is_owed = matches!(publication.state, State::Acknowledged(_));
                let has_come = (reader.copies)
                    .get(&(index, number))
                    .is_some_and(|(_, at_ms)| *at_ms > 0);
                if is_owed && publication.sent > granted && !has_come {
                    owed.push((index, number));
                }
            }
        }
        owed
    }

    /// Whether somebody waits for something still.
    pub fn is_owing(&self) -> bool {
        self.readers
            .iter()
            .any(|reader| !self.owed(reader).is_empty())
    }

    /// Compares everything. Nobody sends any more, and everybody has read what came.
    pub fn compare(&mut self) {
        self.comparisons += 1;
        for reader in 0..self.readers.len() {
            for (publisher, number) in self.owed(&self.readers[reader]) {
                let (sender, name) = (self.publishers[publisher].name, self.readers[reader].name);
                self.complain(Promise::Kept, &format!("{number} of {sender} at {name}"));
            }
        }
        for publisher in &mut self.publishers {
            publisher.compared = publisher.publications.len();
        }
        // Copies of messages from long ago are told from first ones by what is kept here.
        let long_ago: Vec<usize> = (self.publishers.iter())
            .map(|publisher| publisher.compared.saturating_sub(400))
            .collect();
        for reader in &mut self.readers {
            (reader.copies).retain(|(publisher, number), _| *number >= long_ago[*publisher]);
        }
    }

    /// Judges what is retained of a publisher.
    pub fn retained(&mut self, publisher: usize, text: Option<&str>) {
        let part = |text: &str| text.split('/').nth(1)?.parse::<usize>().ok();
        let found = text.and_then(part);
        let publications = &self.publishers[publisher].publications;
        let is_acknowledged =
            |publication: &Publication| matches!(publication.state, State::Acknowledged(_));
        let newest = publications.iter().rposition(is_acknowledged);
        if newest.is_some() && found < newest {
            self.complain(Promise::Newest, &format!("{found:?} instead of {newest:?}"));
        }
    }

    /// Whether enough was done to show something.
    pub fn is_busy(&self, cuts: u32) -> bool {
        let least = u64::from(cuts);
        self.cuts == cuts && self.acknowledged > least && self.delivered > 4 * least
    }

    pub fn report(&self, settings: &Settings) -> String {
        let mut text = format!(
            "{} power cuts and {} kills, seed {}, durability {:?}{}\n",
            self.cuts,
            self.kills,
            settings.seed,
            settings.durability,
            if settings.is_early {
                ", acknowledged early"
            } else {
                ""
            },
        );
        let counts = [
            ("lost connections", self.lost_connections),
            ("jumps of the wall clock", self.clock_jumps),
            ("comparisons", self.comparisons),
            ("acknowledged", self.acknowledged),
            ("of these in the last interval", self.excused),
            ("delivered", self.delivered),
        ];
        for (name, count) in counts {
            let _ = writeln!(text, "  {name:30} {count:>9}");
        }
        for (promise, name) in Promise::ALL {
            let _ = writeln!(text, "  {name:30} {:>9}", self.broken(promise));
        }
        for (promise, violation) in &self.violations {
            let _ = writeln!(text, "  {promise:?}: {violation}");
        }
        text
    }
}
