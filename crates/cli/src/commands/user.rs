//! `det user`: logging in and out, and the users of a cluster.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use det_client::{
    Client, ClientError, DEFAULT_USER, Environment, Identity, Paging, Query, Secret, Session,
    SessionError, api_path, salted_hash,
};
use serde_json::{Map, Value, json};

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
    /// Change a user
    Edit(EditArgs),
    /// Let a user log in again; the same as `edit --active true`
    Activate {
        /// Name of the user
        username: String,
    },
    /// Keep a user from logging in, and end the user's sessions; the same as `edit --active false`
    Deactivate {
        /// Name of the user
        username: String,
    },
    /// Run a user's tasks as this user and group of the machines
    LinkWithAgentUser(LinkArgs),
}

#[derive(Debug, Args)]
struct EditArgs {
    /// Name of the user
    target_user: String,
    #[command(flatten)]
    changes: Changes,
}

/// What to change of a user.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Changes {
    /// New display name; empty shows the user name
    #[arg(long, value_name = "NAME")]
    display_name: Option<String>,
    /// New user name
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Whether the user logs in through the external identity provider only
    #[arg(long, value_name = "true|false", value_parser = BoolishValueParser::new())]
    remote: Option<bool>,
    /// Whether the user may log in
    #[arg(long, value_name = "true|false", value_parser = BoolishValueParser::new())]
    active: Option<bool>,
    /// Whether the user is an administrator
    #[arg(long, value_name = "true|false", value_parser = BoolishValueParser::new())]
    admin: Option<bool>,
}

impl Changes {
    /// What is given, by the names of the fields as the `PyPI` client prints them, with the body of the request.
    fn body(&self) -> (Vec<&'static str>, Value) {
        let fields = [
            (
                "Display Name",
                "displayName",
                self.display_name.as_ref().map(|name| json!(name)),
            ),
            ("Remote", "remote", self.remote.map(Value::Bool)),
            ("Active", "active", self.active.map(Value::Bool)),
            (
                "Username",
                "username",
                self.username.as_ref().map(|name| json!(name)),
            ),
            ("Admin", "admin", self.admin.map(Value::Bool)),
        ];
        let mut names = Vec::new();
        let mut body = Map::new();
        for (name, member, value) in fields {
            if let Some(value) = value {
                names.push(name);
                body.insert(member.to_owned(), value);
            }
        }
        (names, body.into())
    }
}

#[derive(Debug, Args)]
struct LinkArgs {
    /// Name of the user
    det_username: String,
    /// Number of the user on the machines
    #[arg(long, value_name = "UID")]
    agent_uid: u32,
    /// Name of the user on the machines
    #[arg(long, value_name = "NAME")]
    agent_user: String,
    /// Number of the group on the machines
    #[arg(long, value_name = "GID")]
    agent_gid: u32,
    /// Name of the group on the machines
    #[arg(long, value_name = "NAME")]
    agent_group: String,
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
            let session = context.session().await?;
            let name = text(&session.me().await?, "username");
            match session.identity {
                Identity::Chosen => {
                    output::line(format_args!("You are logged in as user '{name}'"))
                }
                Identity::Default | Identity::DefaultLoggedIn => output::line(format_args!(
                    "No user has logged in: commands act as user '{name}' (blank password)"
                )),
            }
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
                (None, None) => {
                    let hint = format!(
                        "name a file with it, `det user create {username} --password-file PATH`, or give it twice, as two lines of \
                         standard input"
                    );
                    ask_twice("Password for user", &username, &hint)?
                }
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
        Some(UserAction::Edit(EditArgs {
            target_user,
            changes,
        })) => {
            let (names, body) = changes.body();
            change(&target_user, &body, context).await?;
            output::line(format_args!(
                "Changes made to the following fields: {}",
                names.join(", ")
            ))
        }
        Some(UserAction::Activate { username }) => set_active(&username, true, context).await,
        Some(UserAction::Deactivate { username }) => set_active(&username, false, context).await,
        Some(UserAction::LinkWithAgentUser(args)) => {
            let username = args.det_username;
            let identity = json!({"agentUid": args.agent_uid, "agentUser": args.agent_user,
                "agentGid": args.agent_gid, "agentGroup": args.agent_group});
            change(&username, &json!({"agentUserGroup": identity}), context).await?;
            output::note(format_args!(
                "tasks of user \"{username}\" that start from now on run as {} ({}) in group {} ({})",
                args.agent_user, args.agent_uid, args.agent_group, args.agent_gid
            ));
            Ok(())
        }
    }
}

