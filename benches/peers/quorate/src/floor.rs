//! What this machine could do at best: no protocol, no state machine, no callers.
//!
//! `append` writes 200 bytes to a file of zeros, again and again, with one `fdatasync` each. The
//! `floor_*` rows are replication: a leader sends each record over TCP to two followers and writes
//! it itself. Each of the three makes what has gathered durable with one `fdatasync`, and a record
//! is done when two of the three have it. It is 100 bytes longer than its payload.
//!
//! `round_trip` and `hand_over` are the parts of it that are not the disk: 150 bytes over TCP to another thread
//! and back, and a thread that wakes another one.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::figures::{Latencies, Line};
use crate::now;

/// Files wrap here.
const FILE_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 4 << 20;
/// Room for the rest of a record.
const REST_BYTES: usize = 2 << 20;

pub(crate) fn main(dir: &Path, seconds: f64) {
    std::fs::create_dir_all(dir).unwrap();
    append(dir, seconds);
    round_trip(seconds);
    hand_over(seconds);
    let kinds = [
        ("floor_1", 1, 200),
        ("floor_16", 16, 200),
        ("floor_64", 64, 200),
        ("floor_1000", 1000, 200),
        ("floor_1000_1k", 1000, 1124),
        ("floor_1m", 1, 1_000_100),
    ];
    for (row, outstanding, record_bytes) in kinds {
        replicate(row, dir, seconds, outstanding, record_bytes);
    }
}

fn append(dir: &Path, seconds: f64) {
    let mut disk = Disk::open(&dir.join("append"));
    let record = [7; 200];
    let mut latencies = Latencies::default();
    let (begun, end) = (now(), now() + (seconds * 1e9) as u64);
    while now() < end {
        let before = now();
        disk.append(&record);
        latencies.add(now() - before);
    }
    print("append", &latencies, begun);
}

fn round_trip(seconds: f64) {
    let (mut here, mut there) = connection();
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; 150];
        while there.read_exact(&mut buffer).is_ok() && there.write_all(&buffer).is_ok() {}
    });
    let mut buffer = [7; 150];
    time("round_trip", seconds, 1, || {
        here.write_all(&buffer).unwrap();
        here.read_exact(&mut buffer).unwrap();
    });
    drop(here);
    echo.join().unwrap();
}

fn hand_over(seconds: f64) {
    let ((to, from), (back_to, back_from)) = (channel(), channel());
    let echo = std::thread::spawn(move || while from.recv().is_ok() && back_to.send(()).is_ok() {});
    time("hand_over", seconds, 2, || {
        to.send(()).unwrap();
        back_from.recv().unwrap();
    });
    drop(to);
    echo.join().unwrap();
}

/// Prints the time that a part of `run` takes, if that has so many equal ones.
fn time(row: &str, seconds: f64, parts: u64, mut run: impl FnMut()) {
    let mut latencies = Latencies::default();
    let (begun, end) = (now(), now() + (seconds * 1e9) as u64);
    while now() < end {
        let before = now();
        run();
        latencies.add((now() - before) / parts);
    }
    print(row, &latencies, begun);
}

fn print(row: &str, latencies: &Latencies, begun: u64) {
    let mut line = Line::new(row);
    line.rate(latencies.count(), (now() - begun) as f64 / 1e9);
    line.latencies("", latencies);
    line.print();
}

/// A file whose blocks were written before, so that a sync has no metadata to write. The library's
/// own log is such a file.
struct Disk {
    file: File,
    at: u64,
}

impl Disk {
    fn open(path: &Path) -> Disk {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).read(true).write(true).open(path).unwrap();
        let zeros = vec![0; 1 << 20];
        for at in (0..FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at).unwrap();
        }
        file.sync_all().unwrap();
        Disk { file, at: 0 }
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.at + bytes.len() as u64 > FILE_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(bytes, self.at).unwrap();
        self.at += bytes.len() as u64;
        // fdatasync on Linux.
        self.file.sync_data().unwrap();
    }
}

