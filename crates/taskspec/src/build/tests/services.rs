//! What shells, notebooks and TensorBoards run.

use std::collections::BTreeMap;

use det_ids::{ExperimentId, TrialId};

use super::*;

#[test]
fn a_shell_runs_an_ssh_server_with_its_own_key() {
    let mut task = command();
    task.kind = KindFacts::Launched(shell());
    task.request.ports = vec![8080];
    let spec = spec(&task);
    assert_eq!(spec.ports, [3217, 8080]);
    let script = spec.script;
    // Whatever its configuration names.
    assert_eq!(script.entrypoint, Entrypoint::SshServer { port: 3217 });
    assert_eq!(script.readiness, ["Server listening on"]);
    let files: BTreeMap<&str, (u32, &str)> = script
        .files
        .iter()
        .map(|file| (file.path.as_str(), (file.mode, file.content.as_str())))
        .collect();
    let dir = "/run/determined/ssh";
    assert_eq!(files[&*format!("{dir}/id_ed25519")], (0o600, "private"));
    let public = "ssh-ed25519 AAAA";
    assert_eq!(files[&*format!("{dir}/id_ed25519.pub")], (0o600, public));
    assert_eq!(files[crate::SHELL_KEY_FILE], (0o644, public));
    let (mode, config) = files[crate::SSHD_CONFIG_FILE];
    assert_eq!(mode, 0o600);
    for line in [
        "HostKey /run/determined/ssh/id_ed25519",
        "AuthorizedKeysFile /run/determined/ssh/authorized_keys",
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "PermitRootLogin prohibit-password",
        "PermitUserEnvironment yes",
    ] {
        assert!(config.lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn a_notebook_listens_at_its_port_with_its_certificate_and_its_use_is_watched() {
    let spec = spec(&notebook());
    assert_eq!(spec.ports, [2901]);
    let Entrypoint::Service { script, args } = &spec.script.entrypoint else {
        panic!("{:?}", spec.script.entrypoint);
    };
    assert!(args.is_empty());
    let file = |path: &str| spec.script.files.iter().find(|file| file.path == path);
    assert_eq!(file(script).unwrap().mode, 0o755);
    let (certificate, key) = (
        file("/run/determined/jupyter/jupyterCert.pem").unwrap(),
        file("/run/determined/jupyter/jupyterKey.key").unwrap(),
    );
    assert_eq!(
        (certificate.content.as_str(), certificate.mode),
        ("CERTIFICATE", 0o600)
    );
    assert_eq!((key.content.as_str(), key.mode), ("KEY", 0o600));
    // Its token is in one variable: processes of other users see files and command lines more easily.
    assert!(
        !spec
            .script
            .files
            .iter()
            .any(|file| file.content.contains("jupyter-secret"))
    );
    let check = spec.script.idle_check.unwrap();
    assert_eq!((check.port, check.every_seconds), (2901, 20));
    assert_eq!(check.idle_type, NotebookIdleType::KernelConnections);
    assert_eq!(spec.script.readiness, ["is running at:"]);
    assert_eq!(spec.script.readiness_port, Some(2901));
}

#[test]
fn a_tensorboard_sees_the_storage_of_its_sources_and_cannot_change_it() {
    let mut task = tensorboard();
    task.request.bind_mounts = vec![BindMount {
        host_path: "/own".into(),
        container_path: "own".into(),
        read_only: false,
        propagation: "rprivate".into(),
    }];
    let spec = spec(&task);
    assert_eq!(spec.ports, [2601]);
    let mounted: Vec<(&str, bool)> = (spec.mounts.iter())
        .map(|mount| (mount.container_path.as_str(), mount.read_only))
        .collect();
    assert_eq!(mounted, [("own", false), ("/s", true)]);
    let sources = spec
        .script
        .files
        .iter()
        .find(|file| file.path.ends_with("/sources"));
    assert_eq!(
        sources.unwrap().content,
        "experiment_1 /s/1\ntrial_7 /s/with space/7\n"
    );
    let Entrypoint::Service { args, .. } = &spec.script.entrypoint else {
        panic!("{:?}", spec.script.entrypoint);
    };
    assert_eq!(args, &["--samples_per_plugin=images=9"]);
    assert_eq!(spec.script.idle_check, None);
}

#[test]
fn a_service_for_which_no_port_was_free_does_not_start() {
    let without = TensorBoardDetails::default();
    let task = launched(TaskDetails::Tensorboard(without));
    let error = container_spec(&task, &place(&[], DeviceKind::Cpu), "t").unwrap_err();
    let text = "all from 2600 to 2899";
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn the_key_of_a_tensorboard_is_in_a_file_of_its_user_alone() {
    let details = TensorBoardDetails {
        port: 2601,
        key: "k1".into(),
        ..TensorBoardDetails::default()
    };
    let spec = spec(&launched(TaskDetails::Tensorboard(details)));
    let with_key: Vec<_> = (spec.script.files.iter())
        .filter(|file| file.content.contains("k1"))
        .map(|file| (file.path.as_str(), file.mode))
        .collect();
    assert_eq!(with_key, [("/run/determined/tensorboard/key", 0o600)]);
    assert!(spec.script.env.iter().all(|(_, value)| value != "k1"));
}

#[test]
fn a_tensorboard_of_what_has_ended_shows_why_there_is_nothing() {
    let said = |experiments: &[i64], trials: &[i64], all_ended: bool| {
        let details = TensorBoardDetails {
            experiment_ids: experiments.iter().copied().map(ExperimentId).collect(),
            trial_ids: trials.iter().copied().map(TrialId).collect(),
            all_ended,
            port: 2601,
            ..TensorBoardDetails::default()
        };
        let mut task = command();
        task.kind = KindFacts::Launched(TaskDetails::Tensorboard(details));
        let files = spec(&task).script.files;
        let found = files.into_iter().find(|file| file.path.ends_with("/ended"));
        found.map(|file| file.content)
    };
    assert_eq!(said(&[1], &[], false), None);
    let one = said(&[1], &[], true).unwrap();
    assert!(one.starts_with("experiment 1 has ended, and "), "{one}");
    let more = said(&[1], &[7], true).unwrap();
    assert!(
        more.starts_with("experiment 1, trial 7 have ended, and "),
        "{more}"
    );
}
