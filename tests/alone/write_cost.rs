//! The cost of a write without the disk: how often a member allocates for it, and how often its threads sleep
//! and are woken. These are counts, not times, so they do not depend on the machine.
//!
//! The members are processes of this test program: see `worker`.

use quorate::CreateMode;

use crate::ALLOCATED;
use crate::common::{self, PATIENCE, Process, addresses, name_of, node, place};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

/// The number of counted writes, one after the other, and the bytes in each.
const WRITES: u64 = 1_000;
const SMALL: usize = 100;
/// The same for writes whose allocated bytes are counted: most of these bytes are the written value.
const WRITES_LARGE: u64 = 100;
const LARGE: usize = 256 << 10;

/// The counts, in total or for one write.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Allocations and reallocations.
    allocations: f64,
    /// The allocated bytes in units of the written value: roughly, how often it is copied.
    copies: f64,
    /// The number of times that a thread of the member went to sleep. A thread that gets more work while it
    /// is awake is not counted, so a busy machine lowers this number and never raises it.
    sleeps: f64,
}

impl Cost {
    /// The counts of this process so far.
    fn so_far() -> Cost {
        let stats = ALLOCATED.stats();
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let slept = tasks.filter_map(|task| {
            let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.map(|value| value.trim().to_owned())
            };
            field("Name:").filter(|name| name.starts_with("quorate-"))?;
            field("voluntary_ctxt_switches:")?.parse::<u64>().ok()
        });
        Cost {
            allocations: (stats.allocations + stats.reallocations) as f64,
            copies: stats.bytes_allocated as f64,
            sleeps: slept.sum::<u64>() as f64,
        }
    }
}

/// Not a test of its own: a member, and the session that writes there.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    common::log();
    let coordinator = node(&address).data_dir("data").join(peers).wait().unwrap();
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    let session = coordinator.session();
    println!("@ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "leads" => println!("@leads {}", coordinator.status().is_leader),
            "create" => {
                session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
                println!("@created");
            }
            "write" => {
                for _ in 0..WRITES {
                    session.set("/n", [7; SMALL]).wait().unwrap();
                }
                println!("@written");
            }
            "write large" => {
                for _ in 0..WRITES_LARGE {
                    session.set("/n", vec![7; LARGE]).wait().unwrap();
                }
                println!("@written");
            }
            "count" => {
                let Cost { allocations, copies, sleeps } = Cost::so_far();
                println!("@counted {allocations} {copies} {sleeps}");
            }
            other => panic!("{other}"),
        }
    }
    coordinator.close().wait().unwrap();
}

fn ask(process: &mut Process, order: &str) -> String {
    process.order(order);
    process.line()
}

fn count(processes: &mut [Process]) -> Vec<Cost> {
    let counted = processes.iter_mut().map(|process| {
        let line = ask(process, "count");
        let mut fields = line.split(' ').skip(1).map(|field| field.parse().unwrap());
        let mut field = || fields.next().unwrap();
        Cost { allocations: field(), copies: field(), sleeps: field() }
    });
    counted.collect()
}

/// The cost of a write at this member, for each of them.
fn cost_of_writes(processes: &mut [Process], writer: usize) -> Vec<Cost> {
    // The first writes make allocations that happen only once.
    assert_eq!(ask(&mut processes[writer], "write"), "written");
    let before = count(processes);
    assert_eq!(ask(&mut processes[writer], "write"), "written");
    let between = count(processes);
    assert_eq!(ask(&mut processes[writer], "write large"), "written");
    let after = count(processes);
    let each = (0..processes.len()).map(|place| Cost {
        allocations: (between[place].allocations - before[place].allocations) / WRITES as f64,
        copies: (after[place].copies - between[place].copies)
            / (WRITES_LARGE * LARGE as u64) as f64,
        sleeps: (between[place].sleeps - before[place].sleeps) / WRITES as f64,
    });
    each.collect()
}

#[test]
fn a_write_takes_no_more_than_it_did() {
    if place().is_some() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let start = |(number, address): (usize, &String)| {
        let dir = work.path().join(number.to_string());
        std::fs::create_dir(&dir).unwrap();
        Process::start(WORKER, &dir, &peers, address)
    };
    let mut processes: Vec<Process> = peers.iter().enumerate().map(start).collect();
    processes.iter().for_each(|process| drop(process.wait("ready")));
    assert_eq!(ask(&mut processes[0], "create"), "created");
    let leader = loop {
        if let Some(leader) =
            (0..3).find(|place| ask(&mut processes[*place], "leads") == "leads true")
        {
            break leader;
        }
    };
    let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);

    let costs = cost_of_writes(&mut processes, leader);
    println!("at the leader: {:?}; at a follower: {:?}", costs[leader], costs[follower]);
    check("leader", costs[leader], 30.0, 7.0, 9.0);
    check("follower", costs[follower], 21.0, 5.0, 9.0);

    let costs = cost_of_writes(&mut processes, follower);
    println!(
        "written at a follower: there {:?}; at the leader: {:?}; at the other: {:?}",
        costs[follower], costs[leader], costs[other]
    );
    check("follower that is asked", costs[follower], 31.0, 7.0, 9.0);
    check("leader that is forwarded to", costs[leader], 26.0, 7.0, 9.0);
    check("other follower", costs[other], 21.0, 5.0, 9.0);
}

fn check(member: &str, cost: Cost, allocations_max: f64, copies_max: f64, sleeps_max: f64) {
    assert!(
        cost.allocations <= allocations_max
            && cost.copies <= copies_max
            && cost.sleeps <= sleeps_max,
        "the {member} needs {cost:?}, and it was {allocations_max}, {copies_max} and {sleeps_max} at \
         most: see docs/performance.md"
    );
}
