//! A request that has its route: the part of its path that varies, and its parameters.

use std::borrow::Cow;

use sterna_mapping::percent;

use super::routes::{PREFIX, ROUTES, Route};
use crate::http::{ProblemKind as Kind, Trouble};

/// Undoes percent-encoding; `None` where that is broken, or not UTF-8.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    percent::decode_text(text.as_bytes())
}

/// The part of a path that varies. `None` where the template does not match, and an empty text where it has no
/// such part.
fn argument<'p>(template: &str, path: &'p str) -> Option<&'p str> {
    let Some((before, rest)) = template.split_once('{') else {
        return (template == path).then_some("");
    };
    let (name, after) = rest.split_once('}')?;
    let part = path.strip_prefix(before)?.strip_suffix(after)?;
    let is_level = name != "topic";
    let is_one = !is_level || !part.contains('/');
    (is_one && !part.is_empty()).then_some(part)
}

/// The methods of a resource, as `Allow` names them.
fn allowed(template: &str) -> &'static str {
    let has = |method| {
        let mut routes = ROUTES.iter();
        routes.any(|route| route.template == template && route.method == method)
    };
    match (has("GET"), has("DELETE")) {
        (true, _) if has("POST") => "GET, HEAD, POST",
        (true, true) => "GET, HEAD, DELETE",
        (true, false) => "GET, HEAD",
        (false, true) => "DELETE",
        (false, false) => "POST",
    }
}

/// A request that has its route.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) route: &'static Route,
    /// The part of the path that varies.
    pub(super) argument: String,
    parameters: Vec<(&'static str, String)>,
}

