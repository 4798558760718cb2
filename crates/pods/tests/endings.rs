//! How pods end that something else than their code or the master ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test program uses a part")]
mod support;

use det_pods::Member;
use serde_json::{Value, json};
use support::{command, customised, objects_of, pod_spec};

/// Seconds between SIGTERM and SIGKILL of a member's pod, and those in which its task saves by itself.
fn graces(member: Member) -> (u64, Option<u64>) {
    let rank = det_taskspec::pods::script_key(member.start.origin.member);
    let objects = objects_of(&[member]);
    let script = objects.secret["stringData"][rank].as_str().unwrap();
    let script: Value = serde_json::from_str(script).unwrap();
    let grace = pod_spec(&objects.jobs[0])["terminationGracePeriodSeconds"].as_u64();
    (grace.unwrap(), script["save_seconds"].as_u64())
}

#[test]
fn tasks_that_can_go_on_later_have_time_to_save_when_their_pod_is_ended() {
    let of_user = |seconds: u64| json!({"spec": {"terminationGracePeriodSeconds": seconds}});
    for (preemptible, pod_spec, expected) in [
        (false, None, (30, None)),
        (true, None, (600, Some(575))),
        (true, Some(of_user(120)), (120, Some(95))),
        (true, Some(of_user(5)), (25, None)),
        (false, Some(of_user(900)), (900, None)),
        // A container beside the task's keeps the devices as long.
        (false, Some(of_user(2_000_000_000)), (3_600, None)),
    ] {
        let mut member = command();
        member.start.origin.preemptible = preemptible;
        member.start.origin.pod_spec = pod_spec.clone();
        assert_eq!(graces(member), expected, "{preemptible} {pod_spec:?}");
    }
}

#[test]
fn pods_leave_nodes_that_do_not_answer_after_a_minute_unless_their_user_has_other_wishes() {
    let own = json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"});
    for (tolerations, expected) in [
        (
            json!([]),
            vec![
                ("node.kubernetes.io/not-ready", 60),
                ("node.kubernetes.io/unreachable", 60),
            ],
        ),
        (json!([own]), vec![("node.kubernetes.io/not-ready", 60)]),
        (json!([{"operator": "Exists"}]), vec![]),
    ] {
        let objects = objects_of(&[customised(json!({"spec": {"tolerations": tolerations}}))]);
        let pod = pod_spec(&objects.jobs[0]);
        let found = pod["tolerations"].as_array().unwrap().iter();
        let found = found.filter_map(|toleration| {
            let seconds = toleration["tolerationSeconds"].as_u64()?;
            Some((toleration["key"].as_str().unwrap(), seconds))
        });
        assert_eq!(found.collect::<Vec<_>>(), expected, "{tolerations}");
    }
}
