//! Completing a task's environment with what only the agent knows. Pure.
//! See `docs/contract/task-environment.md`, "Variables".

use std::collections::BTreeMap;

use det_agent_proto::Welcome;
use det_taskspec::{ContainerSpec, Device, DeviceKind, RUN_DIR};

use crate::master::MasterAddress;
use crate::options::ProxyOptions;

/// Where tasks find the certificate authorities of the master.
pub(crate) const CERT_FILE: &str = "etc/ssl/master.crt";

/// What the agent knows and the master does not.
pub(crate) struct AgentFacts<'a> {
    /// The master as tasks reach it.
    pub(crate) master: &'a MasterAddress,
    pub(crate) welcome: &'a Welcome,
    pub(crate) agent_id: &'a str,
    /// All devices of the agent.
    pub(crate) devices: &'a [Device],
    /// How tasks check the master's certificate.
    pub(crate) cert: CertCheck,
    pub(crate) cert_name: Option<&'a str>,
    pub(crate) proxies: &'a ProxyOptions,
    pub(crate) place: TaskPlace,
}

/// How tasks check the master's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertCheck {
    /// With the authorities of their image or host.
    Usual,
    /// With the file that lies in the run directory.
    File,
    /// Not at all; the harness has a word for it.
    Off,
}

/// How the task sees the host; decides how its GPUs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskPlace {
    /// A container: the engine passes exactly the devices.
    Container,
    /// A process that sees every device of the host: the drivers are told which to use. `PATH` and `PYTHONPATH` are the
    /// sandbox's business.
    HostProcess,
}

/// The environment of `spec`'s task: the master's part, then the agent's. A name appears once.
///
/// The agent's names win over whatever the task brought; proxies are set only where the task has none in any case.
pub(crate) fn complete(spec: &ContainerSpec, facts: &AgentFacts<'_>) -> Vec<(String, String)> {
    let mut env = Env::new(&spec.script.env);
    for name in AGENT_ONLY {
        env.remove(name);
    }
    let master = facts.master;
    env.set("DET_MASTER", master.url());
    env.set("DET_MASTER_HOST", &master.host);
    env.set("DET_MASTER_ADDR", &master.host);
    env.set("DET_MASTER_PORT", master.port.to_string());
    env.set("DET_USE_TLS", master.tls.to_string());
    match facts.cert {
        CertCheck::File if master.tls => {
            env.set("DET_MASTER_CERT_FILE", format!("{RUN_DIR}/{CERT_FILE}"));
        }
        CertCheck::Off if master.tls => env.set("DET_MASTER_CERT_FILE", "noverify"),
        CertCheck::File | CertCheck::Off | CertCheck::Usual => {}
    }
    if let Some(name) = facts.cert_name.filter(|_| master.tls) {
        env.set("DET_MASTER_CERT_NAME", name);
    }
    env.set("DET_CLUSTER_ID", &facts.welcome.cluster_id);
    env.set("DET_MASTER_ID", &facts.welcome.master_id);
    env.set("DET_AGENT_ID", facts.agent_id);
    env.set("DET_CONTAINER_ID", spec.container_id.as_str());
    env.set("DET_RESOURCES_ID", spec.container_id.as_str());
    env.set("DET_RUN_DIR", RUN_DIR);
    let slots: Vec<String> = spec.slots.iter().map(ToString::to_string).collect();
    env.set("DET_SLOT_IDS", format!("[{}]", slots.join(",")));

    for (name, value) in [
        ("DET_TASK_ID", spec.task_id.as_str()),
        ("DET_ALLOCATION_ID", spec.allocation_id.as_str()),
        ("DET_TASK_TYPE", spec.script.task_type.name()),
        ("DET_SESSION_TOKEN", &spec.script.token),
        ("DET_WORKDIR", &spec.script.work_dir),
        // The harness knows no other word for "an agent's container", whatever runs it.
        ("DET_RESOURCES_TYPE", "docker-container"),
        ("PYTHONUSERBASE", "/run/determined/pythonuserbase"),
    ] {
        env.set_default(name, value);
    }

    for (name, value) in [
        ("HTTP_PROXY", &facts.proxies.http),
        ("HTTPS_PROXY", &facts.proxies.https),
        ("FTP_PROXY", &facts.proxies.ftp),
        ("NO_PROXY", &facts.proxies.no_proxy),
    ] {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty())
            && !env.has_in_any_case(name)
        {
            env.set(name, value);
        }
    }

    match facts.place {
        TaskPlace::Container => {
            let has_gpu = facts
                .devices
                .iter()
                .any(|d| d.kind == DeviceKind::Cuda && spec.slots.contains(&d.id));
            if !has_gpu {
                // Some images say "all" where the NVIDIA runtime is the engine's default.
                env.set("NVIDIA_VISIBLE_DEVICES", "void");
            }
        }
        TaskPlace::HostProcess => choose_gpus(&mut env, spec, facts.devices),
    }
    env.into_list()
}

