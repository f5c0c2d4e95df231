//! What the program `quorate` prints of hostile names, labels and data, which any user of a cluster can store.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::addresses;
use crate::cluster::Cluster;
use quorate::acl::{Acl, Id, Permissions};
use quorate::recipes::LeaderLatch;
use quorate::{Coordinator, CreateMode, Error};
use serde_json::Value;

/// Sets the title of a terminal, colours, and a line of its own; then reverses and hides text.
const HOSTILE: &str = "\u{1b}]0;OWNED\u{7}\u{1b}[31mred\r\nlock /forged  held by nobody\u{9b}2J\u{202e}\u{200b}\u{2028}";
/// The same, as far as a name and an id may have it.
const NAME: &str = "n\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}";

fn is_visible(letter: char) -> bool {
    !(letter.is_control()
        || ('\u{200b}'..='\u{200f}').contains(&letter)
        || ('\u{2028}'..='\u{202e}').contains(&letter)
        || ('\u{2066}'..='\u{2069}').contains(&letter)
        || letter == '\u{feff}')
}

/// Fails unless a person sees all that is printed, and each line of it is one of the program.
fn assert_visible(arguments: &[&str], printed: &str) {
    for line in printed.lines() {
        assert!(line.chars().all(is_visible), "{arguments:?}: {line:?}");
        assert!(!line.starts_with("lock /forged"), "{arguments:?}: a forged line: {line}");
    }
}

/// `locks` and `acl` printed what strangers had stored: a label could set the title of the operator's terminal, and
/// forge lines of the table.
#[test]
fn no_command_prints_what_a_terminal_obeys() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let znode = format!("/{NAME}");
    session.create(&znode, HOSTILE, CreateMode::Persistent).wait().unwrap();
    let child = format!("{znode}/{NAME}");
    session.create(&child, b"", CreateMode::Persistent).wait().unwrap();
    let acl = [
        Acl::new(Permissions::ALL, Id::anyone()),
        Acl::new(Permissions::READ, Id::new("x509", format!("CN={NAME}"))),
    ];
    session.set_acl(&child, &acl).wait().unwrap();
    // A candidate's id is its label.
    let election = LeaderLatch::new(&session, &format!("/e{NAME}"), HOSTILE).unwrap();
    let _leads = election.campaign().wait().unwrap();

    let file = cluster.data.path().join("backup");
    let file = file.to_str().unwrap();
    let before = cluster.data.path().join("before").to_str().unwrap().to_owned();
    cluster.members[0].backup(&before).wait().unwrap();
    session.create(&format!("{znode}/later{NAME}"), b"", CreateMode::Persistent).wait().unwrap();
    let id = session.id().to_string();
    let commands: &[&[&str]] = &[
        &["status"],
        &["members"],
        &["sessions"],
        &["doctor"],
        &["locks"],
        &["ls"],
        &["ls", "-R"],
        &["ls", &znode],
        &["tree"],
        &["tree", &znode],
        &["stat", &child],
        &["set", &child, "1"],
        &["acl", &child],
        &["quota", &znode, "--znodes", "5"],
        &["create", &format!("{child}/new")],
        &["rm", &format!("{child}/new")],
        &["get", &format!("/none{NAME}")],
        &["create", &child],
        &["rm", &znode],
        &["acl", &child, "--set", &format!("r=digest:{HOSTILE}")],
        &["bench", "--seconds", "1", "--clients", "1", "--path", &format!("{child}/bench")],
        &["backup", file],
        &["verify", file],
        &["diff", file, &before],
        &["cp", "-r", &znode, &format!("/copy{NAME}")],
        &["txn", &format!("create {child}/txn")],
        &["txn", &format!("delete /none{NAME}")],
        &["verify", &format!("/none/{HOSTILE}")],
        &["inspect", &format!("/none/{HOSTILE}")],
        &["move-leader", HOSTILE],
        &["remove-member", HOSTILE],
        &["expire", &id],
    ];
    for arguments in commands {
        for json in [&["--json"][..], &[]] {
            // What the first run has done cannot be done again; then its error is looked at.
            let arguments = [arguments, json].concat();
            let (code, printed, error) = cluster.run(&arguments);
            assert_ne!(code, 2 - i32::from(arguments[0] == "acl"), "{error}");
            assert_visible(&arguments, &printed);
            assert_visible(&arguments, &error);
        }
    }
    // Into a pipe go the data as they are, and JSON has them all the same.
    let session = cluster.members[0].open_session().unwrap();
    assert_eq!(cluster.well(&["get", &znode]), HOSTILE);
    let read = cluster.well(&["get", &znode, "--json"]);
    assert_visible(&["get", "--json"], &read);
    assert_eq!(serde_json::from_str::<Value>(&read).unwrap()["data"]["text"], HOSTILE);

    for json in [&["--json"][..], &[]] {
        let arguments = [&["watch", "-R", &znode, "--count", "1"][..], json].concat();
        let mut watching = cluster.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
        let line = std::thread::scope(|scope| {
            let line = scope.spawn(|| lines.next().unwrap().unwrap());
            while !line.is_finished() {
                session.set(&child, b"").wait().unwrap();
            }
            line.join().unwrap()
        });
        assert_visible(&arguments, &line);
        assert!(watching.wait().unwrap().success());
    }
}

/// A member's zone is its own word, too.
#[test]
fn a_hostile_zone_is_shown_escaped() {
    let (address, data) = (addresses::address(), tempfile::tempdir().unwrap());
    let zone = "z\u{1b}[2J\u{9b}1m\u{202e}";
    let builder = Coordinator::builder().advertise(&address).data_dir(data.path()).zone(zone);
    let member = builder.join([&address]).wait().unwrap();
    member.wait_ready(std::time::Duration::from_secs(60)).wait().unwrap();
    let cluster = Cluster { peers: address, members: vec![member], data };
    let printed = cluster.well(&["members"]);
    assert_visible(&["members"], &printed);
    assert_eq!(printed.lines().count(), 2, "{printed}");
}

#[test]
fn an_access_list_takes_no_control_characters() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    for id in [
        Id::new("digest", "u\u{1b}[2J:hash"),
        Id::new("x509", "CN=a\r\nfake line"),
        Id::new("argon2", "u\u{7f}:hash"),
        Id::new("digest", "u\u{9b}:hash"),
    ] {
        let refused = session.set_acl("/a", &[Acl::new(Permissions::ALL, id.clone())]).wait();
        let Err(Error::InvalidAcl { path, reason }) = refused else {
            panic!("{id:?}: {refused:?}")
        };
        assert!(path == "/a" && reason.contains("has a control character"), "{reason}");
        assert!(reason.chars().all(is_visible), "{reason:?}");
    }
    // The same by what a session has authenticated: `auth` would put it into the list.
    let other = cluster.members[0].open_session().unwrap();
    let refused = other.add_auth("digest", "u\n:password").wait().unwrap_err();
    assert!(matches!(&refused, Error::AuthFailed { .. }), "{refused:?}");
    assert!(refused.to_string().contains("has a control character"), "{refused}");
}
