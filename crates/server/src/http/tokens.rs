//! The tokens that a request brings.

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, header};

fn bearer(value: &str) -> Option<String> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim().to_owned())
}

/// The token in the `Authorization` header.
pub(crate) fn header_token(headers: &HeaderMap) -> Option<String> {
    headers
        .get(AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(bearer)
}

/// The token of a user's session: header, else cookie.
pub fn session_token(headers: &HeaderMap) -> Option<String> {
    if let Some(token) = header_token(headers) {
        return Some(token);
    }
    cookie(headers, SESSION_COOKIE).map(str::to_owned)
}

/// The cookie of a session.
pub(crate) const SESSION_COOKIE: &str = "auth";
/// A cookie of the way to the host of services, with a name for each way to speak.
///
/// Cookies know no ports: a task that listens at another port of the master's host is sent those without `Secure`, and sets
/// any that is not protected. With TLS the name begins with `__Secure-`, for which a browser takes only cookies that were set
/// over TLS (RFC 6265bis §4.1.3.1), and no other name is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnCookie {
    plain: &'static str,
    secure: &'static str,
}

impl OwnCookie {
    /// The name that this master gives and reads.
    pub(crate) fn name(self, tls: bool) -> &'static str {
        if tls { self.secure } else { self.plain }
    }
}

/// The cookie with which a browser uses one service on the host of services.
pub(crate) const SERVICES_COOKIE: OwnCookie = OwnCookie {
    plain: "det-services",
    secure: "__Secure-det-services",
};
/// The cookie that marks a browser which is on its way there.
pub(crate) const MARK_COOKIE: OwnCookie = OwnCookie {
    plain: "det-services-mark",
    secure: "__Secure-det-services-mark",
};

/// Whether a cookie of this name is the master's, and for no service. Browsers compare with case; services need not.
pub(crate) fn is_masters_cookie(name: &str) -> bool {
    let of_services = [SERVICES_COOKIE, MARK_COOKIE];
    let of_services = of_services.iter().flat_map(|own| [own.plain, own.secure]);
    of_services
        .chain([SESSION_COOKIE])
        .any(|own| name.eq_ignore_ascii_case(own))
}

/// Whether a request has a cookie that identifies a user, valid or not.
pub(crate) fn has_users_cookie(headers: &HeaderMap) -> bool {
    let names = [
        SESSION_COOKIE,
        SERVICES_COOKIE.plain,
        SERVICES_COOKIE.secure,
    ];
    names
        .iter()
        .any(|name| cookies(headers, name).next().is_some())
}

/// The values of the cookies of this name.
fn cookies<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(';'))
        .filter_map(move |pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// The value of the cookie of this name; `None` = there is none, or there are several with different values.
///
/// A browser sends all cookies of one name, that with the longest path first: a page that may set cookies for this host could
/// put one of another user's before the user's own, and the browser would act in a session of that user. This master sets one.
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = cookies(headers, name);
    let first = values.next()?;
    values.all(|other| other == first).then_some(first)
}

/// The token of a task.
pub fn allocation_token(headers: &HeaderMap) -> Option<String> {
    headers
        .get("Grpc-Metadata-x-allocation-token")
        .and_then(|v| v.to_str().ok())
        .and_then(bearer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(cookies: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for text in cookies {
            headers.append(header::COOKIE, header::HeaderValue::from_static(text));
        }
        headers
    }

    #[test]
    fn a_cookie_that_was_put_before_another_one_is_not_taken_for_it() {
        for (cookies, session) in [
            (&["auth=own"][..], Some("own")),
            (&["x=1; auth=own; auth=own"], Some("own")),
            (&["auth=own", "auth=own"], Some("own")),
            (&["auth=planted; auth=own"], None),
            (&["auth=planted", "auth=own"], None),
            (&["auth=; auth=own"], None),
            (&["authx=planted; auth=own"], Some("own")),
            (&["x=auth"], None),
        ] {
            let headers = headers(cookies);
            assert_eq!(session_token(&headers).as_deref(), session, "{cookies:?}");
        }
        let mut both = headers(&["auth=planted; auth=own"]);
        assert!(has_users_cookie(&both));
        let token = header::HeaderValue::from_static("Bearer t");
        both.insert(AUTHORIZATION, token);
        assert_eq!(session_token(&both).as_deref(), Some("t"));
    }

    #[test]
    fn with_tls_the_cookies_of_services_have_names_that_only_tls_sets() {
        for own in [SERVICES_COOKIE, MARK_COOKIE] {
            let (plain, secure) = (own.name(false), own.name(true));
            assert_eq!(secure, format!("__Secure-{plain}"));
            assert!(is_masters_cookie(plain) && is_masters_cookie(secure));
            assert!(is_masters_cookie(&secure.to_ascii_uppercase()));
        }
    }
}
