//! The program `quorate` on a running cluster.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::addresses;
use crate::cluster::Cluster;
use quorate::operate::{MemberReport, ReasonKind};
use quorate::{Coordinator, CreateMode, Error, Secret, StartError};
use serde_json::Value;

/// The lead moves by itself, whoever was elected.
#[test]
fn the_member_that_is_wanted_leads() {
    let addresses: Vec<_> = (0..3).map(|_| addresses::address()).collect();
    let data = tempfile::tempdir().unwrap();
    let start = |place: usize| {
        let dir = data.path().join(place.to_string());
        let builder = Coordinator::builder().advertise(&addresses[place]).data_dir(dir);
        builder.leader_priority(i32::from(place == 2)).join(&addresses).wait().unwrap()
    };
    let mut members: Vec<_> = (0..3).map(start).collect();
    let until_it_leads = |member: &Coordinator| {
        let changes = member.availability_changes();
        let leads = (0..600).any(|_| {
            // Looks again from time to time, also if nothing has changed.
            let _ = changes.events().recv_timeout(Duration::from_millis(100));
            member.status().leader.as_ref() == Some(&addresses[2])
        });
        assert!(leads, "{:?} leads", member.status().leader);
    };
    until_it_leads(&members[0]);
    members[0].session().create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let reports = members[0].reports().wait().unwrap();
    let leader = MemberReport::leader(&reports).unwrap();
    assert_eq!((leader.leader_priority, &leader.address), (1, &addresses[2]));
    // It is restarted, another one leads meanwhile, and it leads again.
    members.pop().unwrap().close().wait().unwrap();
    members.push(start(2));
    members[2].wait_ready(Duration::from_secs(60)).wait().unwrap();
    until_it_leads(&members[0]);
    members[1].session().set("/a", b"x").wait().unwrap();
}

