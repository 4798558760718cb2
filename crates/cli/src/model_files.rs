//! The configuration and the files of an experiment, read and packed to be sent to the master.
//!
//! What `.detignore` names is excluded by git's rules. The `PyPI` client differs from them in two cases, which are not
//! reproduced here: there `!pattern` also includes what other patterns excluded below a directory of that name, and
//! `dir/**` excludes the directory itself, which is sent here as an empty directory.

use det_ids::quantity;
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use det_config::yaml;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output;
use crate::values::size;

/// Most bytes of all files together, before encoding.
const MAX_BYTES: u64 = 95 << 20;
/// The file with the patterns of what is not sent; it is not sent itself.
const IGNORE_FILE: &str = ".detignore";
/// Patterns of what is never sent: files that Python, terraform and editors generate, and the mount of shared file systems.
const ALWAYS_IGNORED: [&str; 13] = [
    "__pycache__/",
    "*.py[co]",
    "*$py.class",
    "terraform",
    "terraform_data",
    "terraform.tfstate*",
    "terraform.tfvars*",
    ".terraform*",
    ".git/",
    ".vscode/",
    ".idea/",
    ".mypy_cache/",
    "/shared_fs",
];

/// Reads a configuration: its text unchanged, and its value. `-` is standard input. Errs when it is not a YAML map.
pub(crate) fn read_config(path: &Path) -> Result<(String, Value), CliError> {
    let text = read_text(path)?;
    let config = yaml::parse(&text)
        .map_err(|errors| errors.in_file(&shown_name(path)))?
        .to_value();
    if !config.is_object() {
        return Err(CliError::request(format!(
            "\"{}\" is not a configuration: it must be a YAML map, with at least \"searcher\" and \"entrypoint\"",
            path.display()
        )));
    }
    Ok((text, config))
}

/// The name of a file in messages about errors in it.
pub(crate) fn shown_name(path: &Path) -> String {
    if path == Path::new("-") {
        "<stdin>".to_owned()
    } else {
        path.display().to_string()
    }
}

/// The text of a file; `-` is standard input.
pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let result = if path == Path::new("-") {
        io::stdin().lock().read_to_string(&mut text)
    } else {
        fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    match result {
        Ok(_) => Ok(text),
        Err(error) => Err(CliError::file("read", path, &error)),
    }
}

/// Gathers the files of an experiment: those under `directory`, with paths relative to it, and each of `includes`
/// under its own name.
pub(crate) fn gather(
    directory: Option<&Path>,
    includes: &[PathBuf],
) -> Result<ModelFiles, CliError> {
    let mut files = ModelFiles::default();
    if let Some(directory) = directory {
        if directory.is_file() {
            return Err(CliError::usage(format!(
                "\"{}\" is a file; give the directory that holds the model",
                directory.display()
            ))
            .with_hint(format!(
                "or send the file alone with --include {}",
                directory.display()
            )));
        }
        files.add_directory(directory, "")?;
    }
    for include in includes {
        files.add_include(include)?;
    }
    files.check_names()?;
    Ok(files)
}

/// Files ready to be sent.
#[derive(Debug, Default)]
pub(crate) struct ModelFiles {
    entries: Vec<Value>,
    paths: Vec<String>,
    bytes: u64,
}

impl ModelFiles {
    /// The list in the form of the API.
    pub(crate) fn into_json(self) -> Value {
        Value::Array(self.entries)
    }

