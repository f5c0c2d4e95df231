//! What scripts do with znodes: several writes in one, copies, differences, ephemerals, and commands for changes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use quorate::CreateMode;
use serde_json::Value;

use crate::cluster::Cluster;

#[test]
fn several_writes_are_done_all_or_none() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let (code, out, error) = cluster.run(&["txn", "absent /a", "create /a one two", "create /a/b"]);
    assert_eq!((code, &*error), (0, ""), "{out}");
    assert_eq!(out, "absent /a\ncreated /a\ncreated /a/b\n");
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"one two");

    let (code, _, error) = cluster.run(&["txn", "version /a 0", "set /a x", "delete /missing"]);
    assert_eq!(code, 1);
    assert!(error.contains("delete /missing") && error.contains("no znode"), "{error}");
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"one two", "nothing was done");
    let (code, out, _) = cluster.run(&["txn", "--json", "exists /a", "set /a x"]);
    let results: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, results[1]["set"]["version"].as_u64()), (0, Some(1)), "{out}");

    // What is behind a path may be a secret.
    let whole = ["set", "version /a one", "delete /a x", ""].map(|wrong| (wrong, wrong));
    for (wrong, shown) in whole.into_iter().chain([("move /a /b", "move /a")]) {
        let (code, _, error) = cluster.run(&["txn", "create /never", wrong]);
        assert_eq!(code, 2, "{wrong:?}: {error}");
        assert!(error.contains(&format!("{shown:?}")), "{error}");
    }
    assert_eq!(session.exists("/never").wait(), Ok(None));
}

#[test]
fn a_tree_is_copied_without_what_belongs_to_sessions() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let mode = CreateMode::Persistent;
    for (path, mode) in [("/from", CreateMode::Container), ("/from/a", mode), ("/from/a/b", mode)] {
        session.create(path, path, mode).wait().unwrap();
    }
    session.create("/from/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    for at in 0..1500 {
        drop(session.create(&format!("/from/a/{at:04}"), b"x", mode));
    }
    session.sync().wait().unwrap();

    let (code, _, error) = cluster.run(&["cp", "/from/a", "/alone"]);
    assert_eq!((code, &*error), (0, ""));
    assert_eq!(session.children("/alone").wait(), Ok(vec![]));
    let (code, out, error) = cluster.run(&["cp", "-r", "/from", "/to"]);
    assert_eq!((code, &*error), (0, ""));
    assert_eq!(out, "1503 znodes in 2 writes\n/from/mine is ephemeral, and was left out\n");
    assert_eq!(&session.get("/to/a/b").wait().unwrap().0[..], b"/from/a/b");
    assert!(session.exists("/to").wait().unwrap().unwrap().is_container);
    assert_eq!(session.children("/to/a").wait(), session.children("/from/a").wait());
    assert_eq!(session.children("/to").wait().unwrap(), ["a"]);

    assert_eq!(cluster.run(&["cp", "-r", "/from", "/to"]).0, 1, "it is there already");
    assert_eq!(cluster.run(&["cp", "-r", "/from", "/from/within"]).0, 2);
    assert_eq!(cluster.run(&["cp", "/missing", "/x"]).0, 3);
}

