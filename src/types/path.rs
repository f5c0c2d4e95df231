//! Znode paths: validation and parts.
//!
//! The rules are ZooKeeper's (`PathUtils.validatePath`), plus a length limit:
//! absolute, no trailing slash, no empty, `.` or `..` component, and no
//! character that ZooKeeper refuses, which includes everything outside the
//! Basic Multilingual Plane. Paths are plain `&str` once checked.

use crate::types::error::{Error, Result};
use crate::types::znode::CreateMode;

/// The longest path, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Checks a complete path.
pub(crate) fn validate(path: &str) -> Result<()> {
    match problem(path) {
        None => Ok(()),
        Some(reason) => Err(Error::InvalidPath { path: abridged(path), reason: reason.into() }),
    }
}

/// Checks the path given to a sequential create, which must be valid once digits follow it.
///
/// So `/queue/` is valid here: its children's names are only numbers.
pub(crate) fn validate_sequential(path: &str) -> Result<()> {
    match problem(&format!("{path}0000000000")) {
        None => Ok(()),
        Some(reason) => Err(Error::InvalidPath { path: abridged(path), reason: reason.into() }),
    }
}

/// Checks the path that a znode is to be created with.
pub(crate) fn validate_new(path: &str, mode: CreateMode) -> Result<()> {
    if mode.is_sequential() { validate_sequential(path) } else { validate(path) }
}

fn problem(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if !path.starts_with('/') {
        return Some("it must start with '/'");
    }
    if path.len() > PATH_BYTES_MAX {
        return Some("it is longer than 4096 bytes");
    }
    if path == "/" {
        return None;
    }
    for component in path[1..].split('/') {
        match component {
            "" => return Some("it has an empty component (\"//\" or a trailing '/')"),
            "." | ".." => return Some("relative components (\".\", \"..\") are not allowed"),
            _ => {}
        }
    }
    path.chars().any(is_forbidden).then_some("it holds a character that is not allowed in a path")
}

/// ZooKeeper checks UTF-16 units, so that a character that needs two of them (both surrogates lie
/// in D800..F8FF) is refused too.
fn is_forbidden(c: char) -> bool {
    matches!(
        u32::from(c),
        0x0000..=0x001F | 0x007F..=0x009F | 0xD800..=0xF8FF | 0xFFF0..=0xFFFF | 0x1_0000..
    )
}

/// The beginning of a path, for errors: an invalid one may be a megabyte long.
fn abridged(path: &str) -> String {
    const SHOWN: usize = 200;
    if path.chars().count() <= SHOWN {
        return path.to_owned();
    }
    path.chars().take(SHOWN).chain("...".chars()).collect()
}

/// Whether a path is the root path or below it.
pub(crate) fn is_below(path: &str, root: &str) -> bool {
    let root = if root == "/" { "" } else { root };
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The parent of a valid path; `None` for the root.
pub(crate) fn parent(path: &str) -> Option<&str> {
    if path == "/" {
        return None;
    }
    let slash = path.rfind('/')?;
    Some(if slash == 0 { "/" } else { &path[..slash] })
}

/// The last component of a valid path; empty for the root.
pub(crate) fn name(path: &str) -> &str {
    path.rfind('/').map_or(path, |slash| &path[slash + 1..])
}

/// The path of `child` under `parent`.
pub(crate) fn join(parent: &str, child: &str) -> String {
    if parent == "/" { format!("/{child}") } else { format!("{parent}/{child}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_zookeeper_accepts() {
        for path in ["/", "/a", "/a/b", "/a b", "/...", "/.a", "/é", "/a.b/c-d_e"] {
            validate(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }

    #[test]
    fn refuses_what_zookeeper_refuses() {
        let bad = [
            "",
            "a",
            "a/b",
            "/a/",
            "//",
            "/a//b",
            "/.",
            "/..",
            "/a/./b",
            "/a/../b",
            "/\0",
            "/a\u{1}",
            "/a\u{1f}",
            "/a\u{7f}",
            "/a\u{9f}",
            "/a\u{e000}",
            "/a\u{f8ff}",
            "/a\u{fff0}",
            "/a\u{1f600}",
        ];
        for path in bad {
            assert!(matches!(validate(path), Err(Error::InvalidPath { .. })), "{path:?}");
        }
        assert!(validate(&format!("/{}", "x".repeat(PATH_BYTES_MAX))).is_err());
    }

    #[test]
    fn sequential_paths_may_end_in_a_slash_or_a_dot() {
        for path in ["/q/", "/q/.", "/q/..", "/", "/q"] {
            validate_sequential(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        assert!(validate_sequential("/q//").is_err());
        assert!(validate_sequential("q").is_err());
    }

    #[test]
    fn takes_paths_apart() {
        assert_eq!(parent("/"), None);
        assert_eq!(parent("/a"), Some("/"));
        assert_eq!(parent("/a/b"), Some("/a"));
        assert_eq!(name("/a/b"), "b");
        assert_eq!(name("/"), "");
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a", "b"), "/a/b");
    }
}
