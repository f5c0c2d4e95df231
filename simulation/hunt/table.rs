//! The table of planted bugs in `docs/planted.md`: how soon each is found.

use std::collections::BTreeMap;
use std::fmt;

use super::harder;
use crate::planted::Bug;
use crate::simulation::Report;

/// The page with the table.
pub(super) const PAGE: &str = include_str!("../../docs/planted.md");
/// The first line of the table.
const HEAD: &str = "| bug | found | worlds | median | others | seeds | by |";
const RULE: &str = "| --- | ---: | ---: | ---: | ---: | --- | --- |";

/// A bug that was not found yet gets more worlds, up to this number.
const WORLDS_MAX: u64 = 400;
/// No more worlds are needed once they are so many times likelier at the row's rate than at a fifth
/// of it.
const CERTAIN: f64 = 1e6;
/// How many seeds a row keeps.
const SEEDS_KEPT: usize = 3;

/// How soon a planted bug is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The bug.
    pub bug: Bug,
    /// The number of worlds that were run.
    pub worlds: u64,
    /// The number of worlds in which a check of the bug was the first to fail, by check.
    pub by: BTreeMap<&'static str, u64>,
    /// The number of worlds in which another check was the first to fail.
    pub others: u64,
    /// Seeds that find the bug, those first that take the fewest steps.
    pub seeds: Vec<u64>,
    /// The steps that each of these took. Not in the table.
    steps: Vec<u64>,
}

impl Row {
    pub(super) fn new(bug: Bug) -> Row {
        let (by, seeds, steps) = (BTreeMap::new(), Vec::new(), Vec::new());
        Row { bug, worlds: 0, by, others: 0, seeds, steps }
    }

    /// The number of worlds in which the bug was found.
    pub fn found(&self) -> u64 {
        self.by.values().sum()
    }

    /// The part of the worlds in which the bug was found.
    pub fn rate(&self) -> f64 {
        self.found() as f64 / self.worlds.max(1) as f64
    }

    /// Whether there are enough worlds: `worlds` of them, or fewer if they tell the rate from a fifth
    /// of it, or more if the bug was not found yet.
    pub fn is_enough(&self, worlds: u64) -> bool {
        let most = if self.found() == 0 { worlds.max(WORLDS_MAX) } else { worlds };
        self.worlds >= most || harder::certainty(self.found(), self.worlds) >= CERTAIN
    }

    /// The number of worlds within which the bug is found with a probability of one half, if it was
    /// found at all. It follows from the rate: from any start, the distance to the first find is
    /// distributed geometrically.
    pub fn median(&self) -> Option<u64> {
        let rate = self.rate();
        (rate > 0.0).then(|| (0.5_f64.ln() / (-rate).ln_1p()).ceil().max(1.0) as u64)
    }

    /// Adds a world.
    pub(super) fn add(&mut self, report: &Report) {
        self.worlds += 1;
        let Some(failed) = report.check else { return };
        if !self.bug.checks().contains(&failed) {
            self.others += 1;
            return;
        }
        *self.by.entry(failed).or_default() += 1;
        self.keep(report);
    }

    /// Has the seeds of these runs, which have found the bug, in place of its own.
    pub fn renew(&mut self, found: &[Report]) {
        self.seeds.clear();
        self.steps.clear();
        found.iter().for_each(|report| self.keep(report));
    }

    /// Keeps the seed of a run that has found the bug, if it takes as few steps as the others.
    fn keep(&mut self, report: &Report) {
        let steps = report.totals.steps;
        if self.seeds.contains(&report.seed) {
            return;
        }
        let at = self.steps.partition_point(|known| *known <= steps);
        self.steps.insert(at, steps);
        self.seeds.insert(at, report.seed);
        self.steps.truncate(SEEDS_KEPT);
        self.seeds.truncate(SEEDS_KEPT);
    }

    pub(super) fn parse(line: &str) -> Result<Row, String> {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [bug, found, worlds, _, others, seeds, by] = cells[..] else {
            return Err(format!("not seven cells: {line}"));
        };
        let number =
            |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number: {line}"));
        let named = |known: &&Bug| format!("{known:?}") == bug;
        let bug = *Bug::ALL.iter().find(named).ok_or_else(|| format!("no bug {bug:?}"))?;
        let mut row = Row::new(bug);
        (row.worlds, row.others) = (number(worlds)?, number(others)?);
        for seed in parts(seeds, ", ") {
            row.seeds.push(number(seed)?);
        }
        for part in parts(by, "; ") {
            let (check, count) =
                part.rsplit_once(": ").ok_or_else(|| format!("no count of {part:?}: {line}"))?;
            let mut checks = bug.checks().iter();
            let check = checks
                .find(|known| **known == check)
                .ok_or_else(|| format!("{bug:?} has no check {check:?}"))?;
            row.by.insert(check, number(count)?);
        }
        match number(found)? == row.found() {
            true => Ok(row),
            false => Err(format!("the checks do not add up: {line}")),
        }
    }
}

fn parts<'a>(list: &'a str, between: &'a str) -> impl Iterator<Item = &'a str> {
    list.split(between).filter(|part| !part.is_empty())
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { bug, worlds, by, others, seeds, .. } = self;
        let median = self.median().map_or("-".to_owned(), |median| median.to_string());
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        let by: Vec<String> = by.iter().map(|(check, count)| format!("{check}: {count}")).collect();
        write!(
            f,
            "| {:27} | {:3} | {worlds:3} | {median:>3} | {others:3} | {:13} | {} |",
            format!("{bug:?}"),
            self.found(),
            seeds.join(", "),
            by.join("; ")
        )
    }
}

/// The rows of all bugs, in the order of the bugs.
#[derive(Clone, Debug)]
pub struct Table {
    /// What the page says before the table.
    prose: String,
    rows: BTreeMap<Bug, Row>,
}

impl Table {
    /// The table of `docs/planted.md` when this program was built.
    pub fn built_in() -> Table {
        Table::read(PAGE)
    }

    /// Reads the page. Rows of bugs or checks that do not exist any more are left out.
    pub fn read(page: &str) -> Table {
        let (prose, _) = page.split_once(HEAD).unwrap_or((page, ""));
        let rows = lines(page).filter_map(|line| Row::parse(line).ok());
        Table { prose: prose.to_owned(), rows: rows.map(|row| (row.bug, row)).collect() }
    }

    /// The row of a bug.
    pub fn row(&self, bug: Bug) -> Option<&Row> {
        self.rows.get(&bug)
    }

    /// Replaces the row of a bug.
    pub fn put(&mut self, row: Row) {
        self.rows.insert(row.bug, row);
    }
}

/// The lines of the rows of a page.
pub(super) fn lines(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.split_once(HEAD).map_or("", |(_, rows)| rows);
    rows.lines().filter(|line| line.starts_with("| ") && *line != RULE)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{HEAD}\n{RULE}\n", self.prose)?;
        self.rows.values().try_for_each(|row| writeln!(f, "{row}"))
    }
}
