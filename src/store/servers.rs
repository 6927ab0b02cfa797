//! From settings to the servers that may be tried: defaults, several hosts, sockets, passwords from the file.
//!
//! Owns the defaults and what each libpq setting means ("Parameter Key Words" in PostgreSQL's libpq manual). Nothing is
//! connected here; that is [`connect`](super::connect)'s part.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, TargetSessionAttrs};

use super::Error;
use super::params::{Lookup, Params};
use super::passfile::{self, Wanted};
use super::tls::{self, SslMode, TlsFiles};

/// libpq waits for ever by default; a worker must notice a host that swallows packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Silence after which the peer is asked whether it is still there, and how often. A vanished server is noticed after
/// about two minutes where the system's default is two hours.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);

/// Where servers put their socket unless told otherwise.
const SOCKET_FOLDERS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

const PORT: u16 = 5432;

/// Where to connect to, and by which rules.
#[derive(Clone, Debug)]
pub(super) struct Targets {
    /// At least one.
    pub(super) servers: Vec<Server>,
    pub(super) order: Order,
    /// For one server, from its name to a session that is ready for use. `None`: no limit.
    pub(super) limit: Option<Duration>,
    pub(super) mode: SslMode,
    pub(super) files: TlsFiles,
    /// For messages: user, hosts, ports and database.
    pub(super) display: String,
}

/// One address to try, with all that a session there needs.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) config: tokio_postgres::Config,
}

/// In which order servers are tried: `load_balance_hosts`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    AsWritten,
    Random,
}

/// What all servers of one connector share.
struct Common {
    user: String,
    dbname: String,
    mode: SslMode,
    passfile: Option<String>,
}

impl Targets {
    /// Reads the settings; of files, the password file and the existence of those with a default place.
    pub(super) fn from_params(params: &Params, lookup: Lookup<'_>) -> Result<Self, Error> {
        let user = match params.get("user") {
            Some(user) => user.to_owned(),
            None => operating_system_user(lookup).ok_or_else(|| {
                params.wrong("user", "is not given, and this process has no name")
            })?,
        };
        let dbname = params.get("dbname").unwrap_or(&user).to_owned();
        let files = tls_files(params, lookup)?;
        let mode = match params.get("sslmode") {
            None => tls::default_mode(&files),
            Some(word) => SslMode::parse(word).ok_or_else(|| {
                params.wrong(
                    "sslmode",
                    "is none of disable, allow, prefer, require, verify-ca, verify-full",
                )
            })?,
        };
        let common = Common {
            user,
            dbname,
            mode,
            passfile: passfile_text(params, lookup),
        };
        let servers = servers(params, &common)?;
        let order = match params.get("load_balance_hosts") {
            None | Some("disable") => Order::AsWritten,
            Some("random") => Order::Random,
            Some(_) => {
                return Err(params.wrong("load_balance_hosts", "is neither disable nor random"));
            }
        };
        let display = display(&servers, &common);
        Ok(Self {
            servers,
            order,
            limit: limit(params)?,
            mode,
            files,
            display,
        })
    }
}

fn servers(params: &Params, common: &Common) -> Result<Vec<Server>, Error> {
    let list = |name| {
        params.get(name).map_or_else(Vec::new, |value| {
            value.split(',').map(str::trim).collect::<Vec<_>>()
        })
    };
    let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = hosts.len().max(addresses.len()).max(1);
    if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
        return Err(params.wrong("hostaddr", "names another number of servers than host does"));
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(params.wrong("port", "names another number of servers than host does"));
    }
    (0..count)
        .map(|at| {
            let port = match ports.get(at).or(ports.first()) {
                None | Some(&"") => PORT,
                Some(port) => port
                    .parse()
                    .ok()
                    .filter(|port| *port != 0)
                    .ok_or_else(|| params.wrong("port", "is not between 1 and 65535"))?,
            };
            let address = addresses.get(at).filter(|address| !address.is_empty());
            let address: Option<IpAddr> = address
                .map(|address| {
                    address
                        .parse()
                        .map_err(|_| params.wrong("hostaddr", "is no IP address"))
                })
                .transpose()?;
            let host = match (hosts.get(at).filter(|host| !host.is_empty()), address) {
                (Some(host), _) => (*host).to_owned(),
                (None, Some(address)) => address.to_string(),
                (None, None) => default_host(port),
            };
            server(host, address, port, params, common)
        })
        .collect()
}

