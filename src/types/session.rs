//! The state of a session.

/// The state of a session.
///
/// `Expired`, `Moved`, `Closed`, `Detached` and `AuthFailed` are final.
///
/// ```
/// use quorate::SessionState;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.sync().wait()?;
/// assert_eq!(session.state(), SessionState::Connected);
/// session.close().wait()?;
/// assert_eq!(session.state(), SessionState::Closed);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionState {
    /// It is being opened, or resumed.
    Connecting,
    /// The cluster knows it and has answered recently.
    Connected,
    /// The quorum cannot be reached. The session still exists, and its locks hold until its
    /// deadline.
    Suspended,
    /// It is over: the cluster has ended it, its local deadline has passed, or its node has stopped.
    Expired,
    /// Another holder resumed it.
    Moved,
    /// It was closed through a handle.
    Closed,
    /// It was detached here by [`Session::detach`](crate::Session::detach). In the cluster it is
    /// open until its timeout has passed, and can be resumed.
    Detached,
    /// [`Session::add_auth`](crate::Session::add_auth) failed, and it was closed.
    AuthFailed,
}

impl SessionState {
    /// Whether the session is over for its handles, for good.
    pub fn is_final(self) -> bool {
        match self {
            SessionState::Expired
            | SessionState::Moved
            | SessionState::Closed
            | SessionState::Detached
            | SessionState::AuthFailed => true,
            SessionState::Connecting | SessionState::Connected | SessionState::Suspended => false,
        }
    }
}