    /// The paths in the order in which they are sent; those of directories end in a slash.
    pub(crate) fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The size and the number of files in words: `1.5KB and 2 files`.
    pub(crate) fn summary(&self) -> String {
        #[expect(
            clippy::cast_precision_loss,
            reason = "shown with one decimal; the limit is far below 2^52"
        )]
        let bytes = self.bytes as f64;
        let files = quantity(self.entries.len() as u64, "file");
        format!("{} and {files}", size(bytes))
    }

    fn add_include(&mut self, include: &Path) -> Result<(), CliError> {
        let real = include
            .canonicalize()
            .map_err(|error| CliError::file("include", include, &error))?;
        let Some(name) = real.file_name().map(|name| name.to_string_lossy()) else {
            return Err(CliError::usage(format!(
                "\"{}\" has no name of its own to be included under",
                include.display()
            )));
        };
        let about =
            fs::metadata(&real).map_err(|error| CliError::file("include", include, &error))?;
        if about.is_file() {
            return self.add_file(&name, &real, &about);
        }
        self.push_directory(&name, &about);
        self.add_directory(&real, &name)
    }

    /// Adds what is under `root`, with `prefix` before each path.
    fn add_directory(&mut self, root: &Path, prefix: &str) -> Result<(), CliError> {
        let root = root
            .canonicalize()
            .map_err(|error| CliError::file("read", root, &error))?;
        let ignored = ignore_rules(&root)?;
        self.walk(&root, &root, prefix, &ignored)
    }

    /// Adds a directory's own files first, then each directory in it, all sorted by name: the same tree is always sent in
    /// the same order.
    fn walk(
        &mut self,
        root: &Path,
        directory: &Path,
        prefix: &str,
        ignored: &Gitignore,
    ) -> Result<(), CliError> {
        let mut below: Vec<PathBuf> = fs::read_dir(directory)
            .and_then(|entries| {
                entries
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect()
            })
            .map_err(|error| CliError::file("read", directory, &error))?;
        below.sort();
        let mut directories = Vec::new();
        for path in below {
            // A link is sent as the file that it points to; a broken link is no file.
            let Ok(about) = fs::metadata(&path) else {
                output::note(format_args!(
                    "warning: \"{}\" cannot be read and is not sent",
                    path.display()
                ));
                continue;
            };
            if path.file_name().is_some_and(|name| name == IGNORE_FILE)
                || ignored.matched(&path, about.is_dir()).is_ignore()
            {
                continue;
            }
            if about.is_dir() {
                directories.push((path, about));
            } else if about.is_file() {
                let name = relative(root, &path, prefix)?;
                self.add_file(&name, &path, &about)?;
            }
            // Sockets, pipes and devices have no content to send.
        }
        for (path, about) in directories {
            self.push_directory(&relative(root, &path, prefix)?, &about);
            if path.is_symlink() {
                // It may point to a directory above, and the walk would never end.
                output::note(format_args!(
                    "warning: \"{}\" is a link to a directory; what is in it is not sent",
                    path.display()
                ));
                continue;
            }
            self.walk(root, &path, prefix, ignored)?;
        }
        Ok(())
    }

    fn add_file(&mut self, name: &str, path: &Path, about: &Metadata) -> Result<(), CliError> {
        // The size is checked before the file is read: it may be larger than the memory.
        self.count_bytes(about.len())?;
        let content = match fs::read(path) {
            Ok(content) => content,
            Err(error) => {
                self.bytes -= about.len();
                output::note(format_args!(
                    "warning: could not read \"{}\", it is not sent: {error}",
                    path.display()
                ));
                return Ok(());
            }
        };
        self.entries.push(json!({
            "path": name,
            "type": u32::from(b'0'),
            "content": STANDARD.encode(content),
            "mtime": about.mtime().to_string(),
            "mode": about.mode(),
            "uid": 0,
            "gid": 0,
        }));
        self.paths.push(name.to_owned());
        Ok(())
    }

    fn push_directory(&mut self, name: &str, about: &Metadata) {
        self.entries.push(json!({
            "path": name,
            "type": u32::from(b'5'),
            "content": "",
            "mtime": about.mtime().to_string(),
            "mode": about.mode(),
            "uid": 0,
            "gid": 0,
        }));
        self.paths.push(format!("{name}/"));
    }

    /// Adds to the bytes that are sent; errs when they are too many.
    fn count_bytes(&mut self, bytes: u64) -> Result<(), CliError> {
        self.bytes += bytes;
        if self.bytes > MAX_BYTES {
            return Err(CliError::request(format!(
                "the files to send are larger than {}MiB, the most that can be sent",
                MAX_BYTES >> 20
            ))
            .with_hint(
                "leave out what training does not need with a .detignore file, and put data sets on shared storage",
            ));
        }
        Ok(())
    }

    /// Errs when two files or directories at the top have one name, which an include may cause.
    fn check_names(&self) -> Result<(), CliError> {
        let mut seen = BTreeSet::new();
        for path in &self.paths {
            let name = path.trim_end_matches('/');
            if !name.contains('/') && !seen.insert(name) {
                return Err(CliError::usage(format!(
                    "\"{name}\" would be sent twice; rename one of the files or leave one include away"
                )));
            }
        }
        Ok(())
    }
}

/// The rules on what is not sent of the files below `root`.
fn ignore_rules(root: &Path) -> Result<Gitignore, CliError> {
    let mut builder = GitignoreBuilder::new(root);
    for pattern in ALWAYS_IGNORED {
        builder
            .add_line(None, pattern)
            .map_err(|error| CliError::request(format!("could not read a pattern: {error}")))?;
    }
    let path = root.join(IGNORE_FILE);
    let wrong = |error: ignore::Error| {
        CliError::request(format!("\"{}\" cannot be used: {error}", path.display()))
    };
    if path.is_file()
        && let Some(error) = builder.add(&path)
    {
        return Err(wrong(error));
    }
    builder.build().map_err(wrong)
}

