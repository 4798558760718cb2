//! `det proxy-stdio`: standard input and output as a connection to a service of a task. What `ssh` runs as its
//! `ProxyCommand`, so that it reaches the SSH server of a shell through the master.

use std::fs::File;
use std::io;
use std::pin::Pin;
use std::task::{Context as Waker, Poll};

use clap::Args;
use tokio::io::{AsyncWrite, Stdout};

use crate::context::Context;
use crate::error::CliError;

/// Name of the subcommand.
pub(crate) const SUBCOMMAND: &str = "proxy-stdio";

/// Options of `det proxy-stdio`.
#[derive(Debug, Args)]
pub(crate) struct ProxyStdioArgs {
    /// The service: the id of a task, or TASK:PORT
    service: String,
}

/// Carries bytes between standard input and output and a service. Nothing is ever asked: standard input belongs to the
/// service. Without a login it connects all the same, since shells are opened by their key.
pub(crate) async fn run(args: &ProxyStdioArgs, context: &Context) -> Result<(), CliError> {
    let client = context.client_without_questions().await?;
    let connection = client.connect_service(&args.service).await?;
    let output = ClosedAtEnd(tokio::io::stdout());
    Ok(connection.carry(tokio::io::stdin(), output).await?)
}

/// Standard output, whose reader sees its end when it is shut down and not only when this process ends.
struct ClosedAtEnd(Stdout);

impl AsyncWrite for ClosedAtEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(waker, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(waker)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_flush(waker) {
            Poll::Ready(Ok(())) => Poll::Ready(close_stdout()),
            other => other,
        }
    }
}

/// Closes standard output for its reader. The descriptor stays taken, so that no other file becomes standard output.
fn close_stdout() -> io::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(nowhere)?;
    Ok(())
}
