//! The dashboard, the alerts and the metrics page name existing metrics, and the pages of `docs` name existing
//! functions and link to existing targets, both in the repository and on docs.rs.

mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use quorate::CreateMode;
use quorate::testing::Cluster;
use serde_json::Value;

/// A member reports its free disk space only if it has a disk, so not in an in-memory cluster.
const OF_A_DISK: &str = "quorate_disk_free_bytes";

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// All metrics of a member that uses everything, with their types.
fn written() -> BTreeMap<String, String> {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    session.sync().wait().unwrap();
    let text = cluster.node(0).metrics().wait().unwrap().to_string();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// The names of metrics in a text, without the suffixes of a histogram's series.
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
    // Quantiles are computed from buckets.
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
    let runbook = read("docs/troubleshooting.md");
    for rule in &rules {
        let name = rule.lines().next().unwrap();
        let url = value(rule, "runbook_url: ");
        let heading =
            url.split_once("/docs/troubleshooting.md#").expect("a section of that page").1;
        let sections = runbook.split("\n## ");
        let section =
            sections.into_iter().find(|text| anchor(text.lines().next().unwrap()) == heading);
        let section = section.unwrap_or_else(|| panic!("{name}: there is no section {heading}"));
        assert!(section.contains(&format!("`{name}`")), "{heading} does not name {name}");
    }
    for (at, _) in runbook.match_indices("`Quorate") {
        let name = runbook[at + 1..].split('`').next().unwrap();
        let exists = alerts.contains(&format!("- alert: {name}\n"));
        assert!(exists, "troubleshooting names {name}, which is no alert");
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

/// The value after the first occurrence of this key.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let rest = text.split_once(key).unwrap_or_else(|| panic!("there is no {key}")).1;
    rest.lines().next().unwrap_or_default().trim().trim_matches('"')
}

/// The value of a variable of a pod.
fn variable<'a>(manifest: &'a str, name: &str) -> &'a str {
    let rest = manifest.split_once(&format!("- name: {name}\n"));
    value(rest.unwrap_or_else(|| panic!("{name} is not set")).1, "value: ")
}

/// Checks that a manifest is YAML, if Python can read YAML here.
fn parses(path: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let program = "import sys\ntry:\n import yaml\nexcept ImportError:\n sys.exit(3)\n\
                   assert all(list(yaml.safe_load_all(open(sys.argv[1]))))";
    match Command::new("python3").args(["-c", program]).arg(file).output() {
        Ok(parsed) if parsed.status.code() != Some(3) => {
            assert!(parsed.status.success(), "{path}: {parsed:?}");
        }
        _ => eprintln!("{path} is not parsed: there is no Python with yaml here"),
    }
}

#[test]
fn pods_find_each_other_before_they_are_ready() {
    for kind in ["StatefulSet", "Deployment"] {
        let path = format!("contrib/kubernetes/{}.yaml", kind.to_ascii_lowercase());
        parses(&path);
        let manifest = read(&path);
        let documents: Vec<&str> = manifest.split("\n---\n").collect();
        let of = |kind: &str| {
            let is = |text: &&&str| text.contains(&format!("kind: {kind}\n"));
            *documents.iter().find(is).unwrap_or_else(|| panic!("{path} has no {kind}"))
        };
        let service = of("Service");
        assert_eq!(value(service, "clusterIP: "), "None");
        assert_eq!(value(service, "publishNotReadyAddresses: "), "true");
        assert_eq!(value(of("PodDisruptionBudget"), "maxUnavailable: "), "1");
        let pods = of(kind);
        for (probe, route) in
            [("startupProbe:", "/live"), ("livenessProbe:", "/live"), ("readinessProbe:", "/ready")]
        {
            let probe = pods.split_once(probe).unwrap().1;
            assert!(value(probe, "httpGet: ").contains(&format!("path: {route},")), "{probe}");
        }
        // A member that leaves takes at most 20 seconds, and one that is closed 11.
        let grace: u64 = value(pods, "terminationGracePeriodSeconds: ").parse().unwrap();
        assert!(grace >= 30, "{grace}");
        assert_eq!(variable(pods, "QUORATE_LISTEN"), "0.0.0.0:7400");
        let name = value(service, "\n  name: ");
        let replicas: usize = value(pods, "replicas: ").parse().unwrap();
        if kind == "StatefulSet" {
            assert_eq!(value(pods, "podManagementPolicy: "), "Parallel");
            assert_eq!(value(pods, "serviceName: "), name);
            let peers: Vec<&str> = variable(pods, "QUORATE_PEERS").split(',').collect();
            let pod = |place| format!("{name}-{place}.{name}:7400");
            assert_eq!(peers, (0..replicas).map(pod).collect::<Vec<_>>());
            let own = variable(pods, "QUORATE_ADVERTISE");
            assert_eq!(own, format!("$(POD_NAME).{name}:7400"));
            assert!(pods.contains("volumeClaimTemplates:") && !pods.contains("--leave"));
        } else {
            assert_eq!(variable(pods, "QUORATE_DISCOVER"), format!("{name}:7400"));
            assert_eq!(variable(pods, "QUORATE_EXPECTED"), replicas.to_string());
            assert_eq!(variable(pods, "QUORATE_ADVERTISE"), "$(POD_IP):7400");
            assert_eq!(value(pods, "rollingUpdate: "), "{maxSurge: 1, maxUnavailable: 0}");
            assert!(pods.contains("serve, --leave,"), "a pod of a Deployment does not come back");
        }
    }
    parses("contrib/compose/compose.yaml");
    let compose = read("contrib/compose/compose.yaml");
    assert!(compose.contains("--discover=quorate:7400, --expected=3,"));
    assert_eq!(value(&compose, "replicas: "), "3");
}

