//! Exchanges between the containers of an allocation: what each gives, until all have it.
//!
//! Lives in memory. What members give is kept as text within a budget ([`crate::budget::ALL_GATHERS`]), the answer is
//! made once for all members, and everything is released when the allocation ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use det_ids::AllocationId;

use crate::budget::{Account, Budget, Reservation};
use crate::error::{AppError, AppResult, ErrorKind};

/// Exchanges kept of an allocation: the current one, and finished ones whose answers may be requested again.
const EXCHANGES: usize = 4;
/// Bytes that all members together may give in one exchange.
const EXCHANGE_BYTES: usize = 16 << 20;
/// What a member costs besides its data.
const MEMBER_BYTES: usize = 256;

/// Exchanges by allocation. Cheap to clone.
#[derive(Clone)]
pub struct AllGathers {
    budget: Budget,
    exchanges: Arc<Mutex<HashMap<AllocationId, Vec<Exchange>>>>,
}

/// One exchange of an allocation, which is over once all members have given; the answer is kept for repeated calls.
#[derive(Default)]
struct Exchange {
    /// What members gave, by the id of each call; empty texts once the answer is made.
    given: HashMap<String, MemberValue>,
    bytes: usize,
    /// The body of the answer, once all members have given.
    answer: Option<Bytes>,
}

struct MemberValue {
    data: Bytes,
    _reserved: Reservation,
}

