//! Writes of a session that go together: while one is in flight, the next ones gather, and become one write.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use crate::api::part::Part;
use crate::api::session::Session;
use crate::sync::wakers::Place;
use crate::types::error::{Error, Result};
use crate::types::znode::OpResult;

/// One write has at most so many operations, and about so many bytes.
const OPERATIONS_MAX: usize = 300;
const BYTES_MAX: usize = 512 << 10;

/// They take effect in the order in which they were added. One that fails, because a condition of it is not met for
/// example, fails alone.
#[derive(Debug)]
pub(crate) struct WriteGroup {
    session: Session,
    gathered: Mutex<Gathered>,
    /// Where `session_waker` waits for the end of the session.
    session_place: Mutex<Place>,
    session_waker: Waker,
}

#[derive(Debug, Default)]
struct Gathered {
    writes: VecDeque<Write>,
    is_in_flight: bool,
}

struct Write {
    part: Part,
    done: Box<dyn FnOnce(Result<()>) + Send>,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.part.fmt(f)
    }
}

/// Fails what waits when the session ends.
struct SessionEnd(Weak<WriteGroup>);

impl Wake for SessionEnd {
    fn wake(self: Arc<Self>) {
        if let Some(group) = self.0.upgrade() {
            group.end_with_session();
        }
    }
}

