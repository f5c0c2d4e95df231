//! Why nobody leads, from the reports of the members.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate::operate::{MemberReport, Reason, ReasonKind};

use super::cluster::duration;

/// An election that takes longer than this is no usual one.
const ELECTION: Duration = Duration::from_secs(10);

/// The numbers of voters and of silent members among these.
pub(super) fn counts(members: &[MemberReport]) -> (usize, usize) {
    let voters = members.iter().filter(|member| member.votes()).count();
    (voters, members.iter().filter(|member| member.is_silent).count())
}

/// Why no member leads. That none can is said only if it is known: most voters are silent, or each of the
/// others reports that it reaches too few.
pub(super) fn no_leader(members: &[MemberReport]) -> Reason {
    let of = |kind, text: String| Reason { kind, text };
    let own = |member: &MemberReport| member.state.as_ref()?.not_ready.clone();
    let voters: Vec<&MemberReport> = members.iter().filter(|member| member.votes()).collect();
    if voters.is_empty() {
        // Instances that have no cluster yet. A refusal is the better reason: waiting does not end it.
        let all = || members.iter().filter_map(|member| Some((member, own(member)?)));
        let refused = all().find(|(_, reason)| reason.kind == ReasonKind::Refused);
        return match refused.or_else(|| all().next()) {
            Some((member, reason)) => of(reason.kind, format!("{}: {reason}", member.address)),
            None => of(ReasonKind::NoMember, "no member of the cluster was found".to_owned()),
        };
    }
    let (silent, reporting): (Vec<_>, Vec<_>) =
        voters.iter().copied().partition(|voter| voter.is_silent);
    if 2 * reporting.len() <= voters.len() {
        let named = |voter: &&MemberReport| match why_silent(members, voter) {
            (_, why) if why.is_empty() => voter.address.clone(),
            (_, why) => format!("{}: {why}", voter.address),
        };
        let silent: Vec<String> = silent.iter().map(named).collect();
        let (count, all, silent) = (silent.len(), voters.len(), silent.join("; "));
        let text = format!("no member can lead: {count} of {all} voters do not report ({silent})");
        return of(ReasonKind::VotersMissing, text);
    }
    let cut_off = |voter: &&MemberReport| {
        own(voter).filter(|reason| {
            let kinds = [ReasonKind::VotersMissing, ReasonKind::Refused, ReasonKind::Damaged];
            kinds.contains(&reason.kind)
        })
    };
    if let Some(first) = reporting.first()
        && let Some(reason) = cut_off(first)
        && reporting.iter().all(|voter| cut_off(voter).is_some())
    {
        let text = format!("no member can lead: {}: {reason}", first.address);
        return of(reason.kind, text);
    }
    let there = format!("{} of {} voters report", reporting.len(), voters.len());
    let stale = reporting.iter().filter_map(|voter| voter.state.as_ref()?.stale_by).min();
    match stale.filter(|stale| *stale > ELECTION) {
        None => of(ReasonKind::Election, format!("an election is under way: {there}")),
        Some(stale) => {
            let lasts = duration(stale);
            of(ReasonKind::NoLeader, format!("nobody was elected for {lasts}, though {there}"))
        }
    }
}

/// What the members that report say of one that does not: whether they and it refuse each other, and why; with what it
/// has last told them itself.
pub(super) fn why_silent(members: &[MemberReport], silent: &MemberReport) -> (bool, String) {
    let states = members.iter().filter_map(|member| member.state.as_ref());
    let problems = states.flat_map(|state| &state.unreachable);
    let problems = problems.filter(|peer| peer.address == silent.address);
    let problems: Vec<&Reason> = problems.map(|peer| &peer.reason).collect();
    let is_refused = |reason: &&Reason| reason.kind == ReasonKind::Refused;
    let refused = problems.iter().any(is_refused);
    // The others may only have lost the connection.
    let shown = problems.iter().filter(|reason| !refused || is_refused(reason));
    let texts: BTreeSet<&str> = shown.map(|reason| reason.text.as_str()).collect();
    let last = silent.last_report.as_ref().map(ToString::to_string);
    let texts = texts.into_iter().map(str::to_owned).chain(last);
    (refused, texts.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use quorate::operate::Role;
    use quorate::testing::Cluster;

    use super::*;

    /// The reports of three members at the moment when the leader was frozen: the others follow it still.
    fn frozen() -> Vec<MemberReport> {
        let cluster = Cluster::new(3);
        cluster.node(0).session().sync().wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("all report");
        for member in &mut members {
            if member.role == Role::Leader {
                (member.is_silent, member.state, member.role) = (true, None, Role::Voter);
            }
        }
        members
    }

    fn set(members: &mut [MemberReport], kind: ReasonKind, stale: Duration) {
        for state in members.iter_mut().filter_map(|member| member.state.as_mut()) {
            state.not_ready = Some(Reason { kind, text: "why".to_owned() });
            state.stale_by = Some(stale);
        }
    }

    /// During every failover `status` said that no member can lead, though two of three could and did.
    #[test]
    fn during_a_failover_an_election_is_under_way() {
        let mut members = frozen();
        assert!(MemberReport::leader(&members).is_none());
        let text = "an election is under way: 2 of 3 voters report";
        assert_eq!(
            no_leader(&members),
            Reason { kind: ReasonKind::Election, text: text.to_owned() }
        );
        set(&mut members, ReasonKind::Election, Duration::from_secs(1));
        assert_eq!(no_leader(&members).kind, ReasonKind::Election);
        set(&mut members, ReasonKind::Election, Duration::from_secs(60));
        let reason = no_leader(&members);
        assert_eq!(reason.kind, ReasonKind::NoLeader, "no election takes so long");
        assert_eq!(reason.text, "nobody was elected for 60 s, though 2 of 3 voters report");
    }

    #[test]
    fn nobody_can_lead_if_most_voters_are_silent_or_cut_off() {
        let mut members = frozen();
        set(&mut members, ReasonKind::VotersMissing, Duration::from_secs(1));
        let cut_off = no_leader(&members);
        assert_eq!(cut_off.kind, ReasonKind::VotersMissing);
        assert!(cut_off.text.starts_with("no member can lead: node-"), "{cut_off}");
        let reporting = members.iter_mut().find(|member| !member.is_silent).expect("two report");
        (reporting.is_silent, reporting.state) = (true, None);
        let silent = no_leader(&members);
        let start = "no member can lead: 2 of 3 voters do not report (node-";
        assert!(silent.text.starts_with(start), "{silent}");
    }

    #[test]
    fn a_refusal_is_the_better_reason_of_instances_without_a_cluster() {
        let mut members = frozen();
        members.retain(|member| !member.is_silent);
        members.iter_mut().for_each(|member| member.role = Role::Blank);
        set(&mut members, ReasonKind::Founding, Duration::ZERO);
        assert_eq!(no_leader(&members).kind, ReasonKind::Founding);
        let state = members[1].state.as_mut().expect("it reports");
        state.not_ready =
            Some(Reason { kind: ReasonKind::Refused, text: "other secret".to_owned() });
        let reason = no_leader(&members);
        assert_eq!(reason.kind, ReasonKind::Refused);
        assert_eq!(reason.text, format!("{}: other secret", members[1].address));
        assert_eq!(no_leader(&[]).kind, ReasonKind::NoMember);
    }
}
