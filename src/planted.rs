//! Bugs that can be planted, to see that the checks of the simulator and of some tests find them.
//!
//! A bug in product code is one expression at one place, and has no state there. Bugs of what
//! surrounds a node, such as its disk, its network and the delivery of events, are planted in the
//! simulator instead (`simulation::surroundings`).
//!
//! Without the `simulator` feature, `planted` is always false, and the program contains nothing of
//! this. With it, at most one bug at a time is planted, for the thread that asks for it.

use std::cell::Cell;

/// Makes [`Bug`]: each bug, what goes wrong with it, and the checks of the simulator that must find
/// it, each by itself. Without any, a test finds it and the simulator does not.
macro_rules! bugs {
    ($($bug:ident: $story:literal; [$($check:literal),* $(,)?],)*) => {
        /// A bug, each of a kind that systems like this one have had.
        #[allow(missing_docs, reason = "`story` describes each")]
        #[cfg_attr(not(any(test, feature = "simulator")), allow(dead_code, unreachable_pub))]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $($bug,)*
        }

        #[cfg(any(test, feature = "simulator"))]
        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)*];

            /// What goes wrong with it.
            pub fn story(self) -> &'static str {
                match self {
                    $(Bug::$bug => $story,)*
                }
            }

            /// The checks of the simulator that must find it, by their names.
            pub fn checks(self) -> &'static [&'static str] {
                match self {
                    $(Bug::$bug => &[$($check),*],)*
                }
            }
        }
    };
}

