//! The hidden verb `completions`: writes the shells' completions, which the package installs, from
//! the definition of the command line.

use std::fs::{self, File};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::options::{CompletionsOptions, Options};

/// Name of the command.
const NAME: &str = "causeway-kube";
/// Where each shell looks for completions, below `/usr/share`.
const FILES: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/causeway-kube"),
    (Shell::Zsh, "zsh/vendor-completions/_causeway-kube"),
    (Shell::Fish, "fish/vendor_completions.d/causeway-kube.fish"),
];

/// Writes them into a directory that is laid out as `/usr/share`.
///
/// # Errors
/// What cannot be written.
pub fn command(options: &CompletionsOptions) -> Result<(), String> {
    let mut shown = shown();
    for (shell, name) in FILES {
        let path = options.directory.join(name);
        let made = fs::create_dir_all(path.parent().unwrap_or(Path::new("/")));
        let file = made.and_then(|()| File::create(&path));
        let mut file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        clap_complete::generate(shell, &mut shown, NAME, &mut file);
    }
    Ok(())
}

/// The command line without hidden verbs, which completions would offer.
fn shown() -> Command {
    let whole = Options::command();
    let verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .subcommands(verbs.cloned())
        .disable_help_subcommand(true)
}
