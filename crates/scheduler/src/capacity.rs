//! The capacity of a pool when nothing runs in it: whether a request could ever fit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use det_ids::PlaceId;

use crate::gang::{Group, divide};
use crate::model::{PlaceSnapshot, PlaceState, PoolSettings, PoolSnapshot, SlotState};
use crate::reason::{PlaceGroup, WaitReason};

/// A request that no present or provisionable places could hold, even if nothing else ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeverFits {
    /// Why, as it would be shown on a request that waits.
    pub reason: WaitReason,
    /// The next smaller and the next larger number of slots that would fit, where there is one.
    pub nearest: Vec<u32>,
    /// The sentence for the user: what was asked for, what the pool has, what to do.
    pub message: String,
}

impl fmt::Display for NeverFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for NeverFits {}

/// Whether what is asked for could run in the pool at all: on its places, regardless of their state and of the work on
/// them, or on those a provisioner may add.
///
/// # Errors
/// [`NeverFits`] when no combination of them holds the request.
pub fn can_ever_fit(pool: &PoolSnapshot, ask: &SlotDemand<'_>) -> Result<(), NeverFits> {
    let (settings, places) = (&pool.settings, &pool.places.iter().collect::<Vec<_>>());
    match feasibility(settings, places, ask) {
        Feasibility::Usable | Feasibility::Returning(_) | Feasibility::NeedsAdministrator(_) => {
            Ok(())
        }
        Feasibility::Never(reason) => {
            let nearest = if ask.slots == 0 {
                Vec::new()
            } else {
                nearest(
                    &Capacity::new(settings, places, ask, CountedPlaces::Ever),
                    ask,
                    settings,
                )
            };
            let message = reason.to_string();
            Err(NeverFits {
                reason,
                nearest,
                message,
            })
        }
    }
}

/// The part of a request that decides where it can fit.
#[derive(Debug, Clone, Copy)]
pub struct SlotDemand<'a> {
    /// Number of slots; 0 asks for one auxiliary unit.
    pub slots: u32,
    /// Whether all slots must be on one place.
    pub single_place: bool,
    /// Places that it must not run on.
    pub excluded: &'a BTreeSet<PlaceId>,
}

/// Whether a request could fit if all running work ended, and if not, what has to change first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Feasibility {
    /// Nothing has to change: places in service hold it.
    Usable,
    /// Places must appear that can do so without a user: one whose connection is lost, or one that a provisioner adds.
    Returning(WaitReason),
    /// A user must enable places or slots.
    NeedsAdministrator(WaitReason),
    /// It cannot fit unless the pool or the request is changed.
    Never(WaitReason),
}

/// Which places and slots are counted as available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountedPlaces {
    /// Places and slots in service.
    Usable,
    /// Those, and places whose connection is lost.
    Reconnecting,
    /// Those, and what a provisioner may add.
    Returning,
    /// All places and slots, and what a provisioner may add.
    Ever,
}

/// Checks a request against the pool without its running work.
pub(crate) fn feasibility(
    settings: &PoolSettings,
    places: &[&PlaceSnapshot],
    ask: &SlotDemand<'_>,
) -> Feasibility {
    if let Some(most) = most_of_one_container(settings, ask)
        && ask.slots > most
    {
        return Feasibility::Never(WaitReason::ContainerTooLarge {
            needed: ask.slots,
            most,
        });
    }
    let fits = |counted| Capacity::new(settings, places, ask, counted).holds(ask, settings);
    if fits(CountedPlaces::Usable) {
        Feasibility::Usable
    } else if fits(CountedPlaces::Reconnecting) {
        Feasibility::Returning(unavailable(settings, places, ask))
    } else if fits(CountedPlaces::Returning) {
        Feasibility::Returning(instances(settings, ask))
    } else if fits(CountedPlaces::Ever) {
        Feasibility::NeedsAdministrator(unavailable(settings, places, ask))
    } else {
        Feasibility::Never(never(settings, places, ask))
    }
}

/// Most slots of a request whose slots must be in one container; `None` = there is no such limit.
fn most_of_one_container(settings: &PoolSettings, ask: &SlotDemand<'_>) -> Option<u32> {
    let most = settings.max_slots_per_container?;
    (ask.single_place || most == 0).then_some(most.max(1))
}

