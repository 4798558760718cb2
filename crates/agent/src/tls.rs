//! How the agent checks its master's certificate: the same configuration for the WebSocket and for HTTP.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;

use crate::options::{ClientIdentity, TlsOptions};

/// The TLS options cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// Two options that exclude each other.
    #[error("a master certificate is given and its check is switched off; choose one")]
    Contradiction,
    /// A PEM file cannot be read.
    #[error("cannot read {what} from \"{}\": {reason}", path.display())]
    Pem {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The expected name is none.
    #[error("\"{name}\" cannot be a certificate's name")]
    Name {
        /// As given.
        name: String,
    },
    /// The host has no certificate authorities to go by.
    #[error(
        "this host has no certificate authorities to check the master with; give the master's certificate file"
    )]
    NoAuthorities,
    /// The pieces do not fit together.
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
        Arc::new(Unverified(provider.clone()))
    } else {
        let roots = match &options.master_cert {
            Some(path) => roots_of_file(path)?,
            None => roots_of_host()?,
        };
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| TlsError::Setup(rustls::Error::General(error.to_string())))?;
        match &options.master_cert_name {
            None => verifier,
            Some(name) => Arc::new(Renamed {
                name: ServerName::try_from(name.clone())
                    .map_err(|_| TlsError::Name { name: name.clone() })?,
                verifier,
            }),
        }
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

fn roots_of_file(path: &Path) -> Result<RootCertStore, TlsError> {
    const WHAT: &str = "the master's certificate";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(WHAT, path)? {
        roots
            .add(certificate)
            .map_err(|error| pem_error(WHAT, path, error))?;
    }
    Ok(roots)
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

fn read_identity(identity: &ClientIdentity) -> Result<Identity, TlsError> {
    let chain = certificates("the agent's certificate", &identity.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&identity.key)
        .map_err(|error| pem_error("the agent's key", &identity.key, error))?;
    Ok((chain, key))
}

/// Checks the certificate against a name of our own instead of the host in the address.
#[derive(Debug)]
struct Renamed {
    name: ServerName<'static>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Renamed {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verifier
            .verify_server_cert(end_entity, intermediates, &self.name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Takes any certificate, but still only from someone who holds its key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
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

    /// Tries to connect to a server whose certificate is for `det.example`.
    async fn handshake(options: impl FnOnce(&Path) -> TlsOptions) -> Result<(), String> {
        let root = tempfile::tempdir().unwrap();
        let certified = rcgen::generate_simple_self_signed(["det.example".to_owned()]).unwrap();
        let ca = root.path().join("ca.pem");
        std::fs::write(&ca, certified.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let server =
            rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certified.cert.der().clone()], key)
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
    async fn a_master_with_a_certificate_of_its_own_making_is_not_trusted_by_itself() {
        let refused = handshake(|_| TlsOptions {
            master_cert_name: Some("det.example".into()),
            ..TlsOptions::default()
        });
        assert!(refused.await.is_err());
    }
}
