//! The figures of README.md and of the pages are those of `benches/figures.json`.

use std::path::Path;

use serde_json::Value;

/// The members of a comparison, in the order of the columns.
const SYSTEMS: [&str; 4] = ["floor", "quorate", "zookeeper", "etcd"];

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn figures() -> Vec<Value> {
    let all: Value = serde_json::from_str(&read("benches/figures.json")).unwrap();
    all.as_array().unwrap().clone()
}

/// The cells of a row of a table.
fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The rows of a section of the page, without the heads of tables.
fn rows<'a>(page: &'a str, section: &str) -> Vec<Vec<&'a str>> {
    let body = page.split_once(&format!("\n## {section}\n")).unwrap().1;
    let body = body.split("\n## ").next().unwrap().lines();
    let body: Vec<&str> = body.filter(|line| line.starts_with('|')).collect();
    let is_rule = |line: &str| line.starts_with("| ---");
    let is_head =
        |at: usize| is_rule(body[at]) || body.get(at + 1).is_some_and(|next| is_rule(next));
    (0..body.len()).filter(|at| !is_head(*at)).map(|at| cells(body[at])).collect()
}

/// The first number of a text.
fn number(text: &str) -> Option<f64> {
    let text = &text[text.find(|c: char| c.is_ascii_digit())?..];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '.');
    let digits = text[..end.unwrap_or(text.len())].trim_end_matches(['.', ',']).replace(',', "");
    digits.parse().ok()
}

/// All numbers of a text.
fn numbers(mut text: &str) -> Vec<f64> {
    let mut found = Vec::new();
    while let Some(at) = text.find(|c: char| c.is_ascii_digit()) {
        text = &text[at..];
        found.extend(number(text));
        let end = text.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '.');
        text = &text[end.unwrap_or(text.len())..];
    }
    found
}

/// Whether a quoted number is the value, rounded to two digits or more, in the same or another unit.
fn is_quoted(value: f64, quoted: f64) -> bool {
    let same = |value: f64| {
        let magnitude = 10_f64.powf(value.log10().floor());
        (1..7).any(|digits| {
            let step = magnitude / 10_f64.powi(digits);
            let rounded = (value / step).round() * step;
            (rounded - quoted).abs() < step / 1000.0
        })
    };
    [1.0, 1e-3, 1e-6].into_iter().any(|unit| same(value * unit))
}

#[test]
fn numbers_are_quoted_if_they_are_rounded() {
    for (value, quoted) in [(338.0, 0.34), (50664.0, 50700.0), (13.5, 14.0), (1444.0, 1440.0)] {
        assert!(is_quoted(value, quoted), "{value} {quoted}");
    }
    for (value, quoted) in [(338.0, 0.35), (50664.0, 50600.0), (13.5, 13.0), (1444.0, 1000.0)] {
        assert!(!is_quoted(value, quoted), "{value} {quoted}");
    }
    assert_eq!(numbers("0.39 to 0.55 %, 62, and 1,000."), [0.39, 0.55, 62.0, 1000.0]);
}

#[test]
fn the_tables_of_the_page_have_the_figures_of_the_file() {
    let (page, figures) = (read("docs/performance.md"), figures());
    let sections = ["Beside ZooKeeper and etcd", "Through the gateway", "Large and busy"];
    let rows: Vec<_> = sections.into_iter().flat_map(|section| rows(&page, section)).collect();
    assert_eq!(rows.len(), figures.len(), "a row has a figure, in the same order");
    for (row, figure) in rows.iter().zip(&figures) {
        let name = figure["name"].as_str().unwrap();
        let begins = ["the same", "sets of these writers"].iter().any(|of| row[0].starts_with(of));
        assert!(begins || name.ends_with(row[0]), "{name} is beside the row {}", row[0]);
        assert!(!figure["command"].as_str().unwrap().is_empty(), "{name}: no command");
        assert_eq!(figure["date"].as_str().unwrap().len(), "2026-01-31".len(), "{name}");
        if let Some(value) = figure["value"].as_str() {
            assert_eq!(row[1].replace("**", ""), value, "{name}");
            continue;
        }
        for (cell, system) in row[1..].iter().zip(SYSTEMS) {
            assert_eq!(number(cell), figure[system].as_f64(), "{name}, {system}");
        }
    }
}

#[test]
fn figures_are_quoted_as_they_are_in_the_file() {
    let mut seen = 0;
    for figure in figures() {
        for quote in figure["quoted"].as_array().into_iter().flatten() {
            let (file, text) = (quote["in"].as_str().unwrap(), quote["text"].as_str().unwrap());
            let page = read(file);
            let line = page.lines().find(|line| line.contains(text));
            let line = line.unwrap_or_else(|| panic!("{file} has no {text:?} on one line"));
            seen += 1;
            let Some(value) = figure["value"].as_str() else {
                // A comparison: a row with a column for each system.
                if !text.starts_with('|') {
                    let value = figure["quorate"].as_f64().unwrap();
                    assert!(numbers(text).iter().any(|of| is_quoted(value, *of)), "{file}: {text}");
                    continue;
                }
                for (cell, system) in cells(line)[1..].iter().zip(&SYSTEMS[1..]) {
                    let value = figure[*system].as_f64().unwrap();
                    let quoted = number(cell).unwrap();
                    assert!(is_quoted(value, quoted), "{file}: {line}\n{system}: {value}");
                }
                continue;
            };
            let values = numbers(&value.replace("..", " "));
            let is_there = |of: &f64| values.iter().any(|value| is_quoted(*value, *of));
            assert!(numbers(text).iter().any(is_there), "{file}: {text:?} is not {value}");
        }
    }
    assert!(seen >= 10, "{seen}");
}