/// The path under which a file is sent.
fn relative(root: &Path, path: &Path, prefix: &str) -> Result<String, CliError> {
    let below = path.strip_prefix(root).unwrap_or(path);
    let Some(below) = below.to_str() else {
        return Err(CliError::request(format!(
            "the name of \"{}\" is not valid UTF-8; rename the file or name it in .detignore",
            path.display()
        )));
    };
    Ok(if prefix.is_empty() {
        below.to_owned()
    } else {
        format!("{prefix}/{below}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn sent(root: &Path, includes: &[PathBuf]) -> Vec<String> {
        gather(Some(root), includes).unwrap().paths().to_vec()
    }

    #[test]
    fn leavings_are_never_sent() {
        let root = tree(&[
            ("model.py", "x"),
            ("model.pyc", "x"),
            ("__pycache__/a", "x"),
            ("sub/__pycache__/a", "x"),
            ("sub/keep.txt", "x"),
            (".git/config", "x"),
            (".idea/x", "x"),
            ("terraform.tfstate.backup", "x"),
            ("shared_fs/x", "x"),
            ("sub/shared_fs/x", "x"),
            (".hidden", "x"),
        ]);
        assert_eq!(
            sent(root.path(), &[]),
            [
                ".hidden",
                "model.py",
                "sub/",
                "sub/keep.txt",
                "sub/shared_fs/",
                "sub/shared_fs/x"
            ]
        );
    }

    #[test]
    fn detignore_speaks_the_language_of_git() {
        let root = tree(&[
            (
                ".detignore",
                "# data\n*.bin\n!keep.bin\n/top.txt\ndeep/**/x\nlogs/\n\\#odd\nspace\\ \n",
            ),
            ("a.bin", ""),
            ("keep.bin", ""),
            ("top.txt", ""),
            ("sub/top.txt", ""),
            ("deep/a/b/x", ""),
            ("deep/x2", ""),
            ("logs/today", ""),
            ("sub/logs", ""),
            ("#odd", ""),
            ("*.py[co]", ""),
        ]);
        assert_eq!(
            sent(root.path(), &[]),
            [
                "*.py[co]",
                "keep.bin",
                "deep/",
                "deep/x2",
                "deep/a/",
                "deep/a/b/",
                "sub/",
                "sub/logs",
                "sub/top.txt"
            ]
        );
    }

    #[test]
    fn entries_have_the_shape_of_the_wire() {
        use std::os::unix::fs::PermissionsExt;
        let root = tree(&[("sub/run.sh", "echo\n")]);
        let script = root.path().join("sub/run.sh");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let about = fs::metadata(&script).unwrap();
        let files = gather(Some(root.path()), &[]).unwrap();
        assert_eq!(files.summary(), "5.0B and 2 files");
        let entries = files.into_json();
        assert_eq!(entries[0]["path"], "sub");
        assert_eq!(entries[0]["type"], 53);
        assert_eq!(entries[0]["content"], "");
        assert_eq!(
            entries[1],
            json!({"path": "sub/run.sh", "type": 48, "content": "ZWNobwo=", "mode": 0o100_755,
                   "mtime": about.mtime().to_string(), "uid": 0, "gid": 0})
        );
    }

    #[test]
    fn includes_come_under_their_own_name_with_their_own_rules() {
        let root = tree(&[("model.py", "")]);
        let other = tree(&[
            ("lib/.detignore", "skip\n"),
            ("lib/skip", ""),
            ("lib/a/b.py", ""),
            ("one.txt", ""),
        ]);
        let includes = [other.path().join("lib"), other.path().join("one.txt")];
        assert_eq!(
            sent(root.path(), &includes),
            ["model.py", "lib/", "lib/a/", "lib/a/b.py", "one.txt"]
        );
        let again = gather(Some(root.path()), &[root.path().join("model.py")]);
        assert!(
            again
                .unwrap_err()
                .to_string()
                .contains("\"model.py\" would be sent twice")
        );
    }

    #[test]
    fn links_to_files_are_followed_and_links_to_directories_are_not() {
        let root = tree(&[("sub/a.txt", "content")]);
        std::os::unix::fs::symlink(root.path().join("sub/a.txt"), root.path().join("link.txt"))
            .unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.path().join("broken")).unwrap();
        assert_eq!(
            sent(root.path(), &[]),
            ["link.txt", "loop/", "sub/", "sub/a.txt"]
        );
    }

    #[test]
    fn too_much_is_refused_before_it_is_read() {
        let root = tree(&[("small", "x")]);
        // A sparse file: large by its length, without a byte on the disk.
        let large = fs::File::create(root.path().join("large")).unwrap();
        large.set_len(MAX_BYTES).unwrap();
        let error = gather(Some(root.path()), &[]).unwrap_err();
        assert!(error.to_string().contains("larger than 95MiB"), "{error}");
        fs::write(root.path().join(".detignore"), "large\n").unwrap();
        assert_eq!(sent(root.path(), &[]), ["small"]);
    }

    #[test]
    fn a_file_in_place_of_the_directory_is_explained() {
        let root = tree(&[("model.py", "")]);
        let error = gather(Some(&root.path().join("model.py")), &[]).unwrap_err();
        assert!(error.to_string().contains("is a file"), "{error}");
    }
}
