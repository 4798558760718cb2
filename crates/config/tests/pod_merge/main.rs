//! The merge of pod specs and what a real API server makes of the same patches.
//!
//! `DET_TEST_KUBECONFIG` names the kubeconfig of a cluster, on which one object is made and deleted again; `kubectl` is on
//! PATH. Without it these tests are skipped, and print that. `DET_TEST_SEED` plays one history of chance again.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::print_stdout,
    reason = "a skipped test must be seen to be skipped"
)]

mod api_server;
mod generate;
mod patches;

use det_config::TaskContainerDefaults;
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument};
use det_podspec::{ListMerge, Shape, Type, type_named};
use serde_json::{Value, json};

use api_server::{Answer, ApiServer};
use generate::Chance;

/// Pods, and patches of each, that are compared.
const PODS: u64 = 800;
const PATCHES: usize = 5;

/// The server, or `None` after a line that names the test as skipped.
fn server(test: &str) -> Option<ApiServer> {
    let Ok(kubeconfig) = std::env::var("DET_TEST_KUBECONFIG") else {
        println!("SKIPPED: {test}: DET_TEST_KUBECONFIG names no Kubernetes cluster");
        return None;
    };
    Some(ApiServer::of(&kubeconfig))
}

/// The pod spec that an experiment with `patch` has in a pool with `default`.
fn merged(default: &Value, patch: &Value) -> Result<Value, String> {
    let tcd: TaskContainerDefaults =
        serde_json::from_value(json!({"gpu_pod_spec": default})).unwrap();
    let config = json!({
        "entrypoint": "true",
        "searcher": {"name": "single", "metric": "m"},
        "environment": {"pod_spec": patch},
    });
    let defaults = CompletionDefaults {
        name: "made".into(),
        experiment_seed: 7,
        checkpoint_storage: Some(json!({"type": "shared_fs", "host_path": "/x"})),
        task_container_defaults: &tcd,
        default_priority: None,
        managed: true,
    };
    let submitted = SubmittedDocument::parse(Experiment, &config.to_string());
    let config = submitted.and_then(|it| it.complete(&defaults));
    let config = config.map_err(|errors| errors.to_string())?;
    Ok(config.environment.pod_spec.unwrap_or_else(|| json!({})))
}

#[derive(Default)]
struct Tally {
    accepted: usize,
    refused: usize,
}

/// Compares a pod and its patches; both sides get the pod as the server completed it.
fn compare(server: &mut ApiServer, seed: u64, tally: &mut Tally) {
    let mut chance = Chance::of(seed);
    let made = generate::template(&mut chance);
    let stored = match server.replace(&made, false) {
        Answer::Object(stored) => stored,
        refused @ Answer::Refused { .. } => panic!("DET_TEST_SEED={seed}: {refused:?} to {made}"),
    };
    for number in 0..PATCHES {
        let patch = patches::of(&mut chance, &stored);
        let context = || format!("DET_TEST_SEED={seed}, patch {number}: {patch}\nover {stored}");
        let ours =
            merged(&stored, &patch).unwrap_or_else(|errors| panic!("{errors}\n{}", context()));
        let theirs = server.patch(&patches::with_kept_keys(&patch));
        let of_ours = server.replace(&ours, true);
        match (&theirs, &of_ours) {
            (Answer::Object(_), Answer::Object(_)) => tally.accepted += 1,
            (Answer::Refused { code: 422, .. }, Answer::Refused { code: 422, .. }) => {
                tally.refused += 1;
            }
            other => panic!("{other:?}\nours is {ours}\n{}", context()),
        }
        assert_eq!(of_ours, theirs, "ours is {ours}\n{}", context());
    }
}

#[test]
fn a_merge_is_what_the_api_server_makes_of_the_same_patch() {
    let Some(mut server) = server("the merge of pods and an API server's") else {
        return;
    };
    let seed = std::env::var("DET_TEST_SEED").ok();
    let seeds = match seed.and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..PODS,
    };
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        compare(&mut server, seed, &mut tally);
    }
    let Tally { accepted, refused } = tally;
    println!(
        "{accepted} patches merge to equal pods, {refused} to pods that are refused for equal reasons"
    );
    // Most of what chance makes has to be a pod, or little is compared.
    assert!(
        seeds.end - seeds.start == 1 || accepted > 4 * refused,
        "{accepted}, {refused}"
    );
}

