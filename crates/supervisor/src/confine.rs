//! Permanently drops all rights that a task does not need: capabilities, new privileges, system calls.
//!
//! The refused system calls are those that container engines refuse by default: for mounts and namespaces, kernel
//! modules, keyrings, BPF programs, clocks, and the like. All others stay allowed, including `ptrace` of the task's own
//! processes.

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::{set_dumpable, set_no_new_privs};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter, sock_filter,
};

use crate::failure::SetupError;

/// The most capabilities that are checked; current kernels have 41.
const MOST_CAPABILITIES: u32 = 64;

/// System calls that no task may make, refused with `EPERM`.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Refused system calls that only this processor family has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] = &[
    libc::SYS__sysctl,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_sysfs,
    libc::SYS_uselib,
    libc::SYS_ustat,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[libc::c_long] = &[];

/// Flags of `clone` that create namespaces.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Execution domains that programs ask for: the default, with 32-bit addresses or without address randomisation, and
/// the query which one is set.
const USUAL_DOMAINS: [u64; 5] = [0, 0x0008, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Drops the capabilities that were needed only to build the sandbox, before the process changes its user.
pub(crate) fn drop_bounding_set() -> Result<(), SetupError> {
    let failed = |error: rustix::io::Errno| {
        SetupError::host(format!(
            "could not confine the task: could not drop its capabilities: {error}"
        ))
    };
    for number in 0..MOST_CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(one) {
            Ok(true) => {
                rustix::thread::remove_capability_from_bounding_set(one).map_err(failed)?;
            }
            Ok(false) => {}
            // There are no further capabilities.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(failed(error)),
        }
    }
    match rustix::thread::clear_ambient_capability_set() {
        // A kernel without such a set.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Drops everything else. Processes that this one starts inherit the restrictions, and cannot undo them.
pub(crate) fn confine() -> Result<(), SetupError> {
    // Through `/proc/1/exe` a task of the same user would reach the supervisor's file by the mounts of the host. The change of
    // the user does the same. Programs that are started have it again.
    set_dumpable(false).map_err(|error| refused("keep others from looking at it", &error))?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )
    .map_err(|error| refused("drop its capabilities", &error))?;
    set_no_new_privs().map_err(|error| refused("keep it from gaining privileges", &error))?;
    for filter in filters()? {
        apply_filter(&filter).map_err(|error| refused("filter its system calls", &error))?;
    }
    Ok(())
}

/// The programs of the filters of system calls, as the kernel takes them.
pub(crate) fn filter_programs() -> Result<Vec<Vec<u8>>, SetupError> {
    let bytes = |instruction: &sock_filter| {
        let mut bytes = Vec::with_capacity(8);
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
        bytes
    };
    let program = |filter: &BpfProgram| filter.iter().flat_map(bytes).collect();
    Ok(filters()?.iter().map(program).collect())
}

fn refused(what: &str, error: &dyn std::error::Error) -> SetupError {
    SetupError::host(format!(
        "could not confine the task: could not {what}: {}",
        crate::failure::chain(error)
    ))
}

/// The filters of system calls.
fn filters() -> Result<[BpfProgram; 2], SetupError> {
    let wrong = |error: &dyn std::error::Error| refused("make the filter of system calls", error);
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| wrong(&error))?;
    let compiled = |rules: BTreeMap<i64, Vec<SeccompRule>>, errno: Errno| {
        let action = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch)
            .map_err(|error| wrong(&error))?;
        BpfProgram::try_from(filter).map_err(|error| wrong(&error))
    };
    let mut refusals = compiled(rules().map_err(|error| wrong(&error))?, Errno::EPERM)?;
    if cfg!(target_arch = "x86_64") {
        refusals.splice(0..0, no_other_numbers());
    }
    // Its flags are in memory, where filters cannot read them. If it fails with `ENOSYS`, C libraries use `clone`.
    let hidden_flags = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([refusals, compiled(hidden_flags, Errno::ENOSYS)?])
}

fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED
        .iter()
        .chain(REFUSED_HERE)
        .map(|number| (*number, Vec::new()))
        .collect();
    let when = |argument: u8, length: Length, is: Is, value: u64| {
        SeccompRule::new(vec![SeccompCondition::new(argument, length, is, value)?])
    };
    let namespaces = NAMESPACES.iter().map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        when(0, Length::Dword, Is::MaskedEq(flag), flag)
    });
    rules.insert(libc::SYS_clone, namespaces.collect::<Result<_, _>>()?);
    // Sockets to the hypervisor are not separated by namespaces.
    let vsock = u64::from(libc::AF_VSOCK.cast_unsigned());
    rules.insert(
        libc::SYS_socket,
        vec![when(0, Length::Dword, Is::Eq, vsock)?],
    );
    // Input to a terminal that is not the task's.
    rules.insert(
        libc::SYS_ioctl,
        vec![
            when(1, Length::Dword, Is::Eq, TIOCSTI)?,
            when(1, Length::Dword, Is::Eq, TIOCLINUX)?,
        ],
    );
    let unusual = USUAL_DOMAINS
        .iter()
        .map(|domain| SeccompCondition::new(0, Length::Dword, Is::Ne, *domain))
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_personality, vec![SeccompRule::new(unusual)?]);
    Ok(rules)
}

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

/// Refuses the second set of numbers that x86-64 kernels may have for the same calls ("x32"), which the rules do not name.
fn no_other_numbers() -> [sock_filter; 3] {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const FIRST_OTHER: u32 = 0x4000_0000;
    const ERRNO: u32 = 0x0005_0000;
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    [
        // The number is the first member of a filter's input.
        instruction(LOAD_NUMBER, 0, 0, 0),
        instruction(JUMP_IF_AT_LEAST, 0, 1, FIRST_OTHER),
        instruction(RETURN, 0, 0, ERRNO | Errno::EPERM as u32),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_for_this_processor() {
        let [refusals, hidden] = filters().unwrap();
        assert!(refusals.len() > REFUSED.len() && !hidden.is_empty());
    }
}
