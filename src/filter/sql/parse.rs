//! From tokens to a condition; a mistake is refused where it stands.

use std::cmp::Ordering;

use super::eval::{By, Comparison, Operand, Predicate, Search};
use super::lex::{Kind, Token, lex};
use super::value::Number;
use super::{DEPTH_MAX, SqlError};

const KEYWORDS: [&str; 12] = [
    "AND",
    "OR",
    "NOT",
    "BETWEEN",
    "IN",
    "IS",
    "NULL",
    "TRUE",
    "FALSE",
    "CONTAINS",
    "STARTSWITH",
    "ENDSWITH",
];

const A_CONDITION: &str = "a condition, such as a = 1";
const AN_OPERAND: &str = "a property or a constant";
const A_PROPERTY: &str = "a property";
const A_NUMBER: &str = "a property or a number";
const A_TEXT: &str = "a text in single quotes";
const AN_OPERATOR: &str = "=, <>, >, >=, <, <=, BETWEEN, IN, IS, CONTAINS, STARTSWITH or ENDSWITH";

pub(super) fn parse(text: &str) -> Result<Predicate, SqlError> {
    let tokens = lex(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    let node = parser.any()?;
    let predicate = parser.condition(node)?;
    match parser.peek().kind {
        Kind::End => Ok(predicate),
        _ => Err(unexpected(parser.peek(), "AND, OR or the end")),
    }
}

/// What stands between operators, before it is known what it has to be.
struct Node<'a, 'text> {
    first: &'a Token<'text>,
    what: What,
}

enum What {
    Condition(Predicate),
    Operand(Operand),
}

struct Parser<'a, 'text> {
    /// The last one is the end, which is never passed.
    tokens: &'a [Token<'text>],
    at: usize,
    depth: usize,
}

fn unexpected(token: &Token<'_>, expected: &'static str) -> SqlError {
    SqlError::Unexpected { column: token.column, found: token.shown(), expected }
}

type Parsed<T> = Result<T, SqlError>;

impl<'a, 'text> Parser<'a, 'text> {
    fn peek(&self) -> &'a Token<'text> {
        &self.tokens[self.at]
    }