impl AllGathers {
    /// None yet. `budget` bounds what all of them hold.
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            exchanges: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AllocationId, Vec<Exchange>>> {
        self.exchanges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a member gives: into its own exchange again, else into the first one that is not full. `data` is JSON
    /// text, `account` the user whom it is counted for.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] beyond the bytes of an exchange, [`ErrorKind::Busy`] beyond the budget.
    pub fn give(
        &self,
        account: Account,
        allocation_id: &AllocationId,
        request_uuid: &str,
        peers: usize,
        data: Bytes,
    ) -> AppResult<()> {
        let mut all = self.lock();
        let exchanges = all.entry(allocation_id.clone()).or_default();
        let outcome = give(&self.budget, exchanges, account, request_uuid, peers, data);
        if exchanges.is_empty() {
            all.remove(allocation_id);
        }
        outcome
    }

    /// The answer to all members of the exchange of this call, once `peers` have given.
    pub fn complete(
        &self,
        allocation_id: &AllocationId,
        request_uuid: &str,
        peers: usize,
    ) -> Option<Bytes> {
        let mut all = self.lock();
        let exchange = all
            .get_mut(allocation_id)?
            .iter_mut()
            .find(|exchange| exchange.given.contains_key(request_uuid))?;
        if exchange.given.len() < peers {
            return None;
        }
        let answer = match &exchange.answer {
            Some(answer) => answer.clone(),
            None => exchange.finish(),
        };
        Some(answer)
    }

    /// Releases everything of an allocation.
    pub fn remove(&self, allocation_id: &AllocationId) {
        self.lock().remove(allocation_id);
    }

    /// Allocations with exchanges.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is no exchange.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn give(
    budget: &Budget,
    exchanges: &mut Vec<Exchange>,
    account: Account,
    request_uuid: &str,
    peers: usize,
    data: Bytes,
) -> AppResult<()> {
    let own = exchanges
        .iter()
        .position(|exchange| exchange.given.contains_key(request_uuid));
    if own.is_some_and(|index| exchanges[index].answer.is_some()) {
        // It repeats its call after the end of the exchange: the others have their answer, and it gets the same.
        return Ok(());
    }
    // What it gave before is replaced: released first, or it would need the space twice.
    if let Some(exchange) = own.map(|index| &mut exchanges[index])
        && let Some(before) = exchange.given.remove(request_uuid)
    {
        exchange.bytes -= before.data.len() + request_uuid.len() + MEMBER_BYTES;
    }
    let cost = data.len() + request_uuid.len() + MEMBER_BYTES;
    let open = exchanges
        .iter()
        .position(|exchange| exchange.answer.is_none() && exchange.given.len() < peers);
    let bytes = open.map_or(0, |index| exchanges[index].bytes);
    if bytes + cost > EXCHANGE_BYTES {
        return Err(AppError::new(
            ErrorKind::TooLarge,
            format!(
                "the members of an all-gather may give at most {EXCHANGE_BYTES} bytes together; {bytes} are given, and {} \
                 more came",
                data.len()
            ),
        )
        .hint("exchange large data through files or the training framework"));
    }
    let reserved = match budget.try_reserve(account, cost) {
        Ok(reserved) => reserved,
        Err(_) => {
            // Finished exchanges are kept for calls that are repeated: that is the first thing to go.
            exchanges.retain(|exchange| exchange.answer.is_none());
            budget.try_reserve(account, cost)?
        }
    };
    let open = exchanges
        .iter()
        .position(|exchange| exchange.answer.is_none() && exchange.given.len() < peers);
    let exchange = match open {
        Some(index) => &mut exchanges[index],
        None => {
            if exchanges.len() == EXCHANGES {
                exchanges.remove(0);
            }
            exchanges.push(Exchange::default());
            exchanges.last_mut().expect("one was just added")
        }
    };
    let given = MemberValue {
        data,
        _reserved: reserved,
    };
    exchange.given.insert(request_uuid.to_owned(), given);
    exchange.bytes += cost;
    Ok(())
}

impl Exchange {
    /// Makes the answer: `{"data":[…]}`. What members gave lives on only in there.
    fn finish(&mut self) -> Bytes {
        let mut answer = Vec::with_capacity(self.bytes);
        answer.extend_from_slice(b"{\"data\":[");
        for (place, given) in self.given.values_mut().enumerate() {
            if place > 0 {
                answer.push(b',');
            }
            answer.extend_from_slice(&given.data);
            given.data = Bytes::new();
        }
        answer.extend_from_slice(b"]}");
        let answer = Bytes::from(answer);
        self.answer = Some(answer.clone());
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::budget::{ALL_GATHERS, Limits};

    fn all_gathers(total: usize) -> AllGathers {
        AllGathers::new(Budget::new(Limits {
            total,
            share: total,
            wait: Duration::ZERO,
            ..ALL_GATHERS
        }))
    }

    fn text(text: &str) -> Bytes {
        Bytes::from(text.to_owned())
    }

    #[test]
    fn each_call_of_all_members_is_an_exchange_of_its_own() {
        let (all_gathers, a) = (all_gathers(1 << 20), AllocationId::from("a"));
        let give =
            |uuid: &str, data: &str| all_gathers.give(None, &a, uuid, 2, text(data)).unwrap();
        give("1", "\"x\"");
        assert_eq!(all_gathers.complete(&a, "1", 2), None);
        // A repeated call replaces what it gave.
        give("1", "\"y\"");
        assert_eq!(all_gathers.complete(&a, "1", 2), None);
        give("2", "\"z\"");
        let all = all_gathers.complete(&a, "1", 2).unwrap();
        assert!(
            [
                &b"{\"data\":[\"y\",\"z\"]}"[..],
                b"{\"data\":[\"z\",\"y\"]}"
            ]
            .contains(&&all[..]),
            "{all:?}"
        );
        // The next exchange does not see the last one's, whose answer is still there.
        give("3", "\"n\"");
        assert_eq!(all_gathers.complete(&a, "3", 2), None);
        assert_eq!(all_gathers.complete(&a, "2", 2), Some(all));
    }

    #[test]
    fn all_of_it_is_released_at_the_end_of_the_allocation() {
        let (all_gathers, a) = (all_gathers(1 << 20), AllocationId::from("a"));
        for n in 0..20 {
            let data = Bytes::from(vec![b'1'; 100_000]);
            all_gathers.give(None, &a, &n.to_string(), 1, data).unwrap();
            assert!(all_gathers.complete(&a, &n.to_string(), 1).is_some());
        }
        let used = all_gathers.budget.usage().used;
        assert!((400_000..500_000).contains(&used), "{used} bytes are kept");
        all_gathers.remove(&a);
        assert_eq!(all_gathers.budget.usage().used, 0);
        assert!(all_gathers.is_empty());
    }

    #[test]
    fn what_members_give_has_a_bound() {
        let (all_gathers, a) = (all_gathers(300_000), AllocationId::from("a"));
        let large = || Bytes::from(vec![b'1'; 200_000]);
        all_gathers.give(None, &a, "1", 3, large()).unwrap();
        let error = all_gathers.give(None, &a, "2", 3, large()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy);
        let huge = Bytes::from(vec![b'1'; EXCHANGE_BYTES]);
        let error = all_gathers
            .give(None, &AllocationId::from("b"), "1", 1, huge)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert_eq!(all_gathers.len(), 1, "nothing is kept of what was refused");
        // A finished exchange makes space for the next one.
        all_gathers.give(None, &a, "1", 1, large()).unwrap();
        all_gathers.complete(&a, "1", 1).unwrap();
        all_gathers.give(None, &a, "2", 1, large()).unwrap();
    }
}