#[test]
fn znodes_are_read_and_written() {
    let cluster = Cluster::new(1);
    assert_eq!(cluster.well(&["create", "-p", "/app/config/limit", "20"]), "/app/config/limit\n");
    assert_eq!(cluster.well(&["create", "/app/jobs-", "--sequential"]), "/app/jobs-0000000001\n");
    assert_eq!(cluster.well(&["create", "/app/config/x", "--ttl", "3600"]), "/app/config/x\n");
    assert_eq!(cluster.well(&["get", "/app/config/limit"]), "20", "no more than the data");
    assert_eq!(cluster.well(&["set", "/app/config/limit", "30", "--version", "0"]), "version 1\n");
    let (code, _, error) = cluster.run(&["set", "/app/config/limit", "40", "--version", "0"]);
    assert!(code == 1 && error.contains("/app/config/limit"), "{code} {error}");
    assert_eq!(cluster.well(&["ls", "/app"]), "config\njobs-0000000001\n");
    assert_eq!(
        cluster.well(&["ls", "-R", "/app"]),
        "/app\n/app/config\n/app/config/limit\n/app/config/x\n/app/jobs-0000000001\n"
    );
    let tree = cluster.well(&["tree", "/app"]);
    let lines: Vec<_> = tree.lines().collect();
    assert_eq!(
        lines[..3],
        ["/app  (0 B, container)", "├── config  (0 B, container)", "│   ├── limit  (2 B)",]
    );
    assert_eq!(lines[4], "└── jobs-0000000001  (0 B)");
    assert!(lines[3].starts_with("│   └── x  (0 B, lives "), "{tree}");

    let stat = cluster.json(&["stat", "/app/config/limit"]);
    assert_eq!((&stat["version"], &stat["data_length"]), (&1.into(), &2.into()));
    let shown = cluster.well(&["stat", "/app/config/x"]);
    assert!(
        shown.contains("num_children     0\n") && shown.contains("ttl              60 min\n"),
        "{shown}"
    );
    for name in ["ctime", "mtime"] {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains(" UTC, ") && line.ends_with(" ago"), "{shown}");
    }
    assert!(cluster.well(&["stat", "/"]).contains("ctime            with the cluster\n"));
    assert!(stat["ctime"].as_u64().unwrap() > 1_600_000_000_000, "JSON has milliseconds: {stat}");
    // Options may stand before the command.
    let before = cluster.well(&["--json", "--timeout", "20", "stat", "/app/config/limit"]);
    assert_eq!(serde_json::from_str::<Value>(&before).unwrap(), stat);
    let mut both = Command::new(env!("CARGO_BIN_EXE_quorate"));
    both.args(["--peers", &cluster.peers, "--timeout=20", "ls", "/app", "--json"]);
    assert!(both.output().unwrap().status.success());
    assert_eq!(cluster.run(&["--no-such-option", "ls"]).0, 2);
    let read = cluster.json(&["get", "/app/config/limit"]);
    assert_eq!((&read["data"]["text"], &read["stat"]), (&"30".into(), &stat));
    let mut set = cluster.command(&["set", "/app/config/limit", "-"]);
    let mut set = set.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    set.stdin.take().unwrap().write_all(b"\xff\0").unwrap();
    assert!(set.wait().unwrap().success());
    assert_eq!(
        cluster.json(&["get", "/app/config/limit"])["data"]["bytes"],
        Value::from(vec![255, 0])
    );

    assert_eq!(cluster.well(&["acl", "/app"]), "cdrwa=world:anyone\n");
    // Ids have commas and equals signs. What it prints can be given back.
    let entries = [
        "r=world:anyone",
        "cdrwa=ip:127.0.0.1",
        "=x509:CN=none",
        "rw=x509:CN=cl,O=Ex\\, Inc.,DC=ex,r=digest:a:b",
    ];
    let set = entries.iter().flat_map(|entry| ["--set", entry]);
    let acl: Vec<_> = ["acl", "/app/config/x"].into_iter().chain(set).collect();
    let shown = cluster.well(&acl);
    assert_eq!(shown.lines().collect::<Vec<_>>(), entries);
    assert_eq!(cluster.well(&["acl", "/app", "--set", shown.trim_end()]), shown);
    assert_eq!(cluster.json(&["acl", "/app"]), cluster.json(&["acl", "/app/config/x"]));
    cluster.well(&["acl", "/app", "--set", "cdrwa=world:anyone"]);
    assert_eq!(cluster.well(&["quota", "/app"]), "no quota\n");
    let quota = cluster.json(&["quota", "/app", "--znodes-hard", "5"]);
    assert_eq!(quota["quota"]["znodes_hard"], 5);
    assert_eq!(cluster.run(&["create", "/app/more"]).0, 1, "the quota is reached");
    assert_eq!(cluster.well(&["quota", "/app", "--remove"]), "no quota\n");

    assert_eq!(cluster.run(&["rm", "/app"]).0, 1, "it has children");
    assert_eq!(cluster.well(&["rm", "-r", "/app"]), "");
    for gone in [["get", "/app"], ["stat", "/app"], ["ls", "/app"], ["tree", "/app"]] {
        let (code, text, error) = cluster.run(&gone);
        assert_eq!((code, text.as_str()), (3, ""), "{error}");
    }
    assert_eq!(cluster.run(&["create", "/a", "--container", "--ttl", "1"]).0, 2);
}

