//! The tokens of a user, one file for all masters.
//!
//! The file is the `PyPI` client's `auth.json`, version 2: `{"version": 2, "masters": {"<canonical master address>":
//! {"active_user": "<name>", "tokens": {"<name>": "<token>"}}}}`. Older versions are read: version 1 is the same with
//! addresses as the user typed them, version 0 is the entry of one master without the outer object.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::address::MasterUrl;
use crate::files::{self, StoreError};
use crate::secret::Secret;

/// The file of tokens. Every change reads the file, changes it and replaces it under a lock, so that several programs
/// (and the `PyPI` client) can use it at once.
#[derive(Debug, Clone)]
pub struct TokenStore {
    path: PathBuf,
}

/// The stored entry of one master.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterEntry {
    /// The active user, whose token is used if no user is named; set by logging in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    active_user: Option<String>,
    /// Tokens by user name.
    #[serde(default)]
    tokens: BTreeMap<String, String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Envelope {
    masters: BTreeMap<String, MasterEntry>,
    version: u32,
}

impl MasterEntry {
    /// The active user, whose token is used if no user is named; `None` = no user logged in explicitly.
    pub fn active_user(&self) -> Option<&str> {
        self.active_user.as_deref()
    }

    /// The names that have a token.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.tokens.keys().map(String::as_str)
    }

    /// The token of `user`, if there is one.
    pub fn token(&self, user: &str) -> Option<Secret> {
        self.tokens.get(user).map(Secret::new)
    }
}

impl TokenStore {
    /// The store in the directory of settings (see [`crate::config_dir()`]). Nothing is created before the first change.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            path: directory.join("auth.json"),
        }
    }

    /// What is known about `master`; empty if nothing is.
    pub fn entry(&self, master: &MasterUrl) -> Result<MasterEntry, StoreError> {
        let mut envelope = self.load(master)?;
        Ok(envelope.masters.remove(master.as_str()).unwrap_or_default())
    }

    /// Stores the token of `user`; replaces an older one.
    pub fn set_token(
        &self,
        master: &MasterUrl,
        user: &str,
        token: &Secret,
    ) -> Result<(), StoreError> {
        self.change(master, |entry| {
            entry
                .tokens
                .insert(user.to_owned(), token.reveal().to_owned());
            Ok(())
        })
    }

    /// Removes the token of `user`. The active user does not change.
    pub fn drop_user(&self, master: &MasterUrl, user: &str) -> Result<(), StoreError> {
        self.change(master, |entry| {
            entry.tokens.remove(user);
            Ok(())
        })
    }

    /// Makes `user` the active user, whose token is used if no user is named. The user must have a token.
    pub fn set_active(&self, master: &MasterUrl, user: &str) -> Result<(), StoreError> {
        self.change(master, |entry| {
            if !entry.tokens.contains_key(user) {
                return Err(StoreError::NoSuchUser {
                    user: user.to_owned(),
                });
            }
            entry.active_user = Some(user.to_owned());
            Ok(())
        })
    }

    /// Clears the active user.
    pub fn clear_active(&self, master: &MasterUrl) -> Result<(), StoreError> {
        self.change(master, |entry| {
            entry.active_user = None;
            Ok(())
        })
    }

    fn change(
        &self,
        master: &MasterUrl,
        change: impl FnOnce(&mut MasterEntry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        files::locked(&self.path, || {
            let mut envelope = self.load(master)?;
            change(envelope.masters.entry(master.to_string()).or_default())?;
            files::replace(&self.path, &envelope)
        })
    }

    fn load(&self, master: &MasterUrl) -> Result<Envelope, StoreError> {
        let empty = Envelope {
            version: 2,
            ..Envelope::default()
        };
        let Some(text) = files::read(&self.path)? else {
            return Ok(empty);
        };
        parse(&text, master).map_err(|reason| StoreError::Damaged {
            path: self.path.clone(),
            reason,
        })
    }
}

/// Converts any version of the file to the newest one.
fn parse(text: &str, master: &MasterUrl) -> Result<Envelope, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(mut members) = value else {
        return Err("it is not a JSON object".to_owned());
    };
    let version = match members.get("version") {
        None => 0,
        Some(version) => version.as_u64().ok_or("its version is not a number")?,
    };
    let masters: BTreeMap<String, MasterEntry> = match version {
        0 => {
            let entry = serde_json::from_value(Value::Object(members))
                .map_err(|error| error.to_string())?;
            BTreeMap::from([(master.to_string(), entry)])
        }
        1 | 2 => match members.remove("masters") {
            None => BTreeMap::new(),
            Some(masters) => serde_json::from_value(masters).map_err(|error| error.to_string())?,
        },
        newer => return Err(format!("version {newer} is newer than this program knows")),
    };
    let masters = if version < 2 {
        canonicalise(masters)
    } else {
        masters
    };
    Ok(Envelope {
        masters,
        version: 2,
    })
}

