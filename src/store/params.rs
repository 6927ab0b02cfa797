//! The connection settings as libpq names them: read from a URL or `keyword=value` pairs, filled up from the
//! environment, each with its source.
//!
//! Owns the two notations and the order of the sources, after "Connection Strings" and "Environment Variables" in
//! PostgreSQL's libpq manual. What the settings mean is decided in [`connect`](super::connect).
//!
//! No message here quotes what was written: in a malformed URL, any piece may be part of the password.

use std::collections::BTreeMap;

use super::Error;

/// Every setting that is understood.
const KNOWN: [&str; 23] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "fallback_application_name",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "options",
    "passfile",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// libpq's settings that change nothing here: GSSAPI is never used, compression does not exist any more, text is
/// always UTF-8, and the server name is always sent.
const WITHOUT_EFFECT: [&str; 7] = [
    "client_encoding",
    "gssencmode",
    "gsslib",
    "krbsrvname",
    "sslcompression",
    "sslsni",
    "gssdelegation",
];

/// libpq's settings that would change something and that this program does not offer. They are refused, by name.
const REFUSED: [&str; 11] = [
    "replication",
    "require_auth",
    "requirepeer",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcertmode",
    "sslcrl",
    "sslcrldir",
    "sslnegotiation",
    "sslpassword",
];

/// libpq's environment variables and the settings they fill.
const VARIABLES: [(&str, &str); 18] = [
    ("PGAPPNAME", "application_name"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGDATABASE", "dbname"),
    ("PGHOST", "host"),
    ("PGHOSTADDR", "hostaddr"),
    ("PGLOADBALANCEHOSTS", "load_balance_hosts"),
    ("PGOPTIONS", "options"),
    ("PGPASSFILE", "passfile"),
    ("PGPASSWORD", "password"),
    ("PGPORT", "port"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGTCPUSERTIMEOUT", "tcp_user_timeout"),
    ("PGUSER", "user"),
];

/// Looks a variable up in the environment, or in a test's table.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One setting and where it was said.
#[derive(Clone)]
struct Setting {
    value: String,
    source: &'static str,
}

/// The settings; a name is there once.
#[derive(Clone, Default)]
pub(super) struct Params(BTreeMap<&'static str, Setting>);

impl Params {
    /// From the first of flag (or its variable), `DATABASE_URL`, nothing; then libpq's variables for what is left out.
    pub(super) fn resolve(flag: Option<&str>, lookup: Lookup<'_>) -> Result<Self, Error> {
        let said = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let flag = flag.filter(|url| !url.trim().is_empty()).map(str::to_owned);
        let (text, source) = if let Some(text) = flag {
            let from_variable = said("POSTRIDER_DATABASE_URL").is_some_and(|url| url == text);
            (
                text,
                if from_variable {
                    "POSTRIDER_DATABASE_URL"
                } else {
                    "--database-url"
                },
            )
        } else if let Some(text) = said("POSTRIDER_DATABASE_URL") {
            (text, "POSTRIDER_DATABASE_URL")
        } else if let Some(text) = said("DATABASE_URL") {
            (text, "DATABASE_URL")
        } else {
            (String::new(), "")
        };
        let mut params = Self::parse(text.trim(), source)?;
        for (variable, name) in VARIABLES {
            if let Some(value) = lookup(variable).filter(|value| !value.is_empty()) {
                params.0.entry(name).or_insert(Setting {
                    value,
                    source: variable,
                });
            }
        }
        Ok(params)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|setting| setting.value.as_str())
    }

    /// Where a setting was said: a flag, a variable, or `default`.
    pub(super) fn source(&self, name: &str) -> &'static str {
        self.0.get(name).map_or("default", |setting| setting.source)
    }

    /// The error about a setting whose value makes no sense; names its source, never the value.
    pub(super) fn wrong(&self, name: &str, why: &str) -> Error {
        Error::Settings {
            what: format!(
                "the database setting {name} (from {}) {why}",
                self.source(name)
            ),
        }
    }

    fn parse(text: &str, source: &'static str) -> Result<Self, Error> {
        let pairs = match text.split_once("://") {
            Some(("postgres" | "postgresql", rest)) => parse_url(rest),
            Some((scheme, _)) if !scheme.contains(['=', ' ']) => {
                Err("a database URL begins with postgres:// or postgresql://".to_owned())
            }
            Some(_) | None => parse_pairs(text),
        };
        let mut params = Self::default();
        for (place, (name, value)) in pairs
            .map_err(|why| settings(source, &why))?
            .into_iter()
            .enumerate()
        {
            params
                .set(place + 1, &name, value, source)
                .map_err(|why| settings(source, &why))?;
        }
        Ok(params)
    }

    fn set(
        &mut self,
        place: usize,
        name: &str,
        value: String,
        source: &'static str,
    ) -> Result<(), String> {
        if value.contains('\0') {
            return Err("a NUL character is in it".to_owned());
        }
        // What other drivers' URLs say for it, and libpq reads as well.
        let (name, value) = if name == "ssl" && value == "true" {
            ("sslmode", "require".to_owned())
        } else {
            (name, value)
        };
        if let Some(known) = KNOWN.iter().find(|known| **known == name) {
            // An empty value is as good as none, as in libpq.
            if !value.is_empty() {
                self.0.insert(known, Setting { value, source });
            }
            return Ok(());
        }
        if WITHOUT_EFFECT.contains(&name) {
            return Ok(());
        }
        if REFUSED.contains(&name) {
            return Err(format!("the setting {name} is not supported"));
        }
        Err(format!(
            "setting number {place} has a name that is not known (percent-encode `?`, `&` and `=` in a password)"
        ))
    }
}

// No derive: the values hold the password.
impl std::fmt::Debug for Params {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The error about settings from `source`.
fn settings(source: &str, why: &str) -> Error {
    Error::Settings {
        what: format!("{source} is no database address: {why}"),
    }
}

type Pairs = Vec<(String, String)>;

/// `user:password@host:port,host:port/database?name=value&name=value`
fn parse_url(rest: &str) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = address.split_once('/').unwrap_or((address, ""));
    if database.contains('@') || query.starts_with('@') {
        return Err("percent-encode `/`, `?`, `#` and `@` in user and password".to_owned());
    }
    // The last one: a password with a raw `@` then still works, and never ends up as a host name in a message.
    let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (names, ports) = parse_hosts(hosts)?;
    for (name, raw) in [
        ("user", user),
        ("password", password),
        ("host", &names),
        ("dbname", database),
    ] {
        pairs.push((name.to_owned(), decode(raw)?));
    }
    pairs.push(("port".to_owned(), ports));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or("a setting after `?` lacks its `=`")?;
        pairs.push((decode(name)?, decode(value)?));
    }
    Ok(pairs)
}

