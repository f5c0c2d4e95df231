//! Samples of the formats that processes of other versions read, as files in
//! `tests/golden`: bytes on the wire, in the log, in snapshots and on disk.
//!
//! A test fails if the bytes of a format differ from its file. A new sample may
//! be added. If one has changed, the number of all formats ([`FORMATS`]) must be
//! raised: each file begins with the number that it was written with. Then write
//! the files again:
//!
//! ```text
//! QUORATE_GOLDEN=write cargo test --lib golden
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use crate::types::version::FORMATS;

/// Samples of one format.
pub(crate) struct Golden {
    file: PathBuf,
    samples: String,
}

impl Golden {
    pub(crate) fn new(format: &str) -> Golden {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        Golden { file: directory.join(format!("{format}.txt")), samples: String::new() }
    }

    /// Adds a sample: the bytes that this version writes.
    pub(crate) fn sample(&mut self, name: &str, bytes: &[u8]) {
        let _ = writeln!(self.samples, "{name}");
        for line in bytes.chunks(40) {
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(self.samples, "  {hex}");
        }
    }

    /// Checks that the samples equal the file.
    pub(crate) fn check(self) {
        let file = self.file.display();
        let known = std::fs::read_to_string(&self.file).unwrap_or_default();
        let known = known.replace("\r\n", "\n");
        let (number, samples) = known
            .strip_prefix("formats ")
            .and_then(|rest| rest.split_once('\n'))
            .map_or((0, &*known), |(number, samples)| (number.parse().unwrap(), samples));
        if (number, samples) == (FORMATS, &*self.samples) {
            return;
        }
        assert!(
            number != FORMATS || parts(samples).is_subset(&parts(&self.samples)),
            "a sample of {file} has changed: raise FORMATS in types/version.rs\n{}",
            self.samples
        );
        if std::env::var_os("QUORATE_GOLDEN").is_none_or(|value| value != "write") {
            panic!("{file} differs from the samples:\n{}", self.samples);
        }
        std::fs::create_dir_all(self.file.parent().unwrap()).unwrap();
        std::fs::write(&self.file, format!("formats {FORMATS}\n{}", self.samples)).unwrap();
    }
}

/// The samples of a file, each with its name.
fn parts(samples: &str) -> BTreeSet<String> {
    let mut parts: Vec<String> = Vec::new();
    for line in samples.lines() {
        match parts.last_mut() {
            Some(part) if line.starts_with("  ") => part.push_str(line),
            _ => parts.push(line.to_owned()),
        }
    }
    parts.into_iter().collect()
}
