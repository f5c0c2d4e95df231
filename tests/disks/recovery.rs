//! Backups, restoring them, and founding new clusters from the directories of lost ones.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::addresses;
use crate::common::data_dir::current;
use quorate::StartError;
use quorate::recovery::{Founded, Inspection, Loss, Recovery};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session};

const PATIENCE: Duration = Duration::from_secs(60);

fn join(address: &str, peers: &[String], dir: &Path) -> quorate::Result<Coordinator> {
    Coordinator::builder().advertise(address).data_dir(dir).join(peers).wait()
}

/// Everything below a directory except for the lock: the names, and a hash of the contents.
fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.ends_with("LOCK") {
            let mut hasher = DefaultHasher::new();
            fs::read(&path).unwrap().hash(&mut hasher);
            found.push((path, hasher.finish()));
        }
    }
    found.sort();
    found
}

fn fill(session: &Session, names: impl IntoIterator<Item = u32>) {
    for name in names {
        let path = format!("/{name}");
        session
            .create(&path, format!("data of {name}").as_bytes(), CreateMode::Persistent)
            .wait()
            .unwrap();
    }
}

fn has(session: &Session, names: impl IntoIterator<Item = u32>) {
    for name in names {
        let (data, _) = session.get(&format!("/{name}")).wait().unwrap();
        assert_eq!(data.to_vec(), format!("data of {name}").into_bytes());
    }
}

/// Starts the only member of a cluster that was founded from files.
fn start(founded: &Founded) -> Coordinator {
    let address = founded.address.clone();
    let coordinator = join(&address, std::slice::from_ref(&address), &founded.dir).unwrap();
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    coordinator
}

#[test]
fn a_backup_is_one_moment_and_is_restored_into_a_new_cluster() {
    let work = tempfile::tempdir().unwrap();
    let (file, dir) = (work.path().join("backup"), work.path().join("new"));
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    fill(&session, 0..20);
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let (_, stat) = session.get("/19").wait().unwrap();
    let backup = cluster.node(0).backup(&file).wait().unwrap();
    fill(&session, 20..30);
    assert_eq!(Recovery::new().verify(&file).unwrap(), backup);
    assert_eq!(backup.sessions, 1);
    assert_ne!(backup.cluster, 0);
    assert_eq!(backup.bytes, fs::metadata(&file).unwrap().len());
    let names: Vec<_> =
        fs::read_dir(work.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["backup"]);

    let address = addresses(1).remove(0);
    let founded = Recovery::new().restore(&file, &dir, &address).unwrap();
    assert_eq!(founded.zxid, backup.zxid);
    assert_ne!(founded.cluster, backup.cluster);
    let new = start(&founded);
    let restored = new.session();
    has(&restored, 0..20);
    assert!(restored.exists("/20").wait().unwrap().is_none());
    assert_eq!(restored.get("/19").wait().unwrap().1, stat);
    // The new cluster goes on, and uses no zxid twice.
    fill(&restored, 50..52);
    assert!(restored.get("/50").wait().unwrap().1.czxid > backup.zxid);
    // A session of the old cluster can be resumed, or else expires with its ephemerals.
    assert!(restored.exists("/mine").wait().unwrap().is_some());
    let resumed = new.resume(session.id(), session.password()).wait().unwrap();
    resumed.set("/mine", b"still").wait().unwrap();
    new.close().wait().unwrap();
    let again = start(&founded);
    has(&again.session(), 50..52);

    // A backup into a directory in use is refused and changes nothing.
    again.close().wait().unwrap();
    let before = files(&dir);
    let error = Recovery::new().restore(&file, &dir, &address).unwrap_err();
    assert!(matches!(error, Error::Start(StartError::DataDirMismatch { .. })), "{error}");
    assert_eq!(files(&dir), before);
}

