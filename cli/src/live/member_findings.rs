//! What is wrong with one member, by its own report: its disk, its certificates, its former data.

use std::time::Duration;

use quorate::operate::MemberState;

use super::cluster::{duration, short};
use super::findings::Finding;

/// A disk is slow if half of its syncs take longer than the first of these times, or one in a hundred longer than
/// the second; each only if there are enough syncs to say so.
const SLOW_SYNCS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
const SYNCS: (u64, u64) = (10, 100);
const SLOW_DISK: &str =
    "Look at the disk; if the member leads, hand the lead to another: quorate move-leader ADDRESS";
/// Entries that wait for a disk.
const BEHIND: u64 = 1000;
/// From how long before its end on a certificate is a finding, in seconds.
const EXPIRES_SOON: i64 = 7 * 86_400;

/// One finding at most about the member's disk, since a slow one shows in several figures.
pub(super) fn disk(address: &str, state: &MemberState) -> Option<Finding> {
    if let Some(waits) = state.disk_waits {
        return Some(Finding::new(
            format!("disk hangs {address}"),
            format!("The disk of {address} has not answered for {}.", duration(waits)),
            "Look at that disk. A leader whose disk hangs hands over; after a minute the member ends with exit code 1: \
             start it again once the disk answers.",
        ));
    }
    if let Some(sync) = state.disk_sync
        && ((sync.count >= SYNCS.0 && sync.p50 > SLOW_SYNCS.0)
            || (sync.count >= SYNCS.1 && sync.p99 > SLOW_SYNCS.1))
    {
        let (count, half, most) = (sync.count, short(sync.p50), short(sync.p99));
        return Some(Finding::new(
            format!("slow disk {address}"),
            format!(
                "{address} has a slow disk: of its last {count} syncs half took {half} or more, and one in a hundred {most}."
            ),
            SLOW_DISK,
        ));
    }
    let not_persisted = state.last_index.saturating_sub(state.durable_index);
    (not_persisted > BEHIND).then(|| {
        Finding::new(
            format!("disk behind {address}"),
            format!("{address} has a slow disk: {not_persisted} entries wait for it."),
            SLOW_DISK,
        )
    })
}

/// A certificate that expires soon, or has expired.
pub(super) fn certificate(address: &str, state: &MemberState) -> Option<Finding> {
    let first = state.certificate.as_ref().filter(|of| of.expires_in < EXPIRES_SOON)?;
    let left = duration(Duration::from_secs(first.expires_in.unsigned_abs()));
    let wrong = match first.expires_in {
        ..=0 => format!(
            "{address}: {} has expired {left} ago. Connections stay, and no new one is made.",
            first.name
        ),
        _ => format!("{address}: {} expires in {left}.", first.name),
    };
    Some(Finding::new(
        format!("certificate {address}"),
        wrong,
        "Replace the files: a running process reads them again within seconds. A process with an expired certificate \
         does not start: once the files are replaced, its supervisor has to start it again.",
    ))
}

/// Former data, which a damage has left.
pub(super) fn former_data(address: &str, state: &MemberState) -> Option<Finding> {
    let directories = match state.former_directories {
        0 => return None,
        1 => "1 directory".to_owned(),
        count => format!("{count} directories"),
    };
    Some(Finding::new(
        format!("former data {address}"),
        format!(
            "{address} keeps {directories} with former data: its data was damaged, and it has joined again since."
        ),
        "Its log says what was damaged: if it was the disk, replace that. Then remove the directories that its `/status` \
         and its log name (docs/recovery.md).",
    ))
}

#[cfg(test)]
mod tests {
    use quorate::operate::CertificateExpiry;
    use quorate::testing::Cluster;

    use super::*;

    fn state() -> MemberState {
        let cluster = Cluster::new(1);
        cluster.node(0).session().sync().wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("it reports");
        members.remove(0).state.expect("it reports")
    }

    fn wrong(found: Option<Finding>) -> String {
        found.map_or_else(String::new, |finding| finding.wrong)
    }

    #[test]
    fn a_slow_disk_that_keeps_up_is_found() {
        let mut state = state();
        let sync = state.disk_sync.as_mut().expect("it has written");
        (sync.count, sync.p50, sync.p99) =
            (12, Duration::from_millis(80), Duration::from_millis(900));
        let text = "a:1 has a slow disk: of its last 12 syncs half took 80 ms or more, and one in a hundred 900 ms.";
        assert_eq!(wrong(disk("a:1", &state)), text);
    }

    /// "Of its last 1 syncs half took 392 ms", of a member that had just started.
    #[test]
    fn a_few_slow_syncs_are_not_a_slow_disk() {
        let mut state = state();
        let mut found = |count, p50, p99| {
            let sync = state.disk_sync.as_mut().expect("it has written");
            (sync.count, sync.p50, sync.p99) =
                (count, Duration::from_millis(p50), Duration::from_millis(p99));
            disk("a:1", &state).is_some()
        };
        assert!(!found(1, 392, 392) && !found(9, 392, 392) && found(10, 392, 392));
        assert!(!found(99, 1, 900) && found(100, 1, 900));
    }

    /// `doctor` said that the member lags, and not that its disk does not answer.
    #[test]
    fn a_disk_that_hangs_is_one_finding() {
        let mut state = state();
        state.disk_waits = Some(Duration::from_secs(23));
        state.last_index += 5000;
        let sync = state.disk_sync.as_mut().expect("it has written");
        (sync.count, sync.p50) = (50, Duration::from_secs(1));
        assert_eq!(wrong(disk("a:1", &state)), "The disk of a:1 has not answered for 23 s.");
    }

    /// Certificates expired without a word, and then the members did not start again.
    #[test]
    fn certificates_are_found_a_week_before_they_expire() {
        let mut state = state();
        let mut found = |expires_in| {
            let name = "its certificate (/a.pem)".to_owned();
            state.certificate = Some(CertificateExpiry { name, expires_in });
            wrong(certificate("a:1", &state))
        };
        assert_eq!(found(7 * 86_400), "");
        assert_eq!(found(3 * 86_400), "a:1: its certificate (/a.pem) expires in 3 d.");
        let expired = found(-300);
        let text = "a:1: its certificate (/a.pem) has expired 5 min ago.";
        assert!(expired.starts_with(text), "{expired}");
    }

    #[test]
    fn former_data_is_found() {
        let mut state = state();
        assert!(former_data("a:1", &state).is_none());
        state.former_directories = 1;
        let text = wrong(former_data("a:1", &state));
        assert!(
            text.starts_with("a:1 keeps 1 directory with former data: its data was damaged"),
            "{text}"
        );
    }
}
