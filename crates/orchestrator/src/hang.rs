//! Which rank of a trial keeps the others waiting: a comparison of what the processes of its containers do.
//!
//! Ranks that train together wait for each other in every step, in a call of the network or behind a lock. The rank that
//! hangs is the one that does something else: it sleeps, waits for a disk, computes for ever, was stopped or has lost its
//! process. Where all wait, the innermost functions of their Python stacks may differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use det_taskspec::diagnosis::{Diagnosis, ProcessState};

/// Share of one processor above which a process counts as computing, in percent of the time that it was watched.
const BUSY_PERCENT: i64 = 50;
/// Ranks that a conclusion names at most; the others are counted.
const MOST_NAMED: usize = 8;

/// One container of the trial, with what its supervisor answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its number in the allocation, from 0.
    pub member: u32,
    /// The place that the rank runs on.
    pub place: String,
    /// Whether it has come to the meeting of its allocation's containers (rendezvous).
    pub joined: bool,
    /// What its supervisor answered, or why there is no answer, as a sentence.
    pub answer: Result<Diagnosis, String>,
}

/// What the main process of a rank does, derived from processor use and what its threads wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// It used processor time while it was watched.
    Computes,
    /// It waits for a timer.
    Sleeps,
    /// It waits for a disk, or for a device.
    WaitsForDisk,
    /// It waits for something from the network.
    WaitsForNetwork,
    /// It waits for a lock, or for a thread of its own.
    WaitsForLock,
    /// It waits for another process, or for what one writes.
    WaitsForProcess,
    /// It was stopped by a signal or a debugger.
    Stopped,
    /// Its process has ended, and its container has not.
    Ended,
    /// The kernel does not show what it waits for.
    Waits,
    /// Nothing is known of it: its supervisor did not answer.
    Unknown,
}

impl Activity {
    /// As a part of a sentence: `rank 1 sleeps`.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Computes => "computes",
            Self::Sleeps => "sleeps",
            Self::WaitsForDisk => "waits for a disk or a device",
            Self::WaitsForNetwork => "waits for the network",
            Self::WaitsForLock => "waits for a lock",
            Self::WaitsForProcess => "waits for another process",
            Self::Stopped => "is stopped",
            Self::Ended => "has no process any more",
            Self::Waits => "waits",
            Self::Unknown => "did not answer",
        }
    }

    /// Whether one that does this may be waiting for other ranks.
    fn may_wait_for_ranks(self) -> bool {
        match self {
            Self::WaitsForNetwork | Self::WaitsForLock | Self::WaitsForProcess | Self::Waits => {
                true
            }
            Self::Computes
            | Self::Sleeps
            | Self::WaitsForDisk
            | Self::Stopped
            | Self::Ended
            | Self::Unknown => false,
        }
    }

    /// What a process does, which was watched for so many microseconds.
    pub fn of(process: &ProcessState, window_micros: i64) -> Self {
        let busy = process.cpu_window_micros.saturating_mul(100);
        let call = process.system_call.as_str();
        let channel = process.wait_channel.as_str();
        let name = call.split('(').next().unwrap_or_default();
        let on = |kind: &str| call.ends_with(&format!("({kind})"));
        let channel_has = |parts: &[&str]| parts.iter().any(|part| channel.contains(part));
        match process.state.as_str() {
            "T" | "t" => return Self::Stopped,
            "Z" | "X" => return Self::Ended,
            "D" => return Self::WaitsForDisk,
            "R" => return Self::Computes,
            _ => {}
        }
        if window_micros > 0 && busy >= window_micros.saturating_mul(BUSY_PERCENT) {
            return Self::Computes;
        }
        if on("time only") || name.ends_with("nanosleep") || channel_has(&["nanosleep"]) {
            return Self::Sleeps;
        }
        if name == "futex" || channel_has(&["futex"]) {
            return Self::WaitsForLock;
        }
        if on("pipe") || name.starts_with("wait") || channel_has(&["pipe_", "do_wait"]) {
            return Self::WaitsForProcess;
        }
        if on("file") || on("device") || channel_has(&["nfs", "fuse", "io_schedule", "rpc_wait"]) {
            return Self::WaitsForDisk;
        }
        let network = [
            "ppoll",
            "poll",
            "select",
            "pselect6",
            "epoll_wait",
            "epoll_pwait",
            "recvfrom",
            "recvmsg",
            "sendto",
            "sendmsg",
            "accept",
            "accept4",
            "connect",
        ];
        let channels = [
            "poll",
            "select",
            "wait_woken",
            "sk_wait",
            "tcp_",
            "inet_",
            "unix_",
            "skb_",
        ];
        if on("socket") || network.contains(&name) || channel_has(&channels) {
            return Self::WaitsForNetwork;
        }
        Self::Waits
    }
}