/// Two znodes that are only ever written together are equal in every backup, whatever is written during it.
#[test]
fn a_backup_is_consistent_while_others_write() {
    let work = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    for path in ["/one", "/other"] {
        session.create(path, b"0", CreateMode::Persistent).wait().unwrap();
    }
    cluster.node(1).session().sync().wait().unwrap();
    let file = |number: usize| work.path().join(format!("backup-{number}"));
    let zxids: Vec<u64> = std::thread::scope(|scope| {
        let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
        let session = &session;
        scope.spawn(move || {
            let mut count = 0_u32;
            while stopped.try_recv() == Err(crossbeam_channel::TryRecvError::Empty) {
                count += 1;
                let data = count.to_string();
                let data = data.as_bytes();
                session.multi().set("/one", data).set("/other", data).commit().wait().unwrap();
            }
        });
        let mut zxids = Vec::new();
        // Until writes have come between them.
        while zxids.len() < 5 {
            let backup = cluster.node(1).backup(file(zxids.len())).wait().unwrap();
            if zxids.last() != Some(&backup.zxid) {
                zxids.push(backup.zxid);
            }
        }
        drop(stop);
        zxids
    });
    assert!(zxids.is_sorted());
    for (number, zxid) in zxids.into_iter().enumerate() {
        let dir = work.path().join(format!("new-{number}"));
        let founded = Recovery::new().restore(file(number), &dir, &addresses(1).remove(0)).unwrap();
        let member = start(&founded);
        let session = member.session();
        let (one, stat) = session.get("/one").wait().unwrap();
        assert_eq!(session.get("/other").wait().unwrap().0, one);
        assert!(stat.mzxid <= zxid);
        member.close().wait().unwrap();
    }
}

#[test]
fn a_damaged_backup_is_refused_and_nothing_is_made_of_it() {
    let work = tempfile::tempdir().unwrap();
    let (file, dir) = (work.path().join("backup"), work.path().join("new"));
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    fill(&session, 0..3);
    session.create("/large", [7; 200_000], CreateMode::Persistent).wait().unwrap();
    cluster.node(0).backup(&file).wait().unwrap();
    let sound = fs::read(&file).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&file, bytes).unwrap();
        for error in [
            Recovery::new().verify(&file).unwrap_err(),
            Recovery::new().restore(&file, &dir, "127.0.0.1:7400").unwrap_err(),
        ] {
            assert!(
                matches!(error, Error::Start(StartError::BackupDamaged { .. })),
                "{what}: {error}"
            );
        }
        assert!(!dir.exists(), "{what}");
    };
    for place in (0..sound.len()).step_by(sound.len() / 40) {
        let mut flipped = sound.clone();
        flipped[place] ^= 0x10;
        refused(&flipped, &format!("byte {place}"));
        refused(&sound[..place], &format!("cut to {place}"));
    }
    refused(&[&sound[..], b"more"].concat(), "longer");
    let error = Recovery::new().verify(work.path().join("nothing")).unwrap_err();
    assert!(matches!(error, Error::Start(StartError::FileUnusable { .. })), "{error}");
    let error = cluster.node(0).backup(work.path().join("no/directory")).wait().unwrap_err();
    assert!(matches!(error, Error::Start(StartError::FileUnusable { .. })), "{error}");
    fs::write(&file, &sound).unwrap();
    let error = Recovery::new().restore(&file, &dir, "nonsense").unwrap_err();
    assert!(matches!(error, Error::Start(StartError::InvalidPeer { .. })), "{error}");
    assert!(!dir.exists());
}

/// Five members of which two are left; one of the two had been down for a while before.
struct Lost {
    work: tempfile::TempDir,
    addresses: Vec<String>,
}

impl Lost {
    fn dir(&self, member: usize) -> PathBuf {
        self.work.path().join(format!("member-{member}"))
    }

    fn member(&self, member: usize) -> quorate::Result<Coordinator> {
        join(&self.addresses[member], &self.addresses, &self.dir(member))
    }

