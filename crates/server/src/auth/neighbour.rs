//! Which process of this machine is at the other end of a connection: one beside the master, or one in a container.
//!
//! A blank password is for the users of the machine. Tasks can share the machine's network, and with it the loopback
//! address that the master trusts; they run in process namespaces of their own, which distinguishes them.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// Pauses after looks that do not find the client beside the master. The kernel writes its table of connections in pieces,
/// and leaves one out where others come and go between two of them; and a process that is being started in a namespace of
/// its own has what its parent has open until its program runs.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
];

/// Programs beside the master that open connections for what runs in containers without a network of the host's.
const FORWARDERS: [&str; 8] = [
    "slirp4netns",
    "pasta",
    "pasta.avx2",
    "passt",
    "passt.avx2",
    "vpnkit",
    "rootlessport",
    "gvproxy",
];

/// Both ends of a client's connection, as the master's socket has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the master that the client connected to.
    pub master: SocketAddr,
}

/// Where the client's end of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// In a process of the master's own namespace.
    Beside,
    /// In a process of another namespace: of a container or a sandbox. Also when nothing is known about the process,
    /// because it is another user's or has gone.
    Contained,
    /// On another machine.
    Remote,
}

impl Neighbour {
    /// Of the client of this connection. Reads `/proc`, which blocks.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(super) fn of(ends: Ends) -> io::Result<Self> {
        let mut is_here = ends.client.ip().is_loopback() || ends.client.ip() == ends.master.ip();
        for pause in PAUSES {
            match Self::look(ends)? {
                Some(Self::Beside) => return Ok(Self::Beside),
                found => is_here |= found.is_some(),
            }
            std::thread::sleep(pause);
        }
        Ok(match Self::look(ends)? {
            Some(found) => found,
            // It was open on this machine a moment ago, or is held by what cannot be looked into.
            None if is_here => Self::Contained,
            None => Self::Remote,
        })
    }

    /// One look; `None` = no socket of this machine is the client's.
    fn look(ends: Ends) -> io::Result<Option<Self>> {
        match socket_of(ends)? {
            Some(socket) => held_by(&socket).map(Some),
            None => Ok(None),
        }
    }
}

/// The client's socket, as links to it read: `socket:[INODE]`.
fn socket_of(ends: Ends) -> io::Result<Option<String>> {
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = match fs::read_to_string(table) {
            Ok(text) => text,
            // Without IPv6 there is no second table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if let Some(inode) = inode_in(&text, ends) {
            return Ok(Some(format!("socket:[{inode}]")));
        }
    }
    Ok(None)
}

/// The tenth field of the row whose second and third one are the client's address and the master's (`proc_net_tcp` in the
/// kernel's documentation). Sockets that lead elsewhere can have the same local address as the client's.
fn inode_in(table: &str, ends: Ends) -> Option<&str> {
    let forms = |end| [proc_form(end, false), proc_form(end, true)];
    let (local, remote) = (forms(ends.client), forms(ends.master));
    table.lines().skip(1).find_map(|row| {
        let mut fields = row.split_whitespace().skip(1);
        let mut is_one_of = |forms: &[String; 2]| {
            let address = fields.next();
            forms.iter().any(|form| address == Some(form))
        };
        let (is_local, is_remote) = (is_one_of(&local), is_one_of(&remote));
        let is_it = is_local && is_remote;
        // A connection that is being closed has no socket any more.
        fields.nth(6).filter(|inode| is_it && *inode != "0")
    })
}

/// An address as the tables have it: words of four bytes in the processor's order, in hexadecimal. An IPv4 address has a
/// second form, in the table of IPv6.
fn proc_form(address: SocketAddr, mapped: bool) -> String {
    let bytes: Vec<u8> = match address.ip() {
        IpAddr::V4(ip) if mapped => ip.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut form = String::new();
    for word in bytes.chunks_exact(4) {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        let _ = write!(form, "{word:08X}");
    }
    let _ = write!(form, ":{:04X}", address.port());
    form
}

/// Where the processes are that are seen to hold the socket: beside only if there are some, and none is in another process
/// namespace.
fn held_by(socket: &str) -> io::Result<Neighbour> {
    let own = namespace(Path::new("/proc/self"))?;
    let mut seen = false;
    for process in fs::read_dir("/proc")? {
        let process = process?.path();
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let name = process.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(is_number) || !holds(&process, socket) {
            continue;
        }
        match namespace(&process) {
            Ok(its) if its == own && !is_forwarder(&process) => seen = true,
            Ok(_) => return Ok(Neighbour::Contained),
            // It has ended meanwhile, and holds nothing any more: another process may.
            Err(_) if !process.exists() => {}
            Err(_) => return Ok(Neighbour::Contained),
        }
    }
    Ok(if seen {
        Neighbour::Beside
    } else {
        Neighbour::Contained
    })
}

/// Whether a process opens connections for others, which are in containers.
fn is_forwarder(process: &Path) -> bool {
    // What cannot be read may be one.
    fs::read_to_string(process.join("comm"))
        .map_or(true, |name| FORWARDERS.contains(&name.trim_end()))
}

/// Whether a process has the socket open; of processes that may not be looked into, no.
fn holds(process: &Path, socket: &str) -> bool {
    let Ok(handles) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    let is_it = |path: std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str() == socket)
    };
    handles.flatten().any(|handle| is_it(handle.path()))
}

