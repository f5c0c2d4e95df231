//! Bugs that can be planted, to see that the checks of the simulator and of some tests find them.
//!
//! A bug in product code is one expression at one place, and has no state there. Bugs of what
//! surrounds a node, such as its disk, its network and the delivery of events, are planted in the
//! simulator instead (`simulation::surroundings`).
//!
//! Without the `simulator` feature, `planted` is always false, and the program contains nothing of
//! this. With it, at most one bug at a time is planted, for the thread that asks for it.

use std::cell::Cell;

/// A bug, each of a kind that systems like this one have had.
#[allow(missing_docs, reason = "`story` describes each")]
#[cfg_attr(not(any(test, feature = "simulator")), allow(dead_code, unreachable_pub))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    AckBeforeDurable,
    VoteForgotten,
    LogTailForgotten,
    TornRecordAccepted,
    RotAccepted,
    CompactedTooFar,
    CheckpointLosesSessions,
    SnapshotMislabelled,
    ResultsLostAtSnapshot,
    EntrySkipped,
    NotDeterministic,
    RunAgain,
    OrderIgnored,
    EndedSessionReopens,
    ResendForgotten,
    OutcomeLost,
    ReadWithoutQuorum,
    SyncWithoutCatchingUp,
    ReadBeforeOwnWrites,
    EphemeralForgotten,
    MultiPartial,
    ConditionIgnored,
    AclOfWrongNode,
    AclLostAtSnapshot,
    IdsStay,
    ReadUnchecked,
    EventsUnfiltered,
    QuotaForgets,
    QuotaIgnored,
    TakenFromAnybody,
    VersionStands,
    SequenceFromChildren,
    SequenceTwice,
    EphemeralsStay,
    ContainerWithChildReaped,
    TtlIgnoresTouch,
    NothingReaped,
    LogTimeStands,
    ContainersStay,
    DueForgottenAtSnapshot,
    SecretIgnored,
    DetachCloses,
    ExpiryEarly,
    NewLeaderForgetsSessions,
    LeaseTooLong,
    LossUnreported,
    EventLate,
    EventLostOnDelete,
    EventTwice,
    OneShotStays,
    EventsLostAtSnapshot,
    EventsOutOfOrder,
    EventDataLate,
    PositionForgotten,
    GapLate,
    HistoryMissesBatch,
    HistoryKeptAtSnapshot,
    SeamTwice,
    WatchBeforeItsZxid,
    RemovedWatchStays,
    LockEarly,
    TokenFixed,
    PredecessorMissed,
    FenceUnchecked,
    LockDelaySkipped,
    RevocationLost,
    ReaderOvertakes,
    DowngradeLetsGo,
    SemaphoreOneMore,
    MultiLockUnordered,
    VersionUnknown,
    CommandAboveVersion,
    VersionLostAtSnapshot,
    TwoLeaders,
    LeaderChangeMissed,
    SelectorRunsOn,
    GoneMemberShown,
    EphemeralStaysGone,
    QueueItemTwice,
    QueueItemLost,
    QueueOverfills,
    QueuePriorityIgnored,
    QueueDelayIgnored,
    QueueReturnUnnoticed,
    BarrierOpensEarly,
    DoubleBarrierOpensEarly,
    DoubleBarrierLeavesEarly,
    UpdateLost,
    IdTwice,
    ConfigMissed,
    CacheMissesRemoval,
    ListUnordered,
    InstanceStays,
    VoteLost,
    LearnerPromotedBehind,
    VoterRemovedBelowQuorum,
    JoinsAsVoter,
    LivingReplaced,
    ClusterForgotten,
    TwoFounders,
    PledgeUnsynced,
    PromiseForgotten,
    UnreachedAbsent,
    OwnPromiseIgnored,
    VetoIgnored,
    VetoForgotten,
    LostHoldingShared,
    CloneQueues,
    PermitsOfOld,
    UsageUnchecked,
    ReleasedByPath,
    ChrootIgnored,
    ChrootShown,
    PageSkips,
    NodeIdTwice,
    FormerDataDeleted,
    PutAsideWithoutLeader,
    MarkBelieved,
    LearnerCounted,
    RemovedUnaware,
    PresumedAlive,
    ZonesIgnored,
    ClientWatchFromNow,
    ClientSeesOlder,
    ClientLossUnnoticed,
    ClientLeaseFromAnswer,
    ClientKeepsToItsList,
    ClientWriteAgain,
    ClientReadEarly,
    ReadyBeforePlace,
    ClosesWithoutHandover,
    AnswersAwaitDisk,
    LevelByEntries,
    ProbesUnbounded,
    SlowLeaderStays,
}

