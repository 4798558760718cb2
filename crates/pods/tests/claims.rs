//! Slots that are devices which pods claim, and slots of another resource in one pool than in the others.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test program uses a part")]
mod support;

use det_pods::{ClaimApi, DeviceClass, SlotResource, SlotResources, objects};
use det_taskspec::TaskKind;
use serde_json::{Value, json};

use support::{TASK, facts, member};

const CLASS: &str = "gpu.example.com";

fn claimed() -> SlotResource {
    SlotResource::Devices(DeviceClass::new(CLASS, None))
}

fn task_container(job: &Value) -> &Value {
    let containers = job["spec"]["template"]["spec"]["containers"].as_array();
    containers.unwrap().last().unwrap()
}

#[test]
fn each_size_of_pod_claims_its_devices_by_a_template_of_its_own() {
    let mut facts = facts();
    facts.slots = claimed().into();
    let sizes = [8, 8, 3].into_iter().zip(0..);
    let members: Vec<_> = sizes
        .map(|(slots, rank)| member(TaskKind::Trial, TASK, 1, rank, slots))
        .collect();
    let objects = objects(&facts, "tasks", &members).unwrap();
    assert_eq!(objects.claim_templates.len(), 2);
    for ((job, template), count) in objects
        .jobs
        .iter()
        .zip(&objects.claim_templates)
        .zip([8, 3])
    {
        assert_eq!(template["apiVersion"], "resource.k8s.io/v1");
        assert_eq!(template["metadata"]["name"], job["metadata"]["name"]);
        assert_eq!(template["metadata"]["namespace"], "tasks");
        let labels = &template["metadata"]["labels"];
        assert_eq!(*labels, objects.secret["metadata"]["labels"]);
        // Claims of the template have them too.
        assert_eq!(template["spec"]["metadata"]["labels"], *labels);
        let wanted =
            json!({"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": count});
        assert_eq!(
            template["spec"]["spec"]["devices"]["requests"],
            json!([{"name": "determined-slots", "exactly": wanted}])
        );
        let spec = &job["spec"]["template"]["spec"];
        assert_eq!(
            spec["resourceClaims"],
            json!([{"name": "determined-slots", "resourceClaimTemplateName": job["metadata"]["name"]}])
        );
        let resources = &task_container(job)["resources"];
        assert_eq!(
            *resources,
            json!({"claims": [{"name": "determined-slots"}]})
        );
        let variables = task_container(job)["env"].as_array().unwrap();
        assert!(
            !variables.iter().any(|it| it["value"] == "void"),
            "it sees its devices"
        );
    }
}

#[test]
fn requests_are_written_as_each_version_of_the_api_has_them() {
    let wanted = |mut request: Value| {
        request["deviceClassName"] = CLASS.into();
        request["allocationMode"] = "ExactCount".into();
        request["count"] = 2.into();
        request
    };
    for (api, version, request) in [
        (
            ClaimApi::V1,
            "v1",
            json!({"name": "determined-slots", "exactly": wanted(json!({}))}),
        ),
        (
            ClaimApi::V1Beta2,
            "v1beta2",
            json!({"name": "determined-slots", "exactly": wanted(json!({}))}),
        ),
        (
            ClaimApi::V1Beta1,
            "v1beta1",
            wanted(json!({"name": "determined-slots"})),
        ),
    ] {
        let mut facts = facts();
        facts.slots = claimed().into();
        facts.claims = api;
        let members = [member(TaskKind::Command, TASK, 1, 0, 2)];
        let made = objects(&facts, "tasks", &members).unwrap().claim_templates;
        assert_eq!(made[0]["apiVersion"], format!("resource.k8s.io/{version}"));
        assert_eq!(
            made[0]["spec"]["spec"]["devices"]["requests"],
            json!([request])
        );
    }
}

