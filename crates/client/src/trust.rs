//! Which certificates of a master are trusted.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use det_tls::{AnyCertificate, MasterVerifier};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};

use crate::address::MasterUrl;
use crate::client::ClientOptions;
use crate::error::ClientError;
use crate::files::{self, StoreError};

/// Which certificates of a master to trust, in addition to those that the operating system trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// Whether to trust any certificate: `DET_MASTER_CERT_FILE=noverify`.
    pub any_certificate: bool,
    /// Certificates in PEM form that are trusted in addition; `None` adds nothing.
    pub certificates: Option<String>,
    /// The name that the certificate must contain; `None` = the host in the address.
    pub name: Option<String>,
}

/// Why the certificate settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file that `DET_MASTER_CERT_FILE` names does not exist.
    #[error("DET_MASTER_CERT_FILE names \"{}\", which is not there; name a PEM file or \"noverify\"", path.display())]
    NoSuchFile {
        /// The path in the variable.
        path: PathBuf,
    },
    /// The file could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Trust {
    /// The settings of this process for `master`: `DET_MASTER_CERT_FILE` (`noverify`, in upper or lower case, trusts
    /// any certificate), else the certificate accepted earlier and stored in `directory`; and `DET_MASTER_CERT_NAME`.
    /// For a master without TLS none of this is read.
    pub fn from_environment(master: &MasterUrl, directory: &Path) -> Result<Self, TrustError> {
        if !master.is_https() {
            return Ok(Self::default());
        }
        let mut trust = Self {
            name: variable("DET_MASTER_CERT_NAME"),
            ..Self::default()
        };
        match variable("DET_MASTER_CERT_FILE") {
            Some(value) if value.eq_ignore_ascii_case("noverify") => trust.any_certificate = true,
            Some(path) => {
                let path = PathBuf::from(path);
                let text = files::read(&path)?.ok_or(TrustError::NoSuchFile { path })?;
                trust.certificates = Some(text);
            }
            None => {
                trust.certificates =
                    CertificateStore::in_directory(directory).certificates(master)?;
            }
        }
        Ok(trust)
    }

    /// The TLS configuration for `master`.
    pub(crate) fn tls_config(&self, master: &MasterUrl) -> Result<ClientConfig, String> {
        let provider = provider();
        if !master.is_https() {
            // Never used: no request goes to another address. Reading the system's certificates would cost
            // milliseconds at
            // every command.
            return Ok(plain_config(RootCertStore::empty()));
        }
        let name = self
            .name
            .clone()
            .map(ServerName::try_from)
            .transpose()
            .map_err(|error| format!("DET_MASTER_CERT_NAME is not a host name ({error})"))?;
        let verifier: Arc<dyn ServerCertVerifier> = if self.any_certificate {
            Arc::new(AnyCertificate::new(provider))
        } else {
            let pinned = parse_pem(self.certificates.as_deref().unwrap_or_default())?;
            // A machine without any authorities trusts none; a user may still accept a certificate.
            let authorities = rustls_platform_verifier::Verifier::new(provider.clone())
                .ok()
                .map(|system| Arc::new(system) as Arc<dyn ServerCertVerifier>);
            let verifier = MasterVerifier::new(provider, pinned, authorities, name)
                .map_err(|error| format!("the trusted certificates cannot be used ({error})"))?;
            Arc::new(verifier)
        };
        Ok(config_with(verifier))
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()))
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the TLS versions that rustls holds safe")
}

