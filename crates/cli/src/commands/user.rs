//! `det user`: logging in and out, and the users of a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use det_client::{Client, ClientError, Paging, Query, Secret, Session, api_path, salted_hash};
use serde_json::{Value, json};

use crate::context::{Context, warn_about_password};
use crate::error::CliError;
use crate::table::{FormatArgs, Listing};
use crate::values::text;
use crate::{output, prompt};

/// Options of `det user`.
#[derive(Debug, Args)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    action: Option<UserAction>,
}

#[derive(Debug, Subcommand)]
enum UserAction {
    /// List users (the default)
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Log in, and stay so
    Login {
        /// Who logs in; asked for when absent
        username: Option<String>,
    },
    /// Log out
    Logout {
        /// Log out every user who is logged in to this master on this machine
        #[arg(short, long)]
        all: bool,
    },
    /// Show who is logged in
    Whoami,
    /// Change a password
    ChangePassword {
        /// Whose password [default: one's own]
        target_user: Option<String>,
    },
    /// Create a user
    Create {
        /// Name of the new user
        username: String,
        /// Make the user an administrator
        #[arg(long)]
        admin: bool,
        /// Password of the new user; asked for when absent. Others on this machine can read it while the command runs:
        /// prefer the question or --password-file
        #[arg(long)]
        password: Option<String>,
        /// File whose first line is the password of the new user; "-" for standard input
        #[arg(long, value_name = "PATH", conflicts_with = "password")]
        password_file: Option<PathBuf>,
        /// Let the user log in through the external identity provider only
        #[arg(long, conflicts_with_all = ["password", "password_file"])]
        remote: bool,
    },
}

