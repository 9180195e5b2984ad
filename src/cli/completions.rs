//! `gpuflame completions`: writes scripts that complete the command line in shells. `gpuflame man` (hidden) writes man
//! pages for packages. The scripts and the man pages are generated from the command's own arguments.

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use super::console::{Console, Outcome};
use super::output::Target;
use gpuflame_model::error::Result;
use std::path::PathBuf;

/// Print the script that completes command lines in a shell.
///
/// bash: `source <(gpuflame completions bash)` in ~/.bashrc. zsh: the same after `compinit` in ~/.zshrc, or as
/// a file `_gpuflame` in a folder of `$fpath`. fish: `gpuflame completions fish | source` in config.fish.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  gpuflame completions bash > ~/.local/share/bash-completion/completions/gpuflame"
)]
pub(super) struct Completions {
    /// Shell.
    shell: KnownShell,
    /// Output file (`-`: standard output).
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: Target,
}

/// Shells for which the scripts are tested.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KnownShell {
    Bash,
    Zsh,
    Fish,
}

impl Completions {
    /// Writes the script for the chosen shell. `command` describes the arguments of all verbs.
    pub(super) fn run(&self, mut command: clap::Command, console: Console) -> Result<Outcome> {
        let shell = match self.shell {
            KnownShell::Bash => Shell::Bash,
            KnownShell::Zsh => Shell::Zsh,
            KnownShell::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "gpuflame", &mut script);
        self.output.write(console, |out| Ok(out.write_all(&script)?))?;
        Ok(Outcome::Clean)
    }
}

/// Write the man pages `gpuflame.1`, `gpuflame-top.1` and so on into a folder.
#[derive(Debug, Args)]
#[command(hide = true, after_help = "Example:\n  gpuflame man share/man/man1")]
pub(super) struct Man {
    /// Output folder, which must exist.
    folder: PathBuf,
}

impl Man {
    /// Writes one man page per verb to the folder. `command` describes the arguments of all verbs.
    pub(super) fn run(&self, command: clap::Command, console: Console) -> Result<Outcome> {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
        for command in verbs.collect::<Vec<_>>().into_iter().chain([command]) {
            let page = clap_mangen::Man::new(command);
            let mut text = Vec::new();
            page.render(&mut text)?;
            let file = Target::File(self.folder.join(page.get_filename()));
            file.write(console, |out| Ok(out.write_all(&text)?))?;
        }
        Ok(Outcome::Clean)
    }
}
