//! What `sign` and `verify` share: the scheme, the secrets, the body, and this machine's time.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use super::Failure;
use crate::signing::{Scheme, Secret};

#[derive(clap::Args)]
pub(super) struct SignatureArgs {
    /// The body, exactly as it is sent: a file, or - for stdin
    #[arg(value_name = "FILE")]
    body: PathBuf,
    /// The endpoint's secret; repeat it during a rotation, the newest first
    #[arg(
        long = "secret",
        value_name = "WHSEC",
        env = "POSTRIDER_SECRET",
        hide_env_values = true,
        value_delimiter = ','
    )]
    secrets: Vec<String>,
    /// standard, github, stripe or body-base64
    #[arg(long, value_name = "SCHEME", default_value = "standard")]
    scheme: String,
    /// The header that carries the signature of body-base64
    #[arg(long, value_name = "NAME")]
    signature_header: Option<String>,
}

// No derive: the secrets stay out of every log.
impl std::fmt::Debug for SignatureArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignatureArgs")
            .field("body", &self.body)
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

/// The arguments in the words of [`signing`](crate::signing).
pub(super) struct Material {
    pub(super) scheme: Scheme,
    pub(super) secrets: Vec<Secret>,
    pub(super) body: Vec<u8>,
}

impl SignatureArgs {
    pub(super) fn read(&self) -> anyhow::Result<Material> {
        let scheme =
            Scheme::parse(&self.scheme, self.signature_header.as_deref()).map_err(|error| {
                Failure::usage(
                    error.to_string(),
                    "see --scheme and --signature-header in --help",
                )
            })?;
        let given: Vec<_> = self
            .secrets
            .iter()
            .filter(|text| !text.is_empty())
            .collect();
        if given.is_empty() {
            return Err(Failure::usage(
                "no secret was given",
                "set POSTRIDER_SECRET, or give --secret; the table postrider.endpoint_secrets has it, and `postrider endpoint add` printed it once",
            )
            .into());
        }
        let secrets = given
            .into_iter()
            .map(|text| {
                Secret::parse(text).map_err(|error| {
                    Failure::usage(
                        error.to_string(),
                        "check --secret, or POSTRIDER_SECRET where the flag is absent",
                    )
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Material {
            scheme,
            secrets,
            body: read_body(&self.body)?,
        })
    }
}

fn read_body(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut body = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut body)
            .context("cannot read the body from stdin")?;
        return Ok(body);
    }
    std::fs::read(path).map_err(|error| {
        Failure::usage(
            format!("cannot read {}: {error}", path.display()),
            "name a file with the body, or - for stdin",
        )
        .into()
    })
}

/// Seconds since 1970 by this machine's clock: signatures are compared by it, and by nothing else.
pub(super) fn now_seconds() -> anyhow::Result<i64> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("this machine's clock is before 1970")?;
    Ok(i64::try_from(since.as_secs())?)
}
