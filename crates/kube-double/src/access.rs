//! Who may do what: everything, but for what a test forbids.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::target::{KNOWN, Resource, Target};
use crate::values::{object, set, text};

/// The user that every request counts as.
const USER: &str = "system:serviceaccount:default:double";

/// All verbs of requests for objects.
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// One thing that is forbidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The verb; `*` for all.
    pub(crate) verb: String,
    /// The group; empty for the core.
    pub(crate) group: String,
    /// The plural, with a subresource as in `pods/status`; `*` for all.
    pub(crate) plural: String,
    /// The namespace, `*` for each; `None` for requests that name none.
    pub(crate) namespace: Option<String>,
}

impl Rule {
    fn matches(&self, verb: &str, group: &str, plural: &str, namespace: Option<&str>) -> bool {
        let fits = |pattern: &str, found: &str| pattern == "*" || pattern == found;
        let fits_namespace = match (&self.namespace, namespace) {
            (None, None) => true,
            (Some(pattern), Some(found)) => fits(pattern, found),
            _ => false,
        };
        fits(&self.verb, verb)
            && self.group == group
            && fits(&self.plural, plural)
            && fits_namespace
    }
}

/// Refuses a request that a rule forbids.
pub(crate) fn check(rules: &[Rule], verb: &str, target: &Target) -> Result<(), Failure> {
    let Resource { group, plural } = &target.resource;
    let namespace = target.namespace.as_deref();
    let in_rights = target.in_rights();
    if !rules
        .iter()
        .any(|rule| rule.matches(verb, group, &in_rights, namespace))
    {
        return Ok(());
    }
    let place = match namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User \"{USER}\" cannot {verb} resource \"{in_rights}\" in API group \"{group}\" {place}"
    );
    let resource = Resource::new(group, plural);
    let name = target.name.as_deref().unwrap_or_default();
    Err(Failure::forbidden(&resource, name, &why))
}

/// Answers a `SelfSubjectAccessReview`.
pub(crate) fn review_access(rules: &[Rule], mut review: Value) -> Value {
    let attribute = |field: &str| {
        let pointer = format!("/spec/resourceAttributes/{field}");
        text(&review, &pointer).to_owned()
    };
    let plural = match attribute("subresource").as_str() {
        "" => attribute("resource"),
        subresource => format!("{}/{subresource}", attribute("resource")),
    };
    let (verb, group, namespace) = (
        attribute("verb"),
        attribute("group"),
        attribute("namespace"),
    );
    let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
    let verbs: Vec<&str> = match verb.as_str() {
        "*" => VERBS.to_vec(),
        verb => vec![verb],
    };
    let is_forbidden = verbs.iter().any(|verb| {
        rules
            .iter()
            .any(|rule| rule.matches(verb, &group, &plural, namespace))
    });
    let status = if is_forbidden {
        json!({"allowed": false})
    } else {
        json!({"allowed": true, "reason": "the double allows it"})
    };
    identify(&mut review, "SelfSubjectAccessReview");
    set(&mut review, &["status"], status);
    review
}

/// Answers a `SelfSubjectRulesReview`: everything if nothing is forbidden, else the verbs that are left of each kind.
pub(crate) fn review_rules(rules: &[Rule], mut review: Value) -> Value {
    let namespace = text(&review, "/spec/namespace").to_owned();
    let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
    let allowed = if rules.is_empty() {
        json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}])
    } else {
        let mut left: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
        let plurals = KNOWN.iter().flat_map(|known| {
            let status = format!("{}/status", known.plural);
            [known.plural.to_owned(), status].map(|plural| (known, plural))
        });
        for (known, plural) in plurals {
            let namespace = namespace.filter(|_| known.namespaced);
            let verbs = VERBS.iter().copied().filter(|verb| {
                let is_forbidden =
                    |rule: &Rule| rule.matches(verb, known.group, &plural, namespace);
                !rules.iter().any(is_forbidden)
            });
            left.insert((known.group, plural.clone()), verbs.collect());
        }
        left.into_iter()
            .filter(|(_, verbs)| !verbs.is_empty())
            .map(|((group, plural), verbs)| {
                json!({"verbs": verbs, "apiGroups": [group], "resources": [plural]})
            })
            .collect()
    };
    identify(&mut review, "SelfSubjectRulesReview");
    set(
        &mut review,
        &["status"],
        json!({
            "incomplete": false,
            "resourceRules": allowed,
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }),
    );
    review
}

fn identify(review: &mut Value, kind: &str) {
    let review = object(review);
    review.insert("kind".to_owned(), kind.into());
    review.insert("apiVersion".to_owned(), "authorization.k8s.io/v1".into());
}
