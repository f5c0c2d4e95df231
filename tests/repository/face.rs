//! The public items of the library, which are kept as a list: a change of them is seen in review.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::layers::{is_test, sources};

/// The list, one item a line: its file below `src`, and the first line of its declaration.
const LIST: &str = "tests/repository/face.txt";

/// By the sources' text: what is `pub` in a module that is not public counts too, if it is exported or not.
fn public_items() -> BTreeSet<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut items = BTreeSet::new();
    for file in sources() {
        if is_test(&file) {
            continue;
        }
        let name = file.display().to_string();
        let text = fs::read_to_string(src.join(&file)).unwrap();
        let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for line in product.lines().map(str::trim) {
            let is_item =
                ["fn ", "const ", "async fn ", "struct ", "enum ", "trait ", "type ", "static "]
                    .iter()
                    .any(|kind| {
                        line.strip_prefix("pub ").is_some_and(|item| item.starts_with(kind))
                    });
            if is_item {
                items.insert(format!("{name}: {}", line.trim_end_matches([' ', '{', ';', '('])));
            }
        }
    }
    items
}

#[test]
fn the_list_of_public_items_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(LIST);
    let now: String = public_items().iter().map(|item| format!("{item}\n")).collect();
    if std::env::var_os("QUORATE_FACE").is_some_and(|asked| asked == "write") {
        fs::write(&path, &now).unwrap();
    }
    let listed = fs::read_to_string(&path).unwrap();
    let differs = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|it| it == *line)).map(str::to_owned).collect()
    };
    assert!(
        now == listed,
        "new: {:#?}\ngone: {:#?}\nwrite the list with QUORATE_FACE=write if this is meant",
        differs(&now, &listed),
        differs(&listed, &now),
    );
}

/// A call that waits returns a `Pending`: it has no second form that blocks, is awaited, or waits for a time.
#[test]
fn no_call_has_a_second_form() {
    const SETTINGS: [&str; 2] = ["session_timeout", "request_timeout"];
    for item in public_items() {
        let Some((_, name)) = item.split_once("fn ") else { continue };
        let name = name.split(['(', '<']).next().unwrap_or_default();
        let is_form =
            name.ends_with("_async") || name.ends_with("_timeout") || name.ends_with("_blocking");
        assert!(!is_form || SETTINGS.contains(&name), "{item}");
        assert!(!item.contains("async fn"), "{item}: it returns a `Pending`");
    }
}
