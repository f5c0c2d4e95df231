//! The pages name existing types and functions, not only in their examples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{pages, prose, read};

/// Words in code's type on the pages of recipes that are no public names of quorate: Rust's own, a feature, a
/// level of the log, names of znodes, Curator's recipes, placeholders.
const OTHERS: &[&str] = &[
    "async",
    "_async",
    "Break",
    "Continue",
    "i32",
    "json",
    "cron",
    "croner",
    "UTC",
    "WARN",
    "held",
    "revoke",
    "GroupMember",
    "PersistentNode",
    "PersistentEphemeralNode",
    "__REVOKE__",
    "n",
];

/// What the library makes public, read from its formatted source.
#[derive(Default)]
struct Names {
    /// Types, with their functions, fields and variants.
    of: BTreeMap<String, BTreeSet<String>>,
    public: BTreeSet<String>,
    /// Guards, and what they dereference to.
    guards: Vec<(String, String)>,
}

fn ident(text: &str) -> &str {
    let is_part = |of: char| of == '_' || of.is_ascii_alphanumeric();
    &text[..text.find(|of| !is_part(of)).unwrap_or(text.len())]
}

/// The type that a block's head begins: `impl<T> Trait for Type<T> where ... {`, or `pub struct Type<T> {`.
fn type_of(head: &str) -> Option<&str> {
    for kind in ["pub struct ", "pub enum ", "pub trait "] {
        if let Some(rest) = head.strip_prefix(kind) {
            return Some(ident(rest));
        }
    }
    let mut rest = head.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '<') - i32::from(*c == '>');
            depth == 0
        });
        rest = &rest[end?.0 + 1..];
    }
    let rest = rest.split("where").next()?.trim();
    let path = rest.rsplit(" for ").next()?.split('<').next()?;
    Some(ident(path.rsplit("::").next()?))
}

/// The name that a line declares: a function, a public field, a constant or a variant.
fn declared(line: &str, anyhow: bool) -> Option<&str> {
    let public = line.strip_prefix("pub ");
    if public.is_none() && !anyhow {
        return line.starts_with(|c: char| c.is_ascii_uppercase()).then(|| ident(line));
    }
    let mut rest = public.unwrap_or(line);
    for word in ["const fn ", "async fn ", "fn ", "const ", "static ", "type ", "mod "] {
        if let Some(name) = rest.strip_prefix(word) {
            return Some(ident(name));
        }
    }
    rest = rest.strip_prefix("struct ").or(rest.strip_prefix("enum ")).unwrap_or(rest);
    Some(ident(rest)).filter(|name| !name.is_empty())
}

