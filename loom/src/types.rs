//! A stand-in for the library's `types::session`, which `states` uses.

pub(crate) mod session {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum SessionState {
        Connected,
        Suspended,
        Closed,
    }

    impl SessionState {
        pub(crate) fn is_final(self) -> bool {
            self == SessionState::Closed
        }
    }
}
