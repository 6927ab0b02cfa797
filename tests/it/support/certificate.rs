//! A self-signed certificate for one test, as a server configuration and as the file that makes a client trust it.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use tempfile::NamedTempFile;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

pub(crate) struct Certificate {
    file: NamedTempFile,
    made: rcgen::CertifiedKey<rcgen::KeyPair>,
}

impl Certificate {
    /// For host names and addresses alike.
    pub(crate) fn of(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names).expect("valid names");
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(made.cert.pem().as_bytes())
            .expect("a writable file");

        Self { file, made }
    }

    /// What `--ca-file` would name.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// `alpn` in the server's order of preference.
    pub(crate) fn acceptor(&self, alpn: &[&str]) -> TlsAcceptor {
        let key =
            PrivateKeyDer::try_from(self.made.signing_key.serialize_der()).expect("a PKCS #8 key");
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![self.made.cert.der().clone()], key)
            .expect("the key belongs to the certificate");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();

        TlsAcceptor::from(Arc::new(config))
    }
}
