//! Reading the files that experiments and tasks were created with.

pub(crate) mod files;
pub(crate) mod tree;

use std::io::Read;

use det_authz::Kind;
use det_ids::{ExperimentId, TaskId, UserId};
use det_lifecycle::object::ObjectKind;
use det_store::Store;
use det_store::archives::{self, ArchiveOf};
use det_taskspec::TaskKind;
use futures::Stream;
use tokio::runtime::Handle;

use crate::app::ownership::Ownership;
use crate::app::turns::Turns;
use crate::app::{existing, reads};
use crate::auth::Actor;
use crate::budget::{Budget, Reservation};
use crate::error::{AppError, AppResult};

/// Bytes of an archive that are read from the store at once; a multiple of three, so that their base64 texts join
/// without padding.
pub(crate) const PART_BYTES: usize = 192 << 10;

/// What sending an archive is counted for: a part as it is stored, as text, and in the connection.
const SENDING_BYTES: usize = 4 * PART_BYTES;

/// Archives that are searched at once: each takes a thread and a processor.
const MOST_SEARCHED: usize = 4;
/// The same of one user.
const MOST_SEARCHED_OF_ONE: usize = 1;
/// What searching an archive is counted for: a part as it is stored, and what unpacks it.
const SEARCHING_BYTES: usize = 2 * PART_BYTES;

/// Turns of searching archives, as [`ArchiveSources`] has them.
pub(crate) fn searches() -> Turns {
    Turns::new(MOST_SEARCHED, MOST_SEARCHED_OF_ONE)
}

/// What archives are read from.
#[derive(Clone)]
pub(crate) struct ArchiveSources {
    pub(crate) store: Store,
    pub(crate) ownership: Ownership,
    /// What large answers may take.
    pub(crate) answers: Budget,
    /// Lets only so many archives be searched at once.
    pub(crate) searches: Turns,
}

/// A gzip tar archive where it is stored, for an actor who may read it.
#[derive(Clone)]
pub(crate) struct Archive {
    store: Store,
    budget: Budget,
    searches: Turns,
    user_id: UserId,
    of: ArchiveOf,
    /// The experiment's name; empty where only its tasks read it.
    pub(crate) name: String,
    /// Size of the archive as it is stored, in bytes.
    pub(crate) bytes: usize,
}

impl Archive {
    /// The archive of an experiment; errs with "not found" where the experiment or its archive does not exist.
    pub(crate) async fn open(
        sources: &ArchiveSources,
        actor: &Actor,
        experiment_id: ExperimentId,
    ) -> AppResult<Self> {
        reads::require(actor, Kind::Experiment, "model definitions")?;
        let mut conn = sources.store.read().await?;
        let name = existing::experiment(&mut conn.conn(), experiment_id)
            .await?
            .name;
        let of = ArchiveOf::Experiment(experiment_id);
        let bytes = archives::size(&mut conn.conn(), &of).await?;
        let bytes = bytes.ok_or_else(|| missing(&of))?;
        Ok(Self::new(sources, actor, of, name, bytes))
    }

    /// What a task starts with; `None` for tasks without an archive.
    pub(crate) async fn of_task(
        sources: &ArchiveSources,
        actor: &Actor,
        task_id: &TaskId,
    ) -> AppResult<Option<Self>> {
        let store = &sources.store;
        let task = reads::tasks::find(store, actor, task_id).await?;
        let of = match (task.kind, task.experiment_id) {
            (TaskKind::Trial, Some(id)) => ArchiveOf::Experiment(id),
            // What a user sends along with a task is the user's, keys among it.
            _ => {
                sources.ownership.require_files(actor, &task)?;
                ArchiveOf::Task(task.id.clone())
            }
        };
        let mut conn = store.read().await?;
        let bytes = archives::size(&mut conn.conn(), &of).await?;
        Ok(bytes.map(|bytes| Self::new(sources, actor, of, String::new(), bytes)))
    }

    fn new(
        sources: &ArchiveSources,
        actor: &Actor,
        of: ArchiveOf,
        name: String,
        bytes: usize,
    ) -> Self {
        Self {
            store: sources.store.clone(),
            budget: sources.answers.clone(),
            searches: sources.searches.clone(),
            user_id: actor.user().id,
            of,
            name,
            bytes,
        }
    }

