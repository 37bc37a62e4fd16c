//! The packed form of a session that is away: see `sessions.rs`.
//!
//! Integers take seven bits a byte and texts have their length in front, as in records (`records/wire.rs`). Rare
//! fields are there where a flag says so.

use std::sync::Arc;

use crate::account::Account;
use crate::api::DoorState;
use crate::cursor::{Cursor, Past, Reader};
use crate::directory::{Directory, Principal};
use crate::records::{Fields, put_bytes, put_number};
use crate::route::{Context, Rest, RouteFlags};
use crate::session::{BrokerSession, State, Subscription};
use crate::weight::Weight;

/// The cursor has more than a position.
const LISTS: u8 = 1;
/// Reading goes on elsewhere than at the first position that the cursor wants.
const NEXT: u8 = 2;
/// See [`Reader::held_until`].
const HELD: u8 = 4;
/// See [`Reader::past`].
const PAST: u8 = 8;

/// Whether a session can be packed: it is away and kept, it has nothing in memory, and its cursor is written.
/// One whose subscription may get only some topics cannot: the permit is no number.
pub(crate) fn is_packable<P>(session: &BrokerSession<P>) -> bool {
    let Some(reader) = &session.reader else {
        return false;
    };
    let has_permit = |known: &Subscription| {
        let context = known.context.as_ref();
        context.is_some_and(|context| context.permit.is_some())
    };
    session.is_stored
        && session.is_away()
        && session.pending.is_empty()
        && session.ledger.is_empty()
        && reader.awake_from.is_none()
        && !reader.is_changed
        && !reader.is_asked
        && reader.allowance.is_none()
        && reader.count.is_none()
        && reader.leaves_at == u64::MAX
        && reader.needed == reader.cursor.first()
        && !session
            .subscriptions
            .iter()
            .any(|(_, known)| has_permit(known))
        && !reader
            .past
            .iter()
            .any(|past| has_permit(&past.subscription))
}

/// Packs a session for which [`is_packable`] holds. Its protocol, will and rare parts are left out.
pub(crate) fn pack<P>(session: &BrokerSession<P>) -> Box<[u8]> {
    debug_assert_eq!(session.account, Account::default(), "nothing is in memory");
    let Some(reader) = &session.reader else {
        return Box::default();
    };
    let cursor = &reader.cursor;
    let mut flags = 0;
    if *cursor != Cursor::at(cursor.from) {
        flags |= LISTS;
    }
    if reader.next != cursor.first() {
        flags |= NEXT;
    }
    if reader.held_until != 0 {
        flags |= HELD;
    }
    if !reader.past.is_empty() {
        flags |= PAST;
    }
    let mut out = Vec::with_capacity(64);
    out.push(flags);
    put_number(&mut out, session.generation.into());
    put_number(&mut out, session.weight.principal.0.into());
    put_number(&mut out, session.weight.charged.into());
    if flags & LISTS == 0 {
        put_number(&mut out, cursor.from);
    } else {
        put_bytes(&mut out, &cursor.encode());
    }
    if flags & NEXT != 0 {
        put_number(&mut out, reader.next);
    }
    if flags & HELD != 0 {
        put_number(&mut out, reader.held_until);
    }
    // Fields that are often none, which is the highest number, take one byte as zero.
    put_number(&mut out, session.subscriber.wrapping_add(1).into());
    put_number(&mut out, session.expiry_s.wrapping_add(1).into());
    put_number(&mut out, session.expires_at_ms.wrapping_add(1));
    let attendance = session.attendance.wrapping_sub(session.generation);
    put_number(&mut out, attendance.into());
    put_number(&mut out, session.judged_by.into());
    put_number(&mut out, session.next_sequence.into());
    put_bytes(&mut out, session.name.text().as_bytes());
    if flags & PAST != 0 {
        put_number(&mut out, reader.past.len() as u64);
        for past in &reader.past {
            put_number(&mut out, past.until);
            put_subscription(&mut out, &past.filter, &past.subscription, past.since);
        }
    }
    for (filter, known) in session.subscriptions.iter() {
        put_subscription(&mut out, filter, known, reader.since(filter));
    }
    out.into()
}

fn put_subscription(out: &mut Vec<u8>, filter: &str, known: &Subscription, since: u64) {
    put_bytes(out, filter.as_bytes());
    out.push(known.flags.bits());
    put_number(out, known.group.wrapping_add(1).into());
    put_number(out, since);
    let rest = known.rest();
    put_number(out, Rest::number(rest));
    if let Some(rest) = rest {
        put_number(out, rest.length.map_or(0, |length| length + 1));
    }
    // The stream that asked means nothing to the next consumer.
    let context = known.context.as_ref();
    let identifiers = context.map_or(&[][..], |context| &context.identifiers);
    put_number(out, identifiers.len() as u64);
    for &identifier in identifiers {
        put_number(out, identifier.into());
    }
}

