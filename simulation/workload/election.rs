//! An election with several candidates and observers, a group, and ephemerals that outlive their
//! sessions.

use std::future::pending;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::{Group, LeaderLatch, LeaderSelector, Leadership, PersistentEphemeral};
use crate::simulation::checks::elections::{Notifications, PATH, order};
use crate::simulation::checks::require;
use crate::simulation::client::{Client, Handle};
use crate::simulation::clock::SECOND;
use crate::simulation::executor::first;
use crate::simulation::kernel::Phase;
use crate::types::error::Error;
use crate::types::znode::{Stat, Zxid};

const GROUP: &str = "/group";
/// How long an observer may take to see the current state while nothing is wrong.
const GRACE: u64 = 3 * SECOND;

pub(crate) async fn run(client: Client) {
    client
        .in_sessions(async |handle| match client.random.below(7) {
            0 | 1 => campaign(&client, handle).await,
            2 => select(&client, handle).await,
            3 => join_group(&client, handle).await,
            4 => observe_group(&client, handle).await,
            5 => keep_ephemeral(&client, handle).await,
            _ => observe(&client, handle).await,
        })
        .await;
}

/// Only candidates, and now and then an observer.
pub(crate) async fn run_candidates(client: Client) {
    client
        .in_sessions(async |handle| match client.random.below(8) {
            0..6 => campaign(&client, handle).await,
            6 => select(&client, handle).await,
            _ => observe(&client, handle).await,
        })
        .await;
}

fn latch(client: &Client, handle: &Handle) -> Option<LeaderLatch> {
    LeaderLatch::new(handle.session(), PATH, client.place.to_string()).ok()
}

async fn campaign(client: &Client, handle: &Handle) {
    let kernel = &client.kernel;
    let Some(latch) = latch(client, handle) else { return };
    let latch = latch.with_priority(priority(client));
    let waits = kernel.wait("campaign", client.place);
    let patience = client.random.around(kernel.plan.think * 20);
    let won = match client.random.percent(15) {
        true => Ok(match latch.try_campaign().await {
            Ok(None) => return drop(waits),
            Ok(Some(leadership)) => Ok(leadership),
            Err(error) => Err(error),
        }),
        false => first(latch.campaign(), kernel.sleep(patience)).await,
    };
    drop(waits);
    kernel.count("campaign");
    let Ok(Ok(leadership)) = won else { return };
    let leadership = Rc::new(leadership);
    let session = handle.session().id();
    let leading = leadership.is_held();
    kernel.trace.note([11, session.number(), leadership.fencing_token()]);
    kernel.trace.log(format_args!(
        "node {}: session {session} leads, token {}: {leading}",
        client.place,
        leadership.fencing_token()
    ));
    {
        let checks = &mut *kernel.checks.borrow_mut();
        let forced = |session| checks.sessions.is_forced(session);
        kernel.check(checks.elections.leads(&leadership, session, client.place, forced));
    }
    let mut lost = !leading;
    for _ in 0..client.random.within(1..4) {
        client.think().await;
        let leading = leadership.is_held();
        kernel.check(require(!leading || !lost, "elections: lost stays lost", || {
            format!("{} leads again", leadership.path())
        }));
        lost |= !leading;
    }
    if client.random.percent(60) {
        hand_over(client, handle, &latch, &leadership).await;
    }
}

/// Most candidates have no priority.
fn priority(client: &Client) -> i32 {
    match client.random.below(6) {
        0 => -1,
        1 => 1,
        2 => 2,
        _ => 0,
    }
}

