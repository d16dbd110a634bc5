use std::collections::BTreeMap;

use super::*;

struct Message(BTreeMap<&'static str, &'static str>);

impl Properties for Message {
    fn property(&self, name: &str) -> Option<&str> {
        self.0.get(name).copied()
    }
}

fn normal(expression: &str) -> String {
    SqlFilter::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}")).normal()
}

fn refusal(expression: &str) -> SqlError {
    match SqlFilter::parse(expression) {
        Ok(filter) => panic!("{expression} was read as {}", filter.normal()),
        Err(error) => error,
    }
}

#[test]
fn conditions_are_true_of_what_they_say() {
    let message = Message(BTreeMap::from([
        ("TAGS", "a"),
        ("n", "5"),
        ("f", "-1.5e1"),
        ("flag", "True"),
        ("text", "it's"),
        ("empty", ""),
        ("same", "5"),
    ]));
    for (expression, truth) in [
        ("TAGS = 'a'", true),
        ("tags = 'a'", false),
        ("n = 5", true),
        ("n = 5L and n = 5.0 AND 5 = n", true),
        ("n = '5'", true),
        ("n = '5.0'", false),
        ("n > 4 and n >= 5 and n < 5.5 and n <= 5", true),
        ("n > 5 or n < 5", false),
        ("f = -15 and f < n", true),
        ("n = same and n >= same", true),
        ("text > 1 or not text > 1", false),
        ("n <> 4 and text <> 'x'", true),
        ("gone <> 'x' or not gone <> 'x' or gone = gone", false),
        ("gone IS NULL and n is not null and empty is not null", true),
        ("n IS NULL", false),
        ("n between 5 and 6 and n between same and 5", true),
        ("n not between 6 and 7", true),
        ("n not between 1 and 7 or gone not between 1 and 2", false),
        ("n between 6 and gone", false),
        ("n not between 6 and gone", true),
        ("TAGS in ('b', 'a')", true),
        ("TAGS not in ('b')", true),
        ("gone in ('b') or gone not in ('b')", false),
        ("text = 'it''s' and text contains '''' and text startswith 'it'", true),
        ("text endswith '''s' and text not contains 'x' and text not startswith 's'", true),
        ("gone contains 'x' or gone not contains 'x'", false),
        ("flag = true and flag <> FALSE and TRUE = flag", true),
        ("n = FALSE", true),
        ("gone = TRUE or gone = FALSE", false),
        ("TRUE", true),
        ("FALSE or not FALSE", true),
        ("gone = 1 or n = 5", true),
        ("gone = 1 and n = 5", false),
        ("not (gone = 1 and n = 4)", true),
        ("not (gone = 1 or n = 4)", false),
        ("n = 4 and n = 4 or n = 5", true),
        ("n = 5 or n = 4 and n = 4", true),
        ("(n = 5 or n = 4) and n = 4", false),
        ("((n)) = (+5) and n = + - -5 -- a comment\n and /* one\n more */ n = 5", true),
        ("not n = 4", true),
        ("'a' = 'a' and 1 < 2", true),
    ] {
        let filter = SqlFilter::parse(expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
        assert_eq!(filter.matches(&message), truth, "{expression}");
        let again = SqlFilter::parse(&filter.normal()).unwrap();
        assert_eq!(again, filter, "{expression}");
        assert_eq!(again.matches(&message), truth, "{expression}");
    }
}

#[test]
fn one_condition_has_one_normal_form() {
    for (written, expected) in [
        (" a=1 ", "a = 1"),
        ("A>=-1.50 and B<>'x'", "A >= -1.5 AND B <> 'x'"),
        ("(((a = 1)))", "a = 1"),
        ("(a=1 and b=2) and c=3", "a = 1 AND b = 2 AND c = 3"),
        ("a=1 and (b=2 or c=3)", "a = 1 AND (b = 2 OR c = 3)"),
        ("(a=1 and b=2) or c=3", "a = 1 AND b = 2 OR c = 3"),
        ("not(a=1)", "NOT a = 1"),
        ("NOT (not a=1)", "a = 1"),
        ("not (a=1 or b=2)", "NOT (a = 1 OR b = 2)"),
        ("a in('y','x' , 'y')", "a IN ('x', 'y')"),
        ("a not between 1 and 1e300", "a NOT BETWEEN 1 AND 1e300"),
        ("a is  Not null", "a IS NOT NULL"),
        ("a startswith 'it''s'", "a STARTSWITH 'it''s'"),
        ("a = true", "a = TRUE"),
        ("a = 007L", "a = 7"),
        ("a = -9223372036854775808", "a = -9223372036854775808"),
    ] {
        assert_eq!(normal(written), expected);
        assert_eq!(normal(expected), expected);
    }
}

#[test]
fn a_refusal_says_where_and_what_was_expected() {
    let text = |expression: &str| refusal(expression).to_string();
    assert_eq!(
        text("a > 'x'"),
        "the SQL filter expression has the text 'x' at column 5; expected is a property or a number"
    );
    assert_eq!(
        text("a"),
        "the SQL filter expression has its end at column 2; expected is =, <>, >, >=, <, <=, \
         BETWEEN, IN, IS, CONTAINS, STARTSWITH or ENDSWITH"
    );
    for (expression, column) in [
        ("a = ", 5),
        ("a = 1 b", 7),
        ("a = 1 AND", 10),
        ("a AND b = 1", 1),
        ("a = 1 AND b", 12),
        ("(a = 1", 7),
        ("a = 1)", 6),
        ("(a = 1) = TRUE", 9),
        ("a = (b = 1)", 5),
        ("a = NULL", 5),
        ("a < TRUE", 5),
        ("'x' < a", 1),
        ("1 = 'x'", 5),
        ("TRUE = 1", 8),
        ("1 IS NULL", 1),
        ("a IS 1", 6),
        ("a IN (1)", 7),
        ("a IN ()", 7),
        ("a IN ('x' 'y')", 11),
        ("a NOT = 1", 7),
        ("a BETWEEN 1, 2", 12),
        ("a BETWEEN 'x' AND 'y'", 11),
        ("a CONTAINS b", 12),
        ("a CONTAINS ''", 12),
        ("a LIKE 'x'", 3),
        ("a + 1 = 2", 3),
        ("a = -b", 6),
        ("a < 1 < 2", 7),
        ("a != 1", 3),
        ("a = 1abc", 5),
        ("a = 1e", 5),
        ("a = .", 5),
        ("\u{e4} = 1", 1),
        ("a = '\u{e4}' ; b", 9),
        ("NOT", 4),
        ("and = 1", 1),
    ] {
        match refusal(expression) {
            SqlError::Unexpected { column: found, .. } => assert_eq!(found, column, "{expression}"),
            other => panic!("{expression}: {other}"),
        }
    }
    assert_eq!(refusal(" \n"), SqlError::Blank);
    assert_eq!(refusal("a = 'x"), SqlError::Unended { column: 5, what: "a text" });
    assert_eq!(refusal("a /* = 1"), SqlError::Unended { column: 3, what: "a comment" });
    let low = |low: &str, high: &str| SqlError::Bounds {
        column: 11,
        low: low.to_owned(),
        high: high.to_owned(),
    };
    assert_eq!(refusal("a BETWEEN 2 AND 1.5"), low("2", "1.5"));
    for number in ["9223372036854775808", "1e999"] {
        let found = refusal(&format!("a = {number}"));
        assert_eq!(found, SqlError::Number { column: 5, text: number.to_owned() });
    }
}

#[test]
fn length_and_depth_are_bounded() {
    let long = format!("a = '{}'", "x".repeat(SQL_MAX));
    assert_eq!(refusal(&long), SqlError::TooLong { len: SQL_MAX + 6, max: SQL_MAX });
    let most = format!("a = '{}'", "x".repeat(SQL_MAX - 6));
    assert_eq!(normal(&most), most);
    // In its normal form it is longer.
    let grows = "a=1 or ".repeat(1100) + "a=1";
    assert!(grows.len() < SQL_MAX && matches!(refusal(&grows), SqlError::TooLong { .. }));
    for (open, close) in [("(", ")"), ("NOT ", "")] {
        let nested = |depth| format!("{}a = 1{}", open.repeat(depth), close.repeat(depth));
        assert!(SqlFilter::parse(&nested(DEPTH_MAX)).is_ok());
        let column = (DEPTH_MAX + 1) * open.len() + 1;
        assert_eq!(refusal(&nested(DEPTH_MAX + 1)), SqlError::TooDeep { column, max: DEPTH_MAX });
        assert!(SqlFilter::parse(&nested(3000)).is_err());
    }
    let wide = format!("{}b = 1", "a = 1 AND ".repeat(800));
    assert_eq!(normal(&wide), wide, "width is not depth");
}
