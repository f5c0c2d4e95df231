//! Power cuts: acknowledged writes survive them.
//!
//! The store is on its own ext4 file system on a loop device. As in xfstests, the file system is shut down at
//! once: nothing that the kernel still holds in memory reaches the device any more, neither data nor journal.
//! A fresh mount then finds what a power cut would have left. A file that is written beside the store and
//! never synced proves that this works.
//!
//! The test needs root, `mkfs.ext4`, loop devices and `xfs_io`. Where one is missing, it prints that and
//! ends.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::name_of;
use crossbeam_channel::{Receiver, unbounded};
use quorate::{Coordinator, CreateMode, Error, Pending, Session, Stat};

const WRITER: &str = name_of(concat!(module_path!(), "::writer"));
const DIRECTORY: &str = "QUORATE_TEST_POWER_CUT";
const ADDRESS: &str = "QUORATE_TEST_ADDRESS";
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of znodes and the bytes of each. With the number of writes before each cut, this is enough for
/// several checkpoints.
const ZNODES: u64 = 7;
const BYTES: usize = 8 << 10;
/// The number of writes in flight at once.
const AHEAD: usize = 24;

/// The data of the write with this number: each write has different bytes.
fn data(number: u64) -> Vec<u8> {
    let mut data = number.to_be_bytes().to_vec();
    data.extend((0..BYTES as u64).map(|place| (number.wrapping_mul(31) ^ place) as u8));
    data
}

/// Not a test of its own: the process that writes until the power is cut. Lines for the test begin with '@'.
#[test]
fn writer() {
    let (Ok(directory), Ok(address)) = (std::env::var(DIRECTORY), std::env::var(ADDRESS)) else {
        return;
    };
    println!("@starting");
    if let Err(error) = start_and_write(&directory, &address) {
        println!("@error {error}");
    }
}

fn start_and_write(directory: &str, address: &str) -> Result<(), Error> {
    let coordinator = Coordinator::builder().data_dir(directory).join([address]).wait()?;
    coordinator.wait_ready(PATIENCE).wait()?;
    let session = coordinator.session();
    let mut next = 0;
    for znode in 0..ZNODES {
        let path = format!("/{znode}");
        match session.get(&path).wait() {
            Ok((found, _)) => {
                let number = u64::from_be_bytes(found[..8].try_into().unwrap());
                if found[..] == data(number) {
                    println!("@has {znode} {number}");
                } else {
                    println!("@error {path} is damaged");
                }
                next = next.max(number + 1);
            }
            Err(Error::NoNode { .. }) => {
                session.create(&path, data(0), CreateMode::Persistent).wait()?;
                println!("@acked {znode} 0");
            }
            Err(error) => return Err(error),
        }
    }
    println!("@started");
    // Numbers continue after those of writes that may not have been answered.
    write(&session, next + 2 * AHEAD as u64);
    Ok(())
}

fn write(session: &Session, first: u64) {
    let mut under_way: VecDeque<(u64, Pending<Stat>)> = VecDeque::new();
    for number in first.. {
        let set = session.set(&format!("/{}", number % ZNODES), data(number));
        under_way.push_back((number, set));
        if under_way.len() == AHEAD {
            let Some((number, set)) = under_way.pop_front() else { return };
            if set.wait().is_err() {
                // The power was cut.
                return;
            }
            println!("@acked {} {number}", number % ZNODES);
        }
    }
}

/// A file system in a file, mounted here and unmounted at the end in any case.
struct Disk {
    image: PathBuf,
    mount: PathBuf,
    mounted: bool,
}

/// Runs a program. Returns its error output if it fails.
fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} failed: {}", complaint.trim()))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Disk {
    fn new(dir: &Path) -> Result<Disk, String> {
        run("xfs_io", &["-V"])?;
        let (image, mount) = (dir.join("image"), dir.join("mount"));
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(1 << 30).map_err(|error| error.to_string())?;
        run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()])?;
        std::fs::create_dir(&mount).map_err(|error| error.to_string())?;
        let mut disk = Disk { image, mount, mounted: false };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&mut self) -> Result<(), String> {
        let (image, mount) = (self.image.to_str().unwrap(), self.mount.to_str().unwrap());
        run("mount", &["-o", "loop", image, mount])?;
        self.mounted = true;
        Ok(())
    }

    /// From now on nothing reaches the device.
    fn cut_power(&self) {
        run("xfs_io", &["-x", "-c", "shutdown", self.mount.to_str().unwrap()]).unwrap();
    }

    /// The content after the journal has been replayed.
    fn mount_again(&mut self) {
        run("umount", &[self.mount.to_str().unwrap()]).unwrap();
        self.mounted = false;
        self.mount().unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = run("umount", &["-l", self.mount.to_str().unwrap()])
        {
            eprintln!("{error}");
        }
    }
}

