//! The pages of launched tasks, in the browser of this machine.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use det_client::{Client, ClientError, Session};

use super::{Kind, Launch, expand, until_ready};
use crate::error::CliError;
use crate::values::text;
use crate::{output, private_files};

/// Options of `det … open` for a kind that has a page.
#[derive(Debug, Args)]
pub(crate) struct OpenPageArgs {
    /// Its id, or enough of its beginning
    id: String,
    /// Print its address, and open no browser
    #[arg(long)]
    no_browser: bool,
}

/// What opens an address in the user's browser.
const OPENER: &str = if cfg!(target_os = "macos") {
    "open"
} else {
    "xdg-open"
};

/// Launches a task that has a page, waits until it is ready, and shows the page. `detach` = prints its id and returns.
pub(crate) async fn start_page(
    launch: Launch,
    session: &Session,
    detach: bool,
    in_browser: bool,
) -> Result<ExitCode, CliError> {
    let kind = launch.kind();
    let (id, description) = launch.send(&session.client).await?;
    if detach {
        output::line(id)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!(
        "Launched {} (id: {id}, name: {description}).",
        kind.noun
    ))?;
    show_when_ready(kind, session, &id, in_browser).await
}

/// Waits until the task that is named is ready, and shows its page. Errs at once where the master would
/// let this user not see it.
pub(crate) async fn open_page(
    kind: &Kind,
    session: &Session,
    args: &OpenPageArgs,
) -> Result<ExitCode, CliError> {
    let id = expand(kind, &session.client, &args.id).await?;
    require_connect(kind, session, &id).await?;
    show_when_ready(kind, session, &id, !args.no_browser).await
}

/// Errs unless this user may connect to a task's service.
async fn require_connect(kind: &Kind, session: &Session, id: &str) -> Result<(), CliError> {
    let answer = kind.get(&session.client, id).await?;
    let owner = text(&answer[kind.member], "username");
    if owner == session.user || session.me().await?["admin"] == true {
        return Ok(());
    }
    let Kind { noun, group, .. } = kind;
    Err(CliError::request(format!(
        "{noun} {id} is for its owner, {owner}, and for administrators: no other user can open it"
    ))
    .with_hint(format!("`det {group} start` starts one of your own")))
}

async fn show_when_ready(
    kind: &Kind,
    session: &Session,
    id: &str,
    in_browser: bool,
) -> Result<ExitCode, CliError> {
    if let Some(code) = until_ready(kind, &session.client, id).await? {
        return Ok(code);
    }
    let page = Page::of(kind, &session.client, id).await?;
    page.show(&session.user, in_browser)?;
    Ok(ExitCode::SUCCESS)
}

/// The page of a task: its address on the master.
#[derive(Debug)]
struct Page<'a> {
    kind: &'a Kind,
    id: &'a str,
    address: String,
}

impl<'a> Page<'a> {
    /// Reads the address of a task's page.
    async fn of(kind: &'a Kind, client: &Client, id: &'a str) -> Result<Self, CliError> {
        let answer = kind.get(client, id).await?;
        let path = text(&answer[kind.member], "serviceAddress");
        let master = client.master();
        if path.is_empty() {
            return Err(ClientError::BadAnswer {
                url: master.join(&kind.path(id, [])),
                reason: format!("the {} has no address", kind.noun),
            }
            .into());
        }
        let address = master.join(&path);
        Ok(Self { kind, id, address })
    }

    /// Prints the address and who is to log in there, and shows the page in the browser if that is wanted. A browser that does
    /// not start is no failure: the address is printed.
    fn show(&self, user: &str, in_browser: bool) -> Result<(), CliError> {
        let Self { kind, id, address } = self;
        output::line(format_args!("The page of {} {id}: {address}", kind.noun))?;
        output::note(format_args!(
            "where the browser asks for a login, log in as {user}"
        ));
        if !in_browser {
            return Ok(());
        }
        let opened = match self.without_secret()? {
            Some(file) => open(&file),
            None => open(address),
        };
        if let Err(error) = opened {
            output::note(format_args!(
                "no browser was opened, since `{OPENER}` could not be started ({error}); open the address yourself"
            ));
        }
        Ok(())
    }

    /// A file of this user that leads to the address, where the address contains a token: command lines are seen by all users
    /// of a machine.
    fn without_secret(&self) -> Result<Option<String>, CliError> {
        if !self.address.contains("token=") {
            return Ok(None);
        }
        let directory = private_files::kept(self.kind.group, self.id)?;
        let file = directory.join("open.html");
        private_files::write(&file, &leading_to(&self.address))?;
        Ok(Some(file.display().to_string()))
    }
}

/// A page that leads to an address.
fn leading_to(address: &str) -> String {
    let mut quoted = String::new();
    for letter in address.chars() {
        match letter {
            '&' => quoted.push_str("&amp;"),
            '"' => quoted.push_str("&quot;"),
            '<' => quoted.push_str("&lt;"),
            '>' => quoted.push_str("&gt;"),
            other => quoted.push(other),
        }
    }
    format!(
        "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0; url={quoted}\">\n<a href=\"{quoted}\">Continue</a>\n"
    )
}

/// Starts the browser, which lives on when this process ends or is interrupted.
fn open(what: &str) -> io::Result<()> {
    Command::new(OPENER)
        .arg(what)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_leads_to_its_address_whatever_is_in_it() {
        let page = leading_to("https://h/p?a=1&token=\"><script>");
        assert!(page.contains("url=https://h/p?a=1&amp;token=&quot;&gt;&lt;script&gt;\""));
        assert!(!page.contains("<script>"));
    }
}
