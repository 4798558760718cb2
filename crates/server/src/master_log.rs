//! The master's own recent log, kept in memory for `det master logs`.
//!
//! A layer beside the one that writes to standard error. It keeps the last [`CAPACITY`] lines, each of bounded length,
//! so that it never takes more than a few megabytes; older lines are in the log that the operator keeps.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use det_ids::{ExperimentId, LogLevel, MasterLogLineId, TrialId};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::hub::{Hub, Topic};

/// Lines that are kept in memory; older ones are dropped.
pub const CAPACITY: usize = 2_000;
/// Characters kept of a task's id.
const LONGEST_ID: usize = 128;
/// Bytes kept of one line.
const LONGEST_LINE: usize = 4_096;

/// A line of the master's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The line, by its number since the master started.
    pub id: MasterLogLineId,
    /// When the line was written, microseconds since 1970.
    pub at: i64,
    /// Severity of the line.
    pub level: LogLevel,
    /// The message and its fields.
    pub message: String,
    /// What of users' work the line is about.
    pub about: About,
}

/// What of users' work a line is about, by the fields that name it. `None` = the line has no such field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// Number in the field `experiment.id`.
    pub experiment: Option<ExperimentId>,
    /// Number in the field `trial.id`.
    pub trial: Option<TrialId>,
    /// Id in the field `task.id` or `allocation.id`.
    pub task: Option<String>,
}

impl About {
    /// Whether the line concerns the work of users at all.
    pub fn is_work(&self) -> bool {
        *self != Self::default()
    }

    fn note(&mut self, field: &str, value: &str) {
        match field {
            "experiment.id" => self.experiment = value.parse().ok(),
            "trial.id" => self.trial = value.parse().ok(),
            "task.id" | "allocation.id" => {
                self.task = Some(value.trim_matches('"').chars().take(LONGEST_ID).collect());
            }
            _ => {}
        }
    }
}

/// The recent lines. Cheap to clone.
#[derive(Clone)]
pub struct MasterLog {
    lines: Arc<Mutex<Lines>>,
    hub: Hub,
}

impl fmt::Debug for MasterLog {
    /// The lines stay out: a log of the log would never end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterLog").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<Entry>,
    next_id: MasterLogLineId,
}

impl MasterLog {
    /// An empty log; readers that wait for new lines are woken through `hub`.
    pub fn new(hub: Hub) -> Self {
        Self {
            lines: Arc::default(),
            hub,
        }
    }

    /// The layer that fills this log. Filters of the subscriber apply to it too.
    pub fn layer<S: Subscriber>(&self) -> impl Layer<S> + use<S> {
        Recorder(self.clone())
    }

    /// The newest `limit` lines, oldest first.
    pub fn tail(&self, limit: usize) -> Vec<Entry> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped = lines.kept.len().saturating_sub(limit);
        lines.kept.iter().skip(skipped).cloned().collect()
    }

    /// The lines that are still kept from line `id` on, oldest first.
    pub fn from(&self, id: MasterLogLineId) -> Vec<Entry> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .kept
            .iter()
            .filter(|entry| entry.id >= id)
            .cloned()
            .collect()
    }

    /// The next line: its number is how many there have been.
    pub fn next_id(&self) -> MasterLogLineId {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next_id
    }

    fn push(&self, level: LogLevel, message: String, about: About) {
        {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            let id = lines.next_id;
            lines.next_id = lines.next_id.next();
            if lines.kept.len() == CAPACITY {
                lines.kept.pop_front();
            }
            lines.kept.push_back(Entry {
                id,
                at: det_store::now(),
                level,
                message,
                about,
            });
        }
        self.hub.notify(&Topic::MasterLog);
    }
}

struct Recorder(MasterLog);

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let about = std::mem::take(&mut text.about);
        self.0
            .push(log_level(*event.metadata().level()), text.finish(), about);
    }
}

fn log_level(level: Level) -> LogLevel {
    match level {
        Level::TRACE => LogLevel::Trace,
        Level::DEBUG => LogLevel::Debug,
        Level::INFO => LogLevel::Info,
        Level::WARN => LogLevel::Warning,
        Level::ERROR => LogLevel::Error,
    }
}

