//! Which form a response has, by the media types that its request accepts (RFC 9110, section 12.5.1).

use sterna_http::Head;

use crate::http::format::Format;

const STREAM: &[Format] = &[Format::Lines, Format::Events, Format::Frames];
const POLL: &[Format] = &[Format::Lines, Format::Events, Format::Frames, Format::Array];

/// The forms to choose from, for the problem's detail.
pub(super) const fn offer(is_poll: bool) -> &'static str {
    if is_poll {
        "one of application/x-ndjson, text/event-stream, application/vnd.sterna.stream, application/json"
    } else {
        "one of application/x-ndjson, text/event-stream, application/vnd.sterna.stream; application/json \
         is for a poll, with `wait` or `max`"
    }
}

/// The form that a request prefers; of several, the first that is served. `None` where it accepts none.
pub(super) fn choose(head: &Head, is_poll: bool) -> Option<Format> {
    let mut accepted = Vec::new();
    head.each_field("accept", |value| accepted.push(value));
    let ranges: Vec<(&str, u16)> = accepted
        .iter()
        .filter_map(|value| std::str::from_utf8(value).ok())
        .flat_map(|value| value.split(','))
        .filter_map(read_range)
        .collect();
    let forms = if is_poll { POLL } else { STREAM };
    if ranges.is_empty() {
        return forms.first().copied();
    }
    let mut best = None;
    for &form in forms {
        let quality = quality_of(&ranges, form.media_type());
        if quality > best.map_or(0, |(_, best)| best) {
            best = Some((form, quality));
        }
    }
    best.map(|(form, _)| form)
}

/// A media range and its quality in thousandths. Parameters of a range but `q` are passed over.
fn read_range(text: &str) -> Option<(&str, u16)> {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().filter(|range| range.contains('/'))?;
    let quality =
        parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    Some((range, quality.map_or(1000, read_quality)))
}

/// Thousandths of a quality (RFC 9110, section 12.4.2); nonsense is none.
fn read_quality(text: &str) -> u16 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let thousandths = format!("{fraction:0<3}");
    match (whole, thousandths.parse::<u16>()) {
        ("0", Ok(thousandths)) if fraction.len() <= 3 => thousandths,
        ("1", Ok(0)) => 1000,
        _ => 0,
    }
}

/// The quality that the most specific matching range gives to a media type.
fn quality_of(ranges: &[(&str, u16)], media_type: &str) -> u16 {
    let kind = media_type.split('/').next().unwrap_or_default();
    let rank = |range: &str| match range.split_once('/') {
        _ if range.eq_ignore_ascii_case(media_type) => Some(3),
        Some((of, "*")) if of.eq_ignore_ascii_case(kind) => Some(2),
        Some(("*", "*")) => Some(1),
        _ => None,
    };
    let fitting = ranges
        .iter()
        .filter_map(|&(range, quality)| Some((rank(range)?, quality)));
    fitting.max().map_or(0, |(_, quality)| quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: Option<&str>, is_poll: bool) -> Option<Format> {
        let mut request = http::Request::builder().uri("/");
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        choose(&Head::Tcp(Box::new(parts)), is_poll)
    }

    #[test]
    fn the_form_is_what_is_liked_best() {
        for (accept, form) in [
            (None, Some(Format::Lines)),
            (Some(""), Some(Format::Lines)),
            (Some("*/*"), Some(Format::Lines)),
            (Some("text/event-stream"), Some(Format::Events)),
            (
                Some("Text/Event-Stream; charset=utf-8"),
                Some(Format::Events),
            ),
            (Some("text/*"), Some(Format::Events)),
            (Some("application/vnd.sterna.stream"), Some(Format::Frames)),
            (
                Some("application/x-ndjson;q=0.1, text/event-stream;q=0.5"),
                Some(Format::Events),
            ),
            (
                Some("text/html,application/xhtml+xml,*/*;q=0.8"),
                Some(Format::Lines),
            ),
            (Some("application/x-ndjson;q=0, */*"), Some(Format::Events)),
            (Some("application/json"), None),
            (Some("text/html"), None),
            (Some("*/*;q=0"), None),
        ] {
            assert_eq!(chosen(accept, false), form, "{accept:?}");
        }
        assert_eq!(chosen(Some("application/json"), true), Some(Format::Array));
        assert_eq!(chosen(None, true), Some(Format::Lines));
    }
}