    fn take(&mut self) -> &'a Token<'text> {
        let token = self.peek();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn take_word(&mut self, keyword: &str) -> bool {
        let is_next = self.peek().is_word(keyword);
        if is_next {
            self.take();
        }
        is_next
    }

    fn need_word(&mut self, keyword: &'static str) -> Parsed<()> {
        if self.take_word(keyword) { Ok(()) } else { Err(unexpected(self.peek(), keyword)) }
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let is_next = self.peek().is_symbol(symbol);
        if is_next {
            self.take();
        }
        is_next
    }

    fn need_symbol(&mut self, symbol: &'static str) -> Parsed<()> {
        if self.take_symbol(symbol) { Ok(()) } else { Err(unexpected(self.peek(), symbol)) }
    }

    /// A condition, when what was read is one. A lone property is none: RocketMQ takes it and never
    /// finds it true.
    fn condition(&self, node: Node<'a, 'text>) -> Parsed<Predicate> {
        match node.what {
            What::Condition(predicate) => Ok(predicate),
            What::Operand(Operand::Bool(value)) => Ok(Predicate::Constant(value)),
            What::Operand(_) => {
                let next = self.peek();
                if next.is_word("AND") || next.is_word("OR") || next.is_symbol(")") {
                    return Err(unexpected(node.first, A_CONDITION));
                }
                Err(unexpected(next, AN_OPERATOR))
            }
        }
    }

    fn any(&mut self) -> Parsed<Node<'a, 'text>> {
        let node = self.all()?;
        if !self.peek().is_word("OR") {
            return Ok(node);
        }
        let first = node.first;
        let mut parts = Vec::new();
        add(&mut parts, self.condition(node)?);
        while self.take_word("OR") {
            let node = self.all()?;
            add(&mut parts, self.condition(node)?);
        }
        return Ok(Node { first, what: What::Condition(Predicate::Any(parts)) });

        fn add(parts: &mut Vec<Predicate>, part: Predicate) {
            match part {
                Predicate::Any(inner) => parts.extend(inner),
                other => parts.push(other),
            }
        }
    }

    fn all(&mut self) -> Parsed<Node<'a, 'text>> {
        let node = self.not()?;
        if !self.peek().is_word("AND") {
            return Ok(node);
        }
        let first = node.first;
        let mut parts = Vec::new();
        add(&mut parts, self.condition(node)?);
        while self.take_word("AND") {
            let node = self.not()?;
            add(&mut parts, self.condition(node)?);
        }
        return Ok(Node { first, what: What::Condition(Predicate::All(parts)) });

        fn add(parts: &mut Vec<Predicate>, part: Predicate) {
            match part {
                Predicate::All(inner) => parts.extend(inner),
                other => parts.push(other),
            }
        }
    }

    fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(SqlError::TooDeep { column: self.peek().column, max: DEPTH_MAX });
        }
        Ok(())
    }

    fn not(&mut self) -> Parsed<Node<'a, 'text>> {
        let first = self.peek();
        if !self.take_word("NOT") {
            return self.test();
        }
        self.deeper()?;
        let node = self.not()?;
        let predicate = match self.condition(node)? {
            Predicate::Not(inner) => *inner,
            other => Predicate::Not(Box::new(other)),
        };
        self.depth -= 1;
        Ok(Node { first, what: What::Condition(predicate) })
    }

    /// One comparison, or what stands alone.
    fn test(&mut self) -> Parsed<Node<'a, 'text>> {
        let node = self.primary()?;
        let operator = self.peek();
        let comparison = Comparison::ALL.into_iter().find(|one| operator.is_symbol(one.symbol()));
        let is_test = comparison.is_some()
            || ["NOT", "IS", "BETWEEN", "IN"].iter().any(|word| operator.is_word(word))
            || Search::ALL.iter().any(|search| operator.is_word(search.keyword()));
        if !is_test {
            return Ok(node);
        }
        let first = node.first;
        let What::Operand(left) = node.what else {
            return Err(unexpected(operator, "AND, OR or the end behind a condition"));
        };
        let predicate = match comparison {
            Some(comparison) => {
                self.take();
                self.comparison((first, left), comparison)?
            }
            None if self.take_word("IS") => {
                let negated = self.take_word("NOT");
                self.need_word("NULL")?;
                Predicate::IsNull { property: property(first, left)?, negated }
            }
            None => {
                let negated = self.take_word("NOT");
                self.membership((first, left), negated)?
            }
        };
        Ok(Node { first, what: What::Condition(predicate) })
    }

    fn comparison(
        &mut self,
        (first, left): (&'a Token<'text>, Operand),
        comparison: Comparison,
    ) -> Parsed<Predicate> {
        let (second, right) = self.operand(AN_OPERAND)?;
        if comparison.orders() {
            need_number(first, &left)?;
            need_number(second, &right)?;
            return Ok(Predicate::Compare { left, comparison, right, by: By::Number });
        }
        let by = match (kind(&left), kind(&right)) {
            (None, None) => By::Text,
            (Some(by), None) | (None, Some(by)) => by,
            (Some(one), Some(other)) if one == other => one,
            (Some(By::Text), _) => return Err(unexpected(second, "a property or a text")),
            (Some(By::Number), _) => return Err(unexpected(second, A_NUMBER)),
            (Some(By::Bool), _) => return Err(unexpected(second, "a property, TRUE or FALSE")),
        };
        Ok(Predicate::Compare { left, comparison, right, by })
    }

    /// BETWEEN, IN and the searches, behind an optional NOT.
    fn membership(
        &mut self,
        (first, left): (&'a Token<'text>, Operand),
        negated: bool,
    ) -> Parsed<Predicate> {
        let operator = self.take();
        if operator.is_word("BETWEEN") {
            need_number(first, &left)?;
            let (low_at, low) = self.operand(A_NUMBER)?;
            need_number(low_at, &low)?;
            self.need_word("AND")?;
            let (high_at, high) = self.operand(A_NUMBER)?;
            need_number(high_at, &high)?;
            if let (Operand::Number(from), Operand::Number(to)) = (&low, &high)
                && from.compare(*to) == Ordering::Greater
            {
                let (low, high) = (low.to_string(), high.to_string());
                return Err(SqlError::Bounds { column: low_at.column, low, high });
            }
            return Ok(Predicate::Between { value: left, low, high, negated });
        }
        if operator.is_word("IN") {
            let property = property(first, left)?;
            return Ok(Predicate::In { property, texts: self.texts()?, negated });
        }
        let search = Search::ALL.into_iter().find(|search| operator.is_word(search.keyword()));
        let Some(search) = search else {
            let expected = "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH";
            return Err(unexpected(operator, expected));
        };
        let property = property(first, left)?;
        let token = self.take();
        match &token.kind {
            Kind::Text(text) if !text.is_empty() => {
                Ok(Predicate::Search { property, search, text: text.clone(), negated })
            }
            _ => Err(unexpected(token, "a text in single quotes that is not empty")),
        }
    }

    fn texts(&mut self) -> Parsed<Vec<String>> {
        self.need_symbol("(")?;
        let mut texts = Vec::new();
        loop {
            let token = self.take();
            let Kind::Text(text) = &token.kind else { return Err(unexpected(token, A_TEXT)) };
            texts.push(text.clone());
            if !self.take_symbol(",") {
                break;
            }
        }
        if !self.take_symbol(")") {
            return Err(unexpected(self.peek(), "',' or ')'"));
        }
        texts.sort();
        texts.dedup();
        Ok(texts)
    }

    fn operand(&mut self, expected: &'static str) -> Parsed<(&'a Token<'text>, Operand)> {
        let node = self.primary()?;
        match node.what {
            What::Operand(operand) => Ok((node.first, operand)),
            What::Condition(_) => Err(unexpected(node.first, expected)),
        }
    }

    fn primary(&mut self) -> Parsed<Node<'a, 'text>> {
        let first = self.take();
        let operand = match &first.kind {
            Kind::Symbol("(") => {
                self.deeper()?;
                let inner = self.any()?;
                if !self.take_symbol(")") {
                    let expected = match inner.what {
                        What::Condition(_) => "AND, OR or ')'",
                        What::Operand(_) => AN_OPERATOR,
                    };
                    return Err(unexpected(self.peek(), expected));
                }
                self.depth -= 1;
                return Ok(Node { first, what: inner.what });
            }
            Kind::Symbol("+" | "-") => self.signed(first)?,
            Kind::Number(text) => number(first, text, false)?,
            Kind::Text(text) => Operand::Text(text.clone()),
            Kind::Word(_) if first.is_word("TRUE") => Operand::Bool(true),
            Kind::Word(_) if first.is_word("FALSE") => Operand::Bool(false),
            Kind::Word(word) if !KEYWORDS.iter().any(|keyword| first.is_word(keyword)) => {
                Operand::Property((*word).to_owned())
            }
            _ if first.is_word("NULL") => {
                return Err(unexpected(first, "a property or a constant; compare with IS NULL"));
            }
            _ => return Err(unexpected(first, AN_OPERAND)),
        };
        Ok(Node { first, what: What::Operand(operand) })
    }

    /// A number behind one sign or more.
    fn signed(&mut self, first: &Token<'_>) -> Parsed<Operand> {
        let mut negative = first.is_symbol("-");
        loop {
            let token = self.take();
            match &token.kind {
                Kind::Symbol("+") => {}
                Kind::Symbol("-") => negative = !negative,
                Kind::Number(text) => return number(token, text, negative),
                _ => return Err(unexpected(token, "a number behind the sign")),
            }
        }
    }
}

