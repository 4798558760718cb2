//! Cookies that pass between browsers and services.
//!
//! All services share a host, with the API or apart from it, and a browser sends a cookie wherever its path leads. So a cookie
//! that a service sets is for the paths of this service alone, and none passes between a service and the browser of a user
//! who is not its owner. Cookies of the master never pass.

use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue};

use crate::http::tokens;

/// Whose browser it is that a service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience<'a> {
    /// The owner's, which asked for this path: it chooses the cookies to send by the path as it has written it.
    Owner(&'a str),
    /// Another user's, or that of a user who is not known.
    Others,
}

/// Leaves the cookies that a service is sent: none of the master's, and none of others than its owner, whose browsers may
/// have some of other programs on this host.
pub(super) fn send(headers: &mut HeaderMap, audience: Audience<'_>) {
    let cookies: Vec<HeaderValue> = headers
        .get_all(COOKIE)
        .iter()
        .filter(|_| matches!(audience, Audience::Owner(_)))
        .filter_map(|value| value.to_str().ok())
        .map(without_session)
        .filter(|text| !text.is_empty())
        .filter_map(|text| HeaderValue::try_from(text).ok())
        .collect();
    headers.remove(COOKIE);
    for cookie in cookies {
        headers.append(COOKIE, cookie);
    }
}

/// Cookies without those that are for the master.
fn without_session(cookies: &str) -> String {
    let kept: Vec<&str> = cookies
        .split(';')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .filter(|pair| !tokens::is_masters_cookie(pair.split('=').next().unwrap_or_default()))
        .collect();
    kept.join("; ")
}

/// Confines the cookies that an answer of the service `name` sets to this service.
pub(super) fn confine(headers: &mut HeaderMap, name: &str, audience: Audience<'_>) {
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    let Audience::Owner(path) = audience else {
        return;
    };
    // `/proxy/SERVICE`
    let mount = path.match_indices('/').nth(2);
    let mount = mount.map_or(path, |(end, _)| &path[..end]);
    // It would end the path of the cookie. No service has such a name at present.
    if mount.contains(';') {
        return;
    }
    let own = format!("/proxy/{name}");
    let confined = cookies
        .iter()
        .filter_map(|cookie| confined(cookie.as_bytes(), mount, &own));
    for cookie in confined {
        headers.append(SET_COOKIE, cookie);
    }
}

