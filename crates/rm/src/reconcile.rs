//! What is to be done at a place: a comparison of what rows want with what the place has reported.

use std::collections::BTreeMap;

use det_ids::ContainerId;
use det_lifecycle::container::{DesiredState, ObservedState};

/// What was received and sent about one container on the connection to its place.
#[derive(Debug, Clone, Default, PartialEq)]
struct Exchange {
    /// The place's last report; `None` = it has not reported one on this connection.
    state: Option<ObservedState>,
    /// Whether a start was sent on this connection.
    start_sent: bool,
    /// The last order to end it that was sent on this connection.
    end_sent: Option<DesiredState>,
}

/// What a manager knows of the containers on a place, from what it has received and sent on its connection to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlaceView(BTreeMap<ContainerId, Exchange>);

impl PlaceView {
    /// The place reports what it has observed of a container.
    pub fn received(&mut self, id: &ContainerId, observed: ObservedState) {
        self.0.entry(id.clone()).or_default().state = Some(observed);
    }

    /// An order is sent, or [`Order::NeverStarted`] is carried out.
    pub fn sent(&mut self, order: &Order) {
        match order {
            Order::Start(id) => self.0.entry(id.clone()).or_default().start_sent = true,
            Order::End {
                container_id,
                grace,
            } => {
                let sent = if *grace {
                    DesiredState::Stop
                } else {
                    DesiredState::Kill
                };
                self.0.entry(container_id.clone()).or_default().end_sent = Some(sent);
            }
            Order::Forget(id) => {
                self.0.remove(id);
            }
            Order::NeverStarted(_) => {}
        }
    }

    /// Orders to end containers that have not ended are to be sent again.
    pub fn repeat_ends(&mut self) {
        for exchange in self.0.values_mut() {
            exchange.end_sent = None;
        }
    }

    /// Whether the place holds a container that it has not reported as ended.
    pub fn is_live(&self, id: &ContainerId) -> bool {
        let exchange = self.0.get(id);
        exchange.is_some_and(|exchange| {
            !matches!(exchange.state, Some(ObservedState::Terminated { .. }))
        })
    }

    /// What is to be done there, for rows that want this of the containers that hold slots. `mutant` is ignored unless the
    /// feature `mutants` is enabled.
    pub fn orders(
        &self,
        rows: &BTreeMap<ContainerId, DesiredState>,
        mutant: Option<Mutant>,
    ) -> Vec<Order> {
        reconcile(rows, &self.0, mutant)
    }
}

impl FromIterator<(ContainerId, ObservedState)> for PlaceView {
    /// The view of a place that joins with these containers, as it reports them.
    fn from_iter<I: IntoIterator<Item = (ContainerId, ObservedState)>>(reports: I) -> Self {
        let mut view = Self::default();
        for (id, observed) in reports {
            view.received(&id, observed);
        }
        view
    }
}

/// An order to a place, or about it, for one container: the result of comparing rows with reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Send the specification of the container with this id.
    Start(ContainerId),
    /// End a container that runs and is not wanted any more.
    End {
        /// Id of the container to end.
        container_id: ContainerId,
        /// Whether it is asked to end by itself and killed only after its grace period; else it is killed at once.
        grace: bool,
    },
    /// The container with this id was never started and must not be: its row ends without the place.
    NeverStarted(ContainerId),
    /// The row of the container with this id is gone or has ended: the place may remove it.
    Forget(ContainerId),
}

/// A deliberate defect, to show that checks of the comparison can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// What no row wants is left running.
    LeavesStrays,
}

/// Compares rows with reports. `rows` = the place's containers that hold slots; `exchanges` = all containers that this
/// connection knows, both by id.
fn reconcile(
    rows: &BTreeMap<ContainerId, DesiredState>,
    exchanges: &BTreeMap<ContainerId, Exchange>,
    mutant: Option<Mutant>,
) -> Vec<Order> {
    let mut orders = Vec::new();
    let unknown = Exchange::default();
    for (id, desired) in rows {
        let exchange = exchanges.get(id).unwrap_or(&unknown);
        match (&exchange.state, desired) {
            // Reported as ended: the report is being stored, and ends the row.
            (Some(ObservedState::Terminated { .. }), _) => {}
            (Some(_), DesiredState::Run) => {}
            (None, DesiredState::Run) if exchange.start_sent => {}
            (None, DesiredState::Run) => orders.push(Order::Start(id.clone())),
            (None, DesiredState::Stop | DesiredState::Kill) if !exchange.start_sent => {
                orders.push(Order::NeverStarted(id.clone()));
            }
            (_, wanted @ (DesiredState::Stop | DesiredState::Kill)) => {
                if exchange.end_sent != Some(*wanted)
                    && exchange.end_sent != Some(DesiredState::Kill)
                {
                    orders.push(Order::End {
                        container_id: id.clone(),
                        grace: *wanted == DesiredState::Stop,
                    });
                }
            }
        }
    }
    let leaves_strays = cfg!(feature = "mutants") && mutant == Some(Mutant::LeavesStrays);
    for (id, exchange) in exchanges.iter().filter(|(id, _)| !rows.contains_key(id)) {
        if !leaves_strays || matches!(exchange.state, Some(ObservedState::Terminated { .. })) {
            orders.push(Order::Forget(id.clone()));
        }
    }
    orders
}

