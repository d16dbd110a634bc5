//! Tag lists: `a || b`, or `*` for everything.

use crate::message::tag_hash;

/// Longest expression, in bytes. Expressions of live members are replicated state.
pub const EXPRESSION_MAX: usize = 4096;

const ALL: &str = "*";
const OR: &str = "||";

/// Why a text is no filter. Positions in a tag list count bytes from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("the filter expression has {len} bytes; at most {max} are allowed")]
    TooLong { len: usize, max: usize },
    #[error("the filter expression {expression:?} names no tag; write *, or tags with || between")]
    NoTag { expression: String },
    #[error("the filter expression has a single | at byte {position}; tags are separated by ||")]
    SinglePipe { position: usize },
    #[error("the filter expression has {found:?} at byte {position}, which no tag can contain")]
    ControlCharacter { position: usize, found: char },
    #[error(transparent)]
    Sql(#[from] super::SqlError),
}

/// Which tags a consumer wants. Two filters are equal when they want the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagFilter {
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    /// Both sorted, without repetition; never empty.
    Tags {
        tags: Vec<String>,
        hashes: Vec<u32>,
    },
}

impl TagFilter {
    pub const ALL: Self = Self { wanted: Wanted::All };

    /// Reads an expression as clients write it. Nothing, or a `*` anywhere, is everything;
    /// white space around tags and empty alternatives mean nothing.
    pub fn parse(expression: &str) -> Result<Self, FilterError> {
        if expression.len() > EXPRESSION_MAX {
            return Err(FilterError::TooLong { len: expression.len(), max: EXPRESSION_MAX });
        }
        if expression.trim().is_empty() {
            return Ok(Self::ALL);
        }
        let mut tags = Vec::new();
        let mut position = 0;
        for alternative in expression.split(OR) {
            let tag = alternative.trim();
            let start = position + (alternative.len() - alternative.trim_start().len());
            check(tag, start)?;
            if !tag.is_empty() {
                tags.push(tag.to_owned());
            }
            position += alternative.len() + OR.len();
        }
        if tags.is_empty() {
            return Err(FilterError::NoTag { expression: expression.to_owned() });
        }
        if tags.iter().any(|tag| tag == ALL) {
            return Ok(Self::ALL);
        }
        tags.sort();
        tags.dedup();
        let mut hashes: Vec<u32> = tags.iter().map(|tag| tag_hash(Some(tag))).collect();
        hashes.sort_unstable();
        hashes.dedup();
        Ok(Self { wanted: Wanted::Tags { tags, hashes } })
    }

    pub fn is_all(&self) -> bool {
        self.wanted == Wanted::All
    }

    /// The one text of this filter, which parses to it again.
    pub fn normal(&self) -> String {
        match &self.wanted {
            Wanted::All => ALL.to_owned(),
            Wanted::Tags { tags, .. } => tags.join(OR),
        }
    }

    /// Whether a message with a tag of this hash can match. No is certain; yes is to be checked
    /// with [`TagFilter::matches`], since different tags share hashes.
    pub fn may_match(&self, tag_hash: u32) -> bool {
        match &self.wanted {
            Wanted::All => true,
            Wanted::Tags { hashes, .. } => hashes.binary_search(&tag_hash).is_ok(),
        }
    }

    /// A message without a tag, or with an empty one, matches only `*`.
    pub fn matches(&self, tag: Option<&str>) -> bool {
        match &self.wanted {
            Wanted::All => true,
            Wanted::Tags { tags, .. } => {
                let find = |tag| tags.binary_search_by(|own| own.as_str().cmp(tag)).is_ok();
                tag.is_some_and(find)
            }
        }
    }
}

/// Refuses what would silently match nothing: a sent tag has neither pipes nor control characters.
fn check(tag: &str, start: usize) -> Result<(), FilterError> {
    for (at, found) in tag.char_indices() {
        let position = start + at;
        if found == '|' {
            return Err(FilterError::SinglePipe { position });
        }
        if found.is_control() {
            return Err(FilterError::ControlCharacter { position, found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(expression: &str) -> String {
        TagFilter::parse(expression).unwrap().normal()
    }

    #[test]
    fn one_meaning_has_one_normal_form() {
        for everything in ["", "*", " ", " * ", "* || *", "a || *", "*||"] {
            assert_eq!(normal(everything), "*");
        }
        for both in ["a||b", "b || a", " a||||b ", "||b||a||a", "a\t||\nb"] {
            assert_eq!(normal(both), "a||b");
        }
        assert_eq!(normal("a b"), "a b", "white space within a tag belongs to it");
    }

    #[test]
    fn matching_is_exact() {
        let filter = TagFilter::parse("TagA || Aa").unwrap();
        assert!(filter.matches(Some("TagA")));
        assert!(!filter.matches(Some("taga")));
        assert!(!filter.matches(Some("Tag")));
        assert!(!filter.matches(Some("")));
        assert!(!filter.matches(None));
        // Java cannot tell "Aa" from "BB" by hash: the hash says maybe, the tag says no.
        assert!(filter.may_match(tag_hash(Some("BB"))));
        assert!(!filter.matches(Some("BB")));
        assert!(!filter.may_match(tag_hash(None)));

        let all = TagFilter::parse("*").unwrap();
        assert!(all.is_all() && all.matches(None) && all.matches(Some("x")) && all.may_match(7));
    }

    #[test]
    fn a_refusal_says_where() {
        let refusal = |expression: &str| TagFilter::parse(expression).unwrap_err();
        assert_eq!(refusal("a||b|c"), FilterError::SinglePipe { position: 4 });
        assert_eq!(refusal("  |"), FilterError::SinglePipe { position: 2 });
        assert_eq!(
            refusal("a|| \u{e4}\u{7}"),
            FilterError::ControlCharacter { position: 6, found: '\u{7}' }
        );
        assert_eq!(refusal(" || "), FilterError::NoTag { expression: " || ".to_owned() });
        let long = "a".repeat(EXPRESSION_MAX + 1);
        assert_eq!(refusal(&long), FilterError::TooLong { len: 4097, max: 4096 });
        assert!(TagFilter::parse(&long[1..]).is_ok());
    }

    proptest! {
        /// Members of a group that want the same must be seen to want the same (rule R4).
        #[test]
        fn the_normal_form_is_a_fixed_point(expression in "[ab*| \u{7}\u{e4}]{0,12}") {
            if let Ok(filter) = TagFilter::parse(&expression) {
                prop_assert_eq!(TagFilter::parse(&filter.normal()).unwrap(), filter);
            }
        }

        /// Skipping by hash is safe only if the hash never says no to a tag that matches.
        #[test]
        fn the_hash_never_denies_a_match(expression in "[abAB|]{0,12}", tag in "[abAB]{0,2}") {
            if let Ok(filter) = TagFilter::parse(&expression) {
                let matches = filter.matches(Some(&tag));
                prop_assert!(!matches || filter.may_match(tag_hash(Some(&tag))));
            }
        }
    }
}
