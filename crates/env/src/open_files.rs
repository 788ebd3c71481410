//! How many files this process may have open.
//! Raised once by `minke` where it serves; `cri` and `minke` start with `command` what is to have the limit that we had.
//! Invariant: containers do not inherit the raised limit: programs that go through all possible descriptors would crawl
//! (test: `the_limit_is_raised_for_this_process_alone`).

use std::{ffi::OsStr, io, process::Command, sync::OnceLock};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The soft limit before it was raised.
static INHERITED: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit to the hard one; returns it.
pub fn raise_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let _ = INHERITED.set(soft);
    }
    Ok(hard)
}

/// A command that runs under the limit that this process was started with.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let Some(soft) = INHERITED.get() else { return Command::new(program) };
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -S -n \"$0\"; exec \"$@\"", &soft.to_string()]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_for_this_process_alone() {
        let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let low = before.min(256);
        setrlimit(Resource::RLIMIT_NOFILE, low, hard).unwrap();
        assert_eq!(raise_limit().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        let output = command("sh").args(["-c", "ulimit -S -n; ulimit -H -n"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let limits: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(limits.first(), Some(&low.to_string().as_str()));
        assert_ne!(limits.get(1), limits.first(), "only the soft limit was ours");
    }
}
