//! The plan of a subscription: the parameters of a GET, and its fields.

use std::borrow::Cow;

use sterna_broker::Qos;
use sterna_http::Head;
use sterna_mqtt::topic;

use super::accept;
use super::answer::Trouble;
use super::target::{Resource, Target, is_session_name};
use crate::config::Http;
use crate::http::format::Format;
use crate::http::problem::ProblemKind as Kind;

/// A request for messages.
#[derive(Debug)]
pub(super) enum Plan {
    /// For the retained message of a topic.
    Last,
    /// For messages as they come.
    Subscribe(Box<Subscribe>),
}

/// A subscription as the request asks for it.
#[derive(Debug)]
pub(super) struct Subscribe {
    pub(super) filters: Vec<Box<str>>,
    pub(super) qos: Qos,
    /// Whether retained messages come first.
    pub(super) retained: bool,
    /// The session to go on with.
    pub(super) session: Option<Box<str>>,
    /// Everything up to this id has arrived.
    pub(super) after: Option<u64>,
    pub(super) format: Format,
    pub(super) poll: Option<Poll>,
}

/// A response that ends with the first messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Poll {
    pub(super) wait_ms: u64,
    pub(super) max: usize,
}

/// How long a poll waits that does not say.
const DEFAULT_WAIT_MS: u64 = 30_000;

/// Most bytes of a filter, as MQTT has it.
const MAXIMUM_FILTER_BYTES: usize = topic::MAX_TOPIC_BYTES;

fn parameter(detail: impl Into<Cow<'static, str>>) -> Trouble {
    Trouble::new(Kind::InvalidParameter, detail)
}

impl Plan {
    /// Reads a GET of a topic, or an extended CONNECT; `is_session` for the latter, whose form is the
    /// binary one.
    ///
    /// # Errors
    /// A parameter, a filter or the accepted form is wrong; the answer says why.
    pub(super) fn read(
        http: &Http,
        target: &Target<'_>,
        head: &Head,
        is_session: bool,
    ) -> Result<Self, Trouble> {
        let mut filters = Vec::new();
        if let Resource::Topic(filter) = &target.resource {
            filters.push(filter.as_str().into());
        }
        let (mut qos, mut retained, mut last) = (Qos::AtLeastOnce, true, false);
        let (mut session, mut after, mut wait_ms, mut max) = (None, None, None, None);
        let mut seen: Vec<Cow<'_, str>> = Vec::new();
        for each in target.parameters() {
            let (name, value) =
                each.map_err(|text| parameter(format!("`{text}` is not percent-encoded UTF-8")))?;
            if name != "filter" {
                if seen.contains(&name) {
                    return Err(parameter(format!("`{name}` comes more than once")));
                }
                seen.push(name.clone());
            }
            match &*name {
                "filter" => filters.push(value.into()),
                "qos" => {
                    qos = match &*value {
                        "0" => Qos::AtMostOnce,
                        "1" => Qos::AtLeastOnce,
                        "2" => Qos::ExactlyOnce,
                        _ => return Err(parameter("`qos` is 0, 1 or 2")),
                    };
                }
                "retained" => {
                    retained = match &*value {
                        "no" => false,
                        "yes" => true,
                        _ => return Err(parameter("`retained` is `yes` or `no`")),
                    };
                }
                "session" if is_session_name(&value) => session = Some(Box::<str>::from(&*value)),
                "session" => {
                    return Err(parameter(
                        "`session` is 1 to 64 letters, digits, `.`, `_` and `-`",
                    ));
                }
                "after" => {
                    let id = value.parse();
                    after = Some(id.map_err(|_| parameter("`after` is the id of a message"))?);
                }
                "wait" => wait_ms = Some(read_wait(http, &value)?),
                "max" => max = Some(read_max(http, &value)?),
                "last" if value.is_empty() => last = true,
                "last" => return Err(parameter("`last` has no value")),
                other => return Err(parameter(format!("there is no parameter `{other}`"))),
            }
        }
        if last {
            if filters.len() != 1 || is_session {
                return Err(parameter("`last` is for one topic"));
            }
            return Ok(Self::Last);
        }
        if after.is_some() && session.is_none() {
            return Err(parameter("`after` needs `session`"));
        }
        // Browsers repeat the address of their first request, and say with this how far they came.
        if let Some((name, id)) = head.field("last-event-id").and_then(read_event_id)
            && session.as_deref().is_none_or(|session| session == name)
        {
            session = Some(name.into());
            after = after.max(Some(id));
        }
        check_filters(http, &filters, session.is_some() || is_session)?;
        let default_wait_ms = DEFAULT_WAIT_MS.min(u64::from(http.maximum_wait_s) * 1000);
        let poll = (wait_ms.is_some() || max.is_some()).then(|| Poll {
            wait_ms: wait_ms.unwrap_or(default_wait_ms),
            max: max.unwrap_or(http.maximum_poll_messages as usize),
        });
        if is_session && poll.is_some() {
            return Err(parameter("a WebTransport session does not poll"));
        }
        let format = if is_session {
            Format::Frames
        } else {
            accept::choose(head, poll.is_some())
                .ok_or_else(|| Trouble::new(Kind::NotAcceptable, accept::offer(poll.is_some())))?
        };
        Ok(Self::Subscribe(Box::new(Subscribe {
            filters,
            qos,
            retained,
            session,
            after,
            format,
            poll,
        })))
    }
}

