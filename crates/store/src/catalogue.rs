//! The columns by which lists of experiments are filtered and sorted, in memory.
//!
//! A list can be filtered by parts of names, labels, owners, states and more, sorted by fifteen things, and wants to
//! know how many match in all. No set of indexes answers all of that without reading every experiment. Some 150 bytes
//! of each are enough, and going through those of a hundred thousand takes some milliseconds. Its name and labels are
//! held too; of its description the beginning: the rest, where there is one, is searched in the database, of those
//! experiments only for which nothing else decides.
//!
//! The rows are the truth. Every change of an experiment's row gives it the next `revision` (see `experiments`), and
//! [`Catalogue::refresh`] reads the rows with newer revisions than it has, by an index. There is one writer, so
//! revisions become visible in their order, and a list shows every change that was acknowledged before its request.

mod names;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{PoisonError, RwLock};

use det_ids::{ExperimentId, ProjectId, UserId};
use det_lifecycle::state_name::StateName;
use memchr::memmem::Finder;

use self::names::{Name, Names};
use crate::db::Link;
use crate::experiments::{Filter, Sort};
use crate::query::{Query, Value};
use crate::{Store, StoreError};

/// What is read of an experiment.
#[derive(Debug, crate::Row)]
struct Row {
    id: ExperimentId,
    revision: i64,
    owner_id: UserId,
    project_id: ProjectId,
    parent_id: Option<ExperimentId>,
    name_folded: String,
    /// The beginning of the folded description.
    description_held: String,
    /// Whether the description goes on after that.
    description_is_cut: bool,
    labels: String,
    state: String,
    archived: bool,
    resource_pool: String,
    progress: f64,
    created_at: i64,
    ended_at: Option<i64>,
    trial_count: i64,
    best_metric: Option<f64>,
    checkpoint_count: i64,
    checkpoint_bytes: i64,
}

/// Characters of a description that are held.
macro_rules! held {
    () => {
        128
    };
}

/// A query for the columns of [`Row`], of all experiments unless a condition follows.
macro_rules! columns {
    () => {
        concat!(
            "SELECT id, revision, owner_id, project_id, parent_id, name_folded, substr(description_folded, 1, ",
            held!(),
            ") AS description_held, length(description_folded) > ",
            held!(),
            " AS description_is_cut, labels, state, archived, resource_pool, progress, created_at, ended_at, \
             trial_count, best_metric, checkpoint_count, checkpoint_bytes FROM experiments"
        )
    };
}

/// Reads all experiments, once at the start.
const LOAD: &str = columns!();
/// What has changed since a revision.
pub(crate) const CHANGED: &str = concat!(columns!(), " WHERE revision > $1");
/// What has been deleted since a revision.
pub(crate) const DELETED: &str =
    "SELECT experiment_id, revision FROM deleted_experiments WHERE revision > $1";

/// Sets of labels that no experiment has any more are kept up to this many beyond as many as there are experiments.
const SPARE_LABEL_SETS: usize = 1000;
/// The labels of an experiment, by place in [`Entries::label_sets`]: many experiments have the same.
type LabelSet = usize;

/// A user who owns something, by place in [`Entries::owners`].
type Owner = usize;

/// A text of an experiment, as a part of [`Entries::texts`], in bytes.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    length: u32,
}

/// Declares [`Columns`]: a list for each thing that is known of experiments, all of the same length.
macro_rules! columns_of {
    ($($name:ident: $kind:ty),+ $(,)?) => {
        /// What is known of one experiment.
        #[derive(Debug)]
        struct Entry {
            $($name: $kind,)+
        }

        /// Experiments in order of their numbers. Not a list of entries: a question is about one or two things of each,
        /// and reads those alone from memory.
        #[derive(Debug, Default)]
        struct Columns {
            $($name: Vec<$kind>,)+
        }

        impl Columns {
            fn reserve(&mut self, more: usize) {
                $(self.$name.reserve(more);)+
            }

            fn insert(&mut self, place: usize, entry: Entry) {
                $(self.$name.insert(place, entry.$name);)+
            }

            fn replace(&mut self, place: usize, entry: Entry) {
                $(self.$name[place] = entry.$name;)+
            }

            fn remove(&mut self, place: usize) {
                $(self.$name.remove(place);)+
            }
        }
    };
}

