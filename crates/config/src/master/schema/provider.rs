//! The keys of providers, which make agents on demand.

use serde_json::json;

use crate::container::schema::NOT_EMPTY;
use crate::errors::ErrorCode;
use crate::quote::{cut, quoted};
use crate::schema::{
    Findings, Kind, NATURAL_32, Section, Special, Union, Walk, field, section, text_by, union,
    variant,
};
use crate::units::parse_duration;
use crate::yaml::{Node, Tree};

const EMPTY: &str = "\"\"";

pub(super) static PROVIDER: Union = union(
    "type",
    "Where agents are made",
    &[
        field(
            "master_url",
            Kind::Special(&MASTER_URL),
            "Address by which agents reach the master; this host's unless given",
        ),
        field(
            "master_cert_name",
            Kind::Text,
            "Name that agents expect in the master's certificate",
        )
        .or(EMPTY),
        field(
            "startup_script",
            Kind::Text,
            "Script that root runs on the instance before the agent",
        )
        .or(EMPTY)
        .secret(),
        field(
            "container_startup_script",
            Kind::Text,
            "Script that runs in the agent's container before the agent",
        )
        .or(EMPTY)
        .secret(),
        field(
            "agent_docker_network",
            Kind::Text,
            "Docker network of the agent",
        )
        .or("\"default\""),
        field(
            "agent_docker_runtime",
            Kind::Text,
            "Docker runtime of the agent",
        )
        .or("\"runc\""),
        field(
            "agent_docker_image",
            Kind::Special(&NOT_EMPTY),
            "Image of the agent; that of the master's version unless given",
        ),
        field(
            "agent_reconnect_attempts",
            NATURAL_32,
            "The agent's setting of this name",
        )
        .or("5"),
        field(
            "agent_reconnect_backoff",
            NATURAL_32,
            "The agent's setting of this name, seconds",
        )
        .or("5"),
        field(
            "agent_config_file_contents",
            Kind::AnyMap,
            "What becomes the agent's agent.yaml",
        )
        .secret(),
        field(
            "agent_fluent_image",
            Kind::Any,
            "Image of Fluent Bit, which shipped logs in old versions",
        )
        .warn("is ignored"),
        field(
            "max_idle_agent_period",
            Kind::Special(&POSITIVE_DURATION),
            "How long an agent may be idle before it is removed",
        )
        .or("\"5m\""),
        field(
            "max_agent_starting_period",
            Kind::Special(&POSITIVE_DURATION),
            "How long an agent may take to join",
        )
        .or("\"20m\""),
        field("min_instances", NATURAL_32, "Fewest instances").or("0"),
        field(
            "max_instances",
            Kind::Int(1, u32::MAX as i64),
            "Most instances",
        )
        .or("5"),
        field(
            "launch_error_timeout",
            Kind::Duration,
            "How long an error of the provider marks waiting tasks as impossible",
        )
        .or("\"0s\""),
        field(
            "launch_error_retries",
            NATURAL_32,
            "Failures that are tolerated before that",
        )
        .or("0"),
    ],
    &[
        variant(
            "aws",
            &[
                field(
                    "region",
                    Kind::Text,
                    "Region; that of the master unless given",
                ),
                field(
                    "root_volume_size",
                    Kind::Int(100, u32::MAX as i64),
                    "Gigabytes of the root volume",
                )
                .or("200"),
                field("image_id", Kind::Text, "Machine image"),
                field(
                    "tag_key",
                    Kind::Special(&NOT_EMPTY),
                    "Key of the tag that marks the instances of this cluster",
                )
                .or("\"managed_by\""),
                field(
                    "tag_value",
                    Kind::Text,
                    "Value of that tag; the master's instance unless given",
                ),
                field(
                    "custom_tags",
                    Kind::List(&Kind::Section(&TAG)),
                    "Further tags of instances",
                )
                .or("[]"),
                field("instance_name", Kind::Text, "Name of instances")
                    .or("\"determined-ai-agent\""),
                field(
                    "ssh_key_name",
                    Kind::Special(&NOT_EMPTY),
                    "Key pair that gives access to instances",
                )
                .finally(),
                field(
                    "iam_instance_profile_arn",
                    Kind::Text,
                    "Instance profile of instances",
                )
                .or(EMPTY),
                field(
                    "network_interface",
                    Kind::Section(&AWS_INTERFACE),
                    "Network of instances",
                )
                .or("{}"),
                field(
                    "instance_type",
                    Kind::Special(&AWS_INSTANCE_TYPE),
                    "Type of instances",
                )
                .or("\"g4dn.metal\""),
                field(
                    "instance_slots",
                    NATURAL_32,
                    "GPUs of an instance, for types whose number is not known",
                ),
                field(
                    "cpu_slots_allowed",
                    Kind::Bool,
                    "Whether an instance without GPUs offers its processors as a slot",
                )
                .or("false"),
                field(
                    "spot",
                    Kind::Bool,
                    "Whether spare capacity is used, which may be taken away",
                )
                .or("false"),
                field(
                    "spot_max_price",
                    Kind::Special(&PRICE),
                    "Most that is paid for an hour, in dollars; the ordinary price unless given",
                ),
                field("log_group", Kind::Text, "Group of the agents' logs").or(EMPTY),
                field("log_stream", Kind::Text, "Stream of the agents' logs").or(EMPTY),
            ],
        ),
        variant(
            "gcp",
            &[
                field(
                    "base_config",
                    Kind::AnyMap,
                    "Properties of instances as Compute Engine has them, under the keys here",
                ),
                field(
                    "project",
                    Kind::Text,
                    "Project; that of the master unless given",
                ),
                field("zone", Kind::Text, "Zone; that of the master unless given"),
                field(
                    "boot_disk_size",
                    Kind::Int(100, u32::MAX as i64),
                    "Gigabytes of the boot disk",
                )
                .or("200"),
                field(
                    "boot_disk_source_image",
                    Kind::Special(&GCP_IMAGE),
                    "Machine image, `projects/PROJECT/global/images/IMAGE`",
                ),
                field("boot_disk_type", Kind::Text, "Type of the boot disk"),
                field(
                    "labels",
                    Kind::Map(&Kind::Text),
                    "Further labels of instances",
                )
                .or("{}"),
                field(
                    "label_key",
                    Kind::Special(&NOT_EMPTY),
                    "Key of the label that marks the instances of this cluster",
                )
                .or("\"managed-by\""),
                field(
                    "label_value",
                    Kind::Text,
                    "Value of that label; the master's instance unless given",
                ),
                field(
                    "name_prefix",
                    Kind::Text,
                    "Begin of the names of instances, at most 30 characters",
                ),
                field(
                    "network_interface",
                    Kind::Section(&GCP_INTERFACE),
                    "Network of instances",
                )
                .or("{}"),
                field(
                    "network_tags",
                    Kind::List(&Kind::Text),
                    "Network tags of instances",
                )
                .or("[]"),
                field(
                    "service_account",
                    Kind::Section(&SERVICE_ACCOUNT),
                    "Account of instances",
                )
                .or("{}"),
                field(
                    "instance_type",
                    Kind::Section(&GCP_INSTANCE_TYPE),
                    "Type of instances",
                )
                .or("{}"),
                field(
                    "cpu_slots_allowed",
                    Kind::Bool,
                    "Whether an instance without GPUs offers its processors as a slot",
                )
                .or("false"),
                field(
                    "operation_timeout_period",
                    Kind::Special(&POSITIVE_DURATION),
                    "How long an operation of Compute Engine is waited for",
                )
                .or("\"5m\""),
                field(
                    "use_cloud_logging",
                    Kind::Bool,
                    "Whether the agents' logs go to Cloud Logging",
                )
                .or("false"),
            ],
        ),
        variant(
            "hpc",
            &[field(
                "partition",
                Kind::Special(&NOT_EMPTY),
                "Partition that the pool submits to",
            )
            .finally()],
        ),
    ],
)
.check(provider);

