//! The target of a request: the path, and the parameters behind it.

use std::borrow::Cow;

use sterna_mapping::percent;

use super::answer::Trouble;
use crate::http::problem::ProblemKind as Kind;

/// A resource of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    /// `/`, or a file of the page below `/page/`.
    Page,
    /// `/v1/openapi.json`
    OpenApi,
    /// `/v1/topics`, the topic space without a topic.
    Topics,
    /// `/v1/topics/{topic}`
    Topic(String),
    /// `/v1/sessions/{name}`
    Session(String),
    /// `/v1/sessions/{name}/ack`
    Acknowledgement(String),
}

/// Which resource a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    Page,
    OpenApi,
    Topics,
    Topic,
    Session,
    Acknowledgement,
}

/// Every path of the API, as `openapi.json` writes it, and the route that it names. A topic or a file is the
/// whole rest of the path, with its slashes.
pub(super) const ROUTES: [(&str, Route); 7] = [
    ("/", Route::Page),
    ("/page/{file}", Route::Page),
    ("/v1/openapi.json", Route::OpenApi),
    ("/v1/topics", Route::Topics),
    ("/v1/topics/{topic}", Route::Topic),
    ("/v1/sessions/{session}", Route::Session),
    ("/v1/sessions/{session}/ack", Route::Acknowledgement),
];

/// The route of a path, and the part of it that varies.
fn route(path: &str) -> Option<(Route, &str)> {
    ROUTES.iter().find_map(|(template, route)| {
        let Some((before, rest)) = template.split_once('{') else {
            return (path == *template).then_some((*route, ""));
        };
        let after = rest.split_once('}')?.1;
        let part = path.strip_prefix(before)?.strip_suffix(after)?;
        let is_level = matches!(route, Route::Session | Route::Acknowledgement);
        (!is_level || !part.contains('/')).then_some((*route, part))
    })
}

/// The target of a request, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) resource: Resource,
    /// Path, as it came.
    pub(super) path: &'a str,
    query: Option<&'a str>,
    /// The token in the query.
    pub(super) token: Token<'a>,
}

/// The parameter with a token (RFC 6750, section 2.3). It is no parameter of a resource, and nobody but the judge sees its
/// value.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Absent,
    Is(Cow<'a, str>),
    /// There are two, or one is not percent-encoded UTF-8.
    Malformed,
}

impl std::fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The query may have a token.
        f.debug_struct("Target")
            .field("resource", &self.resource)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// The name of the parameter with a token.
const TOKEN: &str = "access_token";

impl<'a> Token<'a> {
    fn of(query: Option<&'a str>) -> Self {
        let mut values = parts(query).filter_map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            is_token(name).then_some(value)
        });
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => decode(value).map_or(Self::Malformed, Self::Is),
            (Some(_), Some(_)) => Self::Malformed,
        }
    }
}

/// Whether the parameter with a token has this name, as it came.
fn is_token(name: &str) -> bool {
    decode(name).is_some_and(|name| name == TOKEN)
}

/// The parameters of a query as they came.
fn parts(query: Option<&str>) -> impl Iterator<Item = &str> {
    let parts = query.into_iter().flat_map(|query| query.split('&'));
    parts.filter(|part| !part.is_empty())
}

/// Why there is no such target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TargetError {
    /// Nothing is there.
    Unknown,
    /// The topic is not UTF-8, or its percent-encoding is broken.
    Topic,
    /// The name of a session is none.
    Session,
}

impl<'a> Target<'a> {
    /// Takes a target apart.
    ///
    /// # Errors
    /// When it names nothing.
    pub(super) fn parse(target: &'a str) -> Result<Self, TargetError> {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let (route, part) = route(path).ok_or(TargetError::Unknown)?;
        let name = || {
            decode(part)
                .filter(|name| is_session_name(name))
                .map(Cow::into_owned)
                .ok_or(TargetError::Session)
        };
        let resource = match route {
            Route::Page => Resource::Page,
            Route::OpenApi => Resource::OpenApi,
            Route::Topics => Resource::Topics,
            Route::Topic => Resource::Topic(decode(part).ok_or(TargetError::Topic)?.into_owned()),
            Route::Session => Resource::Session(name()?),
            Route::Acknowledgement => Resource::Acknowledgement(name()?),
        };
        Ok(Self {
            resource,
            path,
            query,
            token: Token::of(query),
        })
    }

