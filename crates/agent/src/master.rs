//! The master's address, in the forms that the agent and its tasks need.

use thiserror::Error;

/// Address of a master: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MasterAddress {
    pub(crate) tls: bool,
    /// Host name or IP address, IPv6 without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Why an address cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum MasterAddressError {
    #[error(
        "master address \"{address}\" is neither http nor https; write it like http://master.example:8080"
    )]
    Scheme { address: String },
    #[error(
        "master address \"{address}\" names no host that can be reached; write it like http://master.example:8080"
    )]
    Host { address: String },
    #[error("master address \"{address}\" has a port that is not a number from 1 to 65535")]
    Port { address: String },
}

impl MasterAddress {
    /// Reads `http[s]://host[:port][/]`. A path, a query or credentials are no part of a master's address: a path is
    /// ignored, credentials are refused.
    pub(crate) fn parse(address: &str) -> Result<Self, MasterAddressError> {
        let text = address.trim();
        let (tls, rest) = if let Some(rest) = text.strip_prefix("https://") {
            (true, rest)
        } else if let Some(rest) = text.strip_prefix("http://") {
            (false, rest)
        } else {
            return Err(MasterAddressError::Scheme {
                address: shown(address),
            });
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = if let Some(inside) = authority.strip_prefix('[') {
            let (host, after) = inside
                .split_once(']')
                .ok_or_else(|| MasterAddressError::Host {
                    address: shown(address),
                })?;
            (host, after.strip_prefix(':'))
        } else {
            match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        let is_bracketed = authority.starts_with('[');
        let is_host = if is_bracketed {
            host.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            !host.is_empty()
                && host
                    .chars()
                    .all(|letter| letter.is_alphanumeric() || matches!(letter, '.' | '-' | '_'))
        };
        if !is_host {
            return Err(MasterAddressError::Host {
                address: shown(address),
            });
        }
        let port = match port {
            None if tls => 443,
            None => 80,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                MasterAddressError::Port {
                    address: shown(address),
                }
            })?,
        };
        Ok(Self {
            tls,
            host: host.to_owned(),
            port,
        })
    }

    /// `http://host:port`, IPv6 hosts in brackets.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme("http"), self.authority())
    }

    /// `ws://host:port` or `wss://host:port` followed by `path`.
    pub(crate) fn websocket_url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme("ws"), self.authority())
    }

    /// Whether the host is this machine by its name: a loopback address or `localhost`.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self
                .host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
    }

    /// The address with the host and port that tasks get, if those differ.
    pub(crate) fn for_tasks(&self, host: Option<&str>, port: Option<u16>) -> Self {
        Self {
            tls: self.tls,
            host: host.unwrap_or(&self.host).to_owned(),
            port: port.unwrap_or(self.port),
        }
    }

    fn scheme(&self, plain: &str) -> String {
        format!("{plain}{}", if self.tls { "s" } else { "" })
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// The address without the part before an `@`, which may contain a password.
fn shown(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://***@{rest}"),
        (None, Some((_, rest))) => format!("***@{rest}"),
        (_, None) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_all_their_forms() {
        for (text, url, websocket, loopback) in [
            (
                "http://127.0.0.1:8080",
                "http://127.0.0.1:8080",
                "ws://127.0.0.1:8080/agents",
                true,
            ),
            (
                "http://localhost",
                "http://localhost:80",
                "ws://localhost:80/agents",
                true,
            ),
            (
                "https://det.example/",
                "https://det.example:443",
                "wss://det.example:443/agents",
                false,
            ),
            (
                "https://[::1]:8443",
                "https://[::1]:8443",
                "wss://[::1]:8443/agents",
                true,
            ),
            (
                "http://[fe80::1]",
                "http://[fe80::1]:80",
                "ws://[fe80::1]:80/agents",
                false,
            ),
            (
                "http://10.0.0.5:8080/det?x=1",
                "http://10.0.0.5:8080",
                "ws://10.0.0.5:8080/agents",
                false,
            ),
        ] {
            let address = MasterAddress::parse(text).unwrap();
            assert_eq!(address.url(), url, "{text}");
            assert_eq!(address.websocket_url("/agents"), websocket, "{text}");
            assert_eq!(address.is_loopback(), loopback, "{text}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_an_example() {
        for text in [
            "master:8080",
            "",
            "ftp://x",
            "http://",
            "http://:80",
            "http://[::1",
            "http://user:secret@master:80",
            "http://a:b:80",
        ] {
            let message = MasterAddress::parse(text).unwrap_err().to_string();
            assert!(message.contains("http://master.example:8080"), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
        for text in ["http://x:0", "http://x:99999", "http://x:abc"] {
            let message = MasterAddress::parse(text).unwrap_err().to_string();
            assert!(message.contains("1 to 65535"), "{message}");
        }
    }

    #[test]
    fn tasks_may_get_another_address() {
        let master = MasterAddress::parse("https://127.0.0.1:8443").unwrap();
        assert_eq!(master.for_tasks(None, None), master);
        assert_eq!(
            master.for_tasks(Some("10.0.0.1"), Some(9)).url(),
            "https://10.0.0.1:9"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_address_that_reads_back_or_an_error(text in "(https?://)?[a-z0-9:\\[\\].@/-]{0,20}") {
            if let Ok(address) = MasterAddress::parse(&text) {
                proptest::prop_assert_eq!(MasterAddress::parse(&address.url()), Ok(address));
            }
        }
    }
}