/// Without a server: what holds of every merge.
#[test]
fn a_patch_changes_nothing_when_it_is_laid_over_what_it_made() {
    for seed in 0..200 {
        let mut chance = Chance::of(seed);
        let pod = generate::template(&mut chance);
        let patch = patches::of(&mut chance, &pod);
        let context = || format!("seed {seed}: {patch}\nover {pod}");
        assert_eq!(merged(&pod, &json!({})).unwrap(), pod, "{}", context());
        let once = merged(&pod, &patch).unwrap();
        assert_eq!(merged(&once, &patch).unwrap(), once, "{}", context());
        for list in ["containers", "volumes", "initContainers", "hostAliases"] {
            let key = if list == "hostAliases" { "ip" } else { "name" };
            let items = once["spec"][list].as_array().into_iter().flatten();
            let mut keys: Vec<&str> = items.map(|item| item[key].as_str().unwrap()).collect();
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), count, "{list} of {once}\n{}", context());
        }
    }
}

#[test]
fn the_list_of_keys_is_that_of_the_api_server() {
    let Some(mut server) = server("the list of keys and an API server's") else {
        return;
    };
    let document = server.get("/openapi/v2");
    let definitions = document["definitions"].as_object().unwrap();
    let short = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let mut open = vec!["io.k8s.api.core.v1.Pod".to_owned()];
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    while let Some(name) = open.pop() {
        if seen.contains(&name) {
            continue;
        }
        let of = type_named(&short(&name));
        let properties = definitions[&name]["properties"].as_object().unwrap();
        for (key, property) in properties.iter().filter(|(key, _)| *key != "status") {
            let (shape, inner) = shape(property, &short);
            let given = of.and_then(|of| of.field(key));
            if given.map(|it| (shown(it.shape), it.merge)) != Some((shape.clone(), merge(property)))
            {
                wrong.push(format!("{}.{key}: {shape}, not {given:?}", short(&name)));
            }
            open.extend(inner);
        }
        let removed = of.into_iter().flat_map(Type::fields);
        let removed = removed.filter(|field| !properties.contains_key(field.name));
        wrong.extend(removed.map(|field| format!("{}.{}: is no key", short(&name), field.name)));
        seen.push(name);
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(seen.len() > 100, "{}", seen.len());
}

/// The shape of a property as `pod.tsv` has it, and the name of the definition that it refers to.
fn shape(property: &Value, short: &impl Fn(&str) -> String) -> (String, Option<String>) {
    if let Some(to) = property["$ref"].as_str() {
        let full = to.rsplit('/').next().unwrap_or_default().to_owned();
        return match short(&full).as_str() {
            "Quantity" => ("quantity".into(), None),
            "IntOrString" => ("integer or string".into(), None),
            "Time" => ("string".into(), None),
            "FieldsV1" => ("any".into(), None),
            name => (name.to_owned(), Some(full)),
        };
    }
    match property["type"].as_str() {
        Some("array") => {
            let (element, inner) = shape(&property["items"], short);
            (format!("[{element}]"), inner)
        }
        Some("object") => {
            let (element, inner) = shape(&property["additionalProperties"], short);
            (format!("{{{element}}}"), inner)
        }
        other => (other.unwrap_or("any").to_owned(), None),
    }
}

fn shown(shape: Shape) -> String {
    match shape {
        Shape::Boolean => "boolean".into(),
        Shape::Integer => "integer".into(),
        Shape::Text => "string".into(),
        Shape::Quantity => "quantity".into(),
        Shape::IntegerOrText => "integer or string".into(),
        Shape::Any => "any".into(),
        Shape::Of(name) => name.into(),
        Shape::Texts => "[string]".into(),
        Shape::Integers => "[integer]".into(),
        Shape::ListOf(name) => format!("[{name}]"),
        Shape::TextMap => "{string}".into(),
        Shape::QuantityMap => "{quantity}".into(),
    }
}

fn merge(property: &Value) -> ListMerge {
    let strategies = property["x-kubernetes-patch-strategy"].as_str();
    let strategies: Vec<&str> = strategies.unwrap_or_default().split(',').collect();
    if !strategies.contains(&"merge") {
        return ListMerge::Atomic;
    }
    match property["x-kubernetes-patch-merge-key"].as_str() {
        None => ListMerge::Set,
        Some(key) => ListMerge::By {
            key: Box::leak(key.to_owned().into_boxed_str()),
            one_source: strategies.contains(&"retainKeys"),
        },
    }
}
