//! Our kubectl against stock kubectl 1.35: the same command lines on the same cluster, output and exit code compared.
//! The lines are in the files beside this one; `dialogs` has those that need a terminal.
//! Ages, times and identities are made equal first; everything else must be.

mod dialogs;

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use e2e::{Kubectl, Namespace, minke};

use crate::kubectl;

/// Files that the lines name as `DIR/…`; a line `=== NAME` begins one.
const FILES: &str = include_str!("files.txt");

const SHARED_RETRIES: usize = 5;

/// Two programs, each with a namespace of its own in which the same has happened.
struct Pair {
    folder: tempfile::TempDir,
    ours: Namespace,
    stocks: Namespace,
}

fn stock() -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/kubectl-1.35");
    assert!(clients.exists(), "stock kubectl is missing: tools/install test");
    clients
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let link = folder.path().join("kubectl");
        std::os::unix::fs::symlink(std::fs::canonicalize(minke()).expect("minke"), &link).expect("a link");
        for part in FILES.split("=== ").skip(1) {
            let (name, content) = part.split_once('\n').expect("a name and a content");
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a directory");
            std::fs::write(path, content).expect("a file");
        }
        let pair = Self { folder, ours: kubectl().namespace("ours"), stocks: kubectl().namespace("stock") };
        let file = pair.file("objects.yaml");
        for namespace in [&pair.ours, &pair.stocks] {
            namespace.run(&["apply", "-f", &file]);
            namespace.run(&["rollout", "status", "deploy/web"]);
        }
        pair
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Each program with its namespace, ours first.
    fn programs(&self) -> [(Kubectl, &Namespace); 2] {
        let link = self.folder.path().join("kubectl");
        [(self.ours.with_program(&link), &self.ours), (self.stocks.with_program(&stock()), &self.stocks)]
    }

    /// The words of a line: parted by spaces but for those in quotes.
    fn words(&self, line: &str) -> Vec<String> {
        let mut words: Vec<String> = vec![String::new()];
        let mut quoted = false;
        for letter in line.chars() {
            match letter {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                letter => words.last_mut().expect("a word").push(letter),
            }
        }
        let folder = self.folder.path().display().to_string();
        words.retain(|word| !word.is_empty());
        words.iter().map(|word| word.replace("FILE", "DIR/objects.yaml").replace("DIR", &folder)).collect()
    }

    /// What a program printed, with what may differ made equal.
    fn same(&self, text: &str, namespace: &Namespace) -> String {
        same(&text.replace(&namespace.name, "NS").replace(&self.folder.path().display().to_string(), "DIR"))
    }

    /// Runs a line with both; exit code and everything printed.
    fn run(&self, line: &str) -> [String; 2] {
        let words = self.words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.programs().map(|(program, namespace)| {
            let mut command = program.command(&words);
            // What an editor would change is no matter of a line.
            command.stdin(Stdio::null()).env("EDITOR", "true").env_remove("KUBE_EDITOR");
            let output = command.output().expect("kubectl runs");
            let text = |bytes: &[u8]| self.same(&String::from_utf8_lossy(bytes), namespace);
            format!("{}\n{}-- to standard error\n{}", ended(output.status), text(&output.stdout), text(&output.stderr))
        })
    }

    fn compare(&self, lines: &str) {
        let lines: Vec<&str> = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let mut different = Vec::new();
        for line in &lines {
            let [mut found, mut wanted] = self.run(line);
            // What belongs to the whole cluster may have changed from one to the other: other tests run beside this one.
            for _ in 0..SHARED_RETRIES {
                if found == wanted || !["get nodes", "api-"].iter().any(|shared| line.starts_with(shared)) {
                    break;
                }
                [found, wanted] = self.run(line);
            }
            if found != wanted {
                different.push(format!("== kubectl {line}\n-- ours\n{found}-- stock\n{wanted}"));
            }
        }
        assert!(different.is_empty(), "{} of {} lines differ\n{}", different.len(), lines.len(), different.join("\n"));
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("ended by signal {signal:?}"),
    }
}

/// Without ages, times, versions of objects, and how far columns stand apart because of them.
fn same(text: &str) -> String {
    let is_age = |word: &str| {
        word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
            && word.starts_with(|c: char| c.is_ascii_digit())
    };
    let is_time = |word: &str| {
        let word = word.trim_matches(['"', ',', '\'']);
        word.len() >= 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T'
    };
    // As `describe` writes them.
    let is_clock = |word: &str| word.len() == 8 && word.split(':').all(|part| part.len() == 2) && word.contains(':');
    let is_uid = |word: &str| word.len() >= 36 && word.matches('-').count() == 4 && !word.contains('/');
    let lines = text.lines().filter(|line| !line.contains("memcache.go") && !line.contains("resourceVersion"));
    // The other program's name, and diff's temporary files.
    let lines =
        lines.filter(|line| !line.starts_with("--- ") && !line.starts_with("+++ ") && !line.starts_with("diff "));
    let line = |line: &str| -> String {
        let line = line.replace("kubectl-1.35", "kubectl");
        let words = line
            .split_whitespace()
            .map(|word| if is_age(word) || is_time(word) || is_clock(word) || is_uid(word) { "AGE" } else { word });
        // A logged line begins with severity and date, time, process and place.
        let words: Vec<&str> = words.collect();
        match words.as_slice() {
            [head, _, _, place, rest @ ..] if place.ends_with(']') && head.len() == 5 => {
                let place = place.split(':').next().unwrap_or_default();
                format!("{} {place} {}", &head[..1], rest.join(" "))
            }
            words => words.join(" "),
        }
    };
    lines.map(|l| format!("{}\n", line(l))).collect()
}

#[test]
fn lines_that_read_end_as_with_stock_kubectl() {
    Pair::new().compare(include_str!("read.txt"));
}

#[test]
fn lines_that_generate_end_as_with_stock_kubectl() {
    Pair::new().compare(include_str!("generate.txt"));
}

#[test]
fn lines_that_change_end_as_with_stock_kubectl() {
    Pair::new().compare(include_str!("change.txt"));
}