fn check_filters(http: &Http, filters: &[Box<str>], may_be_none: bool) -> Result<(), Trouble> {
    let most = http.maximum_filters as usize;
    if filters.len() > most {
        return Err(parameter(format!(
            "a subscription has at most {most} filters"
        )));
    }
    if filters.is_empty() && !may_be_none {
        return Err(parameter("neither a topic, nor `filter`, nor `session`"));
    }
    for filter in filters {
        if filter.len() > MAXIMUM_FILTER_BYTES {
            return Err(Trouble::new(Kind::InvalidFilter, "the filter is too long"));
        }
        topic::check_any_filter(filter)
            .map_err(|error| Trouble::new(Kind::InvalidFilter, error.detail()))?;
    }
    Ok(())
}

/// Reads `500ms`, `30s` or `2m`.
fn read_wait(http: &Http, text: &str) -> Result<u64, Trouble> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit_ms = match &text[digits.len()..] {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        _ => None,
    };
    let wait_ms = digits.parse::<u32>().ok().zip(unit_ms);
    let wait_ms = wait_ms
        .map(|(number, unit_ms)| u64::from(number) * unit_ms)
        .ok_or_else(|| parameter("`wait` is a time such as `500ms`, `30s` or `2m`"))?;
    if wait_ms > u64::from(http.maximum_wait_s) * 1000 {
        let most_s = http.maximum_wait_s;
        return Err(parameter(format!("`wait` is at most {most_s}s")));
    }
    Ok(wait_ms)
}

fn read_max(http: &Http, text: &str) -> Result<usize, Trouble> {
    let most = http.maximum_poll_messages;
    match text.parse::<u32>() {
        Ok(max) if (1..=most).contains(&max) => Ok(max as usize),
        _ => Err(parameter(format!("`max` is a number from 1 to {most}"))),
    }
}

