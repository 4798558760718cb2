//! The environment of the task's processes. Pure.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use det_taskspec::{LAUNCH_CLIENT_DIR, PYTHON_USER_BASE, Script, variables as v};

use crate::launch_ssh;

/// Default of `PATH`, if neither image nor task sets it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of the task's processes and where they start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskEnv {
    /// All variables; no others are inherited.
    pub(crate) vars: BTreeMap<OsString, OsString>,
    /// The working directory of the task's program.
    pub(crate) work_dir: PathBuf,
}

/// What the environment depends on in addition to the script.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// That user's home directory, if it has one that is not `/`.
    pub(crate) home: Option<PathBuf>,
    /// Directory to put first on `PATH`.
    pub(crate) python_dir: Option<String>,
    /// Directory to append to `PYTHONPATH`.
    pub(crate) python_path: Option<String>,
}

impl TaskEnv {
    /// Combines the environment of image or agent (`base`) with the script's, which overrides it.
    pub(crate) fn new(base: BTreeMap<OsString, OsString>, script: &Script, facts: &Facts) -> Self {
        let mut vars = base;
        for (name, value) in &script.env {
            vars.insert(name.into(), value.into());
        }
        let mut env = Self {
            work_dir: Path::new("/").join(&script.work_dir),
            vars,
        };
        env.set(v::DET_WORKDIR, env.work_dir.clone());
        if env.get(v::PYTHONUSERBASE).is_none() {
            env.set(v::PYTHONUSERBASE, PYTHON_USER_BASE);
        }
        env.repair_home(facts);
        env.extend_path(facts, launch_ssh::is_wanted(script));
        env.extend_python_path(facts);
        env
    }

    /// A variable's value; `None` when it is unset or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        let value = self.vars.get(OsStr::new(name))?;
        (!value.is_empty()).then_some(value.as_os_str())
    }

    /// [`TaskEnv::get`] for values that are text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_str()
    }

    /// The value of `PATH`; a usual one where the task has none.
    pub(crate) fn path(&self) -> &OsStr {
        self.get(v::PATH).unwrap_or(OsStr::new(DEFAULT_PATH))
    }

    /// The file that `program` names in this environment, searched in `PATH` unless it contains a `/`.
    pub(crate) fn find_program(&self, program: &str) -> Option<PathBuf> {
        std::env::split_paths(self.path())
            .map(|dir| dir.join(program))
            .find(|path| path.is_file())
    }

    /// The same environment with this search path of programs.
    pub(crate) fn with_path(&self, path: OsString) -> Self {
        let mut changed = self.clone();
        changed.set(v::PATH, path);
        changed
    }

    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.vars.insert(name.into(), value.into());
    }

    /// Container engines set `/` for users that the image does not know.
    fn repair_home(&mut self, facts: &Facts) {
        if self.get(v::HOME).is_none_or(|home| home == "/") {
            let home = facts.home.clone().unwrap_or_else(|| self.work_dir.clone());
            self.set(v::HOME, home);
        }
    }

    /// `has_client`: the client of launchers exists, and comes first.
    fn extend_path(&mut self, facts: &Facts, has_client: bool) {
        let user_base = self.get(v::PYTHONUSERBASE).unwrap_or_default();
        let client = has_client.then(|| PathBuf::from(LAUNCH_CLIENT_DIR));
        let mut dirs: Vec<PathBuf> = client.into_iter().collect();
        dirs.push(Path::new(user_base).join("bin"));
        dirs.extend(facts.python_dir.as_ref().map(PathBuf::from));
        let rest: Vec<PathBuf> = std::env::split_paths(self.path())
            .filter(|dir| !dirs.contains(dir))
            .collect();
        dirs.extend(rest);
        self.set(v::PATH, join(&dirs));
    }

    fn extend_python_path(&mut self, facts: &Facts) {
        if let Some(addition) = &facts.python_path {
            let mut dirs: Vec<PathBuf> = match self.get(v::PYTHONPATH) {
                Some(own) => std::env::split_paths(own).collect(),
                None => Vec::new(),
            };
            dirs.push(addition.into());
            self.set(v::PYTHONPATH, join(&dirs));
        }
    }
}