#[cfg(test)]
mod tests {
    use det_taskspec::ContainerExit;

    use super::*;

    fn running() -> Exchange {
        Exchange {
            state: Some(ObservedState::Running {
                host_address: "h".into(),
                ports: vec![],
                runtime_id: "1".into(),
            }),
            ..Exchange::default()
        }
    }

    fn orders(rows: &[(&str, DesiredState)], exchange: &[(&str, Exchange)]) -> Vec<Order> {
        reconcile(
            &rows
                .iter()
                .map(|(id, d)| (ContainerId::from(*id), *d))
                .collect(),
            &exchange
                .iter()
                .map(|(id, h)| (ContainerId::from(*id), h.clone()))
                .collect(),
            None,
        )
    }

    #[test]
    fn a_placed_container_is_started_once() {
        assert_eq!(
            orders(&[("c", DesiredState::Run)], &[]),
            [Order::Start("c".into())]
        );
        let sent = Exchange {
            start_sent: true,
            ..Exchange::default()
        };
        assert_eq!(orders(&[("c", DesiredState::Run)], &[("c", sent)]), []);
        assert_eq!(orders(&[("c", DesiredState::Run)], &[("c", running())]), []);
    }

    #[test]
    fn a_killed_container_is_ended_once_and_a_stop_becomes_a_kill() {
        let end = |grace| Order::End {
            container_id: "c".into(),
            grace,
        };
        assert_eq!(
            orders(&[("c", DesiredState::Stop)], &[("c", running())]),
            [end(true)]
        );
        let stopped = Exchange {
            end_sent: Some(DesiredState::Stop),
            ..running()
        };
        assert_eq!(
            orders(&[("c", DesiredState::Stop)], &[("c", stopped.clone())]),
            []
        );
        assert_eq!(
            orders(&[("c", DesiredState::Kill)], &[("c", stopped)]),
            [end(false)]
        );
    }

    #[test]
    fn a_container_that_was_never_sent_ends_without_the_agent() {
        assert_eq!(
            orders(&[("c", DesiredState::Kill)], &[]),
            [Order::NeverStarted("c".into())]
        );
        let sent = Exchange {
            start_sent: true,
            ..Exchange::default()
        };
        assert_eq!(
            orders(&[("c", DesiredState::Kill)], &[("c", sent)]),
            [Order::End {
                container_id: "c".into(),
                grace: false
            }]
        );
    }

    #[test]
    fn what_no_row_wants_is_forgotten() {
        assert_eq!(
            orders(&[], &[("c", running())]),
            [Order::Forget("c".into())]
        );
        let ended = Exchange {
            state: Some(ObservedState::Terminated {
                exit: ContainerExit::Killed,
                cause: None,
            }),
            ..Exchange::default()
        };
        assert_eq!(
            orders(&[("c", DesiredState::Run)], &[("c", ended.clone())]),
            []
        );
        assert_eq!(orders(&[], &[("c", ended)]), [Order::Forget("c".into())]);
    }
    #[test]
    fn a_view_knows_what_was_received_and_sent() {
        let wanted = |desired| BTreeMap::from([(ContainerId::from("c"), desired)]);
        let mut view = PlaceView::default();
        let next = |view: &mut PlaceView, desired| {
            let orders = view.orders(&wanted(desired), None);
            for order in &orders {
                view.sent(order);
            }
            orders.len()
        };
        assert_eq!(next(&mut view, DesiredState::Run), 1);
        assert_eq!(next(&mut view, DesiredState::Run), 0);
        assert_eq!(next(&mut view, DesiredState::Kill), 1);
        assert_eq!(next(&mut view, DesiredState::Kill), 0);
        view.repeat_ends();
        assert_eq!(next(&mut view, DesiredState::Kill), 1);
        assert!(view.is_live(&"c".into()));
        let exit = ContainerExit::Killed;
        view.received(&"c".into(), ObservedState::Terminated { exit, cause: None });
        assert!(!view.is_live(&"c".into()));
        assert_eq!(
            view.orders(&BTreeMap::new(), None),
            [Order::Forget("c".into())]
        );
        view.sent(&Order::Forget("c".into()));
        assert_eq!(view, PlaceView::default());
    }
}
