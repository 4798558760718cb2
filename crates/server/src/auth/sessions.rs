//! Sessions in memory, and what ends with them: connections that were opened with one, and cookies of the host of services.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use det_ids::{AllocationId, UserId};
use det_store::users::SessionRow;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

/// A session in memory.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) user_id: UserId,
    /// When the session expires, microseconds since 1970.
    pub(super) expires_at: i64,
    /// When the rows were asked last.
    pub(super) checked: Instant,
    /// Cancelled when it ends, or when its user may not use it any more.
    ended: CancellationToken,
}

impl Session {
    /// The right to what it opens.
    pub(super) fn access(&self) -> Access {
        Access {
            ended: self.ended.clone(),
            expires_at: Some(self.expires_at),
        }
    }
}

/// The right by which a connection was opened: it is to end with this.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    ended: CancellationToken,
    /// Microseconds since 1970; `None` = it does not expire by itself.
    expires_at: Option<i64>,
}

impl Access {
    /// Waits until the right has ended.
    pub(crate) async fn over(&self) {
        let Some(expires_at) = self.expires_at else {
            return self.ended.cancelled().await;
        };
        let expiry = async {
            // The clock of the system may be set meanwhile.
            while let Ok(left @ 1..) =
                u64::try_from(expires_at.saturating_sub(det_store::earliest_now()))
            {
                tokio::time::sleep(Duration::from_micros(left)).await;
            }
        };
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = expiry => {}
        }
    }
}

/// Names a session; no token can be made from it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SessionName(pub(super) Vec<u8>);

/// Bytes of a reference to a session, and of what proves it.
const PART: usize = 32;

impl SessionName {
    /// What names the session in cookies.
    fn reference(&self) -> [u8; PART] {
        digest(&[b"determined services: reference", &self.0])
    }

    /// What only a holder of the session, or this master, can make for a service: a fixed number of bytes is hashed, so
    /// that nothing can be appended.
    fn proof(&self, service: &str) -> [u8; PART] {
        digest(&[&self.0, &digest(&[service.as_bytes()])])
    }

    /// The value of the cookie with which the browser of this session uses one service, and nothing else.
    pub(crate) fn services_cookie(&self, service: &str) -> String {
        URL_SAFE_NO_PAD.encode([self.reference(), self.proof(service)].concat())
    }
}

fn digest(parts: &[&[u8]]) -> [u8; PART] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// All sessions, by the hash of their tokens.
#[derive(Default)]
pub(super) struct Sessions {
    by_hash: HashMap<Vec<u8>, Session>,
    by_reference: HashMap<[u8; PART], Vec<u8>>,
}

impl Sessions {
    pub(super) fn get(&self, hash: &[u8]) -> Option<&Session> {
        self.by_hash.get(hash)
    }

    /// The session of a cookie of the host of services, if it was made for this service.
    pub(super) fn of_services_cookie(&self, cookie: &str, service: &str) -> Option<SessionName> {
        let bytes = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        let (reference, proof) = bytes.split_at_checked(PART)?;
        let hash = self.by_reference.get(reference)?;
        let name = SessionName(hash.clone());
        // By their hashes: how long it takes contains nothing about the proof.
        let proven = digest(&[proof]) == digest(&[&name.proof(service)]);
        proven.then_some(name)
    }

    /// Keeps a session as its row has it now.
    pub(super) fn put(&mut self, row: SessionRow) {
        let ended = match self.by_hash.get(&row.token_hash) {
            Some(known) => known.ended.clone(),
            None => CancellationToken::new(),
        };
        let session = Session {
            user_id: row.user_id,
            expires_at: row.expires_at,
            checked: Instant::now(),
            ended,
        };
        let reference = SessionName(row.token_hash.clone()).reference();
        self.by_reference.insert(reference, row.token_hash.clone());
        self.by_hash.insert(row.token_hash, session);
    }

    /// Ends a session.
    pub(super) fn remove(&mut self, hash: &[u8]) {
        if let Some(session) = self.by_hash.remove(hash) {
            session.ended.cancel();
            self.by_reference
                .remove(&SessionName(hash.to_vec()).reference());
        }
    }

    /// Ends all sessions of a user.
    pub(super) fn remove_of(&mut self, user_id: UserId) {
        let of_user = self.by_hash.iter();
        let of_user = of_user.filter(|(_, session)| session.user_id == user_id);
        let hashes: Vec<Vec<u8>> = of_user.map(|(hash, _)| hash.clone()).collect();
        for hash in hashes {
            self.remove(&hash);
        }
    }

    /// Ends what the sessions of a user have opened, and keeps the sessions: the user may be let in again.
    pub(super) fn interrupt(&mut self, user_id: UserId) {
        let of_user = self.by_hash.values_mut();
        for session in of_user.filter(|session| session.user_id == user_id) {
            std::mem::take(&mut session.ended).cancel();
        }
    }
}