fn server(
    host: String,
    address: Option<IpAddr>,
    port: u16,
    params: &Params,
    common: &Common,
) -> Result<Server, Error> {
    use tokio_postgres::config::SslMode as Theirs;

    let mut config = tokio_postgres::Config::new();
    config
        .host(&host)
        .port(port)
        .user(&common.user)
        .dbname(&common.dbname);
    if let Some(address) = address {
        config.hostaddr(address);
    }
    // A socket is on this machine: as in libpq, sslmode does not matter there.
    let socket = host.starts_with('/');
    config.ssl_mode(match common.mode {
        _ if socket => Theirs::Disable,
        SslMode::Disable => Theirs::Disable,
        SslMode::Allow | SslMode::Prefer => Theirs::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Theirs::Require,
    });
    let known_as = if SOCKET_FOLDERS.contains(&host.as_str()) {
        "localhost"
    } else {
        &host
    };
    let wanted = Wanted {
        host: known_as,
        port,
        dbname: &common.dbname,
        user: &common.user,
    };
    let from_file = || {
        common
            .passfile
            .as_deref()
            .and_then(|text| passfile::find(text, wanted))
    };
    if let Some(password) = params.get("password").map(str::to_owned).or_else(from_file) {
        config.password(password);
    }
    session_settings(&mut config, params)?;
    socket_settings(&mut config, params)?;
    Ok(Server { host, port, config })
}

/// What the server is told about the session.
fn session_settings(config: &mut tokio_postgres::Config, params: &Params) -> Result<(), Error> {
    let name = params
        .get("application_name")
        .or(params.get("fallback_application_name"));
    config.application_name(name.unwrap_or("postrider"));
    if let Some(options) = params.get("options") {
        config.options(options);
    }
    config.target_session_attrs(match params.get("target_session_attrs") {
        None | Some("any") => TargetSessionAttrs::Any,
        Some("read-write" | "primary") => TargetSessionAttrs::ReadWrite,
        Some("read-only" | "standby") => TargetSessionAttrs::ReadOnly,
        Some(_) => {
            return Err(params.wrong(
                "target_session_attrs",
                "is none of any, read-write, read-only, primary, standby",
            ));
        }
    });
    config.channel_binding(match params.get("channel_binding") {
        None | Some("prefer") => ChannelBinding::Prefer,
        Some("disable") => ChannelBinding::Disable,
        Some("require") => ChannelBinding::Require,
        Some(_) => {
            return Err(params.wrong("channel_binding", "is none of disable, prefer, require"));
        }
    });
    Ok(())
}

/// What the operating system is told about the connection.
fn socket_settings(config: &mut tokio_postgres::Config, params: &Params) -> Result<(), Error> {
    let (idle, interval, retries) = KEEPALIVE;
    config.keepalives(number(params, "keepalives")?.is_none_or(|on| on != 0));
    config.keepalives_idle(seconds(params, "keepalives_idle")?.unwrap_or(idle));
    config.keepalives_interval(seconds(params, "keepalives_interval")?.unwrap_or(interval));
    config.keepalives_retries(
        number(params, "keepalives_count")?
            .filter(|count| *count > 0)
            .unwrap_or(retries),
    );
    if let Some(milliseconds) = number(params, "tcp_user_timeout")? {
        config.tcp_user_timeout(Duration::from_millis(milliseconds.into()));
    }
    if let Some(limit) = limit(params)? {
        config.connect_timeout(limit);
    }
    Ok(())
}

