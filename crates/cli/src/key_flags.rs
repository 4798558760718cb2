//! A flag for every key of a configuration: `db.ssl_mode` is `--db-ssl-mode`.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

/// The keys that a configuration has.
pub(crate) trait Keys {
    /// Dotted paths that a flag can set, each with whether it is a switch (`true` or `false`).
    fn keys() -> Vec<(String, bool)>;
    /// Flags that the command defines itself, without the leading dashes; no flag is made for their keys.
    const OWN: &'static [&'static str];
    /// Flags that have a short form too: `(flag, letter)`.
    const LETTERS: &'static [(&'static str, char)];
}

/// The keys of a master.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MasterKeys;

impl Keys for MasterKeys {
    fn keys() -> Vec<(String, bool)> {
        det_config::LoadedMaster::flags()
    }
    const OWN: &'static [&'static str] = &["config-file", "host", "port", "data-dir", "db-url"];
    const LETTERS: &'static [(&'static str, char)] = &[];
}

/// The keys of an agent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AgentKeys;

impl Keys for AgentKeys {
    fn keys() -> Vec<(String, bool)> {
        det_config::LoadedAgent::flags()
    }
    const OWN: &'static [&'static str] = &[
        "config-file",
        "master-host",
        "master-port",
        "agent-id",
        "resource-pool",
        "slot-type",
        "artificial-slots",
        "runtime",
        "python",
        "data-dir",
        "agent-token-file",
    ];
    const LETTERS: &'static [(&'static str, char)] = &[("log-level", 'l')];
}

/// The flags given, as `(dotted key, value)`. They are hidden from the help, which would otherwise be a list of every key.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyFlags<K> {
    /// In no particular order; none twice.
    pub(crate) given: Vec<(String, String)>,
    keys: std::marker::PhantomData<K>,
}

/// The flag of a key, without the leading dashes.
fn flag_of(path: &str) -> String {
    path.trim_start_matches('_').replace(['.', '_'], "-")
}

impl<K: Keys> Args for KeyFlags<K> {
    fn augment_args(command: Command) -> Command {
        let mut taken: Vec<String> = K::OWN.iter().map(|flag| (*flag).to_owned()).collect();
        let mut command = command;
        for (path, is_switch) in K::keys() {
            let flag = flag_of(&path);
            if taken.contains(&flag) {
                continue;
            }
            taken.push(flag.clone());
            let mut arg = Arg::new(path)
                .long(flag.clone())
                .value_name("VALUE")
                .action(ArgAction::Set)
                .allow_hyphen_values(true)
                .hide(true);
            if is_switch {
                // As in the older programs: the bare flag means true, any other value follows an equals sign.
                arg = arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true");
            }
            if let Some((_, letter)) = K::LETTERS.iter().find(|(long, _)| *long == flag) {
                arg = arg.short(*letter);
            }
            command = command.arg(arg);
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<K: Keys> FromArgMatches for KeyFlags<K> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = Self {
            given: Vec::new(),
            keys: std::marker::PhantomData,
        };
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for (path, _) in K::keys() {
            // Keys that the command has by itself are no arguments of this group.
            if let Ok(Some(value)) = matches.try_get_one::<String>(&path) {
                self.given.push((path, value.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Master {
        #[arg(long)]
        host: Option<String>,
        #[arg(long)]
        db_url: Option<String>,
        #[command(flatten)]
        keys: KeyFlags<MasterKeys>,
    }

    fn given(words: &[&str]) -> Vec<(String, String)> {
        let words = std::iter::once("master").chain(words.iter().copied());
        let mut given = Master::try_parse_from(words).unwrap().keys.given;
        given.sort();
        given
    }

    #[test]
    fn every_key_has_a_flag() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            given(&[
                "--db-ssl-mode",
                "require",
                "--resource-manager-scheduler-type=round_robin",
                "--enable-cors",
                "--log-color=false",
                "--resource-pools",
                "[{pool_name: a}]",
                "--host",
                "h",
                "--internal-audit-logging-enabled",
            ]),
            [
                pair("__internal.audit_logging_enabled", "true"),
                pair("db.ssl_mode", "require"),
                pair("enable_cors", "true"),
                pair("log.color", "false"),
                pair("resource_manager.scheduler.type", "round_robin"),
                pair("resource_pools", "[{pool_name: a}]"),
            ]
        );
        let parsed = Master::try_parse_from(["master", "--host", "h", "--db-url", "u"]).unwrap();
        assert_eq!(parsed.host.as_deref(), Some("h"));
        assert_eq!(parsed.db_url.as_deref(), Some("u"));
        assert_eq!(parsed.keys.given, []);
    }

    #[test]
    fn no_two_keys_share_a_flag_or_a_variable() {
        fn distinct<K: Keys>(aliases: &[&str]) {
            let mut seen = std::collections::BTreeMap::new();
            for (path, _) in K::keys() {
                if aliases.contains(&&*path) {
                    continue;
                }
                if let Some(other) = seen.insert(flag_of(&path), path.clone()) {
                    panic!("{other} and {path} share a flag");
                }
            }
        }
        distinct::<MasterKeys>(&[]);
        distinct::<AgentKeys>(&[]);
    }
}
