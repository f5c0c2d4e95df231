//! Contenders of other libraries at the path of a lock: their names are those that their clients give.

use quorate::recipes::{
    LeaderLatch, LeaderSelector, Naming, ReadWriteLock, ReentrantLock, Semaphore,
};
use quorate::testing::Cluster;
use quorate::{CreateMode, Created, Error, Session};

use super::{Task, lock};

const UUID: &str = "_c_41bb8ee8-bb0d-4f29-9c1f-0123456789ab-";
const HEX: &str = "646dbb08aa7f4a7ea0f1b2c3d4e5f607";

/// All forms of the names of a lock's contenders.
fn locks() -> [String; 6] {
    [
        format!("{UUID}lock-"),
        format!("_c_{HEX}-lock-"),
        format!("{HEX}-lock-"),
        format!("{HEX}__lock__"),
        "lock-".to_owned(),
        "x-72057594037927936-".to_owned(),
    ]
}

/// Creates the contender of a client in another language.
fn join(session: &Session, parent: &str, name: &str) -> Created {
    let path = format!("{parent}/{name}");
    session.create_with_parents(&path, b"", CreateMode::EphemeralSequential).wait().unwrap()
}

/// The application held a lock that Curator or kazoo held at the same path.
#[test]
fn each_client_that_came_first_is_waited_for() {
    for name in locks() {
        let cluster = Cluster::new(3);
        let other = cluster.node(1).session();
        let theirs = join(&other, "/lock", &name);
        assert!(lock(&cluster, 0).try_acquire().wait().unwrap().is_none(), "{name} holds");
        let waiting = lock(&cluster, 0);
        let mut task = Task::new(async move { waiting.acquire().await });
        assert!(task.settle(&cluster).is_none());
        // One that comes later is not waited for, whatever comes first in the order of names.
        let later = join(&other, "/lock", &name);
        other.delete(&theirs.path).wait().unwrap();
        let guard = task.settle(&cluster).expect("its turn has come").unwrap();
        assert!(guard.is_held() && other.exists(&later.path).wait().unwrap().is_some());
        // Tokens of others are the zxids that created their znodes.
        assert!(theirs.stat.czxid < guard.fencing_token());
        assert!(guard.fencing_token() < later.stat.czxid);
        cluster.node(0).session().sync().wait().unwrap();
        let contenders = lock(&cluster, 0).contenders().wait().unwrap();
        let paths = contenders.iter().map(|contender| contender.path.as_str());
        assert!(paths.eq([guard.path(), &later.path]), "{name}: {contenders:?}");
    }
}

#[test]
fn a_lost_client_is_waited_for_until_its_session_has_expired() {
    let cluster = Cluster::new(3);
    let other = cluster.node(1).session();
    join(&other, "/lock", &format!("{UUID}lock-"));
    let waiting = lock(&cluster, 0);
    let mut task = Task::new(async move { waiting.acquire().await });
    assert!(task.settle(&cluster).is_none());
    cluster.expire(&other);
    assert!(task.settle(&cluster).expect("it is free").unwrap().is_held());
}

#[test]
fn the_own_name_is_one_that_the_chosen_client_counts() {
    let end = |path: &str| {
        path.trim_start_matches(|letter: char| letter == '/' || letter.is_ascii_hexdigit())
            .to_owned()
    };
    for (naming, names) in [
        (
            Naming::Curator,
            ["-lock-", "-lock-", "-__WRIT__", "-__READ__", "-latch-", "-candidate-lock-"],
        ),
        (
            Naming::Kazoo,
            [
                "__lock__",
                "__lock__",
                "__lock__",
                "__rlock__",
                "-candidate__lock__",
                "-candidate__lock__",
            ],
        ),
    ] {
        let session = Cluster::new(1).node(0).session();
        let lock = session.lock("/a").unwrap().with_naming(naming).acquire().wait().unwrap();
        let reentrant = ReentrantLock::new(&session, "/b").unwrap().with_naming(naming);
        let reentrant = reentrant.acquire().wait().unwrap();
        let shared = ReadWriteLock::new(&session, "/c").unwrap().with_naming(naming);
        let write = shared.write().wait().unwrap();
        let written = end(write.path());
        // The reader has the place of the writer, and the names of the same client.
        let read = write.downgrade().wait().unwrap();
        let latch = LeaderLatch::new(&session, "/d", "").unwrap().with_naming(naming);
        let latch = latch.campaign().wait().unwrap();
        let selector = LeaderSelector::new(&session, "/e", "").unwrap().with_naming(naming);
        let selector = selector.latch().campaign().wait().unwrap();
        let paths = [
            end(lock.path()),
            end(reentrant.path()),
            written,
            end(read.path()),
            end(latch.path()),
            end(selector.path()),
        ];
        assert_eq!(paths, names.map(|name| format!("{name}0000000000")));
    }
}

