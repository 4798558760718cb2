//! Which web page a request comes from, and by which name it reached this master.
//!
//! A browser sends requests for every page that it shows. Two attacks use that against a master on the same machine or
//! in the same network as the browser:
//!
//! - *DNS rebinding*: a page's own name is made to resolve to 127.0.0.1, so that the browser takes this master for the
//!   page's own server. Such requests carry the page's name in `Host`. A master that listens on loopback accepts the
//!   names of loopback, of this machine, and those of `security.host_names`.
//! - *Cross-site request forgery*: a page sends a form or a script's request to this master, and the browser adds the
//!   cookie. Requests that change something are refused if another page's script or form sent them, unless they carry a
//!   token in a header, which no page can add without `enable_cors`; and a cookie alone counts for nothing in them
//!   without the browser's word that the page is this master's own. Nor does a foreign page log the browser in: its
//!   request may have a token in the answer with `enable_cors`, and no cookie.
//!
//! Browsers send the origin of a request in `Sec-Fetch-Site` (Fetch Metadata Request Headers, W3C) and `Origin`
//! (RFC 6454). Clients that are no browsers send neither.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, HeaderName, ORIGIN, UPGRADE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::context::Context;
use crate::error::{AppError, ErrorKind};
use crate::http::error::ApiError;
use crate::http::tokens;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What the check needs beside the request.
#[derive(Clone)]
pub(crate) struct OriginCheck {
    context: Context,
    /// Whether the master listens on loopback only.
    loopback: bool,
    /// Name of this machine.
    hostname: Option<Arc<str>>,
}

impl OriginCheck {
    /// Asks the kernel for the name of this machine.
    pub(crate) fn new(context: Context, loopback: bool) -> Self {
        let hostname = nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .map(Into::into);
        Self {
            context,
            loopback,
            hostname,
        }
    }
}

/// Refuses requests under a foreign name, and changes that another site's page asks for.
pub(crate) async fn check(
    State(checked): State<OriginCheck>,
    request: Request,
    next: Next,
) -> Response {
    let config = checked.context.config();
    let refused = if checked.loopback {
        let named = |name: &str| {
            let security = &config.security;
            let of_services = security.services_host.as_deref();
            let of_services = of_services.and_then(|host| host.split(':').next());
            let own = checked.hostname.as_deref().into_iter().chain(of_services);
            own.chain(security.host_names.iter().map(String::as_str))
                .any(|own| own.eq_ignore_ascii_case(name))
        };
        foreign_host(request.uri(), request.headers(), named)
    } else {
        None
    };
    let refused = refused.or_else(|| {
        forged(request.method(), request.headers(), config.enable_cors).then(|| {
            AppError::new(
                ErrorKind::Forbidden,
                "forbidden: a request that changes something was sent by a page of another site, or by a browser that \
                 does not name the page, with no token in its \"Authorization\" header",
            )
            .hint("send the token as \"Authorization: Bearer TOKEN\"; pages of other sites also need enable_cors")
        })
    });
    match refused {
        Some(error) => ApiError(error).into_response(),
        None => next.run(request).await,
    }
}

/// The refusal of a request that names a host which is not this one. Without a name there is nothing to check: every
/// browser sends one.
fn foreign_host(uri: &Uri, headers: &HeaderMap, named: impl Fn(&str) -> bool) -> Option<AppError> {
    let header = headers.get(HOST).map(|value| value.to_str().unwrap_or(""));
    let names = uri.authority().map(Authority::as_str).into_iter();
    let foreign = names
        .chain(header)
        .find(|&name| !host_of(name).is_some_and(|host| is_loopback_name(&host) || named(&host)))?;
    Some(
        AppError::new(
            ErrorKind::Forbidden,
            format!(
                "forbidden: this master listens on loopback only, and the request was sent to host \"{}\"",
                foreign.escape_debug()
            ),
        )
        .hint(
            "use http://localhost or http://127.0.0.1 with the port; if clients reach this master by another name, as \
             behind a proxy, list it in security.host_names",
        ),
    )
}

