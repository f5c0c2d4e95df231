//! The audit log: one line for each request with an outcome, and no line for internal work.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use quorate::Coordinator;
use quorate::CreateMode;
use quorate::acl::Acl;
use quorate::testing::Cluster;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};

use crate::alone;
use crate::events::Events;

#[derive(Default)]
struct Line([String; 5]);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let places = ["operation", "path", "users", "result", "client"];
        if let Some(place) = places.iter().position(|place| *place == field.name()) {
            self.0[place] = format!("{value:?}").trim_matches('"').to_owned();
        }
    }
}

#[test]
fn each_request_has_one_line_with_its_users_and_its_result() {
    alone(
        concat!(module_path!(), "::each_request_has_one_line_with_its_users_and_its_result"),
        || {
            // As `operation path users: result`.
            let lines = Arc::new(Mutex::new(Vec::new()));
            let (keep, all) = (Arc::clone(&lines), Arc::clone(&lines));
            let event = move |event: &Event<'_>| {
                let mut line = Line::default();
                event.record(&mut line);
                let [operation, path, users, result, client] = line.0;
                let by = if client.is_empty() { "" } else { " by a client" };
                keep.lock().unwrap().push(format!("{operation} {path} {users}: {result}{by}"));
            };
            let enabled = |metadata: &Metadata<'_>| metadata.target() == "quorate::audit";
            // Nodes run on a thread of the cluster's own.
            tracing::subscriber::set_global_default(Events { enabled, event }).unwrap();
            let silent = Cluster::new(1);
            silent.node(0).session().create("/unseen", b"", CreateMode::Persistent).wait().unwrap();
            let cluster = Cluster::with_settings(3, Coordinator::builder().audit(true));
            let session = cluster.node(1).open_session().unwrap();
            session.add_auth("digest", "alice:secret").wait().unwrap();
            session
                .create_with_acl("/a", b"", CreateMode::Persistent, &Acl::creator_all())
                .wait()
                .unwrap();
            assert!(session.create("/a", b"", CreateMode::Persistent).wait().is_err());
            session
                .multi()
                .set("/a", b"1")
                .create("/b", b"", CreateMode::Ephemeral)
                .commit()
                .wait()
                .unwrap();
            session.get("/a").wait().unwrap();
            session.close().wait().unwrap();
            let lines: Vec<String> = lines.lock().unwrap().clone();
            let by_alice = |line: &&String| line.contains("digest:alice:x");
            let ours: Vec<&String> = lines.iter().filter(by_alice).collect();
            let wanted = [
                ("create_with_acl /a", "success"),
                ("create /a", "failure"),
                ("set /a", "success"),
                ("create /b", "success"),
                ("close ", "success"),
            ];
            assert_eq!(ours.len(), wanted.len(), "{lines:?}");
            for (line, (begins, result)) in ours.iter().zip(wanted) {
                assert!(
                    line.starts_with(begins) && line.contains(&format!(": {result}")),
                    "{line}"
                );
            }
            assert!(lines.iter().any(|line| line.starts_with("open ")), "{lines:?}");
            assert!(lines.iter().any(|line| line.starts_with("add_auth ")), "{lines:?}");
            assert!(!lines.iter().any(|line| line.contains("secret")), "{lines:?}");
            assert!(
                !lines.iter().any(|line| line.contains("unseen")),
                "lines without a request: {lines:?}"
            );
            // A client is not trusted to write its own line: the member that serves it has one, too.
            let client = cluster.add_client();
            let session = cluster.node(client).open_session().unwrap();
            session.create("/c", b"", CreateMode::Persistent).wait().unwrap();
            session.set("/c", b"1").wait().unwrap();
            session.close().wait().unwrap();
            let lines: Vec<String> = all.lock().unwrap().clone();
            for operation in ["create /c", "set /c"] {
                let of_member = format!("{operation} ip:10.0.0.4: success by a client");
                for line in [of_member, format!("{operation} ip:10.0.0.4: success")] {
                    let found = lines.iter().filter(|one| **one == line).count();
                    assert_eq!(found, 1, "{line}: {lines:?}");
                }
            }
        },
    );
}
