//! The contract of a resource manager, for places whose slots are only counted.

det_rm_contract::contract!(det_rm_contract::FakeManager);
