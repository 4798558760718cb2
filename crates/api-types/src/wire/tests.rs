//! The dialect, rule by rule.

use std::collections::BTreeMap;

use det_ids::UserId;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::*;
use crate::experiments::{CreateExperimentRequest, ExperimentState, GetExperimentsQuery};
use crate::logs::{LogLevel, LogsQuery, PostTaskLogsRequest};
use crate::metrics::ReportTrialMetricsRequest;
use crate::page::OrderBy;
use crate::users::PatchUser;

/// A message with a field of each scalar type of the wire.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Sample {
    trial_id: i64,
    small: u8,
    note: Option<String>,
    name: String,
    ready: bool,
    size: Int64,
    ratio: Float,
    plain_ratio: f64,
    level: LogLevel,
    content: Bytes,
    at: Option<Timestamp>,
    free: Object,
    any: Value,
    sizes: BTreeMap<String, Int64>,
    b64_tgz: String,
    parts: Vec<Sample>,
}

fn read(body: &Value) -> Result<Sample, WireError> {
    decode(body.to_string().as_bytes())
}

fn accepted(body: &Value) -> Sample {
    read(body).unwrap()
}

fn refused(body: &Value) -> String {
    read(body).unwrap_err().to_string()
}

#[test]
fn an_empty_body_and_null_are_the_empty_message() {
    for body in ["", "  \n", "null", "{}", "null trailing"] {
        assert_eq!(
            decode::<Sample>(body.as_bytes()),
            Ok(Sample::default()),
            "{body:?}"
        );
    }
}

