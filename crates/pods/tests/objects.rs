//! The objects of allocations, as tables of scenarios; what users customise of them is in `customising.rs`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod support;

use det_ids::ExperimentId;
use det_pods::{
    MasterCert, ObjectsError, RecordedMember, SlotResource, objects, owner_patch, recorded,
    release_patch,
};
use det_taskspec::{Mount, RegistryAuth, SlotGrant, TaskKind, TaskUser};
use serde_json::{Value, json};
use support::{
    TASK, command, customised, facts, gang, init_container, member, objects_of, pod_spec, script,
    task_container, variable,
};

#[test]
fn the_job_of_a_command() {
    let objects = objects_of(&[command()]);
    let name = format!("det-12345678-cmd-{TASK}");
    assert_eq!(objects.job_name, name);
    assert_eq!(objects.ranks, [[0]]);
    assert_eq!(objects.service, None);
    let [job] = objects.jobs.as_slice() else {
        panic!("{:?}", objects.jobs);
    };
    assert_eq!(job["kind"], "Job");
    assert_eq!(job["metadata"]["name"], *name);
    assert_eq!(job["metadata"]["namespace"], "work");
    let mut spec = job["spec"].clone();
    spec.as_object_mut().unwrap().remove("template");
    assert_eq!(
        spec,
        json!({
            "completionMode": "Indexed", "completions": 1, "parallelism": 1, "backoffLimit": 0,
            "ttlSecondsAfterFinished": 900, "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [{"action": "FailJob",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]},
        })
    );
    let labels = json!({
        "determined": format!("{TASK}.1"),
        "determined.ai/cluster_id": "12345678-aaaa-4bbb-8ccc-123456789abc",
        "determined.ai/allocation_id": format!("{TASK}.1"),
        "determined.ai/container_id": format!("{TASK}.1"),
        "determined.ai/task_id": TASK,
        "determined.ai/task_type": "COMMAND",
        "determined.ai/resource_pool": "gpu_pool",
        "determined.ai/workspace": "Uncategorized",
        "determined.ai/user": "ada",
    });
    assert_eq!(job["metadata"]["labels"], labels);
    assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
    let pod = pod_spec(job);
    assert_eq!(pod["restartPolicy"], "Never");
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod.get("hostNetwork"), None);
    assert_eq!(pod.get("schedulingGates"), None);
    assert_eq!(pod.get("schedulerName"), None);
}

#[test]
fn names_are_those_that_users_look_for() {
    let trial = gang(&[1]).remove(0);
    let mut gc = member(TaskKind::CheckpointGc, TASK, 1, 0, 0);
    gc.start.origin.experiment_id = Some(ExperimentId(7));
    for (scenario, member, expected) in [
        (
            "a trial",
            trial,
            "det-12345678-exp-3-trial-9-attempt-1".to_owned(),
        ),
        (
            "a notebook",
            member(TaskKind::Notebook, TASK, 1, 0, 1),
            format!("det-12345678-cmd-{TASK}"),
        ),
        (
            "a shell that was started again",
            member(TaskKind::Shell, TASK, 12, 0, 1),
            format!("det-12345678-cmd-{TASK}-12"),
        ),
        (
            "a generic task",
            member(TaskKind::Generic, TASK, 2, 0, 1),
            format!("det-12345678-generic-{TASK}-2"),
        ),
    ] {
        assert_eq!(objects_of(&[member]).job_name, expected, "{scenario}");
    }
    let name = objects_of(&[gc]).job_name;
    assert!(name.starts_with("det-12345678-gc-7-x"), "{name}");
    let odd = objects_of(&[member(TaskKind::Command, "My Task", 1, 0, 1)]).job_name;
    assert!(odd.starts_with("det-12345678-cmd-my-task-x"), "{odd}");
}

