//! Requests that delete very many znodes: the end of a session, and the deletion of a tree.
//!
//! Each of them is one write with one zxid. A replica could not answer heartbeats while it applied such
//! a request in one piece. So before the request is applied, its znodes are deleted in parts, on a clone
//! of the tree that no reader sees. Applying the request then replaces the tree by the clone.
//!
//! The prepared tree is used only if the state is still the one that it was prepared for. Otherwise the
//! request deletes everything itself. So preparing changes only the time that applying takes.

use std::ops::Bound;
use std::sync::Arc;

use crate::machine::Machine;
use crate::machine::command::{Batch, Command, Op, OpError, Request};
use crate::machine::ops::WriteInProgress;
use crate::machine::tree::Tree;
use crate::types::path;
use crate::types::znode::Zxid;

/// The approximate number of znodes that one step deletes or lists.
const PART: usize = if cfg!(any(test, feature = "simulator")) {
    // Few, so that the small worlds of the simulator and of tests need several steps.
    4
} else {
    1024
};

#[derive(Debug)]
pub(super) struct Prepared {
    request: Request,
    /// The zxid of the state that it was prepared for, and the time of the request.
    base: Zxid,
    time: u64,
    tree: Tree,
    write: WriteInProgress,
    rest: Rest,
}

/// The znodes that are still to be deleted.
#[derive(Debug)]
enum Rest {
    /// The session's ephemerals after this one.
    Ephemerals(Option<Arc<str>>),
    /// This znode and those below it, each before its children. First all of them are listed.
    Tree { root: Arc<str>, paths: Vec<Arc<str>>, is_listed: bool },
    /// The request may not delete all of them.
    Refused(OpError),
}

impl Machine {
    /// Whether a request may delete so many znodes that it should be prepared. To be prepared, it must be the
    /// only request of its batch.
    pub(crate) fn is_large(&self, request: &Request) -> bool {
        match &request.command {
            Command::Close | Command::Expire { .. } => {
                self.session(request.session).is_some_and(|record| record.ephemerals.size() > PART)
            }
            Command::Op(Op::DeleteTree { path }) => {
                self.state.tree.get(path).is_some_and(|znode| znode.has_children())
            }
            _ => false,
        }
    }

    /// Prepares a part of the deletions of a batch. Returns whether the batch may be applied now; otherwise
    /// call this again. The machine must apply nothing else in between.
    pub(crate) fn prepare(&mut self, batch: &Batch) -> bool {
        let [request] = batch.requests.as_slice() else {
            return true;
        };
        let time = self.state.time.max(batch.time);
        let prepared = match self.prepared.take() {
            Some(prepared) if prepared.is_for(request, self.zxid(), time) => Some(prepared),
            _ => self.begin(request, time),
        };
        let Some(mut prepared) = prepared else {
            return true;
        };
        let mut done = 0;
        while done < PART && !prepared.is_done(self) {
            done += prepared.proceed(self).max(1);
        }
        let is_done = prepared.is_done(self);
        self.prepared = Some(prepared);
        is_done
    }

    fn begin(&self, request: &Request, time: u64) -> Option<Box<Prepared>> {
        if !self.is_large(request) {
            return None;
        }
        let record = self.session(request.session)?;
        if record.holder != request.holder {
            return None;
        }
        let mut write = WriteInProgress::new(request.session, self.next_zxid(), time, &[]);
        let rest = match &request.command {
            Command::Op(Op::DeleteTree { path }) => {
                write.ids = Some(Arc::clone(&record.ids));
                write.check_tree(&self.state.tree, path).ok()?;
                Rest::Tree { root: path.clone(), paths: Vec::new(), is_listed: false }
            }
            _ => Rest::Ephemerals(None),
        };
        let (request, base, tree) = (request.clone(), self.zxid(), self.state.tree.clone());
        Some(Box::new(Prepared { request, base, time, tree, write, rest }))
    }

    /// The tree and the write after the request's deletions, or why the request is refused; `None` if not
    /// all deletions were prepared for this state.
    pub(super) fn take_prepared(
        &mut self,
        request: &Request,
    ) -> Option<Result<(Tree, WriteInProgress), OpError>> {
        let prepared = self.prepared.take()?;
        let is_it = prepared.is_for(request, self.zxid(), self.state.time);
        (is_it && prepared.is_done(self)).then_some(match prepared.rest {
            Rest::Refused(error) => Err(error),
            _ => Ok((prepared.tree, prepared.write)),
        })
    }
}

impl Prepared {
    fn is_for(&self, request: &Request, base: Zxid, time: u64) -> bool {
        self.request == *request && (self.base, self.time) == (base, time)
    }

    fn is_done(&self, machine: &Machine) -> bool {
        match &self.rest {
            Rest::Ephemerals(_) => self.ephemerals(machine).next().is_none(),
            Rest::Tree { paths, is_listed, .. } => *is_listed && paths.is_empty(),
            Rest::Refused(_) => true,
        }
    }