columns_of! {
    id: ExperimentId,
    owner: Owner,
    project_id: ProjectId,
    parent_id: Option<ExperimentId>,
    name: Span,
    description: Span,
    description_is_cut: bool,
    labels: LabelSet,
    state: Name,
    resource_pool: Name,
    archived: bool,
    progress: f64,
    created_at: i64,
    ended_at: Option<i64>,
    trial_count: i64,
    best_metric: Option<f64>,
    checkpoint_count: i64,
    checkpoint_bytes: i64,
}

#[derive(Debug, Default)]
struct Entries {
    all: Columns,
    /// Names and beginnings of descriptions one after another, so that a search through all of them reads memory in order.
    texts: String,
    /// Bytes of `texts` that no entry uses any more.
    unused: usize,
    names: Names,
    /// Numbers of the users who own something.
    owners: Vec<UserId>,
    owner_of: HashMap<UserId, Owner>,
    label_sets: Vec<Box<[Name]>>,
    label_set_of: HashMap<Box<[Name]>, LabelSet>,
    /// The newest revision read of experiments that exist; `None` = nothing was read yet.
    revision: Option<i64>,
    /// The newest revision seen of what was deleted. Apart from the other: the two are read one after the other, and
    /// what is deleted between must not hide behind what is changed between.
    deleted: i64,
}

/// Numbers of all experiments of a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many experiments are in the project.
    pub experiments: i64,
    /// How many of them have not come to their end.
    pub live: i64,
    /// Trials of all of them.
    pub trials: i64,
    /// When the newest was created, microseconds.
    pub last_created_at: Option<i64>,
}

/// The experiments of a database, as far as lists need to know them before they know which to show.
#[derive(Debug, Default)]
pub struct Catalogue {
    entries: RwLock<Entries>,
    /// Held by the caller that reads everything for the first time.
    loading: tokio::sync::Mutex<()>,
    /// Held by the search that reads long descriptions: it takes one connection at a time from all others.
    searching: tokio::sync::Mutex<()>,
}

/// Experiments whose long descriptions are read at once: some 13 MiB at most, before other reads have the connection.
const TEXTS_AT_ONCE: usize = 200;

impl Catalogue {
    /// An empty one; the first [`Catalogue::refresh`] reads everything.
    pub fn new() -> Self {
        Self::default()
    }

    fn read<T>(&self, look: impl FnOnce(&Entries) -> T) -> T {
        look(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of the names and the beginnings of descriptions that are held.
    pub fn text_bytes(&self) -> usize {
        self.read(|entries| entries.texts.len())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries) -> T) -> T {
        change(&mut self.entries.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads everything that has been committed by now.
    pub async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        let mut known = self.read(|e| e.revision.map(|revision| (revision, e.deleted)));
        // Kept until this call is over: callers that come meanwhile wait instead of reading everything as well.
        let _loading = match known {
            Some(_) => None,
            None => {
                let guard = self.loading.lock().await;
                known = self.read(|e| e.revision.map(|revision| (revision, e.deleted)));
                Some(guard)
            }
        };
        let mut conn = store.read().await?;
        let conn = &mut conn.conn();
        let (deleted, rows) = match known {
            None => (Vec::new(), fetch_all!(conn, Row, LOAD)?),
            // Deletions first: a number is never given twice, so nothing that is read afterwards was deleted before.
            Some((revision, deleted)) => (
                fetch_all!(conn, (ExperimentId, i64), DELETED, deleted)?,
                fetch_all!(conn, Row, CHANGED, revision)?,
            ),
        };
        if known.is_some() && deleted.is_empty() && rows.is_empty() {
            return Ok(());
        }
        self.change(|entries| entries.ingest(rows, &deleted))
    }

    /// Prepares a search: of experiments of whose descriptions only the beginnings are held, the database finds those
    /// that contain what is searched for.
    pub(crate) async fn search<'f>(
        &self,
        store: &Store,
        filter: &'f Filter,
    ) -> Result<Search<'f>, StoreError> {
        let mut search = Search::from(filter);
        let Some(text) = &filter.description else {
            return Ok(search);
        };
        let open = self.read(|entries| {
            let wanted = PreparedFilter::new(&search, entries);
            let places = 0..entries.all.id.len();
            let open = places.filter(|place| wanted.is_open(entries, *place));
            open.map(|place| entries.all.id[place]).collect::<Vec<_>>()
        });
        if open.is_empty() {
            return Ok(search);
        }
        let _turn = self.searching.lock().await;
        for ids in open.chunks(TEXTS_AT_ONCE) {
            let mut conn = store.read().await?;
            let conn = &mut conn.conn();
            let contains = match &conn.link {
                Link::Lite(_) => "instr(description_folded, ",
                Link::Pg(_) => "strpos(description_folded, ",
            };
            // As many each time: each other number would be another statement, which connections remember.
            let last = ids.last().copied();
            let ids = ids
                .iter()
                .copied()
                .chain(std::iter::repeat_n(last, TEXTS_AT_ONCE).flatten());
            let mut query = Query::new("SELECT id FROM experiments");
            query.any_of("id", ids.take(TEXTS_AT_ONCE));
            query
                .condition(contains)
                .bind(Value::Text(text.to_lowercase()))
                .push(") > 0");
            let found: Vec<(ExperimentId,)> = query.fetch_all(conn).await?;
            search.described.extend(found.into_iter().map(|(id,)| id));
        }
        Ok(search)
    }

