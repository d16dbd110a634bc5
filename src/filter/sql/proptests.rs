//! Conditions against a second evaluation that is as plain as the rules are, and against noise.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

struct Message(BTreeMap<String, String>);

impl Properties for Message {
    fn property(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// A condition as a client writes it, and what is true, false or unknown of a message.
#[derive(Clone, Debug)]
enum Plain {
    /// Property, operator, small number.
    Number(String, &'static str, i32),
    Numbers(String, &'static str, String),
    Text(String, &'static str, String),
    Between(String, i32, i32, bool),
    Null(String, bool),
    In(String, Vec<String>, bool),
    Search(String, &'static str, String, bool),
    Bool(String, bool),
    And(Box<Plain>, Box<Plain>),
    Or(Box<Plain>, Box<Plain>),
    Not(Box<Plain>),
}

fn ordered(operator: &str, one: f64, other: f64) -> bool {
    match operator {
        "=" => one == other,
        "<>" => one != other,
        ">" => one > other,
        ">=" => one >= other,
        "<" => one < other,
        "<=" => one <= other,
        other => panic!("{other}"),
    }
}

impl Plain {
    fn written(&self) -> String {
        let not = |negated: &bool| if *negated { "not " } else { "" };
        let quoted = |text: &String| format!("'{}'", text.replace('\'', "''"));
        match self {
            Self::Number(name, operator, number) => format!("{name}{operator}{number}"),
            Self::Numbers(one, operator, other) => format!("{one} {operator} {other}"),
            Self::Text(name, operator, text) => format!("{name} {operator}{}", quoted(text)),
            Self::Between(name, low, high, negated) => {
                format!("{name} {}between {low} and {high}", not(negated))
            }
            Self::Null(name, negated) => format!("{name} is {}null", not(negated)),
            Self::In(name, texts, negated) => {
                let texts: Vec<_> = texts.iter().map(quoted).collect();
                format!("{name} {}In({})", not(negated), texts.join(","))
            }
            Self::Search(name, keyword, text, negated) => {
                format!("{name} {}{keyword} {}", not(negated), quoted(text))
            }
            Self::Bool(name, value) => format!("{name} = {value}"),
            Self::And(one, other) => format!("({}) And ({})", one.written(), other.written()),
            Self::Or(one, other) => format!("(({})\tOR ({}))", one.written(), other.written()),
            Self::Not(one) => format!("not ({})", one.written()),
        }
    }

    fn truth(&self, message: &Message) -> Option<bool> {
        let text = |name: &String| message.0.get(name).cloned();
        // Numbers here are small, so that an f64 holds them exactly.
        let number = |name: &String| text(name).and_then(|text| text.parse::<f64>().ok());
        match self {
            Self::Number(name, operator, other) => {
                number(name).map(|one| ordered(operator, one, f64::from(*other)))
            }
            Self::Numbers(one, operator, other) => {
                Some(ordered(operator, number(one)?, number(other)?))
            }
            Self::Text(name, operator, other) => {
                text(name).map(|one| (one == *other) == (*operator == "="))
            }
            Self::Between(name, low, high, negated) => number(name)
                .map(|one| (f64::from(*low) <= one && one <= f64::from(*high)) != *negated),
            Self::Null(name, negated) => Some(text(name).is_none() != *negated),
            Self::In(name, texts, negated) => {
                text(name).map(|one| texts.contains(&one) != *negated)
            }
            Self::Search(name, keyword, part, negated) => text(name).map(|one| {
                let found = match *keyword {
                    "contains" => one.contains(part.as_str()),
                    "startswith" => one.starts_with(part.as_str()),
                    _ => one.ends_with(part.as_str()),
                };
                found != *negated
            }),
            Self::Bool(name, value) => {
                text(name).map(|one| (one.to_lowercase() == "true") == *value)
            }
            Self::And(one, other) => match (one.truth(message), other.truth(message)) {
                (Some(true), Some(true)) => Some(true),
                (Some(false), _) | (_, Some(false)) => Some(false),
                _ => None,
            },
            Self::Or(one, other) => match (one.truth(message), other.truth(message)) {
                (Some(false), Some(false)) => Some(false),
                (Some(true), _) | (_, Some(true)) => Some(true),
                _ => None,
            },
            Self::Not(one) => one.truth(message).map(|truth| !truth),
        }
    }
}

fn name() -> impl Strategy<Value = String> {
    "[abc]|TAGS".prop_map(|name| name)
}

fn text() -> impl Strategy<Value = String> {
    "[x'-]{1,2}|true|-?[0-3](\\.5)?"
}

fn plain() -> impl Strategy<Value = Plain> {
    let equal = prop::sample::select(vec!["=", "<>"]);
    let order = prop::sample::select(vec!["=", "<>", ">", ">=", "<", "<="]);
    let orders_only = prop::sample::select(vec![">", ">=", "<", "<="]);
    let search = prop::sample::select(vec!["contains", "startswith", "endswith"]);
    let leaf = prop_oneof![
        (name(), order, -3..4).prop_map(|(name, op, number)| Plain::Number(name, op, number)),
        (name(), orders_only, name()).prop_map(|(one, op, other)| Plain::Numbers(one, op, other)),
        (name(), equal, text()).prop_map(|(name, op, text)| Plain::Text(name, op, text)),
        (name(), -3..4, 0..4, any::<bool>()).prop_map(|(name, low, more, not)| Plain::Between(
            name,
            low,
            low + more,
            not
        )),
        (name(), any::<bool>()).prop_map(|(name, not)| Plain::Null(name, not)),
        (name(), prop::collection::vec(text(), 1..4), any::<bool>())
            .prop_map(|(name, texts, not)| Plain::In(name, texts, not)),
        (name(), search, text(), any::<bool>())
            .prop_map(|(name, search, text, not)| Plain::Search(name, search, text, not)),
        (name(), any::<bool>()).prop_map(|(name, value)| Plain::Bool(name, value)),
    ];
    leaf.prop_recursive(4, 24, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Plain::And(a.into(), b.into())),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Plain::Or(a.into(), b.into())),
            inner.prop_map(|one| Plain::Not(one.into())),
        ]
    })
}

proptest! {
    #[test]
    fn conditions_mean_what_the_rules_say(
        plain in plain(),
        properties in prop::collection::btree_map(name(), text(), 0..4),
    ) {
        let message = Message(properties);
        let filter = SqlFilter::parse(&plain.written()).unwrap();
        let truth = plain.truth(&message);
        prop_assert_eq!(filter.predicate.evaluate(&message), truth, "{}", filter.normal());
        let again = SqlFilter::parse(&filter.normal()).unwrap();
        prop_assert_eq!(again.normal(), filter.normal());
        prop_assert_eq!(again.predicate.evaluate(&message), truth);
    }

    /// Whatever a client writes, it is read or refused, and what is read has one normal form.
    #[test]
    fn noise_is_refused_and_never_panics(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "a", "and", "OR", "not", "(", ")", "in", "between", "is", "null", "true", "'x'",
                "''", "'", "1", "2.5e3", "-", "+", "=", "<>", "<", ",", "contains", "--", "/*",
                "*/", "\n", "\u{e4}", ".", "1l",
            ]),
            0..12,
        ),
        spaced in any::<bool>(),
    ) {
        let text = pieces.join(if spaced { " " } else { "" });
        match SqlFilter::parse(&text) {
            Ok(filter) => {
                let normal = filter.normal();
                prop_assert_eq!(SqlFilter::parse(&normal).unwrap().normal(), normal);
            }
            Err(error) => prop_assert!(error.to_string().starts_with("the SQL filter"), "{}", error),
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,40}") {
        drop(SqlFilter::parse(&text));
    }
}
