//! Whom the client trusts: the machine's CA certificates, and those in the files that the operator names.
//!
//! Owns the TLS configuration. A machine without any CA bundle is no reason to refuse to start (plain HTTP receivers
//! still work): the handshake fails later, as a try of its own, and its message says what is missing.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

use super::ClientError;

/// Whether the machine's own CA certificates are trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SystemRoots {
    /// Those that the platform, `SSL_CERT_FILE` or `SSL_CERT_DIR` offer.
    #[default]
    Load,
    /// Only the named files count.
    Ignore,
}

/// Whether anybody is trusted at all; it changes what a failed handshake tells its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// At least one CA certificate was found.
    Some,
    /// None was: every handshake fails.
    Nobody,
}

pub(super) fn config(
    system: SystemRoots,
    ca_files: &[PathBuf],
) -> Result<(ClientConfig, Trust), ClientError> {
    let mut roots = RootCertStore::empty();
    if system == SystemRoots::Load {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "some of the machine's CA certificates cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
    }
    for path in ca_files {
        add_file(&mut roots, path)?;
    }
    let trust = if roots.is_empty() {
        Trust::Nobody
    } else {
        Trust::Some
    };

    // The provider is passed, not looked up: a library must not panic because its program installed none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ClientError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, trust))
}

fn add_file(roots: &mut RootCertStore, path: &Path) -> Result<(), ClientError> {
    let unreadable = |source| ClientError::CaFile {
        path: path.to_owned(),
        source,
    };
    let mut count = 0;

    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        roots
            .add(certificate.map_err(unreadable)?)
            .map_err(|source| ClientError::CaCertificate {
                path: path.to_owned(),
                source,
            })?;
        count += 1;
    }
    match count {
        0 => Err(unreadable(pem::Error::NoItemsFound)),
        _ => Ok(()),
    }
}