/// Names that only the agent sets: what a task brought under them is dropped even where the agent sets nothing.
const AGENT_ONLY: [&str; 2] = ["DET_MASTER_CERT_FILE", "DET_MASTER_CERT_NAME"];

/// Tells the GPU drivers which devices a host process may use; an empty list hides all.
fn choose_gpus(env: &mut Env, spec: &ContainerSpec, devices: &[Device]) {
    for (kind, name) in [
        (DeviceKind::Cuda, "CUDA_VISIBLE_DEVICES"),
        (DeviceKind::Rocm, "ROCR_VISIBLE_DEVICES"),
    ] {
        if !devices.iter().any(|device| device.kind == kind) {
            continue;
        }
        let uuids: Vec<&str> = spec
            .slots
            .iter()
            .filter_map(|slot| devices.iter().find(|device| device.id == *slot))
            .filter(|device| device.kind == kind)
            .map(|device| device.uuid.as_str())
            .collect();
        env.set(name, uuids.join(","));
    }
}

/// An ordered environment in which each name appears once, at the place where it was last set.
struct Env {
    order: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Env {
    fn new(list: &[(String, String)]) -> Self {
        let mut env = Self {
            order: Vec::new(),
            values: BTreeMap::new(),
        };
        for (name, value) in list {
            env.set(name, value);
        }
        env
    }

    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.remove(name);
        self.order.push(name.to_owned());
        self.values.insert(name.to_owned(), value.into());
    }

    fn set_default(&mut self, name: &str, value: &str) {
        if !self.values.contains_key(name) {
            self.set(name, value);
        }
    }

    fn remove(&mut self, name: &str) {
        if self.values.remove(name).is_some() {
            self.order.retain(|other| other != name);
        }
    }

    fn has_in_any_case(&self, name: &str) -> bool {
        self.order
            .iter()
            .any(|other| other.eq_ignore_ascii_case(name))
    }