#[test]
fn what_has_changed_since_a_backup_is_told() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (path, data) in [("/app", "x"), ("/app/kept", "1"), ("/app/gone", "2"), ("/app-b", "3")] {
        session.create(path, data, CreateMode::Persistent).wait().unwrap();
    }
    cluster.members[0].backup(file("one")).wait().unwrap();
    let (code, out, error) = cluster.run(&["diff", &file("one")]);
    assert_eq!((code, &*out, &*error), (0, "", ""));

    session.delete("/app/gone").wait().unwrap();
    session.set("/app", "longer").wait().unwrap();
    session.set("/app/kept", "1").wait().unwrap();
    session.create("/app/new", "", CreateMode::Persistent).wait().unwrap();
    session.set("/app-b", "4").wait().unwrap();
    let expected = "~ /app  (6 B, was 1 B)\n- /app/gone  (1 B)\n+ /app/new  (0 B)\n";
    let (code, out, error) = cluster.run(&["diff", &file("one"), "--path", "/app"]);
    assert_eq!((code, &*out, &*error), (1, expected, ""));

    // Two files need no cluster.
    cluster.members[0].backup(file("two")).wait().unwrap();
    let (_, out, _) = cluster.run(&["diff", &file("one"), &file("two")]);
    assert_eq!(out, format!("{expected}~ /app-b  (1 B, was 1 B)\n"));
    let mut alone = cluster.command(&["diff", &file("one"), &file("two"), "--json"]);
    alone.env_remove("QUORATE_PEERS").env_remove("QUORATE_SECRET_FILE");
    let output = alone.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let changes: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(changes.as_array().unwrap().len(), 4);
    assert_eq!(changes[0]["after"]["data"]["text"], "longer");
    let mut none = cluster.command(&["diff", &file("one")]);
    let output = none.env_remove("QUORATE_PEERS").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.contains("--peers")), (Some(2), true), "{error}");

    assert_eq!(cluster.run(&["diff", &file("one"), &file("two"), "--path", "/nowhere"]).0, 3);
    std::fs::write(file("bad"), b"no backup").unwrap();
    assert_eq!(cluster.run(&["diff", &file("bad"), &file("two")]).0, 1);
    assert_eq!(cluster.run(&["diff"]).0, 2);
}

/// Starts a command whose lines are read.
fn start(cluster: &Cluster, arguments: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = cluster.command(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map_while(Result::ok))
}

fn end(mut child: Child) -> (i32, String) {
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    (child.wait().unwrap().code().unwrap(), error)
}

#[cfg(unix)]
#[test]
fn an_ephemeral_exists_until_its_command_ends() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let kill = |child: &Child| {
        let id = child.id().to_string();
        std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap();
    };
    let (child, mut lines) = start(&cluster, &["create", "--ephemeral", "/here", "me"]);
    assert_eq!(lines.next().unwrap(), "/here");
    assert!(session.exists("/here").wait().unwrap().unwrap().ephemeral_owner.is_some());
    // A write to it is no reason to end.
    session.set("/here", b"you").wait().unwrap();
    kill(&child);
    assert_eq!(end(child), (0, String::new()));
    session.sync().wait().unwrap();
    assert_eq!(session.exists("/here").wait(), Ok(None));

    let (child, mut lines) = start(&cluster, &["create", "--ephemeral", "--sequential", "/n-"]);
    let path = lines.next().unwrap();
    session.delete(&path).wait().unwrap();
    let (code, error) = end(child);
    assert_eq!((code, error.contains("somebody has deleted it")), (8, true), "{error}");

    let (child, mut lines) = start(&cluster, &["create", "--ephemeral", "/here"]);
    lines.next().unwrap();
    let owner = session.exists("/here").wait().unwrap().unwrap().ephemeral_owner.unwrap();
    cluster.members[0].expire_session(owner, "a test").wait().unwrap();
    assert_eq!(end(child).0, 8);
}

#[cfg(unix)]
#[test]
fn a_command_runs_for_each_change() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let script = "echo $QUORATE_KIND $QUORATE_PATH $QUORATE_ZXID; [ $QUORATE_KIND != deleted ]";
    let arguments = ["watch", "-R", "/w", "--count", "3", "--", "sh", "-c", script];
    let (child, mut lines) = start(&cluster, &arguments);
    // The first change comes once the watch is set.
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| lines.next().unwrap());
        while !first.is_finished() {
            session.create_or_set("/w", b"", CreateMode::Persistent).wait().unwrap();
        }
        first.join().unwrap()
    });
    assert!(first.starts_with("created /w ") || first.starts_with("changed /w "), "{first}");
    // The command fails for the second one, which does not end it.
    session.delete("/w").wait().unwrap();
    session.create("/w", b"", CreateMode::Persistent).wait().unwrap();
    session.delete("/w").wait().unwrap();
    let kinds: Vec<String> = lines.collect();
    assert_eq!(kinds.len(), 2, "{kinds:?}");
    assert!(kinds.iter().all(|line| line.contains(" /w ")), "{kinds:?}");
    assert_eq!(end(child).0, 0);
}
