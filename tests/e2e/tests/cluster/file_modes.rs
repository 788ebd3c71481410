//! What a running cluster keeps on the machine is root's alone.

use std::{
    fs,
    io::Write,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::Cluster;

const NOBODY: u32 = 65534;

/// Every file, socket and pipe below a directory. Files come and go meanwhile.
fn files_below(top: &Path) -> Vec<PathBuf> {
    let (mut directories, mut files) = (vec![top.to_path_buf()], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                Ok(kind) if !kind.is_symlink() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

/// Those of `files` that another user can read or write.
fn open_to_others(files: &[PathBuf]) -> Vec<String> {
    let script = r#"while IFS= read -r file; do if [ -r "$file" ] || [ -w "$file" ]; then echo "$file"; fi; done"#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("sh runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let lines: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("sh ends");
    writer.join().expect("written").expect("written");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect()
}

/// `tests/e2e/run` gives the data directory the mode that older installations have.
#[test]
fn nobody_else_on_the_machine_reads_a_file_of_the_cluster() {
    let kubectl = crate::kubectl();
    let namespace = kubectl.namespace("modes");
    namespace.run(&["create", "secret", "generic", "s", "--from-literal=password=hidden"]);
    let data = Cluster::shared().data.clone();
    assert_eq!(fs::metadata(&data).expect("a directory").mode() & 0o7777, 0o700);
    let config = fs::read_to_string(data.join("containerd/config.toml")).expect("containerd's configuration");
    let run = config.split("\"/run/").nth(1).and_then(|rest| rest.split(['/', '"']).next()).expect("a run directory");
    let run = Path::new("/run").join(run);
    for top in [&data, &run] {
        let files = files_below(top);
        assert!(!files.is_empty(), "{} holds something", top.display());
        assert_eq!(open_to_others(&files), [] as [String; 0]);
    }
    assert_eq!(open_to_others(&[PathBuf::from("/proc/version")]), ["/proc/version"], "or this test sees nothing");
    // Also where somebody opens the directory again: the files themselves are closed.
    for name in ["admin.kubeconfig", "minke.log", "minke.pid", "join-token", "ranges.json", "containerd/containerd.log"]
    {
        let path = data.join(name);
        if let Ok(found) = fs::metadata(&path) {
            assert_eq!(found.mode() & 0o077, 0, "{name}");
        }
    }
}