#[cfg(any(test, feature = "simulator"))]
impl Bug {
    /// All that the simulator finds.
    pub const ALL: [Bug; 131] = [
        Bug::AckBeforeDurable,
        Bug::VoteForgotten,
        Bug::LogTailForgotten,
        Bug::TornRecordAccepted,
        Bug::RotAccepted,
        Bug::CompactedTooFar,
        Bug::CheckpointLosesSessions,
        Bug::SnapshotMislabelled,
        Bug::ResultsLostAtSnapshot,
        Bug::EntrySkipped,
        Bug::NotDeterministic,
        Bug::RunAgain,
        Bug::OrderIgnored,
        Bug::EndedSessionReopens,
        Bug::ResendForgotten,
        Bug::OutcomeLost,
        Bug::ReadWithoutQuorum,
        Bug::SyncWithoutCatchingUp,
        Bug::ReadBeforeOwnWrites,
        Bug::EphemeralForgotten,
        Bug::MultiPartial,
        Bug::ConditionIgnored,
        Bug::AclOfWrongNode,
        Bug::AclLostAtSnapshot,
        Bug::IdsStay,
        Bug::ReadUnchecked,
        Bug::EventsUnfiltered,
        Bug::QuotaForgets,
        Bug::QuotaIgnored,
        Bug::TakenFromAnybody,
        Bug::VersionStands,
        Bug::SequenceFromChildren,
        Bug::SequenceTwice,
        Bug::EphemeralsStay,
        Bug::ContainerWithChildReaped,
        Bug::TtlIgnoresTouch,
        Bug::NothingReaped,
        Bug::LogTimeStands,
        Bug::ContainersStay,
        Bug::DueForgottenAtSnapshot,
        Bug::SecretIgnored,
        Bug::DetachCloses,
        Bug::ExpiryEarly,
        Bug::NewLeaderForgetsSessions,
        Bug::LeaseTooLong,
        Bug::LossUnreported,
        Bug::EventLate,
        Bug::EventLostOnDelete,
        Bug::EventTwice,
        Bug::OneShotStays,
        Bug::EventsLostAtSnapshot,
        Bug::EventsOutOfOrder,
        Bug::EventDataLate,
        Bug::PositionForgotten,
        Bug::GapLate,
        Bug::HistoryMissesBatch,
        Bug::HistoryKeptAtSnapshot,
        Bug::SeamTwice,
        Bug::WatchBeforeItsZxid,
        Bug::RemovedWatchStays,
        Bug::LockEarly,
        Bug::TokenFixed,
        Bug::PredecessorMissed,
        Bug::FenceUnchecked,
        Bug::LockDelaySkipped,
        Bug::RevocationLost,
        Bug::ReaderOvertakes,
        Bug::DowngradeLetsGo,
        Bug::SemaphoreOneMore,
        Bug::MultiLockUnordered,
        Bug::VersionUnknown,
        Bug::CommandAboveVersion,
        Bug::VersionLostAtSnapshot,
        Bug::TwoLeaders,
        Bug::LeaderChangeMissed,
        Bug::SelectorRunsOn,
        Bug::GoneMemberShown,
        Bug::EphemeralStaysGone,
        Bug::QueueItemTwice,
        Bug::QueueItemLost,
        Bug::QueueOverfills,
        Bug::QueuePriorityIgnored,
        Bug::QueueDelayIgnored,
        Bug::QueueReturnUnnoticed,
        Bug::BarrierOpensEarly,
        Bug::DoubleBarrierOpensEarly,
        Bug::DoubleBarrierLeavesEarly,
        Bug::UpdateLost,
        Bug::IdTwice,
        Bug::ConfigMissed,
        Bug::CacheMissesRemoval,
        Bug::ListUnordered,
        Bug::InstanceStays,
        Bug::VoteLost,
        Bug::LostHoldingShared,
        Bug::CloneQueues,
        Bug::PermitsOfOld,
        Bug::UsageUnchecked,
        Bug::ReleasedByPath,
        Bug::LearnerPromotedBehind,
        Bug::VoterRemovedBelowQuorum,
        Bug::JoinsAsVoter,
        Bug::LivingReplaced,
        Bug::ClusterForgotten,
        Bug::NodeIdTwice,
        Bug::FormerDataDeleted,
        Bug::PutAsideWithoutLeader,
        Bug::MarkBelieved,
        Bug::LearnerCounted,
        Bug::RemovedUnaware,
        Bug::PresumedAlive,
        Bug::ZonesIgnored,
        Bug::TwoFounders,
        Bug::UnreachedAbsent,
        Bug::OwnPromiseIgnored,
        Bug::VetoIgnored,
        Bug::ChrootIgnored,
        Bug::ChrootShown,
        Bug::PageSkips,
        Bug::ClientWatchFromNow,
        Bug::ClientSeesOlder,
        Bug::ClientLeaseFromAnswer,
        Bug::ClientWriteAgain,
        Bug::ClientReadEarly,
        Bug::ReadyBeforePlace,
        Bug::ClosesWithoutHandover,
        Bug::AnswersAwaitDisk,
        Bug::LevelByEntries,
        Bug::ProbesUnbounded,
        Bug::SlowLeaderStays,
        Bug::ClientLossUnnoticed,
    ];