    /// The numbers of one page of the experiments that a search finds, and how many those are in all. The number is
    /// the tie break; `limit` below 0 = all. `user_names` are needed for [`Sort::User`] only.
    pub(crate) fn page(
        &self,
        search: &Search<'_>,
        sort: Sort,
        descending: bool,
        offset: i64,
        limit: i64,
        user_names: &HashMap<UserId, String>,
    ) -> (Vec<ExperimentId>, i64) {
        self.read(|entries| {
            let offset = usize::try_from(offset.max(0)).unwrap_or(usize::MAX);
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let wanted = PreparedFilter::new(search, entries);
            let order = Order {
                entries,
                sort,
                descending,
                owner_names: match sort {
                    Sort::User => entries.owners.iter().map(|id| user_names.get(id)).collect(),
                    _ => Vec::new(),
                },
            };
            let (best, total) = order.best(&wanted, offset.saturating_add(limit));
            let ids = best
                .into_iter()
                .skip(offset)
                .map(|place| entries.all.id[place])
                .collect();
            (ids, i64::try_from(total).unwrap_or(i64::MAX))
        })
    }

    /// The totals of each project that has experiments.
    pub fn totals(&self) -> BTreeMap<ProjectId, Totals> {
        self.read(|entries| {
            let all = &entries.all;
            let live: Vec<Name> = StateName::LIVE
                .iter()
                .filter_map(|state| entries.names.find(state.name()))
                .collect();
            let mut of_project: HashMap<ProjectId, Totals> = HashMap::new();
            for (place, project) in all.project_id.iter().enumerate() {
                let totals = of_project.entry(*project).or_default();
                totals.experiments += 1;
                totals.trials += all.trial_count[place];
                totals.last_created_at = totals.last_created_at.max(Some(all.created_at[place]));
                totals.live += i64::from(live.contains(&all.state[place]));
            }
            of_project.into_iter().collect()
        })
    }

    /// All labels in use, sorted; of one project when given.
    pub fn labels(&self, project_id: Option<ProjectId>) -> Vec<String> {
        self.read(|entries| {
            let projects = entries.all.project_id.iter();
            let used: HashSet<Name> = projects
                .zip(
                    entries
                        .all
                        .labels
                        .iter()
                        .map(|set| &entries.label_sets[*set]),
                )
                .filter(|(project, _)| project_id.is_none_or(|id| **project == id))
                .flat_map(|(_, labels)| labels.iter().copied())
                .collect();
            let sorted: BTreeSet<&str> = used.into_iter().map(|n| entries.names.text(n)).collect();
            sorted.into_iter().map(str::to_owned).collect()
        })
    }
}

impl Entries {
    fn ingest(
        &mut self,
        mut rows: Vec<Row>,
        deleted: &[(ExperimentId, i64)],
    ) -> Result<(), StoreError> {
        // In the order of their numbers, so that a search goes through memory in one direction.
        rows.sort_unstable_by_key(|row| row.id);
        self.all.reserve(rows.len());
        let mut revision = self.revision.unwrap_or(0);
        for row in rows {
            revision = revision.max(row.revision);
            let entry = self.entry(&row)?;
            match self.all.id.binary_search(&row.id) {
                Ok(place) => {
                    self.give_up(place);
                    self.all.replace(place, entry);
                }
                Err(place) => self.all.insert(place, entry),
            }
        }
        for (id, revision) in deleted {
            self.deleted = self.deleted.max(*revision);
            if let Ok(place) = self.all.id.binary_search(id) {
                self.give_up(place);
                self.all.remove(place);
            }
        }
        self.revision = Some(revision);
        if self.unused > self.texts.len() / 2 {
            self.pack();
        }
        if self.label_sets.len() > 2 * self.all.id.len() + SPARE_LABEL_SETS {
            self.pack_names();
        }
        Ok(())
    }

