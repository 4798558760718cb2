//! Registries of images, and logins for them.

use serde::{Deserialize, Serialize};

/// The registry of images whose names have no host.
pub const DOCKER_HUB: &str = "docker.io";

/// Registry credentials. `Debug` hides the secrets.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RegistryAuth {
    /// Name of the account; `None` = not given.
    pub username: Option<String>,
    /// Password of the account, a secret; `None` = not given.
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
    /// Whether the login may be sent to the registry of an image: it names that one, or none.
    pub fn is_for(&self, image: &str) -> bool {
        let own = self.serveraddress.as_deref();
        own.is_none_or(|own| host_of(own) == host_of(registry_of(image)))
    }

    /// This login for each of these registries, where it names none.
    pub fn bound_to<'a>(&self, registries: impl IntoIterator<Item = &'a str>) -> Vec<Self> {
        if self.serveraddress.is_some() {
            return vec![self.clone()];
        }
        let bind = |registry: &str| Self {
            serveraddress: Some(registry.to_owned()),
            ..self.clone()
        };
        registries.into_iter().map(bind).collect()
    }

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
        _ => DOCKER_HUB,
    }
}

/// The name under which clients of registries keep the login for one.
pub fn login_server(registry: &str) -> &str {
    match registry {
        DOCKER_HUB => "https://index.docker.io/v1/",
        other => other,
    }
}

/// The host, and port, of the address of a registry; one for all names of Docker's own.
fn host_of(address: &str) -> String {
    let address = address.trim();
    let address = address
        .strip_prefix("https://")
        .or_else(|| address.strip_prefix("http://"))
        .unwrap_or(address);
    let host = address.split('/').next().unwrap_or_default();
    match host.to_ascii_lowercase().as_str() {
        "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com" => {
            DOCKER_HUB.to_owned()
        }
        host => host.to_owned(),
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
    fn a_login_that_names_a_registry_goes_to_no_other() {
        let of = |address: &str| RegistryAuth {
            serveraddress: Some(address.into()),
            ..RegistryAuth::default()
        };
        for (address, image, is_for) in [
            ("https://index.docker.io/v1/", "team/x", true),
            ("docker.io", "x", true),
            ("https://Reg.example:5000/v2/", "reg.example:5000/x", true),
            ("reg.example", "reg.example:5000/x", false),
            ("reg.example", "evil.example/reg.example/x", false),
            ("reg.example", "x", false),
        ] {
            assert_eq!(of(address).is_for(image), is_for, "{address} and {image}");
        }
        assert!(RegistryAuth::default().is_for("any.example/x"));
        let bound = RegistryAuth::default().bound_to(["docker.io", "reg.example"]);
        assert!(bound.iter().any(|login| login.is_for("reg.example/x")));
        assert!(!bound.iter().any(|login| login.is_for("evil.example/x")));
        assert_eq!(
            of("reg.example").bound_to(["docker.io"]),
            [of("reg.example")]
        );
    }

    #[test]
    fn a_login_is_for_its_own_registry_or_that_of_the_image() {
        let mut auth = RegistryAuth::default();
        assert_eq!(auth.registry("reg.example/x"), "reg.example");
        auth.serveraddress = Some("other.example".into());
        assert_eq!(auth.registry("reg.example/x"), "other.example");
    }
}
