//! Which nodes pods fit, besides the slots that are free there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::PlaceId;
use det_pods::{NodeFacts, Resources, SlotResources};
use det_rm::{Fit, FitQuery, Misfits, PlacementRequest, ReadDemands};
use serde_json::Value;

use crate::Settings;
use crate::limits::{Limits, NamespaceDemands, Refusal};
use crate::observing::Observer;

/// Demands whose answers are kept; beyond it they are made each time.
const MOST_KEPT: usize = 256;

/// Reads what jobs demand of nodes in their pod specs.
#[derive(Debug, Clone, Copy, Default)]
pub struct PodDemands;

impl ReadDemands for PodDemands {
    fn demands(&self, request: PlacementRequest<'_>) -> Option<Value> {
        request.pod_spec.and_then(det_pods::demands)
    }
}

/// A place, as far as it matters besides slots.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlaceFacts {
    pub(crate) node: Arc<NodeFacts>,
    /// What all pods of the node take.
    pub(crate) used: Resources,
    /// Whether the master keeps new pods off it.
    pub(crate) drained: bool,
    /// Pods that Kubernetes did not assign to it, by what they demand: why, until it is tried again.
    pub(crate) held_off: BTreeMap<String, String>,
}

/// What is known of all places at one moment.
#[derive(Debug)]
pub(crate) struct NodeFit {
    /// Facts of each place, by name of the pool.
    pools: BTreeMap<String, BTreeMap<PlaceId, Arc<PlaceFacts>>>,
    slots: SlotResources,
    limits: Limits,
    answers: Mutex<Answers>,
}

/// What an answer depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    pool: String,
    /// Demands of the task ([`key_of`]).
    key: String,
    /// The namespace, where that has a node selector; else empty.
    selected_by: String,
    /// Why no place takes the task, whatever is free there: a quota.
    refusal: Option<Refusal>,
}

type Answers = BTreeMap<Question, Answer>;

#[derive(Debug, Clone)]
struct Answer {
    misfits: Option<Arc<Misfits>>,
    /// Whether it was asked for; if not, it is from an earlier moment, and nothing may demand this any more.
    was_asked: bool,
}

/// Demands as a key, which equal demands have in common.
pub(crate) fn key_of(demands: Option<&Value>) -> String {
    demands.map(Value::to_string).unwrap_or_default()
}