/// The host of `host[:port]` without port, brackets and a final dot; `None` where it is no authority.
pub(crate) fn host_of(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok()?;
    let host = authority.host();
    let host = host
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(host);
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

/// `localhost` and names below it always mean this machine (RFC 6761 §6.3), and so do loopback addresses.
pub(crate) fn is_loopback_name(host: &str) -> bool {
    host == "localhost"
        || host.ends_with(".localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Where a request comes from, by the headers of the browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// A page of this master, or the user at the browser.
    Own,
    /// A page of another origin.
    Foreign,
    /// Without these headers: sent by no browser, or by one from before them.
    Unknown,
}

/// Whether a page of another site had the browser send this request. Its answer sets no cookie: it would make the browser act
/// in a session that the page has chosen.
pub(crate) fn is_from_foreign_page(headers: &HeaderMap) -> bool {
    sender(headers) == Sender::Foreign
}

fn sender(headers: &HeaderMap) -> Sender {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        return match site.as_bytes() {
            b"same-origin" | b"none" => Sender::Own,
            _ => Sender::Foreign,
        };
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return Sender::Unknown;
    };
    // The scheme is left out: behind a proxy that ends TLS it differs.
    let origin = origin
        .to_str()
        .ok()
        .and_then(|text| text.split_once("://"))
        .map(|(scheme, authority)| with_port(authority, scheme));
    let own = headers.get(HOST).and_then(|host| host.to_str().ok());
    let same = origin.is_some_and(|(host, port)| {
        own.is_some_and(|own| {
            // Without a port in `Host` it is the scheme's own, whichever the scheme was.
            let (own_host, own_port) = with_port(own, "");
            host == own_host && (port == own_port || own_port.is_none() && is_standard(port))
        })
    });
    if same { Sender::Own } else { Sender::Foreign }
}

fn with_port(authority: &str, scheme: &str) -> (Option<String>, Option<u16>) {
    let port = authority
        .parse::<Authority>()
        .ok()
        .and_then(|authority| authority.port_u16());
    let standard = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    (host_of(authority), port.or(standard))
}

fn is_standard(port: Option<u16>) -> bool {
    matches!(port, Some(80 | 443))
}

/// Whether a request that changes something may have been made by another site's page.
fn forged(method: &Method, headers: &HeaderMap, cors: bool) -> bool {
    let changes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
        // A socket is opened by GET, and what is sent over it changes things.
        || headers.contains_key(UPGRADE);
    // Browsers add `Authorization: Basic` by themselves: only a token counts.
    let token = tokens::header_token(headers).or_else(|| tokens::allocation_token(headers));
    if !changes || token.is_some() {
        return false;
    }
    let cookie = tokens::has_users_cookie(headers);
    match sender(headers) {
        Sender::Own => false,
        Sender::Foreign => cookie || !cors,
        Sender::Unknown => cookie,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    value.parse().unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn on_loopback_only_names_of_loopback_and_configured_ones_are_accepted() {
        let named = |name: &str| name == "det.example";
        let accepted = |host: &str| {
            foreign_host(&Uri::from_static("/"), &headers(&[("host", host)]), named).is_none()
        };
        for own in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.:8080",
            "127.0.0.1:8080",
            "127.8.8.8",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "ui.localhost:8080",
            "det.example",
            "DET.example:80",
        ] {
            assert!(accepted(own), "{own}");
        }
        for foreign in [
            "attacker.example",
            "attacker.example:8080",
            "localhost.attacker.example",
            "127.0.0.1.attacker.example",
            "10.0.0.1",
            "[::2]",
            "notlocalhost",
            "",
            "a b",
            "localhost@attacker.example",
        ] {
            assert!(!accepted(foreign), "{foreign}");
        }
        let none = HeaderMap::new();
        assert!(foreign_host(&Uri::from_static("/"), &none, named).is_none());
        let absolute = Uri::from_static("http://attacker.example/api/v1/me");
        assert!(foreign_host(&absolute, &headers(&[("host", "localhost")]), named).is_some());
    }

    #[test]
    fn changes_need_a_token_in_a_header_or_a_page_of_our_own() {
        const COOKIE: (&str, &str) = ("cookie", "auth=t");
        const HOST: (&str, &str) = ("host", "localhost:8080");
        let refused =
            |cors: bool, pairs: &[(&str, &str)]| forged(&Method::POST, &headers(pairs), cors);
        // Clients that are no browsers.
        assert!(!refused(false, &[HOST]));
        assert!(!refused(
            false,
            &[HOST, ("authorization", "Bearer t"), COOKIE]
        ));
        assert!(refused(false, &[HOST, COOKIE]));
        // Pages of this master.
        assert!(!refused(
            false,
            &[HOST, COOKIE, ("sec-fetch-site", "same-origin")]
        ));
        assert!(!refused(
            false,
            &[HOST, COOKIE, ("origin", "http://localhost:8080")]
        ));
        assert!(!refused(
            false,
            &[
                ("host", "det.example"),
                COOKIE,
                ("origin", "https://det.example")
            ]
        ));
        assert!(!refused(
            false,
            &[
                ("host", "det.example:443"),
                COOKIE,
                ("origin", "https://det.example")
            ]
        ));
        // Pages of others, also those of another port of this machine.
        for foreign in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "http://localhost:3000"),
            ("origin", "http://attacker.example"),
            ("origin", "null"),
        ] {
            assert!(refused(false, &[HOST, foreign]), "{foreign:?}");
            assert!(refused(false, &[HOST, COOKIE, foreign]), "{foreign:?}");
            assert!(refused(true, &[HOST, COOKIE, foreign]), "{foreign:?}");
            assert!(!refused(true, &[HOST, foreign]), "{foreign:?}");
            assert!(!refused(
                true,
                &[HOST, COOKIE, foreign, ("authorization", "Bearer t")]
            ));
        }
        // The cookies of the host of services are some as well, and so are several that differ.
        for other in [
            "det-services=c",
            "__Secure-det-services=c",
            "auth=a; auth=b",
        ] {
            let foreign = [HOST, ("cookie", other), ("sec-fetch-site", "cross-site")];
            assert!(refused(true, &foreign), "{other}");
        }
        let of_services = ("cookie", "det-services=c");
        assert!(refused(false, &[HOST, of_services]));
        assert!(refused(true, &[HOST, of_services, ("origin", "null")]));
        // What only reads changes nothing; a socket may.
        let foreign = [HOST, COOKIE, ("sec-fetch-site", "cross-site")];
        assert!(!forged(&Method::GET, &headers(&foreign), false));
        let socket = [
            HOST,
            COOKIE,
            ("sec-fetch-site", "cross-site"),
            ("upgrade", "websocket"),
        ];
        assert!(forged(&Method::GET, &headers(&socket), false));
    }
}
