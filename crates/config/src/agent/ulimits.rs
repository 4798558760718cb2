//! Limits of processes in containers of an engine, written as for `docker run --ulimit`.

use serde_json::json;

use crate::schema::{Kind, Special, Walk, text_by};
use crate::yaml::Node;

/// The resources that engines know: those of `getrlimit(2)` but for the address space.
/// <https://docs.docker.com/reference/cli/docker/container/run/#ulimit>
const RESOURCES: &[&str] = &[
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];

/// A limit of each process in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ulimit {
    /// The resource, as engines call it.
    pub name: String,
    /// What holds at first, in the unit of the resource; -1 = no limit.
    pub soft: i64,
    /// Up to where processes may raise it; -1 = no limit.
    pub hard: i64,
}

impl Ulimit {
    /// Reads `NAME=SOFT` or `NAME=SOFT:HARD`. Errs with what is expected instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, limits) = text
            .split_once('=')
            .ok_or("must be NAME=SOFT or NAME=SOFT:HARD, as memlock=-1")?;
        if !RESOURCES.contains(&name) {
            let known = RESOURCES.join(", ");
            return Err(format!("must begin with one of {known}, and \"=\""));
        }
        let number = |text: &str| {
            text.parse()
                .ok()
                .filter(|limit| *limit >= -1)
                .ok_or("must have whole numbers behind \"=\"; -1 = no limit")
        };
        let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
        let (soft, hard): (i64, i64) = (number(soft)?, number(hard)?);
        if hard != -1 && (soft == -1 || soft > hard) {
            return Err("must not have a soft limit above the hard one".to_owned());
        }
        Ok(Self {
            name: name.to_owned(),
            soft,
            hard,
        })
    }
}

pub(super) static ULIMIT: Special = text_by(
    "text like `memlock=-1` or `nofile=65536:131072`",
    || {
        let names = RESOURCES.join("|");
        json!({"type": "string", "pattern": format!("^({names})=-?[0-9]+(:-?[0-9]+)?$")})
    },
    ulimit,
);

fn ulimit(walk: &mut Walk, node: &mut Node) {
    match node.text().map(Ulimit::parse) {
        Some(Ok(_)) => {}
        Some(Err(message)) => walk.findings.error(node.at.as_ref(), message),
        None => walk.value(node, Kind::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_for_docker() {
        let read = |text| Ulimit::parse(text).map(|limit| (limit.name, limit.soft, limit.hard));
        assert_eq!(read("memlock=-1"), Ok(("memlock".to_owned(), -1, -1)));
        assert_eq!(
            read("nofile=65536:131072"),
            Ok(("nofile".to_owned(), 65536, 131_072))
        );
        assert_eq!(read("core=0:-1"), Ok(("core".to_owned(), 0, -1)));
        for (wrong, expected) in [
            ("memlock", "NAME=SOFT"),
            ("as=1", "must begin with one of core, cpu"),
            ("nofile=", "whole numbers"),
            ("nofile=-2", "whole numbers"),
            ("nofile=1:2:3", "whole numbers"),
            ("nofile=99999999999999999999", "whole numbers"),
            ("nofile=2:1", "above the hard one"),
            ("nofile=-1:1", "above the hard one"),
        ] {
            let message = Ulimit::parse(wrong).unwrap_err();
            assert!(message.contains(expected), "{wrong}: {message}");
        }
    }
}
