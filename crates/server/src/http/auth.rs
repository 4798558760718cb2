//! Logging in and out, and who one is.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use det_api_types::auth::{CurrentUserResponse, GetMeResponse, LoginRequest, LoginResponse};
use det_api_types::error::PlainErrorBody;
use det_api_types::page::Empty;
use det_api_types::wire::{self, Secret};
use det_ids::UserId;
use det_store::users::UserRow;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::app::Master;
use crate::auth::Ends;
use crate::error::{AppError, ErrorKind};
use crate::http::error::ApiError;
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::origin::is_from_foreign_page;
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::tokens::session_token;
use crate::http::views;

/// How long a browser keeps the cookie: as long as a session lives.
const COOKIE_SECONDS: u32 = 7 * 24 * 3600;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(login))
        .routes(routes!(logout))
        .routes(routes!(current_user))
        .routes(routes!(get_me))
        .routes(routes!(plain_login))
        .routes(routes!(plain_logout))
        .routes(routes!(plain_me))
}

/// The cookie that lets a browser use a session; `None` takes it away.
pub(crate) fn session_cookie(tls: bool, token: Option<&str>) -> Result<HeaderValue, ApiError> {
    let secure = if tls { "; Secure" } else { "" };
    let (value, seconds) = token.map_or(("", 0), |token| (token, COOKIE_SECONDS));
    let text = format!("auth={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    let mut value = HeaderValue::try_from(text).map_err(|e| ApiError(AppError::internal(e)))?;
    value.set_sensitive(true);
    Ok(value)
}

fn with_cookie(mut response: Response, cookie: HeaderValue) -> Response {
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}

/// Lets the browser use a new session, unless a page of another site logs in: that page gets the token alone.
fn with_session(
    response: Response,
    tls: bool,
    token: &str,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    if is_from_foreign_page(headers) {
        return Ok(response);
    }
    Ok(with_cookie(response, session_cookie(tls, Some(token))?))
}

/// Starts a session.
#[utoipa::path(post, path = "/api/v1/auth/login", operation_id = "Login", tag = "auth", security(()),
    request_body = LoginRequest, responses((status = 200, body = LoginResponse)))]
async fn login(
    State(master): State<Master>,
    Extension(ends): Extension<Ends>,
    headers: HeaderMap,
    WireBody(body): WireBody<LoginRequest>,
) -> Answer {
    let (token, user) = master
        .auth
        .login(&body.username, &body.password.0, body.is_hashed, ends)
        .await?;
    let response = message(&LoginResponse {
        token: Secret(token.clone()),
        user: views::users::user(&user),
    })?;
    with_session(response, master.tls, &token, &headers)
}

/// Ends the session that the request comes with.
#[utoipa::path(post, path = "/api/v1/auth/logout", operation_id = "Logout", tag = "auth",
    responses((status = 200, body = Empty)))]
async fn logout(Caller(master, actor): Caller, headers: HeaderMap) -> Answer {
    let token = session_token(&headers);
    master.auth.logout(&actor, token.as_deref()).await?;
    Ok(with_cookie(empty()?, session_cookie(master.tls, None)?))
}

/// The user who asks.
#[utoipa::path(get, path = "/api/v1/auth/user", operation_id = "CurrentUser", tag = "auth",
    responses((status = 200, body = CurrentUserResponse)))]
async fn current_user(Caller(_master, actor): Caller) -> Answer {
    message(&CurrentUserResponse {
        user: views::users::user(actor.user()),
    })
}

/// Who asks. Every client command begins with this: it is answered from memory.
#[utoipa::path(get, path = "/api/v1/me", operation_id = "GetMe", tag = "auth",
    responses((status = 200, body = GetMeResponse)))]
async fn get_me(Caller(_master, actor): Caller) -> Answer {
    message(&GetMeResponse {
        user: views::users::user(actor.user()),
    })
}

/// An error in the form of the routes outside `/api/v1`.
fn plain(error: ApiError) -> Response {
    let text = match &error.0.hint {
        Some(hint) => format!("{}\nhint: {hint}", error.0.message),
        None => error.0.message.clone(),
    };
    let status = error.into_response().status();
    let body = wire::encode(&PlainErrorBody { message: text }).unwrap_or_default();
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        Body::from(body),
    )
        .into_response()
}

/// Body of the older login.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct PlainLogin {
    /// Name of the user who logs in.
    username: String,
    /// The client's hash of the password; empty for users without one.
    password: Secret,
}

/// Query of the older login.
#[derive(Debug, Clone, Default, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
struct PlainLoginQuery {
    /// Also set the cookie.
    cookie: bool,
}

/// Answer of the older login.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
struct PlainToken {
    /// Bearer token of the new session.
    token: Secret,
}

/// A user in the form of the older routes.
#[derive(Debug, Clone, Serialize, ToSchema)]
struct PlainUser {
    /// Number of the user.
    #[schema(value_type = i64)]
    id: UserId,
    /// Name for logging in.
    username: String,
    /// Name as shown to users.
    display_name: String,
    /// Whether an administrator.
    admin: bool,
    /// Whether allowed to log in.
    active: bool,
}

impl From<&UserRow> for PlainUser {
    fn from(user: &UserRow) -> Self {
        Self {
            id: user.id,
            username: user.username.clone(),
            display_name: user.display_name.clone(),
            admin: user.admin,
            active: user.active,
        }
    }
}

/// Starts a session, the older way. Bad credentials are 403 here.
#[utoipa::path(post, path = "/login", operation_id = "PlainLogin", tag = "auth", security(()),
    params(PlainLoginQuery), request_body = PlainLogin, responses((status = 200, body = PlainToken)))]
async fn plain_login(
    State(master): State<Master>,
    Extension(ends): Extension<Ends>,
    WireQuery(query): WireQuery<PlainLoginQuery>,
    headers: HeaderMap,
    WireBody(body): WireBody<PlainLogin>,
) -> Response {
    let answer = async {
        let (token, _) = master
            .auth
            .login(&body.username, &body.password.0, true, ends)
            .await
            .map_err(|mut error| {
                if error.kind == ErrorKind::Unauthenticated {
                    error.kind = ErrorKind::Forbidden;
                }
                error
            })?;
        let response = message(&PlainToken {
            token: Secret(token.clone()),
        })?;
        if query.cookie {
            with_session(response, master.tls, &token, &headers)
        } else {
            Ok(response)
        }
    };
    answer.await.unwrap_or_else(plain)
}

/// Ends the session that the request comes with, the older way.
#[utoipa::path(post, path = "/logout", operation_id = "PlainLogout", tag = "auth",
    responses((status = 200, body = Empty)))]
async fn plain_logout(caller: Result<Caller, ApiError>, headers: HeaderMap) -> Response {
    let answer = async { logout(caller?, headers).await };
    answer.await.unwrap_or_else(plain)
}

/// Who asks, the older way: what a login through a browser reads.
#[utoipa::path(get, path = "/users/me", operation_id = "PlainMe", tag = "auth",
    responses((status = 200, body = PlainUser)))]
async fn plain_me(caller: Result<Caller, ApiError>) -> Response {
    caller
        .and_then(|Caller(_master, who)| message(&PlainUser::from(&**who.user())))
        .unwrap_or_else(plain)
}
