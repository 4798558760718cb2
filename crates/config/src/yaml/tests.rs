use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn value(text: &str) -> Value {
    parse(text).unwrap().to_value()
}

/// The errors of a text, without columns, which have tests of their own.
fn failure(text: &str) -> String {
    let mut errors = parse(text).unwrap_err();
    errors.0.iter_mut().for_each(|error| error.column = None);
    errors.to_string()
}

#[test]
fn scalars_mean_what_the_old_documentation_describes() {
    for (text, expected) in [
        ("true", json!(true)),
        ("grue", json!("grue")),
        ("0.0", json!(0.0)),
        ("0.0.", json!("0.0.")),
        ("foo: bar", json!({"foo": "bar"})),
        ("foo:bar", json!("foo:bar")),
        ("foo bar", json!("foo bar")),
        ("1e-3", json!(1e-3)),
        ("1E5", json!(1e5)),
        (".5", json!(0.5)),
        ("5.", json!(5.0)),
        ("-3", json!(-3)),
        ("+7", json!(7)),
        ("007", json!(7)),
        ("0x1f", json!(31)),
        ("0o17", json!(15)),
        ("0x", json!("0x")),
        ("0x-1", json!("0x-1")),
        (
            "18446744073709551615",
            json!(18_446_744_073_709_551_615_u64),
        ),
        ("yes", json!("yes")),
        ("off", json!("off")),
        ("12:30:45", json!("12:30:45")),
        ("1_000", json!("1_000")),
        ("2020-01-01", json!("2020-01-01")),
        ("1.2.3", json!("1.2.3")),
        ("e5", json!("e5")),
        ("1e", json!("1e")),
        ("-", json!([null])),
        ("~", json!(null)),
        ("", json!(null)),
        ("# only a comment", json!(null)),
        ("'5'", json!("5")),
        ("!!str 5", json!("5")),
        ("! 5", json!("5")),
        ("!!float 5", json!(5)),
        ("|\n  a\n  b\n", json!("a\nb\n")),
        ("\"\\ud83d\\ude00\"", json!("\u{1f600}")),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
}

#[test]
fn every_member_knows_the_line_of_its_key() {
    let node = parse("a: 1\nb:\n  c:\n    - x\n    - y: 2\n").unwrap();
    let line = |path: &str| node.find(path).unwrap().at.clone().unwrap();
    assert_eq!(line("a").line, 1);
    assert_eq!((line("b").line, line("b").column), (2, 1));
    assert_eq!((line("b.c").line, line("b.c").column), (3, 3));
    let Tree::List(items) = &node.find("b.c").unwrap().tree else {
        panic!("a list")
    };
    assert_eq!(items[0].at.as_ref().unwrap().line, 4);
    assert_eq!(items[1].get("y").unwrap().at.as_ref().unwrap().line, 5);
}

#[test]
fn anchors_aliases_and_merge_keys_work() {
    assert_eq!(
        value("base: &b {x: 1, y: 2}\nuse: *b\nover:\n  <<: *b\n  y: 3\n"),
        json!({"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 2}, "over": {"x": 1, "y": 3}})
    );
    assert_eq!(
        value("a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc: {<<: [*a, *b]}\n")["c"],
        json!({"x": 1, "z": 3})
    );
    assert_eq!(value("'<<': 1"), json!({"<<": 1}));
    assert_eq!(
        value("&k key: 1\nother: *k\n"),
        json!({"key": 1, "other": "key"})
    );
}

#[test]
fn json_is_read_too() {
    assert_eq!(
        value("{\"a\": [1, 2.5, null]}"),
        json!({"a": [1, 2.5, null]})
    );
    assert_eq!(
        value("{\n\t\"a\":\t1,\n\t\"b\": [\n\t]\n}"),
        json!({"a": 1, "b": []})
    );
    assert!(failure("{\n\t\"a\": 1,\n\t\"a\": 2}").contains("a: is given twice (line 3)"));
    let node = parse("{\n\t\"a\": {\"b\":\t1}\n}").unwrap();
    let at = node.find("a.b").unwrap().at.clone().unwrap();
    assert_eq!((at.line, at.column), (2, 8), "tabs count as one column");
}

#[test]
fn what_cannot_be_read_is_refused_with_its_line() {
    for (text, expected) in [
        (
            "a: 1\na: 2\n",
            "<config>.a: is given twice (line 2); hint: the first one is on line 1",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "<config>: holds several documents; one is allowed (line 2)",
        ),
        ("a: \0", "<config>: holds a NUL character (line 1)"),
        (
            "a: {b: [\"x\\0y\"]}",
            "<config>.a.b[0]: holds a NUL character (line 1)",
        ),
        (
            "x: .inf",
            "<config>.x: \".inf\" is not a finite number (line 1)",
        ),
        (
            "x: -.INF",
            "<config>.x: \"-.INF\" is not a finite number (line 1)",
        ),
        (
            "x: 1e999",
            "<config>.x: \"1e999\" is too large for a number (line 1)",
        ),
        (
            "x: !!binary aGk=",
            "<config>.x: tag \"!!binary\" is not supported (line 1)",
        ),
        (
            "x: !secret y",
            "<config>.x: tag \"!secret\" is not supported (line 1)",
        ),
        (
            "x: !!int y",
            "<config>.x: \"y\" does not fit its tag \"!!int\" (line 1)",
        ),
        ("a: *nowhere", "<config>: is not YAML"),
        (
            "a: &a [*a]",
            "<config>: an alias is inside the value that it names (line 1)",
        ),
        (
            "[a]: 1",
            "<config>: a key must be a string, not a list or a map (line 1)",
        ),
        (
            "<<: 1",
            "<config>: \"<<\" takes a map or a list of maps (line 1)",
        ),
        ("a: [1, 2", "<config>: is not YAML"),
        ("a: b: c", "<config>: is not YAML"),
    ] {
        let message = failure(text);
        assert!(message.starts_with(expected), "{text:?} gave {message}");
    }
    let error = parse_bytes(b"a: 1\nb: \xff").unwrap_err();
    assert_eq!(error.0[0].line, Some(2));
    assert_eq!(error.0[0].message, "is not UTF-8 text");
}

/// A text, the place of its error, a part of the message, and the beginning of the hint.
type Cause = (&'static str, (u32, u32), &'static str, &'static str);

fn assert_causes(cases: &[Cause]) {
    for (text, place, message, hint) in cases {
        let error = &parse(text).unwrap_err().0[0];
        let found = (error.line.unwrap(), error.column.unwrap());
        let shown = error.hint.clone().unwrap_or_default();
        assert_eq!(found, *place, "{text:?}: {error}");
        assert!(error.message.contains(message), "{text:?}: {error}");
        assert!(shown.starts_with(hint), "{text:?}: {error}");
        assert!(!error.to_string().contains("Xyz9"), "{error}");
    }
}

#[test]
fn a_missing_colon_is_reported_at_the_line_without_it() {
    let name = "write \"name: VALUE\"";
    assert_causes(&[
        ("name foo\na: b\n", (1, 1), "no colon", name),
        ("a: b\nname foo\nc: d\n", (2, 1), "no colon", name),
        ("a:\n  name foo # x\n  b: c\n", (2, 3), "no colon", name),
        ("a:\n  b: c\n  name foo\n", (3, 3), "no colon", name),
        ("a:\n  - name foo\n    b: c\n", (2, 5), "no colon", name),
        (
            "a: b\nname\n  c: d\n",
            (2, 1),
            "no colon",
            "write \"name:\"",
        ),
        ("name\n  c: d\n", (1, 1), "no colon", "write \"name:\""),
        (
            "a: b\nname:foo bar\nc: d\n",
            (2, 1),
            "no space behind the colon",
            name,
        ),
        // Nothing that may be a secret is repeated.
        (
            "a: b\nXyz9\nc: d\n",
            (2, 1),
            "no colon",
            "write \"KEY: VALUE\"",
        ),
        // A text of two lines, whose third has a colon.
        (
            "a: text\n  goes on\n  b: c\n",
            (3, 4),
            "mapping values are not allowed",
            "put quotes around",
        ),
    ]);
}

#[test]
fn an_error_of_syntax_names_its_likely_cause() {
    let spaces = "indent with spaces; YAML takes no tabs there";
    assert_causes(&[
        // Tabs.
        (
            "a:\n\tb: c\n",
            (2, 1),
            "there is a tab in the indentation",
            spaces,
        ),
        (
            "a:\n  b: c\n\td: e\n",
            (3, 1),
            "there is a tab in the indentation",
            spaces,
        ),
        (
            "a:\n  b: c\n\n  \td: e\n",
            (4, 3),
            "there is a tab in the indentation",
            spaces,
        ),
        // Quotes and brackets.
        (
            "a: b\nc: 'it's x'\n",
            (2, 8),
            "trailing content",
            "close the quote",
        ),
        (
            "a: b\nc: [d,\n  e\n",
            (2, 4),
            "the \"[\" that is opened here is not closed",
            "close it",
        ),
        (
            "a: b\nc: {d: {e: f}\n",
            (2, 4),
            "the \"{\" that is opened here is not closed",
            "close it",
        ),
        (
            "a: {b: [1, 2}\n",
            (1, 8),
            "mismatched bracket",
            "close each [",
        ),
    ]);
}

#[test]
fn a_small_text_cannot_become_a_large_tree() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let alias = format!("*a{}", i - 1);
        let line = format!("a{i}: &a{i} [{}]\n", vec![alias; 10].join(", "));
        bomb.push_str(&line);
    }
    assert!(failure(&bomb).contains("anchors and aliases expand to more than 50000 values"));
    assert!(failure(&"[".repeat(5000)).starts_with("<config>: is"));
    let deep = format!("{}1{}", "[".repeat(120), "]".repeat(120));
    assert!(failure(&deep).contains("nested more than 100 levels deep"));
    let lines: Vec<String> = (0..150).map(|i| format!("{}k:\n", " ".repeat(i))).collect();
    let block = lines.concat();
    assert!(failure(&block).contains("nested more than 100 levels deep"));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(|f: f64| json!(f)),
        ".*".prop_map(|s: String| Value::from(s.replace('\0', ""))),
        "[-~?:#&*!|>'\"%@`{}\\[\\], a-z0-9\n\t]{0,8}"
            .prop_map(|s: String| Value::from(s.replace('\0', ""))),
        prop_oneof![
            "null", "true", "1e3", "0x1f", "~", "<<", "---", "...", ".inf"
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        let key = "[-a-z:# <~0-9.]{0,6}";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_bytes(&bytes);
    }

    #[test]
    fn no_yaml_like_text_makes_the_parser_panic(
        pieces in prop::collection::vec(
            prop_oneof![
                Just("a: "), Just("- "), Just("\n"), Just("  "), Just("&x "), Just("*x"), Just("<<: "), Just("{"),
                Just("}"), Just("["), Just("]"), Just(", "), Just("'"), Just("\""), Just("|"), Just("> "), Just("#"),
                Just("!!str "), Just("? "), Just(": "), Just("---\n"), Just("...\n"), Just("%YAML 1.2\n"), Just("1e3"),
                Just("\\u12"), Just("\u{85}"), Just("é"), Just("\t"), Just("\r"),
            ],
            0..40,
        )
    ) {
        let _ = parse(&pieces.concat());
    }

    #[test]
    fn what_is_written_reads_back_the_same(value in any_value()) {
        prop_assume!(!value.to_string().contains("\\u0000"));
        let text = to_yaml(&value);
        let read = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")).to_value();
        prop_assert_eq!(read, value, "{}", text);
    }
}

#[test]
fn copies_are_limited_by_their_bytes_as_well() {
    let long = "x".repeat(100_000);
    let named = format!("a: &a {long}\nb: [{}]\n", vec!["*a"; 20].join(", "));
    assert!(failure(&named).contains("anchors and aliases expand to more than 1048576 bytes"));
    let keys = format!(
        "? &k {long}\n: 1\nlist: [{}]\n",
        vec!["{*k : 1}"; 20].join(", ")
    );
    assert!(failure(&keys).contains("anchors and aliases expand to more than 1048576 bytes"));
}

#[test]
fn anchors_around_anchors_are_copies_too() {
    let inner = vec!["0"; 5_000].join(",");
    let levels = 60;
    let text = format!(
        "{}{inner}{}",
        (0..levels).map(|n| format!("&a{n} [")).collect::<String>(),
        "]".repeat(levels)
    );
    assert!(failure(&text).contains("anchors and aliases expand to more than 50000 values"));
}

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_read() {
    let text = format!("a: [{}]", vec!["0"; MAX_TEXT_BYTES].join(","));
    let reported = failure(&text);
    assert!(
        reported.contains("at most 1048576 are allowed"),
        "{reported}"
    );
}

#[test]
fn the_memory_of_a_tree_is_limited_before_it_is_built() {
    for text in [
        format!("a: [{}]", vec!["0"; 200_000].join(",")),
        format!("a: [{}]", vec!["{}"; 20_000].join(",")),
        format!("a: [{}]", vec!["[]"; 40_000].join(",")),
        format!("[{}]", vec!["{\"a\":\t[]}"; 20_000].join(",\t")),
        format!("b: &b {{c: 0}}\na: [{}]", vec!["*b"; 20_000].join(",")),
    ] {
        let message = failure(&text);
        assert!(
            message.contains("has too many values: read up to here they take the 5242880 bytes"),
            "{message}"
        );
    }
    let text = format!("a: [{}]", vec!["0"; 200_000].join(","));
    assert!(parse_within(&text, Limits::OWN_FILE).is_ok());
    let full = format!("a: [{}]", vec!["0"; 65_536].join(","));
    assert!(
        parse(&full).is_ok(),
        "as much as tasks can be given is read"
    );
}

#[test]
fn the_tree_of_a_parsed_value_has_the_same_limits() {
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    for text in [
        format!("[{}]", vec!["0"; 200_000].join(",")),
        format!("[{}]", vec!["{}"; 20_000].join(",")),
        format!("\"{}\"", "x".repeat(MAX_TREE_BYTES)),
    ] {
        let message = from_value(&value(&text)).unwrap_err().to_string();
        assert!(message.contains("has too many values"), "{message}");
    }
    let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
    let message = from_value(&value(&deep)).unwrap_err().to_string();
    assert!(message.contains("nested more than"), "{message}");
    let whole =
        value(r#"{"a": [1, -2, 0.5, 18446744073709551615, true, null, "t"], "b": {"c": {}}}"#);
    assert_eq!(from_value(&whole).unwrap(), Node::from(&whole));
}

/// The count of [`MAX_TREE_BYTES`] is never below the true size of a tree.
#[test]
fn a_tree_is_not_larger_than_it_is_counted() {
    assert!(node::MAP_BYTES >= 11 * (size_of::<Node>() + size_of::<String>()) + 16);
    assert!(node::LIST_BYTES >= 4 * size_of::<Node>());
}