#[test]
fn what_identifies_a_task_is_in_the_secret_alone() {
    let mut facts = facts();
    facts.master.cert = MasterCert::Text("PEM".into());
    let mut member = command();
    member.start.spec.user = TaskUser {
        user: "svc".into(),
        uid: 5,
        group: "svc".into(),
        gid: 6,
    };
    member.start.spec.script.work_dir = "home/$AGENT_USER".into();
    let objects = objects(&facts, "work", &[member]).unwrap();
    assert!(!objects.jobs[0].to_string().contains("secret-token"));
    let secret = &objects.secret;
    assert_eq!(secret["type"], "Opaque");
    assert_eq!(secret["metadata"]["name"], *objects.job_name);
    assert_eq!(secret["metadata"].get("ownerReferences"), None);
    assert_eq!(secret["stringData"]["master.crt"], "PEM");
    let script = script(&objects, 0);
    assert_eq!(script.token, "secret-token");
    assert_eq!(script.work_dir, "/home/svc");
    let names: Vec<&str> = script.env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["DET_SESSION_TOKEN", "MINE"]);
    assert_eq!(
        owner_patch("u1", "j")["metadata"]["ownerReferences"],
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u1"}])
    );
}

#[test]
fn the_init_container_places_supervisor_and_script() {
    let objects = objects_of(&gang(&[2, 2, 1, 2]));
    assert_eq!(objects.ranks, [vec![0, 1, 3], vec![2]]);
    for (job, ranks) in objects.jobs.iter().zip(["0,1,3", "2"]) {
        let init = init_container(job);
        assert_eq!(init["image"], "det/helper:1");
        assert_eq!(
            init["command"],
            json!([
                "det-supervisor",
                "place",
                "--from",
                "/run/determined-secret",
                "--to",
                "/run/determined"
            ])
        );
        assert_eq!(init["env"], json!([{"name": "DET_RANKS", "value": ranks}]));
        assert_eq!(
            init["volumeMounts"],
            json!([
                {"name": "determined-run", "mountPath": "/run/determined"},
                {"name": "determined-secret", "mountPath": "/run/determined-secret", "readOnly": true},
            ])
        );
        let volumes = pod_spec(job)["volumes"].as_array().unwrap();
        let secret = volumes
            .iter()
            .find(|volume| volume["name"] == "determined-secret");
        assert_eq!(
            secret.unwrap()["secret"],
            json!({"secretName": objects.job_name, "defaultMode": 0o444})
        );
    }
}

