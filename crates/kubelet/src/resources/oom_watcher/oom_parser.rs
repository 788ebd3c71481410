//! Out-of-memory kills in the kernel's messages.
//! Used by `oom_watcher`.
//! Invariant: pure; anything else the kernel says is passed over (tidy: `pure_files`).

/// A process that the kernel killed for want of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomInstance {
    pub pid: u32,
    pub process_name: String,
    /// The group whose limit was reached; "/" where the machine itself had no more.
    pub limited_group: String,
    /// The group that the process was in, where the kernel says so.
    pub victim_group: String,
}

/// Follows the messages from "invoked oom-killer" to the process that was killed.
#[derive(Debug, Default)]
pub struct OomParser {
    current: Option<OomInstance>,
}

/// The message of a record: what follows the first semicolon of its first line.
pub fn message(record: &str) -> Option<&str> {
    record.lines().next()?.split_once(';').map(|(_, message)| message)
}

impl OomParser {
    pub fn observe(&mut self, message: &str) -> Option<OomInstance> {
        if message.contains("invoked oom-killer:") {
            let root = || "/".to_string();
            self.current =
                Some(OomInstance { pid: 0, process_name: String::new(), limited_group: root(), victim_group: root() });
            return None;
        }
        let current = self.current.as_mut()?;
        if let Some(fields) = message.split_once("oom-kill:constraint=").map(|(_, fields)| fields) {
            summary(fields, current);
        } else if let Some((victim, limited)) =
            message.split_once("Task in ").and_then(|(_, rest)| rest.split_once(" killed as a result of limit of "))
        {
            // Kernels before 5.0.
            (current.victim_group, current.limited_group) = (victim.into(), limited.trim().into());
        } else if let Some((pid, name)) = killed(message) {
            (current.pid, current.process_name) = (pid, name.into());
        }
        match current.pid {
            0 => None,
            _ => self.current.take(),
        }
    }
}

/// Fields of the one line in which kernels since 5.0 say it all. Names of processes may have commas.
fn summary(fields: &str, found: &mut OomInstance) {
    let after = |key: &str| fields.split_once(key).map(|(_, rest)| rest);
    let until = |text: &'_ str, next: &str| text.split_once(next).map_or(text, |(value, _)| value).to_string();
    if let Some(rest) = after(",oom_memcg=") {
        found.limited_group = until(rest, ",task_memcg=");
    }
    if let Some(rest) = after(",task_memcg=") {
        found.victim_group = until(rest, ",task=");
    }
    let Some(rest) = after(",task=") else { return };
    let Some((name, rest)) = rest.rsplit_once(",pid=") else { return };
    let Some(pid) = until(rest, ",").trim().parse().ok().filter(|pid| *pid > 0) else { return };
    (found.process_name, found.pid) = (name.into(), pid);
}

fn killed(message: &str) -> Option<(u32, &str)> {
    let (_, rest) = message.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    let (name, _) = rest.rsplit_once("), ").or_else(|| rest.rsplit_once(')'))?;
    Some((pid.trim().parse().ok().filter(|pid| *pid > 0)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_found_among_other_messages() {
        let check = |messages: &[&str], expected: Option<(u32, &str, &str, &str)>| {
            let mut parser = OomParser::default();
            let mut found = messages.iter().filter_map(|message| parser.observe(message));
            let first = found.next();
            let shown = first
                .as_ref()
                .map(|oom| (oom.pid, oom.process_name.as_str(), oom.limited_group.as_str(), oom.victim_group.as_str()));
            assert_eq!(shown, expected, "{messages:?}");
        };
        let begin = "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=985";
        let of_group = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/pod1,\
            task_memcg=/kubepods/pod1/abc,task=a,b,pid=42,uid=0";
        check(&[begin, "Mem-Info:", of_group], Some((42, "a,b", "/kubepods/pod1", "/kubepods/pod1/abc")));
        let global = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
            task_memcg=/kubepods/pod1/abc,task=hog,pid=7,uid=0";
        check(&[begin, global], Some((7, "hog", "/", "/kubepods/pod1/abc")));
        let killed = "Out of memory: Killed process 9 (web (1)), UID 0, total-vm:1kB, anon-rss:1kB";
        check(&[begin, killed], Some((9, "web (1)", "/", "/")));
        let old = ["Task in /a/b killed as a result of limit of /a", "Killed process 5 (x) total-vm:1kB"];
        check(&[begin, old[0], old[1]], Some((5, "x", "/a", "/a/b")));
        check(&[killed], None);
        check(&[begin, "oom-kill:constraint=NONSENSE,task=,pid=x,uid="], None);
    }

    #[test]
    fn records_have_a_head_and_a_message() {
        assert_eq!(message("6,339,5140900,-;eth0: up; ready\n SUBSYSTEM=net\n"), Some("eth0: up; ready"));
        assert_eq!(message("nonsense"), None);
    }
}
