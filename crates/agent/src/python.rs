//! Chooses the `python3` of process tasks, and whether they need the bundled `determined` package.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tokio::process::Command;

use crate::data_dir::{make_private_dir, write_atomically};

/// The longest wait for an interpreter to report whether it has a package.
const PATIENCE: Duration = Duration::from_secs(20);
/// Characters of what an interpreter printed as its error that are shown at most.
const MOST_OF_ERROR: usize = 200;

/// The Python settings of a process task's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TaskPython {
    /// Directory to put first on `PATH`; `None` = `PATH` as it is.
    pub(crate) dir: Option<String>,
    /// Directory to append to `PYTHONPATH`; `None` = the interpreter has the package, or none is bundled.
    pub(crate) package_path: Option<String>,
    /// Directories that the interpreter uses, wherever they are; see `SandboxSpec::exposed`.
    pub(crate) exposed: Vec<PathBuf>,
}

/// Why the interpreter cannot be used.
#[derive(Debug, Error)]
pub enum PythonError {
    /// The file does not exist or cannot be run.
    #[error("\"{}\" is not a Python interpreter that can be run: {reason}", path.display())]
    Unusable {
        /// Path of the interpreter, as configured.
        path: PathBuf,
        /// Why it cannot be used, for users.
        reason: String,
    },
    /// The small script that calls the interpreter cannot be written.
    #[error("cannot write \"{}\"", path.display())]
    Shim {
        /// Path of the script that could not be written.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Determines what tasks need. `bin` is a directory of the agent for a script that calls the interpreter, if one is
/// needed.
pub(crate) async fn prepare(
    interpreter: Option<&Path>,
    package_dir: Option<&Path>,
    bin: &Path,
) -> Result<TaskPython, PythonError> {
    // Tasks, and the question to it, have working directories of their own. Links are kept: an environment is found by them.
    let interpreter = interpreter.map(absolute);
    let interpreter = interpreter.as_deref();
    let configured = match interpreter {
        Some(interpreter) => Some(directory_of(interpreter, bin)?),
        None => None,
    };
    let interpreter = match interpreter {
        Some(interpreter) => Some(interpreter.to_owned()),
        None => on_path("python3"),
    };
    let about = match &interpreter {
        Some(interpreter) => ask(interpreter).await,
        None => Ok(About::default()),
    };
    let about = match (about, configured.is_some()) {
        (Ok(about), _) => about,
        (Err(reason), true) => {
            return Err(PythonError::Unusable {
                path: interpreter.unwrap_or_default(),
                reason,
            });
        }
        // It is not configured, and tasks may bring their own.
        (Err(reason), false) => {
            let interpreter = interpreter.clone().unwrap_or_default();
            tracing::warn!(
                interpreter = %interpreter.display(),
                reason,
                "the python3 on PATH cannot be asked for its packages"
            );
            About::default()
        }
    };
    let dir = match (configured, &interpreter) {
        (None, Some(found)) => match about.behind(found) {
            Some(real) => Some(directory_of(real, bin)?),
            None => None,
        },
        (configured, _) => configured,
    };
    let package_path = match (package_dir, &interpreter) {
        (Some(package), Some(_)) if !about.has_determined => Some(absolute(package)),
        _ => None,
    };
    let mut exposed = about.directories;
    if let Some(interpreter) = &interpreter {
        exposed.extend(directories_of_links(interpreter));
    }
    Ok(TaskPython {
        dir: dir.map(|dir| dir.to_string_lossy().into_owned()),
        package_path: package_path.map(|path| path.to_string_lossy().into_owned()),
        exposed,
    })
}

/// The directories in which the interpreter's file is found, link by link.
fn directories_of_links(interpreter: &Path) -> Vec<PathBuf> {
    // More links than this the kernel does not follow either.
    const MOST_LINKS: usize = 40;
    let mut directories = Vec::new();
    let mut path = absolute(interpreter);
    for _ in 0..MOST_LINKS {
        let Some(directory) = path.parent().map(Path::to_owned) else {
            break;
        };
        directories.push(directory.clone());
        match std::fs::read_link(&path) {
            Ok(target) => path = directory.join(target),
            Err(_) => break,
        }
    }
    directories
}

/// A directory in which `python3` is this interpreter: its own, else one with a script that calls it.
fn directory_of(interpreter: &Path, bin: &Path) -> Result<PathBuf, PythonError> {
    let unusable = |reason: String| PythonError::Unusable {
        path: interpreter.to_owned(),
        reason,
    };
    let interpreter = absolute(interpreter);
    let metadata = std::fs::metadata(&interpreter).map_err(|error| unusable(error.to_string()))?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        return Err(unusable("it is no executable file".to_owned()));
    }
    let own = interpreter.parent().unwrap_or(Path::new("/"));
    let same = match (
        std::fs::canonicalize(own.join("python3")),
        std::fs::canonicalize(&interpreter),
    ) {
        (Ok(neighbour), Ok(real)) => neighbour == real,
        _ => false,
    };
    if same {
        return Ok(own.to_owned());
    }
    // A script, not a link: an interpreter finds its virtual environment by the path with which it was called.
    let dir = bin.join("python");
    let shim = dir.join("python3");
    let quoted = interpreter.to_string_lossy().replace('\'', r"'\''");
    make_private_dir(&dir)
        .and_then(|()| {
            // Tasks of other users run it too.
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
            let text = format!("#!/bin/sh\nexec '{quoted}' \"$@\"\n");
            write_atomically(&shim, text.as_bytes(), 0o755)
        })
        .map_err(|source| PythonError::Shim {
            path: shim.clone(),
            source,
        })?;
    Ok(dir)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

/// What an interpreter reports about itself.
#[derive(Debug, Default)]
struct About {
    /// Whether `import determined` would find something.
    has_determined: bool,
    /// Directories of the interpreter and its libraries.
    directories: Vec<PathBuf>,
    /// Path of its executable; `None` = it reports none.
    executable: Option<PathBuf>,
}

impl About {
    /// The interpreter that a program on `PATH` starts, if it is one of a version manager: tasks do not see the manager's
    /// own files.
    fn behind(&self, found: &Path) -> Option<&Path> {
        let real = self.executable.as_deref()?;
        (real.parent() != absolute(found).parent()).then_some(real)
    }
}

/// Runs the interpreter to ask it. `Err` = it does not answer as a Python interpreter does, and why, for users.
async fn ask(interpreter: &Path) -> Result<About, String> {
    const ASK: &str = "import importlib.util, os, sys; \
                       print('executable:' + sys.executable); \
                       paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path[1:]}; \
                       print('\\n'.join(sorted(p for p in paths if os.path.isabs(p) and os.path.isdir(p)))); \
                       sys.exit(0 if importlib.util.find_spec('determined') else 3)";
    let mut command = Command::new(interpreter);
    command
        .args(["-c", ASK])
        // Tasks do not have it either.
        .env_remove("PYTHONPATH")
        .current_dir("/")
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true);
    let output = match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => {
            return Err(format!(
                "it did not answer a question of two lines within {} s",
                PATIENCE.as_secs()
            ));
        }
    };
    let answer = String::from_utf8_lossy(&output.stdout);
    let executable = answer
        .lines()
        .find_map(|line| line.strip_prefix("executable:"));
    let Some(executable) = executable else {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.trim_end().lines().last().unwrap_or_default();
        let last: String = last.chars().take(MOST_OF_ERROR).collect();
        return Err(match last.as_str() {
            "" => format!("it does not run Python code ({})", output.status),
            last => format!("it does not run Python code ({}: {last})", output.status),
        });
    };
    let paths = answer.lines().filter(|line| line.starts_with('/'));
    Ok(About {
        has_determined: output.status.success(),
        directories: paths.map(PathBuf::from).collect(),
        executable: Some(executable)
            .filter(|path| path.starts_with('/'))
            .map(PathBuf::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_atomically(path, text.as_bytes(), 0o755).unwrap();
    }

    #[test]
    fn an_interpreter_called_python3_is_used_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let venv = root.path().join("venv/bin");
        program(&venv.join("python3.11"), "#!/bin/sh\n");
        std::os::unix::fs::symlink("python3.11", venv.join("python3")).unwrap();
        for name in ["python3", "python3.11"] {
            assert_eq!(directory_of(&venv.join(name), root.path()).unwrap(), venv);
        }
    }

    #[test]
    fn an_interpreter_of_another_name_is_called_by_a_script() {
        let root = tempfile::tempdir().unwrap();
        let odd = root.path().join("it's here/snake");
        program(&odd, "#!/bin/sh\necho \"snake $1\"\n");
        let dir = directory_of(&odd, &root.path().join("bin")).unwrap();
        let output = std::process::Command::new(dir.join("python3"))
            .arg("hisses")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "snake hisses\n");
    }

