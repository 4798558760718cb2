//! The keys of single sign-on, of provisioning users, and those that only a hosted service uses.

use serde_json::json;

use super::{filled, is_true};
use crate::errors::ErrorCode;
use crate::quote::cut;
use crate::schema::{
    Field, Findings, Kind, Section, Special, Union, Walk, field, section, text_by, union, variant,
};
use crate::yaml::Node;

const EMPTY: &str = "\"\"";

pub(super) static SCIM: Section = section(&[
    field("enabled", Kind::Bool, "Whether users are provisioned").or("false"),
    field(
        "auth",
        Kind::Union(&SCIM_AUTH),
        "How the provisioner proves itself",
    ),
]);

static SCIM_AUTH: Union = union(
    "type",
    "How the provisioner proves itself",
    &[],
    &[
        variant(
            "basic",
            &[
                field("username", Kind::Text, "Account of the provisioner")
                    .finally()
                    .secret(),
                field("password", Kind::Text, "Secret of the account")
                    .finally()
                    .secret(),
            ],
        ),
        variant("oauth", &[]),
    ],
);

const PROVIDER: Field = field("provider", Kind::Text, "Name of the identity provider").or(EMPTY);
const SSO_URL: Field = field(
    "idp_sso_url",
    Kind::Text,
    "Address at the provider where users log in",
)
.or(EMPTY);
const RECIPIENT_URL: Field = field(
    "idp_recipient_url",
    Kind::Text,
    "Address of this master for the provider",
)
.or(EMPTY);
const AUTO_PROVISION: Field = field(
    "auto_provision_users",
    Kind::Bool,
    "Whether unknown users are created when they log in",
)
.or("false");
const GROUPS: Field = field(
    "groups_attribute_name",
    Kind::Text,
    "Attribute with the user's groups",
)
.or(EMPTY);
const DISPLAY_NAME: Field = field(
    "display_name_attribute_name",
    Kind::Text,
    "Attribute with the user's display name",
)
.or(EMPTY);
const AGENT_UID: Field = field(
    "agent_uid_attribute_name",
    Kind::Text,
    "Attribute with the Unix user id",
)
.or(EMPTY);
const AGENT_GID: Field = field(
    "agent_gid_attribute_name",
    Kind::Text,
    "Attribute with the Unix group id",
)
.or(EMPTY);
const AGENT_USER: Field = field(
    "agent_user_name_attribute_name",
    Kind::Text,
    "Attribute with the Unix user name",
)
.or(EMPTY);
const AGENT_GROUP: Field = field(
    "agent_group_name_attribute_name",
    Kind::Text,
    "Attribute with the Unix group name",
)
.or(EMPTY);
const ALWAYS_REDIRECT: Field = field(
    "always_redirect",
    Kind::Bool,
    "Whether users are sent to the provider at once",
)
.or("false");

pub(super) static OIDC: Section = section(&[
    field("enabled", Kind::Bool, "Whether users log in this way").or("false"),
    PROVIDER,
    field(
        "client_id",
        Kind::Text,
        "Name of this master at the provider",
    )
    .or(EMPTY),
    field(
        "client_secret",
        Kind::Text,
        "Secret of this master at the provider",
    )
    .or(EMPTY)
    .secret(),
    SSO_URL,
    RECIPIENT_URL,
    field(
        "authentication_claim",
        Kind::Text,
        "Claim that names the user",
    )
    .or("\"email\""),
    field(
        "scim_authentication_attribute",
        Kind::Text,
        "Attribute of provisioned users that the claim is compared with",
    )
    .or("\"userName\""),
    AUTO_PROVISION,
    GROUPS,
    DISPLAY_NAME,
    AGENT_UID,
    AGENT_GID,
    AGENT_USER,
    AGENT_GROUP,
    ALWAYS_REDIRECT,
    field(
        "exclude_groups_scope",
        Kind::Bool,
        "Whether the provider is not asked for groups",
    )
    .or("false"),
]);

