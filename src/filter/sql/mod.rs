//! SQL92 conditions over a message's properties, as RocketMQ's clients write them.
//!
//! ```text
//! condition   := and (OR and)*            and := not (AND not)*
//! not         := NOT not | test | '(' condition ')' | TRUE | FALSE
//! test        := operand (= | <>) operand             texts, numbers or booleans
//!              | operand (> | >= | < | <=) operand    numbers
//!              | operand [NOT] BETWEEN operand AND operand
//!              | property IS [NOT] NULL
//!              | property [NOT] IN ('text', ...)
//!              | property [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'text'
//! operand     := property | [+ | -]* number | 'text' | TRUE | FALSE | '(' operand ')'
//! ```
//!
//! Keywords are known in any case, property names are not; `''` in a text is a quote, `-- ...` and
//! `/* ... */` are comments. Properties are texts: next to a number they are read as a number, next
//! to TRUE or FALSE as a boolean (`true` in any case; every other text is false).
//! What a missing property is compared with is *unknown*, as is a number compared with a text that
//! is none; a message matches where the whole is true, so neither `a <> 'x'` nor `NOT a = 'x'`
//! matches one without `a`. Where RocketMQ's `NOT` takes only what is in parentheses, here it takes
//! the test behind it; what RocketMQ's takes means the same here.

mod eval;
mod lex;
mod normal;
mod parse;
#[cfg(test)]
mod proptests;
#[cfg(test)]
mod tests;
mod value;

use self::eval::Predicate;
use super::Properties;

/// Longest expression, in bytes; in its normal form too, which is replicated state.
pub const SQL_MAX: usize = 8 << 10;
/// Parentheses and NOTs within each other, so that nothing that walks an expression runs out of
/// stack.
const DEPTH_MAX: usize = 64;

/// Why a text is no condition. Columns count characters from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    #[error("the SQL filter expression is blank; leave the filter out, or write a condition")]
    Blank,
    #[error("the SQL filter expression has {len} bytes; at most {max} are allowed")]
    TooLong { len: usize, max: usize },
    #[error("the SQL filter expression has {found} at column {column}; expected is {expected}")]
    Unexpected { column: usize, found: String, expected: &'static str },
    #[error("the SQL filter expression has {what} at column {column} that never ends")]
    Unended { column: usize, what: &'static str },
    #[error(
        "the SQL filter expression has the number {text} at column {column}; whole ones go from \
         -2^63 to 2^63-1, others up to 1.7e308"
    )]
    Number { column: usize, text: String },
    #[error(
        "the SQL filter expression has BETWEEN {low} AND {high} at column {column}, which nothing \
         is; write the lower bound first"
    )]
    Bounds { column: usize, low: String, high: String },
    #[error(
        "the SQL filter expression is nested deeper than {max} parentheses and NOTs at column \
         {column}"
    )]
    TooDeep { column: usize, max: usize },
}

/// A condition that was read once. Evaluating it cannot fail.
#[derive(Clone, Debug, PartialEq)]
pub struct SqlFilter {
    predicate: Predicate,
}

impl SqlFilter {
    pub fn parse(expression: &str) -> Result<Self, SqlError> {
        if expression.len() > SQL_MAX {
            return Err(SqlError::TooLong { len: expression.len(), max: SQL_MAX });
        }
        if expression.trim().is_empty() {
            return Err(SqlError::Blank);
        }
        let filter = Self { predicate: parse::parse(expression)? };
        // White space and numbers may take more bytes in it than the client wrote.
        let len = filter.normal().len();
        if len > SQL_MAX {
            return Err(SqlError::TooLong { len, max: SQL_MAX });
        }
        Ok(filter)
    }

    /// The one text of this filter, which parses to it again.
    pub fn normal(&self) -> String {
        self.predicate.to_string()
    }

    /// Whether the condition is true of the message; false and unknown are no.
    pub fn matches(&self, properties: &impl Properties) -> bool {
        self.predicate.evaluate(properties) == Some(true)
    }
}
