//! Damaged data directories: what stays, what is set aside and when, and what is reported.

#![allow(clippy::disallowed_methods, reason = "deadlines")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::addresses;
use crate::common::data_dir::{current, former};
use quorate::StartError;
use quorate::{Coordinator, CreateMode, Error};

const PATIENCE: Duration = Duration::from_secs(60);

/// Three members, each with its own directory.
struct Fleet {
    work: tempfile::TempDir,
    addresses: Vec<String>,
}

impl Fleet {
    /// A cluster of three with a znode `/precious`, stopped.
    fn stopped() -> Fleet {
        let fleet = Fleet { work: tempfile::tempdir().unwrap(), addresses: addresses(3) };
        let members: Vec<Coordinator> = (0..3).map(|place| fleet.join(place).unwrap()).collect();
        for member in &members {
            member.wait_ready(PATIENCE).wait().unwrap();
        }
        members[0].session().create("/precious", b"", CreateMode::Persistent).wait().unwrap();
        for member in &members {
            member.session().sync().wait().unwrap();
        }
        for member in &members {
            member.close().wait().unwrap();
        }
        fleet
    }

    fn dir(&self, place: usize) -> PathBuf {
        self.work.path().join(place.to_string())
    }

    fn join(&self, place: usize) -> quorate::Result<Coordinator> {
        Coordinator::builder()
            .advertise(&self.addresses[place])
            .data_dir(self.dir(place))
            .join(&self.addresses)
            .wait()
    }
}

/// Flips every bit of the witness of a directory. Flipping twice restores it.
fn flip_witness(dir: &Path) {
    let witness = current(dir).join("log/witness");
    let flipped: Vec<u8> = fs::read(&witness).unwrap().into_iter().map(|byte| !byte).collect();
    fs::write(witness, flipped).unwrap();
}

fn not_ready(coordinator: &Coordinator) -> String {
    let error = coordinator.wait_ready(Duration::from_millis(200)).wait().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    error.to_string()
}

/// Waits until an instance reports all of these parts as the reason why it is not ready.
fn waits_for(coordinator: &Coordinator, parts: &[&str]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let error =
            coordinator.wait_ready(Duration::from_millis(50)).wait().unwrap_err().to_string();
        if parts.iter().all(|part| error.contains(part)) {
            return;
        }
        assert!(Instant::now() < end, "{error} without one of {parts:?}");
    }
}

/// All three directories were set aside at the first start and deleted at the second: no instance had the
/// data any more.
#[test]
fn all_members_damaged_at_once_keep_their_data_and_come_back_when_it_is_repaired() {
    let fleet = Fleet::stopped();
    (0..3).for_each(|place| flip_witness(&fleet.dir(place)));
    // Like a supervisor that restarts an instance which is not ready.
    for _ in 0..3 {
        let members: Vec<Coordinator> = (0..3).map(|place| fleet.join(place).unwrap()).collect();
        for (place, member) in members.iter().enumerate() {
            let status = member.status();
            assert!(status.damaged.as_ref().unwrap().contains("witness"), "{status}");
            assert_eq!((status.leader, status.former_data), (None, Vec::new()));
            let text = not_ready(member);
            let dir = fleet.dir(place).display().to_string();
            for part in ["witness", "docs/recovery.md", dir.as_str()] {
                assert!(text.contains(part), "{text}");
            }
        }
        members.iter().for_each(|member| member.close().wait().unwrap());
        assert!((0..3).all(|place| former(&fleet.dir(place)).is_empty()));
    }
    (0..3).for_each(|place| flip_witness(&fleet.dir(place)));
    let members: Vec<Coordinator> = (0..3).map(|place| fleet.join(place).unwrap()).collect();
    for member in &members {
        member.wait_ready(PATIENCE).wait().unwrap();
        assert_eq!(member.status().damaged, None);
        assert!(member.session().exists("/precious").wait().unwrap().is_some());
    }
    // The mark is removed with the damage.
    assert!((0..3).all(|place| !fleet.dir(place).join("QUARANTINED").exists()));
}

/// The second damage deleted the directory that the first had set aside.
#[test]
fn a_directory_set_aside_stays_until_the_instance_has_voted_again() {
    let fleet = Fleet::stopped();
    let dir = fleet.dir(0);
    flip_witness(&dir);
    // Without a leader nothing is set aside.
    let alone = fleet.join(0).unwrap();
    not_ready(&alone);
    assert!(alone.status().damaged.is_some());
    // A leader admits the instance, which then has all data again.
    let others: Vec<Coordinator> = (1..3).map(|place| fleet.join(place).unwrap()).collect();
    alone.wait_ready(PATIENCE).wait().unwrap();
    assert!(alone.session().exists("/precious").wait().unwrap().is_some());
    let status = alone.status();
    assert_eq!((status.damaged, status.former_data.len()), (None, 1));
    assert_eq!(alone.metrics().wait().unwrap().former_directories, 1);
    let first = former(&dir);
    assert_eq!(first.len(), 1);
    alone.close().wait().unwrap();
    let damaged_again = !current(&dir).join("VOTER").exists();
    if damaged_again {
        // Damaged again before it has recorded that it voted.
        flip_witness(&dir);
        let again = fleet.join(0).unwrap();
        again.wait_ready(PATIENCE).wait().unwrap();
        assert!(former(&dir).len() == 2 && former(&dir).contains(&first[0]), "{:?}", former(&dir));
        again.close().wait().unwrap();
    }
    // Once it is a voter again, it votes in one of the next elections.
    others.iter().for_each(|member| member.close().wait().unwrap());
    let voted = || {
        let members: Vec<Coordinator> = (0..3).map(|place| fleet.join(place).unwrap()).collect();
        members.iter().for_each(|member| member.wait_ready(PATIENCE).wait().unwrap());
        let end = Instant::now() + PATIENCE;
        let votes = |member: &quorate::operate::MemberStatus| member.is_self && member.votes;
        while !members[0].status().members.iter().any(votes) {
            assert!(Instant::now() < end, "{}", members[0].status());
            std::thread::yield_now();
        }
        members.iter().for_each(|member| member.close().wait().unwrap());
        current(&dir).join("VOTER").exists()
    };
    let end = Instant::now() + 5 * PATIENCE;
    while !voted() {
        assert!(Instant::now() < end, "it never voted");
    }
    let others: Vec<Coordinator> = (1..3).map(|place| fleet.join(place).unwrap()).collect();
    flip_witness(&dir);
    let last = fleet.join(0).unwrap();
    last.wait_ready(PATIENCE).wait().unwrap();
    let left = former(&dir);
    assert!(left.len() == 1 && left != first, "{left:?} after {first:?}");
    others.iter().for_each(|member| member.close().wait().unwrap());
}