/// Hands over to a candidate somewhere in the order, or to the next one.
async fn hand_over(client: &Client, handle: &Handle, latch: &LeaderLatch, from: &Leadership) {
    let kernel = &client.kernel;
    let Ok(candidates) = latch.candidates().await else { return };
    let others = candidates.len().saturating_sub(1);
    let named = match others > 0 && client.random.percent(70) {
        true => candidates.get(1 + client.random.below(others as u64) as usize),
        false => None,
    };
    let patience = client.random.around(kernel.plan.think * 3);
    let handed = first(from.handing_over(named, false), kernel.sleep(patience)).await;
    let Ok(Ok(leader)) = handed else { return };
    let leader = unless!(HandOverBlind, leader, candidates[0].clone());
    kernel.count("hand the lead over");
    let session = handle.session().id();
    let token = leader.fencing_token().unwrap_or_default();
    kernel.trace.note([14, session.number(), token]);
    kernel.trace.log(format_args!(
        "node {}: session {session} with token {} has handed over to {}, token {token}",
        client.place,
        from.fencing_token(),
        leader.name()
    ));
    kernel.check(require(!from.is_held(), "elections: lost stays lost", || {
        format!("{} leads after it has handed over", from.path())
    }));
    let checks = &*kernel.checks.borrow();
    kernel.check(checks.elections.handed_over(&checks.oracle, from, &leader));
}

