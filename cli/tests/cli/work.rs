//! Work that instances share, as an operator sees it.

use std::time::{Duration, UNIX_EPOCH};

use crate::cluster::Cluster;
use quorate::recipes::{Partitions, Queue, Schedule, Timer};
use serde_json::Value;

/// The cells of one column of the first table with this recipe.
fn column(listed: &Value, recipe: &str, name: &str) -> Vec<Value> {
    let of = listed.as_array().unwrap().iter().find(|of| of["recipe"] == recipe);
    let rows = of.map(|of| of["table"]["rows"].as_array().unwrap().clone()).unwrap_or_default();
    rows.iter().map(|row| row[name].clone()).collect()
}

/// `locks` said that nobody holds anything, and `get` printed bytes.
#[test]
fn an_operator_finds_timers_that_are_late_or_paused_and_a_queue_that_grows() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].open_session().unwrap();
    let schedule = Schedule::new(&session, "/schedule").unwrap();
    schedule.set("late", &Timer::at(UNIX_EPOCH).unwrap()).wait().unwrap();
    schedule.set("tick", &Timer::every(Duration::from_secs(86_400)).unwrap()).wait().unwrap();
    let queue = Queue::new(&session, "/jobs").unwrap();
    queue.put_all((0..30).map(|job| format!("job {job}"))).wait().unwrap();
    let _item = queue.take().wait().unwrap();

    let locks = cluster.well(&["locks"]);
    let lines: Vec<Vec<&str>> =
        locks.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["/jobs", "(queue)"], "{locks}");
    assert_eq!(lines[1], ["WAITING", "OLDEST", "TAKEN", "DELAYED"]);
    assert!(lines[2][0] == "29" && lines[2].ends_with(&["1", "0"]), "{locks}");
    assert_eq!(lines[3], ["/schedule", "(schedule)"]);
    assert!(lines[5].starts_with(&["late", "at", "1970-01-01"]), "{locks}");
    assert!(locks.contains("late by ") && locks.contains("every 1 d"), "{locks}");
    let (code, found, _) = cluster.run(&["doctor"]);
    let finding = "Of the schedule of /schedule, 1 of 2 need attention: late (late by ";
    assert!(code == 1 && found.contains(finding), "{found}");

    // Paused, it is not late.
    let paused = cluster.well(&["timers", "/schedule", "--pause", "late"]);
    assert!(paused.contains("paused") && !paused.contains("late by"), "{paused}");
    assert!(!cluster.run(&["doctor"]).1.contains("need attention"));
    let resumed = cluster.json(&["timers", "/schedule", "--resume", "late"]);
    assert_eq!(
        column(&resumed, "schedule", "next"),
        [0.into(), resumed[0]["table"]["rows"][1]["next"].clone()]
    );
    let asked = cluster.json(&["timers", "/schedule", "--fire", "tick"]);
    assert_eq!(column(&asked, "schedule", "state"), [Value::Null, "asked to fire".into()]);
    cluster.well(&["timers", "/schedule", "--pause", "late"]);
    let run = schedule.take().wait().unwrap();
    assert!(run.fire().timer() == "tick" && run.fire().is_requested());
    let runs = cluster.json(&["timers"]);
    let id = serde_json::to_value(session.id()).unwrap();
    assert_eq!(column(&runs, "schedule", "session"), [Value::Null, id]);
    let member = Value::from(cluster.members[0].address());
    assert_eq!(column(&runs, "schedule", "held_by"), [Value::Null, member]);

    assert_eq!(cluster.run(&["timers", "/schedule", "--pause", "none"]).0, 3);
    assert_eq!(cluster.run(&["timers", "/schedule", "--pause", "late", "--fire", "late"]).0, 2);
    assert_eq!(cluster.well(&["timers", "/jobs"]), "there is no schedule below /jobs\n");
}

/// With the only member in no call, nothing showed that nobody worked.
#[test]
fn an_operator_finds_partitions_without_an_owner_and_a_member_that_hangs() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].open_session().unwrap();
    let partitions = Partitions::named(&session, "/feeds", ["asia", "eu", "us"]).unwrap();
    let mut share =
        partitions.with_max_silence(Duration::from_secs(5)).join("host-1").wait().unwrap();
    let owned: Vec<_> = (0..3).map(|_| share.take().wait().unwrap()).collect();
    let text = cluster.well(&["partitions", "/feeds"]);
    let line = |text: &str, begin: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(begin));
        line.unwrap_or_else(|| panic!("no {begin}: {text}")).to_owned()
    };
    let address = cluster.members[0].address();
    assert!(
        line(&text, "eu ").contains("host-1") && line(&text, "eu ").contains(&address),
        "{text}"
    );
    assert_eq!(line(&text, "host-1 ").split_whitespace().nth(1), Some("3"), "{text}");
    assert!(!cluster.run(&["doctor"]).1.contains("need attention"));

    // The share is in no call.
    let listed = loop {
        let listed = cluster.json(&["partitions"]);
        if column(&listed, "members of partitions", "silent")[0].is_u64() {
            break listed;
        }
    };
    assert_eq!(column(&listed, "partitions", "owner"), [Value::Null, Value::Null, Value::Null]);
    assert!(owned.iter().all(|partition| !partition.is_held()));
    let (code, found, _) = cluster.run(&["doctor"]);
    let hangs = "Of the members of partitions of /feeds, 1 of 1 need attention: host-1 (it lives, and is in no call";
    assert!(code == 1 && found.contains(hangs), "{found}");
    assert!(
        found.contains("Of the partitions of /feeds, 3 of 3 need attention: asia (no owner"),
        "{found}"
    );
    // It goes on, and all is well.
    let _again: Vec<_> = (0..3).map(|_| share.take().wait().unwrap()).collect();
    assert!(!cluster.run(&["doctor"]).1.contains("need attention"));
}
