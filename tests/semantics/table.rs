//! Checks that the table has every row and names existing tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The number of rows of each kind.
const KINDS: [(char, usize); 4] = [('Z', 12), ('F', 59), ('S', 40), ('X', 12)];

/// ZooKeeper's error codes.
const CODES: [(&str, i32); 30] = [
    ("SystemError", -1),
    ("RuntimeInconsistency", -2),
    ("DataInconsistency", -3),
    ("ConnectionLoss", -4),
    ("MarshallingError", -5),
    ("Unimplemented", -6),
    ("OperationTimeout", -7),
    ("BadArguments", -8),
    ("UnknownSession", -12),
    ("NewConfigNoQuorum", -13),
    ("ReconfigInProgress", -14),
    ("NoNode", -101),
    ("NoAuth", -102),
    ("BadVersion", -103),
    ("NoChildrenForEphemerals", -108),
    ("NodeExists", -110),
    ("NotEmpty", -111),
    ("SessionExpired", -112),
    ("InvalidCallback", -113),
    ("InvalidACL", -114),
    ("AuthFailed", -115),
    ("SessionMoved", -118),
    ("NotReadOnly", -119),
    ("EphemeralOnLocalSession", -120),
    ("NoWatcher", -121),
    ("RequestTimeout", -122),
    ("ReconfigDisabled", -123),
    ("SessionClosedRequireSaslAuth", -124),
    ("QuotaExceeded", -125),
    ("ThrottledOp", -127),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn here() -> PathBuf {
    root().join("tests/semantics")
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One line of the table.
struct Row {
    number: String,
    tests: Vec<(PathBuf, String)>,
    /// Why there is no test, or only for a part of it.
    others: Vec<String>,
}

fn rows() -> Vec<Row> {
    let table = text(&here().join("table.md"));
    let is_row = |line: &&str| {
        let number = line.strip_prefix("| ").and_then(|rest| rest.split(' ').next());
        number.is_some_and(|number| {
            number.starts_with(char::is_uppercase) && number.ends_with(|c: char| c.is_ascii_digit())
        })
    };
    table.lines().filter(is_row).map(row).collect()
}

fn row(line: &str) -> Row {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [number, what, _here, held_by] = cells.as_slice() else { panic!("four cells: {line}") };
    assert!(!what.is_empty() && !held_by.is_empty(), "{line}");
    let mut row = Row { number: (*number).to_owned(), tests: Vec::new(), others: Vec::new() };
    for item in held_by.split("; ") {
        match item.split_once(' ') {
            Some((file, names)) if file.ends_with(".rs") => {
                let path = if file.contains('/') { root().join(file) } else { here().join(file) };
                row.tests.extend(names.split(", ").map(|name| (path.clone(), name.to_owned())));
            }
            _ => row.others.push(item.to_owned()),
        }
    }
    row
}

/// The names of a file's tests.
fn tests_of(path: &Path) -> BTreeSet<String> {
    let (mut names, mut is_test) = (BTreeSet::new(), false);
    for line in text(path).lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if std::mem::take(&mut is_test) {
                names.insert(name.to_owned());
            }
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    names
}

#[test]
fn every_row_is_there_once_and_in_order() {
    let numbers: Vec<String> = rows().into_iter().map(|row| row.number).collect();
    let expected: Vec<String> = KINDS
        .into_iter()
        .flat_map(|(kind, count)| (1..=count).map(move |number| format!("{kind}{number}")))
        .collect();
    assert_eq!(numbers, expected);
}

#[test]
fn every_test_that_is_named_exists() {
    for row in rows() {
        for (path, name) in &row.tests {
            let found = tests_of(path).contains(name);
            assert!(found, "{}: no test {name} in {}", row.number, path.display());
        }
    }
}

#[test]
fn every_test_of_this_directory_is_named() {
    let named: BTreeSet<(PathBuf, String)> = rows().into_iter().flat_map(|row| row.tests).collect();
    for entry in std::fs::read_dir(here()).unwrap() {
        let path = entry.unwrap().path();
        let is_theme = path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("table.rs");
        for name in tests_of(&path).into_iter().filter(|_| is_theme) {
            assert!(named.contains(&(path.clone(), name.clone())), "no row names {name}");
        }
    }
}

/// A row without a test gives the reason, in one of three forms, and `docs/zookeeper.md` does too.
#[test]
fn rows_without_a_test_are_documented_for_users() {
    let page = text(&root().join("docs/zookeeper.md"));
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_alphanumeric()).collect();
    for row in rows() {
        let number = row.number.as_str();
        assert!(!row.tests.is_empty() || !row.others.is_empty(), "{number}");
        for other in &row.others {
            let known = ["answered by ", "for the wire gateway", "not yet: "];
            let rest = known.iter().find_map(|known| other.strip_prefix(known));
            assert!(rest.is_some(), "{number}: what is {other:?}?");
            assert!(words.contains(number), "docs/zookeeper.md does not mention {number}: {other}");
        }
    }
}

#[test]
fn every_error_code_has_a_line() {
    let page = text(&root().join("docs/zookeeper.md"));
    for (name, code) in CODES {
        let line = page.lines().find(|line| line.starts_with(&format!("| `{name}` {code} | ")));
        assert!(line.is_some_and(|line| line.len() > name.len() + 20), "{name} {code}");
    }
}
