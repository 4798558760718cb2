//! TLS to the master, with the certificates that clusters use.
//!
//! Two things that the HTTP library's own TLS cannot do: check the certificate for another name than that in the
//! address, and trust a self-signed certificate that is marked as an authority, which is what `openssl req -x509`
//! creates and most masters therefore have.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use det_tls::{AnyCertificate, MasterVerifier};
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

/// Adds TLS to connections to `https` addresses.
#[derive(Debug)]
pub(crate) struct TlsConnector {
    config: Arc<ClientConfig>,
    /// The name on the certificate, if it is not the one in the address.
    name: Option<ServerName<'static>>,
}

impl TlsConnector {
    /// Trusts the certificates in a PEM file, or with `noverify` any certificate. The error is what is wrong with them.
    pub(crate) fn new(cert_file: Option<&str>, cert_name: Option<&str>) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let file = cert_file.filter(|file| !file.is_empty()).ok_or(
            "the master's address begins with https, but no certificate to trust is given (DET_MASTER_CERT_FILE)",
        )?;
        let verifier: Arc<dyn ServerCertVerifier> = if file.eq_ignore_ascii_case("noverify") {
            Arc::new(AnyCertificate::new(Arc::clone(&provider)))
        } else {
            let certificates = read_certificates(Path::new(file))?;
            let verifier = MasterVerifier::new(Arc::clone(&provider), certificates, None, None)
                .map_err(|error| format!("could not use the certificates in {file:?}: {error}"))?;
            Arc::new(verifier)
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("could not prepare TLS: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let name = cert_name.filter(|name| !name.is_empty()).map(|name| {
            ServerName::try_from(name.to_owned())
                .map_err(|_| format!("DET_MASTER_CERT_NAME is not a host name: {name:?}"))
        });
        Ok(Self {
            config: Arc::new(config),
            name: name.transpose()?,
        })
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("could not read the master's certificate {path:?}: {error}"))?;
    if certificates.is_empty() {
        return Err(format!("{path:?} holds no PEM certificate"));
    }
    Ok(certificates)
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, TlsTransport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else {
            return Ok(None);
        };
        if !details.needs_tls() || transport.is_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let name = match &self.name {
            Some(name) => name.clone(),
            None => host_name(details)
                .ok_or(ureq::Error::Tls("the address of the master has no host"))?,
        };
        let mut connection = ClientConnection::new(Arc::clone(&self.config), name)?;
        let mut socket = TransportAdapter::new(
            Box::new(transport) as Box<dyn Transport>,
            details.current_time.clone(),
        );
        socket.set_timeout(details.timeout);
        connection
            .complete_io(&mut socket)
            .map_err(with_explanation)?;
        Ok(Some(Either::B(TlsTransport {
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
            stream: StreamOwned::new(connection, socket),
        })))
    }
}

/// The error of a handshake, with an explanation if it is about the certificate.
fn with_explanation(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(problem)) = inner else {
        return error;
    };
    let why = det_tls::explain(problem, "DET_MASTER_CERT_NAME");
    let kind = error.kind();
    io::Error::new(
        kind,
        format!("the master's certificate is not trusted: {why}"),
    )
}

fn host_name(details: &ConnectionDetails<'_>) -> Option<ServerName<'static>> {
    let host = details.uri.host()?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).ok()
}

