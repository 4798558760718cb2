//! What the manager of a large Kubernetes cluster takes: `cargo run --release -p det-rm-kube --example kube_scale`.
//!
//! A second process is the cluster: a double of the API whose controllers, scheduler and kubelets act at once. This one is the
//! manager with its core in memory, so that its processor time and memory are the manager's alone, but for the rows. Nodes
//! have 8 GPUs. In turn all nodes join, pods of others take a GPU each, single pods of ours are placed all at once, and a gang
//! of 512 pods. Printed are the time to each state, the processor time of this process, its memory, and the requests that the
//! cluster was sent. Arguments: nodes (5000), pods of others (20000), pods of ours (20000).
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and cannot go on when something fails"
)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use det_ids::ContainerId;
use det_kube_double::{ApiDouble, Controllers};
use det_lifecycle::container::ObservedState;
use det_rm_contract::TestCore;
use det_rm_kube::{ClusterNamespaces, PodReach, serve};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[path = "../tests/support/settings.rs"]
mod settings;

const GANG: usize = 512;
const GPUS: u32 = 8;
/// How long a state may take.
const LIMIT: Duration = Duration::from_mins(20);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().map(String::as_str) == Some("cluster") {
        return runtime(1).block_on(be_the_cluster());
    }
    let number = |place: usize, usual: usize| {
        let given = arguments.get(place);
        given.map_or(usual, |given| given.parse().unwrap())
    };
    let sizes = (number(0, 5_000), number(1, 20_000), number(2, 20_000));
    runtime(2).block_on(measure(sizes));
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

fn node(number: usize) -> String {
    format!("node-{number:05}")
}

/// The cluster: it does what each line of its input names, and answers with a line.
async fn be_the_cluster() {
    let api = ApiDouble::start().await;
    api.set_controllers(Controllers {
        kubelets: true,
        ..Controllers::default()
    });
    println!("{}", json!(api.kubeconfig()));
    let mut seen = 0;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let count = |place: usize| words[place].parse::<usize>().unwrap();
        let answer = match words[0] {
            "nodes" => {
                for number in 0..count(1) {
                    api.add_node(&node(number), GPUS);
                }
                json!(null)
            }
            "others" => {
                for number in 0..count(1) {
                    foreign_pod(&api, number, &node(number % count(2)));
                }
                json!(null)
            }
            "requests" => {
                let requests = api.requests();
                let mut calls: BTreeMap<String, usize> = BTreeMap::new();
                for request in &requests[seen..] {
                    let mut parts = request.path.split('/').skip_while(|it| *it != "namespaces");
                    let plural = parts.nth(2).unwrap_or("(lists and watches)");
                    *calls
                        .entry(format!("{} {plural}", request.method))
                        .or_default() += 1;
                }
                seen = requests.len();
                json!(calls)
            }
            other => panic!("{other}"),
        };
        println!("{answer}");
    }
}

fn foreign_pod(api: &ApiDouble, number: usize, node: &str) {
    let resources = json!({
        "requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"},
    });
    let labels: BTreeMap<String, String> = (0..6)
        .map(|label| {
            (
                format!("example.com/label-{label}"),
                format!("value-{number}-{label}"),
            )
        })
        .collect();
    let pod = json!({
        "metadata": {"name": format!("other-{number}"), "labels": labels},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "registry.example/team/image:1", "resources": resources}],
        },
    });
    api.create("v1/pods", "default", pod);
}

/// The other process.
struct OtherProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl OtherProcess {
    fn start() -> (Self, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.arg("cluster").stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut cluster = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        let kubeconfig = cluster.answer();
        (cluster, kubeconfig.as_str().unwrap().to_owned())
    }

