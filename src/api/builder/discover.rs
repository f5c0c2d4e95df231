//! Joining the instances that one name stands for.

use crate::runtime::pending::Pending;
use std::net::{SocketAddr, TcpListener};

use crate::addressing::discovery::canonical;
use crate::addressing::listening;
use crate::addressing::names::{self, LookUps};
use crate::addressing::peers::Peers;
use crate::api::builder::Builder;
use crate::api::builder::address::{NAMES_WAIT, OWN_NAME_PAUSE, bind};
use crate::api::builder::earlier;
use crate::api::coordinator::Coordinator;
use crate::runtime::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::start_error::StartError;

/// The most instances that may be expected: as many as a list may have.
const EXPECTED_MAX: usize = 64;

impl Builder {
    /// Joins the cluster of the instances that `name` (`host:port`) stands for: a name with an
    /// address for each of them, as that of a headless service in Kubernetes or of a service in
    /// Docker compose. Use it where instances have no names of their own, as in a Deployment;
    /// otherwise [`Builder::join`] with a list of names is better. [`guide::kubernetes`](crate::guide::kubernetes) has both.
    ///
    /// Returns at once, if the own address is known. The name is looked up every second until there is a
    /// cluster. If any instance found there belongs to a cluster, this one joins it. A cluster is founded
    /// when the name shows at least `expected` addresses, this instance's own among them, and an instance
    /// without a cluster answers at each of them and sees the same addresses. Set `expected`, from 2 to 64,
    /// to the number of instances that are started first, on all of them: always to more than half of the
    /// instances that may be without a cluster at the same time.
    ///
    /// Instances without data can learn of an existing cluster only from the name or from its
    /// members. So `expected` instances without data found a second cluster, without any of the
    /// first one's data, if the name shows no member of the first cluster and no member reaches
    /// them. The most likely cause is that **all instances have lost their disks at once**. Then
    /// all data is lost, and fencing tokens start over.
    ///
    /// The instance's own address is that of [`Builder::advertise`] (an IP address and a port);
    /// without it, that of [`Builder::listen`]; without either, the first address of the name that
    /// belongs to this host. If the name shows no such address for ten seconds, for which this blocks,
    /// it is the address from which this host reaches others.
    ///
    /// ```no_run
    /// use quorate::{Coordinator, Secret};
    ///
    /// let secret = std::env::var("QUORATE_SECRET").expect("the deployment sets it");
    /// let coordinator = Coordinator::builder()
    ///     .security(Secret::new(&secret)?)
    ///     .data_dir("/var/lib/app/quorate")
    ///     .discover("app:7400", 3).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::join`], and [`Error::InvalidSetting`] for another `expected`, and together with
    /// [`Builder::found_with_majority_after`].
    pub fn discover(self, name: impl AsRef<str>, expected: usize) -> Pending<'static, Coordinator> {
        let name = name.as_ref().to_owned();
        self.starting(move |builder| builder.discovering(&name, expected))
    }

    fn discovering(self, name: &str, expected: usize) -> Result<Coordinator> {
        let invalid = |setting, reason: &str| {
            Err(Error::InvalidSetting { setting, reason: reason.to_owned() })
        };
        if !(2..=EXPECTED_MAX).contains(&expected) {
            return invalid("expected", "it must be from 2 to 64: a single instance is listed");
        }
        if self.majority_after.is_some() {
            let reason = "instances that discover each other are founded by all of them";
            return invalid("found_with_majority_after", reason);
        }
        if name.parse::<SocketAddr>().is_ok() {
            return Err(Error::Start(StartError::InvalidPeer {
                peer: name.to_owned(),
                reason: "an address stands for one instance: discover those of a name".to_owned(),
            }));
        }
        self.start(&Peers::parse([name])?, Some(expected))
    }

    /// As `bind`, for an instance without a list of peers.
    pub(super) fn bind_discovered(
        &self,
        peers: &Peers,
        names: &mut LookUps,
    ) -> Result<(String, Option<TcpListener>)> {
        let name = peers.addresses().next().ok_or(Error::Start(StartError::NoPeers))?;
        let own = self.own_discovered(name, names)?.to_string();
        let listener = bind(self.listen.as_deref().unwrap_or(&own), names)?;
        Ok((own, listener))
    }

    fn own_discovered(&self, name: &str, names: &mut LookUps) -> Result<SocketAddr> {
        if let Some(advertised) = &self.advertise {
            return advertised.parse().map(|own| canonical(&own)).map_err(|_| {
                Error::Start(StartError::InvalidPeer {
                    peer: advertised.clone(),
                    reason: format!("it must be an IP address and a port, as those of {name}"),
                })
            });
        }
        let listen = self.listen.as_ref().and_then(|listen| listen.parse::<SocketAddr>().ok());
        if let Some(listen) = listen.filter(|listen| !listen.ip().is_unspecified()) {
            return Ok(canonical(&listen));
        }
        let clock = Clock::real();
        let until = clock.now().saturating_add(self.own_name_wait);
        loop {
            names.wait_for(Some(name), NAMES_WAIT);
            let found =
                names.get(name).and_then(|answer| answer.as_deref().ok()).unwrap_or_default();
            let mut own: Vec<SocketAddr> =
                found.iter().map(canonical).filter(names::is_own).collect();
            // IPv4 first, so that instances with one address of each family choose the same family.
            own.sort_unstable();
            // If several instances run on one host, each takes one address.
            let is_free = |own: &&SocketAddr| {
                let waits = earlier::was_here(&own.to_string());
                self.listen.is_some() || listening::bind(&[**own], waits).is_ok()
            };
            if let Some(free) = own.iter().find(is_free).or(own.first()) {
                return Ok(*free);
            }
            // The name may not show this instance yet. If the host has several addresses, the name
            // shows the right one.
            let left = until.saturating_sub(clock.now());
            if left.is_zero() {
                break;
            }
            let _ = crossbeam_channel::after(left.min(OWN_NAME_PAUSE)).recv();
            *names = LookUps::start(&self.resolver, [name]);
        }
        let port = name.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let outward = names::outward().zip(port).map(|(ip, port)| SocketAddr::new(ip, port));
        outward.ok_or_else(|| {
            Error::Start(StartError::CannotListen {
                address: name.to_owned(),
                reason: "the address of this instance is not known: name it by Builder::advertise"
                    .to_owned(),
            })
        })
    }
}
