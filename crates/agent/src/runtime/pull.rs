//! Pulls of images: the credentials, and the progress lines for the task's log.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bollard::auth::DockerCredentials;
use bollard::models::CreateImageInfo;
use det_taskspec::{RegistryAuth, registry_of};

use super::engine_error::EngineError;
use super::logins;

/// The shortest time between two progress lines of a pull.
const EVERY: Duration = Duration::from_secs(3);

/// An image's name with a tag or digest: without one, an engine would pull every tag there is.
pub(super) fn full_reference(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || last.contains('@') {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

/// The login of a pull, and where it comes from, for messages.
pub(super) struct Login {
    /// `None` = the pull goes without.
    pub(super) credentials: Option<DockerCredentials>,
    /// Which login it is, for messages: completes "cannot pull image".
    pub(super) origin: String,
}

/// The login for an image: the task's, else the one that the agent's account has.
pub(super) async fn login(
    image: &str,
    auth: Option<&RegistryAuth>,
    login_file: Option<&Path>,
) -> Login {
    if let Some(auth) = auth {
        return Login {
            credentials: Some(of_task(image, auth)),
            origin: "with the login of \"environment.registry_auth\", or of \"task_container_defaults\" of its pool"
                .to_owned(),
        };
    }
    let registry = registry_of(image);
    let credentials = match login_file {
        Some(file) => logins::of(registry, file).await,
        None => None,
    };
    let origin = if credentials.is_some() {
        format!("with the login for \"{registry}\" of the agent's account (docker login)")
    } else {
        format!(
            "without a login (there is none for \"{registry}\", neither in \"environment.registry_auth\" nor by \"docker \
             login\" of the agent's account)"
        )
    };
    Login {
        credentials,
        origin,
    }
}

/// What engines print when they do not reach a registry, in lower case.
const UNREACHED: [&str; 8] = [
    "connection refused",
    "i/o timeout",
    "name resolution",
    "network is unreachable",
    "no route to host",
    "no such host",
    "server misbehaving",
    "tls handshake timeout",
];

/// Why a pull failed. A registry that was not reached has not looked at any login, so none is mentioned.
pub(super) fn failed(reference: &str, login: &Login, reason: String) -> EngineError {
    let text = reason.to_ascii_lowercase();
    if UNREACHED.iter().any(|part| text.contains(part)) {
        return EngineError::Registry {
            image: reference.to_owned(),
            registry: registry_of(reference).to_owned(),
            reason,
        };
    }
    EngineError::Pull {
        image: reference.to_owned(),
        login: login.origin.clone(),
        reason,
    }
}

fn of_task(image: &str, auth: &RegistryAuth) -> DockerCredentials {
    DockerCredentials {
        username: auth.username.clone(),
        password: auth.password.clone(),
        auth: auth.auth.clone(),
        email: auth.email.clone(),
        serveraddress: Some(auth.registry(image).to_owned()),
        identitytoken: auth.identitytoken.clone(),
        registrytoken: auth.registrytoken.clone(),
    }
}

/// Sums up what an engine reports about the layers of a pull.
#[derive(Debug, Default)]
pub(super) struct PullProgress {
    layers: BTreeMap<String, Layer>,
    last_line: Option<Instant>,
}

#[derive(Debug, Default)]
struct Layer {
    current: i64,
    total: i64,
    done: bool,
}

impl PullProgress {
    /// Processes a message and returns a progress line if one is due.
    pub(super) fn update(&mut self, message: &CreateImageInfo, now: Instant) -> Option<String> {
        let status = message.status.as_deref().unwrap_or_default();
        if let Some(id) = &message.id
            && is_about_a_layer(status)
        {
            let layer = self.layers.entry(id.clone()).or_default();
            if status == "Downloading"
                && let Some(detail) = &message.progress_detail
            {
                layer.current = detail.current.unwrap_or(layer.current);
                layer.total = detail.total.unwrap_or(layer.total);
            }
            if matches!(status, "Pull complete" | "Already exists") {
                layer.done = true;
                layer.current = layer.total;
            }
        }
        if self.layers.is_empty() || self.last_line.is_some_and(|last| now - last < EVERY) {
            return None;
        }
        self.last_line = Some(now);
        Some(self.line())
    }

    fn line(&self) -> String {
        let done = self.layers.values().filter(|layer| layer.done).count();
        let current: i64 = self.layers.values().map(|layer| layer.current).sum();
        let total: i64 = self.layers.values().map(|layer| layer.total).sum();
        let layers = self.layers.len();
        if total == 0 {
            return format!("{done} of {layers} layers");
        }
        let (current, total) = (current / 1_000_000, total / 1_000_000);
        format!("{done} of {layers} layers, {current} of {total} MB downloaded")
    }
}

fn is_about_a_layer(status: &str) -> bool {
    matches!(
        status,
        "Pulling fs layer"
            | "Waiting"
            | "Downloading"
            | "Verifying Checksum"
            | "Download complete"
            | "Extracting"
            | "Pull complete"
            | "Already exists"
    )
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn status_of(id: &str, status: &str, current: i64, total: i64) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.into()),
            status: Some(status.into()),
            progress_detail: Some(ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            ..CreateImageInfo::default()
        }
    }

    #[test]
    fn a_pull_asks_for_one_tag() {
        for (image, full) in [
            ("busybox", "busybox:latest"),
            ("busybox:1", "busybox:1"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("localhost:5000/a/b:x", "localhost:5000/a/b:x"),
            ("a/b@sha256:00", "a/b@sha256:00"),
        ] {
            assert_eq!(full_reference(image), full);
        }
    }

    #[tokio::test]
    async fn the_tasks_credentials_come_first() {
        let auth = RegistryAuth {
            username: Some("u".into()),
            password: Some("p".into()),
            ..RegistryAuth::default()
        };
        let found = login("reg.example/x", Some(&auth), None).await;
        assert!(found.origin.contains("environment.registry_auth"));
        let found = found.credentials.unwrap();
        assert_eq!(found.username.as_deref(), Some("u"));
        assert_eq!(found.serveraddress.as_deref(), Some("reg.example"));
        let none = login("x", None, None).await;
        assert_eq!(none.credentials, None);
        assert!(none.origin.contains("\"docker.io\""), "{}", none.origin);
    }

    #[tokio::test]
    async fn a_registry_that_was_not_reached_has_looked_at_no_login() {
        let login = login("reg.example/x", None, None).await;
        let of = |reason: &str| failed("reg.example/x:1", &login, reason.to_owned()).to_string();
        for reason in [
            "Get \"https://reg.example/v2/\": dial tcp: lookup reg.example on 10.0.0.2:53: no such host",
            "dial tcp 10.0.0.1:443: connect: Connection refused",
        ] {
            let message = of(reason);
            assert!(
                message.contains("registry \"reg.example\" was not reached: ")
                    && message.contains(reason)
                    && !message.contains("environment.registry_auth"),
                "{message}"
            );
        }
        let refused = of("unauthorized: authentication required");
        assert!(
            refused.contains("without a login (there is none for"),
            "{refused}"
        );
    }

    #[test]
    fn progress_is_one_line_now_and_then() {
        let start = Instant::now();
        let mut progress = PullProgress::default();
        assert_eq!(
            progress.update(&status_of("latest", "Pulling from x", 0, 0), start),
            None
        );
        assert_eq!(
            progress
                .update(&status_of("a", "Pulling fs layer", 0, 0), start)
                .as_deref(),
            Some("0 of 1 layers")
        );
        assert_eq!(
            progress.update(&status_of("b", "Already exists", 0, 0), start),
            None
        );
        assert_eq!(
            progress
                .update(
                    &status_of("a", "Downloading", 5_000_000, 20_000_000),
                    start + EVERY
                )
                .as_deref(),
            Some("1 of 2 layers, 5 of 20 MB downloaded")
        );
        assert_eq!(
            progress
                .update(&status_of("a", "Pull complete", 0, 0), start + EVERY * 2)
                .as_deref(),
            Some("2 of 2 layers, 20 of 20 MB downloaded")
        );
    }
}