/// The host names and the ports of `a:1,b,[::1]:2`, each as a list with commas.
fn parse_hosts(hosts: &str) -> Result<(String, String), String> {
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(v6) => {
                let (name, rest) = v6
                    .split_once(']')
                    .ok_or("a host begins with `[` and lacks its `]`")?;
                let port = rest.strip_prefix(':').unwrap_or(rest);
                (name, port)
            }
            None => host.split_once(':').unwrap_or((host, "")),
        };
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("a port is not a number (percent-encode `/`, `?`, `#`, `@` and `:` in user and password)".to_owned());
        }
        names.push(name);
        ports.push(port);
    }
    // No port at all leaves the choice to PGPORT; one port of several means the default for the others.
    let ports = if ports.iter().all(|port| port.is_empty()) {
        String::new()
    } else {
        ports.join(",")
    };
    Ok((names.join(","), ports))
}

/// Percent-decoding; `+` is itself, as in libpq.
fn decode(raw: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(
                "a `%` is not followed by two hex digits (write a `%` itself as %25)".to_owned(),
            );
        };
        bytes.push(u8::try_from(high * 16 + low).expect("two hex digits fit a byte"));
    }
    String::from_utf8(bytes).map_err(|_| "what it percent-encodes is not UTF-8".to_owned())
}