#[derive(Debug, Default, Args)]
struct ListArgs {
    /// Show deactivated users too
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// Carries out `det user …`.
pub(crate) async fn run(args: UserArgs, context: &Context) -> Result<(), CliError> {
    match args.action {
        None => list(&ListArgs::default(), context).await,
        Some(UserAction::List(args)) => list(&args, context).await,
        Some(UserAction::Login { username }) => login(username, context).await,
        Some(UserAction::Logout { all }) => logout(all, context).await,
        Some(UserAction::Whoami) => {
            let me = context.session().await?.me().await?;
            output::line(format_args!(
                "You are logged in as user '{}'",
                text(&me, "username")
            ))
        }
        Some(UserAction::ChangePassword { target_user }) => {
            change_password(target_user, context).await
        }
        Some(UserAction::Create {
            username,
            admin,
            password,
            password_file,
            remote,
        }) => {
            let password = match (password, password_file) {
                (Some(password), _) => Secret::new(password),
                (None, Some(path)) => prompt::password_from(&path)?,
                (None, None) if remote => Secret::new(""),
                (None, None) => ask_twice(&format!("Password for user '{username}': "))?,
            };
            let body = json!({
                "user": {"username": username, "admin": admin, "active": true, "remote": remote},
                "password": salted_hash(password.reveal()),
                "isHashed": true,
            });
            let session = context.session().await?;
            session
                .client
                .post(&api_path(["users"]), Some(&body))
                .await?;
            output::line(format_args!("Created user '{username}'"))
        }
    }
}

async fn list(args: &ListArgs, context: &Context) -> Result<(), CliError> {
    let session = context.session().await?;
    let query = Query::new().with_some("active", (!args.all).then_some(true));
    let users = session
        .client
        .list(&api_path(["users"]), &query, "users", Paging::all(200))
        .await?;
    let mut listing = Listing::new([
        "User Id",
        "Username",
        "Display Name",
        "Admin",
        "Active",
        "Remote",
        "Agent Uid",
        "Agent Gid",
        "Agent User",
        "Agent Group",
    ]);
    for user in &users {
        let agent = &user["agentUserGroup"];
        let or_none = |value: String| {
            if value.is_empty() {
                "N/A".to_owned()
            } else {
                value
            }
        };
        listing.push([
            text(user, "id"),
            text(user, "username"),
            or_none(text(user, "displayName")),
            text(user, "admin"),
            text(user, "active"),
            text(user, "remote"),
            or_none(text(agent, "agentUid")),
            or_none(text(agent, "agentGid")),
            or_none(text(agent, "agentUser")),
            or_none(text(agent, "agentGroup")),
        ]);
    }
    listing.print(args.format.format(), &users)
}

async fn login(username: Option<String>, context: &Context) -> Result<(), CliError> {
    let client = context.client().await?;
    // A master that cannot be reached is reported before the password is asked for.
    client.get("/info", &Query::new()).await?;
    let username = match username.or_else(|| context.user.clone()) {
        Some(username) => username,
        None => prompt::line("Username: ").map_err(|error| prompt_error(&error))?,
    };
    let password = prompt::password(&format!("Password for user '{username}': "))
        .map_err(|error| prompt_error(&error))?;
    let session = Session::log_in(client, &username, &password).await?;
    warn_about_password(&session);
    keep(&session, context)?;
    output::note(format_args!(
        "logged in to {} as \"{}\"",
        context.master, session.user
    ));
    Ok(())
}

/// Stores the token of a session and makes its user the active one.
fn keep(session: &Session, context: &Context) -> Result<(), CliError> {
    let tokens = context.tokens();
    tokens.set_token(&context.master, &session.user, &session.token())?;
    tokens.set_active(&context.master, &session.user)?;
    Ok(())
}

async fn logout(all: bool, context: &Context) -> Result<(), CliError> {
    let tokens = context.tokens();
    let entry = tokens.entry(&context.master)?;
    let active = entry.active_user().map(str::to_owned);
    let users: Vec<String> = if all {
        entry.users().map(str::to_owned).collect()
    } else {
        // As for any other command: the user named, else the active one, else the default user.
        let environment = det_client::Environment::from_process();
        let chosen =
            det_client::Candidate::choose(context.user.as_deref(), &environment, active.as_deref());
        vec![chosen.user]
    };
    let client = context.client().await?;
    let mut out = Vec::new();
    for user in users {
        let Some(token) = entry.token(&user) else {
            continue;
        };
        tokens.drop_user(&context.master, &user)?;
        match client
            .clone()
            .with_token(token)
            .post(&api_path(["auth", "logout"]), None)
            .await
        {
            // A session that has ended already is logged out.
            Ok(_) | Err(ClientError::Unauthenticated { .. }) => {}
            Err(error) => output::note(format_args!(
                "warning: the token of user \"{user}\" was removed here, but the master did not end its session: {error}"
            )),
        }
        out.push(user);
    }
    if active.is_some_and(|active| all || out.contains(&active)) {
        tokens.clear_active(&context.master)?;
    }
    match out.as_slice() {
        [] => output::note("no user was logged in"),
        users => output::note(format_args!(
            "logged out of {}: {}",
            context.master,
            users.join(", ")
        )),
    }
    Ok(())
}

async fn change_password(target: Option<String>, context: &Context) -> Result<(), CliError> {
    let session = context.session().await?;
    let own = target.is_none();
    let username = target.unwrap_or_else(|| session.user.clone());
    let password = ask_twice(&format!("New password for user '{username}': "))?;
    let user = by_name(&session.client, &username).await?;
    let body = json!({"password": salted_hash(password.reveal()), "isHashed": true});
    session
        .client
        .patch(&api_path(["users", &text(&user, "id")]), &body)
        .await?;
    if own {
        // The change ended this session too.
        let session = Session::log_in(context.client().await?, &username, &password).await?;
        warn_about_password(&session);
        keep(&session, context)?;
    }
    output::note(format_args!("changed the password of user \"{username}\""));
    Ok(())
}

async fn by_name(client: &Client, username: &str) -> Result<Value, CliError> {
    let mut answer = client
        .get(&api_path(["users", username, "by-username"]), &Query::new())
        .await?;
    Ok(answer["user"].take())
}

fn ask_twice(question: &str) -> Result<Secret, CliError> {
    let first = prompt::password(question).map_err(|error| prompt_error(&error))?;
    let second = prompt::password("Confirm password: ").map_err(|error| prompt_error(&error))?;
    if first == second {
        Ok(first)
    } else {
        Err(CliError::request(
            "the two passwords differ; nothing was changed",
        ))
    }
}

fn prompt_error(error: &std::io::Error) -> CliError {
    CliError::request(format!("could not read the answer: {error}"))
}
