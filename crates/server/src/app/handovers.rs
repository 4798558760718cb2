//! How a browser gets from the host of the API to the host of services and is known there: which step comes next for it.
//!
//! `http` reads what a browser brings, and makes redirects and cookies of the steps. Without a mark of its own a code would
//! be good in every browser: a user could lead another one into a session of his own, whose pages run with the rights of an
//! owner's.

mod codes;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use self::codes::{Codes, Handover};
use crate::app::context::Context;
use crate::app::services::{Service, Services};
use crate::auth::{Access, Accesses, Actor, Auth, new_token, token_hash};
use crate::error::{AppError, AppResult, ErrorKind};

/// Characters of a mark and of its hash: 32 bytes in base64.
const MARK_LENGTH: usize = 43;

/// Leads browsers to services. Cheap to clone.
#[derive(Clone)]
pub struct Handovers {
    codes: Codes,
    context: Context,
    services: Services,
    auth: Auth,
}

/// A host and port of the API, as a browser named them.
pub(crate) struct ApiName {
    /// Both, as they were written.
    pub(crate) text: String,
    /// The host in small letters.
    pub(crate) host: String,
    /// The port; `None` = the usual one.
    pub(crate) port: Option<u16>,
    /// Whether the host always means this machine.
    pub(crate) is_loopback: bool,
}

/// What a browser brings that asks for a service on the host of the API.
pub(crate) struct Departure<'a> {
    /// Host and port of the host of services, for this browser.
    pub(crate) services: &'a str,
    /// Where the browser has come to; `None` = it named nothing that it could be led back to.
    pub(crate) api: Option<ApiName>,
    /// Token of a session that the request has, valid or not; `None` = it has none.
    pub(crate) token: Option<&'a str>,
    /// Hash of the mark that it was given.
    pub(crate) mark: Option<String>,
}

/// Where a browser goes from the host of the API.
pub(crate) enum DepartureStep {
    /// To the service, which is open to every caller.
    Open,
    /// To the host of services with this code, to be given a mark.
    Begin(String),
    /// To the host of services with this code, to be given the cookie of the service.
    Enter(String),
}