struct Writer {
    child: Child,
    lines: Receiver<String>,
    /// The last acknowledged number of each znode.
    acked: BTreeMap<u64, u64>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Writer {
    fn start(directory: &Path) -> Writer {
        let pid = std::process::id();
        let address =
            format!("127.{}.{}.{}:24000", 1 + (pid >> 16) % 250, (pid >> 8) & 255, pid & 255);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", WRITER, "--nocapture"])
            .env(DIRECTORY, directory)
            .env(ADDRESS, address)
            .stdout(Stdio::piped())
            // sled panics and prints a message when the power is cut.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = unbounded();
        std::thread::Builder::new()
            .spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    // The test harness may have started the line.
                    if let Some(start) = line.find('@') {
                        let _ = sender.send(line[start + 1..].to_owned());
                    }
                }
            })
            .unwrap();
        Writer { child, lines, acked: BTreeMap::new() }
    }

    fn next_line(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE).expect("the writer goes on");
        assert!(!line.starts_with("error"), "{line}");
        line
    }

    fn take(&mut self, line: &str, found: &mut BTreeMap<u64, u64>) {
        let words: Vec<&str> = line.split(' ').collect();
        if let [what @ ("acked" | "has"), znode, number] = words[..] {
            let (znode, number) = (znode.parse().unwrap(), number.parse().unwrap());
            let seen = if what == "acked" { &mut self.acked } else { found };
            seen.insert(znode, number);
        }
    }

    /// The data that the writer has found at its start.
    fn wait_started(&mut self) -> BTreeMap<u64, u64> {
        let mut found = BTreeMap::new();
        loop {
            let line = self.next_line();
            if line == "started" {
                return found;
            }
            self.take(&line, &mut found);
        }
    }

    fn wait_acks(&mut self, count: u64) {
        for _ in 0..count {
            let line = self.next_line();
            self.take(&line, &mut BTreeMap::new());
        }
    }

    /// Ends the writer. Returns the last acknowledged numbers, including lines that it had printed before.
    fn kill(mut self) -> BTreeMap<u64, u64> {
        let _ = self.child.kill();
        self.child.wait().unwrap();
        let lines: Vec<String> = self.lines.iter().collect();
        for line in lines {
            self.take(&line, &mut BTreeMap::new());
        }
        std::mem::take(&mut self.acked)
    }
}

#[test]
fn acknowledged_writes_survive_power_cuts() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = match Disk::new(dir.path()) {
        Ok(disk) => disk,
        Err(reason) => {
            println!("skipped: no power can be cut here: {reason}");
            return;
        }
    };
    let mut acked: BTreeMap<u64, u64> = BTreeMap::new();
    let mut lost_unsynced = 0;
    // `None`: during the start.
    let cuts = [Some(1), Some(200), None, Some(1500), Some(37), None, Some(2500), None, Some(700)];
    for (round, cut_after) in cuts.into_iter().enumerate() {
        let mut writer = Writer::start(&disk.mount.join("data"));
        let control = disk.mount.join(format!("control-{round}"));
        match cut_after {
            Some(acks) => {
                check(&acked, &writer.wait_started());
                std::fs::write(&control, "not synced").unwrap();
                writer.wait_acks(acks);
            }
            None => assert_eq!(writer.next_line(), "starting"),
        }
        disk.cut_power();
        acked.extend(writer.kill());
        disk.mount_again();
        let kept = std::fs::read(&control).unwrap_or_default();
        lost_unsynced += u32::from(cut_after.is_some() && kept != b"not synced");
    }
    let mut writer = Writer::start(&disk.mount.join("data"));
    check(&acked, &writer.wait_started());
    assert_eq!(acked.len() as u64, ZNODES);
    assert!(lost_unsynced > 0, "these were no power cuts: what was not synced is there");
}

/// Checks that no znode is older than its last acknowledged write.
fn check(acked: &BTreeMap<u64, u64>, found: &BTreeMap<u64, u64>) {
    for (znode, number) in acked {
        let has = found.get(znode);
        assert!(has >= Some(number), "/{znode}: {number} was acknowledged, and {has:?} is there");
    }
}
