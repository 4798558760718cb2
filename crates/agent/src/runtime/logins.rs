//! Logins of the account that the agent runs under: what `docker login` has written, and the credential helpers that it names
//! (<https://docs.docker.com/reference/cli/docker/login/#credential-stores>).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use bollard::auth::DockerCredentials;
use det_taskspec::login_server;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// How long a helper may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The user name of an answer whose secret is an identity token.
const TOKEN_USER: &str = "<token>";

/// The file that `docker login` writes, for the account the agent runs under.
pub(super) fn login_file() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("DOCKER_CONFIG") {
        return Some(Path::new(&dir).join("config.json"));
    }
    std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker/config.json"))
}

#[derive(Deserialize)]
struct Logins {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
    /// Programs that give logins, by the registry that they are for.
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    /// Program that gives the logins of all other registries; `None` = they are in `auths`.
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Deserialize)]
struct Login {
    auth: Option<String>,
    identitytoken: Option<String>,
}

/// What a program that gives logins prints, as JSON.
#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Username")]
    username: String,
    #[serde(rename = "Secret")]
    secret: String,
}

/// The login for a registry, as image names have it; `None` = there is none, and the pull goes without.
pub(super) async fn of(registry: &str, file: &Path) -> Option<DockerCredentials> {
    let text = tokio::fs::read_to_string(file).await.ok()?;
    let logins: Logins = match serde_json::from_str(&text) {
        Ok(logins) => logins,
        Err(error) => {
            tracing::warn!(%error, "the engine's login file is not understood; pulling without credentials");
            return None;
        }
    };
    let server = login_server(registry);
    let helper = logins.helpers.get(server).or(logins.helpers.get(registry));
    if let Some(helper) = helper {
        return of_helper(helper, server).await;
    }
    if let Some(found) = written(registry, logins.auths) {
        return Some(found);
    }
    of_helper(logins.store.as_deref()?, server).await
}

/// The login that the file itself contains.
fn written(registry: &str, logins: BTreeMap<String, Login>) -> Option<DockerCredentials> {
    let is_wanted = |server: &str| {
        let host = server
            .trim_start_matches("https://")
            .trim_start_matches("http://")
            .split('/')
            .next()
            .unwrap_or_default();
        host == registry || (registry == "docker.io" && host == "index.docker.io")
    };
    let (server, login) = logins
        .into_iter()
        // With a helper for all, logins are listed without what they consist of.
        .find(|(server, login)| {
            is_wanted(server) && (login.auth.is_some() || login.identitytoken.is_some())
        })?;
    let pair = login
        .auth
        .and_then(|auth| base64::engine::general_purpose::STANDARD.decode(auth).ok())
        .and_then(|pair| String::from_utf8(pair).ok());
    let (username, password) = match pair.as_deref().and_then(|pair| pair.split_once(':')) {
        Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
        None => (None, None),
    };
    Some(DockerCredentials {
        username,
        password,
        identitytoken: login.identitytoken,
        serveraddress: Some(server),
        ..DockerCredentials::default()
    })
}

/// Asks `docker-credential-HELPER get`. The server's name, which comes from an image's, is written to it and is no argument.
async fn of_helper(helper: &str, server: &str) -> Option<DockerCredentials> {
    let program = format!("docker-credential-{helper}");
    let answer = tokio::time::timeout(PATIENCE, ask(&program, server)).await;
    let problem = match answer {
        Ok(Ok(answer)) => {
            let is_token = answer.username == TOKEN_USER;
            let (username, password, identitytoken) = if is_token {
                (None, None, Some(answer.secret))
            } else {
                (Some(answer.username), Some(answer.secret), None)
            };
            return Some(DockerCredentials {
                username,
                password,
                identitytoken,
                serveraddress: Some(server.to_owned()),
                ..DockerCredentials::default()
            });
        }
        Ok(Err(problem)) => problem,
        Err(_) => format!("it did not answer within {} s", PATIENCE.as_secs()),
    };
    tracing::warn!(
        program,
        server,
        problem,
        "a credential helper gave no login; pulling without credentials"
    );
    None
}

async fn ask(program: &str, server: &str) -> Result<Answer, String> {
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("it could not be started: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that ends without reading has its reason in its exit code.
        drop(stdin.write_all(server.as_bytes()).await);
    }
    let output = child.wait_with_output().await;
    let output = output.map_err(|error| format!("its answer could not be read: {error}"))?;
    if !output.status.success() {
        // Helpers write to standard output why, which is that they know no such server.
        let said: String = String::from_utf8_lossy(&output.stdout)
            .chars()
            .take(200)
            .collect();
        return Err(format!("{}: {}", output.status, said.trim()));
    }
    // The answer itself is secret, so the error does not quote it.
    serde_json::from_slice(&output.stdout).map_err(|_| "its answer is not understood".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[tokio::test]
    async fn logins_of_the_account_are_used_for_their_registry_only() {
        // base64 of "me:pw:x"
        let logins = file(
            r#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "bWU6cHc6eA=="},
                "reg.example:5000": {"auth": "bWU6cHc6eA==", "identitytoken": "t"},
                "empty.example": {}
            }}"#,
        );
        let hub = of("docker.io", logins.path()).await.unwrap();
        assert_eq!(
            (hub.username.as_deref(), hub.password.as_deref()),
            (Some("me"), Some("pw:x"))
        );
        let own = of("reg.example:5000", logins.path()).await.unwrap();
        assert_eq!(own.identitytoken.as_deref(), Some("t"));
        for without in ["other.example", "empty.example"] {
            assert_eq!(of(without, logins.path()).await, None, "{without}");
        }
        assert_eq!(of("docker.io", file("not json").path()).await, None);
    }

    #[tokio::test]
    async fn helpers_are_asked_for_the_registries_that_are_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("docker-credential-mine");
        let script = "#!/bin/sh\nread -r server\ncase $server in\n\
            reg.example) echo '{\"Username\": \"u\", \"Secret\": \"s\"}' ;;\n\
            tokens.example) echo '{\"Username\": \"<token>\", \"Secret\": \"t\"}' ;;\n\
            *) echo 'credentials not found in native keychain'; exit 1 ;;\nesac\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        // A path leads to the stand-in; names of helpers have none.
        let named = program.to_str().unwrap();
        let known = ask(named, "reg.example").await.unwrap();
        assert_eq!((known.username.as_str(), known.secret.as_str()), ("u", "s"));
        let unknown = ask(named, "other.example").await.err().unwrap();
        assert!(unknown.contains("credentials not found"), "{unknown}");
        let missing = ask("docker-credential-that-is-not-there", "x").await;
        assert!(missing.is_err());
        let logins = file(r#"{"credHelpers": {"reg.example": "that-is-not-there"}}"#);
        assert_eq!(of("reg.example", logins.path()).await, None);
    }
}
