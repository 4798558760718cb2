//! The directory of a user's settings.

use std::env;
use std::path::PathBuf;

/// Why there is no directory for settings.
#[derive(Debug, thiserror::Error)]
#[error(
    "no directory for settings: none of DET_DEBUG_CONFIG_PATH, XDG_CONFIG_HOME and HOME is set"
)]
pub struct NoConfigDir;

/// The directory that holds `auth.json` and `certs.json`, the same that the `PyPI` client uses: `DET_DEBUG_CONFIG_PATH`
/// unchanged, else `determined` under `XDG_CONFIG_HOME` (Linux) or the platform's directory for settings in the home
/// directory.
pub fn config_dir() -> Result<PathBuf, NoConfigDir> {
    resolve(cfg!(target_os = "macos"), |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    })
}

fn resolve(
    macos: bool,
    variable: impl Fn(&str) -> Option<PathBuf>,
) -> Result<PathBuf, NoConfigDir> {
    if let Some(path) = variable("DET_DEBUG_CONFIG_PATH") {
        return Ok(path);
    }
    let base = if macos {
        variable("HOME").map(|home| home.join("Library").join("Application Support"))
    } else {
        variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")))
    };
    base.map(|base| base.join("determined")).ok_or(NoConfigDir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(macos: bool, variables: &[(&str, &str)]) -> Option<String> {
        resolve(macos, |name| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| PathBuf::from(value))
        })
        .ok()
        .map(|path| path.display().to_string())
    }

    #[test]
    fn the_directory_is_the_one_of_the_other_client() {
        let all = [
            ("DET_DEBUG_CONFIG_PATH", "/debug"),
            ("XDG_CONFIG_HOME", "/xdg"),
            ("HOME", "/home/a"),
        ];
        assert_eq!(with(false, &all).as_deref(), Some("/debug"));
        assert_eq!(with(false, &all[1..]).as_deref(), Some("/xdg/determined"));
        assert_eq!(
            with(false, &all[2..]).as_deref(),
            Some("/home/a/.config/determined")
        );
        assert_eq!(
            with(true, &all[1..]).as_deref(),
            Some("/home/a/Library/Application Support/determined")
        );
        assert_eq!(with(false, &[]), None);
    }
}
