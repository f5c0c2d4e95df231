//! Everything that is not deterministic: threads, clocks, random numbers, and starting a node from
//! its disk.
//!
//! | where | what |
//! | --- | --- |
//! | `host` | the owner of a node or client (`engine`): it takes calls, steps, and delivers effects |
//! | `node_thread` | runs the host on the network's thread, and connects it to the disk |
//! | `disk` | the threads that write the log and the checkpoints; `watchdog` measures for how long they hang, and `disk_watch` decides what that means |
//! | `shared`, `session` | the state that handles share with the host |
//! | `inbox`, `end`, `cluster`, `readiness`, `figures` | parts of it: what handles send, whether the node runs, what it knows of its cluster, whether it is ready, and what is counted |
//! | `ask` | what handles ask of their node, each request with the type of its answer |
//! | `holder` | the numbers of sessions' holders |
//! | `port` | the sockets and the threads of a gateway or an admin endpoint |
//! | `either` | a wait for one of two futures |
//! | `offload` | runs a blocking call on a thread, for a task |
//! | `turns` | in which order the transactions of one instance try again |
//! | `thread_end` | waits for the threads of a dropped handle |
//! | `pending`, `timers`, `watch_sender`, `availability` | how answers, timers and events reach users |
//! | `directory`, `naming`, `discovery`, `listening`, `repeated` | the start of a member: its data directory, the names of its peers, and its own |
//! | `certificates` | the certificates that the instance uses, and when they expire |
//! | `clock`, `uptime`, `entropy` | the only places that read clocks and random numbers |

pub(crate) mod ask;
pub(crate) mod availability;
pub(crate) mod certificates;
pub(crate) mod chroot;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod directory;
pub(crate) mod disk;
pub(crate) mod disk_watch;
pub(crate) mod either;
pub(crate) mod end;
pub(crate) mod engine;
pub(crate) mod entropy;
mod figures;
pub(crate) mod holder;
pub(crate) mod host;
pub(crate) mod inbox;
#[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "only gateways have mailboxes"))]
pub(crate) mod mailbox;
pub(crate) mod node_thread;
pub(crate) mod offload;
pub(crate) mod own_thread;
pub(crate) mod pending;
#[cfg(any(feature = "gateway", feature = "admin"))]
pub(crate) mod port;
mod readiness;
pub(crate) mod session;
pub(crate) mod shared;
mod spans;
pub(crate) mod thread_end;
pub(crate) mod timers;
pub(crate) mod turns;
mod uptime;
pub(crate) mod watch_sender;
pub(crate) mod watchdog;

use crate::machine::Machine;
use crate::machine::snapshot::ChunkReader;
use crate::node::io::Now;
use crate::node::stored::Boot;
use crate::node::{Node, NodeConfig, Origin};
use crate::storage::{ChunkSink, LogStore, StorageError};
use crate::types::version;

/// Starts a node from the content of its store.
pub(crate) fn boot(
    store: &mut dyn LogStore,
    config: NodeConfig,
    now: Now,
) -> Result<Node, StorageError> {
    let Some(identity) = store.identity().cloned() else {
        return Err(corrupt("no identity".to_owned()));
    };
    let (boot, machine) = read_state(config.version, |sink| store.load(sink))?;
    let voting = &boot.checkpoint.voting;
    let members = voting.voters.iter().chain(&voting.learners).chain(&voting.voters_outgoing);
    let blank = voting.voters.is_empty();
    if !blank && !members.into_iter().any(|member| *member == identity.node) {
        return Err(corrupt("this member is missing in the cluster's configuration".to_owned()));
    }
    let origin = Origin { identity, promise: store.promise().clone() };
    Node::new(config, origin, boot, machine, now).map_err(corrupt)
}

/// Reads the state of a store's checkpoint, in a version up to `newest`.
pub(crate) fn read_state(
    newest: u16,
    load: impl FnOnce(&mut ChunkSink<'_>) -> Result<Boot, StorageError>,
) -> Result<(Boot, Machine), StorageError> {
    let mut reader = ChunkReader::new();
    // A state that is too new is not damaged, and the store must not report damage.
    let loaded = load(&mut |chunk| match reader.push(chunk) {
        Err(_) if reader.version() > newest => Ok(()),
        pushed => pushed,
    });
    if reader.version() > newest {
        return Err(StorageError::Version { what: version::too_old(reader.version(), newest) });
    }
    let boot = loaded?;
    let machine = reader.finish(boot.checkpoint.zxid, boot.checkpoint.hash).map_err(corrupt)?;
    Ok((boot, machine))
}

fn corrupt(what: String) -> StorageError {
    StorageError::Corrupt { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::{Batch, Command, Request};
    use crate::machine::snapshot::ChunkWriter;
    use crate::node::io::Time;
    use crate::node::stored::{Identity, SnapshotMeta};
    use crate::storage::{DiskStore, FsPath, LogAfter, StoreOptions};
    use crate::types::membership::{Genesis, Member};
    use crate::types::znode::SessionId;

    fn config(version: u16) -> NodeConfig {
        NodeConfig { version, ..NodeConfig::new(Time::from_millis(100), Time::from_secs(2), 1) }
    }

    /// A damaged directory is set aside, and never used again. A directory of a newer version must
    /// not count as damaged, even if this build can read nothing in it.
    #[test]
    fn a_directory_of_a_newer_version_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
        let now = Now { mono: Time::from_secs(1), wall_ms: 1 };
        let members = vec![Member::new(1, "a:1")];
        let (hard_state, meta, state) = Genesis { cluster: 7, members }.start();
        let address = "a:1".to_owned();
        let identity = Identity { cluster: 7, node: 1, incarnation: 5, address, uid: 1 };
        open().found(&identity, hard_state, &meta, &mut ChunkWriter::full(state)).unwrap();

        let mut machine = Machine::new();
        let raised_to = |machine: &mut Machine, version| {
            let command = Command::RaiseVersion { version };
            let request = Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command };
            machine.apply(1, &Batch { time: 1, requests: vec![request] });
            ChunkWriter::full(machine.state()).collect::<Vec<_>>().concat()
        };
        let checkpoint = |machine: &Machine, chunk: &[u8]| {
            let (zxid, hash) = (machine.zxid(), machine.hash());
            let meta = SnapshotMeta { zxid, hash, ..meta.clone() };
            let mut store = open();
            store.load(&mut |_| Ok(())).unwrap();
            let mut writer = store.checkpointer().unwrap();
            writer.begin(true, 0).unwrap();
            writer.put_chunk(chunk).unwrap();
            writer.finish().unwrap();
            store.commit_checkpoint(&meta, LogAfter::From(2)).unwrap();
        };
        let refused = |cluster, own| {
            let error = boot(&mut open(), config(own), now).unwrap_err();
            assert_eq!(error, StorageError::Version { what: version::too_old(cluster, own) });
        };

        let chunk = raised_to(&mut machine, 2);
        checkpoint(&machine, &chunk);
        refused(2, 1);
        refused(2, 1);
        let node = boot(&mut open(), config(2), now).unwrap();
        assert_eq!(node.machine().version(), 2);
        drop(node);

        // A future build may write this: after the version, an item that this build does not know.
        let chunk = raised_to(&mut machine, 3);
        checkpoint(&machine, &[&chunk[..4], &[0x7F, 1, 2]].concat());
        refused(3, 2);
        refused(3, 2);
        // An image of a known version must be readable.
        let chunk = raised_to(&mut Machine::new(), 2);
        checkpoint(&machine, &[&chunk[..4], &[0x7F, 1, 2]].concat());
        let error = boot(&mut open(), config(2), now).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    }
}