/// The pages of `docs`, by their paths in it.
fn pages() -> BTreeMap<String, String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut pages = BTreeMap::new();
    for folder in ["", "recipes/"] {
        for entry in std::fs::read_dir(docs.join(folder)).unwrap() {
            let name = format!("{folder}{}", entry.unwrap().file_name().to_str().unwrap());
            if name.ends_with(".md") {
                let text = read(&format!("docs/{name}"));
                pages.insert(name, text);
            }
        }
    }
    pages
}

/// Definitions of links at the end of a page, or in `src/guide/links.md`.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| line.starts_with('['));
    lines.filter_map(|line| line[1..].split_once("]: ")).collect()
}

/// The text without its examples.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// A heading's anchor, as GitHub and rustdoc make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[test]
fn links_between_pages_lead_somewhere_in_the_repository_and_on_docs_rs() {
    let (pages, guide) = (pages(), read("src/guide.rs"));
    let links = read("src/guide/links.md");
    let there = definitions(&links);
    let mut used = BTreeSet::new();
    for (page, text) in &pages {
        assert!(guide.contains(&format!("{page:?}")), "{page} is no module of the guide");
        let body = prose(text);
        let anchors = |of: &str| -> BTreeSet<String> {
            let headings = of.lines().filter(|line| line.starts_with('#'));
            headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
        };
        for (at, _) in body.match_indices("](") {
            let target = body[at + 2..].split_once(')').unwrap().0;
            let within = target.strip_prefix('#');
            let here = within.is_some_and(|to| anchors(&body).contains(to));
            assert!(here || target.starts_with("https://"), "{page}: {target} is not by reference");
        }
        let here = definitions(&body);
        for (at, _) in body.match_indices("][") {
            let label = body[at + 2..].split_once(']').unwrap().0;
            assert_eq!(here.get(label), Some(&label), "{page}: {label} is not defined at its end");
            assert!(there.contains_key(label), "{page}: {label} is not in src/guide/links.md");
            let (file, heading) = label.split_once('#').unwrap_or((label, ""));
            let folder = Path::new("docs").join(page);
            let found =
                Path::new(env!("CARGO_MANIFEST_DIR")).join(folder.parent().unwrap()).join(file);
            assert!(found.exists(), "{page}: there is no {label}");
            if !heading.is_empty() {
                let there = prose(&std::fs::read_to_string(&found).unwrap());
                assert!(anchors(&there).contains(heading), "{page}: {label} has no such heading");
            }
            used.insert(label.to_owned());
        }
        let pages = here.iter().filter(|(_, target)| !target.starts_with("https://"));
        let unused: Vec<_> = pages.filter(|(label, _)| !used.contains(**label)).collect();
        assert!(unused.is_empty(), "{page}: nobody uses {unused:?}");
    }
    let unused: Vec<_> = there.keys().filter(|label| !used.contains(**label)).collect();
    assert!(unused.is_empty(), "src/guide/links.md: nobody uses {unused:?}");
}

/// Somebody in a hurry reads the first line, and not more than ten minutes. A subject has one page, and all pages
/// together do not grow.
#[test]
fn pages_are_short_and_say_whom_they_are_for() {
    const WORDS_MAX: usize = 2400;
    const ALL_MAX: usize = 61_000;
    let pages = pages();
    for (page, text) in &pages {
        let whom = text.lines().nth(2).unwrap();
        assert!(whom.starts_with("For "), "{page} does not say whom it is for: {whom}");
        let words = text.split_whitespace().count();
        // All promises are on one page, and all planted bugs, which the simulator writes.
        let may_be_long = ["guarantees.md", "planted.md"].contains(&&**page);
        assert!(words <= WORDS_MAX || may_be_long, "{page} has {words} words");
    }
    let written = pages.iter().filter(|(page, _)| *page != "planted.md");
    let all: usize = written.map(|(_, text)| text.split_whitespace().count()).sum();
    assert!(all <= ALL_MAX, "{all} words");
}

/// A member whose disk has failed ends with an exit code other than 0, and must be started again.
#[test]
fn a_member_that_has_ended_with_an_error_is_started_again() {
    let unit = read("contrib/systemd/quorate.service");
    assert_eq!(value(&unit, "\nRestart="), "on-failure");
    assert_eq!(value(&unit, "\nStartLimitIntervalSec="), "0");
    assert_eq!(value(&read("contrib/compose/compose.yaml"), "restart: "), "on-failure");
    for kind in ["statefulset", "deployment"] {
        let manifest = read(&format!("contrib/kubernetes/{kind}.yaml"));
        assert!(!manifest.contains("restartPolicy:"), "{kind}: the default, Always");
    }
}

/// They are read in the repository alone, so their links are relative.
#[test]
fn the_decisions_are_listed_and_their_links_lead_to_headings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decisions");
    let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "README.md" || index.contains(&format!("({name})")),
            "{name} is not listed"
        );
        let text = std::fs::read_to_string(folder.join(&name)).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 40, "{name} has {lines} lines: a decision is short");
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split_once(')').unwrap().0;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let page = std::fs::read_to_string(folder.join(file));
            let page = page.unwrap_or_else(|error| panic!("{name}: {target}: {error}"));
            let headings = page.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
            assert!(
                heading.is_empty() || anchors.any(|anchor| anchor == heading),
                "{name}: {target}"
            );
        }
    }
}
