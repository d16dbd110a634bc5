//! Which messages a consumer wants.
//!
//! What it is: filter expressions, read once into a form whose evaluation cannot fail.
//! Promises: one meaning has one normal form, so that replicas and members compare texts; the
//! cheap test by hash never says no to a message that matches.
//! Never: a queue, a subscription, or a decision to skip; those are `broker`'s.

mod sql;
mod tags;

pub use sql::{SQL_MAX, SqlError, SqlFilter};
pub use tags::{EXPRESSION_MAX, FilterError, TagFilter};

use crate::message::StoredProperties;

/// What the normal text of an SQL filter begins with, and that of no other.
const SQL_PREFIX: &str = "sql:";
/// The name under which a message's tag is stored.
const TAGS: &str = "TAGS";

/// Where a filter looks a message's properties up, by their stored names.
pub trait Properties {
    fn property(&self, name: &str) -> Option<&str>;
}

impl Properties for StoredProperties {
    fn property(&self, name: &str) -> Option<&str> {
        self.get(name)
    }
}

/// A filter of either kind, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    All,
    Tags(TagFilter),
    Sql(SqlFilter),
}

impl Filter {
    /// Reads a tag expression as clients write it.
    pub fn tags(expression: &str) -> Result<Self, FilterError> {
        let filter = TagFilter::parse(expression)?;
        Ok(if filter.is_all() { Self::All } else { Self::Tags(filter) })
    }

    /// Reads an SQL expression as clients write it. A blank one is refused: it must never mean
    /// everything.
    pub fn sql(expression: &str) -> Result<Self, FilterError> {
        Ok(Self::Sql(SqlFilter::parse(expression)?))
    }

    /// Reads what [`Self::normal`] wrote.
    pub fn parse_normal(text: &str) -> Result<Self, FilterError> {
        match text.strip_prefix(SQL_PREFIX) {
            Some(expression) => Self::sql(expression),
            None => Self::tags(text),
        }
    }

    /// The one text of this filter, which parses to it again.
    pub fn normal(&self) -> String {
        match self {
            Self::All => TagFilter::ALL.normal(),
            Self::Tags(filter) => {
                let text = filter.normal();
                // An empty alternative means nothing, and tells such tags from SQL.
                if text.starts_with(SQL_PREFIX) { format!("||{text}") } else { text }
            }
            Self::Sql(filter) => format!("{SQL_PREFIX}{}", filter.normal()),
        }
    }

    pub fn is_all(&self) -> bool {
        *self == Self::All
    }

    /// Whether a message with a tag of this hash can match. No is certain; yes is to be checked
    /// with [`Self::matches`], unless [`Self::is_all`].
    pub fn may_match(&self, tag_hash: u32) -> bool {
        match self {
            Self::All | Self::Sql(_) => true,
            Self::Tags(filter) => filter.may_match(tag_hash),
        }
    }

    pub fn matches(&self, properties: &impl Properties) -> bool {
        match self {
            Self::All => true,
            Self::Tags(filter) => filter.matches(properties.property(TAGS)),
            Self::Sql(filter) => filter.matches(properties),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tag(&'static str);

    impl Properties for Tag {
        fn property(&self, name: &str) -> Option<&str> {
            (name == TAGS).then_some(self.0)
        }
    }

    #[test]
    fn a_normal_text_says_which_kind_it_is() {
        for text in ["*", "a||b", "sql:a = 1", "||sql:a||sqlx"] {
            let filter = Filter::parse_normal(text).unwrap();
            assert_eq!(filter.normal(), text);
        }
        let odd = Filter::tags("sql:a").unwrap();
        assert!(matches!(odd, Filter::Tags(_)));
        assert_eq!(Filter::parse_normal(&odd.normal()).unwrap(), odd);
        assert!(odd.matches(&Tag("sql:a")));
        assert!(Filter::parse_normal("sql:").is_err(), "blank SQL never means everything");
        assert!(Filter::parse_normal("").unwrap().is_all());
    }

    #[test]
    fn sql_sees_the_tag_too() {
        let filter = Filter::sql("TAGS in ('a', 'b')").unwrap();
        assert!(filter.may_match(7) && filter.matches(&Tag("a")) && !filter.matches(&Tag("c")));
        let tags = Filter::tags("a").unwrap();
        assert!(tags.matches(&Tag("a")) && !tags.matches(&Tag("b")));
    }
}
