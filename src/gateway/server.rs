//! The thread with the sockets of a gateway. It moves bytes, and asks the clock; [`Clients`] decides.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::event::Event;
use mio::{Events, Token};

use super::GatewayBuilder;
use super::authentication::Authenticator;
use super::clients::{Clients, Readiness};
use super::ending::Ending;
use super::stream::ClientStream;
#[cfg(feature = "tls")]
use super::tls::CertificateRenewal;
#[cfg(feature = "tls")]
use crate::api::support::HasCertificates;
use crate::api::support::{Mailbox, NodeShared, files};
use crate::runtime::port::{LISTENER, Port};
use crate::types::right::Right;
use crate::types::warnings::Warnings;

pub(super) struct Server {
    pub(super) port: Port,
    shared: Arc<NodeShared>,
    clients: Clients,
    /// By the numbers of the clients.
    streams: BTreeMap<u64, ClientStream>,
    no_files: Warnings<Duration>,
    #[cfg(feature = "tls")]
    renewal: CertificateRenewal,
    /// While it is there, the instance counts the certificates of this port among its own.
    #[cfg(feature = "tls")]
    _certificates: Option<Arc<dyn HasCertificates>>,
}

impl Server {
    pub(super) fn bind(
        shared: Arc<NodeShared>,
        address: SocketAddr,
        settings: GatewayBuilder,
    ) -> io::Result<Server> {
        let port = Port::bind(address)?;
        let authenticator = Authenticator::start(Arc::clone(&shared))?;
        let waker = port.waker();
        let mailbox = Arc::new(Mailbox::new(move || drop(waker.wake())));
        let now = shared.clock.now();
        #[cfg(feature = "tls")]
        let certificates =
            settings.tls.clone().map(|tls| Arc::new(tls) as Arc<dyn HasCertificates>);
        #[cfg(feature = "tls")]
        certificates.iter().for_each(|of| shared.certificates.add(Arc::downgrade(of)));
        let (address, files_max) = (port.address(), files::files_max());
        let of = Arc::clone(&shared);
        let clients = Clients::new(of, address, settings, mailbox, authenticator, files_max, now);
        Ok(Server {
            port,
            shared,
            clients,
            streams: BTreeMap::new(),
            no_files: Warnings::default(),
            #[cfg(feature = "tls")]
            renewal: CertificateRenewal::new(now),
            #[cfg(feature = "tls")]
            _certificates: certificates,
        })
    }

    /// Runs until the gateway is dropped or the node stops.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let most = self.clients.settings.connections_max;
        let files_max = self.clients.admission.files_max;
        let room = files_max.map(|files| files::room(files, Right::Client));
        if let Some(room) = room.filter(|room| *room < most) {
            tracing::warn!(
                connections_max = most,
                "the gateway takes at most {room} clients, because the process may have {} files open: raise that \
                 limit (ulimit -n, LimitNOFILE of systemd)",
                files_max.unwrap_or(0)
            );
        }
        while !self.port.is_stopped() && self.shared.end.reason().is_none() {
            let pause = match self.clients.turns.is_busy() {
                true => Duration::ZERO,
                false => self.clients.turns.next_sweep(self.shared.clock.now()),
            };
            if let Err(error) = self.port.wait(&mut events, pause) {
                tracing::error!(%error, "the gateway stops: its sockets cannot be waited for");
                break;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    Token(number) => self.ready(number as u64, event),
                }
            }
            let now = self.shared.clock.now();
            self.clients.turn(now, &mut self.streams, &mut self.port.scratch);
            // Also done while some clients are busy.
            if self.clients.turns.next_sweep(now).is_zero() {
                self.sweep(now);
            }
            self.close_ended();
        }
        self.clients.stop(self.shared.clock.now());
        self.close_ended();
    }

    fn ready(&mut self, number: u64, event: &Event) {
        let Some(stream) = self.streams.get(&number) else { return };
        let both = event.is_read_closed() && event.is_write_closed();
        let failure = (event.is_error() || both).then(|| {
            let error = stream.socket.take_error().ok().flatten();
            error.map_or(Ending::ClientLeft, Ending::from)
        });
        let (readable, read_closed) = (event.is_readable(), event.is_read_closed());
        self.clients.ready(number, Readiness { readable, read_closed, failure });
    }

    fn accept(&mut self) {
        let now = self.shared.clock.now();
        self.clients.admission.files_max = files::files_max();
        loop {
            let (mut stream, from) = match self.port.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                // Waiting clients are accepted at the next sweep.
                Err(error) => return self.cannot_accept(&error, now),
            };
            let open = files::open_files(&stream);
            if !self.clients.admits(from, open, now) {
                continue;
            }
            let registered = self.port.register(&mut stream);
            let settings = &self.clients.settings;
            let opened =
                registered.and_then(|number| Ok((number, ClientStream::open(stream, settings)?)));
            match opened {
                Ok((number, stream)) => {
                    self.streams.insert(number, stream);
                    self.clients.connect(number, from, open, now);
                }
                Err(error) => {
                    let failure = Ending::Failure(error.to_string().into());
                    self.clients.ended(from, None, &failure, now);
                }
            }
        }
    }

    fn cannot_accept(&mut self, error: &io::Error, now: Duration) {
        let Some(suppressed) = self.no_files.permit(now) else { return };
        if files::is_exhausted(error) {
            tracing::warn!(
                %error, suppressed, connections = self.streams.len(), limit = self.clients.admission.files_max,
                "the gateway cannot accept further clients before others leave, because the process has too many \
                 files open: raise that limit (ulimit -n, LimitNOFILE of systemd), or lower connections_max \
                 (--max-cnxns)"
            );
        } else {
            tracing::warn!(%error, suppressed, "the gateway cannot accept a connection");
        }
    }

    fn sweep(&mut self, now: Duration) {
        self.accept();
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.clients.settings.tls {
            self.renewal.renew(tls, now);
            if let Some(verifies) = self.renewal.check(tls) {
                for (number, stream) in &self.streams {
                    if let Some(reason) = stream.refusal(verifies) {
                        self.clients.refuse(*number, reason);
                    }
                }
            }
        }
        self.clients.sweep(now, &mut self.streams, &mut self.port.scratch);
    }

    /// Closes the sockets of connections that have ended.
    fn close_ended(&mut self) {
        for number in self.clients.take_over() {
            if let Some(mut stream) = self.streams.remove(&number) {
                stream.close();
                self.port.deregister(&mut stream.socket);
            }
        }
    }
}
