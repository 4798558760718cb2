//! What documents contribute to the specification of a task's containers: the facts of `det-taskspec`.

use std::collections::BTreeSet;

use det_taskspec::{
    ContainerRequest, DOCKER_HUB, PoolDefaults, SharedFs, StorageFacts, registry_of,
};

use crate::container::{Environment, TaskContainerDefaults};
use crate::experiment::{Entrypoint, ExperimentConfig};
use crate::storage::{CheckpointStorage, StorageLocation};
use crate::task::TaskConfig;

impl ExperimentConfig {
    /// What the containers of a trial are asked to be.
    pub fn container_request(&self) -> ContainerRequest {
        ContainerRequest {
            entrypoint: self.entrypoint.as_ref().map(|entrypoint| match entrypoint {
                Entrypoint::Shell(class) if self.is_trial_class() => {
                    det_taskspec::Entrypoint::TrialClass(class.clone())
                }
                Entrypoint::Shell(text) => det_taskspec::Entrypoint::Shell(text.clone()),
                Entrypoint::Argv(argv) => det_taskspec::Entrypoint::Argv(argv.clone()),
            }),
            work_dir: self.environment.work_dir.clone(),
            bind_mounts: self.bind_mounts.clone(),
            shm_size_bytes: self.resources.shm_size,
            devices: self.resources.devices.clone(),
            debug: self.debug,
            ..environment_request(&self.environment)
        }
    }
}

impl TaskConfig {
    /// What the container of a task is asked to be. Its entrypoint is that of a command: one word is a command line for a
    /// shell, several are a program with its arguments. Clients that take all words after their own options pass on the
    /// `--` with which users end these; no program has that name.
    pub fn container_request(&self) -> ContainerRequest {
        let words = self.entrypoint.as_slice();
        ContainerRequest {
            entrypoint: match words.strip_prefix(&["--".to_owned()]).unwrap_or(words) {
                [] => None,
                [line] => Some(det_taskspec::Entrypoint::Shell(line.clone())),
                argv => Some(det_taskspec::Entrypoint::Argv(argv.to_vec())),
            },
            work_dir: self.work_dir.clone(),
            bind_mounts: self.bind_mounts.clone(),
            shm_size_bytes: self.resources.shm_size,
            devices: self.resources.devices.clone(),
            debug: self.debug,
            system_metrics: self.profiling.enabled,
            document: Some(self.masked_json().to_string()),
            ..environment_request(&self.environment)
        }
    }
}

/// The part of a request that the section `environment` contains.
fn environment_request(environment: &Environment) -> ContainerRequest {
    let proxied = environment.proxy_ports.iter().map(|port| port.proxy_port);
    let proxied: Vec<u16> = proxied.collect();
    let named = environment.ports.values().copied();
    ContainerRequest {
        image: environment.image.clone(),
        force_pull_image: environment.force_pull_image,
        registry_auth: environment.registry_auth.clone(),
        variables: environment.environment_variables.clone(),
        ports: proxied.iter().copied().chain(named).collect(),
        proxied_ports: proxied,
        add_capabilities: environment.add_capabilities.clone(),
        drop_capabilities: environment.drop_capabilities.clone(),
        pod_spec: environment.pod_spec.clone(),
        ..ContainerRequest::default()
    }
}

impl CheckpointStorage {
    /// Where a task finds its checkpoints. `clusters_own` is the storage of the master's configuration.
    pub fn facts(&self, clusters_own: Option<&Self>) -> StorageFacts {
        let shared_fs = match &self.location {
            StorageLocation::SharedFs {
                host_path,
                propagation,
                ..
            } => Some(SharedFs {
                clusters_directory: clusters_own
                    .filter(|own| own.location.host_path() == Some(host_path.as_str()))
                    .and_then(|own| own.location.shared_fs_subdirectory())
                    .filter(|own| Some(own) == self.location.shared_fs_subdirectory().as_ref())
                    .and_then(|own| own.into_os_string().into_string().ok()),
                host_path: host_path.clone(),
                propagation: propagation.clone(),
                is_clusters_own: clusters_own
                    .is_some_and(|own| own.location.host_path() == Some(host_path.as_str())),
            }),
            StorageLocation::Directory { .. }
            | StorageLocation::S3 { .. }
            | StorageLocation::Gcs { .. }
            | StorageLocation::Azure { .. } => None,
        };
        StorageFacts {
            document: serde_json::to_value(self).expect("maps with text keys are JSON"),
            shared_fs,
        }
    }
}