#[test]
fn an_operator_sees_who_leads_who_lags_and_who_holds() {
    let mut cluster = Cluster::new(3);
    // The leader has had a reply from every member.
    let status = loop {
        let status = cluster.json(&["status"]);
        if status["availability"]["healthy"]["spare"] == 1 {
            break status;
        }
    };
    let leader = status["leader"].as_str().unwrap().to_owned();
    let text = cluster.well(&["status"]);
    assert!(text.contains(&leader) && text.contains("members      3 (3 vote, 0 silent)"), "{text}");
    let members = cluster.well(&["members"]);
    let leads = members.lines().find(|line| line.starts_with(&leader)).unwrap();
    assert_eq!(leads.split_whitespace().nth(1), Some("leader"), "{members}");

    let sessions: Vec<_> = (0..2).map(|at| cluster.members[at].open_session().unwrap()).collect();
    let guard = sessions[0].lock("/jobs/nightly").unwrap().acquire().wait().unwrap();
    let lock = sessions[1].lock("/jobs/nightly").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire().wait().unwrap().release().wait());
        // The contender waits once its znode exists.
        while cluster.json(&["locks"])[0]["waiters"].as_array().unwrap().is_empty() {}
        let locks = cluster.well(&["locks", "/jobs"]);
        let lines: Vec<_> = locks.lines().collect();
        assert_eq!(lines[0], "/jobs/nightly (lock)");
        assert!(lines[1].starts_with(&format!("  holds  {}", sessions[0].id())), "{locks}");
        assert!(lines[2].starts_with(&format!("  waits  {}", sessions[1].id())), "{locks}");
        for (line, member) in lines[1..3].iter().zip(&cluster.members) {
            assert!(line.contains(&member.address()), "who it is: {locks}");
        }
        let held = &cluster.json(&["locks", "--waiting"])[0]["holders"][0]["held_by"];
        assert_eq!(held.as_str(), Some(cluster.members[0].address().as_str()));
        guard.release().wait().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert!(cluster.well(&["locks"]).starts_with("nobody holds"));

    // One member is down, and the others report it. Then there is no quorum.
    let at = cluster.members.iter().position(|member| member.address() != leader).unwrap();
    let gone = cluster.members.remove(at);
    let address = gone.address();
    gone.close().wait().unwrap();
    while cluster.json(&["status"])["availability"]["at_risk"].is_null() {}
    let members = cluster.well(&["members"]);
    let line = members.lines().find(|line| line.starts_with(&address)).unwrap();
    assert!(line.contains("silent"), "{members}");
    cluster.members.remove(0).close().wait().unwrap();
    let (code, text, _) = cluster.run(&["status", "--timeout", "2"]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("no quorum: no member can lead"), "{text}");
    let (code, text, error) = cluster.run(&["get", "/", "--timeout", "1"]);
    assert_eq!((code, text.as_str()), (4, ""), "{error}");
}