/// The state of one rank, as logs and explanations show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    /// Its number: what its launcher gave it, else that of its container.
    pub rank: i64,
    /// The number of its container in the allocation.
    pub member: u32,
    /// The place that the rank runs on.
    pub place: String,
    /// The process that was looked at; `None` = none was found, or its supervisor did not answer.
    pub process: Option<ProcessState>,
    /// Length of the observation of its process, in microseconds.
    pub window_micros: i64,
    /// What its processes do, as they were last looked at.
    pub activity: Activity,
    /// Why nothing is known of it; empty = something is.
    pub problem: String,
    /// Whether it is the one, or one of those, that keeps the others waiting.
    pub odd: bool,
}

impl Rank {
    /// Where it waits, in few words: `clock_nanosleep` or `do_poll`.
    pub fn waits_in(&self) -> String {
        let Some(process) = &self.process else {
            return String::new();
        };
        if process.system_call.is_empty() {
            process.wait_channel.clone()
        } else {
            process.system_call.clone()
        }
    }

    fn does_as(&self, other: &Self) -> bool {
        self.activity == other.activity && self.innermost() == other.innermost()
    }

    fn innermost(&self) -> Option<&str> {
        let process = self.process.as_ref()?;
        process.stack.first().map(String::as_str)
    }
}

/// `rank 1 on agent-b sleeps in clock_nanosleep, at hang (train.py:12)`.
impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} on {} {}",
            self.rank,
            self.place,
            self.activity.phrase()
        )?;
        if !self.problem.is_empty() {
            return write!(f, " ({})", self.problem);
        }
        let waits_in = self.waits_in();
        if !waits_in.is_empty() {
            write!(f, " in {waits_in}")?;
        }
        if let Some(frame) = self.innermost() {
            write!(f, ", at {frame}")?;
        }
        Ok(())
    }
}

/// What is known of the ranks of an attempt that makes no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// All ranks in ascending order of their numbers.
    pub ranks: Vec<Rank>,
    /// Which rank keeps the others waiting, if one does, as a sentence for users.
    pub conclusion: String,
}

/// Finds the ranks that keep the others of a trial's attempt waiting, by what their processes do and which containers
/// have come to the meeting. `containers` = all containers of the attempt, in any order.
pub fn examine(containers: Vec<Container>) -> Finding {
    let absent = containers.iter().filter(|container| !container.joined);
    let absent: BTreeSet<u32> = absent.map(|container| container.member).collect();
    let some_wait = absent.len() < containers.len();
    let mut ranks: Vec<Rank> = containers.into_iter().flat_map(ranks_of).collect();
    ranks.sort_by_key(|rank| (rank.rank, rank.member));
    let conclusion = if absent.is_empty() || !some_wait {
        conclude(&mut ranks)
    } else {
        // Those that have come wait for these, whatever they do.
        for rank in &mut ranks {
            rank.odd = absent.contains(&rank.member);
        }
        let (odd, rest): (Vec<&Rank>, Vec<&Rank>) = ranks.iter().partition(|rank| rank.odd);
        let verb = if rest.len() == 1 { "waits" } else { "wait" };
        format!(
            "not all ranks have met yet: {}, and {} {verb} for it",
            named(odd.into_iter()),
            numbers(&rest)
        )
    };
    Finding { ranks, conclusion }
}

