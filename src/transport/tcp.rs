pub(crate) struct TcpTransport;
impl TcpTransport {
    pub(crate) fn start(
        _l: std::net::TcpListener,
        _a: super::LocalPeer,
        _r: Vec<super::RemotePeer>,
        _o: super::TransportOptions,
        _e: impl Fn(super::TransportEvent) -> bool + Send + 'static,
    ) -> std::io::Result<TcpTransport> {
        todo!()
    }
    pub(crate) fn send(&self, _m: Vec<(u64, super::PeerMessage)>) {}
}
