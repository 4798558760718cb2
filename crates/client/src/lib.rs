//! Access to the master's HTTP API, for the command line and for tests.
//!
//! The crate knows the wire: where a master is ([`MasterUrl`]), whom it trusts ([`Trust`]), who asks ([`Session`],
//! [`TokenStore`]), and how answers, pages and streams look ([`Client`], [`Query`], [`LineStream`]). It knows nothing
//! of what an experiment is: answers are JSON values, and callers take out of them what they show. It asks nobody
//! anything: where a password must be typed, the caller hands in the question.
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
pub use session::{Candidate, Environment, Session, SessionError};
pub use stream::LineStream;
pub use token_store::{MasterEntry, TokenStore};
pub use trust::{CertificateStore, Trust, TrustError, fingerprint, presented_chain};

/// Names `ring` as the cryptography of this process. Must run before the first [`Client`] is made; further calls do
/// nothing.
pub fn install_crypto_provider() {
    // The only error is that a provider is installed already, which is what the caller wants.
    drop(rustls::crypto::ring::default_provider().install_default());
}
