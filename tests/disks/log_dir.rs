//! A log on a device of its own.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::PATIENCE;
use crate::common::addresses;
use crate::common::data_dir::{current, former};
use quorate::{Coordinator, CreateMode, Error, StartError};

struct Member {
    work: tempfile::TempDir,
    address: String,
}

impl Member {
    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn join(&self, peers: &[String], log_dir: Option<&str>) -> quorate::Result<Coordinator> {
        let builder = Coordinator::builder().advertise(&self.address).data_dir(self.path("data"));
        match log_dir {
            Some(name) => builder.log_dir(self.path(name)).join(peers),
            None => builder.join(peers),
        }
    }

    fn new() -> Member {
        let work = tempfile::tempdir().unwrap();
        Member { work, address: addresses::address() }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_str().unwrap().to_owned()).collect()
}

#[test]
fn the_log_is_found_where_it_is_and_no_copy_of_it_is_used() {
    let member = Member::new();
    let peers = [member.address.clone()];
    let writes = |log_dir: Option<&str>, path: &str| {
        let joined = member.join(&peers, log_dir).unwrap();
        joined.wait_ready(PATIENCE).unwrap();
        let session = joined.session();
        session.create(path, b"", CreateMode::Persistent).unwrap();
        let found = session.children("/").unwrap();
        joined.close();
        found.iter().filter(|name| name.len() == 1).count()
    };
    assert_eq!(writes(Some("fast"), "/a"), 1);
    let name = current(&member.path("data")).file_name().unwrap().to_str().unwrap().to_owned();
    assert!(!current(&member.path("data")).join("log").exists());
    assert_eq!(names(&member.path("fast")), [name.as_str()]);
    assert!(member.path("fast").join(&name).join("witness").exists());
    // Without the setting, and with it.
    assert_eq!(writes(None, "/b"), 2);
    assert_eq!(writes(Some("fast"), "/c"), 3);
    let refused = |log_dir, what: &str| {
        let error = member.join(&peers, log_dir).unwrap_err();
        assert!(
            matches!(error, Error::Start(StartError::DataDirUnusable { .. }))
                && error.to_string().contains(what),
            "{error}"
        );
        assert!(!member.path("data").join("QUARANTINED").exists());
    };
    refused(Some("other"), "to move it");
    // The device is not mounted.
    fs::rename(member.path("fast"), member.path("gone")).unwrap();
    refused(Some("fast"), "is its device mounted");
    refused(None, "is its device mounted");
    fs::rename(member.path("gone"), member.path("other")).unwrap();
    assert_eq!(writes(Some("other"), "/d"), 4);
    assert_eq!(writes(None, "/e"), 5);
    // What recovery reads and writes has its log there, too.
    let plan = quorate::recovery::recover([member.path("data")]).unwrap();
    plan.found_anew(None).unwrap();
    assert_eq!(names(&member.path("other")).len(), 2);
    assert_eq!(writes(Some("other"), "/f"), 6);
}

/// The directory of a member that lost its witness is put aside, and its log stays with it until it is
/// not needed any more.
#[test]
fn a_damaged_member_gets_a_new_log_beside_the_former_one() {
    let members = [Member::new(), Member::new(), Member::new()];
    let peers: Vec<String> = members.iter().map(|member| member.address.clone()).collect();
    let join = |place: usize| members[place].join(&peers, Some("fast")).unwrap();
    let joined = [join(0), join(1), join(2)];
    joined.iter().for_each(|one| one.wait_ready(PATIENCE).unwrap());
    joined[0].session().create("/kept", b"", CreateMode::Persistent).unwrap();
    joined[0].close();
    let fast = members[0].path("fast");
    let first = names(&fast);
    fs::write(fast.join(&first[0]).join("witness"), b"nonsense").unwrap();
    let again = join(0);
    again.wait_ready(PATIENCE).unwrap();
    assert!(again.session().exists("/kept").unwrap().is_some());
    assert_eq!(former(&members[0].path("data")), first);
    assert_eq!(names(&fast).len(), 2);
    again.close();
    joined.iter().for_each(Coordinator::close);
}
