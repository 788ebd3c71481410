//! Asks for a user name and a password where nothing in the kubeconfig says who it is.
//! Used by `resolve`.
//! A terminal shows again what is typed, however the question ends.

use std::{
    io::{self, IsTerminal, Read},
    os::fd::AsFd,
};

use nix::sys::termios::{self, LocalFlags, SetArg, Termios};

use crate::{
    failure::{Failure, Result},
    output::Output,
};

const ANSWER_BYTES_MAX: usize = 4096;
/// As a shell sees a program that Ctrl-C ended.
const INTERRUPTED_EXIT: u8 = 130;

pub fn name_and_password(output: &Output) -> Result<(String, String)> {
    let ask = |what: &str| {
        output.print(&format!("Please enter {what}: "));
        output.flush();
    };
    ask("Username");
    let name = word(&mut io::stdin().lock())?;
    ask("Password");
    let Some(_hidden) = Hidden::enter() else {
        return Err(Failure::message("error reading input for Password"));
    };
    let password = hidden_line(&mut io::stdin().lock());
    output.print("\n");
    Ok((name, password?))
}

fn next_byte(input: &mut impl Read) -> Result<Option<u8>> {
    let mut byte = [0];
    Ok((input.read(&mut byte)? == 1).then_some(byte[0]))
}

fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Failure::message("the answer is no UTF-8"))
}

fn push(answer: &mut Vec<u8>, byte: u8) -> Result<()> {
    if answer.len() == ANSWER_BYTES_MAX {
        return Err(Failure::message(format!("the answer has more than {ANSWER_BYTES_MAX} bytes")));
    }
    answer.push(byte);
    Ok(())
}

/// The next word; what stands behind it stays for others to read.
fn word(input: &mut impl Read) -> Result<String> {
    let mut answer = Vec::new();
    while let Some(byte) = next_byte(input)? {
        match (byte.is_ascii_whitespace(), answer.is_empty()) {
            (true, true) => {}
            (true, false) => return text(answer),
            (false, _) => push(&mut answer, byte)?,
        }
    }
    match answer.is_empty() {
        true => Err(Failure::message("EOF")),
        false => text(answer),
    }
}

/// A line as keys are pressed: the terminal neither edits it nor acts on Ctrl-C by itself.
fn hidden_line(input: &mut impl Read) -> Result<String> {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    let mut answer = Vec::new();
    loop {
        match next_byte(input)? {
            Some(b'\n' | b'\r') => return text(answer),
            Some(CTRL_C) => return Err(Failure::Exit(INTERRUPTED_EXIT)),
            Some(CTRL_D) | None if answer.is_empty() => return Err(Failure::message("EOF")),
            Some(CTRL_D) | None => return text(answer),
            Some(8 | 127) => {
                answer.pop();
            }
            Some(byte) => push(&mut answer, byte)?,
        }
    }
}

/// A terminal that shows nothing until this is dropped.
struct Hidden(Termios);

impl Hidden {
    /// `None` if standard input is no terminal.
    fn enter() -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let before = termios::tcgetattr(io::stdin().as_fd()).ok()?;
        let mut hidden = before.clone();
        hidden.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
        termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &hidden).ok()?;
        Some(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_and_the_rest_stays() {
        let check = |typed: &str, wanted: std::result::Result<&str, &str>, rest: &str| {
            let mut input = typed.as_bytes();
            let found = word(&mut input).map_err(|failure| failure.text());
            assert_eq!(found, wanted.map(str::to_string).map_err(str::to_string), "{typed:?}");
            assert_eq!(input, rest.as_bytes(), "{typed:?}");
        };
        check("jo\nkind: Pod\n", Ok("jo"), "kind: Pod\n");
        check("\n  jo do\n", Ok("jo"), "do\n");
        check("jo", Ok("jo"), "");
        check("", Err("EOF"), "");
        check(" \n", Err("EOF"), "");
        let long = "x".repeat(ANSWER_BYTES_MAX + 1);
        assert!(word(&mut long.as_bytes()).is_err());
    }

    #[test]
    fn a_password_is_a_line_that_may_be_corrected() {
        let check = |typed: &str, wanted: std::result::Result<&str, &str>| {
            let found = hidden_line(&mut typed.as_bytes()).map_err(|failure| failure.text());
            assert_eq!(found, wanted.map(str::to_string).map_err(str::to_string), "{typed:?}");
        };
        check("a b\n", Ok("a b"));
        check("ax\u{7f}b\r", Ok("ab"));
        check("\n", Ok(""));
        check("ab\u{3}", Err("exit"));
        check("\u{4}", Err("EOF"));
        check("ab\u{4}", Ok("ab"));
    }
}
