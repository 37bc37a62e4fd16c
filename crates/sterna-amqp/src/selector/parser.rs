//! From tokens to an expression.

use super::lexer::{Keyword, Lexer, Token};
use super::like::Pattern;
use super::{SelectorError, SelectorLimits};

/// An expression. Its height is limited when it is read, so that walking it is safe.
#[derive(Clone, Debug)]
pub(super) enum Expression {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    String(Box<str>),
    Identifier(Box<str>),
    And(Box<[Self]>),
    Or(Box<[Self]>),
    Not(Box<Self>),
    Negate(Box<Self>),
    Arithmetic(Arithmetic, Box<(Self, Self)>),
    Compare(Comparison, Box<(Self, Self)>),
    /// Value, lower and upper bound.
    Between(Box<(Self, Self, Self)>),
    In(Box<Self>, Box<[Self]>),
    Like(Box<Self>, Pattern),
    IsNull(Box<Self>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

pub(super) fn parse(text: &str, limits: &SelectorLimits) -> Result<Expression, SelectorError> {
    let mut lexer = Lexer::new(text);
    let (position, token) = lexer.next()?;
    let mut parser = Parser {
        lexer,
        token,
        position,
        pattern_bytes_left: limits.max_pattern_bytes,
    };
    if parser.token == Token::End {
        return Ok(Expression::Boolean(true));
    }
    let expression = parser.or(limits.max_depth)?;
    if parser.token == Token::End {
        Ok(expression)
    } else {
        Err(parser.error("unexpected word after the end"))
    }
}

struct Parser<'s> {
    lexer: Lexer<'s>,
    /// The token that comes next, and where it is.
    token: Token<'s>,
    position: usize,
    /// Bytes that further patterns may have.
    pattern_bytes_left: usize,
}

type Parsed = Result<Expression, SelectorError>;

impl<'s> Parser<'s> {
    const fn error(&self, detail: &'static str) -> SelectorError {
        SelectorError {
            position: self.position,
            detail,
        }
    }

