//! What NVIDIA's tool prints about MIG instances (`nvidia-smi -q -x`). How much an instance is used is not among it.

use std::collections::BTreeMap;

/// What is known of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InstanceRow {
    pub(super) memory_used_mib: Option<u64>,
    pub(super) memory_mib: Option<u64>,
    /// Uncorrectable errors of memory since the driver was loaded.
    pub(super) memory_errors: Option<u64>,
}

/// The instances of each GPU, by its UUID and their numbers. GPUs without instances are contained, with none.
pub(super) fn instances(xml: &str) -> BTreeMap<&str, BTreeMap<u32, InstanceRow>> {
    let gpus = xml.split("<gpu id=").skip(1);
    gpus.filter_map(|gpu| {
        let (before, rest) = gpu.split_once("<mig_devices>").unwrap_or((gpu, ""));
        let (instances, after) = rest.split_once("</mig_devices>").unwrap_or(("", rest));
        // Instances may have UUIDs too.
        let uuid = element(before, "uuid").or_else(|| element(after, "uuid"))?;
        Some((uuid, rows(instances)))
    })
    .collect()
}

fn rows(instances: &str) -> BTreeMap<u32, InstanceRow> {
    let instances = instances.split("<mig_device>").skip(1);
    let rows = instances.filter_map(|instance| {
        let index = element(instance, "index")?.parse().ok()?;
        let memory = element(instance, "fb_memory_usage").unwrap_or_default();
        let errors = element(instance, "volatile_count").unwrap_or_default();
        Some((
            index,
            InstanceRow {
                memory_used_mib: mib(element(memory, "used")),
                memory_mib: mib(element(memory, "total")),
                memory_errors: element(errors, "sram_uncorrectable")
                    .and_then(|count| count.parse().ok()),
            },
        ))
    });
    rows.collect()
}

/// The content of the first element of this name.
fn element<'x>(xml: &'x str, name: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once(&format!("</{name}>"))?;
    Some(content.trim())
}

fn mib(text: Option<&str>) -> Option<u64> {
    text?.strip_suffix("MiB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_read_by_gpu_and_number() {
        let xml = r#"<?xml version="1.0" ?>
<nvidia_smi_log>
  <gpu id="00000000:3B:00.0">
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices>
      <mig_device>
        <index>0</index>
        <gpu_instance_id>1</gpu_instance_id>
        <uuid>MIG-1</uuid>
        <ecc_error_count><volatile_count><sram_uncorrectable>2</sram_uncorrectable></volatile_count></ecc_error_count>
        <fb_memory_usage><total>24576 MiB</total><reserved>0 MiB</reserved><used>1200 MiB</used></fb_memory_usage>
        <bar1_memory_usage><total>65535 MiB</total><used>1 MiB</used></bar1_memory_usage>
      </mig_device>
      <mig_device><index>3</index><fb_memory_usage><total>N/A</total></fb_memory_usage></mig_device>
    </mig_devices>
    <uuid>GPU-a</uuid>
    <fb_memory_usage><total>97871 MiB</total><used>N/A</used></fb_memory_usage>
  </gpu>
  <gpu id="00000000:AF:00.0"><mig_devices>
      None
    </mig_devices><uuid>GPU-b</uuid></gpu>
  <gpu id="00000000:BF:00.0"></gpu>
</nvidia_smi_log>"#;
        let found = instances(xml);
        assert_eq!(
            found.keys().copied().collect::<Vec<_>>(),
            ["GPU-a", "GPU-b"]
        );
        let first = InstanceRow {
            memory_used_mib: Some(1200),
            memory_mib: Some(24576),
            memory_errors: Some(2),
        };
        assert_eq!(
            found["GPU-a"],
            BTreeMap::from([(0, first), (3, InstanceRow::default())])
        );
        assert_eq!(found["GPU-b"], BTreeMap::new());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "(<gpu id=|<mig_devices>|</mig_devices>|<uuid>|</uuid>|<mig_device>|<index>|x|1| MiB){0,20}") {
            instances(&text);
        }
    }
}
