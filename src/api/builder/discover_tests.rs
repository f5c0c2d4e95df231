//! Instances that discover each other by one name, over TCP on loopback addresses.

use std::path::Path;
use std::time::Duration;

use crate::addressing::discovery::{PeerDiscovery, Wanted};
use crate::api::builder::tests::{Names, PATIENCE, builder, free_port, waiting_for};
use crate::runtime::clock::Clock;
use crate::{Availability, Builder, Coordinator, Error};

const IPS: [&str; 10] = [
    "127.0.0.2",
    "127.0.0.3",
    "127.0.0.4",
    "127.0.0.5",
    "127.0.0.6",
    "127.0.0.7",
    "127.0.0.8",
    "127.0.0.9",
    "127.0.0.10",
    "127.0.0.11",
];

/// The instances of a service, each with an address and an empty directory.
struct Service {
    dir: tempfile::TempDir,
    port: u16,
}

impl Service {
    fn new() -> Service {
        Service { dir: tempfile::tempdir().unwrap(), port: free_port(&IPS) }
    }

    fn name(&self) -> String {
        format!("app:{}", self.port)
    }

    fn instance(&self, place: usize, names: &Names) -> Builder {
        let listen = format!("{}:{}", IPS[place], self.port);
        builder(names.resolver(), &self.dir.path().join(IPS[place])).listen(listen)
    }

    fn start(&self, place: usize, names: &Names, expected: usize) -> Coordinator {
        self.instance(place, names).discover(self.name(), expected).wait().unwrap()
    }

    fn show(&self, names: &Names, places: &[usize]) {
        let ips: Vec<&str> = places.iter().map(|place| IPS[*place]).collect();
        names.set(&self.name(), self.port, &ips);
    }
}

/// Asserts that all of them belong to one cluster.
fn agree(instances: &[Coordinator]) -> String {
    for instance in instances {
        instance.wait_ready(PATIENCE).wait().unwrap();
    }
    let clusters: Vec<String> =
        instances.iter().map(|instance| instance.status().cluster.unwrap()).collect();
    assert!(clusters.iter().all(|cluster| *cluster == clusters[0]), "{clusters:?}");
    clusters[0].clone()
}

#[test]
fn three_instances_found_one_cluster_in_every_order_of_start() {
    // All orders run at once: each waits for look-ups most of the time.
    std::thread::scope(|scope| {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let found = move || found_in_order(order);
            std::thread::Builder::new().spawn_scoped(scope, found).unwrap();
        }
    });
}

fn found_in_order(order: [usize; 3]) {
    let service = Service::new();
    let names = Names::default();
    // The name does not exist before the first of them starts, and shows those that have started.
    let mut instances = vec![service.start(order[0], &names, 3)];
    waiting_for(&instances[0], "the addresses of app:");
    for started in 2..=3 {
        service.show(&names, &order[..started - 1]);
        if started == 3 {
            waiting_for(&instances[0], "3 instances are expected, and app:");
        }
        instances.push(service.start(order[started - 1], &names, 3));
    }
    service.show(&names, &[0, 1, 2]);
    agree(&instances);
    let guard = instances[0].session().lock("/lock").unwrap().acquire().wait().unwrap();
    let other = instances[1].session().lock("/lock").unwrap();
    assert!(other.try_acquire().wait().unwrap().is_none());
    drop(guard);
}

#[test]
fn instances_that_see_different_addresses_found_nothing() {
    let service = Service::new();
    let views = [[0, 1], [1, 2], [2, 0]].map(|view| {
        let names = Names::default();
        service.show(&names, &view);
        names
    });
    let instances: Vec<Coordinator> =
        (0..3).map(|place| service.start(place, &views[place], 2)).collect();
    for instance in &instances {
        waiting_for(instance, "does not stand for the same instances everywhere");
        assert_eq!(instance.status().cluster, None);
    }
    views.iter().for_each(|names| service.show(names, &[2, 1, 0]));
    agree(&instances);
}

/// Blank instances, more than were expected, found no second cluster while the first one is out of
/// reach.
#[test]
fn instances_that_come_later_wait_for_the_members() {
    let service = Service::new();
    let names = Names::default();
    service.show(&names, &[0, 1, 2]);
    let members: Vec<Coordinator> = (0..3).map(|place| service.start(place, &names, 3)).collect();
    let cluster = agree(&members);
    members.iter().for_each(|member| member.close().wait().unwrap());
    service.show(&names, &[0, 1, 2, 3, 4, 5]);
    let later: Vec<Coordinator> = (3..6).map(|place| service.start(place, &names, 3)).collect();
    for instance in &later {
        waiting_for(instance, "it takes 6 of the peers");
    }
    let back: Vec<Coordinator> = (0..3).map(|place| service.start(place, &names, 3)).collect();
    assert_eq!(agree(&back), cluster);
    assert_eq!(agree(&later), cluster);
    // Two more find all of them.
    let blank: Vec<Coordinator> = (6..8).map(|place| service.start(place, &names, 3)).collect();
    assert_eq!(agree(&blank), cluster);
}

