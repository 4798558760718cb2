//! Who answers at a port of this host: tasks share its network, and a port that one names may be another's, or a service of
//! the host.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sock_diag::End;
use super::{procfs, sock_diag};

/// What Podman starts each container below, in no container itself. Its command line has the container's id.
const MONITOR: &str = "conmon";
/// Programs that listen on a published port in a container's place.
const FORWARDERS: [&str; 4] = ["docker-proxy", "rootlessport", "conmon", "slirp4netns"];

/// States of a connection that waits for a program to accept it (`net/tcp_states.h`): established, and not yet so.
const WAITING: [u8; 2] = [1, 3];

/// Whose a listener must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// A process below this one: a supervisor, whose namespace no process of the task leaves.
    Supervisor(i32),
    /// The container of an engine with this id, or the engine, which forwards the port to it.
    Container(String),
}

/// Who answers at a port, as far as this agent can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answerer {
    /// Only the owner that was asked for.
    Owner,
    /// Another program as well, or alone.
    Another,
    /// Nothing that can be seen: the program is of a user whose processes this agent may not look at, or has let go of the
    /// port.
    Unseen,
}

/// Sockets whose holders are remembered at most. With more all are looked for again.
const MOST_KNOWN: usize = 4096;

/// A process that was found to belong to an owner, which it does as long as it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    pid: i32,
    start_ticks: u64,
}

impl Holder {
    fn find(pid: i32) -> Option<Self> {
        let start_ticks = procfs::stat(pid)?.start_ticks;
        Some(Self { pid, start_ticks })
    }

    /// Whether it is the same process still, and holds a socket.
    fn holds(self, inode: u64) -> bool {
        Self::find(self.pid) == Some(self) && procfs::sockets(self.pid).contains(&inode)
    }
}

/// Who listens, with what was found out before: looking through all processes for each connection takes too long.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    known: Mutex<HashMap<(Owner, u64), Holder>>,
}

impl Listeners {
    /// Whether all that could answer at a port of loopback belongs to this owner. Reads files below `/proc`: for threads
    /// that may block.
    fn answerer(&self, owner: &Owner, port: u16) -> Answerer {
        let sockets = listening_on(port);
        let known = |inode: &u64| self.holder(owner, *inode).is_some_and(|h| h.holds(*inode));
        let unknown: BTreeSet<u64> = sockets
            .iter()
            .copied()
            .filter(|inode| !known(inode))
            .collect();
        let found = if unknown.is_empty() {
            BTreeMap::new()
        } else {
            holders_of(owner, &unknown)
        };
        let strange: BTreeSet<u64> = unknown
            .into_iter()
            .filter(|inode| !found.contains_key(inode))
            .collect();
        self.remember(owner, found);
        if sockets.is_empty() {
            return Answerer::Unseen;
        }
        if strange.is_empty() {
            return Answerer::Owner;
        }
        if held_by(procfs::pids(), &strange).is_empty() {
            return Answerer::Unseen;
        }
        Answerer::Another
    }

    /// Who answers the connection from `own` to a port of loopback. Reads files below `/proc`: for
    /// threads that may block.
    ///
    /// That the owner listens now is not enough: another program may have accepted the connection and left the port to it. A
    /// connection that no program has accepted yet is one of a listener that is open still, and was open when all listeners were
    /// looked at.
    pub(crate) fn answers(&self, owner: &Owner, own: SocketAddrV4, port: SocketAddrV4) -> Answerer {
        let listens = self.answerer(owner, port.port());
        if listens != Answerer::Owner {
            return listens;
        }
        let is_owners = match other_end(port, own) {
            None => return Answerer::Unseen,
            // What no process holds in another state was closed by the program that accepted it.
            Some(End { state, inode: 0 }) => WAITING.contains(&state),
            Some(End { inode, .. }) => {
                self.known_to_hold(owner, inode)
                    || !holders_of(owner, &BTreeSet::from([inode])).is_empty()
            }
        };
        if is_owners {
            Answerer::Owner
        } else {
            Answerer::Another
        }
    }