/// A cookie below `mount`, or below `own`, where programs know themselves to be; `None` = it cannot be one.
///
/// What a browser makes of the text is in RFC 6265 §5.2: of several attributes of one name the last one counts, and a path
/// that does not begin with a slash is none.
fn confined(cookie: &[u8], mount: &str, own: &str) -> Option<HeaderValue> {
    let mut parts = cookie.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let pair = parts.next()?;
    // Without a name, or without a sign after it, the value could be taken for a name.
    let name = pair.split(|byte| *byte == b'=').next()?.trim_ascii();
    if name.is_empty() || name.len() == pair.len() {
        return None;
    }
    let is_masters = tokens::is_masters_cookie(&String::from_utf8_lossy(name));
    // Browsers take these for a whole host only.
    let is_of_host = name
        .get(..HOST_PREFIX.len())
        .is_some_and(|prefix| prefix.eq_ignore_ascii_case(HOST_PREFIX));
    if is_masters || is_of_host {
        return None;
    }
    let mut text = pair.to_vec();
    let mut path: &[u8] = b"";
    for part in parts {
        let (key, value) = match part.iter().position(|byte| *byte == b'=') {
            Some(sign) => (part[..sign].trim_ascii(), part[sign + 1..].trim_ascii()),
            None => (part, &b""[..]),
        };
        if key.eq_ignore_ascii_case(b"path") {
            path = value;
        } else if !key.eq_ignore_ascii_case(b"domain") && !part.is_empty() {
            text.extend_from_slice(b"; ");
            text.extend_from_slice(part);
        }
    }
    let is_below = |mount: &str| {
        let rest = path.strip_prefix(mount.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    text.extend_from_slice(b"; Path=");
    if is_below(mount) || is_below(own) {
        text.extend_from_slice(path);
    } else {
        text.extend_from_slice(mount.as_bytes());
        text.push(b'/');
    }
    HeaderValue::from_bytes(&text).ok()
}

/// Begin of names of cookies that have the path `/` (RFC 6265bis §4.1.3.2).
const HOST_PREFIX: &[u8] = b"__Host-";

#[cfg(test)]
mod tests {
    use super::*;

    /// What the owner's browser gets of these, having asked for `path` of the service `t:80`.
    fn set(path: &str, cookies: &[&str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(SET_COOKIE, cookie.parse().unwrap());
        }
        confine(&mut headers, "t:80", Audience::Owner(path));
        let set = headers.get_all(SET_COOKIE).iter();
        set.map(|cookie| cookie.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_cookie_of_a_service_is_for_its_own_paths() {
        for (given, confined) in [
            ("gradio=evil; Path=/", "gradio=evil; Path=/proxy/t:80/"),
            (
                "s=1; Path=/proxy/other/; HttpOnly",
                "s=1; HttpOnly; Path=/proxy/t:80/",
            ),
            // The name of the service is a beginning of another one.
            ("s=1; Path=/proxy/t", "s=1; Path=/proxy/t:80/"),
            ("s=1; Path=/proxy/t:808/", "s=1; Path=/proxy/t:80/"),
            ("s=1; Path=/proxy/t:80", "s=1; Path=/proxy/t:80/"),
            ("s=1", "s=1; Path=/proxy/t:80/"),
            ("s=1; path", "s=1; Path=/proxy/t:80/"),
            ("s=1; Path=proxy/t:80/x", "s=1; Path=/proxy/t:80/"),
            // The last one counts.
            (
                "s=1; Path=/proxy/t:80/a; PATH = /",
                "s=1; Path=/proxy/t:80/",
            ),
            (
                "s=1; Domain=example.com;Secure; domain=.com",
                "s=1; Secure; Path=/proxy/t:80/",
            ),
            // Jupyter, whose base is its address here.
            (
                "_xsrf=2|a|b; Path=/proxy/t:80/",
                "_xsrf=2|a|b; Path=/proxy/t:80/",
            ),
            (
                "s=\"a=b\"; Expires=Wed, 01 Jan 2031 00:00:00 GMT; Path=/proxy/t:80/sub; SameSite=Lax",
                "s=\"a=b\"; Expires=Wed, 01 Jan 2031 00:00:00 GMT; SameSite=Lax; Path=/proxy/t:80/sub",
            ),
        ] {
            assert_eq!(set("/proxy/t:80/x/y", &[given]), [confined], "{given}");
        }
    }

    #[test]
    fn a_path_is_the_one_that_the_browser_has_asked_for() {
        // A browser compares paths as they are written.
        for path in ["/proxy/t%3A80/x", "/proxy/t%3A80/", "/proxy/t%3A80"] {
            assert_eq!(set(path, &["s=1; Path=/"]), ["s=1; Path=/proxy/t%3A80/"]);
        }
        let own = "s=1; Path=/proxy/t:80/";
        assert_eq!(set("/proxy/t%3A80/x", &[own]), [own]);
    }

    #[test]
    fn cookies_that_cannot_be_confined_are_left_out() {
        let refused = [
            "auth=stolen; Path=/",
            "det-services=stolen; Path=/proxy/t:80/",
            "DET-services-mark=known; Path=/",
            "__secure-det-services=stolen; Secure",
            "__Host-session=1; Secure; Path=/",
            "__host-session=1; Secure; Path=/",
            "=auth=stolen",
            "auth; Path=/",
            "",
        ];
        assert_eq!(set("/proxy/t:80/", &refused), [""; 0]);
    }

    #[test]
    fn a_service_gets_the_cookies_that_are_not_the_masters() {
        let mut headers = HeaderMap::new();
        for cookies in [
            "auth=session; _xsrf=1; det-services=c; det-services-mark=m",
            "auth=again",
        ] {
            headers.append(COOKIE, cookies.parse().unwrap());
        }
        send(&mut headers, Audience::Owner("/proxy/t/"));
        assert_eq!(headers[COOKIE], "_xsrf=1");
    }

    #[test]
    fn no_cookie_passes_between_a_service_and_the_browsers_of_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "session=of-another-program".parse().unwrap());
        send(&mut headers, Audience::Others);
        headers.append(SET_COOKIE, "s=1; Path=/proxy/t/".parse().unwrap());
        confine(&mut headers, "t", Audience::Others);
        assert!(headers.is_empty());
    }
}
