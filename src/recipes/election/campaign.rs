//! A campaign: a candidate joins, waits for its turn, and changes its place on the way.
//!
//! Who is first never changes by a new place: one write creates the candidate behind another one, and requires that
//! this other one is still there ([`place`](crate::recipes::contenders)). The same write sets the election's znode,
//! with its data as it is, so that its mzxid tells when a candidate was last given a place by itself.
//!
//! That matters for the fencing token, which is the zxid that created the leader's znode. A candidate whose znode is
//! older than that write may have been passed over by one with a larger token. So it creates its znode again when its
//! turn has come, in one write with the deletion, and sets the election's znode again. All that lead after it have
//! joined later, or do the same.

use std::sync::Arc;

use super::{LeaderLatch, Leadership, blocked_by};
use crate::api::multi::Multi;
use crate::api::watch::Watch;
use crate::recipes::contenders::{
    Contender, ListedContender, Standing, behind, between, call, digits, random, until_deleted,
};
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{children_or_none, if_exists, unless_overtaken};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::runtime::either::{Either, either};
use crate::runtime::entropy;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{Condition, CreateMode, Stat, Zxid};

/// The election's own znode.
pub(super) struct Election {
    data: Arc<[u8]>,
    /// The write that last gave a candidate a place, or a later one.
    pub(super) placed: Zxid,
}

impl Election {
    pub(super) fn new((data, stat): (Arc<[u8]>, Stat)) -> Election {
        Election { data, placed: stat.mzxid }
    }

    /// Adds to a write that it gives a candidate its place, if no other one has done so since this was read.
    fn place_in<'a>(&self, multi: Multi<'a>, path: &str) -> Multi<'a> {
        multi.require(path, Condition::Mzxid(self.placed)).set(path, &self.data)
    }
}

/// A place behind a contender that is there.
struct CandidatePlace {
    behind: String,
    czxid: Zxid,
    /// The path of the candidate's znode.
    path: String,
}

impl CandidatePlace {
    fn require_in<'a>(&self, multi: Multi<'a>) -> Multi<'a> {
        match planted!(PlacedBehindNobody) {
            true => multi,
            false => multi.require(&self.behind, Condition::Czxid(self.czxid)),
        }
    }
}

pub(super) fn names(
    listed: &[ListedContender],
) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
    listed.iter().map(|contender| path::name(&contender.path))
}

impl LeaderLatch {
    fn standing(&self) -> Standing {
        Standing { priority: self.priority, ..Standing::default() }
    }

    /// Adds a candidate at the end.
    async fn joined_last(&self) -> Result<Contender> {
        self.contenders.join_as(self.kind, &self.standing().shown(), &self.id).await
    }

    /// Adds a candidate.
    async fn joined(&self) -> Result<Contender> {
        // Without a priority, few have to come in front of anybody. These find out when they wait.
        if self.priority != 0
            && !planted!(PriorityIgnored)
            && let Some(ephemeral) = self.joined_in_front().await?
        {
            return Ok(Contender::new(ephemeral));
        }
        self.joined_last().await
    }

    /// Adds a candidate in front of others, if it belongs there.
    async fn joined_in_front(&self) -> Result<Option<OwnedEphemeral>> {
        let (session, election) = (self.session(), self.contenders.path());
        loop {
            let snapshot = session.snapshot_of(election).await?;
            let listed = self.contenders.list_in(&snapshot)?;
            let Some(at) = behind(names(&listed), self.standing()) else { return Ok(None) };
            let places = at..listed.len().saturating_sub(1);
            let Some((at, path)) = self.room(&listed, None, places, self.standing())? else {
                return Ok(None);
            };
            let behind = listed[at].path.clone();
            let Some(stat) = snapshot.exists(&behind)? else { continue };
            let place = CandidatePlace { behind, czxid: stat.czxid, path };
            let placing = place.require_in(session.multi()).create(
                &place.path,
                &self.id,
                CreateMode::Ephemeral,
            );
            let placing =
                Election::new(snapshot.get(election)?).place_in(placing, election).commit();
            if let Some(placed) = unless_overtaken(created_in_multi(session, placing).await)? {
                return Ok(Some(placed));
            }
        }
    }

    /// The first of these places with room for a name of this standing directly behind it.
    fn room(
        &self,
        listed: &[ListedContender],
        own: Option<usize>,
        places: impl Iterator<Item = usize>,
        standing: Standing,
    ) -> Result<Option<(usize, String)>> {
        let name = |at: usize| path::name(&listed[at].path);
        for at in places {
            let next = (at + 1..listed.len()).find(|next| Some(*next) != own).map(name);
            if let Some(random) = between(name(at), next, entropy::number()?)
                && let Some(number) = digits(name(at))
            {
                let path = self.contenders.path_of(self.kind, random, &standing.shown(), number);
                return Ok(Some((at, path)));
            }
        }
        Ok(None)
    }

    pub(super) async fn campaigning(&self) -> Result<Leadership> {
        let mut candidate = self.joined().await?;
        let mut called: Option<Called> = None;
        loop {
            let (listed, own, election) = self.look(&candidate).await?;
            let Some(before) = blocked_by(&listed, own) else {
                if self.has_its_token(&mut candidate, &election).await? {
                    return self.leads(candidate).await;
                }
                called = None;
                continue;
            };
            let standing = Standing::of(path::name(candidate.path())).unwrap_or_default();
            if let Some(at) =
                behind(names(&listed[..own]), standing).filter(|_| !planted!(PriorityIgnored))
                && self.moved(&mut candidate, &election, &listed, own, at..own - 1, false).await?
            {
                called = None;
                continue;
            }
            // The watches are set now and not when the turn comes, when the leader may be releasing.
            candidate.watch_own().await?;
            let called_now = match called.take() {
                Some(called) => called,
                None => self.calls(&candidate).await?,
            };
            if called_now.is_called
                && self.moved(&mut candidate, &election, &listed, own, 0..1, true).await?
            {
                continue;
            }
            let until_turn = until_deleted(self.session(), &listed[before].path);
            match either(until_turn, called_now.watch.next()).await {
                Either::One(gone) => {
                    gone?;
                    called = Some(called_now);
                }
                Either::Other(event) => {
                    if event.is_none() {
                        self.session().check_alive()?;
                    }
                }
            }
        }
    }

