//! From text to tokens, each with its place.

use super::SqlError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind<'text> {
    /// A keyword or the name of a property.
    Word(&'text str),
    /// Without a sign, and without the `L` that may follow a whole number.
    Number(&'text str),
    /// What stands between the quotes.
    Text(String),
    Symbol(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Token<'text> {
    pub(super) kind: Kind<'text>,
    /// In characters, from 1.
    pub(super) column: usize,
}

/// Longer ones first, since some begin with another.
const SYMBOLS: [&str; 10] = ["<>", ">=", "<=", "=", ">", "<", "(", ")", ",", "+"];
const MINUS: &str = "-";
/// How much of what stands where something else should is repeated in an error, in characters.
const SHOWN_MAX: usize = 24;

impl Token<'_> {
    pub(super) fn is_word(&self, keyword: &str) -> bool {
        matches!(self.kind, Kind::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    pub(super) fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.kind, Kind::Symbol(own) if own == symbol)
    }

    /// As an error shows it.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            Kind::Word(text) | Kind::Number(text) => shorten(text),
            Kind::Text(text) => format!("the text '{}'", shorten(text)),
            Kind::Symbol(symbol) => format!("'{symbol}'"),
            Kind::End => "its end".to_owned(),
        }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// All tokens of a text; the last one is its end.
pub(super) fn lex(text: &str) -> Result<Vec<Token<'_>>, SqlError> {
    let mut lexer = Lexer { rest: text, column: 1 };
    let mut tokens = Vec::new();
    loop {
        let token = lexer.next()?;
        let ended = token.kind == Kind::End;
        tokens.push(token);
        if ended {
            return Ok(tokens);
        }
    }
}

struct Lexer<'text> {
    rest: &'text str,
    column: usize,
}

impl<'text> Lexer<'text> {
    fn next(&mut self) -> Result<Token<'text>, SqlError> {
        self.pass_space()?;
        let column = self.column;
        let kind = match self.rest.chars().next() {
            None => Kind::End,
            Some('\'') => self.text()?,
            Some(first) if first.is_ascii_digit() => self.number()?,
            Some('.') => self.number()?,
            Some(first) if starts_word(first) => {
                Kind::Word(self.take_while(|byte| starts_word(byte) || byte.is_ascii_digit()))
            }
            Some(first) => match SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol)) {
                Some(symbol) => {
                    self.take(symbol.len());
                    Kind::Symbol(symbol)
                }
                None if first == '-' => {
                    self.take(MINUS.len());
                    Kind::Symbol(MINUS)
                }
                None => {
                    return Err(SqlError::Unexpected {
                        column,
                        found: format!("{first:?}"),
                        expected: "a property, a constant, an operator or a parenthesis",
                    });
                }
            },
        };
        Ok(Token { kind, column })
    }

    /// Takes the next bytes, which end where a character does.
    fn take(&mut self, bytes: usize) -> &'text str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        self.column += taken.chars().count();
        taken
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'text str {
        self.take(self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len()))
    }

    fn pass_space(&mut self) -> Result<(), SqlError> {
        loop {
            self.take_while(char::is_whitespace);
            if self.rest.starts_with("--") {
                self.take_while(|c| c != '\n');
            } else if self.rest.starts_with("/*") {
                let unended = SqlError::Unended { column: self.column, what: "a comment" };
                let inner = self.rest[2..].find("*/").ok_or(unended)?;
                self.take(inner + 4);
            } else {
                return Ok(());
            }
        }
    }

    fn text(&mut self) -> Result<Kind<'text>, SqlError> {
        let column = self.column;
        let mut text = String::new();
        self.take(1);
        loop {
            let Some(end) = self.rest.find('\'') else {
                return Err(SqlError::Unended { column, what: "a text" });
            };
            text.push_str(self.take(end));
            self.take(1);
            if !self.rest.starts_with('\'') {
                return Ok(Kind::Text(text));
            }
            text.push_str(self.take(1));
        }
    }

    fn number(&mut self) -> Result<Kind<'text>, SqlError> {
        let (start, column) = (self.rest, self.column);
        let whole = self.take_while(|c| c.is_ascii_digit()).len();
        let mut digits = whole;
        if self.rest.starts_with('.') {
            self.take(1);
            digits += self.take_while(|c| c.is_ascii_digit()).len();
        }
        if self.rest.starts_with(['e', 'E']) {
            self.take(1);
            if self.rest.starts_with(['+', '-']) {
                self.take(1);
            }
            if self.take_while(|c| c.is_ascii_digit()).is_empty() {
                digits = 0;
            }
        }
        let number = &start[..start.len() - self.rest.len()];
        if number.len() == whole && self.rest.starts_with(['l', 'L']) {
            self.take(1);
        }
        if digits == 0 || self.rest.starts_with(starts_word) {
            let found = shorten(start.split(char::is_whitespace).next().unwrap_or_default());
            return Err(SqlError::Unexpected { column, found, expected: "a number" });
        }
        Ok(Kind::Number(number))
    }
}

fn starts_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || c == '$'
}