#[test]
fn the_tasks_container() {
    let mut member = command();
    member.start.spec.ports = vec![9000, 8000];
    let objects = objects_of(&[member]);
    let mut task = task_container(&objects.jobs[0]).clone();
    let env = task.as_object_mut().unwrap().remove("env").unwrap();
    assert_eq!(
        task,
        json!({
            "name": "determined-container",
            "image": "user/image:2",
            "imagePullPolicy": "IfNotPresent",
            "command": ["/run/determined/det-supervisor", "run"],
            "ports": [{"containerPort": 8000}, {"containerPort": 9000}],
            "resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
            "securityContext": {"runAsUser": 0, "runAsGroup": 0},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "volumeMounts": [
                {"name": "determined-run", "mountPath": "/run/determined"},
                {"name": "det-shm-volume", "mountPath": "/dev/shm"},
            ],
        })
    );
    assert_eq!(
        env,
        json!([
            {"name": "DET_MASTER", "value": "http://master.det.svc:8080"},
            {"name": "DET_MASTER_HOST", "value": "master.det.svc"},
            {"name": "DET_MASTER_ADDR", "value": "master.det.svc"},
            {"name": "DET_MASTER_PORT", "value": "8080"},
            {"name": "DET_USE_TLS", "value": "false"},
            {"name": "DET_RESOURCES_TYPE", "value": "k8s-job"},
            {"name": "DET_KUBERNETES_JOB_PARALLELISM", "value": "1"},
            {"name": "DET_K8S_RESOURCE_POOL", "value": "gpu pool"},
            {"name": "DET_LOG_WAIT_TIME", "value": "900"},
            {"name": "DET_TERMINATION_MESSAGE", "value": "/dev/termination-log"},
            {"name": "DET_TERMINATION_MESSAGE_BYTES", "value": "4096"},
            {"name": "DET_AGENT_ID", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "DET_KUBERNETES_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ])
    );
    let volumes = &pod_spec(&objects.jobs[0])["volumes"];
    assert_eq!(
        volumes[1],
        json!({"name": "det-shm-volume", "emptyDir": {"medium": "Memory", "sizeLimit": "67108864"}})
    );
}

#[test]
fn a_pod_has_every_variable_that_an_agent_sets_and_those_of_pods() {
    use det_taskspec::variables::{Presence, SetBy, VARIABLES};
    let objects = objects_of(&[command()]);
    for declared in VARIABLES {
        let is_set = matches!(declared.set_by, SetBy::Agent | SetBy::Pod);
        if is_set && declared.presence == Presence::Always {
            let found = variable(task_container(&objects.jobs[0]), declared.name);
            assert!(found.is_some(), "{}", declared.name);
        }
    }
}

#[test]
fn the_master_is_checked_as_the_cluster_wants() {
    for (scenario, scheme, cert, name, expected) in [
        (
            "no TLS",
            "http",
            MasterCert::NoVerify,
            Some("m"),
            [Value::Null, Value::Null],
        ),
        (
            "the image's",
            "https",
            MasterCert::Usual,
            None,
            [Value::Null, Value::Null],
        ),
        (
            "its own",
            "https",
            MasterCert::Text("PEM".into()),
            Some("m"),
            [json!("/run/determined/etc/ssl/master.crt"), json!("m")],
        ),
        (
            "none",
            "https",
            MasterCert::NoVerify,
            None,
            [json!("noverify"), Value::Null],
        ),
    ] {
        let mut facts = facts();
        facts.master.scheme = scheme.into();
        facts.master.host = "fd00::1".into();
        facts.master.cert = cert;
        facts.master.cert_name = name.map(str::to_owned);
        let objects = objects(&facts, "work", &[command()]).unwrap();
        let task = task_container(&objects.jobs[0]);
        let value = |name| variable(task, name).cloned().unwrap_or_default();
        let found = ["DET_MASTER_CERT_FILE", "DET_MASTER_CERT_NAME"].map(value);
        assert_eq!(found, expected, "{scenario}");
        assert_eq!(value("DET_MASTER"), format!("{scheme}://[fd00::1]:8080"));
    }
}

#[test]
fn slots_become_requests_and_limits() {
    let cpu = SlotResource::Cpu { millis: 7500 };
    let gpu = SlotResource::Extended("amd.com/gpu".into());
    for (scenario, slots, count, amounts, void) in [
        ("GPUs", &gpu, 2, json!({"amd.com/gpu": "2"}), false),
        ("no GPUs", &gpu, 0, Value::Null, true),
        ("processors", &cpu, 2, json!({"cpu": "15000m"}), true),
        ("no processors", &cpu, 0, Value::Null, true),
    ] {
        let mut facts = facts();
        facts.slots = slots.clone().into();
        let mut member = command();
        member.start.spec.slots = SlotGrant::Count(count);
        let objects = objects(&facts, "work", &[member]).unwrap();
        let task = task_container(&objects.jobs[0]);
        for kind in ["requests", "limits"] {
            assert_eq!(task["resources"][kind], amounts, "{scenario}");
        }
        let hidden = variable(task, "NVIDIA_VISIBLE_DEVICES");
        assert_eq!(hidden, void.then_some(&json!("void")), "{scenario}");
    }
}

#[test]
fn mounts_of_the_host() {
    let mount = |container_path: &str, propagation: &str, read_only, create| Mount {
        host_path: "/data".into(),
        container_path: container_path.into(),
        read_only,
        propagation: propagation.into(),
        create,
        trusted: false,
        shared: None,
    };
    let mut member = command();
    member.start.spec.mounts = vec![
        mount("data", "rprivate", true, false),
        mount("/b", "rslave", false, true),
        mount("/c", "rshared", false, false),
        mount("/c/", "rprivate", false, false),
    ];
    let objects = objects_of(&[member]);
    let mounts = task_container(&objects.jobs[0])["volumeMounts"]
        .as_array()
        .unwrap();
    let found = json!(mounts[2..].to_vec());
    let expected = |number: u32, path: &str, read_only: bool, propagation: &str| {
        let name = format!("det-host-volume-{number}");
        json!({"name": name, "mountPath": path, "readOnly": read_only, "mountPropagation": propagation})
    };
    assert_eq!(
        found,
        json!([
            expected(0, "/run/determined/workdir/data", true, "None"),
            expected(1, "/b", false, "HostToContainer"),
            expected(2, "/c", false, "Bidirectional"),
        ])
    );
    let volumes = pod_spec(&objects.jobs[0])["volumes"].as_array().unwrap();
    assert_eq!(volumes[2]["hostPath"], json!({"path": "/data"}));
    assert_eq!(
        volumes[3]["hostPath"],
        json!({"path": "/data", "type": "DirectoryOrCreate"})
    );
}

#[test]
fn capabilities_and_users() {
    let mut member = customised(json!({"spec": {"containers": [{
        "name": "determined-container",
        "securityContext": {"runAsUser": 99, "privileged": true, "allowPrivilegeEscalation": false,
                            "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}},
    }]}}));
    member.start.spec.user.uid = 12;
    member.start.spec.user.gid = 13;
    member.start.spec.add_capabilities = vec!["CAP_SYS_PTRACE".into(), "ipc_lock".into()];
    member.start.spec.default_capabilities = vec!["NET_ADMIN".into()];
    member.start.spec.drop_capabilities = vec!["NET_RAW".into()];
    let objects = objects_of(&[member]);
    assert_eq!(
        task_container(&objects.jobs[0])["securityContext"],
        json!({"runAsUser": 12, "runAsGroup": 13, "privileged": true, "allowPrivilegeEscalation": false,
               "capabilities": {"drop": ["ALL", "NET_RAW"], "add": ["IPC_LOCK", "SYS_PTRACE", "NET_ADMIN"]}})
    );
    assert_eq!(
        init_container(&objects.jobs[0])["securityContext"],
        json!({"runAsUser": 12, "runAsGroup": 13, "allowPrivilegeEscalation": false,
               "capabilities": {"drop": ["ALL", "NET_RAW"]}})
    );
}

#[test]
fn a_pod_has_the_account_of_its_user_for_images_that_look_for_it() {
    let mut member = command();
    member.start.spec.user = TaskUser {
        user: "ada".into(),
        uid: 1000,
        group: "staff".into(),
        gid: 50,
    };
    let script = script(&objects_of(&[member]), 0);
    let paths: Vec<&str> = script.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        paths,
        ["passwd", "group", "shadow"].map(|name| format!("/run/determined/etc/{name}"))
    );
    assert!(script.files[0].content.starts_with("ada:x:1000:50::"));
}

#[test]
fn the_login_for_the_registry_is_the_kubelets_and_not_the_tasks() {
    let mut member = command();
    member.start.origin.pod_spec =
        Some(json!({"spec": {"imagePullSecrets": [{"name": "of-the-team"}]}}));
    member.start.spec.registry_auth = Some(RegistryAuth {
        username: Some("ada".into()),
        password: Some("word".into()),
        ..RegistryAuth::default()
    });
    let made = objects_of(&[member.clone()]);
    assert_eq!(made.secret["type"], "kubernetes.io/dockerconfigjson");
    let login = made.secret["stringData"][".dockerconfigjson"].as_str();
    let login: Value = serde_json::from_str(login.unwrap()).unwrap();
    assert_eq!(
        login,
        json!({"auths": {"https://index.docker.io/v1/": {"username": "ada", "password": "word"}}})
    );
    let pod = pod_spec(&made.jobs[0]);
    assert_eq!(
        pod["imagePullSecrets"],
        json!([{"name": "of-the-team"}, {"name": made.job_name}])
    );
    let volumes = pod["volumes"].as_array().unwrap();
    let secret = volumes.last().unwrap();
    assert_eq!(secret["name"], "determined-secret");
    assert_eq!(
        secret["secret"]["items"],
        json!([{"key": "task-0.json", "path": "task-0.json"}])
    );

    // Kubelets have no use for tokens of registries.
    member.start.spec.registry_auth = Some(RegistryAuth {
        identitytoken: Some("t".into()),
        ..RegistryAuth::default()
    });
    let error = objects(&facts(), "work", &[member.clone()]).unwrap_err();
    assert_eq!(error, ObjectsError::LoginByToken);
    // A login without anything is none.
    member.start.spec.registry_auth = Some(RegistryAuth::default());
    let made = objects_of(&[member]);
    assert_eq!(made.secret["type"], "Opaque");
    assert_eq!(
        pod_spec(&made.jobs[0])["volumes"][2]["secret"].get("items"),
        None
    );
}

#[test]
fn the_job_of_the_chief_alone_has_the_ports_of_services() {
    let mut members = gang(&[2, 1]);
    for member in &mut members {
        member.start.origin.service_ports = vec![8888, 6006];
    }
    let objects = objects_of(&members);
    let ports: Vec<_> = objects.jobs.iter().map(det_pods::service_ports).collect();
    assert_eq!(ports, [[6006, 8888].into(), [].into()]);
}

#[test]
fn a_pod_in_the_network_of_its_host_declares_no_ports() {
    let mut member = command();
    member.start.spec.network_mode = "host".into();
    member.start.spec.ports = vec![8000];
    member.start.spec.force_pull_image = true;
    member.start.spec.script.grace_seconds = 600;
    let objects = objects_of(&[member]);
    let pod = pod_spec(&objects.jobs[0]);
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["dnsPolicy"], "ClusterFirstWithHostNet");
    assert_eq!(pod["terminationGracePeriodSeconds"], 615);
    let task = task_container(&objects.jobs[0]);
    assert_eq!(
        task["command"],
        json!(["/run/determined/det-supervisor", "run", "--host-network"])
    );
    assert_eq!(task["imagePullPolicy"], "Always");
    assert_eq!(task.get("ports"), None);
    let annotations = &objects.jobs[0]["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["determined.ai/ports"], "8000");
}

fn node_terms(pod: &Value) -> &Value {
    &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
}

fn not_drained() -> Value {
    json!({"key": "determined.ai/cluster-id-12345678-aaaa-4bbb-8ccc-123456789abc", "operator": "DoesNotExist"})
}

fn on(node: &str) -> Value {
    json!({"key": "metadata.name", "operator": "In", "values": [node]})
}

#[test]
fn every_term_of_an_affinity_pins_a_single_pod_to_its_node() {
    let zone = |zone: &str| json!({"key": "zone", "operator": "In", "values": [zone]});
    let own = json!({"spec": {"affinity": {
        "podAffinity": {"kept": true},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [zone("a")]}, {}, {"matchFields": [on("n7")]},
        ]}},
    }}});
    let expected = json!([
        {"matchExpressions": [zone("a"), not_drained()], "matchFields": [on("n0")]},
        {"matchExpressions": [not_drained()], "matchFields": [on("n7"), on("n0")]},
    ]);
    let objects = objects_of(&[customised(own)]);
    let pod = pod_spec(&objects.jobs[0]);
    assert_eq!(*node_terms(pod), expected);
    assert_eq!(pod["affinity"]["podAffinity"]["kept"], true);
    let plain = objects_of(&[command()]);
    assert_eq!(
        *node_terms(pod_spec(&plain.jobs[0])),
        json!([{"matchExpressions": [not_drained()], "matchFields": [on("n0")]}])
    );
}

