//! Timers that fire once in the cluster.

use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::recipes::{Fire, Missed, PastFire, Queue, Schedule, Timer};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(200);

fn schedule(cluster: &Cluster, node: usize) -> Schedule {
    Schedule::new(&cluster.node(node).session(), "/deep/schedule").unwrap()
}

/// The log's time.
fn log_time(session: &Session) -> SystemTime {
    let stat = session.create_or_set("/now", b"", CreateMode::Persistent).wait().unwrap().stat;
    UNIX_EPOCH + Duration::from_millis(stat.mtime)
}

/// The next fire, with nothing handed over; `None` if none comes soon.
fn next(schedule: &Schedule) -> Option<Fire> {
    match schedule.fire(|_, multi| multi).timeout(SOON).wait() {
        Err(Error::Timeout { .. }) => None,
        fired => Some(fired.unwrap()),
    }
}

fn every_minute(missed: Missed) -> Timer {
    Timer::every(MINUTE).unwrap().missed(missed)
}

fn history(schedule: &Schedule, name: &str) -> Vec<PastFire> {
    schedule.get(name).wait().unwrap().expect("it is there").history
}

#[test]
fn an_interval_fires_at_its_multiples() {
    let cluster = Cluster::new(3);
    let (one, session) = (schedule(&cluster, 0), cluster.node(1).session());
    assert_eq!(one.set("sweep", &every_minute(Missed::All)).wait(), Ok(true));
    let mut due = one.get("sweep").wait().unwrap().unwrap().next.unwrap();
    for number in 1..=5 {
        cluster.advance(MINUTE);
        let fire = one.fire(|_, multi| multi).wait().unwrap();
        assert_eq!((fire.number(), fire.due(), fire.since()), (number, due, due));
        assert!(log_time(&session) >= due);
        due += MINUTE;
    }
    let history = history(&one, "sweep");
    assert!(history.len() == 5 && history.iter().all(|fire| fire.at >= fire.due), "{history:?}");
    assert!(history.is_sorted_by_key(|fire| fire.at));
}

#[test]
fn who_waits_is_woken_by_time_by_a_new_timer_and_by_a_change() {
    let cluster = Cluster::new(3);
    let other = schedule(&cluster, 1);
    // The names of the znodes below a timer are names like others.
    let parts = ["next", "history", "run", "runner"];
    let (fired, fires) = channel();
    std::thread::scope(|scope| {
        let waiting = schedule(&cluster, 0);
        scope.spawn(move || {
            for _ in 0..3 + parts.len() {
                fired.send(waiting.fire(|_, multi| multi).wait().unwrap()).unwrap();
            }
        });
        // There is no timer yet.
        other.set("sweep", &every_minute(Missed::Once)).wait().unwrap();
        cluster.advance(MINUTE);
        assert_eq!(fires.recv().unwrap().timer(), "sweep");
        // A timer that is due at once.
        other.set("launch", &Timer::at(UNIX_EPOCH + SECOND).unwrap()).wait().unwrap();
        assert_eq!(fires.recv().unwrap().timer(), "launch");
        // A timer that changes.
        other.pause("sweep").wait().unwrap();
        let time = UNIX_EPOCH + 2 * SECOND;
        assert_eq!(other.set("launch", &Timer::at(time).unwrap()).wait(), Ok(true));
        assert_eq!(fires.recv().unwrap().due(), time);
        for part in parts {
            other.set(part, &Timer::at(UNIX_EPOCH).unwrap()).wait().unwrap();
            assert_eq!(fires.recv().unwrap().timer(), part);
        }
    });
}

#[test]
fn a_single_time_fires_once_and_not_before() {
    let cluster = Cluster::new(3);
    let (one, other) = (schedule(&cluster, 0), schedule(&cluster, 1));
    let time = log_time(&cluster.node(0).session()) + 10 * MINUTE;
    let timer = Timer::at(time).unwrap().data("go");
    assert_eq!(one.set("launch", &timer).wait(), Ok(true));
    assert_eq!(other.set("launch", &timer).wait(), Ok(false), "it is set");
    cluster.advance(9 * MINUTE);
    assert_eq!(next(&one), None);
    cluster.advance(2 * MINUTE);
    let fire = one.fire(|_, multi| multi).wait().unwrap();
    assert_eq!(fire.data(), b"go");
    assert!((time - Duration::from_millis(1)..=time).contains(&fire.due()), "{fire:?}");
    assert_eq!(one.get("launch").wait().unwrap().unwrap().next, None);
    // Set again, also with another policy or at an earlier time, it has fired.
    for timer in [timer.clone(), timer.missed(Missed::All), Timer::at(time - MINUTE).unwrap()] {
        other.set("launch", &timer).wait().unwrap();
        assert_eq!(next(&other), None);
    }
    other.set("launch", &Timer::at(time + SECOND).unwrap()).wait().unwrap();
    assert_eq!(next(&other).unwrap().number(), 2, "that is another time");
}

