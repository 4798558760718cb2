//! The network between the master and the agents' hosts: how long messages take, what cuts hold up, and when a side
//! finds that the other is gone.

use std::collections::BTreeMap;

use super::scene::Scene;
use super::{Event, ToAgent, ToMaster};
use crate::history::Ways;
use crate::random::Stream;
use crate::rows::{SECOND, Time};

/// A side that has received nothing for this long ends a connection.
const SILENCE: Time = 35 * SECOND;

/// A direction of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    ToMaster,
    ToHost,
}

/// The path between a host and the master.
#[derive(Debug, Clone)]
struct Path {
    cut_until: Time,
    cut_ways: Ways,
    slow_until: Time,
    slow_by: Time,
}

/// A connection of an agent.
#[derive(Debug, Clone)]
struct Link {
    /// The index of the agent.
    agent: usize,
    agent_open: bool,
    master_open: bool,
    /// Bytes of one connection stay in order.
    last_to_master: Time,
    last_to_agent: Time,
    luck: Stream,
}

/// Paths, connections, and messages on their way.
pub(super) struct Network {
    seed: u64,
    /// By index of the agent.
    paths: Vec<Path>,
    links: BTreeMap<u64, Link>,
    last_link: u64,
    in_flight: u64,
}

impl Network {
    /// A network that reaches so many hosts.
    pub(super) fn new(seed: u64, hosts: usize) -> Self {
        let path = Path {
            cut_until: 0,
            cut_ways: Ways::Both,
            slow_until: 0,
            slow_by: 0,
        };
        Self {
            seed,
            paths: vec![path; hosts],
            links: BTreeMap::new(),
            last_link: 0,
            in_flight: 0,
        }
    }

    /// An agent connects.
    pub(super) fn open(&mut self, agent: usize) -> u64 {
        self.last_link += 1;
        let link = self.last_link;
        self.links.insert(
            link,
            Link {
                agent,
                agent_open: true,
                master_open: true,
                last_to_master: 0,
                last_to_agent: 0,
                luck: Stream::of(self.seed, &format!("link {link}")),
            },
        );
        self.links.retain(|_, l| l.agent_open || l.master_open);
        link
    }

    /// The agent of a connection that is known, whether or not it is open.
    pub(super) fn agent_of(&self, link: u64) -> Option<usize> {
        self.links.get(&link).map(|l| l.agent)
    }

    /// The agent of a connection that the master holds open.
    pub(super) fn agent_at_master(&self, link: u64) -> Option<usize> {
        let open = self.links.get(&link).filter(|l| l.master_open)?;
        Some(open.agent)
    }

    /// The agent of a connection that it holds open itself.
    pub(super) fn agent_at_host(&self, link: u64) -> Option<usize> {
        let open = self.links.get(&link).filter(|l| l.agent_open)?;
        Some(open.agent)
    }

    /// The connections that the master holds open.
    pub(super) fn open_at_master(&self) -> Vec<u64> {
        let open = self.links.iter().filter(|(_, l)| l.master_open);
        open.map(|(id, _)| *id).collect()
    }

    /// The master's side of a connection ends without the other being notified.
    pub(super) fn close_at_master(&mut self, link: u64) {
        if let Some(link) = self.links.get_mut(&link) {
            link.master_open = false;
        }
    }

    /// The agent's side of a connection ends.
    pub(super) fn close_at_host(&mut self, scene: &mut Scene, link: u64) {
        if let Some(link) = self.links.get_mut(&link) {
            link.agent_open = false;
        }
        self.notify_of_end(scene, link, Way::ToMaster);
    }

    /// Whether nothing is on its way, and both sides of every connection agree that it exists.
    pub(super) fn is_quiescent(&self, now: Time) -> bool {
        self.in_flight == 0
            && self.paths.iter().all(|path| path.cut_until <= now)
            && self.links.values().all(|l| l.agent_open == l.master_open)
    }

    /// Whether nothing gets through between a host and the master in some direction.
    pub(super) fn is_cut(&self, now: Time, agent: usize) -> bool {
        self.paths[agent].cut_until > now
    }

