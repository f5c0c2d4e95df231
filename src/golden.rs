//! Samples of the formats that processes of other versions read, as files in
//! `tests/golden`: bytes on the wire, in the log, in snapshots and on disk.
//!
//! A test fails if the bytes of a format differ from its file. If the change is
//! intended, the bytes of former versions must still be readable, or have
//! another format number. Then write the files again:
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
        if std::env::var_os("QUORATE_GOLDEN").is_some_and(|value| value == "write") {
            std::fs::create_dir_all(self.file.parent().unwrap()).unwrap();
            std::fs::write(&self.file, &self.samples).unwrap();
        }
        let known = std::fs::read_to_string(&self.file).unwrap_or_default();
        let known = known.replace("\r\n", "\n");
        let file = self.file.display();
        assert!(known == self.samples, "{file} differs from the samples:\n{}", self.samples);
    }
}
