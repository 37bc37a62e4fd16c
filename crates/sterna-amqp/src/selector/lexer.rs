//! From text to tokens.

use std::borrow::Cow;

use super::SelectorError;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token<'s> {
    Identifier(Cow<'s, str>),
    Keyword(Keyword),
    String(Cow<'s, str>),
    /// Without its sign.
    Integer(u64),
    Float(f64),
    /// An operator or a parenthesis.
    Symbol(&'static str),
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keyword {
    And,
    Between,
    Escape,
    False,
    In,
    Is,
    Like,
    Not,
    Null,
    Or,
    True,
}

/// Keywords are such in any case, and never identifiers.
const KEYWORDS: [(&str, Keyword); 11] = [
    ("AND", Keyword::And),
    ("BETWEEN", Keyword::Between),
    ("ESCAPE", Keyword::Escape),
    ("FALSE", Keyword::False),
    ("IN", Keyword::In),
    ("IS", Keyword::Is),
    ("LIKE", Keyword::Like),
    ("NOT", Keyword::Not),
    ("NULL", Keyword::Null),
    ("OR", Keyword::Or),
    ("TRUE", Keyword::True),
];

/// The longer ones first.
const SYMBOLS: [&str; 13] = [
    "<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "(", ")", ",",
];

#[derive(Debug)]
pub(super) struct Lexer<'s> {
    text: &'s str,
    position: usize,
}

impl<'s> Lexer<'s> {
    pub(super) const fn new(text: &'s str) -> Self {
        Self { text, position: 0 }
    }

    const fn error(position: usize, detail: &'static str) -> SelectorError {
        SelectorError { position, detail }
    }

    fn rest(&self) -> &'s str {
        &self.text[self.position..]
    }

    /// Takes the characters that `belongs` takes.
    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'s str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.position += end;
        &rest[..end]
    }

    /// The next token and where it begins.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'s>), SelectorError> {
        self.take_while(char::is_whitespace);
        let start = self.position;
        let Some(first) = self.rest().chars().next() else {
            return Ok((start, Token::End));
        };
        let token = match first {
            '\'' => Token::String(self.quoted('\'')?),
            '"' => Token::Identifier(self.quoted('"')?),
            '0'..='9' => self.number()?,
            '.' if self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => self.number()?,
            _ if is_identifier_start(first) => self.word(),
            _ => {
                let symbol = SYMBOLS.iter().find(|one| self.rest().starts_with(**one));
                let symbol = symbol.ok_or_else(|| Self::error(start, "unexpected character"))?;
                self.position += symbol.len();
                Token::Symbol(symbol)
            }
        };
        Ok((start, token))
    }

    fn word(&mut self) -> Token<'s> {
        let word = self.take_while(|c| is_identifier_start(c) || c.is_numeric() || c == '.');
        let keyword = KEYWORDS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(word));
        match keyword {
            Some((_, keyword)) => Token::Keyword(*keyword),
            None => Token::Identifier(Cow::Borrowed(word)),
        }
    }

    /// Text between quotes; two of them stand for one.
    fn quoted(&mut self, quote: char) -> Result<Cow<'s, str>, SelectorError> {
        let start = self.position;
        self.position += 1;
        let mut text = Cow::Borrowed("");
        loop {
            let part = self.take_while(|c| c != quote);
            if text.is_empty() {
                text = Cow::Borrowed(part);
            } else {
                text.to_mut().push_str(part);
            }
            if self.rest().is_empty() {
                return Err(Self::error(start, "quote without an end"));
            }
            self.position += 1;
            if !self.rest().starts_with(quote) {
                return Ok(text);
            }
            self.position += 1;
            text.to_mut().push(quote);
        }
    }

    /// The literals of Java: decimal and hexadecimal integers, floating point, and their suffixes.
    fn number(&mut self) -> Result<Token<'s>, SelectorError> {
        let start = self.position;
        let bad = Self::error(start, "malformed number");
        if let Some(hex) = self
            .rest()
            .strip_prefix("0x")
            .or_else(|| self.rest().strip_prefix("0X"))
        {
            let digits = hex
                .find(|c: char| !c.is_ascii_hexdigit())
                .unwrap_or(hex.len());
            self.position += 2 + digits;
            let value = u64::from_str_radix(&hex[..digits], 16).map_err(|_| bad)?;
            return self.end_of_number(Token::Integer(value), "lL");
        }
        self.take_while(|c| c.is_ascii_digit());
        let mut is_float = false;
        if self.rest().starts_with('.') {
            is_float = true;
            self.position += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        if self.rest().starts_with(['e', 'E']) {
            is_float = true;
            self.position += 1;
            if self.rest().starts_with(['+', '-']) {
                self.position += 1;
            }
            if self.take_while(|c| c.is_ascii_digit()).is_empty() {
                return Err(bad);
            }
        }
        let text = &self.text[start..self.position];
        if is_float || self.rest().starts_with(['f', 'F', 'd', 'D']) {
            let value = text.parse().map_err(|_| bad)?;
            return self.end_of_number(Token::Float(value), "fFdD");
        }
        let value = text.parse().map_err(|_| bad)?;
        self.end_of_number(Token::Integer(value), "lL")
    }

    fn end_of_number(
        &mut self,
        number: Token<'s>,
        suffixes: &str,
    ) -> Result<Token<'s>, SelectorError> {
        if self.rest().starts_with(|c| suffixes.contains(c)) {
            self.position += 1;
        }
        if self
            .rest()
            .starts_with(|c: char| is_identifier_start(c) || c.is_numeric() || c == '.')
        {
            return Err(Self::error(self.position, "malformed number"));
        }
        Ok(number)
    }
}

fn is_identifier_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}