    fn entry(&mut self, row: &Row) -> Result<Entry, StoreError> {
        let labels: Vec<String> =
            serde_json::from_str(&row.labels).map_err(|e| StoreError::Corrupt {
                what: format!("labels of experiment {}", row.id),
                message: e.to_string(),
            })?;
        Ok(Entry {
            id: row.id,
            owner: self.owner(row.owner_id),
            project_id: row.project_id,
            parent_id: row.parent_id,
            name: self.keep(&row.name_folded),
            description: self.keep(&row.description_held),
            description_is_cut: row.description_is_cut,
            labels: self.label_set(&labels),
            state: self.names.number(&row.state),
            resource_pool: self.names.number(&row.resource_pool),
            archived: row.archived,
            progress: row.progress,
            created_at: row.created_at,
            ended_at: row.ended_at,
            trial_count: row.trial_count,
            best_metric: row.best_metric,
            checkpoint_count: row.checkpoint_count,
            checkpoint_bytes: row.checkpoint_bytes,
        })
    }

    fn owner(&mut self, id: UserId) -> Owner {
        *self.owner_of.entry(id).or_insert_with(|| {
            self.owners.push(id);
            self.owners.len() - 1
        })
    }

    fn label_set(&mut self, labels: &[String]) -> LabelSet {
        let set: Box<[Name]> = labels.iter().map(|l| self.names.number(l)).collect();
        if let Some(known) = self.label_set_of.get(&set) {
            return *known;
        }
        self.label_sets.push(set.clone());
        self.label_set_of.insert(set, self.label_sets.len() - 1);
        self.label_sets.len() - 1
    }

    fn keep(&mut self, text: &str) -> Span {
        let start = self.texts.len();
        self.texts.push_str(text);
        Span {
            start,
            // A request is smaller than 4 GiB, and so is a name.
            length: u32::try_from(text.len()).unwrap_or(u32::MAX),
        }
    }

    fn text(&self, span: Span) -> &str {
        part(&self.texts, span)
    }

    /// The texts at this place are no longer used.
    fn give_up(&mut self, place: usize) {
        let bytes = |span: Span| usize::try_from(span.length).unwrap_or(0);
        self.unused += bytes(self.all.name[place]) + bytes(self.all.description[place]);
    }

    /// Numbers names and sets of labels anew without those that no entry has any more.
    fn pack_names(&mut self) {
        let (old, sets) = (
            std::mem::take(&mut self.names),
            std::mem::take(&mut self.label_sets),
        );
        self.label_set_of.clear();
        for place in 0..self.all.id.len() {
            let labels: Vec<String> = sets
                .get(self.all.labels[place])
                .into_iter()
                .flat_map(|set| set.iter().map(|name| old.text(*name).to_owned()))
                .collect();
            self.all.labels[place] = self.label_set(&labels);
            self.all.state[place] = self.names.number(old.text(self.all.state[place]));
            self.all.resource_pool[place] =
                self.names.number(old.text(self.all.resource_pool[place]));
        }
    }

    /// Writes the texts anew without the unused ones.
    fn pack(&mut self) {
        let mut texts = String::with_capacity(self.texts.len() - self.unused);
        let all = &mut self.all;
        for span in all.name.iter_mut().chain(&mut all.description) {
            let start = texts.len();
            texts.push_str(part(&self.texts, *span));
            span.start = start;
        }
        (self.texts, self.unused) = (texts, 0);
    }
}

fn part(texts: &str, span: Span) -> &str {
    let end = span.start + usize::try_from(span.length).unwrap_or(0);
    texts.get(span.start..end).unwrap_or_default()
}

/// A filter, with what the database has found for it.
#[derive(Debug)]
pub(crate) struct Search<'f> {
    filter: &'f Filter,
    /// The experiments whose descriptions contain what is searched for, but not in the beginnings that are held.
    described: HashSet<ExperimentId>,
}

impl<'f> From<&'f Filter> for Search<'f> {
    fn from(filter: &'f Filter) -> Self {
        Self {
            filter,
            described: HashSet::new(),
        }
    }
}

