//! The form of passwords in requests, and rules for passwords.

use sha2::{Digest, Sha512};

/// The salt that every client puts before a password. It is part of the wire format, not a secret.
const WIRE_SALT: &str = "GubPEmmotfiK9TMD6Zdw";

/// The form in which a password is sent: the hex SHA-512 of a fixed salt and the password. A blank password stays
/// blank.
pub fn salted_hash(password: &str) -> String {
    if password.is_empty() {
        return String::new();
    }
    let mut hash = Sha512::new();
    hash.update(WIRE_SALT.as_bytes());
    hash.update(password.as_bytes());
    hex::encode(hash.finalize())
}

/// What a password lacks, each as the end of "the password …"; empty when it is good enough.
pub fn password_weaknesses(password: &str) -> Vec<&'static str> {
    if password.is_empty() {
        return vec!["is blank"];
    }
    let mut lacking = Vec::new();
    if password.chars().count() < 8 {
        lacking.push("has fewer than 8 characters");
    }
    if !password.contains(|c: char| c.is_ascii_uppercase()) {
        lacking.push("has no upper-case letter");
    }
    if !password.contains(|c: char| c.is_ascii_lowercase()) {
        lacking.push("has no lower-case letter");
    }
    if !password.contains(|c: char| c.is_numeric()) {
        lacking.push("has no digit");
    }
    lacking
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_password_stays_blank_on_the_wire() {
        assert_eq!(salted_hash(""), "");
    }

    #[test]
    fn the_hash_is_that_of_the_other_client() {
        // hashlib.sha512(b"GubPEmmotfiK9TMD6Zdw" + b"secret").hexdigest()
        assert_eq!(salted_hash("secret"), EXPECTED_SECRET);
    }

    const EXPECTED_SECRET: &str = "f6b1a15b3e3f6c5978ad185a85efc1c91f2da442e66c4ce48b12a36b5b4c04a4dbfe79f4fe07bf1eb0016e63d7613827e4c0ed3c8e3c305755792a556866a723";

    #[test]
    fn weaknesses_are_named_one_by_one() {
        assert_eq!(password_weaknesses(""), ["is blank"]);
        assert_eq!(
            password_weaknesses("abc"),
            [
                "has fewer than 8 characters",
                "has no upper-case letter",
                "has no digit"
            ]
        );
        assert!(password_weaknesses("Abcdefg1").is_empty());
    }
}
