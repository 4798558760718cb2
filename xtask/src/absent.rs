//! What certain crates do not contain: rules on what they know and do, which no arrow between crates shows.

use crate::Findings;

/// Something that the code of some files does not contain.
struct Absent {
    /// Beginnings of the paths of these files.
    paths: &'static [&'static str],
    /// Files below those that may contain the texts, and have their reason in their comment.
    except: &'static [&'static str],
    /// The texts, as they are in code.
    texts: &'static [&'static str],
    /// The design that forbids them, as the end of the message.
    because: &'static str,
}

const ABSENT: &[Absent] = &[
    Absent {
        paths: &["crates/agent/src/"],
        // What listens for the two servers of `debug_server.rs` and `tunnel_server.rs`, which are off by default.
        except: &["crates/agent/src/listening.rs"],
        texts: &["TcpListener::bind", "axum::serve"],
        because: "an agent connects to its master, and listens only for the servers of its configuration",
    },
    Absent {
        paths: &["crates/rm-agents/src/"],
        // Tunnels to agents whose configuration accepts them.
        except: &["crates/rm-agents/src/direct.rs"],
        texts: &["TcpStream::connect", "connect_async", "reqwest"],
        because: "the master opens no connection to an agent but tunnels that the agent accepts",
    },
    Absent {
        paths: &["crates/server/src/app/", "crates/server/src/http/"],
        except: &[],
        texts: &[
            "ManagerKind::Kubernetes",
            "ManagerKind::Agent",
            "PlaceWord::Agent",
            "PlaceWord::Node",
            "det_rm_kube",
            "det_pods",
        ],
        because: "what a kind of resource manager can do is in its value or asked of its driver",
    },
    Absent {
        paths: &[
            "crates/lifecycle/src/",
            "crates/orchestrator/src/",
            "crates/scheduler/src/",
            "crates/store/src/",
        ],
        except: &[],
        texts: &["ManagerKind", "ubernetes"],
        because: "rows and decisions know places, whichever manager has them",
    },
    Absent {
        paths: &["crates/searcher/src/"],
        except: &[],
        texts: &["slot", "Slot"],
        because: "searches know no slots",
    },
    Absent {
        paths: &[
            "crates/lifecycle/src/allocation.rs",
            "crates/lifecycle/src/experiment.rs",
            "crates/lifecycle/src/task.rs",
            "crates/lifecycle/src/trial.rs",
            "crates/lifecycle/src/unmanaged.rs",
        ],
        except: &[],
        texts: &["_ =>", "(_, _) =>"],
        because: "a new state or event must not compile until every pair has an answer",
    },
];

/// Checks one file; `path` is relative to the repository.
pub(crate) fn check(path: &str, text: &str, findings: &mut Findings) {
    let rules = ABSENT.iter().filter(|rule| {
        rule.paths.iter().any(|begin| path.starts_with(begin)) && !rule.except.contains(&path)
    });
    for rule in rules {
        for (number, line) in (1..).zip(crate::without_tests(text).lines().map(str::trim)) {
            if line.starts_with("//") {
                continue;
            }
            let found = rule
                .texts
                .iter()
                .find(|text| match text.strip_suffix(" =>") {
                    // Arms are a line each; a pattern may end with the same.
                    Some(_) => line.starts_with(*text),
                    None => line.contains(*text),
                });
            if let Some(text) = found {
                findings.errors.push(format!(
                    "{path}:{number}: contains \"{text}\": {}",
                    rule.because
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_found_in_code_and_not_in_comments_and_tests() {
        for (path, text, expected) in [
            (
                "crates/agent/src/x.rs",
                "let l = TcpListener::bind(a);\n",
                1,
            ),
            (
                "crates/server/src/x.rs",
                "let l = TcpListener::bind(a);\n",
                0,
            ),
            ("crates/rm-agents/src/x.rs", "connect_async(url)\n", 1),
            (
                "crates/server/src/app/x.rs",
                "demands(det_pods::demands(&spec))\n",
                1,
            ),
            (
                "crates/server/src/app/x.rs",
                "if word == PlaceWord::Agent {\n",
                1,
            ),
            (
                "crates/orchestrator/src/x.rs",
                "/// As a Kubernetes cluster has it.\nlet kind = ManagerKind::default();\n",
                1,
            ),
            (
                "crates/server/src/drivers.rs",
                "use det_rm_kube::Seal;\n",
                0,
            ),
            (
                "crates/searcher/src/x.rs",
                "// When there are slots.\nlet slots = 1;\n",
                1,
            ),
            (
                "crates/lifecycle/src/task.rs",
                "    _ => step(a),\n    Kill(_) => b,\n",
                1,
            ),
            (
                "crates/searcher/src/x.rs",
                "#[cfg(test)]\nmod tests {\n    let slots = 1;\n}\n",
                0,
            ),
        ] {
            let mut findings = Findings::default();
            check(path, text, &mut findings);
            assert_eq!(findings.errors.len(), expected, "{path}");
        }
    }
}
