//! Heads of requests (RFC 9114, section 4.3.1).

use std::fmt;

use super::{Malformed, Pseudo, check_field, check_value, content_length, is_token_byte};
use crate::{Field, Fields};

const METHOD: usize = 0;
const SCHEME: usize = 1;
const AUTHORITY: usize = 2;
const PATH: usize = 3;
const PROTOCOL: usize = 4;
const NAMES: [&str; 5] = [":method", ":scheme", ":authority", ":path", ":protocol"];

/// The pseudo-header fields of a request that is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLine<'a> {
    /// The method.
    pub method: &'a str,
    /// The scheme; empty for a plain CONNECT.
    pub scheme: &'a str,
    /// Host and port.
    pub authority: &'a str,
    /// Path and query, or `*`; empty for a plain CONNECT.
    pub path: &'a str,
    /// The protocol of an extended CONNECT (RFC 9220).
    pub protocol: Option<&'a str>,
}

impl<'a> RequestLine<'a> {
    /// A request for a resource of the scheme `https`.
    #[must_use]
    pub const fn https(method: &'a str, authority: &'a str, path: &'a str) -> Self {
        Self {
            method,
            scheme: "https",
            authority,
            path,
            protocol: None,
        }
    }

    /// An extended CONNECT for a resource of the scheme `https` (RFC 9220).
    #[must_use]
    pub const fn connect(protocol: &'a str, authority: &'a str, path: &'a str) -> Self {
        Self {
            method: "CONNECT",
            scheme: "https",
            authority,
            path,
            protocol: Some(protocol),
        }
    }

    /// The pseudo-header fields, in the order in which they are sent.
    pub(crate) fn fields(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        let values = [
            Some(self.method),
            (!self.scheme.is_empty()).then_some(self.scheme),
            (!self.authority.is_empty()).then_some(self.authority),
            (!self.path.is_empty()).then_some(self.path),
            self.protocol,
        ];
        NAMES
            .into_iter()
            .zip(values)
            .filter_map(|(name, value)| Some(Field::new(name, value?.as_bytes())))
    }

    /// Checks the request as the peer will, except for its fields.
    pub(crate) fn check(&self, has_host: bool) -> Result<(), Malformed> {
        for field in self.fields() {
            check_value(field.value)?;
        }
        check_line(&Line {
            method: self.method.as_bytes(),
            scheme: (!self.scheme.is_empty()).then_some(self.scheme.as_bytes()),
            authority: (!self.authority.is_empty()).then_some(self.authority.as_bytes()),
            path: (!self.path.is_empty()).then_some(self.path.as_bytes()),
            is_extended: self.protocol.is_some(),
            has_host,
        })
    }
}

/// The head of a request that arrived. It is not malformed.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestHead {
    fields: Fields,
    at: [Option<u8>; NAMES.len()],
    pseudo_fields: u8,
    content_length: Option<u64>,
}

impl RequestHead {
    /// Checks the fields of a head.
    pub(crate) fn new(fields: Fields) -> Result<Self, Malformed> {
        let mut pseudo = Pseudo::new(NAMES);
        let pseudo_fields = pseudo.read(&fields)?;
        let mut host = None;
        for field in fields.iter().skip(pseudo_fields) {
            check_field(field)?;
            if field.name == b"host" {
                if host.is_some() {
                    return Err("two fields host");
                }
                host = Some(field.value);
            }
        }
        let value = |kind: usize| {
            pseudo.at[kind]
                .and_then(|at| fields.at(usize::from(at)))
                .map(|field| field.value)
        };
        check_line(&Line {
            method: value(METHOD).ok_or("a request without a method")?,
            scheme: value(SCHEME),
            authority: value(AUTHORITY),
            path: value(PATH),
            is_extended: pseudo.has(PROTOCOL),
            has_host: host.is_some_and(|host| !host.is_empty()),
        })?;
        if let (Some(host), Some(authority)) = (host, value(AUTHORITY))
            && host != authority
        {
            return Err("a field host that is not the authority");
        }
        if value(PROTOCOL) == Some(b"") {
            return Err("an empty protocol");
        }
        let content_length = content_length(fields.get_all("content-length"))?;
        Ok(Self {
            at: pseudo.at,
            pseudo_fields: pseudo_fields as u8,
            content_length,
            fields,
        })
    }

