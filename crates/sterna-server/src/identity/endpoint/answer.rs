//! Answers of HTTP/1.1 (RFC 9112, sections 4, 6 and 7).

/// Largest head of an answer, in bytes.
const MAXIMUM_HEAD_BYTES: usize = 16 << 10;
/// Bytes that a byte of content takes in a chunk of its own.
const CHUNK_BYTES: usize = 6;
/// Fields of an answer.
const MAXIMUM_FIELDS: usize = 64;

/// The content of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) text: String,
    /// The connection cannot be used again.
    pub(super) is_last: bool,
}

/// The content of an answer of HTTP/1.1, if that is complete; `is_over` says that no more comes.
pub(super) fn content_of(
    answer: &[u8],
    is_over: bool,
    (setting, most): (&str, usize),
) -> Result<Option<Answered>, String> {
    let too_long = || format!("the answer is longer than {setting} ({most})");
    let mut fields = [httparse::EMPTY_HEADER; MAXIMUM_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let parsed = head.parse(answer).map_err(|error| error.to_string())?;
    let httparse::Status::Complete(head_bytes) = parsed else {
        if answer.len() > MAXIMUM_HEAD_BYTES {
            return Err("the answer's head is too long".to_owned());
        }
        return Ok(None);
    };
    if head.code != Some(200) {
        return Err(format!("the answer has status {}", head.code.unwrap_or(0)));
    }
    let fields = |name: &'static str| {
        let found = (head.headers.iter()).filter(|field| field.name.eq_ignore_ascii_case(name));
        found.map(|field| field.value)
    };
    let (mut codings, mut lengths) = (fields("transfer-encoding"), fields("content-length"));
    let (coding, length) = (codings.next(), lengths.next());
    // A proxy between may take another of them for the end, and put the next answer elsewhere (RFC 9112, section 6.3).
    let is_double = coding.is_some() && length.is_some();
    if is_double || codings.chain(lengths).next().is_some() {
        return Err("the answer has more than one length".to_owned());
    }
    let rest = &answer[head_bytes..];
    let closes = fields("connection").any(|value| {
        let mut words = value.split(|byte| *byte == b',');
        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    });
    // Bytes behind the content are nothing that was asked for.
    let mut ends = head.version == Some(1) && !closes;
    let content = if let Some(coding) = coding {
        if !coding.eq_ignore_ascii_case(b"chunked") || head.version != Some(1) {
            return Err("the answer has a transfer coding that was not asked for".to_owned());
        }
        // Extensions of chunks would otherwise be bounded by time alone.
        if rest.len()
            > most
                .saturating_mul(CHUNK_BYTES)
                .saturating_add(MAXIMUM_HEAD_BYTES)
        {
            return Err(too_long());
        }
        let found = unchunked(rest, most).map_err(|why| why.unwrap_or_else(too_long))?;
        found.map(|(content, after)| {
            ends &= after == b"\r\n";
            content
        })
    } else if let Some(length) = length {
        // `parse` takes a sign, too.
        let is_number = length.trim_ascii().iter().all(u8::is_ascii_digit);
        let length = std::str::from_utf8(length)
            .ok()
            .filter(|_| is_number)
            .and_then(|text| text.trim().parse().ok());
        let length: usize = length.ok_or("the answer's length is not a number")?;
        if length > most {
            return Err(too_long());
        }
        ends &= rest.len() == length;
        rest.get(..length).map(<[u8]>::to_vec)
    } else {
        if rest.len() > most {
            return Err(too_long());
        }
        ends = false;
        is_over.then(|| rest.to_vec())
    };
    let Some(content) = content else {
        return Ok(None);
    };
    let text = String::from_utf8(content).map_err(|_| "the answer is not UTF-8".to_owned())?;
    Ok(Some(Answered {
        text,
        is_last: !ends,
    }))
}

/// Content, and the bytes that follow it.
type Parted<'a> = (Vec<u8>, &'a [u8]);

