//! The log of an instance through `tracing`: a short story at `info`, a span for each request, and ids in
//! hexadecimal.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::alone;
use crate::common::{PATIENCE, addresses};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Story>>);

#[derive(Default)]
struct Story {
    /// The lines at `info` and above.
    lines: Vec<String>,
    open: BTreeMap<u64, String>,
    closed: Vec<String>,
    /// The events at any level, and the spans, that have a number which is longer than an id.
    long: Vec<String>,
}

/// The log of this process from now on.
fn seen() -> Seen {
    let seen = Seen::default();
    // Nodes run on threads of their own.
    tracing::subscriber::set_global_default(seen.clone()).unwrap();
    seen
}

/// Whether a line has a number that is longer than an id in hexadecimal.
fn has_long_number(line: &str) -> bool {
    let digits = line.split(|c: char| !c.is_ascii_digit());
    digits.map(str::len).any(|digits| digits > 16)
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Fields as text.
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("quorate")
    }

    fn new_span(&self, of: &Attributes<'_>) -> Id {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut fields = Fields(of.metadata().target().to_owned());
        of.record(&mut fields);
        self.0.lock().unwrap().open.insert(id, fields.0);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        let mut fields = Fields(String::new());
        record.record(&mut fields);
        let mut story = self.0.lock().unwrap();
        story.open.get_mut(&id.into_u64()).unwrap().push_str(&fields.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn try_close(&self, id: Id) -> bool {
        let mut story = self.0.lock().unwrap();
        let span = story.open.remove(&id.into_u64()).unwrap();
        if has_long_number(&span) {
            story.long.push(span.clone());
        }
        story.closed.push(span);
        true
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(event.metadata().target().to_owned());
        event.record(&mut fields);
        let mut story = self.0.lock().unwrap();
        if has_long_number(&fields.0) {
            story.long.push(fields.0.clone());
        }
        if *event.metadata().level() <= Level::INFO {
            story.lines.push(fields.0);
        }
    }
}

#[test]
fn a_cluster_logs_who_leads_and_each_request_is_a_span() {
    alone(concat!(module_path!(), "::a_cluster_logs_who_leads_and_each_request_is_a_span"), || {
        let seen = seen();
        let cluster = Cluster::new(3);
        let session = cluster.node(1).session();
        session.create("/of-nobody-else", b"", CreateMode::Persistent).wait().unwrap();
        let refused = session.set("/b", b"").wait();
        assert!(matches!(refused, Err(Error::NoNode { .. })));
        session.sync().wait().unwrap();
        for at in 0..3 {
            cluster.node(at).session().sync().wait().unwrap();
        }
        let leader = cluster.node(cluster.leader().unwrap()).reports().wait().unwrap();
        let leader =
            leader.iter().find(|member| member.role == quorate::operate::Role::Leader).unwrap();

        let story = seen.0.lock().unwrap();
        let spans = |starts: &str| -> Vec<&String> {
            let of = |span: &&String| span.starts_with(&format!("quorate::request {starts}"));
            story.closed.iter().filter(of).collect()
        };
        let by = format!("session={}", session.id());
        let create = spans("operation=\"create\" path=\"/of-nobody-else\"");
        assert!(create.len() == 1 && create[0].ends_with(&by), "{:?}", story.closed);
        let set = spans("operation=\"set\" path=\"/b\"");
        assert!(set.len() == 1 && set[0].contains("error=no znode /b"), "{:?}", story.closed);
        assert!(spans("operation=\"sync\"").len() >= 4, "{:?}", story.closed);

        // Members appear by address and id, the same everywhere.
        let name = format!("{} ({})", leader.address, leader.id);
        let count = |what: &str| story.lines.iter().filter(|line| line.contains(what)).count();
        assert_eq!(count(&format!("this member leads node={name}")), 1, "{:?}", story.lines);
        assert_eq!(count(&format!("leader={name}")), 2, "{:?}", story.lines);
        // Requests log nothing at this level.
        assert!(
            !story.lines.iter().any(|line| line.contains("/of-nobody-else")),
            "{:?}",
            story.lines
        );
    });
}

/// A session ended without a word at any level, and an operator looked for its holder in vain.
#[test]
fn a_session_that_expires_is_logged_with_its_holder() {
    alone(concat!(module_path!(), "::a_session_that_expires_is_logged_with_its_holder"), || {
        let seen = seen();
        let cluster = Cluster::new(3);
        let session = cluster.node(1).open_session().unwrap();
        session.create("/lost", b"", CreateMode::Ephemeral).wait().unwrap();
        let of = session.id().to_string();
        let info = cluster.node(1).sessions().wait().unwrap();
        let owner = info.iter().find(|info| info.id == session.id()).unwrap().clone();
        session.detach().wait().unwrap();
        let line = || {
            let story = seen.0.lock().unwrap();
            let line = story.lines.iter().find(|line| line.contains(&format!(" session={of} ")));
            line.cloned()
        };
        let advanced = (0..60).find_map(|_| {
            cluster.advance(Duration::from_secs(1));
            line()
        });
        let line = advanced.expect("it has expired");
        let held_by = format!(" held_by={} ({})", owner.owner.unwrap(), owner.owner_id);
        assert!(line.contains("a session expires") && line.contains(&held_by), "{line}");
        assert!(line.contains("timeout_ms=10000 ephemerals=1"), "{line}");
    });
}

/// Members are named by an address and 16 hexadecimal digits, and sessions by these digits. Some lines showed
/// the same ids as decimal numbers, so that a search for one found half of the story.
#[test]
fn all_ids_are_hexadecimal() {
    alone(concat!(module_path!(), "::all_ids_are_hexadecimal"), || {
        let seen = seen();
        let dir = tempfile::tempdir().unwrap();
        let all = addresses::addresses(4);
        let join = |address: &String| {
            let full = if *address == all[3] { 1 << 50 } else { 0 };
            let builder = Coordinator::builder().advertise(address).disk_low(full);
            let member = builder.data_dir(dir.path().join(address)).join(&all[..3]).wait().unwrap();
            (member, address.clone())
        };
        let mut members: Vec<_> = all[..3].iter().map(join).collect();
        members.iter().for_each(|(member, _)| member.wait_ready(PATIENCE).wait().unwrap());
        // All kinds of events: a member that joins and leaves, a client, a leader that changes, a session that is
        // expired, a member that starts again, and disks that are nearly full.
        let (newcomer, _) = join(&all[3]);
        newcomer.wait_ready(PATIENCE).wait().unwrap();
        let client = Coordinator::builder().client().join(&all[..3]).wait().unwrap();
        client.wait_ready(PATIENCE).wait().unwrap();
        let to = members.iter().find(|(member, _)| !member.status().is_leader).unwrap().1.clone();
        client.move_leader(&to, "the test").wait().unwrap();
        let expired = client.open_session().unwrap();
        expired.sync().wait().unwrap();
        client.expire_session(expired.id(), "the test").wait().unwrap();
        while !seen.0.lock().unwrap().lines.iter().any(|line| line.contains("nearly full")) {
            std::thread::yield_now();
        }
        newcomer.leave(PATIENCE).wait().unwrap();
        let (restarted, address) = members.remove(0);
        restarted.close().wait().unwrap();
        drop(restarted);
        let (restarted, _) = join(&address);
        restarted.wait_ready(PATIENCE).wait().unwrap();
        drop((members, client, restarted));
        let (lines, long) = {
            let story = seen.0.lock().unwrap();
            (story.lines.clone(), story.long.clone())
        };
        for part in ["the voters have changed", "a change of the members", "an operator's action"] {
            assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:?}");
        }
        let expire = format!("Expire {{ session: {} }}", expired.id());
        let named =
            |line: &String| line.contains(&expire) && line.contains(", from 127.0.0.1\" result=");
        assert!(lines.iter().any(named), "{lines:?}");
        assert!(long.is_empty(), "{long:#?}");
    });
}
