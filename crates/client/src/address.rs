//! The address of a master.

use std::fmt;
use std::str::FromStr;

/// The port of a master whose address names neither a port nor a scheme.
const DEFAULT_PORT: u16 = 8080;

/// The address of a master in its canonical form: `scheme://host:port[/path]`, without a trailing slash. The token
/// store is keyed by it, so two spellings of one address must give one value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterUrl {
    text: String,
    host: String,
    https: bool,
}

/// Why a text is not the address of a master.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("master address \"{text}\" {problem}; write it as host, host:port or http(s)://host:port")]
pub struct InvalidMasterUrl {
    /// The text that was given.
    pub text: String,
    /// What is wrong with it, as the rest of a sentence.
    pub problem: &'static str,
}

impl MasterUrl {
    /// The address as text, without a trailing slash.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host in lower case; an IPv6 address has brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether the connection uses TLS.
    pub fn is_https(&self) -> bool {
        self.https
    }

    /// Whether the host is this machine by name or by loopback address.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host == "[::1]" || self.host.starts_with("127.")
    }

    /// The URL of `path` (which starts with a slash) on this master.
    pub fn join(&self, path: &str) -> String {
        format!("{}/{}", self.text, path.trim_start_matches('/'))
    }
}

impl fmt::Display for MasterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for MasterUrl {
    type Err = InvalidMasterUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |problem| InvalidMasterUrl {
            text: text.to_owned(),
            problem,
        };
        let trimmed = text.trim();
        let (scheme, rest, default_port) = if let Some(rest) = trimmed.strip_prefix("https://") {
            ("https", rest, 443)
        } else if let Some(rest) = trimmed.strip_prefix("http://") {
            ("http", rest, 80)
        } else if trimmed.contains("://") {
            return Err(invalid("has a scheme other than http and https"));
        } else {
            ("http", trimmed, DEFAULT_PORT)
        };
        if rest.contains(['?', '#']) {
            return Err(invalid("has a query or a fragment"));
        }
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(invalid("holds a user name or a password"));
        }
        let (host, port) = split_authority(authority).map_err(invalid)?;
        if host.is_empty() || host == "[]" {
            return Err(invalid("names no host"));
        }
        let host = host.to_ascii_lowercase();
        let port = port.unwrap_or(default_port);
        let text = format!("{scheme}://{host}:{port}{}", path.trim_end_matches('/'));
        if reqwest::Url::parse(&text).is_err() {
            return Err(invalid("is not a valid address"));
        }
        Ok(Self {
            text,
            host,
            https: scheme == "https",
        })
    }
}

/// Splits `host[:port]`; an IPv6 host keeps its brackets.
fn split_authority(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = if let Some(end) = authority
        .starts_with('[')
        .then(|| authority.find(']'))
        .flatten()
    {
        let (host, tail) = authority.split_at(end + 1);
        match tail.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if tail.is_empty() => (host, None),
            None => return Err("has text after its IPv6 address"),
        }
    } else {
        match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("holds an IPv6 address without brackets");
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    match port {
        None | Some("") => Ok((host, None)),
        Some(port) => match port.parse() {
            Ok(port) => Ok((host, Some(port))),
            Err(_) => Err("has a port that is not a number from 0 to 65535"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<MasterUrl>()
            .map_or_else(|error| error.problem.to_owned(), |url| url.to_string())
    }

    #[test]
    fn every_spelling_has_one_canonical_form() {
        for (given, expected) in [
            ("localhost", "http://localhost:8080"),
            ("localhost:80", "http://localhost:80"),
            ("Master.Example.org", "http://master.example.org:8080"),
            ("http://master", "http://master:80"),
            ("https://master", "https://master:443"),
            ("https://master:8443/", "https://master:8443"),
            ("https://proxy/det/", "https://proxy:443/det"),
            ("[::1]", "http://[::1]:8080"),
            ("http://[::1]:9/x", "http://[::1]:9/x"),
            (" 10.0.0.1:8080 ", "http://10.0.0.1:8080"),
        ] {
            assert_eq!(canonical(given), expected, "for {given:?}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for (given, expected) in [
            ("", "names no host"),
            (":8080", "names no host"),
            ("ftp://x", "has a scheme other than http and https"),
            ("http://a@b", "holds a user name or a password"),
            ("http://a?b", "has a query or a fragment"),
            ("a:b", "has a port that is not a number from 0 to 65535"),
            ("::1", "holds an IPv6 address without brackets"),
            ("[::1]x", "has text after its IPv6 address"),
        ] {
            assert_eq!(canonical(given), expected, "for {given:?}");
        }
    }

    #[test]
    fn a_canonical_address_stays_as_it_is() {
        for given in ["http://localhost:8080", "https://proxy:443/det"] {
            assert_eq!(canonical(given), given);
        }
    }

    #[test]
    fn paths_are_joined_with_one_slash() {
        let url: MasterUrl = "https://proxy/det/".parse().unwrap();
        assert_eq!(url.join("/api/v1/me"), "https://proxy:443/det/api/v1/me");
    }
}
