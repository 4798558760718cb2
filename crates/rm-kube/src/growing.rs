//! Has the cluster grow: keeps placeholders for the tasks that wait and that nodes are worth adding for.
//!
//! What is wanted follows from what waits, from the placeholders that exist and from what was given up ([`verdicts`]);
//! it is compared with what exists after every change. Placeholders that a master before this one has made are those of
//! the tasks that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use det_ids::{AllocationId, Micros};
use det_pods::{ClusterFacts, PlaceholderRequest, placeholder_class, placeholders};
use det_rm::{GrowthState, WaitingGang};
use serde_json::Value;
use tokio::time::Instant;

use crate::api::{ApiError, Kind, KubeApi};
use crate::books::{Books, ObjectKey, PlaceholderJob};
use crate::classes::Classes;
use crate::creating::{name, uid};
use crate::limits::Limits;
use crate::messages::Message;
use crate::observing::Observer;
use crate::settings::{GrowthSettings, Settings};

/// Characters of a reason for which a task was given up.
const MOST_REASON: usize = 500;
/// How long a task that was given up does not ask; each further time twice as long.
const FIRST_PAUSE: Duration = Duration::from_mins(5);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// How long after a pause the next one is longer.
const REMEMBERED: Duration = Duration::from_hours(1);
/// Pause before a request that failed is made again.
const RETRY: Duration = Duration::from_secs(5);
/// How much later than they are given up placeholders end by themselves, where no master ends them.
const LEFT_ALONE: Duration = Duration::from_mins(1);

/// What has become of a request about placeholders.
#[derive(Debug)]
pub(crate) enum GrowthOutcome {
    /// The Jobs of the placeholders exist.
    Made(Vec<Value>),
    /// The Jobs are gone, or will be.
    Deleted(Vec<ObjectKey>),
    /// The API refuses them, for this reason.
    Refused(String),
    /// It failed for this reason, and may succeed later.
    Failed(String),
}

/// A task that does not ask for nodes for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GivenUp {
    reason: String,
    until: Micros,
    length: Duration,
}

/// The placeholders of a task that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HeldPlaceholders {
    /// Since when nodes are asked for.
    since: Micros,
    /// Whether one of their pods is on a node that a container is about to be on.
    in_the_way: bool,
    /// Whether all of their pods have nodes.
    placed: bool,
    /// Whether a Job of them has ended by itself.
    finished: bool,
}

/// What is to become of the placeholders of a task that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// They are to exist: nodes are asked for.
    Ask,
    /// They are not to exist now.
    Wait,
    /// They are not to exist for a while: the reason, a clause.
    GiveUp(String),
}

/// What is to become of the placeholders of each task that waits; those of all others are not to exist. `gangs` = the tasks,
/// of each pool the most important first.
fn verdicts(
    gangs: &[WaitingGang],
    rules: impl Fn(&str) -> Option<GrowthSettings>,
    existing: &BTreeMap<AllocationId, HeldPlaceholders>,
    given_up: &BTreeMap<AllocationId, GivenUp>,
    now: Micros,
) -> BTreeMap<AllocationId, Verdict> {
    let mut pending: BTreeMap<&str, usize> = BTreeMap::new();
    let mut verdicts = BTreeMap::new();
    for gang in gangs {
        let id = &gang.allocation_id;
        let Some(rules) = rules(&gang.resource_pool) else {
            continue;
        };
        let existing = existing.get(id);
        let pending = pending.entry(&gang.resource_pool).or_default();
        let asking = *pending + gang.shares.len();
        let most = usize::try_from(rules.max_pending_pods).unwrap_or(usize::MAX);
        let paused = given_up.get(id).is_some_and(|it| it.until > now);
        let verdict = match existing {
            _ if paused => Verdict::Wait,
            _ if gang.shares.len() > most => Verdict::GiveUp(format!(
                "it takes {} nodes, and at most {most} pods may ask for nodes at a time (\"max_pending_pods\")",
                gang.shares.len()
            )),
            _ if asking > most => Verdict::Wait,
            Some(existing) if existing.in_the_way => Verdict::Wait,
            Some(existing)
                if existing.finished || since(existing.since, now) >= rules.give_up_after =>
            {
                let minutes = rules.give_up_after.as_secs() / 60;
                Verdict::GiveUp(if existing.placed {
                    format!(
                        "nodes for it exist, and it could not start on them within {minutes} minutes"
                    )
                } else {
                    format!("not all nodes have come within {minutes} minutes")
                })
            }
            _ => Verdict::Ask,
        };
        if verdict == Verdict::Ask {
            *pending = asking;
        }
        verdicts.insert(id.clone(), verdict);
    }
    verdicts
}

