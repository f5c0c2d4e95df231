//! Who may know whom: dependencies point downwards only, and what is
//! deterministic knows no thread, clock, socket or file.

use std::path::{Path, PathBuf};

/// Each module and the modules of ours that it may name.
const MAY_USE: &[(&str, &[&str])] = &[
    ("acl", &[]),
    ("quota", &["path"]),
    ("error", &["acl", "znode"]),
    ("znode", &[]),
    ("path", &["error"]),
    ("planted", &[]),
    ("version", &[]),
    (
        "machine",
        &["machine", "acl", "error", "membership", "path", "planted", "quota", "version", "znode"],
    ),
    (
        "node",
        &[
            "node",
            "machine",
            "acl",
            "error",
            "path",
            "planted",
            "quota",
            "version",
            "znode",
            "session",
            "storage",
            "watch",
            "membership",
            "metrics",
        ],
    ),
    ("membership", &["machine", "node", "peers", "planted", "version", "znode"]),
    ("storage", &["storage", "node", "machine", "membership", "error", "znode"]),
    ("security", &["security", "error"]),
    (
        "transport",
        &["transport", "node", "machine", "metrics", "names", "peers", "security", "version"],
    ),
    ("names", &["node"]),
    ("sync", &["session"]),
];

/// What a deterministic module must not mention.
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

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file, without comments and without its tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn dependencies_point_downwards() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (module, allowed) in MAY_USE {
        let folder = src.join(module);
        let files =
            if folder.is_dir() { sources(&folder) } else { vec![src.join(format!("{module}.rs"))] };
        assert!(!files.is_empty());
        // Tests may look at whatever they like.
        for file in files.into_iter().filter(|file| !file.ends_with("tests.rs")) {
            for rest in code(&file).split("crate::").skip(1) {
                let used: String =
                    rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                assert!(allowed.contains(&used.as_str()), "{} may not use {used}", file.display());
            }
        }
    }
}

#[test]
fn the_core_is_deterministic() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for module in ["machine", "node"] {
        for file in sources(&src.join(module)) {
            let code = code(&file);
            for word in FORBIDDEN {
                let test_only = file.to_string_lossy().contains("test");
                assert!(test_only || !code.contains(word), "{} mentions {word}", file.display());
            }
        }
    }
}
