//! The host of services, `security.services_host`: where browsers get the services of tasks, apart from the API.
//! `docs/security.md`, "The host of services".
//!
//! A browser that asks the host of the API for a service is led through three redirects:
//!
//! 1. from the API to the host of services, with a code ([`BEGIN`]);
//! 2. there it is given a mark, a cookie, and goes back with the hash of the mark ([`MARK`]);
//! 3. from the API, which knows the session, to the host of services with a code for this service, session and mark
//!    ([`ENTER`]), which it exchanges for the cookie of the service.
//!
//! Without the mark a code would be good in every browser: a user could lead another one into a session of his own, whose
//! pages run with the rights of an owner's.

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, HOST, HeaderName, LOCATION, REFERRER_POLICY, SET_COOKIE, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{is_page, is_page_request};
use crate::app::Master;
use crate::app::handovers::Handover;
use crate::app::services::{Protocol, Service};
use crate::auth::{Access, Accesses, Actor, new_token, token_hash};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::ApiError;
use crate::http::extract::caller_with_access;
use crate::http::origin::{host_of, is_loopback_name};
use crate::http::page;
use crate::http::tokens;

/// Parameter with a code that begins a way.
const BEGIN: &str = "det-services-begin";
/// Parameter with the hash of the browser's mark.
const MARK: &str = "det-services-mark";
/// Parameter with a code for the cookie of the service.
const ENTER: &str = "det-services-code";
/// How long a browser keeps its mark, in seconds: a login may come between.
const MARK_SECONDS: u32 = 600;
/// Characters of a mark and of its hash: 32 bytes in base64.
const MARK_LENGTH: usize = 43;
/// How long a browser keeps the cookie of a service, in seconds: as long as a session lives. It ends with its session,
/// whatever the browser keeps.
const COOKIE_SECONDS: u32 = 7 * 24 * 3600;

const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// By which name a request reached this master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// There is one name for everything.
    Everything,
    /// The host of the API; services are shown to browsers at this host and port.
    Api { services: String },
    /// The host of services.
    Services,
}

impl Place {
    /// Of a request with this address and these headers.
    pub(super) fn of(master: &Master, uri: &Uri, headers: &HeaderMap) -> Self {
        let config = master.context.config();
        match &config.security.services_host {
            Some(services) => Self::beside(services, authority(uri, headers).as_ref()),
            None => Self::Everything,
        }
    }

    fn beside(services: &str, named: Option<&Authority>) -> Self {
        let host = services.split(':').next().unwrap_or_default();
        let is_services = named
            .and_then(|named| host_of(named.as_str()))
            .is_some_and(|named| named.eq_ignore_ascii_case(host));
        if is_services {
            return Self::Services;
        }
        let port = named.and_then(Authority::port_u16);
        Self::Api {
            services: match port.filter(|_| host.len() == services.len()) {
                Some(port) => format!("{host}:{port}"),
                None => services.to_owned(),
            },
        }
    }
}

/// Host and port that a request names.
fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let header = || headers.get(HOST)?.to_str().ok()?.parse().ok();
    let named = uri.authority().cloned().or_else(header)?;
    (!named.as_str().contains('@')).then_some(named)
}

/// Keeps everything but services away from the host of services.
pub(crate) async fn apart(State(master): State<Master>, request: Request, next: Next) -> Response {
    let place = Place::of(&master, request.uri(), request.headers());
    let path = request.uri().path();
    let is_service = path
        .strip_prefix("/proxy/")
        .is_some_and(|rest| !rest.is_empty());
    if place != Place::Services || is_service {
        return next.run(request).await;
    }
    let error = AppError::new(
        ErrorKind::Misdirected,
        format!(
            "{} {path} was sent to the host that is for services of tasks alone (\"security.services_host\")",
            request.method()
        ),
    )
    .hint("send it to the master's own address");
    if is_page_request(request.method(), request.headers()) {
        page::refused(&error)
    } else {
        ApiError(error).into_response()
    }
}

/// Whether a browser sent a request to the host of the API for what belongs on the host of services. Programs bring a token
/// in a header, or nothing of a browser's.
pub(super) fn is_from_browser(parts: &Parts) -> bool {
    let headers = &parts.headers;
    let has_token = tokens::header_token(headers).or_else(|| tokens::allocation_token(headers));
    has_token.is_none()
        && (tokens::has_users_cookie(headers)
            || headers.contains_key(SEC_FETCH_SITE)
            || headers.contains_key(SEC_FETCH_DEST)
            || is_page(parts))
}