    fn advance(&mut self) -> Result<Token<'s>, SelectorError> {
        let (position, token) = self.lexer.next()?;
        self.position = position;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn keyword(&mut self, keyword: Keyword) -> Result<bool, SelectorError> {
        let found = self.token == Token::Keyword(keyword);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn symbol(&mut self, symbol: &'static str) -> Result<bool, SelectorError> {
        let found = self.token == Token::Symbol(symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, symbol: &'static str, detail: &'static str) -> Result<(), SelectorError> {
        if self.symbol(symbol)? {
            Ok(())
        } else {
            Err(self.error(detail))
        }
    }

    fn deeper(&self, depth: u8) -> Result<u8, SelectorError> {
        depth
            .checked_sub(1)
            .ok_or_else(|| self.error("selector is nested too deeply"))
    }

    fn or(&mut self, depth: u8) -> Parsed {
        let depth = self.deeper(depth)?;
        let first = self.and(depth)?;
        let mut terms = vec![first];
        while self.keyword(Keyword::Or)? {
            terms.push(self.and(depth)?);
        }
        Ok(one_or(terms, Expression::Or))
    }

    fn and(&mut self, depth: u8) -> Parsed {
        let first = self.not(depth)?;
        let mut terms = vec![first];
        while self.keyword(Keyword::And)? {
            terms.push(self.not(depth)?);
        }
        Ok(one_or(terms, Expression::And))
    }

    fn not(&mut self, depth: u8) -> Parsed {
        if self.keyword(Keyword::Not)? {
            let depth = self.deeper(depth)?;
            return Ok(Expression::Not(Box::new(self.not(depth)?)));
        }
        self.comparison(depth)
    }

    fn comparison(&mut self, depth: u8) -> Parsed {
        let left = self.sum(depth)?;
        let comparison = match self.token {
            Token::Symbol("=") => Comparison::Equal,
            Token::Symbol("<>") => Comparison::NotEqual,
            Token::Symbol("<") => Comparison::Less,
            Token::Symbol("<=") => Comparison::LessOrEqual,
            Token::Symbol(">") => Comparison::Greater,
            Token::Symbol(">=") => Comparison::GreaterOrEqual,
            _ => return self.predicate(left, depth),
        };
        self.advance()?;
        let right = self.sum(depth)?;
        Ok(Expression::Compare(comparison, Box::new((left, right))))
    }

    fn predicate(&mut self, left: Expression, depth: u8) -> Parsed {
        if self.keyword(Keyword::Is)? {
            let negated = self.keyword(Keyword::Not)?;
            if !self.keyword(Keyword::Null)? {
                return Err(self.error("NULL is expected"));
            }
            return Ok(negate_if(negated, Expression::IsNull(Box::new(left))));
        }
        let negated = self.keyword(Keyword::Not)?;
        let predicate = if self.keyword(Keyword::Between)? {
            let lower = self.sum(depth)?;
            if !self.keyword(Keyword::And)? {
                return Err(self.error("AND is expected"));
            }
            Expression::Between(Box::new((left, lower, self.sum(depth)?)))
        } else if self.keyword(Keyword::In)? {
            self.expect("(", "( is expected")?;
            let mut values = vec![self.sum(depth)?];
            while self.symbol(",")? {
                values.push(self.sum(depth)?);
            }
            self.expect(")", ") is expected")?;
            Expression::In(Box::new(left), values.into())
        } else if self.keyword(Keyword::Like)? {
            let pattern = self.string()?;
            self.pattern_bytes_left = (self.pattern_bytes_left)
                .checked_sub(pattern.len())
                .ok_or_else(|| self.error("patterns of LIKE are too long"))?;
            let mut escape = None;
            if self.keyword(Keyword::Escape)? {
                let position = self.position;
                let text = self.string()?;
                let mut characters = text.chars();
                escape = characters.next();
                if escape.is_none() || characters.next().is_some() {
                    return Err(SelectorError {
                        position,
                        detail: "escape is not one character",
                    });
                }
            }
            let pattern = Pattern::parse(&pattern, escape)
                .ok_or_else(|| self.error("escape character escapes nothing"))?;
            Expression::Like(Box::new(left), pattern)
        } else if negated {
            return Err(self.error("BETWEEN, IN or LIKE is expected"));
        } else {
            return Ok(left);
        };
        Ok(negate_if(negated, predicate))
    }

    fn string(&mut self) -> Result<Box<str>, SelectorError> {
        if let Token::String(_) = &self.token
            && let Token::String(text) = self.advance()?
        {
            return Ok(text.into());
        }
        Err(self.error("a string is expected"))
    }

    /// A row of operators makes a tree as high as it is long: each counts as a level.
    fn sum(&mut self, depth: u8) -> Parsed {
        let mut depth = depth;
        let mut left = self.product(depth)?;
        loop {
            let operator = match self.token {
                Token::Symbol("+") => Arithmetic::Add,
                Token::Symbol("-") => Arithmetic::Subtract,
                _ => return Ok(left),
            };
            self.advance()?;
            depth = self.deeper(depth)?;
            let right = self.product(depth)?;
            left = Expression::Arithmetic(operator, Box::new((left, right)));
        }
    }

    fn product(&mut self, depth: u8) -> Parsed {
        let mut depth = depth;
        let mut left = self.unary(depth)?;
        loop {
            let operator = match self.token {
                Token::Symbol("*") => Arithmetic::Multiply,
                Token::Symbol("/") => Arithmetic::Divide,
                _ => return Ok(left),
            };
            self.advance()?;
            depth = self.deeper(depth)?;
            let right = self.unary(depth)?;
            left = Expression::Arithmetic(operator, Box::new((left, right)));
        }
    }

    fn unary(&mut self, depth: u8) -> Parsed {
        if self.symbol("+")? {
            let depth = self.deeper(depth)?;
            return self.unary(depth);
        }
        if self.symbol("-")? {
            let depth = self.deeper(depth)?;
            // The smallest number has no positive counterpart.
            if let Token::Integer(magnitude) = self.token {
                let value = 0_i64
                    .checked_sub_unsigned(magnitude)
                    .ok_or_else(|| self.error("number is too large"))?;
                self.advance()?;
                return Ok(Expression::Integer(value));
            }
            return Ok(Expression::Negate(Box::new(self.unary(depth)?)));
        }
        self.primary(depth)
    }

    fn primary(&mut self, depth: u8) -> Parsed {
        let position = self.position;
        let wrong = |detail| Err(SelectorError { position, detail });
        match self.advance()? {
            Token::Identifier(name) => Ok(Expression::Identifier(name.into())),
            Token::String(text) => Ok(Expression::String(text.into())),
            Token::Float(value) => Ok(Expression::Float(value)),
            Token::Integer(value) => i64::try_from(value)
                .map(Expression::Integer)
                .or_else(|_| wrong("number is too large")),
            Token::Keyword(Keyword::True) => Ok(Expression::Boolean(true)),
            Token::Keyword(Keyword::False) => Ok(Expression::Boolean(false)),
            Token::Keyword(Keyword::Null) => Ok(Expression::Null),
            Token::Symbol("(") => {
                let inner = self.or(depth)?;
                self.expect(")", ") is expected")?;
                Ok(inner)
            }
            Token::End => wrong("selector ends too early"),
            _ => wrong("a value is expected"),
        }
    }
}

fn one_or(mut terms: Vec<Expression>, many: fn(Box<[Expression]>) -> Expression) -> Expression {
    match terms.pop() {
        Some(only) if terms.is_empty() => only,
        last => {
            terms.extend(last);
            many(terms.into())
        }
    }
}

fn negate_if(negated: bool, expression: Expression) -> Expression {
    if negated {
        Expression::Not(Box::new(expression))
    } else {
        expression
    }
}
