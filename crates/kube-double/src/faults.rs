//! Faults that a test can have.

use std::sync::Arc;

use crate::access::Rule;
use crate::shared::{DoubleState, PlannedFailure};

/// Faults of a double; [`crate::ApiDouble::faults`] returns it. Each takes effect at once.
#[derive(Debug, Clone)]
pub struct Faults {
    pub(crate) shared: Arc<DoubleState>,
}

impl Faults {
    /// Has the next `times` requests for `plural` (such as `jobs`) fail with an HTTP status, without any effect. `method` is
    /// the HTTP method in capitals, or `WATCH` for watches, which are no `GET` here. 429 and 503 have `Retry-After: 1`.
    pub fn fail_next(&self, method: &str, plural: &str, code: u16, times: usize) {
        self.shared.control().planned.push(PlannedFailure {
            method: method.to_owned(),
            plural: plural.to_owned(),
            code,
            left: times,
        });
    }

    /// Removes the failures that are planned and have not happened yet.
    pub fn fail_no_more(&self) {
        self.shared.control().planned.clear();
    }

    /// Has watches of `plural` show nothing, until it is called with `false`: then they show everything that happened.
    pub fn delay_watches(&self, plural: &str, are_late: bool) {
        let mut control = self.shared.control();
        if are_late {
            control.late.insert(plural.to_owned());
        } else {
            control.late.remove(plural);
        }
        drop(control);
        self.shared.wake();
    }

    /// Has watches of `plural` show every change twice, until it is called with `false`.
    pub fn double_watches(&self, plural: &str, are_doubled: bool) {
        let mut control = self.shared.control();
        if are_doubled {
            control.doubled.insert(plural.to_owned());
        } else {
            control.doubled.remove(plural);
        }
    }

    /// Closes all connections, and each new one as it comes, until it is called with `false`.
    pub fn unreachable(&self, is_unreachable: bool) {
        self.shared.unreachable.send_replace(is_unreachable);
        if is_unreachable {
            self.shared.cuts.send_modify(|count| *count += 1);
        }
    }

    /// Breaks all watches off, in the middle of their answers.
    pub fn drop_watches(&self) {
        self.shared.drops.send_modify(|count| *count += 1);
    }

    /// Compacts the history: watches and lists from versions before the present one are answered with 410. Open watches go on,
    /// since they know everything up to the present one.
    pub fn compact(&self) {
        self.shared.cluster().compact();
    }

    /// Sends a bookmark to all watches that allow bookmarks.
    pub fn send_bookmarks(&self) {
        self.shared.bookmarks.send_modify(|count| *count += 1);
    }

    /// Holds the answers to all writes, which are carried out nevertheless, until it is called with `false`.
    pub fn delay_writes(&self, is_delayed: bool) {
        self.shared.delayed.send_replace(is_delayed);
        self.shared.wake();
    }

    /// Forbids a verb (`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; `*` for all) on a
    /// plural of a group (empty for the core), which may be a subresource such as `pods/status`. `namespace` is the one in
    /// the request's path, `*` for each; `None` is for requests without one: cluster-scoped objects, and lists and watches
    /// over all namespaces. Requests are refused with 403, and reviews of access answer accordingly.
    pub fn forbid(&self, verb: &str, group: &str, plural: &str, namespace: Option<&str>) {
        self.shared.control().forbidden.push(Rule {
            verb: verb.to_owned(),
            group: group.to_owned(),
            plural: plural.to_owned(),
            namespace: namespace.map(str::to_owned),
        });
    }

    /// Allows everything again.
    pub fn allow_all(&self) {
        self.shared.control().forbidden.clear();
    }
}