/// Leads a browser from the host of the API on its way to `services`.
pub(super) async fn hand_over(
    master: &Master,
    parts: &Parts,
    service: &Service,
    services: &str,
) -> AppResult<Response> {
    let misdirected = || {
        AppError::new(
            ErrorKind::Misdirected,
            format!(
                "service \"{}\" is shown to browsers at {services} only, and this request cannot be led there",
                service.name
            ),
        )
        .hint("open its page first; programs send their token as \"Authorization: Bearer TOKEN\"")
    };
    if parts.method != Method::GET || parts.headers.contains_key(UPGRADE) {
        return Err(misdirected());
    }
    let (own, rest) = own_parameters(&parts.uri);
    let path = with_slash(parts.uri.path());
    let actor = match caller_with_access(parts, master).await {
        Ok((actor @ Actor::User(_), _)) => actor,
        Ok((Actor::Task(_), _)) => return Err(misdirected()),
        Err(error) if error.kind != ErrorKind::Unauthenticated => return Err(error),
        Err(_) if service.unauthenticated => {
            return redirect(services, &path, &rest, None, None);
        }
        Err(_) if is_page(parts) => return page::login::first(parts),
        Err(error) => return Err(error),
    };
    master.services.admit(&actor, service)?;
    let (parameter, handover) = match own.mark.filter(|mark| is_issued(mark)) {
        None => {
            let api = authority(&parts.uri, &parts.headers).ok_or_else(misdirected)?;
            if !is_of_api(master, &api, services) {
                return Err(unknown_api(service, &api));
            }
            let api = api.to_string();
            (BEGIN, Handover::Begin { api })
        }
        Some(mark) => {
            let token = tokens::session_token(&parts.headers).ok_or_else(misdirected)?;
            let session = Accesses(&master.auth).of_session(&token).await?;
            let (session, _) = session.ok_or_else(misdirected)?;
            let mark = mark.into_bytes();
            (ENTER, Handover::Enter { session, mark })
        }
    };
    let user = actor.user().id;
    let code = master.handovers.issue(user, &service.name, handover)?;
    redirect(services, &path, &rest, Some((parameter, &code)), None)
}

/// Whether a browser can be led back to this host and port with the hash of its mark. A receiver of that hash can lead
/// the browser into another user's session, and the sender of a request chooses what its `Host` names: only names that an
/// administrator has listed count, at the master's own port, that of the host of services where it is configured, and 80 and
/// 443. The first is taken by the master. At the others a task of that machine which shares its network could listen if
/// nothing else did: containers get no `NET_BIND_SERVICE` there, unless an administrator gives it, and processes no
/// capability at all.
fn is_of_api(master: &Master, named: &Authority, services: &str) -> bool {
    let config = master.context.config();
    let host = host_of(named.as_str()).unwrap_or_default();
    let mut listed = config.security.host_names.iter();
    let is_known = is_loopback_name(&host) || listed.any(|own| own.eq_ignore_ascii_case(&host));
    let of_services = services.parse::<Authority>().ok();
    let of_services = of_services.and_then(|services| services.port_u16());
    let configured = config.security.services_host.as_deref();
    let configured = configured.is_some_and(|host| host.contains(':'));
    let is_port = named
        .port_u16()
        .is_none_or(|port| port == config.port || (configured && of_services == Some(port)));
    is_known && is_port
}

fn unknown_api(service: &Service, named: &Authority) -> AppError {
    AppError::new(
        ErrorKind::Misdirected,
        format!(
            "service \"{}\" is not opened by way of host \"{named}\": it is none that this master is known to have",
            service.name
        ),
    )
    .hint(
        "an administrator lists the names of the API in \"security.host_names\"; its port is 80 or 443, the master's own, or \
         that of \"security.services_host\"",
    )
}

/// What a request on the host of services comes to.
pub(super) enum Visit {
    /// It is answered here.
    Answered(Response),
    /// It goes on, if this caller may connect.
    From(AppResult<(Actor, Access)>),
}

