//! Secrets and templates of claims that are left of an earlier manager: it ended after it had made those of an attempt, and
//! before it made the Job, and the attempt ends without being made. The master has no right to list Secrets, but knows what
//! they are called.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::AllocationId;
use det_pods::{claim_template_names, secret_names};
use det_rm::LiveAttempt;

use crate::api::Kind;
use crate::books::ObjectKey;
use crate::messages::Requests;
use crate::observing::Observer;
use crate::starting::Starts;

/// Pauses before a Secret that could not be deleted is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Whether attempts that had no Job when the manager began may have left a Secret; those that it makes have not.
pub(crate) fn may_be_left(observer: &mut Observer, starts: &Starts) -> bool {
    let mut unmade = std::mem::take(&mut observer.unmade);
    unmade.retain(|id, _| !starts.is_creating(id) && !observer.books.has_job_of(id));
    observer.unmade = unmade;
    !observer.unmade.is_empty()
}

/// Deletes what is left of attempts that have ended; `live` = those that have not.
pub(crate) fn delete(observer: &mut Observer, live: &BTreeMap<AllocationId, LiveAttempt>) {
    let unmade = std::mem::take(&mut observer.unmade);
    for (id, attempt) in unmade {
        if live.contains_key(&id) {
            observer.unmade.insert(id, attempt);
            continue;
        }
        let Some(of) = attempt.of.as_ref().filter(|_| attempt.placed_at.is_some()) else {
            continue;
        };
        let names = secret_names(&observer.settings.cluster_id, &id, of);
        let namespaces = match attempt.namespace {
            Some(namespace) => BTreeSet::from([namespace]),
            None => observer.of_pools.clone(),
        };
        let secrets = names.iter().map(|name| (Kind::Secret, name.clone()));
        let claims = observer.books.devices.api();
        let templates = claims.map(|api| (Kind::ResourceClaimTemplate(api), &names));
        let templates = templates.into_iter().flat_map(|(kind, names)| {
            claim_template_names(names)
                .into_iter()
                .map(move |name| (kind, name))
        });
        let all: Vec<(Kind, String)> = secrets.chain(templates).collect();
        for namespace in namespaces {
            for (kind, name) in &all {
                let at = (namespace.as_str(), name.as_str());
                delete_unowned(&observer.requests, &observer.cluster, *kind, at);
            }
        }
    }
}

/// Has what is left of a Job's that is gone be deleted: its Secret, and the template of its claims.
pub(crate) fn delete_of_job(observer: &Observer, job: &ObjectKey, secret: &str) {
    let template = observer.books.devices.api();
    let template = template.map(|api| (Kind::ResourceClaimTemplate(api), job.name.as_str()));
    for (kind, name) in [(Kind::Secret, secret)].into_iter().chain(template) {
        let at = (job.namespace.as_str(), name);
        delete_unowned(&observer.requests, &observer.cluster, kind, at);
    }
}

/// Has an object deleted that has no owner, if there is one, in a task of its own, however long that takes.
fn delete_unowned(requests: &Requests, cluster: &str, kind: Kind, (namespace, name): (&str, &str)) {
    let (requests, cluster) = (requests.clone(), cluster.to_owned());
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    tokio::spawn(async move {
        let mut pause = FIRST_PAUSE;
        while !requests.sender.is_closed() {
            let at = (namespace.as_str(), name.as_str());
            let deleted = requests.api.delete_unowned(kind, at, (&cluster, None));
            let Err(error) = deleted.await else {
                return;
            };
            let kind = kind.word();
            tracing::warn!(namespace, kind, %error, "an object that is left of a task cannot be deleted yet");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
}