impl TaskContainerDefaults {
    /// What a pool with these defaults gives to a task when it starts. Whatever else they contain became part of the
    /// task's configuration when it was submitted.
    pub fn pool_defaults(&self) -> PoolDefaults {
        let images = [&self.image.cpu, &self.image.cuda, &self.image.rocm];
        let images = images.into_iter().flatten();
        let registries = images.map(|image| registry_of(image));
        // A login that names no registry must not go to that of whatever image a user names.
        let registries: BTreeSet<&str> = registries.chain([DOCKER_HUB]).collect();
        let login = self.registry_auth.iter();
        let logins = login.flat_map(|login| login.bound_to(registries.iter().copied()));
        PoolDefaults {
            logins: logins.collect(),
            work_dir: self.work_dir.clone(),
            network_mode: self.effective_network_mode().to_owned(),
            devices: self.devices.clone(),
            add_capabilities: self.add_capabilities.clone(),
            startup_hook: self.startup_hook.clone(),
            network_interface: self.dtrain_network_interface.clone(),
            gloo_port_range: self.gloo_port_range.clone(),
            nccl_port_range: self.nccl_port_range.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use det_taskspec::{PerDevice, RegistryAuth};

    use super::*;
    use crate::submitted::{CompletionDefaults, Experiment, SubmittedDocument};

    fn complete(text: &str) -> ExperimentConfig {
        complete_with(text, &TaskContainerDefaults::default())
    }

    fn complete_with(text: &str, defaults: &TaskContainerDefaults) -> ExperimentConfig {
        let defaults = CompletionDefaults {
            name: "x".into(),
            experiment_seed: 1,
            checkpoint_storage: Some(serde_json::json!({"type": "shared_fs", "host_path": "/x"})),
            task_container_defaults: defaults,
            default_priority: None,
            managed: true,
        };
        let text =
            format!("{text}\nsearcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}");
        SubmittedDocument::parse(Experiment, &text)
            .and_then(|submitted| submitted.complete(&defaults))
            .unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn the_login_of_a_pool_is_in_no_configuration_and_bound_to_registries() {
        let defaults = TaskContainerDefaults {
            registry_auth: Some(RegistryAuth {
                password: Some("of-the-pool".into()),
                ..RegistryAuth::default()
            }),
            image: PerDevice {
                cuda: Some("reg.example/x".into()),
                ..PerDevice::default()
            },
            ..TaskContainerDefaults::default()
        };
        let config = complete_with("entrypoint: \"true\"", &defaults);
        assert_eq!(config.environment.registry_auth, None);
        let logins = defaults.pool_defaults().logins;
        let registries: Vec<_> = logins
            .iter()
            .map(|login| login.serveraddress.as_deref())
            .collect();
        assert_eq!(registries, [Some("docker.io"), Some("reg.example")]);
    }

    #[test]
    fn keys_of_an_experiment_become_facts() {
        let config = complete(
            "
entrypoint: [python3, train.py]
debug: true
checkpoint_storage: {type: shared_fs, host_path: /checkpoints}
bind_mounts: [{host_path: /data, container_path: data, read_only: true}]
resources: {shm_size: 1048576, devices: ['/dev/a:/dev/b:rw']}
environment:
  image: own-image
  force_pull_image: true
  registry_auth: {username: ada}
  environment_variables: {cuda: [A=1], cpu: [A=2]}
  work_dir: /own
  ports: {board: 6006}
  proxy_ports: [{proxy_port: 8265}]
  add_capabilities: [SYS_PTRACE]
  drop_capabilities: [NET_RAW]
",
        );
        let request = config.container_request();
        let argv = ["python3", "train.py"].map(str::to_owned).to_vec();
        assert_eq!(
            request.entrypoint,
            Some(det_taskspec::Entrypoint::Argv(argv))
        );
        assert!(request.debug && request.force_pull_image);
        assert_eq!(request.image.rocm, "own-image");
        assert_eq!(
            request.registry_auth.unwrap().username.as_deref(),
            Some("ada")
        );
        assert_eq!(request.variables.cuda, ["A=1"]);
        assert_eq!(request.variables.cpu, ["A=2"]);
        assert_eq!(request.work_dir.as_deref(), Some("/own"));
        assert_eq!(request.ports, [8265, 6006]);
        assert_eq!(request.proxied_ports, [8265]);
        assert_eq!(request.bind_mounts[0].container_path, "data");
        assert_eq!(request.shm_size_bytes, 1 << 20);
        assert_eq!(request.devices[0].container_path, "/dev/b");
        assert_eq!(request.add_capabilities, ["SYS_PTRACE"]);
        assert_eq!(request.drop_capabilities, ["NET_RAW"]);
    }

    #[test]
    fn an_entrypoint_with_a_class_is_the_harnesss_to_run() {
        for (entrypoint, expected) in [
            (
                "model_def:Trial",
                det_taskspec::Entrypoint::TrialClass("model_def:Trial".into()),
            ),
            (
                "python3 train.py",
                det_taskspec::Entrypoint::Shell("python3 train.py".into()),
            ),
        ] {
            let config = complete(&format!(
                "entrypoint: {entrypoint}\ncheckpoint_storage: {{type: shared_fs, host_path: /x}}"
            ));
            assert_eq!(config.container_request().entrypoint, Some(expected));
        }
    }

    #[test]
    fn only_the_clusters_own_storage_is_trusted() {
        let storage = |keys: &str| {
            complete(&format!("entrypoint: x\ncheckpoint_storage: {{{keys}}}")).checkpoint_storage
        };
        let shared = storage("type: shared_fs, host_path: /checkpoints, storage_path: a");
        let facts = shared.facts(None);
        assert_eq!(facts.document["type"], "shared_fs");
        assert_eq!(facts.document["storage_path"], "a");
        let directory = facts.shared_fs.unwrap();
        assert_eq!(directory.host_path, "/checkpoints");
        assert_eq!(directory.propagation, "rprivate");
        for (own, expected, directory) in [
            ("type: shared_fs, host_path: /checkpoints", true, None),
            // What a user chose below it is not the cluster's.
            (
                "type: shared_fs, host_path: /checkpoints, storage_path: b",
                true,
                None,
            ),
            (
                "type: shared_fs, host_path: /checkpoints, storage_path: /checkpoints/x/../a",
                true,
                Some("a"),
            ),
            (
                "type: shared_fs, host_path: /elsewhere, storage_path: a",
                false,
                None,
            ),
            ("type: directory, container_path: /checkpoints", false, None),
        ] {
            let facts = shared.facts(Some(&storage(own))).shared_fs.unwrap();
            assert_eq!(facts.is_clusters_own, expected, "{own}");
            assert_eq!(facts.clusters_directory.as_deref(), directory, "{own}");
        }
        let whole = storage("type: shared_fs, host_path: /checkpoints");
        let facts = whole.facts(Some(&whole)).shared_fs.unwrap();
        assert_eq!(facts.clusters_directory.as_deref(), Some(""));
        let cloud = storage("type: s3, bucket: b").facts(None);
        assert!(cloud.shared_fs.is_none());
        assert_eq!(cloud.document["bucket"], "b");
    }

    #[test]
    fn a_pools_defaults_become_facts() {
        let defaults = TaskContainerDefaults {
            dtrain_network_interface: Some("eth1".into()),
            gloo_port_range: Some("1:2".into()),
            nccl_port_range: Some("3:4".into()),
            add_capabilities: vec!["IPC_LOCK".into()],
            startup_hook: Some("echo".into()),
            work_dir: Some("/pool".into()),
            ..TaskContainerDefaults::default()
        };
        let facts = defaults.pool_defaults();
        assert_eq!(facts.network_mode, "bridge");
        assert_eq!(facts.network_interface.as_deref(), Some("eth1"));
        assert_eq!(facts.gloo_port_range.as_deref(), Some("1:2"));
        assert_eq!(facts.nccl_port_range.as_deref(), Some("3:4"));
        assert_eq!(facts.add_capabilities, ["IPC_LOCK"]);
        assert_eq!(facts.startup_hook.as_deref(), Some("echo"));
        assert_eq!(facts.work_dir.as_deref(), Some("/pool"));
    }
}