fn since(then: Micros, now: Micros) -> Duration {
    Duration::from_micros(u64::try_from(now.0.saturating_sub(then.0)).unwrap_or(0))
}

fn after(then: Micros, wait: Duration) -> Micros {
    Micros(
        then.0
            .saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)),
    )
}

/// The placeholders of a cluster.
pub(crate) struct Placeholders {
    settings: Arc<Settings>,
    facts: ClusterFacts,
    /// Namespace of pools that have none.
    namespace: String,
    classes: Classes,
    /// A moment by both clocks.
    began: (Instant, Micros),
    gangs: Vec<WaitingGang>,
    /// Whether `gangs` may have changed.
    pub(crate) is_outdated: bool,
    given_up: BTreeMap<AllocationId, GivenUp>,
    /// Since when tasks ask that wait still, also where their placeholders give way for a moment.
    asking: BTreeMap<AllocationId, Micros>,
    /// Allocations for which a request is under way.
    busy: BTreeSet<AllocationId>,
    /// When requests that failed are made again.
    retries: BTreeMap<AllocationId, Instant>,
    /// What was reported last; `None` = nothing yet, and what a manager before this one has reported holds.
    reported: Option<BTreeMap<AllocationId, GrowthState>>,
    /// Whether something else may be to be reported.
    is_news: bool,
    /// When the first of those that were given up is so no more.
    first_over: Option<Micros>,
    due: Option<Instant>,
}

