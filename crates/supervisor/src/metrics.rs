//! System metrics of a task: sampled while its code runs, and reported to the master in the PyPI package's form.
//!
//! One thread samples, one sends, and one reads GPUs. None of them holds up the task: what cannot be sent waits in a bounded
//! list, and what the master does not want ends the measuring.

mod averages;
mod gpus;
mod machine;

use det_ids::{AgentId, ContainerId, ContainerReportId, ReportId, RunId, TaskId};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use det_taskspec::{RUN_DIR, SHARED_FS_DIR, Sampling, Script, SystemMetrics, variables as v};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::accelerators;
use crate::cgroup::OwnGroup;
use crate::clock::{Backoff, now_micros};
use crate::master::{Master, MasterError};
use crate::report::Diagnostics;
use crate::setup::Setup;

use averages::Averages;
use machine::{Machine, Volume};

/// Reports that wait for the master at most: an hour of them. Older ones make way.
const MOST_WAITING: usize = 360;
/// Reports in one request at most.
const MOST_SENT: usize = 30;
/// The shortest time that rates are measured over: the kernel counts the use of processors in hundredths of a second.
const SHORTEST: Duration = Duration::from_millis(100);
/// The shortest time between two requests: what a request brings is stored together.
const SEND_EVERY: Duration = Duration::from_secs(30);
/// The longest pause between attempts once the task has ended.
const LAST_PAUSE: Duration = Duration::from_millis(100);
/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last report may take once the task has ended.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The subject of a measurement, for which reports are made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MetricSubject {
    /// A run of a trial.
    Trial(SystemMetrics),
    /// A task of another kind.
    Task(Sampling),
}

impl MetricSubject {
    /// What a script asks for; `None` = nothing.
    pub(crate) fn of(script: &Script) -> Option<Self> {
        let trial = script.system_metrics.map(Self::Trial);
        trial.or_else(|| script.task_metrics.map(Self::Task))
    }

    fn sampling(self) -> Sampling {
        match self {
            Self::Trial(of) => Sampling {
                sample_seconds: of.sample_seconds,
                samples_per_report: of.samples_per_report,
            },
            Self::Task(sampling) => sampling,
        }
    }

    /// Path of the API that reports are sent to.
    fn path(self, task_id: &TaskId) -> String {
        match self {
            Self::Trial(of) => format!("/api/v1/trials/{}/system_metrics", of.trial_id),
            Self::Task(_) => format!("/api/v1/tasks/{task_id}/system_metrics"),
        }
    }

    fn run_id(self) -> RunId {
        match self {
            Self::Trial(of) => of.run_id,
            Self::Task(_) => RunId::default(),
        }
    }
}

/// The measuring of a task that runs.
pub(crate) struct MetricsCollection {
    stop: Sender<()>,
    queue: Arc<Queue>,
    done: Receiver<()>,
}

impl MetricsCollection {
    /// Starts to measure and to report.
    pub(crate) fn start(measured: MetricSubject, setup: &Setup) -> io::Result<Self> {
        let settings = measured.sampling();
        let gpus = Arc::new(Mutex::new(Averages::default()));
        if let Some(visible) = accelerators::visible_gpus(&setup.env) {
            let every = settings.sample_seconds.max(1);
            gpus::watch(&setup.env, visible, every, &gpus, &setup.diagnostics);
        }
        let root = Volume {
            name: "/",
            // The root of a sandbox holds mount points only, and is never full.
            path: if setup.in_sandbox { RUN_DIR } else { "/" },
        };
        let machine = Machine::new(
            Path::new("/proc"),
            OwnGroup::find(setup.in_sandbox),
            &[root, Volume::at(SHARED_FS_DIR)],
        );
        let (stop, stopped) = mpsc::channel();
        let (finished, done) = mpsc::channel::<()>();
        let queue = Arc::new(Queue::default());
        let sampler = Sampler {
            settings,
            machine,
            gpus,
            queue: queue.clone(),
            stopped,
        };
        let route = Route {
            path: measured.path(&setup.script.task_id),
            run_id: measured.run_id(),
            agent_id: setup.env.text(v::DET_AGENT_ID).unwrap_or_default().into(),
            container_id: setup.script.container_id.clone(),
            master: setup.master.clone(),
            diagnostics: setup.diagnostics.clone(),
        };
        let waiting = queue.clone();
        spawn("measure", move || sampler.run())?;
        spawn("metrics", move || {
            route.send_all(&waiting);
            // The receiver is gone if the time was over before.
            drop(finished);
        })?;
        Ok(Self { stop, queue, done })
    }