/// A connection with TLS on it.
pub(crate) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransport").finish_non_exhaustive()
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let count = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::master::{Address, Master, MasterError};
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    /// A certificate, what is to be trusted for it, and its key.
    struct Identity {
        certificate: CertificateDer<'static>,
        trusted_pem: String,
        key: KeyPair,
    }

    fn parameters(name: &str, is_ca: IsCa) -> CertificateParams {
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        parameters.is_ca = is_ca;
        parameters
    }

    fn self_signed(parameters: &CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        Identity {
            trusted_pem: certificate.pem(),
            certificate: certificate.der().clone(),
            key,
        }
    }

    const AUTHORITY: IsCa = IsCa::Ca(BasicConstraints::Unconstrained);

    fn issued(name: &str) -> Identity {
        let authority_key = KeyPair::generate().unwrap();
        let authority = parameters("authority", AUTHORITY);
        let trusted_pem = authority.self_signed(&authority_key).unwrap().pem();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters(name, IsCa::NoCa)
            .signed_by(&key, &issuer)
            .unwrap();
        Identity {
            trusted_pem,
            certificate: certificate.der().clone(),
            key,
        }
    }

    /// Calls a master with this identity; returns the result.
    fn call(
        identity: &Identity,
        trust: Option<&str>,
        name: Option<&str>,
    ) -> Result<u32, MasterError> {
        let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.certificate.clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let connection = ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = StreamOwned::new(connection, socket);
            let mut request = [0; 4096];
            // A client that does not trust the certificate closes the connection here.
            if stream.read(&mut request).is_ok_and(|count| count > 0) {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7";
                stream.write_all(answer).unwrap();
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master.crt");
        std::fs::write(&file, trust.unwrap_or(&identity.trusted_pem)).unwrap();
        let no_verify = trust == Some("noverify");
        let address = Address {
            url: format!("https://127.0.0.1:{port}"),
            cert_file: Some(if no_verify {
                "noverify".into()
            } else {
                file.to_str().unwrap().into()
            }),
            cert_name: name.map(str::to_owned),
        };
        let master = Master::new(&address, "token").unwrap();
        let answer = master.get("/", Duration::from_secs(30));
        server.join().unwrap();
        answer
    }

    #[test]
    fn a_master_with_an_issued_certificate_is_trusted_under_its_name_only() {
        let master = issued("determined-master");
        assert_eq!(call(&master, None, Some("determined-master")), Ok(7));
        assert!(call(&master, None, Some("other")).is_err());
        assert!(
            call(&master, None, None).is_err(),
            "the address is not in the certificate"
        );
        assert_eq!(call(&issued("127.0.0.1"), None, None), Ok(7));
    }

    #[test]
    fn a_self_signed_certificate_is_trusted_whatever_it_claims() {
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, AUTHORITY] {
            let master = self_signed(&parameters("127.0.0.1", is_ca));
            assert_eq!(call(&master, None, None), Ok(7), "{is_ca:?}");
            assert!(call(&master, None, Some("other")).is_err(), "{is_ca:?}");
        }
    }

    #[test]
    fn an_unknown_certificate_is_trusted_only_with_noverify() {
        let stranger = self_signed(&parameters("127.0.0.1", AUTHORITY));
        let known = self_signed(&parameters("127.0.0.1", AUTHORITY));
        assert!(call(&stranger, Some(&known.trusted_pem), None).is_err());
        assert_eq!(call(&stranger, Some("noverify"), None), Ok(7));
    }

    #[test]
    fn a_trusted_certificate_is_refused_when_its_time_is_over() {
        let mut parameters = parameters("127.0.0.1", AUTHORITY);
        parameters.not_before = date_time_ymd(2001, 1, 1);
        parameters.not_after = date_time_ymd(2002, 1, 1);
        assert!(call(&self_signed(&parameters), None, None).is_err());
    }

    #[test]
    fn unusable_certificate_files_are_named() {
        let error = TlsConnector::new(None, None).unwrap_err();
        assert!(error.contains("DET_MASTER_CERT_FILE"), "{error}");
        let error = TlsConnector::new(Some("/no/such/file"), None).unwrap_err();
        assert!(error.contains("/no/such/file"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("empty.crt");
        std::fs::write(&file, "").unwrap();
        let error = TlsConnector::new(file.to_str(), None).unwrap_err();
        assert!(error.contains("no PEM certificate"), "{error}");
        let error = TlsConnector::new(Some("noverify"), Some("not a name")).unwrap_err();
        assert!(error.contains("DET_MASTER_CERT_NAME"), "{error}");
    }
}
