//! Reads the task's output.

use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use det_spool::{LogStream, Record};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::clock::now_micros;
use crate::continuation::Continuations;
use crate::launch::GateKey;
use crate::lines::{Splitter, classify};
use crate::log::Log;
use crate::ready::Readiness;
use crate::report::Diagnostics;
use crate::tail::Tail;

/// How long to wait for the output of processes that outlive the entrypoint.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const CHUNK_BYTES: usize = 64 << 10;
/// How often everything is read before the gate is opened: more than the largest pipe holds (1 MiB).
const PASSES_BEFORE_GATE: usize = 20;

/// A stream of the task's output.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    stdtype: LogStream,
    end: End,
    splitter: Splitter,
    continuations: Continuations,
}

/// When nothing more comes from a source of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// When all writers have closed it.
    Closed,
    /// Never: it stays open for workers that want to write.
    Never,
}

impl Source {
    /// Standard output or error of the entrypoint.
    pub(crate) fn pipe(fd: impl Into<OwnedFd>, stdtype: LogStream) -> Self {
        Self {
            file: File::from(fd.into()),
            stdtype,
            end: End::Closed,
            splitter: Splitter::default(),
            continuations: Continuations::default(),
        }
    }

    /// A named pipe through which workers write without their launcher: `train/logs/stdout.log` and `stderr.log`.
    pub(crate) fn fifo(path: &Path, stdtype: LogStream) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?,
        }
        // Opened for writing as well, so that neither opening nor reading ever waits for a writer.
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)?;
        Ok(Self {
            file,
            stdtype,
            end: End::Never,
            splitter: Splitter::default(),
            continuations: Continuations::default(),
        })
    }
}

/// Starts a thread that puts all output into the log.
///
/// `tail` sees every line, `readiness` those of the entrypoint. `control`: closed by its other side when the entrypoint has
/// ended; the thread then reads what is left and ends. `gate`: where hooks run first, a byte in `control` announces that its
/// key can be received; the thread then reads what the hooks have written, and opens the gate. `None` = there are no hooks.
pub(crate) fn start(
    sources: Vec<Source>,
    (control, gate): (PipeReader, Option<Receiver<GateKey>>),
    log: Log,
    (readiness, tail): (Option<Readiness>, Tail),
    diagnostics: Diagnostics,
) -> io::Result<JoinHandle<()>> {
    let mut collector = Collector {
        sources,
        log,
        gate,
        readiness,
        tail,
        diagnostics,
        chunk: vec![0; CHUNK_BYTES],
        records: Vec::new(),
    };
    thread::Builder::new()
        .name("collect".into())
        .spawn(move || collector.run(&control))
}

struct Collector {
    sources: Vec<Source>,
    log: Log,
    /// `Some` while hooks run: what they write is no line of the entrypoint.
    gate: Option<Receiver<GateKey>>,
    readiness: Option<Readiness>,
    tail: Tail,
    diagnostics: Diagnostics,
    chunk: Vec<u8>,
    records: Vec<Record>,
}

impl Collector {
    fn run(&mut self, control: &PipeReader) {
        while !self.take_ready(Some(control), None) || self.is_at_gate(control) {}
        let deadline = Instant::now() + DRAIN_TIME;
        while self.sources.iter().any(|source| source.end == End::Closed) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.take_ready(None, Some(left));
        }
        // The named pipes have no end: read what is in them now.
        while self.take_ready(None, Some(Duration::ZERO)) && Instant::now() < deadline {}
        for mut source in std::mem::take(&mut self.sources) {
            self.finish(&mut source);
        }
        self.store();
    }

    /// Whether the other side of `control` has something to report, which is that the hooks have run: opens the gate then.
    /// `false` = it is closed.
    fn is_at_gate(&mut self, mut control: &PipeReader) -> bool {
        match control.read(&mut [0]) {
            Ok(1..) => self.open_gate(),
            Ok(0) => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
        true
    }

    /// Lets the entrypoint start, once everything that the hooks have written is read.
    fn open_gate(&mut self) {
        let Some(key) = self.gate.as_ref().and_then(|gate| gate.try_recv().ok()) else {
            return;
        };
        for _ in 0..PASSES_BEFORE_GATE {
            if !self.take_ready(None, Some(Duration::ZERO)) {
                break;
            }
        }
        if self.readiness.is_some() {
            // The beginning of a line would make one with what the entrypoint writes.
            let mut sources = std::mem::take(&mut self.sources);
            for source in &mut sources {
                self.finish(source);
            }
            self.sources = sources;
            self.store();
        }
        self.gate = None;
        // This fails if the shell was just killed; its end is the next event.
        if let Err(error) = key.open() {
            self.diagnostics
                .note(format!("could not open the start gate: {error}"));
        }
    }

    /// Waits for output, reads it, and stores the lines.
    ///
    /// With `control`: returns whether that is closed or has something. Without: whether there was output within `timeout`.
    fn take_ready(&mut self, control: Option<&PipeReader>, timeout: Option<Duration>) -> bool {
        let mut fds: Vec<PollFd<'_>> = self
            .sources
            .iter()
            .map(|source| PollFd::new(source.file.as_fd(), PollFlags::POLLIN))
            .collect();
        fds.extend(control.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        let timeout = timeout.map_or(PollTimeout::NONE, |time| {
            PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => return false,
            Ok(_) => {}
            Err(error) => {
                self.diagnostics
                    .note(format!("could not wait for output: {error}"));
                self.sources.clear();
                return true;
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let mut any = false;
        let mut index = 0;
        // The order of `sources` is that of `ready`.
        let mut sources = std::mem::take(&mut self.sources);
        sources.retain_mut(|source| {
            let is_ready = ready.get(index).copied().unwrap_or(false);
            index += 1;
            any |= is_ready;
            !is_ready || self.read(source)
        });
        self.sources = sources;
        self.store();
        match control {
            Some(_) => ready.last().copied().unwrap_or(true),
            None => any,
        }
    }

    /// Reads once. `false` at the end of the stream.
    fn read(&mut self, source: &mut Source) -> bool {
        match source.file.read(&mut self.chunk) {
            Ok(0) => {
                self.finish(source);
                false
            }
            Ok(count) => {
                let bytes = self.chunk.get(..count).unwrap_or_default();
                let (stdtype, records) = (source.stdtype, &mut self.records);
                let continuations = &mut source.continuations;
                source.splitter.push(bytes, |line| {
                    records.push(record(stdtype, continuations, line));
                });
                true
            }
            Err(error) => {
                let again = matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                );
                if !again {
                    self.diagnostics
                        .note(format!("could not read output: {error}"));
                    self.finish(source);
                }
                again
            }
        }
    }

    /// Stores a last line that has no line end.
    fn finish(&mut self, source: &mut Source) {
        let (stdtype, records) = (source.stdtype, &mut self.records);
        let continuations = &mut source.continuations;
        source.splitter.finish(|line| {
            records.push(record(stdtype, continuations, line));
        });
    }

    fn store(&mut self) {
        if self.gate.is_none()
            && let Some(readiness) = &mut self.readiness
        {
            self.records
                .iter()
                .for_each(|record| readiness.see(&record.log));
        }
        if !self.records.is_empty() {
            self.tail.see(&self.records);
            self.log.append(&self.records);
            self.records.clear();
        }
    }
}

fn record(stdtype: LogStream, continuations: &mut Continuations, line: &[u8]) -> Record {
    let line = classify(line);
    let level = continuations.level(&line);
    Record {
        timestamp_micros: now_micros(),
        stdtype,
        rank_id: line.rank_id,
        level,
        log: line.text,
        outage: None,
    }
}