    /// Whether one of the owner's processes that are known to listen holds a socket: they accept most connections.
    fn known_to_hold(&self, owner: &Owner, inode: u64) -> bool {
        let known = self.lock();
        let of_owner = known.iter().filter(|((of, _), _)| of == owner);
        let holders: Vec<Holder> = of_owner.map(|(_, holder)| *holder).collect();
        drop(known);
        holders.into_iter().any(|holder| holder.holds(inode))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Owner, u64), Holder>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holder(&self, owner: &Owner, inode: u64) -> Option<Holder> {
        self.lock().get(&(owner.clone(), inode)).copied()
    }

    fn remember(&self, owner: &Owner, found: BTreeMap<u64, i32>) {
        let holders = found
            .into_iter()
            .filter_map(|(inode, pid)| Some(((owner.clone(), inode), Holder::find(pid)?)));
        let holders: Vec<_> = holders.collect();
        let mut known = self.lock();
        if known.len() + holders.len() > MOST_KNOWN {
            known.clear();
        }
        known.extend(holders);
    }
}

/// The sockets, by inode, that listen where a connection to a port of loopback can arrive.
fn listening_on(port: u16) -> BTreeSet<u64> {
    match sock_diag::listening_on(port) {
        Ok(found) => found
            .into_iter()
            .filter(|listener| is_reached(listener.address))
            .map(|listener| listener.inode)
            .collect(),
        // A kernel without this way, or a container that closes it.
        Err(_) => in_tables(port),
    }
}

fn is_reached(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

/// The same by the tables of all sockets, which cost far more.
fn in_tables(port: u16) -> BTreeSet<u64> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| listeners(&table, port))
        .collect()
}

/// The listeners in a table of sockets (proc(5), `/proc/net/tcp`).
fn listeners(table: &str, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, number) = fields.get(1)?.split_once(':')?;
        let is_on_port = u16::from_str_radix(number, 16).ok()? == port;
        let is_reached = is_reached(address_of(address)?);
        (is_on_port && is_reached && *fields.get(3)? == LISTEN).then_some(())?;
        fields.get(9)?.parse().ok()
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// The end at `local` of a connection with `remote`.
fn other_end(local: SocketAddrV4, remote: SocketAddrV4) -> Option<End> {
    sock_diag::end_of(local, remote).unwrap_or_else(|_| end_in_tables(local, remote))
}

fn end_in_tables(local: SocketAddrV4, remote: SocketAddrV4) -> Option<End> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|table| end_in(&table, local, remote))
}

/// One end of a connection in a table of sockets.
fn end_in(table: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<End> {
    let is_at = |field: &str, at: SocketAddrV4| {
        let (address, port) = field.split_once(':')?;
        let is_port = u16::from_str_radix(port, 16).ok()? == at.port();
        Some(is_port && address_of(address)? == IpAddr::V4(*at.ip()))
    };
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = is_at(fields.get(1)?, local)? && is_at(fields.get(2)?, remote)?;
        is_it.then_some(())?;
        Some(End {
            state: u8::from_str_radix(fields.get(3)?, 16).ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    })
}

/// An address as the table has it: words of four bytes, each in the order of the host's bytes.
fn address_of(text: &str) -> Option<IpAddr> {
    let words: Vec<u32> = (0..text.len() / 8)
        .map(|word| u32::from_str_radix(&text[word * 8..word * 8 + 8], 16).ok())
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()),
        _ => None,
    }
}

/// Those of the sockets that processes of the owner hold, each with such a process.
fn holders_of(owner: &Owner, wanted: &BTreeSet<u64>) -> BTreeMap<u64, i32> {
    let members: Vec<i32> = match owner {
        Owner::Supervisor(pid) => of_sandbox(*pid),
        Owner::Container(id) => of_container(id),
    };
    held_by(members, wanted)
}

