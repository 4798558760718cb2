//! Flags and variables that change elements of lists.

use super::*;

const POOLS: &str = "resource_pools:\n- {pool_name: default}\n- pool_name: gpu-a\n  scheduler: {type: fair_share}\n  task_container_defaults: {bind_mounts: [{host_path: /a, container_path: /b}]}\n";

fn loaded_with(
    variables: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<LoadedMaster, ConfigErrors> {
    let files = [("master.yaml".to_owned(), POOLS.to_owned())];
    let flags: Vec<(String, String)> = flags
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    LoadedMaster::load(Sources {
        files: &files,
        env: &env(variables),
        flags: &flags,
    })
}

#[test]
fn flags_and_variables_reach_into_lists() {
    let loaded = loaded_with(
        &[
            ("DET_RESOURCE_POOLS__1__MAX_AUX_CONTAINERS_PER_AGENT", "3"),
            ("DET_RESOURCE_POOLS__GPU_A__SCHEDULER_TYPE", "round_robin"),
            ("DET_RESOURCE_POOLS__GPU_A__DESCRIPTION", "from a variable"),
            (
                "DET_RESOURCE_POOLS__GPU_A__TASK_CONTAINER_DEFAULTS_BIND_MOUNTS__0__HOST_PATH",
                "/changed",
            ),
        ],
        &[
            ("resource_pools[0].max_aux_containers_per_agent", "5"),
            ("resource_pools[gpu-a].scheduler.type", "priority"),
            ("resource_pools[gpu-a].scheduler.preemption", "true"),
            ("resource_manager.metadata.zone", "eu"),
        ],
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let pools = &loaded.config.resource_pools;
    assert_eq!(pools[0].max_aux_containers_per_agent, 5);
    assert_eq!(pools[1].max_aux_containers_per_agent, 3);
    assert_eq!(pools[1].description, "from a variable");
    let scheduler = loaded.config.effective_scheduler(&pools[1]);
    assert_eq!(
        (scheduler.kind, scheduler.preemption),
        (SchedulerKind::Priority, true)
    );
    let mounts = &pools[1]
        .task_container_defaults
        .as_ref()
        .unwrap()
        .bind_mounts;
    assert_eq!(mounts[0].host_path, "/changed");
    assert_eq!(loaded.config.resource_manager.metadata["zone"], "eu");
    let origin = |path: &str| {
        let keys = loaded.origins();
        let key = keys.into_iter().find(|key| key.path == path);
        key.unwrap_or_else(|| panic!("{path}")).origin.to_string()
    };
    assert!(
        origin("resource_pools[0].max_aux_containers_per_agent")
            .contains("--set resource_pools[0].max_aux_containers_per_agent")
    );
    assert!(
        origin("resource_pools[1].description").contains("DET_RESOURCE_POOLS__GPU_A__DESCRIPTION")
    );
    assert!(origin("resource_pools[1].pool_name").contains("master.yaml"));
}

#[test]
fn the_list_that_is_not_given_can_be_changed_too() {
    let flags = [(
        "resource_pools[default].max_aux_containers_per_agent".to_owned(),
        "5".to_owned(),
    )];
    let config = LoadedMaster::load(Sources {
        flags: &flags,
        ..Sources::default()
    })
    .unwrap()
    .config;
    assert_eq!(config.resource_pools[0].max_aux_containers_per_agent, 5);
    let env = env(&[("DET_RESOURCE_POOLS__DEFAULT__DESCRIPTION", "d")]);
    let loaded = LoadedMaster::load(Sources {
        env: &env,
        ..Sources::default()
    })
    .unwrap();
    assert_eq!(loaded.config.resource_pools[0].description, "d");
    assert_eq!(loaded.warnings, []);
}

#[test]
fn unknown_elements_are_reported_with_the_known_ones() {
    for (flag, expected) in [
        (
            "resource_pools[7].description",
            "resource_pools[7]: there is no such element; there are: 0 \"default\", 1 \"gpu-a\"",
        ),
        (
            "resource_pools[gpu-b].description",
            "resource_pools[gpu-b]: no element has this name; there are: 0 \"default\", 1 \"gpu-a\" (hint: did you mean \"gpu-a\"?)",
        ),
        (
            "resource_pools[0].descripton",
            "did you mean \"resource_pools[0].description\"?",
        ),
        (
            "resource_pools.description",
            "resource_pools: is a list; name the element, resource_pools[0] or resource_pools[NAME]",
        ),
        ("db[0]", "db: is no list, so it has no elements"),
        ("reserved_ports[0]", "there is no such element"),
        ("resource_pools[0", "has a \"[\" without its \"]\""),
        ("resource_pools[0].scheduler.type", "must be one of"),
    ] {
        let reported = loaded_with(&[], &[(flag, "x")]).unwrap_err().to_string();
        let hinted = expected.replace(" (hint: ", "; hint: ").replace("?)", "?");
        assert!(
            reported.contains(expected) || reported.contains(&hinted),
            "{flag}: {reported}"
        );
        assert!(
            reported.contains(&format!("--set {flag}")),
            "{flag}: {reported}"
        );
    }
    for (variable, expected) in [
        (
            "DET_RESOURCE_POOLS__7__DESCRIPTION",
            "resource_pools[7]: no element has this number or name; there are: 0 \"default\", 1 \"gpu-a\"",
        ),
        (
            "DET_RESOURCE_POOLS__GPU_A__DESCRIPTON",
            "resource_pools[1]: \"DESCRIPTON\" is no key of it",
        ),
    ] {
        let reported = loaded_with(&[(variable, "x")], &[])
            .unwrap_err()
            .to_string();
        assert!(
            reported.contains(expected) && reported.contains(variable),
            "{variable}: {reported}"
        );
    }
}

#[test]
fn a_number_is_a_name_where_an_element_has_it() {
    let files = [(
        "master.yaml".to_owned(),
        "resource_pools: [{pool_name: default}, {pool_name: \"7\"}, {pool_name: \"007\"}, {pool_name: \"1\"}, {pool_name: \"4\"}]"
            .to_owned(),
    )];
    let loaded = |env: &[(&str, &str)], flag: &str| {
        let env = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        let flags = [(flag.to_owned(), "set".to_owned())];
        let config = LoadedMaster::load(Sources {
            files: &files,
            env: &env.collect(),
            flags: if flag.is_empty() { &[] } else { &flags },
        });
        config
            .map(|loaded| {
                let pools = loaded.config.resource_pools.iter();
                let changed = pools.filter(|pool| pool.description == "set");
                let names: Vec<String> = changed.map(|pool| pool.pool_name.clone()).collect();
                names.join(" ")
            })
            .map_err(|errors| errors.to_string())
    };
    for (flag, pool) in [
        ("resource_pools[7].description", "7"),
        ("resource_pools[007].description", "007"),
        ("resource_pools[0].description", "default"),
        ("resource_pools[2].description", "007"),
        ("resource_pools[4].description", "4"),
        ("resource_pools[\"1\"].description", "1"),
        ("resource_pools[\"7\"].description", "7"),
    ] {
        assert_eq!(loaded(&[], flag).as_deref(), Ok(pool), "{flag}");
    }
    let reported = loaded(&[], "resource_pools[1].description").unwrap_err();
    assert!(
        reported.contains(
            "resource_pools[1]: can be element 1 and the one named \"1\", which is element 3"
        ) && reported
            .contains("resource_pools[\"1\"] for the name, resource_pools[\"7\"] for element 1"),
        "{reported}"
    );
    for (variable, pool) in [
        ("DET_RESOURCE_POOLS__7__DESCRIPTION", "7"),
        ("DET_RESOURCE_POOLS__0__DESCRIPTION", "default"),
        ("DET_RESOURCE_POOLS__4__DESCRIPTION", "4"),
        ("DET_RESOURCE_POOLS__007__DESCRIPTION", "007"),
    ] {
        assert_eq!(
            loaded(&[(variable, "set")], "").as_deref(),
            Ok(pool),
            "{variable}"
        );
    }
    let reported = loaded(&[("DET_RESOURCE_POOLS__1__DESCRIPTION", "set")], "").unwrap_err();
    assert!(
        reported.contains("several elements can be meant; there are: 0 \"default\", 1 \"7\"")
            && reported.contains("--set 'resource_pools[\"7\"].KEY=VALUE' is element 1")
            && reported.contains("--set 'resource_pools[\"1\"].KEY=VALUE' is element"),
        "{reported}"
    );
}

#[test]
fn variables_that_nothing_reads_are_reported() {
    let loaded = loaded_with(
        &[
            ("DET_ANYTHING_ELSE", "1"),
            ("DET_LOG_LEVLE", "info"),
            ("DET_MASTER", "http://x"),
            ("DET_TEST_POSTGRES_URL", "x"),
            ("DET_AGENT_ID", "a"),
            ("DET_DB_PASSWORD_FILE", "/x"),
            ("DET_SLOT_TYPE", "none"),
        ],
        &[],
    )
    .unwrap();
    let reported: Vec<String> = loaded
        .warnings
        .iter()
        .map(ConfigWarning::for_log)
        .filter(|warning| warning.contains("DET_"))
        .collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported[0].contains("DET_ANYTHING_ELSE") && reported[0].contains("det config keys"),
        "{reported:?}"
    );
    assert!(reported[1].contains("DET_LOG_LEVLE"), "{reported:?}");
}
