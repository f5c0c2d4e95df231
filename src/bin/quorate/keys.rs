//! The keys of data directories and backups that are encrypted.

use std::path::Path;
#[cfg(feature = "encryption")]
use std::path::PathBuf;

use clap::Args;
use quorate::recovery::{Backup, Founded, Inspection, Plan};
use quorate::{Builder, Result, Snapshot, recovery};
#[cfg(feature = "encryption")]
use quorate::{encryption::AtRest, recovery::WithKeys};

#[derive(Debug, Args)]
pub(crate) struct DataKeyArgs {
    /// A file with the keys under which data directories and backups are encrypted: a line `id: key` for each, with the
    /// key in base64. The first encrypts.
    #[cfg(feature = "encryption")]
    #[arg(long, env = "QUORATE_DATA_KEY_FILE", value_name = "FILE")]
    data_key_file: Option<PathBuf>,
}

impl DataKeyArgs {
    #[cfg(feature = "encryption")]
    fn keys(&self) -> Result<Option<AtRest>> {
        let Some(file) = &self.data_key_file else { return Ok(None) };
        crate::access::warn_if_exposed(file);
        AtRest::from_file(file).map(Some)
    }

    #[cfg(feature = "encryption")]
    fn recovery(&self) -> Result<Option<WithKeys>> {
        Ok(self.keys()?.map(WithKeys::new))
    }

    /// Encrypts what an instance stores, if there are keys.
    pub(crate) fn encrypted(&self, builder: Builder) -> Result<Builder> {
        #[cfg(feature = "encryption")]
        if let Some(keys) = self.keys()? {
            return Ok(builder.encryption(keys));
        }
        Ok(builder)
    }

    pub(crate) fn inspect(&self, dir: &Path) -> Result<Inspection> {
        #[cfg(feature = "encryption")]
        if let Some(with_keys) = self.recovery()? {
            return with_keys.inspect(dir);
        }
        recovery::inspect(dir)
    }

    pub(crate) fn recover<P: AsRef<Path>>(&self, dirs: &[P], damaged: bool) -> Result<Plan> {
        #[cfg(feature = "encryption")]
        if let Some(with_keys) = self.recovery()? {
            return match damaged {
                true => with_keys.recover_damaged(dirs),
                false => with_keys.recover(dirs),
            };
        }
        match damaged {
            true => recovery::recover_damaged(dirs),
            false => recovery::recover(dirs),
        }
    }

    pub(crate) fn verify(&self, file: &Path) -> Result<Backup> {
        #[cfg(feature = "encryption")]
        if let Some(with_keys) = self.recovery()? {
            return with_keys.verify(file);
        }
        recovery::verify(file)
    }

    pub(crate) fn read_backup(&self, file: &Path) -> Result<Snapshot> {
        #[cfg(feature = "encryption")]
        if let Some(with_keys) = self.recovery()? {
            return with_keys.read_backup(file);
        }
        recovery::read_backup(file)
    }

    pub(crate) fn restore(&self, file: &Path, dir: &Path, address: &str) -> Result<Founded> {
        #[cfg(feature = "encryption")]
        if let Some(with_keys) = self.recovery()? {
            return with_keys.restore(file, dir, address);
        }
        recovery::restore(file, dir, address)
    }
}