/// Nobody waits for five minutes and a half. How many fires come then, and for which times?
fn after_a_gap(missed: Missed) -> Vec<(SystemTime, SystemTime)> {
    let cluster = Cluster::new(1);
    let one = schedule(&cluster, 0);
    one.set("sweep", &every_minute(missed)).wait().unwrap();
    let first = one.get("sweep").wait().unwrap().unwrap().next.unwrap();
    let wait = first.duration_since(log_time(&cluster.node(0).session())).unwrap();
    cluster.advance(wait + 4 * MINUTE + MINUTE / 2);
    let fires: Vec<Fire> = std::iter::from_fn(|| next(&one)).collect();
    assert!(fires.iter().map(Fire::number).eq(1..=fires.len() as u64), "{fires:?}");
    // It goes on as before.
    cluster.advance(MINUTE / 2);
    let then = one.fire(|_, multi| multi).wait().unwrap();
    assert_eq!((then.due(), then.since()), (first + 5 * MINUTE, first + 5 * MINUTE));
    let minutes = |time: SystemTime| UNIX_EPOCH + time.duration_since(first).unwrap();
    fires.iter().map(|fire| (minutes(fire.since()), minutes(fire.due()))).collect()
}

#[test]
fn what_was_missed_fires_as_the_timer_says() {
    let minutes = |minutes: u32| UNIX_EPOCH + minutes * MINUTE;
    assert_eq!(after_a_gap(Missed::Skip), []);
    assert_eq!(after_a_gap(Missed::Once), [(minutes(0), minutes(4))]);
    let all: Vec<_> = (0..5).map(|minute| (minutes(minute), minutes(minute))).collect();
    assert_eq!(after_a_gap(Missed::All), all);
}

#[test]
fn a_single_time_that_is_over_fires_unless_it_is_skipped() {
    let cluster = Cluster::new(1);
    let one = schedule(&cluster, 0);
    let past = Timer::at(UNIX_EPOCH + SECOND).unwrap();
    one.set("skipped", &past.clone().missed(Missed::Skip)).wait().unwrap();
    assert_eq!(next(&one), None);
    assert_eq!(one.get("skipped").wait().unwrap().unwrap().next, None);
    for missed in [Missed::Once, Missed::All] {
        one.set("fired", &past.clone().missed(missed)).wait().unwrap();
    }
    assert_eq!(next(&one).unwrap().timer(), "fired");
    assert_eq!(next(&one), None);
}

#[test]
fn a_pause_holds_fires_back_and_one_by_request_comes_all_the_same() {
    let cluster = Cluster::new(3);
    let (one, other) = (schedule(&cluster, 0), schedule(&cluster, 1));
    one.set("sweep", &every_minute(Missed::All)).wait().unwrap();
    one.pause("sweep").wait().unwrap();
    assert!(one.get("sweep").wait().unwrap().unwrap().is_paused);
    cluster.advance(2 * MINUTE);
    assert_eq!(next(&other), None);
    one.fire_now("sweep").wait().unwrap();
    one.fire_now("sweep").wait().unwrap();
    let fire = other.fire(|_, multi| multi).wait().unwrap();
    assert!(fire.is_requested() && fire.number() == 1);
    assert_eq!(next(&other), None, "asked for twice, it fires once");
    one.set("sweep", &every_minute(Missed::All).data("x")).wait().unwrap();
    assert!(one.get("sweep").wait().unwrap().unwrap().is_paused, "a change does not resume it");
    one.resume("sweep").wait().unwrap();
    let fires: Vec<u64> = std::iter::from_fn(|| next(&other)).map(|fire| fire.number()).collect();
    assert!(fires.starts_with(&[2, 3]), "what was missed: {fires:?}");
    assert!(matches!(one.pause("none").wait(), Err(Error::NoNode { .. })));
    assert!(matches!(one.fire_now("none").wait(), Err(Error::NoNode { .. })));
}

