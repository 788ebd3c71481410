//! `minke completion` and `minke man`: what shells and `man` need, generated from the flags.
//! Called by `commands`, and by `tools/dist` and `minke install` for their files.
//! Prints, and writes only where it is told to.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::flags::{Flags, Man};

pub fn completion(shell: Shell) -> Result<Vec<u8>> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Flags::command(), "minke", &mut script);
    Ok(script)
}

pub fn print_completion(shell: Shell) -> Result<()> {
    Ok(std::io::stdout().write_all(&completion(shell)?)?)
}

pub fn man(flags: &Man) -> Result<()> {
    match &flags.dir {
        Some(directory) => write_pages(directory).map(drop),
        None => Ok(std::io::stdout().write_all(&page(Flags::command())?)?),
    }
}

/// A page for every command: `minke.1`, `minke-image-ls.1`, …. Returns how many.
pub fn write_pages(directory: &Path) -> Result<usize> {
    fs::create_dir_all(directory).with_context(|| format!("can't make {}", directory.display()))?;
    // Without dates: the same flags give the same pages.
    clap_mangen::generate_to(Flags::command(), directory)
        .with_context(|| format!("can't write to {}", directory.display()))?;
    Ok(fs::read_dir(directory)?.count())
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_its_script() {
        let directory = tempfile::tempdir().unwrap();
        let written = write_pages(directory.path()).unwrap();
        assert!(written > 30, "{written}");
        for (page, expected) in
            [("minke.1", "support\\-bundle"), ("minke-image-ls.1", "data\\-dir"), ("minke-up.1", "registry")]
        {
            let text = fs::read_to_string(directory.path().join(page)).unwrap();
            assert!(text.contains(expected) && text.starts_with(".ie"), "{page}: {text}");
        }
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell] {
            let script = String::from_utf8(completion(shell).unwrap()).unwrap();
            assert!(script.contains("support-bundle") && script.contains("ingress-http-port"), "{shell}");
        }
    }
}
