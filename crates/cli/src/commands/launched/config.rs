//! The configuration and the files that a task is launched with.

use std::path::{Path, PathBuf};

use clap::Args;
use det_config::document::DocumentKind;
use serde_json::{Value, json};

use super::Kind;
use crate::commands::submission::{UserDocument, announce};
use crate::error::CliError;
use crate::model_files::gather;

/// The flags for the configuration and the files of a task of any kind.
#[derive(Debug, Default, Args)]
pub(crate) struct ConfigArgs {
    /// Value that beats the configuration file's, key.path=VALUE with YAML after the = (may be repeated)
    #[arg(long = "config", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Directory whose content is put into the working directory; what its .detignore names is left out
    #[arg(short, long, value_name = "DIR")]
    context: Option<PathBuf>,
    /// Further file or directory to send, under its own name (may be repeated)
    #[arg(short, long = "include", value_name = "PATH")]
    includes: Vec<PathBuf>,
    /// Send the configuration without checking it here first
    #[arg(long)]
    no_check: bool,
}

impl ConfigArgs {
    /// Reads the configuration and checks it. `partial` = keys may be missing that something else has, such as a template.
    pub(crate) fn read(
        &mut self,
        kind: &Kind,
        file: Option<&Path>,
        partial: bool,
    ) -> Result<UserDocument, CliError> {
        let overrides = std::mem::take(&mut self.overrides);
        let written = UserDocument::read(DocumentKind::TaskOf(kind.launch), file, overrides)?;
        if !self.no_check {
            written.check(partial)?;
        }
        Ok(written)
    }

    /// The files to send, in the form of the API.
    pub(crate) fn files(&self) -> Result<Value, CliError> {
        let files = gather(self.context.as_deref(), &self.includes)?;
        announce(&files, false);
        Ok(files.into_json())
    }
}

/// A directory of the host that is mounted in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    host: String,
    container: String,
    /// Whether the task can write to it; `None` = the command line names no mode, and mounts are writable.
    read_only: Option<bool>,
}

/// Parses `HOST:CONTAINER` or `HOST:CONTAINER:MODE`, where the mode is `ro` or `rw`.
pub(super) fn parse_volume(text: &str) -> Result<Volume, String> {
    let mut parts = text.splitn(3, ':');
    let (host, container) = match (parts.next(), parts.next()) {
        (Some(host), Some(container)) if !host.is_empty() && !container.is_empty() => {
            (host.to_owned(), container.to_owned())
        }
        _ => {
            return Err(
                "it must have the form HOST_PATH:CONTAINER_PATH, such as /data:/data, or /data:/data:ro".to_owned(),
            );
        }
    };
    if !host.starts_with('/') {
        return Err(format!(
            "\"{host}\" is a path on the agent's machine and must begin with /"
        ));
    }
    let read_only = match parts.next() {
        None => None,
        Some("ro") => Some(true),
        Some("rw") => Some(false),
        Some(other) => {
            return Err(format!(
                "\"{other}\" is no mode of a mount: it must be ro or rw; a path with a colon, and a mount's propagation, are for \
                 bind_mounts of the configuration"
            ));
        }
    };
    Ok(Volume {
        host,
        container,
        read_only,
    })
}

/// Adds the volumes of a command line to the mounts of a configuration.
pub(super) fn add_volumes(config: &mut Value, volumes: &[Volume]) -> Result<(), CliError> {
    if volumes.is_empty() {
        return Ok(());
    }
    let mounts = &mut config["bind_mounts"];
    if mounts.is_null() {
        *mounts = json!([]);
    }
    let Some(mounts) = mounts.as_array_mut() else {
        return Err(CliError::request(
            "bind_mounts of the configuration is not a list, so --volume cannot add to it",
        ));
    };
    let added = volumes.iter().map(|volume| {
        let mut mount = json!({"host_path": volume.host, "container_path": volume.container});
        if let Some(read_only) = volume.read_only {
            mount["read_only"] = json!(read_only);
        }
        mount
    });
    mounts.extend(added);
    Ok(())
}

/// Gives a configuration the words of the command line as its entrypoint, unless it has one. Returns whether it has one then.
pub(super) fn add_entrypoint(config: &mut Value, words: &[String]) -> bool {
    let entrypoint = &mut config["entrypoint"];
    let has_one = match entrypoint {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        // What cannot be one is left for the check to refuse.
        _ => true,
    };
    if has_one {
        return true;
    }
    if words.is_empty() {
        if let Value::Object(members) = config
            && members.get("entrypoint").is_some_and(Value::is_null)
        {
            members.remove("entrypoint");
        }
        return false;
    }
    *entrypoint = json!(words);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_two_paths_and_may_have_a_mode() {
        for (text, read_only) in [
            ("/a:/b", None),
            ("/a:/b:ro", Some(true)),
            ("/a:/b:rw", Some(false)),
        ] {
            let volume = parse_volume(text).unwrap();
            assert_eq!((&*volume.host, &*volume.container), ("/a", "/b"), "{text}");
            assert_eq!(volume.read_only, read_only, "{text}");
        }
        for (wrong, expected) in [
            (
                "/a:/b:c",
                "\"c\" is no mode of a mount: it must be ro or rw",
            ),
            ("/a:/b:ro,z", "\"ro,z\" is no mode"),
            ("/a:/b:", "\"\" is no mode"),
            ("/a:/b:c:ro", "\"c:ro\" is no mode"),
            ("/a", "form HOST_PATH:CONTAINER_PATH"),
            ("/a:", "form HOST_PATH:CONTAINER_PATH"),
            (":/b", "form HOST_PATH:CONTAINER_PATH"),
            ("a:/b", "must begin with /"),
        ] {
            let error = parse_volume(wrong).unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }

    #[test]
    fn volumes_come_after_the_mounts_of_the_configuration() {
        let volume = parse_volume("/a:/b").unwrap();
        let added = json!({"host_path": "/a", "container_path": "/b"});
        let mut config = json!({});
        add_volumes(&mut config, &[parse_volume("/a:/b:ro").unwrap()]).unwrap();
        assert_eq!(config["bind_mounts"][0]["read_only"], true);
        for (config, expected) in [
            (json!({}), json!([added])),
            (json!({"bind_mounts": null}), json!([added])),
            (
                json!({"bind_mounts": [{"host_path": "/x"}]}),
                json!([{"host_path": "/x"}, added]),
            ),
        ] {
            let mut config = config;
            add_volumes(&mut config, std::slice::from_ref(&volume)).unwrap();
            assert_eq!(config["bind_mounts"], expected);
        }
        let mut config = json!({"bind_mounts": "x"});
        assert!(add_volumes(&mut config, &[volume]).is_err());
    }

    #[test]
    fn an_entrypoint_of_the_configuration_wins() {
        let words = ["echo".to_owned(), "hi".to_owned()];
        for none in [
            json!({}),
            json!({"entrypoint": null}),
            json!({"entrypoint": []}),
            json!({"entrypoint": ""}),
        ] {
            let mut config = none;
            assert!(!add_entrypoint(&mut config, &[]));
            assert!(add_entrypoint(&mut config, &words));
            assert_eq!(config["entrypoint"], json!(["echo", "hi"]));
        }
        let mut config = json!({"entrypoint": ["own"]});
        assert!(add_entrypoint(&mut config, &words));
        assert_eq!(config["entrypoint"], json!(["own"]));
        let mut config = json!({});
        add_entrypoint(&mut config, &[]);
        assert_eq!(config, json!({}), "no entrypoint is not one of null");
    }
}