fn plain_config(roots: RootCertStore) -> ClientConfig {
    builder()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn config_with(verifier: Arc<dyn ServerCertVerifier>) -> ClientConfig {
    builder()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

fn parse_pem(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| format!("the trusted certificates are not PEM ({error})"))?;
    if certificates.is_empty() && !text.trim().is_empty() {
        return Err("the file of trusted certificates holds no certificate".to_owned());
    }
    Ok(certificates)
}

/// Accepts any certificate and records the chain that was presented.
#[derive(Debug)]
struct Recorder {
    provider: Arc<CryptoProvider>,
    seen: Mutex<Vec<CertificateDer<'static>>>,
}

impl Recorder {
    fn new(provider: Arc<CryptoProvider>) -> Self {
        Self {
            provider,
            seen: Mutex::new(Vec::new()),
        }
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ServerCertVerifier for Recorder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chain = std::iter::once(end_entity)
            .chain(intermediates)
            .map(|certificate| certificate.clone().into_owned())
            .collect();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = chain;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The chain of certificates that `master` presents, in PEM form, the master's own first; empty if it presents none.
/// Nothing is sent but `GET /info`, without credentials.
pub async fn presented_chain(master: &MasterUrl) -> Result<String, ClientError> {
    let recorder = Arc::new(Recorder::new(provider()));
    let config = config_with(recorder.clone());
    let client = crate::client::build_http(master, &ClientOptions::default(), config)?;
    let url = master.join("/info");
    client
        .get(&url)
        .send()
        .await
        .map_err(|error| ClientError::from_transport(master, &url, &error))?;
    Ok(recorder.chain().iter().map(|der| to_pem(der)).collect())
}

fn to_pem(der: &[u8]) -> String {
    let certificate = pem::Pem::new("CERTIFICATE", der);
    pem::encode_config(
        &certificate,
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}

/// The SHA-256 fingerprint of the first certificate in `pem`, as `openssl x509 -fingerprint -sha256` prints it but in
/// lower case; `None` if there is no certificate.
pub fn fingerprint(pem: &str) -> Option<String> {
    let certificates = parse_pem(pem).ok()?;
    let hash = Sha256::digest(certificates.first()?);
    let mut text = String::new();
    for (index, byte) in hash.iter().enumerate() {
        let separator = if index == 0 { "" } else { ":" };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{byte:02x}");
    }
    Some(text)
}

/// The certificates that a user accepted, one file for all masters: the `PyPI` client's `certs.json`, a map from
/// canonical master address to PEM text.
#[derive(Debug, Clone)]
pub struct CertificateStore {
    path: PathBuf,
}

impl CertificateStore {
    /// The store in the directory of settings.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            path: directory.join("certs.json"),
        }
    }

    /// The certificates accepted for `master`, if any.
    pub fn certificates(&self, master: &MasterUrl) -> Result<Option<String>, StoreError> {
        Ok(self.load()?.remove(master.as_str()))
    }

    /// Accepts `pem` for `master`; replaces what was accepted before.
    pub fn accept(&self, master: &MasterUrl, pem: &str) -> Result<(), StoreError> {
        files::locked(&self.path, || {
            let mut all = self.load()?;
            all.insert(master.to_string(), pem.to_owned());
            files::replace(&self.path, &all)
        })
    }

    fn load(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let Some(text) = files::read(&self.path)? else {
            return Ok(BTreeMap::new());
        };
        serde_json::from_str(&text).map_err(|error| StoreError::Damaged {
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_certificates_are_kept_per_master() {
        let directory = tempfile::tempdir().unwrap();
        let store = CertificateStore::in_directory(directory.path());
        let (one, two): (MasterUrl, MasterUrl) = (
            "https://one".parse().unwrap(),
            "https://two".parse().unwrap(),
        );
        store.accept(&one, "ONE").unwrap();
        store.accept(&two, "TWO").unwrap();
        assert_eq!(store.certificates(&one).unwrap().as_deref(), Some("ONE"));
        assert_eq!(store.certificates(&two).unwrap().as_deref(), Some("TWO"));
    }

    #[test]
    fn the_fingerprint_is_the_usual_one() {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let shown = fingerprint(&made.cert.pem()).unwrap();
        assert_eq!(shown.len(), 32 * 3 - 1);
        assert_eq!(fingerprint(&to_pem(made.cert.der())), Some(shown));
        assert_eq!(fingerprint("nothing"), None);
    }
}