/// The places that a request may use, counted by size, as if they were empty.
struct Capacity {
    /// Largest first; places of size 0 are left out.
    groups: Vec<Group>,
}

impl Capacity {
    fn new(
        settings: &PoolSettings,
        places: &[&PlaceSnapshot],
        ask: &SlotDemand<'_>,
        counted: CountedPlaces,
    ) -> Self {
        let mut groups: BTreeMap<u32, u32> = BTreeMap::new();
        let mut barred = 0;
        for place in places {
            if ask.excluded.contains(&place.id) {
                barred += 1;
                continue;
            }
            let size = units_when_empty(place, ask.slots == 0, counted);
            if size > 0 {
                *groups.entry(size).or_default() += 1;
            }
        }
        if let Some(added) = settings.provisionable
            && matches!(counted, CountedPlaces::Returning | CountedPlaces::Ever)
        {
            let instances = added.max_instances.saturating_sub(barred);
            // How many zero-slot tasks an instance takes is known only once it exists; it takes at least one.
            let size = if ask.slots == 0 {
                1
            } else {
                added.slots_per_instance
            };
            if size > 0 && instances > 0 {
                let present = groups.entry(size).or_default();
                *present = (*present).max(instances);
            }
        }
        Self {
            groups: groups.into_iter().rev().collect(),
        }
    }

    fn largest(&self) -> u32 {
        self.groups.first().map_or(0, |(size, _)| *size)
    }

    fn total(&self) -> u32 {
        let total: u64 = self
            .groups
            .iter()
            .map(|&(size, count)| u64::from(size) * u64::from(count))
            .sum();
        u32::try_from(total).unwrap_or(u32::MAX)
    }

    fn holds(&self, ask: &SlotDemand<'_>, settings: &PoolSettings) -> bool {
        let units = ask.slots.max(1);
        if units <= self.largest() {
            return true;
        }
        if ask.single_place {
            return false;
        }
        // Where places may be taken in part, empty ones hold any size.
        if settings.allow_heterogeneous_fits {
            return units <= self.total();
        }
        divide(&self.groups, units, false).is_some()
    }
}

/// Units of a place when it is empty: slots, or auxiliary units.
fn units_when_empty(place: &PlaceSnapshot, auxiliary: bool, counted: CountedPlaces) -> u32 {
    let counts = match counted {
        CountedPlaces::Usable => place.state == PlaceState::Enabled,
        CountedPlaces::Reconnecting | CountedPlaces::Returning => {
            matches!(place.state, PlaceState::Enabled | PlaceState::Disconnected)
        }
        CountedPlaces::Ever => true,
    };
    if !counts {
        return 0;
    }
    if auxiliary {
        return place.aux_limit;
    }
    let slots = place.slots.iter().filter(|slot| {
        counted == CountedPlaces::Ever || matches!(slot.state, SlotState::Free | SlotState::Held(_))
    });
    u32::try_from(slots.count()).unwrap_or(u32::MAX)
}

fn unavailable(
    settings: &PoolSettings,
    places: &[&PlaceSnapshot],
    ask: &SlotDemand<'_>,
) -> WaitReason {
    let in_state = |state| {
        let places = places.iter().filter(|place| place.state == state);
        u32::try_from(places.count()).unwrap_or(u32::MAX)
    };
    let enabled = || places.iter().filter(|p| p.state == PlaceState::Enabled);
    let out_of_service = enabled()
        .flat_map(|place| &place.slots)
        .filter(|slot| matches!(slot.state, SlotState::Draining(_) | SlotState::Disabled(_)));
    let foreign = enabled().map(|place| {
        let slots = place.slots.iter();
        slots
            .filter(|slot| slot.state == SlotState::Foreign)
            .count()
    });
    let foreign: Vec<usize> = foreign.filter(|slots| *slots > 0).collect();
    WaitReason::PlacesUnavailable {
        needed: ask.slots,
        usable: Capacity::new(settings, places, ask, CountedPlaces::Usable).total(),
        draining: in_state(PlaceState::Draining),
        disabled: in_state(PlaceState::Disabled),
        disconnected: in_state(PlaceState::Disconnected),
        slots_out_of_service: u32::try_from(out_of_service.count()).unwrap_or(u32::MAX),
        foreign_slots: u32::try_from(foreign.iter().sum::<usize>()).unwrap_or(u32::MAX),
        places_with_foreign: u32::try_from(foreign.len()).unwrap_or(u32::MAX),
    }
}

