//! skeleton: to be completed by the handles

/// Where a session stands.
///
/// `Expired`, `Moved` and `Closed` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionState {
    /// It is being opened, or resumed.
    Connecting,
    /// The cluster knows it and was heard of recently.
    Connected,
    /// The quorum is out of reach: the session lives on for now, its locks hold until its deadline.
    Suspended,
    /// It is over, by the cluster's word or because its local deadline has passed.
    Expired,
    /// Another holder resumed it.
    Moved,
    /// It was closed through a handle.
    Closed,
}