#[test]
fn an_operator_moves_the_lead_ends_sessions_and_removes_the_dead() {
    let mut cluster = Cluster::new(3);
    // The leader has had a reply from every member.
    while cluster.json(&["status"])["availability"]["healthy"]["spare"] != 1 {}
    for to in [0, 1, 2] {
        let address = cluster.members[to].address();
        // With few processors, another member may be elected in between.
        loop {
            assert_eq!(cluster.well(&["move-leader", &address]), format!("{address} leads\n"));
            if cluster.json(&["status"])["leader"].as_str() == Some(&address) {
                break;
            }
        }
    }
    let (code, _, error) = cluster.run(&["move-leader", "10.0.0.1:1"]);
    assert!(code == 1 && error.contains("the members are"), "{error}");

    let session = cluster.members[1].open_session().unwrap();
    session.create("/held", b"", quorate::CreateMode::Ephemeral).wait().unwrap();
    let listed = cluster.well(&["sessions"]);
    let line = listed.lines().find(|line| line.contains(&session.id().to_string())).unwrap();
    assert!(line.contains(&cluster.members[1].address()) && line.contains(" ago "), "{listed}");
    let id = session.id().to_string();
    let stat = cluster.well(&["stat", "/held"]);
    let owner = format!("ephemeral_owner  {id} ({})\n", cluster.members[1].address());
    assert!(stat.contains(&owner), "{stat}");
    let tree = cluster.well(&["tree"]);
    assert!(
        tree.contains(&format!("ephemeral of {id} ({})", cluster.members[1].address())),
        "{tree}"
    );
    let tree = cluster.json(&["tree", "/held"]);
    let stats = [
        &cluster.json(&["stat", "/held"]),
        &tree[0]["stat"],
        &cluster.json(&["get", "/held"])["stat"],
        &cluster.json(&["set", "/held", "1"]),
    ];
    for stat in stats {
        let held_by = Some(cluster.members[1].address());
        assert_eq!(stat["held_by"].as_str(), held_by.as_deref(), "{stat}");
    }
    // All ids begin with nothing; four digits are those of this one, unless the test has bad luck.
    let (code, _, error) = cluster.run(&["expire", "0x"]);
    assert!(code == 2 && error.contains("first digits"), "{error}");
    let digits = id[2..].to_ascii_uppercase();
    let others = cluster.json(&["sessions"]);
    let others = others["sessions"].as_array().unwrap().iter();
    let others: Vec<_> =
        others.map(|of| of["id"].as_str().unwrap()).filter(|of| **of != *id).collect();
    let common =
        |of: &&str| of.chars().zip(id.chars()).take_while(|(one, other)| one == other).count();
    // The command has a session itself, whose id nobody knows before.
    let unique = others.iter().map(common).max().unwrap_or(2).max(9) - 1;
    let prefix = format!("0X{}", &digits[..unique]);
    assert_eq!(cluster.well(&["expire", &prefix]), format!("{id} is over\n"));
    assert_eq!(cluster.run(&["stat", "/held"]).0, 3);
    let (code, _, error) = cluster.run(&["expire", &id]);
    assert!(code == 1 && error.contains("no such session"), "{error}");
    // More sessions than first digits: two of them begin with the same one.
    let many: Vec<_> = (0..17).map(|_| cluster.members[0].open_session().unwrap()).collect();
    for session in &many {
        session.sync().wait().unwrap();
    }
    let digit = |of: &quorate::Session| of.id().to_string().as_bytes()[2];
    let shared =
        many.iter().find(|of| many.iter().filter(|one| digit(one) == digit(of)).count() > 1);
    let shared = shared.unwrap().id().to_string();
    let (code, _, error) = cluster.run(&["expire", &shared[2..3]]);
    assert!(code == 1 && error.contains("sessions begin with it: 0x"), "{error}");
    assert!(error.contains(&format!("({})", cluster.members[0].address())), "{error}");

    let file = cluster.data.path().join("backup");
    let backup = cluster.json(&["backup", file.to_str().unwrap()]);
    let zxid = || quorate::recovery::Recovery::new().verify(&file).unwrap().zxid;
    assert_eq!(zxid(), backup["zxid"].as_u64().unwrap());
    // It replaced an older backup without a word.
    let (code, _, error) = cluster.run(&["backup", file.to_str().unwrap()]);
    assert!(
        code == 1 && error.contains("the file exists") && error.contains("--overwrite"),
        "{error}"
    );
    cluster.members[0]
        .session()
        .create("/later", b"", quorate::CreateMode::Persistent)
        .wait()
        .unwrap();
    let later = cluster.json(&["backup", file.to_str().unwrap(), "--overwrite"]);
    assert!(zxid() == later["zxid"].as_u64().unwrap() && zxid() > backup["zxid"].as_u64().unwrap());

    assert!(cluster.well(&["doctor"]).starts_with("nothing is wrong"));
    let living = cluster.members[0].address();
    let (code, _, error) = cluster.run(&["remove-member", &living]);
    assert!(code == 1 && error.contains("it is alive"), "{error}");
    let dead = cluster.members.remove(0);
    dead.close().wait().unwrap();
    // Until the leader has noticed it.
    let found = loop {
        let found = findings(&cluster.run(&["doctor", "--json"]));
        if found.iter().any(|(wrong, _)| wrong.contains("one more ends the quorum")) {
            break found;
        }
    };
    // One cause was four findings, and the first advice was to remove the member.
    let [(wrong, advice)] = &found[..] else { panic!("{found:?}") };
    assert!(wrong.starts_with(&format!("{living} (voter) does not report: ")), "{wrong}");
    assert!(advice.starts_with("Look at its process"), "{advice}");
    assert!(advice.ends_with(&format!("quorate remove-member {living}")), "{advice}");
    let mut removed = cluster.run(&["remove-member", &living]);
    while removed.2.contains("it is alive") {
        removed = cluster.run(&["remove-member", &living]);
    }
    assert_eq!(removed.1, format!("{living} is a member no more\n"), "{removed:?}");
    assert_eq!(cluster.json(&["members"])["members"].as_array().unwrap().len(), 2);

    cluster.members.remove(0).close().wait().unwrap();
    let (code, text, error) = cluster.run(&["doctor", "--timeout", "3"]);
    assert!(code == 1 && text.contains("There is no leader"), "{text}{error}");
}