/// Message first, then the fields as `name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
    about: About,
}

impl Text {
    fn finish(self) -> String {
        let mut line = self.message;
        line.push_str(&self.fields);
        if line.len() > LONGEST_LINE {
            let end = (0..=LONGEST_LINE)
                .rev()
                .find(|at| line.is_char_boundary(*at))
                .unwrap_or(0);
            line.truncate(end);
            line.push('…');
        }
        line
    }
}

impl Text {
    /// An event may have a message and a field of that name besides.
    fn add_message(&mut self, text: fmt::Arguments<'_>) {
        let separator = if self.message.is_empty() { "" } else { ": " };
        // Writing to a string cannot fail.
        let _ = write!(self.message, "{separator}{text}");
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.add_message(format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.add_message(format_args!("{value:?}"));
        } else {
            let start = self.fields.len();
            // Writing to a string cannot fail.
            let _ = write!(self.fields, " {}={value:?}", field.name());
            let written = start + field.name().len() + 2;
            self.about.note(field.name(), &self.fields[written..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn recorded(log: &MasterLog, lines: impl FnOnce()) {
        let subscriber = tracing_subscriber::registry().with(log.layer());
        tracing::subscriber::with_default(subscriber, lines);
    }

    #[test]
    fn lines_have_numbers_levels_and_fields() {
        let log = MasterLog::new(Hub::default());
        recorded(&log, || {
            tracing::info!("the master is ready");
            tracing::warn!(agent.id = "a1", slots = 4, "agent {} is slow", 7);
        });
        let lines = log.tail(10);
        assert_eq!(
            (lines[0].id.0, lines[0].level, lines[0].message.as_str()),
            (0, LogLevel::Info, "the master is ready")
        );
        assert_eq!(lines[1].level, LogLevel::Warning);
        assert_eq!(lines[1].message, "agent 7 is slow agent.id=\"a1\" slots=4");
        assert!(lines.iter().all(|line| !line.about.is_work()));
        recorded(&log, || {
            tracing::info!(
                experiment.id = 3,
                trial.id = 4_i64,
                task.id = "3.a",
                "of a trial"
            );
            tracing::info!(allocation.id = %"3.a.1", "of an allocation");
        });
        let about: Vec<About> = log.tail(2).into_iter().map(|line| line.about).collect();
        assert_eq!(
            (
                about[0].experiment,
                about[0].trial,
                about[0].task.as_deref()
            ),
            (Some(ExperimentId(3)), Some(TrialId(4)), Some("3.a"))
        );
        assert_eq!(about[1].task.as_deref(), Some("3.a.1"));
        let log = MasterLog::new(Hub::default());
        recorded(&log, || tracing::info!("one"));
        recorded(&log, || tracing::info!("two"));
        recorded(&log, || tracing::info!(message = "the cause", "it failed"));
        assert_eq!(log.tail(1)[0].message, "it failed: the cause");
        assert_eq!(
            (
                log.tail(1)[0].id.0,
                log.from(MasterLogLineId(1)).len(),
                log.next_id().0
            ),
            (2, 2, 3)
        );
    }

    #[test]
    fn old_lines_give_way_and_numbers_go_on() {
        let log = MasterLog::new(Hub::default());
        for n in 0..CAPACITY + 5 {
            log.push(LogLevel::Info, n.to_string(), About::default());
        }
        let all = log.from(MasterLogLineId::default());
        assert_eq!(all.len(), CAPACITY);
        assert_eq!((all[0].id.0, all[0].message.as_str()), (5, "5"));
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let text = Text {
            message: "ä".repeat(LONGEST_LINE),
            ..Text::default()
        };
        let line = text.finish();
        assert!(line.len() <= LONGEST_LINE + '…'.len_utf8());
        assert!(line.ends_with("ä…"));
    }

    #[tokio::test]
    async fn a_new_line_wakes_readers() {
        let hub = Hub::default();
        let log = MasterLog::new(hub.clone());
        let mut changes = hub.subscribe(Topic::MasterLog);
        log.push(LogLevel::Info, "hello".into(), About::default());
        changes.changed().await;
        assert_eq!(log.tail(1)[0].message, "hello");
    }
}