    fn value(&self, kind: usize) -> Option<&str> {
        let field = self.fields.at(usize::from(self.at[kind]?))?;
        std::str::from_utf8(field.value).ok()
    }

    /// The method: a token, in the case in which it came.
    #[must_use]
    pub fn method(&self) -> &str {
        self.value(METHOD).unwrap_or_default()
    }

    /// The scheme; `None` for a plain CONNECT.
    #[must_use]
    pub fn scheme(&self) -> Option<&str> {
        self.value(SCHEME)
    }

    /// Host and port: of `:authority`, else of the field host.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.value(AUTHORITY).or_else(|| {
            let host = self.fields.get("host")?;
            std::str::from_utf8(host).ok()
        })
    }

    /// Path and query, still percent-encoded; `None` for a plain CONNECT.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.value(PATH)
    }

    /// The protocol of an extended CONNECT (RFC 9220).
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.value(PROTOCOL)
    }

    /// Whether this asks for a tunnel: CONNECT, plain or extended.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        self.method() == "CONNECT"
    }

    /// Bytes of content that the request says it has. The engine holds it to that.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// The size of the field section, uncompressed (RFC 9114, section 4.2.2).
    #[must_use]
    pub fn section_bytes(&self) -> usize {
        self.fields.section_bytes()
    }

    /// The value of the first field of this name, which is in lower case and no pseudo-header
    /// field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|field| field.name == name.as_bytes())
            .map(|field| field.value)
    }

    /// The values of all fields of this name, which is in lower case and no pseudo-header field, in
    /// their order. Cookies may come in several (RFC 9114, section 4.2.1).
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |field| field.name == name.as_bytes())
            .map(|field| field.value)
    }

    /// The fields in their order, without pseudo-header fields.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.fields.iter().skip(usize::from(self.pseudo_fields))
    }

    /// All fields, pseudo-header fields first; [`Connection::recycle`] takes them back.
    ///
    /// [`Connection::recycle`]: crate::Connection::recycle
    #[must_use]
    pub fn into_fields(self) -> Fields {
        self.fields
    }
}

impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestHead").field(&self.fields).finish()
    }
}

/// Parts that the rules of section 4.3.1 check.
struct Line<'a> {
    method: &'a [u8],
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    is_extended: bool,
    has_host: bool,
}

fn check_line(line: &Line<'_>) -> Result<(), Malformed> {
    if line.method.is_empty() || !line.method.iter().all(|byte| is_token_byte(*byte)) {
        return Err("a method that is not a token");
    }
    if let Some(authority) = line.authority {
        let is_plain = |byte: &u8| matches!(byte, b'!'..=b'~') && !b"/?#\\".contains(byte);
        if authority.is_empty() || !authority.iter().all(is_plain) {
            return Err("an authority that is empty or has a character that none may have");
        }
    }
    let is_connect = line.method == b"CONNECT";
    if line.is_extended && !is_connect {
        return Err("a protocol without CONNECT");
    }
    if is_connect && !line.is_extended {
        // Section 4.4.
        return match (line.scheme, line.path, line.authority) {
            (None, None, Some(_)) => Ok(()),
            (_, _, None) => Err("CONNECT without an authority"),
            _ => Err("CONNECT with a scheme or path"),
        };
    }
    let (Some(scheme), Some(path)) = (line.scheme, line.path) else {
        return Err("a request without scheme or path");
    };
    let is_scheme_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    if !scheme.first().is_some_and(u8::is_ascii_alphabetic) || !scheme.iter().all(is_scheme_byte) {
        return Err("an invalid scheme");
    }
    // RFC 9220 refers to RFC 8441, section 4: an extended CONNECT has an authority too.
    if line.is_extended && line.authority.is_none() {
        return Err("CONNECT without an authority");
    }
    if !path
        .iter()
        .all(|byte| matches!(byte, b'!'..=b'~') && *byte != b'#')
    {
        return Err("a path with a character that none may have");
    }
    if scheme == b"https" || scheme == b"http" {
        match (line.authority, line.has_host) {
            (None, false) => return Err("a request without an authority"),
            (Some(authority), _) if authority.contains(&b'@') => {
                return Err("an authority with user information");
            }
            _ => {}
        }
        let is_asterisk = path == b"*" && line.method == b"OPTIONS";
        if path.first() != Some(&b'/') && !is_asterisk {
            return Err("a path that does not begin with a slash");
        }
    }
    Ok(())
}