bugs! {
    AckBeforeDurable: "votes and acknowledgements leave before their write is done";
        ["I13 no vote before the sync", "I12 committed is durable", "I13 no acknowledgement before the sync"],
    VoteForgotten: "a restarted node does not know whom it voted for";
        ["I14 a start knows what was durable"],
    LogTailForgotten: "a restarted node does not know the last entry of its log";
        ["I14 a start knows what was durable", "I11 one log"],
    TornRecordAccepted: "a record that a crash cut in two is accepted";
        ["I31 no node stops by itself"],
    RotAccepted: "a record with a flipped bit is accepted";
        ["I31 no node stops by itself"],
    CompactedTooFar: "the log is cut beyond its checkpoint";
        ["I31 the cluster comes back", "I31 replicas come together"],
    CheckpointLosesSessions: "a checkpoint leaves out the sessions that changed";
        ["I14 what was written opens"],
    SnapshotMislabelled: "a snapshot is labelled with the entry before its own";
        ["I15 equal states"],
    ResultsLostAtSnapshot: "a snapshot does not bring the results of requests";
        ["I14 what was written opens"],
    EntrySkipped: "an entry is counted as applied and is not";
        ["I15 equal states"],
    NotDeterministic: "applying depends on more than the entry";
        ["I15 equal states"],
    RunAgain: "a request that comes again runs again";
        ["I7 machine as model"],
    OrderIgnored: "a request runs though one before it is missing";
        ["I7 machine as model"],
    EndedSessionReopens: "a late copy of its first request opens an ended session";
        ["I7 machine as model"],
    ResendForgotten: "what was sent to a former leader is not sent to the next";
        ["I31 everything is answered"],
    OutcomeLost: "the answer to a request is thrown away now and then";
        ["I31 everything is answered"],
    ReadWithoutQuorum: "a leader confirms reads without asking whether it leads";
        ["I2 sync sees all"],
    SyncWithoutCatchingUp: "a sync is answered before the replica has caught up";
        ["I2 sync sees all", "I1 I2 linearizable"],
    ReadBeforeOwnWrites: "a read overtakes the writes before it";
        ["I4 answers in order", "ephemerals: closed leaves nothing"],
    EphemeralForgotten: "a session forgets its first ephemeral";
        ["I3 reads show what was"],
    MultiPartial: "a multi that fails leaves its first operations done";
        ["I7 machine as model", "I3 snapshots show what was"],
    ConditionIgnored: "a multi is done although a znode is not as it asks";
        ["I7 machine as model"],
    AclOfWrongNode: "a delete asks the ACL of the znode and not of its parent";
        ["I7 machine as model"],
    AclLostAtSnapshot: "a snapshot does not bring the ACLs";
        ["I14 what was written opens"],
    IdsStay: "a new holder of a session keeps the ids of the former one";
        ["I7 machine as model"],
    ReadUnchecked: "data is read without a look at its ACL";
        ["I3 reads show what was", "W4 set with the read"],
    EventsUnfiltered: "a session gets events of znodes that it may not read";
        ["W2 W3 the event that is due"],
    QuotaForgets: "what is deleted still counts for its quota";
        ["I7 machine invariants"],
    QuotaIgnored: "a write is done that goes beyond a hard limit";
        ["I7 machine as model"],
    TakenFromAnybody: "an ephemeral is taken over from whoever has it";
        ["I7 machine as model"],
    VersionStands: "setting data does not change the version";
        ["I7 machine as model"],
    SequenceFromChildren: "sequential names come from the number of children";
        ["I7 machine as model"],
    SequenceTwice: "the number of a sequential znode that was deleted is given again";
        ["I7 machine as model"],
    EphemeralsStay: "an ephemeral outlives its session";
        ["I7 machine as model"],
    ContainerWithChildReaped: "a container is deleted though it has a child by then";
        ["I7 machine as model"],
    TtlIgnoresTouch: "a time to live counts from the creation, whatever was set since";
        ["I7 machine as model"],
    NothingReaped: "no time to live ever ends";
        ["I31 what is due is deleted"],
    LogTimeStands: "the log's time stands still for as long as the leader's clock was once ahead";
        ["the log's time passes"],
    ContainersStay: "a container that is not used any more stays";
        ["I31 what is not used any more is deleted"],
    DueForgottenAtSnapshot: "a node that starts from a snapshot does not know what is due";
        ["I31 what is not used any more is deleted"],
    SecretIgnored: "a session is resumed with any password";
        ["I20 a session needs its password"],
    DetachCloses: "a session that its holder detaches is closed";
        ["I18 a detached session stays open"],
    ExpiryEarly: "a session is expired before its time";
        ["I22 alive means not ended", "I19 no early expiry"],
    NewLeaderForgetsSessions: "a new leader does not expire the sessions it finds";
        ["I21 sessions of the dead end"],
    LeaseTooLong: "a holder trusts its session for longer than the cluster does";
        ["I22 alive means not ended"],
    LossUnreported: "the loss of a session is not reported to its holder";
        ["I31 everything is answered"],
    EventLate: "an event comes after its change can be read";
        ["W1 the event comes before the data", "W4 no watch ends silently"],
    EventLostOnDelete: "the watches of a parent get no event of a deleted child";
        ["W1 the event comes before the data", "W4 all is told before the last"],
    EventTwice: "an event is delivered twice";
        ["W2 W3 the event that is due", "W3 once"],
    OneShotStays: "a one-shot watch fires again";
        ["W3 a watch that has fired is over"],
    EventsLostAtSnapshot: "watches get no events of what a snapshot has changed";
        ["W6 net changes after a snapshot"],
    EventsOutOfOrder: "events of one entry come in the wrong order";
        ["W2 W3 the event that is due"],
    EventDataLate: "an event brings its znode as a later write has left it";
        ["W8 an event brings its znode"],
    PositionForgotten: "an event does not say which change of its write it is of";
        ["W2 W3 the event that is due"],
    GapLate: "a gap is sent after the change that it stands for can be read";
        ["W9 nothing is lost for ever"],
    HistoryMissesBatch: "a watch from the past lacks the changes of one entry";
        ["W2 W3 the event that is due"],
    HistoryKeptAtSnapshot: "a watch from the past lacks what a snapshot stands for, and does not say so";
        ["W9 nothing is lost for ever"],
    SeamTwice: "a watch from the past begins with a change that was seen already";
        ["W2 W3 the event that is due"],
    WatchBeforeItsZxid: "a watch from a zxid is answered before its replica has come to that";
        ["W6 only what nobody has is future"],
    RemovedWatchStays: "a watch that was removed still fires";
        ["W3 a watch that was removed is over", "W3 nothing after the last"],
    LockEarly: "the second in the queue takes the lock too";
        ["I23 one holder at a time", "elections: one leader at a time"],
    TokenFixed: "every holder of a lock has the same fencing token";
        ["I22 tokens grow", "elections: tokens grow"],
    PredecessorMissed: "a waiter takes the lock when the one before it gave up waiting";
        ["I23 no more is held than there is"],
    FenceUnchecked: "a fenced write is done though its lock is lost";
        ["I23 fenced writes in order"],
    LockDelaySkipped: "the next holds a lock at once though its holder was lost";
        ["I23 a lock-delay is kept"],
    RevocationLost: "a holder does not receive a request made before it listened";
        ["I24 revocation"],
    ReaderOvertakes: "a reader does not wait for a writer that waits itself";
        ["I23 readers wait for the writers before them"],
    DowngradeLetsGo: "a writer that becomes a reader goes to the end of the queue";
        ["I23 no more is held than there is"],
    SemaphoreOneMore: "a semaphore gives one permit more than it has";
        ["I23 permits are given in order"],
    MultiLockUnordered: "several locks are taken in the order in which they are named";
        ["I31 several locks in one order"],
    VersionUnknown: "the version is raised though that of one member is not known";
        ["I32 raised when all can", "I32 nobody is left behind"],
    CommandAboveVersion: "a command is let in and done that not all members know";
        ["I32 peers can read it", "I32 all can do what is in the log"],
    VersionLostAtSnapshot: "a snapshot does not say by which version the cluster acts";
        ["I14 what was written opens"],
    TwoLeaders: "the second candidate of an election believes that it leads";
        ["elections: one leader at a time"],
    LeaderChangeMissed: "an observer of an election is not shown a change of the leader";
        ["elections: a change is told"],
    SelectorRunsOn: "a selector's task is not stopped when the leadership is lost";
        ["elections: runs while leading"],
    GoneMemberShown: "a watch of a group shows a member that has gone";
        ["groups: the present members", "groups: a change is told"],
    EphemeralStaysGone: "a persistent ephemeral that was deleted is not created again";
        ["ephemerals: it goes on"],
    QueueItemTwice: "an item is taken though another consumer has it";
        ["one consumer has an item", "what is done does not come again"],
    QueueItemLost: "an item leaves its queue when it is taken, and not when it is done";
        ["items leave when they are done"],
    QueueOverfills: "two puts that saw the same last room in a queue both succeed";
        ["queues are never too full"],
    QueuePriorityIgnored: "items are taken in the order in which they were put";
        ["items come in their order"],
    QueueDelayIgnored: "an item is taken before it is due";
        ["items are not taken before they are due"],
    QueueReturnUnnoticed: "a consumer that waits does not notice an item that is given back";
        ["who waits hears of an item"],
    BarrierOpensEarly: "whatever happens to a barrier opens it";
        ["a barrier holds while it is set"],
    DoubleBarrierOpensEarly: "a double barrier opens with one participant too few";
        ["a double barrier opens for enough"],
    DoubleBarrierLeavesEarly: "a participant that leaves does not wait for the last of the others";
        ["a double barrier is left by all"],
    UpdateLost: "an update replaces what another wrote meanwhile";
        ["I9 counters"],
    IdTwice: "the last number of a block is the first of the next";
        ["ids are given once"],
    ConfigMissed: "a follower is not shown a value that was deleted and created again";
        ["a follower is told the last value"],
    CacheMissesRemoval: "a cache does not notice deletions";
        ["caches follow"],
    ListUnordered: "the items of a list come in another order";
        ["lists are in order"],
    InstanceStays: "an instance is shown after its session has ended";
        ["I18 instances"],
    VoteLost: "a transaction is committed though a participant voted against it";
        ["all have voted for what is committed"],
    LostHoldingShared: "a reentrant lock is acquired again through a holding that is lost";
        ["I22 what is lost is lost"],
    CloneQueues: "a clone of a reentrant lock queues behind another";
        ["I31 everything is answered"],
    PermitsOfOld: "a semaphore's handle keeps to the first number of permits";
        ["I23 permits are given in order"],
    UsageUnchecked: "a transaction is committed though the use of a quota that it has read has changed";
        ["I8 transactions"],
    ReleasedByPath: "a release deletes the znode of a lock though another session has taken it over";
        ["I22 what is taken stays"],
    LearnerPromotedBehind: "a learner votes before it has caught up";
        ["I25 voters were learners"],
    VoterRemovedBelowQuorum: "a change is made after which no majority is alive";
        ["I25 a majority is alive"],
    JoinsAsVoter: "a new member votes before it has anything of the log";
        ["I25 voters were learners"],
    LivingReplaced: "the place of a member that is alive is taken";
        ["I25 the living stay"],
    ClusterForgotten: "a node that has a cluster has none after a restart";
        ["I14 what was written opens"],
    NodeIdTwice: "a node with a new directory has its former id";
        ["I26 an id is of one disk"],
    FormerDataDeleted: "the next directory put aside always replaces the one before";
        ["I34 former data is kept"],
    PutAsideWithoutLeader: "a damaged directory is put aside before a leader answers";
        ["I34 nothing is put aside without a leader"],
    MarkBelieved: "a directory marked as damaged stays refused when it is sound";
        ["I14 what was written opens"],
    LearnerCounted: "a learner's acknowledgement counts as a voter's";
        ["I12 committed is durable"],
    RemovedUnaware: "a member that was removed while it was away does not learn it";
        ["I25 the members are as they should be"],
    PresumedAlive: "a new leader counts on voters that have sent nothing yet and may be dead";
        ["I25 a majority is alive"],
    ZonesIgnored: "votes are given without a look at the zones";
        ["I25 the members are as they should be"],
    TwoFounders: "each node founds a cluster with those that it sees, unasked";
        ["I25 one cluster"],
    UnreachedAbsent: "a listed peer that is not reached is counted as none";
        ["I25 one genesis"],
    OwnPromiseIgnored: "a genesis is started from though a later one was pledged";
        ["I31 the cluster comes back"],
    VetoIgnored: "a cluster is founded though a peer has one already";
        ["I25 one genesis"],
    ChrootIgnored: "a path below a chroot is taken for one of the whole tree";
        ["W4 what was removed is over"],
    ChrootShown: "a chroot's handle gets paths of the whole tree";
        ["I9 the answer of the log", "W4 no watch ends by itself"],
    PageSkips: "a page of children begins behind where the last one ended";
        ["I3 reads show what was"],
    ClientWatchFromNow: "a client that moves has its watches set from now on";
        ["W1 the event comes before the data"],
    ClientSeesOlder: "a client that moves is served by a replica that is behind";
        ["I3 a client does not go back"],
    ClientLeaseFromAnswer: "a client counts its lease from the answer, not the question";
        ["I22 alive means not ended"],
    ClientWriteAgain: "what a client sends again to the next member gets a new number";
        ["I1 writes in real-time order"],
    ClientReadEarly: "a client's read is answered before its writes are done";
        ["I4 answers in order"],
    ReadyBeforePlace: "an instance is ready before it has the vote that it is to take";
        ["I31 the cluster comes back"],
    ClosesWithoutHandover: "a leader that closes goes without handing over";
        ["M3 a close fails no writes of others"],
    AnswersAwaitDisk: "an answer to a heartbeat leaves after the writes before it";
        [
            "U1 requests are answered in time",
            "U2 a slow disk unseats no leader",
        ],
    LevelByEntries: "a learner is level only if it has the last entry at each look";
        ["U5 who lags catches up"],
    ClientLossUnnoticed: "a client does not notice that messages to it were lost";
        ["I31 everything is answered", "W2 W3 the event that is due"],
    SentRefused: "what was sent for a session that is lost is refused for good";
        ["I10 refused is not done"],
    HistoryShort: "a replica forgets changes that it is to know";
        ["W6 only what is forgotten is too old"],
    VersionStays: "the version is not raised though all members support another";
        ["I32 the version is that of all"],
    VersionMistold: "a command is refused by another version than that of the cluster";
        ["I32 refused for its version"],
    SnapshotAhead: "a snapshot is labelled with the entry after its own";
        ["I11 no gap"],
    CutUnderTransfer: "a leader cuts the log that a peer still needs behind the state that it is sent";
        ["U1 requests are answered in time"],
    LogUntrimmed: "the log stays in memory until a checkpoint";
        ["U6 the log is bounded"],
    LogTimeBack: "a new leader begins with its own clock, whatever the log's time is";
        ["the log's time goes on"],
    WaitSpins: "who waits for another clone of a reentrant lock wakes itself";
        ["I31 nobody spins"],
    CloneHoldsApart: "a clone of a reentrant lock that is held acquires it once more";
        ["I22 clones share a holding"],
    LostAtOnce: "a guard says from the start that it is lost";
        ["I22 held"],
    OutcomeMistold: "a participant is told that a transaction was aborted, whatever was decided";
        ["transactions have one outcome"],
    ValueMisnumbered: "a follower is shown a value with the version of another";
        ["versions grow"],
    InstancesMissed: "some changes of a service's instances are not shown";
        ["who follows a service is told of all"],
    PreCandidateLeads: "a node that asks whether it would be elected believes that it leads";
        ["I11 one leader a term"],
    EntryAltered: "a follower gets another entry than its leader has sent";
        ["I11 log matching"],
    RecentIsFuture: "a watch from one of the last zxids is refused as one of the future";
        ["W6 only what nobody has is future", "W6 what was shown is not future"],
    MessageCut: "a message arrives without its last byte";
        ["messages decode"],
    AnswerMixed: "a write that is done is answered as if it were not";
        ["I9 the answer of the log"],
    HeldAgain: "a guard says that it is lost, and then that it is held";
        ["I22 lost stays lost", "elections: lost stays lost", "I22 the last one releases"],
    LearnersForgotten: "a checkpoint and a snapshot leave out who is a learner";
        ["I25 who votes follows from the log"],
    RefusedUnasked: "a write is refused that nobody was asked for";
        ["I9 answered is in the log"],
    RemovalDenied: "watches that are removed are said not to have been there";
        ["W4 what is there is removed"],
    FutureAccepted: "a watch is set from a zxid that nobody has written";
        ["W6 a replica comes to the zxid first"],
    StepPanics: "a step panics";
        ["a panic"],
    GapForNothing: "a gap comes in the place of an event that was not left out";
        ["W6 gaps"],
    NetForNothing: "an event says that it stands for what a snapshot has changed";
        ["W6 net changes come with a snapshot"],
    LeaderToldAgain: "an observer of an election is shown a leader whom it was shown before";
        ["elections: told once"],
    LastForLeader: "an observer takes the last candidate for the leader";
        ["elections: the present leader", "elections: told in order"],
    EphemeralAsleep: "who keeps a persistent ephemeral does nothing when it is deleted";
        ["ephemerals: it is there"],
    MembersToldAgain: "a watch of a group shows members who were shown before";
        ["groups: told once"],
    JoinMisnumbered: "a member of a group does not know by which write it has joined";
        ["groups: self is in the view"],
    UpdateRefused: "a member of a group cannot change its data";
        ["groups: a member can update"],
    OvertakenShown: "a recipe that was overtaken by another fails";
        ["no wonder", "recipes fail as writes do"],
    LeaderAwaitsDisk: "a leader sends entries after its own disk has them";
        ["U1 a majority commits"],
    StepDawdles: "a step of a node takes a second";
        ["U4 no step takes long"],
    PledgeUnsynced: "a promise or a pledge is announced before it is durable";
        [],
    PromiseForgotten: "a restarted node does not know what it has promised";
        [],
    VetoForgotten: "a cluster is founded though a peer that is out of reach had one already";
        [],
    ClientKeepsToItsList: "a client knows only the addresses that it was started with";
        [],
    ClientDialsAll: "a client connects to all members";
        ["K4 a client has a member and a spare"],
    ClientsAnywhere: "a client goes to any member, whether it leads or not";
        ["K4 clients cost the leader nothing", "K4 learners serve all clients"],
    ClientClings: "a client waits for a member that it has lost the connection with";
        ["K5 clients of a dead member are served"],
    ElectionMovesClients: "all clients leave their members when another leader is elected";
        ["K5 clients do not move together"],
    SessionsDieWithConnection: "the session of a client whose member is lost ends";
        ["K5 no session is lost"],
    ChangeUntold: "some events are left out of what clients are sent";
        ["K1 all clients see a change"],
    SeenUntold: "a client does not know up to which change it was sent events";
        ["I31 clients are told of all"],
    TreeLate: "what a node has applied cannot be read for a while";
        ["I3 reads do not go back"],
    ClientStops: "a client stops by itself";
        ["I31 no client stops by itself"],
    MoveFires: "a watch of a client that moves fires though nothing has changed";
        ["W6 net changes after a move"],
    NewcomersUnready: "an instance that replaces another is never ready";
        ["M2 whoever is replaced becomes ready"],
    CloseLingers: "an instance that is to close does nothing for a second before";
        ["M3 a planned close is short"],
    ProbesUnbounded: "a peer is sent the same entries for each answer to a heartbeat";
        ["U8 a step sends entries once"],
    UrgentWaits: "heartbeats and renewals wait behind entries for a slow link";
        ["U3 no session ends for another's disk"],
    SlowLeaderStays: "a leader leads on though its own disk is slow";
        ["U1 a majority commits", "U2 a leader with a slow disk hands over"],
    FullDisksIgnored: "writes go on though the disks of a majority are nearly full";
        ["U7 nearly full disks take no new data"],
}

#[cfg(any(test, feature = "simulator"))]
impl Bug {
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
