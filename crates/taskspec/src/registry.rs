//! Registries of images, and logins for them.

use serde::{Deserialize, Serialize};

/// Registry credentials. `Debug` hides the secrets.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RegistryAuth {
    /// Name of the account.
    pub username: Option<String>,
    /// Password, a secret.
    pub password: Option<String>,
    /// Address of the registry that the credentials are for; `None` = any.
    pub serveraddress: Option<String>,
    /// Address of the account for mail; registries ignore it.
    pub email: Option<String>,
    /// Base64 of `user:password`, a secret.
    pub auth: Option<String>,
    /// Token of an identity that a registry token is requested with, a secret.
    pub identitytoken: Option<String>,
    /// Token that is sent to the registry as it is, a secret.
    pub registrytoken: Option<String>,
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryAuth")
            .field("username", &self.username)
            .field("serveraddress", &self.serveraddress)
            .finish_non_exhaustive()
    }
}

impl RegistryAuth {
    /// The registry that the login is for where an image of this name is pulled.
    pub fn registry<'a>(&'a self, image: &'a str) -> &'a str {
        let own = self.serveraddress.as_deref();
        own.unwrap_or_else(|| registry_of(image))
    }
}

/// The registry an image comes from, as logins name it. What engines take for a host must not be given the login of another:
/// they do so with a first part that has a capital letter, too, because names of images have none.
pub fn registry_of(image: &str) -> &str {
    let is_host = |first: &str| {
        first.contains(['.', ':']) || first == "localhost" || first.chars().any(char::is_uppercase)
    };
    match image.split_once('/') {
        Some((host, _)) if is_host(host) => host,
        _ => "docker.io",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_the_first_part_of_an_images_name_or_docker_hub() {
        for (image, host) in [
            ("x", "docker.io"),
            ("a/x", "docker.io"),
            ("localhost/x", "localhost"),
            ("LOCALHOST/x", "LOCALHOST"),
            ("reg.example:5000/a/x", "reg.example:5000"),
        ] {
            assert_eq!(registry_of(image), host, "{image}");
        }
    }

    #[test]
    fn a_login_is_for_its_own_registry_or_that_of_the_image() {
        let mut auth = RegistryAuth::default();
        assert_eq!(auth.registry("reg.example/x"), "reg.example");
        auth.serveraddress = Some("other.example".into());
        assert_eq!(auth.registry("reg.example/x"), "other.example");
    }
}
