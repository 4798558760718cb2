//! The resource managers that this master has drivers for: the one file that names them. A driver for another kind is a
//! crate, an entry of [`DRIVERS`] and of [`Drivers`].

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use det_config::master::ManagerKind;
use det_rm_agents::{Dialect, Refusal, Tunnels};

use crate::app::Master;
use crate::app::reach::Reaches;
use crate::auth::new_token;
use crate::error::{AppError, ErrorKind};
use crate::http::error::ApiError;
use crate::http::tokens::session_token;

/// Kinds of resource managers that have a driver.
pub const DRIVERS: &[ManagerKind] = &[ManagerKind::Agent];

/// What drivers share with the services of a master from its start on.
pub(crate) struct Drivers {
    tunnels: Tunnels,
}

impl Drivers {
    /// Drivers that serve nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            tunnels: Tunnels::new(new_token),
        }
    }

    /// How they reach containers.
    pub(crate) fn reaches(&self) -> Reaches {
        Reaches::default().with(ManagerKind::Agent, self.tunnels.clone())
    }

    /// Has them serve the places of a master; returns the routes of what connects to them.
    pub(crate) fn serve(self, master: &Master) -> Router {
        let dialect = Dialect {
            own_token: session_token,
            refuse,
        };
        let shutdown = master.context.shutdown.clone();
        det_rm_agents::routes(master.agents.clone(), self.tunnels, shutdown, dialect)
    }
}

fn refuse(refusal: Refusal<AppError>) -> Response {
    ApiError(match refusal {
        Refusal::Core(error) => error,
        Refusal::Invalid(message) => AppError::invalid(message),
        Refusal::UnknownTunnel => AppError::new(
            ErrorKind::NotFound,
            "no caller waits for a tunnel with this id",
        ),
    })
    .into_response()
}
