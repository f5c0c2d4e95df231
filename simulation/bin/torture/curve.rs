//! The resources of the instances over time: a run of hours shows whether they grow.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a line is printed.
const EVERY: Duration = Duration::from_secs(60);

/// Prints a line every minute.
pub(crate) struct Curve {
    begun: Instant,
    next: Instant,
}

/// The memory, threads, open files and files on disk of a process, as far as the system reports
/// them.
#[derive(Debug)]
struct Usage {
    memory_kib: u64,
    threads: u64,
    open: usize,
    files: usize,
    bytes: u64,
}

impl Usage {
    fn of(pid: u32, directory: &Path) -> Option<Usage> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let (files, bytes) = below(directory);
        Some(Usage {
            memory_kib: number("VmRSS:")?,
            threads: number("Threads:")?,
            open: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count(),
            files,
            bytes,
        })
    }
}

/// The number of files below a directory, and their bytes.
fn below(directory: &Path) -> (usize, u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.fold((0, 0), |(files, bytes), entry| match entry.metadata() {
        Ok(found) if found.is_dir() => {
            let (more, of_them) = below(&entry.path());
            (files + more, bytes + of_them)
        }
        Ok(found) => (files + 1, bytes + found.len()),
        // The file was deleted in the meantime.
        Err(_) => (files, bytes),
    })
}

impl Curve {
    pub(crate) fn new() -> Curve {
        let begun = Instant::now();
        Curve { begun, next: begun + EVERY }
    }

    /// Prints a line if one is due. `instances` are the running instances with their starts and
    /// directories.
    pub(crate) fn print_if_due<'a>(
        &mut self,
        operations: u64,
        faults: usize,
        instances: impl Iterator<Item = (u32, Instant, &'a Path)>,
    ) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        if self.next == self.begun + EVERY {
            println!(
                "minute, operations, faults | of each instance: seconds since its start, MiB of \
                 memory, threads, open files, files and MiB on the disk"
            );
        }
        self.next = now + EVERY;
        let minutes = (now - self.begun).as_secs() / 60;
        print!("{minutes:6}  {operations:10}  {faults:6}");
        for (pid, started, directory) in instances {
            match Usage::of(pid, directory) {
                Some(Usage { memory_kib, threads, open, files, bytes }) => print!(
                    "  | {:4} {:5.1} {threads:2} {open:3} {files:2} {:6.1}",
                    (now - started).as_secs(),
                    memory_kib as f64 / 1024.0,
                    bytes as f64 / (1 << 20) as f64,
                ),
                None => print!("  | -"),
            }
        }
        println!();
    }
}
