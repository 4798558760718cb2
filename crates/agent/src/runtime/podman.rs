//! Where Podman's Docker-compatible service differs from Docker, besides what containers are created with.

use bollard::Docker;
use hyper::Uri;

/// How often Podman looks whether a container that is waited for has ended: each look reads its database.
const LOOK_EVERY: &str = "100ms";

/// Major and minor number of a version; 0 for what is not a number.
fn numbers(version: &str) -> (u32, u32) {
    let mut numbers = version
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether Podman of this version supports GPUs by CDI name.
pub(super) fn takes_cdi(version: &str) -> bool {
    numbers(version) >= (5, 4)
}

/// Has waits for containers asked of Podman's own API. Before 4.6 its compatible one looks without a pause until the
/// container ends, which costs half a processor for each (<https://github.com/containers/podman/issues/18150>). The answer of its
/// own API is a bare number, which is no answer of Docker: it only shows that the wait is over.
pub(super) fn with_calm_waits(docker: Docker, version: &str) -> Docker {
    let (major, _) = numbers(version);
    docker.with_request_modifier(move |mut request| {
        if let Some(uri) = calm_wait(request.uri(), major) {
            *request.uri_mut() = uri;
        }
        request
    })
}

/// The address of a wait in the API of this major version of Podman; `None` if the request is no wait, or the version is not
/// known.
fn calm_wait(uri: &Uri, major: u32) -> Option<Uri> {
    let (before, container) = uri.path().strip_suffix("/wait")?.rsplit_once('/')?;
    if !before.ends_with("/containers") || major == 0 {
        return None;
    }
    let path = format!("/v{major}.0.0/libpod/containers/{container}/wait?interval={LOOK_EVERY}");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podman_passes_gpus_from_5_4_on() {
        for (version, takes) in [
            ("4.3.1", false),
            ("5.3.9", false),
            ("5.4.0", true),
            ("5.10.0-dev", true),
            ("6.0", true),
            ("", false),
        ] {
            assert_eq!(takes_cdi(version), takes, "{version}");
        }
    }

    #[test]
    fn only_waits_for_containers_are_asked_of_podmans_own_api() {
        let asked = |uri: &str| calm_wait(&uri.parse().unwrap(), 4).map(|uri| uri.to_string());
        assert_eq!(
            asked("http://socket/v1.41/containers/det-c1/wait?condition=not-running").as_deref(),
            Some("http://socket/v4.0.0/libpod/containers/det-c1/wait?interval=100ms")
        );
        for other in [
            "http://socket/v1.41/containers/wait/json",
            "http://socket/v1.41/containers/det-c1/start",
            "http://socket/v1.41/images/wait",
        ] {
            assert_eq!(asked(other), None);
        }
        let wait = "http://socket/v1.41/containers/det-c1/wait"
            .parse()
            .unwrap();
        assert_eq!(calm_wait(&wait, 0), None, "no version is known");
    }
}