/// Content in chunks, put together, with the bytes behind the last chunk; `None` if more is to come. The error is
/// `None` for too much.
fn unchunked(mut rest: &[u8], most: usize) -> Result<Option<Parted<'_>>, Option<String>> {
    let mut content = Vec::new();
    loop {
        let size = httparse::parse_chunk_size(rest);
        let size = size.map_err(|_| Some("a chunk of the answer has no size".to_owned()))?;
        let httparse::Status::Complete((head, size)) = size else {
            return Ok(None);
        };
        if size == 0 {
            return Ok(Some((content, &rest[head..])));
        }
        let size = usize::try_from(size).map_err(|_| None)?;
        if size > most.saturating_sub(content.len()) {
            return Err(None);
        }
        let Some(chunk) = rest.get(head..head + size) else {
            return Ok(None);
        };
        content.extend_from_slice(chunk);
        match rest.get(head + size..head + size + 2) {
            None => return Ok(None),
            Some(b"\r\n") => rest = &rest[head + size + 2..],
            Some(_) => return Err(Some("a chunk of the answer has no end".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_each_form_and_bounded() {
        let whole = |text: &str| content_of(text.as_bytes(), true, ("maximum_keys_bytes", 10));
        let ok = "HTTP/1.1 200 OK\r\n";
        let singles = "1\r\nx\r\n".repeat(10);
        let chunked = "2\r\n{}\r\n0\r\n\r\n";
        let filling = "x".repeat(singles.len() + MAXIMUM_HEAD_BYTES);
        for (text, expected) in [
            (format!("{ok}Content-Length: 2\r\n\r\n{{}}"), Ok(Some("{}"))),
            (format!("{ok}Content-Length: 3\r\n\r\n{{}}"), Ok(None)),
            (format!("{ok}\r\n{{}}"), Ok(Some("{}"))),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n1\r\n}}\r\n0\r\n\r\n"),
                Ok(Some("{}")),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n1\r\n"),
                Ok(None),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\n{{xx"),
                Err("no end"),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
                Err("no size"),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\nb\r\n"),
                Err("maximum_keys_bytes"),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n1;{filling}"),
                Err("maximum_keys_bytes"),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n{singles}0\r\n\r\n"),
                Ok(Some("xxxxxxxxxx")),
            ),
            (
                format!("{ok}Transfer-Encoding: gzip\r\n\r\n"),
                Err("transfer coding"),
            ),
            (
                format!("{ok}Content-Length: 11\r\n\r\n"),
                Err("maximum_keys_bytes"),
            ),
            (
                format!("{ok}Content-Length: x\r\n\r\n"),
                Err("not a number"),
            ),
            (
                format!("{ok}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}} "),
                Err("more than one"),
            ),
            (
                format!("{ok}Content-Length: 2\r\ncontent-length: 2\r\n\r\n{{}}"),
                Err("more than one"),
            ),
            (
                format!("{ok}Content-Length: 2, 2\r\n\r\n{{}}"),
                Err("not a number"),
            ),
            (
                format!("{ok}Content-Length: +2\r\n\r\n{{}}"),
                Err("not a number"),
            ),
            (
                format!("{ok}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}"),
                Err("more than one"),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{chunked}"),
                Err("more than one"),
            ),
            (
                format!(
                    "{ok}Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n{chunked}"
                ),
                Err("more than one"),
            ),
            (
                format!("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}"),
                Err("transfer coding"),
            ),
            (format!("{ok}\r\n12345678901"), Err("maximum_keys_bytes")),
            (
                "HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n".to_owned(),
                Err("status 302"),
            ),
            ("HTTP/1.1 500 No\r\n\r\n".to_owned(), Err("status 500")),
            ("garbage".to_owned(), Err("invalid")),
            (
                format!("{ok}X: {}", "x".repeat(MAXIMUM_HEAD_BYTES)),
                Err("too long"),
            ),
        ] {
            match (whole(&text), expected) {
                (Ok(found), Ok(expected)) => {
                    let found = found.map(|answered| answered.text);
                    assert_eq!(found.as_deref(), expected, "{text}");
                }
                (Err(why), Err(named)) => assert!(why.contains(named), "{text}: {why}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        assert_eq!(
            content_of(format!("{ok}\r\n{{}}").as_bytes(), false, ("x", 10)),
            Ok(None)
        );
    }
}
