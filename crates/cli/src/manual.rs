//! The hidden verb `manual`: writes what packages install beside the program, made from the
//! definition of the command line. `make man` runs it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::args::{Cli, ManualOptions};
use crate::complain;

/// Name of the command, of its pages and of its completions.
const NAME: &str = "causeway";
/// The date of the pages.
const DATE: &str = "2026-11-25";
/// Directory of the commands' pages, and their section.
const PAGES: &str = "man/man1";
const SECTION: &str = "1";
/// Longest line of a page's source.
const COLUMNS: usize = 78;
/// Pages that each page leads to beside those of the commands.
const SEE_ALSO: [&str; 3] = ["causewayd.toml(5)", "causeway(7)", "causewayd(8)"];
/// Where each shell looks for completions, below `/usr/share`.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/causeway"),
    (Shell::Zsh, "zsh/vendor-completions/_causeway"),
    (Shell::Fish, "fish/vendor_completions.d/causeway.fish"),
];

/// Writes manual pages and completions into a directory that is laid out as `/usr/share`.
pub fn manual(options: &ManualOptions) -> u8 {
    match write(&options.directory) {
        Ok(()) => 0,
        Err(error) => {
            complain(&format!("{}: {error}", options.directory.display()));
            1
        }
    }
}

fn write(share: &Path) -> io::Result<()> {
    let mut command = shown();
    for (shell, name) in COMPLETIONS {
        let mut file = create(&share.join(name))?;
        clap_complete::generate(shell, &mut command, NAME, &mut file);
    }
    command.build();
    pages(&command, NAME, &share.join(PAGES))
}

/// The command line without hidden verbs, which completions would offer.
fn shown() -> Command {
    let whole = Cli::command();
    let verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .subcommands(verbs.cloned())
        .disable_help_subcommand(true)
}

/// The page of a command, and those of its verbs: `causeway-vm-attach` for `causeway vm attach`.
fn pages(command: &Command, name: &str, dir: &Path) -> io::Result<()> {
    let mut near = Vec::new();
    for verb in command.get_subcommands() {
        let name = format!("{name}-{}", verb.get_name());
        pages(verb, &name, dir)?;
        near.push(format!("{name}({SECTION})"));
    }
    if let Some((parent, _)) = name.rsplit_once('-') {
        near.insert(0, format!("{parent}({SECTION})"));
    }
    near.extend(SEE_ALSO.map(str::to_owned));
    let mut text = Vec::new();
    page(command, name, &near, &mut text)?;
    let mut file = create(&dir.join(format!("{name}.{SECTION}")))?;
    file.write_all(tidied(&String::from_utf8_lossy(&text)).as_bytes())
}

fn page(command: &Command, name: &str, near: &[String], out: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(SECTION)
        .date(DATE)
        .source(format!("Causeway {}", env!("CARGO_PKG_VERSION")))
        .manual("Causeway");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    if command.get_arguments().any(|option| !option.is_hide_set()) {
        man.render_options_section(out)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    if command.get_after_help().is_some() {
        man.render_extra_section(out)?;
    }
    let mut last = Roff::new();
    last.control("SH", ["SEE ALSO"]);
    last.text([roman(near.join(", "))]);
    last.to_writer(out)
}

/// The same page without what mandoc(1) objects to: long lines, white space at the end of one,
/// breaks beside empty lines.
fn tidied(page: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    for line in page.lines().map(str::trim_end) {
        let last = out.last().map(String::as_str);
        match line {
            ".br" if last == Some(".sp") => {}
            ".SH EXTRA" => out.push(".SH NOTES".to_owned()),
            ".sp" | "" => {
                if last == Some(".br") {
                    out.pop();
                }
                out.push(".sp".to_owned());
            }
            _ if line.starts_with(['.', '\'']) => out.push(line.to_owned()),
            _ => wrap(line, &mut out),
        }
    }
    out.join("\n") + "\n"
}

/// Text in lines that are not too long, none of which looks like a request.
fn wrap(text: &str, out: &mut Vec<String>) {
    let mut line = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !line.is_empty() && line.len() + 1 + word.len() > COLUMNS {
            out.push(std::mem::take(&mut line));
        }
        if line.is_empty() {
            line.push_str(if word.starts_with(['.', '\'']) {
                "\\&"
            } else {
                ""
            });
        } else {
            line.push(' ');
        }
        line.push_str(word);
    }
    out.push(line);
}

fn create(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    File::create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_and_are_no_requests() {
        let long = format!("{} .x", "word ".repeat(15).trim_end());
        let page = format!(".SH NAME \n{long}yz \n.sp\n.br\nend\n.br\n\n.br\n");
        let found = tidied(&page);
        let expected = format!("{}\n\\&.xyz", "word ".repeat(15).trim_end());
        assert_eq!(found, format!(".SH NAME\n{expected}\n.sp\nend\n.sp\n"));
    }

    #[test]
    fn hidden_verbs_are_not_shown() {
        let command = shown();
        let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        assert!(
            names.contains(&"status") && !names.contains(&"manual"),
            "{names:?}"
        );
    }
}