#[test]
fn a_gang_is_gated_and_released_pod_by_pod() {
    let objects = objects_of(&gang(&[4, 4]));
    let [job] = objects.jobs.as_slice() else {
        panic!("{:?}", objects.jobs);
    };
    assert_eq!(objects.job_name, "det-12345678-exp-3-trial-9-attempt-1");
    assert_eq!(job["spec"]["completions"], 2);
    assert_eq!(job["metadata"]["labels"]["determined.ai/trial_id"], "9");
    let pod = pod_spec(job);
    assert_eq!(
        pod["schedulingGates"],
        json!([{"name": "determined.ai/placement"}])
    );
    assert_eq!(pod["subdomain"], *objects.job_name);
    assert_eq!(
        *node_terms(pod),
        json!([{"matchExpressions": [not_drained()]}])
    );
    assert_eq!(
        variable(task_container(job), "DET_KUBERNETES_JOB_PARALLELISM"),
        Some(&json!("2"))
    );
    let service = objects.service.unwrap();
    let task = format!("3.{TASK}.1");
    assert_eq!(
        service["spec"],
        json!({"clusterIP": "None", "publishNotReadyAddresses": true, "selector": {"determined": task}})
    );
    let patch = release_patch("n1", &json!({"spec": pod}));
    assert_eq!(patch["spec"]["schedulingGates"], Value::Null);
    assert_eq!(
        *node_terms(&patch["spec"]),
        json!([{"matchExpressions": [not_drained()], "matchFields": [on("n1")]}])
    );
    assert_eq!(
        release_patch("n1", &patch),
        patch,
        "a repeat changes nothing"
    );
    let other = json!({"spec": {"schedulingGates": [{"name": "theirs"}, {"name": "determined.ai/placement"}]}});
    assert_eq!(
        release_patch("n1", &other)["spec"]["schedulingGates"],
        json!([{"name": "theirs"}])
    );
}