    fn answer(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, line: &str) -> serde_json::Value {
        writeln!(self.input, "{line}").unwrap();
        self.answer()
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // It ends anyway when its input does.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Processor time of this process, and its memory in MB.
fn used() -> (Duration, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
    // User and system time in hundredths of a second: fields 14 and 15 of proc(5), the name being the second.
    let ticks: u64 = [12, 13]
        .map(|at: usize| fields[at].parse::<u64>().unwrap())
        .iter()
        .sum();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let anonymous = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes: f64 = anonymous
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    (Duration::from_millis(ticks * 10), kilobytes / 1000.0)
}

/// The manager and its core.
struct Measurement {
    core: TestCore,
    cluster: OtherProcess,
}

impl Measurement {
    /// Does something, and waits until this many things are so.
    async fn stage(
        &mut self,
        (what, wanted): (&str, usize),
        act: impl FnOnce(&TestCore, &mut OtherProcess),
        count: impl Fn(&TestCore) -> usize,
    ) {
        let (began, (before, _)) = (Instant::now(), used());
        act(&self.core, &mut self.cluster);
        while count(&self.core) < wanted {
            assert!(
                began.elapsed() < LIMIT,
                "{what}: {} of {wanted}",
                count(&self.core)
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let (took, (after, memory)) = (began.elapsed(), used());
        let processor = after.saturating_sub(before);
        let each = |time: Duration| {
            #[expect(clippy::cast_precision_loss, reason = "these counts are small")]
            let wanted = wanted as f64;
            wanted / time.as_secs_f64().max(0.001)
        };
        println!(
            "{what}: {wanted} in {:.1} s ({:.0}/s), processor time {:.1} s ({:.0}/s), {memory:.0} MB; {}",
            took.as_secs_f64(),
            each(took),
            processor.as_secs_f64(),
            each(processor),
            self.cluster.ask("requests"),
        );
    }
}

async fn measure((nodes, others, ours): (usize, usize, usize)) {
    let (cluster, kubeconfig) = OtherProcess::start();
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig).unwrap();
    let core = TestCore::default();
    let mut settings = settings::settings(file);
    // All of them may be created at once, and the double is one process.
    settings.start_within = Duration::from_mins(60);
    let (_configured, settings) = watch::channel(settings);
    let serving = serve(
        core.clone(),
        settings,
        ClusterNamespaces::default(),
        PodReach::default(),
        CancellationToken::new(),
    );
    tokio::spawn(serving);
    let mut measured = Measurement { core, cluster };
    let names: Vec<String> = (0..nodes).map(node).collect();
    let joined = |core: &TestCore| {
        let joined = names.iter().filter(|node| core.served(node).is_some());
        joined.count()
    };
    measured
        .stage(
            ("nodes join", nodes),
            |_, cluster| drop(cluster.ask(&format!("nodes {nodes}"))),
            joined,
        )
        .await;
    let held = |core: &TestCore| {
        let served = names.iter().filter_map(|node| core.served(node));
        let held = served.map(|joined| joined.capacity.used_by_others(|_| false).len());
        held.sum()
    };
    measured
        .stage(
            ("pods of others are known", others),
            |_, cluster| drop(cluster.ask(&format!("others {others} {nodes}"))),
            held,
        )
        .await;
    let ids: Vec<String> = (0..ours).map(|number| format!("c{number:05}")).collect();
    let place = |core: &TestCore, _: &mut OtherProcess| {
        for (number, id) in ids.iter().enumerate() {
            core.place(&names[number % nodes], id, u32::from(ours <= 4 * nodes));
        }
    };
    measured
        .stage(("single pods run", ours), place, |core| running(core, &ids))
        .await;
    let ranks: Vec<String> = (0..GANG).map(|rank| format!("g{rank:05}")).collect();
    let gang = |core: &TestCore, _: &mut OtherProcess| {
        let members = ranks.iter().enumerate();
        let members = members.map(|(rank, id)| (names[rank % nodes].as_str(), id.as_str(), 0));
        core.place_gang(&members.collect::<Vec<_>>());
    };
    measured
        .stage(("pods of one gang run", GANG), gang, |core| {
            running(core, &ranks)
        })
        .await;
}

fn running(core: &TestCore, ids: &[String]) -> usize {
    let ids = ids.iter().map(|id| ContainerId::from(id.as_str()));
    ids.filter(|id| matches!(core.row(id).observed, Some(ObservedState::Running { .. })))
        .count()
}
