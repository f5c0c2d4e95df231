//! The protocol's numbers.
//!
//! Sources: `ZooDefs`, `KeeperException.Code`, `Watcher`, `CreateMode` and `AddWatchMode` of ZooKeeper 3.9.

/// Declares enums whose variants have numbers; a number without a variant is the error of `try_from`.
macro_rules! numbered {
    ($($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $number:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub(crate) enum $name {
            $($(#[$of])* $variant = $number,)*
        }

        impl $name {
            #[cfg(test)]
            pub(crate) const ALL: &[$name] = &[$($name::$variant,)*];
        }

        impl From<$name> for i32 {
            fn from(value: $name) -> i32 {
                value as i32
            }
        }

        impl TryFrom<i32> for $name {
            type Error = i32;

            fn try_from(number: i32) -> Result<Self, i32> {
                match number {
                    $($number => Ok($name::$variant),)*
                    other => Err(other),
                }
            }
        }
    )*};
}

numbered! {
    /// The operation of a request.
    OpCode {
        Create = 1,
        Delete = 2,
        Exists = 3,
        GetData = 4,
        SetData = 5,
        GetAcl = 6,
        SetAcl = 7,
        GetChildren = 8,
        Sync = 9,
        Ping = 11,
        GetChildren2 = 12,
        Check = 13,
        Multi = 14,
        Create2 = 15,
        Reconfig = 16,
        CheckWatches = 17,
        RemoveWatches = 18,
        CreateContainer = 19,
        DeleteContainer = 20,
        CreateTtl = 21,
        MultiRead = 22,
        Auth = 100,
        SetWatches = 101,
        Sasl = 102,
        GetEphemerals = 103,
        GetAllChildrenNumber = 104,
        SetWatches2 = 105,
        AddWatch = 106,
        WhoAmI = 107,
        CreateSession = -10,
        CloseSession = -11,
    }

    /// Why a request failed.
    ErrorCode {
        Ok = 0,
        SystemError = -1,
        RuntimeInconsistency = -2,
        DataInconsistency = -3,
        ConnectionLoss = -4,
        MarshallingError = -5,
        Unimplemented = -6,
        OperationTimeout = -7,
        BadArguments = -8,
        UnknownSession = -12,
        NewConfigNoQuorum = -13,
        ReconfigInProgress = -14,
        ApiError = -100,
        NoNode = -101,
        NoAuth = -102,
        BadVersion = -103,
        NoChildrenForEphemerals = -108,
        NodeExists = -110,
        NotEmpty = -111,
        SessionExpired = -112,
        InvalidCallback = -113,
        InvalidAcl = -114,
        AuthFailed = -115,
        SessionMoved = -118,
        NotReadOnly = -119,
        EphemeralOnLocalSession = -120,
        NoWatcher = -121,
        RequestTimeout = -122,
        ReconfigDisabled = -123,
        SessionClosedRequireSaslAuth = -124,
        QuotaExceeded = -125,
        ThrottledOp = -127,
    }

    /// The type of an event.
    EventType {
        /// The connection or the session, not a znode.
        None = -1,
        NodeCreated = 1,
        NodeDeleted = 2,
        NodeDataChanged = 3,
        NodeChildrenChanged = 4,
        DataWatchRemoved = 5,
        ChildWatchRemoved = 6,
        PersistentWatchRemoved = 7,
    }

    /// The flags of a create.
    CreateFlags {
        Persistent = 0,
        Ephemeral = 1,
        PersistentSequential = 2,
        EphemeralSequential = 3,
        Container = 4,
        PersistentWithTtl = 5,
        PersistentSequentialWithTtl = 6,
    }

    /// The mode of addWatch.
    AddWatchMode {
        Persistent = 0,
        PersistentRecursive = 1,
    }

    /// The watches that checkWatches and removeWatches concern.
    WatcherType {
        Children = 1,
        Data = 2,
        Any = 3,
        Persistent = 4,
        PersistentRecursive = 5,
    }

    /// The xids that clients reserve for special requests and their replies. A server looks only at the op;
    /// it writes `Event` for events, and `Ping` in reply to any ping.
    ReservedXid {
        Event = -1,
        Ping = -2,
        Auth = -4,
        SetWatches = -8,
    }
}

/// `KeeperState.SyncConnected`: the state of the client's session, as servers report it in an event.
pub(crate) const SYNC_CONNECTED: i32 = 3;

impl CreateFlags {
    /// Whether a create with these flags has a time to live.
    pub(crate) fn has_ttl(self) -> bool {
        matches!(self, CreateFlags::PersistentWithTtl | CreateFlags::PersistentSequentialWithTtl)
    }
}