impl Placeholders {
    pub(crate) fn new(settings: &Arc<Settings>, facts: &ClusterFacts, namespace: &str) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_micros());
        Self {
            settings: Arc::clone(settings),
            facts: facts.clone(),
            namespace: namespace.to_owned(),
            classes: Classes::default(),
            began: (Instant::now(), Micros(i64::try_from(now).unwrap_or(0))),
            gangs: Vec::new(),
            is_outdated: true,
            given_up: BTreeMap::new(),
            asking: BTreeMap::new(),
            busy: BTreeSet::new(),
            retries: BTreeMap::new(),
            reported: None,
            is_news: true,
            first_over: None,
            due: None,
        }
    }

    /// Whether some pool asks for nodes.
    pub(crate) fn is_used(&self) -> bool {
        self.settings.pools.iter().any(|pool| pool.growth.is_some())
    }

    /// The tasks that wait are these.
    pub(crate) fn wait(&mut self, gangs: Vec<WaitingGang>) {
        self.is_outdated = false;
        self.is_news = true;
        self.gangs = gangs;
    }

    /// When something is to be done next without any change.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due
    }

    fn now(&self) -> Micros {
        after(self.began.1, self.began.0.elapsed())
    }

    fn instant(&self, at: Micros) -> Instant {
        self.began.0 + since(self.began.1, at)
    }

    /// A request has come to this.
    pub(crate) fn requested(
        &mut self,
        observer: &mut Observer,
        id: &AllocationId,
        outcome: GrowthOutcome,
    ) {
        self.busy.remove(id);
        self.retries.remove(id);
        match outcome {
            GrowthOutcome::Made(jobs) => {
                for job in &jobs {
                    observer.job_is(job, true);
                }
            }
            GrowthOutcome::Deleted(names) => {
                for name in names {
                    observer.books.placeholders.remove(&name);
                }
            }
            GrowthOutcome::Refused(reason) => self.give_up(id, reason),
            GrowthOutcome::Failed(reason) => {
                tracing::warn!(
                    allocation.id = id.as_str(),
                    reason,
                    "pods that ask for nodes cannot be made or deleted yet"
                );
                self.retries.insert(id.clone(), Instant::now() + RETRY);
            }
        }
    }

    fn give_up(&mut self, id: &AllocationId, mut reason: String) {
        // It may quote demands of the task, and is in each report.
        if let Some((end, _)) = reason.char_indices().nth(MOST_REASON) {
            reason.truncate(end);
        }
        let now = self.now();
        let before = self.given_up.get(id);
        // Several pods of one task may be refused together.
        if before.is_some_and(|before| before.until > now) {
            return;
        }
        let length = before.map_or(FIRST_PAUSE, |before| (before.length * 2).min(LONGEST_PAUSE));
        tracing::info!(
            allocation.id = id.as_str(),
            reason,
            "the cluster did not grow for a task that waits"
        );
        let given_up = GivenUp {
            reason,
            until: after(now, length),
            length,
        };
        self.given_up.insert(id.clone(), given_up);
        self.asking.remove(id);
        self.is_news = true;
    }

    /// Makes and deletes placeholders as they are wanted; gives how far growing is, if that is news.
    pub(crate) fn look(
        &mut self,
        observer: &mut Observer,
        limits: &Limits,
    ) -> Option<BTreeMap<AllocationId, GrowthState>> {
        for (id, reason) in std::mem::take(&mut observer.agenda.ungrown) {
            // What comes late is of placeholders that are not wanted any more.
            if self.gangs.iter().any(|gang| gang.allocation_id == id) {
                self.give_up(&id, reason);
            }
        }
        if self.gangs.is_empty()
            && observer.books.placeholders.is_empty()
            && self.reported.as_ref().is_some_and(BTreeMap::is_empty)
        {
            self.due = None;
            return None;
        }
        let now = self.now();
        let waiting: BTreeSet<&AllocationId> =
            self.gangs.iter().map(|it| &it.allocation_id).collect();
        self.asking.retain(|id, _| waiting.contains(id));
        self.given_up
            .retain(|id, it| after(it.until, REMEMBERED) > now || waiting.contains(id));
        let existing = existing(&observer.books);
        let pools = &self.settings.pools;
        let rules = |pool: &str| pools.iter().find(|it| it.name == pool)?.growth.clone();
        let verdicts = verdicts(&self.gangs, rules, &existing, &self.given_up, now);
        for (id, verdict) in &verdicts {
            if let Verdict::GiveUp(reason) = verdict {
                self.give_up(id, reason.clone());
            }
        }
        let adopts_no_more = self.began.0.elapsed() >= self.settings.adopt_within;
        for id in existing.keys() {
            let stays = match verdicts.get(id) {
                Some(verdict) => *verdict == Verdict::Ask,
                None => !adopts_no_more && !self.is_given_up(id, now),
            };
            if !stays {
                self.delete(observer, id);
            }
        }
        for gang in self.gangs.clone() {
            if verdicts.get(&gang.allocation_id) == Some(&Verdict::Ask) {
                self.ask(observer, limits, &gang, now);
            }
        }
        self.due = self.next(&existing, now);
        self.news(now)
    }

    /// Makes the placeholders of a task, unless they exist as they are to be.
    fn ask(&mut self, observer: &mut Observer, limits: &Limits, gang: &WaitingGang, now: Micros) {
        let id = &gang.allocation_id;
        let known = of_allocation(&observer.books, id);
        let recorded = known.first().map(|(_, job)| job.recorded.since);
        let began = *self.asking.entry(id.clone()).or_insert_with(|| {
            self.is_news = true;
            recorded.unwrap_or(now)
        });
        let settings = Arc::clone(&self.settings);
        let mut pools = settings.pools.iter();
        let Some(pool) = pools.find(|it| it.name == gang.resource_pool) else {
            return;
        };
        let Some(rules) = &pool.growth else {
            return;
        };
        // Not that of the task, if its workspace has one: a quota there would count the placeholders, and refuse the task's own
        // pods for as long as they exist. What that namespace demands of nodes is in them all the same.
        let namespace = self.settings.namespace_of(&gang.resource_pool);
        let namespace = namespace.unwrap_or(&self.namespace).to_owned();
        let nodes = |place: &det_ids::PlaceId| {
            let name = place.as_str();
            name.split_once('@')
                .map_or(name, |(node, _)| node)
                .to_owned()
        };
        let left = rules.give_up_after.saturating_sub(since(began, now));
        let request = PlaceholderRequest {
            allocation_id: id,
            resource_pool: &gang.resource_pool,
            namespace: &namespace,
            shares: &gang.shares,
            demands: gang.demands.as_ref(),
            pool: pool.pod_spec.as_ref(),
            selected: limits.selector(&gang.resource_pool, gang.workspace),
            excluded_nodes: &gang.excluded_places.iter().map(nodes).collect(),
            image: &rules.image,
            since: began,
            deadline_seconds: (left + LEFT_ALONE).as_secs(),
        };
        let wanted = match placeholders(&self.facts, &request) {
            Ok(wanted) => wanted,
            Err(reason) => {
                let exist = !known.is_empty();
                self.give_up(id, reason);
                if exist {
                    self.delete(observer, id);
                }
                return;
            }
        };
        let is_same = known
            .iter()
            .all(|(_, job)| job.recorded.pods == wanted.pods);
        if !is_same {
            return self.delete(observer, id);
        }
        if known.len() == wanted.jobs.len() || self.is_held_up(id) {
            return;
        }
        self.busy.insert(id.clone());
        let creation = Creation {
            api: observer.requests.api.clone(),
            classes: self.classes.clone(),
            namespace,
            jobs: wanted.jobs,
            seal: self.facts.seal.clone(),
        };
        let (sender, id) = (observer.requests.sender.clone(), id.clone());
        tokio::spawn(async move {
            let outcome = match creation.run().await {
                Ok(jobs) => GrowthOutcome::Made(jobs),
                Err(ApiError::Refused(reason) | ApiError::Forbidden(reason)) => {
                    GrowthOutcome::Refused(format!(
                        "pods that ask for nodes cannot be made: {reason}"
                    ))
                }
                Err(error) => GrowthOutcome::Failed(error.to_string()),
            };
            // The manager has ended, and another one will find what exists.
            drop(sender.send(Message::Grown(id, outcome)).await);
        });
    }

    /// Deletes the placeholders of an allocation.
    fn delete(&mut self, observer: &Observer, id: &AllocationId) {
        if self.is_held_up(id) {
            return;
        }
        let known = of_allocation(&observer.books, id).into_iter();
        let jobs: Vec<(ObjectKey, String)> = known
            .map(|(name, job)| (name.clone(), job.uid.clone()))
            .collect();
        self.busy.insert(id.clone());
        let (api, id) = (observer.requests.api.clone(), id.clone());
        let sender = observer.requests.sender.clone();
        tokio::spawn(async move {
            let mut deleted = Vec::new();
            let mut failed = None;
            for (job, uid) in jobs {
                let at = (job.namespace.as_str(), job.name.as_str());
                match api.delete(Kind::Job, at, &uid, None).await {
                    Ok(()) => deleted.push(job),
                    Err(error) => failed = Some(error.to_string()),
                }
            }
            let outcome = failed.map_or(GrowthOutcome::Deleted(deleted), GrowthOutcome::Failed);
            // The manager has ended, and another one will find what exists.
            drop(sender.send(Message::Grown(id, outcome)).await);
        });
    }

    /// Whether a request about an allocation is under way, or is not to be made yet.
    fn is_held_up(&self, id: &AllocationId) -> bool {
        let retry = self.retries.get(id);
        self.busy.contains(id) || retry.is_some_and(|at| *at > Instant::now())
    }

    /// When something is due without any change.
    fn next(
        &self,
        existing: &BTreeMap<AllocationId, HeldPlaceholders>,
        now: Micros,
    ) -> Option<Instant> {
        let ends = self.gangs.iter().filter_map(|gang| {
            let mut pools = self.settings.pools.iter();
            let pool = pools.find(|it| it.name == gang.resource_pool)?;
            let since = existing.get(&gang.allocation_id)?.since;
            Some(after(since, pool.growth.as_ref()?.give_up_after))
        });
        let pauses = self.given_up.values().map(|given_up| given_up.until);
        let due = ends.chain(pauses).filter(|at| *at > now);
        let due = due.map(|at| self.instant(at));
        let now = Instant::now();
        let retries = self.retries.values().copied().filter(|at| *at > now);
        let adopted = self.began.0 + self.settings.adopt_within;
        let adopted = (!existing.is_empty() && adopted > now).then_some(adopted);
        due.chain(retries).chain(adopted).min()
    }

    fn is_given_up(&self, id: &AllocationId, now: Micros) -> bool {
        self.given_up.get(id).is_some_and(|it| it.until > now)
    }

    /// How far growing is, if that differs from what was reported. Tasks that were given up are reported although they are not
    /// among those that wait: by that they are left out of these.
    fn news(&mut self, now: Micros) -> Option<BTreeMap<AllocationId, GrowthState>> {
        if !self.is_news && self.first_over.is_none_or(|at| at > now) {
            return None;
        }
        self.is_news = false;
        let asked = self.gangs.iter().filter_map(|gang| {
            let state = GrowthState::Asked {
                shares: gang.shares.clone(),
                since: *self.asking.get(&gang.allocation_id)?,
            };
            Some((gang.allocation_id.clone(), state))
        });
        let given_up = self.given_up.iter().filter(|(_, it)| it.until > now);
        self.first_over = given_up.clone().map(|(_, it)| it.until).min();
        let given_up = given_up.map(|(id, it)| {
            let state = GrowthState::GivenUp {
                reason: it.reason.clone(),
                until: it.until,
            };
            (id.clone(), state)
        });
        let states: BTreeMap<_, _> = asked.chain(given_up).collect();
        if self.reported.as_ref() == Some(&states) {
            return None;
        }
        self.reported = Some(states.clone());
        Some(states)
    }
}

