//! The one text of a condition: keywords in capitals, single spaces, no parentheses but those that
//! it needs.

use std::fmt;

use super::eval::{Operand, Predicate};

impl fmt::Display for Predicate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(value) => out.write_str(boolean(*value)),
            Self::All(parts) => write_joined(out, parts, " AND ", |out, part| match part {
                Self::Any(_) => write!(out, "({part})"),
                _ => write!(out, "{part}"),
            }),
            Self::Any(parts) => write_joined(out, parts, " OR ", |out, part| write!(out, "{part}")),
            Self::Not(part) => match **part {
                Self::All(_) | Self::Any(_) => write!(out, "NOT ({part})"),
                _ => write!(out, "NOT {part}"),
            },
            Self::Compare { left, comparison, right, by: _ } => {
                write!(out, "{left} {} {right}", comparison.symbol())
            }
            Self::Between { value, low, high, negated } => {
                write!(out, "{value} {}BETWEEN {low} AND {high}", not(*negated))
            }
            Self::IsNull { property, negated } => {
                write!(out, "{property} IS {}NULL", not(*negated))
            }
            Self::In { property, texts, negated } => {
                write!(out, "{property} {}IN (", not(*negated))?;
                write_joined(out, texts, ", ", |out, text| write_text(out, text))?;
                out.write_str(")")
            }
            Self::Search { property, search, text, negated } => {
                write!(out, "{property} {}{} ", not(*negated), search.keyword())?;
                write_text(out, text)
            }
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Property(name) => out.write_str(name),
            Self::Number(number) => write!(out, "{number}"),
            Self::Text(text) => write_text(out, text),
            Self::Bool(value) => out.write_str(boolean(*value)),
        }
    }
}

fn write_joined<T>(
    out: &mut fmt::Formatter<'_>,
    parts: &[T],
    between: &str,
    write: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (count, part) in parts.iter().enumerate() {
        if count > 0 {
            out.write_str(between)?;
        }
        write(out, part)?;
    }
    Ok(())
}

fn write_text(out: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    write!(out, "'{}'", text.replace('\'', "''"))
}

fn boolean(value: bool) -> &'static str {
    if value { "TRUE" } else { "FALSE" }
}

fn not(negated: bool) -> &'static str {
    if negated { "NOT " } else { "" }
}
