//! A program that a test starts beside the cluster, and that ends with the test.

use std::process::{Child, Command, Stdio};

pub struct Process(Child);

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a program that starts"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