    fn into_list(mut self) -> Vec<(String, String)> {
        self.order
            .into_iter()
            .filter_map(|name| self.values.remove(&name).map(|value| (name, value)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use det_ids::SlotId;
    use det_taskspec::effective_env;

    use super::*;
    use crate::testing::{container_spec, welcome};

    struct Scene {
        spec: ContainerSpec,
        master: MasterAddress,
        devices: Vec<Device>,
        proxies: ProxyOptions,
        cert: CertCheck,
        cert_name: Option<&'static str>,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                spec: container_spec("c1", "true"),
                master: MasterAddress::parse("http://10.0.0.5:8080").unwrap(),
                devices: Vec::new(),
                proxies: ProxyOptions::default(),
                cert: CertCheck::Usual,
                cert_name: None,
            }
        }

        fn gpus(mut self, count: u32) -> Self {
            self.devices = (0..count)
                .map(|id| Device {
                    id: SlotId(id),
                    brand: "NVIDIA H200".into(),
                    uuid: format!("GPU-{id}"),
                    kind: DeviceKind::Cuda,
                })
                .collect();
            self
        }

        fn slots(mut self, slots: &[u32]) -> Self {
            self.spec.slots = slots.iter().copied().map(SlotId).collect();
            self
        }

        fn brings(mut self, name: &str, value: &str) -> Self {
            self.spec.script.env.push((name.into(), value.into()));
            self
        }

        fn run(&self, place: TaskPlace) -> BTreeMap<String, String> {
            let welcome = welcome();
            effective_env(&complete(
                &self.spec,
                &AgentFacts {
                    master: &self.master,
                    welcome: &welcome,
                    agent_id: "agent-3",
                    devices: &self.devices,
                    cert: self.cert,
                    cert_name: self.cert_name,
                    proxies: &self.proxies,
                    place,
                },
            ))
        }

        fn in_container(&self) -> BTreeMap<String, String> {
            self.run(TaskPlace::Container)
        }

        fn as_process(&self) -> BTreeMap<String, String> {
            self.run(TaskPlace::HostProcess)
        }
    }

    #[test]
    fn every_task_learns_where_the_master_is_and_who_runs_it() {
        let env = Scene::new().slots(&[0, 3]).in_container();
        for (name, value) in [
            ("DET_MASTER", "http://10.0.0.5:8080"),
            ("DET_MASTER_HOST", "10.0.0.5"),
            ("DET_MASTER_ADDR", "10.0.0.5"),
            ("DET_MASTER_PORT", "8080"),
            ("DET_USE_TLS", "false"),
            ("DET_CLUSTER_ID", "cluster-1"),
            ("DET_MASTER_ID", "master-1"),
            ("DET_AGENT_ID", "agent-3"),
            ("DET_CONTAINER_ID", "c1"),
            ("DET_RESOURCES_ID", "c1"),
            ("DET_RESOURCES_TYPE", "docker-container"),
            ("DET_SLOT_IDS", "[0,3]"),
            ("DET_RUN_DIR", "/run/determined"),
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!env.contains_key("DET_MASTER_CERT_FILE"));
    }

    #[test]
    fn a_task_cannot_lie_about_the_master_or_its_slots() {
        let env = Scene::new()
            .brings("DET_MASTER", "http://evil")
            .brings("DET_SLOT_IDS", "[0,1,2,3]")
            .brings("DET_MASTER_CERT_FILE", "/tmp/x")
            .brings("DET_CUSTOM", "kept")
            .in_container();
        assert_eq!(env["DET_MASTER"], "http://10.0.0.5:8080");
        assert_eq!(env["DET_SLOT_IDS"], "[]");
        assert!(!env.contains_key("DET_MASTER_CERT_FILE"));
        assert_eq!(env["DET_CUSTOM"], "kept");
    }

    #[test]
    fn with_tls_the_certificate_file_and_name_are_told() {
        let mut scene = Scene::new();
        scene.master = MasterAddress::parse("https://det.example").unwrap();
        scene.cert = CertCheck::File;
        scene.cert_name = Some("determined-master");
        let env = scene.in_container();
        assert_eq!(env["DET_USE_TLS"], "true");
        assert_eq!(env["DET_MASTER"], "https://det.example:443");
        assert_eq!(
            env["DET_MASTER_CERT_FILE"],
            "/run/determined/etc/ssl/master.crt"
        );
        assert_eq!(env["DET_MASTER_CERT_NAME"], "determined-master");
        scene.cert = CertCheck::Off;
        assert_eq!(scene.in_container()["DET_MASTER_CERT_FILE"], "noverify");
    }

    #[test]
    fn proxies_are_given_only_where_the_task_has_none_in_any_case() {
        let mut scene = Scene::new().brings("https_proxy", "http://own:1");
        scene.proxies = ProxyOptions {
            http: Some("http://agent:3128".into()),
            https: Some("http://agent:3128".into()),
            ftp: Some(String::new()),
            no_proxy: Some("localhost".into()),
        };
        let env = scene.in_container();
        assert_eq!(env["HTTP_PROXY"], "http://agent:3128");
        assert_eq!(env["https_proxy"], "http://own:1");
        assert!(!env.contains_key("HTTPS_PROXY"));
        assert!(!env.contains_key("FTP_PROXY"));
        assert_eq!(env["NO_PROXY"], "localhost");
    }

    #[test]
    fn a_process_sees_its_gpus_by_uuid_and_a_zero_slot_process_none() {
        let scene = Scene::new().gpus(4).slots(&[2, 0]);
        assert_eq!(scene.as_process()["CUDA_VISIBLE_DEVICES"], "GPU-2,GPU-0");
        let scene = scene.slots(&[]).brings("CUDA_VISIBLE_DEVICES", "0,1,2,3");
        assert_eq!(scene.as_process()["CUDA_VISIBLE_DEVICES"], "");
        assert!(
            !Scene::new()
                .as_process()
                .contains_key("CUDA_VISIBLE_DEVICES")
        );
    }

    #[test]
    fn a_zero_slot_container_is_told_to_see_no_gpu() {
        let scene = Scene::new().gpus(1);
        assert_eq!(scene.in_container()["NVIDIA_VISIBLE_DEVICES"], "void");
        assert!(
            !scene
                .slots(&[0])
                .in_container()
                .contains_key("NVIDIA_VISIBLE_DEVICES")
        );
    }

    #[test]
    fn what_the_master_set_is_not_replaced_by_defaults() {
        let env = Scene::new()
            .brings("DET_WORKDIR", "/own")
            .brings("A", "1")
            .brings("A", "2")
            .in_container();
        assert_eq!(env["DET_WORKDIR"], "/own");
        assert_eq!(env["A"], "2");
    }
}
