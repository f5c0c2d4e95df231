//! What `doctor` finds, and for how long it has been so: `--watch` prints what changes, and `--for` counts only what lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// A problem.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// What it is about, and whom: the same for as long as the problem lasts, while figures in its text change.
    pub(super) cause: String,
    /// The problem.
    pub(super) wrong: String,
    /// The advice.
    pub(super) advice: String,
}

impl Finding {
    pub(super) fn new(
        cause: impl Into<String>,
        wrong: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { cause: cause.into(), wrong: wrong.into(), advice: advice.into() }
    }
}

/// The findings over time.
pub(super) struct Findings {
    /// A problem counts if it was found at every look for this long.
    lasting: Duration,
    /// By their causes: since when they are found, what was found at the last look, and whether they count.
    known: BTreeMap<String, (Duration, Finding, bool)>,
}

/// What a look has changed.
#[derive(Debug, Default)]
pub(super) struct FindingChanges {
    /// What counts from now on.
    pub(super) begun: Vec<Finding>,
    /// What counted and is not found any more.
    pub(super) over: Vec<Finding>,
}

impl Findings {
    pub(super) fn new(lasting: Duration) -> Findings {
        Findings { lasting, known: BTreeMap::new() }
    }

    /// Takes what was found at this time, which begins anywhere and does not go back.
    pub(super) fn look(&mut self, now: Duration, found: Vec<Finding>) -> FindingChanges {
        let mut changes = FindingChanges::default();
        let mut before = std::mem::take(&mut self.known);
        for finding in found {
            let (since, counted) = match before.remove(&finding.cause) {
                Some((since, _, counted)) => (since, counted),
                None => (now, false),
            };
            let counts = now.saturating_sub(since) >= self.lasting;
            if counts && !counted {
                changes.begun.push(finding.clone());
            }
            self.known.insert(finding.cause.clone(), (since, finding, counts));
        }
        let over = before.into_values().filter(|(.., counted)| *counted);
        changes.over = over.map(|(_, finding, _)| finding).collect();
        changes
    }

    /// What counts, as it was found at the last look.
    pub(super) fn counting(&self) -> Vec<Finding> {
        let counting = self.known.values().filter(|(.., counts)| *counts);
        counting.map(|(_, finding, _)| finding.clone()).collect()
    }

    /// Whether something is found that may count later.
    pub(super) fn is_undecided(&self) -> bool {
        self.known.values().any(|(.., counts)| !counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(causes: &[&str]) -> Vec<Finding> {
        causes.iter().map(|cause| Finding::new(*cause, format!("{cause} is wrong"), "")).collect()
    }

    fn names(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|of| &*of.cause).collect()
    }

    #[test]
    fn a_failover_does_not_count_and_a_dead_member_does() {
        let mut findings = Findings::new(Duration::from_secs(30));
        let mut look = |second, causes: &[&str]| {
            let changes = findings.look(Duration::from_secs(second), found(causes));
            let of = |list: &[Finding]| names(list).join(" ");
            (of(&changes.begun), of(&changes.over), findings.is_undecided())
        };
        let nothing = |undecided| (String::new(), String::new(), undecided);
        assert_eq!(look(0, &["leader"]), nothing(true));
        // Somebody leads, and the former leader is silent.
        assert_eq!(look(1, &["silent a"]), nothing(true));
        assert_eq!(look(30, &["silent a"]), nothing(true));
        assert_eq!(look(31, &["silent a", "lag b"]), ("silent a".into(), String::new(), true));
        assert_eq!(look(32, &["silent a"]), nothing(false));
        assert_eq!(look(33, &[]), (String::new(), "silent a".into(), false));
        // It begins again.
        assert_eq!(look(34, &["silent a"]), nothing(true));
    }

    #[test]
    fn without_a_duration_each_finding_counts_once() {
        let mut findings = Findings::new(Duration::ZERO);
        let now = Duration::from_secs(7);
        assert_eq!(names(&findings.look(now, found(&["a", "b"])).begun), ["a", "b"]);
        let later = findings.look(now, found(&["b"]));
        assert_eq!((names(&later.begun), names(&later.over)), (vec![], vec!["a"]));
        assert_eq!(names(&findings.counting()), ["b"]);
    }
}
