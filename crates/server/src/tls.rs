//! Serving, with or without TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use det_config::master::MasterConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::connections::{ConnectionLimit, TlsOnly, bounded_http};
use crate::start_error::StartError;

/// Requests under way are given this long when the master stops; streams end at once.
const DRAIN: Duration = Duration::from_secs(5);

/// The TLS side, if the configuration asks for it.
pub(crate) fn acceptor(config: &MasterConfig) -> Result<Option<RustlsConfig>, StartError> {
    let files = &config.security.tls;
    if !files.is_enabled() {
        return Ok(None);
    }
    let failed = |path: &str, message: String| StartError::Tls {
        path: Path::new(path).to_owned(),
        message,
    };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(|e| failed(&files.cert, e.to_string()))?;
    if certificates.is_empty() {
        return Err(failed(&files.cert, "there is no certificate in it".into()));
    }
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|e| failed(&files.key, e.to_string()))?;
    let mut tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|e| failed(&files.cert, e.to_string()))?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(RustlsConfig::from_config(Arc::new(tls))))
}

/// Serves until the token is cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<RustlsConfig>,
    service: Router,
    shutdown: CancellationToken,
) {
    let handle = Handle::new();
    let stopper = handle.clone();
    let stop = shutdown.clone();
    let waiting = tokio::spawn(async move {
        stop.cancelled().await;
        stopper.graceful_shutdown(Some(DRAIN));
    });
    let service = service.into_make_service();
    let connections = ConnectionLimit::new();
    let outcome = match listener.into_std() {
        Ok(listener) => match tls {
            Some(tls) => match axum_server::from_tcp(listener) {
                Ok(mut server) => {
                    let acceptor = RustlsAcceptor::new(tls).acceptor(TlsOnly(connections));
                    bounded_http(server.http_builder());
                    server
                        .acceptor(acceptor)
                        .handle(handle)
                        .serve(service)
                        .await
                }
                Err(error) => Err(error),
            },
            None => match axum_server::from_tcp(listener) {
                Ok(mut server) => {
                    bounded_http(server.http_builder());
                    server
                        .acceptor(connections)
                        .handle(handle)
                        .serve(service)
                        .await
                }
                Err(error) => Err(error),
            },
        },
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        tracing::error!(%error, "the master cannot serve any more");
        shutdown.cancel();
    }
    waiting.abort();
}
