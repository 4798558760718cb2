//! Who listens on a port of this host: tasks share its network, and a port that one names may be another's, or a service of
//! the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::procfs;

/// Programs that listen on a published port in a container's place.
const FORWARDERS: [&str; 4] = ["docker-proxy", "rootlessport", "conmon", "slirp4netns"];

/// Whose a listener must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A process below this one: a supervisor, whose namespace no process of the task leaves.
    Supervisor(i32),
    /// The container of an engine with this id, or the engine, which forwards the port to it.
    Container(String),
}

/// Whether all that could answer at a port of loopback belongs to this owner. `false` also where nothing listens.
pub(crate) fn all_belong_to(owner: &Owner, port: u16) -> bool {
    let sockets = listening_on(port);
    !sockets.is_empty() && sockets.is_subset(&sockets_of(owner, &sockets))
}

/// The sockets, by inode, that listen where a connection to a port of loopback can arrive.
fn listening_on(port: u16) -> BTreeSet<u64> {
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
        let address = address_of(address)?;
        let is_reached = address.is_unspecified() || address.is_loopback();
        (is_on_port && is_reached && *fields.get(3)? == LISTEN).then_some(())?;
        fields.get(9)?.parse().ok()
    };
    table.lines().skip(1).filter_map(listener).collect()
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

/// Those of the sockets that processes of the owner hold.
fn sockets_of(owner: &Owner, wanted: &BTreeSet<u64>) -> BTreeSet<u64> {
    let members: Vec<i32> = match owner {
        Owner::Supervisor(pid) => below(*pid, &procfs::parents()),
        Owner::Container(id) => procfs::pids()
            .into_iter()
            .filter(|pid| is_of_container(*pid, id))
            .collect(),
    };
    let held = members.into_iter().flat_map(procfs::sockets);
    held.filter(|inode| wanted.contains(inode)).collect()
}

fn is_of_container(pid: i32, id: &str) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    read("cgroup").contains(id) || FORWARDERS.contains(&read("comm").trim_end())
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
    fn a_port_belongs_to_the_process_that_listens_and_to_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(all_belong_to(&Owner::Supervisor(own), port));
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let stranger = Owner::Supervisor(i32::try_from(other.id()).unwrap());
        assert!(!all_belong_to(&stranger, port));
        assert!(!all_belong_to(
            &Owner::Container("no-such-container".into()),
            port
        ));
        other.kill().unwrap();
        other.wait().unwrap();
        drop(listener);
        assert!(!all_belong_to(&Owner::Supervisor(own), port));
    }
}