/// The timer is paused when an instance has read that it is due, and has not claimed the fire yet.
#[test]
fn a_pause_between_the_look_and_the_claim_holds_the_fire_back() {
    let cluster = Cluster::new(1);
    let (one, other) = (schedule(&cluster, 0), schedule(&cluster, 0));
    let due = Timer::at(UNIX_EPOCH + SECOND).unwrap();
    one.set("launch", &due).wait().unwrap();
    let mut tried = Vec::new();
    let fire = one.fire(|fire, multi| {
        tried.push(fire.timer().to_owned());
        if tried.len() == 1 {
            other.pause("launch").wait().unwrap();
            // Something to go on with.
            other.set("sweep", &due).wait().unwrap();
        }
        multi
    });
    assert_eq!(fire.wait().unwrap().timer(), "sweep");
    assert_eq!(tried, ["launch", "sweep"]);
    assert_eq!(history(&one, "launch"), []);
}

#[test]
fn other_times_replace_those_of_a_timer_and_keep_its_history() {
    let cluster = Cluster::new(1);
    let one = schedule(&cluster, 0);
    let day = Timer::every(1440 * MINUTE).unwrap();
    one.set("sweep", &day).wait().unwrap();
    one.fire_now("sweep").wait().unwrap();
    next(&one).unwrap();
    assert_eq!(one.set("sweep", &every_minute(Missed::All)).wait(), Ok(true));
    cluster.advance(MINUTE);
    assert_eq!(next(&one).unwrap().number(), 2);
    assert_eq!(one.set("sweep", &day).wait(), Ok(true));
    cluster.advance(5 * MINUTE);
    assert_eq!(next(&one), None);
    assert_eq!(history(&one, "sweep").len(), 2);
    assert_eq!(one.remove("sweep").wait(), Ok(true));
    assert_eq!((one.get("sweep").wait(), one.names().wait()), (Ok(None), Ok(Vec::new())));
}

#[test]
fn each_fire_puts_one_item_whoever_claims_it() {
    let cluster = Cluster::new(3);
    let client = cluster.add_client();
    let queue = |node: usize| Queue::new(&cluster.node(node).session(), "/jobs").unwrap();
    schedule(&cluster, 0)
        .set("sweep", &Timer::every(SECOND).unwrap().missed(Missed::All))
        .wait()
        .unwrap();
    queue(0).prepare().wait().unwrap();
    std::thread::scope(|scope| {
        for node in [0, 1, client] {
            let (schedule, jobs) = (schedule(&cluster, node), queue(node));
            scope.spawn(move || {
                let next = || {
                    let put = schedule
                        .fire(|fire, multi| multi.with(&jobs.put_part(fire.number().to_string())))
                        .timeout(20 * SECOND);
                    put.wait()
                };
                while next().is_ok() {
                    if history(&schedule, "sweep").last().unwrap().number >= 30 {
                        break;
                    }
                }
            });
        }
        let jobs = queue(1);
        for number in 1..=30 {
            cluster.advance(SECOND);
            // In the order of their times, each once.
            assert_eq!(jobs.pop().wait().unwrap(), number.to_string().into_bytes());
        }
        // The others end, too.
        cluster.advance(21 * SECOND);
    });
    let history = history(&schedule(&cluster, 0), "sweep");
    assert_eq!(history.len(), 16, "the history is bounded");
    assert!(history.windows(2).all(|pair| pair[1].due == pair[0].due + SECOND), "{history:?}");
}

#[test]
fn a_hand_over_that_fails_leaves_the_fire() {
    let cluster = Cluster::new(1);
    let (one, session) = (schedule(&cluster, 0), cluster.node(0).session());
    one.set("launch", &Timer::at(UNIX_EPOCH).unwrap()).wait().unwrap();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let failed = one.fire(|_, multi| {
        let multi = multi.create("/b", b"", CreateMode::Persistent);
        multi.create("/a", b"", CreateMode::Persistent)
    });
    let exists = Box::new(Error::NodeExists { path: "/a".into() });
    assert_eq!(failed.wait(), Err(Error::Multi { index: 1, error: exists }));
    let refused = one.fire(|_, multi| multi.set("no path", b"")).wait();
    assert!(matches!(refused, Err(Error::Multi { index: 0, .. })), "{refused:?}");
    assert!(session.exists("/b").wait().unwrap().is_none());
    assert_eq!(next(&one).unwrap().number(), 1);
}