/// A filter prepared to be applied to each entry.
struct PreparedFilter<'a> {
    filter: &'a Filter,
    described: &'a HashSet<ExperimentId>,
    name: Option<Finder<'static>>,
    description: Option<Finder<'static>>,
    /// Empty lists match nothing, `None` leaves nothing out.
    states: Option<Vec<Name>>,
    /// For each set of labels whether it has all labels of the filter; `None` = the filter has none.
    label_sets: Option<Vec<bool>>,
    active: Name,
    ids: Option<HashSet<ExperimentId>>,
    not_ids: HashSet<ExperimentId>,
    owners: Option<Vec<Owner>>,
}

impl<'a> PreparedFilter<'a> {
    fn new(search: &'a Search<'_>, entries: &Entries) -> Self {
        let filter = search.filter;
        let names = &entries.names;
        let finder = |text: &Option<String>| {
            text.as_ref()
                .map(|text| Finder::new(&text.to_lowercase()).into_owned())
        };
        let has_all = |set: &[Name]| {
            let mut wanted = filter.labels.iter().map(|label| names.find(label));
            wanted.all(|label| label.is_some_and(|label| set.contains(&label)))
        };
        Self {
            filter,
            described: &search.described,
            name: finder(&filter.name),
            description: finder(&filter.description),
            states: filter
                .states
                .as_ref()
                .map(|states| states.iter().filter_map(|s| names.find(s.name())).collect()),
            label_sets: (!filter.labels.is_empty())
                .then(|| entries.label_sets.iter().map(|set| has_all(set)).collect()),
            active: names.find(StateName::Active.name()).unwrap_or(Name::MAX),
            ids: filter.ids.as_ref().map(|ids| ids.iter().copied().collect()),
            not_ids: filter.not_ids.iter().copied().collect(),
            owners: filter.owners.as_ref().map(|owners| {
                let known = entries.owners.iter().enumerate();
                known
                    .filter(|(_, id)| owners.contains(id))
                    .map(|(owner, _)| owner)
                    .collect()
            }),
        }
    }

    /// Whether the filter matches every entry.
    fn has_everything(&self) -> bool {
        let filter = self.filter;
        let has_no_condition = filter.archived.is_none()
            && filter.project_id.is_none()
            && filter.not_projects.is_empty()
            && filter.id_below.is_none()
            && filter.id_above.is_none()
            && filter.active.is_none();
        has_no_condition
            && self.states.is_none()
            && self.owners.is_none()
            && self.ids.is_none()
            && self.not_ids.is_empty()
            && self.label_sets.is_none()
            && self.name.is_none()
            && self.description.is_none()
    }

    fn has(&self, entries: &Entries, place: usize) -> bool {
        self.has_but_for_description(entries, place)
            && (self.is_described(entries, place)
                || self.described.contains(&entries.all.id[place]))
    }

    /// Whether only the part of its description that is not held decides about an entry.
    fn is_open(&self, entries: &Entries, place: usize) -> bool {
        entries.all.description_is_cut[place]
            && self.has_but_for_description(entries, place)
            && !self.is_described(entries, place)
    }

    /// Whether the beginning of its description has what is searched for.
    fn is_described(&self, entries: &Entries, place: usize) -> bool {
        is_found(
            self.description.as_ref(),
            entries,
            entries.all.description[place],
        )
    }

    fn has_but_for_description(&self, entries: &Entries, place: usize) -> bool {
        let (filter, all) = (self.filter, &entries.all);
        // The cheapest conditions come first.
        filter.archived.is_none_or(|a| all.archived[place] == a)
            && filter
                .project_id
                .is_none_or(|id| all.project_id[place] == id)
            && (filter.not_projects.is_empty()
                || !filter.not_projects.contains(&all.project_id[place]))
            && filter.id_below.is_none_or(|id| all.id[place] < id)
            && filter.id_above.is_none_or(|id| all.id[place] > id)
            && self
                .states
                .as_ref()
                .is_none_or(|s| s.contains(&all.state[place]))
            && self
                .owners
                .as_ref()
                .is_none_or(|o| o.contains(&all.owner[place]))
            && self
                .ids
                .as_ref()
                .is_none_or(|ids| ids.contains(&all.id[place]))
            && (self.not_ids.is_empty() || !self.not_ids.contains(&all.id[place]))
            && filter
                .active
                .as_ref()
                .is_none_or(|a| all.state[place] != self.active || a.has(all.id[place]))
            && self
                .label_sets
                .as_ref()
                .is_none_or(|sets| sets[all.labels[place]])
            && is_found(self.name.as_ref(), entries, all.name[place])
    }
}