static TAG: Section = section(&[
    field("key", Kind::Special(&NOT_EMPTY), "Key of the tag").always(),
    field("value", Kind::Text, "Value of the tag").always(),
]);

static AWS_INTERFACE: Section = section(&[
    field(
        "public_ip",
        Kind::Bool,
        "Whether instances get a public address",
    )
    .or("true"),
    field(
        "security_group_id",
        Kind::Text,
        "Security group; the network's default unless given",
    )
    .or(EMPTY),
    field(
        "subnet_id",
        Kind::Text,
        "Subnet; the default one unless given",
    )
    .or(EMPTY),
]);

static GCP_INTERFACE: Section = section(&[
    field("network", Kind::Text, "Network, as a full path").finally(),
    field("subnetwork", Kind::Text, "Subnet, as a full path").finally(),
    field(
        "external_ip",
        Kind::Bool,
        "Whether instances get an external address",
    )
    .or("false"),
]);

static SERVICE_ACCOUNT: Section = section(&[
    field("email", Kind::Text, "Name of the account").or(EMPTY),
    field(
        "scopes",
        Kind::List(&Kind::Text),
        "What the account may do; everything of the cloud unless given",
    ),
]);

static GCP_INSTANCE_TYPE: Section = section(&[
    field(
        "machine_type",
        Kind::Special(&MACHINE_TYPE),
        "Type of machine",
    )
    .or("\"n1-standard-32\""),
    field("gpu_type", Kind::Text, "Type of GPU; empty = none").built_in("\"nvidia-tesla-t4\""),
    field(
        "gpu_num",
        NATURAL_32,
        "GPUs of an instance; 0 without a type, 4 otherwise, unless given",
    )
    .built_in("4"),
    field(
        "preemptible",
        Kind::Bool,
        "Whether spare capacity is used, which may be taken away",
    )
    .or("false"),
])
.check(gcp_gpus);

