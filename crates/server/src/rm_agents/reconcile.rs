//! What to tell an agent. The comparison is pure and lies with the protocol, where the simulator finds it as well.

pub(crate) use det_agent_proto::reconcile::{Desired, Heard, Order, reconcile};
