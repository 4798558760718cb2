//! Watches the devices that are slots: how much they are used, and whether they are well.
//!
//! NVIDIA GPUs and their MIG instances are read with `nvidia-smi` and from the kernel's log, AMD GPUs from the files of
//! their driver, the processors of a host as one slot from `/proc`. Artificial slots are not watched.

mod amd;
mod host;
mod mig;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use det_agent_proto::DeviceReport;
use det_ids::SlotId;
use det_taskspec::DeviceKind;
use nix::fcntl::OFlag;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::LocalDevice;
use crate::containers::SharedState;
use amd::Amd;
use host::HostUse;
use mig::InstanceRow;

/// How long the tool may take: a faulty driver answers late or never.
const TOOL_WITHIN: Duration = Duration::from_secs(20);
/// Looks at which a GPU must be slowed down by heat, one after the other, before that is a fault.
const HOT_LOOKS: u32 = 3;
/// Looks at which the driver must not report a GPU, one after the other, before that is a fault.
const MISSING_LOOKS: u32 = 2;
/// Bytes of the tool's table that are read at most.
const MOST_TABLE: usize = 256 << 10;
/// Bytes of its XML that are read at most.
const MOST_DETAILS: usize = 4 << 20;
/// Bytes of a record of the kernel's log; the kernel has none that are longer.
const RECORD: usize = 8192;
/// Bytes of the kernel's log that one look reads at most; the rest is for the next.
const MOST_LOG: usize = 1 << 20;

/// Names of the column about whether a GPU is slowed down by heat: newer drivers renamed it.
const SLOWED_BY_HEAT: [&str; 2] = [
    "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_thermal_slowdown",
];

/// Errors that the driver reports to the kernel's log and after which a GPU cannot be relied on until an administrator has looked
/// at it. What programs cause themselves is not among them. See NVIDIA, "XID Errors".
const FATAL_XIDS: [(u32, &str); 9] = [
    (48, "double-bit memory error"),
    (62, "internal micro-controller halt"),
    (64, "a faulty row of memory could not be replaced"),
    (74, "NVLink error"),
    (79, "the GPU has fallen off the bus"),
    (95, "uncontained memory error"),
    (119, "the GPU's system processor does not answer"),
    (120, "error of the GPU's system processor"),
    (140, "unrecovered memory error"),
];

/// Looks at the devices again and again, and reports what has changed. Never ends.
pub(crate) async fn watch(shared: &SharedState) -> Infallible {
    let options = &shared.options;
    let mut watch = Watch::default();
    let mut amd = Amd::default();
    if options.artificial_slots == 0 {
        for local in &shared.devices {
            match local.device.kind {
                DeviceKind::Cuda => watch.add(local),
                DeviceKind::Rocm => amd.add(local, &options.drm),
                DeviceKind::Cpu => watch.host = Some(local.device.id),
            }
        }
    }
    let mut tool = Tool::new(&options.gpu_tool);
    let mut log = KernelLog::open(&options.kernel_log);
    let mut before_host = None;
    let mut reported: Vec<DeviceReport> = Vec::new();
    while watch.host.is_some() || !watch.gpus.is_empty() || !amd.is_empty() {
        let mut reports = Vec::new();
        if !amd.is_empty() {
            reports.extend(amd.look().await);
        }
        if !watch.gpus.is_empty() {
            let table = tool.table().await;
            watch.note_table(table.as_deref());
            if watch.has_instances() {
                watch.note_instances(tool.details().await.as_deref());
            }
            watch.note_log(&log.new_text());
            reports.extend(watch.reports(table.is_some()));
        }
        if let Some(slot) = watch.host {
            let now = HostUse::read(Path::new("/proc"));
            reports.push(host::report(slot, before_host.as_ref(), &now));
            before_host = Some(now);
        }
        if differ(&reported, &reports) {
            shared.outbox.devices(reports.clone());
            reported = reports;
        }
        sleep(options.devices_every).await;
    }
    std::future::pending().await
}

