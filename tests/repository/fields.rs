//! No object has very many fields: whoever changes one of its methods has to know what each field means.
//!
//! An object is a struct with a method that has `self`. One with more fields is split by what they decide: each
//! part owns some of them, and its methods borrow what else they need, as in `node::Node`.

use std::collections::BTreeMap;

use crate::layers::{code, is_test, sources};

/// The most fields of an object. Less is better: lower it when you can.
const FIELDS_MAX: usize = 15;

/// The objects that have more, and why.
const LARGE: &[(&str, &str)] = &[
    ("Builder", "settings, each with a call that sets it"),
    ("Metrics", "figures, which one call adds up"),
    ("NodeStatus", "a report, which a few calls read"),
];

/// The blocks of an item that begins with this word at the start of a line, each with its head.
fn blocks<'a>(code: &'a str, word: &str) -> Vec<(&'a str, &'a str)> {
    let visible = |line: &'a str| match line.strip_prefix("pub") {
        Some(rest) => rest.trim_start_matches(|c| c != ' ').trim_start(),
        None => line,
    };
    let mut found = Vec::new();
    for item in code.split_inclusive("\n}\n") {
        let starts = item.match_indices('\n').map(|(at, _)| at + 1).chain([0]);
        let start = starts.filter(|at| {
            let line = visible(&item[*at..]);
            line.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', '<']))
        });
        if let Some((head, body)) = start.max().and_then(|at| item[at..].split_once("{\n")) {
            found.push((visible(head), body));
        }
    }
    found
}

/// The type that the head of a block names.
fn named<'a>(head: &'a str, word: &str) -> &'a str {
    let mut rest = &head[word.len()..];
    if rest.starts_with('<') {
        // The parameters of an implementation.
        rest = rest.split_once("> ").map_or("", |(_, rest)| rest);
    }
    rest.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// How many lines of a block are a field.
fn fields(body: &str) -> usize {
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = lines.filter_map(|line| line.split_once(": ").map(|(name, _)| name));
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    names.filter(|name| name.rsplit(' ').next().is_some_and(is_name)).count()
}

#[test]
fn objects_have_few_fields() {
    let (mut structs, mut methods) = (BTreeMap::new(), BTreeMap::<String, bool>::new());
    let is_product = |part: &str| !["testing", "simulated"].contains(&part);
    let files = sources().into_iter().filter(|file| !is_test(file));
    for file in files.filter(|file| file.iter().all(|part| is_product(part.to_str().unwrap()))) {
        let code = code(&file) + "\n";
        for (head, body) in blocks(&code, "struct") {
            structs.insert(named(head, "struct").to_owned(), (fields(body), file.clone()));
        }
        for (head, body) in
            blocks(&code, "impl").into_iter().filter(|(of, _)| !of.contains(" for "))
        {
            let has_self = ["(&self", "(&mut self", "(self", "(mut self", " &self,", " &mut self,"];
            let is_object = has_self.iter().any(|of| body.contains(of));
            *methods.entry(named(head, "impl").to_owned()).or_default() |= is_object;
        }
    }
    let is_object = |name: &str| methods.get(name).is_some_and(|is_object| *is_object);
    // What is looked for is found.
    assert!(structs["Node"].0 >= 10 && is_object("Node"), "{:?}", structs["Node"]);
    let mut large: Vec<_> = structs.iter().collect();
    large.retain(|(name, (count, _))| *count > FIELDS_MAX && is_object(name));
    let (known, others): (Vec<_>, Vec<_>) =
        large.into_iter().partition(|(name, _)| LARGE.iter().any(|(known, _)| known == name));
    assert_eq!(known.len(), LARGE.len(), "an exception is not needed any more: {known:?}");
    assert!(others.is_empty(), "more than {FIELDS_MAX} fields: {others:#?}");
}
