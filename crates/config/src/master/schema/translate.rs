//! Older forms of a master's configuration: `docs/contract/configuration.md`, "Older forms". Runs before the keys are
//! checked, so nothing here assumes a shape.

use std::collections::BTreeMap;

use crate::errors::ErrorCode;
use crate::schema::{Findings, OldKey};
use crate::units::parse_duration;
use crate::yaml::{Node, Tree};

pub(super) static OLD_KEYS: [OldKey; 2] = [
    OldKey {
        name: "scheduler",
        about: "Older form of resource_manager.scheduler",
        json: "{\"type\": [\"object\", \"null\"]}",
    },
    OldKey {
        name: "provisioner",
        about: "Older form of the provider of a pool",
        json: "{\"type\": [\"object\", \"null\"]}",
    },
];

/// Rewrites older forms, with a warning each.
pub(super) fn translate(findings: &mut Findings, root: &mut Node) {
    single_pool(findings, root);
    preemption_timeout(findings, root);
    oldest(findings, root);
    blank_types(root);
}

/// One pool given as a map instead of a list.
fn single_pool(findings: &mut Findings, root: &mut Node) {
    let Some(pools) = root.get_mut("resource_pools") else {
        return;
    };
    if pools.members().is_some() {
        let pool = pools.clone();
        let at = pools.at.clone();
        pools.tree = Tree::List(vec![pool]);
        findings.warn_in(
            "resource_pools",
            at.as_ref(),
            "is a list; the one map is read as its only element",
        );
    }
}

/// `scheduler` and `provisioner` at top level, from before resource managers.
fn oldest(findings: &mut Findings, root: &mut Node) {
    let has_new = root.get("resource_manager").is_some() || root.get("resource_pools").is_some();
    let Some(members) = root.members_mut() else {
        return;
    };
    let (scheduler, provisioner) = (members.remove("scheduler"), members.remove("provisioner"));
    let old = [("scheduler", &scheduler), ("provisioner", &provisioner)];
    if has_new {
        for (key, node) in old {
            if let Some(node) = node {
                findings.within(key, |findings| {
                    findings.error_hint(
                        node.at.as_ref(),
                        ErrorCode::Conflict.message("is an old form that cannot be combined with \"resource_manager\" or \"resource_pools\""),
                        "move it to \"resource_manager.scheduler\" or the pool's \"provider\"",
                    );
                });
            }
        }
        return;
    }
    for (key, node) in old {
        if let Some(node) = node {
            findings.warn_in(
                key,
                node.at.as_ref(),
                "is an old form; it is read as \"resource_manager\" and one pool \"default\"",
            );
        }
    }
    let map = |members| Node::new(Tree::Map(members));
    if let Some(mut scheduler) = scheduler {
        let mut manager = BTreeMap::new();
        if let Some(inner) = scheduler.members_mut() {
            if let Some(fit) = inner.remove("fit") {
                inner.insert("fitting_policy".into(), fit);
            }
            if let Some(Node {
                tree: Tree::Map(provider),
                ..
            }) = inner.remove("resource_provider")
            {
                manager.extend(provider);
            }
        }
        if let Some(kind) = manager
            .get_mut("type")
            .filter(|kind| kind.text() == Some("default"))
        {
            kind.tree = Tree::Text("agent".into());
        }
        let has_keys = scheduler
            .members()
            .is_none_or(|members| !members.is_empty());
        if has_keys {
            manager.insert("scheduler".into(), scheduler);
        }
        members.insert("resource_manager".into(), map(manager));
    }
    if let Some(mut provisioner) = provisioner {
        if let Some(inner) = provisioner.members_mut()
            && let Some(kind) = inner.remove("provider")
        {
            inner.insert("type".into(), kind);
        }
        let pool = map([
            (
                "pool_name".to_owned(),
                Node::new(Tree::Text("default".into())),
            ),
            ("provider".to_owned(), provisioner),
        ]
        .into());
        members.insert("resource_pools".into(), Node::new(Tree::List(vec![pool])));
    }
}

/// A blank scheduler type is the same as none.
fn blank_types(root: &mut Node) {
    let blank = |block: &mut Node| {
        if let Some(members) = block.get_mut("scheduler").and_then(Node::members_mut)
            && members
                .get("type")
                .is_some_and(|kind| kind.text() == Some("") || matches!(kind.tree, Tree::Null))
        {
            // Kept as a key: a present block with a blank type is not an absent block.
            members.insert("type".into(), Node::new(Tree::Null));
            members
                .entry("allow_heterogeneous_fits".into())
                .or_insert_with(|| Node::new(Tree::Bool(false)));
        }
    };
    if let Some(manager) = root.get_mut("resource_manager") {
        blank(manager);
    }
    if let Some(Tree::List(pools)) = root.get_mut("resource_pools").map(|pools| &mut pools.tree) {
        pools.iter_mut().for_each(blank);
    }
}

/// `__internal.preemption_timeout`, a duration, from before there was a key for it.
fn preemption_timeout(findings: &mut Findings, root: &mut Node) {
    let Some(given) = root
        .get_mut("__internal")
        .and_then(|internal| internal.take("preemption_timeout"))
    else {
        return;
    };
    let seconds = given.text().map(parse_duration);
    findings.within("__internal", |findings| {
        findings.within("preemption_timeout", |findings| match &seconds {
            Some(Ok(_)) => findings.warn(
                given.at.as_ref(),
                "is an old form; it is read as \"task_container_defaults.preemption_timeout\", in seconds",
            ),
            Some(Err(message)) => findings.error(given.at.as_ref(), message),
            None => findings.mismatch(&given, "a duration like \"1h10m\""),
        });
    });
    if let Some(Ok(duration)) = seconds
        && root
            .find("task_container_defaults.preemption_timeout")
            .is_none()
    {
        let seconds = Node {
            tree: Tree::Number(duration.as_secs().into()),
            at: given.at,
        };
        root.put("task_container_defaults.preemption_timeout", seconds);
    }
}
