//! The login for the registry of a task's image, as kubelets read it: a key of the task's Secret
//! (<https://kubernetes.io/docs/concepts/configuration/secret/#docker-config-secrets>).

use det_taskspec::{RegistryAuth, login_server};
use serde_json::json;

use crate::json;
use crate::objects::ObjectsError;

/// Type of a Secret with a login.
pub(crate) const TYPE: &str = "kubernetes.io/dockerconfigjson";
/// The key of the login. A Secret of [`TYPE`] may have others.
pub(crate) const KEY: &str = ".dockerconfigjson";

/// The value of [`KEY`]; `None` = the login is empty.
///
/// # Errors
/// The login has only what kubelets do not use.
pub(crate) fn login(auth: &RegistryAuth, image: &str) -> Result<Option<String>, ObjectsError> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let account = given(&auth.username).zip(given(&auth.password));
    let mut login = match (account, given(&auth.auth)) {
        (Some((username, password)), _) => {
            json::map([("username", username), ("password", password)])
        }
        (None, Some(auth)) => json::map([("auth", auth)]),
        (None, None) => {
            let has_token =
                given(&auth.identitytoken).is_some() || given(&auth.registrytoken).is_some();
            return if has_token {
                Err(ObjectsError::LoginByToken)
            } else {
                Ok(None)
            };
        }
    };
    if let Some(email) = given(&auth.email) {
        login.insert("email".to_owned(), email.into());
    }
    let server = login_server(auth.registry(image));
    Ok(Some(json!({"auths": {server: login}}).to_string()))
}