async fn select(client: &Client, handle: &Handle) {
    let kernel = &client.kernel;
    let Ok(selector) = LeaderSelector::new(handle.session(), PATH, "selector") else { return };
    let mut selector = selector.with_priority(priority(client));
    if client.random.percent(50) {
        selector = selector.with_hand_over(Duration::from_nanos(kernel.plan.think));
    }
    let waits = kernel.wait("select", client.place);
    let patience = client.random.around(kernel.plan.think * 20);
    let selecting = selector.running(|leadership| async move {
        kernel.count("select");
        for term in 0..client.random.within(1..4) {
            kernel.check(require(leadership.is_held(), "elections: runs while leading", || {
                format!("{} runs on, and leads no longer", leadership.path())
            }));
            // Now and then somebody deletes the leader's znode.
            if term == 1 && client.random.percent(30) {
                drop(handle.session().delete(leadership.path()));
            }
            client.think().await;
        }
        match client.random.below(2) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    let _ = first(selecting, kernel.sleep(patience)).await;
    drop(waits);
}

/// The current leader, read directly from the session's replica, for an observer that has seen this token. A first
/// candidate with a smaller one does not lead yet.
async fn leader(handle: &Handle, seen: Zxid) -> Option<Option<Zxid>> {
    let snapshot = handle.view(PATH).await.ok()?;
    let Ok(children) = snapshot.children(PATH) else { return Some(None) };
    // A call to a candidate may outlive all of them.
    let candidates = children.iter().filter(|name| !name.starts_with("call-"));
    let first = candidates.min_by_key(|name| order(name));
    let stat = first.and_then(|name| snapshot.exists(&format!("{PATH}/{name}")).ok()?);
    Some(stat.map(|stat| stat.czxid).filter(|token| *token >= seen))
}

/// Whether this is the leader now, too.
async fn is_still(handle: &Handle, before: Option<Option<Zxid>>, seen: Zxid) -> bool {
    before.is_some() && before == leader(handle, seen).await
}

async fn observe(client: &Client, handle: &Handle) {
    let kernel = &client.kernel;
    let Some(latch) = latch(client, handle) else { return };
    let (mut changes, mut notifications) = (latch.watch(), Notifications::default());
    for _ in 0..client.random.within(2..12) {
        if kernel.is_stopping() {
            return;
        }
        let calm = kernel.phase.get() == Phase::Calm;
        let before = leader(handle, notifications.token()).await;
        match first(changes.recv(), kernel.sleep(GRACE)).await {
            Ok(Ok(_)) if strikes!(LeaderChangeMissed, 3) => {}
            Ok(Ok(now)) => {
                let now = now.and_then(|leader| leader.fencing_token());
                kernel.count("leader reported");
                kernel.trace.note([12, handle.session().id().number(), now.unwrap_or(0)]);
                kernel.check(notifications.record(now));
                if strikes!(LeaderToldAgain, 3) {
                    kernel.check(notifications.record(now));
                }
                // Without a replica, the two reads show different moments.
                let same = handle.session().has_replica();
                let seen = notifications.token();
                let is = if same { leader(handle, seen).await } else { Some(now) };
                kernel.check(require(is == Some(now), "elections: the present leader", || {
                    format!("{now:?} is reported while {is:?} leads")
                }));
            }
            Ok(Err(_)) => return,
            Err(()) if calm && is_still(handle, before, notifications.token()).await => {
                kernel.check(require(
                    notifications.last() == before,
                    "elections: a change is reported",
                    || {
                        format!(
                            "{:?} was reported last, and {before:?} leads",
                            notifications.last()
                        )
                    },
                ));
            }
            Err(()) => {}
        }
    }
}

async fn join_group(client: &Client, handle: &Handle) {
    let kernel = &client.kernel;
    let Ok(group) = Group::new(handle.session(), GROUP) else { return };
    // There are so few names that some clients must wait for each other.
    let name = client.random.below(4).to_string();
    let waits = kernel.wait("join", client.place);
    let patience = client.random.around(kernel.plan.think * 10);
    let joined = first(group.join(&name, b"0"), kernel.sleep(patience)).await;
    drop(waits);
    let Ok(Ok(membership)) = joined else { return };
    kernel.count("join");
    let seen = match handle.session().has_replica() {
        true => group.members().wait().is_ok_and(|members| {
            members.get(&name).is_some_and(|member| {
                member.joined + u64::from(planted!(JoinMisnumbered)) == membership.fencing_token()
            })
        }),
        false => {
            let stat = handle.stat_seen(membership.path()).await;
            stat.is_ok_and(|stat| stat.is_some_and(|stat| stat.czxid == membership.fencing_token()))
        }
    };
    kernel.check(require(seen || !membership.is_held(), "groups: self is in the view", || {
        format!("{} is not in its own view", membership.path())
    }));
    for round in 0..client.random.below(3) {
        client.think().await;
        let updated = match planted!(UpdateRefused) {
            true => Err(Error::NoNode { path: GROUP.to_owned() }),
            false => membership.update(round.to_string()).await,
        };
        let full = matches!(updated, Err(Error::Busy { .. }));
        kernel.check(require(
            updated.is_ok() || full || handle.is_over() || kernel.phase.get() != Phase::Calm,
            "groups: a member can update",
            || format!("{}: {updated:?}", membership.path()),
        ));
    }
    client.think().await;
}

/// The group's members, read directly from the replica: each by its name and its last update.
async fn group_now(handle: &Handle) -> Option<Vec<(String, Zxid)>> {
    let snapshot = handle.view(GROUP).await.ok()?;
    let Ok(children) = snapshot.children(GROUP) else { return Some(Vec::new()) };
    let updated = |name: String| {
        let stat = snapshot.exists(&format!("{GROUP}/{name}")).ok()??;
        Some((name, stat.mzxid))
    };
    Some(children.into_iter().filter_map(updated).collect())
}

async fn observe_group(client: &Client, handle: &Handle) {
    let kernel = &client.kernel;
    let Ok(group) = Group::new(handle.session(), GROUP) else { return };
    let (mut changes, mut last) = (group.watch(), None);
    for _ in 0..client.random.within(2..12) {
        if kernel.is_stopping() {
            return;
        }
        let calm = kernel.phase.get() == Phase::Calm;
        let before = group_now(handle).await;
        match first(changes.recv(), kernel.sleep(GRACE)).await {
            Ok(Ok(members)) => {
                kernel.count("members reported");
                let mut notified: Vec<(String, Zxid)> =
                    members.iter().map(|(name, member)| (name.clone(), member.updated)).collect();
                if planted!(GoneMemberShown) {
                    notified.push(("gone".to_owned(), 1));
                }
                let notified = Some(notified);
                if strikes!(MembersToldAgain, 3) {
                    last.clone_from(&notified);
                }
                kernel.check(require(notified != last, "groups: reported once", || {
                    format!("{notified:?}")
                }));
                // Without a replica, the two reads show different moments.
                let same = handle.session().has_replica();
                let is = if same { group_now(handle).await } else { notified.clone() };
                kernel.check(require(is == notified, "groups: the present members", || {
                    format!("{notified:?} are reported while {is:?} are there")
                }));
                last = notified;
            }
            Ok(Err(_)) => return,
            Err(()) if calm && before.is_some() && before == group_now(handle).await => {
                kernel.check(require(last == before, "groups: a change is reported", || {
                    format!("{last:?} were reported last, and {before:?} are there")
                }));
            }
            Err(()) => {}
        }
    }
}

/// A persistent ephemeral that somebody deletes now and then, until it is closed.
async fn keep_ephemeral(client: &Client, handle: &Handle) {
    let kernel = &client.kernel;
    let path = format!("/stays/{:x}", client.random.next());
    let (coordinator, timeout) = (client.coordinator.clone(), kernel.plan.session_timeout);
    let opened: Arc<Mutex<Vec<Session>>> = Arc::default();
    let all = Arc::clone(&opened);
    let sessions = move || {
        let (session, _) = coordinator.begin_session(Some(timeout), None)?;
        all.lock().unwrap_or_else(PoisonError::into_inner).push(session.clone());
        Ok(session)
    };
    let Ok(znode) = PersistentEphemeral::with_sessions(sessions, &path, b"0") else { return };
    let live = async {
        for round in 1..client.random.within(2..6) {
            if kernel.is_stopping() {
                break;
            }
            let calm = kernel.phase.get() == Phase::Calm;
            // It may open a session, find the parent there, and create the znode: three writes, each of them behind
            // those of others, on slow disks.
            let grace = GRACE + 90 * kernel.plan.sync;
            let present = async {
                if planted!(EphemeralAsleep) {
                    pending::<()>().await;
                }
                znode.wait_present().await
            };
            let present = first(present, kernel.sleep(grace)).await;
            kernel.count("ephemeral stays");
            // With a small limit, the requests of a former client may delay this one.
            let free = kernel.plan.pending_requests_max > 100;
            kernel.check(require(
                present.is_ok() || !calm || !free,
                "ephemerals: it is there",
                || format!("{path} is not there, and nothing is wrong"),
            ));
            if client.random.percent(50) {
                let _ = znode.set(round.to_string());
            }
            if client.random.percent(40) {
                drop(handle.session().delete(&path));
            }
            client.think().await;
        }
    };
    // Half of them are closed, the others dropped.
    let closes = client.random.percent(50);
    let mut ended = first(znode.run(), live).await;
    if planted!(EphemeralStaysGone) {
        ended = Ok(Err(Error::NoNode { path: path.clone() }));
    }
    if let Ok(ended) = ended {
        let stopped = ended.as_ref().is_err_and(crate::types::error::Error::is_session_lost);
        kernel.check(require(stopped, "ephemerals: it goes on", || format!("{path}: {ended:?}")));
    }
    if closes && znode.close().await.is_err() {
        return;
    }
    let calls = &handle.session().in_turn();
    let (synced, left) = (calls.sync(), calls.exists(&path));
    if let (true, Ok(_), Ok(left)) = (closes, synced.await, left.await) {
        // A session lost here leaves its znode until the cluster expires the session.
        let opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = |stat: Stat| {
            let owner = opened.iter().find(|session| Some(session.id()) == stat.ephemeral_owner);
            owner.is_some_and(|session| !session.state().is_final())
        };
        kernel.check(require(
            !left.is_some_and(lives),
            "ephemerals: closed leaves nothing",
            || format!("{path} is closed, and still there"),
        ));
    }
}
