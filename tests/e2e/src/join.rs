//! What `minke node join-command` prints, taken apart: `echo TOKEN | minke agent … --token-file - …`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::minke;

pub struct JoinCommand {
    pub token: String,
    /// After `minke`, with the token on standard input.
    pub arguments: Vec<String>,
}

impl JoinCommand {
    pub fn of(server_data: &Path) -> Self {
        let output = Command::new(minke()).args(["node", "join-command", "--data-dir"]).arg(server_data).output();
        let text = String::from_utf8(output.expect("a command to join with").stdout).expect("text");
        let (token, command) = text.split_once(" | minke ").unwrap_or_else(|| panic!("{text}"));
        let token = token.strip_prefix("echo ").unwrap_or_else(|| panic!("{text}")).to_string();
        assert!(!command.contains(&token), "everybody would see the token: {command}");
        Self { token, arguments: command.split_whitespace().map(str::to_string).collect() }
    }

    pub fn after(&self, flag: &str) -> &str {
        self.arguments.iter().skip_while(|word| *word != flag).nth(1).expect(flag)
    }

    pub fn with(&self, flag: &str, instead: &str, value: &str) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        let position = arguments.iter().position(|word| word == flag).expect(flag);
        (arguments[position], arguments[position + 1]) = (instead.to_string(), value.to_string());
        arguments
    }

    /// With the token in a file below `directory`, for a program that has no standard input.
    pub fn from_file(&self, directory: &Path) -> Vec<String> {
        self.with("--token-file", "--token-file", &write(directory, &self.token).display().to_string())
    }
}

pub fn write(directory: &Path, token: &str) -> PathBuf {
    let file = directory.join("token");
    std::fs::write(&file, token).expect("written");
    file
}