#[test]
fn a_contender_of_another_recipe_is_reported_and_others_are_not_waited_for() {
    let cluster = Cluster::new(3);
    let (own, other) = (lock(&cluster, 0), cluster.node(1).session());
    for name in ["n_", "__READ__", "qn-"] {
        let theirs = join(&other, "/lock", name);
        let expected = Error::UnknownContender { path: theirs.path.clone() };
        assert_eq!(own.try_acquire().wait().unwrap_err(), expected);
        assert_eq!(own.acquire().wait().unwrap_err(), expected);
        other.delete(&theirs.path).wait().unwrap();
        cluster.node(0).session().sync().wait().unwrap();
        assert!(own.contenders().wait().unwrap().is_empty(), "nothing is left behind");
    }
    // A waiter is told, too.
    let guard = own.acquire().wait().unwrap();
    let waiting = lock(&cluster, 2);
    let mut task = Task::new(async move { waiting.acquire().await });
    assert!(task.settle(&cluster).is_none());
    let theirs = join(&other, "/lock", "n_");
    guard.release().wait().unwrap();
    let error = task.settle(&cluster).expect("it is told").unwrap_err();
    assert_eq!(error, Error::UnknownContender { path: theirs.path.clone() });
    other.delete(&theirs.path).wait().unwrap();
    // Nobody holds anything by these.
    for (name, mode) in [
        ("job-", CreateMode::PersistentSequential),
        ("config", CreateMode::Persistent),
        ("host-1", CreateMode::Ephemeral),
    ] {
        other.create(&format!("/lock/{name}"), b"", mode).wait().unwrap();
    }
    cluster.node(0).session().sync().wait().unwrap();
    assert!(own.acquire().wait().unwrap().is_held());
}

#[test]
fn readers_and_writers_of_all_clients_share_one_order() {
    for (read, write) in
        [("__READ__", "__WRIT__"), ("__rlock__", "__lock__"), ("-read-", "-write-")]
    {
        let cluster = Cluster::new(3);
        let (own, other) = (cluster.node(0).session(), cluster.node(1).session());
        let shared = ReadWriteLock::new(&own, "/rw").unwrap();
        let reader = join(&other, "/rw", &format!("{HEX}{read}"));
        let reading = shared.try_read().wait().unwrap().expect("readers share");
        assert!(shared.try_write().wait().unwrap().is_none(), "{read} reads");
        other.delete(&reader.path).wait().unwrap();
        reading.release().wait().unwrap();
        own.sync().wait().unwrap();
        let writing = shared.try_write().wait().unwrap().expect("it is free");
        let writer = join(&other, "/rw", &format!("{HEX}{write}"));
        writing.release().wait().unwrap();
        own.sync().wait().unwrap();
        assert!(shared.try_read().wait().unwrap().is_none(), "{write} writes");
        assert!(shared.try_write().wait().unwrap().is_none(), "{write} writes");
        // The attempts have left nothing.
        own.sync().wait().unwrap();
        let kinds: Vec<_> =
            shared.contenders().wait().unwrap().iter().map(|one| one.kind).collect();
        assert_eq!(kinds, ["write"]);
        other.delete(&writer.path).wait().unwrap();
        own.sync().wait().unwrap();
        assert!(shared.try_read().wait().unwrap().is_some());
    }
    // Curator's mutex does not count the two halves of a read-write lock.
    let session = Cluster::new(1).node(0).session();
    let mutex = join(&session, "/rw", &format!("{UUID}lock-"));
    let error = ReadWriteLock::new(&session, "/rw").unwrap().try_read().wait().unwrap_err();
    assert_eq!(error, Error::UnknownContender { path: mutex.path });
}

