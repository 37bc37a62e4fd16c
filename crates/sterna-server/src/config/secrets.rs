//! Secrets of a configuration, which are written nowhere: user, password and query of a URL.

use std::borrow::Cow;

use super::Config;

/// A text for people, such as a URL or a sentence with URLs in it: of each URL, user, password and query are `…`.
#[must_use]
pub fn without_secrets(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>');
        let (url, behind) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        rest = behind;
        // A password may have any of these marks, so what is before the last `@` goes.
        let place = url.rfind('@').map_or(url, |at| {
            shown.push('…');
            &url[at..]
        });
        let end = place.find(['?', '#']);
        shown.push_str(&place[..end.unwrap_or(place.len())]);
        if end.is_some() {
            shown.push_str("?…");
        }
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// A configuration's value for people.
pub(super) fn hide(value: &mut toml::Value) {
    match value {
        toml::Value::String(text) => {
            if let Cow::Owned(shown) = without_secrets(text) {
                *text = shown;
            }
        }
        toml::Value::Array(values) => values.iter_mut().for_each(hide),
        toml::Value::Table(values) => values.iter_mut().for_each(|(_, value)| hide(value)),
        _ => {}
    }
}

impl Config {
    /// The configuration as TOML for people. Secrets of URLs are `…`.
    ///
    /// # Errors
    /// Where a value has no form in TOML.
    pub fn shown(&self) -> Result<String, toml::ser::Error> {
        let mut value = toml::Value::try_from(self)?;
        hide(&mut value);
        toml::to_string(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_what_is_secret() {
        for (text, shown) in [
            ("https://a.example/x?token=s3cret", "https://a.example/x?…"),
            ("https://a.example?s3cret", "https://a.example?…"),
            ("https://a.example/x#s3cret", "https://a.example/x?…"),
            ("nats://bob:s3cret@[::1]:4222", "nats://…@[::1]:4222"),
            ("nats://bob:s3?c#re/t@p@host:1", "nats://…@host:1"),
            ("mqtts://[::]:8883", "mqtts://[::]:8883"),
            ("no URL? none", "no URL? none"),
            (
                "url = \"https://a/?s3cret\"\nb = 'http://u:s3cret@b/'",
                "url = \"https://a/?…\"\nb = 'http://…@b/'",
            ),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }

    #[test]
    fn no_secret_of_a_url_is_shown() {
        let text = "webhook.authentication_url = \"https://hook.example/login?key=s3cret\"\n\
             webhook.authorization_url = \"https://hook.example/acl?key=s3cret\"\n\
             authentication.jwt.keys_url = \"https://keys.example/set?key=s3cret\"\n\
             otlp.url = \"http://localhost:4318/v1/traces?key=s3cret\"\n\
             cluster.nats = [\"nats://bob:s3cret@127.0.0.1:4222\"]\n";
        let config = super::super::parse("test", text).expect("good settings");
        let shown = config.shown().expect("a table");
        assert!(!shown.contains("s3cret"), "{shown}");
        assert_eq!(shown.matches('…').count(), 5, "{shown}");
        for setting in super::super::reference::settings() {
            for found in config.in_force(&setting, None, &[]) {
                let value = found.value.unwrap_or_default();
                assert!(!value.contains("s3cret"), "{}: {value}", setting.name());
            }
        }
        // Nor in what is said of its faults.
        let problems = config.check().err().unwrap_or_default().join("\n");
        assert!(!problems.contains("s3cret"), "{problems}");
        let broken = format!("{text}[webhook]\nauthentication_url = \"https://h/?s3cret\" x\n");
        let fault = super::super::parse("test", &broken).expect_err("no TOML");
        assert!(!fault.to_string().contains("s3cret"), "{fault}");
    }
}