    /// Counts for the actor what sending it takes.
    pub(crate) async fn reserve(&self) -> AppResult<Reservation> {
        self.budget.reserve(Some(self.user_id), SENDING_BYTES).await
    }

    /// Searches it on a thread that may block, at the actor's turn. `search` gets the archive and what is reserved for what
    /// it finds. Where that is not enough it returns how much is, and is asked again once so much is reserved: no thread
    /// and no turn waits for memory.
    async fn search<T: Send + 'static>(
        self,
        search: impl Fn(BlockingReader, Reservation) -> AppResult<Search<T>> + Clone + Send + 'static,
    ) -> AppResult<T> {
        let mut reserved = None;
        loop {
            let turn = self.searches.take(self.user_id).await?;
            let at_once = || {
                self.budget
                    .try_reserve(Some(self.user_id), SEARCHING_BYTES)
                    .ok()
            };
            let found = match reserved.take().or_else(at_once) {
                Some(held) => {
                    let (archive, search) = (self.clone().blocking(), search.clone());
                    let found = tokio::task::spawn_blocking(move || {
                        // Held for as long as the thread works, also when no caller waits for it any more.
                        let _turn = turn;
                        search(archive, held)
                    });
                    found.await.map_err(AppError::internal)??
                }
                None => {
                    drop(turn);
                    Search::Needs(SEARCHING_BYTES)
                }
            };
            match found {
                Search::Found(found) => return Ok(found),
                Search::Needs(bytes) => {
                    reserved = Some(self.budget.reserve(Some(self.user_id), bytes).await?);
                }
            }
        }
    }

    async fn part(&self, offset: usize, wanted: usize) -> AppResult<Vec<u8>> {
        let mut conn = self.store.read().await?;
        let part = archives::part(&mut conn.conn(), &self.of, offset, wanted).await?;
        if part.len() < wanted {
            return Err(missing(&self.of));
        }
        Ok(part)
    }

    /// Its parts, read from the store as they are asked for.
    pub(crate) fn parts(self) -> impl Stream<Item = AppResult<Vec<u8>>> + Send {
        futures::stream::unfold((self, 0), |(archive, offset)| async move {
            if offset >= archive.bytes {
                return None;
            }
            let wanted = PART_BYTES.min(archive.bytes - offset);
            let part = archive.part(offset, wanted).await;
            Some((part, (archive, offset + wanted)))
        })
    }

    /// The archive as a file that is read from the store part by part, for threads that may block.
    fn blocking(self) -> BlockingReader {
        BlockingReader {
            archive: self,
            runtime: Handle::current(),
            offset: 0,
            part: std::io::Cursor::default(),
        }
    }
}

/// What came of [`Archive::search`].
#[derive(Debug)]
enum Search<T> {
    Found(T),
    /// What is found takes so many bytes, and they are not to be had at once.
    Needs(usize),
}

/// Has at least so many bytes reserved, if that is possible at once; whether it was.
fn has(held: &mut Reservation, bytes: usize) -> bool {
    let more = bytes.saturating_sub(held.bytes());
    more == 0 || held.try_grow(more)
}

fn damaged(error: std::io::Error) -> AppError {
    AppError::internal(anyhow::Error::new(error).context("reading a stored model definition"))
}

fn missing(of: &ArchiveOf) -> AppError {
    match of {
        ArchiveOf::Experiment(id) => AppError::not_found(ObjectKind::ModelDefinition, id),
        ArchiveOf::Task(id) => AppError::not_found(ObjectKind::ContextDirectory, id),
    }
}

/// What [`Archive::blocking`] returns: the archive as a file.
struct BlockingReader {
    archive: Archive,
    runtime: Handle,
    offset: usize,
    part: std::io::Cursor<Vec<u8>>,
}

impl Read for BlockingReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.part.read(buffer)?;
        if read > 0 || buffer.is_empty() || self.offset >= self.archive.bytes {
            return Ok(read);
        }
        let wanted = PART_BYTES.min(self.archive.bytes - self.offset);
        let part = self.archive.part(self.offset, wanted);
        let part = self.runtime.block_on(part).map_err(std::io::Error::other)?;
        self.offset += wanted;
        self.part = std::io::Cursor::new(part);
        self.part.read(buffer)
    }
}
