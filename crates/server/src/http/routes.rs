//! Routes with their descriptions. The start of a master needs the routes only, and half of its work would be the
//! descriptions: these are made when they are asked for.

use axum::Router;
use axum::handler::Handler;
use axum::routing::MethodRouter;
use utoipa::Path;
use utoipa::openapi::OpenApi;
use utoipa_axum::PathItemExt;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use crate::app::Master;

/// The handlers of one path.
pub struct PathRoutes {
    path: String,
    methods: MethodRouter<Master>,
    describe: fn() -> UtoipaMethodRouter<Master>,
}

impl PathRoutes {
    /// A path without handlers; `describe` describes those that are added.
    pub fn new(path: String, describe: fn() -> UtoipaMethodRouter<Master>) -> Self {
        Self {
            path,
            methods: MethodRouter::new(),
            describe,
        }
    }

    /// Adds the handler that `P` describes, for its methods.
    #[must_use]
    pub fn handler<P: Path, H: Handler<T, Master>, T: 'static>(mut self, handler: &H) -> Self {
        debug_assert_eq!(P::path(), self.path, "handlers of one path are added");
        for method in P::methods() {
            self.methods = self.methods.on(method.to_method_filter(), handler.clone());
        }
        self
    }
}

/// The routes of a resource, or of all.
#[derive(Default)]
pub struct Routes {
    router: Router<Master>,
    describe: Vec<fn() -> UtoipaMethodRouter<Master>>,
}

impl Routes {
    /// A set without any route, for [`Self::merge`] and the other methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the handlers of a path: `routes!(get_template, put_template)`.
    #[must_use]
    pub fn routes(mut self, added: PathRoutes) -> Self {
        self.router = self.router.route(&added.path, added.methods);
        self.describe.push(added.describe);
        self
    }

    /// Adds the routes of another resource.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.describe.extend(other.describe);
        self
    }

    /// The routes alone.
    pub fn into_router(self) -> Router<Master> {
        self.router
    }

    /// The description of all routes.
    pub fn document(&self) -> OpenApi {
        self.describe
            .iter()
            .fold(OpenApiRouter::new(), |all, describe| all.routes(describe()))
            .into_openapi()
    }
}

/// The handlers of one path, each with `#[utoipa::path]`.
macro_rules! routes {
    ($first:ident $(, $more:ident)* $(,)?) => { utoipa_axum::paste! {
        $crate::http::routes::PathRoutes::new(
            <[<__path_ $first>] as utoipa::Path>::path(),
            || utoipa_axum::routes!($first $(, $more)*),
        )
        .handler::<[<__path_ $first>], _, _>(&$first)
        $(.handler::<[<__path_ $more>], _, _>(&$more))*
    } };
}
pub(crate) use routes;
