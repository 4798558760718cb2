//! Files that contain secrets and are kept for later: in this user's cache, readable by this user alone.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// The directory `name` of this user's cache for what is kept about `id`, made if it does not exist. Where it is, is where the
/// `PyPI` client has its own.
pub(crate) fn kept(name: &str, id: &str) -> Result<PathBuf, CliError> {
    let directory = cache_dir()?.join(name).join(id);
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory);
    made.map_err(|error| CliError::file("make the directory", &directory, &error))?;
    Ok(directory)
}

fn cache_dir() -> Result<PathBuf, CliError> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    let home = || variable("HOME").map(PathBuf::from);
    let base = if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Caches"))
    } else {
        let own = variable("XDG_CACHE_HOME").map(PathBuf::from);
        own.or_else(|| home().map(|home| home.join(".cache")))
    };
    let base = base.ok_or_else(|| {
        CliError::request(
            "there is no directory for files to keep: neither XDG_CACHE_HOME nor HOME is set",
        )
    })?;
    Ok(base.join("determined"))
}

/// Writes a file that its owner alone can read, in place of one that may have had another mode.
pub(crate) fn write(path: &Path, content: &str) -> Result<(), CliError> {
    replace(path, content).map_err(|error| CliError::file("write", path, &error))
}

fn replace(path: &Path, content: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(content.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_could_read_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "OLD").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, "NEW").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "NEW");
    }
}
