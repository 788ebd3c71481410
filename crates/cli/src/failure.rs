//! What ends a command: the words for the person, and the exit code for the script.
//! Made everywhere in the crate; printed by `lib` alone.
//! A `Status` from the server stays whole until it is printed, so that verbs can look at its reason.

use serde_json::Value;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug, Clone)]
pub enum Failure {
    /// Printed behind `error: `.
    Message(String),
    /// The command line was wrong: also says where the help is.
    Usage(String),
    /// A flag was wrong: the same, in the words of the flags' parser.
    Flag(String),
    /// The command's help is printed, and behind it why, if anything is wrong at all.
    Help(Option<String>),
    /// Printed as it is.
    Plain(String),
    /// A `metav1.Status` that the server answered with, perhaps behind words of ours.
    Status(Box<Status>),
    /// The server could not be reached: where, and why.
    Connection { server: String, refused: bool, cause: String },
    /// Several, one line each.
    Several(Vec<Failure>),
    /// Something was printed before it went wrong.
    Printed { printed: String, failure: Box<Failure> },
    /// Everything was said already.
    Exit(u8),
}

#[derive(Debug, Clone, Default)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Value,
}

impl Failure {
    pub fn message(text: impl Into<String>) -> Self {
        Self::Message(text.into())
    }