/// The ranks in a container: its processes that were given one, else the one that does its work.
fn ranks_of(container: Container) -> Vec<Rank> {
    let Container {
        member,
        place,
        answer,
        joined: _,
    } = container;
    let unknown = |problem: String, activity: Activity| Rank {
        rank: member.into(),
        member,
        place: place.clone(),
        process: None,
        window_micros: 0,
        activity,
        problem,
        odd: false,
    };
    let diagnosis = match answer {
        Ok(diagnosis) => diagnosis,
        Err(problem) => return vec![unknown(problem, Activity::Unknown)],
    };
    let workers = workers(&diagnosis.processes);
    if workers.is_empty() {
        return vec![unknown(
            "its container runs no process".to_owned(),
            Activity::Ended,
        )];
    }
    let rank = |process: &ProcessState| Rank {
        rank: process.rank.unwrap_or_else(|| member.into()),
        member,
        place: place.clone(),
        activity: Activity::of(process, diagnosis.window_micros),
        window_micros: diagnosis.window_micros,
        process: Some(process.clone()),
        problem: String::new(),
        odd: false,
    };
    workers.into_iter().map(rank).collect()
}

/// Of processes that have a rank, those whose ancestors among them have another one: children inherit the rank of their
/// worker.
fn topmost<'a>(all: &'a [ProcessState], found: Vec<&'a ProcessState>) -> Vec<&'a ProcessState> {
    let parents: BTreeMap<i64, i64> = all.iter().map(|p| (p.pid, p.parent)).collect();
    let ranks: BTreeMap<i64, Option<i64>> = found.iter().map(|p| (p.pid, p.rank)).collect();
    let inherits = |process: &ProcessState| {
        // As many steps as there are processes: what was read while processes came and went may have circles.
        let mut ancestors =
            std::iter::successors(Some(process.parent), |pid| parents.get(pid).copied())
                .take(parents.len());
        ancestors.any(|pid| ranks.get(&pid) == Some(&process.rank))
    };
    let mut top = found.clone();
    top.retain(|process| !inherits(process));
    // A circle has no top.
    if top.is_empty() { found } else { top }
}

fn program(process: &ProcessState) -> &str {
    process.command.split(' ').next().unwrap_or_default()
}

fn is_shell(process: &ProcessState) -> bool {
    ["sh", "bash", "dash", "zsh", "env", "sshd", "tini"].contains(&program(process))
}

/// Whether it starts the processes of a training, or wraps one of them.
fn is_launcher(process: &ProcessState) -> bool {
    [
        "determined.exec",
        "determined.launch",
        "torch.distributed",
        "torchrun",
        "mpirun",
    ]
    .iter()
    .any(|launcher| process.command.contains(launcher))
}

/// The processes that do the work of a container. A launcher starts workers, a worker those that load its data.
fn workers(processes: &[ProcessState]) -> Vec<&ProcessState> {
    let work = |process: &&ProcessState| !is_shell(process) && !is_launcher(process);
    let ranked = processes.iter().filter(|process| process.rank.is_some());
    let ranked: Vec<&ProcessState> = ranked.collect();
    if !ranked.is_empty() {
        // What wraps the code of a rank has its number too; only where nothing else has it is that what works.
        let own: Vec<&ProcessState> = ranked.iter().copied().filter(work).collect();
        return topmost(processes, if own.is_empty() { ranked } else { own });
    }
    let is_python = |process: &&ProcessState| program(process).starts_with("python");
    let python: Vec<_> = processes
        .iter()
        .filter(|process| work(process) && is_python(process))
        .collect();
    let other: Vec<_> = processes.iter().filter(work).collect();
    // Processes that were started first have the lower ids: of those that are alike, the one that started the others.
    [python, other, processes.iter().collect()]
        .into_iter()
        .find_map(|alike| alike.into_iter().min_by_key(|p| (p.state == "Z", p.pid)))
        .into_iter()
        .collect()
}

/// The ranks named, with what they do; of many the first few.
fn named<'a>(ranks: impl Iterator<Item = &'a Rank>) -> String {
    let ranks: Vec<&Rank> = ranks.collect();
    let shown: Vec<String> = ranks
        .iter()
        .take(MOST_NAMED)
        .map(ToString::to_string)
        .collect();
    match ranks.len().saturating_sub(shown.len()) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}

fn numbers(ranks: &[&Rank]) -> String {
    let shown: Vec<String> = ranks
        .iter()
        .take(MOST_NAMED)
        .map(|rank| rank.rank.to_string())
        .collect();
    let more = match ranks.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}{more}", shown.join(", "))
}

