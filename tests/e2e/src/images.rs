//! The image most tests run: Debian's static busybox, and a server and client of our own for network tests.
//! Imported by `cluster` and pushed to a registry by the pull test.
//! Invariant: made from what is on this machine; nothing is pulled.

use image::Image;

/// `net serve` and its clients; see `programs/net.rs`.
const NET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/net"));

pub const BUSYBOX: &str = "minke.local/busybox:e2e";

/// Applets that tests call by name.
const APPLETS: &[&str] = &[
    "sh", "cat", "echo", "env", "false", "grep", "head", "hostname", "httpd", "id", "ip", "kill", "ls", "mkdir",
    "mount", "nc", "netstat", "nslookup", "ps", "pwd", "rm", "sed", "sleep", "stat", "test", "timeout", "touch", "tr",
    "true", "wc", "wget", "yes",
];

pub fn busybox_archive(reference: &str) -> Vec<u8> {
    let program = std::fs::read("/bin/busybox").expect("busybox is missing: apt-get install busybox-static");
    let build = || -> std::io::Result<Vec<u8>> {
        let mut image = Image::new().directory("bin", 0o755)?.directory("tmp", 0o1777)?.directory("etc", 0o755)?;
        image = image.file("bin/busybox", 0o755, &program)?.file("bin/net", 0o755, NET)?;
        for applet in APPLETS {
            image = image.symlink(&format!("bin/{applet}"), "/bin/busybox")?;
        }
        let mut bytes = Vec::new();
        image.env(&["PATH=/bin"]).command(&["sh"]).write(reference, &mut bytes)?;
        Ok(bytes)
    };
    build().expect("an image in memory")
}
