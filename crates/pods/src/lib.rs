//! Kubernetes objects of an allocation, and what pods and nodes mean.
//!
//! [`objects()`] returns everything that is created for the containers of one allocation: a Secret with their scripts, an
//! Indexed Job for each size of pod, and a Service for those that must find each other; where slots are devices that are
//! claimed, a template of claims for each size as well. In the other direction,
//! [`pod_facts`] and [`observed`] return what a pod's status means for its container, and [`node_facts`], [`slots_of`] and
//! [`admits`] what a node offers. Objects are JSON values, as the API has them: fields that this crate does not know pass
//! through it. It knows no cluster, no connection and no clock. Read [`ClusterFacts`] first, then [`objects()`].

mod admission;
mod affinity;
mod backend;
mod demands;
mod devices;
mod environment;
mod exposure;
mod facts;
mod gateway;
mod joint;
mod json;
mod login;
mod names;
mod namespace_limits;
mod namespaces;
mod node;
mod objects;
mod observation;
mod placeholder;
mod pod;
mod priority;
mod quantity;
mod record;
mod seal;
mod template;
mod user_spec;

pub use admission::admits;
pub use affinity::{PLACEMENT_GATE, release_patch};
pub use backend::{GroupApi, Scheduler};
pub use demands::{Misfit, Resources, demands, demands_everything, misfit, requests};
pub use devices::{
    ClaimApi, ClaimFacts, DeviceFacts, DevicePool, DeviceSelector, SliceFacts, claim_facts,
    device_selector, slice_facts,
};
pub use exposure::{
    OfferedServices, RouteParent, ServiceType, is_same_route, node_ports, service_ports,
};
pub use facts::{
    ClusterFacts, DeviceClass, MasterCert, MasterUrl, Member, SlotResource, SlotResources,
};
pub use gateway::{
    GATEWAY_GROUP, GatewayName, ListenerHome, ListenerPlan, ListenerState, ListenersWanted,
    MOST_LISTENERS, NoListener, TcpRouteApi, free_ports, is_set_of, listener_home, listener_name,
    listener_ports, listener_state, plan_listeners, route_refusal,
};
pub use joint::NamespaceSelector;
pub use names::{
    CLUSTER_LABEL, DRAIN_NO_EXECUTE, DRAIN_NO_SCHEDULE, SELECTOR_LABEL, claim_template_names,
    drain_label, label_value, secret_names,
};
pub use namespace_limits::{
    NamespaceLimits, QuotaDemand, QuotaLimits, QuotaRefusal, node_selector, quota_limits,
};
pub use namespaces::{
    is_made, is_terminating, least_slots, made_namespace_name, namespace_object, quota_name,
    quota_object, quota_slots,
};
pub use node::{NodeFacts, Taint, node_facts, slots_of};
pub use objects::{Objects, ObjectsError, objects, owner_patch};
pub use observation::{observed, observed_gone};
pub use placeholder::{
    PLACEHOLDER_LABEL, PlaceholderRecord, PlaceholderRequest, Placeholders, is_placeholder,
    placeholder_class, placeholders, recorded_placeholder,
};
pub use pod::{
    ContainerFacts, ContainerState, Disruption, ImageError, ImageErrorKind, PodFacts, PodPhase,
    SchedulingStatus, pod_facts,
};
pub use priority::PriorityClass;
pub use quantity::{holds, quantity};
pub use record::{JobRecord, RECORD_ANNOTATION, RecordedMember, recorded};
pub use seal::{SEAL_ANNOTATION, Seal};
