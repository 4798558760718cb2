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
//! Which step comes next is decided in [`crate::app::handovers`]; here are their redirects and cookies.

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, HOST, HeaderName, LOCATION, REFERRER_POLICY, SET_COOKIE, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use det_config::master::MasterConfig;

use super::browser::{is_page, is_page_request};
use crate::app::Master;
use crate::app::handovers::{
    ApiName, Arrival, ArrivalStep, Departure, DepartureStep, Handovers, misdirected,
};
use crate::app::services::{Protocol, Service};
use crate::auth::{Access, Actor};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::ApiError;
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
/// How long a browser keeps the cookie of a service, in seconds: as long as a session lives. It ends with its session,
/// whatever the browser keeps.
const COOKIE_SECONDS: u32 = 7 * 24 * 3600;

const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// By which name a request reached this master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestHost {
    /// There is one name for everything.
    Everything,
    /// The host of the API; services are shown to browsers at this host and port.
    Api { services: String },
    /// The host of services.
    Services,
}

impl RequestHost {
    /// The name by which a request with this address and these headers reached the master.
    pub(super) fn of(config: &MasterConfig, uri: &Uri, headers: &HeaderMap) -> Self {
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
    let place = RequestHost::of(&master.context.config(), request.uri(), request.headers());
    let path = request.uri().path();
    let is_service = path
        .strip_prefix("/proxy/")
        .is_some_and(|rest| !rest.is_empty());
    if place != RequestHost::Services || is_service {
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
    handovers: &Handovers,
    caller: AppResult<Actor>,
    parts: &Parts,
    service: &Service,
    services: &str,
) -> AppResult<Response> {
    if parts.method != Method::GET || parts.headers.contains_key(UPGRADE) {
        return Err(misdirected(service, services));
    }
    let (own, rest) = own_parameters(&parts.uri);
    let path = with_slash(parts.uri.path());
    let token = tokens::session_token(&parts.headers);
    let from = Departure {
        services,
        api: authority(&parts.uri, &parts.headers).map(|named| api_name(&named)),
        token: token.as_deref(),
        mark: own.mark,
    };
    let step = match handovers.depart(service, caller, from).await {
        Err(error) if error.kind == ErrorKind::Unauthenticated && is_page(parts) => {
            return page::login::first(parts);
        }
        step => step?,
    };
    let parameter = match &step {
        DepartureStep::Open => None,
        DepartureStep::Begin(code) => Some((BEGIN, code.as_str())),
        DepartureStep::Enter(code) => Some((ENTER, code.as_str())),
    };
    redirect(services, &path, &rest, parameter, None)
}

fn api_name(named: &Authority) -> ApiName {
    let host = host_of(named.as_str()).unwrap_or_default();
    ApiName {
        text: named.to_string(),
        is_loopback: is_loopback_name(&host),
        host,
        port: named.port_u16(),
    }
}

/// What a request on the host of services comes to.
pub(super) enum Visit {
    /// It is answered here.
    Answered(Response),
    /// It goes on, if this caller may connect.
    From(AppResult<(Actor, Access)>),
}

/// Looks at a request on the host of services: a step of a browser's way there, or one with its cookie. `tls` = the master
/// serves TLS.
pub(super) async fn visit(
    handovers: &Handovers,
    parts: &Parts,
    service: &Service,
    tls: bool,
) -> AppResult<Visit> {
    let path = parts.uri.path();
    let (own, rest) = own_parameters(&parts.uri);
    let steps = parts.method == Method::GET
        && service.protocol == Protocol::Http
        && !parts.headers.contains_key(UPGRADE);
    let brings = match (&own.begin, &own.enter) {
        (Some(code), _) if steps => Arrival::Begin(code),
        (None, Some(code)) if steps => Arrival::Enter(code),
        _ if steps && with_slash(path) != path => {
            return local(&with_slash(path), &rest, None).map(Visit::Answered);
        }
        _ => {
            let name = tokens::SERVICES_COOKIE.name(tls);
            Arrival::Service(tokens::cookie(&parts.headers, name))
        }
    };
    let is_step = !matches!(brings, Arrival::Service(_));
    let mark = tokens::cookie(&parts.headers, tokens::MARK_COOKIE.name(tls));
    match handovers.arrive(service, brings, mark).await {
        Ok(ArrivalStep::Mark { api, mark, hash }) => {
            let name = tokens::MARK_COOKIE.name(tls);
            let cookie = cookie(tls, name, &mark, path, MARK_SECONDS)?;
            redirect(&api, path, &rest, Some((MARK, &hash)), Some(cookie)).map(Visit::Answered)
        }
        Ok(ArrivalStep::Enter(value)) => {
            let name = tokens::SERVICES_COOKIE.name(tls);
            let cookie = cookie(tls, name, &value, path, COOKIE_SECONDS)?;
            local(path, &rest, Some(cookie)).map(Visit::Answered)
        }
        Ok(ArrivalStep::Connect(actor, access)) => Ok(Visit::From(Ok((actor, access)))),
        // Without a cookie a service may be open still.
        Err(error) if !is_step && error.kind == ErrorKind::Unauthenticated => {
            Ok(Visit::From(Err(error)))
        }
        Err(error) => Err(error),
    }
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
fn cookie(tls: bool, name: &str, value: &str, path: &str, seconds: u32) -> AppResult<HeaderValue> {
    let secure = if tls { "; Secure" } else { "" };
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

    fn place(services: &str, host: &str) -> RequestHost {
        RequestHost::beside(services, host.parse().ok().as_ref())
    }

    #[test]
    fn the_name_of_a_host_decides_whatever_the_port() {
        for host in [
            "services.example",
            "SERVICES.example.:8443",
            "services.example:80",
        ] {
            assert_eq!(
                place("services.example", host),
                RequestHost::Services,
                "{host}"
            );
            assert_eq!(
                place("Services.Example:8443", host),
                RequestHost::Services,
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
            let api = RequestHost::Api {
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
