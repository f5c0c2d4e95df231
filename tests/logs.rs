//! The log of an instance through `tracing`: a short story at `info`, and a span for each request.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quorate::testing::Cluster;
use quorate::{CreateMode, Error};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Story>>);

#[derive(Default)]
struct Story {
    /// The lines at `info` and above.
    lines: Vec<String>,
    open: BTreeMap<u64, String>,
    closed: Vec<String>,
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
        story.closed.push(span);
        true
    }

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() <= Level::INFO {
            let mut fields = Fields(String::new());
            event.record(&mut fields);
            self.0.lock().unwrap().lines.push(fields.0);
        }
    }
}

#[test]
fn a_cluster_logs_who_leads_and_each_request_is_a_span() {
    let seen = Seen::default();
    // Nodes run on a thread of the cluster's own.
    tracing::subscriber::set_global_default(seen.clone()).unwrap();
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    let refused = session.nonblocking().set("/b", b"").wait();
    assert!(matches!(refused, Err(Error::NoNode { .. })));
    session.sync().unwrap();
    for at in 0..3 {
        cluster.node(at).session().sync().unwrap();
    }
    let leader = cluster.node(cluster.leader().unwrap()).reports().unwrap();
    let leader = leader.iter().find(|member| member.role == quorate::Role::Leader).unwrap();

    let story = seen.0.lock().unwrap();
    let spans = |starts: &str| -> Vec<&String> {
        let of = |span: &&String| span.starts_with(&format!("quorate::request {starts}"));
        story.closed.iter().filter(of).collect()
    };
    let by = format!("session={}", session.id());
    let create = spans("operation=\"create\" path=\"/a\"");
    assert!(create.len() == 1 && create[0].ends_with(&by), "{:?}", story.closed);
    let set = spans("operation=\"set\" path=\"/b\"");
    assert!(set.len() == 1 && set[0].contains("error=no znode /b"), "{:?}", story.closed);
    assert_eq!(spans("operation=\"sync\"").len(), 4, "{:?}", story.closed);

    // Members appear by address and id, the same everywhere.
    let name = format!("{} ({})", leader.address, leader.id);
    let count = |what: &str| story.lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!(count(&format!("this member leads node={name}")), 1, "{:?}", story.lines);
    assert_eq!(count(&format!("leader={name}")), 2, "{:?}", story.lines);
    // Requests log nothing at this level.
    assert!(!story.lines.iter().any(|line| line.contains("/a")), "{:?}", story.lines);
}