/// Marks the odd ones out, and returns what follows.
fn conclude(ranks: &mut [Rank]) -> String {
    match ranks {
        [] => return "the trial has no container at present".to_owned(),
        [one] => return format!("{one}; there is no other rank to compare it with"),
        _ => {}
    }
    let silent = |rank: &Rank| rank.activity == Activity::Unknown;
    if ranks.iter().all(silent) {
        return format!("no rank answered: {}", named(ranks.iter()));
    }
    if let Some(sentence) = odd_by_activity(ranks).or_else(|| odd_by_stack(ranks)) {
        return sentence;
    }
    let Some(first) = ranks.first() else {
        return String::new();
    };
    match first.activity {
        Activity::Computes if ranks.iter().all(|rank| rank.activity == first.activity) => format!(
            "all {} ranks compute: the trial is silent, and nothing shows that it hangs",
            ranks.len()
        ),
        activity if ranks.iter().all(|rank| rank.does_as(first)) => format!(
            "no rank differs from the others, each {}: {}",
            activity.phrase(),
            named(ranks.iter())
        ),
        _ => format!(
            "the ranks differ, and which of them keeps the others waiting is not clear: {}",
            named(ranks.iter())
        ),
    }
}

/// Some do what cannot be waiting for ranks, others wait.
fn odd_by_activity(ranks: &mut [Rank]) -> Option<String> {
    let waits = |rank: &Rank| rank.activity.may_wait_for_ranks();
    let waiting = ranks.iter().filter(|rank| waits(rank)).count();
    let others = ranks.len() - waiting;
    if waiting == 0 || others == 0 {
        return None;
    }
    // More of them than of those that wait: then these are what is unusual, unless one of the others cannot go on.
    let all_go_on = ranks
        .iter()
        .all(|rank| waits(rank) || rank.activity == Activity::Computes);
    let waiting_is_odd = others > waiting && all_go_on;
    for rank in ranks.iter_mut() {
        rank.odd = waits(rank) == waiting_is_odd;
    }
    let (odd, rest): (Vec<&Rank>, Vec<&Rank>) = ranks.iter().partition(|rank| rank.odd);
    Some(sentence(&odd, &rest))
}

/// All wait: some in another function than most.
fn odd_by_stack(ranks: &mut [Rank]) -> Option<String> {
    let kind = |rank: &Rank| (rank.activity, rank.innermost().map(str::to_owned));
    let mut counts: BTreeMap<(Activity, Option<String>), usize> = BTreeMap::new();
    for rank in ranks.iter() {
        *counts.entry(kind(rank)).or_default() += 1;
    }
    let most = counts.values().max().copied()?;
    // Half of them are no majority.
    if counts.len() < 2 || most * 2 <= ranks.len() {
        return None;
    }
    let usual = counts.into_iter().find(|(_, count)| *count == most)?.0;
    for rank in ranks.iter_mut() {
        rank.odd = kind(rank) != usual;
    }
    let (odd, rest): (Vec<&Rank>, Vec<&Rank>) = ranks.iter().partition(|rank| rank.odd);
    Some(sentence(&odd, &rest))
}