async fn set_active(username: &str, active: bool, context: &Context) -> Result<(), CliError> {
    change(username, &json!({"active": active}), context).await?;
    let now = if active {
        "may log in"
    } else {
        "may not log in any more"
    };
    output::note(format_args!("user \"{username}\" {now}"));
    Ok(())
}

/// Changes the user of this name.
async fn change(username: &str, body: &Value, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    let user = by_name(&client, username).await?;
    let path = api_path(["users", &text(&user, "id")]);
    client.patch(&path, body).await?;
    Ok(())
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
    let environment = Environment::from_process();
    let named = username.or_else(|| context.user.clone());
    // Tasks have DET_USER alone always: it names who logs in where its password is set.
    let there = environment
        .user
        .clone()
        .filter(|_| environment.password.is_some());
    let username = match named.or(there) {
        Some(username) => username,
        None => prompt::line("Username: ").map_err(|error| {
            unanswered(
                "the name of the user",
                &error,
                "name the user: `det user login USERNAME`",
            )
        })?,
    };
    // DET_PASS is the password of DET_USER, where that names a user.
    let named_there = environment.user.is_none_or(|user| user == username);
    let password = match environment.password.filter(|_| named_there) {
        Some(password) => password,
        None => ask(
            "Password for user",
            &username,
            "set DET_PASS to it, or give it as a line of standard input",
        )?,
    };
    let session = match Session::log_in(client, &username, &password).await {
        Ok(session) => session,
        Err(error) => return Err(not_logged_in(error, context)),
    };
    warn_about_password(&session);
    keep(&session, context)?;
    output::note(format_args!(
        "logged in to {} as \"{}\"",
        context.master, session.user
    ));
    Ok(())
}

/// A login that failed, with who acts from then on. The default user is not to act in silence: its token is removed, so that
/// the next command logs it in anew and reports it.
fn not_logged_in(error: SessionError, context: &Context) -> CliError {
    let refused = matches!(error, SessionError::WrongCredentials { .. });
    let error = CliError::from(error);
    if !refused {
        return error;
    }
    let tokens = context.tokens();
    let active = tokens.entry(&context.master).and_then(|entry| {
        let active = entry.active_user().map(str::to_owned);
        if active.is_none() && entry.token(DEFAULT_USER).is_some() {
            tokens.drop_user(&context.master, DEFAULT_USER)?;
        }
        Ok(active)
    });
    match active {
        Ok(Some(user)) => error.with_hint(format!(
            "you are still logged in as \"{user}\", and commands act as that user"
        )),
        Ok(None) => error.with_hint(format!(
            "no user is logged in: until then, commands act as \"{DEFAULT_USER}\" if its password is blank"
        )),
        Err(damaged) => error.with_hint(damaged.to_string()),
    }
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
        let environment = Environment::from_process();
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
    let hint = "give it twice, as two lines of standard input";
    let password = ask_twice("New password for user", &username, hint)?;
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

/// Asks for the password of a user; `hint` = how to give it where there is no answer.
fn ask(question: &str, username: &str, hint: &str) -> Result<Secret, CliError> {
    prompt::password(&format!("{question} '{username}': ")).map_err(|error| {
        unanswered(
            &format!("the password of user \"{username}\""),
            &error,
            hint,
        )
    })
}

fn ask_twice(question: &str, username: &str, hint: &str) -> Result<Secret, CliError> {
    let first = ask(question, username, hint)?;
    let second = prompt::password("Confirm password: ").map_err(|error| {
        let what = format!("the password of user \"{username}\" a second time");
        unanswered(&what, &error, hint)
    })?;
    if first == second {
        Ok(first)
    } else {
        Err(CliError::request(
            "the two passwords differ; nothing was changed",
        ))
    }
}

/// A question that was not answered.
fn unanswered(what: &str, error: &std::io::Error, hint: &str) -> CliError {
    CliError::request(format!("could not read {what}: {error}")).with_hint(hint)
}
