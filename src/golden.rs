//! The formats that processes of other versions meet, as files in
//! `tests/golden`: bytes on the wire, in the log, in snapshots and on disk.
//!
//! A test fails when a format comes out differently than its file says. If that
//! is meant, nodes of the version before must still be understood, or told
//! apart by the format's version; then write the files anew:
//!
//! ```text
//! QUORATE_GOLDEN=write cargo test --lib golden
//! ```

use std::fmt::Write;
use std::path::PathBuf;

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

    /// How this version writes something.
    pub(crate) fn sample(&mut self, name: &str, bytes: &[u8]) {
        let _ = writeln!(self.samples, "{name}");
        for line in bytes.chunks(40) {
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(self.samples, "  {hex}");
        }
    }

    /// That it is what the file says.
    pub(crate) fn check(self) {
        if std::env::var_os("QUORATE_GOLDEN").is_some_and(|value| value == "write") {
            std::fs::create_dir_all(self.file.parent().unwrap()).unwrap();
            std::fs::write(&self.file, &self.samples).unwrap();
        }
        let known = std::fs::read_to_string(&self.file).unwrap_or_default();
        let known = known.replace("\r\n", "\n");
        let file = self.file.display();
        assert!(known == self.samples, "not what {file} says, but:\n{}", self.samples);
    }
}