    /// Member 1 has only the writes below 10, member 0 those below 20.
    fn new() -> Lost {
        let lost = Lost { work: tempfile::tempdir().unwrap(), addresses: addresses(5) };
        let members: Vec<Coordinator> = (0..5).map(|member| lost.member(member).unwrap()).collect();
        for member in &members {
            member.wait_ready(PATIENCE).wait().unwrap();
        }
        let session = members[4].session();
        fill(&session, 0..10);
        members[1].session().sync().wait().unwrap();
        members[1].close().wait().unwrap();
        fill(&session, 10..20);
        members[0].session().sync().wait().unwrap();
        for member in &members {
            member.close().wait().unwrap();
        }
        lost
    }
}

#[test]
fn a_new_cluster_is_founded_from_the_best_directory_that_is_left() {
    let lost = Lost::new();
    let dirs = [lost.dir(1), lost.dir(0)];
    let before = dirs.each_ref().map(|dir| files(dir));
    let plan = Recovery::new().recover(&dirs).unwrap();
    assert_eq!(plan.best.dir, dirs[1]);
    assert_eq!(plan.best.address, lost.addresses[0]);
    let Loss::After { zxid, time } = plan.loss else { panic!("{plan}") };
    let contents = plan.best.contents.clone().unwrap();
    assert!(time.is_some() && zxid <= contents.zxid, "{plan}");
    assert_eq!(contents.voters.len(), 5);
    // All five directories together have lost nothing.
    let all: Vec<PathBuf> = (0..5).map(|member| lost.dir(member)).collect();
    assert_eq!(Recovery::new().recover(&all).unwrap().loss, Loss::Nothing);
    assert_eq!(Recovery::new().recover(&all[..3]).unwrap().loss, Loss::Nothing);
    // Inspecting changes nothing.
    assert_eq!(dirs.each_ref().map(|dir| files(dir)), before);

    let address = addresses(1).remove(0);
    let founded = plan.found_anew(Some(&address)).unwrap();
    assert_ne!((founded.cluster, founded.node), (plan.best.cluster, plan.best.node));
    assert_eq!(founded.zxid, contents.zxid);
    assert!(founded.before.as_ref().unwrap().join("IDENTITY").exists());
    let new = start(&founded);
    has(&new.session(), 0..20);
    new.session().create("/new", b"", CreateMode::Persistent).wait().unwrap();
    new.close().wait().unwrap();
    // All old files are kept, and the steps of a plan that are already done are not repeated.
    let aside = Recovery::new().inspect(founded.before.unwrap()).unwrap();
    assert_eq!(aside.contents, plan.best.contents);
    let error = plan.found_anew(None).unwrap_err();
    assert!(matches!(error, Error::Start(StartError::Unrecoverable { .. })), "{error}");
    assert!(start_again(&founded.dir, &address).exists("/new").wait().unwrap().is_some());
}

fn start_again(dir: &Path, address: &str) -> Session {
    let coordinator = join(address, &[address.to_owned()], dir).unwrap();
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    coordinator.session()
}