/// `connect_timeout`; zero means no limit, as in libpq.
fn limit(params: &Params) -> Result<Option<Duration>, Error> {
    Ok(match number(params, "connect_timeout")? {
        None => Some(CONNECT_TIMEOUT),
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds.into())),
    })
}

fn seconds(params: &Params, name: &str) -> Result<Option<Duration>, Error> {
    Ok(number(params, name)?
        .filter(|seconds| *seconds > 0)
        .map(|seconds| Duration::from_secs(seconds.into())))
}

fn number(params: &Params, name: &str) -> Result<Option<u32>, Error> {
    params
        .get(name)
        .map(|value| {
            value
                .trim()
                .parse()
                .map_err(|_| params.wrong(name, "is not a whole number"))
        })
        .transpose()
}

/// The folder with the local server's socket, or else this machine by TCP.
fn default_host(port: u16) -> String {
    let socket = format!(".s.PGSQL.{port}");
    let folder = SOCKET_FOLDERS
        .into_iter()
        .find(|folder| Path::new(folder).join(&socket).exists());
    folder.unwrap_or("localhost").to_owned()
}

/// As libpq: the user whose process this is. Minimal images have no such entry; there the variables count.
fn operating_system_user(lookup: Lookup<'_>) -> Option<String> {
    let id = rustix::process::getuid().as_raw().to_string();
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, user_id) = (fields.next()?, fields.next()?, fields.next()?);
        (user_id == id).then(|| name.to_owned())
    });
    named
        .or_else(|| lookup("USER"))
        .or_else(|| lookup("LOGNAME"))
        .filter(|name| !name.is_empty())
}

/// libpq's file of this name in the user's home.
fn home_file(lookup: Lookup<'_>, name: &str) -> Option<PathBuf> {
    lookup("HOME")
        .filter(|home| !home.is_empty())
        .map(|home| Path::new(&home).join(name))
}

fn passfile_text(params: &Params, lookup: Lookup<'_>) -> Option<String> {
    if params.get("password").is_some() {
        return None;
    }
    let path = params
        .get("passfile")
        .map(PathBuf::from)
        .or_else(|| home_file(lookup, ".pgpass"))?;
    passfile::read(&path)
}

fn tls_files(params: &Params, lookup: Lookup<'_>) -> Result<TlsFiles, Error> {
    let named = |name| params.get(name).map(PathBuf::from);
    let at_home = |name: &str| home_file(lookup, name).filter(|path| path.exists());
    let at_home_root = || at_home(".postgresql/root.crt").map(|path| path.display().to_string());
    let certificate = named("sslcert").or_else(|| at_home(".postgresql/postgresql.crt"));
    let key = named("sslkey").or_else(|| at_home(".postgresql/postgresql.key"));
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => return Err(params.wrong("sslkey", "is not given, but sslcert is")),
        (None, _) => None,
    };
    Ok(TlsFiles {
        roots: params
            .get("sslrootcert")
            .map(str::to_owned)
            .or_else(at_home_root),
        client,
    })
}