    /// Names and values of the parameters, decoded, without the token; an error is the text of one that is not UTF-8.
    /// A plus stands for itself, since it is a wildcard.
    pub(super) fn parameters(
        &self,
    ) -> impl Iterator<Item = Result<(Cow<'a, str>, Cow<'a, str>), &'a str>> + use<'a> {
        let named = parts(self.query).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (name, value, part)
        });
        let others = named.filter(|(name, ..)| !is_token(name));
        others.map(|(name, value, part)| decode(name).zip(decode(value)).ok_or(part))
    }

    /// Refuses parameters where there are none.
    ///
    /// # Errors
    /// When there is one.
    pub(super) fn without_parameters(&self) -> Result<(), Trouble> {
        match self.parameters().next() {
            None => Ok(()),
            Some(_) => Err(Trouble::new(
                Kind::InvalidParameter,
                "there are no parameters here",
            )),
        }
    }

    /// The parameters as they came, without those that are named, and without the token.
    pub(super) fn query_without(&self, names: &[&str]) -> String {
        let kept = parts(self.query).filter(|part| {
            let name = part.split('=').next().unwrap_or_default();
            let is_kept = |name: &str| name != TOKEN && !names.contains(&name);
            decode(name).is_some_and(|name| is_kept(&name))
        });
        kept.collect::<Vec<_>>().join("&")
    }
}

/// Whether a text can be the name of a session: 1 to 64 ASCII letters, digits, `.`, `_` or `-`. A `~` before them
/// marks a name that the broker has given.
pub(super) fn is_session_name(name: &str) -> bool {
    let text = name.strip_prefix('~').unwrap_or(name);
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(legal)
}

/// Undoes percent-encoding; `None` where that is broken, or not UTF-8.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    percent::decode_text(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_topic_can_be_named(text in "\\PC{0,20}|[a-z/+#$% ]{0,20}") {
            let mut target = "/v1/topics/".to_owned();
            percent::encode(text.as_bytes(), percent::is_unreserved, &mut target);
            prop_assert_eq!(topic(&target), Ok(Resource::Topic(text)));
        }

        #[test]
        fn any_target_is_read_or_refused(text in "/?(v1/)?(topics|sessions)?[ -~]{0,40}") {
            if let Ok(target) = Target::parse(&text) {
                let count = target.parameters().count();
                let all = target.query_without(&[]);
                prop_assert!(all.split('&').filter(|part| !part.is_empty()).count() <= count);
            }
        }
    }

    fn topic(target: &str) -> Result<Resource, TargetError> {
        Target::parse(target).map(|target| target.resource)
    }

    #[test]
    fn a_topic_is_everything_behind_the_second_slash() {
        for (target, expected) in [
            ("/v1/topics/a/b", "a/b"),
            ("/v1/topics/a%2Fb?qos=0", "a/b"),
            ("/v1/topics//a", "/a"),
            ("/v1/topics/", ""),
            ("/v1/topics/a/", "a/"),
            ("/v1/topics/+/%23", "+/#"),
            ("/v1/topics/%2B/x", "+/x"),
            ("/v1/topics/%E2%82%AC/.", "€/."),
            ("/v1/topics/%24share/g/a", "$share/g/a"),
        ] {
            assert_eq!(topic(target), Ok(Resource::Topic(expected.to_owned())));
        }
        for target in [
            "/v1/topics/%",
            "/v1/topics/%4",
            "/v1/topics/%zz",
            "/v1/topics/%ff",
            "/v1/topics/%+1",
        ] {
            assert_eq!(topic(target), Err(TargetError::Topic), "{target}");
        }
    }

    #[test]
    fn there_are_no_other_resources() {
        assert_eq!(topic("/"), Ok(Resource::Page));
        assert_eq!(topic("/?x"), Ok(Resource::Page));
        assert_eq!(topic("/page/page.js"), Ok(Resource::Page));
        assert_eq!(topic("/v1/openapi.json"), Ok(Resource::OpenApi));
        assert_eq!(topic("/v1/topics?session=a"), Ok(Resource::Topics));
        assert_eq!(
            topic("/v1/sessions/%7Eab/ack"),
            Ok(Resource::Acknowledgement("~ab".to_owned()))
        );
        for target in [
            "",
            "*",
            "/v1",
            "/v1/",
            "/v1/topicsx",
            "/v1/sessions/a/b",
            "/V1/topics/a",
        ] {
            assert_eq!(topic(target), Err(TargetError::Unknown), "{target}");
        }
        for target in [
            "/v1/sessions/",
            "/v1/sessions/~",
            "/v1/sessions/a%20b",
            "/v1/sessions//ack",
        ] {
            assert_eq!(topic(target), Err(TargetError::Session), "{target}");
        }
    }

    #[test]
    fn parameters_are_decoded_and_a_plus_is_a_plus() {
        let target =
            Target::parse("/v1/topics/a?filter=b/+&&filter=c%20d&last&x=%ff&qos=1").unwrap();
        let parameters: Vec<_> = target.parameters().collect();
        let pair = |name, value| Ok((Cow::Borrowed(name), Cow::Borrowed(value)));
        assert_eq!(
            parameters,
            [
                pair("filter", "b/+"),
                pair("filter", "c d"),
                pair("last", ""),
                Err("x=%ff"),
                pair("qos", "1"),
            ]
        );
        assert_eq!(target.query_without(&["filter", "x"]), "last&qos=1");
    }
}
