//! What a condition is, and what it says of a message.

use std::cmp::Ordering;

use super::value::Number;
use crate::filter::Properties;

/// True, false, or unknown.
pub(super) type Truth = Option<bool>;

/// A condition. Its depth is bounded by the parser's.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Predicate {
    Constant(bool),
    /// At least two, none of which is itself of this kind; so below.
    All(Vec<Predicate>),
    Any(Vec<Predicate>),
    /// Not of one of its own kind.
    Not(Box<Predicate>),
    Compare {
        left: Operand,
        comparison: Comparison,
        right: Operand,
        by: By,
    },
    Between {
        value: Operand,
        low: Operand,
        high: Operand,
        negated: bool,
    },
    IsNull {
        property: String,
        negated: bool,
    },
    /// The texts are sorted, without repeats, and at least one.
    In {
        property: String,
        texts: Vec<String>,
        negated: bool,
    },
    Search {
        property: String,
        search: Search,
        /// Never empty.
        text: String,
        negated: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    Property(String),
    Number(Number),
    Text(String),
    Bool(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Greater,
    AtLeast,
    Less,
    AtMost,
}

impl Comparison {
    pub(super) const ALL: [Self; 6] =
        [Self::Equal, Self::Unequal, Self::Greater, Self::AtLeast, Self::Less, Self::AtMost];

    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Unequal => "<>",
            Self::Greater => ">",
            Self::AtLeast => ">=",
            Self::Less => "<",
            Self::AtMost => "<=",
        }
    }

    /// Whether it asks for more than equal or not.
    pub(super) fn orders(self) -> bool {
        !matches!(self, Self::Equal | Self::Unequal)
    }

    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Unequal => order.is_ne(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
        }
    }
}

/// What both sides of a comparison are read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Text,
    Number,
    Bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Contains,
    StartsWith,
    EndsWith,
}

impl Search {
    pub(super) const ALL: [Self; 3] = [Self::Contains, Self::StartsWith, Self::EndsWith];

    pub(super) fn keyword(self) -> &'static str {
        match self {
            Self::Contains => "CONTAINS",
            Self::StartsWith => "STARTSWITH",
            Self::EndsWith => "ENDSWITH",
        }
    }
}

impl Operand {
    fn text<'a>(&'a self, properties: &'a impl Properties) -> Option<&'a str> {
        match self {
            Self::Property(name) => properties.property(name),
            Self::Text(text) => Some(text),
            Self::Number(_) | Self::Bool(_) => None,
        }
    }

    fn number(&self, properties: &impl Properties) -> Option<Number> {
        match self {
            Self::Property(name) => properties.property(name).and_then(Number::read),
            Self::Number(number) => Some(*number),
            Self::Text(_) | Self::Bool(_) => None,
        }
    }

    fn bool(&self, properties: &impl Properties) -> Truth {
        match self {
            // As Java reads it: everything else is false.
            Self::Property(name) => {
                properties.property(name).map(|text| text.eq_ignore_ascii_case("true"))
            }
            Self::Bool(value) => Some(*value),
            Self::Number(_) | Self::Text(_) => None,
        }
    }
}

impl Predicate {
    pub(super) fn evaluate(&self, properties: &impl Properties) -> Truth {
        match self {
            Self::Constant(value) => Some(*value),
            Self::All(parts) => junction(parts, false, properties),
            Self::Any(parts) => junction(parts, true, properties),
            Self::Not(part) => part.evaluate(properties).map(|truth| !truth),
            Self::Compare { left, comparison, right, by } => {
                let order = match by {
                    By::Text => left.text(properties)?.cmp(right.text(properties)?),
                    By::Bool => left.bool(properties)?.cmp(&right.bool(properties)?),
                    By::Number => compare(left, right, properties)?,
                };
                Some(comparison.holds(order))
            }
            Self::Between { value, low, high, negated } => {
                let above = compare(value, low, properties).map(Ordering::is_ge);
                let below = compare(value, high, properties).map(Ordering::is_le);
                both(above, below).map(|within| within != *negated)
            }
            Self::IsNull { property, negated } => {
                Some(properties.property(property).is_none() != *negated)
            }
            Self::In { property, texts, negated } => {
                let text = properties.property(property)?;
                let found = texts.binary_search_by(|own| own.as_str().cmp(text)).is_ok();
                Some(found != *negated)
            }
            Self::Search { property, search, text, negated } => {
                let found = properties.property(property)?;
                let found = match search {
                    Search::Contains => found.contains(text),
                    Search::StartsWith => found.starts_with(text),
                    Search::EndsWith => found.ends_with(text),
                };
                Some(found != *negated)
            }
        }
    }
}

fn compare(left: &Operand, right: &Operand, properties: &impl Properties) -> Option<Ordering> {
    Some(left.number(properties)?.compare(right.number(properties)?))
}

/// False decides; else what is unknown keeps the whole unknown.
fn both(one: Truth, other: Truth) -> Truth {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

/// AND, which false decides, or OR, which true decides.
fn junction(parts: &[Predicate], decisive: bool, properties: &impl Properties) -> Truth {
    let mut whole = Some(!decisive);
    for part in parts {
        match part.evaluate(properties) {
            Some(truth) if truth == decisive => return Some(decisive),
            Some(_) => {}
            None => whole = None,
        }
    }
    whole
}
