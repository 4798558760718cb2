//! The context directory: whatever the archive holds, nothing is written outside of the target, and what is written is
//! within the limits.
//!
//! The bytes are a tar stream, packed here: a fuzzer does not find its way through the sums of gzip. With an odd first
//! byte they are taken as the gzip stream itself.
#![no_main]

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use libfuzzer_sys::fuzz_target;

// The supervisor is a program without a library; what it reads is fuzzed as it is.
#[path = "../../crates/supervisor/src/context.rs"]
#[allow(dead_code, reason = "the rest is the supervisor's")]
mod context;

/// Gives each 512-byte block that could be a header the sum that it needs, so that the fuzzer need not find it.
fn with_sums(tar: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    for block in tar.chunks_exact_mut(512) {
        // `ustar` marks a header.
        if &block[257..262] == b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            let digits = format!("{sum:06o}\0 ");
            block[148..156].copy_from_slice(digits.as_bytes());
        }
    }
    tar
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let packed = if kind % 2 == 0 {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
        gzip.write_all(&with_sums(rest)).expect("memory");
        gzip.finish().expect("memory")
    } else {
        rest.to_vec()
    };
    let root = tempfile::tempdir().expect("a directory");
    let target = root.path().join("target");
    std::fs::create_dir(&target).expect("a directory");
    let _ = context::unpack(&STANDARD.encode(packed), &[&target]);
    let beside = std::fs::read_dir(root.path()).expect("a directory").count();
    assert_eq!(beside, 1, "something was written outside of the target");
    // Directories may have been locked; they must be removable.
    unlock(&target);
});

fn unlock(directory: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let open = std::fs::Permissions::from_mode(0o700);
    let _ = std::fs::set_permissions(directory, open);
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            unlock(&entry.path());
        }
        assert!(
            !entry.file_type().is_ok_and(|kind| kind.is_symlink()),
            "a link was made"
        );
    }
}