#[test]
fn only_the_first_json_value_is_read() {
    let sample: Sample = decode(br#"{"trialId": 1} {"trialId": 2} and so on"#).unwrap();
    assert_eq!(sample.trial_id, 1);
}

#[test]
fn what_is_not_json_is_refused() {
    let error = decode::<Sample>(b"{\"trialId\": ").unwrap_err();
    assert_eq!(error.path, "");
    assert!(
        error.message.starts_with("the body is not JSON: "),
        "{error}"
    );
    assert!(decode::<Sample>(b"\xff\xfe").is_err());
    assert_eq!(refused(&json!([1])), "expected an object, got a list");
}

#[test]
fn null_is_absent_for_every_field() {
    let body = json!({
        "trialId": null, "note": null, "name": null, "ready": null, "size": null, "ratio": null, "level": null,
        "content": null, "at": null, "free": null, "sizes": null, "parts": null,
    });
    assert_eq!(accepted(&body), Sample::default());
}

#[test]
fn both_spellings_of_a_name_are_known_at_every_level() {
    for body in [
        json!({"trialId": 7, "b64Tgz": "x", "parts": [{"plainRatio": 1}]}),
        json!({"trial_id": 7, "b64_tgz": "x", "parts": [{"plain_ratio": 1}]}),
    ] {
        let sample = accepted(&body);
        assert_eq!((sample.trial_id, sample.b64_tgz.as_str()), (7, "x"));
        assert!((sample.parts[0].plain_ratio - 1.0).abs() < f64::EPSILON);
    }
}

#[test]
fn other_spellings_and_unknown_fields_are_ignored() {
    let body = json!({"TrialId": 7, "trialid": 7, "trial-id": 7, "unknown": {"deep": [null]}});
    assert_eq!(accepted(&body), Sample::default());
}

#[test]
fn whole_numbers_come_as_numbers_or_text() {
    for number in [
        json!(12),
        json!("12"),
        json!(12.0),
        json!(" 12 "),
        json!(1.2e1),
    ] {
        let sample = accepted(&json!({"trialId": number, "small": number, "size": number}));
        assert_eq!(
            (sample.trial_id, sample.small, sample.size),
            (12, 12, Int64(12)),
            "{number}"
        );
    }
    assert_eq!(
        accepted(&json!({"size": "9223372036854775807"})).size,
        Int64(i64::MAX)
    );
}

#[test]
fn what_is_no_whole_number_is_refused_with_its_field() {
    assert_eq!(
        refused(&json!({"trialId": 1.5})),
        "field \"trialId\": expected a whole number, got the number 1.5"
    );
    assert_eq!(
        refused(&json!({"trial_id": "many"})),
        "field \"trialId\": expected a whole number, got the string \"many\""
    );
    assert!(refused(&json!({"small": 256})).starts_with("field \"small\": "));
    assert!(refused(&json!({"size": "9223372036854775808"})).starts_with("field \"size\": "));
    assert!(refused(&json!({"trialId": true})).starts_with("field \"trialId\": "));
}

#[test]
fn floats_come_as_numbers_text_or_names() {
    for (given, wanted) in [
        (json!(0.25), 0.25),
        (json!(3), 3.0),
        (json!("0.25"), 0.25),
        (json!("Infinity"), f64::INFINITY),
        (json!("-Infinity"), f64::NEG_INFINITY),
    ] {
        let sample = accepted(&json!({"ratio": given, "plainRatio": given}));
        assert_eq!(sample.ratio, Float(wanted), "{given}");
        assert_eq!(Float(sample.plain_ratio), Float(wanted), "{given}");
    }
    for given in ["NaN", "Nan"] {
        assert!(
            accepted(&json!({"ratio": given})).ratio.0.is_nan(),
            "{given}"
        );
    }
    assert_eq!(
        refused(&json!({"ratio": "fast"})),
        "field \"ratio\": expected a number, got the string \"fast\""
    );
}

#[test]
fn enumerations_come_by_name_or_number() {
    for given in [
        json!("LOG_LEVEL_ERROR"),
        json!(5),
        json!("5"),
        json!("ERROR"),
        json!("error"),
    ] {
        assert_eq!(
            accepted(&json!({"level": given})).level,
            LogLevel::Error,
            "{given}"
        );
    }
}

#[test]
fn an_unknown_enumeration_name_is_refused_with_the_known_ones() {
    let error = refused(&json!({"level": "LOUD"}));
    assert!(
        error.starts_with(
            "field \"level\": \"LOUD\" is not known here; allowed: LOG_LEVEL_UNSPECIFIED, "
        ),
        "{error}"
    );
    assert!(refused(&json!({"level": 99})).contains("99 is not known here"));
    assert!(refused(&json!({"level": {"name": "INFO"}})).contains("is not known here"));
}

#[test]
fn a_string_field_given_anything_else_is_refused() {
    assert_eq!(
        refused(&json!({"parts": [{}, {"name": 3}]})),
        "field \"parts[1].name\": expected a string, got the number 3"
    );
    assert_eq!(
        refused(&json!({"name": {"a": 1}})),
        "field \"name\": expected a string, got an object"
    );
    assert_eq!(
        refused(&json!({"note": ["a"]})),
        "field \"note\": expected a string, got a list"
    );
}

#[test]
fn a_map_entry_at_fault_is_named() {
    assert_eq!(
        refused(&json!({"sizes": {"a/b": "much"}})),
        "field \"sizes.a/b\": expected a whole number, got the string \"much\""
    );
}

#[test]
fn bytes_come_as_base64_in_either_alphabet() {
    for given in ["+/+/AA==", "-_-_AA==", "+/+/AA", "-_-_AA"] {
        let sample = accepted(&json!({"content": given}));
        assert_eq!(sample.content, Bytes(vec![0xfb, 0xff, 0xbf, 0]), "{given}");
    }
    assert!(
        refused(&json!({"content": "*"})).starts_with("field \"content\": expected base64 text")
    );
    assert!(refused(&json!({"content": 1})).starts_with("field \"content\": expected base64 text"));
}

#[test]
fn times_come_with_any_offset() {
    let wanted = Timestamp(1_646_187_498_299_569);
    for given in [
        "2022-03-02T02:18:18.299569Z",
        "2022-03-02T04:18:18.299569+02:00",
        "2022-03-01T20:48:18.299569-0530",
        "2022-03-02t02:18:18.299569123z",
        "2022-03-02 02:18:18.299569",
    ] {
        assert_eq!(accepted(&json!({"at": given})).at, Some(wanted), "{given}");
    }
}

#[test]
fn what_is_no_time_is_refused() {
    for given in [
        "",
        "now",
        "2022-03-02",
        "2022-13-02T00:00:00Z",
        "2022-02-29T00:00:00Z",
        "2022-03-02T24:00:00Z",
        "2022-03-02T00:00:60Z",
        "2022-03-02T00:00:00.Z",
        "2022-03-02T00:00:00+25:00",
        "0000-01-01T00:00:00Z",
        "2022-03-02T00:00:00Z!",
        "+022-03-02T00:00:00Z",
    ] {
        let error = refused(&json!({"at": given}));
        assert!(
            error.starts_with("field \"at\": expected an RFC 3339 time"),
            "{given}: {error}"
        );
    }
    assert!(refused(&json!({"at": 5})).starts_with("field \"at\": "));
}

#[test]
fn free_json_passes_untouched() {
    let free = json!({
        "snake_key": null, "camelKey": {"inner_null": null, "list": [null, "7", 7]}, "ratio": "NaN", "level": 5,
        "big": 18_446_744_073_709_551_615_u64,
    });
    let sample = accepted(&json!({"free": free, "any": [null, free]}));
    assert_eq!(sample.free.into_value(), free);
    assert_eq!(sample.any, json!([null, free]));
}

#[test]
fn a_raw_value_passes_untouched() {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Raw {
        any: Option<Box<serde_json::value::RawValue>>,
    }
    let raw: Raw = decode(br#"{"any": {"snake_key": null}}"#).unwrap();
    assert_eq!(
        raw.any.map(|any| any.get().to_owned()).as_deref(),
        Some(r#"{"snake_key":null}"#)
    );
}

#[test]
fn a_bare_string_is_a_body() {
    assert_eq!(
        decode::<Secret>(br#""hunter2""#),
        Ok(Secret("hunter2".into()))
    );
    assert_eq!(decode::<String>(b""), Ok(String::new()));
    let error = decode::<Secret>(b"42").unwrap_err();
    assert_eq!(error.to_string(), "expected a string, got something else");
}

#[test]
fn secrets_do_not_show() {
    let debug = format!("{:?}", Secret("hunter2".into()));
    assert!(!debug.contains("hunter2"));
    assert_eq!(encode(&Secret("hunter2".into())).unwrap(), br#""hunter2""#);
}

#[test]
fn a_broken_element_does_not_cost_the_others() {
    let body = json!({"logs": [
        {"task_id": "1.a", "log": "good\n", "level": "ERROR", "rank_id": "3", "container_id": null},
        {"task_id": "1.a", "log": 7},
        {"taskId": "1.a", "log": "good too", "timestamp": "2022-03-02T02:18:18.299569+00:00"},
        null,
    ]});
    let request: PostTaskLogsRequest = decode(body.to_string().as_bytes()).unwrap();
    let SalvagedElement::Unreadable(error) = &request.logs[1] else {
        panic!("{:?}", request.logs[1]);
    };
    assert_eq!(
        error.to_string(),
        "field \"log\": expected a string, got the number 7"
    );
    let read: Vec<_> = request
        .logs
        .into_iter()
        .filter_map(SalvagedElement::read)
        .collect();
    assert_eq!(read.len(), 3);
    assert_eq!(
        (read[0].level, read[0].rank_id),
        (Some(LogLevel::Error), Some(3))
    );
}

#[test]
fn a_metric_report_of_the_harness_is_read() {
    let body = json!({"group": "training", "metrics": {
        "trialId": 2, "trialRunId": 1, "stepsCompleted": 10, "reportTime": null,
        "metrics": {"avgMetrics": {"loss": 0.5, "worst_loss": "NaN", "odd": null}, "batchMetrics": null},
    }});
    let request: ReportTrialMetricsRequest = decode(body.to_string().as_bytes()).unwrap();
    assert_eq!(request.metrics.steps_completed, Some(10));
    assert_eq!(request.metrics.metrics.batch_metrics, None);
    assert_eq!(
        request.metrics.metrics.avg_metrics.into_value(),
        json!({"loss": 0.5, "worst_loss": "NaN", "odd": null})
    );
}

#[test]
fn an_experiment_of_the_client_is_read() {
    let body = json!({
        "activate": true, "config": "name: a\n", "parentId": null, "projectId": null, "template": null,
        "validateOnly": null, "unmanaged": null,
        "modelDefinition": [{"path": "x.py", "type": 48, "content": "eA==", "mtime": "1795179191", "mode": 33188, "uid": 0, "gid": 0}],
    });
    let request: CreateExperimentRequest = decode(body.to_string().as_bytes()).unwrap();
    assert!(request.activate);
    assert_eq!(request.model_definition[0].content.0, b"x");
    assert_eq!(request.model_definition[0].mtime, Int64(1_795_179_191));
}

#[test]
fn a_patch_distinguishes_unset_and_empty() {
    let patch: PatchUser =
        decode(br#"{"displayName": "", "username": null, "active": false}"#).unwrap();
    assert_eq!(patch.display_name.as_deref(), Some(""));
    assert_eq!(
        (patch.username, patch.active, patch.admin),
        (None, Some(false), None)
    );
}

#[test]
fn deep_nesting_is_refused_or_ignored_but_never_fatal() {
    let deep = "[".repeat(100_000);
    assert!(decode::<Sample>(format!("{{\"any\": {deep}").as_bytes()).is_err());
    let query = format!("{}=1", vec!["a"; 100_000].join("."));
    assert_eq!(decode_query::<Sample>(&query), Ok(Sample::default()));
}

#[test]
fn a_query_repeats_keys_and_dots_nested_ones() {
    let query: GetExperimentsQuery = decode_query(
        "limit=200&offset=0&archived=false&users=ann&users=bob%20b&experimentIdFilter.incl=3&\
         experiment_id_filter.incl=5&experimentIdFilter.notIn=4&experimentIdFilter.lt=9&states=STATE_ACTIVE&states=6&\
         orderBy=ORDER_BY_DESC&user_ids=1&userIds=2&pretty&unknown=x",
    )
    .unwrap();
    assert_eq!((query.limit, query.archived), (200, Some(false)));
    assert_eq!(query.users, ["ann", "bob b"]);
    assert_eq!(query.user_ids, [1, 2].map(UserId));
    assert_eq!(
        query.states,
        [ExperimentState::Active, ExperimentState::Completed]
    );
    assert_eq!(query.order_by, OrderBy::Desc);
    assert_eq!(query.experiment_id_filter.incl, [3, 5]);
    assert_eq!(
        (
            query.experiment_id_filter.not_in,
            query.experiment_id_filter.lt
        ),
        (vec![4], Some(9))
    );
}

#[test]
fn a_query_reads_times_numbers_and_switches() {
    let query: LogsQuery = decode_query(
        "follow=true&rankIds=-1&rankIds=2&levels=LOG_LEVEL_ERROR&timestampAfter=2022-03-02T02%3A18%3A18Z&searchText=a+b",
    )
    .unwrap();
    assert!(query.follow);
    assert_eq!(query.rank_ids, [-1, 2]);
    assert_eq!(
        query.timestamp_after,
        Some(Timestamp(1_646_187_498_000_000))
    );
    assert_eq!(query.search_text, "a b");
    assert_eq!(decode_query::<LogsQuery>(""), Ok(LogsQuery::default()));
}

#[test]
fn the_last_occurrence_of_a_scalar_counts() {
    let query: LogsQuery = decode_query("limit=1&limit=2").unwrap();
    assert_eq!(query.limit, 2);
}

#[test]
fn what_a_query_cannot_mean_is_refused_with_its_field() {
    let error = |query: &str| {
        decode_query::<GetExperimentsQuery>(query)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("limit=many"),
        "field \"limit\": expected a whole number, got the string \"many\""
    );
    assert_eq!(
        error("archived=perhaps"),
        "field \"archived\": expected true or false, got the string \"perhaps\""
    );
    assert!(
        error("states=STATE_ODD")
            .starts_with("field \"states[0]\": \"STATE_ODD\" is not known here")
    );
    assert!(
        error("experimentIdFilter.lt=x")
            .starts_with("field \"experimentIdFilter.lt\": expected a whole number")
    );
    assert_eq!(
        error("experimentIdFilter=x"),
        "field \"experimentIdFilter\": expected an object, got a list"
    );
    assert!(error("name=%ff").contains("not UTF-8"));
}

#[test]
fn a_query_is_decoded_as_browsers_and_clients_encode_it() {
    let query = "users=a%26b&users=%C3%BC+c&users=100%&users=%2B";
    let query = decode_query::<GetExperimentsQuery>(query).unwrap();
    assert_eq!(query.users, ["a&b", "ü c", "100%", "+"]);
}

#[test]
fn every_field_is_written_and_unset_ones_are_null() {
    assert_eq!(
        serde_json::to_value(Sample::default()).unwrap(),
        json!({
            "trialId": 0, "small": 0, "note": null, "name": "", "ready": false, "size": "0", "ratio": 0.0,
            "plainRatio": 0.0, "level": "LOG_LEVEL_UNSPECIFIED", "content": "", "at": null, "free": {}, "any": null,
            "sizes": {}, "b64Tgz": "", "parts": [],
        })
    );
}

#[test]
fn non_finite_floats_are_written_as_names() {
    let written = encode(&[
        Float(f64::NAN),
        Float(f64::INFINITY),
        Float(f64::NEG_INFINITY),
        Float(0.5),
    ])
    .unwrap();
    assert_eq!(written, br#"["NaN","Infinity","-Infinity",0.5]"#);
}

#[test]
fn times_are_written_in_utc_with_the_digits_they_need() {
    for (micros, wanted) in [
        (0, "1970-01-01T00:00:00Z"),
        (1_646_187_498_000_000, "2022-03-02T02:18:18Z"),
        (1_646_187_498_299_000, "2022-03-02T02:18:18.299Z"),
        (1_646_187_498_299_569, "2022-03-02T02:18:18.299569Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (951_782_400_000_000, "2000-02-29T00:00:00Z"),
        (i64::MAX, "9999-12-31T23:59:59.999999Z"),
        (i64::MIN, "0001-01-01T00:00:00Z"),
    ] {
        assert_eq!(Timestamp(micros).to_string(), wanted);
    }
}

#[test]
fn bytes_are_written_as_padded_base64() {
    assert_eq!(
        encode(&Bytes(vec![0xfb, 0xff, 0xbf, 0])).unwrap(),
        br#""+/+/AA==""#
    );
}

#[test]
fn a_stream_line_ends_in_exactly_one_line_feed() {
    assert_eq!(
        encode_line(&json!({"a": "b\n"})).unwrap(),
        b"{\"result\":{\"a\":\"b\\n\"}}\n"
    );
}

#[test]
fn pretty_output_is_indented_by_four() {
    assert_eq!(
        encode_pretty(&json!({"a": 1})).unwrap(),
        b"{\n    \"a\": 1\n}"
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "[a-z_]{0,6}",
        prop::sample::select(vec![
            "trialId", "trial_id", "small", "note", "name", "ready", "size", "ratio", "level",
            "content", "at", "free", "any", "sizes", "parts",
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "[0-9TZ:+. -]{0,30}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..8)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Sample>(&body);
        let _ = decode::<Vec<SalvagedElement<Sample>>>(&body);
        let _ = decode_query::<Sample>(&String::from_utf8_lossy(&body));
    }

    #[test]
    fn no_json_makes_it_panic_and_errors_name_a_field(body in any_json()) {
        if let (Err(error), true) = (read(&body), body.is_object()) {
            prop_assert!(!error.path.is_empty(), "{}", error);
        }
    }

    #[test]
    fn what_is_read_is_written_and_read_again_alike(body in any_json()) {
        if let Ok(sample) = read(&body) {
            let written = encode(&sample).unwrap();
            let again: Sample = decode(&written).unwrap();
            // Compared as written: not-a-number differs from itself.
            prop_assert_eq!(encode(&again).unwrap(), written);
        }
    }

    #[test]
    fn times_survive_the_wire(micros in Timestamp::MIN.0..=Timestamp::MAX.0) {
        let text = Timestamp(micros).to_string();
        prop_assert_eq!(text.parse::<Timestamp>(), Ok(Timestamp(micros)));
    }

    #[test]
    fn times_are_ordered_as_their_text(a in Timestamp::MIN.0..=Timestamp::MAX.0, b in Timestamp::MIN.0..=Timestamp::MAX.0) {
        let second = |micros: i64| Timestamp(micros - micros.rem_euclid(1_000_000)).max(Timestamp::MIN);
        let (a, b) = (second(a), second(b));
        prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
    }

    #[test]
    fn no_query_makes_it_panic(query in "\\PC{0,80}") {
        let _ = decode_query::<GetExperimentsQuery>(&query);
        let _ = decode_query::<LogsQuery>(&query);
    }
}

#[test]
fn the_size_of_a_tree_is_seen_in_its_text() {
    for (text, bytes) in [
        ("", 0),
        ("1", 0),
        ("[1,2,3]", 160 + 2 * 48),
        (r#"{"a":1,"b":[{}]}"#, 2 * 640 + 160 + 48),
        (r#"["[,{", "\"[,", "\\"]"#, 160 + 2 * 48),
        (r#"["\\\\[\"{", "\\\\", ","#, 160 + 2 * 48),
        (r#"["\\"#, 160),
        (r#"["[{,"#, 160),
        (r#"[\",""#, 160),
    ] {
        assert_eq!(tree_bytes(text.as_bytes()), bytes, "{text}");
    }
}
