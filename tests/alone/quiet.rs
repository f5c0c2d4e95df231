//! The log in normal operation contains nothing that would wake a person.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::{Coordinator, CreateMode};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

use crate::alone;
use crate::common::PATIENCE;
use crate::common::addresses::address;
use crate::events::Events;

/// Keeps the log's warnings and errors, and counts the rest.
#[derive(Clone, Default)]
struct Alarms(Arc<Mutex<(usize, Vec<String>)>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

#[test]
fn normal_operation_logs_no_warning() {
    alone(concat!(module_path!(), "::normal_operation_logs_no_warning"), || {
        let alarms = Alarms::default();
        let keep = alarms.clone();
        let enabled = |metadata: &Metadata<'_>| {
            *metadata.level() <= Level::INFO && metadata.target().starts_with("quorate")
        };
        let event = move |event: &Event<'_>| {
            let metadata = event.metadata();
            let mut alarms = keep.0.lock().unwrap();
            alarms.0 += 1;
            if *metadata.level() <= Level::WARN {
                let mut line = Line(format!("{} {}", metadata.level(), metadata.target()));
                event.record(&mut line);
                alarms.1.push(line.0);
            }
        };
        tracing::subscriber::set_global_default(Events { enabled, event }).unwrap();
        let quiet = |when: &str| {
            let (asked, logged) = alarms.0.lock().unwrap().clone();
            assert!(asked > 0, "the subscriber is not asked");
            assert!(logged.is_empty(), "{when}: {logged:#?}");
        };
        let dir = tempfile::tempdir().unwrap();
        let peers = [address(), address(), address()];
        // One after the other: the first ones find no member yet at the addresses of the others.
        let mut members: Vec<Coordinator> = Vec::new();
        for place in 0..peers.len() {
            let builder = Coordinator::builder().data_dir(dir.path().join(place.to_string()));
            // The last one must get ready with a limit of one pending request, too.
            let builder = if place == 2 { builder.pending_requests_max(1) } else { builder };
            let member = builder.join(&peers).wait().unwrap();
            members.push(member);
            if place < 2 {
                assert!(members[place].wait_ready(Duration::from_millis(300)).wait().is_err());
            }
        }
        for member in &members {
            member.wait_ready(PATIENCE).wait().unwrap();
        }
        quiet("founding");
        let session = members[0].session();
        session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
        drop(session.lock("/lock").unwrap().acquire().wait().unwrap());
        let client = Coordinator::builder().client().join(&peers).wait().unwrap();
        client.wait_ready(PATIENCE).wait().unwrap();
        assert_eq!(&client.session().get("/a").wait().unwrap().0[..], b"1");
        quiet("at work");
        client.leave(PATIENCE).wait().unwrap();
        quiet("a client leaves");
        // The other members miss a member that leaves. The member itself reports no error.
        members.pop().unwrap().leave(PATIENCE).wait().unwrap();
        let logged = alarms.0.lock().unwrap().1.clone();
        assert!(
            logged.iter().all(|line| line.starts_with("WARN") && line.contains("unreachable")),
            "{logged:#?}"
        );
    });
}
