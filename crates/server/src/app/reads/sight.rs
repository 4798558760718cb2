//! What a reader sees of configurations.

use det_authz::{Kind, Permission, Target};
use det_config::experiment::{mask_document, mask_for_others};
use det_ids::UserId;
use serde_json::Value;

use crate::auth::Actor;

/// What a reader sees of the configuration of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Everything but what is secret by the schema: for the owner and administrators.
    Own,
    /// No variables, and nothing that looks secret: for all other callers, tasks too.
    Others,
}

impl Sight {
    /// What an actor sees of secrets in what belongs to this user.
    pub fn of(actor: &Actor, owner_id: UserId) -> Self {
        let experiment = Target::of(Kind::Experiment).owned_by(owner_id);
        if actor.may(Permission::ReadUnmasked, &experiment) {
            Self::Own
        } else {
            Self::Others
        }
    }

    /// A document as it is seen.
    pub fn mask(self, document: &Value) -> Value {
        match self {
            Self::Own => mask_document(document),
            Self::Others => mask_for_others(document),
        }
    }
}
