//! Dependencies between the folders of `src` point downwards and have no cycle, and deterministic code uses
//! no thread, clock, socket or file.
//!
//! The graph comes from the sources: a folder depends on another one if one of its files names an item of it.
//! A folder and its subfolders count as one if they name each other: `circles` looks at their files. Tests may
//! use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The folders of `src`, from top to bottom. Each may use those below it.
const LAYERS: &[&str] = &[
    "admin",
    "gateway",
    "recipes",
    "recovery",
    "testing",
    "api",
    "runtime",
    "storage",
    "transport",
    "security",
    "encryption",
    "sync",
    "addressing",
    "node",
    "machine",
    "types",
];

/// Code that may use every folder: golden files, what the crate exports, hooks for planted bugs.
pub(crate) const BESIDE: &[&str] = &[
    "acl.rs",
    "golden.rs",
    "lib.rs",
    "multi.rs",
    "operate.rs",
    "planted.rs",
    "quota.rs",
    "session.rs",
];

/// What a deterministic module must not name.
const FORBIDDEN: &[&str] = &[
    "std::thread",
    "std::net",
    "std::fs",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "getrandom",
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All files below `src`, by their paths from there.
pub(crate) fn sources() -> Vec<PathBuf> {
    fn find(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                find(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path.strip_prefix(src()).unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    find(&src(), &mut found);
    found
}

pub(crate) fn is_test(file: &Path) -> bool {
    let named = |name: &str| name.ends_with("tests") || name.ends_with("_test");
    let parts = file.with_extension("");
    let mut parts = parts.iter().map(|part| part.to_str().unwrap());
    parts.any(|part| named(part) || ["model", "conformance"].contains(&part))
}

/// The code of a file, without comments and tests.
pub(crate) fn code(file: &Path) -> String {
    let text = std::fs::read_to_string(src().join(file)).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The module of a file, as the components of its path.
pub(crate) fn module(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let mut module: Vec<String> =
        path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// The paths that a piece of code names, from the crate's root or from an enclosing module.
fn names(code: &str, here: &[String]) -> Vec<Vec<String>> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let paths = code.split(|c: char| !is_part(c)).filter(|path| path.contains("::"));
    let absolute = paths.filter_map(|path| {
        let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
        let mut from = match parts.next()? {
            "crate" => Vec::new(),
            "super" => here[..here.len() - 1].to_vec(),
            _ => return None,
        };
        while parts.next_if_eq(&"super").is_some() {
            from.pop();
        }
        from.extend(parts.map(str::to_owned));
        Some(from)
    });
    absolute.collect()
}

/// Which folder uses which, with a file as the proof.
fn uses() -> BTreeMap<(String, String), PathBuf> {
    let files = sources();
    let modules: BTreeMap<Vec<String>, String> = files
        .iter()
        .map(|file| (module(file), file.parent().unwrap().to_str().unwrap().to_owned()))
        .collect();
    let mut uses = BTreeMap::new();
    for file in &files {
        let first = file.iter().next().unwrap().to_str().unwrap();
        if BESIDE.contains(&first) || is_test(file) {
            continue;
        }
        let here = file.parent().unwrap().to_str().unwrap();
        for name in names(&code(file), &module(file)) {
            // The longest part of the path that is a module.
            let used = (1..=name.len()).rev().find_map(|length| modules.get(&name[..length]));
            if let Some(used) = used.filter(|used| *used != here && !used.is_empty()) {
                uses.insert((here.to_owned(), used.clone()), file.clone());
            }
        }
    }
    uses
}

#[test]
fn dependencies_point_downwards() {
    let rank = |folder: &str| {
        let top = folder.split('/').next().unwrap();
        let rank = LAYERS.iter().position(|layer| *layer == top);
        rank.unwrap_or_else(|| panic!("{top} is not among the layers"))
    };
    let uses = uses();
    assert!(uses.len() > 50, "too few sources were read");
    for ((from, to), file) in uses {
        if !BESIDE.contains(&to.as_str()) {
            assert!(rank(&from) <= rank(&to), "{} may not use {to}", file.display());
        }
    }
}

#[test]
fn folders_make_no_cycle() {
    let is_within = |one: &str, other: &str| one.starts_with(&format!("{other}/"));
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in uses().into_keys() {
        if !is_within(&from, &to) && !is_within(&to, &from) {
            graph.entry(from).or_default().insert(to);
        }
    }
    // Repeatedly removes folders that use no remaining folder, until none is left or all are in cycles.
    loop {
        let before = graph.len();
        let left: BTreeSet<String> = graph.keys().cloned().collect();
        graph.retain(|_, used| {
            used.retain(|folder| left.contains(folder));
            !used.is_empty()
        });
        if graph.len() == before {
            break;
        }
    }
    assert!(graph.is_empty(), "these folders use each other in a cycle: {graph:?}");
}

/// Whoever replaces raft-rs has to know these files only.
#[test]
fn few_files_use_raft_rs() {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let uses = |file: &PathBuf| {
        let text = code(file);
        let mut paths = text.split(|c: char| !is_part(c));
        paths.any(|path| path.starts_with("raft::") || path.starts_with("::raft::"))
    };
    let mut using: Vec<PathBuf> =
        sources().into_iter().filter(|file| !is_test(file) && uses(file)).collect();
    using.sort();
    let expected = ["core", "log", "ready", "wire"];
    assert_eq!(using, expected.map(|name| PathBuf::from(format!("node/raft/{name}.rs"))));
}

/// What the gateway and the admin endpoint may name, besides each other: `api::support` has what they need of the
/// inside.
const FACE: &[&str] =
    &["api", "types", "security", "sync", "addressing", "recovery", "recipes", "planted"];
const HELPERS: &[&str] = &["clock", "entropy", "pending", "port"];

#[test]
fn servers_stand_on_one_face_of_the_api() {
    for file in sources().into_iter().filter(|file| !is_test(file)) {
        let module = module(&file);
        if !["gateway", "admin"].contains(&module[0].as_str()) {
            continue;
        }
        for name in names(&code(&file), &module) {
            let is_own = name.first() == module.first();
            let Some(first) = name.first().filter(|_| !is_own) else { continue };
            let is_helper = first == "runtime"
                && name.get(1).is_some_and(|part| HELPERS.contains(&part.as_str()));
            // A capital letter begins what the crate exports.
            let is_public = first.starts_with(char::is_uppercase);
            assert!(
                is_public || is_helper || FACE.contains(&first.as_str()),
                "{} uses {}, and not by `api::support`",
                file.display(),
                name.join("::")
            );
        }
    }
}

#[test]
fn the_core_is_deterministic() {
    for file in sources() {
        let first = file.iter().next().unwrap().to_str().unwrap();
        if !["machine", "node", "types"].contains(&first) || is_test(&file) {
            continue;
        }
        // An `IpAddr` or `SocketAddr` is only a value.
        let code = code(&file).replace("std::net::IpAddr", "").replace("std::net::SocketAddr", "");
        for word in FORBIDDEN {
            assert!(!code.contains(word), "{} mentions {word}", file.display());
        }
    }
}
