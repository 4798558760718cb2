//! Completes a task's environment with what only the agent knows. Pure.
//!
//! `det_taskspec::variables` lists who sets what; the master's part is in the specification already.

use det_ids::AgentId;
use det_taskspec::{ContainerSpec, Device, DeviceKind, RUN_DIR, variables as v};

use crate::master::MasterAddress;
use crate::options::ProxyOptions;

/// Certificates that the master's may be signed by, relative to the run directory.
pub(crate) const CERT_FILE: &str = "etc/ssl/master.crt";
/// Word of the harness for "check no certificate", in place of a file.
const NO_CERT_CHECK: &str = "noverify";
/// Which NVIDIA GPUs the runtime of NVIDIA gives to a container.
const NVIDIA_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Variables that limit a process to some of the host's GPUs, by kind.
const GPUS_OF_A_PROCESS: [(DeviceKind, &str); 2] = [
    (DeviceKind::Cuda, "CUDA_VISIBLE_DEVICES"),
    (DeviceKind::Rocm, "ROCR_VISIBLE_DEVICES"),
];

/// Data that the agent has and the master does not.
pub(crate) struct AgentFacts<'a> {
    /// The master as tasks reach it.
    pub(crate) master: &'a MasterAddress,
    /// Id of this agent.
    pub(crate) agent_id: &'a AgentId,
    /// All devices of the agent.
    pub(crate) devices: &'a [Device],
    /// How tasks check the master's certificate.
    pub(crate) cert: CertCheck,
    /// Name on the master's certificate; `None` = the host of its address.
    pub(crate) cert_name: Option<&'a str>,
    /// Proxies for tasks that bring none.
    pub(crate) proxies: &'a ProxyOptions,
    /// Whether scripts of tasks log in detail, also of those whose configuration does not ask for it.
    pub(crate) debug: bool,
    /// What the task runs in.
    pub(crate) place: TaskPlace,
}

/// How tasks check the master's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertCheck {
    /// With the certificate authorities of their image or host.
    Usual,
    /// With the master's certificate alone, in the file [`CERT_FILE`].
    File,
    /// Tasks accept any certificate.
    Off,
}

/// How the task sees the host; decides how its GPUs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskPlace {
    /// A container: the engine passes exactly the devices.
    Container,
    /// A process that sees every device of the host: the drivers are configured with those to use. `PATH` and
    /// `PYTHONPATH` are the sandbox's business.
    HostProcess,
}

/// The environment of `spec`'s task: the master's part, then the agent's. A name appears once.
///
/// The agent's values replace what the task brings, except for proxies: they are set only where the task brings none,
/// in any case of letters.
pub(crate) fn complete(spec: &ContainerSpec, facts: &AgentFacts<'_>) -> Vec<(String, String)> {
    let mut env = spec.script.env.clone();
    let master = facts.master;
    let cert_file = match facts.cert {
        CertCheck::File => Some(format!("{RUN_DIR}/{CERT_FILE}")),
        CertCheck::Off => Some(NO_CERT_CHECK.to_owned()),
        CertCheck::Usual => None,
    };
    let cert_name = facts.cert_name.map(str::to_owned);
    for (name, value) in [
        (v::DET_MASTER, Some(master.url())),
        (v::DET_MASTER_HOST, Some(master.host.clone())),
        (v::DET_MASTER_ADDR, Some(master.host.clone())),
        (v::DET_MASTER_PORT, Some(master.port.to_string())),
        (v::DET_USE_TLS, Some(master.tls.to_string())),
        (v::DET_MASTER_CERT_FILE, cert_file.filter(|_| master.tls)),
        (v::DET_MASTER_CERT_NAME, cert_name.filter(|_| master.tls)),
        (v::DET_AGENT_ID, Some(facts.agent_id.to_string())),
    ] {
        if let Some(value) = value {
            set(&mut env, name, value);
        }
    }
    if facts.debug {
        set(&mut env, v::DET_DEBUG, true.to_string());
    }
    for (name, value) in [
        (v::HTTP_PROXY, &facts.proxies.http),
        (v::HTTPS_PROXY, &facts.proxies.https),
        (v::FTP_PROXY, &facts.proxies.ftp),
        (v::NO_PROXY, &facts.proxies.no_proxy),
    ] {
        let is_brought = env.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty())
            && !is_brought
        {
            set(&mut env, name, value.clone());
        }
    }
    match facts.place {
        TaskPlace::Container => hide_gpus(&mut env, spec, facts.devices),
        TaskPlace::HostProcess => choose_gpus(&mut env, spec, facts.devices),
    }
    env
}

