//! Names of Linux capabilities.

use crate::container::Environment;
use crate::quote::cut;
use crate::schema::closest;

/// Those of capabilities(7), without `CAP_`.
const CAPABILITIES: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];
/// What engines take for all of them.
const ALL: &str = "ALL";

/// What is wrong with the capabilities that an environment adds or drops: the first name that is none, with the nearest one.
/// `CAP_` and small letters are as engines take them.
pub fn unknown_capability(environment: &Environment) -> Option<String> {
    unknown("add_capabilities", &environment.add_capabilities)
        .or_else(|| unknown("drop_capabilities", &environment.drop_capabilities))
}

fn unknown(key: &str, names: &[String]) -> Option<String> {
    let index = names.iter().position(|name| !is_known(&plain(name)))?;
    let name = names.get(index)?;
    let near = closest(&plain(name), CAPABILITIES.into_iter()).map_or_else(
        || "capabilities(7) lists them".to_owned(),
        |near| format!("did you mean \"{near}\"?"),
    );
    Some(format!(
        "environment.{key}[{index}]: \"{}\" is no capability of Linux; {near}",
        cut(name).escape_debug()
    ))
}

fn is_known(plain: &str) -> bool {
    plain == ALL || CAPABILITIES.contains(&plain)
}

/// Without `CAP_`, in capitals.
fn plain(name: &str) -> String {
    let name = name.trim().to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(key: &str, names: &[&str]) -> Option<String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        unknown(key, &names)
    }

    #[test]
    fn a_name_that_is_no_capability_is_found_with_the_nearest_one() {
        assert_eq!(
            found("drop_capabilities", &["cap_sys_ptrace", "NET_RAW", "all"]),
            None
        );
        assert_eq!(
            found("add_capabilities", &["SYS_NICE", "SYS_PTRAC"]).unwrap(),
            "environment.add_capabilities[1]: \"SYS_PTRAC\" is no capability of Linux; did you mean \"SYS_PTRACE\"?"
        );
        let odd = found("drop_capabilities", &["CAP_EVERYTHING"]).unwrap();
        assert!(
            odd.starts_with("environment.drop_capabilities[0]: \"CAP_EVERYTHING\"")
                && odd.ends_with("capabilities(7) lists them"),
            "{odd}"
        );
    }
}
