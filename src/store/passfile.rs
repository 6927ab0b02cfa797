//! The password file, `~/.pgpass`: which password belongs to which server.
//!
//! Its format and the refusal of a file that others may read follow "The Password File" in PostgreSQL's libpq manual.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// What a line of the file is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Host name or address, `localhost` for a socket in its usual folder.
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) dbname: &'a str,
    pub(super) user: &'a str,
}

/// The file's text, if it is there and nobody else may read it; else `None`, with a warning where a person would wonder.
pub(super) fn read(path: &Path) -> Option<String> {
    // A file that is not there is the usual case.
    let about = std::fs::metadata(path).ok()?;
    if !about.is_file() {
        tracing::warn!(path = %path.display(), "the password file is ignored: it is not a plain file");
        return None;
    }
    if about.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "the password file is ignored: others may read it (chmod 0600)");
        return None;
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the password file is ignored");
            None
        }
    }
}

/// The password of the first line that fits.
pub(super) fn find(text: &str, wanted: Wanted<'_>) -> Option<String> {
    let port = wanted.port.to_string();
    let needles = [wanted.host, &port, wanted.dbname, wanted.user];
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let mut rest = line;
            for needle in needles {
                let (raw, after) = field(rest)?;
                if raw != "*" && unescape(raw) != needle {
                    return None;
                }
                rest = after;
            }
            // Whatever is behind the fourth colon, colons included: libpq stops at none.
            Some(unescape(rest)).filter(|password| !password.is_empty())
        })
}

/// The text up to the next colon that no backslash protects, and what is behind it.
fn field(line: &str) -> Option<(&str, &str)> {
    let mut chars = line.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => {
                chars.next();
            }
            ':' => return Some((&line[..at], &line[at + 1..])),
            _ => {}
        }
    }
    None
}

fn unescape(raw: &str) -> String {
    let mut chars = raw.chars();
    let mut plain = String::with_capacity(raw.len());
    while let Some(char) = chars.next() {
        plain.push(if char == '\\' {
            chars.next().unwrap_or('\\')
        } else {
            char
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    const WANTED: Wanted<'static> = Wanted {
        host: "db.example",
        port: 5433,
        dbname: "shop",
        user: "me",
    };

    #[test]
    fn the_first_line_that_fits_gives_the_password() {
        let text = "# a comment\ndb.example:5432:shop:me:other port\n*:5433:*:you:other user\n\
                    db.example:5433:*:me:first\n*:*:*:*:last\n";

        assert_eq!(find(text, WANTED).as_deref(), Some("first"));
        assert_eq!(
            find(
                text,
                Wanted {
                    host: "elsewhere",
                    ..WANTED
                }
            )
            .as_deref(),
            Some("last")
        );
        assert_eq!(find("db.example:5433:shop:you:x", WANTED), None);
    }

    #[test]
    fn backslashes_protect_colons_and_themselves() {
        let wanted = Wanted {
            host: "::1",
            user: r"a\b",
            ..WANTED
        };

        let found = find(r"\:\:1:5433:shop:a\\b:pa\:ss\\word:more", wanted);

        assert_eq!(found.as_deref(), Some(r"pa:ss\word:more"));
    }

    #[test]
    fn lines_that_are_too_short_or_empty_fit_nothing() {
        assert_eq!(find("\n*\n*:*:*:*\n*:*:*:*:\n", WANTED), None);
    }

    #[test]
    fn a_file_that_others_may_read_is_ignored() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("pgpass");
        std::fs::write(&path, "*:*:*:*:x").expect("the file is written");

        for (mode, read_it) in [
            (0o600, true),
            (0o400, true),
            (0o640, false),
            (0o604, false),
            (0o620, false),
        ] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("the mode is set");
            assert_eq!(read(&path).is_some(), read_it, "mode {mode:o}");
        }
        assert_eq!(read(folder.path()), None);
        assert_eq!(read(&folder.path().join("absent")), None);
    }
}