#[test]
fn pods_of_other_sizes_are_jobs_of_their_own() {
    let objects = objects_of(&gang(&[8, 8, 2, 4, 2]));
    let name = "det-12345678-exp-3-trial-9-attempt-1";
    let names: Vec<&str> = objects
        .jobs
        .iter()
        .map(|job| job["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [name.to_owned(), format!("{name}-r"), format!("{name}-r2")]
    );
    assert_eq!(objects.ranks, [vec![0, 1], vec![2, 4], vec![3]]);
    for (job, gpus) in objects.jobs.iter().zip(["8", "2", "4"]) {
        assert_eq!(
            task_container(job)["resources"]["limits"]["nvidia.com/gpu"],
            gpus
        );
        assert_eq!(pod_spec(job)["subdomain"], name);
    }
}

#[test]
fn a_job_records_its_containers() {
    let members = gang(&[8, 2, 8]);
    let objects = objects_of(&members);
    for (job, ranks) in objects.jobs.iter().zip(&objects.ranks) {
        let annotations = serde_json::from_value(job["metadata"]["annotations"].clone()).unwrap();
        let recorded = recorded(&annotations).unwrap();
        assert_eq!(recorded.allocation_id, members[0].start.spec.allocation_id);
        let expected: Vec<_> = ranks
            .iter()
            .map(|rank| RecordedMember {
                container_id: format!("c{rank}").into(),
                place: format!("n{rank}@pool").as_str().into(),
                node: format!("n{rank}"),
                rank: *rank,
                slots: [8, 2, 8][*rank as usize],
            })
            .collect();
        assert_eq!(recorded.members, expected);
    }
    assert_eq!(recorded(&std::collections::BTreeMap::new()), None);
}

#[test]
fn values_of_the_platform_are_not_expanded() {
    let mut member = command();
    member.start.origin.resource_pool = "$(HOME)".into();
    let objects = objects_of(&[member]);
    let task = task_container(&objects.jobs[0]);
    assert_eq!(
        variable(task, "DET_K8S_RESOURCE_POOL"),
        Some(&json!("$$(HOME)"))
    );
}

#[test]
fn what_gives_no_objects_is_explained() {
    let mut without = facts();
    without.helper_image = None;
    assert_eq!(
        objects(&without, "work", &[command()]),
        Err(ObjectsError::NoHelperImage)
    );
    assert_eq!(objects(&facts(), "work", &[]), Err(ObjectsError::NoMembers));
    let twice = [command(), command()];
    assert!(matches!(
        objects(&facts(), "work", &twice),
        Err(ObjectsError::Members(_))
    ));
    let mut large = gang(&[1, 1, 1]);
    for member in &mut large {
        member
            .start
            .spec
            .script
            .env
            .push(("A".into(), "x".repeat(400 << 10)));
    }
    let error = objects(&facts(), "work", &large).unwrap_err();
    assert!(matches!(
        error,
        ObjectsError::SecretTooLarge { members: 3, .. }
    ));
    assert!(error.to_string().contains("at most 1048576"), "{error}");
}

#[test]
fn a_pod_cannot_name_what_holds_the_tokens_of_other_tasks() {
    let with = |pod_spec: Value| {
        let mut member = command();
        member.start.origin.pod_spec = Some(pod_spec);
        objects(&facts(), "work", &[member])
    };
    let theirs = "det-12345678-exp-3-trial-9-attempt-1";
    let of_env = |source: Value| {
        let container =
            json!({"name": "determined-container", "env": [{"name": "A", "valueFrom": source}]});
        json!({"spec": {"containers": [container]}})
    };
    for spec in [
        json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": theirs}}]}}),
        json!({"spec": {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": theirs}}]}}]}}),
        of_env(json!({"secretKeyRef": {"name": theirs, "key": "task-0.json"}})),
        // Of another installation in the same namespace.
        of_env(json!({"secretKeyRef": {"name": "det-abcdef01-cmd-x", "key": "task-0.json"}})),
        // Of the chart, and of Kubernetes.
        of_env(json!({"secretKeyRef": {"name": "determined-master-config-det", "key": "x"}})),
        json!({"spec": {"serviceAccountName": "determined-master-det"}}),
        json!({"metadata": {"labels": {"app": "determined-db-det"}}}),
        json!({"spec": {"priorityClassName": "system-cluster-critical"}}),
    ] {
        let error = with(spec.clone()).unwrap_err();
        assert!(
            matches!(error, ObjectsError::Reserved(_)),
            "{spec}: {error}"
        );
    }
    let own = json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "det-training-data"}}]}});
    with(own).unwrap();
}