/// The processes of a sandbox: those below its supervisor, and those in the namespace of processes that it has made for them,
/// whose parent is elsewhere if they were started warm.
fn of_sandbox(supervisor: i32) -> Vec<i32> {
    let namespace = |pid: i32, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    let mut members = below(supervisor, &procfs::parents());
    let own = namespace(supervisor, "pid_for_children")
        .filter(|own| namespace(supervisor, "pid").is_some_and(|outside| outside != *own));
    if own.is_some() {
        let known: BTreeSet<i32> = members.iter().copied().collect();
        let others = procfs::pids().into_iter();
        let others = others.filter(|pid| !known.contains(pid));
        members.extend(others.filter(|pid| namespace(*pid, "pid") == own));
    }
    members
}

/// Those of the sockets that any of these processes holds, each with such a process.
fn held_by(pids: Vec<i32>, wanted: &BTreeSet<u64>) -> BTreeMap<u64, i32> {
    let held = pids.into_iter().flat_map(|pid| {
        procfs::sockets(pid)
            .into_iter()
            .map(move |inode| (inode, pid))
    });
    held.filter(|(inode, _)| wanted.contains(inode)).collect()
}

/// The processes of a container, and those that forward to it. Without root no control group names it where the host has
/// cgroup v1: then those below its monitor are its processes.
fn of_container(id: &str) -> Vec<i32> {
    let pids = procfs::pids();
    let monitor = pids.iter().copied().find(|pid| is_monitor(*pid, id));
    let mut members: Vec<i32> = pids
        .into_iter()
        .filter(|pid| is_of_container(*pid, id))
        .collect();
    members.extend(
        monitor
            .into_iter()
            .flat_map(|monitor| below(monitor, &procfs::parents())),
    );
    members
}

fn is_monitor(pid: i32, id: &str) -> bool {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    read("comm").trim_ascii_end() == MONITOR.as_bytes()
        && names(&read("cmdline"), id)
        && is_of_host(pid)
}

/// Whether a command line, as `/proc` has it, has this argument.
fn names(command_line: &[u8], argument: &str) -> bool {
    let mut arguments = command_line.split(|byte| *byte == 0);
    arguments.any(|given| given == argument.as_bytes())
}

fn is_of_container(pid: i32, id: &str) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    read("cgroup").contains(id)
        || (FORWARDERS.contains(&read("comm").trim_end()) && is_of_host(pid))
}

/// Whether a process is in no container: any program may call itself as one of the engine's.
fn is_of_host(pid: i32) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    let own = namespace("self");
    own.is_some() && namespace(&pid.to_string()) == own
}

