//! GPUs of NVIDIA, as `nvidia-smi` prints them every second.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use super::averages::{Averages, Group};
use crate::environment::TaskEnv;
use crate::report::Diagnostics;
use crate::signals;

/// Bytes of a line that are read at most.
const MOST_LINE: u64 = 4096;
/// GPUs of a machine at most; what prints more is no driver's tool.
const MOST_GPUS: usize = 128;
const MIB: f64 = 1_048_576.0;

/// Starts the driver's tool and adds what it prints of the `visible` GPUs (see [`crate::accelerators::visible_gpus`]) to
/// `into`, until either ends. The tool runs once for the whole task: to start it takes most of a second.
pub(crate) fn watch(
    env: &TaskEnv,
    visible: Vec<String>,
    sample_seconds: u32,
    into: &Arc<Mutex<Averages>>,
    diagnostics: &Diagnostics,
) {
    let Some(tool) = env.find_program("nvidia-smi") else {
        return;
    };
    let mut command = Command::new(tool);
    command
        .args(["--query-gpu=index,uuid,utilization.gpu,memory.free"])
        .args(["--format=csv,noheader,nounits", "-l"])
        .arg(sample_seconds.to_string())
        .env_clear()
        .envs(&env.vars)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    signals::reset(&mut command);
    let started = command.spawn().and_then(|child| {
        let output = child
            .stdout
            .ok_or_else(|| std::io::Error::other("it has no output"))?;
        let into = Arc::downgrade(into);
        // Each ends with the other, and both with `into`: the tool cannot write without a reader, and its end is the end of
        // its output. The process is reaped with all others.
        thread::Builder::new()
            .name("gpus".into())
            .spawn(move || read(BufReader::new(output), &visible, &into))
    });
    if let Err(error) = started {
        diagnostics.note(format!("could not measure GPUs with nvidia-smi: {error}"));
    }
}

fn read(
    mut output: BufReader<impl std::io::Read>,
    visible: &[String],
    into: &Weak<Mutex<Averages>>,
) {
    loop {
        let mut line = Vec::new();
        match output.by_ref().take(MOST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line);
        let shown = |gpu: &Gpu<'_>| {
            visible.is_empty()
                || visible
                    .iter()
                    .any(|name| name == gpu.index || name == gpu.uuid)
        };
        let Some(into) = into.upgrade() else {
            return;
        };
        if let Some(gpu) = parse(&line).filter(shown) {
            let mut averages = into.lock().unwrap_or_else(PoisonError::into_inner);
            if averages.labels() < MOST_GPUS {
                averages.add_of(Group::Gpu, gpu.uuid, "gpu_util", gpu.percent);
                averages.add_of(Group::Gpu, gpu.uuid, "gpu_free_memory", gpu.free_mib * MIB);
            }
        }
    }
}

/// A line of the tool.
struct Gpu<'a> {
    index: &'a str,
    uuid: &'a str,
    /// How much of the time the GPU was in use; not a number if the card does not count it ("[N/A]").
    percent: f64,
    /// Free memory; not a number likewise.
    free_mib: f64,
}

fn parse(line: &str) -> Option<Gpu<'_>> {
    let mut fields = line.split(',').map(str::trim);
    let (index, uuid) = (fields.next()?, fields.next()?);
    let number = |text: &str| text.parse().unwrap_or(f64::NAN);
    let (percent, free_mib) = (number(fields.next()?), number(fields.next()?));
    uuid.starts_with("GPU-").then_some(Gpu {
        index,
        uuid,
        percent,
        free_mib,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(visible: &[&str], output: &str) -> Value {
        let averages = Arc::new(Mutex::new(Averages::default()));
        let visible: Vec<String> = visible.iter().map(|&name| name.to_owned()).collect();
        let into = Arc::downgrade(&averages);
        read(BufReader::new(output.as_bytes()), &visible, &into);
        Value::Object(averages.lock().unwrap().document())
    }

    #[test]
    fn only_the_tasks_own_gpus_are_measured() {
        let output = "0, GPU-a, 40, 1024\n1, GPU-b, 10, 5\n0, GPU-a, 60, 2048\n2, GPU-c, [N/A], 1\nodd\n\n0, GPU-a\n";
        assert_eq!(
            found(&["GPU-a", "2"], output),
            json!({"gpu": {
                "GPU-a": {"gpu_util": 50.0, "gpu_free_memory": 1536.0 * MIB},
                "GPU-c": {"gpu_free_memory": MIB},
            }})
        );
        let all = found(&[], output);
        assert_eq!(all["gpu"].as_object().unwrap().len(), 3);
        assert_eq!(found(&["MIG-x"], output), json!({}));
    }

    #[test]
    fn nothing_is_read_once_it_is_not_wanted() {
        let gone = Arc::downgrade(&Arc::new(Mutex::new(Averages::default())));
        let mut output = "0, GPU-a, 1, 1\n".repeat(1000);
        output.push_str("rest");
        let mut left = output.as_bytes();
        read(BufReader::with_capacity(16, &mut left), &[], &gone);
        assert!(left.len() > 10_000, "{} bytes are left", left.len());
    }

    #[test]
    fn a_tool_that_prints_ever_new_gpus_takes_no_memory() {
        let output: String = (0..1000).map(|n| format!("{n}, GPU-{n}, 1, 1\n")).collect();
        let gpus = found(&[], &output)["gpu"].as_object().unwrap().len();
        assert!(gpus <= MOST_GPUS, "{gpus}");
    }
}