    #[test]
    fn a_file_that_is_not_an_interpreter_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let plain = root.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        for path in [plain, root.path().join("absent"), root.path().to_owned()] {
            let message = directory_of(&path, root.path()).unwrap_err().to_string();
            assert!(message.contains("is not a Python interpreter"), "{message}");
        }
    }

    #[tokio::test]
    async fn a_program_of_a_version_manager_is_followed_to_the_interpreter() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().join("versions/3.11/bin/python3");
        program(
            &real,
            &format!("#!/bin/sh\necho executable:{}\n", real.display()),
        );
        let shim = root.path().join("shims/python3");
        program(
            &shim,
            &format!("#!/bin/sh\nexec {} \"$@\"\n", real.display()),
        );
        assert_eq!(ask(&shim).await.unwrap().behind(&shim), Some(&*real));
        assert_eq!(ask(&real).await.unwrap().behind(&real), None);
    }

    #[tokio::test]
    async fn a_program_that_is_no_python_is_refused_where_it_was_named() {
        let root = tempfile::tempdir().unwrap();
        for (name, text, reason) in [
            ("silent", "", "it does not run Python code (exit status: 0)"),
            (
                "loud",
                "echo hello; echo wrong option >&2; exit 2\n",
                "(exit status: 2: wrong option)",
            ),
        ] {
            let python = root.path().join(name).join("python3");
            program(&python, &format!("#!/bin/sh\n{text}"));
            let refused = prepare(Some(&python), None, root.path()).await;
            let message = refused.unwrap_err().to_string();
            assert!(
                message.contains("is not a Python interpreter") && message.contains(reason),
                "{message}"
            );
        }
    }

    #[tokio::test]
    async fn our_package_is_added_only_where_there_is_none() {
        let root = tempfile::tempdir().unwrap();
        for (exit, expected) in [(0, None), (3, Some("/opt/ours".to_owned()))] {
            let python = root.path().join(format!("env{exit}/python3"));
            program(
                &python,
                &format!("#!/bin/sh\necho executable:$0\nexit {exit}\n"),
            );
            let prepared = prepare(Some(&python), Some(Path::new("/opt/ours")), root.path())
                .await
                .unwrap();
            assert_eq!(prepared.package_path, expected);
            assert_eq!(
                prepared.dir.as_deref(),
                Some(&*python.parent().unwrap().to_string_lossy())
            );
        }
    }
}
