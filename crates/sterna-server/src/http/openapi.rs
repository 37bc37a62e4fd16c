//! The description of the interface for machines.

use super::page::Resource;

/// The OpenAPI 3.1 document, as `GET /v1/openapi.json` serves it (`application/json`).
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// The document, as a response needs it.
pub(crate) fn resource() -> Resource {
    Resource::of("application/json", OPENAPI)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::OPENAPI;

    fn document() -> Value {
        serde_json::from_str(OPENAPI).unwrap()
    }

    /// Every `$ref` within a value.
    fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(members) => {
                for (name, inner) in members {
                    match inner {
                        Value::String(target) if name == "$ref" => {
                            found.insert(target);
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
    fn operations_have_names_and_say_how_they_succeed_and_fail() {
        let document = document();
        let mut names = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name), "two operations are called {name}");
                let statuses: Vec<&String> =
                    operation["responses"].as_object().unwrap().keys().collect();
                for class in ["2", "4", "5"] {
                    assert!(
                        statuses.iter().any(|status| status.starts_with(class)),
                        "{method} {path} has no {class}xx"
                    );
                }
                // Every part of the path that varies is a parameter.
                for part in path
                    .split('/')
                    .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                {
                    let parameters = operation["parameters"].as_array().unwrap();
                    let described = parameters.iter().any(|parameter| {
                        let parameter = match parameter["$ref"].as_str() {
                            Some(target) => document.pointer(&target[1..]).unwrap(),
                            None => parameter,
                        };
                        parameter["name"] == part && parameter["in"] == "path"
                    });
                    assert!(described, "{method} {path} does not describe {part}");
                }
            }
        }
    }

    #[test]
    fn references_lead_somewhere_and_nothing_is_left_over() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for target in &found {
            let there = target
                .strip_prefix('#')
                .and_then(|pointer| document.pointer(pointer));
            assert!(there.is_some(), "{target} is not there");
        }
        for (kind, components) in document["components"].as_object().unwrap() {
            for name in components.as_object().unwrap().keys() {
                assert!(
                    kind == "securitySchemes"
                        || found.contains(format!("#/components/{kind}/{name}").as_str()),
                    "{kind}/{name} is not used"
                );
            }
        }
    }

    #[test]
    fn each_problem_has_its_status() {
        let document = document();
        let every: BTreeSet<&str> =
            document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
        let mut described = BTreeSet::new();
        for response in document["components"]["responses"]
            .as_object()
            .unwrap()
            .values()
        {
            let Some(content) = response.get("content") else {
                // Refused before anything is known of the request, often without content.
                described.insert("urn:sterna:problem:fields-too-large");
                continue;
            };
            let schema = &content["application/problem+json"]["schema"]["allOf"][1];
            for name in schema["properties"]["type"]["enum"].as_array().unwrap() {
                described.insert(name.as_str().unwrap());
            }
        }
        assert_eq!(every, described);
        assert!(
            every
                .iter()
                .all(|name| name.starts_with("urn:sterna:problem:"))
        );
    }
}