/// The Jobs of an allocation's placeholders.
fn of_allocation<'b>(
    books: &'b Books,
    id: &AllocationId,
) -> Vec<(&'b ObjectKey, &'b PlaceholderJob)> {
    let jobs = books.placeholders.iter();
    jobs.filter(|(_, job)| job.recorded.allocation_id == *id)
        .collect()
}

/// The placeholders that exist, by allocation.
fn existing(books: &Books) -> BTreeMap<AllocationId, HeldPlaceholders> {
    let mut existing: BTreeMap<AllocationId, HeldPlaceholders> = BTreeMap::new();
    for (name, job) in &books.placeholders {
        let nodes: Vec<Option<&str>> = books.of_job(name).map(|pod| pod.node.as_deref()).collect();
        let in_the_way = nodes.iter().flatten().any(|node| books.awaits(node));
        let placed = !nodes.is_empty() && nodes.iter().all(Option::is_some);
        let id = job.recorded.allocation_id.clone();
        let of_others = existing.entry(id).or_insert(HeldPlaceholders {
            since: job.recorded.since,
            in_the_way: false,
            placed: true,
            finished: false,
        });
        of_others.since = of_others.since.min(job.recorded.since);
        of_others.in_the_way |= in_the_way;
        of_others.placed &= placed;
        of_others.finished |= job.finished;
    }
    existing
}