/// The driver's tool that the state of devices is read with, such as `nvidia-smi`.
struct Tool {
    program: PathBuf,
    /// Which of [`SLOWED_BY_HEAT`] the tool is asked for; beyond the last none.
    heat: usize,
    /// Whether a failure was logged.
    failed: bool,
}

impl Tool {
    fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            heat: 0,
            failed: false,
        }
    }

    /// The table of all GPUs; `None` if the tool does not answer.
    async fn table(&mut self) -> Option<String> {
        loop {
            match self.ask().await {
                Ok(table) => {
                    self.failed = false;
                    return Some(table);
                }
                // It may be the name of a column.
                Err(_) if self.heat < SLOWED_BY_HEAT.len() => self.heat += 1,
                Err(error) => {
                    if !self.failed {
                        self.failed = true;
                        tracing::warn!(
                            program = %self.program.display(),
                            "GPUs cannot be watched: {error}"
                        );
                    }
                    self.heat = 0;
                    return None;
                }
            }
        }
    }

    async fn ask(&self) -> Result<String, String> {
        let heat = SLOWED_BY_HEAT.get(self.heat);
        let heat = heat.map_or_else(String::new, |column| format!(",{column}"));
        let query = format!(
            "--query-gpu=uuid,pci.bus_id,utilization.gpu,memory.used,memory.total,temperature.gpu,\
             ecc.errors.uncorrected.volatile.total{heat}"
        );
        self.run(&[&query, "--format=csv,noheader,nounits"], MOST_TABLE)
            .await
    }

    /// Everything that the tool knows of all GPUs, as XML; `None` if it does not answer.
    async fn details(&self) -> Option<String> {
        let details = self.run(&["-q", "-x"], MOST_DETAILS).await;
        details
            .inspect_err(|error| tracing::debug!("MIG instances cannot be watched: {error}"))
            .ok()
    }

    async fn run(&self, arguments: &[&str], most: usize) -> Result<String, String> {
        let output = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output();
        match timeout(TOOL_WITHIN, output).await {
            Err(_) => Err(format!("no answer within {TOOL_WITHIN:?}")),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(output)) if !output.status.success() => Err(output.status.to_string()),
            Ok(Ok(mut output)) => {
                output.stdout.truncate(most);
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
        }
    }
}

/// The kernel's log, from now on.
struct KernelLog(Option<File>);

impl KernelLog {
    /// A host that does not let the agent read it has no errors that are known from it.
    fn open(path: &Path) -> Self {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .and_then(|mut file| file.seek(SeekFrom::End(0)).map(|_| file));
        match opened {
            Ok(file) => Self(Some(file)),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "the kernel's log is not watched for GPU errors");
                Self(None)
            }
        }
    }

    /// What was written since the last time.
    fn new_text(&mut self) -> String {
        let Some(file) = &mut self.0 else {
            return String::new();
        };
        let mut text = Vec::new();
        let mut record = [0; RECORD];
        while text.len() < MOST_LOG {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => text.extend_from_slice(record.get(..length).unwrap_or_default()),
                // Records that were not read in time have been overwritten; reading goes on behind them.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nothing more for now.
                Err(_) => break,
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// A slot that is a GPU, or a MIG instance of one.
#[derive(Debug)]
struct Part {
    slot: SlotId,
    /// The driver's number of the instance; `None` = it is the whole GPU.
    instance: Option<u32>,
    /// Looks in a row at which the driver reported the GPU without the instance.
    missing: u32,
    newest: Option<InstanceRow>,
}

/// A GPU of which slots are made, as far as it is known.
#[derive(Debug, Default)]
struct Gpu {
    parts: Vec<Part>,
    bus_id: String,
    /// Looks in a row at which heat slowed it down.
    hot: u32,
    /// Looks in a row at which the driver did not report it.
    missing: u32,
    /// How often the driver reported each fatal error.
    xids: BTreeMap<u32, u32>,
    newest: Row,
}

impl Gpu {
    /// What is wrong with it, in a few words each.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.missing >= MISSING_LOOKS {
            faults.push("the driver does not report this GPU any more".to_owned());
        }
        for (code, what) in FATAL_XIDS {
            match self.xids.get(&code) {
                None | Some(0) => {}
                Some(1) => faults.push(format!("Xid {code} ({what})")),
                Some(times @ 2..10) => faults.push(format!("Xid {code} ({what}), {times} times")),
                Some(_) => faults.push(format!("Xid {code} ({what}), 10 times or more")),
            }
        }
        if let Some(errors) = self.newest.memory_errors.filter(|errors| *errors > 0) {
            faults.push(format!(
                "uncorrectable memory errors (ECC) since the driver was loaded: {errors}"
            ));
        }
        if self.hot >= HOT_LOOKS {
            faults.push("heat slows it down (hardware thermal slowdown)".to_owned());
        }
        faults
    }
}