/// The log claimed that the directory was set aside, and the start failed with an internal error of the
/// store.
#[test]
fn an_instance_with_an_unreadable_identity_rejoins_its_peers_and_founds_no_cluster() {
    let fleet = Fleet::stopped();
    let identity = |place| current(&fleet.dir(place)).join("IDENTITY");
    let first_data = current(&fleet.dir(0)).file_name().unwrap().to_owned();
    let kept: Vec<Vec<u8>> = (0..3).map(|place| fs::read(identity(place)).unwrap()).collect();
    fs::remove_file(identity(0)).unwrap();
    fs::write(identity(1), b"nonsense").unwrap();
    let damaged: Vec<Coordinator> = (0..2).map(|place| fleet.join(place).unwrap()).collect();
    for member in &damaged {
        let text = not_ready(member);
        assert!(text.contains("IDENTITY") && text.contains("docs/recovery.md"), "{text}");
    }
    // The instance that still has its data cannot lead alone.
    let sound = fleet.join(2).unwrap();
    let (first, second) = (&fleet.addresses[0], &fleet.addresses[1]);
    waits_for(&sound, &["2 of 3 voters", "docs/recovery.md", first, second]);
    // It reports this to the instances that cannot be admitted.
    for member in &damaged {
        waits_for(member, &["2 of 3 voters", "IDENTITY", first, second]);
    }
    damaged.iter().for_each(|member| member.close().wait().unwrap());
    assert!((0..2).all(|place| former(&fleet.dir(place)).is_empty()));
    fs::write(identity(1), &kept[1]).unwrap();
    let back = fleet.join(1).unwrap();
    back.wait_ready(PATIENCE).wait().unwrap();
    let unknown = fleet.join(0).unwrap();
    unknown.wait_ready(PATIENCE).wait().unwrap();
    assert!(unknown.session().exists("/precious").wait().unwrap().is_some());
    assert_eq!(former(&fleet.dir(0)), [first_data.to_str().unwrap()]);
}

/// The two members with replaced disks reported only "There is no leader; all peers are connected".
#[test]
fn every_member_reports_which_voters_lost_their_data() {
    let fleet = Fleet::stopped();
    for place in 0..2 {
        // One directory replaced, but for its former data, and one lost.
        let dir = fleet.dir(place);
        fs::rename(&dir, fleet.work.path().join(format!("old-{place}"))).unwrap();
    }
    // It has a directory of its own before the former data comes into it.
    fleet.join(0).unwrap().close().wait().unwrap();
    let old = current(&fleet.work.path().join("old-0"));
    let former = fleet.dir(0).join(old.file_name().unwrap());
    fs::rename(old, &former).unwrap();
    let members: Vec<Coordinator> = (0..3).map(|place| fleet.join(place).unwrap()).collect();
    let (first, second) = (fleet.addresses[0].as_str(), fleet.addresses[1].as_str());
    for member in &members {
        waits_for(member, &["2 of 3 voters", "without data", first, second, "docs/recovery.md"]);
    }
    assert_eq!(members[0].status().former_data, [former.as_path()]);
    waits_for(&members[0], &[former.to_str().unwrap(), "has no data"]);
    // No second cluster was founded.
    assert!(members.iter().all(|member| member.status().leader.is_none()));
}

/// The only member on its list has no peer to ask.
#[test]
fn an_instance_alone_on_its_list_does_not_start_from_a_damaged_directory() {
    let work = tempfile::tempdir().unwrap();
    let address = addresses::address();
    let join = || Coordinator::builder().data_dir(work.path().join("data")).join([&address]);
    let member = join().wait().unwrap();
    member.wait_ready(PATIENCE).wait().unwrap();
    member.close().wait().unwrap();
    flip_witness(&work.path().join("data"));
    for _ in 0..2 {
        let error = join().wait().unwrap_err();
        assert!(matches!(error, Error::Start(StartError::Corrupt { .. })), "{error}");
    }
    flip_witness(&work.path().join("data"));
    join().wait().unwrap().wait_ready(PATIENCE).wait().unwrap();
}