/// `host=a port=1 password='it''s \'quoted\''`
fn parse_pairs(text: &str) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest
            .split_once('=')
            .ok_or("it is neither a postgres:// URL nor a list of name=value pairs")?;
        let name = name.trim_end();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(
                "a word lacks its `=` (put a value with spaces into single quotes)".to_owned(),
            );
        }
        let (value, after) = parse_value(after.trim_start())?;
        pairs.push((name.to_owned(), value));
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// One value, up to a space, or up to the closing quote; a backslash takes the next character as it is.
fn parse_value(text: &str) -> Result<(String, &str), String> {
    let (body, quoted) = text
        .strip_prefix('\'')
        .map_or((text, None), |body| (body, Some('\'')));
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, char)) = chars.next() {
        match (char, quoted) {
            ('\\', _) => value.extend(chars.next().map(|(_, taken)| taken)),
            ('\'', Some(_)) => return Ok((value, &body[at + 1..])),
            (space, None) if space.is_whitespace() => return Ok((value, &body[at..])),
            _ => value.push(char),
        }
    }
    if quoted.is_some() {
        return Err("a quoted value lacks its closing quote".to_owned());
    }
    Ok((value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    fn with<'a>(table: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            table
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        }
    }

    #[track_caller]
    fn url(text: &str) -> Params {
        Params::resolve(Some(text), &none).expect("it is well-formed")
    }

    #[test]
    fn the_flag_goes_before_its_variable_before_database_url_before_libpq() {
        let environment = [
            ("POSTRIDER_DATABASE_URL", "postgres://second"),
            ("DATABASE_URL", "postgres://third"),
            ("PGHOST", "fourth"),
        ];

        let host = |flag, from: usize| {
            let params =
                Params::resolve(flag, &with(&environment[from..])).expect("all are well-formed");
            (params.get("host").map(str::to_owned), params.source("host"))
        };

        assert_eq!(
            host(Some("postgres://first"), 0),
            (Some("first".into()), "--database-url")
        );
        assert_eq!(
            host(Some("postgres://second"), 0),
            (Some("second".into()), "POSTRIDER_DATABASE_URL")
        );
        assert_eq!(
            host(None, 0),
            (Some("second".into()), "POSTRIDER_DATABASE_URL")
        );
        assert_eq!(host(Some(""), 1), (Some("third".into()), "DATABASE_URL"));
        assert_eq!(host(None, 2), (Some("fourth".into()), "PGHOST"));
        assert_eq!(host(None, 3), (None, "default"));
    }

    #[test]
    fn libpq_variables_fill_what_a_url_leaves_out() {
        let environment = [
            ("PGUSER", "filled"),
            ("PGPORT", "6000"),
            ("PGDATABASE", "ignored"),
            ("PGSSLMODE", ""),
        ];

        let params = Params::resolve(Some("postgres://somewhere/mine"), &with(&environment))
            .expect("well-formed");

        assert_eq!(params.get("user"), Some("filled"));
        assert_eq!(params.get("port"), Some("6000"));
        assert_eq!(params.get("dbname"), Some("mine"));
        assert_eq!(params.get("sslmode"), None);
    }

    #[test]
    fn a_url_names_several_hosts_sockets_and_v6_addresses() {
        let params = url(
            "postgresql://me@a:1,b,[::1]:3,%2Frun%2Fpg/db?sslmode=verify-full&passfile=%2Fp&ssl=true",
        );

        assert_eq!(params.get("host"), Some("a,b,::1,/run/pg"));
        assert_eq!(params.get("port"), Some("1,,3,"));
        assert_eq!(params.get("sslmode"), Some("require"));
        assert_eq!(params.get("passfile"), Some("/p"));
    }

    #[test]
    fn a_password_of_odd_characters_works_percent_encoded() {
        let odd = "p@:/?#[]% &='\"\\é+";
        let encoded: String = odd.bytes().map(|byte| format!("%{byte:02X}")).collect();

        assert_eq!(
            url(&format!("postgres://u:{encoded}@h/db")).get("password"),
            Some(odd)
        );
        assert_eq!(url("postgres://u:a@b@h/db").get("password"), Some("a@b"));
        assert_eq!(url("postgres://u:a+b@h/db").get("password"), Some("a+b"));
    }

    #[test]
    fn pairs_take_quotes_and_backslashes() {
        let params = url(r"host = /tmp  user=a\ b password='it\'s \\ x' dbname='' port=5");

        assert_eq!(params.get("host"), Some("/tmp"));
        assert_eq!(params.get("user"), Some("a b"));
        assert_eq!(params.get("password"), Some(r"it's \ x"));
        assert_eq!(params.get("dbname"), None);
        assert_eq!(params.get("port"), Some("5"));
    }

    #[test]
    fn no_message_about_a_malformed_address_quotes_any_of_it() {
        let malformed = [
            "postgres://u:s3cret/x@host/db",
            "postgres://u:s3cret?x@host/db",
            "postgres://u:12?s3cret=x@host/db",
            "postgres://u:12/s3cret@host/db",
            "postgres://u:12?@s3cret@host/db",
            "postgres://u:s3cret%zz@host/db",
            "postgres://u:x@host:s3cret/db",
            "postgres://u:s3cret",
            "postgres://u:x@[s3cret/db",
            "postgres://h/db?s3cret",
            "postgres://h/db?password=s3cret&service=x",
            "postgres://h/db?password=s3cret&unknown=x",
            "mysql://u:s3cret@host/db",
            "u:s3cret@host/db",
            "password=s3cret word",
            "password='s3cret",
            "s3cret=1",
        ];

        for text in malformed {
            let error = Params::resolve(Some(text), &none).expect_err(text);
            assert!(
                !format!("{error} {error:?}").contains("s3cret"),
                "{text}: {error}"
            );
            assert!(
                error.to_string().contains("--database-url"),
                "{text}: {error}"
            );
        }
    }
}
