//! How the agent checks its master's certificate: the same configuration for the WebSocket and for HTTP.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use det_tls::{AnyCertificate, MasterVerifier};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

use crate::options::{ClientIdentity, TlsOptions};

/// Name of the file of trusted certificates in messages.
const MASTER_CERT: &str = "the master's certificate";

/// Why the TLS options cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// Two options exclude each other.
    #[error("a master certificate is given and its check is switched off; choose one")]
    Contradiction,
    /// A PEM file cannot be read.
    #[error("cannot read {what} from \"{}\": {reason}", path.display())]
    Pem {
        /// What the file should contain.
        what: &'static str,
        /// Path of the file that could not be read.
        path: PathBuf,
        /// Why it cannot be used, for users.
        reason: String,
    },
    /// The expected name is not a valid host name.
    #[error("\"{name}\" cannot be a certificate's name")]
    Name {
        /// The name that was configured to be expected in the certificate.
        name: String,
    },
    /// The host has no certificate authorities.
    #[error(
        "this host has no certificate authorities to check the master with; give the master's certificate file"
    )]
    NoAuthorities,
    /// The TLS library refused the configuration.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
}

/// The TLS configuration for `options`.
pub(crate) fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>, TlsError> {
    if options.skip_verify && options.master_cert.is_some() {
        return Err(TlsError::Contradiction);
    }
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = if options.skip_verify {
        Arc::new(AnyCertificate::new(provider.clone()))
    } else {
        Arc::new(verifier(options, &provider)?)
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match &options.client_identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = read_identity(identity)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(TlsError::Setup)?
        }
    };
    Ok(Arc::new(config))
}

fn pem_error(what: &'static str, path: &Path, reason: impl std::fmt::Display) -> TlsError {
    TlsError::Pem {
        what,
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let list = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| pem_error(what, path, error))?;
    if list.is_empty() {
        let empty = io::Error::new(io::ErrorKind::InvalidData, "no certificate is in it");
        return Err(pem_error(what, path, empty));
    }
    Ok(list)
}

/// Accepts what the file of certificates allows, or without one what the host's authorities issued.
fn verifier(
    options: &TlsOptions,
    provider: &Arc<CryptoProvider>,
) -> Result<MasterVerifier, TlsError> {
    let name = |name: &String| {
        ServerName::try_from(name.clone()).map_err(|_| TlsError::Name { name: name.clone() })
    };
    let name = options.master_cert_name.as_ref().map(name).transpose()?;
    let Some(path) = &options.master_cert else {
        let roots = Arc::new(roots_of_host()?);
        let authorities = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| TlsError::Setup(rustls::Error::General(error.to_string())))?;
        return MasterVerifier::new(provider.clone(), Vec::new(), Some(authorities), name)
            .map_err(TlsError::Setup);
    };
    let given = certificates(MASTER_CERT, path)?;
    MasterVerifier::new(provider.clone(), given, None, name)
        .map_err(|error| pem_error(MASTER_CERT, path, error))
}

fn roots_of_host() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    // A host's store may hold certificates that cannot be read; they are no reason to distrust the others.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(TlsError::NoAuthorities);
    }
    Ok(roots)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub(crate) fn read_identity(identity: &ClientIdentity) -> Result<Identity, TlsError> {
    let chain = certificates("the agent's certificate", &identity.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&identity.key)
        .map_err(|error| pem_error("the agent's key", &identity.key, error))?;
    Ok((chain, key))
}

/// Accepts TLS connections of any client with this certificate.
pub(crate) fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, TlsError> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(TlsError::Setup)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(options: &TlsOptions) -> String {
        client_config(options).unwrap_err().to_string()
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let options = TlsOptions {
            skip_verify: true,
            master_cert: Some("/ca.pem".into()),
            ..TlsOptions::default()
        };
        assert!(message(&options).contains("choose one"));
    }

    #[test]
    fn a_certificate_file_that_is_none_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("ca.pem");
        std::fs::write(&path, "hello").unwrap();
        for path in [path, "/nonexistent/ca.pem".into()] {
            let options = TlsOptions {
                master_cert: Some(path.clone()),
                ..TlsOptions::default()
            };
            let message = message(&options);
            assert!(message.contains(&*path.to_string_lossy()), "{message}");
        }
    }

    #[test]
    fn a_check_that_is_switched_off_needs_nothing() {
        let options = TlsOptions {
            skip_verify: true,
            ..TlsOptions::default()
        };
        assert!(client_config(&options).is_ok());
    }

    /// Tries to connect to a server whose self-signed certificate is for `det.example`.
    async fn handshake(options: impl FnOnce(&Path) -> TlsOptions) -> Result<(), String> {
        let names = vec!["det.example".to_owned()];
        handshake_with(&rcgen::CertificateParams::new(names).unwrap(), options).await
    }

    async fn handshake_with(
        certificate: &rcgen::CertificateParams,
        options: impl FnOnce(&Path) -> TlsOptions,
    ) -> Result<(), String> {
        let root = tempfile::tempdir().unwrap();
        let signing_key = rcgen::KeyPair::generate().unwrap();
        let certificate = certificate.self_signed(&signing_key).unwrap();
        let ca = root.path().join("ca.pem");
        std::fs::write(&ca, certificate.pem()).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let server =
            rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key)
                .unwrap();
        let client = client_config(&options(&ca)).map_err(|error| error.to_string())?;
        let (near, far) = tokio::io::duplex(1 << 16);
        let accept = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(far);
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connect = tokio_rustls::TlsConnector::from(client).connect(name, near);
        let (connected, _) = tokio::join!(connect, accept);
        connected.map(|_| ()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_master_is_trusted_by_its_certificate_and_its_name() {
        let right = handshake(|ca| TlsOptions {
            master_cert: Some(ca.to_owned()),
            master_cert_name: Some("det.example".into()),
            ..TlsOptions::default()
        });
        assert_eq!(right.await, Ok(()));
        let wrong_name = handshake(|ca| TlsOptions {
            master_cert: Some(ca.to_owned()),
            ..TlsOptions::default()
        });
        assert!(wrong_name.await.unwrap_err().contains("not valid for name"));
        let unchecked = handshake(|_| TlsOptions {
            skip_verify: true,
            ..TlsOptions::default()
        });
        assert_eq!(unchecked.await, Ok(()));
    }

    #[tokio::test]
    async fn a_master_whose_certificate_calls_itself_an_authority_is_trusted() {
        // What `openssl req -x509` makes.
        let mut certificate =
            rcgen::CertificateParams::new(vec!["det.example".to_owned()]).unwrap();
        certificate.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let trusted = handshake_with(&certificate, |ca| TlsOptions {
            master_cert: Some(ca.to_owned()),
            master_cert_name: Some("det.example".into()),
            ..TlsOptions::default()
        });
        assert_eq!(trusted.await, Ok(()));
        certificate.not_before = rcgen::date_time_ymd(2001, 1, 1);
        certificate.not_after = rcgen::date_time_ymd(2002, 1, 1);
        let expired = handshake_with(&certificate, |ca| TlsOptions {
            master_cert: Some(ca.to_owned()),
            master_cert_name: Some("det.example".into()),
            ..TlsOptions::default()
        });
        assert!(expired.await.unwrap_err().contains("expired"));
    }

    #[tokio::test]
    async fn a_master_with_a_certificate_of_its_own_making_is_not_trusted_by_itself() {
        let refused = handshake(|_| TlsOptions {
            master_cert_name: Some("det.example".into()),
            ..TlsOptions::default()
        });
        assert!(refused.await.is_err());
    }
}
