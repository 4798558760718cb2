//! The codes with which browsers go from the host of the API to the host of services: each is good for one use, for one
//! service, and for a short time. Only memory has them: a browser that loses its way begins anew.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use det_ids::UserId;

use crate::auth::{SessionName, new_token, token_hash};
use crate::error::{AppError, AppResult, ErrorKind};

/// How long a code can be used: a browser follows a redirect at once.
const LIFETIME: Duration = Duration::from_secs(60);
/// Codes of one user at once: beyond them the oldest one is good for nothing any more.
const MOST_OF_ONE: usize = 32;
/// Codes of all users at once.
const MOST: usize = 8192;

/// What a code is for.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Handover {
    /// The browser is to be given its mark, and goes back to this host of the API.
    Begin {
        /// Host and port, as the browser named them.
        api: String,
    },
    /// The browser with this mark may use the service in the name of this session.
    Enter {
        /// The session in whose name the service is used.
        session: SessionName,
        /// Hash of the mark that the browser must have.
        mark: Vec<u8>,
    },
}

struct Code {
    hash: Vec<u8>,
    user_id: UserId,
    service: String,
    handover: Handover,
    until: Instant,
}

/// The codes that can be used now. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Codes {
    /// Codes that were given out and not used, the oldest first.
    codes: Arc<Mutex<VecDeque<Code>>>,
}

impl Codes {
    /// A code for a service, on behalf of this user.
    ///
    /// # Errors
    /// All users together have too many.
    pub(super) fn issue(
        &self,
        user_id: UserId,
        service: &str,
        handover: Handover,
    ) -> AppResult<String> {
        self.issue_at(Instant::now(), user_id, service, handover)
    }

    fn issue_at(
        &self,
        now: Instant,
        user_id: UserId,
        service: &str,
        handover: Handover,
    ) -> AppResult<String> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|code| code.until > now);
        let of_user = codes.iter().filter(|code| code.user_id == user_id);
        if of_user.count() >= MOST_OF_ONE
            && let Some(oldest) = codes.iter().position(|code| code.user_id == user_id)
        {
            codes.remove(oldest);
        }
        if codes.len() >= MOST {
            return Err(AppError::new(
                ErrorKind::Busy,
                format!(
                    "service \"{service}\" cannot be opened in a browser now: {MOST} others are just being opened"
                ),
            )
            .hint("try again in a minute"));
        }
        let code = new_token();
        codes.push_back(Code {
            hash: token_hash(&code),
            user_id,
            service: service.to_owned(),
            handover,
            until: now + LIFETIME,
        });
        Ok(code)
    }

    /// What a code for this service was for. It is used up, also by a request for another service.
    pub(super) fn redeem(&self, code: &str, service: &str) -> Option<Handover> {
        self.redeem_at(Instant::now(), code, service)
    }

    fn redeem_at(&self, now: Instant, code: &str, service: &str) -> Option<Handover> {
        let hash = token_hash(code);
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let index = codes.iter().position(|code| code.hash == hash)?;
        let code = codes.remove(index)?;
        (code.until > now && code.service == service).then_some(code.handover)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin() -> Handover {
        Handover::Begin {
            api: "det.example".into(),
        }
    }

    #[test]
    fn a_code_is_good_once_for_its_service_and_for_a_minute() {
        let codes = Codes::default();
        let now = Instant::now();
        let issue = || codes.issue_at(now, UserId(1), "t", begin()).unwrap();
        let code = issue();
        assert!(codes.redeem_at(now, &code, "t").is_some());
        assert!(codes.redeem_at(now, &code, "t").is_none(), "it was used");
        let code = issue();
        assert!(codes.redeem_at(now, &code, "t:80").is_none());
        assert!(codes.redeem_at(now, &code, "t").is_none(), "it was used");
        let code = issue();
        assert!(codes.redeem_at(now + LIFETIME, &code, "t").is_none());
        assert!(codes.redeem_at(now, "", "t").is_none());
    }

    #[test]
    fn a_user_who_begins_much_takes_nothing_from_others() {
        let codes = Codes::default();
        let now = Instant::now();
        let of_other = codes.issue_at(now, UserId(2), "t", begin()).unwrap();
        let all: Vec<String> = (0..=MOST_OF_ONE)
            .map(|_| codes.issue_at(now, UserId(1), "t", begin()).unwrap())
            .collect();
        assert!(codes.redeem_at(now, &all[0], "t").is_none(), "the oldest");
        assert!(codes.redeem_at(now, &all[1], "t").is_some());
        assert!(codes.redeem_at(now, &of_other, "t").is_some());
    }

    #[test]
    fn memory_is_bounded_and_what_has_expired_takes_none() {
        let codes = Codes::default();
        let now = Instant::now();
        let issue = |at: Instant, user: i64| codes.issue_at(at, UserId(user), "t", begin());
        for code in 0..MOST {
            issue(now, i64::try_from(code / MOST_OF_ONE).unwrap()).unwrap();
        }
        let refused = issue(now, -1).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Busy);
        issue(now + LIFETIME, -1).unwrap();
        assert_eq!(codes.codes.lock().unwrap().len(), 1);
    }
}
