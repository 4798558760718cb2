//! Ports of this machine that lead to ports of a task: one connection to the master for each that is accepted.

use std::net::Ipv4Addr;

use clap::Args;
use det_client::Client;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::error::CliError;
use crate::output;

/// The flag that publishes ports of a task.
#[derive(Debug, Default, Args)]
pub(crate) struct PublishArgs {
    /// Port of this machine that leads to a TCP port of the task (`proxy_tcp` in `environment.proxy_ports`), as
    /// LOCAL:REMOTE, or one number for both (may be repeated)
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
pub(crate) struct Published {
    listeners: Vec<(TcpListener, u16)>,
}

impl PublishArgs {
    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Takes the ports, on this machine's own address only. Errs when one is in use.
    pub(crate) async fn take(&self) -> Result<Published, CliError> {
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
        Ok(Published { listeners })
    }
}

impl Published {
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