/// A script that asked `doctor` once woke somebody at each failover.
#[test]
fn doctor_looks_again_and_counts_what_lasts() {
    let mut cluster = Cluster::new(3);
    cluster.members[0].session().sync().wait().unwrap();
    // A member that has just joined may lag for a moment, so this looks until nothing is wrong.
    assert!(cluster.well(&["doctor", "--for", "1h"]).starts_with("nothing is wrong"));
    assert_eq!(cluster.run(&["doctor", "--for", "soon"]).0, 2);
    let mut command = cluster.command(&["doctor", "--watch", "1", "--for", "1s", "--json"]);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let lost = cluster.members.remove(2);
    let address = lost.address();
    lost.close().wait().unwrap();
    let cause = format!("silent {address}");
    let begun: Value = loop {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if line["begun"]["cause"] == cause.as_str() {
            break line;
        }
    };
    assert!(begun["begun"]["wrong"].as_str().unwrap().contains("does not report"), "{begun}");
    let dir = cluster.data.path().join("again");
    let builder = Coordinator::builder().advertise(&address).data_dir(dir);
    let again = builder.join(cluster.peers.split(',')).wait().unwrap();
    again.wait_ready(Duration::from_secs(60)).wait().unwrap();
    let is_over = lines.any(|line| {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        line["over"]["cause"] == cause.as_str()
    });
    assert!(is_over);
    watching.kill().unwrap();
    watching.wait().unwrap();
    again.close().wait().unwrap();
    let (code, text, error) = cluster.run(&["doctor", "--for", "2s", "--json"]);
    assert!(code == 1 && text.contains(&cause), "{code} {text}{error}");
}

/// The findings of `doctor --json` and their advice.
fn findings((_, text, error): &(i32, String, String)) -> Vec<(String, String)> {
    let json: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}{error}"));
    let of = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let all = json["findings"].as_array().unwrap().iter();
    all.map(|one| (of(one, "wrong"), of(one, "advice"))).collect()
}

/// The addresses of a cluster of three to be, two of whose instances are there. They have this secret.
fn two_of_three(secret: &str) -> (Vec<String>, Cluster) {
    let addresses = addresses::addresses(3);
    let data = tempfile::tempdir().unwrap();
    let start = |address: &String| {
        let dir = data.path().join(address.replace(':', "_"));
        let builder = Coordinator::builder().advertise(address).data_dir(dir);
        builder.security(Secret::new(secret).unwrap()).join(&addresses).wait().unwrap()
    };
    let members = addresses[..2].iter().map(start).collect();
    let cluster = Cluster { peers: addresses[..2].join(","), members, data };
    (addresses, cluster)
}