impl Part {
    /// What is wrong with a MIG instance alone.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.missing >= MISSING_LOOKS {
            faults.push("the driver does not report this MIG instance any more".to_owned());
        }
        let errors = self.newest.and_then(|row| row.memory_errors);
        if let Some(errors) = errors.filter(|errors| *errors > 0) {
            faults.push(format!(
                "uncorrectable memory errors (ECC) of this MIG instance since the driver was loaded: {errors}"
            ));
        }
        faults
    }
}

/// A row of the tool's table. What the card does not have is `None`.
#[derive(Debug, Default, Clone, PartialEq)]
struct Row {
    bus_id: String,
    used_percent: Option<u32>,
    memory_used_mib: Option<u64>,
    memory_mib: Option<u64>,
    celsius: Option<u32>,
    memory_errors: Option<u64>,
    slowed_by_heat: bool,
}

/// Reads `uuid, pci.bus_id, utilization, used, total, temperature, errors[, slowed by heat]`.
fn parse(line: &str) -> Option<(&str, Row)> {
    let mut fields = line.split(',').map(str::trim);
    let uuid = fields.next().filter(|uuid| uuid.starts_with("GPU-"))?;
    let bus_id = bus_id(fields.next()?);
    let mut number = || fields.next().and_then(|text| text.parse::<u64>().ok());
    let small = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
    let row = Row {
        bus_id,
        used_percent: small(number()),
        memory_used_mib: number(),
        memory_mib: number(),
        celsius: small(number()),
        memory_errors: number(),
        slowed_by_heat: fields.next() == Some("Active"),
    };
    Some((uuid, row))
}

/// An address on the bus as both the tool and the kernel's log can be compared by: four digits of the domain, lower case,
/// no function.
fn bus_id(text: &str) -> String {
    let text = text.trim().to_ascii_lowercase();
    let without_function = text.split('.').next().unwrap_or_default();
    match without_function.split_once(':') {
        Some((domain, rest)) => {
            let start = domain.len().saturating_sub(4);
            format!("{}:{rest}", domain.get(start..).unwrap_or(domain))
        }
        None => without_function.to_owned(),
    }
}

/// Address and code of the error that a record of the kernel's log reports:
/// `4,812,90512,-;NVRM: Xid (PCI:0000:3b:00): 79, …`.
///
/// Its text must begin so: the kernel names programs in records of its own, and users choose their names. Records that
/// programs write have another facility than the kernel's. See Linux, `Documentation/ABI/testing/dev-kmsg`.
fn xid(record: &str) -> Option<(String, u32)> {
    let (prefix, text) = record.split_once(';')?;
    let (priority, _) = prefix.split_once(',')?;
    let facility = priority.parse::<u32>().ok()? >> 3;
    if facility != 0 {
        return None;
    }
    let (address, rest) = text.strip_prefix("NVRM: Xid (PCI:")?.split_once("):")?;
    let is_of_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    if address.is_empty() || !address.chars().all(is_of_address) {
        return None;
    }
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    Some((bus_id(address), digits.parse().ok()?))
}

