//! The versions of the library, and the rules for extending its formats.
//!
//! A version is a number. A build supports all versions up to [`VERSION`]. A cluster uses one
//! version, which is part of the replicated state. A new cluster starts at [`FIRST`]. The leader
//! raises the version with a log entry once every member is connected and supports a higher one.
//! No cluster ever lowers its version. So the members may run different builds for a while, and no
//! instance needs a setting for it.
//!
//! One build writes bytes that another build reads: log entries, snapshots, messages, files. All of them
//! are postcard after the number of their format. The rules for extending the formats:
//!
//! 1. After a release, enum variants are only appended. A variant never changes and is never
//!    removed, no field is added to one, and the numbers of the formats stay. `tests/golden` checks
//!    every byte.
//! 2. A new variant has a version. Nobody writes or sends it before the cluster or the peer has
//!    that version:
//!
//! | what | its version comes from | who waits for the version |
//! | --- | --- | --- |
//! | commands and operations, in the log and forwarded | `Command::version`, `Op::version` | a node waits until its replica has that version; a leader refuses the request until its log has |
//! | results, which are part of the state | `OpError::version` | only commands of that version have such results |
//! | items of a snapshot or checkpoint | the state | only commands of that version change the state in that way; the cluster's version comes first in an image, so that an older build sees it before any item that it cannot read |
//! | messages between peers | the handshake, in which each peer gives its version | the sender |
//! | records on disk | the commands in them | |
//!
//! 3. So a build that supports version N can read everything written while the cluster uses N. Once the
//!    cluster uses N + 1, such a build stops, or does not start, and names the version that it needs. It skips nothing and leaves its directory as it is, for a newer build to continue from.
//!
//! To add a command: append a variant, give it a version, and append a sample to the golden file. To
//! begin a version: raise [`VERSION`] by one and add a row to its table.
//!
//! [`FORMATS`] is another number: that of the formats themselves, for builds that cannot read each other's bytes at
//! all. Until the first release, formats change without a version, and `tests/golden` demands that the number is
//! raised with them. Peers compare it in the handshake before anything else, a data directory has it in `CURRENT`, and a backup in
//! its front; a build with another number refuses each of them by that name, and changes nothing.
//!
//! There is one version so far. Tests and the simulator have one more, `INVENTED`, with one
//! operation of its own (`Op::Invented`). They use it to upgrade clusters and to run members that are too
//! old. No release has it.

/// The number of this build's formats, on the wire and on the disk.
pub(crate) const FORMATS: u16 = 4;

/// The highest version that this build supports.
///
/// | version | has |
/// | --- | --- |
/// | 1 | everything |
pub(crate) const VERSION: u16 = 1;

/// The version of a new cluster.
pub(crate) const FIRST: u16 = 1;

/// The oldest version that this build can use with a peer.
pub(crate) const OLDEST: u16 = 1;

/// The version after [`VERSION`], in tests and in the simulator only.
#[cfg(any(test, feature = "simulator"))]
pub(crate) const INVENTED: u16 = VERSION + 1;

/// Whether `needed` is higher than the `version` that the cluster uses.
pub(crate) fn is_above(needed: u16, version: u16) -> bool {
    needed > version && !planted!(CommandAboveVersion)
}

/// Why bytes of a build with these formats cannot be read.
pub(crate) fn other_formats(theirs: u32) -> String {
    format!("its formats are those of number {theirs}, and this build reads number {FORMATS}")
}

/// Why an instance that supports version `own` at most stops, or does not start.
pub(crate) fn too_old(cluster: u16, own: u16) -> String {
    format!(
        "the cluster acts by version {cluster} and this instance can do version {own} at most; its \
         data is as it was: start it with a build that can do version {cluster}"
    )
}