/// Two instances waited for a third one, and `doctor` said that an election may be under way, for ever.
#[test]
fn instances_that_wait_for_others_to_found_a_cluster_say_for_whom() {
    let (addresses, cluster) = two_of_three("the one secret of all");
    let run = |arguments: &[&str]| {
        let mut command = cluster.command(arguments);
        let output = command.env("QUORATE_SECRET", "the one secret of all").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let expected = format!("no cluster yet: it takes 3 of the peers {}", addresses.join(", "));
    let not_reached = format!("not reached: {}", addresses[2]);
    // The two meet first.
    loop {
        let (code, text, error) = run(&["status"]);
        assert_eq!(code, 4, "{text}{error}");
        assert!(!text.contains("election"), "{text}");
        if text.contains(&expected) && text.contains(&format!("{not_reached} (")) {
            assert!(text.contains("members      2 (0 vote, 0 silent)"), "{text}");
            break;
        }
    }
    let found = findings(&run(&["doctor", "--json"]));
    let [(wrong, advice)] = &found[..] else { panic!("{found:?}") };
    assert!(wrong.contains(&not_reached), "{wrong}");
    assert!(advice.starts_with("Start the instances that are missing"), "{advice}");
    let members = run(&["members"]).1;
    assert!(members.lines().nth(1).unwrap().contains("blank"), "{members}");
}

/// A member had another secret. `doctor` blamed the network, and `status` knew nothing, though the log had the
/// reason.
#[test]
fn a_wrong_secret_is_told_by_everybody() {
    let (addresses, cluster) = two_of_three("the one secret of all");
    let dir = cluster.data.path().join("other");
    let other = Coordinator::builder().advertise(&addresses[2]).data_dir(dir);
    let other = other.security(Secret::new("quite another secret").unwrap()).join(&addresses);
    let other = other.wait().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = cluster.command(arguments);
        let output = command.env("QUORATE_SECRET", "the one secret of all").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let reason = "the shared secret of the two nodes is not the same";
    let (code, text) = loop {
        let (code, text, _) = run(&["status"]);
        if text.contains(reason) {
            break (code, text);
        }
    };
    assert!(code == 4 && text.contains(&addresses[2]), "{text}");
    let found = loop {
        let found = findings(&run(&["doctor", "--json"]));
        if found.iter().any(|(wrong, _)| wrong.contains(reason)) {
            break found;
        }
    };
    let [(wrong, advice)] = &found[..] else { panic!("{found:?}") };
    assert!(
        wrong.contains(&addresses[2]) && advice.starts_with("Waiting does not help"),
        "{wrong}"
    );
    // The instances say so themselves, on both sides.
    for instance in [&cluster.members[0], &other] {
        let error = instance.wait_ready(std::time::Duration::from_secs(3)).wait().unwrap_err();
        assert!(matches!(&error, Error::Start(StartError::PeerRefused { .. })), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        let kind = || instance.status().not_ready.map(|reason| reason.kind);
        while kind() != Some(ReasonKind::Refused) {}
    }
}

/// A member runs, and so does a process with a copy of its directory, at another address.
#[cfg(unix)]
#[test]
fn both_processes_of_a_copied_directory_are_named() {
    let mut cluster = Cluster::new(3);
    let dir = |address: &str| cluster.data.path().join(address.replace(':', "_"));
    let start = |address: &str| {
        let builder = Coordinator::builder().advertise(address).data_dir(dir(address));
        builder.join(cluster.peers.split(',')).wait().unwrap()
    };
    let (address, elsewhere) = (cluster.members[2].address(), addresses::address());
    cluster.members.remove(2).close().wait().unwrap();
    let copied = Command::new("cp").arg("-r").args([dir(&address), dir(&elsewhere)]).status();
    assert!(copied.unwrap().success());
    let member = start(&address);
    member.wait_ready(Duration::from_secs(60)).wait().unwrap();
    let copy = start(&elsewhere);
    let is_named = |text: &str| {
        let named = [&address, &elsewhere].into_iter().all(|one| text.contains(one.as_str()));
        named && text.contains("two processes run as node")
    };
    while !findings(&cluster.run(&["doctor", "--json"])).iter().any(|(wrong, _)| is_named(wrong)) {}
    // The others go on with the member.
    for (member, path) in
        [&cluster.members[0], &cluster.members[1], &member].into_iter().zip(["/a", "/b", "/c"])
    {
        member.session().create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    while copy.status().not_ready.is_none_or(|reason| reason.kind != ReasonKind::Refused) {}
    let error = copy.wait_ready(Duration::from_secs(3)).wait().unwrap_err();
    assert!(matches!(&error, Error::Start(StartError::PeerRefused { .. })), "{error}");
    assert!(is_named(&error.to_string()), "{error}");
}

/// Every write was refused, and `status` said that the cluster was healthy.
#[test]
fn refused_writes_are_told() {
    let address = addresses::address();
    let data = tempfile::tempdir().unwrap();
    let builder = Coordinator::builder().advertise(&address).data_dir(data.path().join("data"));
    // No disk has so much room.
    let member = builder.disk_low(u64::MAX).join([&address]).wait().unwrap();
    while !member.status().refuses_writes {}
    let cluster = Cluster { peers: address.clone(), members: vec![member], data };
    let (code, text, error) = cluster.run(&["status"]);
    assert_eq!(code, 6, "{text}{error}");
    let full = format!("the disks of members are nearly full ({address})");
    assert!(text.contains(&format!("quorum       writes are refused: {full}")), "{text}");
    let (code, _, error) = cluster.run(&["create", "/a"]);
    assert!(code == 6 && error.contains(&full), "{code} {error}");
    let found = findings(&cluster.run(&["doctor", "--json"]));
    let refused: Vec<_> = found.iter().filter(|(wrong, _)| wrong.contains("nearly full")).collect();
    let [(wrong, advice)] = &refused[..] else { panic!("{found:?}") };
    assert!(wrong.starts_with("Writes are refused: ") && wrong.contains(&address), "{wrong}");
    assert!(advice.starts_with("Make room there"), "{advice}");
}

#[test]
fn shells_complete_the_commands() {
    let script = |shell: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        let output = command.args(["completions", shell]).output().unwrap();
        assert!(output.status.success(), "{shell}");
        String::from_utf8(output.stdout).unwrap()
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(script(shell).contains("move-leader"), "{shell}");
    }
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script("bash").as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    assert_eq!(command.args(["completions", "tcsh"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_client_is_measured_and_leaves_nothing() {
    let cluster = Cluster::new(3);
    let bench = ["bench", "--seconds", "1", "--clients", "2", "--reads", "50", "--path"];
    let measured = cluster.json(&[&bench[..], &["/bench/here"]].concat());
    let results = measured["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    for result in results {
        let numbers: Vec<_> = result.as_object().unwrap().iter().collect();
        let is_positive = |value: &Value| value.as_f64().is_none_or(|number| number > 0.0);
        assert!(numbers.len() == 9 && numbers.iter().all(|of| is_positive(of.1)), "{result}");
        let of = |name: &str| result[name].as_f64().unwrap();
        assert!(of("p50_ms") <= of("p99_ms") && of("p99_ms") <= of("p999_ms"), "{result}");
        assert!(of("p999_ms") <= of("max_ms") && of("seconds") >= 1.0, "{result}");
    }
    assert_eq!(cluster.run(&["stat", "/bench"]).0, 3, "it is gone, and so is its parent");

    // It deletes only the znodes that it has created.
    let session = cluster.members[0].session();
    session.create("/mine", b"", quorate::CreateMode::Persistent).wait().unwrap();
    session.create("/mine/kept", b"", quorate::CreateMode::Persistent).wait().unwrap();
    let text = cluster.well(&["bench", "--seconds", "1", "--clients", "1", "--path", "/mine"]);
    assert!(text.contains("set, pipelined (64)") && text.contains("without a replica"), "{text}");
    assert_eq!(session.children("/mine").wait().unwrap(), ["kept"]);
    assert_eq!(cluster.run(&["bench", "--path", "no path"]).0, 2);
    assert_eq!(cluster.run(&["bench", "--clients", "0"]).0, 2);
}

#[cfg(unix)]
#[test]
fn a_measurement_that_is_interrupted_leaves_nothing() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let mut command = cluster.command(&["bench", "--seconds", "3600"]);
    let bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The measurement runs once its znodes are written to.
    let is_set = || {
        let clients = session.children("/quorate-bench").wait().unwrap_or_default();
        let stat =
            |name: &String| session.exists(&format!("/quorate-bench/{name}")).wait().unwrap();
        clients.iter().filter_map(stat).any(|stat| stat.version > 0)
    };
    while !is_set() {}
    let kill = Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = bench.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error, "error: it was interrupted; its znodes are removed\n");
    assert!(session.exists("/quorate-bench").wait().unwrap().is_none());
    assert_eq!(cluster.run(&["stat", "/quorate-bench"]).0, 3);
}

#[test]
fn changes_are_printed_as_they_happen() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let mut command = cluster.command(&["watch", "-R", "/w", "--json", "--count", "3"]);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    // The first change comes once the watch is set.
    let mode = quorate::CreateMode::PersistentSequential;
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| lines.next().unwrap().unwrap());
        session.create("/w", b"", quorate::CreateMode::Persistent).wait().unwrap();
        while !first.is_finished() {
            session.create("/w/n", b"", mode).wait().unwrap();
        }
        first.join().unwrap()
    });
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["kind"], "created");
    session.delete_recursive("/w").wait().unwrap();
    for line in lines {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert!(event["path"].as_str().unwrap().starts_with("/w"), "{event}");
    }
    assert!(watching.wait().unwrap().success());
}