impl NodeFit {
    /// `before` = what was known before: answers that have stayed the same stay the same objects.
    pub(crate) fn new(
        pools: BTreeMap<String, BTreeMap<PlaceId, Arc<PlaceFacts>>>,
        slots: SlotResources,
        limits: Limits,
        before: Option<&Self>,
    ) -> Self {
        let fit = Self {
            pools,
            slots,
            limits,
            answers: Mutex::default(),
        };
        let known = before.map(|before| before.lock().clone());
        let known = known.into_iter().flatten();
        for (question, answer) in known.filter(|(_, answer)| answer.was_asked) {
            let demands = serde_json::from_str::<Value>(&question.key).ok();
            let now = fit.compare(&question, demands.as_ref());
            let is_same = now.as_ref() == answer.misfits.as_deref();
            let misfits = if is_same {
                answer.misfits
            } else {
                now.map(Arc::new)
            };
            let was_asked = false;
            fit.lock().insert(question, Answer { misfits, was_asked });
        }
        fit
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compare(&self, question: &Question, demands: Option<&Value>) -> Option<Misfits> {
        // A pool that has no node yet has no places, and is not to grow for what a quota does not admit.
        let places = self.pools.get(&question.pool);
        let places = places.into_iter().flatten();
        let misfits = if let Some(refusal) = &question.refusal {
            let places = places.map(|(place, _)| place.clone());
            let reason = refusal.reason.clone();
            if refusal.outlasts_growth {
                Misfits::refused(places, reason)
            } else {
                Misfits::of(places.map(|place| (place, (false, reason.clone()))))
            }
        } else {
            let namespace = question.selected_by.as_str();
            let limits = self.limits.of_namespace(namespace);
            Misfits::of(places.filter_map(|(place, facts)| {
                let excluded = limits.and_then(|limits| limits.excludes(namespace, &facts.node));
                let excluded = excluded.map(|reason| (true, reason));
                let slots = (&self.slots, question.pool.as_str());
                let misfit = excluded.or_else(|| facts.misfit(demands, &question.key, slots))?;
                Some((place.clone(), misfit))
            }))
        };
        (!misfits.is_empty()).then_some(misfits)
    }
}

impl PlaceFacts {
    /// Whether it never fits, and why it does not.
    fn misfit(
        &self,
        demands: Option<&Value>,
        key: &str,
        slots: (&SlotResources, &str),
    ) -> Option<(bool, String)> {
        if self.drained {
            return Some((false, "they are disabled or drained".to_owned()));
        }
        let misfit = det_pods::misfit(demands, &self.node, &self.used, slots);
        let misfit = misfit.map(|misfit| (misfit.lasts, misfit.reason));
        misfit.or_else(|| Some((false, self.held_off.get(key)?.clone())))
    }
}

impl Fit for NodeFit {
    fn misfits(&self, query: FitQuery<'_>) -> Option<Arc<Misfits>> {
        let NamespaceDemands {
            selected_by,
            refusal,
        } = self.limits.of(query);
        let at = Question {
            pool: query.pool.to_owned(),
            key: key_of(query.demands),
            selected_by: selected_by.unwrap_or_default().to_owned(),
            refusal,
        };
        if let Some(known) = self.lock().get_mut(&at) {
            known.was_asked = true;
            return known.misfits.clone();
        }
        let misfits = self.compare(&at, query.demands).map(Arc::new);
        let mut answers = self.lock();
        if answers.len() < MOST_KEPT {
            let answer = Answer {
                misfits: misfits.clone(),
                was_asked: true,
            };
            answers.insert(at, answer);
        }
        misfits
    }
}

/// What is known of all places besides slots, kept up to date.
pub(crate) struct Fitting {
    settings: Arc<Settings>,
    pools: BTreeMap<String, BTreeMap<PlaceId, Arc<PlaceFacts>>>,
    reported: Option<Arc<NodeFit>>,
}

impl Fitting {
    pub(crate) fn new(settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            pools: BTreeMap::new(),
            reported: None,
        }
    }

    /// Looks at some nodes again; gives what is to be reported, if that is news, as it is where `limits` have changed.
    pub(crate) fn update(
        &mut self,
        observer: &Observer,
        nodes: &BTreeSet<String>,
        (limits, have_changed): (&Limits, bool),
    ) -> Option<Arc<dyn Fit>> {
        let mut is_news = have_changed;
        for node in nodes {
            is_news |= self.update_node(observer, node);
        }
        if !is_news {
            return None;
        }
        let slots = self.settings.slots.clone();
        let before = self.reported.as_deref();
        let fit = NodeFit::new(self.pools.clone(), slots, limits.clone(), before);
        let fit = Arc::new(fit);
        self.reported = Some(Arc::clone(&fit));
        Some(fit)
    }

    fn update_node(&mut self, observer: &Observer, name: &str) -> bool {
        let node = observer.books.nodes.get(name);
        let facts = node.map(|node| PlaceFacts {
            node: Arc::clone(node),
            used: observer.books.used_on(name),
            drained: node.labels.contains_key(&observer.drain_label),
            held_off: observer.holds.on(name),
        });
        let facts = facts.map(Arc::new);
        let nothing = Value::Null;
        let mut is_news = false;
        for (number, pool) in self.settings.pools.iter().enumerate() {
            let spec = pool.pod_spec.as_ref().unwrap_or(&nothing);
            let here = facts.as_ref();
            let here = here.filter(|facts| det_pods::admits(spec, &facts.node));
            let places = self.pools.entry(pool.name.clone()).or_default();
            let place = self.settings.place(name, number);
            is_news |= match here {
                Some(facts) if places.get(&place) == Some(facts) => false,
                Some(facts) => {
                    places.insert(place, Arc::clone(facts));
                    true
                }
                None => places.remove(&place).is_some(),
            };
        }
        is_news
    }
}
