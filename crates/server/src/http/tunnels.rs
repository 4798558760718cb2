//! Tunnels: connections that agents open because the master asked them to dial (`det_rm_agents::Tunnels`).

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::response::{IntoResponse, Response};
use det_agent_proto::{TUNNEL_ERROR_HEADER, TUNNEL_PROTOCOL};
use hyper_util::rt::TokioIo;

use crate::app::Master;
use crate::error::{AppError, AppResult};
use crate::http::error::ApiError;
use crate::http::tokens::session_token;

/// A tunnel that an agent opens because the master asked it to dial, or its reason why it cannot.
pub(crate) async fn open(
    State(master): State<Master>,
    Path(tunnel_id): Path<String>,
    request: Request,
) -> Response {
    match take(&master, &tunnel_id, request).await {
        Ok(response) => response,
        Err(error) => ApiError(error).into_response(),
    }
}

async fn take(master: &Master, tunnel_id: &str, mut request: Request) -> AppResult<Response> {
    let token = session_token(request.headers());
    master.agent_tokens.require_dialed(tunnel_id, token).await?;
    let tunnels = master.tunnels.clone();
    let failure = request.headers().get(TUNNEL_ERROR_HEADER);
    if let Some(reason) = failure.and_then(|value| value.to_str().ok()) {
        tunnels.opened(tunnel_id, Err(reason.to_owned()));
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let asked = request.headers().get(UPGRADE).and_then(|v| v.to_str().ok());
    if asked != Some(TUNNEL_PROTOCOL) {
        return Err(AppError::invalid(format!(
            "a tunnel is opened with the header \"Upgrade: {TUNNEL_PROTOCOL}\""
        )));
    }
    let upgraded = hyper::upgrade::on(&mut request);
    let tunnel_id = tunnel_id.to_owned();
    tokio::spawn(async move {
        match upgraded.await {
            Ok(stream) => {
                // Who asked for it may have gone meanwhile; then it ends here.
                tunnels.opened(&tunnel_id, Ok(TokioIo::new(stream)));
            }
            Err(error) => {
                tunnels.opened(
                    &tunnel_id,
                    Err(format!("the connection of the agent ended: {error}")),
                );
            }
        }
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, TUNNEL_PROTOCOL)
        .body(Body::empty())
        .map_err(AppError::internal)
}