/// Merges entries by the canonical form of their address. An address that cannot be parsed is left out: the user logs
/// in again.
fn canonicalise(masters: BTreeMap<String, MasterEntry>) -> BTreeMap<String, MasterEntry> {
    let mut canonical: BTreeMap<String, MasterEntry> = BTreeMap::new();
    for (address, entry) in masters {
        // Old files contain addresses as typed, with parts that a canonical address does not have.
        let typed = address.split(['?', '#']).next().unwrap_or_default();
        let Ok(url) = typed.parse::<MasterUrl>() else {
            continue;
        };
        let merged = canonical.entry(url.to_string()).or_default();
        merged.tokens.extend(entry.tokens);
        if merged.active_user.is_none() {
            merged.active_user = entry.active_user;
        }
    }
    canonical
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn master() -> MasterUrl {
        "localhost".parse().unwrap()
    }

    fn store_with(text: &str) -> (tempfile::TempDir, TokenStore) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("auth.json"), text).unwrap();
        let store = TokenStore::in_directory(directory.path());
        (directory, store)
    }

    /// A file as the `PyPI` client writes it: four blanks, sorted keys.
    const WRITTEN_BY_PYPI: &str = r#"{
    "masters": {
        "http://localhost:8080": {
            "active_user": "ada",
            "tokens": {
                "ada": "TOKEN-A",
                "determined": "TOKEN-D"
            }
        },
        "https://other:8443": {
            "tokens": {}
        }
    },
    "version": 2
}"#;

    #[test]
    fn a_file_of_the_other_client_is_read_and_kept() {
        let (directory, store) = store_with(WRITTEN_BY_PYPI);
        let entry = store.entry(&master()).unwrap();
        assert_eq!(entry.active_user(), Some("ada"));
        assert_eq!(entry.token("ada"), Some(Secret::new("TOKEN-A")));
        assert_eq!(entry.users().collect::<Vec<_>>(), ["ada", "determined"]);

        store.drop_user(&master(), "determined").unwrap();
        store
            .set_token(&master(), "determined", &Secret::new("TOKEN-D"))
            .unwrap();
        let text = fs::read_to_string(directory.path().join("auth.json")).unwrap();
        assert_eq!(text, WRITTEN_BY_PYPI, "the same content has the same bytes");
    }

    #[test]
    fn a_new_file_is_private_and_of_version_2() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let store = TokenStore::in_directory(&directory.path().join("determined"));
        assert_eq!(store.entry(&master()).unwrap(), MasterEntry::default());
        store
            .set_token(&master(), "ada", &Secret::new("T"))
            .unwrap();
        store.set_active(&master(), "ada").unwrap();
        let path = directory.path().join("determined").join("auth.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"version\": 2"), "{text}");
        assert!(text.contains("\"active_user\": \"ada\""), "{text}");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn older_versions_are_brought_up() {
        let (_directory, store) = store_with(r#"{"active_user":"ada","tokens":{"ada":"T"}}"#);
        assert_eq!(store.entry(&master()).unwrap().active_user(), Some("ada"));

        let (_directory, store) = store_with(
            r#"{"version":1,"masters":{"localhost":{"tokens":{"ada":"T"}},
                "http://localhost:8080/?x":{"active_user":"bob","tokens":{"bob":"U"}},
                "ftp://nowhere":{}}}"#,
        );
        let entry = store.entry(&master()).unwrap();
        assert_eq!(entry.users().collect::<Vec<_>>(), ["ada", "bob"]);
        assert_eq!(entry.active_user(), Some("bob"));
    }

    #[test]
    fn a_damaged_file_is_named_and_left_alone() {
        for text in [
            "not json",
            "[]",
            r#"{"version":3}"#,
            r#"{"version":2,"masters":{"x":1}}"#,
        ] {
            let (directory, store) = store_with(text);
            let error = store.entry(&master()).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
            store
                .set_token(&master(), "ada", &Secret::new("T"))
                .unwrap_err();
            let now = fs::read_to_string(directory.path().join("auth.json")).unwrap();
            assert_eq!(now, text);
        }
    }

    #[test]
    fn only_a_user_with_a_token_can_be_active() {
        let (_directory, store) = store_with(WRITTEN_BY_PYPI);
        let error = store.set_active(&master(), "nobody").unwrap_err();
        assert!(matches!(error, StoreError::NoSuchUser { .. }));
        store.clear_active(&master()).unwrap();
        assert_eq!(store.entry(&master()).unwrap().active_user(), None);
    }
}
