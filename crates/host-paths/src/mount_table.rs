//! The kernel's table of mounts (proc(5), `mountinfo`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// The mount point that a field of the table names: blanks, tabs, line ends and backslashes are three octal digits there.
pub fn mount_point(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after
            .split_at_checked(3)
            .filter(|_| *first == b'\\')
            .and_then(|(digits, after)| Some((std::str::from_utf8(digits).ok()?, after)))
            .and_then(|(digits, after)| Some((u8::from_str_radix(digits, 8).ok()?, after)));
        let (byte, after) = octal.unwrap_or((*first, after));
        plain.push(byte);
        rest = after;
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_would_end_a_field_is_written_in_octal_digits() {
        for (field, path) in [
            (&b"/data"[..], "/data"),
            (b"/my\\040data\\011x", "/my data\tx"),
            (b"/back\\134slash", "/back\\slash"),
            (b"/no\\09", "/no\\09"),
            (b"/end\\", "/end\\"),
        ] {
            assert_eq!(mount_point(field), Path::new(path));
        }
    }
}