impl WriteGroup {
    pub(crate) fn new(session: &Session) -> Arc<WriteGroup> {
        Arc::new_cyclic(|group| WriteGroup {
            session: session.clone(),
            gathered: Mutex::default(),
            session_place: Mutex::new(Place::new(session.state_wakers())),
            session_waker: Waker::from(Arc::new(SessionEnd(Weak::clone(group)))),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a write, which [`WriteGroup::send`] sends. `done` gets its result, without a lock, on the node's thread
    /// or on that of a `send`.
    pub(crate) fn add(&self, part: Part, done: impl FnOnce(Result<()>) + Send + 'static) {
        self.lock().writes.push_back(Write { part, done: Box::new(done) });
    }

    /// Whether nothing waits or is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let gathered = self.lock();
        gathered.writes.is_empty() && !gathered.is_in_flight
    }

    /// Sends what waits, unless something is in flight: then that does it when it is done. What cannot be sent any
    /// more, since the session is over, fails at once.
    pub(crate) fn send(self: &Arc<Self>) {
        // Writes of a session that is over, and those beyond the limit of waiting requests, are refused at once, each in
        // its turn. So this is a loop.
        while let Some((writes, answer)) = self.send_next() {
            self.answered(writes, answer);
        }
        self.end_with_session();
    }

    /// Sends nothing until [`WriteGroup::go_on`].
    #[cfg(test)]
    pub(crate) fn hold(&self) {
        self.lock().is_in_flight = true;
    }

    #[cfg(test)]
    pub(crate) fn go_on(self: &Arc<Self>) {
        self.lock().is_in_flight = false;
        self.send();
    }

    /// Sends the next writes. Returns them if they are answered already.
    fn send_next(self: &Arc<Self>) -> Option<(Vec<Write>, Result<Vec<OpResult>>)> {
        let writes = {
            let mut gathered = self.lock();
            if gathered.is_in_flight || gathered.writes.is_empty() {
                return None;
            }
            gathered.is_in_flight = true;
            gathered.next()
        };
        let multi =
            writes.iter().fold(self.session.multi(), |multi, write| multi.with(&write.part));
        let group = Arc::clone(self);
        multi.commit().take_or_then(writes, move |writes, answer| {
            group.answered(writes, answer);
            group.send();
        })
    }

    /// The answer to these writes. If one of them has failed, nothing was written: the others have to be sent again.
    fn answered(&self, mut writes: Vec<Write>, answer: Result<Vec<OpResult>>) {
        let mut again = Vec::new();
        let answer = match answer {
            Err(Error::Multi { mut index, error }) if writes.len() > 1 => {
                let failed = writes.iter().position(|write| {
                    let operations = write.part.ops().count();
                    let is_of_it = index < operations;
                    index -= if is_of_it { 0 } else { operations };
                    is_of_it
                });
                // Without such a write, all have failed.
                if let Some(at) = failed {
                    let rest = writes.split_off(at + 1);
                    let failed = writes.split_off(at);
                    again = std::mem::replace(&mut writes, failed);
                    again.extend(rest);
                }
                Err(Error::Multi { index, error })
            }
            answer => answer.map(drop),
        };
        {
            let mut gathered = self.lock();
            gathered.is_in_flight = false;
            again.into_iter().rev().for_each(|write| gathered.writes.push_front(write));
        }
        writes.into_iter().for_each(|write| (write.done)(answer.clone()));
    }

    /// Fails what waits if the session is over. If it is not, this is called again when it ends.
    fn end_with_session(&self) {
        if self.lock().writes.is_empty() {
            return;
        }
        let is_over = || self.session.is_over().then_some(());
        let mut place = self.session_place.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = place.poll(&self.session_waker, is_over).is_ready();
        drop(place);
        if is_over && let Err(over) = self.session.check_alive() {
            let waiting = std::mem::take(&mut self.lock().writes);
            waiting.into_iter().for_each(|write| (write.done)(Err(over.clone())));
        }
    }
}

impl Gathered {
    /// The next writes that go together, in order.
    fn next(&mut self) -> Vec<Write> {
        let (mut operations, mut bytes) = (0, 0);
        let fits = |Write { part, .. }: &&Write| {
            operations += part.ops().count();
            bytes += part.ops().map(|op| op.content_bytes() + op.path().len()).sum::<usize>();
            part.checked().is_ok() && operations <= OPERATIONS_MAX && bytes <= BYTES_MAX
        };
        let fit = self.writes.iter().take_while(fits).count();
        // One that is too large, or has an error in its arguments, goes alone.
        self.writes.drain(..fit.max(1).min(self.writes.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CreateMode;
    use crate::testing::Cluster;

    /// One of several writes was refused. The others are sent again, before those that came later: what is written
    /// must not go back.
    #[test]
    fn what_is_sent_again_comes_before_what_came_later() {
        let session = Cluster::new(1).node(0).session();
        let group = WriteGroup::new(&session);
        let (sender, results) = crossbeam_channel::unbounded();
        let add = |part: crate::Multi<'_>, name: &'static str| {
            let sender = sender.clone();
            group.add(Part::of(Ok(part)), move |result| sender.send((name, result)).unwrap());
        };
        let put = |data: &str| session.multi().create_or_set("/a", data, CreateMode::Persistent);
        group.hold();
        add(put("1").check("/a", 0), "first");
        add(put("x").check("/missing", 0), "refused");
        add(put("2"), "second");
        let writes = group.lock().next();
        assert_eq!(writes.len(), 3, "they go together");
        add(put("3"), "later");
        let error = Box::new(Error::NoNode { path: "/missing".to_owned() });
        group.answered(writes, Err(Error::Multi { index: 3, error: error.clone() }));
        assert_eq!(results.recv(), Ok(("refused", Err(Error::Multi { index: 1, error }))));
        assert!(!group.is_idle());
        group.send();
        for name in ["first", "second", "later"] {
            assert_eq!(results.recv(), Ok((name, Ok(()))));
        }
        let (data, stat) = session.get("/a").wait().unwrap();
        assert_eq!((&data[..], stat.version), (&b"3"[..], 2), "each of them once");
    }

    /// Arguments that are wrong fail their own write alone, wherever it stands.
    #[test]
    fn a_write_with_wrong_arguments_fails_alone() {
        let session = Cluster::new(1).node(0).session();
        let group = WriteGroup::new(&session);
        let (sender, results) = crossbeam_channel::unbounded();
        for path in ["/a", "b", "/c"] {
            let create = session.multi().create(path, b"", CreateMode::Persistent);
            let sender = sender.clone();
            group.add(Part::of(Ok(create)), move |result| sender.send((path, result)).unwrap());
        }
        group.send();
        let failed: Vec<_> = [(); 3].map(|()| results.recv().unwrap()).into_iter().collect();
        assert!(matches!(
            &failed[..],
            [("/a", Ok(())), ("b", Err(Error::Multi { index: 0, .. })), ("/c", Ok(()))]
        ));
    }

    /// Nothing waits for ever when the session ends.
    #[test]
    fn what_waits_fails_when_the_session_ends() {
        let session = Cluster::new(1).node(0).session();
        let group = WriteGroup::new(&session);
        group.hold();
        let (sender, results) = crossbeam_channel::unbounded();
        let create = session.multi().create("/a", b"", CreateMode::Persistent);
        group.add(Part::of(Ok(create)), move |result| sender.send(result).unwrap());
        group.send();
        assert!(results.is_empty());
        session.close().wait().unwrap();
        assert!(results.recv().unwrap().unwrap_err().is_session_lost());
    }
}