/// A filter, its subscription, and the position at which that began; zero where that is behind the cursor.
fn subscription(fields: &mut Fields<'_>) -> Option<(Arc<str>, Subscription, u64)> {
    let filter = Arc::from(fields.text()?);
    let flags = RouteFlags::from_bits(fields.byte()?).with_durable(true);
    let group = short(fields)?.wrapping_sub(1);
    let since = fields.number()?;
    let mut rest = Rest::of_number(fields.number()?);
    if let Some(rest) = &mut rest {
        rest.length = fields.number()?.checked_sub(1);
    }
    let count = fields.number()?;
    let identifiers: Box<[u32]> = (0..count).map(|_| short(fields)).collect::<Option<_>>()?;
    let is_needed = !identifiers.is_empty() || rest.is_some();
    let context = is_needed.then(|| {
        Arc::new(Context {
            rest,
            ..Context::of(identifiers)
        })
    });
    let subscription = Subscription {
        flags,
        group,
        context,
    };
    Some((filter, subscription, since))
}

fn short(fields: &mut Fields<'_>) -> Option<u32> {
    u32::try_from(fields.number()?).ok()
}

/// The beginning of the packed form: what is asked for without unpacking.
struct Head {
    flags: u8,
    generation: u32,
    principal: Principal,
    charged: u32,
    cursor: Cursor,
    next: u64,
}

impl Head {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let flags = fields.byte()?;
        let generation = short(fields)?;
        let principal = Principal(short(fields)?);
        let charged = short(fields)?;
        let cursor = if flags & LISTS == 0 {
            Cursor::at(fields.number()?)
        } else {
            Cursor::decode(fields.bytes()?)?
        };
        let next = if flags & NEXT == 0 {
            cursor.first()
        } else {
            fields.number()?
        };
        Some(Self {
            flags,
            generation,
            principal,
            charged,
            cursor,
            next,
        })
    }
}

/// The generation of a packed session.
pub(crate) fn generation(packed: &[u8]) -> Option<u32> {
    let mut fields = Fields::new(packed);
    fields.byte()?;
    short(&mut fields)
}

/// The holder of a packed session, and the bytes that they are charged with for it.
pub(crate) fn charge(packed: &[u8]) -> Option<(Principal, u32)> {
    let mut fields = Fields::new(packed);
    fields.byte()?;
    short(&mut fields)?;
    Some((Principal(short(&mut fields)?), short(&mut fields)?))
}

/// The lowest position of the log that a packed session needs.
pub(crate) fn needed(packed: &[u8]) -> Option<u64> {
    let head = Head::read(&mut Fields::new(packed))?;
    Some(head.cursor.first().min(head.next))
}

/// Unpacks a session; what [`pack`] left out is as in a new one.
pub(crate) fn unpack<P: DoorState>(
    packed: &[u8],
    directory: &Directory,
) -> Option<BrokerSession<P>> {
    let mut fields = Fields::new(packed);
    let head = Head::read(&mut fields)?;
    let flags = head.flags;
    let mut reader = Reader::restored(head.cursor);
    reader.next = head.next;
    if flags & HELD != 0 {
        reader.held_until = fields.number()?;
    }
    let subscriber = short(&mut fields)?.wrapping_sub(1);
    let expiry_s = short(&mut fields)?.wrapping_sub(1);
    let expires_at_ms = fields.number()?.wrapping_sub(1);
    let attendance = short(&mut fields)?.wrapping_add(head.generation);
    let judged_by = short(&mut fields)?;
    let next_sequence = short(&mut fields)?;
    let name = directory.shared_name(fields.text()?)?;
    let mut session = BrokerSession::new(name, head.generation, State::Active);
    if flags & PAST != 0 {
        for _ in 0..fields.number()? {
            let until = fields.number()?;
            let (filter, subscription, since) = subscription(&mut fields)?;
            reader.past.push(Past {
                filter,
                subscription,
                since,
                until,
            });
        }
    }
    while !fields.rest().is_empty() {
        let (filter, known, since) = subscription(&mut fields)?;
        if since != 0 {
            reader.begin(&filter, since);
        }
        let hashing = directory.hashing();
        session.subscriptions.insert(filter, known, hashing);
    }
    session.reader = Some(Box::new(reader));
    session.subscriber = subscriber;
    session.expiry_s = expiry_s;
    session.expires_at_ms = expires_at_ms;
    session.attendance = attendance;
    session.judged_by = judged_by;
    session.weight = Weight {
        principal: head.principal,
        charged: head.charged,
    };
    session.next_sequence = next_sequence;
    session.is_stored = true;
    Some(session)
}
