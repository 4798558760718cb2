//! Files of checkpoints, for the programs that delete or send them: the master on its own host, and the supervisor in the
//! task that deletes checkpoints where the master does not reach.
//!
//! [`glob`] has the patterns by which users name files, [`tree`] the directories that tasks own, worked on through handles,
//! [`removal`] puts both together. Whom the files must belong to is the caller's matter.

pub mod glob;
pub mod removal;
pub mod tree;
