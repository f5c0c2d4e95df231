//! The bugs that can be planted (`src/planted.rs` has the hooks).

use std::cell::Cell;

/// Defines [`Bug`]: each bug, its story, and the simulator's checks that must find it, each on its
/// own. A bug without checks is found by a test and not by the simulator.
macro_rules! bugs {
    ($($bug:ident: $story:literal; [$($check:literal),* $(,)?],)*) => {
        /// A bug. Systems like this one have had bugs of each of these kinds.
        #[allow(missing_docs, reason = "`story` describes each")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $($bug,)*
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)*];

            /// What goes wrong.
            pub fn story(self) -> &'static str {
                match self {
                    $(Bug::$bug => $story,)*
                }
            }

            /// The names of the simulator's checks that must find it.
            pub fn checks(self) -> &'static [&'static str] {
                match self {
                    $(Bug::$bug => &[$($check),*],)*
                }
            }
        }
    };
}

bugs! {
    AckBeforeDurable: "votes and acknowledgements are sent before their writes are durable";
        ["I13 no vote before the sync", "I12 committed is durable", "I13 no acknowledgement before the sync"],
    PartOfNoTerm: "a crash in the middle of a large write leaves entries of a term that the disk does not know of";
        ["I14 a start knows the terms of its entries", "I14 a start knows what was durable"],
    StartTrustsRead: "a start takes what it can read for durable";
        ["I14 what is confirmed is on the device"],
    AppendUnsynced: "what is written to a file counts as durable before it is synced";
        ["I14 what is confirmed is on the device"],
    NamesUnsynced: "a file's name counts as durable before its folder is synced";
        ["I14 what is confirmed is on the device"],
    FailedSyncIgnored: "a failed sync counts as a sync";
        ["I14 what is confirmed is on the device"],
    CurrentEarly: "CURRENT names an incarnation that is not complete yet";
        ["I14 what was written opens"],
    ReadUnverified: "entries that are read for a peer are not verified";
        ["I16 what is read was written"],
    MergeForgetsHardState: "the hard state of a write that joins another one is lost";
        ["I13 what is confirmed is durable"],
    WitnessOneSlot: "the witness is written over its only copy";
        ["I14 the witness keeps the record before"],
    RotAccepted: "a record with a flipped bit is accepted";
        ["I11 one log", "I14 a start knows what was durable", "I31 no node stops by itself"],
    CompactedTooFar: "the log is truncated beyond its checkpoint";
        ["I31 the cluster comes back", "I31 replicas come together"],
    SnapshotMislabelled: "a snapshot is labelled with the index before its own";
        ["I15 equal states"],
    ResultsLostAtSnapshot: "a snapshot lacks the results of requests";
        ["I14 what was written opens"],
    EntrySkipped: "an entry counts as applied although it was not";
        ["I15 equal states"],
    NotDeterministic: "applying an entry depends on more than the entry and the state";
        ["I15 equal states"],
    RunAgain: "a request that is received twice runs twice";
        ["I7 machine as model"],
    ResendForgotten: "requests sent to a former leader are not resent to the next";
        ["I31 everything is answered"],
    OutcomeLost: "some replies to requests are dropped";
        ["I31 everything is answered"],
    SyncWithoutCatchingUp: "a sync returns before the replica has caught up";
        ["I2 sync sees all", "I1 I2 linearizable"],
    ReadBeforeOwnWrites: "a read overtakes the session's earlier writes";
        ["I4 answers in order", "ephemerals: closed leaves nothing"],
    ReadUnopened: "a session that is not open yet reads the replica as it is";
        ["S4 a read shows what was acknowledged"],
    MultiPartial: "the first operations of a failed multi take effect";
        ["I7 machine as model", "I3 snapshots show what was"],
    AclOfWrongNode: "a delete checks the ACL of the znode instead of its parent's";
        ["I7 machine as model"],
    ReadUnchecked: "data is read without a check of its ACL";
        ["I3 reads show what was", "W4 set with the read"],
    EventsUnfiltered: "a session receives events of znodes that it may not read";
        ["W2 W3 the event that is due"],
    QuotaForgets: "deleted znodes still count towards their quota";
        ["I7 machine invariants"],
    EphemeralsStay: "an ephemeral outlives its session";
        ["I7 machine as model"],
    ContainerWithChildReaped: "a container is deleted although it has a child again";
        ["I7 machine as model"],
    NothingReaped: "znodes outlive their TTL";
        ["I31 what is due is deleted"],
    LogTimeStands: "the log's time stands still while the leader's clock is behind it";
        ["the log's time passes"],
    ContainersStay: "unused containers are not deleted";
        ["I31 what is not used any more is deleted"],
    SecretIgnored: "a session is resumed with any password";
        ["I20 a session needs its password"],
    DetachCloses: "detaching a session closes it";
        ["I18 a detached session stays open"],
    ExpiryEarly: "a session is expired before its time";
        ["I22 alive means not ended", "I19 no early expiry"],
    NewLeaderForgetsSessions: "a new leader does not expire the sessions that it finds";
        ["I21 sessions of the dead end"],
    LeaseTooLong: "a holder trusts its session for longer than the cluster does";
        ["I22 alive means not ended"],
    EventLate: "an event arrives after its change can be read";
        ["W1 the event comes before the data", "W4 no watch ends silently"],
    EventLostOnDelete: "the event of a deletion is lost";
        ["W1 the event comes before the data", "W4 all events come before the last"],
    EventTwice: "an event is delivered twice";
        ["W2 W3 the event that is due", "W3 once"],
    OneShotStays: "a one-shot watch fires again";
        ["W3 a watch that has fired is over"],
    EventsLostAtSnapshot: "watches get no events for the changes of a snapshot";
        ["W6 net changes after a snapshot"],
    EventsOutOfOrder: "the events of one entry arrive in the wrong order";
        ["W2 W3 the event that is due"],
    EventDataLate: "an event brings its znode with another version";
        ["W8 an event brings its znode"],
    BeforeIsAfter: "an event brings the znode as its write has left it for the znode before the write";
        ["W8 an event brings its znode as it was before"],
    PositionForgotten: "an event does not carry the position of its change in the write";
        ["W2 W3 the event that is due"],
    GapLate: "a gap is sent after the changes that it stands for can be read";
        ["W9 nothing is lost for ever"],
    HistoryKeptAtSnapshot: "a watch from the past misses the changes of a snapshot without an error";
        ["W9 nothing is lost for ever"],
    SeamTwice: "a watch from the past begins with a change that its holder has seen already";
        ["W2 W3 the event that is due"],
    WatchBeforeItsZxid: "a watch from a zxid is set before the replica has reached that zxid";
        ["W6 only what nobody has is future"],
    RemovedWatchStays: "a removed watch still fires";
        ["W3 a watch that was removed is over", "W3 nothing after the last"],
    LockEarly: "the second contender in the queue acquires the lock as well";
        ["I23 one holder at a time", "elections: one leader at a time"],
    CuratorsIgnored: "a contender of Curator is not counted";
        ["I23 no more is held than there is"],
    TokenFixed: "all holders of a lock get the same fencing token";
        ["I22 tokens grow", "elections: tokens grow"],
    PredecessorMissed: "a contender acquires the lock when its predecessor gives up waiting";
        ["I23 no more is held than there is"],
    FenceUnchecked: "a fenced write succeeds although the lock is lost";
        ["I23 fenced writes in order"],
    LockDelaySkipped: "a lock is acquired at once after its holder was lost, without the lock-delay";
        ["I23 a lock-delay is kept"],
    RevocationLost: "a holder does not receive a request to release";
        ["I24 revocation"],
    ReaderOvertakes: "a reader does not wait for a writer that is queued before it";
        ["I23 readers wait for the writers before them"],
    MultiLockUnordered: "several locks are acquired in the order in which they are named";
        ["I31 several locks in one order"],
    VersionUnknown: "the version is raised although one member's version is unknown";
        ["I32 raised when all can", "I32 nobody is left behind"],
    CommandAboveVersion: "a command runs although not all members support it";
        ["I32 peers can read it", "I32 all can do what is in the log"],
    TwoLeaders: "the second candidate of an election believes that it leads";
        ["elections: one leader at a time"],
    PlacedBehindNobody: "a candidate gets a place behind one that is gone";
        ["elections: nobody passes the first"],
    PriorityIgnored: "a candidate stays behind others of a lower priority";
        ["elections: in the order of their priorities"],
    HandOverBlind: "a leader names another candidate than the one that it has handed over to";
        ["elections: handed over to the named one"],
    LeaderChangeMissed: "an observer of an election misses a change of leader";
        ["elections: a change is reported"],
    SelectorRunsOn: "a leader selector's task goes on after the leadership is lost";
        ["elections: runs while leading"],
    GoneMemberShown: "a watch of a group shows a member that is not there";
        ["groups: the present members", "groups: a change is reported"],
    EphemeralStaysGone: "a persistent ephemeral that was deleted is not created again";
        ["ephemerals: it goes on"],
    QueueItemTwice: "an item is taken although another consumer holds it";
        ["one consumer has an item", "what is done does not come again"],
    QueueItemLost: "an item is removed from its queue when it is taken, not when it is done";
        ["items leave when they are done"],
    QueueOverfills: "two puts that both saw the last free place in a queue succeed";
        ["queues are never too full"],
    ResultsUnbounded: "the results of a multi may be longer than any message";
        ["no message is too long"],
    QueuePriorityIgnored: "items are taken in the order in which they were put, without regard to priority";
        ["items come in their order"],
    QueueDelayIgnored: "an item is taken before it is due";
        ["items are not taken before they are due"],
    QueueDueUnnoticed: "a waiting consumer notices nothing";
        ["a waiting consumer is notified of an item"],
    BarrierOpensEarly: "who waits at a barrier passes after a while";
        ["a barrier holds while it is set"],
    DoubleBarrierOpensEarly: "a double barrier opens with one participant too few";
        ["a double barrier opens for enough"],
    DoubleBarrierLeavesEarly: "a participant that leaves does not wait for the others";
        ["a double barrier is left by all"],
    UpdateLost: "an update overwrites a concurrent update";
        ["I9 updates"],
    AdditionLost: "one of eight additions is confirmed and not made";
        ["I9 counters", "ids are given once"],
    PermitTwice: "permits are used twice";
        ["a rate is never passed"],
    PermitsKept: "permits of a rate limiter are used late";
        ["permits are used in time"],
    PositionUnfenced: "the position of an owner that has lost its partition is stored";
        ["positions are their owner's"],
    PositionUnread: "the next owner of a partition begins without its position";
        ["positions never go back"],
    PartitionForgotten: "a plan forgets the last partition whose member has gone";
        ["every partition has an owner"],
    MovesUnbounded: "a plan moves as many partitions as it likes";
        ["moves are bounded"],
    SilentKeeps: "a member whose share is in no call keeps its partitions";
        ["a silent member owns nothing"],
    ConfigMissed: "a follower misses some values";
        ["a follower receives the last value"],
    CacheMissesRemoval: "a cache does not notice deletions";
        ["caches follow"],
    InstanceStays: "an instance is shown after its session has ended";
        ["I18 instances"],
    VoteLost: "a transaction commits although a participant voted no";
        ["all have voted for what is committed"],
    LostHoldingShared: "a clone of a reentrant lock acquires it by a hold that is already lost";
        ["I22 what is lost is lost"],
    CloneQueues: "a clone of a reentrant lock queues behind another clone";
        ["I31 everything is answered"],
    PermitsOfOld: "a semaphore's handle never sees a change of the number of permits";
        ["I23 permits are given in order"],
    UsageUnchecked: "a transaction commits although the quota usage that it has read has changed";
        ["I8 transactions"],
    ReleasedByPath: "a release deletes a lock's znode although another session has taken it over";
        ["I22 what is taken stays"],
    LearnerPromotedBehind: "a learner votes before it has caught up";
        ["I25 voters were learners"],
    VoterRemovedBelowQuorum: "a change leaves a configuration without a live majority";
        ["I25 a majority is alive"],
    JoinsAsVoter: "a new member votes before it has received the log";
        ["I25 voters were learners"],
    LivingReplaced: "a member that is alive is replaced";
        ["I25 the living stay"],
    NodeIdTwice: "a node with a new data directory uses its former id again";
        ["I26 an id is of one disk"],
    FormerDataDeleted: "a directory put aside always replaces the one put aside before";
        ["I34 former data is kept"],
    PutAsideWithoutLeader: "a damaged directory is put aside before a leader has answered";
        ["I34 nothing is put aside without a leader"],
    LearnerCounted: "a learner's acknowledgement counts as a voter's";
        ["I12 committed is durable"],
    LeadPriorityIgnored: "a leader keeps the lead though a fit voter has a higher priority";
        ["I25 the members are as they should be"],
    TwoFounders: "each node founds a cluster with the peers that it sees, without their consent";
        ["I25 one cluster"],
    UnreachedAbsent: "an unreachable peer counts as one that has no cluster";
        ["I25 one genesis"],
    OwnPromiseIgnored: "a node starts from a genesis although it has pledged itself to a later one";
        ["I31 the cluster comes back"],
    VetoIgnored: "a cluster is founded although a peer already has one";
        ["I25 one genesis"],
    ChrootIgnored: "a path in a chroot is used as a path of the whole tree";
        ["W4 what was removed is over"],
    ChrootShown: "a handle with a chroot receives paths of the whole tree";
        ["I9 the answer of the log", "W4 no watch ends by itself"],
    ClientWatchFromNow: "when a client moves, its watches are set from now on";
        ["W1 the event comes before the data"],
    ClientSeesOlder: "a client that moves is served by a replica that is behind";
        ["I3 a client does not go back"],
    ClientLeaseFromAnswer: "a client counts its lease from the reply, not from the request";
        [],
    ClientWriteAgain: "a write that a client resends to another member gets a new number";
        ["I1 writes in real-time order"],
    ClientReadEarly: "a client's read is answered before its earlier writes";
        ["I4 answers in order"],
    ReadyBeforePlace: "an instance reports ready before it has the vote that it is to get";
        ["I31 the cluster comes back"],
    ClosesWithoutHandover: "a leader closes without a handover";
        ["M3 a close fails no writes of others"],
    AnswersAwaitDisk: "a heartbeat response waits for the writes before it";
        [
            "U1 requests are answered in time",
            "U2 a slow disk unseats no leader",
        ],
    LevelByEntries: "a learner counts as caught up only if it always has the last entry";
        ["U5 who lags catches up"],
    ClientLossUnnoticed: "a client does not notice that messages to it were lost";
        ["I31 everything is answered", "W2 W3 the event that is due"],
    SentRefused: "requests that a lost session has sent are reported as never done";
        ["I10 refused is not done"],
    HistoryShort: "a replica's history of changes is too short";
        ["W6 only what is forgotten is too old"],
    VersionStays: "the version is not raised although all members support a higher one";
        ["I32 the version is that of all"],
    VersionMistold: "a command is refused with a version that is not the cluster's";
        ["I32 refused for its version"],
    SnapshotAhead: "a snapshot is labelled with the index after its own";
        ["I11 no gap"],
    CutUnderTransfer: "a leader truncates the log that a peer needs after the snapshot being sent";
        ["U1 requests are answered in time"],
    LogUntrimmed: "the whole log since the last checkpoint stays in memory";
        ["U6 the log is bounded"],
    LogTimeBack: "a new leader uses its own clock even if the log's time is ahead";
        ["the log's time goes on"],
    WaitSpins: "a task that waits wakes itself repeatedly";
        ["I31 nobody spins"],
    CloneHoldsApart: "a clone of a held reentrant lock acquires it a second time";
        ["I22 clones share a holding"],
    LostAtOnce: "a guard reports from the start that it is lost";
        ["I22 held"],
    OutcomeMistold: "a participant learns that a transaction was aborted, whatever the decision";
        ["transactions have one outcome"],
    ValueMisnumbered: "a follower gets a value with the version of another";
        ["versions grow"],
    InstancesMissed: "some changes of a service's instances are not reported";
        ["a follower of a service receives all instances"],
    FollowerLeads: "a follower believes that it leads";
        ["I11 one leader a term"],
    EntryAltered: "a follower receives another entry than the leader has sent";
        ["I11 log matching"],
    RecentIsFuture: "a watch from a recent zxid is refused as one from the future";
        ["W6 only what nobody has is future", "W6 what was shown is not future"],
    MessageCut: "a message arrives without its last byte";
        ["messages decode"],
    AnswerMixed: "a successful write gets the reply of a failed one";
        ["I9 the answer of the log"],
    HeldAgain: "a guard reports that it is lost and later that it is held";
        ["I22 lost stays lost", "elections: lost stays lost", "I22 the last one releases"],
    LearnersForgotten: "checkpoints and snapshots do not say who is a learner";
        ["I25 who votes follows from the log"],
    RefusedUnasked: "a write is refused without being proposed";
        ["I9 answered is in the log"],
    RemovalDenied: "the removal of existing watches reports that there are none";
        ["W4 what is there is removed"],
    FutureAccepted: "a watch is accepted from a zxid that does not exist yet";
        ["W6 a replica comes to the zxid first"],
    StepPanics: "a step panics";
        ["a panic"],
    GapForNothing: "a gap replaces an event although there was room for it";
        ["W6 gaps"],
    NetForNothing: "an event claims to be a net change of a snapshot";
        ["W6 net changes come with a snapshot"],
    LeaderToldAgain: "an observer of an election is notified of the same leader twice";
        ["elections: reported once"],
    LastForLeader: "an observer takes the last candidate for the leader";
        ["elections: the present leader", "elections: reported in order"],
    EphemeralAsleep: "who waits for a persistent ephemeral does not notice it";
        ["ephemerals: it is there"],
    MembersToldAgain: "a watch of a group reports the same members twice";
        ["groups: reported once"],
    JoinMisnumbered: "a group member is shown with a wrong zxid of its join";
        ["groups: self is in the view"],
    UpdateRefused: "a group member cannot change its data";
        ["groups: a member can update"],
    OvertakenShown: "a recipe fails when another client is faster";
        ["no wonder", "recipes fail as writes do"],
    StepDawdles: "a step of a node takes a second";
        ["U4 no step takes long"],
    PledgeUnsynced: "a promise or a pledge is announced before it is durable";
        [],
    PromiseForgotten: "a restarted node has forgotten its promise";
        [],
    VetoForgotten: "a cluster is founded although an unreachable peer already had one";
        [],
    ClientDialsAll: "a client connects to all members";
        ["K4 a client has a member and a spare"],
    ClientsAnywhere: "a client attaches to any member, even to the leader";
        ["K4 clients cost the leader nothing", "K4 learners serve all clients"],
    ClientClings: "a client waits for a member to which it has lost the connection";
        ["K5 clients of a dead member are served"],
    ElectionMovesClients: "all clients change members when a new leader is elected";
        ["K5 clients do not move together"],
    SessionsDieWithConnection: "a client's session ends when its member is lost";
        ["K5 no session is lost"],
    ChangeUntold: "some events are not sent to clients";
        ["K1 all clients see a change"],
    SeenUntold: "a client does not learn up to which zxid it has received events";
        ["I31 clients receive all events"],
    TreeLate: "an applied change cannot be read for a while";
        ["I3 reads do not go back", "S4 open means caught up"],
    ClientStops: "a client stops by itself";
        ["I31 no client stops by itself"],
    MoveFires: "a watch of a client that moves fires although nothing has changed";
        ["W6 net changes after a move"],
    NewcomersUnready: "an instance that replaces another never becomes ready";
        ["M2 whoever is replaced becomes ready"],
    ClosersLead: "members that are being closed hand the lead to each other";
        ["M4 few elections when all are closed"],
    CloserLeavesOthers: "a leader that is closed stops although others still close their sessions by it";
        ["M4 who is closed closes its sessions", "M4 a close of all is short"],
    CloseLingers: "an instance does nothing for a second before it closes";
        ["M3 a planned close is short"],
    ProbesUnbounded: "each heartbeat response makes the leader send the same entries again";
        ["U8 a step sends entries once"],
    UrgentWaits: "heartbeats and renewals wait behind entries for a slow link";
        ["U3 no session ends for another's disk"],
    SlowLeaderStays: "a leader with a slow disk does not hand over";
        ["U1 a majority commits", "U2 a leader with a slow disk hands over"],
    VoteAskedEarly: "a candidate asks for votes before its own vote is durable";
        ["I13 no candidate before the sync"],
    RoundConfirmsLater: "a round of heartbeats confirms ReadIndex requests that came after it began";
        ["I2 a ReadIndex shows what was committed"],
    VoteLostAtInstall: "a node forgets its vote when it installs a snapshot";
        ["I11 a vote is kept"],
    FormerConnectionRead: "a peer's former connection is still read after it has made a new one";
        [],
    ClaimLendsIds: "a client's watches see what the ids of a session show that it claims and does not hold";
        [],
    StrangerRenews: "a client's id is enough to renew its sessions";
        [],
    ClientOperates: "an instance with a client's credential may ask for an operator's actions";
        [],
    ClientNamesItself: "an instance with a client's credential says itself which ids its sessions have";
        [],
    TakenBeforeGreeting: "a gateway takes requests before it has replied to a client's first packet";
        [],
    SyncOvertaken: "a gateway's client has a sync overtaken by its later writes";
        [],
    EventBehindReply: "a gateway sends an event after a reply that shows its change";
        [],
    MovedGoesOn: "a gateway's connection goes on when its session has moved to another one";
        [],
    UnreadUnbounded: "a gateway writes to a client that does not read, without a limit";
        [],
    FullDisksIgnored: "writes go on although the disks of a majority are nearly full";
        ["U7 nearly full disks take no new data"],
    FireTwice: "two instances that claim one fire of a timer both get it";
        ["timers fire once"],
    FireLost: "a timer leaves out fires that were missed, whatever it says";
        ["timers leave nothing out"],
    MissedForgotten: "a timer makes up for all fires that were missed, whatever it says";
        ["timers fire in time"],
    RunForgotten: "a fire whose runner was lost does not run again";
        ["lost runs run again"],
    RunShared: "a fire runs twice at a time";
        ["one instance runs a fire"],
    WorkForgotten: "a fire is claimed without the work that it hands over";
        ["what fires is handed over in its write"],
}