    /// The session's ephemerals that are not deleted yet.
    fn ephemerals<'a>(&self, machine: &'a Machine) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
        let Rest::Ephemerals(last) = &self.rest else {
            return None.into_iter().flatten();
        };
        let after = (last.clone().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let record = machine.session(self.request.session);
        record.map(|record| record.ephemerals.range::<Arc<str>, _>(after)).into_iter().flatten()
    }

    /// Prepares a part. Returns the number of its znodes.
    fn proceed(&mut self, machine: &Machine) -> usize {
        let ephemerals: Vec<Arc<str>> = self.ephemerals(machine).take(PART).cloned().collect();
        match &mut self.rest {
            Rest::Ephemerals(last) => {
                for path in &ephemerals {
                    self.write.delete(&mut self.tree, path);
                }
                *last = ephemerals.last().cloned().or_else(|| last.take());
                ephemerals.len()
            }
            Rest::Tree { root, paths, is_listed } if !*is_listed => {
                let before = paths.len();
                let cursor = paths.last().unwrap_or(root).clone();
                let tree = &machine.state.tree;
                let below = tree.iter_from(&cursor).skip(before.min(1)).take(PART);
                for (path, znode) in below.take_while(|(path, _)| path::is_below(path, root)) {
                    if let Err(error) = self.write.check_below(tree, path, znode) {
                        self.rest = Rest::Refused(error);
                        return PART;
                    }
                    paths.push(path.into());
                }
                *is_listed = paths.len() == before;
                paths.len() - before
            }
            Rest::Tree { paths, .. } => {
                let rest = paths.len().saturating_sub(PART);
                for path in paths.drain(rest..).rev() {
                    self.write.delete(&mut self.tree, &path);
                }
                PART
            }
            Rest::Refused(_) => PART,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::Applied;
    use crate::types::znode::{CreateMode, SessionId};

    const SESSION: SessionId = SessionId(7);
    const MANY: usize = PART * 5 / 2;

    struct Replica {
        machine: Machine,
        seq: u64,
    }

    impl Replica {
        fn new() -> Replica {
            let mut replica = Replica { machine: Machine::new(), seq: 0 };
            let open = Command::Open { secret: [0; 16], timeout_ms: 4000, owner: 1, base: 0 };
            replica.apply(open);
            replica.seq = 1;
            for path in ["/tree", "/tree/a", "/other"] {
                replica.create(path, CreateMode::Persistent);
            }
            for n in 0..MANY {
                replica.create(&format!("/other/{n}"), CreateMode::Ephemeral);
                replica.create(&format!("/tree/a/{n}"), CreateMode::Persistent);
                replica.create(&format!("/tree/b{n}"), CreateMode::Persistent);
            }
            replica
        }

        fn batch(&mut self, command: Command) -> Batch {
            let (session, seq) = (SESSION, self.seq);
            let request = Request { session, holder: 1, seq, acked: seq, command };
            Batch { time: seq + 1, requests: vec![request] }
        }

        fn apply(&mut self, command: Command) -> Applied {
            let batch = self.batch(command);
            self.seq += 1;
            self.machine.apply(1, &batch)
        }

        fn create(&mut self, path: &str, mode: CreateMode) {
            let path = path.into();
            let applied = self.apply(Command::Op(Op::Create { path, data: "d".into(), mode }));
            assert!(applied.outcomes[0].result.is_ok(), "{applied:?}");
        }
    }

    fn large() -> [Command; 4] {
        let delete = |path: &str| Command::Op(Op::DeleteTree { path: path.into() });
        [delete("/tree"), delete("/other"), Command::Expire { term: 1 }, Command::Close]
    }

    /// A replica that prepared comes to the same state and reports the same changes as one that did not.
    #[test]
    fn a_prepared_request_has_the_same_effects() {
        for command in large() {
            let (mut one, mut other) = (Replica::new(), Replica::new());
            let batch = one.batch(command.clone());
            assert!(one.machine.is_large(&batch.requests[0]));
            let before = one.machine.hash();
            let mut parts = 1;
            while !one.machine.prepare(&batch) {
                assert_eq!(one.machine.hash(), before, "preparing does not change the state");
                parts += 1;
            }
            assert!(parts > 2, "{command:?} took {parts} parts");
            let (applied, expected) = (one.apply(command.clone()), other.apply(command.clone()));
            assert!(one.machine.prepared.is_none());
            assert_eq!(applied.changes, expected.changes);
            assert_eq!(applied.outcomes, expected.outcomes);
            assert_eq!(one.machine.hash(), other.machine.hash(), "{command:?}");
            assert_eq!(one.machine.dirty, other.machine.dirty);
            one.machine.check_invariants().unwrap();
        }
    }

    /// After a change of leader, another entry may replace the one that was prepared.
    #[test]
    fn a_tree_prepared_for_another_state_is_not_used() {
        let (mut one, mut other) = (Replica::new(), Replica::new());
        let delete = large()[0].clone();
        let batch = one.batch(delete.clone());
        while !one.machine.prepare(&batch) {}
        for replica in [&mut one, &mut other] {
            replica.create("/tree/late", CreateMode::Persistent);
            replica.apply(delete.clone());
        }
        assert!(one.machine.tree().get("/tree").is_none());
        assert_eq!(one.machine.hash(), other.machine.hash());
        one.machine.check_invariants().unwrap();
    }

    #[test]
    fn a_partly_prepared_tree_is_not_used() {
        let (mut one, mut other) = (Replica::new(), Replica::new());
        for command in [large()[0].clone(), Command::Close] {
            let batch = one.batch(command.clone());
            assert!(!one.machine.prepare(&batch));
            one.apply(command.clone());
            other.apply(command);
            assert_eq!(one.machine.hash(), other.machine.hash());
            one.machine.check_invariants().unwrap();
        }
    }

    #[test]
    fn a_refused_request_fails_when_it_is_prepared_too() {
        let mut one = Replica::new();
        let batch = one.batch(Command::Op(Op::DeleteTree { path: "/none".into() }));
        assert!(one.machine.prepare(&batch));
        let applied = one.apply(batch.requests[0].command.clone());
        assert!(applied.outcomes[0].result.is_err());
    }
}
