//! The image most tests run: Debian's static busybox, and a server and client of our own for network tests.
//! Imported by `cluster` and pushed to a registry by the pull test.
//! Made from what is on this machine; nothing is pulled.

use std::{collections::BTreeSet, path::Path, process::Command};

use image::Image;

/// `net serve` and its clients; see `programs/net.rs`.
const NET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/net"));

pub const BUSYBOX: &str = "minke.local/busybox:e2e";

pub const NGINX: &str = "minke.local/nginx:e2e";

/// Says who answered, on both families.
const NGINX_CONF: &str = "daemon off; user root; worker_processes 2; pid /tmp/nginx.pid; error_log stderr;
events {}
http { access_log off; server { listen 80; listen [::]:80; location / { return 200 \"nginx $hostname\\n\"; } } }
";

/// Applets that tests call by name.
const APPLETS: &[&str] = &[
    "sh", "cat", "echo", "env", "false", "grep", "head", "hostname", "httpd", "id", "ip", "kill", "ls", "mkdir",
    "mount", "nc", "netstat", "nslookup", "ps", "pwd", "rm", "sed", "sleep", "stat", "stty", "test", "timeout",
    "touch", "tr", "true", "wc", "wget", "yes",
];

/// One name, one image: whether a pod may use one that is present depends on how it came.
pub fn busybox_archive(reference: &str) -> Vec<u8> {
    let program = std::fs::read("/bin/busybox").expect("busybox is missing: apt-get install busybox-static");
    let build = || -> std::io::Result<Vec<u8>> {
        let mut image = Image::new().directory("bin", 0o755)?.directory("tmp", 0o1777)?.directory("etc", 0o755)?;
        image = image.file("bin/busybox", 0o755, &program)?.file("bin/net", 0o755, NET)?;
        image = image.file("etc/image", 0o644, reference.as_bytes())?;
        for applet in APPLETS {
            image = image.symlink(&format!("bin/{applet}"), "/bin/busybox")?;
        }
        let mut bytes = Vec::new();
        image.env(&["PATH=/bin"]).command(&["sh"]).write(reference, &mut bytes)?;
        Ok(bytes)
    };
    build().expect("an image in memory")
}

/// Debian's nginx with the libraries it needs.
pub fn nginx_archive(reference: &str) -> Vec<u8> {
    let program = "/usr/sbin/nginx";
    let listed = Command::new("ldd").arg(program).output().expect("ldd runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    let mut files: Vec<(String, Vec<u8>)> = libraries
        .chain([program])
        .map(|path| (path.to_string(), std::fs::read(path).expect("nginx is missing: apt-get install nginx")))
        .collect();
    files.push(("/etc/passwd".into(), b"root:x:0:0::/:/bin/sh\n".to_vec()));
    files.push(("/etc/group".into(), b"root:x:0:\n".to_vec()));
    files.push(("/etc/nginx/nginx.conf".into(), NGINX_CONF.into()));
    let mut directories: BTreeSet<String> = ["tmp", "var/log/nginx", "var/lib/nginx"].map(str::to_string).into();
    for (path, _) in &files {
        directories.extend(Path::new(path).parent().map(|parent| parent.display().to_string()));
    }
    let build = || -> std::io::Result<Vec<u8>> {
        let mut image = Image::new();
        for directory in directories {
            image = image.directory(directory.trim_start_matches('/'), 0o755)?;
        }
        for (path, content) in &files {
            image = image.file(path.trim_start_matches('/'), 0o755, content)?;
        }
        let mut bytes = Vec::new();
        image.entrypoint(&["/usr/sbin/nginx", "-c", "/etc/nginx/nginx.conf"]).write(reference, &mut bytes)?;
        Ok(bytes)
    };
    build().expect("an image in memory")
}