/// Joins with colons. A directory with a colon in its name cannot be named in such a list, here or anywhere.
pub(crate) fn join(dirs: &[PathBuf]) -> OsString {
    let mut joined = OsString::new();
    for (index, dir) in dirs.iter().enumerate() {
        if index > 0 {
            joined.push(":");
        }
        joined.push(dir);
    }
    joined
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use det_taskspec::variables::{SetBy, VARIABLES};
    use det_taskspec::{Entrypoint, WORK_DIR};

    /// A script that does nothing.
    pub(crate) fn script(env: &[(&str, &str)]) -> Script {
        Script {
            task_type: det_taskspec::TaskKind::Command,
            allocation_id: "t.1".into(),
            task_id: "t".into(),
            container_id: "c".into(),
            env: env
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            work_dir: WORK_DIR.into(),
            context: false,
            startup_hook: true,
            pool_startup_hook: None,
            rendezvous: false,
            storage_probe: None,
            entrypoint: Entrypoint::Shell("true".into()),
            readiness: Vec::new(),
            readiness_port: None,
            idle_check: None,
            system_metrics: None,
            task_metrics: None,
            files: Vec::new(),
            token: "secret".into(),
            grace_seconds: 1,
            save_seconds: None,
        }
    }

    fn complete(base: &[(&str, &str)], script: &Script, facts: &Facts) -> TaskEnv {
        let base = base.iter().map(|(k, v)| (k.into(), v.into())).collect();
        TaskEnv::new(base, script, facts)
    }

    #[test]
    fn the_tasks_variables_win_over_the_images() {
        let script = script(&[("A", "task"), ("A", "later"), ("C", "task")]);
        let env = complete(
            &[("A", "image"), ("B", "image")],
            &script,
            &Facts::default(),
        );
        assert_eq!(env.text("A"), Some("later"));
        assert_eq!(env.text("B"), Some("image"));
        assert_eq!(env.text("C"), Some("task"));
    }

    #[test]
    fn the_variables_that_the_supervisor_sets() {
        let master = script(&[("PYTHONUSERBASE", "/base"), ("DET_USER", "ada")]);
        let facts = Facts {
            python_path: Some("/opt/det".into()),
            ..Facts::default()
        };
        let env = complete(&[], &master, &facts);
        for (name, value) in [
            ("DET_WORKDIR", "/run/determined/workdir"),
            ("HOME", "/run/determined/workdir"),
            ("PYTHONPATH", "/opt/det"),
        ] {
            assert_eq!(env.text(name), Some(value), "{name}");
        }
        assert!(env.text("PATH").unwrap().starts_with("/base/bin:"));
        let declared: Vec<&str> = VARIABLES
            .iter()
            .filter(|variable| variable.set_by == SetBy::Supervisor)
            .map(|variable| variable.name)
            .chain(["PYTHONUSERBASE", "DET_USER"])
            .collect();
        let names: Vec<&str> = env.vars.keys().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(names.len(), declared.len(), "{names:?}");
        assert!(
            names.iter().all(|name| declared.contains(name)),
            "{names:?}"
        );
    }

    #[test]
    fn home_is_repaired_when_it_is_missing_or_the_root() {
        let script = script(&[]);
        let nowhere = Facts::default();
        let known = Facts {
            home: Some("/home/ada".into()),
            ..Facts::default()
        };
        let work_dir = "/run/determined/workdir";
        for (home, facts, expected) in [
            (None, &nowhere, work_dir),
            (Some("/"), &nowhere, work_dir),
            (Some("/"), &known, "/home/ada"),
            (None, &known, "/home/ada"),
            (Some("/data/me"), &known, "/data/me"),
        ] {
            let base: Vec<_> = home.map(|home| ("HOME", home)).into_iter().collect();
            assert_eq!(complete(&base, &script, facts).text("HOME"), Some(expected));
        }
    }

    #[test]
    fn the_chosen_python_comes_before_the_hosts() {
        let script = script(&[("PATH", "/usr/bin:/opt/py/bin"), ("PYTHONPATH", "/mine")]);
        let facts = Facts {
            python_dir: Some("/opt/py/bin".into()),
            python_path: Some("/opt/det".into()),
            ..Facts::default()
        };
        let env = complete(&[], &script, &facts);
        assert_eq!(
            env.text("PATH"),
            Some("/run/determined/pythonuserbase/bin:/opt/py/bin:/usr/bin")
        );
        assert_eq!(env.text("PYTHONPATH"), Some("/mine:/opt/det"));
    }

    #[test]
    fn the_client_of_launchers_comes_before_all_others() {
        let mut script = script(&[("PATH", "/usr/bin")]);
        script.files.push(det_taskspec::TaskFile {
            path: det_taskspec::LAUNCH_CLIENT_FILE.into(),
            mode: 0o755,
            content: String::new(),
        });
        let env = complete(&[], &script, &Facts::default());
        assert_eq!(
            env.text("PATH"),
            Some("/run/determined/ssh/bin:/run/determined/pythonuserbase/bin:/usr/bin")
        );
    }

    #[test]
    fn without_a_path_the_usual_one_holds() {
        let env = complete(&[], &script(&[]), &Facts::default());
        let path = env.text("PATH").unwrap();
        assert!(path.ends_with(DEFAULT_PATH), "{path}");
        assert!(env.find_program("sh").is_some());
        assert_eq!(env.find_program("no-such-program"), None);
    }
}