fn instances(settings: &PoolSettings, ask: &SlotDemand<'_>) -> WaitReason {
    let (slots_per_instance, max_instances) = settings.provisionable.map_or((0, 0), |added| {
        (added.slots_per_instance, added.max_instances)
    });
    WaitReason::WaitingForInstances {
        needed: ask.slots,
        slots_per_instance,
        max_instances,
    }
}

fn never(settings: &PoolSettings, places: &[&PlaceSnapshot], ask: &SlotDemand<'_>) -> WaitReason {
    let capacity = Capacity::new(settings, places, ask, CountedPlaces::Ever);
    if places.is_empty() && settings.provisionable.is_none() {
        return WaitReason::NoPlaces;
    }
    if capacity.groups.is_empty()
        && !places.is_empty()
        && places.iter().all(|place| ask.excluded.contains(&place.id))
    {
        return WaitReason::AllPlacesExcluded {
            excluded: u32::try_from(places.len()).unwrap_or(u32::MAX),
        };
    }
    if ask.slots == 0 {
        return WaitReason::AuxFull {
            in_use: 0,
            limit: 0,
        };
    }
    if ask.single_place {
        return WaitReason::NoPlaceLargeEnough {
            needed: ask.slots,
            largest: capacity.largest(),
        };
    }
    if capacity.total() < ask.slots {
        return WaitReason::PoolTooSmall {
            needed: ask.slots,
            capacity: capacity.total(),
        };
    }
    WaitReason::GangDoesNotDivide {
        needed: ask.slots,
        places: capacity
            .groups
            .iter()
            .map(|&(slots, places)| PlaceGroup { slots, places })
            .collect(),
        nearest: nearest(&capacity, ask, settings),
    }
}

/// The next smaller and next larger size that fits, for a request that does not.
fn nearest(capacity: &Capacity, ask: &SlotDemand<'_>, settings: &PoolSettings) -> Vec<u32> {
    let of_container = most_of_one_container(settings, ask);
    let most = of_container.unwrap_or(u32::MAX);
    let mut below = capacity.largest().min(ask.slots).min(most);
    let mut above = u32::MAX;
    if !ask.single_place && of_container.is_none() {
        if settings.allow_heterogeneous_fits {
            below = capacity.total().min(ask.slots);
        }
        for &(size, count) in &capacity.groups {
            let fewer = (ask.slots / size).min(count);
            below = below.max(fewer.saturating_mul(size));
            let more = ask.slots.div_ceil(size);
            if more <= count {
                above = above.min(more.saturating_mul(size));
            }
        }
    }
    let mut sizes = Vec::new();
    if below > 0 && below < ask.slots {
        sizes.push(below);
    }
    if above > ask.slots && above != u32::MAX {
        sizes.push(above);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use det_ids::SlotId;

    use super::*;
    use crate::model::SlotSnapshot;

    #[test]
    fn a_request_for_one_container_is_limited_by_what_a_container_may_have() {
        let slot = |id| SlotSnapshot {
            id: SlotId(id),
            state: SlotState::Free,
        };
        let place = PlaceSnapshot {
            id: "node".into(),
            state: PlaceState::Enabled,
            slots: (0..16).map(slot).collect(),
            aux_limit: 4,
            aux_used: 0,
        };
        let excluded = BTreeSet::new();
        for (most, slots, single_place, expected) in [
            (8, 8, true, Ok(())),
            (8, 9, true, Err((8, vec![8]))),
            (8, 16, false, Ok(())),
            (0, 1, false, Ok(())),
            (0, 0, true, Ok(())),
            (0, 2, false, Err((1, vec![1]))),
        ] {
            let pool = PoolSnapshot {
                settings: PoolSettings {
                    max_slots_per_container: Some(most),
                    ..PoolSettings::default()
                },
                places: vec![place.clone()],
                running: Vec::new(),
            };
            let ask = SlotDemand {
                slots,
                single_place,
                excluded: &excluded,
            };
            let found = can_ever_fit(&pool, &ask).map_err(|never| match never.reason {
                WaitReason::ContainerTooLarge { needed, most } => {
                    assert_eq!(needed, slots);
                    (most, never.nearest)
                }
                other => panic!("{other}"),
            });
            assert_eq!(found, expected, "{slots} slots, at most {most}");
        }
    }
}