#[test]
fn a_task_with_gpus_sees_those_of_its_slots_and_what_runs_beside_it_none() {
    let all = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    let mut member = customised(json!({"spec": {"containers": [
        {"name": "side", "image": "cuda"},
        {"name": "determined-container", "env": all},
    ]}}));
    member.start.spec.slots = SlotGrant::Count(1);
    let objects = objects_of(&[member]);
    let job = &objects.jobs[0];
    let side = variable(&pod_spec(job)["containers"][0], "NVIDIA_VISIBLE_DEVICES");
    assert_eq!(side, Some(&json!("void")));
    // The device plug-in gives it a value.
    let task = variable(task_container(job), "NVIDIA_VISIBLE_DEVICES");
    assert_eq!(task, None);
}

#[test]
fn gpus_are_given_for_slots_alone() {
    let mut member = customised(json!({"spec": {
        "containers": [
            {"name": "side", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Gi"}},
             "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
            {"name": "determined-container", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                                                      {"name": "DET_MASTER", "value": "http://elsewhere"}]},
        ],
        "initContainers": [{"name": "first", "image": "x", "resources": {"requests": {"nvidia.com/mig-1g.10gb": 1}}}],
    }}));
    member.start.spec.slots = SlotGrant::Count(0);
    let objects = objects_of(&[member]);
    let job = &objects.jobs[0];
    let side = &pod_spec(job)["containers"][0];
    assert_eq!(side["resources"]["limits"], json!({"memory": "1Gi"}));
    let first = &pod_spec(job)["initContainers"][0];
    assert_eq!(first["resources"]["requests"], json!({}));
    for container in [side, first, task_container(job)] {
        let env = container["env"].as_array().unwrap().iter();
        let devices: Vec<_> = env
            .filter(|it| it["name"] == "NVIDIA_VISIBLE_DEVICES")
            .collect();
        assert_eq!(
            devices,
            [&json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"})]
        );
    }
    let master = variable(task_container(job), "DET_MASTER");
    assert_ne!(master, Some(&json!("http://elsewhere")));
}

#[test]
fn each_pod_of_a_gang_is_as_small_as_one_of_two() {
    let of = |pods: usize| {
        let objects = objects_of(&gang(&vec![8; pods]));
        let template = &objects.jobs[0]["spec"]["template"]["metadata"];
        assert_eq!(
            template["annotations"]["determined.ai/containers"],
            json!(null)
        );
        template.to_string().len()
    };
    assert_eq!(of(2), of(500));
}