impl Names {
    fn read(&mut self, source: &str) {
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.starts_with("pub ").then(|| declared(line, false)).flatten() {
                self.public.insert(name.to_owned());
            }
            // `guard!(LockGuard, held: Held);`: the one dereferences to the other.
            if let Some((guard, held)) =
                line.strip_prefix("guard!(").and_then(|of| of.split_once(", "))
            {
                let held = held.split(": ").nth(1).unwrap_or_default();
                self.guards.push((guard.to_owned(), ident(held).to_owned()));
            }
            let begins = ["impl", "pub struct ", "pub enum ", "pub trait "];
            if !begins.iter().any(|begin| line.starts_with(begin)) {
                continue;
            }
            let mut head = line.to_owned();
            while !head.ends_with(['{', ';', '}', ')']) {
                head.push(' ');
                head.push_str(lines.next().unwrap_or("}"));
            }
            let Some(name) = head.ends_with('{').then(|| type_of(&head)).flatten() else {
                continue;
            };
            let is_trait = head.starts_with("pub trait ") || head.contains(" for ");
            let members = self.of.entry(name.to_owned()).or_default();
            for line in lines.by_ref().take_while(|line| *line != "}") {
                // A macro makes several functions of a line: `pub fn acquire / acquire(`.
                if let Some(forms) = line.strip_prefix("        pub fn ") {
                    members.extend(forms.split(" / ").map(|form| ident(form).to_owned()));
                }
                let Some(line) = line.strip_prefix("    ").filter(|line| !line.starts_with(' '))
                else {
                    continue;
                };
                if let Some(name) = declared(line, is_trait) {
                    members.insert(name.to_owned());
                }
            }
            if head.starts_with("pub ") {
                self.public.insert(name.to_owned());
            }
        }
    }

    fn of_the_library() -> Names {
        let mut names = Names::default();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() {
                    if name != "tests" {
                        folders.push(path);
                    }
                } else if name.ends_with(".rs") {
                    names.read(&std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        // Guards of guards first have what these have.
        for _ in 0..names.guards.len() {
            for (guard, held) in names.guards.clone() {
                let members = names.of.get(&held).cloned().unwrap_or_default();
                names.of.entry(guard).or_default().extend(members);
            }
        }
        let members: Vec<String> = names.of.values().flatten().cloned().collect();
        names.public.extend(members);
        names
    }

    /// What is wrong with a path as `Type::name`, if `Type` is public.
    fn missing(&self, of: &str, name: &str) -> bool {
        self.public.contains(of) && self.of.get(of).is_some_and(|members| !members.contains(name))
    }
}

/// The text between single backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The election's page gave `Leadership` a method `token`, whose name is `fencing_token`.
#[test]
fn pages_name_existing_types_and_functions() {
    let (names, mut wrong) = (Names::of_the_library(), Vec::new());
    assert!(names.of["LockGuard"].contains("fencing_token") && names.public.contains("Strategy"));
    assert!(names.of["Updates"].contains("recv") && names.of["Error"].contains("NoNode"));
    let mut pages = pages();
    pages.insert("../README.md".to_owned(), read("README.md"));
    for (page, text) in &pages {
        let text = prose(text);
        for span in spans(&text) {
            for (at, _) in span.match_indices("::") {
                let before =
                    span[..at].rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap();
                let name = ident(&span[at + 2..]);
                if !name.is_empty() && names.missing(before, name) {
                    wrong.push(format!("{page}: {before} has no {name}"));
                }
            }
        }
        if !page.starts_with("recipes/") {
            continue;
        }
        for span in spans(&text) {
            // One name, a path of names or a chain of calls.
            let name = span.split('(').next().unwrap().trim_end_matches('?');
            let is_path = name.chars().all(|c| c.is_ascii_alphanumeric() || "_:.".contains(c));
            let last = name.rsplit([':', '.']).next().unwrap();
            let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
            let others = OTHERS.contains(&last) || name.ends_with(".md");
            if is_path && last.starts_with(starts) && !others && !names.public.contains(last) {
                wrong.push(format!("{page}: there is no {span}"));
            }
        }
        for row in text.lines().filter(|line| line.starts_with("| `")) {
            let Some((of, rest)) = row[3..].split_once("` |") else { continue };
            for span in spans(rest).filter(|_| names.public.contains(of)) {
                let name = ident(span);
                let is_method = name.starts_with(|c: char| c.is_ascii_lowercase());
                let whole = &span[name.len()..];
                if is_method
                    && (whole.is_empty() || whole.starts_with('('))
                    && names.missing(of, name)
                {
                    wrong.push(format!("{page}: the row of {of} names {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A path of the repository in code's type, as `docs/storage.md`.
fn is_path(code: &str) -> bool {
    let begins = [
        "src/",
        "tests/",
        "docs/",
        "benches/",
        "examples/",
        "fuzz/",
        "simulation/",
        "contrib/",
        "loom/",
    ];
    let is_part = |of: char| of.is_ascii_alphanumeric() || "_-./".contains(of);
    begins.iter().any(|folder| code.starts_with(folder)) && code.chars().all(is_part)
}

#[test]
fn pages_name_existing_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = pages();
    for page in [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "benches/README.md",
        "benches/peers/README.md",
    ] {
        texts.insert(format!("/{page}"), read(page));
    }
    let (mut seen, mut missing) = (0, Vec::new());
    for (page, text) in &texts {
        for path in text.split('`').skip(1).step_by(2).filter(|code| is_path(code)) {
            seen += 1;
            // Made by the fuzzer.
            if !root.join(path).exists() && !path.starts_with("fuzz/artifacts/") {
                missing.push(format!("{page}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such files: {missing:#?}");
    assert!(seen > 50, "{seen}");
}
