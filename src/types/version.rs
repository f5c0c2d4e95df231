//! The versions of the library, and the rules by which its formats may grow.
//!
//! A cluster acts by one version: a number in the replicated state, which starts at [`FIRST`], is
//! raised by an entry of the log once every member has told that it can do the higher one, and is
//! never lowered. So members may be of different builds for a while, and an instance needs no
//! setting that says which.
//!
//! Everything that one build writes and another one reads is postcard behind a format's number. It
//! grows by these rules, and by no others:
//!
//! 1. Variants of enums are only appended. No variant changes, none is removed, no field is added to
//!    one, and the numbers of formats stay what they are (`tests/golden` holds every byte to it).
//! 2. A new variant has a version, by which what can have it is held back:
//!
//! | what | its version is told by | it is written |
//! | --- | --- | --- |
//! | commands and operations, in the log and forwarded | `Command::version`, `Op::version` | by a node whose replica has seen the cluster at that version, and let into the log by a leader whose log has |
//! | answers, which are part of the state | `OpError::version` | for commands of that version |
//! | items of a snapshot or checkpoint | the state: nothing but such commands makes what they hold | from such a state. The cluster's version comes first in an image, so that a build that is too old sees it before what it cannot read |
//! | messages between peers | the peer, which tells its version in the handshake | to a peer of that version |
//! | records on disk | they hold the above, and nothing of their own has changed | |
//!
//! 3. So whatever is written while the cluster acts by version N is read by every build that can do
//!    N. Once it acts by N + 1, a build of N stops, or does not start, and says which version it
//!    needs: it skips nothing, and its directory stays as it is, for a newer build to go on from.
//!
//! To add a command: a variant at the end, a line in its `version`, and a sample at the end of the
//! golden file. To begin a version: [`VERSION`] one higher.

/// The highest version that this build can do.
///
/// | version | has |
/// | --- | --- |
/// | 1 | all but the following |
/// | 2 | versions themselves, access lists, quotas, `create_or_set`, `take_over` |
/// | 3 | members that come and go, and all that they say for it |
pub(crate) const VERSION: u16 = 3;

/// The first version in which members come and go.
pub(crate) const MEMBERS_SINCE: u16 = 3;

/// What a new cluster acts by, before its members have heard of each other.
pub(crate) const FIRST: u16 = 1;

/// The oldest version that this build can talk to.
pub(crate) const OLDEST: u16 = 1;

/// Why an instance that can do version `own` stops, or does not start.
pub(crate) fn too_old(cluster: u16, own: u16) -> String {
    format!(
        "the cluster acts by version {cluster} and this instance can do version {own} at most; its \
         data is as it was: start it with a build that can do version {cluster}"
    )
}