/// Looks at a request on the host of services: a step of a browser's way there, or one with its cookie.
pub(super) async fn visit(master: &Master, parts: &Parts, service: &Service) -> AppResult<Visit> {
    let steps = parts.method == Method::GET
        && service.protocol == Protocol::Http
        && !parts.headers.contains_key(UPGRADE);
    if steps && let Some(answer) = step(master, parts, service).await? {
        return Ok(Visit::Answered(answer));
    }
    let cookie = tokens::cookie(&parts.headers, tokens::SERVICES_COOKIE.name(master.tls));
    let found = match cookie {
        Some(cookie) => {
            let accesses = Accesses(&master.auth);
            accesses.of_services_cookie(cookie, &service.name).await?
        }
        None => None,
    };
    Ok(Visit::From(found.ok_or_else(|| not_entered(service))))
}

fn not_entered(service: &Service) -> AppError {
    AppError::new(
        ErrorKind::Unauthenticated,
        format!(
            "service \"{}\" is not open to this browser: it has no valid cookie for it, or the session has ended",
            service.name
        ),
    )
    .hint(format!(
        "open it from the master's own address, as `det notebook open` and `det tensorboard open` do: /proxy/{}/ there",
        service.name
    ))
}

async fn step(master: &Master, parts: &Parts, service: &Service) -> AppResult<Option<Response>> {
    let path = parts.uri.path();
    let (own, rest) = own_parameters(&parts.uri);
    if let Some(code) = own.begin {
        let Some(Handover::Begin { api }) = master.handovers.redeem(&code, &service.name) else {
            return Err(used_up(service));
        };
        // Another page of the same browser may be on its way as well, with the same mark.
        let known = mark_of(master, parts);
        let mark = known.map_or_else(new_token, str::to_owned);
        let name = tokens::MARK_COOKIE.name(master.tls);
        let cookie = cookie(master, name, &mark, path, MARK_SECONDS)?;
        let hash = hash_of(&mark);
        return redirect(&api, path, &rest, Some((MARK, &hash)), Some(cookie)).map(Some);
    }
    if let Some(code) = own.enter {
        let handover = master.handovers.redeem(&code, &service.name);
        let Some(Handover::Enter { session, mark }) = handover else {
            return Err(used_up(service));
        };
        let known = mark_of(master, parts);
        if known.is_none_or(|known| hash_of(known).as_bytes() != mark) {
            return Err(AppError::new(
                ErrorKind::Unauthenticated,
                format!(
                    "service \"{}\" is not opened: another browser was on its way to it, or this one keeps no cookies",
                    service.name
                ),
            )
            .hint("open it from the master's own address, in a browser that keeps cookies of this host"));
        }
        if !Accesses(&master.auth).lives(&session).await? {
            return Err(not_entered(service));
        }
        let value = session.services_cookie(&service.name);
        let cookie = cookie(
            master,
            tokens::SERVICES_COOKIE.name(master.tls),
            &value,
            path,
            COOKIE_SECONDS,
        )?;
        return local(path, &rest, Some(cookie)).map(Some);
    }
    if with_slash(path) != path {
        return local(&with_slash(path), &rest, None).map(Some);
    }
    Ok(None)
}

fn used_up(service: &Service) -> AppError {
    AppError::new(
        ErrorKind::Unauthenticated,
        format!(
            "service \"{}\" is not opened by this address: its code has been used, has expired, or is for another service",
            service.name
        ),
    )
    .hint("open the service from the master's own address again")
}

/// The mark of a browser, if it has one of this master's.
fn mark_of<'p>(master: &Master, parts: &'p Parts) -> Option<&'p str> {
    let mark = tokens::cookie(&parts.headers, tokens::MARK_COOKIE.name(master.tls));
    mark.filter(|mark| is_issued(mark))
}

/// Whether a text has the form of a mark, or of the hash of one. Nothing else is stored or compared: a sender chooses how
/// long the parameter is.
fn is_issued(text: &str) -> bool {
    let of_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.len() == MARK_LENGTH && text.bytes().all(of_base64)
}

fn hash_of(mark: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token_hash(mark))
}

/// The parameters of an address that are for the way to the host of services.
#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    begin: Option<String>,
    mark: Option<String>,
    enter: Option<String>,
}

/// Those parameters, and the query without them.
fn own_parameters(uri: &Uri) -> (Own, String) {
    let mut own = Own::default();
    let query = uri.query().unwrap_or_default();
    let rest = query.split('&').filter(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let found = match name {
            BEGIN => &mut own.begin,
            MARK => &mut own.mark,
            ENTER => &mut own.enter,
            _ => return !pair.is_empty(),
        };
        *found = Some(value.to_owned());
        false
    });
    let rest = rest.collect::<Vec<_>>().join("&");
    (own, rest)
}