static POSITIVE_DURATION: Special = text_by(
    "duration above 0",
    || json!({"type": "string", "pattern": "[1-9]"}),
    positive_duration,
);

fn positive_duration(walk: &mut Walk, node: &mut Node) {
    walk.value(node, Kind::Duration);
    if node
        .text()
        .is_some_and(|text| parse_duration(text).is_ok_and(|duration| duration.is_zero()))
    {
        walk.findings.error(
            node.at.as_ref(),
            ErrorCode::OutOfRange.message("must be above 0"),
        );
    }
}

static MASTER_URL: Special = text_by(
    "`http://HOST[:PORT]` or `https://HOST[:PORT]`",
    || json!({"type": "string", "pattern": "^https?://[^/]+$"}),
    master_url,
);

fn master_url(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    // Blank is what shipped files have where the master's own address is to be found out.
    if text.is_empty() {
        node.tree = Tree::Null;
        return;
    }
    let host = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let good = host.is_some_and(|host| {
        let port = host
            .rsplit_once(':')
            .filter(|(_, port)| !port.contains(']'))
            .map(|(_, port)| port);
        !host.is_empty()
            && !host.contains(['/', '?', '#'])
            && port.is_none_or(|port| port.parse::<u16>().is_ok())
    });
    if !good {
        let message = format!(
            "must be \"http://HOST:PORT\" or \"https://HOST:PORT\" without a path, not \"{}\"",
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}

static PRICE: Special = text_by(
    "price without a sign, like `0.85`",
    || json!({"type": "string", "pattern": r"^[0-9]*\.?[0-9]+$"}),
    price,
);

fn price(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    let digits = text.replacen('.', "", 1);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let message = format!(
            "must be made of digits with at most one point, and no sign, not \"{}\"",
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}

static GCP_IMAGE: Special = text_by(
    "`projects/PROJECT/global/images/IMAGE`",
    || json!({"type": "string", "pattern": "^projects/[^/]+/global/images/[^/]+$"}),
    gcp_image,
);

fn gcp_image(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    let parts: Vec<&str> = text.split('/').collect();
    let good = matches!(parts[..], ["projects", project, "global", "images", image]
        if !project.is_empty() && !image.is_empty());
    if !good {
        let message = format!(
            "must be \"projects/PROJECT/global/images/IMAGE\", not \"{}\"",
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}

/// GPUs of instance types; whole families of types without any end in a point.
const AWS_GPUS: &[(&str, u32)] = &[
    ("g4dn.xlarge", 1),
    ("g4dn.2xlarge", 1),
    ("g4dn.4xlarge", 1),
    ("g4dn.8xlarge", 1),
    ("g4dn.16xlarge", 1),
    ("g4dn.12xlarge", 4),
    ("g4dn.metal", 8),
    ("g5.xlarge", 1),
    ("g5.2xlarge", 1),
    ("g5.4xlarge", 1),
    ("g5.8xlarge", 1),
    ("g5.16xlarge", 1),
    ("g5.12xlarge", 4),
    ("g5.24xlarge", 4),
    ("g5.48xlarge", 8),
    ("g6.xlarge", 1),
    ("g6.2xlarge", 1),
    ("g6.4xlarge", 1),
    ("g6.8xlarge", 1),
    ("g6.16xlarge", 1),
    ("g6.12xlarge", 4),
    ("g6.24xlarge", 4),
    ("g6.48xlarge", 8),
    ("p2.xlarge", 1),
    ("p2.8xlarge", 8),
    ("p2.16xlarge", 16),
    ("p3.2xlarge", 1),
    ("p3.8xlarge", 4),
    ("p3.16xlarge", 8),
    ("p3dn.24xlarge", 8),
    ("p4d.24xlarge", 8),
    ("p4de.24xlarge", 8),
    ("p5.48xlarge", 8),
    ("c4.", 0),
    ("c5.", 0),
    ("c5d.", 0),
    ("c5n.", 0),
    ("m4.", 0),
    ("m5.", 0),
    ("m5d.", 0),
    ("m5dn.", 0),
    ("m5n.", 0),
    ("m5zn.", 0),
    ("m6i.", 0),
    ("t3.", 0),
    ("t2.medium", 0),
    ("t2.large", 0),
    ("t2.xlarge", 0),
    ("t2.2xlarge", 0),
];

/// GPUs of an instance of this type on AWS; `None` when the type is not known.
pub fn aws_slots(instance_type: &str) -> Option<u32> {
    AWS_GPUS
        .iter()
        .find(|(name, _)| {
            *name == instance_type || (name.ends_with('.') && instance_type.starts_with(name))
        })
        .map(|(_, gpus)| *gpus)
}

static AWS_INSTANCE_TYPE: Special = text_by(
    "type of instance, like `g5.12xlarge`",
    || json!({"type": "string", "pattern": r"^[a-z0-9-]+\.[a-z0-9-]+$"}),
    aws_instance_type,
);

fn aws_instance_type(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    // The documentation of the old product misspells it so.
    if text == "g5.48large" {
        return walk.findings.error_hint(
            node.at.as_ref(),
            "\"g5.48large\" is not a type of instance",
            "did you mean \"g5.48xlarge\"?",
        );
    }
    let good = text.split_once('.').is_some_and(|(family, size)| {
        let plain = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        plain(family) && plain(size)
    });
    if !good {
        let message = format!(
            "must be a type of instance like \"g5.12xlarge\", not \"{}\"",
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}

/// First parts of machine types.
const MACHINE_FAMILIES: &[&str] = &[
    "n1-standard",
    "n1-highmem",
    "n1-highcpu",
    "n1-ultramem",
    "m2-ultramem",
    "n1-megamem",
    "c2-standard",
    "a2-highgpu",
    "a2-megagpu",
    "a2-ultragpu",
    "g2-standard",
    "n2-standard",
    "custom",
];

static MACHINE_TYPE: Special = text_by(
    "type of machine, like `n1-standard-32`",
    || json!({"type": "string", "pattern": "^(n1-(standard|highmem|highcpu|ultramem|megamem)|m2-ultramem|c2-standard|a2-(highgpu|megagpu|ultragpu)|g2-standard|n2-standard|custom)-.+$"}),
    machine_type,
);

fn machine_type(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    let good = MACHINE_FAMILIES.iter().any(|family| {
        text.strip_prefix(family)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|rest| !rest.is_empty())
    }) && text.split('-').count() == 3;
    if !good {
        let message = format!(
            "must have three parts, the first two of {}, not \"{}\"",
            quoted(MACHINE_FAMILIES),
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}

/// Types of GPU on GCP and how many of them an instance may have.
const GCP_GPUS: &[(&str, &[i64])] = &[
    ("", &[0]),
    ("nvidia-tesla-t4", &[0, 1, 2, 4]),
    ("nvidia-tesla-p100", &[0, 1, 2, 4]),
    ("nvidia-tesla-p4", &[0, 1, 2, 4]),
    ("nvidia-tesla-k80", &[0, 1, 2, 4, 8]),
    ("nvidia-tesla-v100", &[0, 1, 2, 4, 8]),
    ("nvidia-tesla-a100", &[0, 1, 2, 4, 8, 16]),
    ("nvidia-a100-80gb", &[0, 1, 2, 4, 8]),
    ("nvidia-l4", &[0, 1, 2, 4, 8]),
];

fn gcp_gpus(findings: &mut Findings, node: &Node) {
    let kind = node.get("gpu_type");
    let name = kind.and_then(Node::text).unwrap_or("nvidia-tesla-t4");
    let Some((_, allowed)) = GCP_GPUS.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = GCP_GPUS.iter().map(|(name, _)| *name).collect();
        let message = ErrorCode::NotOneOf.message(format!(
            "must be one of {}, not \"{}\"",
            quoted(&names),
            cut(name)
        ));
        let at = kind.and_then(|kind| kind.at.clone());
        return findings.error_in("gpu_type", at.as_ref(), message);
    };
    let Some(given) = node.get("gpu_num") else {
        return;
    };
    if let Some(number) = given.integer()
        && !allowed.contains(&number)
    {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let message = ErrorCode::NotOneOf.message(format!(
            "must be one of {} for GPUs of type \"{name}\", not {number}",
            allowed.join(", ")
        ));
        findings.error_in("gpu_num", given.at.as_ref(), message);
    }
}

/// Rules between the keys of a provider.
fn provider(findings: &mut Findings, node: &Node) {
    let number = |key: &str, default: i64| node.get(key).and_then(Node::integer).unwrap_or(default);
    let (min, max) = (number("min_instances", 0), number("max_instances", 5));
    if min > max {
        let at = node
            .get("min_instances")
            .or_else(|| node.get("max_instances"))
            .and_then(|node| node.at.clone());
        let message = ErrorCode::OutOfRange.message(format!(
            "must be at most \"max_instances\", which is {max}, not {min}"
        ));
        findings.error_in("min_instances", at.as_ref(), message);
    }
    match node.get("type").and_then(Node::text) {
        Some("aws") => {
            let kind = node.get("instance_type");
            let name = kind.and_then(Node::text).unwrap_or("g4dn.metal");
            if aws_slots(name).is_none() && node.get("instance_slots").is_none() {
                findings.error_hint_in(
                    "instance_type",
                    kind.and_then(|kind| kind.at.as_ref()),
                    format!(
                        "\"{}\" is not known, so nor is how many GPUs it has",
                        cut(name)
                    ),
                    "give their number as \"instance_slots\"",
                );
            }
        }
        Some("gcp") => {
            if let Some(prefix) = node.get("name_prefix")
                && prefix.text().is_some_and(|text| text.chars().count() > 30)
            {
                findings.error_in(
                    "name_prefix",
                    prefix.at.as_ref(),
                    ErrorCode::OutOfRange.message("must have at most 30 characters"),
                );
            }
            if findings.stage.is_complete() && node.get("boot_disk_source_image").is_none() {
                findings.error_hint_in(
                    "boot_disk_source_image",
                    node.at.as_ref(),
                    ErrorCode::Missing.message(
                        "is required: there is no machine image that comes with this product",
                    ),
                    "projects/PROJECT/global/images/IMAGE",
                );
            }
        }
        _ => {}
    }
}