    /// Those of how a cluster is founded, which the exploration of that finds. The simulator seldom
    /// crashes a node at the very moment that some of them take.
    pub const OF_FORMATION: [Bug; 7] = [
        Bug::TwoFounders,
        Bug::PledgeUnsynced,
        Bug::PromiseForgotten,
        Bug::UnreachedAbsent,
        Bug::OwnPromiseIgnored,
        Bug::VetoIgnored,
        Bug::VetoForgotten,
    ];

    /// Those of clients without a replica, which a test of these finds.
    pub const OF_CLIENTS: [Bug; 5] = [
        Bug::ClientWatchFromNow,
        Bug::ClientSeesOlder,
        Bug::ClientLossUnnoticed,
        Bug::ClientLeaseFromAnswer,
        Bug::ClientKeepsToItsList,
    ];

    /// What goes wrong with it.
    pub fn story(self) -> &'static str {
        match self {
            Bug::AckBeforeDurable => "votes and acknowledgements leave before their write is done",
            Bug::VoteForgotten => "a restarted node does not know whom it voted for",
            Bug::LogTailForgotten => "a restarted node does not know the last entry of its log",
            Bug::TornRecordAccepted => "a record that a crash cut in two is accepted",
            Bug::RotAccepted => "a record with a flipped bit is accepted",
            Bug::CompactedTooFar => "the log is cut beyond its checkpoint",
            Bug::CheckpointLosesSessions => "a checkpoint leaves out the sessions that changed",
            Bug::SnapshotMislabelled => "a snapshot is labelled with the entry before its own",
            Bug::ResultsLostAtSnapshot => "a snapshot does not bring the results of requests",
            Bug::EntrySkipped => "an entry is counted as applied and is not",
            Bug::NotDeterministic => "applying depends on more than the entry",
            Bug::RunAgain => "a request that comes again runs again",
            Bug::OrderIgnored => "a request runs though one before it is missing",
            Bug::EndedSessionReopens => "a late copy of its first request opens an ended session",
            Bug::ResendForgotten => "what was sent to a former leader is not sent to the next",
            Bug::OutcomeLost => "the answer to a request is thrown away now and then",
            Bug::ReadWithoutQuorum => "a leader confirms reads without asking whether it leads",
            Bug::SyncWithoutCatchingUp => "a sync is answered before the replica has caught up",
            Bug::ReadBeforeOwnWrites => "a read overtakes the writes before it",
            Bug::EphemeralForgotten => "a session forgets its first ephemeral",
            Bug::MultiPartial => "a multi that fails leaves its first operations done",
            Bug::ConditionIgnored => "a multi is done although a znode is not as it asks",
            Bug::AclOfWrongNode => "a delete asks the ACL of the znode and not of its parent",
            Bug::AclLostAtSnapshot => "a snapshot does not bring the ACLs",
            Bug::IdsStay => "a new holder of a session keeps the ids of the former one",
            Bug::ReadUnchecked => "data is read without a look at its ACL",
            Bug::EventsUnfiltered => "a session gets events of znodes that it may not read",
            Bug::QuotaForgets => "what is deleted still counts for its quota",
            Bug::QuotaIgnored => "a write is done that goes beyond a hard limit",
            Bug::TakenFromAnybody => "an ephemeral is taken over from whoever has it",
            Bug::VersionStands => "setting data does not change the version",
            Bug::SequenceFromChildren => "sequential names come from the number of children",
            Bug::SequenceTwice => {
                "the number of a sequential znode that was deleted is given again"
            }
            Bug::EphemeralsStay => "an ephemeral outlives its session",
            Bug::ContainerWithChildReaped => "a container is deleted though it has a child by then",
            Bug::TtlIgnoresTouch => {
                "a time to live counts from the creation, whatever was set since"
            }
            Bug::NothingReaped => "no time to live ever ends",
            Bug::ContainersStay => "a container that is not used any more stays",
            Bug::DueForgottenAtSnapshot => {
                "a node that starts from a snapshot does not know what is due"
            }
            Bug::DetachCloses => "a session that its holder detaches is closed",
            Bug::SecretIgnored => "a session is resumed with any password",
            Bug::ExpiryEarly => "a session is expired before its time",
            Bug::NewLeaderForgetsSessions => "a new leader does not expire the sessions it finds",
            Bug::LeaseTooLong => "a holder trusts its session for longer than the cluster does",
            Bug::LossUnreported => "the loss of a session is not reported to its holder",
            Bug::EventLate => "an event comes after its change can be read",
            Bug::EventLostOnDelete => "the watches of a parent get no event of a deleted child",
            Bug::EventTwice => "an event is delivered twice",
            Bug::OneShotStays => "a one-shot watch fires again",
            Bug::EventsLostAtSnapshot => "watches get no events of what a snapshot has changed",
            Bug::EventsOutOfOrder => "events of one entry come in the wrong order",
            Bug::HistoryMissesBatch => "a watch from the past lacks the changes of one entry",
            Bug::HistoryKeptAtSnapshot => {
                "a watch from the past lacks what a snapshot stands for, and does not say so"
            }
            Bug::SeamTwice => "a watch from the past begins with a change that was seen already",
            Bug::WatchBeforeItsZxid => {
                "a watch from a zxid is answered before its replica has come to that"
            }
            Bug::RemovedWatchStays => "a watch that was removed still fires",
            Bug::PositionForgotten => "an event does not say which change of its write it is of",
            Bug::GapLate => "a gap is sent after the change that it stands for can be read",
            Bug::LogTimeStands => {
                "the log's time stands still for as long as the leader's clock was once ahead"
            }
            Bug::EventDataLate => "an event brings its znode as a later write has left it",
            Bug::LockEarly => "the second in the queue takes the lock too",
            Bug::TokenFixed => "every holder of a lock has the same fencing token",
            Bug::PredecessorMissed => {
                "a waiter takes the lock when the one before it gave up waiting"
            }
            Bug::FenceUnchecked => "a fenced write is done though its lock is lost",
            Bug::LockDelaySkipped => "the next holds a lock at once though its holder was lost",
            Bug::RevocationLost => "a holder does not receive a request made before it listened",
            Bug::ReaderOvertakes => "a reader does not wait for a writer that waits itself",
            Bug::DowngradeLetsGo => "a writer that becomes a reader goes to the end of the queue",
            Bug::SemaphoreOneMore => "a semaphore gives one permit more than it has",
            Bug::MultiLockUnordered => {
                "several locks are taken in the order in which they are named"
            }
            Bug::VersionUnknown => "the version is raised though that of one member is not known",
            Bug::CommandAboveVersion => "a command is let in and done that not all members know",
            Bug::VersionLostAtSnapshot => {
                "a snapshot does not say by which version the cluster acts"
            }
            Bug::TwoLeaders => "the second candidate of an election believes that it leads",
            Bug::LeaderChangeMissed => {
                "an observer of an election is not shown a change of the leader"
            }
            Bug::SelectorRunsOn => "a selector's task is not stopped when the leadership is lost",
            Bug::GoneMemberShown => "a watch of a group shows a member that has gone",
            Bug::EphemeralStaysGone => {
                "a persistent ephemeral that was deleted is not created again"
            }
            Bug::QueueItemTwice => "an item is taken though another consumer has it",
            Bug::QueueItemLost => {
                "an item leaves its queue when it is taken, and not when it is done"
            }
            Bug::QueueOverfills => "two puts that saw the same last room in a queue both succeed",
            Bug::QueuePriorityIgnored => "items are taken in the order in which they were put",
            Bug::QueueDelayIgnored => "an item is taken before it is due",
            Bug::QueueReturnUnnoticed => {
                "a consumer that waits does not notice an item that is given back"
            }
            Bug::BarrierOpensEarly => "whatever happens to a barrier opens it",
            Bug::DoubleBarrierOpensEarly => "a double barrier opens with one participant too few",
            Bug::DoubleBarrierLeavesEarly => {
                "a participant that leaves does not wait for the last of the others"
            }
            Bug::UpdateLost => "an update replaces what another wrote meanwhile",
            Bug::IdTwice => "the last number of a block is the first of the next",
            Bug::ConfigMissed => {
                "a follower is not shown a value that was deleted and created again"
            }
            Bug::CacheMissesRemoval => "a cache does not notice deletions",
            Bug::ListUnordered => "the items of a list come in another order",
            Bug::InstanceStays => "an instance is shown after its session has ended",
            Bug::ChrootIgnored => "a path below a chroot is taken for one of the whole tree",
            Bug::ChrootShown => "a chroot's handle gets paths of the whole tree",
            Bug::PageSkips => "a page of children begins behind where the last one ended",
            Bug::VoteLost => "a transaction is committed though a participant voted against it",
            Bug::LearnerPromotedBehind => "a learner votes before it has caught up",
            Bug::VoterRemovedBelowQuorum => "a change is made after which no majority is alive",
            Bug::JoinsAsVoter => "a new member votes before it has anything of the log",
            Bug::LivingReplaced => "the place of a member that is alive is taken",
            Bug::ClusterForgotten => "a node that has a cluster has none after a restart",
            Bug::NodeIdTwice => "a node with a new directory has its former id",
            Bug::FormerDataDeleted => "the next directory put aside always replaces the one before",
            Bug::PutAsideWithoutLeader => {
                "a damaged directory is put aside before a leader answers"
            }
            Bug::MarkBelieved => "a directory marked as damaged stays refused when it is sound",
            Bug::LearnerCounted => "a learner's acknowledgement counts as a voter's",
            Bug::RemovedUnaware => "a member that was removed while it was away does not learn it",
            Bug::PresumedAlive => {
                "a new leader counts on voters that have sent nothing yet and may be dead"
            }
            Bug::ZonesIgnored => "votes are given without a look at the zones",
            Bug::TwoFounders => "each node founds a cluster with those that it sees, unasked",
            Bug::PledgeUnsynced => "a promise or a pledge is announced before it is durable",
            Bug::PromiseForgotten => "a restarted node does not know what it has promised",
            Bug::UnreachedAbsent => "a listed peer that is not reached is counted as none",
            Bug::OwnPromiseIgnored => "a genesis is started from though a later one was pledged",
            Bug::VetoIgnored => "a cluster is founded though a peer has one already",
            Bug::VetoForgotten => {
                "a cluster is founded though a peer that is out of reach had one already"
            }
            Bug::LostHoldingShared => {
                "a reentrant lock is acquired again through a holding that is lost"
            }
            Bug::CloneQueues => "a clone of a reentrant lock queues behind another",
            Bug::ClientWatchFromNow => "a client that moves has its watches set from now on",
            Bug::ClientSeesOlder => "a client that moves is served by a replica that is behind",
            Bug::ClientLeaseFromAnswer => {
                "a client counts its lease from the answer, not the question"
            }
            Bug::ClientKeepsToItsList => {
                "a client knows only the addresses that it was started with"
            }
            Bug::ClientLossUnnoticed => "a client does not notice that messages to it were lost",
            Bug::ClientWriteAgain => {
                "what a client sends again to the next member gets a new number"
            }
            Bug::ClientReadEarly => "a client's read is answered before its writes are done",
            Bug::ReadyBeforePlace => {
                "an instance is ready before it has the vote that it is to take"
            }
            Bug::ReleasedByPath => {
                "a release deletes the znode of a lock though another session has taken it over"
            }
            Bug::UsageUnchecked => {
                "a transaction is committed though the use of a quota that it has read has changed"
            }
            Bug::ClosesWithoutHandover => "a leader that closes goes without handing over",
            Bug::AnswersAwaitDisk => "an answer to a heartbeat leaves after the writes before it",
            Bug::LevelByEntries => "a learner is level only if it has the last entry at each look",
            Bug::ProbesUnbounded => "a peer with a slow disk is sent a MiB again and again",
            Bug::SlowLeaderStays => "a leader leads on though its own disk is slow",
            Bug::PermitsOfOld => "a semaphore's handle keeps to the first number of permits",
        }
    }
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Plants a bug for this thread, in place of the one before.
#[cfg(any(test, feature = "simulator"))]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
    COUNT.set(0);
}

/// Whether this bug is planted.
#[inline(always)]
pub(crate) fn planted(bug: Bug) -> bool {
    cfg!(any(test, feature = "simulator")) && PLANTED.get() == Some(bug)
}

/// Whether this bug is planted and strikes this time: every so many times that this is called.
#[inline(always)]
pub(crate) fn strikes(bug: Bug, every: u64) -> bool {
    planted(bug) && {
        COUNT.set(COUNT.get() + 1);
        COUNT.get().is_multiple_of(every)
    }
}

/// Does what is wrong if this bug is planted.
#[inline(always)]
pub(crate) fn if_planted(bug: Bug, wrong: impl FnOnce()) {
    if planted(bug) {
        wrong();
    }
}

/// What is right, unless this bug is planted: then what is wrong.
#[inline(always)]
pub(crate) fn unless<T>(bug: Bug, right: T, wrong: T) -> T {
    if planted(bug) { wrong } else { right }
}