#[test]
fn a_run_is_taken_over_under_a_new_token() {
    let cluster = Cluster::new(3);
    let (one, other) = (schedule(&cluster, 0), schedule(&cluster, 1));
    cluster.node(1).session().create("/result", b"", CreateMode::Persistent).wait().unwrap();
    one.set("sweep", &every_minute(Missed::Once)).wait().unwrap();
    cluster.advance(MINUTE);
    let lost = one.take().wait().unwrap();
    assert!(lost.is_held() && one.get("sweep").wait().unwrap().unwrap().is_running);
    // While it runs, the timer does not fire.
    cluster.advance(2 * MINUTE);
    assert!(other.take().timeout(SOON).wait().is_err());
    assert_eq!(next(&other), None);
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| other.take().wait().unwrap());
        cluster.isolate(0);
        cluster.advance(MINUTE);
        let run = taking.join().unwrap();
        assert_eq!(run.fire(), lost.fire());
        assert!(run.fencing_token() > lost.fencing_token() && !lost.is_held());
        cluster.heal();
        let session = cluster.node(1).session();
        let late = session.multi().set("/result", b"lost").with(&lost.done_part()).commit().wait();
        assert!(matches!(late, Err(Error::Multi { index: 1, .. })), "{late:?}");
        let failed = run.fenced().set("/none", b"").commit().wait();
        assert!(matches!(failed, Err(Error::Multi { index: 1, .. })), "{failed:?}");
        session.multi().set("/result", b"done").with(&run.done_part()).commit().wait().unwrap();
    });
    assert_eq!(&cluster.node(1).session().get("/result").wait().unwrap().0[..], b"done");
    // What came due meanwhile fires once.
    let then = other.take().wait().unwrap();
    assert!(then.fire().number() == 2 && then.fire().since() < then.fire().due());
    then.done().wait().unwrap();
    assert!(other.take().timeout(SOON).wait().is_err());
}

#[test]
fn an_end_that_fails_leaves_the_run_and_a_removed_timer_takes_it() {
    let cluster = Cluster::new(1);
    let one = schedule(&cluster, 0);
    one.set("launch", &Timer::at(UNIX_EPOCH).unwrap()).wait().unwrap();
    let session = cluster.node(0).session();
    let run = one.take().wait().unwrap();
    let failed = session.multi().set("/none", b"").with(&run.done_part()).commit();
    let none = Box::new(Error::NoNode { path: "/none".into() });
    assert_eq!(failed.wait(), Err(Error::Multi { index: 0, error: none }));
    assert!(run.is_held());
    drop(run);
    let again = one.take().wait().unwrap();
    assert_eq!(again.fire().number(), 1);
    assert_eq!(one.remove("launch").wait(), Ok(true));
    assert!(!again.is_held());
    assert!(matches!(again.done().wait(), Err(Error::NoNode { .. } | Error::Unmet { .. })));
}

#[test]
fn a_session_that_is_over_ends_the_waiting_with_its_error() {
    let cluster = Cluster::new(1);
    let one = schedule(&cluster, 0);
    one.set("sweep", &Timer::every(1440 * MINUTE).unwrap()).wait().unwrap();
    std::thread::scope(|scope| {
        let firing = scope.spawn(|| one.fire(|_, multi| multi).wait());
        let taking = scope.spawn(|| one.take().wait());
        cluster.expire(&cluster.node(0).session());
        assert!(firing.join().unwrap().is_err_and(|error| error.is_session_lost()));
        assert!(taking.join().unwrap().is_err_and(|error| error.is_session_lost()));
    });
}

#[test]
fn a_new_leader_changes_nothing() {
    let cluster = Cluster::new(3);
    let one = schedule(&cluster, 0);
    one.set("sweep", &Timer::every(SECOND).unwrap().missed(Missed::All)).wait().unwrap();
    let mut last = None;
    for round in 0..20 {
        if round % 7 == 3 {
            let leader = cluster.leader().unwrap();
            cluster.isolate(leader);
            cluster.advance(3 * SECOND);
            cluster.heal();
        }
        cluster.advance(SECOND);
        if let Some(fire) = next(&one) {
            let expected = last.map_or(fire.due(), |last: SystemTime| last + SECOND);
            assert_eq!(fire.due(), expected);
            last = Some(fire.due());
        }
    }
    assert!(history(&one, "sweep").last().unwrap().number >= 10);
}

