//! The start of an instance with checked settings: its address, its data directory, its node.

use std::path::{Path, PathBuf};

use super::{Builder, address, earlier};
use crate::addressing::discovery::{PeerDiscovery, Wanted};
use crate::addressing::listening::Listening;
use crate::addressing::names::{LookUps, OwnName};
use crate::addressing::naming::PeerLookups;
use crate::addressing::peers::Peers;
use crate::api::coordinator::Coordinator;
use crate::node::client::{Client, ClientConfig};
use crate::node::io::Now;
use crate::node::{LogLimits, NodeConfig};
use crate::runtime::clock::Clock;
use crate::runtime::directory::{self, Opened};
use crate::runtime::shared::Limits;
use crate::runtime::{entropy, node_thread};
use crate::security::Security;
use crate::transport::handshake::client_id;
use crate::transport::{LocalPeer, RemotePeer};
use crate::types::acl::Id;
use crate::types::error::{Error, Result};
use crate::types::membership::Member;
use crate::types::start_error::StartError;

impl Builder {
    /// `expected` is the number of instances that found a cluster, if they discover each other.
    pub(super) fn start(mut self, peers: &Peers, expected: Option<usize>) -> Result<Coordinator> {
        let mut names = self.look_up(peers);
        if self.client {
            return self.join_as_client(peers, names);
        }
        // Before the address is bound: the parent may have it.
        directory::check_not_forked(self.data_dir.as_deref().unwrap_or(Path::new(DATA_DIR)))?;
        let bound = match expected {
            None => self.bind(peers, &mut names),
            Some(_) => self.bind_discovered(peers, &mut names),
        };
        names.wait_for(None, address::NAMES_WAIT);
        peers.check(&names)?;
        self.check_secured(peers.outside_loopback(&names))?;
        let (address, listener) =
            bound.map_err(|error| earlier::explain_address(error, peers, &names))?;
        let listened = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let outside = listened.filter(|address| !address.ip().to_canonical().is_loopback());
        self.check_secured(outside.map(|address| address.to_string()))?;
        let listening = listener.is_none().then(|| {
            let on_loopback_only = matches!(self.security, Security::Loopback);
            let name = self.listen.as_deref().unwrap_or(&address);
            Listening::new(name, self.resolver.clone(), on_loopback_only)
        });
        let own = address::own(listened, &address, &names);
        if own.is_none() {
            tracing::info!(address, "not looked up yet: sessions have no id of scheme ip");
        }
        let own = own.into_iter();
        self.schemes.set_own(own.chain(address::own_subject(&self.security)));
        let dir = self.data_dir.clone().unwrap_or_else(|| default_dir(&address));
        tracing::info!(address, dir = %dir.display(), "joining as this peer, with this directory");

        let clock = Clock::real();
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        let config = self.node_config(peers)?;
        let (keys, log_dir) = (self.encryption.as_ref(), self.log_dir.as_deref());
        let opened = directory::start(&dir, &address, keys, log_dir, &config, now);
        let Opened { store, node, directory } = opened.map_err(earlier::explain_directory)?;
        let is_blank = node.cluster() == 0;
        let discovery = expected.zip(address.parse().ok());
        let discovery = discovery.map(|(expected, own)| {
            let name = config.peers.concat();
            // A damaged directory may contain a vote or an entry that cannot be read.
            let founds = is_blank && directory.damage().is_none();
            PeerDiscovery::new(Wanted { name, expected, founds, own }, self.resolver.clone())
        });
        let mut naming = None;
        if is_blank && expected.is_none() {
            let own = OwnName::new(&address, config.peers, self.advertise.is_some(), &names);
            if let Some(hindrance) = own.hindrance().filter(|one| one.forbids_joining) {
                return Err(Error::Start(StartError::InvalidPeer {
                    peer: address,
                    reason: hindrance.reason,
                }));
            }
            naming = Some(PeerLookups::new(own, self.resolver.clone(), &names));
        }
        let identity = node.identity().clone();
        // The members of a cluster are in its log.
        let (roster, _) = node.machine().roster();
        let mut members: Vec<Member> = roster.members().cloned().collect();
        if !members.iter().any(|member| member.node == identity.node) {
            members.push(node.member().clone());
        }
        let remote = members.iter().filter(|member| member.node != identity.node);
        let remote = remote
            .map(|member| RemotePeer { node: member.node, address: member.address.clone() })
            .collect();
        let local = LocalPeer {
            cluster: node.cluster(),
            node: identity.node,
            incarnation: identity.incarnation,
            version: self.version,
            address: address.clone(),
            boot: entropy::number()?,
        };
        let seeds = peers.addresses().filter(|peer| **peer != address).map(str::to_owned).collect();
        let (shared, thread) = node_thread::start(node_thread::Start {
            engine: node.into(),
            store: Some(store),
            directory: Some(directory),
            listener,
            address: local.address.clone(),
            local,
            remote,
            seeds,
            naming,
            discovery,
            listening,
            clock,
            members,
            limits: self.limits(),
            schemes: self.schemes,
            security: self.security,
            resolver: self.resolver,
        })?;
        shared.set_at_rest(self.encryption);
        earlier::note(&address, &dir, &shared);
        Ok(Coordinator::owning(shared, thread))
    }

