//! Which certificates of a master are accepted: one rule for agents, tasks and the command line.
//!
//! A user gives certificates to trust, and optionally the name that the master's certificate must carry. The master is
//! accepted if it presents one of these certificates, or one issued by one of these, or, where the caller passes
//! authorities of the host, one issued by them. In all cases the certificate must be valid now and carry the name.
//!
//! The default verifier of rustls refuses a self-signed certificate that is marked as an authority (`CA:TRUE`), which
//! is what `openssl req -x509` creates and what many masters therefore have; it also refuses a certificate that is
//! given without the one that issued it. [`MasterVerifier`] accepts both where exactly this certificate was given. The
//! crate reads no files and no environment. Read [`MasterVerifier`] first.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The most names of a certificate that [`explain`] lists.
const NAMES_SHOWN: usize = 4;

/// Accepts a master by the certificates that a user gave, and by the authorities of the host.
#[derive(Debug)]
pub struct MasterVerifier {
    /// Certificates that the user gave.
    certificates: Vec<CertificateDer<'static>>,
    /// Verifies what one of `certificates` issued; `None` if there are none.
    issued: Option<Arc<WebPkiServerVerifier>>,
    /// Verifies what the host's own authorities issued; `None` if they are not trusted.
    authorities: Option<Arc<dyn ServerCertVerifier>>,
    /// The name that the certificate must carry; `None` = the host in the master's address.
    name: Option<ServerName<'static>>,
    provider: Arc<CryptoProvider>,
}

impl MasterVerifier {
    /// A verifier that accepts `certificates`, what they issued, and what `authorities` accept, under `name` or, if that
    /// is `None`, under the host in the master's address.
    ///
    /// # Errors
    ///
    /// When one of `certificates` cannot be read as an X.509 certificate.
    pub fn new(
        provider: Arc<CryptoProvider>,
        certificates: Vec<CertificateDer<'static>>,
        authorities: Option<Arc<dyn ServerCertVerifier>>,
        name: Option<ServerName<'static>>,
    ) -> Result<Self, Error> {
        let issued = if certificates.is_empty() {
            None
        } else {
            let mut roots = RootCertStore::empty();
            for certificate in &certificates {
                roots.add(certificate.clone())?;
            }
            let builder =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let verifier = builder
                .build()
                .map_err(|error| Error::General(error.to_string()))?;
            Some(verifier)
        };
        Ok(Self {
            certificates,
            issued,
            authorities,
            name,
            provider,
        })
    }
}

/// Verifies a certificate that the user gave directly: only its validity period and its name are checked.
fn verify_given(
    judged: Result<ServerCertVerified, Error>,
    end_entity: &CertificateDer<'_>,
    name: &ServerName<'_>,
) -> Result<ServerCertVerified, Error> {
    use CertificateError as Problem;
    // The validity period is the first thing that is verified of a certificate, before who issued it and what it may be
    // used for; the tests of this crate check that for each kind of certificate.
    if let Err(Error::InvalidCertificate(
        Problem::Expired
        | Problem::ExpiredContext { .. }
        | Problem::NotValidYet
        | Problem::NotValidYetContext { .. }
        | Problem::BadEncoding,
    )) = &judged
    {
        return judged;
    }
    verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
    Ok(ServerCertVerified::assertion())
}

impl ServerCertVerifier for MasterVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.name.as_ref().unwrap_or(server_name);
        let mut refused: Error = CertificateError::UnknownIssuer.into();
        if let Some(issued) = &self.issued {
            let judged =
                issued.verify_server_cert(end_entity, intermediates, name, ocsp_response, now);
            if self.certificates.iter().any(|given| given == end_entity) {
                return verify_given(judged, end_entity, name);
            }
            match judged {
                Ok(verified) => return Ok(verified),
                Err(error) => refused = error,
            }
        }
        let Some(authorities) = &self.authorities else {
            return Err(refused);
        };
        authorities
            .verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
            .map_err(|error| match &error {
                // The error about the given certificates explains more.
                Error::InvalidCertificate(CertificateError::UnknownIssuer) => refused,
                _ => error,
            })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Accepts any certificate of a server that holds its key: what `noverify` and `skip_verify` ask for.