/// What is known of the devices.
#[derive(Debug, Default)]
struct Watch {
    /// Every GPU that was found since the agent started, by UUID.
    gpus: BTreeMap<String, Gpu>,
    /// The slot that all processors of the host are.
    host: Option<SlotId>,
}

impl Watch {
    /// Takes up a GPU or a MIG instance.
    fn add(&mut self, local: &LocalDevice) {
        let part_of = local.part_of.as_ref();
        let uuid = part_of.map_or(&local.device.uuid, |part_of| &part_of.gpu);
        if !uuid.starts_with("GPU-") {
            return;
        }
        let gpu = self.gpus.entry(uuid.clone()).or_default();
        gpu.parts.push(Part {
            slot: local.device.id,
            instance: part_of.map(|part_of| part_of.index),
            missing: 0,
            newest: None,
        });
    }

    fn has_instances(&self) -> bool {
        let mut parts = self.gpus.values().flat_map(|gpu| &gpu.parts);
        parts.any(|part| part.instance.is_some())
    }

    /// Takes note of the tool's details; `None` = it did not answer.
    fn note_instances(&mut self, details: Option<&str>) {
        let found = details.map(mig::instances).unwrap_or_default();
        for (uuid, gpu) in &mut self.gpus {
            let instances = found.get(uuid.as_str());
            for part in &mut gpu.parts {
                let Some(index) = part.instance else {
                    continue;
                };
                part.newest = instances
                    .and_then(|instances| instances.get(&index))
                    .copied();
                part.missing = match (instances, part.newest) {
                    (Some(_), None) => part.missing.saturating_add(1),
                    (Some(_), Some(_)) => 0,
                    (None, _) => part.missing,
                };
            }
        }
    }

    /// Takes note of the errors in the kernel's log.
    fn note_log(&mut self, text: &str) {
        for (address, code) in text.lines().filter_map(xid) {
            if !FATAL_XIDS.iter().any(|(fatal, _)| *fatal == code) {
                continue;
            }
            for gpu in self.gpus.values_mut().filter(|gpu| gpu.bus_id == address) {
                let times = gpu.xids.entry(code).or_default();
                *times = times.saturating_add(1);
            }
        }
    }

    /// Takes note of the tool's table; `None` = it did not answer, which is not the fault of a GPU.
    fn note_table(&mut self, table: Option<&str>) {
        let Some(table) = table else {
            return;
        };
        let mut rows: BTreeMap<&str, Row> = table.lines().filter_map(parse).collect();
        for (uuid, gpu) in &mut self.gpus {
            let Some(row) = rows.remove(uuid.as_str()) else {
                gpu.missing = gpu.missing.saturating_add(1);
                continue;
            };
            gpu.missing = 0;
            gpu.hot = if row.slowed_by_heat {
                gpu.hot.saturating_add(1)
            } else {
                0
            };
            gpu.bus_id.clone_from(&row.bus_id);
            gpu.newest = row;
        }
    }

    /// Reports on all GPUs, in the order of their slots. `answered`: the tool answered this time.
    fn reports(&self, answered: bool) -> Vec<DeviceReport> {
        let gpus = self.gpus.values();
        let mut reports: Vec<DeviceReport> = gpus.flat_map(|gpu| gpu.reports(answered)).collect();
        reports.sort_by_key(|report| report.slot);
        reports
    }
}

