//! What a verb is given: output, kubeconfig, the way to the server and what it serves.
//! Made by `lib` for one command line; each part is made when it is first asked for.
//! Tests put a fake transport in its place.

use std::{
    cell::{OnceCell, RefCell},
    rc::Rc,
    time::Duration,
};

use crate::{
    failure::{Failure, Result},
    flags::Matches,
    kubeconfig::{Config, Places, resolve},
    kuberc::plugin_policy::PluginPolicy,
    output::Output,
    rest::{Rest, Transport, connect::HttpTransport},
    verbs::info::version,
};

/// The release whose kubectl this one equals; the server of the same program says the same.
pub const CLIENT_VERSION: &str = api::GIT_VERSION;

pub struct Session {
    pub output: Output,
    pub env: env::Env,
    pub matches: Matches,
    plugins: PluginPolicy,
    rest: OnceCell<Rest>,
    config: OnceCell<Config>,
    pub(crate) discovery: RefCell<Option<Rc<crate::discovery::Discovery>>>,
}

impl Session {
    pub fn new(output: Output, matches: &Matches, env: env::Env) -> Self {
        Self {
            output,
            env,
            matches: matches.globals(),
            plugins: PluginPolicy::default(),
            rest: OnceCell::new(),
            config: OnceCell::new(),
            discovery: RefCell::default(),
        }
    }

    /// The same, running only the credential plugins that the preferences allow.
    pub fn with_plugins(mut self, plugins: PluginPolicy) -> Self {
        self.plugins = plugins;
        self
    }

    /// A session whose server is `transport`, and that reads no file.
    pub fn with_transport(output: Output, matches: &Matches, env: env::Env, transport: Rc<dyn Transport>) -> Self {
        let session = Self::new(output.clone(), matches, env.clone());
        let _ = session.rest.set(Rest::new(transport, output, matches.int("v"), None, env));
        let _ = session.config.set(Config::default());
        session
    }

    /// The same connection, printing elsewhere.
    pub fn with_output(&self, output: Output) -> Self {
        let other = Self::new(output, &self.matches, self.env.clone()).with_plugins(self.plugins.clone());
        if let Some(rest) = self.rest.get() {
            let _ = other.rest.set(rest.clone());
        }
        if let Some(config) = self.config.get() {
            let _ = other.config.set(config.clone());
        }
        *other.discovery.borrow_mut() = self.discovery.borrow().clone();
        other
    }

    pub fn places(&self) -> Places {
        Places::of(&self.matches)
    }

    pub fn config(&self) -> Result<&Config> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let loaded = self.places().load()?;
        Ok(self.config.get_or_init(|| loaded))
    }

    pub fn verbosity(&self) -> i64 {
        self.matches.int("v")
    }

    /// The namespace of the request, and whether a flag said so.
    pub fn namespace(&self) -> Result<(String, bool)> {
        resolve::namespace(self.config()?, &self.matches)
    }

    /// How long one request may take.
    pub fn request_timeout(&self) -> Result<Option<Duration>> {
        let text = self.matches.str("request-timeout");
        let nanos = match text.parse::<i64>() {
            Ok(seconds) => seconds.saturating_mul(1_000_000_000),
            Err(_) => api::codec::parse_duration(text).map_err(|_| {
                Failure::message("Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding time unit (e.g. 1s | 2m | 3h)")
            })?,
        };
        Ok((nanos > 0).then(|| Duration::from_nanos(nanos as u64)))
    }

    pub async fn rest(&self) -> Result<&Rest> {
        if let Some(rest) = self.rest.get() {
            return Ok(rest);
        }
        let timeout = self.request_timeout()?;
        let config = self.config()?;
        if self.verbosity() >= 6 {
            for file in self.places().files.iter().filter(|f| f.exists()) {
                let text = format!("Config loaded from file:  {}", file.display());
                crate::rest::log::line(&self.env, &self.output, "loader.go:405", &text);
            }
        }
        let (places, plugins, output) = (self.places(), &self.plugins, &self.output);
        let connection = resolve::connection(&places, config, &self.matches, plugins, output, &self.env).await?;
        let transport = Rc::new(HttpTransport::new(connection)?);
        let rest = Rest::new(transport, self.output.clone(), self.verbosity(), timeout, self.env.clone());
        if self.matches.bool("match-server-version") {
            let server = rest.get("/version").value().await;
            let server =
                server.map_err(|why| Failure::message(format!("couldn't read version from server: {}", why.text())))?;
            let client = version::client_version();
            if ["gitVersion", "gitCommit", "gitTreeState"].iter().any(|field| client[*field] != server[*field]) {
                return Err(Failure::message(format!(
                    "server version (&{}) differs from client version ({})",
                    version::go_value(&server),
                    version::go_value(&client)
                )));
            }
        }
        Ok(self.rest.get_or_init(|| rest))
    }

    /// What is left to say when the verb is done.
    pub fn after(&self) -> Result<()> {
        let warnings = self.rest.get().map_or(0, Rest::warnings);
        if warnings > 0 && self.matches.bool("warnings-as-errors") {
            let plural = if warnings == 1 { "" } else { "s" };
            return Err(Failure::message(format!("{warnings} warning{plural} received")));
        }
        Ok(())
    }
}