#[test]
fn claims_of_the_users_own_stay_beside_those_for_slots() {
    let mut facts = facts();
    facts.slots = claimed().into();
    let pod_spec = json!({"spec": {
        "resourceClaims": [
            {"name": "nic", "resourceClaimName": "mine"},
            {"name": "determined-slots", "resourceClaimName": "mine"},
        ],
        "containers": [
            {"name": "determined-container", "resources": {
                "claims": [{"name": "nic"}, {"name": "determined-slots", "request": "x"}],
                "limits": {"memory": "1Gi", "nvidia.com/gpu": 1},
            }},
            {"name": "side", "image": "x", "resources": {"claims": [{"name": "nic"}]}},
        ],
    }});
    for (slots, own) in [(1, true), (0, false)] {
        let mut member = member(TaskKind::Command, TASK, 1, 0, slots);
        member.start.origin.pod_spec = Some(pod_spec.clone());
        let made = objects(&facts, "tasks", &[member]).unwrap();
        assert_eq!(made.claim_templates.len(), usize::from(own));
        let spec = &made.jobs[0]["spec"]["template"]["spec"];
        let of_pod = spec["resourceClaims"].as_array().unwrap();
        assert!(of_pod.contains(&json!({"name": "nic", "resourceClaimName": "mine"})));
        let resources = &task_container(&made.jobs[0])["resources"];
        assert_eq!(resources["limits"], json!({"memory": "1Gi"}));
        assert_eq!(resources["claims"][0], json!({"name": "nic"}));
        assert_eq!(of_pod.len(), 2);
        if own {
            assert_eq!(resources["claims"][1], json!({"name": "determined-slots"}));
            assert_eq!(of_pod[1]["resourceClaimTemplateName"], made.job_name);
        }
        let side = &spec["containers"][0]["resources"]["claims"];
        assert_eq!(*side, json!([{"name": "nic"}]));
    }
}

#[test]
fn a_pool_with_slots_of_its_own_resource_requests_that() {
    let mut facts = facts();
    let gpus = SlotResource::Extended("nvidia.com/gpu".to_owned());
    let mig = SlotResource::Extended("example.com/mig-1g.10gb".to_owned());
    facts.slots = SlotResources::new(gpus, [("small".to_owned(), mig)].into());
    let pod_spec = json!({"spec": {"containers": [
        {"name": "side", "image": "x", "resources": {"limits": {"example.com/mig-1g.10gb": 8, "memory": "1Gi"}}},
    ]}});
    let mut member = member(TaskKind::Command, TASK, 1, 0, 2);
    member.start.origin.pod_spec = Some(pod_spec);
    let made = objects(&facts, "tasks", std::slice::from_ref(&member)).unwrap();
    let limits = &task_container(&made.jobs[0])["resources"]["limits"];
    assert_eq!(*limits, json!({"nvidia.com/gpu": "2"}));
    member.start.origin.resource_pool = "small".to_owned();
    let made = objects(&facts, "tasks", &[member]).unwrap();
    let limits = &task_container(&made.jobs[0])["resources"]["limits"];
    assert_eq!(*limits, json!({"example.com/mig-1g.10gb": "2"}));
    assert!(made.claim_templates.is_empty());
    let side = &made.jobs[0]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(side["resources"]["limits"], json!({"memory": "1Gi"}));
}

#[test]
fn a_pod_without_slots_has_none_of_what_slots_are_in_any_pool() {
    let mut facts = facts();
    let extended = |name: &str| SlotResource::Extended(name.to_owned());
    let of_pools = [("small".to_owned(), extended("example.com/mig-1g.10gb"))].into();
    facts.slots = SlotResources::new(extended("example.com/gpu"), of_pools);
    let limits = json!({
        "example.com/gpu": 1, "example.com/mig-1g.10gb": 8, "example.com/nic": 1,
        "deviceclass.resource.kubernetes.io/gpu.example.com": 2,
    });
    let resources = json!({"limits": limits, "requests": limits});
    let pod_spec = json!({"spec": {"containers": [
        {"name": "determined-container", "resources": resources},
        {"name": "side", "image": "x", "resources": resources},
    ]}});
    for pool in ["default", "small"] {
        let mut member = member(TaskKind::Command, TASK, 1, 0, 0);
        member.start.origin.pod_spec = Some(pod_spec.clone());
        member.start.origin.resource_pool = pool.to_owned();
        let made = objects(&facts, "tasks", &[member]).unwrap();
        let spec = &made.jobs[0]["spec"]["template"]["spec"];
        for container in spec["containers"].as_array().unwrap() {
            let left = json!({"example.com/nic": 1});
            let resources = &container["resources"];
            assert_eq!(*resources, json!({"limits": left, "requests": left}));
        }
    }
}
