//! Static tokens and passwords from files, one identity per line: `secret,user,uid[,"group,group"]`.
//! Rows of the chain in `authn`.
//! A file with an error is refused whole; the error names the line and never the secret.

use std::{collections::HashMap, path::Path, sync::Arc};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use http::header;

use api::ApiError;
use env::Env;

use super::{AuthenticatorResponse, Credentials, TokenAuthenticator, User};
use crate::server::reload::{self, ReloadMetrics, Reloadable, WatchedFiles};

/// Users by their secret.
pub struct TokenFile(HashMap<String, User>);

/// Secrets and users by user name.
pub struct PasswordFile(HashMap<String, (String, User)>);

impl TokenFile {
    pub fn load(path: &Path) -> Result<Self, String> {
        read(path, Self::parse)
    }

    /// From the text of a file, or the line that is wrong and why.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        Ok(Self(parse(text)?.into_iter().collect()))
    }
}

impl PasswordFile {
    pub fn load(path: &Path) -> Result<Self, String> {
        read(path, Self::parse)
    }

    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let entries = parse(text)?.into_iter();
        Ok(Self(entries.map(|(secret, user)| (user.name.clone(), (secret, user))).collect()))
    }

    /// `Err`: a name and a password were given and do not belong together.
    pub fn user(&self, credentials: &Credentials<'_>) -> Result<Option<User>, ApiError> {
        let Some(value) = credentials.headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()) else {
            return Ok(None);
        };
        let Some((scheme, encoded)) = value.split_once(' ') else { return Ok(None) };
        if !scheme.eq_ignore_ascii_case("basic") {
            return Ok(None);
        }
        let decoded = BASE64_STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or_else(ApiError::unauthorized)?;
        let (name, password) = decoded.split_once(':').ok_or_else(ApiError::unauthorized)?;
        match self.0.get(name) {
            Some((secret, user)) if same(secret.as_bytes(), password.as_bytes()) => Ok(Some(user.clone())),
            _ => Err(ApiError::unauthorized()),
        }
    }
}

/// Compares in a time that does not tell how much was right.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (x, y)| different | (x ^ y)) == 0
}

#[async_trait]
impl TokenAuthenticator for Reloadable<TokenFile> {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<AuthenticatorResponse>, ApiError> {
        Ok(self.current().0.get(token).map(|user| user.clone().into()))
    }
}

/// What `load` makes of a file, now and whenever it changes.
pub fn reloaded<T: Send + Sync + 'static>(
    path: &Path,
    load: fn(&Path) -> Result<T, String>,
    env: &Env,
    metrics: &ReloadMetrics,
) -> Result<Arc<Reloadable<T>>, String> {
    let files = WatchedFiles::new(vec![path.to_path_buf()]);
    let value = Reloadable::new(load(path)?);
    let path = path.to_path_buf();
    reload::follow(&value, files, &reload::IDENTITY_FILES, metrics, env, move || {
        Box::pin(std::future::ready(load(&path)))
    });
    Ok(value)
}

fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<T, (usize, String)>) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("failed to read {}: {e}", path.display()))?;
    parse(&text).map_err(|(line, why)| format!("failed to read {}, line {line}: {why}", path.display()))
}

fn parse(text: &str) -> Result<Vec<(String, User)>, (usize, String)> {
    let mut entries = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let fields = fields(line).map_err(|why| (number, why))?;
        let [secret, name, uid, groups @ ..] = fields.as_slice() else {
            return Err((number, "it must have at least 3 columns (token, user name, user uid)".into()));
        };
        if secret.is_empty() || name.is_empty() {
            return Err((number, "the token and the user name may not be empty".into()));
        }
        let groups = groups.first().map(|g| g.split(',').map(|g| g.trim().to_string()).collect()).unwrap_or_default();
        entries.push((secret.clone(), User { name: name.clone(), uid: uid.clone(), groups, ..User::default() }));
    }
    Ok(entries)
}

/// The comma-separated fields of a line; quotes keep commas, doubled quotes are quotes.
fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        let field = fields.last_mut().expect("there is always a field");
        match (c, quoted) {
            ('"', true) if characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            ('"', _) => quoted = !quoted,
            (',', false) => fields.push(String::new()),
            (c, _) => field.push(c),
        }
    }
    if quoted {
        return Err("a quote is not closed".into());
    }
    Ok(fields.into_iter().map(|f| f.trim().to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_users_and_errors_name_the_line() {
        let users = parse("# who\nt0ken,alice,1,\"dev,ops\"\n\nother, bob ,2\n").unwrap();
        let shown: Vec<_> = users.iter().map(|(s, u)| format!("{s} {} {} {:?}", u.name, u.uid, u.groups)).collect();
        assert_eq!(shown, ["t0ken alice 1 [\"dev\", \"ops\"]", "other bob 2 []"]);
        for (text, line) in [("a,b,c\nsecret,b", 2), ("secret,,1", 1), ("a,b,c\n\n\"secret,b,c", 3)] {
            let (found, why) = parse(text).unwrap_err();
            assert_eq!(found, line, "{text}");
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
