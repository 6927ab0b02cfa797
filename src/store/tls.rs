//! TLS towards the server: what `sslmode`, `sslrootcert`, `sslcert` and `sslkey` ask for, as a rustls configuration.
//!
//! The rules follow "SSL Support" in PostgreSQL's libpq manual. What differs: `allow` behaves as `prefer`, and a
//! handshake that fails is final; there is no second try in the clear.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::Error;

/// `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl SslMode {
    /// The mode of this name, if there is one.
    pub(super) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "disable" => Self::Disable,
            "allow" => Self::Allow,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
        })
    }
}

/// The files a handshake needs, as far as they were named.
#[derive(Clone, Debug, Default)]
pub(super) struct TlsFiles {
    /// `sslrootcert`: a file, or `system`.
    pub(super) roots: Option<String>,
    /// `sslcert` and `sslkey`.
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

/// How much of the server's certificate must convince.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Encryption only; anybody may be the server.
    Nothing,
    /// It leads to one of the roots.
    Chain,
    /// It does, and bears the host's name.
    ChainAndName,
}

/// The mode that holds when `sslmode` was not said.
pub(super) fn default_mode(files: &TlsFiles) -> SslMode {
    // The public roots vouch for anybody who bought a certificate: without the name they prove nothing.
    if files.roots.as_deref() == Some("system") {
        SslMode::VerifyFull
    } else {
        SslMode::Prefer
    }
}

/// The client configuration for a mode; reads the files.
pub(super) fn client_config(mode: SslMode, files: &TlsFiles) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier {
        trusted: trusted(mode, files)?,
        check: check(mode, files)?,
        provider: Arc::clone(&provider),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS", &error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some((certificate, key)) = &files.client else {
        return Ok(builder.with_no_client_auth());
    };
    check_key_is_private(key)?;
    let chain = certificates("sslcert", certificate)?;
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|error| unusable_file("sslkey", key, &error))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable("sslcert and sslkey", &error))
}

fn check(mode: SslMode, files: &TlsFiles) -> Result<Check, Error> {
    match (mode, files.roots.as_deref()) {
        (SslMode::Disable, _) | (SslMode::Allow | SslMode::Prefer | SslMode::Require, None) => {
            Ok(Check::Nothing)
        }
        (SslMode::VerifyCa | SslMode::VerifyFull, None) => Err(Error::Settings {
            what: "this sslmode needs sslrootcert: a file, or system".to_owned(),
        }),
        (SslMode::VerifyFull, Some(_)) => Ok(Check::ChainAndName),
        (_, Some("system")) => Err(Error::Settings {
            what: "sslrootcert=system needs sslmode=verify-full: those roots vouch for anybody"
                .to_owned(),
        }),
        // A root certificate that is there is used, whatever the mode.
        (SslMode::Allow | SslMode::Prefer | SslMode::Require | SslMode::VerifyCa, Some(_)) => {
            Ok(Check::Chain)
        }
    }
}

/// The certificates that the server's must lead to.
fn trusted(mode: SslMode, files: &TlsFiles) -> Result<Vec<CertificateDer<'static>>, Error> {
    match files.roots.as_deref() {
        None => Ok(Vec::new()),
        Some(_) if mode == SslMode::Disable => Ok(Vec::new()),
        Some("system") => {
            let found = rustls_native_certs::load_native_certs();
            match (found.certs.is_empty(), found.errors.first()) {
                (false, _) => Ok(found.certs),
                (true, Some(error)) => Err(unusable("sslrootcert=system", error)),
                (true, None) => {
                    let what = "sslrootcert=system: this machine has no root certificates (install ca-certificates)";
                    Err(Error::Settings {
                        what: what.to_owned(),
                    })
                }
            }
        }
        Some(file) => certificates("sslrootcert", Path::new(file)),
    }
}

fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| unusable_file(setting, file, &error))?;
    if found.is_empty() {
        return Err(Error::Settings {
            what: format!("{setting} {}: no certificate is in it", file.display()),
        });
    }
    Ok(found)
}

/// libpq's rule: ours alone, or root's and readable by a group.
fn check_key_is_private(file: &Path) -> Result<(), Error> {
    let about = std::fs::metadata(file).map_err(|error| unusable_file("sslkey", file, &error))?;
    let forbidden = if about.uid() == 0 { 0o037 } else { 0o077 };
    if about.mode() & forbidden != 0 {
        return Err(Error::Settings {
            what: format!("sslkey {}: others may read it (chmod 0600)", file.display()),
        });
    }
    Ok(())
}

fn unusable_file(setting: &str, file: &Path, error: &dyn std::error::Error) -> Error {
    Error::Settings {
        what: format!("{setting} {}: {error}", file.display()),
    }
}

fn unusable(setting: &str, error: &dyn std::error::Error) -> Error {
    Error::Settings {
        what: format!("{setting}: {error}"),
    }
}

/// Judges the server's certificate by libpq's modes, which rustls knows only the strictest of.
#[derive(Debug)]
struct Verifier {
    trusted: Vec<CertificateDer<'static>>,
    check: Check,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn verify_chain(
        &self,
        certificate: &ParsedCertificate<'_>,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.trusted.iter().cloned());
        let algorithms = self.provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(
            certificate,
            &roots,
            intermediates,
            now,
            algorithms,
        ) {
            // A self-signed server certificate that is named as the root itself: OpenSSL takes it, and so PostgreSQL's
            // own instructions make them. It is a CA in form, which alone is why it was refused; dates have errors of
            // their own.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if self.trusted.iter().any(|root| root == end_entity) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.check != Check::Nothing {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            self.verify_chain(&certificate, end_entity, intermediates, now)?;
            if self.check == Check::ChainAndName {
                verify_server_name(&certificate, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(roots: Option<&str>) -> TlsFiles {
        TlsFiles {
            roots: roots.map(str::to_owned),
            client: None,
        }
    }

    #[test]
    fn each_mode_has_libpqs_meaning() {
        let modes = [
            "disable",
            "allow",
            "prefer",
            "require",
            "verify-ca",
            "verify-full",
        ];
        let checked = |roots| {
            modes.map(|word| {
                check(SslMode::parse(word).expect("it is a mode"), &files(roots))
                    .map_err(|error| error.to_string())
                    .ok()
            })
        };

        use Check::{Chain, ChainAndName, Nothing};
        let (no, ch, full) = (Some(Nothing), Some(Chain), Some(ChainAndName));
        assert_eq!(checked(None), [no, no, no, no, None, None]);
        assert_eq!(checked(Some("root.crt")), [no, ch, ch, ch, ch, full]);
        assert_eq!(checked(Some("system")), [no, None, None, None, None, full]);
    }

    #[test]
    fn a_mode_of_another_name_is_none() {
        for word in ["verify_full", "Require", "on", ""] {
            assert_eq!(SslMode::parse(word), None, "{word}");
        }
    }

    #[test]
    fn the_systems_roots_ask_for_the_name_by_default() {
        assert_eq!(default_mode(&files(Some("system"))), SslMode::VerifyFull);
        assert_eq!(default_mode(&files(Some("root.crt"))), SslMode::Prefer);
    }

    #[test]
    fn a_root_file_that_is_missing_is_named() {
        let error = client_config(SslMode::VerifyFull, &files(Some("/nowhere/root.crt")))
            .expect_err("it is not there");

        assert!(
            error.to_string().contains("sslrootcert /nowhere/root.crt"),
            "{error}"
        );
    }
}