#[test]
fn members_of_the_old_cluster_are_refused_by_the_new_one() {
    let lost = Lost::new();
    let plan = Recovery::new().recover([lost.dir(0), lost.dir(1)]).unwrap();
    // The new cluster has the address at which the old members look for theirs.
    let founded = plan.found_anew(None).unwrap();
    assert_eq!(founded.address, lost.addresses[0]);
    let new = start(&founded);
    let old = lost.member(1).unwrap();
    let (peer, reason) = loop {
        match old.wait_ready(Duration::from_millis(100)).wait() {
            Err(Error::Start(StartError::PeerRefused { peer, reason })) => break (peer, reason),
            Err(Error::Timeout { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(peer, lost.addresses[0]);
    assert!(reason.contains("cluster"), "{reason}");
    fill(&new.session(), 70..72);
    assert!(old.session().exists("/70").wait().map_or(true, |stat| stat.is_none()));
}

#[test]
fn inspection_reports_contents_and_damage() {
    let work = tempfile::tempdir().unwrap();
    let (dir, address) = (work.path().join("data"), addresses(1).remove(0));
    let missing = Recovery::new().inspect(&dir).unwrap_err();
    assert!(matches!(missing, Error::Start(StartError::DataDirUnusable { .. })), "{missing}");
    assert!(!dir.exists());
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("thesis.txt"), "precious").unwrap();
    let foreign = Recovery::new().inspect(&dir).unwrap_err();
    assert!(matches!(foreign, Error::Start(StartError::DataDirUnusable { .. })), "{foreign}");
    assert_eq!(files(&dir).len(), 1);
    fs::remove_dir_all(&dir).unwrap();

    let member = join(&address, std::slice::from_ref(&address), &dir).unwrap();
    member.wait_ready(PATIENCE).wait().unwrap();
    fill(&member.session(), 0..5);
    // Four znodes exist from the beginning.
    let znodes = 4 + 5;
    let running = Recovery::new().inspect(&dir).unwrap_err();
    assert!(matches!(running, Error::Start(StartError::DataDirInUse { .. })), "{running}");
    member.close().wait().unwrap();
    let sound: Inspection = Recovery::new().inspect(&dir).unwrap();
    let contents = sound.contents.clone().unwrap();
    assert_eq!((sound.address.as_str(), contents.znodes), (address.as_str(), znodes));
    assert_eq!(contents.voters, [sound.node]);
    // The commit index of a write is stored only with the next write.
    assert!(contents.commit <= contents.last_index && contents.committed_zxid <= contents.zxid);
    let text = sound.to_string();
    assert!(text.contains(&address) && text.contains(&format!("{znodes} znodes")), "{text}");

    // Inspection reports damage and does not mark it: marking is the start's task.
    let path = current(&dir).join("log/witness");
    let witness = fs::read(&path).unwrap();
    fs::write(&path, &witness[..100]).unwrap();
    let damaged = Recovery::new().inspect(&dir).unwrap();
    assert!(damaged.damaged.as_ref().unwrap().contains("witness"), "{damaged}");
    assert_eq!((damaged.contents, damaged.node), (None, sound.node));
    assert!(!dir.join("QUARANTINED").exists());
    let error = Recovery::new().recover([&dir]).unwrap_err();
    assert!(matches!(error, Error::Start(StartError::Unrecoverable { .. })), "{error}");
    assert!(error.to_string().contains("--damaged"), "{error}");
    fs::write(&path, &witness).unwrap();
    assert_eq!(Recovery::new().inspect(&dir).unwrap(), sound);
    // A directory that was once found damaged counts as intact when all checks pass.
    fs::write(dir.join("QUARANTINED"), "a record\n").unwrap();
    let marked = Recovery::new().inspect(&dir).unwrap();
    assert_eq!((&marked.damaged, marked.found_damaged.as_deref()), (&None, Some("a record")));
    assert_eq!(marked.contents, sound.contents);
    assert_eq!(Recovery::new().recover([&dir]).unwrap().loss, Loss::Nothing);
    // A promise of one founding does not matter for another cluster.
    fs::remove_file(dir.join("QUARANTINED")).unwrap();
    let promise = fs::read(current(&dir).join("PROMISE")).unwrap();
    for bytes in [None, Some(b"nonsense")] {
        fs::remove_file(current(&dir).join("PROMISE")).unwrap();
        bytes
            .into_iter()
            .for_each(|bytes| fs::write(current(&dir).join("PROMISE"), bytes).unwrap());
        let unpromised = Recovery::new().inspect(&dir).unwrap();
        assert!(unpromised.damaged.as_ref().unwrap().contains("PROMISE"), "{unpromised}");
        assert_eq!(unpromised.contents, sound.contents);
        assert_eq!(Recovery::new().recover([&dir]).unwrap().loss, Loss::Nothing);
        fs::write(current(&dir).join("PROMISE"), &promise).unwrap();
    }
    // Without its identity, the member's cluster is unknown.
    fs::write(current(&dir).join("IDENTITY"), b"nonsense").unwrap();
    assert!(matches!(Recovery::new().inspect(&dir), Err(Error::Start(StartError::Corrupt { .. }))));
}

/// After a fault on all disks, the tool found no directory that it could use.
#[test]
fn the_intact_part_of_damaged_directories_is_recovered_on_request() {
    let lost = Lost::new();
    let dirs: Vec<PathBuf> = (0..2).map(|member| lost.dir(member)).collect();
    let sound = Recovery::new().recover(&dirs).unwrap();
    // The end of the log is unknown.
    for dir in &dirs {
        fs::write(current(dir).join("log/witness"), b"nonsense").unwrap();
    }
    let error = Recovery::new().recover(&dirs).unwrap_err();
    assert!(error.to_string().contains("--damaged"), "{error}");
    let plan = Recovery::new().recover_damaged(&dirs).unwrap();
    assert_eq!(plan.best.dir, sound.best.dir);
    assert_eq!((&plan.best.contents, &plan.best.part), (&None, &sound.best.contents));
    assert_eq!(plan.loss, sound.loss);
    let text = plan.to_string();
    assert!(text.contains("damaged") && text.contains("may be lost"), "{text}");
    let before = files(&dirs[1]);
    let founded = plan.found_anew(Some(&addresses(1)[0])).unwrap();
    assert_eq!(files(&dirs[1]), before);
    let new = start(&founded);
    has(&new.session(), 0..20);
    new.close().wait().unwrap();
    assert!(founded.before.unwrap().join("IDENTITY").exists());

    // A damaged log is used up to the damage.
    let dir = lost.dir(2);
    let mut segments =
        fs::read_dir(current(&dir).join("log")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segments.find(|path| path.to_str().unwrap().ends_with("000001")).unwrap();
    let bytes = fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let mut kept = BTreeSet::new();
    for place in (0..end).step_by(end / 24) {
        let mut harmed = bytes.clone();
        harmed[place..].iter_mut().take(64).for_each(|byte| *byte ^= 0x5A);
        fs::write(&segment, harmed).unwrap();
        let Ok(plan) = Recovery::new().recover_damaged([&dir]) else { continue };
        let taken = plan.best.contents.as_ref().or(plan.best.part.as_ref()).unwrap();
        assert!(taken.committed_zxid <= taken.zxid && taken.zxid <= 30, "{plan}");
        if plan.best.part.is_some() {
            let Loss::After { zxid, .. } = plan.loss else { panic!("{plan}") };
            assert_eq!(zxid, taken.committed_zxid);
        }
        kept.insert(taken.zxid);
    }
    assert!(kept.len() > 5, "{kept:?}");
    fs::write(&segment, &bytes).unwrap();
    // A damaged checkpoint is not used at all.
    let mut generations = fs::read_dir(current(&dir)).unwrap().map(|entry| entry.unwrap().path());
    let database = generations.find(|path| path.join("db").exists()).unwrap().join("chunks");
    let bytes = fs::read(&database).unwrap();
    fs::write(&database, vec![0; bytes.len()]).unwrap();
    assert!(Recovery::new().recover_damaged([&dir]).is_err());
}

/// A directory whose member has been started since the plan was made is left alone.
#[test]
fn a_plan_is_refused_if_its_directory_has_changed() {
    let work = tempfile::tempdir().unwrap();
    let (dir, address) = (work.path().join("data"), addresses(1).remove(0));
    let peers = [address.clone()];
    let member = join(&address, &peers, &dir).unwrap();
    member.wait_ready(PATIENCE).wait().unwrap();
    member.close().wait().unwrap();
    let plan = Recovery::new().recover([&dir]).unwrap();
    assert_eq!(plan.loss, Loss::Nothing);
    let member = join(&address, &peers, &dir).unwrap();
    member.wait_ready(PATIENCE).wait().unwrap();
    let error = plan.found_anew(None).unwrap_err();
    assert!(matches!(error, Error::Start(StartError::DataDirInUse { .. })), "{error}");
    fill(&member.session(), 0..3);
    member.close().wait().unwrap();
    let before = files(&dir);
    let error = plan.found_anew(None).unwrap_err();
    assert!(matches!(error, Error::Start(StartError::Unrecoverable { .. })), "{error}");
    assert_eq!(files(&dir), before);
    has(&start_again(&dir, &address), 0..3);
}