/// The processes below one, itself among them.
fn below(root: i32, parents: &BTreeMap<i32, i32>) -> Vec<i32> {
    let is_below = |pid: i32| {
        let mut at = pid;
        // Every step leads to an older process; a table that was read while it changed might not.
        for _ in 0..parents.len() {
            if at == root {
                return true;
            }
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => return false,
            }
        }
        false
    };
    parents
        .keys()
        .copied()
        .filter(|pid| is_below(*pid))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listeners_are_read_with_the_addresses_that_loopback_reaches() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1\n\
            1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1\n\
            2: 0A01A8C0:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 13 1\n\
            3: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 14 1\n\
            4: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 15 1\n";
        assert_eq!(listeners(table, 8080), [11, 12]);
        assert_eq!(
            address_of("0000000000000000FFFF00000100007F"),
            Some(IpAddr::V4(Ipv4Addr::LOCALHOST))
        );
        assert_eq!(address_of("nonsense"), None);
    }

    #[test]
    fn processes_below_one_are_found_through_their_parents() {
        let parents = BTreeMap::from([(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)]);
        assert_eq!(below(10, &parents), [10, 11, 12]);
        assert_eq!(below(99, &parents), Vec::<i32>::new());
    }

    #[test]
    fn one_end_of_a_connection_is_read_from_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1\n\
            1: 0100007F:9999 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 12 1\n\
            2: 0100007F:1F90 0100007F:9999 08 00000000:00000000 00:00000000 00000000  1000        0 13 1\n";
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let end = end_in(table, at(0x1F90), at(0x9999));
        assert_eq!(
            end,
            Some(End {
                state: 8,
                inode: 13
            })
        );
        assert_eq!(end_in(table, at(0x1F90), at(0x9998)), None);
    }

    #[test]
    fn a_connection_belongs_to_who_has_accepted_it_not_to_who_listens_since() {
        use std::io::{BufRead, BufReader, Write};
        use std::net::{SocketAddr, TcpStream};
        use std::process::{Command, Stdio};
        // A task that listens at once, and accepts when it is asked to.
        const TASK: &str = "import socket, sys\n\
            s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n\
            print('listens', flush=True)\n\
            sys.stdin.readline()\n\
            c, _ = s.accept()\n\
            print('has accepted', flush=True)\n\
            sys.stdin.read()\n";
        let own_address = |stream: &TcpStream| match stream.local_addr().unwrap() {
            SocketAddr::V4(own) => own,
            SocketAddr::V6(_) => panic!("connected over IPv4"),
        };
        // This process accepts the connection, and leaves the port to the task.
        let thief = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, thief.local_addr().unwrap().port());
        let stolen = TcpStream::connect(at).unwrap();
        let (held, _) = thief.accept().unwrap();
        drop(thief);
        let mut command = Command::new("python3");
        command.args(["-c", TASK, &at.port().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut task) = command.spawn() else {
            println!("SKIPPED: no python3");
            return;
        };
        let mut output = BufReader::new(task.stdout.take().unwrap()).lines();
        assert_eq!(output.next().unwrap().unwrap(), "listens");
        let owner = Owner::Supervisor(i32::try_from(task.id()).unwrap());
        let listeners = Listeners::default();
        assert_eq!(listeners.answerer(&owner, at.port()), Answerer::Owner);
        assert_eq!(
            listeners.answers(&owner, own_address(&stolen), at),
            Answerer::Another
        );
        drop(held);
        assert_eq!(
            listeners.answers(&owner, own_address(&stolen), at),
            Answerer::Another,
            "closed by its holder"
        );
        let real = TcpStream::connect(at).unwrap();
        assert_eq!(
            listeners.answers(&owner, own_address(&real), at),
            Answerer::Owner,
            "it waits to be accepted"
        );
        let mut input = task.stdin.take().unwrap();
        input.write_all(b"accept\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "has accepted");
        assert_eq!(
            listeners.answers(&owner, own_address(&real), at),
            Answerer::Owner
        );
        assert_eq!(
            other_end(at, own_address(&real)),
            end_in_tables(at, own_address(&real))
        );
        task.kill().unwrap();
        task.wait().unwrap();
    }

    #[test]
    fn a_port_belongs_to_the_process_that_listens_and_to_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = i32::try_from(std::process::id()).unwrap();
        let listeners = Listeners::default();
        let own_tree = Owner::Supervisor(own);
        assert_eq!(listeners.answerer(&own_tree, port), Answerer::Owner);
        // What is known already is the same.
        assert_eq!(listeners.answerer(&own_tree, port), Answerer::Owner);
        assert_eq!(listeners.lock().len(), 1);
        assert_eq!(listening_on(port), in_tables(port));
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let stranger = Owner::Supervisor(i32::try_from(other.id()).unwrap());
        assert_eq!(listeners.answerer(&stranger, port), Answerer::Another);
        let container = Owner::Container("no-such-container".into());
        assert_eq!(listeners.answerer(&container, port), Answerer::Another);
        other.kill().unwrap();
        other.wait().unwrap();
        drop(listener);
        assert_eq!(listeners.answerer(&own_tree, port), Answerer::Unseen);
        // A known process that has let go of a socket, and another one with its number.
        let holder = Holder::find(own).unwrap();
        assert!(!holder.holds(0));
        let (pid, start_ticks) = (own, holder.start_ticks + 1);
        assert_ne!(Holder::find(own), Some(Holder { pid, start_ticks }));
    }

    #[test]
    fn a_monitor_is_found_by_a_whole_argument() {
        let line = b"/usr/bin/conmon\x00-c\x000123abc\x00-u\x00x\x00";
        assert!(names(line, "0123abc"));
        assert!(!names(line, "0123") && !names(b"", "0123abc"));
        // Of no such program, whatever its arguments are.
        let own = i32::try_from(std::process::id()).unwrap();
        let first = std::env::args().next().unwrap();
        assert!(!is_monitor(own, &first));
    }
}