/// The path of a service, with a slash behind its name: the cookie is for what is below that.
fn with_slash(path: &str) -> String {
    let is_bare = path.split('/').count() == 3;
    format!("{path}{}", if is_bare { "/" } else { "" })
}

/// A cookie for one service: its path is the service's, as the browser wrote it.
fn cookie(
    master: &Master,
    name: &str,
    value: &str,
    path: &str,
    seconds: u32,
) -> AppResult<HeaderValue> {
    let secure = if master.tls { "; Secure" } else { "" };
    let service = path.split('/').nth(2).unwrap_or_default();
    let text = format!(
        "{name}={value}; Path=/proxy/{service}/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    );
    let mut cookie = HeaderValue::try_from(text).map_err(AppError::internal)?;
    cookie.set_sensitive(true);
    Ok(cookie)
}

fn redirect(
    host: &str,
    path: &str,
    query: &str,
    parameter: Option<(&str, &str)>,
    cookie: Option<HeaderValue>,
) -> AppResult<Response> {
    let own = parameter.map(|(name, value)| format!("{name}={value}"));
    let query = [
        Some(query.to_owned()).filter(|query| !query.is_empty()),
        own,
    ];
    let query = query.into_iter().flatten().collect::<Vec<_>>().join("&");
    // Without a scheme it is the one by which the browser came, also behind a proxy that ends TLS.
    local(&format!("//{host}{path}"), &query, cookie)
}

fn local(address: &str, query: &str, cookie: Option<HeaderValue>) -> AppResult<Response> {
    let to = match query {
        "" => address.to_owned(),
        query => format!("{address}?{query}"),
    };
    let to = HeaderValue::try_from(to).map_err(AppError::internal)?;
    let mut response = (
        StatusCode::SEE_OTHER,
        [
            (LOCATION, to),
            (CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        ],
    )
        .into_response();
    if let Some(cookie) = cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(services: &str, host: &str) -> Place {
        Place::beside(services, host.parse().ok().as_ref())
    }

    #[test]
    fn the_name_of_a_host_decides_whatever_the_port() {
        for host in [
            "services.example",
            "SERVICES.example.:8443",
            "services.example:80",
        ] {
            assert_eq!(place("services.example", host), Place::Services, "{host}");
            assert_eq!(
                place("Services.Example:8443", host),
                Place::Services,
                "{host}"
            );
        }
        for (services, host, leads_to) in [
            ("services.example", "det.example", "services.example"),
            (
                "services.example",
                "det.example:8080",
                "services.example:8080",
            ),
            (
                "services.example:8443",
                "det.example:8080",
                "services.example:8443",
            ),
            (
                "services.example",
                "x.services.example:1",
                "services.example:1",
            ),
            ("services.example", "", "services.example"),
        ] {
            let api = Place::Api {
                services: leads_to.into(),
            };
            assert_eq!(place(services, host), api, "{services} {host}");
        }
    }

    #[test]
    fn what_is_for_the_way_does_not_reach_the_service() {
        let uri = "/proxy/t/x?a=1&det-services-code=c&b&det-services-mark=m&det-services-begin";
        let (own, rest) = own_parameters(&Uri::from_static(uri));
        assert_eq!(rest, "a=1&b");
        assert_eq!(own.enter.as_deref(), Some("c"));
        assert_eq!(own.mark.as_deref(), Some("m"));
        assert_eq!(own.begin.as_deref(), Some(""));
    }

    #[test]
    fn a_mark_is_exactly_what_this_master_issues() {
        let mark = new_token();
        assert!(is_issued(&mark) && is_issued(&hash_of(&mark)));
        let long = mark.repeat(2);
        for other in ["", &mark[1..], &long, &mark.replacen(&mark[..1], "=", 1)] {
            assert!(!is_issued(other), "{other}");
        }
    }

    #[test]
    fn only_the_bare_name_of_a_service_gets_a_slash() {
        assert_eq!(with_slash("/proxy/t"), "/proxy/t/");
        assert_eq!(with_slash("/proxy/t/"), "/proxy/t/");
        assert_eq!(with_slash("/proxy/t/x"), "/proxy/t/x");
    }

    #[test]
    fn a_host_with_a_user_in_it_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("det.example@evil.example"));
        assert_eq!(authority(&Uri::from_static("/"), &headers), None);
    }
}