pub(super) static SAML: Section = section(&[
    field("enabled", Kind::Bool, "Whether users log in this way").or("false"),
    PROVIDER,
    RECIPIENT_URL,
    SSO_URL,
    field(
        "idp_sso_descriptor_url",
        Kind::Text,
        "Identity of the provider",
    )
    .or(EMPTY),
    field(
        "idp_metadata_url",
        Kind::Text,
        "Address of the provider's description; this or a certificate",
    )
    .or(EMPTY),
    field(
        "idp_cert_path",
        Kind::Text,
        "File with the provider's certificate; this or the address of its description",
    )
    .or(EMPTY),
    AUTO_PROVISION,
    GROUPS,
    DISPLAY_NAME,
    AGENT_UID,
    AGENT_GID,
    AGENT_USER,
    AGENT_GROUP,
    ALWAYS_REDIRECT,
])
.check(saml);

fn saml(findings: &mut Findings, node: &Node) {
    let needed = [
        "provider",
        "idp_recipient_url",
        "idp_sso_url",
        "idp_sso_descriptor_url",
    ];
    when_enabled(findings, node, &needed);
    if findings.stage.is_complete()
        && is_true(node, "enabled")
        && filled(node, "idp_metadata_url").is_none()
        && filled(node, "idp_cert_path").is_none()
    {
        findings.error(
            node.at.as_ref(),
            "needs \"idp_metadata_url\" or \"idp_cert_path\" when it is enabled",
        );
    }
}

/// What must be given once a section is switched on.
fn when_enabled(findings: &mut Findings, node: &Node, needed: &[&str]) {
    if !findings.stage.is_complete() || !is_true(node, "enabled") {
        return;
    }
    for key in needed {
        if filled(node, key).is_none() {
            findings.error_in(
                key,
                node.at.as_ref(),
                ErrorCode::Missing.message("is required when it is enabled"),
            );
        }
    }
}

pub(super) static DET_CLOUD: Section = section(&[
    field("enabled", Kind::Bool, "Whether this is the hosted service").or("false"),
    field("login_url", Kind::Text, "Where users log in").or(EMPTY),
    ALWAYS_REDIRECT,
]);

pub(super) static INTERNAL: Section = section(&[
    field(
        "audit_logging_enabled",
        Kind::Bool,
        "Whether requests are logged",
    )
    .or("false"),
    field(
        "external_sessions",
        Kind::Section(&EXTERNAL_SESSIONS),
        "Sessions of the hosted service",
    ),
    field(
        "proxied_servers",
        Kind::List(&Kind::Section(&PROXIED_SERVER)),
        "Servers behind the master",
    )
    .or("[]"),
])
.old(&[crate::schema::OldKey {
    name: "preemption_timeout",
    about: "Older form of task_container_defaults.preemption_timeout",
    json: "{\"type\": [\"string\", \"null\"]}",
}]);

static EXTERNAL_SESSIONS: Section = section(&[
    field("login_uri", Kind::Text, "Where users log in").or(EMPTY),
    field("logout_uri", Kind::Text, "Where users log out").or(EMPTY),
    field(
        "invalidation_uri",
        Kind::Text,
        "Address that is notified of ended sessions",
    )
    .or(EMPTY),
    field("jwt_key", Kind::Text, "Key that signs sessions")
        .or(EMPTY)
        .secret(),
    field("org_id", Kind::Text, "Organisation").or(EMPTY),
    field("cluster_id", Kind::Text, "Cluster").or(EMPTY),
]);

static PROXIED_SERVER: Section = section(&[
    field("path_prefix", Kind::Text, "Paths that are passed on").always(),
    field(
        "destination",
        Kind::Special(&DESTINATION),
        "Address that they are passed to, with its port",
    )
    .always(),
]);

static DESTINATION: Special = text_by(
    "address with a port; scheme http unless given",
    || json!({"type": "string", "pattern": ":[0-9]+"}),
    destination,
);

fn destination(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    let host = text.split_once("://").map_or(text, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port {
        let message = format!(
            "must be an address with a port, like \"http://server:8000\", not \"{}\"",
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}
