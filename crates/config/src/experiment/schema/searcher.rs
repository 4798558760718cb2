//! The keys of the searcher, and lengths of training.

use serde_json::{Value, json};

use crate::container::schema::NOT_EMPTY;
use crate::errors::ErrorCode;
use crate::limits;
use crate::origin::Position;
use crate::schema::{
    Block, Field, Kind, Merge, NATURAL, OldKey, POSITIVE, Special, Union, Walk, closest, field,
    special, union, variant,
};
use crate::yaml::{Node, Tree};

pub(in crate::experiment) static SEARCHER: Union = union(
    "name",
    "Search method",
    &[
        field(
            "metric",
            Kind::Special(&NOT_EMPTY),
            "Name of the validation metric that is optimised",
        )
        .finally(),
        field(
            "smaller_is_better",
            Kind::Bool,
            "Whether a lower metric is better",
        )
        .or("true"),
        field(
            "source_trial_id",
            POSITIVE,
            "Every trial starts from this trial's latest checkpoint",
        ),
        field(
            "source_checkpoint_uuid",
            Kind::Text,
            "Every trial starts from this checkpoint",
        ),
    ],
    &[
        variant("single", &[MAX_LENGTH]),
        variant("random", &[MAX_LENGTH, MAX_TRIALS, MAX_CONCURRENT_TRIALS]),
        variant("grid", &[MAX_LENGTH, MAX_CONCURRENT_TRIALS]),
        variant(
            "async_halving",
            &[
                field("num_rungs", RUNGS, "Rungs at which trials are compared").finally(),
                MAX_TRIALS,
                TIME_METRIC,
                MAX_TIME,
                DIVISOR,
                MAX_CONCURRENT_TRIALS,
                HALVING_LENGTH,
                STOP_ONCE,
            ],
        ),
        variant(
            "adaptive_asha",
            &[
                MAX_TRIALS,
                TIME_METRIC,
                MAX_TIME,
                field(
                    "mode",
                    Kind::Choice(&["aggressive", "standard", "conservative"]),
                    "How eagerly trials are stopped",
                )
                .or("\"standard\""),
                DIVISOR,
                field(
                    "max_rungs",
                    POSITIVE,
                    "Rungs of the largest bracket at most",
                )
                .or("5"),
                field(
                    "bracket_rungs",
                    Kind::List(&RUNGS),
                    "Rungs of each bracket; without any they follow from `mode`",
                )
                .or("[]"),
                MAX_CONCURRENT_TRIALS,
                HALVING_LENGTH,
                STOP_ONCE,
            ],
        ),
        variant(
            "adaptive",
            &[
                field(
                    "budget",
                    Kind::Special(&LENGTH),
                    "Training of all trials together",
                )
                .finally(),
                OLD_MAX_LENGTH,
                field(
                    "bracket_rungs",
                    Kind::List(&POSITIVE),
                    "Rungs of each bracket",
                )
                .or("[]"),
                OLD_MODE,
                DIVISOR,
                OLD_MAX_RUNGS,
                OLD_STRAGGLERS,
            ],
        )
        .retired(ADVICE),
        variant(
            "adaptive_simple",
            &[
                field("max_trials", Kind::Int(1, 2000), "Trials to create").finally(),
                OLD_MAX_LENGTH,
                OLD_MODE,
                DIVISOR,
                OLD_MAX_RUNGS,
            ],
        )
        .retired(ADVICE),
        variant(
            "sync_halving",
            &[
                field("num_rungs", POSITIVE, "Rungs at which trials are compared").finally(),
                field(
                    "budget",
                    Kind::Special(&POSITIVE_LENGTH),
                    "Training of all trials together",
                )
                .finally(),
                OLD_MAX_LENGTH,
                DIVISOR,
                OLD_STRAGGLERS,
            ],
        )
        .retired(ADVICE),
        variant("custom", &[]).retired(ADVICE).open(),
        variant("pbt", &[]).retired(ADVICE).open(),
    ],
)
// A warm start in the stronger layer replaces one in the weaker, which could name the other kind.
.blocks(&[Block {
    when: &["source_trial_id", "source_checkpoint_uuid"],
    hides: &["source_trial_id", "source_checkpoint_uuid"],
}])
.old(&[OldKey {
    name: "max_steps",
    about: "Steps to train, beside `batches_per_step`",
    json: "{\"type\": [\"integer\", \"null\"], \"minimum\": 1}",
}])
.check(super::super::checks::searcher);

#[expect(
    clippy::cast_possible_wrap,
    reason = "bounds of some thousands and millions"
)]
const TRIALS: Kind = Kind::Int(1, limits::MAX_TRIALS as i64);
#[expect(
    clippy::cast_possible_wrap,
    reason = "bounds of some thousands and millions"
)]
const RUNGS: Kind = Kind::Int(1, limits::MAX_RUNGS as i64);

const ADVICE: &str = "use \"adaptive_asha\" or \"random\"";

