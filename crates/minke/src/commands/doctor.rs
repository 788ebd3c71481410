//! `minke doctor`: looks at this machine for what a cluster needs, each with what to do about it.
//! The checks are `machine_checks`; `support_bundle` keeps the same answer.
//! Looks only; changes nothing.

use anyhow::{Result, bail};
use serde::Serialize;

use crate::{
    commands::machine_checks,
    flags::{Look, OutputForm},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), advice: String::new() }
    }

    pub fn warn(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), advice: advice.into() }
    }

    pub fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fail, found: found.into(), advice: advice.into() }
    }
}

/// Ends with an error if a cluster can't run here; warnings are none.
pub async fn run(look: &Look) -> Result<()> {
    let checks = machine_checks::all(&look.data.instance(), &env::Env::real()).await;
    match look.output {
        OutputForm::Json => println!("{}", serde_json::to_string_pretty(&checks)?),
        OutputForm::Text => print!("{}", text(&checks)),
    }
    match checks.iter().filter(|check| check.verdict == Verdict::Fail).count() {
        0 => Ok(()),
        failed => bail!("{failed} checks failed: do what they say, then run `minke doctor` again"),
    }
}

fn text(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let mark = match check.verdict {
            Verdict::Ok => "OK  ",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        };
        let advice = if check.advice.is_empty() { String::new() } else { format!("\n       → {}", check.advice) };
        format!("{mark} {:<20} {}{advice}\n", check.name, check.found)
    };
    checks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whatever_is_not_ok_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let instance = crate::cluster::instance::Instance::new(directory.path());
        let checks = machine_checks::all(&instance, &env::Env::real()).await;
        assert!(checks.len() >= 15, "{checks:#?}");
        for check in &checks {
            assert_eq!(check.verdict == Verdict::Ok, check.advice.is_empty(), "{check:?}");
            assert!(!check.found.is_empty(), "{check:?}");
        }
        let shown = text(&[Check::ok("kernel", "6.1"), Check::fail("nft", "not found", "apt-get install nftables")]);
        assert_eq!(
            shown,
            "OK   kernel               6.1\nFAIL nft                  not found\n       → apt-get install nftables\n"
        );
    }
}