impl Bug {
    /// Bugs of the bootstrap, which its state-space exploration finds. The simulator seldom crashes a
    /// node at the moment that some of them need.
    pub const OF_FORMATION: [Bug; 7] = [
        Bug::TwoFounders,
        Bug::PledgeUnsynced,
        Bug::PromiseForgotten,
        Bug::UnreachedAbsent,
        Bug::OwnPromiseIgnored,
        Bug::VetoIgnored,
        Bug::VetoForgotten,
    ];

    /// Bugs of clients without a replica, which their own test finds.
    pub const OF_CLIENTS: [Bug; 4] = [
        Bug::ClientWatchFromNow,
        Bug::ClientSeesOlder,
        Bug::ClientLossUnnoticed,
        Bug::ClientLeaseFromAnswer,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Plants a bug for this thread and removes the one planted before.
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
    COUNT.set(0);
}

/// Checks a claim, and that it does not hold while this bug is planted.
#[cfg(test)]
pub(crate) fn claims(claim: fn(), bug: Bug) {
    claim();
    plant(Some(bug));
    let held = std::panic::catch_unwind(claim);
    plant(None);
    assert!(held.is_err(), "{bug:?} is not noticed");
}

/// Whether this bug is planted.
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is planted and strikes now, which is at every `every`th call.
pub(crate) fn strikes(bug: Bug, every: u64) -> bool {
    is_planted(bug) && {
        COUNT.set(COUNT.get() + 1);
        COUNT.get().is_multiple_of(every)
    }
}