/// The creation of the placeholders of one task.
struct Creation {
    api: KubeApi,
    classes: Classes,
    namespace: String,
    jobs: Vec<Value>,
    seal: det_pods::Seal,
}

impl Creation {
    /// Creates those that do not exist. May be repeated.
    async fn run(self) -> Result<Vec<Value>, ApiError> {
        // Without their class they would be as important as tasks, and might end pods of others.
        if self
            .classes
            .usable(&self.api, &placeholder_class())
            .await?
            .is_none()
        {
            let reason = "the master may neither read nor make their PriorityClass".to_owned();
            return Err(ApiError::Refused(reason));
        }
        let mut made = Vec::new();
        for job in &self.jobs {
            made.push(
                match self.api.create(Kind::Job, &self.namespace, job).await {
                    Err(ApiError::Exists) => self.found(job).await?,
                    created => created?,
                },
            );
        }
        Ok(made)
    }

    /// One that exists: the same of this task, or one that is about to go.
    async fn found(&self, job: &Value) -> Result<Value, ApiError> {
        let at = (self.namespace.as_str(), name(job));
        let found = self.api.get(Kind::Job, at).await?;
        let record = |job: &Value| det_pods::recorded_placeholder(&self.seal, job);
        match (record(&found), record(job)) {
            (Some(known), Some(wanted)) if known.pods == wanted.pods => Ok(found),
            (Some(_), _) => Err(ApiError::Passing(format!(
                "Job \"{}\" is still there",
                name(job)
            ))),
            (None, _) => Err(ApiError::Refused(format!(
                "a Job \"{}\" exists that is another's (uid {})",
                name(job),
                uid(&found)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use det_rm::Share;
    use proptest::prelude::*;

    use super::*;

    const MINUTE: i64 = 60_000_000;

    fn gang(id: &str, nodes: usize) -> WaitingGang {
        let share = Share {
            slots: 8,
            containers: 1,
        };
        WaitingGang {
            allocation_id: id.into(),
            resource_pool: "default".to_owned(),
            workspace: None,
            shares: vec![share; nodes],
            demands: None,
            excluded_places: BTreeSet::new(),
        }
    }

    fn rules(pool: &str) -> Option<GrowthSettings> {
        (pool == "default").then(|| GrowthSettings {
            max_pending_pods: 4,
            give_up_after: Duration::from_mins(15),
            image: "pause".to_owned(),
        })
    }

    fn asked_at(minute: i64) -> HeldPlaceholders {
        HeldPlaceholders {
            since: Micros(minute * MINUTE),
            in_the_way: false,
            placed: false,
            finished: false,
        }
    }

    fn verdict(
        gang: &WaitingGang,
        existing: Option<HeldPlaceholders>,
        minute: i64,
    ) -> Option<Verdict> {
        let id = gang.allocation_id.clone();
        let existing = existing.map(|it| (id.clone(), it)).into_iter().collect();
        let now = Micros(minute * MINUTE);
        let all = verdicts(
            std::slice::from_ref(gang),
            rules,
            &existing,
            &BTreeMap::new(),
            now,
        );
        all.get(&id).cloned()
    }

    fn reason(verdict: Option<Verdict>) -> String {
        match verdict {
            Some(Verdict::GiveUp(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_task_asks_until_it_has_asked_for_too_long() {
        let gang = gang("t", 2);
        assert_eq!(verdict(&gang, None, 100), Some(Verdict::Ask));
        assert_eq!(verdict(&gang, Some(asked_at(0)), 14), Some(Verdict::Ask));
        let why = reason(verdict(&gang, Some(asked_at(0)), 15));
        assert_eq!(why, "not all nodes have come within 15 minutes");
        let placed = HeldPlaceholders {
            placed: true,
            ..asked_at(0)
        };
        let why = reason(verdict(&gang, Some(placed), 15));
        assert!(why.starts_with("nodes for it exist"), "{why}");
        let ended = HeldPlaceholders {
            finished: true,
            ..asked_at(0)
        };
        reason(verdict(&gang, Some(ended), 1));
    }

    #[test]
    fn placeholders_give_way_to_a_task_that_is_started_on_their_node() {
        let in_the_way = HeldPlaceholders {
            in_the_way: true,
            ..asked_at(0)
        };
        let gang = gang("t", 2);
        assert_eq!(verdict(&gang, Some(in_the_way), 1), Some(Verdict::Wait));
    }

    #[test]
    fn what_can_never_ask_is_explained_and_pools_that_do_not_grow_ask_for_nothing() {
        let why = reason(verdict(&gang("t", 5), None, 0));
        assert!(why.contains("at most 4 pods"), "{why}");
        let mut elsewhere = gang("t", 1);
        elsewhere.resource_pool = "other".to_owned();
        assert_eq!(verdict(&elsewhere, None, 0), None);
    }

    proptest! {
        /// The pods that ask are never more than may, none of them is of a task that was given up or has asked too long, and
        /// no task waits for its turn that there is a turn for, however often this is asked.
        #[test]
        fn the_most_important_tasks_ask_within_the_limit(
            tasks in prop::collection::vec((1_usize..6, 0_i64..40, any::<(bool, bool, bool)>()), 0..12),
        ) {
            let now = Micros(30 * MINUTE);
            let mut gangs = Vec::new();
            let mut existing = BTreeMap::new();
            let mut given_up = BTreeMap::new();
            for (number, (nodes, since, (exists, is_given_up, in_the_way))) in tasks.iter().enumerate() {
                let gang = gang(&format!("t{number:02}"), *nodes);
                if *exists {
                    existing.insert(gang.allocation_id.clone(), HeldPlaceholders { in_the_way: *in_the_way, ..asked_at(*since) });
                }
                if *is_given_up {
                    let until = Micros(since * MINUTE);
                    let length = FIRST_PAUSE;
                    given_up.insert(gang.allocation_id.clone(), GivenUp { reason: String::new(), until, length });
                }
                gangs.push(gang);
            }
            let found = verdicts(&gangs, rules, &existing, &given_up, now);
            prop_assert_eq!(found.len(), gangs.len());
            let mut pending = 0;
            for gang in &gangs {
                let id = &gang.allocation_id;
                let paused = given_up.get(id).is_some_and(|it| it.until > now);
                let known = existing.get(id);
                let is_late = known.is_some_and(|it| since(it.since, now) >= Duration::from_mins(15));
                match &found[id] {
                    Verdict::Ask => {
                        prop_assert!(!paused && !is_late);
                        pending += gang.shares.len();
                        prop_assert!(pending <= 4);
                    }
                    Verdict::Wait => prop_assert!(
                        paused || known.is_some_and(|it| it.in_the_way) || pending + gang.shares.len() > 4
                    ),
                    Verdict::GiveUp(_) => prop_assert!(!paused && (is_late || gang.shares.len() > 4)),
                }
            }
        }
    }
}
