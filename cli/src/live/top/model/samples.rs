//! Sample replies for tests: real replies of an in-memory cluster, with some values changed.

use std::time::Duration;

use quorate::CreateMode;
use quorate::operate::{Contended, contended};
use quorate::operate::{MemberReport, Role, SessionInfo};
use quorate::session::SessionId;
use quorate::testing::Cluster;

use super::{Clocks, Model, ShownZnode, Update};

/// When a test begins: 12:34:56 of some day.
const BEGIN: u64 = 1_700_000_000 / 86_400 * 86_400 + 45_296;

pub(in super::super) fn at(seconds: u64) -> Clocks {
    Clocks { since: Duration::from_secs(seconds), unix: Duration::from_secs(BEGIN + seconds) }
}

pub(in super::super) fn session_id(number: u64) -> SessionId {
    serde_json::from_value(format!("0x{number:016x}").into()).expect("it is an id")
}

/// Three voters, of which the second leads.
pub(in super::super) fn members(zxid: u64) -> Vec<MemberReport> {
    let cluster = Cluster::new(1);
    cluster.node(0).session().sync().wait().expect("it has a quorum");
    let report = cluster.node(0).reports().wait().expect("it reports").remove(0);
    let member = |number: u64| {
        let mut member = report.clone();
        member.address = format!("10.0.0.{number}:7400");
        member.id = format!("{number:016x}");
        member.zone = format!("zone-{number}");
        member.role = if number == 2 { Role::Leader } else { Role::Voter };
        member.lag = Some(3 - number);
        if let Some(state) = &mut member.state {
            state.term = 7;
            state.zxid = zxid;
            state.sessions = 10 * number;
            state.stale_by = Some(Duration::from_millis(40));
            state.log_bytes = 3 << 20;
            state.checkpoint_bytes = 12 << 20;
            state.checkpoint_age = Duration::from_secs(200);
            let commit = state.commit.as_mut().expect("a leader has commits");
            (commit.p50, commit.p99) = (Duration::from_micros(300), Duration::from_millis(2));
            state.commit = state.commit.filter(|_| number == 2);
            let sync = state.disk_sync.as_mut().expect("it has a disk");
            sync.p99 = Duration::from_micros(1500 * number);
            state.unreachable = Vec::new();
        }
        member
    };
    (1..=3).map(member).collect()
}

pub(in super::super) fn silence(member: &mut MemberReport) {
    (member.is_silent, member.state, member.lag) = (true, None, None);
    member.role = Role::Voter;
}

/// Two sessions: the first of a member, renewed one second ago, the second of a client, renewed long ago.
pub(in super::super) fn sessions() -> Vec<SessionInfo> {
    let cluster = Cluster::new(1);
    cluster.node(0).session().sync().wait().expect("it has a quorum");
    let info = cluster.node(0).sessions().wait().expect("it reports").remove(0);
    let mut held = info.clone();
    held.from = None;
    (held.id, held.owner) = (session_id(1), Some("10.0.0.1:7400".to_owned()));
    held.renewed = Some(Duration::from_secs(1));
    held.age = Duration::from_secs(300);
    held.requests_per_second = Some(2);
    let mut client = info;
    (client.id, client.owner) = (session_id(2), None);
    client.served_by = Some("10.0.0.3:7400".to_owned());
    client.from = Some("10.0.0.9".to_owned());
    client.timeout = Duration::from_secs(10);
    client.renewed = Some(Duration::from_secs(9));
    client.age = Duration::from_secs(60);
    client.requests_per_second = Some(16_000);
    vec![held, client]
}

/// A lock that the first session holds for 41 seconds, and for which the second has waited for 3.
pub(in super::super) fn locks() -> Vec<Contended> {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let lock = session.lock("/jobs/nightly").expect("it is a path");
    let guard = lock.acquire().wait().expect("nobody else wants it");
    let mut locks = contended(&session, "/").wait().expect("it has a quorum");
    guard.release().wait().expect("it is held");
    let since = |ago| (BEGIN - ago) * 1000;
    let holder = &mut locks[0].holders[0];
    (holder.session, holder.since) = (Some(session_id(1)), since(41));
    let mut waiter = holder.clone();
    waiter.path.push('2');
    (waiter.session, waiter.since) = (Some(session_id(2)), since(3));
    locks[0].waiters = vec![waiter];
    locks
}

pub(in super::super) fn znode(data: &[u8]) -> ShownZnode {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/z", data, CreateMode::Persistent).wait().expect("there is none yet");
    let (data, mut stat) = session.get("/z").wait().expect("it was created");
    let (acl, _) = session.acl("/z").wait().expect("it was created");
    (stat.ctime, stat.mtime) = ((BEGIN - 300) * 1000, (BEGIN - 41) * 1000);
    ShownZnode { data, stat, acl }
}

/// A model that has read everything at the beginning and again after a second.
pub(in super::super) fn model() -> Model {
    let mut model = Model::default();
    model.update(Update::Reports(Ok(members(100))), at(0));
    model.update(Update::Reports(Ok(members(142))), at(1));
    model.update(Update::Sessions(Ok(sessions())), at(1));
    model.update(Update::Locks { found: Ok(locks()), took: Duration::ZERO }, at(1));
    let children = |path: &str, names: &[&str]| Update::Children {
        path: path.to_owned(),
        listed: Ok(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    model.update(children("/", &["jobs", "app"]), at(1));
    model
}