/// Reads `SESSION:N`; whatever else a client has from elsewhere says nothing.
fn read_event_id(value: &[u8]) -> Option<(&str, u64)> {
    let (session, id) = std::str::from_utf8(value).ok()?.rsplit_once(':')?;
    let id = id.parse().ok()?;
    is_session_name(session).then_some((session, id))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_subscription_is_read_or_refused(
            topic in "[a-z/+]{0,10}",
            query in "((session|after|wait|max|qos|filter|last|retained)=?[0-9a-z~%+#/]{0,6}&?){0,4}",
            accept in "[a-z*/;=.,0-9 -]{0,30}",
            id in "[~a-z0-9:]{0,12}",
        ) {
            let fields = [("accept", accept.as_str()), ("last-event-id", id.as_str())];
            let target = format!("/v1/topics/{topic}?{query}");
            if Target::parse(&target).is_ok()
                && let Ok(Plan::Subscribe(plan)) = read_with(&target, &fields)
            {
                let http = Http::default();
                prop_assert!(plan.filters.len() <= http.maximum_filters as usize);
                prop_assert!(plan.session.is_some() || plan.after.is_none());
                if let Some(poll) = plan.poll {
                    prop_assert!(poll.wait_ms <= u64::from(http.maximum_wait_s) * 1000);
                    prop_assert!((1..=http.maximum_poll_messages as usize).contains(&poll.max));
                }
            }
        }
    }

    fn read_with(target: &str, fields: &[(&str, &str)]) -> Result<Plan, String> {
        let mut request = http::Request::builder().uri("/");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let target = Target::parse(target).unwrap();
        Plan::read(
            &Http::default(),
            &target,
            &Head::Tcp(Box::new(parts)),
            false,
        )
        .map_err(|trouble| trouble.detail().to_owned())
    }

    fn subscribe(target: &str, fields: &[(&str, &str)]) -> Subscribe {
        match read_with(target, fields) {
            Ok(Plan::Subscribe(subscribe)) => *subscribe,
            other => panic!("{target}: {other:?}"),
        }
    }

    #[test]
    fn without_parameters_it_is_a_stream_with_what_is_retained() {
        let plan = subscribe("/v1/topics/a/%23", &[]);
        assert_eq!(plan.filters, ["a/#".into()]);
        assert_eq!(plan.qos, Qos::AtLeastOnce);
        assert!(plan.retained && plan.poll.is_none() && plan.session.is_none());
        assert_eq!(plan.format, Format::Lines);
    }

    #[test]
    fn parameters_are_read() {
        let plan = subscribe(
            "/v1/topics/a?filter=b/+&qos=0&retained=no&session=x&after=7&wait=500ms&max=5",
            &[],
        );
        assert_eq!(plan.filters, ["a".into(), "b/+".into()]);
        assert_eq!((plan.qos, plan.retained), (Qos::AtMostOnce, false));
        assert_eq!((plan.session.as_deref(), plan.after), (Some("x"), Some(7)));
        let poll = Poll {
            wait_ms: 500,
            max: 5,
        };
        assert_eq!(plan.poll, Some(poll));
        assert_eq!(
            subscribe("/v1/topics/a?wait=2m", &[]).poll.unwrap().wait_ms,
            120_000
        );
        assert_eq!(
            subscribe("/v1/topics/a?max=2", &[]).poll.unwrap().wait_ms,
            30_000
        );
        assert_eq!(subscribe("/v1/topics?session=x", &[]).filters.len(), 0);
        assert!(matches!(
            read_with("/v1/topics/a?last", &[]),
            Ok(Plan::Last)
        ));
    }

    #[test]
    fn what_is_no_parameter_is_refused() {
        for query in [
            "qos=3",
            "qos=",
            "retained=maybe",
            "session=",
            "session=a%20b",
            "after=1",
            "wait=1",
            "wait=1h",
            "wait=s",
            "wait=99999m",
            "wait=301s",
            "max=0",
            "max=1001",
            "max=x",
            "nothing=1",
            "last=1",
            "filter=%ff",
            "last&filter=b",
            "session=a&after=-1",
            "qos=1&qos=1",
            "session=a&session=b",
            "last&last",
        ] {
            let target = format!("/v1/topics/a?{query}");
            assert!(read_with(&target, &[]).is_err(), "{query}");
        }
        for target in [
            "/v1/topics",
            "/v1/topics/",
            "/v1/topics/a%23",
            "/v1/topics/$share/a",
        ] {
            assert!(read_with(target, &[]).is_err(), "{target}");
        }
        let many = format!("/v1/topics/a?{}", "filter=b&".repeat(16));
        assert!(read_with(&many, &[]).is_err());
    }

    #[test]
    fn a_browser_goes_on_where_it_was() {
        let at = |target: &str, id: &str| {
            let plan = subscribe(target, &[("last-event-id", id)]);
            (plan.session.map(String::from), plan.after)
        };
        let named = |name: &str, id| (Some(name.to_owned()), Some(id));
        assert_eq!(at("/v1/topics/a", "~abc:7"), named("~abc", 7));
        assert_eq!(at("/v1/topics/a?session=x&after=3", "x:7"), named("x", 7));
        assert_eq!(at("/v1/topics/a?session=x&after=9", "x:7"), named("x", 9));
        assert_eq!(at("/v1/topics/a?session=x&after=3", "y:7"), named("x", 3));
        assert_eq!(at("/v1/topics/a", "7"), (None, None));
        assert_eq!(at("/v1/topics/a", "nonsense:x"), (None, None));
    }
}
