//! The dashboard, the alerts and the page about metrics name those that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use quorate::CreateMode;
use quorate::testing::Cluster;
use serde_json::Value;

/// The free space of the disk is written where there is a disk, and not in an in-memory cluster.
const OF_A_DISK: &str = "quorate_disk_free_bytes";

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// All metrics of a member that has some of everything, with their types.
fn written() -> BTreeMap<String, String> {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    session.sync().unwrap();
    let text = cluster.node(0).metrics().to_string();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// The names of metrics in a text, without what a histogram's series add.
fn named(text: &str, written: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices("quorate_") {
        let rest = &text[at..];
        let is_part = |of: char| of == '_' || of.is_ascii_lowercase();
        let name = &rest[..rest.find(|of| !is_part(of)).unwrap_or(rest.len())];
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|of| name.strip_suffix(of));
        let base = base.filter(|base| written.get(*base).is_some_and(|kind| kind == "histogram"));
        names.insert(base.unwrap_or(name).to_owned());
    }
    names
}

fn check(what: &str, text: &str, written: &BTreeMap<String, String>) {
    let names = named(text, written);
    assert!(names.len() > 5, "{what}: {names:?}");
    for name in names {
        let exists = written.contains_key(&name) || name == OF_A_DISK;
        assert!(exists, "{what}: there is no {name}");
    }
}

#[test]
fn the_dashboard_queries_metrics_that_there_are() {
    let written = written();
    let dashboard: Value = serde_json::from_str(&read("contrib/grafana/quorate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut queries = Vec::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "one id twice: {panel}");
        assert!(!panel["title"].as_str().unwrap().is_empty());
        let Some(targets) = panel["targets"].as_array() else {
            assert_eq!(panel["type"], "row");
            continue;
        };
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            assert!(query.contains("quorate_") && query.contains("$job"), "{query}");
            queries.push(query);
        }
    }
    check("dashboard", &queries.join("\n"), &written);
    // Quantiles come from buckets.
    for query in queries {
        assert_eq!(query.contains("histogram_quantile"), query.contains("_bucket"), "{query}");
    }
}

#[test]
fn each_alert_is_complete_documented_and_about_metrics_that_there_are() {
    let (alerts, page) = (read("contrib/prometheus/alerts.yml"), read("docs/metrics.md"));
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    assert!(rules.len() >= 6);
    let written = written();
    for rule in &rules {
        let name = rule.lines().next().unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not on the page");
        let of = |key: &str| rule.lines().find_map(|line| line.trim().strip_prefix(key));
        let query = of("expr: ").unwrap();
        assert!(query.contains("quorate_"), "{name}: {query}");
        let severity = of("severity: ").unwrap();
        assert!(["critical", "warning"].contains(&severity), "{name}: {severity}");
        for text in [of("summary: ").unwrap(), of("description: ").unwrap()] {
            // A quoted string may contain a colon.
            assert!(
                text.len() > 2 && text.starts_with('"') && text.ends_with('"'),
                "{name}: {text}"
            );
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/prometheus/alerts.yml");
    match Command::new("promtool").arg("check").arg("rules").arg(file).output() {
        Ok(checked) => assert!(checked.status.success(), "{checked:?}"),
        Err(_) => eprintln!("not checked by promtool, which is not here"),
    }
    assert_eq!(page.matches("| `Quorate").count(), rules.len(), "the page has more");
    check("alerts", &alerts, &written);
}

#[test]
fn the_page_lists_every_metric_with_its_type() {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `quorate_")?.split_once("` | "));
    let listed: BTreeMap<String, String> = rows
        .map(|(name, rest)| {
            let kind = rest.split([',', ' ']).next().unwrap();
            (format!("quorate_{name}"), kind.to_owned())
        })
        .filter(|(name, _)| name != OF_A_DISK)
        .collect();
    assert_eq!(listed, written());
}
