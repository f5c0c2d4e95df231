//! How many files of `src` use each other in a circle: whoever reads one of them has to know them all.
//!
//! A file uses another one if it names an item of it, by an import or by a path. A name that a module only
//! passes on (`pub use`) leads to the file that has it. So a folder's `mod.rs`, its files and its subfolders
//! count one by one. Tests may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::layers::{BESIDE, code, is_test, module, sources};

/// The most files in one circle. Less is better: lower it when you can.
const CIRCLE_MAX: usize = 8;

type Module = Vec<String>;

/// The names that a file imports, and the paths in its other code.
struct Names {
    /// Each with whether it is passed on.
    imports: Vec<(Module, bool)>,
    paths: Vec<Module>,
    /// All words outside of imports.
    words: BTreeSet<String>,
}

/// The paths of an import: `a::{b, c::d}` has two.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        return if path.is_empty() { Vec::new() } else { vec![path.to_owned()] };
    };
    let inside = rest.trim_end().strip_suffix('}').expect("the braces of an import are closed");
    let (mut depth, mut part, mut parts) = (0, String::new(), Vec::new());
    for c in inside.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(c);
        }
    }
    parts.push(part);
    let paths = parts.iter().flat_map(|part| expand(part.trim()));
    paths.map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// The module or item that a path names from here, if it is one of this crate.
fn resolve(path: &str, here: &Module, children: &BTreeSet<String>) -> Option<Module> {
    let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
    let mut from = match *parts.peek()? {
        "crate" => Vec::new(),
        "super" => here[..here.len() - 1].to_vec(),
        "self" => here.clone(),
        child if children.contains(child) => {
            return Some(here.iter().cloned().chain(parts.map(str::to_owned)).collect());
        }
        _ => return None,
    };
    parts.next();
    while parts.next_if_eq(&"super").is_some() {
        from.pop();
    }
    // `use super::*` in a module inside a file names that file.
    from.extend(parts.filter(|part| *part != "self").map(str::to_owned));
    (from.last().is_none_or(|last| last != "*")).then_some(from)
}

fn names(file: &Path, modules: &BTreeMap<Module, PathBuf>) -> Names {
    let here = module(file);
    let children =
        modules.keys().filter(|module| module.len() == here.len() + 1 && module.starts_with(&here));
    let children: BTreeSet<String> = children.filter_map(|child| child.last().cloned()).collect();
    let (mut imports, mut rest) = (Vec::new(), String::new());
    let code = code(file);
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        // The visibility `pub(in crate::node)` uses nothing.
        let line = match line.split_once("pub(in ").and_then(|(_, rest)| rest.split_once(')')) {
            Some((_, rest)) => format!("pub {}", rest.trim_start()),
            None => line.trim_start().replace("pub(crate) ", "pub ").replace("pub(super) ", "pub "),
        };
        let passes_on = line.starts_with("pub use ");
        let Some(tree) = line.strip_prefix("pub ").unwrap_or(&line).strip_prefix("use ") else {
            rest.push_str(&line);
            rest.push('\n');
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            tree.push_str(lines.next().expect("an import ends").trim());
        }
        let tree = tree.split(';').next().unwrap_or_default();
        let found = expand(tree).into_iter().filter_map(|path| resolve(&path, &here, &children));
        imports.extend(found.map(|path| (path, passes_on)));
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = rest.split(|c: char| !is_part(c)).flat_map(|path| path.split("::"));
    let words = words.map(str::to_owned).collect();
    let paths = rest.split(|c: char| !is_part(c)).filter(|path| path.contains("::"));
    let paths = paths.filter_map(|path| resolve(path, &here, &children)).collect();
    Names { imports, paths, words }
}

/// Which file uses which others.
pub(crate) fn uses() -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let modules: BTreeMap<Module, PathBuf> =
        sources().into_iter().map(|file| (module(&file), file)).collect();
    let is_beside =
        |file: &PathBuf| BESIDE.iter().any(|beside| file.starts_with(beside)) || is_test(file);
    let files: Vec<&PathBuf> = modules.values().filter(|file| !is_beside(file)).collect();
    let names: Vec<(&PathBuf, Names)> =
        files.into_iter().map(|file| (file, names(file, &modules))).collect();
    let mut passed_on = BTreeMap::new();
    for (file, names) in &names {
        for (path, _) in names.imports.iter().filter(|(_, passes_on)| *passes_on) {
            let mut name = module(file);
            name.extend(path.last().cloned());
            if name != *path {
                passed_on.insert(name, path.clone());
            }
        }
    }
    let target = |path: &Module| {
        let mut path = path.clone();
        // A name is passed on a few times at most.
        for _ in 0..8 {
            let known = (1..=path.len()).rev().find(|length| {
                modules.contains_key(&path[..*length]) || passed_on.contains_key(&path[..*length])
            })?;
            match (passed_on.get(&path[..known]), modules.get(&path[..known])) {
                (_, Some(file)) => return Some(file.clone()),
                (Some(to), None) => path = to.iter().chain(&path[known..]).cloned().collect(),
                (None, None) => return None,
            }
        }
        None
    };
    let mut uses: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    for (file, names) in &names {
        let is_used = |path: &Module| path.last().is_some_and(|last| names.words.contains(last));
        let imports = names.imports.iter().filter(|(path, passes_on)| !passes_on || is_used(path));
        let used = imports.map(|(path, _)| path).chain(&names.paths).filter_map(target);
        let used = used.filter(|used| used != *file && !is_beside(used));
        uses.entry((*file).clone()).or_default().extend(used);
    }
    uses
}

/// All files that can be reached from this one.
pub(crate) fn reached(
    from: &PathBuf,
    uses: &BTreeMap<PathBuf, BTreeSet<PathBuf>>,
) -> BTreeSet<PathBuf> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        for used in uses.get(file).into_iter().flatten() {
            if reached.insert(used.clone()) {
                open.push(used);
            }
        }
    }
    reached
}

#[test]
fn no_circle_of_files_is_large() {
    let uses = uses();
    assert!(uses.values().map(BTreeSet::len).sum::<usize>() > 1000, "too few uses were found");
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
        uses.keys().map(|file| (file, reached(file, &uses))).collect();
    let circles = reached.iter().map(|(file, others)| {
        let back = |other: &&PathBuf| reached.get(other).is_some_and(|files| files.contains(*file));
        others.iter().filter(back).collect::<BTreeSet<&PathBuf>>()
    });
    let largest = circles.max_by_key(BTreeSet::len).expect("there are files");
    assert!(largest.len() <= CIRCLE_MAX, "{} files use each other: {largest:#?}", largest.len());
}