fn sentence(odd: &[&Rank], rest: &[&Rank]) -> String {
    let verb = if rest.len() == 1 { "waits" } else { "wait" };
    let example = rest.first().map(|rank| {
        let waits_in = rank.waits_in();
        if waits_in.is_empty() {
            String::new()
        } else {
            format!(" in {waits_in}")
        }
    });
    if odd.iter().all(|rank| rank.activity.may_wait_for_ranks())
        && rest.iter().all(|rank| rank.activity == Activity::Computes)
    {
        return format!(
            "{}, while {} go on",
            named(odd.iter().copied()),
            numbers(rest)
        );
    }
    format!(
        "{}, and {} {verb}{} for it",
        named(odd.iter().copied()),
        numbers(rest),
        example.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Python process in this state, which waits in this call.
    fn process(state: &str, call: &str) -> ProcessState {
        ProcessState {
            pid: 7,
            parent: 1,
            command: "python3 train.py".to_owned(),
            state: state.to_owned(),
            system_call: call.to_owned(),
            threads: 1,
            ..ProcessState::default()
        }
    }

    fn container(member: u32, processes: Vec<ProcessState>) -> Container {
        Container {
            member,
            place: format!("agent-{member}"),
            joined: true,
            answer: Ok(Diagnosis {
                window_micros: 1_000_000,
                processes,
                omitted: 0,
            }),
        }
    }

    fn odd(finding: &Finding) -> Vec<i64> {
        let odd = finding.ranks.iter().filter(|rank| rank.odd);
        odd.map(|rank| rank.rank).collect()
    }

    #[test]
    fn what_a_process_does_follows_from_its_state_its_call_and_its_channel() {
        use Activity as A;
        for (state, call, channel, expected) in [
            ("R", "", "", A::Computes),
            ("D", "read(file)", "", A::WaitsForDisk),
            ("T", "", "", A::Stopped),
            ("Z", "", "", A::Ended),
            ("S", "clock_nanosleep", "hrtimer_nanosleep", A::Sleeps),
            ("S", "", "hrtimer_nanosleep", A::Sleeps),
            ("S", "pselect6(time only)", "do_select", A::Sleeps),
            ("S", "futex", "futex_wait_queue", A::WaitsForLock),
            ("S", "recvfrom(socket)", "", A::WaitsForNetwork),
            ("S", "ppoll", "", A::WaitsForNetwork),
            ("S", "", "do_sys_poll", A::WaitsForNetwork),
            ("S", "read(socket)", "", A::WaitsForNetwork),
            ("S", "read(pipe)", "pipe_read", A::WaitsForProcess),
            ("S", "wait4", "do_wait", A::WaitsForProcess),
            ("S", "read(file)", "", A::WaitsForDisk),
            ("S", "", "rpc_wait_bit_killable", A::WaitsForDisk),
            ("S", "", "", A::Waits),
            ("S", "ioctl(device)", "", A::WaitsForDisk),
        ] {
            let mut process = process(state, call);
            process.wait_channel = channel.to_owned();
            let found = Activity::of(&process, 1_000_000);
            assert_eq!(found, expected, "{state} {call} {channel}");
        }
        let mut busy = process("S", "futex");
        busy.cpu_window_micros = 700_000;
        assert_eq!(Activity::of(&busy, 1_000_000), Activity::Computes);
    }

    #[test]
    fn the_rank_that_sleeps_keeps_the_others_waiting() {
        let mut sleeps = process("S", "clock_nanosleep");
        sleeps.stack = vec!["hang (/w/train.py:12)".to_owned()];
        let finding = examine(vec![
            container(0, vec![process("S", "recvfrom(socket)")]),
            container(1, vec![sleeps]),
        ]);
        assert_eq!(odd(&finding), [1]);
        assert_eq!(
            finding.conclusion,
            "rank 1 on agent-1 sleeps in clock_nanosleep, at hang (/w/train.py:12), and rank 0 waits in \
             recvfrom(socket) for it"
        );
    }

    #[test]
    fn a_rank_that_does_not_answer_is_the_suspect() {
        let away = Container {
            answer: Err("its agent \"agent-2\" is not connected".to_owned()),
            ..container(2, Vec::new())
        };
        let waits = |member| container(member, vec![process("S", "futex")]);
        let finding = examine(vec![waits(0), waits(1), away]);
        assert_eq!(odd(&finding), [2]);
        assert_eq!(
            finding.conclusion,
            "rank 2 on agent-2 did not answer (its agent \"agent-2\" is not connected), and ranks 0, 1 wait in futex for it"
        );
    }

    #[test]
    fn of_ranks_that_all_wait_the_one_in_another_function_is_odd() {
        let at = |member, frame: &str| {
            let mut process = process("S", "ppoll");
            process.stack = vec![frame.to_owned()];
            container(member, vec![process])
        };
        let finding = examine(vec![
            at(0, "all_reduce (dist.py:1)"),
            at(1, "all_reduce (dist.py:1)"),
            at(2, "download (data.py:9)"),
        ]);
        assert_eq!(odd(&finding), [2]);
        let alike = examine(vec![
            at(0, "all_reduce (dist.py:1)"),
            at(1, "all_reduce (dist.py:1)"),
        ]);
        assert!(odd(&alike).is_empty());
        assert!(
            alike
                .conclusion
                .starts_with("no rank differs from the others, each waits for the network")
        );
        let no_majority = examine(vec![at(0, "a (x.py:1)"), at(1, "b (x.py:1)")]);
        assert!(odd(&no_majority).is_empty());
        assert!(no_majority.conclusion.starts_with("the ranks differ"));
    }

    #[test]
    fn ranks_that_compute_are_not_reported_as_hanging() {
        let computes = |member| container(member, vec![process("R", "")]);
        let finding = examine(vec![computes(0), computes(1)]);
        assert!(odd(&finding).is_empty());
        assert!(finding.conclusion.contains("nothing shows that it hangs"));
        let one_waits = examine(vec![
            computes(0),
            computes(1),
            container(2, vec![process("S", "read(pipe)")]),
        ]);
        assert_eq!(odd(&one_waits), [2]);
        assert_eq!(
            one_waits.conclusion,
            "rank 2 on agent-2 waits for another process in read(pipe), while ranks 0, 1 go on"
        );
    }

    #[test]
    fn the_rank_that_has_not_come_keeps_those_waiting_that_have() {
        let late = Container {
            joined: false,
            ..container(1, vec![process("S", "read(socket)")])
        };
        let finding = examine(vec![container(0, Vec::new()), late.clone()]);
        assert_eq!(odd(&finding), [1]);
        assert_eq!(
            finding.conclusion,
            "not all ranks have met yet: rank 1 on agent-1 waits for the network in read(socket), and rank 0 waits for it"
        );
        assert!(!examine(vec![late]).conclusion.starts_with("not all"));
    }

    #[test]
    fn one_rank_is_described_and_none_too() {
        let finding = examine(vec![container(0, vec![process("D", "read(file)")])]);
        assert_eq!(
            finding.conclusion,
            "rank 0 on agent-0 waits for a disk or a device in read(file); there is no other rank to compare it with"
        );
        assert_eq!(
            examine(Vec::new()).conclusion,
            "the trial has no container at present"
        );
        let gone = examine(vec![container(0, Vec::new())]);
        assert_eq!(gone.ranks[0].activity, Activity::Ended);
    }

    #[test]
    fn launchers_shells_and_loaders_of_data_are_no_ranks() {
        let one = |pid, parent, command: &str, rank| ProcessState {
            pid,
            parent,
            command: command.to_owned(),
            rank,
            ..process("S", "futex")
        };
        let ranked = [
            one(2, 1, "python3 -m determined.exec.launch", None),
            one(3, 2, "python3 -m torch.distributed.run", None),
            one(4, 3, "python3 train.py", Some(4)),
            one(5, 3, "python3 train.py", Some(5)),
            one(6, 4, "python3 train.py", Some(4)),
        ];
        let pids =
            |found: Vec<&ProcessState>| -> Vec<i64> { found.iter().map(|p| p.pid).collect() };
        assert_eq!(pids(workers(&ranked)), [4, 5]);
        // As the launchers of both Python packages start them, with a helper that the code runs in a shell.
        let wrapped = [
            one(
                2,
                1,
                "python3 -m determined.exec.pid_server --on-fail SIGTERM",
                None,
            ),
            one(3, 2, "python3 -m torch.distributed.run", None),
            one(
                4,
                3,
                "python3 -m determined.exec.pid_client /tmp/server",
                Some(4),
            ),
            one(5, 4, "python3 -m determined.launch.wrap_rank RANK", Some(4)),
            one(6, 5, "python3 train.py", Some(4)),
            one(7, 6, "python3 train.py", Some(4)),
            one(8, 6, "sh -c helper", Some(4)),
            one(9, 8, "python3 helper.py", Some(4)),
            one(
                10,
                3,
                "python3 -m determined.launch.wrap_rank RANK",
                Some(5),
            ),
            one(11, 10, "bash train.sh", Some(5)),
            one(12, 11, "python3 train.py", Some(5)),
        ];
        assert_eq!(pids(workers(&wrapped)), [6, 12]);
        // The code of the rank has not begun.
        assert_eq!(pids(workers(&wrapped[..4])), [4]);
        let plain = [
            one(2, 1, "sh", None),
            one(3, 2, "python3 train.py", None),
            one(4, 3, "python3 train.py", None),
        ];
        assert_eq!(pids(workers(&plain)), [3]);
        assert_eq!(pids(workers(&plain[..1])), [2]);
    }
}