#[derive(Debug)]
pub struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl AnyCertificate {
    /// A verifier that accepts every certificate.
    pub fn new(provider: Arc<CryptoProvider>) -> Self {
        Self { provider }
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Why a certificate was refused, as the rest of a sentence that names the master. `name_setting` is the setting that
/// gives the name to expect, such as `DET_MASTER_CERT_NAME`.
pub fn explain(problem: &CertificateError, name_setting: &str) -> String {
    use CertificateError as Problem;
    match problem {
        Problem::UnknownIssuer => "its issuer is not known on this machine".to_owned(),
        Problem::Expired | Problem::ExpiredContext { .. } => "it has expired".to_owned(),
        Problem::NotValidYet | Problem::NotValidYetContext { .. } => {
            "it is not valid yet".to_owned()
        }
        Problem::NotValidForNameContext {
            expected,
            presented,
        } if presented.is_empty() => format!(
            "it names no host, but must name \"{}\"; make one that has a subjectAltName",
            expected.to_str()
        ),
        Problem::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "it was made for another host name ({}) than \"{}\" (see {name_setting})",
            names(presented),
            expected.to_str()
        ),
        Problem::NotValidForName => {
            format!("it was made for another host name (see {name_setting})")
        }
        // Among others: a self-signed certificate that was not given as one to trust.
        Problem::Other(_) => "no authority known on this machine vouches for it".to_owned(),
        other => other.to_string(),
    }
}

/// Names of a certificate; rustls gives each as `DnsName("…")` or `IpAddress(…)`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inside = name.split_once('(').and_then(|(_, n)| n.strip_suffix(')'));
        inside.unwrap_or(name).trim_matches('"').to_owned()
    };
    let mut names: Vec<String> = presented.iter().take(NAMES_SHOWN).map(bare).collect();
    if presented.len() > NAMES_SHOWN {
        names.push("…".to_owned());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        date_time_ymd,
    };
    use std::time::Duration;

    const AUTHORITY: IsCa = IsCa::Ca(BasicConstraints::Unconstrained);

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    /// For "master", valid in the year 2020.
    fn parameters(is_ca: IsCa) -> CertificateParams {
        let mut parameters = CertificateParams::new(vec!["master".to_owned()]).unwrap();
        parameters.is_ca = is_ca;
        parameters.not_before = date_time_ymd(2020, 1, 1);
        parameters.not_after = date_time_ymd(2021, 1, 1);
        parameters
    }

    fn self_signed(parameters: &CertificateParams) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().clone()
    }

    /// An authority and a certificate that it issued.
    fn issued() -> (CertificateDer<'static>, CertificateDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut authority = parameters(AUTHORITY);
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, "an authority");
        let root = authority.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(authority, key);
        let leaf_key = KeyPair::generate().unwrap();
        let leaf = parameters(IsCa::NoCa)
            .signed_by(&leaf_key, &issuer)
            .unwrap();
        (root, leaf.der().clone())
    }

    fn verifier(given: &[&CertificateDer<'static>], name: Option<&str>) -> MasterVerifier {
        let given = given.iter().map(|&one| one.clone()).collect();
        let name = name.map(|name| ServerName::try_from(name.to_owned()).unwrap());
        MasterVerifier::new(provider(), given, None, name).unwrap()
    }

    /// Seconds since 1970 in the middle of a year.
    fn midyear(year: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600 + 15_000_000))
    }

    /// The verifier's result for a certificate presented by the host "master" in the middle of `year`.
    fn verify(
        verifier: &dyn ServerCertVerifier,
        shown: &CertificateDer<'_>,
        year: u64,
    ) -> Result<(), String> {
        let host = ServerName::try_from("master").unwrap();
        let judged = verifier.verify_server_cert(shown, &[], &host, &[], midyear(year));
        match judged {
            Ok(_) => Ok(()),
            Err(Error::InvalidCertificate(problem)) => Err(explain(&problem, "NAME")),
            Err(other) => panic!("{other}"),
        }
    }

    /// Each way of giving a certificate to trust, with what the master presents.
    fn accepted() -> Vec<(
        &'static str,
        CertificateDer<'static>,
        CertificateDer<'static>,
    )> {
        let mut client_only = parameters(IsCa::NoCa);
        client_only.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (root, leaf) = issued();
        let mut cases = vec![
            ("a private authority", root, leaf.clone()),
            (
                "an issued certificate, given without its issuer",
                leaf.clone(),
                leaf,
            ),
        ];
        for (name, parameters) in [
            ("self-signed", parameters(IsCa::NoCa)),
            (
                "self-signed, no authority in so many words",
                parameters(IsCa::ExplicitNoCa),
            ),
            (
                "self-signed, calls itself an authority",
                parameters(AUTHORITY),
            ),
            ("self-signed, for clients only", client_only),
        ] {
            let certificate = self_signed(&parameters);
            cases.push((name, certificate.clone(), certificate));
        }
        cases
    }

    #[test]
    fn what_was_given_is_accepted_in_its_time_and_under_its_name_only() {
        for (name, given, shown) in accepted() {
            let judged = |expected, year| verify(&verifier(&[&given], expected), &shown, year);
            assert_eq!(judged(None, 2020), Ok(()), "{name}");
            assert_eq!(judged(Some("master"), 2020), Ok(()), "{name}");
            assert_eq!(judged(None, 2022), Err("it has expired".into()), "{name}");
            assert_eq!(
                judged(None, 2018),
                Err("it is not valid yet".into()),
                "{name}"
            );
            assert_eq!(
                judged(Some("other"), 2020),
                Err(
                    "it was made for another host name (master) than \"other\" (see NAME)"
                        .to_owned()
                ),
                "{name}"
            );
        }
    }

    #[test]
    fn an_unknown_certificate_with_the_right_name_is_refused() {
        let (other_root, _) = issued();
        for (name, given, _) in accepted() {
            for stranger in [
                self_signed(&parameters(AUTHORITY)),
                self_signed(&parameters(IsCa::NoCa)),
                issued().1,
            ] {
                for given in [vec![&given], vec![&given, &other_root], vec![]] {
                    let judged = verify(&verifier(&given, None), &stranger, 2020);
                    assert!(judged.is_err(), "{name}");
                }
            }
        }
    }

    #[test]
    fn the_hosts_authorities_are_trusted_if_they_are_passed() {
        let (given, _) = issued();
        let (root, leaf) = issued();
        let host: Arc<dyn ServerCertVerifier> = Arc::new(verifier(&[&root], None));
        for given in [vec![], vec![given]] {
            let with =
                MasterVerifier::new(provider(), given, Some(Arc::clone(&host)), None).unwrap();
            assert_eq!(verify(&with, &leaf, 2020), Ok(()));
            assert_eq!(verify(&with, &leaf, 2022), Err("it has expired".into()));
        }
    }

    #[test]
    fn a_certificate_without_names_reports_what_it_lacks() {
        let mut nameless = parameters(AUTHORITY);
        nameless.subject_alt_names.clear();
        let nameless = self_signed(&nameless);
        let said = verify(&verifier(&[&nameless], None), &nameless, 2020).unwrap_err();
        assert!(said.contains("subjectAltName"), "{said}");
        let unverified = AnyCertificate::new(provider());
        assert_eq!(verify(&unverified, &nameless, 2030), Ok(()));
    }

    #[test]
    fn data_that_is_not_a_certificate_is_refused() {
        let garbage = CertificateDer::from(b"garbage".to_vec());
        assert!(MasterVerifier::new(provider(), vec![garbage], None, None).is_err());
    }

    #[test]
    fn of_many_names_some_are_shown() {
        let presented: Vec<String> = (0..9).map(|n| format!("IpAddress(10.0.0.{n})")).collect();
        assert_eq!(
            names(&presented),
            "10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.3, …"
        );
    }
}