fn display(servers: &[Server], common: &Common) -> String {
    let addresses: Vec<_> = servers
        .iter()
        .map(|Server { host, port, .. }| {
            if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            }
        })
        .collect();
    format!("{}@{}/{}", common.user, addresses.join(","), common.dbname)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn targets(url: &str, environment: &[(&str, &str)]) -> Result<Targets, Error> {
        let lookup = |name: &str| {
            environment
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Targets::from_params(&Params::resolve(Some(url), &lookup)?, &lookup)
    }

    #[track_caller]
    fn only(url: &str, environment: &[(&str, &str)]) -> tokio_postgres::Config {
        let mut targets = targets(url, environment).expect("the settings make sense");
        assert_eq!(targets.servers.len(), 1);
        targets.servers.remove(0).config
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let targets = targets("postgres://me@db.example", &[]).expect("it makes sense");
        let config = &targets.servers[0].config;

        assert_eq!(targets.display, "me@db.example:5432/me");
        assert_eq!(targets.limit, Some(Duration::from_secs(10)));
        assert_eq!(config.get_application_name(), Some("postrider"));
        assert!(config.get_keepalives());
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
        assert_eq!(config.get_password(), None);
    }

    #[test]
    fn the_users_name_is_the_processs_own() {
        let named = targets("host=h", &[])
            .expect("the process has a name")
            .display;

        assert!(!named.starts_with('@'), "{named}");
    }

    #[test]
    fn the_display_never_holds_the_password() {
        let shown = targets("postgres://me:s3cret@a,[::1]:6/shop", &[]).expect("it makes sense");

        assert_eq!(shown.display, "me@a:5432,[::1]:6/shop");
        assert!(!format!("{shown:?}").contains("s3cret"));
    }

    #[test]
    fn each_of_several_hosts_has_its_port_and_its_password() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("passwords");
        std::fs::write(
            &file,
            "a:1:*:me:for a\nb:5432:*:me:for b\nlocalhost:3:*:me:local\n",
        )
        .expect("it is written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))
            .expect("the mode is set");

        let environment = [("PGPASSFILE", file.to_str().expect("a plain path"))];
        let found =
            targets("postgres://me@a:1,b,%2Ftmp:3/db", &environment).expect("it makes sense");

        let passwords: Vec<_> = found
            .servers
            .iter()
            .map(|server| server.config.get_password())
            .collect();
        assert_eq!(
            passwords,
            [Some(&b"for a"[..]), Some(b"for b"), Some(b"local")]
        );
        let given = only("postgres://me:given@a:1/db", &environment);
        assert_eq!(given.get_password(), Some(&b"given"[..]));
    }

    #[test]
    fn an_address_replaces_the_look_up_and_keeps_the_name() {
        let config = only("host=db.example hostaddr=127.0.0.1 user=me", &[]);
        let bare = only("hostaddr=127.0.0.1 user=me", &[]);

        assert_eq!(
            config.get_hosts(),
            [tokio_postgres::config::Host::Tcp("db.example".to_owned())]
        );
        assert_eq!(config.get_hostaddrs().len(), 1);
        assert_eq!(
            bare.get_hosts(),
            [tokio_postgres::config::Host::Tcp("127.0.0.1".to_owned())]
        );
    }

    #[test]
    fn tls_is_asked_for_by_mode_and_never_on_a_socket() {
        use tokio_postgres::config::SslMode as Theirs;

        let mode = |url: &str| only(url, &[("PGSSLMODE", "require")]).get_ssl_mode();

        assert_eq!(mode("postgres://me@h"), Theirs::Require);
        assert_eq!(mode("postgres://me@h?sslmode=disable"), Theirs::Disable);
        assert_eq!(mode("postgres://me@h?sslmode=allow"), Theirs::Prefer);
        assert_eq!(mode("postgres://me@%2Ftmp"), Theirs::Disable);
    }

    #[test]
    fn nonsense_is_refused_by_the_settings_name_and_without_its_value() {
        let nonsense = [
            ("host=h user=u port=s3cret", "port"),
            ("host=h user=u port=0", "port"),
            ("host=h user=u port=1,2", "port"),
            ("host=h user=u hostaddr=s3cret", "hostaddr"),
            ("host=a,b user=u hostaddr=127.0.0.1", "hostaddr"),
            ("host=h user=u connect_timeout=s3cret", "connect_timeout"),
            ("host=h user=u sslmode=s3cret", "sslmode"),
            (
                "host=h user=u target_session_attrs=s3cret",
                "target_session_attrs",
            ),
            ("host=h user=u channel_binding=s3cret", "channel_binding"),
            (
                "host=h user=u load_balance_hosts=s3cret",
                "load_balance_hosts",
            ),
            ("host=h user=u sslcert=/x", "sslkey"),
        ];

        for (url, setting) in nonsense {
            let error = targets(url, &[]).expect_err(url).to_string();
            assert!(
                error.contains(setting) && !error.contains("s3cret"),
                "{url}: {error}"
            );
        }
    }
}
