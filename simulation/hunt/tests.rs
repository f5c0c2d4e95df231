//! The example hunts all bugs in a release build: see `.ci/run`.

use super::table::{PAGE, lines};
use super::*;
use crate::simulation::random::Random;
use crate::simulation::run;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_planted_bug_is_found() {
    let hunt = hunt(Bug::OneShotStays, 0..20, MINUTE, Verbosity::None, true);
    assert_eq!(hunt.missed, [""; 0]);
    assert_eq!(run(hunt.found[0].seed, MINUTE, Kind::Usual).failure, None, "it is gone again");
}

#[test]
fn each_row_of_the_page_is_of_a_bug_and_its_checks() {
    let table = Table::built_in();
    assert!(lines(PAGE).count() > 0, "there is no table");
    for line in lines(PAGE) {
        let row = Row::parse(line).unwrap();
        assert_eq!(table.row(row.bug), Some(&row), "{:?} has two rows", row.bug);
    }
    assert_eq!(table.to_string(), PAGE, "it is not as `simulate --find` writes it");
}

#[test]
fn a_row_tells_how_soon_a_bug_is_found() {
    let row = measure(Bug::AppendUnsynced, 3, MINUTE);
    assert!(row.found() > 0 && row.worlds >= 3, "{row}");
    let read = Row::parse(&row.to_string()).unwrap();
    assert_eq!((read.found(), read.worlds, &read.seeds), (row.found(), row.worlds, &row.seeds));
    let row = |line: &str| Row::parse(line).unwrap();
    let median = |line| row(line).median();
    assert_eq!(median("| TwoFounders | 0 | 400 | - | 3 | | |"), None);
    assert_eq!(median("| TwoFounders | 20 | 20 | | 0 | | I25 one cluster: 20 |"), Some(1));
    assert_eq!(median("| TwoFounders | 10 | 100 | | 0 | | I25 one cluster: 10 |"), Some(7));
    assert!(Row::parse("| TwoFounders | 1 | 100 | | 0 | | I25 one leader: 1 |").is_err());
}

/// The seeds of a row find its bug at once. Without them, worlds tell what the row says too much. Worlds of a disk are
/// the quickest.
#[test]
fn a_row_that_says_too_much_is_noticed() {
    let mut row = measure(Bug::AppendUnsynced, 3, MINUTE);
    let judged = judge(&row, 20, MINUTE, Verbosity::None);
    assert!(judged.verdict == Verdict::AsBefore && judged.worlds == 2, "{judged:?}");
    row.seeds.clear();
    assert_eq!(judge(&row, 20, MINUTE, Verbosity::None).verdict, Verdict::AsBefore);
    // One world of eight finds this bug.
    let often = "| RotAccepted | 20 | 20 | 1 | 0 | | I11 one log: 20 |";
    let judged = judge(&Row::parse(often).unwrap(), 20, MINUTE, Verbosity::None);
    assert_eq!(judged.verdict, Verdict::Harder, "{judged:?}");
}

/// A find after a rest of misses says as much as its row does. Where there are not worlds enough to say anything, none
/// is run.
#[test]
fn a_row_of_few_finds_is_judged_by_a_find() {
    let row = |line: &str| Row::parse(line).unwrap();
    let row = row("| TwoFounders | 1 | 19 | 13 | 0 | 18 | I25 one cluster: 1 |");
    let found_at = |find: u64| look_again(&row, 200, |seed| seed == find);
    assert_eq!(found_at(90), Verdict::AsBefore);
    assert_eq!(found_at(150), Verdict::Harder);
    assert_eq!(found_at(200), Verdict::Harder, "it is not found");
    assert_eq!(look_again(&row, 189, |_| panic!("no world is needed")), Verdict::TooRare(190));
}

const CASES: u64 = 200;

/// Compares bugs with their rows, where today's rate is lower by a factor. Returns how many of the
/// cases count as harder to find.
fn alarms(rate: f64, factor: f64) -> u64 {
    let random = Random::new(rate.to_bits());
    let finds = |rate: f64| random.chance((rate * 1e6) as u64);
    (0..CASES)
        .filter(|_| {
            let mut row = Row::new(Bug::TwoFounders);
            while !row.is_enough(100) {
                row.worlds += 1;
                *row.by.entry("I25 one cluster").or_default() += u64::from(finds(rate));
            }
            let mut comparison = Comparison::with(row.found(), row.worlds);
            let outcome = (0..5_000).find_map(|_| comparison.add(finds(rate / factor)));
            outcome == Some(Outcome::Harder)
        })
        .count() as u64
}

#[test]
fn only_what_became_much_harder_to_find_raises_an_alarm() {
    for rate in [0.2, 0.5, 1.0] {
        let (same, half, fifth) = (alarms(rate, 1.0), alarms(rate, 2.0), alarms(rate, 5.0));
        let (few, many) = (CASES / 10, CASES / 2);
        assert!(same == 0 && half < few && fifth > many, "{rate}: {same}, {half}, {fifth}");
    }
}