    pub fn flag(text: impl Into<String>) -> Self {
        Self::Flag(text.into())
    }

    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// An answer with a code that is no success.
    pub fn from_answer(code: u16, body: &[u8], verb: &str, resource: &str, name: &str) -> Self {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        if value["kind"] == "Status" && value["message"].is_string() {
            return Self::Status(Box::new(Status {
                code: value["code"].as_u64().map_or(code, |c| c as u16),
                reason: value["reason"].as_str().unwrap_or_default().to_string(),
                message: value["message"].as_str().unwrap_or_default().to_string(),
                details: value["details"].clone(),
            }));
        }
        let text = String::from_utf8_lossy(body).trim().to_string();
        let (reason, message) = match code {
            401 => ("Unauthorized", "the server has asked for the client to provide credentials".to_string()),
            403 => ("Forbidden", if text.is_empty() { "forbidden".to_string() } else { text }),
            404 => ("NotFound", "the server could not find the requested resource".to_string()),
            405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource".to_string()),
            409 => ("Conflict", "the server reported a conflict".to_string()),
            429 => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later".to_string(),
            ),
            503 => (
                "ServiceUnavailable",
                if text.is_empty() { "the server is currently unable to handle the request".to_string() } else { text },
            ),
            500.. => (
                "InternalError",
                format!("an error on the server ({text:?}) has prevented the request from succeeding"),
            ),
            _ => (
                "",
                if text.is_empty() {
                    format!("the server responded with the status code {code} but did not return more information")
                } else {
                    text
                },
            ),
        };
        let target = match (resource, name) {
            ("", _) => String::new(),
            (resource, "") => format!(" ({} {resource})", verb.to_lowercase()),
            (resource, name) => format!(" ({} {resource} {name})", verb.to_lowercase()),
        };
        Self::Status(Box::new(Status {
            code,
            reason: reason.to_string(),
            message: format!("{message}{target}"),
            details: Value::Null,
        }))
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Status(status) => &status.reason,
            _ => "",
        }
    }

    pub fn code(&self) -> u16 {
        match self {
            Self::Status(status) => status.code,
            _ => 0,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.reason() == "NotFound" || (self.reason().is_empty() && self.code() == 404)
    }

    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    /// `error when creating "pod.yaml": …`
    pub fn with_source(self, verb: &str, source: &str) -> Self {
        if source.is_empty() {
            return self;
        }
        self.behind(&format!("error when {verb} {source:?}: "))
    }

    /// The same with words in front.
    pub fn behind(self, words: &str) -> Self {
        match self {
            Self::Status(mut status) => {
                status.message = format!("{words}{}", status.message);
                Self::Status(status)
            }
            Self::Several(all) if all.len() == 1 => match all.into_iter().next() {
                Some(one) => one.behind(words),
                None => Self::Several(Vec::new()),
            },
            other => Self::Message(format!("{words}{}", other.text())),
        }
    }

    /// One failure of several; of none, success.
    pub fn aggregate(mut failures: Vec<Failure>) -> Result<()> {
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => Err(Self::Several(failures)),
        }
    }

    /// What went wrong with objects, and behind it, as one, what already went wrong when they were looked for.
    pub fn aggregate_behind(mut of_objects: Vec<Failure>, of_selection: Vec<Failure>) -> Result<()> {
        if of_objects.is_empty() {
            return Self::aggregate(of_selection);
        }
        of_objects.extend(Self::aggregate(of_selection).err());
        Self::aggregate(of_objects)
    }

    /// Without any prefix, as it stands inside another message.
    pub fn text(&self) -> String {
        match self {
            Self::Message(text) | Self::Usage(text) | Self::Flag(text) | Self::Plain(text) => text.clone(),
            Self::Help(why) => why.clone().unwrap_or_default(),
            Self::Status(status) => status.message.clone(),
            Self::Connection { cause, .. } => cause.clone(),
            Self::Several(all) => {
                let texts: Vec<String> = all.iter().map(Self::text).collect();
                match texts.len() {
                    1 => texts.concat(),
                    _ => format!("[{}]", texts.join(", ")),
                }
            }
            Self::Printed { failure, .. } => failure.text(),
            Self::Exit(_) => "exit".to_string(),
        }
    }

    /// As one line among several.
    fn line(&self) -> String {
        match self {
            Self::Status(status) if status.reason == "Unauthorized" => {
                format!("error: You must be logged in to the server ({})", status.message)
            }
            Self::Status(status) if status.reason.is_empty() => format!("Error from server: {}", status.message),
            Self::Status(status) => format!("Error from server ({}): {}", status.reason, status.message),
            Self::Connection { server, refused: true, .. } => {
                format!("The connection to the server {server} was refused - did you specify the right host or port?")
            }
            Self::Connection { cause, .. } => format!("Unable to connect to the server: {cause}"),
            Self::Message(text) | Self::Usage(text) | Self::Flag(text) if text.starts_with("error: ") => text.clone(),
            Self::Message(text) | Self::Usage(text) | Self::Flag(text) => format!("error: {text}"),
            Self::Plain(text) => text.clone(),
            Self::Help(why) => why.as_ref().map(|why| format!("error: {why}")).unwrap_or_default(),
            Self::Several(all) => all.iter().map(Self::line).collect::<Vec<_>>().join("\n"),
            Self::Printed { failure, .. } => failure.line(),
            Self::Exit(_) => String::new(),
        }
    }

    /// What the person reads, and the exit code. `command` is the path that was typed, such as `kubectl get`.
    pub fn report(&self, command: &str) -> (String, u8) {
        match self {
            Self::Exit(code) => (String::new(), *code),
            Self::Printed { failure, .. } => failure.report(command),
            Self::Usage(text) => (format!("error: {text}\nSee '{command} -h' for help and examples"), 1),
            Self::Flag(text) => (format!("error: {text}\nSee '{command} --help' for usage."), 1),
            Self::Status(status) if status.reason == "Invalid" => (invalid(status), 1),
            Self::Several(all) => {
                (all.iter().map(|one| one.in_several()).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("\n"), 1)
            }
            other => (other.line(), 1),
        }
    }

    fn in_several(&self) -> String {
        match self {
            Self::Message(text) => text.clone(),
            Self::Several(all) if all.len() > 1 => self.text(),
            other => other.line(),
        }
    }
}

fn invalid(status: &Status) -> String {
    let details = &status.details;
    let word = |field: &str| details[field].as_str().unwrap_or_default();
    if details.is_null() {
        return format!("The request is invalid: {}", status.message);
    }
    let mut start = "The request is invalid".to_string();
    let causes = details["causes"].as_array().cloned().unwrap_or_default();
    if !word("kind").is_empty() || !word("name").is_empty() {
        start = format!("The {} {:?} is invalid", word("kind"), word("name"));
    } else if causes.is_empty() {
        start = format!("{start}: {}", status.message);
    }
    let mut lines: Vec<String> = Vec::new();
    for cause in &causes {
        let field = cause["field"].as_str().unwrap_or_default();
        let line = format!("{field}: {}", cause["message"].as_str().unwrap_or_default());
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    match lines.as_slice() {
        [] => start,
        [one] => format!("{start}: {one}"),
        many => format!("{start}: \n* {}", many.join("\n* ")),
    }
}

/// The system's words as Go's.
pub fn go_error(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_string(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_string(),
        std::io::ErrorKind::IsADirectory => "is a directory".to_string(),
        _ => error.to_string(),
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Message(error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Message(error.to_string())
    }
}
