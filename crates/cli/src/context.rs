//! What every client command starts from: the master's address, the user, and the settings on this machine.

use std::env;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use det_client::{
    CertificateStore, Client, ClientError, ClientOptions, Environment, Identity, MasterUrl, Query,
    Session, SessionError, TokenStore, Trust, config_dir, fingerprint, presented_chain,
};

use crate::error::CliError;
use crate::{output, prompt};

/// The flags that choose the master and the user; every client command takes them.
#[derive(Debug, Args)]
pub(crate) struct ConnectionArgs {
    /// Address of the master: host, host:port or a URL [default: `DET_MASTER`, else localhost:8080]
    #[arg(
        short,
        long,
        global = true,
        value_name = "ADDRESS",
        help_heading = "Connection"
    )]
    pub(crate) master: Option<String>,
    /// Run as this user
    #[arg(
        short,
        long,
        global = true,
        value_name = "USERNAME",
        help_heading = "Connection"
    )]
    pub(crate) user: Option<String>,
}

/// The master that a command is for, the user it runs as, and the directory of their settings.
#[derive(Debug)]
pub(crate) struct Context {
    /// The master's address: `-m`, else `DET_MASTER`, else `DET_MASTER_ADDR`, else this machine.
    pub(crate) master: MasterUrl,
    /// The user named with `-u`; `None` = the environment or the last login decides.
    pub(crate) user: Option<String>,
    config_dir: PathBuf,
}

impl Context {
    /// Reads the flags and the environment. Nothing is sent. Errs when the address cannot be parsed, or when there is no
    /// directory for settings.
    pub(crate) fn new(flags: &ConnectionArgs) -> Result<Self, CliError> {
        let address = flags
            .master
            .clone()
            .or_else(|| variable("DET_MASTER"))
            .or_else(|| variable("DET_MASTER_ADDR"))
            .unwrap_or_else(|| "localhost:8080".to_owned());
        let master = address.parse().map_err(|error| {
            CliError::usage(format!("{error}")).with_hint("see -m and DET_MASTER")
        })?;
        Ok(Self {
            master,
            user: flags.user.clone(),
            config_dir: config_dir()?,
        })
    }

    /// The tokens that logins have stored on this machine.
    pub(crate) fn tokens(&self) -> TokenStore {
        TokenStore::in_directory(&self.config_dir)
    }

    /// A client without a login. Asks at a terminal whether to trust a certificate that is not known.
    pub(crate) async fn client(&self) -> Result<Client, CliError> {
        let trust = Trust::from_environment(&self.master, &self.config_dir)?;
        let client = Client::new(self.master.clone(), &options(trust)?)?;
        if !self.master.is_https() {
            return Ok(client);
        }
        match client.get("/info", &Query::new()).await {
            Ok(_) => Ok(client),
            Err(error @ ClientError::Untrusted { .. }) if may_ask() => {
                self.ask_for_trust(error).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A client with a login. Asks for a password when no stored token can be used.
    pub(crate) async fn session(&self) -> Result<Session, CliError> {
        let session = Session::open(
            self.client().await?,
            &self.tokens(),
            &Environment::from_process(),
            self.user.as_deref(),
            &mut |user| prompt::password(&format!("Password for user '{user}': ")),
        )
        .await?;
        self.note_default_user(&session);
        warn_about_password(&session);
        Ok(session)
    }

    /// A client with a login if there is one that takes no question, else without: for what works either way, and where
    /// nothing can be asked.
    pub(crate) async fn client_without_questions(&self) -> Result<Client, CliError> {
        let client = self.client().await?;
        let opened = Session::open(
            client.clone(),
            &self.tokens(),
            &Environment::from_process(),
            self.user.as_deref(),
            &mut |_| Err(io::ErrorKind::Unsupported.into()),
        )
        .await;
        match opened {
            Ok(session) => {
                self.note_default_user(&session);
                Ok(session.client)
            }
            Err(SessionError::Client(error)) if error.is_connection() => Err(error.into()),
            Err(_) => Ok(client),
        }
    }

    /// Reports who acts when no user has logged in, once: later commands use the token of this one.
    fn note_default_user(&self, session: &Session) {
        if session.identity == Identity::DefaultLoggedIn {
            output::note(format_args!(
                "no login for {}: acting as \"{}\" (blank password); `det user login USERNAME` logs in as another user",
                self.master, session.user
            ));
        }
    }

    /// Shows the certificate of a master that is not trusted, and stores it if the user accepts it.
    async fn ask_for_trust(&self, refused: ClientError) -> Result<Client, CliError> {
        let chain = presented_chain(&self.master).await?;
        let Some(fingerprint) = fingerprint(&chain) else {
            return Err(refused.into());
        };
        output::note(format_args!(
            "{refused}\nits SHA-256 fingerprint is {fingerprint}"
        ));
        if !prompt::confirm(
            "Trust this certificate from now on?",
            "DET_MASTER_CERT_FILE",
        )? {
            return Err(refused.into());
        }
        CertificateStore::in_directory(&self.config_dir).accept(&self.master, &chain)?;
        let trust = Trust::from_environment(&self.master, &self.config_dir)?;
        let client = Client::new(self.master.clone(), &options(trust)?)?;
        client.get("/info", &Query::new()).await?;
        Ok(client)
    }
}

/// Warns when the password that a session was opened with is weak.
pub(crate) fn warn_about_password(session: &Session) {
    if !session.weak_password.is_empty() {
        output::note(format_args!(
            "warning: the password of user \"{}\" {}; set a better one with `det user change-password`",
            session.user,
            session.weak_password.join(", ")
        ));
    }
}

/// Whether questions can be asked and seen at a terminal.
fn may_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The options of a client. The default time for connecting is short, so that a wrong address is reported soon; slow
/// networks set `DET_CONNECT_TIMEOUT`, in seconds.
fn options(trust: Trust) -> Result<ClientOptions, CliError> {
    let mut options = ClientOptions {
        trust,
        ..ClientOptions::default()
    };
    if let Some(text) = variable("DET_CONNECT_TIMEOUT") {
        options.connect_timeout = text
            .parse()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| {
                CliError::usage(format!(
                    "DET_CONNECT_TIMEOUT is \"{text}\"; it must be a number of seconds above 0"
                ))
            })?;
    }
    Ok(options)
}

/// A variable of the environment that is set and not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