impl Gpu {
    /// A report for each of its slots. Its numbers are known if it is in the newest table. How much a MIG instance is used
    /// is not known; what is wrong with the GPU is wrong with all of its instances.
    fn reports(&self, answered: bool) -> impl Iterator<Item = DeviceReport> + '_ {
        let row = (answered && self.missing == 0).then_some(&self.newest);
        let bytes = |mib: Option<u64>| mib.map(|mib| mib.saturating_mul(1 << 20));
        self.parts.iter().map(move |part| {
            let is_whole = part.instance.is_none();
            let (used, all) = if is_whole {
                let memory = row.map(|row| (row.memory_used_mib, row.memory_mib));
                memory.unwrap_or_default()
            } else {
                let memory = part.newest.map(|row| (row.memory_used_mib, row.memory_mib));
                memory.unwrap_or_default()
            };
            let faults = [self.faults(), part.faults()].concat();
            DeviceReport {
                slot: part.slot,
                used_percent: row.filter(|_| is_whole).and_then(|row| row.used_percent),
                memory_used_bytes: bytes(used),
                memory_bytes: bytes(all),
                celsius: row.and_then(|row| row.celsius),
                fault: (!faults.is_empty()).then(|| faults.join("; ")),
            }
        })
    }
}

/// Whether the master should know the newer reports: a fault, or numbers that have changed by more than a little.
fn differ(before: &[DeviceReport], now: &[DeviceReport]) -> bool {
    let far = |before: Option<u64>, now: Option<u64>, little: u64| match (before, now) {
        (Some(before), Some(now)) => before.abs_diff(now) >= little,
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
    };
    before.len() != now.len()
        || before.iter().zip(now).any(|(before, now)| {
            let a_part = now.memory_bytes.unwrap_or_default() / 50;
            before.slot != now.slot
                || before.fault != now.fault
                || before.memory_bytes != now.memory_bytes
                || far(
                    before.used_percent.map(u64::from),
                    now.used_percent.map(u64::from),
                    5,
                )
                || far(before.celsius.map(u64::from), now.celsius.map(u64::from), 5)
                || far(
                    before.memory_used_bytes,
                    now.memory_used_bytes,
                    a_part.max(1),
                )
        })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use det_taskspec::Device;

    use super::*;
    use crate::devices::PartOf;

    const WELL: &str = "GPU-a, 00000000:3B:00.0, 40, 1000, 80000, 50, 0, Not Active\n\
                        GPU-b, 00000000:AF:00.0, 0, 0, 80000, [N/A], [N/A], Not Active\n";

    fn two() -> Watch {
        let mut watch = Watch::default();
        for (slot, uuid) in [(0, "GPU-a"), (1, "GPU-b")] {
            watch.add(&local(slot, uuid, None));
        }
        watch
    }

    fn local(slot: u32, uuid: &str, part_of: Option<PartOf>) -> LocalDevice {
        LocalDevice {
            device: Device {
                id: SlotId(slot),
                brand: "GPU".into(),
                uuid: uuid.into(),
                kind: DeviceKind::Cuda,
            },
            nodes: Vec::new(),
            part_of,
        }
    }

    /// One GPU with two instances, and a whole one.
    fn instances() -> Watch {
        let mut watch = Watch::default();
        for (slot, index) in [(0, 0), (1, 3)] {
            let part_of = PartOf {
                gpu: "GPU-a".into(),
                index,
            };
            watch.add(&local(slot, &format!("MIG-{slot}"), Some(part_of)));
        }
        watch.add(&local(2, "GPU-b", None));
        watch
    }

    #[test]
    fn instances_have_their_memory_and_the_faults_of_their_gpu() {
        let instance = |index: u32, used: u32| {
            format!(
                "<mig_device><index>{index}</index><fb_memory_usage><total>2048 MiB</total><used>{used} MiB</used>\
                 </fb_memory_usage></mig_device>"
            )
        };
        let details = |instances: &str| {
            format!("<gpu id=x><mig_devices>{instances}</mig_devices><uuid>GPU-a</uuid></gpu>")
        };
        let both = details(&(instance(0, 100) + &instance(3, 200)));
        let mut watch = instances();
        assert!(watch.has_instances() && !two().has_instances());
        watch.note_instances(Some(&both));
        let reports = watch.look(Some(WELL));
        let seen: Vec<_> = reports
            .iter()
            .map(|report| (report.slot.0, report.used_percent, report.memory_used_bytes))
            .collect();
        let mib = |count: u64| Some(count << 20);
        assert_eq!(
            seen,
            [
                (0, None, mib(100)),
                (1, None, mib(200)),
                (2, Some(0), mib(0))
            ]
        );
        assert_eq!(
            (reports[0].memory_bytes, reports[0].celsius),
            (mib(2048), Some(50))
        );
        watch.note_log("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, x");
        let broken = watch.look(Some(WELL));
        assert_eq!(faults(&broken)[0], faults(&broken)[1]);
        assert!(faults(&broken)[0].unwrap().starts_with("Xid 79"));
        assert_eq!(faults(&broken)[2], None);
        // An administrator has removed an instance; a tool that does not answer is no fault.
        let mut watch = instances();
        let one = details(&instance(0, 100));
        for details in [None, Some(one.as_str()), None, Some(&one)] {
            watch.note_instances(details);
        }
        let reports = watch.look(Some(WELL));
        assert!(
            faults(&reports)[1]
                .unwrap()
                .contains("MIG instance any more")
        );
        assert_eq!((faults(&reports)[0], reports[1].memory_bytes), (None, None));
    }

    impl Watch {
        fn look(&mut self, table: Option<&str>) -> Vec<DeviceReport> {
            self.note_table(table);
            self.reports(table.is_some())
        }
    }

    fn faults(reports: &[DeviceReport]) -> Vec<Option<&str>> {
        reports
            .iter()
            .map(|report| report.fault.as_deref())
            .collect()
    }

    #[test]
    fn use_memory_and_temperature_are_read_from_the_table() {
        let reports = two().look(Some(WELL));
        assert_eq!(
            reports[0],
            DeviceReport {
                slot: SlotId(0),
                used_percent: Some(40),
                memory_used_bytes: Some(1000 << 20),
                memory_bytes: Some(80_000 << 20),
                celsius: Some(50),
                fault: None,
            }
        );
        assert_eq!((reports[1].celsius, &reports[1].fault), (None, &None));
    }

    #[test]
    fn memory_errors_are_a_fault_that_changes_with_their_number() {
        let mut watch = two();
        let with = |errors: &str| WELL.replace("50, 0,", &format!("50, {errors},"));
        let one = watch.look(Some(&with("1")));
        assert!(faults(&one)[0].unwrap().ends_with("loaded: 1"));
        assert_eq!(faults(&one)[1], None);
        assert_ne!(faults(&watch.look(Some(&with("2")))), faults(&one));
        assert_eq!(faults(&watch.look(Some(WELL))), [None, None]);
    }

    #[test]
    fn heat_is_a_fault_once_it_lasts() {
        let mut watch = two();
        let hot = WELL.replace("50, 0, Not Active", "95, 0, Active");
        for _ in 1..HOT_LOOKS {
            assert_eq!(faults(&watch.look(Some(&hot))), [None, None]);
        }
        let reports = watch.look(Some(&hot));
        assert!(faults(&reports)[0].unwrap().contains("thermal"));
        assert_eq!(faults(&watch.look(Some(WELL))), [None, None]);
    }

    #[test]
    fn a_gpu_that_the_driver_does_not_report_any_more_has_a_fault() {
        let mut watch = two();
        watch.look(Some(WELL));
        let rest = WELL.lines().next().unwrap();
        assert_eq!(faults(&watch.look(Some(rest))), [None, None]);
        let reports = watch.look(Some(rest));
        assert!(faults(&reports)[1].unwrap().contains("does not report"));
        assert_eq!(reports[1].used_percent, None);
        // A tool that does not answer is not the fault of a GPU.
        let mut watch = two();
        for _ in 0..5 {
            assert_eq!(faults(&watch.look(None)), [None, None]);
        }
    }

    #[test]
    fn fatal_errors_of_the_kernels_log_are_faults_of_their_gpu() {
        let mut watch = two();
        watch.look(Some(WELL));
        watch.note_log(
            "4,1,2,-;NVRM: Xid (PCI:0000:af:00): 79, pid=1, GPU has fallen off the bus.\n\
             4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=2, MMU Fault\n\
             4,1,2,-;NVRM: Xid (PCI:0000:99:00): 79, of none of ours\n\
             6,1,2,-;usb 1-1: new device\n\
             4,1,2,-;NVRM: Xid (PCI:0000:af:00): x\n",
        );
        let reports = watch.look(Some(WELL));
        assert_eq!(
            faults(&reports),
            [None, Some("Xid 79 (the GPU has fallen off the bus)")]
        );
        // Once more is another fault: users may have put the GPU back into service meanwhile.
        watch.note_log("4,2,3,-;NVRM: Xid (PCI:0000:af:00): 79, again");
        let again = watch.look(Some(WELL));
        assert!(faults(&again)[1].unwrap().ends_with("2 times"));
    }

    #[test]
    fn what_programs_bring_into_the_kernels_log_is_no_fault() {
        let error = "NVRM: Xid (PCI:0000:af:00): 79, x";
        let reported = Some(("0000:af:00".to_owned(), 79));
        assert_eq!(xid(&format!("4,1,2,-;{error}")), reported);
        assert_eq!(xid(&format!("3,1,2,-,caller=T7;{error}")), reported);
        for record in [
            // The kernel names the program that failed, and its file.
            format!("6,1,2,-;x[7]: segfault at 0 ip 0 sp 0 error 4 in {error}[400000+1000]"),
            "6,1,2,-;NVRM: Xid (PCI:[7]: segfault at 0 in x (0000:af:00): 79".to_owned(),
            "6,1,2,-;NVRM: Xid (PCI:): 79".to_owned(),
            // What programs write themselves.
            format!("12,1,2,-;{error}"),
            format!("12,1,2,-;4,1,2,-;{error}"),
            format!(" SUBSYSTEM=4,1;{error}"),
            error.to_owned(),
        ] {
            assert_eq!(xid(&record), None, "{record}");
        }
    }

    #[test]
    fn the_kernels_log_is_read_from_now_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "old\n").unwrap();
        let mut log = KernelLog::open(file.path());
        assert_eq!(log.new_text(), "");
        let mut writer = OpenOptions::new().append(true).open(file.path()).unwrap();
        writer.write_all(b"new\n").unwrap();
        assert_eq!(log.new_text(), "new\n");
        assert_eq!(log.new_text(), "");
        assert_eq!(KernelLog::open(Path::new("/no/such/log")).new_text(), "");
    }

    #[test]
    fn small_changes_are_not_worth_a_message() {
        let now = two().look(Some(WELL));
        assert!(differ(&[], &now));
        assert!(!differ(&now, &now));
        let mut changed = now.clone();
        changed[0].used_percent = Some(43);
        changed[0].memory_used_bytes = Some(1100 << 20);
        assert!(!differ(&now, &changed));
        changed[0].used_percent = Some(45);
        assert!(differ(&now, &changed));
        let mut faulty = now.clone();
        faulty[1].fault = Some("hot".into());
        assert!(differ(&now, &faulty));
        let mut unknown = now.clone();
        unknown[0].celsius = None;
        assert!(differ(&now, &unknown));
    }

    #[tokio::test]
    async fn a_tool_of_an_older_driver_is_asked_for_the_older_column() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("nvidia-smi");
        let script =
            "#!/bin/sh\ncase $1 in *clocks_event*) exit 2;; *clocks_throttle*) echo old;; esac\n";
        fs::write(&program, script).unwrap();
        fs::set_permissions(
            &program,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let mut tool = Tool::new(&program);
        assert_eq!(tool.table().await.as_deref(), Some("old\n"));
        assert_eq!(tool.heat, 1);
        let mut missing = Tool::new(Path::new("/no/such/tool"));
        assert_eq!(missing.table().await, None);
    }
}
