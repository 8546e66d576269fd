//! Who a peer is: what it says, whether that agrees with this host, and whether it proves it.

use std::net::{IpAddr, SocketAddr};

use causeway_fabric::handshake::{
    can_believe, daemon_nodes, explain, hello, is_trusted, judge, tcp_end,
};
use causeway_fabric::services::handshake::{Hello, HelloReply, Proof, Role, Transcript, Verdict};
use causeway_fabric::services::sisci::NodeInfo;
use rustix::io::Errno;

use crate::shared::{Opinion, Shared};

/// How far a connection has come with it.
pub struct Handshake {
    /// This end of the connection and the peer's.
    at: (SocketAddr, SocketAddr),
    said: Option<Said>,
    /// A proof was wrong: there is no second try.
    failed: bool,
    /// The peer's node by its broker's word, if the session is secured: that is a proof.
    attested: Option<u32>,
}

/// What both ends have said.
struct Said {
    own: Hello,
    theirs: Hello,
    /// Nothing contradicts what the peer says.
    agreed: bool,
    /// The peer has the key of the tenant.
    proved: bool,
}

/// What this daemon says of itself, and the nodes of the configuration.
pub fn own_hello(shared: &Shared) -> causeway_fabric::Result<(Hello, Vec<NodeInfo>)> {
    let nodes = shared.own.nodes()?;
    let own = daemon_nodes(shared.own.node(), &nodes);
    let hello = hello(Role::Daemon, own, &shared.own.cluster()?)?;
    Ok((hello, nodes))
}

fn errno_of(error: &causeway_fabric::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

impl Handshake {
    /// Of a connection between these ends, this one first.
    pub fn new(at: (SocketAddr, SocketAddr)) -> Handshake {
        Handshake {
            at,
            said: None,
            failed: false,
            attested: None,
        }
    }

    /// The peer's broker has said in a secured session which node the peer is part of.
    pub fn attest(&mut self, node: Option<u32>) {
        self.attested = node;
    }

    /// Whether the connection must end: its proof was wrong.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the peer has come for nothing but to look or to compare.
    pub fn is_visit(&self) -> bool {
        let said = self.said.as_ref();
        said.is_some_and(|said| said.theirs.role != Role::Process || !said.agreed)
    }

    fn peer(&self) -> IpAddr {
        self.at.1.ip().to_canonical()
    }

    /// Takes what the peer says of itself.
    ///
    /// # Errors
    /// `EISCONN` the second time, the broker's.
    pub fn hello(&mut self, shared: &Shared, theirs: Hello) -> Result<HelloReply, Errno> {
        if self.said.is_some() {
            return Err(Errno::ISCONN);
        }
        let (own, nodes) = own_hello(shared).map_err(|why| errno_of(&why))?;
        let verdict = self.verdict(shared, (&own, &theirs), &nodes);
        self.log(shared, verdict, (&own, &theirs));
        let reply = HelloReply {
            hello: own.clone(),
            verdict,
        };
        self.said = Some(Said {
            own,
            theirs,
            agreed: verdict == Verdict::Agreed,
            proved: false,
        });
        Ok(reply)
    }

    fn verdict(
        &self,
        shared: &Shared,
        (own, theirs): (&Hello, &Hello),
        nodes: &[NodeInfo],
    ) -> Verdict {
        let verdict = judge(own, theirs, self.peer(), nodes);
        if verdict != Verdict::Agreed || theirs.role != Role::Process {
            return verdict;
        }
        let node = theirs.nodes.first().copied().unwrap_or(0);
        if self.attested.is_none() && !can_believe(own, theirs, nodes) {
            Verdict::Unproved
        } else if shared.places.has_other_host(node, theirs.host) {
            Verdict::TwoHosts
        } else {
            Verdict::Agreed
        }
    }

    fn log(&self, shared: &Shared, verdict: Verdict, (own, theirs): (&Hello, &Hello)) {
        let peer = self.at.1;
        let news = match theirs.role {
            Role::Process => verdict != Verdict::Agreed,
            Role::Daemon => shared.is_news(self.peer(), Opinion::Judged(verdict)),
            Role::Observer => false,
        };
        let what = match theirs.role {
            Role::Process => "process",
            Role::Daemon => "daemon",
            Role::Observer => "observer",
        };
        let why = explain(verdict, own, theirs, self.peer());
        match (news, verdict) {
            (false, _) => tracing::debug!(%peer, what, why, "said who it is"),
            (true, Verdict::Agreed) => tracing::info!(%peer, what, "agrees again"),
            (true, _) => tracing::warn!(%peer, what, why, "refused"),
        }
    }

    /// Checks the peer's proof; this daemon's.
    ///
    /// # Errors
    /// `EACCES` if it is wrong, or there was nothing to prove; the broker's.
    pub fn prove(&mut self, shared: &Shared, proof: &Proof) -> Result<Proof, Errno> {
        let (daemon_at, process_at) = self.at;
        let said = self.said.as_mut().ok_or(Errno::NOTCONN)?;
        if !said.agreed || said.proved || self.failed || said.theirs.role != Role::Process {
            return Err(Errno::ACCESS);
        }
        let transcript = |prover| Transcript {
            prover,
            process: said.theirs.clone(),
            daemon: said.own.clone(),
            process_at: tcp_end(process_at),
            daemon_at: tcp_end(daemon_at),
        };
        let checked = shared
            .own
            .check_proof(transcript(Role::Process), proof.proof);
        if let Err(why) = checked {
            let (tenant, peer) = (&said.theirs.tenant, process_at);
            tracing::warn!(%peer, tenant, %why, "refused: its proof of the tenant's key is wrong");
            self.failed = true;
            return Err(Errno::ACCESS);
        }
        let answer = shared.own.prove(&transcript(Role::Daemon));
        let proof = answer.map_err(|why| errno_of(&why))?;
        said.proved = true;
        Ok(Proof { proof })
    }

    /// Whether the peer is a process of a node, as it says. Returns its host.
    ///
    /// # Errors
    /// `EACCES`; the broker's.
    pub fn check(&self, shared: &Shared, node: u32) -> Result<u64, Errno> {
        let refuse = |why: &str| {
            tracing::warn!(peer = %self.at.1, node, why, "refused");
            Err(Errno::ACCESS)
        };
        let Some(said) = &self.said else {
            return refuse("it did not say who it is");
        };
        if !said.agreed || said.theirs.role != Role::Process {
            return refuse("it was refused already");
        }
        if said.theirs.nodes != [node] {
            return refuse("it said that it is another node");
        }
        match self.attested {
            Some(attested) if attested == node => return Ok(said.theirs.host),
            Some(_) => return refuse("its broker says that it is another node"),
            None => {}
        }
        let nodes = shared.own.nodes().map_err(|why| errno_of(&why))?;
        if !said.proved && !is_trusted(&said.theirs, &nodes) {
            return refuse("it did not prove the tenant's key");
        }
        Ok(said.theirs.host)
    }
}
