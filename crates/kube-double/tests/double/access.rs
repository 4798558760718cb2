//! Rights: everything is allowed until a test forbids it.

use det_kube_double::ApiDouble;
use serde_json::json;

use crate::client::{Client, JOBS, PODS, pod, text};

const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";

#[tokio::test]
async fn what_is_forbidden_is_refused_and_reviewed() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let (code, rules) = client
        .post(RULES, &json!({"spec": {"namespace": "default"}}))
        .await;
    assert_eq!(code, 201);
    assert_eq!(rules["status"]["resourceRules"][0]["verbs"], json!(["*"]));

    double.faults().forbid("list", "", "pods", None);
    double.faults().forbid("watch", "", "pods", None);
    double
        .faults()
        .forbid("create", "batch", "jobs", Some("default"));
    double.faults().forbid("*", "", "pods/status", Some("*"));

    let (code, refused) = client.get("/api/v1/pods").await;
    assert_eq!(
        (code, text(&refused, "/reason")),
        (403, "Forbidden".to_owned())
    );
    assert_eq!(
        text(&refused, "/message"),
        "pods is forbidden: User \"system:serviceaccount:default:double\" cannot list resource \"pods\" in API group \"\" \
         at the cluster scope"
    );
    assert_eq!(client.get("/api/v1/pods?watch=true").await.0, 403);
    assert_eq!(client.get(PODS).await.0, 200);
    let (code, refused) = client.post(JOBS, &json!({})).await;
    assert_eq!(code, 403);
    assert!(
        text(&refused, "/message").ends_with("in API group \"batch\" in the namespace \"default\"")
    );
    double.create("v1/pods", "default", pod("one", 0));
    let status = format!("{PODS}/one/status");
    assert_eq!(
        client
            .patch(&status, "merge-patch+json", &json!({}))
            .await
            .0,
        403
    );

    for (attributes, is_allowed) in [
        (json!({"verb": "list", "resource": "pods"}), false),
        (
            json!({"verb": "list", "resource": "pods", "namespace": "default"}),
            true,
        ),
        (
            json!({"verb": "create", "group": "batch", "resource": "jobs", "namespace": "default"}),
            false,
        ),
        (
            json!({"verb": "create", "group": "batch", "resource": "jobs", "namespace": "kube-system"}),
            true,
        ),
        (
            json!({"verb": "patch", "resource": "pods", "subresource": "status", "namespace": "x"}),
            false,
        ),
        (json!({"verb": "get", "resource": "nodes"}), true),
    ] {
        let review = json!({"spec": {"resourceAttributes": attributes}});
        let (code, answer) = client.post(ACCESS, &review).await;
        assert_eq!(code, 201);
        assert_eq!(answer["status"]["allowed"], is_allowed, "{attributes}");
    }
    let (_, rules) = client
        .post(RULES, &json!({"spec": {"namespace": "default"}}))
        .await;
    let rules = rules["status"]["resourceRules"].as_array().unwrap().clone();
    let of_jobs = rules
        .iter()
        .find(|rule| rule["resources"] == json!(["jobs"]))
        .unwrap();
    let verbs = of_jobs["verbs"].as_array().unwrap();
    assert!(!verbs.contains(&json!("create")) && verbs.contains(&json!("get")));

    double.faults().allow_all();
    assert_eq!(client.get("/api/v1/pods").await.0, 200);
}
