//! Access to the master's HTTP API, for the command line and for tests.
//!
//! The crate knows the protocol: the address of a master ([`MasterUrl`]), trusted certificates ([`Trust`]), the user
//! and the token ([`Session`], [`TokenStore`]), the format of responses, pages and streams ([`Client`], [`Query`],
//! [`LineStream`]), and connections to services of tasks ([`ServiceConnection`]). It does not know what an experiment is:
//! responses are JSON values, from which callers take what they show. It never prompts: if a password must be typed, it
//! calls a function of the caller.
//!
//! Read [`Client`] first, then [`Session::open`], then [`ClientError`].

mod address;
mod client;
mod config_dir;
mod error;
mod files;
mod paging;
mod password;
mod query;
mod secret;
mod service;
mod session;
mod stream;
mod token_store;
mod trust;

pub use address::{InvalidMasterUrl, MasterUrl};
pub use client::{Client, ClientOptions, Download, api_path};
pub use config_dir::{NoConfigDir, config_dir};
pub use error::ClientError;
pub use files::StoreError;
pub use paging::{Pages, Paging};
pub use password::{password_weaknesses, salted_hash};
pub use query::Query;
pub use secret::Secret;
pub use service::ServiceConnection;
pub use session::{Candidate, DEFAULT_USER, Environment, Identity, NamedBy, Session, SessionError};
pub use stream::LineStream;
pub use token_store::{MasterEntry, TokenStore};
pub use trust::{CertificateStore, Trust, TrustError, fingerprint, presented_chain};

/// Installs `ring` as the cryptography provider of this process. Must be called before the first [`Client`] is created;
/// further calls do nothing.
pub fn install_crypto_provider() {
    // The only error is that a provider is installed already, which is what the caller wants.
    drop(rustls::crypto::ring::default_provider().install_default());
}