    async fn leads(&self, candidate: Contender) -> Result<Leadership> {
        Ok(Leadership { held: candidate.held().await?, contenders: self.contenders.clone() })
    }

    pub(super) async fn trying(&self) -> Result<Option<Leadership>> {
        let mut candidate = self.joined_last().await?;
        loop {
            let (listed, own, election) = self.look(&candidate).await?;
            if blocked_by(&listed, own).is_some() {
                return Ok(None);
            }
            // Others may have come and gone in front of it.
            if self.has_its_token(&mut candidate, &election).await? {
                return self.leads(candidate).await.map(Some);
            }
        }
    }

    /// All candidates, the place of this one, and the election.
    async fn look(&self, candidate: &Contender) -> Result<(Vec<ListedContender>, usize, Election)> {
        let (children, election) = self.read().await?;
        self.contenders.check(&children).await?;
        let listed = self.contenders.sorted(children);
        let own = listed.iter().position(|contender| contender.path == candidate.path());
        match (own, election) {
            (Some(own), Some(election)) => Ok((listed, own, election)),
            _ => Err(Error::NoNode { path: candidate.path().to_owned() }),
        }
    }

    /// Makes sure that the token of the first candidate is larger than those of all that have led. False if another
    /// write came first.
    async fn has_its_token(&self, candidate: &mut Contender, election: &Election) -> Result<bool> {
        if candidate.czxid() >= election.placed {
            return Ok(true);
        }
        // The first one stays the first, so nobody can lead in the meantime.
        self.renew(candidate, election).await
    }

    /// Reads the children and then the znode of the election.
    async fn read(&self) -> Result<(Vec<String>, Option<Election>)> {
        let (session, path) = (self.session(), self.contenders.path());
        // Requested together, so that both cost one round trip where they are requests.
        let (children, election) = (session.children(path), session.get(path));
        let (children, election) = (children.await, election.await);
        Ok((children_or_none(children)?, if_exists(election)?.map(Election::new)))
    }

    /// Creates the candidate's znode again, under the same name, so that its token is larger than all before. False if
    /// another write came first.
    async fn renew(&self, candidate: &mut Contender, election: &Election) -> Result<bool> {
        let (multi, path) = (self.session().multi(), candidate.path().to_owned());
        let place = |multi| election.place_in(multi, self.contenders.path());
        let renewing = candidate.replace(multi, &path, &self.id, place);
        Ok(unless_overtaken(renewing.await)?.is_some())
    }

    /// Moves the candidate to the first of these places that has room. False if none has, and true as well if
    /// another write came first.
    async fn moved(
        &self,
        candidate: &mut Contender,
        election: &Election,
        listed: &[ListedContender],
        own: usize,
        places: impl Iterator<Item = usize>,
        is_forward: bool,
    ) -> Result<bool> {
        let standing = Standing::of(path::name(candidate.path())).unwrap_or_default();
        let origin = Some(origin(candidate.path(), candidate.czxid()));
        let standing =
            Standing { origin, is_forward: is_forward || standing.is_forward, ..standing };
        let name = path::name(candidate.path());
        let room = match (random(name), digits(name)) {
            // It is the next one already, and stays where it is, with another name.
            (Some(random), Some(number)) if is_forward && own == 1 => {
                let shown = standing.shown();
                Some((0, self.contenders.path_of(self.kind, random, &shown, number)))
            }
            _ => self.room(listed, Some(own), places, standing)?,
        };
        let Some((at, path)) = room else { return Ok(false) };
        let behind = listed[at].path.clone();
        let Some(stat) = self.session().in_turn().exists(&behind).await? else {
            return Ok(true);
        };
        let place = CandidatePlace { behind, czxid: stat.czxid, path };
        let multi = place.require_in(self.session().multi());
        let in_election = |multi| election.place_in(multi, self.contenders.path());
        let moving = candidate.replace(multi, &place.path, &self.id, in_election);
        unless_overtaken(moving.await).map(|_| true)
    }

    /// Watches for a call to come forward.
    async fn calls(&self, candidate: &Contender) -> Result<Called> {
        let call = call_path(self.contenders.path(), origin(candidate.path(), candidate.czxid()));
        let (there, watch) = self.session().exists_and_watch(&call).await?;
        // It has followed an earlier call already.
        let is_called = there.is_some_and(|stat| stat.czxid > candidate.czxid());
        Ok(Called { is_called, watch })
    }
}

/// The czxid of a candidate's first znode, by which it is known wherever it moves.
pub(super) fn origin(path: &str, czxid: Zxid) -> Zxid {
    Standing::of(path::name(path)).and_then(|standing| standing.origin).unwrap_or(czxid)
}

/// The znode by which the leader calls a candidate forward.
pub(super) fn call_path(election: &str, origin: Zxid) -> String {
    path::join(election, &call(origin))
}

/// Whether the leader has called a candidate forward.
struct Called {
    is_called: bool,
    /// Of the call.
    watch: Watch,
}
