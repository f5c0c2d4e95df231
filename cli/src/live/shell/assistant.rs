//! Completes commands, options and paths.

use clap::Command;
use quorate::Coordinator;
use rustyline::completion::{Completer, Pair, Quote, escape, extract_word, unescape};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::super::join;
use super::commands;
use crate::text;

const ESCAPE: Option<char> = Some('\\');

/// What the shell means by itself, so that a name needs a backslash before it.
fn is_special(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '"' | '\'' | '\\' | '#')
}

/// Completes what is typed.
pub(super) struct Assistant {
    coordinator: Coordinator,
    commands: Command,
}

impl Assistant {
    pub(super) fn new(coordinator: &Coordinator) -> Assistant {
        Assistant { coordinator: coordinator.clone(), commands: commands() }
    }

    /// The znodes whose paths begin with this.
    fn paths(&self, begun: &str) -> Vec<String> {
        let Some((parent, name)) = begun.rsplit_once('/') else { return Vec::new() };
        let parent = if parent.is_empty() { "/" } else { parent };
        // Without a cluster nothing is asked: whoever types should not wait.
        if !self.coordinator.is_ready() {
            return Vec::new();
        }
        let children = self.coordinator.session().children(parent).wait().unwrap_or_default();
        // A name that a terminal obeys or hides cannot be typed either.
        let offered =
            children.iter().filter(|child| child.starts_with(name) && text::line(child) == **child);
        offered.map(|child| join(parent, child)).collect()
    }
}

/// The commands that begin with this.
fn names(commands: &Command, begun: &str) -> Vec<String> {
    let names = commands.get_subcommands().map(Command::get_name);
    names.filter(|name| name.starts_with(begun)).map(str::to_owned).collect()
}

/// The options of a command that begin with this.
fn options(commands: &Command, command: &str, begun: &str) -> Vec<String> {
    let Some(command) = commands.find_subcommand(command) else { return Vec::new() };
    let names = command.get_arguments().filter_map(|argument| argument.get_long());
    names.map(|name| format!("--{name}")).filter(|name| name.starts_with(begun)).collect()
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, word) = extract_word(line, position, ESCAPE, |letter| letter == ' ');
        let word = unescape(word, ESCAPE);
        let before = line[..start].trim();
        let found = match before.split_whitespace().next() {
            None | Some("help") => names(&self.commands, &word),
            Some(command) if word.starts_with('-') => options(&self.commands, command, &word),
            Some(_) => self.paths(&word),
        };
        let pair = |text: String| Pair {
            display: text.clone(),
            replacement: escape(text, ESCAPE, is_special, Quote::None),
        };
        Ok((start, found.into_iter().map(pair).collect()))
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}
impl Validator for Assistant {}
impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_options_are_found() {
        let commands = commands();
        assert_eq!(names(&commands, "s"), ["stat", "set", "sessions", "status"]);
        assert_eq!(names(&commands, "zz"), Vec::<String>::new());
        assert_eq!(options(&commands, "set", "--v"), ["--version"]);
        assert!(options(&commands, "get", "--").contains(&"--json".to_owned()));
        assert_eq!(options(&commands, "nothing", "--"), Vec::<String>::new());
    }
}