/// A latch led beside the candidates of Curator and kazoo.
#[test]
fn candidates_of_all_clients_are_one_election() {
    let cluster = Cluster::new(3);
    let (own, other) = (cluster.node(0).session(), cluster.node(1).session());
    let latch = LeaderLatch::new(&own, "/leader", "rust").unwrap();
    let selector = LeaderSelector::new(&own, "/leader", "rust").unwrap();
    for name in [format!("{UUID}latch-"), format!("{HEX}__lock__"), "n_".to_owned()] {
        let path = format!("/leader/{name}");
        let theirs = other.create_with_parents(&path, b"java", CreateMode::EphemeralSequential);
        let theirs = theirs.wait().unwrap().path;
        own.sync().wait().unwrap();
        assert!(latch.try_campaign().wait().unwrap().is_none(), "{name} leads");
        assert_eq!(latch.leader().wait().unwrap().expect("somebody leads").name(), "java");
        other.delete(&theirs).wait().unwrap();
        own.sync().wait().unwrap();
    }
    // The two of Curator do not count each other.
    let mutex = join(&other, "/leader", &format!("{UUID}lock-"));
    own.sync().wait().unwrap();
    assert!(selector.latch().try_campaign().wait().unwrap().is_none(), "it leads");
    let error = latch.try_campaign().wait().unwrap_err();
    assert_eq!(error, Error::UnknownContender { path: mutex.path.clone() });
    other.delete(&mutex.path).wait().unwrap();
    own.sync().wait().unwrap();
    // Those of this library do.
    let leading = selector.latch().campaign().wait().unwrap();
    assert!(latch.try_campaign().wait().unwrap().is_none());
    leading.release().wait().unwrap();
    assert!(latch.try_campaign().wait().unwrap().is_some());
}

#[test]
fn holders_in_other_languages_are_asked_and_ask_by_the_word_of_curator() {
    let cluster = Cluster::new(3);
    let (own, other) = (lock(&cluster, 0), cluster.node(1).session());
    let theirs = join(&other, "/lock", &format!("{UUID}lock-"));
    assert_eq!(own.revoke().wait().unwrap(), 1);
    other.sync().wait().unwrap();
    assert_eq!(&*other.get(&theirs.path).wait().unwrap().0, b"__REVOKE__");
    other.delete(&theirs.path).wait().unwrap();
    let guard = own.acquire().wait().unwrap();
    other.set(guard.path(), b"__REVOKE__").wait().unwrap();
    cluster.node(0).session().sync().wait().unwrap();
    assert!(
        guard.revocations().wait().unwrap().wait_asked().wait().unwrap(),
        "asked before it listened"
    );
}

fn semaphore(session: &Session, naming: Naming) -> Semaphore {
    Semaphore::new(session, "/permits", 2).unwrap().with_naming(naming)
}

/// How many leases there are.
fn held(session: &Session, naming: Naming) -> usize {
    let contenders = semaphore(session, naming).contenders().wait().unwrap();
    contenders.iter().filter(|contender| contender.kind == "lease").count()
}