#[test]
fn strange_names_and_foreign_data_are_refused_and_disturb_nobody() {
    let cluster = Cluster::new(1);
    let (one, session) = (schedule(&cluster, 0), cluster.node(0).session());
    let timer = Timer::at(UNIX_EPOCH).unwrap();
    for name in ["", ".", "a/b"] {
        assert!(matches!(one.set(name, &timer).wait(), Err(Error::InvalidPath { .. })), "{name:?}");
    }
    one.set("launch", &timer).wait().unwrap();
    session.create("/deep/schedule/foreign", b"x", CreateMode::Persistent).wait().unwrap();
    assert!(matches!(one.set("foreign", &timer).wait(), Err(Error::InvalidData { .. })));
    assert!(matches!(one.get("foreign").wait(), Err(Error::InvalidData { .. })));
    assert_eq!(next(&one).unwrap().timer(), "launch");
    assert!(Timer::every(Duration::from_millis(999)).is_err());
    assert!(Timer::every(Duration::MAX).is_err());
    assert!(Timer::at(UNIX_EPOCH - SECOND).is_err());
}

#[cfg(feature = "cron")]
mod cron {
    use super::*;

    /// A number of seconds since the epoch.
    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn upcoming(expression: &str, after: SystemTime, times: usize) -> Vec<u64> {
        let timer = Timer::cron(expression, "Europe/Berlin").unwrap();
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        timer.upcoming(after).take(times).map(seconds).collect()
    }

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;

    /// 2026-03-28 00:00:00 in Berlin. In the night to the 29th, the clocks are set from 02:00 to 03:00.
    const SPRING: u64 = 1_774_652_400;
    /// 2026-10-24 00:00:00 in Berlin. In the night to the 25th, the clocks are set from 03:00 to 02:00.
    const AUTUMN: u64 = 1_792_792_800;

    #[test]
    fn a_time_that_clocks_leave_out_fires_when_they_are_set() {
        let half_past_two = upcoming("30 2 * * *", at(SPRING), 3);
        // On the 28th, on the 29th at three, and on the 30th, an hour earlier.
        let first = SPRING + 2 * HOUR + HOUR / 2;
        let three = SPRING + DAY + 2 * HOUR;
        assert_eq!(half_past_two, [first, three, first + 2 * DAY - HOUR]);
        // What fires several times an hour goes on with what the clocks show.
        let two = SPRING + DAY + 2 * HOUR;
        let halves = upcoming("*/30 * * * *", at(two - HOUR), 3);
        assert_eq!(halves, [two - HOUR / 2, two, two + HOUR / 2]);
        assert_eq!(upcoming("0 3 * * *", at(SPRING + 4 * HOUR), 1), [two], "at three, once");
    }

    #[test]
    fn a_time_that_clocks_show_twice_fires_at_the_first() {
        let half_past_two = upcoming("30 2 * * *", at(AUTUMN), 3);
        let first = AUTUMN + 2 * HOUR + HOUR / 2;
        assert_eq!(half_past_two, [first, first + DAY, first + 2 * DAY + HOUR]);
        // Except for what fires several times a day.
        let two = AUTUMN + DAY + 2 * HOUR;
        assert_eq!(upcoming("0 * * * *", at(two - HOUR), 3), [two, two + HOUR, two + 2 * HOUR]);
        let three = AUTUMN + DAY + 4 * HOUR;
        assert_eq!(upcoming("0 3 * * *", at(AUTUMN + 4 * HOUR), 2), [three, three + DAY]);
    }

    #[test]
    fn the_last_days_of_a_month_are_those_of_december_too() {
        let december = at(1_796_083_200);
        let in_utc = |expression| {
            let timer = Timer::cron(expression, "UTC").unwrap();
            timer.upcoming(december).next().unwrap().duration_since(december).unwrap()
        };
        // From 2026-12-01 00:00, a Tuesday.
        assert_eq!(in_utc("0 0 L * *"), Duration::from_secs(30 * DAY));
        assert_eq!(in_utc("0 0 L 12 *"), Duration::from_secs(30 * DAY));
        assert_eq!(in_utc("0 0 * * 5L"), Duration::from_secs(24 * DAY), "a Friday");
        assert_eq!(in_utc("0 0 * * FRI#4"), Duration::from_secs(24 * DAY));
        assert_eq!(in_utc("0 0 6W * *"), Duration::from_secs(6 * DAY), "the 6th is a Sunday");
    }

