//! Messages between master and agent: any text is a message or an error, and a message comes back as it was.
#![no_main]

use det_agent_proto::{ToAgent, ToMaster};
use det_taskspec::ContainerSpec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    macro_rules! comes_back {
        ($kind:ty) => {
            if let Ok(message) = serde_json::from_slice::<$kind>(data) {
                let text = serde_json::to_string(&message).expect("what was JSON is JSON");
                let again = serde_json::from_str::<$kind>(&text).expect("written by us");
                assert_eq!(again, message);
            }
        };
    }
    comes_back!(ToMaster);
    comes_back!(ToAgent);
    comes_back!(ContainerSpec);
});