    /// How long something takes between an agent's host and the master.
    pub(super) fn delay(&self, scene: &mut Scene, agent: usize) -> Time {
        let path = &self.paths[agent];
        let slow = if scene.now < path.slow_until {
            path.slow_by
        } else {
            0
        };
        scene.luck.between(200, 3_000)
            + if slow > 0 {
                scene.luck.between(0, slow)
            } else {
                0
            }
    }

    /// Until when nothing gets through this way.
    pub(super) fn cut_until(&self, now: Time, agent: usize, way: Way) -> Option<Time> {
        let path = &self.paths[agent];
        let concerned = match path.cut_ways {
            Ways::Both => true,
            Ways::ToMaster => way == Way::ToMaster,
            Ways::ToHost => way == Way::ToHost,
        };
        (concerned && path.cut_until > now).then_some(path.cut_until)
    }

    pub(super) fn send_to_master(&mut self, scene: &mut Scene, link: u64, message: ToMaster) {
        let at = self.arrival(scene, link, Way::ToMaster);
        if let Some(at) = at {
            scene.push(at, Event::Arrive(link, message));
        }
    }

    pub(super) fn send_to_agent(&mut self, scene: &mut Scene, link: u64, message: ToAgent) {
        let at = self.arrival(scene, link, Way::ToHost);
        if let Some(at) = at {
            scene.push(at, Event::Reach(link, message));
        }
    }

    /// When a message that is sent now arrives; `None` = its connection is not known any more.
    fn arrival(&mut self, scene: &mut Scene, link: u64, way: Way) -> Option<Time> {
        let agent = self.agent_of(link)?;
        let wait = self.delay(scene, agent);
        let cut = self.cut_until(scene.now, agent, way).unwrap_or(scene.now);
        let link = self.links.get_mut(&link)?;
        let last = match way {
            Way::ToMaster => &mut link.last_to_master,
            Way::ToHost => &mut link.last_to_agent,
        };
        // What waits in the sender's buffers goes out once the path exists again.
        *last = (cut + wait).max(*last + 1);
        self.in_flight += 1;
        Some(*last)
    }

    /// A message has arrived.
    pub(super) fn arrived(&mut self) {
        self.in_flight -= 1;
    }

    /// One side is gone: when the other finds out. Without a way for the news, by silence.
    pub(super) fn notify_of_end(&mut self, scene: &mut Scene, link: u64, way: Way) {
        let Some((agent, last)) = self.links.get_mut(&link).map(|l| {
            let silence = l.luck.between(SILENCE, SILENCE + 10 * SECOND);
            (l.agent, silence)
        }) else {
            return;
        };
        let news = self.delay(scene, agent);
        let wait = match self.cut_until(scene.now, agent, way) {
            Some(until) => (until - scene.now + news).min(last),
            None => news,
        };
        let event = match way {
            Way::ToMaster => Event::MasterNotices(link, false),
            Way::ToHost => Event::AgentNotices(link, false),
        };
        scene.after(wait, event);
    }

    /// Nothing passes between a host and the master for so long.
    pub(super) fn cut(&mut self, scene: &mut Scene, agent: usize, long: Time, ways: Ways) {
        let path = &mut self.paths[agent];
        if path.cut_until > scene.now {
            return;
        }
        path.cut_until = scene.now + long;
        path.cut_ways = ways;
        for (link, _) in self.links.iter().filter(|(_, l)| l.agent == agent) {
            let wait = scene.luck.between(SILENCE, SILENCE + 10 * SECOND);
            if ways != Ways::ToHost {
                scene.after(wait, Event::MasterNotices(*link, true));
            }
            if ways != Ways::ToMaster {
                scene.after(SILENCE, Event::AgentNotices(*link, true));
            }
        }
    }

    /// Each message between a host and the master takes longer, for so long.
    pub(super) fn slow(&mut self, now: Time, agent: usize, delay: Time, long: Time) {
        let path = &mut self.paths[agent];
        path.slow_by = delay;
        path.slow_until = now + long;
    }

    /// The path to a host is as it should be.
    pub(super) fn heal(&mut self, agent: usize) {
        let path = &mut self.paths[agent];
        path.cut_until = 0;
        path.slow_until = 0;
    }
}