fn number(token: &Token<'_>, text: &str, negative: bool) -> Parsed<Operand> {
    let signed = if negative { format!("-{text}") } else { text.to_owned() };
    let number = match Number::read(&signed) {
        // Digits only are a whole number, also where it is too large for one.
        Some(Number::Fraction(_)) if text.bytes().all(|byte| byte.is_ascii_digit()) => None,
        number => number,
    };
    let column = token.column;
    number.map(Operand::Number).ok_or_else(|| SqlError::Number { column, text: token.shown() })
}

/// What a constant compares by.
fn kind(operand: &Operand) -> Option<By> {
    match operand {
        Operand::Property(_) => None,
        Operand::Number(_) => Some(By::Number),
        Operand::Text(_) => Some(By::Text),
        Operand::Bool(_) => Some(By::Bool),
    }
}

fn need_number(token: &Token<'_>, operand: &Operand) -> Parsed<()> {
    match kind(operand) {
        None | Some(By::Number) => Ok(()),
        Some(By::Text | By::Bool) => Err(unexpected(token, A_NUMBER)),
    }
}

fn property(token: &Token<'_>, operand: Operand) -> Parsed<String> {
    match operand {
        Operand::Property(name) => Ok(name),
        _ => Err(unexpected(token, A_PROPERTY)),
    }
}