/// Identity of the process namespace that a process is in.
fn namespace(process: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(process.join("ns/pid"))?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A connection of this process to a listener of it: both ends, and their addresses.
    fn connection() -> (TcpStream, TcpStream, Ends) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (served, peer) = listener.accept().unwrap();
        let ends = Ends {
            client: peer,
            master: served.local_addr().unwrap(),
        };
        (client, served, ends)
    }

    #[test]
    fn a_client_in_the_same_namespace_is_beside() {
        let (client, _served, ends) = connection();
        assert_eq!(Neighbour::of(ends).unwrap(), Neighbour::Beside);
        drop(client);
    }

    /// Looks for a client again and again while something happens beside it.
    fn is_found_beside(happens: impl FnMut() + Send) {
        struct EndGuard<'a>(&'a AtomicBool);
        impl Drop for EndGuard<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (client, _served, ends) = connection();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut happens = happens;
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    happens();
                }
            });
            let _guard = EndGuard(done);
            let found: Vec<_> = (0..100).map(|_| Neighbour::of(ends).unwrap()).collect();
            assert!(
                found.iter().all(|one| *one == Neighbour::Beside),
                "{found:?}"
            );
        });
        drop(client);
    }

    #[test]
    fn a_client_is_found_while_other_connections_come_and_go() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let mut open = std::collections::VecDeque::new();
        is_found_beside(move || {
            if let Ok(here) = TcpStream::connect(address) {
                open.push_back((here, other.accept().unwrap().0));
            }
            if open.len() > 100 {
                open.pop_front();
            }
        });
    }

    #[test]
    fn a_client_is_found_while_children_start_that_have_its_socket_until_their_program_runs() {
        is_found_beside(|| {
            std::process::Command::new("true").status().unwrap();
        });
    }

    #[test]
    fn who_has_gone_or_is_elsewhere_is_not_beside() {
        let gone = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let from = |client| Ends {
            client,
            master: "127.0.0.1:8080".parse().unwrap(),
        };
        assert_eq!(Neighbour::of(from(gone)).unwrap(), Neighbour::Contained);
        let other: SocketAddr = "192.0.2.7:4711".parse().unwrap();
        assert_eq!(Neighbour::of(from(other)).unwrap(), Neighbour::Remote);
    }

    #[test]
    fn a_connection_to_elsewhere_from_the_same_address_is_not_the_clients() {
        let (client, _served, ends) = connection();
        let to_another_port = Ends {
            master: SocketAddr::new(ends.master.ip(), ends.master.port() ^ 1),
            ..ends
        };
        assert_eq!(
            Neighbour::of(to_another_port).unwrap(),
            Neighbour::Contained
        );
        drop(client);
    }

    #[test]
    fn rows_are_found_by_both_addresses() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \u{20}  0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 111 1\n\
             \u{20}  1: 0100007F:C350 0100007F:1F91 01 00000000:00000000 00:00000000 00000000  1000        0 333 1\n\
             \u{20}  2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 222 1\n";
        let inode = |client: &str, master: &str| {
            let (client, master) = (client.parse().unwrap(), master.parse().unwrap());
            inode_in(table, Ends { client, master })
        };
        if cfg!(target_endian = "little") {
            let master = "127.0.0.1:8080";
            assert_eq!(inode("127.0.0.1:50000", master), Some("222"));
            assert_eq!(inode(master, "127.0.0.1:50000"), Some("111"));
            assert_eq!(inode("127.0.0.2:50000", master), None);
            assert_eq!(inode("127.0.0.1:50000", "127.0.0.2:8080"), None);
        }
    }
}