/// Whether a text has what a finder searches for; without one nothing is left out.
fn is_found(finder: Option<&Finder<'static>>, entries: &Entries, span: Span) -> bool {
    finder.is_none_or(|finder| finder.find(entries.text(span).as_bytes()).is_some())
}

/// More than this from the start of a list are sorted as a whole.
const NEAR: usize = 512;

struct Order<'a> {
    entries: &'a Entries,
    sort: Sort,
    descending: bool,
    /// By [`Owner`]; for [`Sort::User`] only.
    owner_names: Vec<Option<&'a String>>,
}

impl Order<'_> {
    /// The places of the first `count` entries that are wanted, in order, and how many are wanted in all.
    fn best(&self, wanted: &PreparedFilter<'_>, count: usize) -> (Vec<usize>, usize) {
        let mut best: Vec<usize> = Vec::new();
        let mut total = 0;
        let near = count <= NEAR;
        let all = wanted.has_everything();
        let mut see = |place: usize| {
            if !all && !wanted.has(self.entries, place) {
                return;
            }
            total += 1;
            if !near {
                best.push(place);
                return;
            }
            if best.len() == count
                && best
                    .last()
                    .is_none_or(|last| self.compare(place, *last).is_ge())
            {
                return;
            }
            let before = best.partition_point(|other| self.compare(*other, place).is_lt());
            best.insert(before, place);
            best.truncate(count);
        };
        // Much is in order of number or nearly so; begun at the right end, what comes later seldom comes before.
        let places = 0..self.entries.all.id.len();
        if self.descending {
            places.rev().for_each(&mut see);
        } else {
            places.for_each(&mut see);
        }
        if !near {
            best.sort_unstable_by(|a, b| self.compare(*a, *b));
            best.truncate(count);
        }
        (best, total)
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        let all = &self.entries.all;
        let by_value = match self.sort {
            Sort::Id => Ordering::Equal,
            Sort::Description => self.texts(all.description[a], all.description[b]),
            Sort::Name => self.texts(all.name[a], all.name[b]),
            Sort::StartTime => self.turned(all.created_at[a].cmp(&all.created_at[b])),
            Sort::EndTime => self.optional(all.ended_at[a], all.ended_at[b], i64::cmp),
            Sort::State => self.names(all.state[a], all.state[b]),
            Sort::TrialCount => self.turned(all.trial_count[a].cmp(&all.trial_count[b])),
            Sort::Progress => self.turned(all.progress[a].total_cmp(&all.progress[b])),
            Sort::User => {
                let name = |place: usize| self.owner_names.get(all.owner[place]);
                self.turned(name(a).cmp(&name(b)))
            }
            Sort::ForkedFrom => self.optional(all.parent_id[a], all.parent_id[b], Ord::cmp),
            Sort::ResourcePool => self.names(all.resource_pool[a], all.resource_pool[b]),
            Sort::ProjectId => self.turned(all.project_id[a].cmp(&all.project_id[b])),
            Sort::CheckpointSize => {
                self.turned(all.checkpoint_bytes[a].cmp(&all.checkpoint_bytes[b]))
            }
            Sort::CheckpointCount => {
                self.turned(all.checkpoint_count[a].cmp(&all.checkpoint_count[b]))
            }
            Sort::SearcherMetric => {
                self.optional(all.best_metric[a], all.best_metric[b], f64::total_cmp)
            }
        };
        // Places are in the order of numbers.
        by_value.then_with(|| self.turned(a.cmp(&b)))
    }

    fn turned(&self, order: Ordering) -> Ordering {
        if self.descending {
            order.reverse()
        } else {
            order
        }
    }

    fn texts(&self, a: Span, b: Span) -> Ordering {
        self.turned(self.entries.text(a).cmp(self.entries.text(b)))
    }

    fn names(&self, a: Name, b: Name) -> Ordering {
        if a == b {
            return Ordering::Equal;
        }
        let names = &self.entries.names;
        self.turned(names.text(a).cmp(names.text(b)))
    }

    /// What is missing comes last in either direction.
    fn optional<T>(
        &self,
        a: Option<T>,
        b: Option<T>,
        compare: impl Fn(&T, &T) -> Ordering,
    ) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) => self.turned(compare(&a, &b)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }
}

#[cfg(test)]
mod tests;
