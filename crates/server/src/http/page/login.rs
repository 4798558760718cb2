//! The page on which one logs in: a form without scripts, which leads back to where the browser came from.

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::app::Master;
use crate::auth::Ends;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::auth::session_cookie;
use crate::http::error::{ApiError, status_of};
use crate::http::extract::RawBody;
use crate::http::origin::is_from_foreign_page;
use crate::http::page::{answer, escape, layout};

/// Path of the page.
pub(crate) const PATH: &str = "/det/login";

/// Where the browser goes afterwards.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ReturnTo {
    redirect: String,
}

/// What the form sends. Not printable: it contains a password.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Credentials {
    username: String,
    password: String,
    redirect: String,
}

/// Sends a browser here first, and from here back to what it asked for.
pub(crate) fn first(parts: &Parts) -> AppResult<Response> {
    let back = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let back = utf8_percent_encode(back, NON_ALPHANUMERIC);
    let to = HeaderValue::try_from(format!("{PATH}?redirect={back}"));
    let to = to.map_err(AppError::internal)?;
    Ok((StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response())
}

/// The form for logging in, as a page.
pub(crate) async fn show(Query(back): Query<ReturnTo>) -> Response {
    answer(form("", &back.redirect, None))
}

/// Logs in and leads back, or shows the form again with what is wrong.
pub(crate) async fn submit(
    State(master): State<Master>,
    Extension(ends): Extension<Ends>,
    headers: HeaderMap,
    body: RawBody,
) -> Response {
    if is_from_foreign_page(&headers) {
        let message = "forbidden: the form of this page was sent by a page of another site";
        return ApiError(AppError::new(ErrorKind::Forbidden, message)).into_response();
    }
    let read = |body: &[u8]| {
        let invalid = |error| {
            ApiError(AppError::invalid(format!(
                "the form of a login cannot be read: {error}"
            )))
        };
        serde_urlencoded::from_bytes::<Credentials>(body).map_err(invalid)
    };
    let given = match body.decode(read).await {
        Ok(given) => given,
        Err(error) => return error.into_response(),
    };
    let login = master
        .auth
        .login(&given.username, &given.password, false, ends);
    match login.await {
        Ok((token, _)) => led_back(master.tls, &token, &given.redirect),
        Err(error) => {
            let page = form(&given.username, &given.redirect, Some(&error.message));
            (status_of(&error), answer(page)).into_response()
        }
    }
}

fn led_back(tls: bool, token: &str, redirect: &str) -> Response {
    let to = HeaderValue::try_from(own_path(redirect));
    match (to, session_cookie(tls, Some(token))) {
        (Ok(to), Ok(cookie)) => (
            StatusCode::SEE_OTHER,
            [(LOCATION, to), (SET_COOKIE, cookie)],
        )
            .into_response(),
        (Err(error), _) => ApiError(AppError::internal(error)).into_response(),
        (_, Err(error)) => error.into_response(),
    }
}

/// A path of this master; anything else leads to its front page, so that no other site is reached by a link to this page.
fn own_path(redirect: &str) -> &str {
    let is_own = redirect.starts_with('/')
        && !redirect.starts_with("//")
        && redirect
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_own { redirect } else { "/" }
}

fn form(username: &str, redirect: &str, error: Option<&str>) -> String {
    let error = error.map_or_else(String::new, |text| {
        format!("<p class=\"error\" role=\"alert\">{}</p>\n", escape(text))
    });
    let (username, redirect) = (escape(username), escape(own_path(redirect)));
    let body = format!(
        r#"<h1>Log in</h1>
{error}<form method="post" action="{PATH}">
<input type="hidden" name="redirect" value="{redirect}">
<label>User name<br><input name="username" value="{username}" autocomplete="username" autofocus required></label>
<label>Password<br><input name="password" type="password" autocomplete="current-password"></label>
<button>Log in</button>
</form>"#
    );
    layout("Log in - det master", "", &body)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn a_login_leads_back_to_this_master_only() {
        for own in ["/", "/proxy/t/lab?token=x&y=1"] {
            assert_eq!(own_path(own), own);
        }
        for other in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/a b",
            "/a\r\nSet-Cookie: x",
            "proxy/t",
        ] {
            assert_eq!(own_path(other), "/", "{other:?}");
        }
    }

    #[test]
    fn a_browser_comes_back_after_its_login() {
        let request = Request::builder().uri("/proxy/t/api?x=1").body(()).unwrap();
        let response = first(&request.into_parts().0).unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        let to = response.headers()[LOCATION].to_str().unwrap();
        assert_eq!(to, "/det/login?redirect=%2Fproxy%2Ft%2Fapi%3Fx%3D1");
    }

    #[test]
    fn what_was_typed_is_only_text() {
        let page = form("\"><script>", "/x?\"><script>", Some("<script>"));
        assert!(!page.contains("<script"), "{page}");
    }
}
