//! A search restored from any JSON, and given any event afterwards, refuses or goes on; it never panics.
//!
//! The first byte chooses the configuration, the rest is a JSON array: the snapshot, then events. Instead of a snapshot
//! there may be a recipe, `{"play": [events], "set": {"/json/pointer": value}}`: the snapshot of a search that took the
//! events, with some of its values replaced. That leads further in than text that happens to be a snapshot.
#![no_main]

use std::collections::BTreeMap;

use det_config::hyperparameters::{
    AdaptiveMode, Hyperparameter, SearchMethod, SearcherConfig, Space,
};
use det_searcher::{Event, Search};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Events played at most: a long list shows nothing that a short one does not.
const EVENTS: usize = 64;

fn method(choice: u8) -> SearchMethod {
    match choice % 5 {
        0 => SearchMethod::Single,
        1 => SearchMethod::Random {
            max_trials: 7,
            max_concurrent_trials: 2,
        },
        2 => SearchMethod::Grid {
            max_concurrent_trials: 2,
        },
        3 => SearchMethod::AsyncHalving {
            num_rungs: 3,
            divisor: 3.0,
            max_trials: 9,
            max_concurrent_trials: 3,
            time_metric: "batches".into(),
            max_time: 27,
        },
        _ => SearchMethod::AdaptiveAsha {
            mode: AdaptiveMode::Conservative,
            max_rungs: 3,
            bracket_rungs: Vec::new(),
            divisor: 3.0,
            max_trials: 9,
            max_concurrent_trials: 3,
            time_metric: "batches".into(),
            max_time: 27,
        },
    }
}

/// The snapshot of a recipe; `None` when it is none.
fn cooked(config: &SearcherConfig, space: &Space, recipe: &Value) -> Option<Value> {
    let play = recipe.get("play")?.as_array()?;
    let mut search = Search::new(config, space, 1).expect("a configuration that can be searched");
    search.start();
    for event in play.iter().take(EVENTS) {
        let mut event = event.clone();
        // Trials are named by random numbers; "#2" is the third.
        for kind in event
            .as_object_mut()
            .into_iter()
            .flat_map(|map| map.values_mut())
        {
            let named = kind
                .get("request_id")
                .and_then(Value::as_str)
                .and_then(|name| name.strip_prefix('#'));
            let place = named.and_then(|digits| digits.parse::<usize>().ok());
            if let Some((id, _)) = place.and_then(|place| search.trials().nth(place)) {
                kind["request_id"] = serde_json::to_value(id).expect("a name is text");
            }
        }
        if let Ok(event) = serde_json::from_value::<Event>(event) {
            search.on(event);
        }
    }
    let mut snapshot = search.snapshot();
    for (place, value) in recipe
        .get("set")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if let Some(member) = snapshot.pointer_mut(place) {
            *member = value.clone();
        }
    }
    Some(snapshot)
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let Ok(Value::Array(parts)) = serde_json::from_slice(text) else {
        return;
    };
    let config = SearcherConfig {
        metric: "loss".into(),
        smaller_is_better: choice & 0x80 == 0,
        source_trial_id: None,
        source_checkpoint_uuid: None,
        method: method(choice & 0x7f),
    };
    let space: Space = BTreeMap::from([
        (
            "a".to_owned(),
            Hyperparameter::Int {
                minval: 1,
                maxval: 4,
                count: Some(3),
            },
        ),
        (
            "b".to_owned(),
            Hyperparameter::Double {
                minval: 0.0,
                maxval: 1.0,
                count: Some(2),
            },
        ),
    ]);
    let mut parts = parts.into_iter();
    let mut snapshot = parts.next().unwrap_or(Value::Null);
    if let Some(played) = cooked(&config, &space, &snapshot) {
        snapshot = played;
    }
    let mut search = match Search::restore(&config, &space, &snapshot) {
        Ok(search) => {
            // What was restored is saved as something that can be restored.
            Search::restore(&config, &space, &search.snapshot()).expect("restored once already");
            search
        }
        Err(_) => Search::new(&config, &space, 1).expect("a configuration that can be searched"),
    };
    search.start();
    for event in parts.take(EVENTS) {
        if let Ok(event) = serde_json::from_value::<Event>(event) {
            search.on(event);
            let progress = search.progress();
            assert!((0.0..=1.0).contains(&progress), "progress {progress}");
        }
    }
    let _ = search.outcome();
});