#[test]
fn a_service_grows_from_three_to_ten_and_back() {
    let service = Service::new();
    let names = Names::default();
    service.show(&names, &[0, 1, 2]);
    let mut instances: Vec<Coordinator> =
        (0..3).map(|place| service.start(place, &names, 3)).collect();
    let cluster = agree(&instances);
    instances[0].session().create("/kept", b"data", crate::CreateMode::Persistent).wait().unwrap();
    service.show(&names, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    instances.extend((3..10).map(|place| service.start(place, &names, 3)));
    assert_eq!(agree(&instances), cluster);
    // The first instances stop: those that stay have the data and the votes.
    let stay = instances.split_off(7);
    std::thread::scope(|scope| {
        for instance in &instances {
            let leave = move || instance.leave(PATIENCE).wait().unwrap();
            std::thread::Builder::new().spawn_scoped(scope, leave).unwrap();
        }
    });
    service.show(&names, &[7, 8, 9]);
    assert_eq!(agree(&stay), cluster);
    let (clock, changes) = (Clock::real(), stay[0].availability_changes());
    let until = clock.now() + PATIENCE;
    loop {
        match changes.events().recv_timeout(PATIENCE).expect("it becomes healthy") {
            Availability::Healthy { .. } => break,
            _ => continue,
        }
    }
    while stay[0].status().members.len() > 3 {
        stay[0].session().sync().wait().unwrap();
        assert!(clock.now() < until, "{}", stay[0].status());
    }
    assert_eq!(stay[2].session().get("/kept").wait().unwrap().0.as_ref(), b"data");
}

/// Instances that had only the name asked no further after the first one that answered.
#[test]
fn members_that_come_back_at_other_addresses_find_each_other() {
    let service = Service::new();
    let names = Names::default();
    let all = [0, 1, 2, 3, 4];
    service.show(&names, &all);
    let members: Vec<Coordinator> = all.map(|place| service.start(place, &names, 5)).to_vec();
    let cluster = agree(&members);
    members.iter().for_each(|member| member.close().wait().unwrap());
    let moved = [5, 6, 7, 8, 9];
    service.show(&names, &moved);
    let at = |(disk, place): (usize, usize)| {
        let listen = format!("{}:{}", IPS[place], service.port);
        let instance =
            builder(names.resolver(), &service.dir.path().join(IPS[disk])).listen(listen);
        instance.discover(service.name(), 5).wait().unwrap()
    };
    let back: Vec<Coordinator> = all.into_iter().zip(moved).map(at).collect();
    assert_eq!(agree(&back), cluster);
}

/// All addresses that the name shows are contacted, even if no cluster can be founded with them.
#[test]
fn addresses_that_keep_changing_are_looked_at() {
    let names = Names::default();
    let wanted = Wanted {
        name: "app:7400".to_owned(),
        expected: 3,
        founds: true,
        own: "127.0.0.2:7400".parse().unwrap(),
    };
    let mut discovery = PeerDiscovery::new(wanted, names.resolver());
    let (mut now, mut looked_at) = (Duration::ZERO, Vec::new());
    for ip in &IPS[1..4] {
        names.set("app:7400", 7400, &["127.0.0.2", ip]);
        let expected = vec![format!("{ip}:7400")];
        // An answer may still show the former addresses.
        while looked_at != expected {
            if let Some(found) = discovery.poll(now) {
                assert!(found.addresses.is_empty() || found.addresses.contains(&expected[0]));
            }
            looked_at = discovery.new_others().unwrap_or(looked_at);
            now += Duration::from_millis(100);
            std::thread::yield_now();
        }
    }
}

/// Uses the system's resolver instead of the test's names.
#[test]
fn a_name_is_looked_up_by_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port(&["127.0.0.1"]);
    let instance = Coordinator::builder().data_dir(dir.path());
    let instance = instance.discover(format!("localhost:{port}"), 2).wait().unwrap();
    assert_eq!(instance.address(), format!("127.0.0.1:{port}"));
    waiting_for(&instance, &format!("has 1 addresses (127.0.0.1:{port})"));
}

#[test]
fn invalid_names_for_discovery_are_refused() {
    let builder = || Coordinator::builder().data_dir(Path::new("never-made"));
    for expected in [0, 1, 65] {
        let error = builder().discover("app:7400", expected).wait().unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { setting: "expected", .. }), "{error}");
    }
    let error = builder().found_with_majority_after(Duration::ZERO).discover("app:7400", 3);
    let setting = "found_with_majority_after";
    assert!(
        matches!(error.wait(), Err(Error::InvalidSetting { setting: of, .. }) if of == setting)
    );
    let error = builder().advertise("app-0:7400").discover("app:7400", 3).wait().unwrap_err();
    assert!(error.to_string().contains("an IP address and a port"), "{error}");
    let error = builder().discover("127.0.0.1:7400", 3).wait().unwrap_err();
    assert!(error.to_string().contains("stands for one instance"), "{error}");
    assert!(!Path::new("never-made").exists());
}