/// What tasks have opened with their tokens, by allocation: at most one entry for each that runs.
#[derive(Default)]
pub(super) struct TaskAccesses(HashMap<AllocationId, (UserId, CancellationToken)>);

impl TaskAccesses {
    /// The right of an allocation to what it opens.
    pub(super) fn open(&mut self, allocation_id: &AllocationId, owner_id: UserId) -> Access {
        let entry = self.0.entry(allocation_id.clone());
        let (_, ended) = entry.or_insert_with(|| (owner_id, CancellationToken::new()));
        Access {
            ended: ended.clone(),
            expires_at: None,
        }
    }

    /// Ends the access of an allocation that has ended.
    pub(super) fn end(&mut self, allocation_id: &AllocationId) {
        if let Some((_, ended)) = self.0.remove(allocation_id) {
            ended.cancel();
        }
    }

    /// The owner of the tasks may use nothing any more.
    pub(super) fn end_of(&mut self, owner_id: UserId) {
        self.0.retain(|_, (owner, ended)| {
            if *owner == owner_id {
                ended.cancel();
            }
            *owner != owner_id
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::token_hash;

    fn row(token: &str, user: i64) -> SessionRow {
        SessionRow {
            token_hash: token_hash(token),
            user_id: UserId(user),
            expires_at: i64::MAX,
        }
    }

    fn is_over(access: &Access) -> bool {
        futures::FutureExt::now_or_never(access.over()).is_some()
    }

    #[tokio::test]
    async fn what_a_session_opened_ends_with_it_and_with_no_other() {
        let mut sessions = Sessions::default();
        for (token, user) in [("a", 1), ("b", 1), ("c", 2)] {
            sessions.put(row(token, user));
        }
        let open = |sessions: &Sessions, token: &str| {
            let session = sessions.get(&token_hash(token));
            session.map(Session::access)
        };
        let opened = ["a", "b", "c"].map(|token| open(&sessions, token).unwrap());
        // Rows are read again and again.
        sessions.put(row("a", 1));
        sessions.remove(&token_hash("a"));
        assert_eq!(opened.each_ref().map(is_over), [true, false, false]);
        sessions.interrupt(UserId(1));
        assert_eq!(opened.each_ref().map(is_over), [true, true, false]);
        let again = open(&sessions, "b").unwrap();
        assert!(!is_over(&again), "a user who may come in again");
        sessions.remove_of(UserId(1));
        assert!(is_over(&again) && open(&sessions, "b").is_none());
        assert!(!is_over(&opened[2]));
    }

    #[tokio::test]
    async fn an_expired_session_is_over() {
        let mut sessions = Sessions::default();
        sessions.put(SessionRow {
            expires_at: 1,
            ..row("a", 1)
        });
        assert!(is_over(&sessions.get(&token_hash("a")).unwrap().access()));
    }

    #[tokio::test]
    async fn what_a_task_opened_ends_with_its_allocation_or_its_owner() {
        let mut accesses = TaskAccesses::default();
        let allocations = ["x.1", "y.1", "z.1"].map(|id| AllocationId(id.to_owned()));
        let owners = [1, 2, 2].map(UserId);
        let opened = [0, 1, 2].map(|i| accesses.open(&allocations[i], owners[i]));
        accesses.end(&allocations[1]);
        assert_eq!(opened.each_ref().map(is_over), [false, true, false]);
        accesses.end_of(UserId(1));
        assert_eq!(opened.each_ref().map(is_over), [true, true, false]);
    }

    #[test]
    fn a_cookie_is_for_one_session_and_one_service() {
        let mut sessions = Sessions::default();
        sessions.put(row("a", 1));
        sessions.put(row("b", 2));
        let name = SessionName(token_hash("a"));
        let cookie = name.services_cookie("t:80");
        let of = |cookie: &str, service| sessions.of_services_cookie(cookie, service);
        assert!(of(&cookie, "t:80").is_some_and(|found| found == name));
        let other = SessionName(token_hash("b")).services_cookie("t:80");
        let mixed = format!("{}{}", &cookie[..42], &other[42..]);
        for (cookie, service) in [
            (cookie.as_str(), "t"),
            (cookie.as_str(), "t:8"),
            (&cookie[1..], "t:80"),
            (&mixed, "t:80"),
            ("", "t:80"),
            ("=", "t:80"),
        ] {
            assert!(of(cookie, service).is_none(), "{cookie:?} {service}");
        }
        sessions.remove(&token_hash("a"));
        assert!(sessions.of_services_cookie(&cookie, "t:80").is_none());
        assert!(sessions.by_reference.len() == 1, "nothing is left of it");
    }
}