impl Call {
    /// Finds the route of a request.
    ///
    /// # Errors
    /// There is no such resource, method or parameter.
    pub(super) fn read(method: &str, target: &str) -> Result<Self, Trouble> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let nothing = || Trouble::new(Kind::NoResource, "there is nothing by this name");
        let path = path.strip_prefix(PREFIX).ok_or_else(nothing)?;
        let mut found = ROUTES
            .iter()
            .filter_map(|route| Some((route, argument(route.template, path)?)))
            .peekable();
        let (first, _) = *found.peek().ok_or_else(nothing)?;
        let wanted = if method == "HEAD" { "GET" } else { method };
        let (route, argument) = found
            .find(|(route, _)| route.method == wanted && route.template == first.template)
            .ok_or_else(|| Trouble::method(allowed(first.template)))?;
        let argument = decode(argument).ok_or_else(|| {
            let detail = "the path is not percent-encoded UTF-8";
            Trouble::new(Kind::InvalidParameter, detail)
        })?;
        let nul = |name: &str| {
            let detail = format!("{name}: no name or topic has the character U+0000");
            Trouble::new(Kind::InvalidParameter, detail)
        };
        // Names with it are those of the broker's own sessions.
        if argument.contains('\0') {
            return Err(nul("the path"));
        }
        let mut parameters = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let known = route.parameters().find(|known| known.name == name);
            let value = decode(value);
            let is_new = parameters.iter().all(|(other, _)| *other != name);
            match (known, value) {
                (Some(known), Some(value)) if is_new => {
                    if value.contains('\0') {
                        return Err(nul(known.name));
                    }
                    parameters.push((known.name, value.into_owned()));
                }
                _ => {
                    let names: Vec<&str> = route.parameters().map(|one| one.name).collect();
                    let detail = match names.as_slice() {
                        [] => "there are no parameters here".to_owned(),
                        names => format!("the parameters here are {}, each once", names.join(", ")),
                    };
                    return Err(Trouble::new(Kind::InvalidParameter, detail));
                }
            }
        }
        Ok(Self {
            route,
            argument: argument.into_owned(),
            parameters,
        })
    }

    /// A parameter's value.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut parameters = self.parameters.iter();
        parameters.find_map(|(known, value)| (*known == name).then_some(&**value))
    }

    /// The target of the same request to one node, with another `limit` where it is given, and with `after`.
    pub(super) fn target(&self, limit: Option<&str>, after: Option<&str>) -> String {
        let mut target = PREFIX.to_owned();
        match self.route.template.split_once('{') {
            Some((before, rest)) => {
                let (_, behind) = rest.split_once('}').unwrap_or_default();
                target.push_str(before);
                percent::encode(
                    self.argument.as_bytes(),
                    percent::is_unreserved,
                    &mut target,
                );
                target.push_str(behind);
            }
            None => target.push_str(self.route.template),
        }
        let kept = self.parameters.iter().filter(|(name, _)| match *name {
            "node" | "local" | "after" => false,
            "limit" => limit.is_none(),
            _ => true,
        });
        let kept = kept.map(|(name, value)| (*name, value.as_str()));
        let given = [("limit", limit), ("after", after)];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        for (at, (name, value)) in kept.chain(given).enumerate() {
            target.push(if at == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            percent::encode(value.as_bytes(), percent::is_unreserved, &mut target);
        }
        target
    }

    /// The parameter `limit`, at most `most`.
    ///
    /// # Errors
    /// It is no number from 1 on.
    pub(super) fn limit(&self, default: u32, most: u32) -> Result<usize, Trouble> {
        let Some(text) = self.parameter("limit") else {
            return Ok(default.min(most) as usize);
        };
        let limit = text.parse::<u32>().ok();
        let limit = limit.filter(|limit| *limit >= 1);
        limit.map(|limit| limit.min(most) as usize).ok_or_else(|| {
            let detail = format!("limit is a number from 1 to {}", u32::MAX);
            Trouble::new(Kind::InvalidParameter, detail)
        })
    }

    /// The parameter `after`, read by `read`.
    ///
    /// # Errors
    /// It is not one that a page has named.
    pub(super) fn after<T>(
        &self,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Trouble> {
        let Some(text) = self.parameter("after") else {
            return Ok(None);
        };
        read(text).map(Some).ok_or_else(|| {
            let detail = "after is not what a page before has said";
            Trouble::new(Kind::InvalidParameter, detail)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::routes::Operation;
    use super::*;

    fn call(method: &str, target: &str) -> Result<(Operation, String), u16> {
        Call::read(method, target)
            .map(|call| (call.route.operation, call.argument))
            .map_err(|trouble| trouble.status())
    }

    #[test]
    fn paths_lead_to_their_operations() {
        let found = |operation, argument: &str| Ok((operation, argument.to_owned()));
        for (method, target, expected) in [
            ("GET", "/admin/v1/node", found(Operation::Node, "")),
            ("HEAD", "/admin/v1/node", found(Operation::Node, "")),
            (
                "GET",
                "/admin/v1/clients/0.1.2",
                found(Operation::Client, "0.1.2"),
            ),
            (
                "DELETE",
                "/admin/v1/clients/x",
                found(Operation::Disconnect, "x"),
            ),
            (
                "GET",
                "/admin/v1/sessions/a%2Fb",
                found(Operation::Session, "a/b"),
            ),
            (
                "GET",
                "/admin/v1/sessions/a/subscriptions?limit=3",
                found(Operation::Subscriptions, "a"),
            ),
            (
                "GET",
                "/admin/v1/retained/a/b",
                found(Operation::RetainedMessage, "a/b"),
            ),
            (
                "GET",
                "/admin/v1/retained/a%2Fb",
                found(Operation::RetainedMessage, "a/b"),
            ),
            (
                "POST",
                "/admin/v1/queues/q/move",
                found(Operation::Move, "q"),
            ),
            ("POST", "/admin/v1/node", Err(405)),
            ("PATCH", "/admin/v1/reload", Err(405)),
            ("GET", "/admin/v1", Err(404)),
            ("GET", "/admin/v1/", Err(404)),
            ("GET", "/admin/v2/node", Err(404)),
            ("GET", "/admin/v1/sessions/", Err(404)),
            ("GET", "/admin/v1/sessions/a/b", Err(404)),
            ("GET", "/admin/v1/sessions/%ff", Err(400)),
            // The root of a shared subscription of a cluster, and what has such a name beside the path.
            ("GET", "/admin/v1/sessions/%00$share%2Fg%2Ft", Err(400)),
            ("DELETE", "/admin/v1/sessions/%00$share%2Fg%2Ft", Err(400)),
            (
                "GET",
                "/admin/v1/sessions/%00$share%2Fg%2Ft/subscriptions",
                Err(400),
            ),
            ("GET", "/admin/v1/trace?client=%00$share%2Fg%2Ft", Err(400)),
            ("GET", "/admin/v1/clients?name=a%00", Err(400)),
            ("GET", "/admin/v1/node?x=1", Err(400)),
            ("GET", "/admin/v1/clients?limit=1&limit=2", Err(400)),
        ] {
            assert_eq!(call(method, target), expected, "{method} {target}");
        }
    }

    #[test]
    fn limits_are_numbers_within_bounds() {
        let limit = |text: &str| {
            let call = Call::read("GET", &format!("/admin/v1/clients{text}")).expect("a route");
            call.limit(100, 50).map_err(|trouble| trouble.status())
        };
        assert_eq!(limit(""), Ok(50));
        assert_eq!(limit("?limit=7"), Ok(7));
        // The sender does not know the setting, so a higher limit is lowered to it.
        assert_eq!(limit("?limit=51"), Ok(50));
        for wrong in [
            "?limit=0",
            "?limit=x",
            "?limit=-1",
            "?limit=",
            "?limit=4294967296",
        ] {
            assert_eq!(limit(wrong), Err(400), "{wrong}");
        }
    }
}