    fn node_config(&self, peers: &Peers) -> Result<NodeConfig> {
        Ok(NodeConfig {
            audit: self.audit,
            heartbeat: self.heartbeat,
            tick: self.tick,
            timeouts: self.timeouts(),
            container_period: self.container_period,
            version: self.version,
            seed: entropy::number()?,
            log: LogLimits::default(),
            policy: self.policy,
            peers: peers.addresses().map(str::to_owned).collect(),
            majority_after: self.majority_after,
            disk_low: self.disk_low,
            zone: self.zone.clone(),
            name: self.name.clone(),
            leader_priority: self.leader_priority,
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            pending_requests_max: self.pending_requests_max,
            request_timeout: self.request_timeout,
            session_timeout: self.session_timeout,
            tick: self.tick,
            timeouts: self.timeouts(),
            watch_capacity: crate::types::watch::WATCH_CAPACITY,
        }
    }

    fn join_as_client(mut self, peers: &Peers, mut names: LookUps) -> Result<Coordinator> {
        names.wait_for(None, address::NAMES_WAIT);
        peers.check(&names)?;
        self.check_secured(peers.outside_loopback(&names))?;
        let own = address::towards(peers, &names).map(|ip| ip.to_canonical());
        if own.is_none() {
            tracing::warn!("no way to a peer is known yet: sessions have no id of scheme ip");
        }
        let outside = own.filter(|ip| !ip.is_loopback());
        self.check_secured(outside.map(|ip| ip.to_string()))?;
        let address = own.map(|ip| ip.to_string()).unwrap_or_default();
        let id = own.map(|_| Id::new("ip", &address)).into_iter();
        self.schemes.set_own(id.chain(address::own_subject(&self.security)));
        tracing::info!(address, "joining as a client");

        let clock = Clock::real();
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        let config = ClientConfig {
            audit: self.audit,
            name: self.name.clone(),
            heartbeat: self.heartbeat,
            tick: self.tick,
            timeouts: self.timeouts(),
            version: self.version,
            seed: entropy::number()?,
        };
        // A client has a new id at each start. Members' ids are random too, so it is never a
        // member's.
        let boot = entropy::number()?;
        let id = client_id(boot);
        let local = LocalPeer {
            cluster: 0,
            node: id,
            incarnation: id,
            version: self.version,
            // Nobody connects to a client.
            address: String::new(),
            boot,
        };
        let (shared, thread) = node_thread::start(node_thread::Start {
            engine: Client::new(id, config, now).into(),
            store: None,
            directory: None,
            listener: None,
            address,
            local,
            remote: Vec::new(),
            seeds: peers.addresses().map(str::to_owned).collect(),
            naming: None,
            discovery: None,
            listening: None,
            clock,
            members: Vec::new(),
            limits: self.limits(),
            schemes: self.schemes,
            security: self.security,
            resolver: self.resolver,
        })?;
        shared.set_at_rest(self.encryption);
        Ok(Coordinator::owning(shared, thread))
    }

    /// Refuses an address that other hosts can reach if no security is set.
    fn check_secured(&self, outside: Option<String>) -> Result<()> {
        match (&self.security, outside) {
            (Security::Loopback, Some(address)) => {
                Err(Error::Start(StartError::NotSecured { address }))
            }
            _ => Ok(()),
        }
    }
}

/// The directory in which members have their own, if they name none.
const DATA_DIR: &str = "quorate-data";

fn default_dir(address: &str) -> PathBuf {
    let name = address.replace(|c: char| !(c.is_ascii_alphanumeric() || c == '.'), "-");
    Path::new(DATA_DIR).join(name)
}