#[test]
fn leases_of_all_clients_are_no_more_than_there_are() {
    for (naming, leases, name, mode) in [
        (
            Naming::Curator,
            "/permits/leases",
            format!("{UUID}lease-"),
            CreateMode::EphemeralSequential,
        ),
        (Naming::Kazoo, "/permits", HEX.to_owned(), CreateMode::Ephemeral),
    ] {
        let cluster = Cluster::new(3);
        let (own, other) = (cluster.node(0).session(), cluster.node(1).session());
        let own_permit = semaphore(&own, naming).acquire().wait().unwrap();
        assert!(own_permit.is_held() && own_permit.path().starts_with(leases));
        let theirs =
            other.create_with_parents(&format!("{leases}/{name}"), b"", mode).wait().unwrap();
        own.sync().wait().unwrap();
        assert_eq!(held(&own, naming), 2);
        assert!(semaphore(&own, naming).try_acquire().wait().unwrap().is_none());
        let waiting = semaphore(&own, naming);
        let mut task = Task::new(async move { waiting.acquire().await });
        assert!(task.settle(&cluster).is_none());
        // The next one waits behind it.
        let waiting = semaphore(&cluster.node(2).session(), naming);
        let mut next = Task::new(async move { waiting.acquire().await });
        assert!(next.settle(&cluster).is_none());
        // A client in another language is lost, or gives it back.
        other.delete(&theirs.path).wait().unwrap();
        let second = task.settle(&cluster).expect("there is one").unwrap();
        assert!(next.settle(&cluster).is_none());
        // Whoever gives up leaves nothing behind.
        drop(next);
        own_permit.release().wait().unwrap();
        second.release().wait().unwrap();
        own.sync().wait().unwrap();
        assert_eq!(held(&own, naming), 0);
        let lock = if naming == Naming::Curator { "/permits/locks" } else { "/permits-__lock__" };
        assert_eq!(own.children(lock).wait().unwrap(), [""; 0]);
    }
}

#[test]
fn a_permit_is_lost_with_its_session_and_given_to_the_next() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let permits = [(); 2].map(|()| semaphore(&session, Naming::Curator).acquire().wait().unwrap());
    let waiting = semaphore(&cluster.node(1).session(), Naming::Curator);
    let mut task = Task::new(async move { waiting.acquire().await });
    assert!(task.settle(&cluster).is_none());
    cluster.expire(&session);
    let permit = task.settle(&cluster).expect("both are free").unwrap();
    assert!(permit.is_held() && permits.iter().all(|permit| !permit.is_held()));
}

/// Whoever has lost its turn creates no lease: the next one has its turn already.
#[test]
fn a_waiter_whose_place_was_deleted_gets_nothing() {
    let cluster = Cluster::new(1);
    let (own, other) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let permits = [(); 2].map(|()| semaphore(&own, Naming::Curator).acquire().wait().unwrap());
    let waiting = semaphore(&own, Naming::Curator);
    let mut task = Task::new(async move { waiting.acquire().await });
    assert!(task.settle(&cluster).is_none());
    let [place] = &other.children("/permits/locks").wait().unwrap()[..] else {
        panic!("one waits")
    };
    other.delete(&format!("/permits/locks/{place}")).wait().unwrap();
    assert!(matches!(task.settle(&cluster), Some(Err(Error::NoNode { .. }))));
    assert_eq!(held(&own, Naming::Curator), permits.len());
}

#[test]
fn semaphores_of_two_forms_do_not_share_a_path() {
    for (naming, foreign) in [(Naming::Curator, "/permits/le"), (Naming::Kazoo, "/permits/")] {
        let session = Cluster::new(1).node(0).session();
        let _permit = semaphore(&session, naming).acquire().wait().unwrap();
        let error = Semaphore::new(&session, "/permits", 2).unwrap().acquire().wait().unwrap_err();
        let Error::UnknownContender { path } = error else { panic!("{error}") };
        assert!(path.starts_with(foreign), "{path}");
    }
    let session = Cluster::new(1).node(0).session();
    let _permit = semaphore(&session, Naming::Kazoo).acquire().wait().unwrap();
    let differs = Semaphore::new(&session, "/permits", 3)
        .unwrap()
        .with_naming(Naming::Kazoo)
        .acquire()
        .wait();
    let reason = "/permits has 2 and not 3; give all programs the same number".to_owned();
    assert_eq!(differs.unwrap_err(), Error::InvalidSetting { setting: "permits", reason });
}
