//! Commands that other clients of these clusters have and this one has not. They are refused by name, so that a missing
//! command is not taken for a typing error.

/// Commands and groups of commands that are not built yet; a group includes all commands in it.
const NOT_BUILT: &[&str] = &[
    "auth",
    "d",
    "deploy",
    "dev",
    "experiment delete-tb-files",
    "m",
    "master cluster-message",
    "model",
    "oauth",
    "rbac",
    "res",
    "resource-pool bindings",
    "resources",
    "tkn",
    "token",
    "trial support-bundle",
    "user rename",
    "user-group",
    "workspace list-members",
];

/// Short names of the groups in which something is not built.
const ALIASES: &[(&str, &str)] = &[
    ("e", "experiment"),
    ("rp", "resource-pool"),
    ("t", "trial"),
    ("u", "user"),
    ("w", "workspace"),
];

/// The command in a command line that is not built yet; `None` when there is none. `arguments` are without the program.
pub(crate) fn asked_for(arguments: &[String]) -> Option<&'static str> {
    let mut words = Vec::new();
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        match word {
            "-m" | "--master" | "-u" | "--user" => {
                rest.next();
            }
            flag if flag.starts_with('-') => {}
            word => words.push(word),
        }
    }
    let first = words.first_mut()?;
    if let Some((_, name)) = ALIASES.iter().find(|(alias, _)| alias == first) {
        *first = name;
    }
    NOT_BUILT
        .iter()
        .find(|command| {
            let mut given = words.iter();
            command.split(' ').all(|word| given.next() == Some(&word))
        })
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn asked(line: &str) -> Option<&'static str> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        asked_for(&words)
    }

    #[test]
    fn a_missing_command_is_known_by_its_words() {
        assert_eq!(asked("model list"), Some("model"));
        assert_eq!(
            asked("-m host:8080 rp bindings add"),
            Some("resource-pool bindings")
        );
        assert_eq!(asked("-m host:8080 rp ls"), None);
        assert_eq!(asked("u rename ada eve"), Some("user rename"));
        assert_eq!(asked("experiment list"), None);
        assert_eq!(asked("-u model experiment list"), None);
        assert_eq!(asked("nonsense"), None);
    }

    #[test]
    fn what_is_built_is_not_in_the_list() {
        for path in NOT_BUILT {
            let mut command = Cli::command();
            command.build();
            let mut found = Some(&command);
            for word in path.split(' ') {
                found = found.and_then(|c| c.find_subcommand(word));
            }
            assert!(found.is_none(), "\"{path}\" is built");
        }
    }
}
