//! The description of the admin API for machines (OpenAPI 3.1), made from the table of routes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Value, json};

use super::parameters::Parameter;
use super::routes::{Operation, PREFIX, ROUTES, Reach, Route};
use crate::http::{Problem, ProblemKind as Kind};

/// The schemas of contents, by name.
const SCHEMAS: &str = include_str!("schemas.json");

/// Problems that any route may answer with.
const COMMON: [Kind; 11] = [
    Kind::InvalidParameter,
    Kind::InvalidField,
    Kind::Unauthenticated,
    Kind::Forbidden,
    Kind::Origin,
    Kind::NoResource,
    Kind::Method,
    Kind::ContentTooLarge,
    Kind::Host,
    Kind::TooManyRequests,
    Kind::Busy,
];

/// Problems of routes that concern other nodes of a cluster.
const OF_NODES: [Kind; 2] = [Kind::NoNode, Kind::ClusterAway];

/// The document.
pub(super) fn document() -> Bytes {
    known().0.clone()
}

/// Its entity tag.
pub(super) fn etag() -> &'static str {
    &known().1
}

fn known() -> &'static (Bytes, String) {
    static DOCUMENT: OnceLock<(Bytes, String)> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let text = describe().to_string();
        let etag = crate::http::etag_of(text.as_bytes());
        (text.into(), etag)
    })
}

fn describe() -> Value {
    let mut paths: BTreeMap<String, serde_json::Map<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        let path = paths
            .entry(format!("{PREFIX}{}", route.template))
            .or_default();
        path.insert(route.method.to_lowercase(), operation(route));
    }
    let schemas: Value = serde_json::from_str(SCHEMAS).unwrap_or_default();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sterna admin API",
            "version": "1",
            "summary": "What operators see of a broker, and change in it",
            "description": "A change has the field `content-type: application/json`, or a field `sterna-request`. \
                            Roles: `viewer`, `operator` and `admin`; each has the rights of those before it.",
            "license": { "name": "Apache-2.0 OR MIT" },
        },
        "servers": [{ "url": "http://localhost:9464" }],
        "security": [{ "basic": [] }, { "bearer": [] }, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "bearer": { "type": "http", "scheme": "bearer" },
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = Vec::new();
    if let Some((_, rest)) = route.template.split_once('{')
        && let Some((name, _)) = rest.split_once('}')
    {
        parameters.push(json!({
            "name": name,
            "in": "path",
            "required": true,
            "schema": { "type": "string" },
        }));
    }
    parameters.extend(route.parameters().map(parameter));
    let (status, schema) = route.success;
    let mut success = json!({ "description": "Success" });
    if let Some(schema) = schema {
        success["content"] = of_schema(route.media_type, schema);
    }
    let mut responses = serde_json::Map::new();
    responses.insert(status.to_string(), success);
    let is_read = route.method == "GET";
    let is_one = schema.is_some_and(|schema| !schema.ends_with("Page"));
    if is_read && is_one && route.operation != Operation::Trace {
        let unchanged = json!({ "description": "It is as `If-None-Match` says" });
        responses.insert("304".to_owned(), unchanged);
    }
    let mut problems: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    // Of nodes that are asked, one may not be there, or not answer.
    let of_nodes: &[Kind] = match route.reach {
        Reach::Here => &[],
        _ => &OF_NODES,
    };
    let kinds = COMMON.iter().chain(route.problems);
    let kinds = kinds.chain(
        of_nodes
            .iter()
            .filter(|kind| !route.problems.contains(kind)),
    );
    for kind in kinds {
        problems.entry(kind.status()).or_default().push(kind.name());
    }
    for (status, names) in problems {
        let response = json!({
            "description": names.join(", "),
            "content": of_schema(Problem::MEDIA_TYPE, "Problem"),
        });
        responses.insert(status.to_string(), response);
    }
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.about,
        "parameters": parameters,
        "responses": responses,
        "x-role": route.role.map(super::role::Role::name),
    });
    if let Some(schema) = route.content {
        operation["requestBody"] = json!({
            "required": true,
            "content": of_schema("application/json", schema),
        });
    }
    if route.role.is_none() {
        operation["security"] = json!([{}]);
    }
    operation
}

fn parameter(parameter: &Parameter) -> Value {
    let schema = if parameter.is_number {
        json!({ "type": "integer", "minimum": 1 })
    } else {
        json!({ "type": "string" })
    };
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.about,
        "schema": schema,
    })
}

fn of_schema(media_type: &str, schema: &str) -> Value {
    json!({ media_type: { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every `$ref` within a value.
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                for (name, inner) in members {
                    match inner {
                        Value::String(target) if name == "$ref" => {
                            found.insert(target.clone());
                        }
                        _ => references(inner, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_somewhere_and_nothing_is_left_over() {
        let document = describe();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for target in &found {
            let there = document.pointer(target.trim_start_matches('#'));
            assert!(there.is_some(), "{target} is not there");
        }
        for name in document["components"]["schemas"]
            .as_object()
            .expect("schemas")
            .keys()
        {
            let target = format!("#/components/schemas/{name}");
            assert!(found.contains(&target), "{name} is not used");
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let names: BTreeSet<&str> = ROUTES.iter().map(|route| route.id).collect();
        assert_eq!(names.len(), ROUTES.len());
        let paths: BTreeSet<_> = (ROUTES.iter())
            .map(|route| (route.method, route.template))
            .collect();
        assert_eq!(paths.len(), ROUTES.len());
    }

    /// A change needs more than the least role, and a read has nothing to send.
    #[test]
    fn changes_need_a_role() {
        for route in ROUTES {
            let is_read = route.method == "GET";
            assert_eq!(route.id == "openapi", route.role.is_none(), "{}", route.id);
            if !is_read {
                assert!(
                    route.role > Some(super::super::role::Role::Viewer),
                    "{}",
                    route.id
                );
            }
            assert!(!is_read || route.content.is_none(), "{}", route.id);
        }
    }

    #[test]
    fn each_problem_is_in_the_schema() {
        let document = describe();
        let known = document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
            .as_array()
            .expect("types")
            .iter()
            .filter_map(Value::as_str)
            .collect::<BTreeSet<_>>();
        let kinds = ROUTES
            .iter()
            .flat_map(|route| route.problems)
            .chain(&COMMON)
            .chain(&OF_NODES);
        let mut kinds: BTreeSet<String> = kinds
            .map(|kind| format!("urn:sterna:problem:{}", kind.name()))
            .collect();
        // The carrier's.
        for kind in [
            Kind::Timeout,
            Kind::UriTooLong,
            Kind::FieldsTooLarge,
            Kind::Stopping,
        ] {
            kinds.insert(format!("urn:sterna:problem:{}", kind.name()));
        }
        assert_eq!(known, kinds.iter().map(String::as_str).collect());
    }
}