/// With a thousand locks nobody found the one that others waited for, and takers of queues that were idle filled the
/// list.
#[test]
fn what_most_wait_for_comes_first_and_idle_takers_last() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let guards: Vec<_> =
        ["/a", "/b", "/c"].map(|path| session.lock(path).unwrap().acquire().wait().unwrap()).into();
    let others: Vec<_> = (0..4).map(|_| cluster.members[0].open_session().unwrap()).collect();
    let idle = quorate::recipes::Queue::new(&others[3], "/idle").unwrap();
    let (mut seen, mut listed) = (<[String; 3]>::default(), <[Vec<Value>; 2]>::default());
    let locks = [(0, "/c"), (1, "/c"), (2, "/b")].map(|(at, path)| others[at].lock(path).unwrap());
    std::thread::scope(|scope| {
        for lock in &locks {
            scope.spawn(|| lock.acquire().wait().unwrap().release().wait().unwrap());
        }
        scope.spawn(|| idle.take().wait().unwrap());
        let waiters = |of: &Value| of["waiters"].as_array().unwrap().len();
        let all = || cluster.json(&["locks"]).as_array().unwrap().clone();
        while all().iter().map(waiters).sum::<usize>() < 4 {}
        // What fails is reported when nobody waits any more.
        seen = [&["locks"][..], &["locks", "--takers"], &["locks", "/idle"]]
            .map(|of| cluster.run(of).1);
        listed = [all(), cluster.json(&["locks", "--waiting"]).as_array().unwrap().clone()];
        guards.into_iter().for_each(|guard| guard.release().wait().unwrap());
        quorate::recipes::Queue::new(&session, "/idle").unwrap().put(b"").wait().unwrap();
    });
    let paths = listed.map(|list| {
        list.iter().map(|of| of["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(paths[0], ["/c", "/b", "/a", "/idle/takers"]);
    assert_eq!(paths[1], ["/c", "/b"]);
    let [text, with_takers, of_queue] = seen;
    assert!(text.starts_with("/c (lock)\n") && !text.contains("/idle"), "{text}");
    let takers = "\n1 taker waits for items of 1 empty queue (--takers lists them)\n";
    assert!(text.ends_with(takers), "{text}");
    assert!(with_takers.contains("/idle/takers (queue of takers)\n  waits  0x"), "{with_takers}");
    assert!(of_queue.starts_with("/idle/takers (queue of takers)\n"), "{of_queue}");
    assert!(cluster.well(&["locks", "--waiting"]).starts_with("nobody waits for anything below /"));
}
