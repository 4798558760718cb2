//! Ports of this machine that lead to ports of a task: one connection to the master for each that is accepted.

use std::net::Ipv4Addr;

use clap::Args;
use det_client::Client;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::error::CliError;
use crate::output;
use crate::values::items;

/// The flag that publishes ports of a task.
#[derive(Debug, Default, Args)]
pub(crate) struct PublishArgs {
    /// Port of this machine that leads to a TCP port of the task, as LOCAL:REMOTE, or one number for both (may be repeated); what
    /// is launched has the port added to its `environment.proxy_ports`
    #[arg(short = 'p', long = "publish", value_name = "LOCAL:REMOTE", value_parser = parse)]
    ports: Vec<Ports>,
}

/// A port here and the one that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    local: u16,
    remote: u16,
}

fn parse(text: &str) -> Result<Ports, String> {
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port != 0);
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    match (port(local), port(remote)) {
        (Some(local), Some(remote)) => Ok(Ports { local, remote }),
        _ => Err(
            "it must have the form LOCAL:REMOTE or PORT, with ports from 1 to 65535, such as 8265:8265"
                .to_owned(),
        ),
    }
}

/// Ports of this machine that are taken, and where they lead.
#[derive(Debug)]
pub(crate) struct PublishedPorts {
    listeners: Vec<(TcpListener, u16)>,
}

impl PublishArgs {
    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Adds the ports of the task to a configuration that is to be launched, unless it has them. Returns whether it has changed;
    /// errs where one exists for HTTP alone, or where the configuration cannot have ports.
    pub(crate) fn declare_in(&self, config: &mut Value) -> Result<bool, CliError> {
        let mut changed = false;
        for &Ports { remote, .. } in &self.ports {
            let unfit = |what: &str, kind: &str| {
                CliError::usage(format!(
                    "{what} of the configuration is not a {kind}, so -p cannot add port {remote} to it"
                ))
            };
            if config["environment"].is_null() {
                config["environment"] = json!({});
            }
            let environment = config["environment"]
                .as_object_mut()
                .ok_or_else(|| unfit("environment", "map"))?;
            let declared = environment.entry("proxy_ports").or_insert(Value::Null);
            if declared.is_null() {
                *declared = json!([]);
            }
            let declared = declared
                .as_array_mut()
                .ok_or_else(|| unfit("environment.proxy_ports", "list"))?;
            match declared.iter().find(|port| port["proxy_port"] == remote) {
                Some(port) if port["proxy_tcp"] == true => {}
                Some(_) => {
                    return Err(CliError::usage(format!(
                        "port {remote} is in environment.proxy_ports of the configuration without proxy_tcp: it carries HTTP, and \
                         -p is for TCP"
                    ))
                    .with_hint(format!(
                        "add proxy_tcp: true there, or leave out -p and open /proxy/TASK:{remote}/ of the master"
                    )));
                }
                None => {
                    declared.push(json!({"proxy_port": remote, "proxy_tcp": true}));
                    changed = true;
                }
            }
        }
        Ok(changed)
    }

    /// Errs when one of the ports is no TCP port of a task that was launched; `group` is that of `det` which starts such tasks,
    /// and `config` the configuration that it runs with.
    pub(crate) fn require_in(
        &self,
        noun: &str,
        group: &str,
        config: &Value,
    ) -> Result<(), CliError> {
        let tcp: Vec<u64> = items(&config["environment"]["proxy_ports"])
            .filter(|port| port["proxy_tcp"] == true)
            .filter_map(|port| port["proxy_port"].as_u64())
            .collect();
        let missing = self
            .ports
            .iter()
            .find(|ports| !tcp.contains(&ports.remote.into()));
        let Some(Ports { local, remote }) = missing else {
            return Ok(());
        };
        let there = if tcp.is_empty() {
            "it has none".to_owned()
        } else {
            let tcp: Vec<String> = tcp.iter().map(ToString::to_string).collect();
            format!("it has {}", tcp.join(", "))
        };
        Err(CliError::request(format!(
            "{noun} has no TCP port {remote}: {there} (proxy_tcp in environment.proxy_ports of its configuration)"
        ))
        .with_hint(format!(
            "ports are declared at the start: `det {group} start -p {local}:{remote}`"
        )))
    }

    /// Takes the ports, on this machine's own address only. Errs when one is in use.
    pub(crate) async fn take(&self) -> Result<PublishedPorts, CliError> {
        let mut listeners = Vec::new();
        for Ports { local, remote } in &self.ports {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *local)).await;
            let listener = listener.map_err(|error| {
                CliError::request(format!(
                    "could not publish port {remote} of the task as 127.0.0.1:{local}: {error}"
                ))
                .with_hint(format!(
                    "choose another port of this machine, as in -p {}:{remote}",
                    local.wrapping_add(1).max(1024)
                ))
            })?;
            listeners.push((listener, *remote));
        }
        Ok(PublishedPorts { listeners })
    }
}