/// What a browser brings that asks for a service on the host of services.
pub(crate) enum Arrival<'a> {
    /// A code that begins a way.
    Begin(&'a str),
    /// A code for the cookie of the service.
    Enter(&'a str),
    /// The cookie of the service, if any.
    Service(Option<&'a str>),
}

/// What comes of a browser on the host of services.
pub(crate) enum ArrivalStep {
    /// It keeps this mark, and goes back to this host of the API with the hash of it.
    Mark {
        /// Host and port of the API, as the browser named them.
        api: String,
        /// The mark that the browser keeps, a random text.
        mark: String,
        /// Hash of the mark: what the host of the API receives in its place.
        hash: String,
    },
    /// It keeps this cookie for the service.
    Enter(String),
    /// It may connect as far as this user may.
    Connect(Actor, Access),
}

impl Handovers {
    /// Puts the service together.
    pub(crate) fn new(context: Context, services: Services, auth: Auth) -> Self {
        Self {
            codes: Codes::default(),
            context,
            services,
            auth,
        }
    }

    /// Where a browser goes that asks for a service on the host of the API.
    ///
    /// # Errors
    /// The caller is not known, or may not connect, or cannot be led to the host of services.
    pub(crate) async fn depart(
        &self,
        service: &Service,
        caller: AppResult<Actor>,
        from: Departure<'_>,
    ) -> AppResult<DepartureStep> {
        let misdirected = || misdirected(service, from.services);
        let actor = match caller {
            Ok(actor @ Actor::User(_)) => actor,
            Ok(Actor::Task(_)) => return Err(misdirected()),
            Err(error) if error.kind == ErrorKind::Unauthenticated && service.unauthenticated => {
                return Ok(DepartureStep::Open);
            }
            Err(error) => return Err(error),
        };
        self.services.admit(&actor, service)?;
        let user = actor.user().id;
        let issue = |handover| self.codes.issue(user, &service.name, handover);
        match from.mark.filter(|mark| is_mark(mark)) {
            None => {
                let api = from.api.ok_or_else(misdirected)?;
                if !self.is_of_api(&api, from.services) {
                    return Err(unknown_api(service, &api));
                }
                let api = api.text;
                issue(Handover::Begin { api }).map(DepartureStep::Begin)
            }
            Some(mark) => {
                let token = from.token.ok_or_else(misdirected)?;
                let session = Accesses(&self.auth).of_session(token).await?;
                let (session, _) = session.ok_or_else(misdirected)?;
                let mark = mark.into_bytes();
                issue(Handover::Enter { session, mark }).map(DepartureStep::Enter)
            }
        }
    }

    /// Whether a browser can be led back to this host and port with the hash of its mark. A receiver of that hash can lead
    /// the browser into another user's session, and the sender of a request chooses what its `Host` names: only names that
    /// an administrator has listed count, at the master's own port, that of the host of services where it is configured, and
    /// 80 and 443. The first is taken by the master. At the others a task of that machine which shares its network could
    /// listen if nothing else did: containers get no `NET_BIND_SERVICE` there, unless an administrator gives it, and
    /// processes no capability at all.
    fn is_of_api(&self, named: &ApiName, services: &str) -> bool {
        let config = self.context.config();
        let mut listed = config.security.host_names.iter();
        let is_known = named.is_loopback || listed.any(|own| own.eq_ignore_ascii_case(&named.host));
        let of_services = services.rsplit_once(':');
        let of_services = of_services.and_then(|(_, port)| port.parse::<u16>().ok());
        let configured = config.security.services_host.as_deref();
        let configured = configured.is_some_and(|host| host.contains(':'));
        let is_port = named
            .port
            .is_none_or(|port| port == config.port || (configured && of_services == Some(port)));
        is_known && is_port
    }

    /// What comes of a browser that asks for a service on the host of services. `mark` = what it keeps as its mark.
    ///
    /// # Errors
    /// Its code is good for nothing, or it has no valid cookie for the service.
    pub(crate) async fn arrive(
        &self,
        service: &Service,
        brings: Arrival<'_>,
        mark: Option<&str>,
    ) -> AppResult<ArrivalStep> {
        let accesses = Accesses(&self.auth);
        let mark = mark.filter(|mark| is_mark(mark));
        match brings {
            Arrival::Begin(code) => {
                let Some(Handover::Begin { api }) = self.codes.redeem(code, &service.name) else {
                    return Err(used_up(service));
                };
                // Another page of the same browser may be on its way as well, with the same mark.
                let mark = mark.map_or_else(new_token, str::to_owned);
                let hash = hash_of(&mark);
                Ok(ArrivalStep::Mark { api, mark, hash })
            }
            Arrival::Enter(code) => {
                let handover = self.codes.redeem(code, &service.name);
                let Some(Handover::Enter { session, mark: of }) = handover else {
                    return Err(used_up(service));
                };
                if mark.is_none_or(|mark| hash_of(mark).as_bytes() != of) {
                    return Err(of_another_browser(service));
                }
                if !accesses.lives(&session).await? {
                    return Err(not_entered(service));
                }
                let cookie = session.services_cookie(&service.name);
                Ok(ArrivalStep::Enter(cookie))
            }
            Arrival::Service(cookie) => {
                let found = match cookie {
                    Some(cookie) => accesses.of_services_cookie(cookie, &service.name).await?,
                    None => None,
                };
                let (actor, access) = found.ok_or_else(|| not_entered(service))?;
                Ok(ArrivalStep::Connect(actor, access))
            }
        }
    }
}

/// The refusal of a request for the host of services that no redirect leads there.
pub(crate) fn misdirected(service: &Service, services: &str) -> AppError {
    AppError::new(
        ErrorKind::Misdirected,
        format!(
            "service \"{}\" is shown to browsers at {services} only, and this request cannot be led there",
            service.name
        ),
    )
    .hint("open its page first; programs send their token as \"Authorization: Bearer TOKEN\"")
}

fn unknown_api(service: &Service, named: &ApiName) -> AppError {
    AppError::new(
        ErrorKind::Misdirected,
        format!(
            "service \"{}\" is not opened by way of host \"{}\": it is none that this master is known to have",
            service.name, named.text
        ),
    )
    .hint(
        "an administrator lists the names of the API in \"security.host_names\"; its port is 80 or 443, the master's own, or \
         that of \"security.services_host\"",
    )
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

fn of_another_browser(service: &Service) -> AppError {
    AppError::new(
        ErrorKind::Unauthenticated,
        format!(
            "service \"{}\" is not opened: another browser was on its way to it, or this one keeps no cookies",
            service.name
        ),
    )
    .hint("open it from the master's own address, in a browser that keeps cookies of this host")
}

/// Whether a text has the form of a mark, or of the hash of one. Nothing else is stored or compared: a sender chooses how
/// long the parameter is.
fn is_mark(text: &str) -> bool {
    let of_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.len() == MARK_LENGTH && text.bytes().all(of_base64)
}

fn hash_of(mark: &str) -> String {
    URL_SAFE_NO_PAD.encode(token_hash(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_exactly_what_this_master_issues() {
        let mark = new_token();
        assert!(is_mark(&mark) && is_mark(&hash_of(&mark)));
        let long = mark.repeat(2);
        for other in ["", &mark[1..], &long, &mark.replacen(&mark[..1], "=", 1)] {
            assert!(!is_mark(other), "{other}");
        }
    }
}