    /// Takes the last sample: the task has ended.
    pub(crate) fn stop(&self) {
        self.queue.lock().deadline = Some(Instant::now() + LAST_WAIT);
        // The receiver is gone if the master wants nothing more.
        let _ = self.stop.send(());
    }

    /// Waits until everything is sent, or its time is over.
    pub(crate) fn wait(&self) {
        // Nothing is ever sent: the channel closes when the thread ends.
        match self.done.recv_timeout(LAST_WAIT) {
            Ok(()) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {}
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map(drop)
}

/// What the thread has that measures and queues reports.
struct Sampler {
    settings: Sampling,
    machine: Machine,
    gpus: Arc<Mutex<Averages>>,
    queue: Arc<Queue>,
    stopped: Receiver<()>,
}

impl Sampler {
    fn run(mut self) {
        let every = Duration::from_secs(self.settings.sample_seconds.max(1).into());
        let (mut averages, mut samples) = (Averages::default(), 0);
        // The first sample is what the rates of the second begin at.
        let mut sampled = Instant::now();
        self.machine.sample(sampled, &mut Averages::default());
        loop {
            let stopped = self.stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout);
            let early = SHORTEST.saturating_sub(sampled.elapsed());
            // A report has one sample at least, also of the shortest task.
            if early.is_zero() || samples == 0 {
                thread::sleep(early);
                sampled = Instant::now();
                self.machine.sample(sampled, &mut averages);
                samples += 1;
            }
            if stopped || samples >= self.settings.samples_per_report {
                let gpus = std::mem::take(&mut *lock(&self.gpus));
                let mut groups = std::mem::take(&mut averages).document();
                groups.append(&mut gpus.document());
                self.queue.push(now_micros(), groups);
                samples = 0;
            }
            if self.queue.ends(stopped) {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A report that waits for the master.
#[derive(Debug, Clone, PartialEq)]
struct WaitingReport {
    number: i64,
    /// When it was made, microseconds.
    at: i64,
    groups: Map<String, Value>,
}

/// Reports between the two threads.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reports: VecDeque<WaitingReport>,
    /// How many reports there were.
    made: i64,
    /// The last report has been made.
    complete: bool,
    /// The master wants no more.
    unwanted: bool,
    /// When to give up; `None` = the task runs.
    deadline: Option<Instant>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds a report; the oldest makes way for it where too many wait.
    fn push(&self, at: i64, groups: Map<String, Value>) {
        if groups.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.made += 1;
        let number = state.made;
        state
            .reports
            .push_back(WaitingReport { number, at, groups });
        if state.reports.len() > MOST_WAITING {
            state.reports.pop_front();
        }
        self.changed.notify_all();
    }

    /// Whether no further report will be made. `last`: the newest was the last one.
    fn ends(&self, last: bool) -> bool {
        let mut state = self.lock();
        state.complete |= last;
        self.changed.notify_all();
        state.complete || state.unwanted
    }

    /// The oldest reports, which stay until [`Self::sent`]; `None` once there will be no more.
    fn next(&self) -> Option<Vec<WaitingReport>> {
        let mut state = self.lock();
        loop {
            if !state.reports.is_empty() {
                return Some(state.reports.iter().take(MOST_SENT).cloned().collect());
            }
            if state.complete {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reports through this number are stored.
    fn sent(&self, through: i64) {
        self.lock().reports.retain(|report| report.number > through);
    }

    /// The master wants no more.
    fn discard(&self) {
        let mut state = self.lock();
        state.unwanted = true;
        state.reports.clear();
    }

    /// How much time there is for one call; `None` = it is over.
    fn time_left(&self) -> Option<Duration> {
        let left = match self.lock().deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => TIMEOUT,
        };
        (!left.is_zero()).then(|| left.min(TIMEOUT))
    }

    /// Waits, but no longer than the task runs; whether it runs still.
    fn pause(&self, delay: Duration) -> bool {
        let until = Instant::now() + delay;
        let mut state = self.lock();
        while !state.complete {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

/// Body of `ReportSystemMetrics` and `ReportTaskSystemMetrics`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    trial_run_id: RunId,
    agent_id: &'a AgentId,
    again: bool,
    reports: Vec<ReportBody<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportBody<'a> {
    report_id: ReportId,
    time: String,
    groups: &'a Map<String, Value>,
}

/// What the master answers to reports.
#[derive(Debug, Deserialize)]
struct Answer {
    /// Whether it wants further reports.
    collect: bool,
}

/// The address that reports are sent to, and what identifies their sender.
struct Route {
    path: String,
    run_id: RunId,
    agent_id: AgentId,
    container_id: ContainerId,
    master: Master,
    diagnostics: Diagnostics,
}

impl Route {
    /// Sends what comes until nothing more does, or the master wants no more.
    fn send_all(&self, queue: &Queue) {
        let mut backoff = Backoff::new();
        let mut again = false;
        while let Some(reports) = queue.next() {
            let Some(timeout) = queue.time_left() else {
                return;
            };
            let through = reports.last().map_or(0, |report| report.number);
            match self.send(&reports, again, timeout) {
                Ok(true) => {
                    queue.sent(through);
                    (backoff, again) = (Backoff::new(), false);
                    queue.pause(SEND_EVERY);
                }
                Ok(false) => return queue.discard(),
                Err(error) if is_refusal(&error) => {
                    self.diagnostics
                        .note(format!("system metrics are not collected: {error}"));
                    return queue.discard();
                }
                Err(error) => {
                    if !again {
                        self.diagnostics.note(format!(
                            "could not report system metrics, trying on: {error}"
                        ));
                    }
                    again = true;
                    let delay = backoff.delay();
                    if !queue.pause(delay) {
                        // Between the end of the task and the deadline it is tried often.
                        thread::sleep(delay.min(LAST_PAUSE));
                    }
                }
            }
        }
    }

    fn send(
        &self,
        reports: &[WaitingReport],
        again: bool,
        timeout: Duration,
    ) -> Result<bool, MasterError> {
        let body = Body {
            trial_run_id: self.run_id,
            agent_id: &self.agent_id,
            again,
            reports: reports
                .iter()
                .map(|report| ReportBody {
                    report_id: ReportId::from(&ContainerReportId {
                        container_id: self.container_id.clone(),
                        number: report.number,
                    }),
                    time: det_spool::rfc3339(report.at),
                    groups: &report.groups,
                })
                .collect(),
        };
        let body = serde_json::to_vec(&body).expect("maps with text keys are JSON");
        let answer: Answer = self.master.post_for(&self.path, &body, timeout)?;
        Ok(answer.collect)
    }
}

/// Whether the master will never accept these reports. A refused token does not count: a master that is being restored may
/// not know it yet.
fn is_refusal(error: &MasterError) -> bool {
    match error {
        MasterError::Status { status, .. } => {
            (400..500).contains(status) && !matches!(status, 401 | 403 | 408 | 429)
        }
        MasterError::Unreachable { .. } => false,
        MasterError::Answer { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn groups(value: f64) -> Map<String, Value> {
        let mut groups = Map::new();
        groups.insert("cpu".into(), json!({ "cpu_util_simple": value }));
        groups
    }

    #[test]
    fn reports_wait_in_bounded_memory_and_the_newest_stay() {
        let queue = Queue::default();
        queue.push(1, Map::new());
        assert!(queue.lock().reports.is_empty(), "nothing was measured");
        for _ in 0..=MOST_WAITING {
            queue.push(1, groups(1.0));
        }
        let first = queue.next().unwrap();
        assert_eq!((first.len(), first[0].number), (MOST_SENT, 2));
        queue.sent(first.last().unwrap().number);
        assert_eq!(queue.next().unwrap()[0].number, 32);
        assert!(!queue.ends(false));
        assert!(queue.ends(true));
        queue.sent(i64::MAX);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn what_the_master_does_not_want_ends_the_measuring() {
        let queue = Queue::default();
        queue.push(1, groups(1.0));
        queue.discard();
        assert!(queue.ends(false));
        assert!(queue.lock().reports.is_empty());
    }

    #[test]
    fn no_call_goes_on_after_the_deadline() {
        let queue = Queue::default();
        assert_eq!(queue.time_left(), Some(TIMEOUT));
        queue.lock().deadline = Some(Instant::now());
        assert_eq!(queue.time_left(), None);
    }
}