/// Writes what it receives, whole records, and answers with how many bytes are durable.
fn follow(path: &Path, record_bytes: usize, mut leader: TcpStream) {
    let mut disk = Disk::open(path);
    leader.write_all(&0_u64.to_le_bytes()).unwrap();
    let (mut buffer, mut durable) = (vec![0; BUFFER_BYTES + REST_BYTES], 0);
    while let Ok(mut count @ 1..) = leader.read(&mut buffer[..BUFFER_BYTES]) {
        let cut = count % record_bytes;
        if cut > 0 {
            let rest = record_bytes - cut;
            if leader.read_exact(&mut buffer[count..count + rest]).is_err() {
                return;
            }
            count += rest;
        }
        disk.append(&buffer[..count]);
        durable += count as u64;
        if leader.write_all(&durable.to_le_bytes()).is_err() {
            return;
        }
    }
}

/// The leader's own disk: writes what has gathered, and tells how many bytes are durable.
fn write_own(mut disk: Disk, records: &Receiver<Vec<u8>>, durable_tx: &Sender<(usize, u64)>) {
    let mut durable = 0;
    while let Ok(mut bytes) = records.recv() {
        while let Ok(more) = records.try_recv() {
            bytes.extend(more);
        }
        disk.append(&bytes);
        durable += bytes.len() as u64;
        let _ = durable_tx.send((0, durable));
    }
}

fn replicate(row: &str, dir: &Path, seconds: f64, outstanding: u64, record_bytes: u64) {
    let disk = Disk::open(&dir.join("leader"));
    let (record_tx, record_rx) = channel();
    // (member, bytes that it has made durable)
    let (durable_tx, durable_rx) = channel();
    let own_tx = durable_tx.clone();
    let mut threads = vec![std::thread::spawn(move || write_own(disk, &record_rx, &own_tx))];
    let mut followers = Vec::new();
    for member in 1..3 {
        let (mut here, there) = connection();
        let path = dir.join(format!("follower-{member}"));
        threads.push(std::thread::spawn(move || follow(&path, record_bytes as usize, there)));
        let mut answer = [0; 8];
        here.read_exact(&mut answer).expect("the follower is ready");
        let (mut answers, tx) = (here.try_clone().unwrap(), durable_tx.clone());
        threads.push(std::thread::spawn(move || {
            while answers.read_exact(&mut answer).is_ok() {
                let _ = tx.send((member, u64::from_le_bytes(answer)));
            }
        }));
        followers.push(here);
    }

    let mut durable = [0; 3];
    let (mut sent, mut done) = (0, 0);
    let mut started: VecDeque<u64> = VecDeque::new();
    let mut latencies = Latencies::default();
    let (begun, end) = (now(), now() + (seconds * 1e9) as u64);
    loop {
        let room = outstanding - (sent - done);
        if room > 0 && now() < end {
            let records = vec![7; (room * record_bytes) as usize];
            started.extend(std::iter::repeat_n(now(), room as usize));
            for follower in &mut followers {
                follower.write_all(&records).unwrap();
            }
            record_tx.send(records).unwrap();
            sent += room;
        } else if sent == done {
            break;
        }
        let (member, bytes) = durable_rx.recv_timeout(Duration::from_secs(10)).unwrap();
        durable[member] = bytes;
        for (member, bytes) in durable_rx.try_iter() {
            durable[member] = bytes;
        }
        let mut sorted = durable;
        sorted.sort_unstable();
        while done < sorted[1] / record_bytes {
            done += 1;
            latencies.add(now() - started.pop_front().unwrap());
        }
    }
    print(row, &latencies, begun);

    drop(record_tx);
    for follower in &followers {
        let _ = follower.shutdown(Shutdown::Both);
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (there, _) = listener.accept().unwrap();
    for stream in [&here, &there] {
        stream.set_nodelay(true).unwrap();
    }
    (here, there)
}
