//! The page at `/`: a client of the public interface, and of the admin API where the listener has that.
//!
//! Its files are part of the program. Everything comes from this server, so the policy of its content can
//! be strict. Scripts, styles and connections are of the same origin, nothing is inline, and no text is
//! taken for markup.

/// The permissions of the page: the sources it may load from, and its actions (`Content-Security-Policy` of `/`).
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// One file of the page, as a response needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// `Content-Type`.
    pub(crate) content_type: &'static str,
    /// The content.
    pub(crate) content: &'static [u8],
    /// `ETag`: a strong validator, quotation marks included. The same build has the same one.
    pub(crate) etag: String,
    /// `Content-Security-Policy`, where the resource is a document.
    pub(crate) content_security_policy: Option<&'static str>,
}

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files: path, content type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("index.html")),
    ("/page/page.css", STYLE, include_str!("page.css")),
    ("/page/panels.css", STYLE, include_str!("panels.css")),
    ("/page/api.js", SCRIPT, include_str!("api.js")),
    ("/page/chart.js", SCRIPT, include_str!("chart.js")),
    ("/page/clients.js", SCRIPT, include_str!("clients.js")),
    ("/page/device.js", SCRIPT, include_str!("device.js")),
    ("/page/dom.js", SCRIPT, include_str!("dom.js")),
    ("/page/figures.js", SCRIPT, include_str!("figures.js")),
    ("/page/log.js", SCRIPT, include_str!("log.js")),
    ("/page/messages.js", SCRIPT, include_str!("messages.js")),
    ("/page/page.js", SCRIPT, include_str!("page.js")),
    ("/page/place.js", SCRIPT, include_str!("place.js")),
    ("/page/queues.js", SCRIPT, include_str!("queues.js")),
    ("/page/rules.js", SCRIPT, include_str!("rules.js")),
    ("/page/store.js", SCRIPT, include_str!("store.js")),
    ("/page/stream.js", SCRIPT, include_str!("stream.js")),
    ("/page/tabs.js", SCRIPT, include_str!("tabs.js")),
    ("/page/topics.js", SCRIPT, include_str!("topics.js")),
    ("/page/icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

impl Resource {
    /// The fields of its response.
    pub(crate) fn fields(&self) -> Vec<(&'static str, &[u8])> {
        let mut fields = vec![
            ("content-type", self.content_type.as_bytes()),
            ("cache-control", b"no-cache"),
            ("etag", self.etag.as_bytes()),
            ("x-content-type-options", b"nosniff"),
        ];
        if let Some(policy) = self.content_security_policy {
            fields.push(("content-security-policy", policy.as_bytes()));
            fields.push(("referrer-policy", b"no-referrer"));
        }
        fields
    }

    /// A text that is part of the program.
    pub(crate) fn of(content_type: &'static str, content: &'static str) -> Self {
        Self {
            content_type,
            content: content.as_bytes(),
            etag: etag_of(content.as_bytes()),
            content_security_policy: None,
        }
    }
}

/// The entity tag of a content.
pub(crate) fn etag_of(content: &[u8]) -> String {
    format!("\"{:016x}\"", fnv1a(content))
}

/// The file at a path (without query), if it is one of the page's.
pub(crate) fn resource(path: &str) -> Option<Resource> {
    let (path, content_type, content) = FILES.iter().find(|(known, ..)| *known == path)?;
    Some(Resource {
        // An image can be opened as a document, too, and loads nothing.
        content_security_policy: match *path {
            "/" => Some(CONTENT_SECURITY_POLICY),
            "/page/icon.svg" => Some("default-src 'none'"),
            _ => None,
        },
        ..Resource::of(content_type, content)
    })
}

/// FNV-1a: tells one build's file from another's, nothing that anybody could forge to gain by it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts between each `before` and the next quotation mark.
    fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before)
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn the_page_is_complete() {
        let index = FILES[0].2;
        let mut named: Vec<String> = quoted(index, "src=\"")
            .chain(quoted(index, "href=\""))
            .map(|path| format!("/{path}"))
            .collect();
        for &(_, content_type, content) in FILES {
            if content_type.starts_with("text/javascript") {
                named.extend(quoted(content, "from \"./").map(|name| format!("/page/{name}")));
            }
        }
        for path in &named {
            assert!(
                path == "/v1/openapi.json" || path.starts_with("/#/") || resource(path).is_some(),
                "{path} is named and not served"
            );
        }
        for (path, ..) in &FILES[1..] {
            assert!(named.iter().any(|one| one == path), "{path} is not used");
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_or_is_inline() {
        for &(path, _, content) in FILES {
            // Names of XML vocabularies are no addresses, and a fragment is of the document itself.
            let content = content
                .replace("http://www.w3.org/2000/svg", "")
                .replace("url(#", "");
            for outside in [
                "http://",
                "https://",
                "url(",
                "@import",
                "innerHTML",
                "eval(",
            ] {
                assert!(!content.contains(outside), "{path} has `{outside}`");
            }
            if path == "/" {
                for inline in [" style=", "<style", " onclick=", " onload=", "<script>"] {
                    assert!(!content.contains(inline), "{path} has `{inline}`");
                }
            }
        }
    }

    #[test]
    fn every_file_has_a_validator_of_its_own() {
        let mut etags: Vec<String> = FILES
            .iter()
            .filter_map(|(path, ..)| resource(path))
            .map(|one| one.etag)
            .collect();
        assert!(etags.iter().all(|etag| etag.len() == 18));
        etags.sort();
        etags.dedup();
        assert_eq!(etags.len(), FILES.len());
        assert_eq!(resource("/page/../page/page.js"), None);
        assert_eq!(resource(""), None);
    }

    #[test]
    fn what_an_identifier_names_exists() {
        let index = FILES[0].2;
        let ids: Vec<&str> = quoted(index, " id=\"").collect();
        let mut uses = 0;
        for (path, _, content) in FILES.iter().filter(|(_, kind, _)| *kind == SCRIPT) {
            for id in quoted(content, "$(\"") {
                uses += 1;
                assert!(ids.contains(&id), "{path} looks for #{id}");
            }
        }
        assert!(uses > 60, "{uses}");
    }
}