    /// Two years of each, past all changes of clocks: by half an hour on Lord Howe, by two hours at Troll, at midnight
    /// in Santiago and Cairo.
    #[test]
    fn times_go_on_in_all_zones() {
        let zones = [
            "UTC",
            "Europe/Berlin",
            "Australia/Lord_Howe",
            "Antarctica/Troll",
            "America/Santiago",
            "Africa/Cairo",
            "Asia/Kathmandu",
        ];
        for zone in zones {
            for (expression, least) in
                [("0 5 * * *", 729), ("*/15 * * * *", 2 * 365 * 96 - 8), ("30 1 * * *", 729)]
            {
                let timer = Timer::cron(expression, zone).unwrap();
                let end = at(SPRING + 730 * DAY);
                let times = timer.upcoming(at(SPRING)).take_while(|time| *time < end);
                let times: Vec<SystemTime> = times.collect();
                assert!(times.is_sorted_by(|one, next| one < next), "{expression} in {zone}");
                let count = times.len();
                assert!((least..=least + 16).contains(&count), "{expression} in {zone}: {count}");
            }
        }
    }

    #[test]
    fn a_cron_expression_fires_in_the_cluster() {
        let cluster = Cluster::new(1);
        let one = schedule(&cluster, 0);
        one.set("sweep", &Timer::cron("* * * * *", "Europe/Berlin").unwrap()).wait().unwrap();
        let due = one.get("sweep").wait().unwrap().unwrap().next.unwrap();
        cluster.advance(MINUTE);
        assert_eq!(next(&one).unwrap().due(), due);
        // Only the last one of those that were missed.
        cluster.advance(10 * MINUTE);
        let fire = next(&one).unwrap();
        assert_eq!(fire.since(), due + MINUTE);
        assert!(fire.due() >= due + 9 * MINUTE, "{fire:?}");
    }

    #[test]
    fn a_wrong_expression_is_refused_with_the_reason() {
        for (expression, zone) in [
            ("61 * * * *", "UTC"),
            ("* * * *", "UTC"),
            ("* * * * * *", "UTC"),
            ("* * * * *", "Nowhere/Land"),
            ("* * * * *", ""),
            ("* * * * UTC", "UTC"),
            // There is no such day.
            ("0 0 30 2 *", "UTC"),
        ] {
            let refused = Timer::cron(expression, zone);
            assert!(matches!(&refused, Err(Error::InvalidSetting { setting: "cron", .. })));
        }
    }
}

/// Waits for fires until the schedule has these timers only.
fn wait_until_left(schedule: &Schedule, timers: &[&str]) {
    for _ in 0..100 {
        if schedule.names().wait().unwrap() == timers {
            return;
        }
        assert!(next(schedule).is_none());
    }
    panic!("{:?} are left", schedule.names());
}

/// Each single time left three znodes for ever.
#[test]
fn a_single_time_goes_when_it_is_over_if_it_says_so() {
    let cluster = Cluster::new(2);
    let (here, there) = (schedule(&cluster, 0), schedule(&cluster, 1));
    let session = cluster.node(0).session();
    let past = || Timer::at(UNIX_EPOCH + SECOND).unwrap();
    for number in 0..120 {
        here.set(&format!("once-{number}"), &past().removed_when_over()).wait().unwrap();
    }
    here.set("skipped", &past().missed(Missed::Skip).removed_when_over()).wait().unwrap();
    here.set("kept", &past()).wait().unwrap();
    let day = Timer::every(1440 * MINUTE).unwrap();
    here.set("daily", &day.removed_when_over()).wait().unwrap();
    for _ in 0..120 {
        assert!(next(&here).is_some());
    }
    let run = here.take().wait().unwrap();
    // The fire that is asked for is one more.
    let others =
        here.names().wait().unwrap().into_iter().filter(|name| *name != run.fire().timer());
    let asked = others.into_iter().find(|name| name.starts_with("once")).unwrap();
    here.fire_now(&asked).wait().unwrap();
    let before = session.sync().wait().unwrap();
    assert!(next(&here).unwrap().is_requested());
    let mut left = vec!["daily", "kept", run.fire().timer()];
    left.sort_unstable();
    left.dedup();
    wait_until_left(&here, &left);
    let writes = session.sync().wait().unwrap() - before;
    assert!(writes <= 1 + 1 + 3, "{writes} writes for a fire, a skip, and the removal of 120");
    assert!(next(&here).is_none());
    assert_eq!(here.names().wait().unwrap(), left, "what runs stays");
    run.done().wait().unwrap();
    cluster.node(1).session().sync().wait().unwrap();
    // Whoever waits next removes it.
    wait_until_left(&there, &["daily", "kept"]);
    session.sync().wait().unwrap();
    assert_eq!(session.all_children_number("/deep/schedule").wait().unwrap(), 2 * 3);
}