const MAX_TRIALS: Field = field("max_trials", TRIALS, "Trials to create").finally();
const MAX_CONCURRENT_TRIALS: Field = field(
    "max_concurrent_trials",
    NATURAL,
    "Trials alive at once, each with its `slots_per_trial`; 0 = no limit",
)
.or("16");
const TIME_METRIC: Field = field(
    "time_metric",
    Kind::Special(&NOT_EMPTY),
    "Reported metric that measures training time",
)
.finally();
const MAX_TIME: Field = field(
    "max_time",
    POSITIVE,
    "Value of `time_metric` at the top rung",
)
.finally();
const DIVISOR: Field = field(
    "divisor",
    Kind::Above(1.0),
    "One in so many trials goes on from each rung",
)
.or("4");
const MAX_LENGTH: Field = field(
    "max_length",
    Kind::Special(&MAX_LENGTH_KIND),
    "Length that each trial trains for, if its code does not decide",
)
.merged(Merge::Replace)
.warn("is deprecated; leave it out: training code decides how long it trains");
/// That of the searchers which compare trials at rungs: it is read as the two keys that have replaced it.
const HALVING_LENGTH: Field =
    MAX_LENGTH.warn("is deprecated; write \"time_metric\" and \"max_time\" in its place");
const STOP_ONCE: Field = field(
    "stop_once",
    Kind::Bool,
    "Whether halving stops trials for good instead of pausing them, in old versions",
)
.warn("is ignored; halving always stops trials for good");

const OLD_MAX_LENGTH: Field = field(
    "max_length",
    Kind::Special(&POSITIVE_LENGTH),
    "Length that each trial trains for",
);
const OLD_MODE: Field = field(
    "mode",
    Kind::Choice(&["aggressive", "standard", "conservative"]),
    "How eagerly trials are stopped",
)
.or("\"standard\"");
const OLD_MAX_RUNGS: Field = field(
    "max_rungs",
    POSITIVE,
    "Rungs of the largest bracket at most",
)
.or("5");
const OLD_STRAGGLERS: Field = field(
    "train_stragglers",
    Kind::Bool,
    "Whether late trials train on",
)
.or("true");

fn length_schema(minimum: i64) -> Value {
    let unit = json!({"type": ["integer", "null"], "minimum": minimum});
    json!({
        "type": "object",
        "properties": {"batches": unit, "records": unit, "epochs": unit},
        "additionalProperties": false,
        "minProperties": 1,
    })
}

pub(super) static LENGTH: Special = special(
    "map with one of `batches`, `records`, `epochs`",
    || length_schema(0),
    length,
);

static POSITIVE_LENGTH: Special = special(
    "map with one of `batches`, `records`, `epochs`, at least 1",
    || length_schema(1),
    positive_length,
);

static MAX_LENGTH_KIND: Special = special(
    "integer, or map with one of `batches`, `records`, `epochs`, at least 1",
    || json!({"anyOf": [{"type": "integer", "minimum": 1}, length_schema(1)]}),
    max_length,
);

const LENGTH_KEYS: [&str; 3] = ["batches", "records", "epochs"];

/// The key of a length that a word most likely means: `batchs`, `epoch`.
fn nearest_length(key: &str) -> Option<&'static str> {
    closest(key, LENGTH_KEYS.into_iter())
}

/// A map with exactly one of three keys.
fn length(walk: &mut Walk, node: &mut Node) {
    bounded_length(walk, node, NATURAL);
}

const EXPECTED: &str = "must have exactly one of \"batches\", \"records\", \"epochs\"";

fn bounded_length(walk: &mut Walk, node: &mut Node, bound: Kind) {
    let at = node.at.clone();
    let kind = node.kind();
    let Some(members) = node.members_mut() else {
        return walk
            .findings
            .error(at.as_ref(), format!("{EXPECTED}, not {kind}"));
    };
    members.retain(|_, member| !matches!(member.tree, Tree::Null));
    let misspelt: Vec<(String, &'static str, Option<Position>)> = members
        .iter()
        .filter(|(key, _)| !LENGTH_KEYS.contains(&key.as_str()))
        .filter_map(|(key, member)| Some((key.clone(), nearest_length(key)?, member.at.clone())))
        .collect();
    if !misspelt.is_empty() {
        for (key, meant, at) in misspelt {
            let hint = format!("did you mean \"{meant}\"?");
            walk.findings.error_hint_in(
                &key,
                at.as_ref(),
                ErrorCode::UnknownKey.message("is not a known key"),
                hint,
            );
        }
        return;
    }
    if members.len() != 1
        || !members
            .keys()
            .all(|key| LENGTH_KEYS.contains(&key.as_str()))
    {
        return walk.findings.error(at.as_ref(), EXPECTED);
    }
    for (key, member) in members {
        walk.within(key, |walk| walk.value(member, bound));
    }
}

fn positive_length(walk: &mut Walk, node: &mut Node) {
    bounded_length(walk, node, POSITIVE);
}

/// A length or a bare number; at least 1.
fn max_length(walk: &mut Walk, node: &mut Node) {
    if matches!(node.tree, Tree::Number(_)) {
        walk.value(node, POSITIVE);
    } else {
        bounded_length(walk, node, POSITIVE);
    }
}