/// Sets a variable, in place of an earlier value.
fn set(env: &mut Vec<(String, String)>, name: &str, value: String) {
    env.retain(|(earlier, _)| earlier != name);
    env.push((name.to_owned(), value));
}

/// Hides all GPUs from a container without any: some images ask for all where the NVIDIA runtime is the engine's default.
fn hide_gpus(env: &mut Vec<(String, String)>, spec: &ContainerSpec, devices: &[Device]) {
    let has_gpu = devices
        .iter()
        .any(|device| device.kind == DeviceKind::Cuda && spec.slots.devices().contains(&device.id));
    if !has_gpu {
        set(env, NVIDIA_VISIBLE_DEVICES, "void".to_owned());
    }
}

/// Limits a host process to the GPUs of its slots; an empty list hides all.
fn choose_gpus(env: &mut Vec<(String, String)>, spec: &ContainerSpec, devices: &[Device]) {
    for (kind, name) in GPUS_OF_A_PROCESS {
        if !devices.iter().any(|device| device.kind == kind) {
            continue;
        }
        let uuids: Vec<&str> = spec
            .slots
            .devices()
            .iter()
            .filter_map(|slot| devices.iter().find(|device| device.id == *slot))
            .filter(|device| device.kind == kind)
            .map(|device| device.uuid.as_str())
            .collect();
        set(env, name, uuids.join(","));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use det_ids::SlotId;
    use det_taskspec::SlotGrant;
    use det_taskspec::variables::{SetBy, Tasks, VARIABLES};

    use super::*;
    use crate::testing::container_spec;

    struct Setup {
        spec: ContainerSpec,
        master: MasterAddress,
        devices: Vec<Device>,
        proxies: ProxyOptions,
        debug: bool,
        cert: CertCheck,
        cert_name: Option<&'static str>,
    }

    impl Setup {
        fn new() -> Self {
            Self {
                spec: container_spec("c1", "true"),
                master: MasterAddress::parse("http://10.0.0.5:8080").unwrap(),
                devices: Vec::new(),
                proxies: ProxyOptions::default(),
                debug: false,
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
            self.spec.slots = SlotGrant::Devices(slots.iter().copied().map(SlotId).collect());
            self
        }

        fn brings(mut self, name: &str, value: &str) -> Self {
            self.spec.script.env.push((name.into(), value.into()));
            self
        }

        fn run(&self, place: TaskPlace) -> BTreeMap<String, String> {
            let facts = AgentFacts {
                master: &self.master,
                agent_id: &"agent-3".into(),
                devices: &self.devices,
                cert: self.cert,
                cert_name: self.cert_name,
                proxies: &self.proxies,
                debug: self.debug,
                place,
            };
            complete(&self.spec, &facts).into_iter().collect()
        }

        fn in_container(&self) -> BTreeMap<String, String> {
            self.run(TaskPlace::Container)
        }

        fn as_process(&self) -> BTreeMap<String, String> {
            self.run(TaskPlace::HostProcess)
        }
    }

    #[test]
    fn the_variables_that_the_agent_sets() {
        let mut scene = Setup::new();
        let own = scene.spec.script.env.clone();
        scene.master = MasterAddress::parse("https://10.0.0.5:8443").unwrap();
        scene.cert = CertCheck::File;
        scene.cert_name = Some("determined-master");
        scene.proxies = ProxyOptions {
            http: Some("http://proxy:1".into()),
            https: Some("http://proxy:2".into()),
            ftp: Some("http://proxy:3".into()),
            no_proxy: Some("localhost".into()),
        };
        let mut env = scene.as_process();
        for (name, value) in own {
            assert_eq!(env.remove(&name), Some(value), "{name} is the master's");
        }
        let expected = [
            ("DET_MASTER", "https://10.0.0.5:8443"),
            ("DET_MASTER_HOST", "10.0.0.5"),
            ("DET_MASTER_ADDR", "10.0.0.5"),
            ("DET_MASTER_PORT", "8443"),
            ("DET_USE_TLS", "true"),
            ("DET_MASTER_CERT_FILE", "/run/determined/etc/ssl/master.crt"),
            ("DET_MASTER_CERT_NAME", "determined-master"),
            ("DET_AGENT_ID", "agent-3"),
            ("HTTP_PROXY", "http://proxy:1"),
            ("HTTPS_PROXY", "http://proxy:2"),
            ("FTP_PROXY", "http://proxy:3"),
            ("NO_PROXY", "localhost"),
        ];
        let expected: BTreeMap<String, String> = expected
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(env, expected);
        let declared: BTreeSet<&str> = VARIABLES
            .iter()
            .filter(|variable| variable.set_by == SetBy::Agent && variable.tasks == Tasks::All)
            .map(|variable| variable.name)
            .collect();
        let names: BTreeSet<&str> = env.keys().map(String::as_str).collect();
        assert_eq!(names, declared);
    }

    #[test]
    fn without_tls_there_is_no_certificate_to_check() {
        let mut scene = Setup::new();
        scene.cert = CertCheck::File;
        scene.cert_name = Some("determined-master");
        let env = scene.in_container();
        assert_eq!(env["DET_MASTER"], "http://10.0.0.5:8080");
        assert_eq!(env["DET_USE_TLS"], "false");
        assert!(!env.keys().any(|name| name.contains("CERT")), "{env:?}");
        scene.master = MasterAddress::parse("https://det.example").unwrap();
        scene.cert = CertCheck::Off;
        let env = scene.in_container();
        assert_eq!(env["DET_MASTER"], "https://det.example:443");
        assert_eq!(env["DET_MASTER_CERT_FILE"], "noverify");
    }

    #[test]
    fn an_agent_may_have_all_its_tasks_log_in_detail() {
        let mut scene = Setup::new();
        assert!(!scene.as_process().contains_key("DET_DEBUG"));
        scene.debug = true;
        assert_eq!(scene.as_process()["DET_DEBUG"], "true");
        assert_eq!(scene.in_container()["DET_DEBUG"], "true");
    }

    #[test]
    fn proxies_are_given_only_where_the_task_has_none_in_any_case() {
        let mut scene = Setup::new().brings("https_proxy", "http://own:1");
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
        let scene = Setup::new().gpus(4).slots(&[2, 0]);
        assert_eq!(scene.as_process()["CUDA_VISIBLE_DEVICES"], "GPU-2,GPU-0");
        let scene = scene.slots(&[]).brings("CUDA_VISIBLE_DEVICES", "0,1,2,3");
        assert_eq!(scene.as_process()["CUDA_VISIBLE_DEVICES"], "");
        assert!(
            !Setup::new()
                .as_process()
                .contains_key("CUDA_VISIBLE_DEVICES")
        );
    }

    #[test]
    fn all_gpus_are_hidden_from_a_zero_slot_container() {
        let scene = Setup::new().gpus(1);
        assert_eq!(scene.in_container()["NVIDIA_VISIBLE_DEVICES"], "void");
        assert!(
            !scene
                .slots(&[0])
                .in_container()
                .contains_key("NVIDIA_VISIBLE_DEVICES")
        );
    }
}