impl PublishedPorts {
    /// Runs `command`, and meanwhile carries every connection to the task that `task` names then. Connections end with the
    /// command.
    pub(crate) async fn during<T>(
        self,
        client: &Client,
        task: impl AsyncFn() -> Result<String, CliError>,
        command: impl Future<Output = T>,
    ) -> T {
        if self.listeners.is_empty() {
            return command.await;
        }
        for (listener, remote) in &self.listeners {
            // What is bound has an address.
            if let Ok(here) = listener.local_addr() {
                output::note(format_args!(
                    "{here} leads to port {remote} of the task, as long as this command runs"
                ));
            }
        }
        tokio::select! {
            result = command => result,
            never = self.serve(client, task) => match never {},
        }
    }

    async fn serve(
        self,
        client: &Client,
        task: impl AsyncFn() -> Result<String, CliError>,
    ) -> std::convert::Infallible {
        let mut open = JoinSet::new();
        loop {
            let (socket, remote) = self.accept(&mut open).await;
            match task().await {
                Ok(task) => {
                    open.spawn(carry(client.clone(), format!("{task}:{remote}"), socket));
                }
                Err(error) => note(remote, &error),
            }
        }
    }

    /// The next connection of any port. Connections that have ended are let go meanwhile.
    async fn accept(&self, open: &mut JoinSet<()>) -> (TcpStream, u16) {
        loop {
            let accepting = self.listeners.iter().map(|(listener, remote)| {
                Box::pin(async move { (listener.accept().await, *remote) })
            });
            let any = futures::future::select_all(accepting);
            tokio::select! {
                ((accepted, remote), ..) = any => match accepted {
                    Ok((socket, _)) => return (socket, remote),
                    Err(error) => {
                        // Such as too many open files: it passes when some are closed.
                        note(remote, &CliError::request(error.to_string()));
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                },
                Some(_) = open.join_next() => {}
            }
        }
    }
}

async fn carry(client: Client, service: String, mut socket: TcpStream) {
    let carried = async {
        let connection = client.connect_service(&service).await?;
        let (from, to) = socket.split();
        connection.carry(from, to).await
    };
    if let Err(error) = carried.await {
        let port = service.rsplit(':').next().unwrap_or_default();
        note(port, &error.into());
    }
}

/// Reports a connection that could not be carried.
fn note(port: impl std::fmt::Display, error: &CliError) {
    output::note(format_args!(
        "a connection to port {port} of the task failed: {error}"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publishing(ports: &[&str]) -> PublishArgs {
        PublishArgs {
            ports: ports.iter().map(|ports| parse(ports).unwrap()).collect(),
        }
    }

    #[test]
    fn ports_are_added_to_what_is_launched_once() {
        let tcp = |port: u16| json!({"proxy_port": port, "proxy_tcp": true});
        for (config, expected, changes) in [
            (json!({}), json!([tcp(80)]), true),
            (json!({"environment": null}), json!([tcp(80)]), true),
            (
                json!({"environment": {"proxy_ports": null}}),
                json!([tcp(80)]),
                true,
            ),
            (
                json!({"environment": {"proxy_ports": [{"proxy_port": 81}]}}),
                json!([{"proxy_port": 81}, tcp(80)]),
                true,
            ),
            (
                json!({"environment": {"proxy_ports": [tcp(80)]}}),
                json!([tcp(80)]),
                false,
            ),
        ] {
            let mut config = config;
            let changed = publishing(&["8000:80", "8001:80"]).declare_in(&mut config);
            assert_eq!(changed.unwrap(), changes);
            assert_eq!(config["environment"]["proxy_ports"], expected);
        }
        let mut untouched = json!({});
        assert!(!publishing(&[]).declare_in(&mut untouched).unwrap());
        assert_eq!(untouched, json!({}));
        for (wrong, expected) in [
            (
                json!({"environment": 1}),
                "environment of the configuration is not a map",
            ),
            (
                json!({"environment": {"proxy_ports": "80"}}),
                "environment.proxy_ports of the configuration is not a list",
            ),
            (
                json!({"environment": {"proxy_ports": [{"proxy_port": 80}]}}),
                "without proxy_tcp",
            ),
        ] {
            let mut config = wrong;
            let error = publishing(&["80"]).declare_in(&mut config).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn ports_that_a_task_does_not_have_are_refused_with_those_that_it_has() {
        let config = json!({"environment": {"proxy_ports": [
            {"proxy_port": 80, "proxy_tcp": true}, {"proxy_port": 81}, {"proxy_port": 82, "proxy_tcp": true},
        ]}});
        let require =
            |port: &str, config: &Value| publishing(&[port]).require_in("shell 7", "shell", config);
        require("1:82", &config).unwrap();
        let error = require("81", &config).unwrap_err().to_string();
        assert!(
            error.contains("shell 7 has no TCP port 81: it has 80, 82"),
            "{error}"
        );
        let error = require("81", &json!({})).unwrap_err().to_string();
        assert!(error.contains("no TCP port 81: it has none"), "{error}");
    }

    #[test]
    fn ports_are_two_numbers_or_one_for_both() {
        assert_eq!(
            parse("80:8080"),
            Ok(Ports {
                local: 80,
                remote: 8080
            })
        );
        assert_eq!(
            parse("8080"),
            Ok(Ports {
                local: 8080,
                remote: 8080
            })
        );
        for wrong in ["", "x", "0:1", "1:0", "1:2:3", "70000", "-1:2"] {
            assert!(
                parse(wrong).unwrap_err().contains("LOCAL:REMOTE"),
                "{wrong}"
            );
        }
    }
}
